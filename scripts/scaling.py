"""Tables and a picture of what many GPUs and many actors would give, for docs/scaling.md.

    python scripts/scaling.py            # prints the tables; with --write puts them in the page, and draws

From docs/results/scaling.json, which scaling_inputs.py writes, by scaling_model.py.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from scripts.scaling_model import (
    Machine,
    Workload,
    bridge_rates,
    limit,
    lock_step_slowdown,
    lost_share,
    on_device_rate,
    read,
    sequences_that_fit,
    update,
)

ROOT = pathlib.Path(__file__).resolve().parents[1]
GPUS = (1, 2, 4, 8, 16, 64, 256, 1024)
ACTORS = (100, 300, 1000, 3000, 10_000)
ACTORS_AT = ((1, 1), (1, 8), (8, 8), (128, 1), (128, 8))  # hosts, event loops of each
HOT_MESSAGE_S = (
    75e-6  # of an event loop for a message of four pictures with hot caches: README.md, `bench bridge`
)
FAILURES = {"save_s": 1.0, "restart_s": 180.0}


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """In Markdown; numbers with three figures."""
    lines = [heads, ["---"] * len(heads), *([show(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def show(value: Any) -> str:
    """A cell: text and whole numbers as they are, others with three figures."""
    if isinstance(value, str):
        return value
    if isinstance(value, int) or (value < 1e5 and value == int(value)):
        return f"{int(value):,}"
    if value >= 100:
        return f"{round(value, 2 - int(math.log10(value))):,.0f}"
    return f"{value:.3g}"


def on_device_table(w: Workload, m: Machine, envs_per_gpu: Callable[[int], float]) -> str:
    """Rates of the sizes in GPUS, what of one GPU's rate each has, and what takes most of the time."""
    rows, alone = [], on_device_rate(w, m, 1, envs_per_gpu(1))[0]
    for gpus in GPUS:
        rate, spent = on_device_rate(w, m, gpus, envs_per_gpu(gpus))
        most = max(zip(spent._fields, spent, strict=True), key=lambda item: item[1])[0].replace("_", " ")
        shares = [f"{100 * part / spent.seconds:.0f}%" for part in spent]
        rows.append([gpus, envs_per_gpu(gpus), rate, rate / gpus / alone, *shares, most])
    heads = [
        "GPUs",
        "environments each",
        "env_steps/s",
        "of one GPU's rate",
        "playing",
        "learning",
    ]
    return table([*heads, "launches", "exchange", "most"], rows)


