import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import flax.core
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed import manifest
from zerocopy_seed.checkpoint import Checkpointer, CheckpointError
from zerocopy_seed.leaves import tree_sha256

ROOT = Path(__file__).resolve().parents[1]


class Loop(NamedTuple):
    key: Any
    keys: Any
    core: Any
    step_type: Any
    high: Any


def new_key(seed):
    return jax.random.key(seed, impl="threefry2x32")


def make_items(value=0.0):
    params = flax.core.freeze({"params": {"torso/0": {"kernel": jnp.full((4, 8), value, jnp.float32)}}})
    loop = Loop(
        key=new_key(int(value)),
        keys=jax.random.split(new_key(1), 4),
        core=(),
        step_type=jnp.array([0, 1, 2], jnp.int8),
        high=jnp.uint32(2**32 - 1),
    )
    extra = {
        "half": jnp.ones((2, 2), jnp.bfloat16),
        "flag": jnp.array([True, False]),
        "none": jnp.zeros((0, 3)),
    }
    return {
        "acting": params,
        "learner": {"params": params, "opt": optax.adam(1e-3).init(params), "extra": extra, "replay": ()},
        "loop": loop,
    }


def abstract(tree):
    return jax.eval_shape(lambda: tree)


@pytest.fixture
def warned():
    return []


@pytest.fixture(scope="module")
def three_steps(tmp_path_factory):
    """A directory with steps 10, 20 and 30 of `make_items`, to be copied."""
    directory = tmp_path_factory.mktemp("three_steps")
    with Checkpointer(directory) as checkpointer:
        for step in (10, 20, 30):
            checkpointer.save(step, make_items(step))
    return directory


@pytest.fixture
def saved(tmp_path, three_steps, warned):
    shutil.copytree(three_steps, tmp_path / "checkpoints")
    with Checkpointer(tmp_path / "checkpoints", warn=warned.append) as checkpointer:
        yield checkpointer


def target():
    return abstract(make_items()["acting"])


def kernel(acting):
    return float(acting["params"]["torso/0"]["kernel"][0, 0])


def item_files(tmp_path, step, item="acting"):
    return sorted(path for path in (tmp_path / "checkpoints" / str(step) / item).rglob("*") if path.is_file())


def flip_bit(path, position=-1):
    content = bytearray(path.read_bytes())
    content[position] ^= 1
    path.write_bytes(content)


def test_every_leaf_comes_back_with_dtype_and_structure(saved):
    items = make_items(30)
    step, restored = saved.restore(abstract(items))
    assert step == 30
    assert jax.tree.structure(restored) == jax.tree.structure(items)
    for wanted, found in zip(jax.tree.leaves(items), jax.tree.leaves(restored), strict=True):
        assert isinstance(found, jax.Array)
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    for item in items:
        assert tree_sha256(restored[item]) == tree_sha256(items[item])
    assert isinstance(restored["loop"], Loop) and restored["loop"].core == ()
    before, after = (jax.random.uniform(tree["loop"].keys[2], (3,)) for tree in (items, restored))
    np.testing.assert_array_equal(before, after)


def test_concrete_target_and_one_item(saved):
    assert kernel(saved.restore("acting", make_items()["acting"])[1]) == 30
    step, acting = saved.restore("acting", target(), step=20)
    assert (step, kernel(acting)) == (20, 20)


def test_values_are_those_at_save_though_the_buffers_are_donated(tmp_path):
    state = {f"layer_{i}": jnp.arange(20_000, dtype=jnp.float32) + i for i in range(20)}
    # reads its argument only to overwrite it, so that every output may reuse its buffer
    overwrite = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0.5 - 7, tree), donate_argnums=0)
    state = overwrite(overwrite.lower(state).compile()(state))
    expected = jax.tree.map(lambda x: np.array(x, copy=True), state)
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"learner": state})
            for _ in range(200):
                state = overwrite(state)
            jax.block_until_ready(state)
            _, restored = checkpointer.restore("learner", abstract(state))
            for name in expected:
                np.testing.assert_array_equal(np.asarray(restored[name]), expected[name])
            expected = jax.tree.map(lambda x: np.array(x, copy=True), state)


def test_keeps_the_newest(saved, tmp_path):
    saved.save(40, make_items(40))
    saved.wait()
    assert saved.steps() == [20, 30, 40]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["20", "30", "40"]


def test_a_step_can_be_saved_again(saved):
    saved.save(30, make_items(7))
    assert kernel(saved.restore("acting", target())[1]) == 7
    assert saved.steps() == [10, 20, 30]


