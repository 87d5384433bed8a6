import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    StepType,
    TimeStep,
)
from zerocopy_seed.config import NetworkConfig
from zerocopy_seed.networks import make_network
from zerocopy_seed.networks.types import stacked_shape
from zerocopy_seed.recurrent import (
    initial_recurrent,
    last_actions,
    network_input_step,
    network_input_unroll,
    reset_recurrent,
    stack_frames,
)
from zerocopy_seed.types import split_action_mask

SPECS = {
    "vector": EnvironmentSpec(ArraySpec((3,), np.float32), DiscreteAction(3)),
    "picture": EnvironmentSpec(ArraySpec((4, 5, 2), np.uint8), DiscreteAction(3)),
    "dict": EnvironmentSpec(
        {
            "action_mask": ArraySpec((5,), np.bool_),
            "clock": ArraySpec((), np.int32),
            "screen": ArraySpec((4, 5), np.uint8),
        },
        MultiDiscreteAction((2, 3)),
    ),
}
T, B = 9, 4


class WithoutCore:
    def initial_core(self, batch_size):
        return ()


def random_observation(rng, leaf, lead):
    if leaf.dtype == np.bool_:
        return rng.random((*lead, *leaf.shape)) < 0.7
    # Never 0, which stands for "before the episode".
    return rng.integers(1, 200, (*lead, *leaf.shape)).astype(leaf.dtype)


