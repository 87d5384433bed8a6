"""Whole episodes at the evaluation policy, from an agent or from a run directory's checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
import warnings
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from zerocopy_envs.errors import UserError
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import rollout
from zerocopy_seed.config_file import load_run_config
from zerocopy_seed.episodes import make_tracker, track_episodes
from zerocopy_seed.keys import Stream, slot_keys
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.host_play import play_episodes
from zerocopy_seed.loops.run_checkpoint import restore_acting
from zerocopy_seed.loops.video import check_video_path, record_video
from zerocopy_seed.types import ActingParams, Agent, Mode

_MAX_SLOTS = 256
_MAX_HOST_SLOTS = 64
_CHUNK = 64
_MAX_EPISODE_STEPS = 1_000_000  # where an environment sets no limit of its own


@dataclasses.dataclass(frozen=True)
class EvaluationResult:
    """Returns and lengths of whole episodes, slot by slot in the order in which each slot played them."""

    returns: np.ndarray
    lengths: np.ndarray
    env_steps: int = 0
    checkpoint_step: int = 0
    params_sha256: str = ""

    def to_json_object(self) -> dict[str, Any]:
        """What `evaluate --json` prints."""
        return {
            "num_episodes": len(self.returns),
            "return_mean": float(self.returns.mean()),
            "return_std": float(self.returns.std()),
            "return_median": float(np.median(self.returns)),
            "length_mean": float(self.lengths.mean()),
            "returns": [float(value) for value in self.returns],
            "env_steps": self.env_steps,
            "checkpoint_step": self.checkpoint_step,
            "params_sha256": self.params_sha256,
        }

    def __str__(self) -> str:
        return (
            f"{len(self.returns)} episodes: return {self.returns.mean():.2f} "
            f"(std {self.returns.std():.2f}, median {np.median(self.returns):.2f}), "
            f"length {self.lengths.mean():.1f}; checkpoint {self.checkpoint_step}"
        )


def num_evaluation_slots(num_episodes: int, max_slots: int | None = None) -> int:
    """The most slots, at most `max_slots` (256 if None), that each play the same number of episodes."""
    most = min(num_episodes, max_slots or _MAX_SLOTS)
    return next(slots for slots in range(most, 0, -1) if num_episodes % slots == 0)


def evaluate(
    agent: Agent,
    environment: Vectorized | HostEnvironments,
    params: ActingParams,
    *,
    num_episodes: int,
    seed: int,
) -> EvaluationResult:
    """Plays `num_episodes` whole episodes, the same number from every slot.

    Counting the first episodes to end, whichever slot they come from, would favour short ones.

    Args:
      agent: acts by `Mode.EVALUATE`.
      environment: vectorised, or host environments, of which some are made.
      params: what acting reads.
      num_episodes: at least 1.
      seed: the same seed plays the same episodes.

    Raises:
      UserError: an episode does not end.
    """
    if isinstance(environment, HostEnvironments):
        return _evaluate_on_host(agent, environment, params, num_episodes, seed)
    return make_evaluator(agent, environment, num_episodes)(params, seed)


def make_evaluator(
    agent: Agent,
    environment: Vectorized,
    num_episodes: int,
    *,
    between: Callable[[], None] = lambda: None,
) -> Callable[[ActingParams, int], EvaluationResult]:
    """`evaluate` of a vectorised environment as a function of parameters and seed, which compiles once.

    Args:
      agent: acts by `Mode.EVALUATE`.
      environment: vectorised.
      num_episodes: at least 1.
      between: called now and then; what it raises ends the evaluation.
    """
    num_slots = num_evaluation_slots(num_episodes)
    per_slot = num_episodes // num_slots
    max_length = environment.spec.max_episode_steps or _MAX_EPISODE_STEPS
    slots = jnp.arange(num_slots, dtype=jnp.int32)

    @jax.jit
    def begin(seed):
        actor = rollout.begin(
            agent.initial_state,
            environment.reset,
            slot_keys(seed, Stream.EVALUATION_AGENT, slots),
            slot_keys(seed, Stream.EVALUATION_ENVIRONMENT, slots),
            slots,
        )
        return actor, make_tracker(num_slots)

    @jax.jit
    def play(params, state, tracker):
        state, trajectory = rollout.unroll(
            agent.act, environment.step, params, state, slots, length=_CHUNK, mode=Mode.EVALUATE
        )
        tracker, finished = track_episodes(tracker, trajectory.timestep)
        return state, tracker, finished

    def evaluate_params(params: ActingParams, seed: int) -> EvaluationResult:
        returns: list[list[float]] = [[] for _ in range(num_slots)]
        lengths: list[list[int]] = [[] for _ in range(num_slots)]
        state, tracker = begin(np.uint32(seed))
        num_rows = 0
        while min(map(len, returns)) < per_slot:
            between()
            state, tracker, finished = play(params, state, tracker)
            num_rows += _CHUNK
            # One that NaN cuts short again and again (see `Vectorized`) never ends either.
            if int(tracker.length.max()) > max_length or num_rows > per_slot * (max_length + 1) + _CHUNK:
                raise UserError(
                    "evaluate",
                    expected=f"episodes of at most {max_length:,} steps",
                    found="one that goes on",
                    remedy="give the environment a time limit",
                )
            ended, chunk_returns, chunk_lengths = jax.device_get(finished)
            for row, slot in np.argwhere(ended):
                if len(returns[slot]) < per_slot:
                    returns[slot].append(float(chunk_returns[row, slot]))
                    lengths[slot].append(int(chunk_lengths[row, slot]))
        return EvaluationResult(np.array(returns).reshape(-1), np.array(lengths).reshape(-1))

    return evaluate_params


def _evaluate_on_host(
    agent: Agent, environments: HostEnvironments, params: ActingParams, num_episodes: int, seed: int
) -> EvaluationResult:
    num_slots = num_evaluation_slots(num_episodes, _MAX_HOST_SLOTS)
    with contextlib.closing(environments.make(num_slots)) as environment:
        returns, lengths = play_episodes(
            agent,
            environment,
            params,
            per_slot=num_episodes // num_slots,
            seed=seed,
            max_length=environment.spec.max_episode_steps or _MAX_EPISODE_STEPS,
        )
    return EvaluationResult(np.array(returns).reshape(-1), np.array(lengths).reshape(-1))


def evaluate_run(
    run_dir: pathlib.Path,
    *,
    num_episodes: int = 128,
    seed: int = 0,
    step: int | Literal["best"] | None = None,
    env: str | None = None,
    video: pathlib.Path | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> EvaluationResult:
    """Evaluates the checkpoint of a run directory, reading only its `config.toml` and `acting` item.

    Args:
      run_dir: what `train` wrote.
      num_episodes: at least 1.
      seed: the same seed plays the same episodes.
      step: which checkpoint; "best" is the one that evaluated best, None takes the newest intact one.
      env: another environment with the same spec.
      video: where to show the first slot's first episode, a .gif or .mp4; recorded before the evaluation.
      warn: called with a line for each checkpoint that is damaged and passed over.

    Raises:
      UserError: no such run or checkpoint, or an environment that does not fit or cannot be shown.
    """
    if num_episodes < 1:
        raise UserError("--episodes", expected="at least 1", found=str(num_episodes))
    if video is not None:
        check_video_path(video)
    agent, environment, checkpoint_step, params = restore_acting(run_dir, step, warn=warn)
    config = load_run_config(run_dir).env
    if env is not None:
        other = find_environment(dataclasses.replace(config, name=env, settings={}))
        require_same_spec(other, environment, env, config.name)
        environment = other
    if video is not None:
        print(record_video(agent, environment, params, video, name=env or config.name, seed=seed), flush=True)
    result = evaluate(agent, environment, params, num_episodes=num_episodes, seed=seed)
    return dataclasses.replace(
        result,
        env_steps=checkpoint_step,
        checkpoint_step=checkpoint_step,
        params_sha256=tree_sha256(params),
    )


def require_same_spec(
    environment: Vectorized | HostEnvironments,
    trained: Vectorized | HostEnvironments,
    name: str,
    trained_name: str,
) -> None:
    """Refuses an environment whose observation or action differs from what the run was trained on."""
    for field in ("observation", "action"):
        found, expected = getattr(environment.spec, field), getattr(trained.spec, field)
        if found != expected:
            raise UserError(
                f"--env {name}: {field}",
                expected=f"{expected} as in {trained_name}",
                found=str(found),
                remedy="choose an environment with the same spec",
            )