def bridge_table(w: Workload, m: Machine, envs: int = 32) -> str:
    """What hosts could carry with as many actors as they want, with an event loop each or one a GPU."""
    rows = []
    for gpus in GPUS:
        row: list[Any] = [gpus, -(-gpus // m.gpus_per_host)]
        for loops in (1, m.gpus_per_host):
            machine = dataclasses.replace(m, loops_per_host=loops)
            rates = bridge_rates(w, machine, gpus=gpus, actors=math.inf, envs=envs)
            name, rate = limit(rates)
            row += [rates["event loops"], rates["GPUs"], name, math.ceil(rate * m.actor_step_s)]
        rows.append([*row, rates["network"]])
    one = ["loops carry", "GPUs carry", "limit", "actors"]
    return table(["GPUs", "hosts", *one, *(f"{head} (8 a host)" for head in one), "network carries"], rows)


def actors_table(w: Workload, m: Machine, envs: int = 32) -> str:
    """Rates of so many actors, and what limits each; "8 x 8": 8 hosts with 8 event loops each."""
    rows = []
    for actors in ACTORS:
        made = actors / m.actor_step_s
        row: list[Any] = [actors, actors * envs, made, made * w.wire_bytes_up / 1e9]
        for hosts, loops in ACTORS_AT:
            machine = dataclasses.replace(m, loops_per_host=loops)
            rates = bridge_rates(w, machine, gpus=hosts * m.gpus_per_host, actors=actors, envs=envs)
            name, rate = limit(rates)
            row.append(f"{show(rate)}, {name}")
        rows.append(row)
    heads = [f"{hosts} x {loops}" for hosts, loops in ACTORS_AT]
    return table(["actors", "environments", "env_steps/s made", "GB/s up", *heads], rows)


def counts_table(workloads: dict[str, Workload]) -> str:
    """What was counted."""
    rows: list[list[Any]] = []
    for name in Workload._fields[1:-2]:
        rows.append([name.replace("_", " "), *(getattr(w, name) for w in workloads.values())])
    rows.append(
        [
            "exchanges of an update",
            *("; ".join(f"{t:,.0f} x {b:,.0f} bytes" for t, b in w.exchanges) for w in workloads.values()),
        ]
    )
    return table(["", *workloads], rows)


def measured_table(m: Machine) -> str:
    """What was measured, and the line that the model takes from it."""
    rows: list[list[Any]] = [
        [f"a message, rows: {row['rows']}", 1e6 * row["loop_s"], 1e6 * row["process_s"]]
        for row in m.measured["bridge"]
    ]
    rows += [
        ["the line: a + b rows", f"{1e6 * m.message_s:.0f} + {1e6 * m.row_s:.1f} rows", ""],
        ["an env_step of Pong in an actor", "", 1e6 * m.measured["actor"]["actor_cpu_s"]],
    ]
    return table(["CPU time, us", "event loop", "whole process"], rows)


def sensitivity_table(workloads: dict[str, Workload], m: Machine) -> str:
    """What wrong guesses would change: the rate of one GPU, and what share of it each of 1024 has."""
    ethernet = {"network_rate": 12.5e9, "network_hop_s": 30e-6}
    rows = []
    for name, change in (
        ("as stated", {}),
        ("products at 3% of the peak", {"product_efficiency": 0.03}),
        ("products at 30%", {"product_efficiency": 0.3}),
        ("a kernel 1 us", {"kernel_s": 1e-6}),
        ("a kernel 5 us", {"kernel_s": 5e-6}),
        ("100 Gb/s Ethernet a host, 30 us a hop", ethernet),
    ):
        other, row = dataclasses.replace(m, **change), [name]
        for w in workloads.values():
            on_device = bool(w.environment_kernels)
            one, many = (
                update(w, other, gpus, w.num_envs, on_device=on_device).seconds for gpus in (1, 1024)
            )
            row.append(f"{show(w.num_envs * w.unroll_length / one)}, {one / many:.2f}")
        rows.append(row)
    return table(["", *workloads], rows)


def limits_table(workloads: dict[str, Workload], m: Machine) -> str:
    """The sizes at which things break: with event loops as measured, and with hot caches."""
    ant, impala, r2d2 = workloads["ant"], workloads["impala"], workloads["r2d2"]
    faster = HOT_MESSAGE_S / (m.message_s + 4 * m.row_s)
    hot = dataclasses.replace(m, message_s=faster * m.message_s, row_s=faster * m.row_s)

    def loop_rate(machine: Machine, envs: int) -> float:
        return bridge_rates(impala, machine, gpus=1, actors=math.inf, envs=envs)["event loops"]

    def exchange_share(gpus: int) -> float:
        spent = update(ant, m, gpus, ant.num_envs, on_device=True)
        return spent.exchange / spent.seconds

    sizes = [2**power for power in range(21)]
    fifth = next(gpus for gpus in sizes if exchange_share(gpus) > 0.2)
    hundredth = next(gpus for gpus in sizes if lost_share(m, gpus, **FAILURES, every_s=300.0) > 0.01)
    fit = sequences_that_fit(r2d2, m, 100_000, 6e9)
    rows: list[list[Any]] = []
    for envs in (1, 32, 256):
        rates = [loop_rate(machine, envs) for machine in (m, hot)]
        carried = [f"{show(rate)} of {rate * m.actor_step_s:.0f} actors" for rate in rates]
        rows.append([f"env_steps/s that one event loop carries, environments an actor: {envs}", *carried])
    wanted = [math.ceil(10_000 / (loop_rate(machine, 32) * m.actor_step_s)) for machine in (m, hot)]
    num_bytes = fit * r2d2.replay_bytes / 100_000
    rows += [
        ["event loops that 10,000 actors of 32 want", *wanted],
        ["sequences of `r2d2_atari` that fit in a GPU of 80 GB", fit, ""],
        ["seconds to write that replay, a GPU's share, at 1 GB/s", num_bytes / m.disk_rate, ""],
        ["GPUs from which exchange is more than a fifth of ant's update", fifth, ""],
        ["GPUs from which failures cost more than 1%, checkpoints every 300 s", hundredth, ""],
    ]
    return table(["what", "as measured", "hot caches"], rows)


def blocks(workloads: dict[str, Workload], m: Machine) -> dict[str, str]:
    """The tables of docs/scaling.md by name."""
    ant, impala, r2d2 = workloads["ant"], workloads["impala"], workloads["r2d2"]
    layouts = []
    for name, w, gpus, actors, envs in (
        ("train_atari.sh: 640 actors of 1", r2d2, 2, 640, 1),
        ("the same environments in 20 actors of 32", r2d2, 2, 20, 32),
        ("train_dmlab_*.sh: 400 actors of 1", impala, 1, 400, 1),
        ("the same environments in 13 actors of 32", impala, 1, 13, 32),
        ("Table 1: 55 cores, here with 32 environments each", r2d2, 1, 55, 32),
    ):
        part, rate = limit(bridge_rates(w, m, gpus=gpus, actors=actors, envs=envs))
        layouts.append([name, gpus, rate, 4 * rate, part])
    failures = []
    for gpus in GPUS[3:]:
        mean_h = m.gpu_hours_per_failure / gpus
        lost = [lost_share(m, gpus, **FAILURES, every_s=s) for s in (60, 300, 1800)]
        failures.append([gpus, mean_h, *(f"{100 * share:.2g}%" for share in lost)])
    lock_step = [
        [actors, *(lock_step_slowdown(actors, length, 1.0) for length in (20, 100))]
        for actors in (10, *ACTORS)
    ]
    return {
        "limits": limits_table(workloads, m),
        "measured": measured_table(m),
        "counts": counts_table(workloads),
        "ant_weak": on_device_table(ant, m, lambda gpus: ant.num_envs),
        "ant_strong": on_device_table(ant, m, lambda gpus: 16 * ant.num_envs / gpus),
        "impala": bridge_table(impala, m),
        "r2d2": bridge_table(r2d2, m),
        "actors": actors_table(impala, m),
        "sensitivity": sensitivity_table(workloads, m),
        "layouts": table(["SEED's layout", "GPUs", "env_steps/s here", "frames/s", "limit"], layouts),
        "failures": table(["GPUs", "hours between failures", "60 s", "300 s", "1800 s"], failures),
        "lock_step": table(["actors", "T = 20", "T = 100"], lock_step),
    }


def put_in(page: str, parts: dict[str, str]) -> str:
    """The page with each block between its marks."""
    for name, text in parts.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        page, number = re.subn(
            pattern, lambda found, text=text: f"{found[1]}{text}\n{found[2]}", page, flags=re.S
        )
        if number != 1:
            raise ValueError(f"docs/scaling.md: expected one block {name}, found {number}")
    return page


def draw(workloads: dict[str, Workload], m: Machine, path: pathlib.Path) -> None:
    """Rates over GPUs, on doubly logarithmic axes. Through the bridge the lower of loops' and GPUs' holds."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    ant, sizes = workloads["ant"], [2**power for power in range(11)]
    lines = {
        "ant, 2048 environments a GPU": [on_device_rate(ant, m, n, ant.num_envs)[0] for n in sizes],
        "ant, 32,768 environments in all": [
            on_device_rate(ant, m, n, 16 * ant.num_envs / n)[0] for n in sizes
        ],
    }
    for loops in (1, m.gpus_per_host):
        machine = dataclasses.replace(m, loops_per_host=loops)
        for name in ("impala", "r2d2"):
            rates = [bridge_rates(workloads[name], machine, gpus=n, actors=math.inf, envs=32) for n in sizes]
            lines[f"event loops, {loops} a host"] = [row["event loops"] for row in rates]
            lines[f"{name}, GPUs alone, {loops} acting a host"] = [row["GPUs"] for row in rates]
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    for place, (name, rates) in enumerate(lines.items()):
        style = "--" if "alone" in name else ":" if "loops" in name else "-"
        axes.loglog(sizes, rates, style, marker=".", color=f"C{place}", label=name)
    axes.set(xlabel="GPUs, eight a host", ylabel="env_steps/s, by the model")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Prints all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=ROOT / "docs" / "results" / "scaling.json")
    parser.add_argument(
        "--write", action="store_true", help="into docs/scaling.md, and docs/results/scaling.png"
    )
    arguments = parser.parse_args()
    workloads, machine = read(arguments.data)
    parts = blocks(workloads, machine)
    for name, text in parts.items():
        print(f"\n{name}\n\n{text}")
    print(f"\n{machine}")
    if arguments.write:
        page = ROOT / "docs" / "scaling.md"
        page.write_text(put_in(page.read_text(), parts))
        draw(workloads, machine, arguments.data.with_suffix(".png"))


if __name__ == "__main__":
    main()
