"""A run's server and its actors: what a learner that takes unrolls from them needs to know."""

from __future__ import annotations

import contextlib
import functools
import json
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed import hosts
from zerocopy_seed.config import BridgeConfig, Config
from zerocopy_seed.files import replace_text
from zerocopy_seed.loops.console import note, report
from zerocopy_seed.loops.local_actors import LocalActors, deal_environments
from zerocopy_seed.loops.run_dir import run_identity
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.remote.access import read_access
from zerocopy_seed.remote.addresses import parse_address, require_free
from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.engine import Engine, Round
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.slots import num_unrolls
from zerocopy_seed.remote.tables import Tables, make_tables, make_trajectory
from zerocopy_seed.types import ActingParams, Agent, LearnerState, Trajectory

_NO_ACTORS_S = 10.0  # until the first warning; each later one waits twice as long
_ENVS_PER_ACTOR = 8  # of actors from elsewhere that were told no number
_REPORTED = {"actor_lost", "unusable_rows_of_actor"}  # events that are shown on stderr too
_CHEAP_S = 4e-4  # a policy quicker than this acts best in the event loop


def act_synchronously() -> None:
    """On the CPU a small call is answered four times as fast without a queue; before the first use of JAX."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def table_types(
    config: Config, agent: Agent, spec: EnvironmentSpec, learner: LearnerState, *, num_slots: int
) -> Any:
    """Types of what the device keeps of `num_slots` environments in actors: tables, and a trajectory."""

    def make(learner: LearnerState) -> tuple[Tables, Trajectory]:
        tables = make_tables(
            agent,
            spec,
            agent.acting(learner),
            num_slots=num_slots,
            num_unrolls=num_unrolls(num_slots, config.bridge.max_policy_lag),
            length=config.agent.unroll_length,
        )
        return tables, make_trajectory(num_slots, tables)

    return jax.eval_shape(make, learner)


def make_engine(
    config: Config,
    agent: Agent,
    spec: EnvironmentSpec,
    learner: LearnerState,
    *,
    num_slots: int,
    first_slot: int = 0,
    to_inference: Callable[[ActingParams], ActingParams] = lambda params: params,
) -> Engine:
    """The engine of a run whose `num_slots` slots from `first_slot` on are in actors.

    It acts on the device on which `to_inference` leaves what acting reads.
    """
    return Engine(
        agent,
        spec,
        to_inference(jax.jit(functools.partial(copy_acting, agent))(learner)),
        seed=config.seed,
        num_slots=num_slots,
        unroll_length=config.agent.unroll_length,
        max_policy_lag=config.bridge.max_policy_lag,
        max_batch=config.bridge.max_inference_batch,
        first_incarnation=as_int(learner.env_steps) % 2**31,
        first_slot=first_slot,
    )


def copy_acting(agent: Agent, learner: LearnerState) -> ActingParams:
    """What acting reads, apart from the learner's state, which is donated to its next update; pure."""
    return jax.tree.map(jnp.copy, agent.acting(learner))


def compile_store(store: Any, learner: LearnerState, trajectory: Trajectory) -> Any:
    """An agent's `store`, compiled; None for None."""
    return store and jax.jit(store, donate_argnums=0).lower(learner, trajectory).compile()


class Actors:
    """Those of a run, seen from its learner; made by `serve_actors`."""

    def __init__(self, engine: Engine, server: Server, local: LocalActors, *, warn: Callable[[str], None]):
        self._engine, self._server, self._local, self._warn = engine, server, local, warn
        self._quiet_since, self._warn_after_s = time.monotonic(), _NO_ACTORS_S
        self._failed = ""

    def take(self, timeout: float, *, partial: bool = False) -> Round | None:
        """See `Engine.take`; warns now and then while there are no actors."""
        taken = self._engine.take(timeout, partial=partial)
        if taken is not None or self._server.bridge.num_actors:
            self._quiet_since, self._warn_after_s = time.monotonic(), _NO_ACTORS_S
        elif time.monotonic() - self._quiet_since > self._warn_after_s:
            self._warn(f"no actors: waiting for some at {self._server.addresses[0]}")
            self._warn_after_s *= 2
        return taken

    def check(self) -> None:
        """Starts local ones anew that have ended, and says what has happened to actors; now and then."""
        self._failed = self._failed or self._local.check()
        self.say_events()

    def say_events(self) -> None:
        """Says what has happened to actors since it was said last."""
        for event, line, fields in self._server.bridge.take_events():
            (report if event in _REPORTED else note)(event, line, **fields)

    def failure(self) -> str:
        """Why there can be no more of them, in one line; "" as long as there can."""
        return self._failed or self._server.failure()

    def is_run_over(self, is_over: bool) -> None:
        """Whether they have nothing to come back to."""
        self._server.is_run_over = is_over

    def figures(self) -> dict[str, float]:
        """For a line of metrics, since the last one."""
        bridge = self._server.bridge
        counts = {"num_actors": bridge.num_actors, "num_lost_actors": bridge.num_lost}
        return self._engine.figures() | counts

    def gauges(self) -> dict[str, float]:
        """How it is right now, for the metrics page; from any thread."""
        bridge = self._server.bridge
        return self._engine.gauges() | {
            'actors{state="acting"}': bridge.num_actors,
            'actors{state="joining"}': bridge.num_joining,
        }