def test_saving_after_a_roll_back_drops_the_abandoned_steps_loudly(saved, warned):
    saved.save(15, make_items(15))
    saved.wait()
    assert saved.steps() == [10, 15]
    assert len(warned) == 1 and "20, 30" in warned[0]


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def add_beside(path):
    (path.parent / "stray").write_bytes(b"x")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip_bit, "SHA-256"),
        (truncate, "bytes, the manifest says"),
        (Path.unlink, "missing"),
        (add_beside, "not in the manifest"),
    ],
)
def test_damage_is_found_and_the_step_before_is_used(saved, tmp_path, warned, damage, reason):
    damage(item_files(tmp_path, 30)[0])
    step, acting = saved.restore("acting", target())
    assert (step, kernel(acting)) == (20, 20)
    (line,) = warned
    assert "30" in line and reason in line and str(tmp_path / "checkpoints" / "30" / "acting") in line
    with pytest.raises(UserError, match=reason):
        saved.restore("acting", target(), step=30)


def flip_middle(path):
    flip_bit(path, path.stat().st_size // 2)


@pytest.mark.parametrize("damage", [flip_middle, truncate, Path.unlink])
def test_every_file_of_a_step_is_watched(saved, tmp_path, warned, damage):
    step = tmp_path / "checkpoints" / "30"
    paths = sorted(path for path in step.rglob("*") if path.is_file())
    assert {path.relative_to(step).parts[0] for path in paths} > {
        "acting",
        "learner",
        "loop",
        "manifest.json",
    }
    for path in paths:
        if not path.stat().st_size and damage is not Path.unlink:
            continue  # nothing to flip or to cut off
        before = path.read_bytes()
        damage(path)
        with pytest.raises(UserError, match="30") as refusal:
            saved.restore("acting", target(), step=30)
        assert str(path) in str(refusal.value)
        path.write_bytes(before)
    assert saved.restore("acting", target()) and warned == []


def test_damage_in_an_item_that_is_not_asked_for_is_damage(saved, tmp_path, warned):
    flip_bit(item_files(tmp_path, 30, "learner")[0])
    assert saved.restore("acting", target())[0] == 20
    assert len(warned) == 1 and "30/learner" in warned[0]


@pytest.mark.parametrize("damage", [flip_bit, truncate, Path.unlink, lambda path: path.write_text("[]")])
def test_damaged_manifest(saved, tmp_path, warned, damage):
    damage(tmp_path / "checkpoints" / "30" / "manifest.json")
    assert saved.restore("acting", target())[0] == 20
    assert "manifest.json" in warned[0]


def test_a_changed_number_in_the_manifest_is_found(saved, tmp_path):
    path = tmp_path / "checkpoints" / "30" / "manifest.json"
    content = json.loads(path.read_text())
    content["body"]["step"] = 31
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="SHA-256"):
        saved.restore("acting", target(), step=30)


def test_a_renamed_step_is_not_taken_for_another(saved, tmp_path, warned):
    (tmp_path / "checkpoints" / "30").rename(tmp_path / "checkpoints" / "99")
    assert saved.restore("acting", target())[0] == 20
    assert "belongs to step 30" in warned[0]


def test_damaged_steps_do_not_crowd_out_intact_ones(saved, tmp_path):
    for step in (20, 30):
        flip_bit(item_files(tmp_path, step)[0])
    assert saved.restore("acting", target())[0] == 10
    saved.save(40, make_items(40))
    saved.wait()
    assert saved.steps() == [10, 40]


@pytest.mark.parametrize("with_manifest", [False, True])
def test_a_kill_before_the_rename_leaves_an_unfinished_step(saved, tmp_path, warned, with_manifest):
    unfinished = tmp_path / "checkpoints" / "30.unfinished"
    (tmp_path / "checkpoints" / "30").rename(unfinished)
    if not with_manifest:
        (unfinished / "manifest.json").unlink()
    assert saved.steps() == [10, 20]
    assert saved.restore("acting", target())[0] == 20
    assert len(warned) == 1 and "30 is unfinished" in warned[0]
    saved.save(40, make_items(40))
    saved.wait()
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["10", "20", "40"]


def test_nothing_intact(saved, tmp_path, warned):
    for step in (10, 20, 30):
        flip_bit(item_files(tmp_path, step)[0])
    with pytest.raises(UserError, match=r"checkpoints: expected an intact checkpoint.*10, 20, 30"):
        saved.restore("acting", target())
    assert len(warned) == 3


