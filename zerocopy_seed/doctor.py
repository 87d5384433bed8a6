"""Says what this installation can do. Imports JAX only once it is known to be there."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform

from zerocopy_seed.extras import EXTRAS, install_command

_PACKAGES = (
    "zerocopy_seed",
    "numpy",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "gymnax",
    "brax",
    "ale-py",
)


def run() -> int:
    """Prints versions, extras and devices, and runs a tiny computation.

    Returns:
      The process's exit code: 0, or 1 if JAX is installed and does not compute.
    """
    print(f"Python {platform.python_version()} on {platform.platform()}")
    for package in _PACKAGES:
        try:
            print(f"  {package:<18} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            print(f"  {package:<18} not installed")
    print("Extras")
    for extra, modules in EXTRAS.items():
        missing = [module for module in modules if importlib.util.find_spec(module) is None]
        state = f"missing {', '.join(missing)}; {install_command(extra)}" if missing else "present"
        print(f"  {extra:<18} {state}")
    if importlib.util.find_spec("jax") is None:
        return 0
    print("JAX")
    try:
        _check_jax()
    except Exception as error:  # whatever is broken in a driver or a plugin is what the user came to see
        print(f"  does not compute: {type(error).__name__}: {error}")
        return 1
    return 0


def _check_jax() -> None:
    import jax
    import jax.numpy as jnp

    from zerocopy_seed.loops.compile_cache import compile_cache_dir

    print(f"  devices            {', '.join(str(device) for device in jax.devices())}")
    print(f"  compile cache      {compile_cache_dir()}")
    total = int(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
    if total != 512:
        raise ArithmeticError(f"a product of two 8x8 matrices of ones sums to 512, found {total}")
    print("  computes           yes")
