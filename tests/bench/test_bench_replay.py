import functools
import json
import sys

import jax
import jax.numpy as jnp
import pytest
from small_runs import CATCH

from zerocopy_envs.errors import UserError
from zerocopy_seed.bench import replay


def figures(monkeypatch, capsys, sizes):
    monkeypatch.setattr(replay, "pin_to_one_core", lambda: None)  # would pin the other tests too
    monkeypatch.setattr(replay, "measure", functools.partial(replay.measure, sizes=sizes, rounds=2, cycles=2))
    replay.run(as_json=True)
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_the_figures_add_up(monkeypatch, capsys):
    def stand_in(num_sequences):
        """Does next to nothing with a buffer of the right size."""

        def insert(buffer, unroll):
            return buffer + unroll.actor_output[0][0, 0]

        def cycle(buffer, unroll, key):
            return insert(buffer, unroll), buffer[:2]

        return replay.Cycle(lambda: jnp.zeros([num_sequences]), insert, cycle)

    monkeypatch.setattr(replay, "our_cycle", stand_in)
    monkeypatch.setattr(replay, "flashbax_cycle", stand_in)
    found = figures(monkeypatch, capsys, (250, 500, 1000))
    shape = ("replay", 64, 80, 40, 500)
    keys = ("bench", "num_slots", "sequence_length", "period", "num_sequences")
    assert tuple(found[key] for key in keys) == shape
    times = found["cycle_us_by_num_sequences"]
    assert list(times) == ["250", "500", "1000"] and all(0 < us < 1e6 for us in times.values())
    assert found["cycle_us"] == times["500"]
    assert abs(found["ratio_to_flashbax"] - times["500"] / found["flashbax_cycle_us"]) < 1e-6
    assert abs(found["growth"] - times["1000"] / times["250"]) < 1e-6
    assert found["buffer_mb"] == 500 * 4 / 1e6
    assert 0 < found["insert_100mb_ms"] < 1000


@pytest.mark.slow
def test_both_replays_run(monkeypatch, capsys):
    with jax.numpy_rank_promotion("allow"):  # flashbax's
        found = figures(monkeypatch, capsys, (256, 320, 384))
    assert found["ratio_to_flashbax"] > 0
    assert found["buffer_mb"] > 320 * 40 * 37e-6  # bytes of a row


def test_its_shape_is_fixed():
    with pytest.raises(UserError, match="--config"):
        replay.run([CATCH])
    with pytest.raises(UserError, match="--num-envs"):
        replay.run(num_envs=[4])


def test_a_missing_flashbax_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "flashbax", None)
    with pytest.raises(UserError, match=r"flashbax.*zerocopy_seed\[dev\]"):
        replay.flashbax_cycle(256)