def test_reading_where_nothing_is_creates_nothing(tmp_path):
    with Checkpointer(tmp_path / "typo" / "checkpoints") as checkpointer:
        assert checkpointer.steps() == []
        with pytest.raises(UserError, match="typo"):
            checkpointer.restore("acting", target())
        with pytest.raises(UserError, match="expected checkpoint 3, found none"):
            checkpointer.restore("acting", target(), step=3)
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_there_names_those_that_are(saved):
    with pytest.raises(UserError, match="expected checkpoint 25, found 10, 20, 30"):
        saved.restore("acting", target(), step=25)


def test_an_item_that_is_not_there(saved):
    with pytest.raises(UserError, match="an item named replay, found acting, learner, loop"):
        saved.restore("replay", target())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda k: {"kernel": jnp.zeros((4, 9))}, r"\(4, 9\), found float32 \(4, 8\)"),
        (lambda k: {"kernel": k.astype(jnp.bfloat16)}, "bfloat16 .*found float32"),
        (
            lambda k: {"kernel": k, "bias": jnp.zeros(8)},
            r"\['bias'\]: expected float32 \(8,\), found no such",
        ),
        (lambda k: {}, r"\['kernel'\]: expected no such array, found float32 \(4, 8\)"),
        (lambda k: {"kernel": jax.random.split(new_key(0), (4, 8))}, "key<fry>"),
    ],
)
def test_what_does_not_fit_is_named(saved, change, message):
    wrong = {"params": {"torso/0": change(jnp.zeros((4, 8)))}}
    with pytest.raises(UserError, match=message) as caught:
        saved.restore("acting", abstract(wrong))
    assert "torso/0" in str(caught.value) and "\n" not in str(caught.value)


def test_leaves_must_be_jax_arrays(tmp_path):
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(TypeError, match=r"loop\['n'\].*int"):
            checkpointer.save(1, {"loop": {"n": 3}})
        with pytest.raises(TypeError, match="threefry"):
            checkpointer.save(1, {"loop": jax.random.key(0, impl="rbg")})
        checkpointer.save(1, {"loop": jnp.float32(3), "replay": ()})
        _, restored = checkpointer.restore({"loop": jnp.float32(0), "replay": ()})
    assert restored == {"loop": 3.0, "replay": ()}


def disk_full(*_):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("shown_at", ["wait", "save", "close", "restore"])
def test_a_failure_in_the_background_is_shown_once_and_a_later_save_works(saved, monkeypatch, shown_at):
    show = {
        "wait": saved.wait,
        "save": lambda: saved.save(50, make_items(50)),
        "close": saved.close,
        "restore": lambda: saved.restore("acting", target()),
    }[shown_at]
    with monkeypatch.context() as patch:
        patch.setattr(manifest, "write", disk_full)
        saved.save(40, make_items(40))
        with pytest.raises(CheckpointError, match="checkpoint 40 was not saved in .*No space left"):
            show()
    assert saved.steps() == [10, 20, 30]
    saved.save(60, make_items(60))
    assert saved.restore("acting", target())[0] == 60


def test_a_directory_that_cannot_be_made(tmp_path, capfd):
    (tmp_path / "file").write_text("")
    with Checkpointer(tmp_path / "file" / "checkpoints") as checkpointer:
        with pytest.raises(CheckpointError, match="checkpoint 1 was not saved"):
            checkpointer.save(1, make_items())
        (tmp_path / "file").unlink()
        checkpointer.save(1, make_items())
        checkpointer.wait()
        assert checkpointer.steps() == [1]
    assert capfd.readouterr().err == ""


def test_an_exception_inside_the_block_is_not_hidden(tmp_path, monkeypatch, warned):
    monkeypatch.setattr(manifest, "write", disk_full)
    with pytest.raises(ZeroDivisionError), Checkpointer(tmp_path, warn=warned.append) as checkpointer:
        checkpointer.save(1, make_items())
        raise ZeroDivisionError
    assert "No space left" in warned[0]


