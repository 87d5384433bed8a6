"""Trains CartPole for an hour while actors are killed at random and the learner every ten minutes.

python scripts/soak.py [--minutes 60] [--learner-every 10] [--actor-every 10] [--run-dir runs/soak-TIME]

Eight actor processes join over TCP; their environments pause at each step, as slow simulators do, so that the
machine is not what is tested. Then it trains the same again, undisturbed and without pauses, for as many
env_steps, and compares. The figures go to soak.json and soak.md in --run-dir; exits 1 if one of them is not
as promised.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
from typing import Any

import numpy as np

from zerocopy_envs import make
from zerocopy_envs.types import HostEnvironment
from zerocopy_seed.loops.run_checkpoint import CHECKPOINTS
from zerocopy_seed.metrics import read_metrics

PACED, UNPACED = "soak:PacedCartPole", "gymnasium:CartPole-v1"
PAUSE_S = 0.02
WITH_PACED = {
    "PYTHONPATH": os.pathsep.join([str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
}
NUM_ACTORS, ENVS_PER_ACTOR, UNROLL_LENGTH = 8, 4, 16
SAVE_EVERY_S = 30.0
SAVE_TAKES_S = 10.0  # at most, on a loaded machine
CALM_S = 30.0  # before the end nobody is killed, so that all can be back by then
SAMPLE_S = 5.0
WARM_UP_S = 120.0  # of the memory, from a life's first line of metrics on
CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "vtrace_gymnasium_cartpole.toml"


class PacedCartPole:
    """CartPole of Gymnasium that takes `PAUSE_S` for a step."""

    def __init__(self, num_envs: int = 1):
        self._inner: HostEnvironment = make(UNPACED, num_envs=num_envs)
        self.spec, self.num_envs = self._inner.spec, num_envs
        self.reset, self.recv, self.close = self._inner.reset, self._inner.recv, self._inner.close

    def send(self, actions: np.ndarray) -> None:
        """Steps them all."""
        time.sleep(PAUSE_S)
        self._inner.send(actions)


@dataclasses.dataclass
class Life:
    """One learner process, from its start to its end."""

    process: subprocess.Popen[bytes]
    log: pathlib.Path
    started_at: float
    recovered_after_s: float = float("nan")
    actors_killed: int = 0
    memory: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    @property
    def resumed_at(self) -> int:
        """env_steps of the checkpoint that it goes on from."""
        found = re.search(r"resuming .* at ([\d,]+) env_steps", self.log.read_text())
        return int(found[1].replace(",", "")) if found else 0

    def look(self, run_dir: pathlib.Path, now: float) -> None:
        """Notes its lines of metrics, and how long the first one took."""
        if "compiled in" not in self.log.read_text():
            return  # until then the file may hold lines that this life cuts
        self.rows = [row for row in read_metrics(run_dir) if row["env_steps"] > self.resumed_at]
        if self.rows and np.isnan(self.recovered_after_s):
            self.recovered_after_s = now - self.started_at

    def sample(self, now: float) -> None:
        """Notes its resident memory, in MB, once it trains."""
        if not self.rows:
            return
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        if found := re.search(r"VmRSS:\s+(\d+) kB", status):
            self.memory.append((now, int(found[1]) / 1024))


def command(*words: Any, log: pathlib.Path) -> subprocess.Popen[bytes]:
    """A `zerocopy-seed` process that writes to `log`."""
    with open(log, "ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "zerocopy_seed.cli", *map(str, words)],
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=os.environ | WITH_PACED,
        )  # fmt: skip


class Soak:
    """The disturbed run.

    Args:
      directory: of everything that is written.
      settings: flags of `train`.
      minutes: how long.
      learner_every_s: seconds between two kills of the learner, about.
      actor_every_s: seconds between two kills of an actor, in the mean.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        settings: list[str],
        minutes: float,
        learner_every_s: float,
        actor_every_s: float,
    ):
        self._directory, self._settings, self.run_dir = directory, settings, directory / "disturbed"
        self._seconds, self._learner_every_s, self._actor_every_s = (
            60 * minutes,
            learner_every_s,
            actor_every_s,
        )
        self.lives: list[Life] = []
        self.losses: list[dict[str, float]] = []
        self.problems: list[str] = []
        self._actors: list[subprocess.Popen[bytes]] = []

    def run(self) -> None:
        """Until the time is up; leaves no process behind."""
        try:
            self._run()
        finally:
            for process in [*self._actors, *(life.process for life in self.lives)]:
                if process.poll() is None:
                    process.kill()
                    process.wait()

    def _run(self) -> None:
        self._start_learner()
        self._wait_for_address()
        self._actors = [self._start_actor(place) for place in range(NUM_ACTORS)]
        begin = time.monotonic()
        end, said_at, sampled_at = begin + self._seconds, begin, begin
        kills = [
            begin + (number + random.uniform(0.3, 0.7)) * self._learner_every_s
            for number in range(int(self._seconds / self._learner_every_s))
        ]
        next_actor = begin + random.expovariate(1 / self._actor_every_s)
        while (now := time.monotonic()) < end:
            life = self.lives[-1]
            if (code := life.process.poll()) is not None:
                raise SystemExit(f"the learner ended by itself with code {code}: see {life.log}")
            for place, actor in enumerate(self._actors):
                if (code := actor.poll()) is not None:
                    self.problems.append(f"actor {place} ended by itself with code {code}")
                    self._actors[place] = self._start_actor(place)
            life.look(self.run_dir, now)
            if now < end - CALM_S and now >= next_actor:
                self._kill_an_actor()
                next_actor = now + random.expovariate(1 / self._actor_every_s)
            if kills and now >= kills[0]:
                kills.pop(0)
                self._kill_the_learner()
            elif now - sampled_at >= SAMPLE_S:
                life.sample(now)
                sampled_at = now
            if now - said_at >= 30:
                self._say(now - begin)
                said_at = now
            time.sleep(0.25)
        self._stop()

    def _stop(self) -> None:
        life = self.lives[-1]
        life.process.send_signal(signal.SIGTERM)
        if code := life.process.wait(120):
            self.problems.append(f"the learner answered SIGTERM with code {code}")
        life.look(self.run_dir, time.monotonic())
        if life.rows and life.rows[-1]["num_actors"] != NUM_ACTORS:
            self.problems.append(
                f"{life.rows[-1]['num_actors']} of {NUM_ACTORS} actors were there at the end"
            )
        for place, actor in enumerate(self._actors):
            actor.terminate()
            if code := actor.wait(30):
                self.problems.append(f"actor {place} answered SIGTERM with code {code}")

    def _start_learner(self) -> None:
        begun = ["--resume"] if self.lives else [CONFIG, *self._settings, "--total-env-steps", 10**12]
        log = self._directory / f"learner-{len(self.lives)}.log"
        process = command("train", *begun, "--run-dir", self.run_dir, log=log)
        self.lives.append(Life(process, log, time.monotonic()))

    def _wait_for_address(self) -> None:
        path = self.run_dir / "bridge.json"
        while not path.exists():
            if self.lives[-1].process.poll() is not None:
                raise SystemExit(f"the learner did not start: see {self.lives[-1].log}")
            time.sleep(0.1)
        self._address = json.loads(path.read_text())["address"]

    def _start_actor(self, place: int) -> subprocess.Popen[bytes]:
        return command(
            "actor", self._address, "--env", PACED, "--num-envs", ENVS_PER_ACTOR, "--reconnect-s", "inf",
            log=self._directory / f"actor-{place}.log",
        )  # fmt: skip

    def _kill_an_actor(self) -> None:
        place = random.randrange(NUM_ACTORS)
        self._actors[place].kill()
        self._actors[place].wait()
        self.lives[-1].actors_killed += 1
        self._actors[place] = self._start_actor(place)

    def _kill_the_learner(self) -> None:
        life = self.lives[-1]
        life.process.kill()
        life.process.wait()
        life.look(self.run_dir, time.monotonic())
        finished = [path for path in (self.run_dir / CHECKPOINTS).glob("*") if path.name.isdecimal()]
        newest = max(finished, key=lambda path: int(path.name), default=None)
        age_s = time.monotonic() - life.started_at if newest is None else time.time() - newest.stat().st_mtime
        reached = life.rows[-1]["env_steps"] if life.rows else life.resumed_at
        checkpoint = 0 if newest is None else int(newest.name)
        loss = {"checkpoint": checkpoint, "env_steps": reached - checkpoint, "s": age_s}
        self.losses.append(loss)
        if newest is not None and checkpoint < life.resumed_at:
            self.problems.append(f"checkpoint {life.resumed_at} is gone, {checkpoint} is the newest")
        if life.rows and loss["s"] > SAVE_EVERY_S + SAVE_TAKES_S:
            self.problems.append(
                f"the newest checkpoint was {loss['s']:.0f} s old when the learner was killed"
            )
        self._start_learner()

    def _say(self, seconds: float) -> None:
        life = self.lives[-1]
        row = life.rows[-1] if life.rows else {}
        print(
            f"{seconds / 60:5.1f} min  env_steps {row.get('env_steps', life.resumed_at):,}  "
            f"return {row.get('episode_return', float('nan')):.1f}  actors {row.get('num_actors', '-')}  "
            f"killed {sum(life.actors_killed for life in self.lives)} actors, {len(self.losses)} learners  "
            f"memory {life.memory[-1][1] if life.memory else float('nan'):.0f} MB",
            flush=True,
        )


