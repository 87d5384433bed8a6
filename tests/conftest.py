import os
import shutil
import tempfile

# Eight forced devices, and little optimisation, since nearly all of a test's time is compiling. Read when JAX
# starts, so set before the first import; child processes inherit them.
_FLAGS = ("--xla_force_host_platform_device_count=8", "--xla_backend_optimization_level=0")
os.environ["XLA_FLAGS"] = " ".join(dict.fromkeys((*os.environ.get("XLA_FLAGS", "").split(), *_FLAGS)))

# A compile cache of this process and its children: equal programs compile once. Workers do not share one,
# since JAX may read an entry that another process is writing.
os.environ["ZEROCOPY_SEED_CACHE_DIR"] = tempfile.mkdtemp(prefix="zerocopy-seed-tests-")

import jax  # noqa: E402
from optional_suites import missing_suites  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_compilation_cache_dir", os.environ["ZEROCOPY_SEED_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_report_header():
    """Suites whose environments no test runs, since they are not there: said, and never counted as passed."""
    return [f"not tested: suite {suite}: {reason}" for suite, reason in missing_suites().items()]


def pytest_unconfigure():
    shutil.rmtree(os.environ["ZEROCOPY_SEED_CACHE_DIR"], ignore_errors=True)
