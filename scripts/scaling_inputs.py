"""Counts and measures what docs/scaling.md reckons with, for scaling.py.

    python scripts/scaling_inputs.py [--only NAME] [--out docs/results/scaling.json]

Counts come from programs for 4 forced CPU devices and hold for any number of them: operations are counted in
the traced program at the configuration's own batch and divided by its environment steps; the compiled program
gives what devices exchange and how many kernels there are, neither of which depends on the batch.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import platform
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from zerocopy_envs.types import EnvironmentSpec
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.bench.bridge_client import ClientProcess, Load, send_all
from zerocopy_seed.bench.bridge_server import serve
from zerocopy_seed.bench.collectives import collectives
from zerocopy_seed.config import Config, DevicesConfig, EnvConfig, R2D2Config
from zerocopy_seed.config_file import load_config
from zerocopy_seed.keys import Stream, slot_keys
from zerocopy_seed.loops.devices import make_mesh
from zerocopy_seed.loops.environments import find_environment
from zerocopy_seed.loops.layout import DATA_AXIS, LEARNER_SPECS, TRAJECTORY_SPECS, lay_out, over_mesh
from zerocopy_seed.loops.local_actors import LocalActors
from zerocopy_seed.loops.memory import num_bytes
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.loops.serving import act_synchronously
from zerocopy_seed.remote.codec import encode_actions, encode_observations
from zerocopy_seed.remote.tables import make_tables, make_trajectory
from zerocopy_seed.remote.wire_format import make_wire_format
from zerocopy_seed.types import Agent, Mode, TimeStep

ROOT = pathlib.Path(__file__).resolve().parents[1]
WORKLOADS = {
    "ant": ("vtrace_ant", ""),
    # SEED's network and batches (arXiv:1910.06591, appendix A.1), on Atari's pictures.
    "impala": (
        "vtrace_pong",
        "--env.settings.picture-size 84 --env.num-envs 512 --agent.unroll-length 100 --agent.num-passes 1 "
        "--agent.num-minibatches 16 --network.torso impala_resnet --network.core lstm "
        "--network.core-size 256 --network.use-last-action true --network.use-last-reward true",
    ),
    "r2d2": ("r2d2_atari", ""),
}
_ROWS_ON_THE_WIRE = 32
_DEVICES = 4
_WINDOWS, _WINDOW_S = 8, 1.5
_ARITHMETIC = re.compile(
    r"add|sub|mul|div|rem|pow|integer_pow|square|neg|abs|sign|max|min|floor|round|clamp|select_n|sqrt|rsqrt|cbrt|"
    r"exp|exp2|log|log1p|expm1|tanh|logistic|erf|erf_inv|a?sin|a?cos|a?tan|atan2|add_any|"
    r"reduce_(?:sum|max|min|prod)|arg(?:max|min)|cum(?:sum|prod|logsumexp)"
)


def num_operations(jaxpr: Any) -> dict[str, float]:
    """Floating-point operations of a traced program: of products and convolutions, and of all else.

    A product or convolution takes two for each pair of numbers that it multiplies, whatever else is computed
    one for each number read or written, whichever are more. A scan's body counts as often as it runs, a while
    loop's once, of a cond's branches the larger one.
    """
    total = {"products": 0.0, "rest": 0.0}
    for equation in jaxpr.eqns:
        name, params, out = equation.primitive.name, equation.params, equation.outvars[0].aval
        inner = [num_operations(part) for part in _inner(params)]
        if name == "dot_general":
            (axes, _), _ = params["dimension_numbers"]
            shape = equation.invars[0].aval.shape
            total["products"] += 2.0 * math.prod(out.shape) * math.prod(shape[axis] for axis in axes)
        elif name == "conv_general_dilated":
            kernel, where = equation.invars[1].aval.shape, params["dimension_numbers"].rhs_spec
            per_output = math.prod(kernel) / kernel[where[0]]
            total["products"] += 2.0 * math.prod(out.shape) * per_output / math.prod(params["lhs_dilation"])
        elif inner:
            if name == "cond":
                inner = [max(inner, key=lambda part: sum(part.values()))]
            for kind in total:
                total[kind] += params.get("length", 1) * sum(part[kind] for part in inner)
        elif _ARITHMETIC.fullmatch(name) and jnp.issubdtype(out.dtype, jnp.floating):
            total["rest"] += max(math.prod(v.aval.shape) for v in (*equation.invars, *equation.outvars))
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    for value in params.values():
        for part in value if isinstance(value, tuple) else (value,):
            part = getattr(part, "jaxpr", part)
            if hasattr(part, "eqns"):
                yield part


_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_CALLED = re.compile(r"(?:to_apply|body|condition|calls)=%?([\w.-]+)|branch_computations=\{([^}]*)\}")
_NO_KERNEL = re.compile(
    r" (?:parameter|constant|tuple|get-tuple-element|bitcast|after-all|opt-barrier|iota|copy-done)\("
)


def walk(program: str) -> tuple[int, list[tuple[int, str]]]:
    """(kernels, [(times, line) of its collectives]) of a compiled program; loops count as often as they run.

    A loop whose number of rounds XLA does not know counts once.
    """
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in program.splitlines():
        if found := _COMPUTATION.match(line):
            computations[found[2]] = lines = []
            entry = found[2] if found[1] else entry
        elif " = " in line:
            lines.append(line)

    def visit(name: str, times: int) -> tuple[int, list[tuple[int, str]]]:
        kernels, exchanges = 0, []
        for line in computations.get(name, []):
            if collectives(line):
                exchanges.append((times, line))
            elif kind := next((k for k in (" while(", " call(", " conditional(") if k in line), ""):
                rounds = re.search(r'"known_trip_count":\{"n":"(\d+)"', line)
                often = times * (int(rounds[1]) if rounds and kind == " while(" else 1)
                parts = [
                    name.strip(" %")
                    for one, several in _CALLED.findall(line)
                    for name in (one or several).split(",")
                ]
                found = [visit(part, often) for part in parts]
                if kind == " conditional(":
                    found = [max(found)]
                kernels += sum(number for number, _ in found)
                exchanges += [exchange for _, some in found for exchange in some]
            elif not _NO_KERNEL.search(line):
                kernels += times
        return kernels, exchanges

    return visit(entry, 1)


def shrunk(config: Config) -> Config:
    """The same programs for few environments and a small replay, over four shards."""
    agent = dataclasses.replace(config.agent, num_shards=_DEVICES)
    if isinstance(agent, R2D2Config):
        num_envs = 2 * _DEVICES
        agent = dataclasses.replace(
            agent, batch_size=num_envs, replay_capacity=4 * num_envs, min_replay=num_envs
        )
    else:
        num_envs = _DEVICES * agent.num_minibatches
    return dataclasses.replace(config, agent=agent, env=dataclasses.replace(config.env, num_envs=num_envs))


def make_parts(config: Config, axis_name: str | None = None) -> tuple[Any, Any, dict[str, Any]]:
    """(environment, agent, types of learner, agent state, timestep, trajectory)."""
    environment, num_envs = find_environment(config.env), config.env.num_envs
    agent = make_agent(
        config.agent, config.network, environment.spec, num_slots=num_envs, axis_name=axis_name
    )

    def make() -> dict[str, Any]:
        alone = make_agent(config.agent, config.network, environment.spec, num_slots=num_envs)
        learner, slots = alone.init(jax.random.key(0)), jnp.arange(num_envs, dtype=jnp.int32)
        tables = make_tables(
            alone,
            environment.spec,
            alone.acting(learner),
            num_slots=num_envs,
            num_unrolls=num_envs,
            length=config.agent.unroll_length,
        )
        trajectory = make_trajectory(num_envs, tables)
        return {
            "learner": learner,
            "state": alone.initial_state(slot_keys(0, Stream.AGENT, slots, slots), slots),
            "timestep": jax.tree.map(lambda rows: rows[0], trajectory.timestep),
            "trajectory": trajectory,
        }

    return environment, agent, jax.eval_shape(make)


def act_with(agent: Agent) -> Callable[..., Any]:
    """`act` as a function of the learner's state."""
    return lambda learner, state, timestep: agent.act(agent.acting(learner), state, timestep, Mode.TRAIN)


