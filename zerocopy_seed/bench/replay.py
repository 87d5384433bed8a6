"""Our replay's cycle against that of flashbax's prioritised trajectory buffer, and how its time grows."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from zerocopy_envs.errors import UserError
from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed import replay as replays
from zerocopy_seed.bench.command import pin_to_one_core, print_json, require_no_choice
from zerocopy_seed.config import Config
from zerocopy_seed.extras import install_command
from zerocopy_seed.replay_layout import Layout
from zerocopy_seed.types import Array, RecurrentState, Trajectory

NUM_SLOTS = 64
BATCH_SIZE = 64
SEQUENCE_LENGTH = 80
PERIOD = 40
NUM_FEATURES = 4
SMALL, MEDIUM, LARGE = 10_000, 100_000, 1_000_000
PRIORITY_EXPONENT = 0.9


class Cycle(NamedTuple):
    """A replay's work for one update, as functions of its state.

    Attributes:
      init: -> a replay that is full.
      insert: replay, unroll -> replay.
      cycle: replay, unroll, key -> replay, sampled sequences; inserts, samples, gives new priorities.
    """

    init: Callable[[], Any]
    insert: Callable[[Any, Trajectory], Any]
    cycle: Callable[[Any, Trajectory, Array], tuple[Any, Any]]


def our_cycle(num_sequences: int) -> Cycle:
    """This package's; a sequence has SEQUENCE_LENGTH transitions, so one row more than flashbax's."""
    layout = Layout(PERIOD, SEQUENCE_LENGTH, PERIOD, context=0, min_starts=num_sequences // NUM_SLOTS)
    row = jax.tree.map(lambda x: x[0, 0], _rows(_make_unroll()))

    def insert(replay, unroll):
        def initial_mass(windows):
            return _priority(*windows.actor_output) ** PRIORITY_EXPONENT

        return replays.insert(layout, replay, unroll, unroll.slot, initial_mass)

    def cycle(replay, unroll, key):
        replay = insert(replay, unroll)
        uniforms = jax.random.uniform(key, (1, BATCH_SIZE, replays.num_uniforms(replay)))
        draw, windows = replays.sample(layout, replay, uniforms, num_shards=1)
        priority = _priority(*windows.actor_output)
        replay = replays.set_masses(replay, draw, priority**PRIORITY_EXPONENT)
        return replay, (draw.probability, windows)

    def init():
        empty = replays.make_replay(layout, replays.Rows(*row), (), num_slots=NUM_SLOTS, num_shards=1)
        return _fill(insert, empty, layout.starts + 2)

    return Cycle(init, insert, cycle)


def flashbax_cycle(num_sequences: int) -> Cycle:
    """flashbax's, with the same fields in a row.

    Raises:
      UserError: it cannot be imported.
    """
    try:
        import flashbax
    except ImportError as error:
        raise UserError(
            "bench replay",
            expected="flashbax to be installed, to compare with",
            found=str(error),
            remedy=install_command("dev"),
        ) from error
    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=NUM_SLOTS,
        sample_batch_size=BATCH_SIZE,
        sample_sequence_length=SEQUENCE_LENGTH,
        period=PERIOD,
        min_length_time_axis=SEQUENCE_LENGTH,
        max_length_time_axis=num_sequences // NUM_SLOTS * PERIOD,
        priority_exponent=PRIORITY_EXPONENT,
        device=jax.default_backend(),
    )

    def insert(state, unroll):
        return buffer.add(state, jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), _rows(unroll)))

    def cycle(state, unroll, key):
        state = insert(state, unroll)
        sampled = buffer.sample(state, key)
        q_value, q_max = (jnp.swapaxes(x, 0, 1) for x in sampled.experience[2])
        state = buffer.set_priorities(state, sampled.indices, _priority(q_value, q_max))
        return state, (sampled.probabilities, sampled.experience)

    def init():
        row = jax.tree.map(lambda x: x[0, 0], _rows(_make_unroll()))
        return _fill(insert, buffer.init(row), num_sequences // NUM_SLOTS + 2)

    return Cycle(init, insert, cycle)


def measure(
    *, sizes: tuple[int, int, int] = (SMALL, MEDIUM, LARGE), rounds: int = 40, cycles: int = 50
) -> dict[str, Any]:
    """Times of cycles inside a scan, and of an insert alone; interleaved, the fastest of `rounds`.

    Args:
      sizes: sequences kept; flashbax keeps the middle one, ours all three (1.5 GB at a million).
      rounds: how often each is timed.
      cycles: in one scan.
    """
    contenders = {size: our_cycle(size) for size in sizes} | {"flashbax": flashbax_cycle(sizes[1])}
    unroll = _make_unroll()
    carries = {name: _first_carry(contender, unroll) for name, contender in contenders.items()}
    scans = {
        name: jax.jit(_scanned(contender.cycle, cycles), donate_argnums=0)
        for name, contender in contenders.items()
    }
    insert = jax.jit(contenders[sizes[1]].insert, donate_argnums=0)
    seconds: dict[Any, list[float]] = {name: [] for name in (*contenders, "insert")}

    def timed(name: Any, function: Callable, carry: Any) -> Any:
        began = time.perf_counter()
        carry = jax.block_until_ready(function(carry, unroll))
        seconds[name].append(time.perf_counter() - began)
        return carry

    for _ in range(rounds + 1):
        for name, scan in scans.items():
            carries[name] = timed(name, scan, carries[name])
        replay, *others = carries[sizes[1]]
        carries[sizes[1]] = (timed("insert", insert, replay), *others)
    # The first compiled. What disturbs a timing only adds to it, so the fastest is the nearest to the truth.
    fastest = {name: min(times[1:]) for name, times in seconds.items()}
    cycle_us = {name: 1e6 * fastest[name] / cycles for name in contenders}
    return {
        "num_slots": NUM_SLOTS,
        "batch_size": BATCH_SIZE,
        "sequence_length": SEQUENCE_LENGTH,
        "period": PERIOD,
        "num_sequences": sizes[1],
        "row": " ".join(f"{x.dtype}{list(x.shape[2:])}" for x in jax.tree.leaves(_rows(unroll))),
        "cycle_us": cycle_us[sizes[1]],
        "flashbax_cycle_us": cycle_us["flashbax"],
        "ratio_to_flashbax": cycle_us[sizes[1]] / cycle_us["flashbax"],
        "cycle_us_by_num_sequences": {str(size): cycle_us[size] for size in sizes},
        "growth": cycle_us[sizes[2]] / cycle_us[sizes[0]],
        "buffer_mb": sum(x.nbytes for x in jax.tree.leaves(carries[sizes[1]][0])) / 1e6,
        "insert_100mb_ms": 1e3 * fastest["insert"],
    }


def run(configs: Sequence[Config] = (), *, num_envs: Sequence[int] = (), as_json: bool = False) -> None:
    """Measures on one core and prints the figures; JSON comes as one object on the last line.

    Args:
      configs: must be empty, since the shape is fixed.
      num_envs: likewise.
      as_json: print only the JSON object.

    Raises:
      UserError: a configuration or a number of environments is given, or flashbax is missing.
    """
    require_no_choice("replay", configs, num_envs)
    pin_to_one_core()
    found = measure()
    if as_json:
        print_json("replay", found)
        return
    by_size = ", ".join(f"{us:.0f} us at {size}" for size, us in found["cycle_us_by_num_sequences"].items())
    print(
        f"insert, sample and update of {found['num_sequences']:,} sequences: {found['cycle_us']:.0f} us, "
        f"flashbax {found['flashbax_cycle_us']:.0f} us, ratio {found['ratio_to_flashbax']:.3f}; "
        f"{by_size}, growth {found['growth']:.2f}; "
        f"an insert into {found['buffer_mb']:.0f} MB {found['insert_100mb_ms']:.3f} ms"
    )


def _make_unroll() -> Trajectory:
    """An unroll of every slot, [PERIOD + 1, NUM_SLOTS]."""
    lead = (PERIOD + 1, NUM_SLOTS)
    timestep = TimeStep(
        jnp.full(lead, StepType.MID, jnp.int8),
        jnp.ones(lead, jnp.float32),
        jnp.ones(lead, jnp.float32),
        jnp.ones((*lead, NUM_FEATURES), jnp.float32),
    )
    action = jnp.zeros((PERIOD, NUM_SLOTS), jnp.int32)
    said = jax.random.uniform(jax.random.key(1, impl="threefry2x32"), (2, PERIOD, NUM_SLOTS))
    return Trajectory(
        timestep=timestep,
        action=action,
        actor_output=(said[0], said[1]),
        recurrent=RecurrentState((), (), jnp.zeros([NUM_SLOTS], jnp.int32)),
        slot=jnp.arange(NUM_SLOTS, dtype=jnp.int32),
        continues=jnp.ones([NUM_SLOTS], bool),
    )


def _rows(unroll: Trajectory) -> tuple:
    """What a row stores, [PERIOD, NUM_SLOTS]."""
    return jax.tree.map(lambda x: x[:-1], unroll.timestep), unroll.action, unroll.actor_output


def _priority(q_value: Array, q_max: Array) -> Array:
    """A sequence's largest error, [rows, n] -> [n]."""
    return jnp.abs(q_max - q_value).max(0)


def _fill(insert: Callable, state: Any, num_inserts: int) -> Any:
    unroll = _make_unroll()
    return lax.fori_loop(0, num_inserts, lambda _, state: insert(state, unroll), state)


def _first_carry(contender: Cycle, unroll: Trajectory) -> tuple:
    """A full replay, sampled sequences, a key. What is sampled is carried, so none is optimised away."""
    key = jax.random.key(0, impl="threefry2x32")
    replay = jax.jit(contender.init)()
    _, sampled = jax.eval_shape(contender.cycle, replay, unroll, key)
    return replay, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), sampled), key


def _scanned(cycle: Callable, length: int) -> Callable:
    def scanned(carry, unroll):
        def step(carry, _):
            state, _, key = carry
            key, own = jax.random.split(key)
            return (*cycle(state, unroll, own), key), None

        return lax.scan(step, carry, None, length)[0]

    return scanned
