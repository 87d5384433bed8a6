"""Trains MinAtar games with V-trace and with PureJaxRL's PPO in turn, on one machine, and compares.

    git clone https://github.com/luchris429/purejaxrl
    python scripts/compare_purejaxrl.py purejaxrl --env Breakout-MinAtar Asterix-MinAtar --seeds 0 1 2

Each run is a fresh process with an empty compile cache. PureJaxRL's `purejaxrl/ppo.py` runs as it is, on the
same gymnax, with the settings of its own MinAtar example. Returns are those of training episodes, at the end
the mean of the last 128 or more; what `evaluate` finds in our checkpoint, at the policy's mode, is apart.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
import tempfile
import time
import types
from typing import Any

from results import ROOT, run_command, run_python

MINATAR = {
    "LR": 5e-3,
    "NUM_ENVS": 64,
    "NUM_STEPS": 128,
    "UPDATE_EPOCHS": 4,
    "NUM_MINIBATCHES": 8,
    "GAMMA": 0.99,
    "GAE_LAMBDA": 0.95,
    "CLIP_EPS": 0.2,
    "ENT_COEF": 0.01,
    "VF_COEF": 0.5,
    "MAX_GRAD_NORM": 0.5,
    "ACTIVATION": "relu",
    "ANNEAL_LR": True,
}
"""PureJaxRL's settings for MinAtar (examples/brax_minatar.ipynb)."""

SAME_SIZES = (
    "--env.num-envs=64",
    "--agent.unroll-length=128",
    "--agent.num-passes=4",
    "--agent.num-minibatches=8",
    "--network.hidden-sizes",
    "--network.head-hidden-sizes",
    "64",
    "64",
    "--network.activation=relu",
)
"""The same network (two of 64 for the policy, two for the values), batches and passes, for the rates."""


def train_purejaxrl(checkout: pathlib.Path, env: str, seed: int, total_env_steps: int) -> dict[str, Any]:
    """One run in this process: seconds to compile and to train, and the mean return of every update."""
    import gymnax
    import jax
    import jax.numpy as jnp

    class FiveValues:
        """gymnax 1.0's `step` as PureJaxRL knows it, without the observations that 1.0 puts into `info`."""

        def __init__(self, environment):
            self.inner = environment

        def __getattr__(self, name):
            return getattr(self.inner, name)

        def step(self, key, state, action, params=None):
            observation, state, reward, terminated, truncated, _ = self.inner.step(key, state, action, params)
            return observation, state, reward, terminated | truncated, {}

    make = gymnax.make
    gymnax.make = lambda name: (lambda environment, params: (FiveValues(environment), params))(*make(name))
    if "brax" not in sys.modules:  # its wrappers import it for what is not used here
        brax = types.ModuleType("brax")
        brax.envs = types.ModuleType("brax.envs")  # type: ignore[attr-defined]
        sys.modules.update({"brax": brax, "brax.envs": brax.envs})
    sys.path.insert(0, str(checkout))
    from purejaxrl.ppo import make_train  # type: ignore[import-not-found]

    train = make_train({**MINATAR, "TOTAL_TIMESTEPS": total_env_steps, "ENV_NAME": env})

    def run(key):
        info = train(key)["metrics"]
        ended = info["returned_episode"]
        returns = jnp.where(ended, info["returned_episode_returns"], 0.0).sum((1, 2))
        return returns, ended.sum((1, 2))

    began = time.perf_counter()
    key = jax.random.PRNGKey(seed)
    compiled = jax.jit(run).lower(key).compile()
    compile_s = time.perf_counter() - began
    began = time.perf_counter()
    returns, counts = jax.device_get(compiled(key))
    train_s = time.perf_counter() - began
    steps, num_updates = MINATAR["NUM_ENVS"] * MINATAR["NUM_STEPS"], len(counts)
    curve = []
    together = 3  # updates a point: about as many steps as a line of metrics has
    for end in range(together, num_updates + 1, together):
        total, count = (float(of[end - together : end].sum()) for of in (returns, counts))
        if count:
            curve.append([end * steps, train_s * end / num_updates, total / count])
    last = num_updates - 1
    while last > 0 and counts[last:].sum() < 128:
        last -= 1
    return {
        "compile_s": compile_s,
        "train_s": train_s,
        "env_steps": num_updates * steps,
        "return_mean": float(returns[last:].sum() / counts[last:].sum()),
        "curve": curve,
    }


def ours(env: str, seed: int, total_env_steps: int, scratch: pathlib.Path, *words: str) -> dict[str, Any]:
    """A run of configs/vtrace_breakout_minatar.toml on `env`, trained and evaluated by the command line."""
    run_dir, cache = scratch / "run", scratch / "cache"
    config = str(ROOT / "configs" / "vtrace_breakout_minatar.toml")
    train = ["train", config, "--env.name", f"gymnax:{env}", "--seed", str(seed), "--run-dir", str(run_dir)]
    total = ["--total-env-steps", str(total_env_steps)]
    _, launch_s = run_command(cache, *train, *total, *words)
    printed, _ = run_command(cache, "evaluate", str(run_dir), "--episodes", "128", "--json")
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    last = lines[-1]
    return {
        "launch_s": launch_s,
        "train_s": last["wall_s"],
        "env_steps": last["env_steps"],
        "return_mean": last_return(lines),
        "evaluated": json.loads(printed.splitlines()[-1])["return_mean"],
        "curve": [
            [line["env_steps"], line["wall_s"], line["episode_return"]]
            for line in lines
            if "episode_return" in line
        ],
    }


def last_return(lines: list[dict[str, Any]]) -> float:
    """Mean return of the last 128 episodes or more, of lines of metrics."""
    total = count = 0.0
    for line in reversed(lines):
        if count < 128 and line.get("num_episodes"):
            total += line["episode_return"] * line["num_episodes"]
            count += line["num_episodes"]
    return total / count


