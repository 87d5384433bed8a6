"""Where a run's unrolls come from: the device, actors, both, or a record."""

from __future__ import annotations

import contextlib
import math
import pathlib
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed import hosts
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import Config
from zerocopy_seed.config_sources import is_mixed, num_on_device
from zerocopy_seed.experience import RecordReader
from zerocopy_seed.loops.arenas import share_arenas
from zerocopy_seed.loops.bridge import bridge_program, init_learner
from zerocopy_seed.loops.console import complain, say_of_host
from zerocopy_seed.loops.devices import make_mesh, place_bridge
from zerocopy_seed.loops.environments import HostEnvironments, find_environment
from zerocopy_seed.loops.layout import DATA_AXIS, dispatch_shardings, shard_dispatch
from zerocopy_seed.loops.mixed import check_actors_environment, mixed_program
from zerocopy_seed.loops.on_device import (
    Program,
    TrainState,
    init_train_state,
    make_dispatch,
    make_played_update,
    make_recorded_dispatch,
    make_update,
    make_window,
    metric_names,
)
from zerocopy_seed.loops.recorded import check_record, init_from_record, open_record, recorded_program
from zerocopy_seed.loops.recording import Recording
from zerocopy_seed.loops.serving import act_synchronously, table_types
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.remote.access import read_access
from zerocopy_seed.remote.addresses import parse_address, require_free
from zerocopy_seed.types import Agent


class Source(Protocol):
    """What the learner loop needs to know of where its unrolls come from.

    Attributes:
      agent: learns from them.
      spec: of the environments.
    """

    agent: Agent
    spec: EnvironmentSpec

    @property
    def environment(self) -> Vectorized | HostEnvironments | None:
        """What an evaluation plays; None where there is none."""
        ...

    @property
    def mesh(self) -> Mesh | None:
        """Over which the state is laid out; None for one device."""
        ...

    def init(self) -> TrainState:
        """The state of a run that has not begun; pure."""
        ...

    def besides(self, types: TrainState) -> Any:
        """Types of what the device keeps besides a state of `types`."""
        ...

    def program(
        self, state: TrainState, run_dir: pathlib.Path, stop: StopRequest, recording: Recording | None
    ) -> contextlib.AbstractContextManager[Program]:
        """What trains from `state`, laid out over the mesh, from its beginning to its end."""
        ...


def choose_source(config: Config) -> Source:
    """What `config` says; to be called before JAX is used, but for what hosts say (see `run_joined`).

    Raises:
      UserError: it cannot be had, or an environment or record that does not fit.
    """
    if config.source:
        _require_no_inference_device(config)
        return _Record(config, open_record(config))
    if config.env.place == "actors" or is_mixed(config):
        _prepare_to_serve()
    environment = find_environment(config.env)
    if is_mixed(config):
        _require_no_inference_device(config)
        return _Mixed(config, environment)
    if isinstance(environment, Vectorized) and config.env.place != "actors":
        _require_no_inference_device(config)
        return _Device(config, environment)
    _prepare_to_serve()
    return _Actors(config, environment)


class _Device:
    def __init__(self, config: Config, environment: Vectorized):
        self._config, self._vectorized, self.environment = config, environment, environment
        self.spec = environment.spec
        self.agent = make_agent(config.agent, config.network, self.spec, num_slots=config.env.num_envs)
        self.mesh = make_mesh(config.devices)

    def init(self) -> TrainState:
        return init_train_state(self.agent, self._vectorized, self._config.seed, self._config.env.num_envs)

    def besides(self, types: TrainState) -> Any:
        return ()

    @contextlib.contextmanager
    def program(
        self, state: TrainState, run_dir: pathlib.Path, stop: StopRequest, recording: Recording | None
    ) -> Iterator[Program]:
        yield _compile(self._config, self._vectorized, self.agent, state, self.mesh, recording)


class _Actors:
    def __init__(self, config: Config, environment: Vectorized | HostEnvironments):
        _check_bridge(config, environment)
        self._placement = place_bridge(config.devices)
        self.mesh = self._placement.mesh
        self._config, self.environment, self.spec = config, environment, environment.spec
        self.agent = make_agent(config.agent, config.network, self.spec, num_slots=config.env.num_envs)

    def init(self) -> TrainState:
        return init_learner(self.agent, self._config.seed)

    def besides(self, types: TrainState) -> Any:
        num_slots = self._config.env.num_envs  # of all hosts: each has its part
        return table_types(self._config, self.agent, self.spec, types.learner, num_slots=num_slots)

    @contextlib.contextmanager
    def program(
        self, state: TrainState, run_dir: pathlib.Path, stop: StopRequest, recording: Recording | None
    ) -> Iterator[Program]:
        with bridge_program(
            self._config,
            self.agent,
            self.spec,
            state,
            run_dir,
            stop,
            recording,
            self._placement,
            say=say_of_host,
            warn=complain,
        ) as program:
            yield program