def memory_slope(lives: list[Life]) -> float | None:
    """MB a minute, by least squares over all lives at once, each with a level of its own and its first
    two minutes left out; None where none is long enough to tell.
    """
    times, sizes = [np.zeros(0)], [np.zeros(0)]
    for life in lives:
        seconds, megabytes = np.array(life.memory or [(0.0, 0.0)]).T
        warm = seconds >= seconds[0] + WARM_UP_S
        if warm.any():
            times.append((seconds[warm] - seconds[warm].mean()) / 60)
            sizes.append(megabytes[warm] - megabytes[warm].mean())
    minutes, size = np.concatenate(times), np.concatenate(sizes)
    return float(minutes @ size / (minutes @ minutes)) if minutes.any() else None


def evaluate(run_dir: pathlib.Path) -> dict[str, Any]:
    """What `evaluate` says of a run."""
    words = [sys.executable, "-m", "zerocopy_seed.cli", "evaluate", str(run_dir), "--env", UNPACED, "--json"]
    done = subprocess.run(words, check=True, stdout=subprocess.PIPE, env=os.environ | WITH_PACED)
    return json.loads(done.stdout.splitlines()[-1])


def summarize(soak: Soak, run_dir: pathlib.Path, minutes: float) -> dict[str, Any]:
    """The figures, and what is not as promised."""
    disturbed, undisturbed = evaluate(soak.run_dir), evaluate(run_dir)
    problems, lives = list(soak.problems), soak.lives
    for before, loss, life in zip(lives, soak.losses, lives[1:], strict=False):
        if life.resumed_at != loss["checkpoint"]:
            problems.append(f"{life.log.name}: began at {life.resumed_at}, not at {loss['checkpoint']}")
        if before.resumed_at > life.resumed_at:
            problems.append(f"{life.log.name}: began before {before.log.name}")
    dropped = [sum(row["dropped_steps"] for row in life.rows) for life in lives]
    promised = [life.actors_killed * ENVS_PER_ACTOR * UNROLL_LENGTH for life in lives]
    problems += [
        f"{life.log.name}: {found} rows dropped, at most {most} were promised"
        for life, found, most in zip(lives, dropped, promised, strict=True)
        if found > most
    ]
    ratio, slope = disturbed["return_mean"] / undisturbed["return_mean"], memory_slope(lives)
    if ratio < 0.95:
        problems.append(f"the return is {ratio:.3f} of the undisturbed run's, not 0.95")
    if slope is not None and slope >= 1:
        problems.append(f"memory grew by {slope:.2f} MB a minute")
    recovered = [life.recovered_after_s for life in lives[1:]]
    return {
        "minutes": minutes,
        "env_steps": disturbed["checkpoint_step"],
        "actors_killed": sum(life.actors_killed for life in lives),
        "learners_killed": len(soak.losses),
        "return_mean": disturbed["return_mean"],
        "undisturbed_return_mean": undisturbed["return_mean"],
        "return_ratio": ratio,
        "memory_mb": lives[-1].memory[-1][1] if lives[-1].memory else None,
        "memory_mb_per_minute": slope,
        "dropped_rows": sum(dropped),
        "dropped_rows_promised_at_most": sum(promised),
        "lost_env_steps": [loss["env_steps"] for loss in soak.losses],
        "lost_s_at_most": max((loss["s"] for loss in soak.losses), default=0.0),
        "recovery_s_median": float(np.median(recovered)) if recovered else None,
        "recovery_s_max": max(recovered, default=None),
        "problems": problems,
    }