def test_sha256_of_a_tree():
    params = {"b": jnp.ones(3), "a": {"c": jnp.zeros((2, 2), jnp.int8)}, "k": new_key(0)}
    same = flax.core.freeze(
        {"k": new_key(0), "a": {"c": np.zeros((2, 2), np.int8)}, "b": np.ones(3, np.float32)}
    )
    assert tree_sha256(params) == tree_sha256(same)
    different = [
        params | {"b": jnp.ones(3).at[1].set(1.0000001)},
        params | {"b": jnp.ones(3, jnp.bfloat16)},
        params | {"a": {"c": jnp.zeros(4, jnp.int8)}},
        params | {"a": {"d": jnp.zeros((2, 2), jnp.int8)}},
        params | {"k": new_key(1)},
    ]
    assert len({tree_sha256(tree) for tree in [params, *different]}) == 6


SAVE_FOR_EVER = """
import sys, itertools
import jax.numpy as jnp
from zerocopy_seed.checkpoint import Checkpointer
with Checkpointer(sys.argv[1]) as checkpointer:
    for step in itertools.count(1):
        checkpointer.save(step, {name: {"x": jnp.full((50_000,), step, jnp.float32)} for name in "ab"})
        print(step, flush=True)
"""

RESTORE_ON_EIGHT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from zerocopy_seed.checkpoint import Checkpointer
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
key = jax.random.key(0, impl="threefry2x32")
target = {"x": jax.ShapeDtypeStruct((16, 3), jnp.float32, sharding=sharding),
          "keys": jax.ShapeDtypeStruct((8,), key.dtype, sharding=sharding)}
with Checkpointer(sys.argv[1]) as checkpointer:
    _, restored = checkpointer.restore("loop", target)
    assert restored["x"].sharding == sharding, restored["x"].sharding
    assert len(restored["keys"].sharding.device_set) == 8
    checkpointer.save(2, {"loop": restored})
"""


def start(code, *arguments, **environment):
    path = os.pathsep.join([str(ROOT), str(ROOT / "envs")])
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        env=os.environ | {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_killed_process_leaves_only_whole_steps_and_unfinished_ones(tmp_path, warned):
    target = {name: {"x": jax.ShapeDtypeStruct((50_000,), jnp.float32)} for name in "ab"}
    with start(SAVE_FOR_EVER, str(tmp_path)) as process:
        try:
            assert process.stdout
            printed = [int(process.stdout.readline()) for _ in range(4)]
            time.sleep(np.random.default_rng().uniform(0, 0.1))
        finally:
            process.kill()
    step, restored = Checkpointer(tmp_path, warn=warned.append).restore(target)
    assert step >= printed[-2]
    assert all((tree["x"] == step).all() for tree in restored.values())
    assert all("unfinished" in line for line in warned)


def test_restored_onto_more_devices_and_back(tmp_path):
    loop = {"x": jnp.arange(48, dtype=jnp.float32).reshape(16, 3), "keys": jax.random.split(new_key(3), 8)}
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"loop": loop})
    eight = "--xla_force_host_platform_device_count=8"
    with start(RESTORE_ON_EIGHT, str(tmp_path), XLA_FLAGS=eight) as process:
        output = process.communicate()
    assert (process.returncode, output) == (0, ("", ""))
    step, restored = Checkpointer(tmp_path).restore("loop", abstract(loop))
    assert step == 2 and tree_sha256(restored) == tree_sha256(loop)


def test_an_item_may_be_absent_where_that_is_said(tmp_path, warned):
    items = make_items(1)
    some, whole = {"acting": items["acting"]}, {name: items[name] for name in ("acting", "loop")}
    with Checkpointer(tmp_path, warn=warned.append) as saves:
        saves.save(1, whole)
        saves.save(2, some)
        for step in (None, 2):
            found, restored = saves.restore(abstract(whole), step=step, optional=("loop",))
            assert (found, set(restored)) == (2, {"acting"})
            with pytest.raises(UserError, match="expected an item named loop, found acting"):
                saves.restore(abstract(whole), step=step)
        assert set(saves.restore(abstract(whole), step=1, optional=("loop",))[1]) == {"acting", "loop"}
        # What is there must be whole, though it might have been absent.
        saves.save(3, whole)
        saves.wait()
        for path in (tmp_path / "3" / "loop").rglob("*"):
            if path.is_file():
                flip_bit(path)
        assert saves.restore(abstract(whole), optional=("loop",))[0] == 2
        assert len(warned) == 1 and "checkpoint 3 is damaged" in warned[0]
        # But where nothing else is left, the rest of it is better than nothing.
        for step in (1, 2):
            shutil.rmtree(tmp_path / str(step))
        step, restored = saves.restore(abstract(whole), optional=("loop",))
        assert (step, set(restored)) == (3, {"acting"})
        with pytest.raises(UserError, match="only damaged"):
            saves.restore(abstract(whole))