@contextlib.contextmanager
def unix_socket() -> Iterator[str]:
    """An address for actors of this machine alone; short, since a socket's path may have 107 characters."""
    with tempfile.TemporaryDirectory(prefix="zs-") as directory:
        yield f"unix:{directory}/bridge"


@contextlib.contextmanager
def serve_actors(
    config: Config,
    engine: Engine,
    environment: tuple[str, dict[str, Any], EnvironmentSpec],
    run_dir: pathlib.Path,
    *,
    call_s: float,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Actors]:
    """Listens, and runs local actors, from its beginning to its end.

    Args:
      config: the experiment.
      engine: acts.
      environment: name, settings and spec of what actors run.
      run_dir: keeps the run's identity and address, for resumed runs.
      call_s: seconds that acting takes.
      say: shows a line.
      warn: shows a line of something that is wrong.

    Raises:
      UserError: the address cannot be listened on.
    """
    bridge, num_slots = config.bridge, engine.num_slots
    is_threaded = bridge.inference == "thread" or (bridge.inference == "auto" and call_s > _CHEAP_S)
    local = deal_environments(num_slots, bridge.local_actors, bridge.envs_per_actor)
    num_free = num_slots - sum(local)
    run_id, address = _read_run_file(run_dir, bridge, warn)
    name, settings, spec = environment
    access = read_access(bridge, parse_address(address, to_listen=True))
    run = RunDescription(
        run_id=run_id,
        environment=name,
        settings=settings,
        spec=spec,
        num_environments=bridge.envs_per_actor or min(num_free or num_slots, _ENVS_PER_ACTOR),
    )
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(unix_socket())
        server = stack.enter_context(
            Server(engine, run, (address, socket), in_thread=is_threaded, access=access)
        )
        saved = {"run_id": run_id, "address": server.addresses[0]}
        replace_text(_run_file(run_dir), json.dumps(saved) + "\n")
        if access.is_open:
            warn(f"bridge.insecure: whoever reaches {server.addresses[0]} can join this run")
        where = f"zerocopy-seed actor {server.addresses[0]}"
        where += " --ca FILE" * bool(bridge.cert) + " --token-file FILE" * bool(bridge.token_file)
        where += " --cert FILE --key FILE" * bool(bridge.ca)
        if num_free:
            say(f"room for {num_free} environments from elsewhere: {where}")
        else:
            say(f"all slots are the local actors' (bridge.envs_per_actor leaves some); address: {where}")
        actors = stack.enter_context(LocalActors(socket, local, env=name, warn=warn))
        everyone = Actors(engine, server, actors, warn=warn)
        yield everyone
    everyone.say_events()  # how they left


def _run_file(run_dir: pathlib.Path) -> pathlib.Path:
    return run_dir / ("bridge.json" if hosts.is_first() else f"bridge.{hosts.index()}.json")


def _read_run_file(
    run_dir: pathlib.Path, bridge: BridgeConfig, warn: Callable[[str], None]
) -> tuple[str, str]:
    """The run's identity, and where to listen: a resumed run takes the port that it had been given."""
    path = _run_file(run_dir)
    if not path.exists():
        return run_identity(run_dir), bridge.address
    try:
        saved = json.loads(path.read_text())
        run_id, address = str(saved["run_id"]), str(saved["address"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(str(path), expected="what a run wrote there", remedy="delete it") from error
    host, _, port = bridge.address.rpartition(":")
    if port != "0" or host != address.rpartition(":")[0]:
        return run_id, bridge.address
    try:
        require_free(parse_address(address))
    except UserError:
        warn(f"address {address}, which this run had, is taken: another port is taken in its place")
        return run_id, bridge.address
    return run_id, address
