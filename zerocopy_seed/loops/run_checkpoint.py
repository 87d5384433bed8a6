"""What a run's checkpoint holds, and how to get it back."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import CheckpointConfig, Config
from zerocopy_seed.config_file import load_run_config
from zerocopy_seed.config_sweep import has_members, make_members
from zerocopy_seed.curves import MEMBERS
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.compile_cache import use_compile_cache
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.memory import in_gigabytes, num_bytes
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.types import ActingParams, Agent

CHECKPOINTS = "checkpoints"
"""Where they lie in a run directory."""
BEST = "best"
"""Where the one lies that evaluated best while training; it holds what acting reads."""

_LARGE_REPLAY = 2 * 10**9  # writing more with every checkpoint is a choice


def saves_replay(config: CheckpointConfig, state: TrainState) -> bool:
    """Whether checkpoints hold the replay of `state`, which may be types.

    Raises:
      UserError: the choice is left to its size, and it has 2 GB or more.
    """
    if config.replay != "auto":
        return config.replay
    size = num_bytes(state.learner.replay)
    if size >= _LARGE_REPLAY:
        raise UserError(
            "checkpoint.replay",
            expected=f"true or false where the replay has {in_gigabytes(_LARGE_REPLAY)} or more",
            found=f"'auto', and a replay of {in_gigabytes(size)}",
            remedy="true writes it with every checkpoint, false refills it after a resume",
        )
    return True


def checkpoint_items(agent: Agent, state: TrainState, *, replay: bool = True) -> dict[str, Any]:
    """A checkpoint's separate items: `acting` is all that evaluation reads, the others are the TrainState.

    Args:
      agent: whose state it is.
      state: what is saved.
      replay: whether the replay is among them.
    """
    items = {
        "acting": agent.acting(state.learner),
        "learner": state.learner._replace(replay=()),
        "loop": (state.actor, state.episodes),
    }
    return {**items, "replay": state.learner.replay} if replay else items


def restore_train_state(
    checkpointer: Checkpointer,
    target: TrainState,
    step: int | None = None,
    *,
    warn: Callable[[str], None] = warnings.warn,
) -> tuple[int, TrainState]:
    """The step and its TrainState; the replay is empty where the checkpoint holds none.

    Args:
      checkpointer: of the run's checkpoints.
      target: the TrainState's arrays or types: see `Checkpointer.restore`, which also says what is raised.
      step: which one; None takes the newest intact one.
      warn: called with one line if the checkpoint lacks the replay that `target` has.
    """
    targets = {
        "learner": target.learner._replace(replay=()),
        "loop": (target.actor, target.episodes),
        "replay": target.learner.replay,
    }
    step, restored = checkpointer.restore(targets, step=step, optional=("replay",))
    if "replay" not in restored:
        restored["replay"] = empty_replay(target.learner.replay)
        if jax.tree.leaves(restored["replay"]):
            warn(f"checkpoint {step} holds no replay: it is refilled before learning goes on")
    learner = restored["learner"]._replace(replay=restored["replay"])
    return step, TrainState(learner, *restored["loop"])


def empty_replay(types: Any) -> Any:
    """A replay that holds nothing, which is zeros, where the types' shardings say."""
    return jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=getattr(leaf, "sharding", None)), types
    )


def load_one_run_config(run_dir: str | pathlib.Path) -> Config:
    """The configuration of a directory of one run.

    Raises:
      UserError: no run, or many.
    """
    config = load_run_config(run_dir)
    if has_members(config):
        raise UserError(
            str(run_dir),
            expected="one run",
            found=f"a directory of {len(make_members(config))}",
            remedy=f"choose one of those in {pathlib.Path(run_dir) / MEMBERS}",
        )
    return config


def restore_acting(
    run_dir: str | pathlib.Path,
    step: int | Literal["best"] | None = None,
    *,
    warn: Callable[[str], None] = warnings.warn,
) -> tuple[Agent, Vectorized | HostEnvironments, int, ActingParams]:
    """A run's agent, its environment, and the step and parameters of a checkpoint; reads only `acting`.

    Args:
      run_dir: what `train` wrote.
      step: which checkpoint; "best" is the one that evaluated best, None takes the newest intact one.
      warn: called with a line for each checkpoint that is damaged and passed over.

    Raises:
      UserError: no such run or checkpoint.
    """
    use_compile_cache()
    config = load_one_run_config(run_dir)
    environment = find_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    target = jax.eval_shape(lambda: agent.acting(agent.init(stream_key(config.seed, Stream.LEARNER))))
    where = pathlib.Path(run_dir) / (BEST if step == "best" else CHECKPOINTS)
    if step == "best" and not where.is_dir():
        raise UserError(
            f"{run_dir}: the best checkpoint",
            expected="a run with evaluation.every_env_steps, and an evaluation that has ended",
            found=f"no {BEST} there",
        )
    with Checkpointer(where, warn=warn) as checkpointer:
        found, params = checkpointer.restore("acting", target, None if step == "best" else step)
    return agent, environment, found, params