def count_operations(config: Config) -> dict[str, Any]:
    """Of one device's share: its environments, one update."""
    environment, agent, parts = make_parts(config)
    learner, num_envs, length = parts["learner"], config.env.num_envs, config.agent.unroll_length
    counts: dict[str, Any] = {
        "num_envs": num_envs,
        "unroll_length": length,
        "parameters": sum(leaf.size for leaf in jax.tree.leaves(learner.params)),
        "learner_bytes": num_bytes(learner) - num_bytes(learner.replay),
        "replay_bytes": num_bytes(learner.replay),
        "loop_bytes": 0,
        **count_wire(environment.spec),
    }
    acting = num_operations(jax.make_jaxpr(act_with(agent))(learner, parts["state"], parts["timestep"]))
    learning = num_operations(jax.make_jaxpr(agent.learn)(learner, parts["trajectory"]))
    stepping = {"products": 0.0, "rest": 0.0}
    if isinstance(environment, Vectorized):
        whole = jax.eval_shape(lambda: init_train_state(agent, environment, 0, num_envs))
        counts["loop_bytes"] = num_bytes((whole.actor, whole.episodes))
        action = parts["trajectory"].action
        action = jax.ShapeDtypeStruct(action.shape[1:], action.dtype)
        stepping = num_operations(jax.make_jaxpr(environment.step)(whole.actor.env_state, action))
    for name, found, steps in (
        ("act", acting, num_envs),
        ("environment", stepping, num_envs),
        ("learn", learning, num_envs * length),
    ):
        counts |= {f"{name}_{kind}": found[kind] / steps for kind in ("products", "rest")}
    return counts


