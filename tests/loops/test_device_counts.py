"""On any number of devices a run on the device is the same run, and it goes on on any other."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_runs import CATCH, LSTM, R2D2, read_checkpoint

from zerocopy_seed.config import DevicesConfig, EnvConfig, RecordConfig, VTraceConfig
from zerocopy_seed.experience import Place, RecordReader
from zerocopy_seed.loops.train import train
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.ops.summation import CompensatedSum

VTRACE = VTraceConfig(
    unroll_length=5,
    num_shards=8,
    num_minibatches=2,
    num_passes=2,
    normalize_advantages=True,
    normalize_observations=True,
    normalize_rewards=True,
)
# Prioritised, from stored states: the defaults.
REPLAYED = dataclasses.replace(
    R2D2, num_shards=8, batch_size=8, burn_in=5, replay_capacity=128, min_replay=16, updates_per_insert=2
)

# 20 updates: of Catch's steps a fourth only begins an episode, and counts for nothing.
INTEGERS = dataclasses.replace(
    CATCH, env=dataclasses.replace(CATCH.env, num_envs=16), network=LSTM, agent=VTRACE, total_env_steps=1200
)
FLOATS = dataclasses.replace(INTEGERS, env=EnvConfig("gymnax:CartPole-v1", num_envs=16), total_env_steps=1510)

CASES = {
    "vtrace_catch": INTEGERS,
    "vtrace_cartpole": FLOATS,
    "r2d2_catch": dataclasses.replace(INTEGERS, agent=REPLAYED),
    "r2d2_cartpole": dataclasses.replace(FLOATS, agent=REPLAYED),
}


def on(num_devices, config, run_dir, **options):
    """The TrainState at the end of a run, as arrays of numpy."""
    assert train(dataclasses.replace(config, devices=DevicesConfig(num_devices)), run_dir, **options) == 0
    step, state = read_checkpoint(config, run_dir)
    assert step >= config.total_env_steps
    return jax.tree.map(plain, state)


def plain(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)


def assert_same_state(expected, found):
    """All that a run remembers: parameters, optimiser, statistics, replay, priorities, environments, keys."""

    def is_sum(leaf):
        return isinstance(leaf, CompensatedSum)

    def compare(path, one, other):
        name = jax.tree_util.keystr(path)
        if is_sum(one):  # two numbers that are one; not bounded, as all others here are
            one, other = (np.float64(part.total) - np.float64(part.error) for part in (one, other))
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6, err_msg=name)
        else:
            atol = 1e-5 if one.dtype == np.float32 else 0
            np.testing.assert_allclose(other, one, rtol=0, atol=atol, err_msg=name)

    jax.tree_util.tree_map_with_path(compare, expected, found, is_leaf=is_sum)


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """(case, number of devices) -> the last state of a run of 20 updates, and its first unroll; once each."""
    directory = tmp_path_factory.mktemp("runs")

    @functools.cache
    def play(case, num_devices):
        run_dir = directory / f"{case}-{num_devices}"
        record = run_dir / "record"
        state = on(num_devices, dataclasses.replace(CASES[case], record=RecordConfig(str(record))), run_dir)
        assert as_int(state.learner.num_updates) == 20
        with RecordReader(record) as reader:
            return state, reader.read(Place(0, 0)).arrays

    return play


def assert_same_unroll(expected, found):
    """Bit for bit, but for what products of matrices say, which round differently in other batches."""
    assert expected.keys() == found.keys()
    for name, rows in expected.items():
        if name.startswith(".actor_output"):
            np.testing.assert_allclose(found[name], rows, rtol=0, atol=1e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], rows, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "num_devices"),
    [
        *[("vtrace_cartpole", number) for number in (2, 4, 8)],
        *[("r2d2_catch", number) for number in (2, 4, 8)],
        ("vtrace_catch", 8),
        ("r2d2_cartpole", 8),
    ],
)
def test_any_number_of_devices_plays_and_learns_as_one(played, case, num_devices):
    (expected, first), (found, played_first) = played(case, 1), played(case, num_devices)
    assert_same_unroll(first, played_first)
    assert_same_state(expected, found)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["vtrace_cartpole", "r2d2_catch"])
@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 8)])
def test_a_run_goes_on_on_another_number_of_devices(played, tmp_path, case, before, after):
    config = dataclasses.replace(CASES[case], record=RecordConfig(str(tmp_path / "record")))
    half = dataclasses.replace(config, total_env_steps=config.total_env_steps // 2)
    state = on(before, half, tmp_path / "run")
    assert 8 < as_int(state.learner.num_updates) < 12
    assert_same_state(played(case, 1)[0], on(after, config, tmp_path / "run", resume=True))


@pytest.mark.slow  # two programs to compile for each
@pytest.mark.parametrize(
    ("agent", "before", "after"),
    [
        (VTraceConfig(unroll_length=5, num_shards=2, normalize_advantages=True), 1, 2),
        (dataclasses.replace(R2D2, num_shards=2), 2, 1),
    ],
    ids=["vtrace", "r2d2"],
)
def test_a_run_of_one_device_is_that_of_two_one_after_the_other(tmp_path, agent, before, after):
    config = dataclasses.replace(CATCH, agent=agent, total_env_steps=150)
    whole = on(1, config, tmp_path / "whole")
    on(before, dataclasses.replace(config, total_env_steps=75), tmp_path / "run")
    assert_same_state(whole, on(after, config, tmp_path / "run", resume=True))
