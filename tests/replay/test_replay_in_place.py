"""Nothing copies the rings: programs are compiled, not run, for a replay of 100 MB."""

import math
import re

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from zerocopy_envs.types import TimeStep
from zerocopy_seed import replay as replays
from zerocopy_seed.replay_layout import Layout
from zerocopy_seed.types import RecurrentState, Trajectory

NUM_SLOTS, BATCH = 8, 16
LAYOUT = Layout(unroll_length=4, window_length=8, period=4, context=3, min_starts=600)
PICTURE = (72, 72)


def shape(*dims, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(dims, dtype)


def timestep(*lead):
    return TimeStep(
        shape(*lead, dtype=jnp.int8), shape(*lead), shape(*lead), shape(*lead, *PICTURE, dtype=jnp.uint8)
    )


def update(replay, trajectory, uniforms):
    replay = replays.insert(
        LAYOUT, replay, trajectory, trajectory.slot, lambda windows: jnp.abs(windows.actor_output).max(0)
    )
    draw, windows = replays.sample(LAYOUT, replay, uniforms, num_shards=2)
    return replays.set_masses(
        replay, draw, windows.timestep.reward.max(0)
    ), windows.timestep.observation.sum()


def in_a_loop(replay, trajectory, uniforms):
    def step(carry, _):
        replay, total = carry
        replay, seen = update(replay, trajectory, uniforms)
        return (replay, total + seen), None

    return lax.scan(step, (replay, jnp.uint32(0)), None, 5)[0]


@pytest.mark.parametrize(
    "program",
    [
        pytest.param("once", marks=pytest.mark.slow),
        pytest.param("in a loop", marks=pytest.mark.slow),
        "two seeds in a loop",
    ],
)
def test_a_donated_replay_is_written_in_place(program):
    row = replays.Rows(timestep(), shape(dtype=jnp.int32), shape())
    lead = (LAYOUT.unroll_length, NUM_SLOTS)
    trajectory = Trajectory(
        timestep(lead[0] + 1, NUM_SLOTS),
        shape(*lead, dtype=jnp.int32),
        shape(*lead),
        RecurrentState(shape(NUM_SLOTS, 16), (), shape(NUM_SLOTS, dtype=jnp.int32)),
        shape(NUM_SLOTS, dtype=jnp.int32),
        shape(NUM_SLOTS, dtype=bool),
    )
    replay = jax.eval_shape(
        lambda: replays.make_replay(LAYOUT, row, shape(16), num_slots=NUM_SLOTS, num_shards=2)
    )
    arguments = (replay, trajectory, shape(2, BATCH // 2, 3))
    function = update if program == "once" else in_a_loop
    if program.startswith("two seeds"):
        function = jax.vmap(function)
        arguments = jax.tree.map(lambda x: shape(2, *x.shape, dtype=x.dtype), arguments)
    size = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(arguments[0]))
    assert size > 95e6
    compiled = jax.jit(function, donate_argnums=0).lower(*arguments).compile()
    memory, text = compiled.memory_analysis(), compiled.as_text()
    assert memory is not None and text is not None
    assert memory.alias_size_in_bytes >= size
    assert memory.temp_size_in_bytes < 0.05 * size
    # No copy of anything as large as the ring of pictures.
    copied = re.findall(r"u8\[([\d,]+)\]\S* copy(?:-start)?\(", text)
    sizes = [math.prod(int(number) for number in dims.split(",")) for dims in copied]
    assert max(sizes, default=0) < replay.rows.timestep.observation.size