class _Mixed:
    mesh = None

    def __init__(self, config: Config, environment: Vectorized | HostEnvironments):
        if not isinstance(environment, Vectorized):
            raise UserError(
                "sources.device",
                expected="0 of an environment that steps on the host",
                found=f"{config.sources.device:g} of {config.env.name}",
                remedy="name a JAX environment in env.name, and this one in sources.actors_env",
            )
        if config.record.dir:
            raise UserError(
                "record.dir",
                expected="nothing where sources divides a batch",
                found=repr(config.record.dir),
                remedy="record a run of one source",
            )
        _check_bridge(config, check_actors_environment(config, environment))
        self._config, self._vectorized, self.environment = config, environment, environment
        self.spec, self._num_on_device = environment.spec, num_on_device(config)
        self.agent = make_agent(
            config.agent,
            config.network,
            self.spec,
            num_slots=config.env.num_envs,
            num_on_device=self._num_on_device,
        )

    def init(self) -> TrainState:
        return init_train_state(self.agent, self._vectorized, self._config.seed, self._num_on_device)

    def besides(self, types: TrainState) -> Any:
        num_slots = self._config.env.num_envs - self._num_on_device
        return table_types(self._config, self.agent, self.spec, types.learner, num_slots=num_slots)

    @contextlib.contextmanager
    def program(
        self, state: TrainState, run_dir: pathlib.Path, stop: StopRequest, recording: Recording | None
    ) -> Iterator[Program]:
        with mixed_program(
            self._config, self.agent, self._vectorized, state, run_dir, stop, say=say_of_host, warn=complain
        ) as program:
            yield program


class _Record:
    mesh = None

    def __init__(self, config: Config, reader: RecordReader):
        is_evaluated = config.evaluation.every_env_steps < math.inf
        self.environment = find_environment(config.env) if is_evaluated else None
        self._config, self._reader, self.spec = config, reader, reader.index.description.spec
        self.agent = make_agent(config.agent, config.network, self.spec, num_slots=config.env.num_envs)
        played = self.spec if self.environment is None else self.environment.spec
        check_record(config, self.agent, played, reader)

    def init(self) -> TrainState:
        return init_from_record(self.agent, self._config.seed)

    def besides(self, types: TrainState) -> Any:
        return ()

    @contextlib.contextmanager
    def program(
        self, state: TrainState, run_dir: pathlib.Path, stop: StopRequest, recording: Recording | None
    ) -> Iterator[Program]:
        with recorded_program(self._config, self.agent, self._reader, state) as program:
            yield program


def _compile(
    config: Config,
    environment: Vectorized,
    agent: Agent,
    state: TrainState,
    mesh: Mesh | None,
    recording: Recording | None,
) -> Program:
    """What trains on the device."""
    unroll_length = config.agent.unroll_length
    names = metric_names(make_update(agent, environment, unroll_length), state)
    acting_agent, axis_name = agent, None
    if mesh is not None:
        axis_name = DATA_AXIS
        acting_agent = make_agent(
            config.agent,
            config.network,
            environment.spec,
            num_slots=config.env.num_envs,
            axis_name=axis_name,
        )
    if recording is None:
        update = make_update(acting_agent, environment, unroll_length, axis_name=axis_name)
        dispatch: Any = make_dispatch(update, names)
    else:
        played = make_played_update(acting_agent, environment, unroll_length, axis_name=axis_name)
        dispatch = make_recorded_dispatch(played, names, recording.chunk, axis_name=axis_name)
    outputs = None
    if mesh is not None:
        dispatch = shard_dispatch(dispatch, mesh, is_recorded=recording is not None)
        outputs = dispatch_shardings(state, mesh, is_recorded=recording is not None)
    jitted = jax.jit(dispatch, donate_argnums=(0, 1), out_shardings=outputs)
    lowered = jitted.lower(state, make_window(len(names)), jnp.int32(1))
    compiled = hearing_signals(lowered.compile)
    return Program(agent, recording.recorded(compiled) if recording else compiled, names)


def _require_no_inference_device(config: Config) -> None:
    if config.devices.inference:
        raise UserError(
            "devices.inference",
            expected="0 where not all environments are in actors",
            found=str(config.devices.inference),
        )


def _prepare_to_serve() -> None:
    act_synchronously()
    share_arenas()


def _check_bridge(config: Config, environment: Vectorized | HostEnvironments) -> None:
    num_local, room = config.bridge.local_actors, config.env.num_envs // hosts.count()
    if (wanted := num_local * max(1, config.bridge.envs_per_actor)) > room:  # of one host: checked before
        raise UserError(
            "bridge.local_actors",
            expected=f"at most {room} environments on each of {hosts.count()} hosts",
            found=f"{wanted} of {num_local} actors",
        )
    address = parse_address(config.bridge.address, to_listen=True)
    read_access(config.bridge, address)
    require_free(address)
    if isinstance(environment, HostEnvironments) and environment.owns_loop and config.bridge.local_actors:
        raise UserError(
            "bridge.local_actors",
            expected=f"0, since {config.env.name} is the spec of a simulator that joins by itself",
            found=str(config.bridge.local_actors),
            remedy="add --bridge.local-actors 0",
        )
