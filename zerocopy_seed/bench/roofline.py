"""How near training on the device comes to what its arithmetic and its memory allow.

A program that makes F floating-point operations and moves B bytes takes at least the longer of F / peak
FLOP/s and B / peak bytes/s. F and B are XLA's own counts of the compiled program; both peaks are measured on
the same device. On a CPU small programs stay in its caches, which are faster than memory: there the ratio
passes 1.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_seed.agents import make_agent
from zerocopy_seed.bench.command import report, with_num_envs
from zerocopy_seed.bench.on_device import DEFAULT_CONFIG
from zerocopy_seed.config import Config, VTraceConfig
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import init_train_state, make_dispatch, make_update, make_window
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode

_MATRIX = {"cpu": 1024}  # side of the product that finds the peak; elsewhere 8192
_COPIED_BYTES = {"cpu": 2**28}  # elsewhere 2 GiB
_TIMING_S = 0.5
_HOST_CALLS = re.compile(r"xla_\w*callback\w*|\b(?:infeed|outfeed|send|recv)\(")


def fastest(function: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls."""
    jax.block_until_ready(function())
    times, end = [], time.perf_counter() + _TIMING_S
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        jax.block_until_ready(function())
        times.append(time.perf_counter() - began)
    return min(times)


def measure_peaks() -> tuple[float, float]:
    """(FLOP/s of a large float32 product at the default precision, bytes/s read and written of an array)."""
    backend = jax.default_backend()
    side = _MATRIX.get(backend, 8192)
    x = jnp.ones((side, side), jnp.float32)
    product = jax.jit(lambda x: x @ x)
    flops = 2 * side**3 / fastest(lambda: product(x))
    y = jnp.ones(_COPIED_BYTES.get(backend, 2**31) // 4, jnp.float32)
    add = jax.jit(lambda y: y + 1.0)
    return flops, 2 * y.nbytes / fastest(lambda: add(y))


def count(config: Config) -> tuple[float, float]:
    """(FLOPs, bytes) of one update: T single steps, and every pass as one whole batch.

    XLA counts the body of a loop once, so that these two loops are counted here. What surrounds them is left
    out (shuffling, sums of metrics, the optimiser's further steps where there are minibatches), and a loop
    inside of an environment still counts once: for brax and MJX both figures are lower bounds.
    """
    agent_config = config.agent
    assert isinstance(agent_config, VTraceConfig)
    one_pass = dataclasses.replace(agent_config, num_passes=1, num_minibatches=1)
    environment = make_environment(config.env)
    agent = make_agent(one_pass, config.network, environment.spec, num_slots=config.env.num_envs)
    slots = jnp.arange(config.env.num_envs, dtype=jnp.int32)

    def play(state, length: int):
        step, params = environment.step, agent.acting(state.learner)
        return unroll(agent.act, step, params, state.actor, slots, length=length, mode=Mode.TRAIN)

    state = jax.eval_shape(lambda: init_train_state(agent, environment, 0, config.env.num_envs))
    _, trajectory = jax.eval_shape(lambda state: play(state, agent_config.unroll_length), state)
    step = jax.jit(lambda state: play(state, 1)[0]).lower(state).compile().cost_analysis() or {}
    learn = jax.jit(agent.learn).lower(state.learner, trajectory).compile().cost_analysis() or {}

    def total(name: str) -> float:
        return agent_config.unroll_length * step.get(name, 0.0) + agent_config.num_passes * learn.get(
            name, 0.0
        )

    return total("flops"), total("bytes accessed")


def require_no_host_calls(program: str) -> None:
    """Looks through a compiled program's text.

    Raises:
      RuntimeError: there are callbacks, infeeds or outfeeds in it, sends or receives.
    """
    found = sorted(set(_HOST_CALLS.findall(program)))
    if found:
        raise RuntimeError(f"the dispatch talks to the host: {', '.join(found)}")


def time_update(config: Config) -> float:
    """Seconds of an update as training makes it; neither calls to the host nor transfers by its arguments.

    Raises:
      RuntimeError: the compiled program calls or feeds the host.
      Exception: of JAX, if an argument or a result crosses.
    """
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)

    def init():
        return init_train_state(agent, environment, config.seed, config.env.num_envs)

    check_memory(config, jax.eval_shape(init), jax.devices()[:1], save_replay=False)
    state = jax.jit(init)()
    update = make_update(agent, environment, config.agent.unroll_length)
    _, metrics, _ = jax.eval_shape(update, state)
    carry = state, make_window(len(metrics))
    numbers = {n: jax.device_put(jnp.int32(n)) for n in (1, 4)}
    dispatch = jax.jit(make_dispatch(update, sorted(metrics)), donate_argnums=(0, 1))
    dispatch = dispatch.lower(*carry, numbers[1]).compile()
    require_no_host_calls(dispatch.as_text() or "")
    carry = jax.block_until_ready(dispatch(*carry, numbers[1]))

    def timed(num_updates: int) -> float:
        nonlocal carry
        began = time.perf_counter()
        with jax.transfer_guard("disallow"):
            carry = dispatch(*carry, numbers[num_updates])
        jax.block_until_ready(carry)
        return time.perf_counter() - began

    timed(4)
    times, end = [], time.perf_counter() + _TIMING_S
    while len(times) < 3 or time.perf_counter() < end:
        times.append(timed(4) / 4)
    return min(times)