def theirs(
    checkout: pathlib.Path, env: str, seed: int, total_env_steps: int, scratch: pathlib.Path
) -> dict[str, Any]:
    """PureJaxRL's run, in a process of its own."""
    one = [str(pathlib.Path(__file__).resolve()), str(checkout), "--one", "--env", env]
    numbers = ["--seeds", str(seed), "--total-env-steps", str(total_env_steps)]
    printed, launch_s = run_python(scratch / "cache", *one, *numbers)
    return {"launch_s": launch_s, **json.loads(printed.splitlines()[-1])}


def seconds_to(curve: list[list[float]], threshold: float) -> float | None:
    """Seconds of training until the mean return first was `threshold`; None if it never was."""
    return next((seconds for _, seconds, mean in curve if mean >= threshold), None)


def table(results: list[dict[str, Any]], thresholds: list[float]) -> str:
    """The results as Markdown: by game and program, the seeds side by side."""
    to = " | ".join(f"s to {threshold:g}" for threshold in thresholds)
    lines = [
        "| game | program | return at the end, by seed | evaluated | steps/s "
        f"| {to} | launch to trained, s |",
        "|---|---|---|---|---|" + "---|" * (len(thresholds) + 1),
    ]
    for env, program in dict.fromkeys((row["env"], row["program"]) for row in results):
        rows = [row for row in results if (row["env"], row["program"]) == (env, program)]
        reached = [
            ", ".join(
                "never" if s is None else f"{s:.0f}" for s in (seconds_to(row["curve"], t) for row in rows)
            )
            for t in thresholds
        ]
        cells = [
            env,
            program,
            ", ".join(f"{row['return_mean']:.1f}" for row in rows),
            ", ".join(f"{row['evaluated']:.1f}" for row in rows if "evaluated" in row),
            ", ".join(f"{row['env_steps'] / row['train_s']:,.0f}" for row in rows),
            *reached,
            ", ".join(f"{row['launch_s']:.0f}" for row in rows),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(results: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Returns over seconds of training, one panel a game."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    games = list(dict.fromkeys(row["env"] for row in results))
    figure, axes = plt.subplots(1, len(games), figsize=(3.6 * len(games), 3), squeeze=False)
    colors = {program: f"C{i}" for i, program in enumerate(dict.fromkeys(row["program"] for row in results))}
    for axis, env in zip(axes.flat, games, strict=True):
        labelled = set()
        for row in (row for row in results if row["env"] == env):
            program = row["program"]
            _, seconds, returns = zip(*row["curve"], strict=True)
            label = None if program in labelled else program
            axis.plot(seconds, returns, color=colors[program], label=label, linewidth=1, alpha=0.8)
            labelled.add(program)
        axis.set_title(env, fontsize=9)
        axis.set_xlabel("seconds of training", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel("episode return", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("checkout", type=pathlib.Path, help="a clone of PureJaxRL")
    parser.add_argument(
        "--env",
        nargs="+",
        default=["Breakout-MinAtar"],
        help="gymnax's games; results of others, and of other seeds, are kept",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of each")
    parser.add_argument("--total-env-steps", type=int, default=10_000_000, help="of every run")
    parser.add_argument("--thresholds", type=float, nargs="+", default=[25.0, 39.0], help="returns to reach")
    parser.add_argument(
        "--same-sizes", action="store_true", help="with PureJaxRL's network, batches and passes"
    )
    parser.add_argument("--one", action="store_true", help="only PureJaxRL, in this process; prints JSON")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "results", help="where to write")
    arguments = parser.parse_args()
    if not (arguments.checkout / "purejaxrl" / "ppo.py").is_file():
        parser.error(f"{arguments.checkout}: expected a clone of PureJaxRL, found no purejaxrl/ppo.py there")
    if arguments.one and (len(arguments.env), len(arguments.seeds)) != (1, 1):
        parser.error("--one: expected one --env and one of --seeds")

    if arguments.one:
        [env], [seed] = arguments.env, arguments.seeds
        print(json.dumps(train_purejaxrl(arguments.checkout.resolve(), env, seed, arguments.total_env_steps)))
        return

    name = "purejaxrl_same_sizes" if arguments.same_sizes else "purejaxrl"
    arguments.out.mkdir(parents=True, exist_ok=True)
    written = arguments.out / f"{name}.json"
    results: list[dict[str, Any]] = json.loads(written.read_text()) if written.exists() else []
    anew = [(env, seed) for env in arguments.env for seed in arguments.seeds]
    results = [row for row in results if (row["env"], row["seed"]) not in anew]
    for env in arguments.env:
        for seed in arguments.seeds:
            for program in ("V-trace", "PureJaxRL's PPO"):
                with tempfile.TemporaryDirectory() as directory:
                    scratch = pathlib.Path(directory)
                    if program == "V-trace":
                        words = SAME_SIZES if arguments.same_sizes else ()
                        result = ours(env, seed, arguments.total_env_steps, scratch, *words)
                    else:
                        total = arguments.total_env_steps
                        result = theirs(arguments.checkout.resolve(), env, seed, total, scratch)
                results.append({"env": env, "program": program, "seed": seed, **result})
                print(
                    f"{env}, {program}, seed {seed}: return {result['return_mean']:.2f}, "
                    f"{result['env_steps'] / result['train_s']:,.0f} env_steps/s",
                    flush=True,
                )
                written.write_text(json.dumps(results) + "\n")
    (arguments.out / f"{name}.md").write_text(table(results, arguments.thresholds))
    draw(results, arguments.out / f"{name}.png")
    print(table(results, arguments.thresholds))


if __name__ == "__main__":
    main()