def random_unroll(seed, spec, num_rows):
    """Timesteps [num_rows, B] with short random episodes, some FIRSTs without a LAST, and actions."""
    rng = np.random.default_rng(seed)
    first = rng.random((num_rows, B)) < 0.3
    first[0, : B // 2] = True
    step_type = np.where(first, StepType.FIRST, StepType.MID).astype(np.int8)
    step_type[:-1][first[1:] & ~first[:-1] & (rng.random((num_rows - 1, B)) < 0.8)] = StepType.LAST
    timestep = TimeStep(
        step_type,
        np.where(first, 0, rng.normal(size=first.shape)).astype(np.float32),
        np.ones((num_rows, B), np.float32),
        jax.tree.map(lambda leaf: random_observation(rng, leaf, (num_rows, B)), spec.observation),
    )
    sizes = spec.action.num_values
    action = rng.integers(0, sizes, (num_rows, B) if isinstance(sizes, int) else (num_rows, B, len(sizes)))
    return jax.tree.map(jnp.asarray, (timestep, action.astype(np.int32)))


def act_through(state, timestep, action):
    """The network's inputs of every row, step by step, and the states that entered each row."""
    states, inputs = [], []
    step = jax.jit(network_input_step)
    for row in range(timestep.reward.shape[0]):
        states.append(state)
        seen, frames = step(state, jax.tree.map(lambda x, row=row: x[row], timestep))
        inputs.append(seen)
        state = state._replace(frames=frames, last_action=action[row])
    return states, inputs


def assert_equal(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("frame_stack", [1, 4])
@pytest.mark.parametrize("name", SPECS)
def test_an_unroll_sees_what_acting_saw(name, frame_stack):
    spec = SPECS[name]
    timestep, action = random_unroll(frame_stack, spec, 2 * T + 1)
    state = initial_recurrent(WithoutCore(), spec, frame_stack, B)
    states, inputs = act_through(state, timestep, action)
    for start in (0, T):
        window = jax.tree.map(lambda x, start=start: x[start : start + T + 1], timestep)
        unrolled = jax.jit(network_input_unroll)(states[start], window, action[start : start + T])
        stepwise = jax.tree.map(lambda *rows: np.concatenate(rows), *inputs[start : start + T + 1])
        assert_equal(unrolled, stepwise)
    for a, b in zip(jax.tree.leaves(states[0]), jax.tree.leaves(states[-1]), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
    rest, mask = split_action_mask(inputs[0].observation)
    spec_rest, spec_mask = split_action_mask(spec.observation)
    for leaf, array in zip(jax.tree.leaves(spec_rest), jax.tree.leaves(rest), strict=True):
        assert array.shape == (1, B, *stacked_shape(leaf.shape, frame_stack)) and array.dtype == leaf.dtype
    assert (mask is None) == (spec_mask is None)
    if mask is not None:
        assert_equal(mask, timestep.observation["action_mask"][:1])


@pytest.mark.parametrize("frame_stack", [2, 3])
def test_an_unroll_shorter_than_the_stack(frame_stack):
    spec = SPECS["vector"]
    timestep, action = random_unroll(5, spec, 2)
    state = initial_recurrent(WithoutCore(), spec, 4, B)._replace(frames=jnp.full((B, 3, 3), 7.0))
    _, inputs = act_through(state, timestep, action)
    unrolled = network_input_unroll(state, timestep, action[:1])
    assert_equal(unrolled, jax.tree.map(lambda *rows: np.concatenate(rows), *inputs))


def test_frames_lie_oldest_first_and_begin_with_the_episode():
    spec = SPECS["vector"]
    step_type = jnp.array([[0], [1], [2], [0], [1]], jnp.int8)
    observation = jnp.arange(1.0, 6.0).reshape(5, 1, 1) * jnp.ones((5, 1, 3))
    timestep = TimeStep(step_type, jnp.zeros((5, 1)), jnp.ones((5, 1)), observation)
    stale = initial_recurrent(WithoutCore(), spec, 3, 1)._replace(frames=jnp.full((1, 2, 3), 99.0))
    seen = network_input_unroll(stale, timestep, jnp.array([[0], [1], [2], [1]], jnp.int32))
    np.testing.assert_array_equal(
        seen.observation[:, 0, ::3], [[0, 0, 1], [0, 1, 2], [1, 2, 3], [0, 0, 4], [0, 4, 5]]
    )
    np.testing.assert_array_equal(seen.last_action[:, 0], [-1, 0, 1, -1, 1])
    np.testing.assert_array_equal(seen.first[:, 0], [True, False, False, True, False])


def test_pictures_without_channels_are_stacked_as_channels():
    frames = jnp.arange(2 * 3 * 4 * 5, dtype=jnp.uint8).reshape(2, 3, 4, 5)
    present = jnp.full((2, 4, 5), 200, jnp.uint8)
    stacked, later = stack_frames(frames, present)
    assert stacked.shape == (2, 4, 5, 4) and stacked.dtype == jnp.uint8
    np.testing.assert_array_equal(stacked[..., 0], frames[:, 0])
    np.testing.assert_array_equal(stacked[..., 3], present)
    np.testing.assert_array_equal(later[:, -1], present)
    np.testing.assert_array_equal(later[:, 0], frames[:, 1])


def test_reset_touches_only_the_slots_that_begin():
    spec = SPECS["dict"]
    state = initial_recurrent(WithoutCore(), spec, 3, B)
    assert state.last_action.shape == (B, 2) and (state.last_action == -1).all()
    assert "action_mask" not in state.frames
    ones = jax.tree.map(jnp.ones_like, state)
    first = jnp.array([True, False, False, True])
    reset = reset_recurrent(ones, first)
    np.testing.assert_array_equal(reset.last_action[:, 0], [-1, 1, 1, -1])
    np.testing.assert_array_equal(reset.frames["clock"], np.where(first, 0, 1)[:, None] * np.ones((1, 2)))


def test_no_bounded_action_is_zeros():
    spec = EnvironmentSpec(ArraySpec((3,), np.float32), BoundedAction((2, 1)))
    state = initial_recurrent(WithoutCore(), spec, 1, B)
    assert state.last_action.shape == (B, 2, 1) and state.last_action.dtype == jnp.float32
    assert (state.last_action == 0).all()
    first = jnp.array([[True, False, False, False], [False, True, False, False]])
    entering, action = jnp.full((B, 2, 1), 0.5), jnp.full((1, B, 2, 1), -0.25)
    seen = last_actions(entering, action, first)
    np.testing.assert_array_equal(seen[..., 0, 0], [[0, 0.5, 0.5, 0.5], [-0.25, 0, -0.25, -0.25]])
    reset = reset_recurrent(state._replace(last_action=entering), first[0])
    np.testing.assert_array_equal(reset.last_action, seen[0])


@pytest.mark.parametrize("core, frame_stack", [("lstm", 4), ("gru", 1)])
def test_a_network_unrolled_gives_back_what_acting_got(core, frame_stack):
    spec = SPECS["dict"]
    config = NetworkConfig(
        hidden_sizes=(16,),
        core=core,
        core_size=8,
        use_last_action=True,
        use_last_reward=True,
        frame_stack=frame_stack,
        init="lecun",
    )
    network = make_network(config, spec)
    timestep, action = random_unroll(2, spec, T + 1)
    state = initial_recurrent(network, spec, frame_stack, B)
    state = state._replace(core=jax.tree.map(lambda x: x + 0.5, state.core))
    inputs = network_input_unroll(state, timestep, action[:T])
    shapes = jax.eval_shape(network.init, jax.random.key(0, impl="threefry2x32"), inputs, state.core)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.1, jnp.float32), shapes)
    unrolled, _ = jax.jit(network.apply)(params, inputs, state.core)

    @jax.jit
    def act(state, timestep, action):
        seen, frames = network_input_step(state, timestep)
        output, core = network.apply(params, seen, state.core)
        return output, state._replace(core=core, frames=frames, last_action=action)

    for row in range(T + 1):
        output, state = act(state, jax.tree.map(lambda x, row=row: x[row], timestep), action[row])
        np.testing.assert_allclose(output.policy[0], unrolled.policy[row], rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(output.value[0], unrolled.value[row], rtol=1e-4, atol=1e-6)
