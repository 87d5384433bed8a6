"""Training from actors: the server, its actors and the learner's updates as one program."""

from __future__ import annotations

import contextlib
import json
import pathlib
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import EnvironmentSpec
from zerocopy_seed.config import BridgeConfig, Config
from zerocopy_seed.files import replace_text
from zerocopy_seed.keys import Stream, stream_key
from zerocopy_seed.loops.local_actors import LocalActors, deal_environments
from zerocopy_seed.loops.on_device import Program, TrainState, Window, make_window
from zerocopy_seed.loops.signals import StopRequest, hearing_signals
from zerocopy_seed.ops import summation
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.remote.addresses import parse_address, require_free
from zerocopy_seed.remote.bridge import RunDescription
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.server import Server
from zerocopy_seed.remote.slots import num_unrolls
from zerocopy_seed.remote.tables import Tables, make_tables, make_trajectory
from zerocopy_seed.types import Agent, LearnerState, Trajectory

_RUN_FILE = "bridge.json"
_DISPATCH_S = 0.3  # signals are heard and lines written this often
_NO_ACTORS_S = 10.0  # until the first warning; each later one waits twice as long
_ENVS_PER_ACTOR = 8  # of actors from elsewhere that were told no number
_CHEAP_S = 4e-4  # a policy quicker than this acts best in the event loop


def act_synchronously() -> None:
    """On the CPU a small call is answered four times as fast without a queue; before the first use of JAX."""
    jax.config.update("jax_cpu_enable_async_dispatch", False)


def init_learner(agent: Agent, seed: int) -> TrainState:
    """The state of a run that has not begun; of its actors nothing is kept."""
    return TrainState(agent.init(stream_key(seed, Stream.LEARNER)), actor=(), episodes=())


def table_types(config: Config, agent: Agent, spec: EnvironmentSpec, state: TrainState) -> Any:
    """Types of what the device keeps besides `state`: the tables, and the trajectory that is learned from."""
    length, num_slots = config.agent.unroll_length, config.env.num_envs

    def make(learner: LearnerState) -> tuple[Tables, Trajectory]:
        tables = make_tables(
            agent,
            spec,
            agent.acting(learner),
            num_slots=num_slots,
            num_unrolls=num_unrolls(num_slots, config.bridge.max_policy_lag),
            length=length,
        )
        return tables, make_trajectory(num_slots, tables)

    return jax.eval_shape(make, state.learner)


