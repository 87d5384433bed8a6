"""A simulator that owns its loop, driven by a learner elsewhere. Needs no JAX.

zerocopy-seed train CONFIG.toml        # env.name = "own_loop:spec", run from this folder; prints ADDRESS
python own_loop.py ADDRESS [STEPS]
"""

import contextlib
import sys

import numpy as np

from zerocopy_envs import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_seed.remote.client import ActorClient
from zerocopy_seed.remote.errors import RunEnded

NUM_CARTS = 8
EPISODE_STEPS = 50


def spec() -> EnvironmentSpec:
    """What the learner must know: `env.name` of its configuration names this function."""
    return EnvironmentSpec(ArraySpec((2,), np.float32), DiscreteAction(3), EPISODE_STEPS)


class Carts:
    """Carts on a line, pushed left, not at all or right, that earn most where they stand still at 0."""

    def __init__(self, seeds: list[int]):
        self._generator = np.random.default_rng(seeds)
        self._position = self._generator.uniform(-1, 1, len(seeds))
        self._speed = np.zeros(len(seeds))
        self._age = 0

    def first(self) -> TimeStep:
        """The beginning of an episode: no reward yet."""
        return self._timestep(StepType.FIRST, np.zeros(len(self._position)))

    def push(self, actions: np.ndarray) -> TimeStep:
        """One step of every cart; the step after the last one puts them anywhere, whatever the actions."""
        if self._age == EPISODE_STEPS:
            self._position = self._generator.uniform(-1, 1, len(actions))
            self._speed[:], self._age = 0, 0
            return self.first()
        self._age += 1
        self._speed += 0.1 * (actions - 1)
        self._position += 0.1 * self._speed
        return self._timestep(
            StepType.LAST if self._age == EPISODE_STEPS else StepType.MID, 1 - np.abs(self._position)
        )

    def _timestep(self, step_type: StepType, reward: np.ndarray) -> TimeStep:
        # Time runs out, nothing terminates: the discount stays 1.
        observation = np.stack([self._position, self._speed], axis=1).astype(np.float32)
        return TimeStep(np.full(len(reward), step_type), reward, np.ones(len(reward)), observation)


def main(address: str, num_steps: int) -> None:
    # RunEnded: the learner has all the steps that it wanted.
    with contextlib.suppress(RunEnded), ActorClient(address, spec(), NUM_CARTS) as client:
        carts = Carts(client.seeds)
        timestep = carts.first()
        for _ in range(num_steps):
            timestep = carts.push(client.step(timestep))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
