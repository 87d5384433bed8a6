import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh

from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import EnvConfig, NetworkConfig, VTraceConfig
from zerocopy_seed.episodes import track_episodes
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.layout import DATA_AXIS, STATE_SPECS, lay_out, shard_dispatch
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.networks import make_network
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.ops.distributions import make_distribution
from zerocopy_seed.ops.running_moments import mean_and_variance
from zerocopy_seed.ops.vtrace import vtrace
from zerocopy_seed.recurrent import network_input_unroll
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode, valid_transitions

# Compiling is what takes the time: equal networks, batches and lengths share their programs through the
# compile cache, and the orthogonal initialiser's decompositions are left to its own tests.
SMALL = NetworkConfig(hidden_sizes=(16,), init="lecun")
LSTM = NetworkConfig(
    hidden_sizes=(16,),
    core="lstm",
    core_size=8,
    frame_stack=3,
    use_last_action=True,
    use_last_reward=True,
    init="lecun",
)


def make(environment_name, config, network=SMALL, num_envs=16, seed=0, settings=None):
    environment = make_environment(EnvConfig(environment_name, settings=settings or {}))
    agent = make_agent(config, network, environment.spec, num_slots=num_envs)
    state = jax.jit(lambda: init_train_state(agent, environment, seed, num_envs))()
    return agent, environment, state


def one_unroll(agent, environment, state, length):
    slots = jnp.arange(state.episodes.length.shape[0], dtype=jnp.int32)
    return jax.jit(
        lambda state: unroll(
            agent.act,
            environment.step,
            agent.acting(state.learner),
            state.actor,
            slots,
            length=length,
            mode=Mode.TRAIN,
        )
    )(state)


@pytest.mark.parametrize(
    ("name", "network"),
    [
        ("zerocopy:Catch", LSTM),
        pytest.param("gymnax:PointRobot-misc", LSTM, marks=pytest.mark.slow),
        pytest.param("zerocopy:Catch", SMALL, marks=pytest.mark.slow),
        pytest.param(
            "zerocopy:Catch", dataclasses.replace(LSTM, core="gru", frame_stack=1), marks=pytest.mark.slow
        ),
    ],
    ids=["lstm", "bounded-lstm", "mlp", "gru"],
)
def test_the_learner_sees_what_the_actor_saw(name, network):
    # The state entering row 0, re-unrolled with the acting weights, gives the actor's own log-probabilities.
    settings = {"max_steps_in_episode": 10} if name == "gymnax:PointRobot-misc" else {}
    agent, environment, state = make(name, VTraceConfig(), network, settings=settings)
    actor, _ = one_unroll(agent, environment, state, 25)
    state = state._replace(actor=actor)
    _, trajectory = one_unroll(agent, environment, state, 25)
    assert (trajectory.timestep.step_type[0] == 1).all()  # begins in the middle of an episode
    assert (trajectory.timestep.step_type == 0).any() and (trajectory.timestep.step_type == 2).any()
    _, metrics = jax.jit(agent.learn)(state.learner, trajectory)
    np.testing.assert_allclose(metrics["importance_ratio"], 1.0, atol=1e-5)


def test_an_improbable_behaviour_gives_no_nan():
    agent, environment, state = make("zerocopy:Catch", VTraceConfig(clip_rho=float("inf")))
    _, trajectory = one_unroll(agent, environment, state, 25)
    log_prob = jnp.full_like(trajectory.actor_output.log_prob, -100.0)
    trajectory = trajectory._replace(actor_output=trajectory.actor_output._replace(log_prob=log_prob))
    learner, metrics = jax.jit(agent.learn)(state.learner, trajectory)
    for leaf in jax.tree.leaves((learner.params, metrics)):
        assert np.isfinite(leaf).all()


