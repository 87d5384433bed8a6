"""Evaluation while training: whole episodes at the evaluation policy, with parameters that stand still."""

from __future__ import annotations

import contextlib
import functools
import math
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import numpy as np

from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import Config
from zerocopy_seed.loops.console import attempt, note, say
from zerocopy_seed.loops.environments import HostEnvironments
from zerocopy_seed.loops.evaluate import EvaluationResult, make_evaluator, num_evaluation_slots
from zerocopy_seed.loops.local_actors import LocalActors
from zerocopy_seed.loops.run_checkpoint import BEST
from zerocopy_seed.loops.serving import copy_acting, unix_socket
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.server import Server
from zerocopy_seed.types import ActingParams, Agent, LearnerState, Mode

_POLL_S = 0.02
_UNROLL_LENGTH = 32  # an evaluation between two others stops after a few of these


class Evaluator(Protocol):
    """Evaluates parameters, at once or in the background.

    Attributes:
      has_failed: whether there will be no more results.
    """

    has_failed: bool

    def begin(self, params: ActingParams) -> None:
        """Evaluates these; an earlier evaluation must have ended."""

    def poll(self) -> EvaluationResult | None:
        """The result, once, when it is there."""


class _Stopped(Exception):
    """An evaluation was, before its end."""


class OnDevice:
    """Plays on the device while training waits, unless `stop` comes first."""

    has_failed = False  # it would raise

    def __init__(
        self, agent: Agent, environment: Vectorized, *, num_episodes: int, seed: int, stop: StopRequest
    ):
        def between() -> None:
            if stop:
                raise _Stopped

        self._evaluate = make_evaluator(agent, environment, num_episodes, between=between)
        self._seed, self._result = seed, None

    def begin(self, params: ActingParams) -> None:
        """See `Evaluator`."""
        with contextlib.suppress(_Stopped):
            self._result = hearing_signals(lambda: self._evaluate(params, self._seed))

    def poll(self) -> EvaluationResult | None:
        """See `Evaluator`."""
        result, self._result = self._result, None
        return result


class InActors:
    """Plays in an actor of its own while training goes on; made by `evaluate_in_actors`.

    Between evaluations nobody takes its unrolls, so that acting stops by itself.
    """

    def __init__(
        self, engine: Engine, failure: Callable[[], str], *, per_slot: int, warn: Callable[[str], None]
    ):
        self._engine, self._failure, self._per_slot, self._warn = engine, failure, per_slot, warn
        self.has_failed = False
        self._stale: set[int] = set()
        self._episodes: list[list[tuple[float, int]]] = []
        self._is_busy = False

    def begin(self, params: ActingParams) -> None:
        """See `Evaluator`."""
        self._engine.publish(params, np.zeros(0, np.int32))
        self._engine.take_episodes()
        self._stale = set(range(self._engine.num_slots))  # in an episode that other parameters began
        self._episodes = [[] for _ in range(self._engine.num_slots)]
        self._is_busy = True

    def poll(self) -> EvaluationResult | None:
        """See `Evaluator`."""
        if self.has_failed:
            return None
        if failure := self._failure():
            self.has_failed = True
            self._warn(f"{failure}; training goes on without evaluation")
            return None
        if not self._is_busy:
            return None
        self._engine.discard(0.0)
        for slot, episode_return, length in zip(*self._engine.take_episodes(), strict=True):
            if slot in self._stale:
                self._stale.remove(slot)
            elif len(self._episodes[slot]) < self._per_slot:
                self._episodes[slot].append((episode_return, length))
        if min(map(len, self._episodes)) < self._per_slot:
            return None
        self._is_busy = False
        returns, lengths = np.array(self._episodes).reshape(-1, 2).T
        return EvaluationResult(returns, lengths)


