"""Evaluation while training: on the device at once, in an actor of its own beside."""

import dataclasses

import pytest
from small_runs import MLP

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import (
    BridgeConfig,
    Config,
    EnvConfig,
    EvaluationConfig,
    MetricsConfig,
    VTraceConfig,
)
from zerocopy_seed.loops.evaluate import evaluate_run
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

CATCH = Config(
    env=EnvConfig("zerocopy:Catch", num_envs=4),
    total_env_steps=600,
    agent=VTraceConfig(unroll_length=5),
    network=MLP,
    metrics=MetricsConfig(every_env_steps=10_000, tensorboard=False),
    evaluation=EvaluationConfig(every_env_steps=200, episodes=6),
)
ON_HOST = dataclasses.replace(
    CATCH, env=EnvConfig("gymnasium:CartPole-v1", num_envs=4), bridge=BridgeConfig(local_actors=1)
)


def evaluations(run_dir):
    return [row for row in read_metrics(run_dir) if "evaluation_return" in row]


def test_a_run_is_evaluated_as_it_goes_and_keeps_its_best(tmp_path):
    run_dir = tmp_path / "run"
    assert train(CATCH, run_dir) == 0
    found = evaluations(run_dir)
    steps = [row["evaluation_env_steps"] for row in found]
    assert [step // 200 for step in steps] == [1, 2, 3]
    assert all(step % 200 < 4 * 5 for step in steps)
    assert all(row["evaluation_episodes"] == 6 and row["evaluation_length"] == 9 for row in found)
    # the last one is of the last checkpoint, and plays what `evaluate` plays
    last = evaluate_run(run_dir, num_episodes=6, seed=CATCH.seed)
    assert (last.env_steps, last.returns.mean()) == (steps[-1], found[-1]["evaluation_return"])
    best = evaluate_run(run_dir, num_episodes=6, seed=CATCH.seed, step="best")
    assert best.returns.mean() == max(row["evaluation_return"] for row in found)
    assert best.checkpoint_step in steps


@pytest.mark.slow
def test_looking_changes_nothing(tmp_path):
    assert train(CATCH, tmp_path / "looked_at") == 0
    plain = dataclasses.replace(CATCH, evaluation=EvaluationConfig())
    assert train(plain, tmp_path / "plain") == 0
    params = [evaluate_run(tmp_path / name, num_episodes=1).params_sha256 for name in ("looked_at", "plain")]
    assert params[0] == params[1]
    with pytest.raises(UserError, match="the best checkpoint: expected a run with evaluation"):
        evaluate_run(tmp_path / "plain", step="best")


@pytest.mark.slow
@pytest.mark.usefixtures("actors_find_the_package")
def test_host_environments_are_evaluated_in_an_actor_of_their_own(tmp_path):
    evaluation = EvaluationConfig(every_env_steps=2000, episodes=4, slots=2)
    config = dataclasses.replace(ON_HOST, total_env_steps=30_000, evaluation=evaluation)
    run_dir = tmp_path / "run"
    assert train(config, run_dir) == 0
    found = evaluations(run_dir)
    assert len(found) >= 2
    assert all(row["evaluation_episodes"] == 4 and row["evaluation_return"] >= 8 for row in found)
    assert all(row["num_live_slots"] == 4 for row in found)  # those that evaluate are none of the run's
    best = evaluate_run(run_dir, num_episodes=2, step="best")
    assert best.checkpoint_step in [row["evaluation_env_steps"] for row in found]
    steps = read_metrics(run_dir)[-1]["env_steps"]
    assert train(dataclasses.replace(config, total_env_steps=steps + 5000), run_dir, resume=True) == 0


@pytest.mark.slow
@pytest.mark.usefixtures("actors_find_the_package")
def test_an_evaluation_that_training_outruns_is_finished(tmp_path):
    evaluation = EvaluationConfig(every_env_steps=400, episodes=40, slots=2)
    config = dataclasses.replace(ON_HOST, total_env_steps=420, evaluation=evaluation)
    assert train(config, tmp_path) == 0
    (found,) = evaluations(tmp_path)
    assert found["evaluation_episodes"] == 40 and found["evaluation_env_steps"] <= found["env_steps"]
    assert (
        evaluate_run(tmp_path, num_episodes=1, step="best").checkpoint_step == found["evaluation_env_steps"]
    )
