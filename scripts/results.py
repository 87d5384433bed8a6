"""Trains and evaluates the README's results and writes their tables and curves.

    python scripts/results.py GROUP [--seeds 0 1 2] [--only NAME] [--out docs/results]

Every run goes through the command line as a user's would: `train` in a fresh process, then `evaluate --json`
on the saved checkpoint. Launch to trained is wall time of the whole process, with an empty compile cache.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One row of the table: a config, what is changed in it, and what it should reach."""

    name: str
    config: str
    overrides: tuple[str, ...]
    goal: str
    num_episodes: int = 128
    init_from: str = ""
    """An earlier experiment of its group, with whose parameters, of the same seed, it begins."""
    evaluate_on: str = ""
    """Another environment than it was trained on."""
    from_record: bool = False
    """Whether another run, of another seed, plays and is recorded, and this one learns from its record."""


PLAYERS_SEED = 1000  # added to the seed of a run, for the one that plays for it

# Fifteen steps lie between the bit and the reward: no sequence with its burn-in holds both. And a slot's
# episodes take 16, so that sequences begin at various places in them.
SHORT_SEQUENCES = (
    "--env.settings.memory-length=14",
    "--agent.unroll-length=6",
    "--agent.sequence-length=6",
    "--agent.period=6",
    "--agent.replay-capacity=20_000",
    "--agent.updates-per-insert=1",
)
IN_BRAX, IN_MUJOCO = "brax alone", "gymnasium:InvertedPendulum-v5"
GENERALIZED = "--env.settings.backend=generalized"
IN_JAX, ON_GYMNASIUM = "gymnax alone", "gymnasium:CartPole-v1"
BURN_IN, ZERO_STATE = "--agent.burn-in=6", "--agent.start-state=zero"


def ending_at(env_steps: int) -> tuple[str, ...]:
    """A run as long as its learning rate's decay."""
    return f"--total-env-steps={env_steps}", f"--agent.learning-rate-decay-env-steps={env_steps}"


