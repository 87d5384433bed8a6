"""How close the on-device loop comes to the time that its parts take alone."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from zerocopy_seed.agents import make_agent
from zerocopy_seed.bench.command import pin_to_one_core, report, with_num_envs
from zerocopy_seed.config import Config, EnvConfig, VTraceConfig
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.memory import check_memory
from zerocopy_seed.loops.on_device import init_train_state, make_dispatch, make_update, make_window
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode

DEFAULT_CONFIG = Config(
    env=EnvConfig(name="gymnax:CartPole-v1", num_envs=64),
    total_env_steps=1,
    agent=VTraceConfig(unroll_length=128),
)


def make_parts(config: Config) -> tuple[dict[str, Callable[..., Any]], dict[str, tuple]]:
    """The whole and its parts as compiled functions of (state, ..., repeats), and their first arguments.

    `environment` steps with the actions of a real unroll, `act` acts upon its timesteps, `learn` learns from
    it; each does per repeat what one update does. What it returns goes in again, donated.
    """
    # With no step size the policy stays what it is, so that parts and whole see the same episodes for ever.
    config = dataclasses.replace(config, agent=dataclasses.replace(config.agent, learning_rate=0.0))
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)

    def init():
        return init_train_state(agent, environment, config.seed, config.env.num_envs)

    check_memory(config, jax.eval_shape(init), jax.devices()[:1], save_replay=False)
    state = jax.jit(init)()
    slots = jnp.arange(config.env.num_envs, dtype=jnp.int32)

    @jax.jit
    def one_unroll(state):
        return unroll(
            agent.act,
            environment.step,
            agent.acting(state.learner),
            state.actor,
            slots,
            length=config.agent.unroll_length,
            mode=Mode.TRAIN,
        )

    _, trajectory = one_unroll(state)
    timesteps = jax.tree.map(lambda rows: rows[:-1], trajectory.timestep)
    params = agent.acting(state.learner)
    _, metrics = jax.jit(agent.learn)(state.learner, trajectory)

    # Everything computed is carried, so nothing is optimised away; inputs vary, so nothing is hoisted.
    def environment_part(carry, actions, repeats):
        def step(carry, action):
            return environment.step(carry[0], action), None

        return lax.fori_loop(0, repeats, lambda _, carry: lax.scan(step, carry, actions)[0], carry)

    def act_part(carry, params, timesteps, repeats):
        def step(carry, timestep):
            action, output, agent_state = agent.act(params, carry[0], timestep, Mode.TRAIN)
            return (agent_state, action, output), None

        return lax.fori_loop(0, repeats, lambda _, carry: lax.scan(step, carry, timesteps)[0], carry)

    def learn_part(carry, trajectory, repeats):
        return lax.fori_loop(0, repeats, lambda _, carry: agent.learn(carry[0], trajectory), carry)

    update = make_update(agent, environment, config.agent.unroll_length)
    dispatch = make_dispatch(update, sorted(metrics))
    window = make_window(len(metrics))

    def whole(carry, repeats):
        state, window = carry
        return dispatch(state, window, repeats)

    def copy(tree):
        return jax.tree.map(jnp.copy, tree)

    first_row = jax.tree.map(lambda rows: rows[0], (trajectory.action, trajectory.actor_output))
    arguments = {
        "environment": (copy((state.actor.env_state, state.actor.timestep)), trajectory.action),
        "act": (copy((state.actor.agent, *first_row)), params, timesteps),
        "learn": (copy((state.learner, metrics)), trajectory),
        "whole": ((copy(state), window),),
    }
    functions = {"environment": environment_part, "act": act_part, "learn": learn_part, "whole": whole}
    compiled = {
        name: jax.jit(function, donate_argnums=0).lower(*arguments[name], jnp.int32(1)).compile()
        for name, function in functions.items()
    }
    return compiled, arguments


def measure(config: Config, *, rounds: int = 40, part_s: float = 0.1) -> dict[str, Any]:
    """Seconds per update of each part and of the whole, in turn: medians, and quartiles of the ratio.

    Rounds differ in what they do, since some reset more environments than others: the fastest of a part and
    the fastest of the whole would not be of the same work. What disturbs a round disturbs all of it.

    Args:
      config: what is measured.
      rounds: how often each is timed.
      part_s: about how long one timing lasts, in seconds: many updates, as in a dispatch that trains.
    """
    functions, arguments = make_parts(config)
    repeats = {name: 1 for name in functions}
    seconds: dict[str, list[float]] = {name: [] for name in functions}

    def timed(name: str) -> float:
        began = time.perf_counter()
        carry, *rest = arguments[name]
        carry = jax.block_until_ready(functions[name](carry, *rest, np.int32(repeats[name])))
        arguments[name] = (carry, *rest)
        return (time.perf_counter() - began) / repeats[name]

    for name in functions:
        timed(name)
        repeats[name] = max(1, round(part_s / timed(name)))
    for _ in range(rounds):
        for name in functions:
            seconds[name].append(timed(name))
    parts = ("environment", "act", "learn")
    middle = {name: float(np.median(times)) for name, times in seconds.items()}
    ratios = sum(np.array(seconds[name]) for name in parts) / np.array(seconds["whole"])
    env_steps = config.env.num_envs * config.agent.unroll_length
    return {
        "env": config.env.name,
        "num_envs": config.env.num_envs,
        "unroll_length": config.agent.unroll_length,
        **{f"{name}_s": middle[name] for name in (*parts, "whole")},
        "env_steps_per_s": env_steps / middle["whole"],
        "ratio_to_limit": sum(middle[name] for name in parts) / middle["whole"],
        "ratio_quartiles": np.quantile(ratios, (0.25, 0.75)).tolist(),
    }


def run(
    configs: Sequence[Config] = (DEFAULT_CONFIG,), *, num_envs: Sequence[int] = (), as_json: bool = False
) -> None:
    """Measures on one core and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: each is measured.
      num_envs: instead of a configuration's own number of environments, each of these.
      as_json: print only the JSON object.
    """
    pin_to_one_core()
    report("on_device", with_num_envs(configs, num_envs), measure, _describe, as_json=as_json)


def _describe(result: dict[str, Any]) -> str:
    low, high = result["ratio_quartiles"]
    return (
        f"{result['env']}, {result['num_envs']} environments, T={result['unroll_length']}: "
        f"environment {1e3 * result['environment_s']:.2f} ms, act {1e3 * result['act_s']:.2f} ms, "
        f"learn {1e3 * result['learn_s']:.2f} ms, whole {1e3 * result['whole_s']:.2f} ms; "
        f"{result['env_steps_per_s']:,.0f} env_steps/s, "
        f"ratio to limit {result['ratio_to_limit']:.3f} ({low:.3f} to {high:.3f})"
    )
