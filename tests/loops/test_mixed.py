"""Batches from the device and from actors at once; runs that begin with another's parameters."""

import dataclasses

import pytest
from small_runs import LSTM, MLP, R2D2

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import (
    BridgeConfig,
    Config,
    EnvConfig,
    MetricsConfig,
    SourcesConfig,
    VTraceConfig,
)
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.mixed import _merge_episodes
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

CARTPOLE = Config(
    env=EnvConfig("gymnax:CartPole-v1", num_envs=4),
    sources=SourcesConfig(device=0.5, actors=0.5, actors_env="gymnasium:CartPole-v1"),
    total_env_steps=400,
    agent=VTraceConfig(unroll_length=5),
    network=MLP,
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
    bridge=BridgeConfig(local_actors=1),
)
pytestmark = pytest.mark.usefixtures("actors_find_the_package")


@pytest.mark.slow
def test_half_of_every_batch_comes_from_actors(tmp_path):
    assert train(CARTPOLE, tmp_path / "mixed") == 0
    rows = read_metrics(tmp_path / "mixed")
    assert rows[-1]["env_steps"] >= 400
    for row in rows:
        assert row["device_share"] + row["actors_share"] == pytest.approx(1)
        assert 0.3 < row["device_share"] < 0.7
        assert row["device_importance_ratio"] == pytest.approx(1, abs=1e-5)  # on policy
    assert rows[-1]["policy_lag_max"] >= 1
    assert evaluate_run(tmp_path / "mixed", num_episodes=2, env="gymnasium:CartPole-v1").env_steps >= 400

    wider = dataclasses.replace(CARTPOLE, network=dataclasses.replace(MLP, hidden_sizes=(9,)))
    with pytest.raises(UserError, match=r"'kernel'\]: expected float32 \(9, 2\), found float32 \(8, 2\)"):
        train(wider, tmp_path / "next", init_from=tmp_path / "mixed")
    with pytest.raises(UserError, match="nowhere"):
        train(CARTPOLE, tmp_path / "next", init_from=tmp_path / "nowhere")
    assert not (tmp_path / "next").exists()


@pytest.mark.slow
def test_both_sources_fill_one_replay_and_a_run_goes_on(tmp_path):
    config = dataclasses.replace(CARTPOLE, agent=R2D2, network=LSTM)
    run_dir = tmp_path / "mixed"
    assert train(config, run_dir) == 0
    assert train(dataclasses.replace(config, total_env_steps=800), run_dir, resume=True) == 0
    rows = read_metrics(run_dir)
    assert rows[-1]["env_steps"] >= 800
    assert rows[-1]["replay_sequences"] > 12
    assert all(0.2 < row["actors_share"] < 0.8 for row in rows if row["num_updates"] > 2)


@pytest.mark.slow
def test_a_batch_that_does_not_wait_takes_what_there_is(tmp_path):
    alone = dataclasses.replace(
        CARTPOLE,
        sources=dataclasses.replace(CARTPOLE.sources, wait=False),
        bridge=BridgeConfig(local_actors=0),
    )
    assert train(alone, tmp_path / "alone") == 0
    assert all(row["device_share"] == 1 for row in read_metrics(tmp_path / "alone"))
    several = dataclasses.replace(alone, bridge=BridgeConfig(local_actors=1), total_env_steps=60_000)
    assert train(several, tmp_path / "several") == 0
    shares = [row["actors_share"] for row in read_metrics(tmp_path / "several")]
    assert 0 < max(shares) < 0.7


def test_episodes_of_both_sources_are_told_apart_and_added():
    device = {"env_steps": 9, "num_episodes": 3, "episode_return": 10.0, "episode_length": 4.0}
    actors = {"num_episodes": 1, "episode_return": 30.0, "episode_length": 8.0, "policy_lag": 1.5}
    merged = _merge_episodes(device, actors)
    assert (merged["num_episodes"], merged["episode_return"], merged["episode_length"]) == (4, 15.0, 5.0)
    assert (merged["device_episode_return"], merged["actors_episode_return"]) == (10.0, 30.0)
    assert merged["policy_lag"] == 1.5
    none = _merge_episodes({"env_steps": 9, "num_episodes": 0}, {"num_episodes": 0})
    assert none["num_episodes"] == 0 and "episode_return" not in none


@pytest.mark.slow
def test_a_run_begins_with_the_parameters_of_another(tmp_path, capsys):
    config = dataclasses.replace(CARTPOLE, sources=SourcesConfig(), bridge=BridgeConfig())
    assert train(config, tmp_path / "first") == 0
    later = dataclasses.replace(
        config, agent=VTraceConfig(unroll_length=5, learning_rate=0.0), total_env_steps=40, seed=1
    )
    assert train(later, tmp_path / "second", init_from=tmp_path / "first") == 0
    assert "parameters of" in capsys.readouterr().out
    params = [evaluate_run(tmp_path / name, num_episodes=1).params_sha256 for name in ("first", "second")]
    assert params[0] == params[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"actors_env": "zerocopy:Catch"},
            r"sources.actors_env = 'zerocopy:Catch'.*observation float32\[4\]",
        ),
        ({"actors_env": "gymnasium:Acrobot-v1"}, r"observation float32\[4\].*float32\[6\]"),
    ],
)
def test_actors_with_another_spec_are_refused(changes, message, tmp_path):
    sources = dataclasses.replace(CARTPOLE.sources, **changes)
    with pytest.raises(UserError, match=message):
        train(dataclasses.replace(CARTPOLE, sources=sources), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_environment_on_the_host_cannot_be_on_the_device(tmp_path):
    config = dataclasses.replace(CARTPOLE, env=EnvConfig("gymnasium:CartPole-v1", num_envs=4))
    with pytest.raises(UserError, match="sources.device: expected 0 of an environment that steps on"):
        train(config, tmp_path / "run")