def require_counted(config: Config) -> None:
    """Refuses what has other loops than `count` knows.

    Raises:
      UserError: another agent than V-trace, a recurrent core, or a network of the user's.
    """
    network = config.network
    if not isinstance(config.agent, VTraceConfig) or network.core != "none" or network.name != "default":
        raise UserError(
            "bench roofline",
            expected="V-trace and the default network without a core, since XLA counts a loop's body once",
            found=f"agent.name = {config.agent.name!r}, network.name = {network.name!r}, "
            f"network.core = {network.core!r}",
            remedy="choose another configuration",
        )


def measure(config: Config, peaks: tuple[float, float]) -> dict[str, Any]:
    """The figures of one configuration; `ratio_to_roofline` is the bound's time over the measured time."""
    flops, moved = count(config)
    seconds = time_update(config)
    bounds = {"FLOPs": flops / peaks[0], "bytes": moved / peaks[1]}
    bound = max(bounds, key=bounds.__getitem__)
    env_steps = config.env.num_envs * config.agent.unroll_length
    return {
        "env": config.env.name,
        "num_envs": config.env.num_envs,
        "unroll_length": config.agent.unroll_length,
        "flops_per_env_step": flops / env_steps,
        "bytes_per_env_step": moved / env_steps,
        "update_s": seconds,
        "env_steps_per_s": env_steps / seconds,
        "bound": bound,
        "ratio_to_roofline": bounds[bound] / seconds,
    }


def run(
    configs: Sequence[Config] = (DEFAULT_CONFIG,), *, num_envs: Sequence[int] = (), as_json: bool = False
) -> None:
    """Measures and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: each is measured.
      num_envs: instead of a configuration's own number of environments, each of these.
      as_json: print only the JSON object.
    """
    sized = with_num_envs(configs, num_envs)
    for config in sized:
        require_counted(config)
    peaks = measure_peaks()
    if not as_json:
        print(
            f"{jax.devices()[0].device_kind}: {peaks[0] / 1e12:.3g} TFLOP/s, {peaks[1] / 1e9:.4g} GB/s",
            flush=True,
        )
    report(
        "roofline",
        sized,
        lambda config: measure(config, peaks),
        _describe,
        as_json=as_json,
        peak_flops_per_s=peaks[0],
        peak_bytes_per_s=peaks[1],
    )


def _describe(result: dict[str, Any]) -> str:
    return (
        f"{result['env']}, {result['num_envs']} environments, T={result['unroll_length']}: "
        f"{result['env_steps_per_s']:,.0f} env_steps/s; {result['flops_per_env_step']:,.0f} FLOPs "
        f"and {result['bytes_per_env_step']:,.0f} bytes a step, bound by {result['bound']}: "
        f"ratio to roofline {result['ratio_to_roofline']:.3f}"
    )