EXPERIMENTS = {
    "vtrace": (
        Experiment("Catch, MLP", "vtrace_catch", (), ">= 0.95"),
        Experiment("CartPole-v1, MLP 2x64", "vtrace_cartpole", (), ">= 475"),
        Experiment("MemoryChain-bsuite (10), LSTM", "vtrace_memory_chain", (), ">= 0.95"),
        Experiment(
            "MemoryChain-bsuite (10), no core", "vtrace_memory_chain", ("--network.core", "none"), "< 0.3"
        ),
    ),
    "r2d2": (
        Experiment("Catch, DQN", "dqn_catch", (), ">= 0.95"),
        Experiment("Catch, R2D2", "r2d2_catch", (), ">= 0.95"),
        Experiment("CartPole-v1, Ape-X DQN", "apex_dqn_cartpole", (), ">= 450"),
        Experiment("CartPole-v1, R2D2", "r2d2_cartpole", (), ">= 450"),
        Experiment("MemoryChain-bsuite (10), R2D2", "r2d2_memory_chain", (), ">= 0.95"),
        Experiment("MemoryChain-bsuite (10), DQN", "dqn_memory_chain", (), "< 0.3"),
        Experiment("MemoryChain-bsuite (20), R2D2", "r2d2_memory_chain_20", (), ">= 0.95"),
        Experiment("Breakout-MinAtar, R2D2", "r2d2_breakout_minatar", (), ">= 10"),
    ),
    "bridge": (
        Experiment("CartPole-v1 of Gymnasium, V-trace", "vtrace_gymnasium_cartpole", (), ">= 475"),
        Experiment("CartPole-v1 of Gymnasium, R2D2", "r2d2_gymnasium_cartpole", (), ">= 450"),
    ),
    "mixed": (
        Experiment(
            IN_JAX, "vtrace_cartpole", ("--total-env-steps=60_000",), "none", evaluate_on=ON_GYMNASIUM
        ),
        Experiment(
            "then both",
            "vtrace_mixed_cartpole",
            ("--total-env-steps=250_000",),
            ">= 475",
            init_from=IN_JAX,
            evaluate_on=ON_GYMNASIUM,
        ),
        Experiment("both from the start", "vtrace_mixed_cartpole", (), ">= 475", evaluate_on=ON_GYMNASIUM),
    ),
    "mixed_pendulum": (
        Experiment(
            IN_BRAX,
            "vtrace_inverted_pendulum",
            (GENERALIZED, *ending_at(200_000)),
            "none",
            evaluate_on=IN_MUJOCO,
        ),
        Experiment(
            "then both",
            "vtrace_mixed_inverted_pendulum",
            ending_at(300_000),
            ">= 950",
            init_from=IN_BRAX,
            evaluate_on=IN_MUJOCO,
        ),
        Experiment(
            "both from the start", "vtrace_mixed_inverted_pendulum", (), ">= 950", evaluate_on=IN_MUJOCO
        ),
    ),
    "brax": (
        Experiment("inverted_pendulum, spring", "vtrace_inverted_pendulum", (), ">= 950"),
        Experiment(
            "reacher, spring",
            "vtrace_inverted_pendulum",
            ("--env.name=brax:reacher", "--agent.discount=0.95"),
            "a curve",
        ),
        Experiment("Pendulum-v1 of gymnax", "vtrace_pendulum", (), ">= -250"),
    ),
    "pong": (Experiment("Pong, V-trace", "vtrace_pong", (), ">= 15", num_episodes=10),),
    "recorded": (
        Experiment("Catch, R2D2", "r2d2_catch", (), ">= 0.95", from_record=True),
        Experiment("CartPole-v1, Ape-X DQN", "apex_dqn_cartpole", (), ">= 450", from_record=True),
    ),
    "stored_state": tuple(
        Experiment(name, "r2d2_memory_chain", (*SHORT_SEQUENCES, *overrides), "none")
        for name, overrides in (
            ("stored state, burn-in", (BURN_IN,)),
            ("stored state", ()),
            ("zero state, burn-in", (BURN_IN, ZERO_STATE)),
            ("zero state", (ZERO_STATE,)),
        )
    ),
}
"""By group: the names of the files that are written."""


def run_command(cache: pathlib.Path, *arguments: str) -> tuple[str, float]:
    """Standard output of `zerocopy-seed ARGUMENTS` with this compile cache, and its wall time in seconds."""
    return run_python(cache, "-m", "zerocopy_seed.cli", *arguments)


def run_python(cache: pathlib.Path, *arguments: str) -> tuple[str, float]:
    """Standard output of `python ARGUMENTS` likewise."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"ZEROCOPY_SEED_CACHE_DIR": str(cache)},
    )
    return done.stdout, time.perf_counter() - began


def train_and_evaluate(experiment: Experiment, seed: int, run_dir: pathlib.Path) -> dict:
    """One run's figures, and its learning curve as [env_steps, return] pairs."""
    config = ROOT / "configs" / f"{experiment.config}.toml"
    cache = run_dir.with_name(f"{run_dir.name}-cache")

    origin: tuple[str, ...] = ()
    if experiment.init_from:
        origin = ("--init-from", str(run_dir.with_name(f"{experiment.init_from}-{seed}")))
    other = ("--env", experiment.evaluate_on) if experiment.evaluate_on else ()

    def train(seed: int, run_dir: pathlib.Path, *words: str) -> float:
        words = (*experiment.overrides, *words, "--run-dir", str(run_dir))
        return run_command(cache, "train", str(config), "--seed", str(seed), *words)[1]

    def evaluate(run_dir: pathlib.Path) -> dict:
        words = ("--json", "--episodes", str(experiment.num_episodes), *other)
        return json.loads(run_command(cache, "evaluate", str(run_dir), *words)[0].splitlines()[-1])

    source, of_player = (), {}
    if experiment.from_record:
        player, record = (run_dir.with_name(f"{run_dir.name}-{name}") for name in ("player", "record"))
        train(seed + PLAYERS_SEED, player, "--record.dir", str(record))
        of_player = {"player_return_mean": evaluate(player)["return_mean"]}
        source = ("--source", f"recorded:{record}")
    train_s = train(seed, run_dir, *origin, *source)
    evaluation = evaluate(run_dir)
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    curve = [[line["env_steps"], line["episode_return"]] for line in lines if "episode_return" in line]
    return {
        "experiment": experiment.name,
        "config": experiment.config,
        "overrides": list(experiment.overrides),
        "goal": experiment.goal,
        "seed": seed,
        "return_mean": evaluation["return_mean"],
        "return_std": evaluation["return_std"],
        "num_episodes": evaluation["num_episodes"],
        "env_steps": evaluation["env_steps"],
        "train_s": round(train_s, 1),
        **of_player,
        "curve": curve,
    }


