"""Checkpoints with the replay and without, on a hand-made state."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from small_runs import CATCH

from zerocopy_envs.errors import UserError
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config import CheckpointConfig, R2D2Config
from zerocopy_seed.leaves import tree_sha256
from zerocopy_seed.loops import sources
from zerocopy_seed.loops import train as train_module
from zerocopy_seed.loops.layout import DATA_AXIS, STATE_SPECS, lay_out
from zerocopy_seed.loops.on_device import TrainState
from zerocopy_seed.loops.run_checkpoint import (
    checkpoint_items,
    empty_replay,
    restore_train_state,
    saves_replay,
)
from zerocopy_seed.loops.train import train
from zerocopy_seed.types import Agent, LearnerState

GB = 10**9
AGENT = Agent(*[None] * 5)._replace(acting=lambda state: state.params)  # type: ignore[arg-type]


def make_state(replay):
    values = dict.fromkeys(LearnerState._fields, ())
    values |= {"params": jnp.arange(3.0), "key": jax.random.key(1, impl="threefry2x32"), "replay": replay}
    return TrainState(LearnerState(**values), {"t": jnp.arange(8)}, {"e": jnp.ones(8)})  # type: ignore[arg-type]


STATE = make_state({"rows": jnp.arange(16, dtype=jnp.int8).reshape(8, 2), "masses": (jnp.ones((8, 1)),)})
TYPES = jax.eval_shape(lambda: STATE)
EMPTY = make_state(jax.tree.map(jnp.zeros_like, STATE.learner.replay))


def replay_of(size):
    return make_state(()), jax.ShapeDtypeStruct((size,), jnp.int8)


@pytest.mark.parametrize(("size", "saved"), [(0, True), (2 * GB - 1, True)])
def test_auto_saves_a_replay_below_2_gb(size, saved):
    state, replay = replay_of(size)
    state = state._replace(learner=state.learner._replace(replay=replay))
    assert saves_replay(CheckpointConfig(), state) is saved


def test_above_it_the_choice_must_be_written():
    state, replay = replay_of(2 * GB)
    state = state._replace(learner=state.learner._replace(replay=(replay, replay)))
    with pytest.raises(UserError, match=r"^checkpoint\.replay: expected true or false .*2\.00 GB.*4\.00 GB;"):
        saves_replay(CheckpointConfig(), state)
    assert saves_replay(CheckpointConfig(replay=True), state) is True
    assert saves_replay(CheckpointConfig(replay=False), state) is False


def test_a_replay_that_was_saved_comes_back(tmp_path):
    with Checkpointer(tmp_path) as saves:
        saves.save(7, checkpoint_items(AGENT, STATE))
        step, restored = restore_train_state(saves, TYPES)
        assert (step, tree_sha256(restored)) == (7, tree_sha256(STATE))
        # Whoever acts reads nothing of it.
        shutil.rmtree(tmp_path / "7" / "replay")
        assert saves.restore("acting", STATE.learner.params)[0] == 7


def test_a_replay_that_was_left_out_begins_empty_and_that_is_said(tmp_path):
    with Checkpointer(tmp_path) as saves:
        saves.save(6, checkpoint_items(AGENT, EMPTY))
        saves.save(7, checkpoint_items(AGENT, STATE, replay=False))
        said = []
        step, restored = restore_train_state(saves, TYPES, warn=said.append)
        assert (step, tree_sha256(restored)) == (7, tree_sha256(EMPTY))
        assert said == ["checkpoint 7 holds no replay: it is refilled before learning goes on"]
        assert not (tmp_path / "7" / "replay").exists()
        said.clear()
        assert restore_train_state(saves, TYPES, 6, warn=said.append)[0] == 6
    assert said == []


def test_an_agent_without_replay_lacks_nothing(tmp_path):
    state = make_state(())
    with Checkpointer(tmp_path) as saves:
        saves.save(1, checkpoint_items(AGENT, state, replay=False))
        assert tree_sha256(restore_train_state(saves, state)[1]) == tree_sha256(state)


def test_a_replay_is_spread_over_devices_from_the_first(tmp_path):
    mesh = Mesh(np.array(jax.devices()), (DATA_AXIS,))
    types = lay_out(PartitionSpec(DATA_AXIS), TYPES.learner.replay, mesh)
    target = TYPES._replace(learner=TYPES.learner._replace(replay=types))
    with Checkpointer(tmp_path) as saves:
        saves.save(1, checkpoint_items(AGENT, STATE))
        _, restored = restore_train_state(saves, target)
    laid_out = lay_out(STATE_SPECS, restored, mesh)
    for replay in (empty_replay(types), restored.learner.replay, laid_out.learner.replay):
        for leaf in jax.tree.leaves(replay):
            assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [1] * 8
    assert tree_sha256(laid_out) == tree_sha256(STATE)
    assert laid_out.learner.params.sharding.is_fully_replicated


def over(num_devices, tree):
    """A TrainState, or its types, laid out over so many devices."""
    mesh = Mesh(np.array(jax.devices()[:num_devices]), (DATA_AXIS,))
    return lay_out(STATE_SPECS, tree, mesh)


@pytest.mark.parametrize(("before", "after"), [(1, 4), (4, 1), (2, 8)])
def test_what_some_devices_saved_others_restore(tmp_path, before, after):
    with Checkpointer(tmp_path) as saves:
        saves.save(1, checkpoint_items(AGENT, over(before, STATE)))
        _, restored = restore_train_state(saves, over(after, TYPES))
    assert tree_sha256(restored) == tree_sha256(STATE)
    for leaf in jax.tree.leaves(restored.learner.replay):
        assert [shard.data.shape[0] for shard in leaf.addressable_shards] == [8 // after] * after


@pytest.mark.parametrize(
    ("capacity", "replay", "free", "named"),
    [
        (
            2 * 10**8,
            "auto",
            100 * GB,
            r"^checkpoint\.replay: expected true or false .*'auto', and a replay of 1\d\.\d\d GB",
        ),
        (
            2 * 10**8,
            False,
            9 * GB,
            r"^agent\.replay_capacity: expected a run of at most 7\.10 GB, .*; use at most \d+$",
        ),
        (10**8, True, 12 * GB, r"^agent\.replay_capacity: .*its copy .*set checkpoint\.replay = false$"),
    ],
)
def test_a_replay_that_is_too_large_is_refused_before_anything_compiles(
    tmp_path, monkeypatch, capacity, replay, free, named
):
    def must_not_run(*_):
        raise AssertionError("compiled")

    monkeypatch.setattr(sources, "_compile", must_not_run)
    for name in ("compile_once", "make_run_dir", "restore_train_state"):
        monkeypatch.setattr(train_module, name, must_not_run)
    monkeypatch.setattr("zerocopy_seed.loops.memory.available_memory", lambda: free)
    config = dataclasses.replace(
        CATCH,
        agent=R2D2Config(unroll_length=1, period=1, sequence_length=1, replay_capacity=capacity),
        checkpoint=CheckpointConfig(replay=replay),
    )
    with pytest.raises(UserError, match=named):
        train(config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
