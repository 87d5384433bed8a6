"""Records without JAX: what is written is read back, in order, and nothing else is taken for it."""

import contextlib
import dataclasses
import errno
import json
import shutil

import numpy as np
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec
from zerocopy_seed.experience import Description, Place, RecordReader, RecordWriter, check_fits, open_index
from zerocopy_seed.experience import writer as writer_module

SPEC = EnvironmentSpec(
    {"board": ArraySpec((2, 3), np.uint8, 0, 1), "speed": ArraySpec((), np.float32)}, DiscreteAction(3)
)
DESCRIPTION = Description(
    environment="my:Game",
    settings={"rows": 4},
    spec=SPEC,
    agent="r2d2",
    num_envs=2,
    unroll_length=3,
    leaves={
        ".timestep.observation['board']": {"dtype": "uint8", "shape": [4, 2, 2, 3]},
        ".recurrent.core[0]": {"dtype": "float32", "shape": [2, 5]},
        ".continues": {"dtype": "bool", "shape": [2]},
    },
)

BEGINNING = Place(0, 0)


def make_rounds(first, num):
    """Rounds first..first + num - 1, each of its own numbers."""
    rng = [np.random.default_rng(number) for number in range(first, first + num)]
    board, core, continues = DESCRIPTION.leaves
    return {
        board: np.stack([random.integers(0, 255, (4, 2, 2, 3), np.uint8) for random in rng]),
        core: np.stack([random.normal(size=(2, 5)).astype(np.float32) for random in rng]),
        continues: np.ones((num, 2), bool),
    }


def write(directory, *, first=0, num=7, by=3, max_bytes=1e9, shard_rounds=2, due=None, warn=pytest.fail):
    """A record of `num` rounds, added `by` at a time with rows to spare."""
    shard_bytes = shard_rounds * DESCRIPTION.round_bytes
    with RecordWriter(
        directory, DESCRIPTION, max_bytes=max_bytes, shard_bytes=shard_bytes, warn=warn
    ) as writer:
        for begin in range(first, first + num, by):
            count = min(by, first + num - begin)
            is_due = np.ones(count, bool) if due is None else np.array(due[begin : begin + count])
            writer.add(make_rounds(begin, by), is_due)
    return directory


def read(directory, num, place=BEGINNING):
    """The next `num` rounds from `place` on, and where they end."""
    rounds = []
    with RecordReader(directory) as reader:
        for _ in range(num):
            rounds.append(reader.read(place))
            place = rounds[-1].next
    return rounds, place


def assert_rounds(rounds, numbers, gaps=()):
    """Rounds are those of these numbers, and do not continue what came before at these places."""
    assert len(rounds) == len(numbers)
    for place, (found, number) in enumerate(zip(rounds, numbers, strict=True)):
        expected = {name: rows[0] for name, rows in make_rounds(number, 1).items()}
        expected[".continues"] = np.full(2, place not in gaps)
        assert found.arrays.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found.arrays[name], array, err_msg=f"{place}: {name}", strict=True)


