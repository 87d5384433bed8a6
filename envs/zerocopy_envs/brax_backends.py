"""What brax 0.14.2 has, and on which of its physics backends each environment runs. Imports no JAX."""

from __future__ import annotations

BACKENDS = ("spring", "generalized", "positional", "mjx")
"""All there are, the one taken by default first."""

ENVIRONMENTS = (
    "ant",
    "fast",
    "halfcheetah",
    "hopper",
    "humanoid",
    "humanoidstandup",
    "inverted_double_pendulum",
    "inverted_pendulum",
    "pusher",
    "reacher",
    "swimmer",
    "walker2d",
)

_NO_SWIMMER = "brax 0.14.2 has swimmer for generalized alone"

UNSUPPORTED = {
    ("swimmer", "spring"): _NO_SWIMMER,
    ("swimmer", "generalized"): "brax 0.14.2 calls jax.numpy.clip with a_min, which JAX has no more",
    ("swimmer", "positional"): _NO_SWIMMER,
    ("swimmer", "mjx"): _NO_SWIMMER,
}
"""Pairs of environment and backend that do not run, and why. A slow test tries every pair."""


def working_backends(environment: str) -> tuple[str, ...]:
    """The backends that an environment runs on, the default first."""
    return tuple(backend for backend in BACKENDS if (environment, backend) not in UNSUPPORTED)


def working_environments() -> tuple[str, ...]:
    """Those that run on some backend."""
    return tuple(environment for environment in ENVIRONMENTS if working_backends(environment))


def backend_notes() -> dict[str, str]:
    """For a listing: each environment that does not run on every backend, and what it does not run on."""
    notes = {}
    for environment in ENVIRONMENTS:
        reasons: dict[str, list[str]] = {}
        for backend in BACKENDS:
            if (environment, backend) in UNSUPPORTED:
                reasons.setdefault(UNSUPPORTED[environment, backend], []).append(backend)
        if reasons:
            refused = "; ".join(f"not {', '.join(pairs)} ({reason})" for reason, pairs in reasons.items())
            runs = ", ".join(working_backends(environment)) or "none"
            notes[environment] = f"backends: {runs}; {refused}"
    return notes