def to_markdown(figures: dict[str, Any]) -> str:
    """A table of them."""
    rows = [
        f"| {name.replace('_', ' ')} | {f'{value:.4g}' if isinstance(value, float) else value} |"
        for name, value in figures.items()
        if name != "problems"
    ]
    problems = [f"- {problem}" for problem in figures["problems"]] or ["as promised"]
    return "\n".join(["| | |", "|---|---|", *rows, "", *problems]) + "\n"


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of the disturbed run")
    parser.add_argument("--learner-every", type=float, default=10.0, help="minutes between its kills")
    parser.add_argument("--actor-every", type=float, default=10.0, help="seconds between kills of actors")
    default = pathlib.Path("runs") / time.strftime("soak-%Y%m%d-%H%M%S")
    parser.add_argument("--run-dir", type=pathlib.Path, default=default, help="where all of it goes")
    options = parser.parse_args()
    directory: pathlib.Path = options.run_dir
    directory.mkdir(parents=True)
    settings = [
        "--env.num-envs", NUM_ACTORS * ENVS_PER_ACTOR, "--agent.unroll-length", UNROLL_LENGTH,
        # so that the policy is at rest when it is evaluated: five hundred steps a second are surely made
        "--agent.learning-rate-decay-env-steps", max(100_000, int(30_000 * options.minutes)),
        "--metrics.every-env-steps", 10_000, "--checkpoint.every-s", SAVE_EVERY_S,
    ]  # fmt: skip
    remote = [*settings, "--bridge.local-actors", 0, "--env.name", PACED]
    soak = Soak(directory, remote, options.minutes, 60 * options.learner_every, options.actor_every)
    soak.run()
    env_steps = max(int(path.name) for path in (soak.run_dir / CHECKPOINTS).iterdir())
    print(f"the same undisturbed, for {env_steps:,} env_steps", flush=True)
    straight, log = directory / "undisturbed", directory / "undisturbed.log"
    local = [*settings, "--bridge.local-actors", NUM_ACTORS, "--total-env-steps", env_steps]
    if command("train", CONFIG, *local, "--run-dir", straight, log=log).wait():
        raise SystemExit(f"the undisturbed run failed: see {log}")
    figures = summarize(soak, straight, options.minutes)
    (directory / "soak.json").write_text(json.dumps(figures, indent=2) + "\n")
    (directory / "soak.md").write_text(to_markdown(figures))
    print(to_markdown(figures) + json.dumps(figures))
    return 1 if figures["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