def test_a_clipped_policy_takes_no_step_that_leads_further_away():
    """The gradient by PPO's definition (arXiv:1707.06347, eq. 7), from V-trace's advantages."""
    agent, environment, state = make("zerocopy:Catch", VTraceConfig(policy_clip=0.2))
    _, trajectory = one_unroll(agent, environment, state, 25)
    # What acted is another policy, as after some passes: ratios from about 0.5 to 2.
    moved = jnp.linspace(-0.7, 0.7, trajectory.action.size).reshape(trajectory.action.shape)
    output = trajectory.actor_output
    trajectory = trajectory._replace(actor_output=output._replace(log_prob=output.log_prob + moved))
    learn = jax.jit(agent.learn)

    def policy_loss(clip):
        settings = state.learner.settings | {"policy_clip": jnp.float32(clip)}
        return float(learn(state.learner._replace(settings=settings), trajectory)[1]["policy_loss"])

    log_prob, advantages, valid = by_hand(state, trajectory)
    ratio = np.exp(log_prob - np.asarray(trajectory.actor_output.log_prob))
    for clip in (0.0, 0.2, 1.5, np.inf):
        is_left_out = np.where(advantages > 0, ratio > 1 + clip, ratio < 1 - clip)
        expected = -(advantages * log_prob)[valid & ~is_left_out].sum() / valid.sum()
        np.testing.assert_allclose(policy_loss(clip), expected, rtol=1e-4, atol=1e-6)
    assert policy_loss(0.2) != policy_loss(np.inf)


def by_hand(state, trajectory):
    """log pi of the actions, V-trace's advantages and which rows are valid, each [T, B]."""
    config = VTraceConfig()
    environment = make_environment(EnvConfig("zerocopy:Catch"))
    network = make_network(SMALL, environment.spec)
    inputs = network_input_unroll(trajectory.recurrent, trajectory.timestep, trajectory.action)
    output, _ = network.apply(state.learner.params.network, inputs, ())
    log_prob = make_distribution(environment.spec.action).log_prob(output.policy[:-1], trajectory.action)
    valid = valid_transitions(trajectory.timestep.step_type)
    corrected = vtrace(
        output.value,
        trajectory.timestep.reward[1:],
        config.discount * trajectory.timestep.discount[1:],
        log_prob - trajectory.actor_output.log_prob,
        valid,
        lambda_=config.vtrace_lambda,
    )
    return np.asarray(log_prob), np.asarray(corrected.advantages), np.asarray(valid)


def test_rewards_are_clipped_for_learning_only():
    losses = []
    for scale, clip in ((1.0, 1.0), (20.0, 1.0), (20.0, float("inf"))):
        agent, environment, state = make("zerocopy:Catch", VTraceConfig(reward_clip=clip))
        _, trajectory = one_unroll(agent, environment, state, 25)
        timestep = trajectory.timestep._replace(reward=scale * trajectory.timestep.reward)
        _, metrics = jax.jit(agent.learn)(state.learner, trajectory._replace(timestep=timestep))
        losses.append(float(metrics["value_loss"]))
        _, finished = track_episodes(state.episodes, timestep)
        assert np.abs(finished.return_)[np.asarray(finished.ended)].max() == scale
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.slow
def test_the_adaptive_cost_follows_the_entropy():
    for target, rises in ((5.0, True), (0.0, False)):
        config = VTraceConfig(adaptive_entropy=True, target_entropy=target, unroll_length=8)
        agent, environment, state = make("zerocopy:Catch", config)
        update = jax.jit(make_update(agent, environment, 8))
        costs = []
        for _ in range(5):
            state, metrics, _ = update(state)
            costs.append(float(metrics["entropy_cost"]))
        np.testing.assert_allclose(costs[0], 0.01, rtol=1e-5)
        assert (np.diff(costs) > 0).all() if rises else (np.diff(costs) < 0).all()


def test_the_learning_rate_falls_to_zero_and_stays():
    config = VTraceConfig(learning_rate=0.5, learning_rate_decay_env_steps=300.0, unroll_length=8)
    agent, environment, state = make("zerocopy:Catch", config)
    update = jax.jit(make_update(agent, environment, 8))
    rates = []
    for _ in range(5):
        rates.append(0.5 * max(0.0, 1 - int(state.learner.env_steps.low) / 300))
        state, metrics, _ = update(state)
        np.testing.assert_allclose(metrics["learning_rate"], rates[-1], rtol=1e-5)
    assert rates[-1] == 0.0


