"""Small runs that the tests of the training loop share."""

import dataclasses

import jax
import numpy as np

from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import (
    CheckpointConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    NetworkConfig,
    R2D2Config,
    VTraceConfig,
)
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.loops.run_checkpoint import restore_train_state

# lecun: the orthogonal initialiser's decompositions take longer to compile than all else.
MLP = NetworkConfig(hidden_sizes=(8,), init="lecun")
LSTM = dataclasses.replace(MLP, core="lstm", core_size=4, use_last_action=True)

R2D2 = R2D2Config(
    unroll_length=5,
    sequence_length=5,
    period=5,
    batch_size=4,
    replay_capacity=60,
    min_replay=12,
    n_step=2,
    target_update_period=3,
)

CATCH = Config(
    env=EnvConfig("zerocopy:Catch", num_envs=4, settings={"rows": 4, "columns": 3}),
    total_env_steps=300,
    agent=VTraceConfig(unroll_length=5, learning_rate=1e-2),
    network=MLP,
    checkpoint=CheckpointConfig(every_s=1e6),
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
)
"""Episodes of 3 steps; an update takes at most 20 env_steps."""


def read_checkpoint(config, run_dir, step=None):
    """(step, TrainState) of a checkpoint, on one device."""
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    types = jax.eval_shape(lambda: init_train_state(agent, environment, config.seed, config.env.num_envs))
    with Checkpointer(run_dir / "checkpoints") as saves:
        return restore_train_state(saves, types, step)


def read_learned(config, run_dir):
    """Parameters, optimiser's state and replay of a run's last checkpoint."""
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    types = jax.eval_shape(lambda: agent.init(jax.random.key(0, impl="threefry2x32")))
    with Checkpointer(run_dir / "checkpoints") as saves:
        step, found = saves.restore({"learner": types._replace(replay=()), "replay": types.replay})
    assert step >= config.total_env_steps
    learner = found["learner"]
    tree = learner.params, learner.opt_state, found["replay"]
    return jax.tree.map(np.asarray, tree)
