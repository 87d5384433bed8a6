import os

# Eight forced devices: read when JAX starts, so it is set before the first import.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
