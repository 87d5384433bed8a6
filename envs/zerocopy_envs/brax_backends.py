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

UNSUPPORTED = {
    ("swimmer", "spring"): "brax has swimmer for generalized alone",
    ("swimmer", "positional"): "brax has swimmer for generalized alone",
    ("swimmer", "mjx"): "brax has swimmer for generalized alone",
}
"""Pairs of environment and backend that do not run, and why. A slow test tries every pair."""


def working_backends(environment: str) -> tuple[str, ...]:
    """The backends that an environment runs on, the default first."""
    return tuple(backend for backend in BACKENDS if (environment, backend) not in UNSUPPORTED)


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
            notes[environment] = f"backends: {', '.join(working_backends(environment))}; {refused}"
    return notes
