"""Plays with a trained policy, step by step, and prints the return of every episode that ends.

python scripts/evaluate.py RUN_DIR [num_steps]
"""

import sys

import jax
import numpy as np

from zerocopy_envs import StepType, make
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import load_policy
from zerocopy_seed.config_file import load_run_config

NUM_ENVS = 4


def main(run_dir: str, num_steps: int) -> None:
    policy = load_policy(run_dir)
    config = load_run_config(run_dir).env
    environment = Vectorized(make(config.name, **config.settings))
    keys = jax.random.split(jax.random.key(0, impl="threefry2x32"), NUM_ENVS)
    env_state, timestep = jax.jit(environment.reset)(keys)
    agent_state = policy.initial_state(NUM_ENVS)
    step, returns = jax.jit(environment.step), np.zeros(NUM_ENVS)
    for _ in range(num_steps):
        action, agent_state = policy.step(timestep, agent_state)
        env_state, timestep = step(env_state, action)
        returns = np.where(timestep.step_type == StepType.FIRST, 0.0, returns + timestep.reward)
        for slot in np.flatnonzero(timestep.step_type == StepType.LAST):
            print(f"environment {slot}: return {returns[slot]:g}")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 1000)