@contextlib.contextmanager
def evaluate_in_actors(
    config: Config,
    agent: Agent,
    environment: HostEnvironments,
    params: ActingParams,
    *,
    warn: Callable[[str], None],
) -> Iterator[InActors]:
    """An actor process of `evaluation.slots` environments that nobody learns from.

    Args:
      config: the experiment.
      agent: acts by `Mode.EVALUATE`.
      environment: what is played.
      params: of the run's beginning.
      warn: shows a line of something that is wrong.
    """
    wanted = config.evaluation
    num_slots = num_evaluation_slots(wanted.episodes, wanted.slots)

    def act(params, state, timestep, _):
        return agent.act(params, state, timestep, Mode.EVALUATE)

    engine = Engine(
        agent._replace(act=act, store=None),
        environment.spec,
        params,
        seed=config.seed,
        num_slots=num_slots,
        unroll_length=_UNROLL_LENGTH,
        max_policy_lag=np.inf,
        max_batch=num_slots,
        first_slot=config.env.num_envs,  # other keys than any training slot has
    )
    hearing_signals(engine.warm_up)
    run = RunDescription("evaluation", environment.name, environment.settings, environment.spec, num_slots)
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(unix_socket())
        server = stack.enter_context(Server(engine, run, (socket,), in_thread=True))
        actors = stack.enter_context(
            LocalActors(socket, [num_slots], env=environment.name, warn=warn, name="evaluation actor")
        )

        def failure() -> str:
            return actors.check() or server.failure()

        yield InActors(engine, failure, per_slot=wanted.episodes // num_slots, warn=warn)


class Evaluation:
    """Evaluates every so often, and keeps what was best.

    Args:
      config: the experiment.
      agent: whose state it is.
      evaluator: plays.
      run_dir: keeps the best.
      env_steps: where training begins.
      best: the best return before that; -inf if there is none.

    Attributes:
      due_at: env_steps at which the next evaluation begins.
    """

    def __init__(
        self,
        config: Config,
        agent: Agent,
        evaluator: Evaluator,
        run_dir: pathlib.Path,
        *,
        env_steps: int,
        best: float,
    ):
        self._every, self._evaluator, self._best = config.evaluation.every_env_steps, evaluator, best
        self._copy = jax.jit(functools.partial(copy_acting, agent))
        self._saves = Checkpointer(run_dir / BEST, 1)
        self.due_at = self._after(env_steps)
        self._params: Any = None
        self._env_steps = 0

    def look(self, learner: LearnerState, env_steps: int) -> dict[str, Any]:
        """Begins an evaluation if one is due; the figures of one that has ended, for a line of metrics."""
        if self._params is None and env_steps >= self.due_at:
            # a copy, since the learner's state is donated to its next update
            self._params, self._env_steps = self._copy(learner), env_steps
            self.due_at = self._after(env_steps)
            note("evaluating", f"evaluating at {env_steps:,} env_steps", env_steps=env_steps)
            self._evaluator.begin(self._params)
        return self._take_result()

    def finish(self, stop: StopRequest) -> dict[str, Any]:
        """The figures of an evaluation that is under way as training ends, unless `stop` comes first."""
        if self._params is not None and not stop:
            say(f"finishing the evaluation at {self._env_steps:,} env_steps")
        while self._params is not None and not stop and not self._evaluator.has_failed:
            if figures := self._take_result():
                return figures
            time.sleep(_POLL_S)
        return {}

    def _take_result(self) -> dict[str, Any]:
        result = self._evaluator.poll()
        if result is None:
            return {}
        params, self._params = self._params, None
        episode_return = float(result.returns.mean())
        if episode_return > self._best:
            self._best = episode_return
            attempt(self._saves.save, self._env_steps, {"acting": params})
        return {
            "evaluation_env_steps": self._env_steps,
            "evaluation_episodes": len(result.returns),
            "evaluation_return": episode_return,
            "evaluation_length": float(result.lengths.mean()),
        }

    def close(self) -> None:
        """Waits for a save that is under way."""
        attempt(self._saves.wait)
        self._saves.close()

    def _after(self, env_steps: int) -> float:
        return (env_steps // self._every + 1) * self._every


@contextlib.contextmanager
def evaluate_while_training(
    config: Config,
    agent: Agent,
    environment: Vectorized | HostEnvironments | None,
    learner: LearnerState,
    run_dir: pathlib.Path,
    stop: StopRequest,
    *,
    warn: Callable[[str], None],
) -> Iterator[Evaluation | None]:
    """What evaluates a run from its beginning to its end; None where nothing is to be evaluated.

    Args:
      config: the experiment.
      agent: whose state it is.
      environment: what is played; None where there is none.
      learner: where the run begins, or is resumed.
      run_dir: of the run, whose metrics tell what was best before.
      stop: ends an evaluation that training waits for.
      warn: shows a line of something that is wrong.
    """
    if environment is None or config.evaluation.every_env_steps == math.inf:
        yield None
        return
    with contextlib.ExitStack() as stack:
        if isinstance(environment, HostEnvironments):
            params = jax.jit(functools.partial(copy_acting, agent))(learner)
            evaluator: Evaluator = stack.enter_context(
                evaluate_in_actors(config, agent, environment, params, warn=warn)
            )
        else:
            evaluator = OnDevice(
                agent, environment, num_episodes=config.evaluation.episodes, seed=config.seed, stop=stop
            )
        returns = [row["evaluation_return"] for row in read_metrics(run_dir) if "evaluation_return" in row]
        evaluation = Evaluation(
            config,
            agent,
            evaluator,
            run_dir,
            env_steps=as_int(learner.env_steps),
            best=max(returns, default=-math.inf),
        )
        stack.callback(evaluation.close)
        yield evaluation
