import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import ArraySpec, BoundedAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_seed.agents import make_agent
from zerocopy_seed.agents.normalization import CLIP, discounted_sums, make_normalizer
from zerocopy_seed.config import EnvConfig, NetworkConfig, VTraceConfig
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import make_evaluator
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.ops import counters
from zerocopy_seed.ops.summation import CompensatedSum
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode, RecurrentState, Trajectory

T, B = 6, 4
SPEC = EnvironmentSpec(
    {
        "eye": ArraySpec((4, 4, 1), np.uint8),
        "joints": ArraySpec((2,), np.float32),
        "clock": ArraySpec((), np.float32),
        "number": ArraySpec((2,), np.int32),
    },
    BoundedAction((1,)),
)
CONFIG = VTraceConfig(normalize_observations=True, normalize_rewards=True, unroll_length=10)
NETWORK = NetworkConfig(hidden_sizes=(8,), init="lecun")


def with_moments(moments, mean, std, count=1000):
    """Running moments as if `count` rows had this mean and this deviation in every number."""

    def filled(sums, value):
        return CompensatedSum(jnp.full_like(sums.total, value), jnp.zeros_like(sums.total))

    return moments._replace(
        count=counters.make_counter(count),
        mean=tuple(filled(sums, mean) for sums in moments.mean),
        squares=tuple(filled(sums, std**2 * count) for sums in moments.squares),
    )


def random_trajectory(rng):
    step_type = rng.choice([StepType.FIRST, StepType.MID], (T + 1, B), p=[0.3, 0.7]).astype(np.int8)
    observation = {
        name: rng.normal(100, 5, (T + 1, B, *leaf.shape)).astype(leaf.dtype)
        for name, leaf in SPEC.observation.items()
    }
    timestep = TimeStep(step_type, rng.normal(size=(T + 1, B)), np.ones((T + 1, B)), observation)
    recurrent = RecurrentState((), (), jnp.zeros((B, 1)))
    return Trajectory(timestep, jnp.zeros((T, B, 1)), (), recurrent, jnp.arange(B), jnp.ones(B, bool))


def normalizer(frame_stack=1, observations=True, rewards=True):
    return make_normalizer(
        SPEC, observations=observations, rewards=rewards, frame_stack=frame_stack, axis_name=None
    )


def test_float_observations_are_normalized_and_nothing_else():
    rng = np.random.default_rng(0)
    scale = normalizer()
    observation = random_trajectory(rng).timestep.observation
    for name, seen in scale.observation(scale.init(), observation).items():
        np.testing.assert_allclose(seen, np.clip(observation[name], -CLIP, CLIP) if seen.dtype == np.float32
                                   else observation[name])  # fmt: skip
    statistics = scale.init()
    statistics = statistics._replace(observation=with_moments(statistics.observation, 100, 5))
    for name, seen in scale.observation(statistics, observation).items():
        assert seen.dtype == observation[name].dtype
        expected = observation[name]
        if seen.dtype == np.float32:
            expected = (expected - 100) / 5
        np.testing.assert_allclose(seen, expected, atol=1e-4)


def test_statistics_are_those_of_what_was_acted_upon():
    rng = np.random.default_rng(1)
    scale = normalizer()
    statistics, seen = scale.init(), []
    add = jax.jit(scale.add_observations)
    for _ in range(5):
        trajectory = random_trajectory(rng)
        statistics = add(statistics, trajectory)
        valid = trajectory.timestep.step_type[1:] != StepType.FIRST
        seen.append(trajectory.timestep.observation["joints"][:-1][valid])
    rows = np.concatenate(seen).astype(np.float64)
    normalized = scale.observation(statistics, {**trajectory.timestep.observation})["joints"]
    expected = (trajectory.timestep.observation["joints"] - rows.mean(0)) / rows.std(0)
    np.testing.assert_allclose(normalized, expected, atol=1e-4)