def count_wire(spec: EnvironmentSpec) -> dict[str, float]:
    """Bytes of an environment's step on the wire, of messages of 32."""
    wire, rows = make_wire_format(spec), _ROWS_ON_THE_WIRE
    zeros = [np.zeros((rows, *leaf.shape), leaf.dtype) for leaf in jax.tree.leaves(spec.observation)]
    ones = np.ones(rows, np.float32)
    timestep = TimeStep(np.ones(rows, np.int8), ones, ones, tuple(zeros))
    up = encode_observations(wire, 1, np.arange(rows, dtype=np.int32), timestep)
    down = encode_actions(wire, 1, np.zeros((rows, *wire.action_shape), wire.action_dtype))
    return {
        "observation_bytes": sum(leaf.nbytes for leaf in zeros) / rows,
        "wire_bytes_up": len(up) / rows,
        "wire_bytes_down": len(down) / rows,
    }


def count_compiled(config: Config) -> dict[str, Any]:
    """Kernels of a step and of an update, and what devices exchange in one; of a `shrunk` configuration."""
    environment, agent, parts = make_parts(config)
    acting = jax.jit(act_with(agent)).lower(parts["learner"], parts["state"], parts["timestep"]).compile()
    counts: dict[str, Any] = {"act_kernels": walk(acting.as_text() or "")[0], "environment_kernels": 0}
    if isinstance(environment, Vectorized):
        whole = jax.eval_shape(lambda: init_train_state(agent, environment, 0, config.env.num_envs))
        action = parts["trajectory"].action
        action = jax.ShapeDtypeStruct(action.shape[1:], action.dtype)
        stepping = jax.jit(environment.step).lower(whole.actor.env_state, action).compile()
        counts["environment_kernels"] = walk(stepping.as_text() or "")[0]
    _, agent, _ = make_parts(config, DATA_AXIS)
    mesh = make_mesh(DevicesConfig(learner=_DEVICES))
    assert mesh is not None
    learn = over_mesh(agent.learn, mesh, (LEARNER_SPECS, TRAJECTORY_SPECS), (LEARNER_SPECS, P()))
    arguments = (
        lay_out(LEARNER_SPECS, parts["learner"], mesh),
        lay_out(TRAJECTORY_SPECS, parts["trajectory"], mesh),
    )
    kernels, exchanges = walk(jax.jit(learn).lower(*arguments).compile().as_text() or "")
    found = [(times, collective) for times, line in exchanges for collective in collectives(line)]
    return counts | {
        "learn_kernels": kernels,
        "exchanges": sorted([times, 4 * collective.num_elements] for times, collective in found),
        "exchange_kinds": sorted({collective.kind for _, collective in found}),
    }


