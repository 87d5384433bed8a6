"""SIGTERM saves and exits 0, whatever a run is doing; a second signal exits at once."""

import dataclasses
import signal
import time

import pytest
from processes import Process, finished_steps, wait_for
from small_runs import CATCH

from zerocopy_seed.config import BridgeConfig, EnvConfig, EvaluationConfig, MetricsConfig, NetworkConfig
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.loops import evaluation as module
from zerocopy_seed.loops.evaluation import OnDevice
from zerocopy_seed.loops.signals import StopRequest
from zerocopy_seed.metrics import read_metrics

ENDLESS = dataclasses.replace(
    CATCH, total_env_steps=10**12, metrics=MetricsConfig(every_env_steps=2_000, tensorboard=False)
)
EVALUATED = dataclasses.replace(ENDLESS, evaluation=EvaluationConfig(every_env_steps=20, episodes=10**7))
ON_HOST = dataclasses.replace(
    ENDLESS, env=EnvConfig("gymnasium:CartPole-v1", num_envs=2), bridge=BridgeConfig(local_actors=1)
)
STAGES = {
    "compiling": (ENDLESS, "compiling"),
    "training": (ENDLESS, "env_steps [1-9]"),
    "evaluating": (EVALUATED, "compiled in"),
    "evaluating in actors": (dataclasses.replace(ON_HOST, evaluation=EVALUATED.evaluation), "compiled in"),
    "waiting for actors": (
        dataclasses.replace(ON_HOST, bridge=BridgeConfig(local_actors=0)),
        "room for 2 environments",
    ),
    "training from actors": (ON_HOST, "env_steps [1-9]"),
}


def start(tmp_path, config):
    (tmp_path / "config.toml").write_text(dump_config(config))
    run = Process("train", tmp_path / "config.toml", "--run-dir", tmp_path / "run", log=tmp_path / "log")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
def test_it_saves_and_exits_0(tmp_path, stage):
    config, sign = STAGES[stage]
    with start(tmp_path, config) as run:
        run.wait_to_say(sign)
        if "evaluating" in stage:
            events = tmp_path / "run" / "events.jsonl"
            wait_for(lambda: '"evaluating"' in events.read_text(), process=run)
        run.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert run.wait(600) == 0, run.said
    print(f"{stage}: ended after {time.monotonic() - began:.1f} s")
    assert "SIGTERM: saving" in run.said and "Traceback" not in run.said
    (step,) = finished_steps(tmp_path / "run")
    assert step == (read_metrics(tmp_path / "run") or [{"env_steps": 0}])[-1]["env_steps"]


@pytest.mark.slow
def test_evaluate_ends_and_has_no_result(tmp_path):
    config = dataclasses.replace(CATCH, total_env_steps=20)
    with start(tmp_path, config) as run:
        assert run.wait(600) == 0
    words = ("evaluate", tmp_path / "run", "--episodes", 10**7, "--json")
    for pause_s in (0.0, 20.0):  # as it compiles, and as it plays
        with Process(*words, log=tmp_path / f"log-{pause_s}") as evaluating:
            wait_for(lambda: has_handler(evaluating.pid), process=evaluating)  # noqa: B023
            time.sleep(pause_s)
            evaluating.send_signal(signal.SIGTERM)
            assert evaluating.wait(5) == 0
        assert evaluating.said == "\nSIGTERM: the evaluation has not ended: it has no result\n"


def has_handler(pid):
    """Whether a process catches SIGTERM by now."""
    with open(f"/proc/{pid}/status") as status:
        (mask,) = (line.split()[1] for line in status if line.startswith("SigCgt"))
    return bool(int(mask, 16) & 1 << (signal.SIGTERM - 1))


@pytest.mark.slow
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_it_at_once(tmp_path, second):
    wide = NetworkConfig(hidden_sizes=(64,) * 12)  # compiles for long
    with start(tmp_path, dataclasses.replace(ENDLESS, network=wide)) as run:
        run.wait_to_say("compiling")
        run.send_signal(signal.SIGTERM)
        run.wait_to_say("SIGTERM: saving")
        run.send_signal(second)
        assert run.wait(3) == 128 + second
    assert finished_steps(tmp_path / "run") == []


def test_an_evaluation_that_training_waits_for_hears_of_it(monkeypatch):
    stop = StopRequest()

    def make_evaluator(*_, between):
        def play(*_):
            stop.signal_name = "SIGTERM"
            between()
            raise AssertionError("went on")

        return play

    monkeypatch.setattr(module, "make_evaluator", make_evaluator)
    evaluator = OnDevice(None, None, num_episodes=1, seed=0, stop=stop)  # type: ignore[arg-type]
    evaluator.begin(None)  # type: ignore[arg-type]
    assert evaluator.poll() is None