def test_every_stacked_frame_is_normalized_alike():
    scale = normalizer(frame_stack=3)
    statistics = scale.init()
    statistics = statistics._replace(observation=with_moments(statistics.observation, 2.0, 4.0))
    shapes = {"eye": (4, 4, 3), "joints": (6,), "clock": (3,), "number": (6,)}
    stacked = {
        name: jnp.full((T, B, *shape), 8, SPEC.observation[name].dtype) for name, shape in shapes.items()
    }
    seen = scale.observation(statistics, stacked)
    for name, expected in {"eye": 8, "joints": 1.5, "clock": 1.5, "number": 8}.items():
        assert seen[name].shape == stacked[name].shape
        np.testing.assert_allclose(seen[name], expected, rtol=1e-6)
    np.testing.assert_allclose(
        scale.observation(statistics, jax.tree.map(jnp.zeros_like, stacked))["clock"], -0.5
    )


def test_rewards_are_scaled_by_the_deviation_of_their_discounted_sums():
    rng = np.random.default_rng(2)
    scale, discount = normalizer(), jnp.float32(0.8)
    statistics, sums = scale.init(), []
    for _ in range(4):
        trajectory = random_trajectory(rng)
        reward = np.asarray(rng.normal(3, 20, (T, B)), np.float32)
        statistics = scale.add_rewards(statistics, trajectory, reward, discount)
        valid = trajectory.timestep.step_type[1:] != StepType.FIRST
        for b in range(B):
            total = 0.0
            for t in range(T):
                total = reward[t, b] + 0.8 * total if valid[t, b] else 0.0
                if valid[t, b]:
                    sums.append(total)
    np.testing.assert_allclose(scale.reward(statistics, reward), reward / np.std(sums), rtol=1e-4)
    assert abs(scale.reward(statistics, jnp.float32([[1e9]]))) == CLIP
    np.testing.assert_array_equal(normalizer(rewards=False).reward((), reward), reward)
    one = discounted_sums(jnp.ones((3, 1)), jnp.array([[True], [False], [True]]), discount)
    np.testing.assert_allclose(one[:, 0], [1, 0, 1])


def test_there_must_be_something_to_normalize():
    spec = dataclasses.replace(SPEC, observation=SPEC.observation["eye"])
    with pytest.raises(
        UserError, match=r"normalize_observations: expected .*float.* found observation uint8"
    ):
        make_agent(CONFIG, NetworkConfig(torso="mlp"), spec, num_slots=B)


def test_acting_learning_and_evaluation_share_statistics_that_only_learning_changes():
    environment = make_environment(EnvConfig("zerocopy:Catch", settings={"rows": 4, "columns": 3}))
    agent = make_agent(CONFIG, NETWORK, environment.spec, num_slots=B)
    state = jax.jit(lambda: init_train_state(agent, environment, 0, B))()
    statistics = state.learner.statistics
    statistics = statistics._replace(observation=with_moments(statistics.observation, 100, 5))
    learner = state.learner._replace(statistics=statistics)
    params = agent.acting(learner)

    evaluate = make_evaluator(agent, environment, 8)
    before = jax.tree.map(np.asarray, params)
    results = [evaluate(params, 3) for _ in range(2)]
    np.testing.assert_array_equal(results[0].returns, results[1].returns)
    jax.tree.map(np.testing.assert_array_equal, before, params)

    @jax.jit
    def update(learner, actor):
        actor, trajectory = unroll(
            agent.act,
            environment.step,
            agent.acting(learner),
            actor,
            jnp.arange(B),
            length=10,
            mode=Mode.TRAIN,
        )
        return *agent.learn(learner, trajectory), actor, trajectory

    actor = state.actor
    for _ in range(2):
        learner, metrics, actor, trajectory = update(learner, actor)
        # The statistics changed with the first update: behaviour and target read the same ones in the second.
        np.testing.assert_allclose(metrics["importance_ratio"], 1.0, atol=1e-5)
    num_valid = int((trajectory.timestep.step_type[1:] != StepType.FIRST).sum())
    assert counters.as_int(learner.statistics.observation.count) > 1000 + num_valid
    fresh = agent.init(jax.random.key(1, impl="threefry2x32"))
    assert agent.begin_from is not None
    begun = agent.begin_from(fresh, agent.acting(learner))
    jax.tree.map(np.testing.assert_array_equal, begun.statistics, learner.statistics)
