"""What settings must be, each alone and to one another. Imports no JAX."""

from __future__ import annotations

import math

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import Config, R2D2Config, Range, VTraceConfig
from zerocopy_seed.config_keys import keys, range_of
from zerocopy_seed.config_sources import is_mixed, num_on_device
from zerocopy_seed.config_sweep import has_members, make_members
from zerocopy_seed.replay_layout import Layout, make_layout

_MAX_DRAWN = 2**26  # some numbers for each, counted by int32
_MAX_ROWS = 2**30  # half of what int32 counts, since the tree over the starts may have spare leaves


def validate(config: Config) -> None:
    """Refuses values out of range and settings that do not fit each other; the registry checks `env.name`.

    Of many runs each is checked.

    Raises:
      UserError: naming the key, what was expected and what was found.
    """
    for key in keys(Config, config):
        allowed = range_of(key.kind)
        for value in key.value if isinstance(key.value, tuple) else (key.value,):
            if allowed is not None and value not in allowed:
                raise UserError(
                    key.path, expected=str(allowed), found=str(value), remedy=_range_remedy(allowed, value)
                )
    _validate_record(config)
    if has_members(config):
        _validate_members(config)
        return
    num_envs, agent, num_devices = config.env.num_envs, config.agent, config.devices.learner
    _validate_sources(config)
    _require_multiple("env.num_envs", num_envs, "devices.learner", num_devices)
    _require_multiple("agent.num_shards", agent.num_shards, "devices.learner", num_devices)
    _validate_bridge(config)
    if isinstance(agent, VTraceConfig):
        _validate_vtrace(agent, num_envs)
    else:
        _validate_r2d2(agent, config)


def _validate_record(config: Config) -> None:
    if config.record.dir and has_members(config):
        raise UserError(
            "record.dir", expected="one run", found="many (num_seeds, sweep)", remedy="record one of them"
        )
    if not config.source:
        return
    if not recorded_dir(config.source):
        raise UserError("source", expected="recorded:DIR, or nothing", found=repr(config.source))
    if isinstance(config.agent, VTraceConfig):
        raise UserError(
            f"source = {config.source!r}",
            expected="an agent that learns from others' experience",
            found="agent.name = 'vtrace', which learns on-policy",
            remedy="set agent.name = 'r2d2' (DQN is a setting of it)",
        )
    if has_members(config):
        raise UserError(f"source = {config.source!r}", expected="one run", found="many (num_seeds, sweep)")
    if is_mixed(config):
        raise UserError(
            f"source = {config.source!r}", expected="one source of unrolls", found="[sources] with it"
        )
    if config.record.dir:
        raise UserError(
            "record.dir",
            expected=f"nothing with source = {config.source!r}, which plays nothing",
            found=repr(config.record.dir),
            remedy='leave it out, or add --record.dir ""',
        )
    for name in ("learner", "model"):
        if (found := getattr(config.devices, name)) > 1:
            raise UserError(
                f"devices.{name}", expected=f"1 with source = {config.source!r}", found=str(found)
            )


def recorded_dir(source: str) -> str:
    """The record that `source` names; "" where it names none."""
    kind, _, directory = source.partition(":")
    return directory if kind == "recorded" else ""


def _validate_members(config: Config) -> None:
    members, num_devices = make_members(config), config.devices.learner
    if config.evaluation.every_env_steps != math.inf:
        raise UserError(
            "evaluation.every_env_steps",
            expected="inf with many runs at once",
            found=f"{config.evaluation.every_env_steps:g}",
            remedy="evaluate the members afterwards",
        )
    if config.devices.model > 1:
        raise UserError("devices.model", expected="1 with many runs at once", found=str(config.devices.model))
    if config.devices.inference:
        raise UserError(
            "devices.inference",
            expected="0 with many runs at once, which act on the devices that learn",
            found=str(config.devices.inference),
            remedy="leave it out",
        )
    if len(members) % num_devices:
        raise UserError(
            "devices.learner",
            expected=f"a divisor of the {len(members)} runs that are trained at once",
            found=str(num_devices),
        )
    last_seed = config.seed + config.num_seeds - 1
    if last_seed >= 2**32:
        raise UserError(
            "num_seeds",
            expected=f"seeds less than 2^32; seed = {config.seed}",
            found=str(config.num_seeds),
            remedy="lower seed",
        )
    for member in members:
        validate(member.config)


