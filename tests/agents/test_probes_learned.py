"""The agent on environments whose values are known: which test fails shows which part is wrong."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import MLP

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.agents import make_agent
from zerocopy_seed.agents.r2d2 import q_values
from zerocopy_seed.config import AgentConfig, EnvConfig, R2D2Config, VTraceConfig
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.networks import make_network
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.ops.q_learning import value_rescale
from zerocopy_seed.recurrent import initial_recurrent, network_input_step
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode

GAMMA = 0.8
CONFIG = VTraceConfig(
    unroll_length=6,
    learning_rate=0.02,
    learning_rate_decay_env_steps=19_200.0,
    discount=GAMMA,
    entropy_cost=1e-3,
    optimizer_epsilon=1e-8,
)
NETWORK = dataclasses.replace(MLP, hidden_sizes=(16,))
NUM_ENVS = 16


def learn_probe(name, num_updates=200, config: AgentConfig = CONFIG, **settings) -> tuple[Any, Any]:
    """Trains. The window of the last 50 updates, and a function: observations -> policy and value, or Q."""
    environment = make_environment(EnvConfig(f"zerocopy_envs.probes:{name}", NUM_ENVS, settings))
    agent = make_agent(config, NETWORK, environment.spec, num_slots=NUM_ENVS)
    update = make_update(agent, environment, config.unroll_length)
    state = jax.jit(lambda: init_train_state(agent, environment, 0, NUM_ENVS))()
    names = metric_names(update, state)
    dispatch = jax.jit(make_dispatch(update, names))
    state, _ = dispatch(state, make_window(len(names)), jnp.int32(num_updates - 50))
    state, window = dispatch(state, make_window(len(names)), jnp.int32(50))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((state.learner.params, window)))
    network = make_network(NETWORK, environment.spec)

    def outputs(observations):
        num = jax.tree.leaves(observations)[0].shape[0]
        recurrent = initial_recurrent(network, environment.spec, 1, num)
        first = jnp.full((num,), StepType.FIRST, jnp.int8)
        timestep = TimeStep(first, jnp.zeros(num), jnp.ones(num), observations)
        inputs, _ = network_input_step(recurrent, timestep)
        output, _ = network.apply(agent.acting(state.learner).network, inputs, recurrent.core)
        if isinstance(config, R2D2Config):
            return np.asarray(q_values(output, dueling=config.dueling)[0])
        return np.asarray(output.policy[0]), np.asarray(output.value[0])

    return window, outputs


def mean_return(window):
    return float(window.episodes.return_sum.total) / as_int(window.episodes.num_episodes)


@pytest.mark.slow
def test_constant_reward():
    _, outputs = learn_probe("constant_reward")
    np.testing.assert_allclose(outputs(np.ones((1, 1), np.float32))[1], [1.0], atol=0.02)


@pytest.mark.slow
def test_observed_reward():
    _, outputs = learn_probe("observed_reward")
    np.testing.assert_allclose(outputs(np.array([[1], [-1]], np.float32))[1], [1.0, -1.0], atol=0.02)


@pytest.mark.slow
def test_a_delayed_reward_is_discounted_once():
    _, outputs = learn_probe("delayed_reward")
    np.testing.assert_allclose(outputs(np.array([[0], [1]], np.float32))[1], [GAMMA, 1.0], atol=0.03)


def test_the_action_that_pays_is_chosen():
    window, outputs = learn_probe("chosen_reward")
    policy, value = outputs(np.ones((1, 1), np.float32))
    assert policy[0, 1] > policy[0, 0] + 2
    assert mean_return(window) > 0.9
    np.testing.assert_allclose(value, [1.0], atol=0.1)


def test_a_truncation_bootstraps():
    # Terminated instead, the five steps would be worth at most 3.4, the last one 1.
    _, outputs = learn_probe("truncated", num_updates=300)
    np.testing.assert_allclose(outputs(np.ones((1, 1), np.float32))[1], [1 / (1 - GAMMA)], rtol=0.03)


@pytest.mark.slow
def test_an_illegal_action_is_never_taken():
    # Untrained, the policy is all but uniform: a mask that is not kept would show in a third of the steps.
    environment = make_environment(EnvConfig("zerocopy_envs.probes:masked", NUM_ENVS))
    agent = make_agent(CONFIG, NETWORK, environment.spec, num_slots=NUM_ENVS)
    state = jax.jit(lambda: init_train_state(agent, environment, 0, NUM_ENVS))()
    slots = jnp.arange(NUM_ENVS, dtype=jnp.int32)
    _, trajectory = jax.jit(
        lambda state: unroll(
            agent.act, environment.step, agent.acting(state.learner), state.actor, slots,
            length=100, mode=Mode.TRAIN,
        )
    )(state)  # fmt: skip
    # The step after a LAST ignores its action, yet its observation has a mask, and that is kept too.
    legal = np.asarray(trajectory.timestep.observation["action_mask"][:-1])
    taken = np.asarray(trajectory.action)
    assert not legal.all() and set(taken.ravel()) == {0, 1, 2}
    assert np.take_along_axis(legal, taken[..., None], -1).all()

    window, outputs = learn_probe("masked")
    assert 0.9 < mean_return(window) <= 1.0
    mask = np.array([[0, 1, 1], [1, 0, 1]], bool)
    target = np.array([[0, 1, 0], [0, 0, 1]], np.float32)
    policy, value = outputs({"action_mask": mask, "target": target})
    assert policy.argmax(-1).tolist() == [1, 2]
    np.testing.assert_allclose(value, [1.0, 1.0], atol=0.1)


@pytest.mark.slow
def test_two_heads():
    window, _ = learn_probe("two_heads")
    assert mean_return(window) > 0.9


DQN = R2D2Config(
    unroll_length=4,
    sequence_length=1,
    look_ahead=1,
    period=1,
    n_step=2,
    replay_capacity=1024,
    min_replay=64,
    batch_size=64,
    updates_per_insert=4,
    target_update_period=10,
    learning_rate=0.01,
    learning_rate_decay_env_steps=9_600.0,
    discount=GAMMA,
    optimizer_epsilon=1e-8,
    rescale_values=False,
    epsilon_base=0.5,
    epsilon_alpha=0.0,
)


def learn_q(name, observations, *, num_updates=150, **changes):
    """The Q of observations [n, ...], [n, A]."""
    _, outputs = learn_probe(name, num_updates, dataclasses.replace(DQN, **changes))
    return outputs(np.array(observations, np.float32))


@pytest.mark.slow
def test_q_bootstraps_from_a_truncation():
    # Through h: what is learned is h of the return.
    q = learn_q("truncated", [[1]], rescale_values=True)
    np.testing.assert_allclose(q, np.full((1, 2), value_rescale(jnp.float32(1 / (1 - GAMMA)))), rtol=0.03)


@pytest.mark.slow
def test_q_of_a_constant_reward():
    np.testing.assert_allclose(learn_q("constant_reward", [[1]]), [[1, 1]], atol=0.02)


@pytest.mark.slow
def test_q_of_an_observed_reward():
    q = learn_q("observed_reward", [[1], [-1]], sampling="uniform")
    np.testing.assert_allclose(q, [[1, 1], [-1, -1]], atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("n_step", [1, 2])
def test_q_of_a_delayed_reward_is_discounted_once(n_step):
    q = learn_q("delayed_reward", [[0], [1]], n_step=n_step, double_q=False)
    np.testing.assert_allclose(q, [[GAMMA, GAMMA], [1, 1]], atol=0.03)


@pytest.mark.slow
def test_q_tells_the_action_that_pays():
    np.testing.assert_allclose(learn_q("chosen_reward", [[1]], dueling=False), [[-1, 1]], atol=0.03)


@pytest.mark.slow
def test_q_of_legal_actions():
    window, outputs = learn_probe("masked", 150, DQN)
    # Random in half of the steps, among the legal ones alone: the illegal one would pay 10.
    assert 0.65 < mean_return(window) < 0.85
    mask = np.array([[0, 1, 1], [1, 0, 1]], bool)
    target = np.array([[0, 1, 0], [0, 0, 1]], np.float32)
    q = outputs({"action_mask": mask, "target": target})
    np.testing.assert_array_equal(q[~mask], np.float32(ILLEGAL_LOGIT))
    np.testing.assert_allclose(q[mask], [1, 0, 0, 1], atol=0.1)


def test_bounded_actions_are_learned_from_a_shifted_observation():
    # At random they are worth 0.45; without normalisation the torso sees the same, saturated, everywhere.
    config = dataclasses.replace(CONFIG, normalize_observations=True, normalize_rewards=True)
    window, outputs = learn_probe("bounded_target", config=config, offset=100.0, scale=5.0)
    assert mean_return(window) > 0.9
