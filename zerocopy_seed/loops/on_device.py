"""Training where the environments live: unroll and learn fused in one donated call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.episodes import (
    EpisodeSums,
    EpisodeTracker,
    add_episodes,
    make_episode_sums,
    make_tracker,
    sum_episodes,
    track_episodes,
)
from zerocopy_seed.keys import Stream, slot_keys, stream_key
from zerocopy_seed.ops import summation
from zerocopy_seed.ops.collectives import device_index, local_copy, sum_over_devices
from zerocopy_seed.ops.summation import CompensatedSum
from zerocopy_seed.rollout import ActorState, begin, unroll
from zerocopy_seed.types import Agent, Array, LearnerState, Mode, Trajectory


class TrainState(NamedTuple):
    """All of a run: the learner and what its environments carry from one unroll to the next.

    Where the environments are in actors, `actor` and `episodes` are ().
    """

    learner: LearnerState
    actor: ActorState | Any
    episodes: EpisodeTracker | Any


class Window(NamedTuple):
    """Figures since the last log line: sums of the agent's metrics over `num_updates`, and episodes.

    The metrics lie in one vector, in the order of `metric_names`: a sum for each costs a kernel each.
    """

    metric_sums: CompensatedSum
    num_updates: Array
    episodes: EpisodeSums


class Program(NamedTuple):
    """What trains.

    Attributes:
      agent: whose state it is.
      dispatch: (state, window, num_updates int32) -> state, window: so many updates or fewer; donates both.
      metric_names: of the metrics in its windows.
      figures: a line of metrics -> the same with what else there is to say, since the last one.
      failure: why it cannot go on, in one line; "" as long as it can.
      gauges: what is so right now, for the metrics page; from any thread.
    """

    agent: Agent
    dispatch: Callable[[TrainState, Window, Any], tuple[TrainState, Window]]
    metric_names: tuple[str, ...]
    figures: Callable[[dict[str, Any]], dict[str, Any]] = dict
    failure: Callable[[], str] = str
    gauges: Callable[[], dict[str, float]] = dict


Counts = tuple[Array, Array, Array]  # of `sum_episodes`
Update = Callable[[TrainState], tuple[TrainState, dict[str, Array], Counts]]
PlayedUpdate = Callable[[TrainState], tuple[TrainState, dict[str, Array], Counts, Trajectory]]


def init_train_state(agent: Agent, environment: Vectorized, seed: Array | int, num_envs: int) -> TrainState:
    """The state of a run that has not begun; slots are 0..num_envs - 1."""
    slots = jnp.arange(num_envs, dtype=jnp.int32)
    actor = begin(
        agent.initial_state,
        environment.reset,
        slot_keys(seed, Stream.AGENT, slots),
        slot_keys(seed, Stream.ENVIRONMENT, slots),
        slots,
    )
    return TrainState(agent.init(stream_key(seed, Stream.LEARNER)), actor, make_tracker(num_envs))


def make_update(
    agent: Agent, environment: Vectorized, unroll_length: int, *, axis_name: str | None = None
) -> Update:
    """One unroll of every slot and one `learn`: TrainState -> TrainState, metrics, episode counts.

    Pure and unjitted: it runs under jit, vmap over seeds, and `shard_map` with slots spread over `axis_name`.
    """
    play_and_learn = make_played_update(agent, environment, unroll_length, axis_name=axis_name)

    def update(state: TrainState):
        state, metrics, counted, _ = play_and_learn(state)
        return state, metrics, counted

    return update


def make_played_update(
    agent: Agent, environment: Vectorized, unroll_length: int, *, axis_name: str | None = None
) -> PlayedUpdate:
    """`make_update`'s function, which also gives the trajectory that was played and learned from."""

    def update(state: TrainState):
        state, trajectory, counted = play(agent, environment, state, unroll_length, axis_name=axis_name)
        learner, metrics = agent.learn(state.learner, trajectory)
        return state._replace(learner=learner), metrics, counted, trajectory

    return update


