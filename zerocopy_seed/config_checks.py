"""What settings must be, each alone and to one another. Imports no JAX."""

from __future__ import annotations

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Config, R2D2Config, VTraceConfig
from zerocopy_seed.config_keys import keys, range_of

_MAX_ROWS = 2**30  # half of what int32 counts, since the tree over the starts may have spare leaves


def validate(config: Config) -> None:
    """Refuses values out of range and settings that do not fit each other; the registry checks `env.name`.

    Raises:
      UserError: naming the key, what was expected and what was found.
    """
    for key in keys(Config, config):
        allowed = range_of(key.kind)
        for value in key.value if isinstance(key.value, tuple) else (key.value,):
            if allowed is not None and value not in allowed:
                raise UserError(key.path, expected=str(allowed), found=str(value))
    num_envs, agent, num_devices = config.env.num_envs, config.agent, config.devices.num_devices
    _require_multiple("env.num_envs", num_envs, "devices.num_devices", num_devices)
    _require_multiple("agent.num_shards", agent.num_shards, "devices.num_devices", num_devices)
    if isinstance(agent, VTraceConfig):
        _validate_vtrace(agent, num_envs)
    else:
        _validate_r2d2(agent, config)


def _validate_vtrace(agent: VTraceConfig, num_envs: int) -> None:
    if agent.adaptive_entropy and agent.entropy_cost == 0.0:
        raise UserError(
            "agent.entropy_cost",
            expected="more than 0 with agent.adaptive_entropy, which multiplies it",
            found="0.0",
        )
    divisor = agent.num_shards * agent.num_minibatches
    _require_multiple("env.num_envs", num_envs, "agent.num_shards * agent.num_minibatches", divisor)


def _validate_r2d2(agent: R2D2Config, config: Config) -> None:
    num_envs = config.env.num_envs
    _require_multiple("env.num_envs", num_envs, "agent.num_shards", agent.num_shards)
    _require_multiple("agent.batch_size", agent.batch_size, "agent.num_shards", agent.num_shards)
    _check_period(agent, config.network.core)
    if agent.min_replay > agent.replay_capacity:
        raise UserError(
            "agent.min_replay",
            expected=f"at most agent.replay_capacity = {agent.replay_capacity}",
            found=str(agent.min_replay),
            remedy="lower it, or raise agent.replay_capacity",
        )
    _check_ring(agent, num_envs, config.network.frame_stack)


def _check_period(agent: R2D2Config, core: str) -> None:
    period, unroll_length = agent.period, agent.unroll_length
    if core != "none" and period % unroll_length:
        right = -(-period // unroll_length) * unroll_length
        raise UserError(
            "agent.period",
            expected=f"a multiple of agent.unroll_length = {unroll_length} with network.core = {core!r}, "
            "whose states are stored where unrolls begin",
            found=str(period),
            remedy=f"use {right}, or an agent.unroll_length that divides {period}",
        )
    if period % unroll_length and unroll_length % period:
        raise UserError(
            "agent.period",
            expected=f"a multiple or a divisor of agent.unroll_length = {unroll_length}",
            found=str(period),
            remedy=f"use 1 or {unroll_length}",
        )


def _check_ring(agent: R2D2Config, num_envs: int, frame_stack: int) -> None:
    rows, period = agent.ring_rows(num_envs), agent.period
    # An unroll overwrites the oldest rows at once, and stacked frames before a sequence must still be there.
    needed = agent.window_length + 1 + agent.unroll_length + frame_stack - 1
    if rows < needed:
        raise UserError(
            "agent.replay_capacity",
            expected=f"room for {needed} steps of each of env.num_envs = {num_envs}: a sequence "
            "(agent.burn_in + sequence_length + look_ahead), the step after it, an unroll"
            + (", and the frames stacked before it" if frame_stack > 1 else ""),
            found=f"{agent.replay_capacity}, which keeps {rows}",
            remedy=f"use {-(-needed // period) * num_envs}",
        )
    most = _MAX_ROWS // num_envs
    if rows > most:
        whole = max(period, agent.unroll_length)
        fits = most // whole * whole // period * num_envs
        raise UserError(
            "agent.replay_capacity",
            expected=f"at most {_MAX_ROWS} steps of all slots, so that int32 counts them",
            found=f"{agent.replay_capacity}, which keeps {rows} of each of env.num_envs = {num_envs}",
            remedy=f"use at most {fits}" if fits else "lower agent.period or env.num_envs",
        )
    reachable = num_envs * _always_whole(agent, rows, frame_stack)
    if agent.min_replay > reachable:
        raise UserError(
            "agent.min_replay",
            expected=f"at most {reachable}, the sequences that are whole at any time with "
            f"agent.replay_capacity = {agent.replay_capacity}",
            found=str(agent.min_replay),
            remedy="lower it, or raise agent.replay_capacity",
        )


def _always_whole(agent: R2D2Config, rows: int, frame_stack: int) -> int:
    """The fewest sequences that can be drawn from a full ring of `rows`, whichever unroll came last.

    With n steps written, a sequence may start at the multiples of `period` from n - rows + frame_stack - 1
    (what is before that is overwritten) to n - 1 - window_length (what comes later is not whole).
    """
    starts = rows - (frame_stack - 1) - agent.window_length
    # n is a multiple of unroll_length, which is one of period or a divisor of it
    stride = min(agent.period, agent.unroll_length)
    before_first = agent.period - stride + (1 - frame_stack) % stride
    return max(0, (starts - 1 - before_first) // agent.period + 1)


def _require_multiple(subject: str, value: int, divisor_name: str, divisor: int) -> None:
    if value % divisor:
        below = value // divisor * divisor
        remedy = " or ".join(str(right) for right in (below, below + divisor) if right)
        raise UserError(
            subject,
            expected=f"a multiple of {divisor_name} = {divisor}",
            found=str(value),
            remedy=f"use {remedy}",
        )
