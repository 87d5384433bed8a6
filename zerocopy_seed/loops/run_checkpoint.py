"""What a run's checkpoint holds, and how to get it back."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import jax

from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config_file import load_run_config
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.types import ActingParams, Agent

CHECKPOINTS = "checkpoints"
"""Where they lie in a run directory."""


def checkpoint_items(agent: Agent, state: TrainState) -> dict[str, Any]:
    """A checkpoint's separate items: `acting` is all that evaluation reads, the others are the TrainState."""
    return {
        "acting": agent.acting(state.learner),
        "learner": state.learner._replace(replay=()),
        "replay": state.learner.replay,
        "loop": (state.actor, state.episodes),
    }


def restore_train_state(
    checkpointer: Checkpointer, agent: Agent, target: TrainState, step: int | None = None
) -> tuple[int, TrainState]:
    """The step and its TrainState, shaped as `target`; see `Checkpointer.restore`."""
    items: Mapping[str, Any] = checkpoint_items(agent, target)
    targets = {name: items[name] for name in ("learner", "replay", "loop")}
    step, restored = checkpointer.restore(targets, step=step)
    learner = restored["learner"]._replace(replay=restored["replay"])
    return step, TrainState(learner, *restored["loop"])


def restore_acting(
    run_dir: str | pathlib.Path, step: int | None = None
) -> tuple[Agent, Vectorized, int, ActingParams]:
    """A run's agent, its environment, and the step and parameters of a checkpoint; reads only `acting`.

    Args:
      run_dir: what `train` wrote.
      step: which checkpoint; None takes the newest intact one.

    Raises:
      UserError: no such run or checkpoint.
    """
    use_compile_cache()
    config = load_run_config(run_dir)
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    target = jax.eval_shape(lambda: agent.acting(agent.init(stream_key(config.seed, Stream.LEARNER))))
    with Checkpointer(pathlib.Path(run_dir) / CHECKPOINTS) as checkpointer:
        step, params = checkpointer.restore("acting", target, step)
    return agent, environment, step, params
