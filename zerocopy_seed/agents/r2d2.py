"""Recurrent replayed Q-learning (R2D2, Kapturowski et al. 2019) as pure functions; DQN without a core."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import DiscreteAction, EnvironmentSpec, MultiDiscreteAction, TimeStep
from zerocopy_seed import replay as replays
from zerocopy_seed.agents.optimizer import (
    apply_gradients,
    choose,
    decayed_learning_rate,
    float_settings,
    make_optimizer,
)
from zerocopy_seed.agents.r2d2_loss import initial_mass, q_values, window_loss
from zerocopy_seed.agents.stand_ins import count_stand_ins
from zerocopy_seed.config import R2D2Config
from zerocopy_seed.ops import counters
from zerocopy_seed.ops.collectives import device_index, local_copy, sum_over_devices
from zerocopy_seed.ops.exploration import deal_rungs, epsilon_greedy, epsilon_ladder
from zerocopy_seed.ops.q_learning import q_of
from zerocopy_seed.ops.random import next_uniforms, shard_keys
from zerocopy_seed.recurrent import (
    init_network,
    initial_recurrent,
    network_input_step,
)
from zerocopy_seed.replay_layout import make_layout
from zerocopy_seed.types import (
    ActingParams,
    Agent,
    AgentState,
    Array,
    Exploration,
    Key,
    LearnerState,
    Mode,
    Trajectory,
    valid_transitions,
)


class R2D2Output(NamedTuple):
    """What the behaviour policy said: `q_value` of the action taken and the largest, `q_max`; [B] float32."""

    q_value: Array
    q_max: Array


class Target(NamedTuple):
    """The target network: its variables, and `age`, int32 updates since they were copied."""

    params: Any
    age: Array


def require_discrete_action(spec: EnvironmentSpec) -> None:
    """Refuses an environment that R2D2 cannot act in.

    Raises:
      UserError: an action that is not one discrete number.
    """
    if not isinstance(spec.action, DiscreteAction):
        several = isinstance(spec.action, MultiDiscreteAction)
        raise UserError(
            "env.name",
            expected="an environment of one discrete action with agent.name = 'r2d2'",
            found=f"one of {'several discrete actions' if several else 'continuous actions'}",
            remedy="choose another, or set agent.name = 'vtrace'",
        )


def make_r2d2_agent(
    config: R2D2Config,
    network: nn.Module,
    spec: EnvironmentSpec,
    *,
    num_slots: int,
    frame_stack: int = 1,
    axis_name: str | None = None,
) -> Agent:
    """The agent of `config` over `network`.

    Args:
      config: its float fields become `LearnerState.settings`, but for the epsilons, which acting reads and
        learning does not; all others are static.
      network: see `zerocopy_seed.networks`; its policy head gives advantages, its value head the value.
      spec: the environment's; its action is discrete (`require_discrete_action`).
      num_slots: all devices' together; they share the ladder of epsilons and the replay.
      frame_stack: observations seen at once.
      axis_name: mesh axis over which slots are spread, inside `shard_map`; None for one device.

    Raises:
      UserError: a network with a core, and sequences that begin where its state is not stored.
    """
    ladder = epsilon_ladder(num_slots, config.epsilon_base, config.epsilon_alpha)[deal_rungs(num_slots)]
    layout = make_layout(config, num_slots=num_slots, frame_stack=frame_stack)
    # The configuration knows only the default network's core.
    if jax.tree.leaves(network.initial_core(1)) and not layout.stores_core:
        raise UserError(
            "agent.period",
            expected=f"a multiple of agent.unroll_length = {config.unroll_length}, where states are stored",
            found=str(config.period),
            remedy="set it so, or take the core out of the network",
        )

    def init(key: Key) -> LearnerState:
        learner_key, network_key = jax.random.split(key)
        settings = float_settings(config)
        params = init_network(network, spec, frame_stack, network_key)
        recurrent = initial_recurrent(network, spec, frame_stack, 1)
        row = replays.Rows(
            timestep=TimeStep(
                step_type=jax.ShapeDtypeStruct((), jnp.int8),
                reward=jax.ShapeDtypeStruct((), jnp.float32),
                discount=jax.ShapeDtypeStruct((), jnp.float32),
                observation=spec.observation,
            ),
            last_action=jax.ShapeDtypeStruct((), jnp.int32),
            actor_output=R2D2Output(*[jax.ShapeDtypeStruct((), jnp.float32)] * 2),
        )
        core = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), recurrent.core)
        return LearnerState(
            params=params,
            opt_state=make_optimizer(config.optimizer, settings, settings["learning_rate"]).init(params),
            target=Target(jax.tree.map(jnp.copy, params), jnp.int32(0)),
            replay=replays.make_replay(layout, row, core, num_slots=num_slots, num_shards=config.num_shards),
            statistics=(),
            key=learner_key,
            env_steps=counters.make_counter(),
            num_updates=counters.make_counter(),
            settings=settings,
        )

    def acting(state: LearnerState) -> ActingParams:
        return ActingParams(state.params, state.statistics)

    def initial_state(keys: Key, slots: Array) -> AgentState:
        # Evaluation may have more slots than the ladder has rungs.
        epsilon = jnp.asarray(ladder)[slots % num_slots]
        recurrent = initial_recurrent(network, spec, frame_stack, slots.shape[0])
        return AgentState(recurrent, Exploration(keys, epsilon))

    def act(
        params: ActingParams, state: AgentState, timestep: TimeStep, mode: Mode
    ) -> tuple[Array, R2D2Output, AgentState]:
        inputs, frames = network_input_step(state.recurrent, timestep)
        output, core = network.apply(params.network, inputs, state.recurrent.core)
        q = q_values(output, dueling=config.dueling)[0]
        exploration = state.exploration
        if mode is Mode.EVALUATE and config.eval_epsilon == 0.0:
            action = jnp.argmax(q, -1).astype(jnp.int32)
        else:
            key, uniforms = next_uniforms(exploration.key, 2)
            epsilon = exploration.epsilon if mode is Mode.TRAIN else config.eval_epsilon
            action = epsilon_greedy(q, epsilon, uniforms)
            exploration = exploration._replace(key=key)
        recurrent = state.recurrent._replace(core=core, frames=frames, last_action=action)
        return action, R2D2Output(q_of(q, action), q.max(-1)), AgentState(recurrent, exploration)

    def store(state: LearnerState, trajectory: Trajectory) -> LearnerState:
        slot = trajectory.slot - device_index(axis_name) * state.replay.cursor.shape[0]
        mass_of = functools.partial(initial_mass, config, settings=state.settings)
        num_valid = valid_transitions(trajectory.timestep.step_type).sum(dtype=jnp.int32)
        return state._replace(
            replay=replays.insert(layout, state.replay, trajectory, slot, mass_of),
            env_steps=counters.increment(state.env_steps, sum_over_devices(num_valid, axis_name)),
        )

    def learn(state: LearnerState, trajectory: Trajectory) -> tuple[LearnerState, dict[str, Array]]:
        settings = state.settings
        learning_rate = decayed_learning_rate(settings, state.env_steps)
        state = store(state, trajectory)
        replay = state.replay
        num_stored = sum_over_devices(replay.completed.sum(dtype=jnp.int32), axis_name)
        ready = num_stored >= config.min_replay
        optimizer = make_optimizer(config.optimizer, settings, learning_rate)

        def update(carry, uniforms: Array):
            params, opt_state, target, masses = carry
            replay_now = replay._replace(masses=masses)
            draw, windows = replays.sample(layout, replay_now, uniforms, num_shards=config.num_shards)
            exponent = settings["importance_exponent"] if config.sampling == "prioritized" else 0.0
            weights = replays.importance_weights(draw.probability, exponent, axis_name)
            loss = functools.partial(
                window_loss,
                config,
                network,
                target_params=target.params,
                windows=windows,
                weights=weights,
                settings=settings,
            )
            grads, (mass, metrics) = jax.grad(loss, has_aux=True)(local_copy(params, axis_name))
            grads, metrics = sum_over_devices((grads, metrics), axis_name)
            new_params, new_opt_state, applied = apply_gradients(optimizer, grads, params, opt_state)
            copied = target.age + 1 >= config.target_update_period
            new_target = Target(
                choose(copied, new_params, target.params), jnp.where(copied, 0, target.age + 1)
            )
            learned = choose(ready, (new_params, new_opt_state, new_target), (params, opt_state, target))
            masses = replays.set_masses(replay_now, draw, mass, ready).masses
            return (*learned, masses), metrics | applied

        next_key, sample_key = jax.random.split(state.key)
        uniforms = _shard_uniforms(sample_key, replay)
        (params, opt_state, target, masses), metrics = lax.scan(
            update, (state.params, state.opt_state, state.target, replay.masses), uniforms
        )
        metrics = {name: jnp.where(ready, rows.mean(0), 0.0) for name, rows in metrics.items()}
        metrics["learning_rate"] = learning_rate
        metrics["num_skipped_updates"] *= config.updates_per_insert
        metrics["num_unusable_rows"] = count_stand_ins(trajectory, axis_name)
        metrics["replay_sequences"] = num_stored.astype(jnp.float32)
        return state._replace(
            params=params,
            opt_state=opt_state,
            target=target,
            replay=replay._replace(masses=masses),
            key=next_key,
            num_updates=counters.increment(state.num_updates, jnp.int32(1)),
        ), metrics

    def _shard_uniforms(key: Key, replay: replays.Replay) -> Array:
        """Numbers for all updates, [updates, shards here, samples, uniforms], from each shard's own key."""
        num_local = replay.masses[0].shape[0]
        per_sample = replays.num_uniforms(replay)
        per_shard = config.batch_size // config.num_shards
        keys = shard_keys(key, num_local, axis_name)
        _, uniforms = next_uniforms(keys, config.updates_per_insert * per_shard * per_sample)
        uniforms = uniforms.reshape(num_local, config.updates_per_insert, per_shard, per_sample)
        return jnp.swapaxes(uniforms, 0, 1)

    def begin_from(state: LearnerState, params: ActingParams) -> LearnerState:
        target = Target(jax.tree.map(jnp.copy, params.network), jnp.int32(0))
        return state._replace(params=params.network, target=target, statistics=params.statistics)

    return Agent(init, acting, initial_state, act, learn, store, begin_from)
