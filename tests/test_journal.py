"""events.jsonl: one line an event, and no more of them than people read."""

import json

from zerocopy_seed.journal import Journal


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_an_event(tmp_path):
    with Journal(tmp_path / "events.jsonl", "run") as journal:
        assert journal.note("actor_lost", "actor 3 is lost\nindeed", actor=3, slots="0-3")
    (row,) = read(tmp_path / "events.jsonl")
    assert row.pop("time").endswith("+00:00")
    assert row == {
        "run_id": "run",
        "event": "actor_lost",
        "message": "actor 3 is lost\nindeed",
        "actor": 3,
        "slots": "0-3",
    }


def test_a_day_of_what_repeats_stays_small(tmp_path):
    now = 0.0
    with Journal(tmp_path / "events.jsonl", "run", clock=lambda: now) as journal:
        for second in range(86_400):
            now = float(second)
            journal.note("unusable_rows", "x" * 10_000, actor=1)
            journal.note("actor_lost", "actor 7 is lost") if second % 3600 == 0 else None
    path = tmp_path / "events.jsonl"
    rows = read(path)
    assert 1440 + 10 <= sum(row["event"] == "unusable_rows" for row in rows) <= 1440 + 12
    assert sum(row["event"] == "actor_lost" for row in rows) == 24
    written = sum(row["event"] == "unusable_rows" and "message" in row for row in rows)
    assert sum(row.get("num_held_back", 0) for row in rows) + written == 86_400
    assert path.stat().st_size < 1500 * 2300


def test_a_clock_that_is_set_back_changes_nothing(tmp_path):
    with Journal(tmp_path / "events.jsonl", "run", clock=lambda: 5.0) as journal:
        assert [journal.note("event", "") for _ in range(11)] == [True] * 10 + [False]


def test_a_file_that_cannot_be_written_ends_nothing(tmp_path):
    with Journal(tmp_path / "no such directory" / "events.jsonl", "run") as journal:
        assert journal.note("event", "")
