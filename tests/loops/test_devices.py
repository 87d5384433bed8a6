"""Actors' unrolls learned from on several devices are what one device learns from."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest
from small_runs import LSTM, MLP, R2D2, read_learned

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import BridgeConfig, Config, DevicesConfig, EnvConfig, MetricsConfig, VTraceConfig
from zerocopy_seed.config_checks import validate
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.loops.devices import make_mesh
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.layout import LEARNER_SPECS, lay_out
from zerocopy_seed.loops.train import train
from zerocopy_seed.metrics import read_metrics

pytestmark = pytest.mark.usefixtures("actors_find_the_package")

VTRACE = VTraceConfig(
    unroll_length=5, num_shards=4, num_minibatches=2, num_passes=2, normalize_advantages=True
)
LOCK_STEP = Config(
    env=EnvConfig("zerocopy:Catch", num_envs=8, place="actors"),
    total_env_steps=720,  # 20 updates: an episode lasts 9 steps and a reset
    agent=VTRACE,
    network=MLP,
    metrics=MetricsConfig(every_env_steps=100, tensorboard=False),
    bridge=BridgeConfig(local_actors=1, max_policy_lag=0.0),
)
SIXTEEN = dataclasses.replace(
    LOCK_STEP,
    env=dataclasses.replace(LOCK_STEP.env, num_envs=16),
    total_env_steps=1440,
    network=LSTM,
)
EIGHT_SHARDS = dataclasses.replace(VTRACE, num_shards=8)
REPLAYED = dataclasses.replace(
    R2D2, num_shards=8, batch_size=8, replay_capacity=128, min_replay=16, updates_per_insert=2
)


def on(devices, config, run_dir, **options):
    assert train(dataclasses.replace(config, devices=devices), run_dir, **options) == 0
    return read_learned(config, run_dir)


def test_two_devices_that_learn_and_one_that_acts_are_as_one(tmp_path):
    one = on(DevicesConfig(), LOCK_STEP, tmp_path / "one")
    three = on(DevicesConfig(learner=2, inference=1), LOCK_STEP, tmp_path / "three")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one, three)
    for name in ("one", "three"):
        rows = read_metrics(tmp_path / name)
        # In lock step nobody acts behind, and so all wait for the learner again and again.
        assert all(row["policy_lag"] == row["policy_lag_max"] == 0 for row in rows)
        assert all(row["inference_wait_s"] > 0 and row["learner_wait_s"] > 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("place", ["auto", "actors"])
def test_large_layers_are_split_over_devices(tmp_path, place):
    config = dataclasses.replace(
        LOCK_STEP,
        env=dataclasses.replace(LOCK_STEP.env, place=place),
        network=dataclasses.replace(MLP, hidden_sizes=(256, 256)),
        total_env_steps=180,
    )
    one = on(DevicesConfig(), config, tmp_path / "one")
    split = on(DevicesConfig(learner=2, model=2), config, tmp_path / "split")
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one, split)


def test_the_halves_of_a_large_layer_lie_on_two_devices():
    mesh = make_mesh(DevicesConfig(learner=2, model=2))
    assert mesh is not None
    agent = make_agent(
        VTRACE,
        dataclasses.replace(MLP, hidden_sizes=(256, 256)),
        make_environment(LOCK_STEP.env).spec,
        num_slots=8,
    )
    state = lay_out(LEARNER_SPECS, agent.init(jax.random.key(0, impl="threefry2x32")), mesh)
    kernels = [leaf for leaf in jax.tree.leaves((state.params, state.opt_state)) if leaf.size >= 2**16]
    assert len(kernels) == 3  # with Adam's two moments
    for leaf in kernels:
        assert {shard.data.shape for shard in leaf.addressable_shards} == {(256, 128)}


@pytest.mark.slow
@pytest.mark.parametrize("agent", [EIGHT_SHARDS, REPLAYED], ids=["vtrace", "r2d2"])
def test_any_number_of_devices_is_as_one(tmp_path, agent):
    config = dataclasses.replace(SIXTEEN, agent=agent)
    one = on(DevicesConfig(), config, tmp_path / "one")
    for devices in (
        DevicesConfig(2),
        DevicesConfig(4),
        DevicesConfig(8),
        DevicesConfig(inference=1),
        DevicesConfig(4, inference=1),
    ):
        found = on(devices, config, tmp_path / f"{devices.learner}-{devices.inference}")
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one, found)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [EIGHT_SHARDS, REPLAYED], ids=["vtrace", "r2d2"])
def test_a_run_of_actors_goes_on_on_another_number_of_devices(tmp_path, agent):
    """Their environments begin anew, so it is compared with the one that goes on where it was."""
    config = dataclasses.replace(SIXTEEN, agent=agent)
    for before, after in ((1, 4), (4, 1)):
        stopped = tmp_path / f"{before}-stopped"
        half = dataclasses.replace(config, total_env_steps=config.total_env_steps // 2)
        on(DevicesConfig(before), half, stopped)
        ends = []
        for number in (before, after):
            run_dir = tmp_path / f"{before}-{number}"
            shutil.copytree(stopped, run_dir)
            ends.append(on(DevicesConfig(number), config, run_dir, resume=True))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), *ends)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        (DevicesConfig(learner=16), "devices.learner: expected at most 8: .*, found 16"),
        (DevicesConfig(learner=4, model=3), "devices.model: expected at most 2: .*, found 3"),
        (
            DevicesConfig(learner=8, inference=1),
            "devices.inference: expected at most 0: .* besides",
        ),
        (
            DevicesConfig(learner=2, model=2),
            r"devices.model: expected 1, or a layer of 65,536 .*, found 2, and \(50, 8\) as the largest",
        ),
    ],
)
def test_more_devices_than_there_are_is_refused(tmp_path, devices, message):
    config = dataclasses.replace(
        LOCK_STEP,
        env=dataclasses.replace(LOCK_STEP.env, num_envs=16),
        agent=VTraceConfig(num_shards=16),
        devices=devices,
    )
    with pytest.raises(UserError, match=message):
        train(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            "--devices.learner 4 --env.num-envs 6",
            "env.num_envs: expected a multiple of devices.learner = 4, found 6",
        ),
        ("--devices.learner 8", "agent.num_shards: expected a multiple of devices.learner = 8, found 4"),
        (
            "--agent.num-minibatches 3",
            "env.num_envs: expected a multiple of agent.num_shards * agent.num_minibatches = 12, found 8",
        ),
        (
            "--devices.learner 2 --num-seeds 3",
            "devices.learner: expected a divisor of the 3 runs that are trained at once, found 2",
        ),
        (
            "--devices.learner 2 --env.place auto --sources.device 0.5 --sources.actors 0.5",
            "devices.learner: expected 1 where sources divides a batch, found 2",
        ),
        (
            "--devices.inference 1 --env.place auto",
            "devices.inference: expected 0 where not all environments are in actors, found 1",
        ),
        ("--devices.inference 2", "devices.inference: expected at least 0 and at most 1, found 2\n"),
    ],
)
def test_what_does_not_fit_devices_is_refused_before_anything_compiles(
    tmp_path, monkeypatch, capsys, flags, message
):
    def must_not_run(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr(jax.stages.Lowered, "compile", must_not_run)
    path = tmp_path / "config.toml"
    path.write_text(dump_config(LOCK_STEP))
    assert cli.main(["train", str(path), "--run-dir", str(tmp_path / "run"), *flags.split()]) == 2
    assert capsys.readouterr().err.startswith(message)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 6}, "agent.batch_size: expected a multiple of agent.num_shards = 4, found 6"),
        ({"num_shards": 3}, "agent.num_shards: expected a multiple of devices.learner = 4, found 3"),
    ],
)
def test_so_are_batches_of_a_replay(changes, message):
    agent = dataclasses.replace(R2D2, num_shards=4)
    config = dataclasses.replace(LOCK_STEP, agent=agent, devices=DevicesConfig(learner=4))
    validate(config)
    with pytest.raises(UserError) as caught:
        validate(dataclasses.replace(config, agent=dataclasses.replace(agent, **changes)))
    assert str(caught.value).startswith(message)
