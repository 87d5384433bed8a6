"""Beginning a run with the parameters of another."""

from __future__ import annotations

import pathlib
from typing import NamedTuple

import jax

from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.loops.console import complain
from zerocopy_seed.loops.run_checkpoint import CHECKPOINTS, load_one_run_config
from zerocopy_seed.types import ActingParams, Agent, LearnerState


class Origin(NamedTuple):
    """What a run begins with: `params`, of another run's checkpoint at `env_steps`."""

    env_steps: int
    params: ActingParams


def load_origin(run_dir: pathlib.Path, agent: Agent, learner: LearnerState) -> Origin:
    """The parameters of a run's newest intact checkpoint, for an agent that can begin from them.

    Args:
      run_dir: of that run.
      agent: of the new one.
      learner: its state, or its types.

    Raises:
      UserError: no such run, or its parameters do not fit: names the first leaf and both shapes.
    """
    load_one_run_config(run_dir)  # a directory without a run, or with many, is refused by name
    with Checkpointer(run_dir / CHECKPOINTS, warn=complain) as checkpointer:
        return Origin(*checkpointer.restore("acting", jax.eval_shape(agent.acting, learner)))