def play(
    agent: Agent,
    environment: Vectorized,
    state: TrainState,
    unroll_length: int,
    *,
    axis_name: str | None = None,
) -> tuple[TrainState, Trajectory, Counts]:
    """One unroll of every slot of `state`: the state, whose learner is as it was, and the episode counts."""
    num_local = state.episodes.length.shape[0]
    slots = jnp.arange(num_local, dtype=jnp.int32) + device_index(axis_name) * num_local
    actor, trajectory = unroll(
        agent.act,
        environment.step,
        agent.acting(state.learner),
        state.actor,
        slots,
        length=unroll_length,
        mode=Mode.TRAIN,
    )
    tracker, finished = track_episodes(state.episodes, trajectory.timestep)
    counted = sum_over_devices(sum_episodes(finished), axis_name)
    return TrainState(state.learner, actor, tracker), trajectory, counted


def metric_names(update: Update, state: TrainState) -> tuple[str, ...]:
    """Names of the metrics that `update` returns (traced, not run), in a window's order."""
    _, metrics, _ = jax.eval_shape(update, state)
    return tuple(sorted(metrics))


def make_window(num_metrics: int) -> Window:
    """An empty window."""
    return Window(summation.make_sum((num_metrics,)), jnp.int32(0), make_episode_sums())


def make_dispatch(
    update: Update, metric_names: Sequence[str]
) -> Callable[[TrainState, Window, Array], tuple[TrainState, Window]]:
    """Several updates in one call: (state, window, num_updates int32) -> state, window.

    The number of updates is an argument, so that one compiled program serves any number, and how updates are
    grouped changes nothing.
    """

    def one_update(_, carry: tuple[TrainState, Window]) -> tuple[TrainState, Window]:
        state, window = carry
        state, metrics, counted = update(state)
        return state, add_to_window(window, metrics, metric_names, counted)

    def dispatch(state: TrainState, window: Window, num_updates: Array) -> tuple[TrainState, Window]:
        return lax.fori_loop(0, num_updates, one_update, (state, window))

    return dispatch


def add_to_window(
    window: Window, metrics: dict[str, Array], metric_names: Sequence[str], counted: Counts | None = None
) -> Window:
    """The window after one more update; `counted` are the episodes of the device, if it played any."""
    sums = summation.add(window.metric_sums, jnp.stack([metrics[name] for name in metric_names]))
    episodes = window.episodes if counted is None else add_episodes(window.episodes, counted)
    return Window(sums, window.num_updates + 1, episodes)


def make_recorded_dispatch(
    played_update: PlayedUpdate,
    metric_names: Sequence[str],
    most: int,
    *,
    axis_name: str | None = None,
) -> Callable[[TrainState, Window, Array], tuple[TrainState, Window, Trajectory]]:
    """`make_dispatch`'s function, which also gives the trajectories, [most, ...]; what is past them is zeros.

    Args:
      played_update: of `make_played_update`.
      metric_names: in a window's order.
      most: how many updates it can make.
      axis_name: mesh axis over which slots are spread, inside `shard_map`.
    """

    def dispatch(state: TrainState, window: Window, num_updates: Array):
        *_, types = jax.eval_shape(played_update, state)
        played = jax.tree.map(lambda leaf: jnp.zeros((most, *leaf.shape), leaf.dtype), types)

        def one_update(row: Array, carry: tuple[TrainState, Window, Trajectory]):
            state, window, played = carry
            state, metrics, counted, trajectory = played_update(state)
            played = jax.tree.map(lambda rows, new: rows.at[row].set(new), played, trajectory)
            return state, add_to_window(window, metrics, metric_names, counted), played

        carry = state, window, local_copy(played, axis_name)
        return lax.fori_loop(0, num_updates, one_update, carry)

    return dispatch