@pytest.mark.parametrize("shard_rounds", [1, 2, 3, 100])
def test_rounds_come_back_in_order_pass_after_pass(tmp_path, shard_rounds):
    write(tmp_path / "record", shard_rounds=shard_rounds)
    names = {path.name for path in (tmp_path / "record").iterdir()}
    assert names == {"index.json", *(f"{number:06}.npz" for number in range(-(-7 // shard_rounds)))}
    rounds, place = read(tmp_path / "record", 16)
    assert_rounds(rounds, [*range(7), *range(7), 0, 1], gaps={0, 7, 14})
    assert place == (2, 2)
    # A reader that begins in the middle goes on from there, and what it reads continues what came before.
    assert_rounds(read(tmp_path / "record", 4, Place(5, 5))[0], [5, 6, 0, 1], gaps={2})


def test_what_is_appended_does_not_continue_what_was_there(tmp_path):
    write(tmp_path, num=5)
    write(tmp_path, first=5, num=4)
    assert_rounds(read(tmp_path, 9)[0], range(9), gaps={0, 5})


def test_rounds_that_no_update_followed_say_so(tmp_path):
    due = [False, True, True, False, False, True, False]
    rounds, _ = read(write(tmp_path, due=due), 7)
    assert [found.is_due for found in rounds] == due
    index = open_index(tmp_path)
    assert index is not None and sum(shard.num_updates for shard in index.shards) == 3


def test_the_index_gives_the_description_back(tmp_path):
    write(tmp_path)
    index = open_index(tmp_path)
    assert index is not None
    assert index.description == DESCRIPTION
    assert index.num_rounds == 7
    assert index.size == sum(path.stat().st_size for path in tmp_path.glob("*.npz"))


def test_recording_ends_at_its_bound_and_keeps_what_is_there(tmp_path):
    lines = []
    # Two shards fit, and no third, whose headers are reckoned at more than they turn out to take.
    bound = (
        (write(tmp_path / "one", num=2) / "000000.npz").stat().st_size + 2 * DESCRIPTION.round_bytes + 4400
    )
    tmp_path /= "record"
    write(tmp_path, num=9, max_bytes=bound, warn=lines.append)
    assert sum(path.stat().st_size for path in tmp_path.glob("*.npz")) <= bound
    assert_rounds(read(tmp_path, 4)[0], range(4), gaps={0})
    write(tmp_path, max_bytes=bound, warn=lines.append)
    assert len(list(tmp_path.glob("*.npz"))) == 2
    assert len(lines) == 2 and "reached record.max_gb" in lines[0] and "training goes on" in lines[0]


def test_a_full_disk_is_said_once_and_leaves_a_gap(tmp_path, monkeypatch):
    lines, saves, savez = [], [], np.savez

    def savez_with_a_full_disk(file, **arrays):
        saves.append(len(saves))
        if saves[-1] in (1, 2):
            file.write(b"a part")
            raise OSError(errno.ENOSPC, "No space left on device")
        savez(file, **arrays)

    monkeypatch.setattr(writer_module.np, "savez", savez_with_a_full_disk)
    write(tmp_path, num=10, by=2, warn=lines.append)
    assert_rounds(read(tmp_path, 6)[0], [0, 1, 6, 7, 8, 9], gaps={0, 2})
    assert len(lines) == 1 and "No space left on device" in lines[0] and "training goes on" in lines[0]
    assert not list(tmp_path.glob("*.unfinished"))


def test_what_a_kill_leaves_is_no_shard(tmp_path):
    write(tmp_path, num=4)
    (tmp_path / "000002.npz").write_bytes(b"not named by the index")
    (tmp_path / "000003.npz.unfinished").write_bytes(b"cut")
    assert_rounds(read(tmp_path, 4)[0], range(4), gaps={0})
    write(tmp_path, first=4, num=2)
    assert_rounds(read(tmp_path, 6)[0], range(6), gaps={0, 4})


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage, message",
    [
        (lambda record: flip(record / "000001.npz"), r"000001.npz: does not match the index's SHA-256"),
        (lambda record: (record / "000003.npz").write_bytes(b""), r"000003.npz: 0 bytes, the index says \d+"),
        (lambda record: (record / "000000.npz").unlink(), "000000.npz: missing"),
        (lambda record: flip(record / "index.json"), "index.json: the manifest"),
        (lambda record: (record / "index.json").write_text("{"), "index.json: the manifest is damaged"),
        (lambda record: (record / "index.json").unlink(), "no index.json in it, and other files"),
        (shutil.rmtree, "expected a record of some unrolls, found none; record some"),
    ],
)
def test_a_damaged_record_is_refused_and_kept(tmp_path, damage, message):
    record = write(tmp_path / "record")
    damage(record)
    before = {path: path.read_bytes() for path in record.rglob("*")}
    with pytest.raises(UserError, match=message):
        RecordReader(record)
    with contextlib.suppress(UserError):  # what is appended to is refused where the index is not sound
        open_index(record)
    assert {path: path.read_bytes() for path in record.rglob("*")} == before


def test_a_shard_that_changes_while_it_is_read_from_is_refused(tmp_path):
    write(tmp_path)
    with RecordReader(tmp_path) as reader:
        flip(tmp_path / "000002.npz")
        with pytest.raises(UserError, match="000002.npz: does not match"):
            reader.read(Place(0, 4))
        with pytest.raises(UserError, match="expected more than 7 unrolls of every slot"):
            reader.read(Place(0, 7))


def test_a_record_without_unrolls_is_refused(tmp_path):
    write(tmp_path, num=0)
    with pytest.raises(UserError, match="found one without any; record some"):
        RecordReader(tmp_path)


def test_other_files_are_not_recorded_among(tmp_path):
    (tmp_path / "thesis.tex").write_text("all of it")
    with pytest.raises(UserError, match="expected a record, or an empty or new directory"):
        write(tmp_path)
    with pytest.raises(UserError, match="found a file"):
        write(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


OTHER_SPEC = dataclasses.replace(SPEC, observation=SPEC.observation | {"board": ArraySpec((2, 4), np.uint8)})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"environment": "my:Other"}, "env.name: expected 'my:Game', as in DIR, found 'my:Other'"),
        ({"settings": {"rows": 5}}, r"env.settings: expected \{'rows': 4\}, as in DIR, found \{'rows': 5\}"),
        ({"agent": "vtrace"}, "agent.name: expected 'r2d2', as in DIR, found 'vtrace'"),
        ({"num_envs": 4}, "env.num_envs: expected 2, as in DIR, found 4; set --env.num-envs 2, or"),
        ({"unroll_length": 4}, "agent.unroll_length: expected 3, as in DIR, found 4"),
        (
            {"spec": OTHER_SPEC},
            r"spec.observation.board: expected uint8\[2, 3\], as in DIR, found uint8\[2, 4\]",
        ),
        (
            {"leaves": {**DESCRIPTION.leaves, ".recurrent.core[0]": {"dtype": "float32", "shape": [2, 6]}}},
            r"trajectory.recurrent.core\[0\]: expected float32 \(2, 5\), as in DIR, found float32 \(2, 6\)",
        ),
        (
            {"leaves": {name: leaf for name, leaf in DESCRIPTION.leaves.items() if "core" not in name}},
            r"trajectory.recurrent.core\[0\]: expected float32 \(2, 5\), as in DIR, found no such array",
        ),
    ],
)
def test_what_does_not_fit_is_named(tmp_path, changes, message):
    write(tmp_path)
    before = (tmp_path / "index.json").read_bytes()
    other = dataclasses.replace(DESCRIPTION, **changes)
    with pytest.raises(UserError, match=message.replace("DIR", str(tmp_path))):
        RecordWriter(tmp_path, other, max_bytes=1e9, shard_bytes=1e6)
    assert (tmp_path / "index.json").read_bytes() == before
    check_fits("it", DESCRIPTION, DESCRIPTION)


def test_settings_of_a_run_equal_those_that_the_index_gives_back(tmp_path):
    write(tmp_path)
    assert json.loads((tmp_path / "index.json").read_text())["body"]["description"]["settings"] == {"rows": 4}