def _range_remedy(allowed: Range, value: float) -> str:
    if allowed.maximum == math.inf:
        return "inf switches it off"
    if isinstance(value, float) and allowed.maximum == 1.0 and 2.0 <= value <= 100.0:
        return f"{value:g} % is {value / 100:g}"
    return ""


def _validate_sources(config: Config) -> None:
    sources, num_envs = config.sources, config.env.num_envs
    total = sources.device + sources.actors
    if abs(total - 1.0) > 1e-6:
        raise UserError(
            "sources.device + sources.actors",
            expected="1, all of a batch",
            found=f"{total:g}",
            remedy=f"set sources.actors = {1.0 - sources.device:g}",
        )
    if sources.actors_settings and not sources.actors_env:
        raise UserError(
            "sources.actors_settings",
            expected="sources.actors_env with them",
            found="none",
            remedy="name it; env.settings are those of env.name",
        )
    if sources.actors == 0.0:
        if sources.actors_env:
            raise UserError(
                "sources.actors_env",
                expected="a share for it, sources.actors",
                found="0.0",
                remedy="set sources.device and sources.actors, which add up to 1",
            )
        return
    if sources.device == 0.0:
        raise UserError(
            "sources.device",
            expected="more than 0, the share on the device",
            found="0.0",
            remedy="to have all environments in actors, set env.place = 'actors' and leave sources out",
        )
    if config.env.place == "actors":
        raise UserError("env.place", expected="'auto' where sources divides a batch", found="'actors'")
    on_device = sources.device * num_envs
    if abs(on_device - round(on_device)) > 1e-6 or not 0 < round(on_device) < num_envs:
        raise UserError(
            "sources.device",
            expected=f"a share of env.num_envs = {num_envs} that is a whole number of environments",
            found=f"{sources.device:g}, {on_device:g} environments",
        )
    for name in ("learner", "model"):
        if (found := getattr(config.devices, name)) > 1:
            raise UserError(f"devices.{name}", expected="1 where sources divides a batch", found=str(found))
    if config.agent.num_shards > 1:
        raise UserError(
            "agent.num_shards", expected="1 where sources divides a batch", found=str(config.agent.num_shards)
        )


def _validate_bridge(config: Config) -> None:
    bridge = config.bridge
    num_envs = config.env.num_envs - (num_on_device(config) if is_mixed(config) else 0)
    lag = bridge.max_policy_lag
    if lag != math.inf and not lag.is_integer():
        raise UserError(
            "bridge.max_policy_lag",
            expected="a whole number of updates, or inf",
            found=str(lag),
            remedy=f"use {math.ceil(lag)}",
        )
    needed = bridge.local_actors * max(bridge.envs_per_actor, 1)
    if needed > num_envs:
        raise UserError(
            "bridge.local_actors",
            expected=f"actors for at most the {num_envs} of env.num_envs that are in actors",
            found=f"{bridge.local_actors} with {max(bridge.envs_per_actor, 1)} or more each",
            remedy="lower bridge.local_actors or bridge.envs_per_actor, or raise env.num_envs",
        )


def _validate_vtrace(agent: VTraceConfig, num_envs: int) -> None:
    if agent.adaptive_entropy and agent.entropy_cost == 0.0:
        raise UserError(
            "agent.entropy_cost",
            expected="more than 0 with agent.adaptive_entropy, which multiplies it",
            found="0.0",
            remedy="raise it, or set agent.adaptive_entropy = false",
        )
    divisor = agent.num_shards * agent.num_minibatches
    _require_multiple("env.num_envs", num_envs, "agent.num_shards * agent.num_minibatches", divisor)