def table(results: list[dict]) -> str:
    """The results as Markdown, one row per experiment."""
    num_episodes = results[0]["num_episodes"]
    lines = [
        f"| environment, agent or network | goal | return, mean of {num_episodes} episodes, by seed "
        "| env_steps | launch to trained, s |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(result["experiment"] for result in results):
        rows = [result for result in results if result["experiment"] == name]
        returns = ", ".join(f"{row['return_mean']:.2f}" for row in rows)
        if "player_return_mean" in rows[0]:
            returns += " (recorded: " + ", ".join(f"{row['player_return_mean']:.2f}" for row in rows) + ")"
        seconds = ", ".join(f"{row['train_s']:.1f}" for row in rows)
        lines.append(f"| {name} | {rows[0]['goal']} | {returns} | {rows[0]['env_steps']:,} | {seconds} |")
    return "\n".join(lines) + "\n"


def draw(results: list[dict], path: pathlib.Path) -> None:
    """One panel per experiment, one line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(result["experiment"] for result in results))
    columns = min(len(names), 4)
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(3.6 * columns, 2.9 * rows), squeeze=False)
    for axis in axes.flat[len(names) :]:
        axis.remove()
    for axis, name in zip(axes.flat, names, strict=False):
        for row in (result for result in results if result["experiment"] == name):
            axis.plot(*zip(*row["curve"], strict=True), label=f"seed {row['seed']}", linewidth=1.2)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("env_steps", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 0))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("episode return", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("group", choices=EXPERIMENTS, help="which experiments")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of each experiment")
    parser.add_argument(
        "--only", help="run only experiments whose name contains this, and keep the others' results"
    )
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "results", help="where to write")
    arguments = parser.parse_args()

    written = arguments.out / f"{arguments.group}.json"
    names = [experiment.name for experiment in EXPERIMENTS[arguments.group]]
    results = []
    if arguments.only and written.exists():
        kept = [name for name in names if arguments.only not in name]
        results = [row for row in json.loads(written.read_text())["results"] if row["experiment"] in kept]
    with tempfile.TemporaryDirectory() as scratch:
        for experiment in EXPERIMENTS[arguments.group]:
            if arguments.only and arguments.only not in experiment.name:
                continue
            for seed in arguments.seeds:
                run_dir = pathlib.Path(scratch) / f"{experiment.name}-{seed}"
                result = train_and_evaluate(experiment, seed, run_dir)
                results.append(result)
                print(
                    f"{result['experiment']}, seed {seed}: return {result['return_mean']:.3f} "
                    f"(goal {result['goal']}) after {result['env_steps']:,} env_steps, {result['train_s']} s",
                    flush=True,
                )
    results.sort(key=lambda result: names.index(result["experiment"]))
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = f"{platform.machine()}, {platform.python_implementation()} {platform.python_version()}"
    record = {"machine": machine, "results": results}
    written.write_text(json.dumps(record, indent=1) + "\n")
    (arguments.out / f"{arguments.group}.md").write_text(table(results))
    if all(result["curve"] for result in results):  # who learns from a record ends no episodes
        draw(results, arguments.out / f"{arguments.group}.png")
    print(table(results))


if __name__ == "__main__":
    main()