@contextlib.contextmanager
def bridge_program(
    config: Config,
    agent: Agent,
    spec: EnvironmentSpec,
    state: TrainState,
    run_dir: pathlib.Path,
    stop: StopRequest,
    *,
    say: Callable[[str], None],
    warn: Callable[[str], None],
) -> Iterator[Program]:
    """Serves actors, local ones among them, from its beginning to its end.

    Args:
      config: the experiment.
      agent: learns from `config.env.num_envs` unrolls at once.
      spec: of the environments.
      state: what the run begins with.
      run_dir: keeps the run's identity and address, for resumed runs.
      stop: ends a dispatch early.
      say: shows a line.
      warn: shows a line of something that is wrong.

    Raises:
      UserError: the address cannot be listened on.
    """
    bridge = config.bridge
    engine = Engine(
        agent,
        spec,
        jax.jit(lambda learner: jax.tree.map(jnp.copy, agent.acting(learner)))(state.learner),
        seed=config.seed,
        num_slots=config.env.num_envs,
        unroll_length=config.agent.unroll_length,
        max_policy_lag=bridge.max_policy_lag,
        max_batch=bridge.max_inference_batch,
        first_incarnation=as_int(state.learner.env_steps) % 2**31,
    )
    call_s = hearing_signals(engine.warm_up)
    learn, store, names = hearing_signals(lambda: _compile(agent, state.learner, engine.empty_trajectory()))
    is_threaded = bridge.inference == "thread" or (bridge.inference == "auto" and call_s > _CHEAP_S)
    local = deal_environments(config.env.num_envs, bridge.local_actors, bridge.envs_per_actor)
    num_free = config.env.num_envs - sum(local)
    run_id, address = _read_run_file(run_dir, bridge, warn)
    run = RunDescription(
        run_id=run_id,
        environment=config.env.name,
        settings=config.env.settings,
        spec=spec,
        num_environments=bridge.envs_per_actor or min(num_free or config.env.num_envs, _ENVS_PER_ACTOR),
    )
    with contextlib.ExitStack() as stack:
        # Short, since a socket's path may have no more than 107 characters.
        socket = f"unix:{stack.enter_context(tempfile.TemporaryDirectory(prefix='zs-'))}/bridge"
        server = stack.enter_context(Server(engine, run, (address, socket), in_thread=is_threaded))
        saved = {"run_id": run_id, "address": server.addresses[0]}
        replace_text(run_dir / _RUN_FILE, json.dumps(saved) + "\n")
        room = f"{num_free} environments" if num_free else "none, until local actors leave"
        say(f"room for {room} from elsewhere: zerocopy-seed actor {server.addresses[0]}")
        actors = stack.enter_context(LocalActors(socket, local, warn=warn))
        quiet_since, warn_after_s = time.monotonic(), _NO_ACTORS_S
        failed = ""

        def failure() -> str:
            return failed or server.failure()

        def dispatch(state: TrainState, window: Window, num_updates: Any) -> tuple[TrainState, Window]:
            nonlocal quiet_since, warn_after_s, failed
            learner, ends_at = state.learner, time.monotonic() + _DISPATCH_S
            failed = failed or actors.check()
            while num_updates > 0 and not (stop or failure()) and (now := time.monotonic()) < ends_at:
                taken = engine.take(ends_at - now)
                if taken is None:
                    if server.bridge.num_actors == 0 and time.monotonic() - quiet_since > warn_after_s:
                        warn(f"no actors: waiting for some at {server.addresses[0]}")
                        warn_after_s *= 2
                    continue
                quiet_since, warn_after_s = time.monotonic(), _NO_ACTORS_S
                if not taken.is_due:
                    learner = store(learner, taken.trajectory)
                    continue
                learner, window, params = learn(learner, window, taken.trajectory)
                jax.block_until_ready(params)  # else acting would wait for them, and actors with it
                engine.publish(params, taken.slot)
                num_updates -= 1
            server.is_run_over = as_int(learner.env_steps) >= config.total_env_steps
            return state._replace(learner=learner), window

        def figures() -> dict[str, float]:
            counts = {"num_actors": server.bridge.num_actors, "num_lost_actors": server.bridge.num_lost}
            return {**engine.figures(), **counts}

        yield Program(agent, dispatch, names, figures, failure)


def _compile(agent: Agent, learner: LearnerState, trajectory: Trajectory) -> tuple[Any, Any, tuple[str, ...]]:
    """`learn`, which notes its metrics and copies acting parameters; `store`; the metrics' names."""
    _, metrics = jax.eval_shape(agent.learn, learner, trajectory)
    names = tuple(sorted(metrics))

    def learn(learner: LearnerState, window: Window, trajectory: Trajectory):
        learner, metrics = agent.learn(learner, trajectory)
        sums = summation.add(window.metric_sums, jnp.stack([metrics[name] for name in names]))
        window = window._replace(metric_sums=sums, num_updates=window.num_updates + 1)
        return learner, window, jax.tree.map(jnp.copy, agent.acting(learner))

    learning = jax.jit(learn, donate_argnums=(0, 1)).lower(learner, make_window(len(names)), trajectory)
    store = None
    if agent.store is not None:
        store = jax.jit(agent.store, donate_argnums=0).lower(learner, trajectory).compile()
    return learning.compile(), store, names


def _read_run_file(
    run_dir: pathlib.Path, bridge: BridgeConfig, warn: Callable[[str], None]
) -> tuple[str, str]:
    """The run's identity, and where to listen: a resumed run takes the port that it had been given."""
    path = run_dir / _RUN_FILE
    if not path.exists():
        return secrets.token_hex(8), bridge.address
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
