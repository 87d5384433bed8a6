"""What a mesh costs: the training program over a mesh of one device, against the same without a mesh."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from zerocopy_seed.agents import make_agent
from zerocopy_seed.bench import members
from zerocopy_seed.bench.command import pin_to_one_core, report, with_num_envs
from zerocopy_seed.config import Config, EnvConfig, NetworkConfig, R2D2Config
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.layout import DATA_AXIS, STATE_SPECS, dispatch_shardings, lay_out, shard_dispatch
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)

# configs/r2d2_cartpole.toml, which an installed package does not have.
R2D2_CONFIG = Config(
    env=EnvConfig(name="gymnax:CartPole-v1", num_envs=32),
    total_env_steps=1_900_000,
    agent=R2D2Config(
        unroll_length=20,
        sequence_length=20,
        period=20,
        batch_size=32,
        updates_per_insert=4,
        replay_capacity=5000,
        min_replay=200,
        n_step=5,
        learning_rate=5e-4,
        learning_rate_decay_env_steps=1_900_000,
        target_update_period=100,
        eval_epsilon=0.0,
    ),
    network=NetworkConfig(torso="mlp", hidden_sizes=(64,), activation="tanh", core="lstm", core_size=32),
)
DEFAULT_CONFIGS = (members.DEFAULT_CONFIG, R2D2_CONFIG)


def make_whole(config: Config, mesh: Mesh | None) -> Callable[[int], None]:
    """The program that trains, compiled: a call makes so many updates and waits for them."""
    environment = make_environment(config.env)
    num_envs, length = config.env.num_envs, config.agent.unroll_length
    axis_name = None if mesh is None else DATA_AXIS
    alone, agent = (
        make_agent(config.agent, config.network, environment.spec, num_slots=num_envs, axis_name=axis)
        for axis in (None, axis_name)
    )
    state = jax.jit(lambda: init_train_state(alone, environment, config.seed, num_envs))()
    names = metric_names(make_update(alone, environment, length), state)
    dispatch = make_dispatch(make_update(agent, environment, length, axis_name=axis_name), names)
    outputs = None
    if mesh is not None:
        state = lay_out(STATE_SPECS, state, mesh)
        dispatch, outputs = shard_dispatch(dispatch, mesh), dispatch_shardings(state, mesh)
    jitted = jax.jit(dispatch, donate_argnums=(0, 1), out_shardings=outputs)
    carry = state, make_window(len(names))
    compiled = jitted.lower(*carry, jnp.int32(1)).compile()

    def call(num_updates: int) -> None:
        nonlocal carry
        carry = jax.block_until_ready(compiled(*carry, np.int32(num_updates)))

    return call


def measure(config: Config, *, rounds: int = 60, call_s: float = 0.1) -> dict[str, Any]:
    """Seconds per update with and without the mesh, and the middle of their ratios in pairs of calls.

    Both make the same updates from the same state. Who comes first alternates.

    Args:
      config: what is measured.
      rounds: pairs of calls.
      call_s: about how long one lasts, in seconds.
    """
    wholes = {
        "mesh": make_whole(config, Mesh(np.array(jax.devices()[:1]), (DATA_AXIS,))),
        "unsharded": make_whole(config, None),
    }
    num_updates = 1

    def timed(name: str) -> float:
        began = time.perf_counter()
        wholes[name](num_updates)
        return (time.perf_counter() - began) / num_updates

    for _ in range(2):
        last = [timed(name) for name in wholes]
    num_updates = max(1, round(call_s / min(last)))
    seconds: dict[str, list[float]] = {name: [] for name in wholes}
    for number in range(rounds):
        for name in reversed(wholes) if number % 2 else wholes:
            seconds[name].append(timed(name))
    ratios = np.divide(seconds["mesh"], seconds["unsharded"])
    return {
        "env": config.env.name,
        "agent": config.agent.name,
        "num_envs": config.env.num_envs,
        "rounds": rounds,
        **{f"{name}_s": float(np.median(times)) for name, times in seconds.items()},
        "ratio_to_unsharded": float(np.median(ratios)),
        "ratio_quartiles": np.quantile(ratios, (0.25, 0.75)).tolist(),
    }


def run(
    configs: Sequence[Config] = DEFAULT_CONFIGS, *, num_envs: Sequence[int] = (), as_json: bool = False
) -> None:
    """Measures on one core and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: each is measured.
      num_envs: instead of a configuration's own number of environments, each of these.
      as_json: print only the JSON object.
    """
    pin_to_one_core()
    report("mesh", with_num_envs(configs, num_envs), measure, _describe, as_json=as_json)


def _describe(result: dict[str, Any]) -> str:
    low, high = result["ratio_quartiles"]
    return (
        f"{result['env']}, {result['agent']}, {result['num_envs']} environments: an update "
        f"{1e3 * result['mesh_s']:.2f} ms over a mesh of one device, {1e3 * result['unsharded_s']:.2f} ms "
        f"without; ratio to unsharded {result['ratio_to_unsharded']:.3f} ({low:.3f} to {high:.3f})"
    )
