"""Continuous actions and running statistics, all the way through runs."""

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import MLP, read_checkpoint

from zerocopy_envs.types import TimeStep
from zerocopy_seed import load_policy
from zerocopy_seed.config import (
    BridgeConfig,
    CheckpointConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    SourcesConfig,
    VTraceConfig,
)
from zerocopy_seed.config_file import load_config
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics
from zerocopy_seed.networks import NetworkInput, make_network
from zerocopy_seed.ops import counters
from zerocopy_seed.ops.running_moments import mean_and_variance

POINTS = Config(
    env=EnvConfig("gymnax:PointRobot-misc", num_envs=4, settings={"max_steps_in_episode": 9}),
    total_env_steps=400,
    agent=VTraceConfig(unroll_length=5, normalize_observations=True, normalize_rewards=True),
    network=dataclasses.replace(MLP, use_last_action=True, frame_stack=2),
    checkpoint=CheckpointConfig(every_s=1e6),
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
    bridge=BridgeConfig(local_actors=1),
)
"""Two bounded actions; both observations and rewards are normalised."""


def learner_of(config, run_dir):
    return read_checkpoint(config, run_dir)[1].learner


@pytest.mark.slow
def test_statistics_are_restored_evaluated_with_and_taken_over(tmp_path):
    assert train(POINTS, tmp_path / "whole") == 0
    half = dataclasses.replace(POINTS, total_env_steps=200)
    assert train(half, tmp_path / "parts") == 0
    assert train(POINTS, tmp_path / "parts", resume=True) == 0
    whole, parts = (learner_of(POINTS, tmp_path / name) for name in ("whole", "parts"))
    jax.tree.map(np.testing.assert_array_equal, whole.statistics, parts.statistics)
    jax.tree.map(np.testing.assert_array_equal, whole.params, parts.params)
    for moments in whole.statistics:
        assert counters.as_int(moments.count) == counters.as_int(whole.env_steps)

    first, second = (evaluate_run(tmp_path / "whole", num_episodes=4, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.returns, second.returns)
    jax.tree.map(
        np.testing.assert_array_equal, whole.statistics, learner_of(POINTS, tmp_path / "whole").statistics
    )

    # A policy's action is that of the saved network on observations that the saved statistics normalise.
    policy = load_policy(tmp_path / "whole")
    ((mean, variance),) = mean_and_variance(whole.statistics.observation)
    seen = np.asarray(mean + 2 * np.sqrt(variance))[None]  # so that 2 is what the network reads
    zeros, ones = np.zeros(1, np.float32), np.ones(1, np.float32)
    action, _ = policy.step(TimeStep(np.zeros(1, np.int8), zeros, ones, seen), policy.initial_state(1))
    network = make_network(POINTS.network, make_environment(POINTS.env).spec)
    before = jnp.clip(-mean / np.sqrt(variance), -10, 10)  # the frame that is not there yet is zeros
    inputs = NetworkInput(
        jnp.concatenate([before, jnp.full_like(before, 2.0)])[None, None],
        jnp.zeros((1, 1, 2)),
        jnp.zeros((1, 1)),
        jnp.ones((1, 1), bool),
    )
    output, _ = network.apply(whole.params.network, inputs, network.initial_core(1))
    np.testing.assert_allclose(action, np.tanh(output.policy[0, :, :2]), atol=1e-4)

    frozen = dataclasses.replace(
        POINTS, agent=dataclasses.replace(POINTS.agent, learning_rate=0.0), total_env_steps=20, seed=1
    )
    assert train(frozen, tmp_path / "later", init_from=tmp_path / "whole") == 0
    later = learner_of(frozen, tmp_path / "later")
    jax.tree.map(np.testing.assert_array_equal, whole.params, later.params)
    for old, new in zip(whole.statistics, later.statistics, strict=True):
        assert 0 < counters.as_int(new.count) - counters.as_int(old.count) <= 20


@pytest.mark.slow
@pytest.mark.parametrize("sources", [SourcesConfig(), SourcesConfig(device=0.5, actors=0.5)])
def test_actors_take_continuous_actions(tmp_path, sources):
    place = "actors" if sources.actors == 0 else "auto"
    config = dataclasses.replace(
        POINTS,
        env=dataclasses.replace(POINTS.env, place=place),
        agent=dataclasses.replace(POINTS.agent, num_passes=1, num_minibatches=1),
        bridge=BridgeConfig(local_actors=1, max_policy_lag=0),
        sources=sources,
        total_env_steps=200,
    )
    assert train(config, tmp_path / "run") == 0
    rows = read_metrics(tmp_path / "run")
    assert len(rows) > 1
    # In lock step what was stored with each action is what the learner says of it.
    np.testing.assert_allclose([row["importance_ratio"] for row in rows], 1.0, atol=1e-5)
    assert evaluate_run(tmp_path / "run", num_episodes=4).returns.shape == (4,)


@pytest.mark.slow
def test_members_have_statistics_of_their_own(tmp_path):
    many = dataclasses.replace(POINTS, num_seeds=2, total_env_steps=100)
    assert train(many, tmp_path / "many") == 0
    for seed in range(2):
        alone = dataclasses.replace(many, num_seeds=1, seed=seed)
        assert train(alone, tmp_path / f"{seed}") == 0
        expected, found = (
            learner_of(alone, where).statistics
            for where in (tmp_path / f"{seed}", tmp_path / "many" / "members" / f"seed={seed}")
        )
        for a, b in zip(*map(jax.tree.leaves, map(list, (expected, found))), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4, rtol=1e-5)


@pytest.mark.slow
def test_a_pendulum_on_the_host_trains(tmp_path):
    pytest.importorskip("gymnasium")
    config = dataclasses.replace(POINTS, env=EnvConfig("gymnasium:Pendulum-v1", num_envs=4))
    assert train(config, tmp_path / "run") == 0
    assert read_metrics(tmp_path / "run")[-1]["env_steps"] >= 400


@pytest.mark.slow
def test_pendulum_is_solved(tmp_path):
    config = load_config(pathlib.Path(__file__).parents[2] / "configs" / "vtrace_pendulum.toml")
    assert train(config, tmp_path / "run") == 0
    # The best there is averages about -150, at random -1200.
    assert evaluate_run(tmp_path / "run", num_episodes=128).returns.mean() > -250