def _validate_r2d2(agent: R2D2Config, config: Config) -> None:
    num_envs, network = config.env.num_envs, config.network
    _require_multiple("env.num_envs", num_envs, "agent.num_shards", agent.num_shards)
    _require_multiple("agent.batch_size", agent.batch_size, "agent.num_shards", agent.num_shards)
    drawn = agent.updates_per_insert * agent.batch_size
    if drawn > _MAX_DRAWN:
        raise UserError(
            "agent.updates_per_insert",
            expected=f"at most {_MAX_DRAWN} sequences drawn for one insert",
            found=f"{agent.updates_per_insert} times agent.batch_size = {agent.batch_size}",
            remedy="lower one of them",
        )
    layout = make_layout(agent, num_slots=num_envs, frame_stack=network.frame_stack)
    _check_period(layout, network.core)
    if agent.min_replay > agent.replay_capacity:
        raise UserError(
            "agent.min_replay",
            expected=f"at most agent.replay_capacity = {agent.replay_capacity}",
            found=str(agent.min_replay),
            remedy="lower it, or raise agent.replay_capacity",
        )
    reach = agent.sequence_length + agent.look_ahead
    if agent.n_step > reach:
        raise UserError(
            "agent.n_step",
            expected=f"at most agent.sequence_length + look_ahead = {reach}, since a target's rewards are "
            "those of its sequence",
            found=str(agent.n_step),
            remedy=f"use {reach}, or raise agent.look_ahead to {agent.n_step - 1}",
        )
    if agent.look_ahead >= agent.n_step:
        raise UserError(
            "agent.look_ahead",
            expected=f"less than agent.n_step = {agent.n_step}, which is as far as targets look",
            found=str(agent.look_ahead),
            remedy=f"use {agent.n_step - 1}",
        )
    if network.core == "none" and network.name == "default":
        _require_without_core("agent.burn_in", agent.burn_in, 0)
        _require_without_core("agent.start_state", agent.start_state, "stored")
    _check_ring(layout, agent.replay_capacity, num_envs)


def _require_without_core(subject: str, found: int | str, only: int | str) -> None:
    if found != only:
        raise UserError(
            subject,
            expected=f"{only!r} with network.core = 'none': there is no core to warm up",
            found=repr(found),
            remedy="leave it out, or set network.core",
        )


def _check_period(layout: Layout, core: str) -> None:
    period, unroll_length = layout.period, layout.unroll_length
    if core != "none" and not layout.stores_core:
        right = -(-period // unroll_length) * unroll_length
        raise UserError(
            "agent.period",
            expected=f"a multiple of agent.unroll_length = {unroll_length} with network.core = {core!r}, "
            "whose states are stored where unrolls begin",
            found=str(period),
            remedy=f"use {right}, or an agent.unroll_length that divides {period}",
        )
    if not layout.period_fits:
        raise UserError(
            "agent.period",
            expected=f"a multiple or a divisor of agent.unroll_length = {unroll_length}",
            found=str(period),
            remedy=f"use 1 or {unroll_length}",
        )


def _check_ring(layout: Layout, capacity: int, num_envs: int) -> None:
    rows, needed = layout.ring_length, layout.least_ring_length
    most = _MAX_ROWS // num_envs
    if needed > most:
        raise UserError(
            "agent.replay_capacity",
            expected=f"at most {_MAX_ROWS} steps of all slots, so that int32 counts them",
            found=f"{needed} for each of env.num_envs = {num_envs}, of a sequence (agent.burn_in "
            "+ sequence_length + look_ahead), an unroll and stacked frames",
            remedy="lower those",
        )
    if rows < needed:
        raise UserError(
            "agent.replay_capacity",
            expected=f"room for {needed} steps of each of env.num_envs = {num_envs}: a sequence "
            "(agent.burn_in + sequence_length + look_ahead), the step after it, an unroll"
            + (", and the frames stacked before it" if layout.context else ""),
            found=f"{capacity}, which keeps {rows}",
            remedy=f"use {-(-needed // layout.period) * num_envs}",
        )
    if rows > most:
        fits = layout.starts_within(most) * num_envs
        raise UserError(
            "agent.replay_capacity",
            expected=f"at most {fits} sequences with a start every agent.period = {layout.period} steps, "
            f"so that int32 counts the steps ({_MAX_ROWS})",
            found=f"{capacity} sequences, which take {rows * num_envs} steps",
            remedy=f"use at most {fits}" if fits else "lower agent.period or env.num_envs",
        )


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