def test_env_steps_count_only_real_transitions():
    agent, environment, state = make("zerocopy:Catch", VTraceConfig())
    _, trajectory = one_unroll(agent, environment, state, 25)
    learner, _ = jax.jit(agent.learn)(state.learner, trajectory)
    firsts = int((trajectory.timestep.step_type[1:] == 0).sum())
    assert firsts > 0
    assert int(learner.env_steps.low) == 16 * 25 - firsts


PASSES = VTraceConfig(
    num_shards=8, num_passes=2, num_minibatches=2, optimizer="rmsprop", adaptive_entropy=True
)


@pytest.mark.parametrize(
    ("config", "network"),
    [
        (
            VTraceConfig(
                num_shards=8,
                normalize_advantages=True,
                normalize_observations=True,
                normalize_rewards=True,
            ),
            SMALL,
        ),
        pytest.param(PASSES, SMALL, marks=pytest.mark.slow),
        pytest.param(PASSES, LSTM, marks=pytest.mark.slow),
    ],
    ids=["normalized-mlp", "passes-mlp", "passes-lstm"],
)
def test_one_update_on_eight_devices_is_one_update_on_one(config, network):
    assert jax.device_count() == 8
    # Slots begin at different times, so that the devices hold unequal numbers of valid rows.
    agent, environment, state = make("zerocopy:Catch", config, network, num_envs=32)
    shifted, _ = one_unroll(agent, environment, state, 4)
    state = state._replace(
        actor=jax.tree.map(
            lambda a, b: b.at[5:].set(a[5:]) if not jnp.issubdtype(b.dtype, jax.dtypes.prng_key) else b,
            state.actor,
            shifted,
        )
    )
    update = make_update(agent, environment, 13)
    names = metric_names(update, state)
    window = make_window(len(names))
    alone, alone_window = jax.jit(make_dispatch(update, names))(state, window, jnp.int32(1))

    sharded_agent = make_agent(config, network, environment.spec, num_slots=32, axis_name=DATA_AXIS)
    mesh = Mesh(np.array(jax.devices()), (DATA_AXIS,))
    dispatch = shard_dispatch(
        make_dispatch(make_update(sharded_agent, environment, 13, axis_name=DATA_AXIS), names), mesh
    )
    together, window = jax.jit(dispatch)(lay_out(STATE_SPECS, state, mesh), window, jnp.int32(1))

    assert int(alone.learner.env_steps.low) == int(together.learner.env_steps.low) < 32 * 13
    np.testing.assert_array_equal(alone.actor.timestep.observation, together.actor.timestep.observation)
    learned = [
        (learner.params, [mean_and_variance(moments) for moments in learner.statistics])
        for learner in (alone.learner, together.learner)
    ]
    for a, b in zip(*map(jax.tree.leaves, learned), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    for moments in together.learner.statistics:
        assert as_int(moments.count) == as_int(alone.learner.env_steps)
    for a, b in zip(jax.tree.leaves(alone_window), jax.tree.leaves(window), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_two_seeds_under_vmap_are_the_two_seeds_alone():
    config = VTraceConfig(num_passes=2, num_minibatches=2)
    environment = make_environment(EnvConfig("zerocopy:Catch"))
    agent = make_agent(config, SMALL, environment.spec, num_slots=8)
    update = make_update(agent, environment, 12)

    def run(seed):
        state = init_train_state(agent, environment, seed, 8)
        return lax.fori_loop(0, 2, lambda _, state: update(state)[0], state)

    together = jax.jit(jax.vmap(run))(jnp.arange(2))
    for seed in range(2):
        alone = jax.jit(run)(seed)
        member = jax.tree.map(lambda leaf, seed=seed: leaf[seed], together)
        np.testing.assert_array_equal(alone.actor.timestep.observation, member.actor.timestep.observation)
        for a, b in zip(
            jax.tree.leaves(alone.learner.params), jax.tree.leaves(member.learner.params), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-5)
