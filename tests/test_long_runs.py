"""What only shows after days: clocks that are set back, and files that grow."""

import ast
import io
import pathlib
import time

import pytest

from zerocopy_seed.loops.record import line_spacing
from zerocopy_seed.metrics import MetricsWriter, read_metrics
from zerocopy_seed.progress import Progress

ROOT = pathlib.Path(__file__).parent.parent
DAY_S = 86_400
WALL_CLOCKS = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"}
# Where a date is meant: names of files, time stamps, certificates (whose dates alone are reckoned with).
DATED = {"cli.py", "tensorboard.py", "journal.py", "certificates.py"}


def wall_clock_calls(tree):
    """(line, whether it is reckoned or compared with) of every reading of the wall clock."""
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = ast.unparse(node.func.value).rpartition(".")[2]
        if f"{owner}.{node.func.attr}" in WALL_CLOCKS:
            above, is_reckoned = node, False
            while (above := parents.get(above)) is not None and not isinstance(above, ast.stmt):
                is_reckoned |= isinstance(above, ast.BinOp | ast.Compare)
            is_reckoned |= isinstance(above, ast.AugAssign)
            is_reckoned |= isinstance(above, ast.Assign) and "now" in ast.unparse(above.targets[0])
            yield node.lineno, is_reckoned


def test_no_wall_clock_is_reckoned_with():
    for folder in ("zerocopy_seed", "envs"):
        for path in (ROOT / folder).rglob("*.py"):
            for line, is_reckoned in wall_clock_calls(ast.parse(path.read_text(encoding="utf-8"))):
                assert path.name in DATED, f"{path}:{line}"
                assert not is_reckoned or path.name == "certificates.py", f"{path}:{line}"


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("x = time.time() - began", True),
        ("if datetime.datetime.now() > end: pass", True),
        ("now = time.time()", True),
        ("f(time.time_ns())", False),
    ],
)
def test_the_rule_notices_what_breaks_it(code, found):
    ((_, is_reckoned),) = wall_clock_calls(ast.parse(code))
    assert is_reckoned == found


def test_a_clock_that_is_set_back_does_not_turn_time_back(tmp_path, monkeypatch):
    now = [2e9]
    monkeypatch.setattr(time, "time", lambda: now[0])
    with MetricsWriter(tmp_path, tensorboard=True, resume_env_steps=None) as metrics:
        for env_steps in range(1, 4):
            metrics.write({"env_steps": env_steps})
            now[0] -= DAY_S
    walls = [row["wall_s"] for row in read_metrics(tmp_path)]
    assert sorted(walls) == walls and walls[0] >= 0 and walls[-1] < 60


def num_lines(env_steps, every):
    """Lines of metrics of a run of so many env_steps."""
    at = count = 0
    while at < env_steps:
        spacing = line_spacing(at, every)
        at = (at // spacing + 1) * spacing
        count += 1
    return count


def test_lines_are_spaced_out_as_a_run_gets_long():
    assert [line_spacing(lines * 20, 20) for lines in (0, 999, 1000, 1999, 2000, 4000)] == [20] * 4 + [40, 80]
    assert num_lines(10**6, 20_000) == 50  # as many as ever
    assert num_lines(2000 * 20_000, 20_000) == 2000
    assert num_lines(4000 * 20_000, 20_000) == 3000


def test_a_day_of_lines_stays_below_80_mb(tmp_path):
    """A million env_steps a second, with actors, a line as often as by default, and 45 figures on each."""
    names = [f"actors_importance_ratio_{place}" for place in range(45)]
    with MetricsWriter(tmp_path, tensorboard=True, resume_env_steps=None) as metrics:
        for line in range(20):
            metrics.write(
                {"env_steps": 10**11 + line} | {name: 1.234567890123456 / 7 + line for name in names}
            )
    bytes_a_line = sum(path.stat().st_size for path in tmp_path.iterdir()) / 20
    assert 2000 < bytes_a_line < 10_000
    assert num_lines(DAY_S * 10**6, 20_000) * bytes_a_line < 80e6


def test_a_day_of_progress_stays_below_3_mb():
    stream, now = io.StringIO(), [0.0]
    with Progress(10**12, stream, clock=lambda: now[0]) as progress:
        for _ in range(2000):
            now[0] += 1.0
            progress.update(
                {"env_steps": 999_999_999_999, "env_steps_per_s": 1e6, "episode_return": -123456.78}
            )
    assert len(stream.getvalue()) / 2000 * DAY_S < 3e6
