"""Optional packages: which extra brings which. Imports no JAX."""

from __future__ import annotations

from zerocopy_envs.errors import UserError

EXTRAS = {
    "learner": (
        "jax",
        "chex",
        "flax",
        "optax",
        "orbax",
        "gymnax",
        "six",
        "matplotlib",
        "tensorboardX",
        "grpc_health",
    ),
    "certs": ("cryptography",),
    "brax": ("brax",),
    "playground": ("mujoco_playground",),
    "atari": ("gymnasium", "ale_py"),
    "envpool": ("envpool",),
    "ray": ("ray",),
    "video": ("imageio", "imageio_ffmpeg", "pygame"),
}
"""Modules of each extra, by import name."""


def install_command(extra: str) -> str:
    """What to type to get an extra."""
    return f'pip install "zerocopy_seed[{extra}]"'


def missing_extra(error: ImportError) -> UserError | None:
    """What to tell a user whose import failed for want of an extra; None if it failed for another reason."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if isinstance(error, ModuleNotFoundError) and module in modules:
            return UserError(
                module, expected="it to be installed", found="no such package", remedy=install_command(extra)
            )
    return None