def measure_bridge(rows: int, *, num_actors: int = 4) -> dict[str, float]:
    """CPU seconds for a message of `rows` pictures of 84 x 84: of the server's event loop, of its process.

    Eight messages of each of four actors wait at once, so that calls of the policy are shared as under load.
    """
    load = Load((84, 84), "uint8", rows=rows, in_flight=8)
    served = serve(load.spec, num_slots=load.num_envs * num_actors, max_batch=256, unroll_length=20)
    with served as (address, _, server, *_), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(ClientProcess(load, address)) for _ in range(num_actors)]

        def spent() -> np.ndarray:
            loop_s = asyncio.run_coroutine_threadsafe(thread_time(), server.loop).result()
            return np.array([server.bridge.num_bytes, loop_s, time.process_time()])

        figures = []
        for _ in range(_WINDOWS):
            before = spent()
            send_all(clients, "bridge", _WINDOW_S)
            num_bytes, loop_s, process_s = spent() - before
            messages = num_bytes / server.bridge.wire.row_bytes / rows
            figures.append((loop_s / messages, process_s / messages))
    loop_s, process_s = np.min(figures, axis=0)  # what disturbs only adds
    return {"rows": rows, "loop_s": loop_s, "process_s": process_s}


async def thread_time() -> float:
    """CPU seconds of the thread whose event loop runs this."""
    return time.thread_time()


def measure_actor(*, num_envs: int = 32) -> dict[str, float]:
    """CPU seconds of an actor's process, all its threads, for a step of Pong; its own part and gRPC's."""
    settings = {"repeat_action_probability": 0.0, "num_threads": 1}
    spec = find_environment(EnvConfig("ale:Pong", settings=settings)).spec
    served = serve(
        spec,
        num_slots=num_envs,
        max_batch=num_envs,
        unroll_length=20,
        environment="ale:Pong",
        settings=settings,
    )

    def say(line: str) -> None:
        raise RuntimeError(line)

    with (
        served as (address, _, server, _, copies),
        LocalActors(address, [num_envs], env="ale:Pong", warn=say) as actors,
    ):
        (pid,), row_bytes = actors.pids, server.bridge.wire.row_bytes
        copies.set()
        while server.bridge.num_bytes < 100 * num_envs * row_bytes:
            time.sleep(0.05)
            if failure := actors.check():
                raise RuntimeError(failure)
        figures = []
        for _ in range(_WINDOWS):
            num_bytes, cpu_s = server.bridge.num_bytes, cpu_seconds(pid)
            time.sleep(2 * _WINDOW_S)
            steps = (server.bridge.num_bytes - num_bytes) / row_bytes
            figures.append((cpu_seconds(pid) - cpu_s) / steps)
    return {"num_envs": num_envs, "actor_cpu_s": min(figures)}


def cpu_seconds(pid: int) -> float:
    """That a process has used, all its threads, on Linux."""
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Writes what was counted and measured, besides what is in the file already."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=[*WORKLOADS, "measured"], help="the rest stays as it is")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "docs" / "results" / "scaling.json")
    arguments = parser.parse_args()
    act_synchronously()
    written = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"counted": {}}
    for name, (file, flags) in WORKLOADS.items():
        if arguments.only in (None, name):
            print(f"counting {name}", flush=True)
            config = load_config(ROOT / "configs" / f"{file}.toml", flags.split())
            counts = {"config": f"{file} {flags}".strip(), **count_operations(config)}
            written["counted"][name] = counts | count_compiled(shrunk(config))
    if arguments.only in (None, "measured"):
        written["measured"] = {
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}",
            "bridge": [measure_bridge(rows) for rows in (1, 4, 16, 32)],
            "actor": measure_actor(),
        }
    arguments.out.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
