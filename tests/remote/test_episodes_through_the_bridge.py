"""How episodes begin and end means the same through the bridge as on the device."""

import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from in_process_actor import InProcessActor

from zerocopy_envs.host_adapter import HostedEnvironment
from zerocopy_envs.types import ArraySpec, DiscreteAction, EnvironmentSpec, StepType, TimeStep
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.keys import Stream, slot_keys
from zerocopy_seed.recurrent import initial_recurrent, network_input_step
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.rollout import begin, unroll
from zerocopy_seed.types import ActingParams, Agent, AgentState, Exploration, Mode, valid_transitions

SEED, NUM_ENVS, LENGTH, NUM_UNROLLS, FRAME_STACK, LIMIT = 5, 8, 3, 8, 3, 4
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


class FuseState(NamedTuple):
    fuse: jax.Array
    age: jax.Array


class Fuse:
    """Terminates after `fuse` steps, 1 to 6 by its key; truncated after 4. The reward is the action."""

    spec = EnvironmentSpec(ArraySpec((2,), np.int32), DiscreteAction(5), LIMIT)

    def reset(self, key):
        fuse = jax.random.key_data(key)[1] % 6 + 1  # no draw, which takes long to compile
        state = FuseState(fuse.astype(jnp.int32), jnp.int32(0))
        return state, self._timestep(state, jnp.int8(FIRST), jnp.int32(0))

    def step(self, state, action):
        state = state._replace(age=state.age + 1)
        ends = (state.age == state.fuse) | (state.age == LIMIT)
        return state, self._timestep(state, jnp.where(ends, jnp.int8(LAST), jnp.int8(MID)), action)

    def _timestep(self, state, step_type, reward):
        discount = jnp.where(state.age == state.fuse, jnp.float32(0), jnp.float32(1))
        # never 0, which is what stands where there is no frame
        observation = jnp.stack([10 * state.fuse, state.age + 1])
        return TimeStep(step_type, reward.astype(jnp.float32), discount, observation)


def make_seeing_agent() -> Agent:
    """Puts out what it saw, its frames stacked, and acts upon it."""

    def initial_state(keys, slots):
        network = types.SimpleNamespace(initial_core=lambda batch_size: ())
        recurrent = initial_recurrent(network, Fuse.spec, FRAME_STACK, slots.shape[0])
        return AgentState(recurrent, Exploration(keys))

    def act(params, state, timestep, mode):
        inputs, frames = network_input_step(state.recurrent, timestep)
        seen = inputs.observation[0]
        action = seen.sum(-1) % 5
        recurrent = state.recurrent._replace(frames=frames, last_action=action)
        return (
            action,
            {"seen": seen, "last_action": inputs.last_action[0]},
            state._replace(recurrent=recurrent),
        )

    def no_learning(*_):
        raise NotImplementedError

    return Agent(no_learning, no_learning, initial_state, act, no_learning)


@pytest.fixture(scope="module")
def played():
    """Trajectories of an actor, of the same after it began anew in mid-episode, and of one after its loss."""
    engine = Engine(
        make_seeing_agent(),
        Fuse.spec,
        ActingParams(()),
        seed=SEED,
        num_slots=NUM_ENVS,
        unroll_length=LENGTH,
        max_policy_lag=np.inf,
        max_batch=NUM_ENVS,
    )
    environment = Vectorized(Fuse())
    actor = InProcessActor(engine, HostedEnvironment(environment, NUM_ENVS))
    parts = [actor.play(NUM_UNROLLS)]
    while (actor.sent.step_type == LAST).any():  # after a LAST it would be no loss
        parts[0] += actor.play(1)
    actor.reset()
    parts.append(actor.play(2))
    actor.lose()
    parts.append(InProcessActor(engine, HostedEnvironment(environment, NUM_ENVS)).play(2))
    return parts


def test_ends_and_resets_mask_the_same_rows_as_on_the_device(played):
    agent, environment = make_seeing_agent(), Vectorized(Fuse())

    @jax.jit
    def run():
        slots = jnp.arange(NUM_ENVS, dtype=jnp.int32)
        keys, environment_keys = (
            slot_keys(SEED, stream, slots) for stream in (Stream.AGENT, Stream.ENVIRONMENT)
        )
        state = begin(agent.initial_state, environment.reset, keys, environment_keys, slots)

        def one_unroll(state, _):
            params = ActingParams(())
            return unroll(agent.act, environment.step, params, state, slots, length=LENGTH, mode=Mode.TRAIN)

        return jax.lax.scan(one_unroll, state, None, length=len(played[0]))[1]

    expected = jax.tree.map(np.asarray, run())
    found = jax.tree.map(lambda *unrolls: np.stack(unrolls), *played[0])
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    for ours, theirs in zip(found.timestep.step_type, expected.timestep.step_type, strict=True):
        np.testing.assert_array_equal(valid_transitions(ours), valid_transitions(theirs))

    timestep = jax.tree.map(lambda x: np.concatenate(x[:, :-1]), found.timestep)  # one stream a slot
    step_type, discount, age = timestep.step_type, timestep.discount, timestep.observation[..., 1] - 1
    ends = step_type == LAST
    np.testing.assert_array_equal(ends[:-1], step_type[1:] == FIRST)
    assert {(int(a), int(d)) for a, d in zip(age[ends], discount[ends], strict=True)} == {
        *((age, 0) for age in range(1, LIMIT + 1)),
        (LIMIT, 1),
    }
    for rows in (slice(0, None, LENGTH), slice(LENGTH - 1, None, LENGTH)):  # at the seams of unrolls, too
        assert ends[rows].any() and (step_type[rows][1:] == FIRST).any()


def test_no_frame_is_seen_across_a_reset(played):
    num_first = 0
    for part in played:
        seen = np.concatenate([t.actor_output["seen"] for t in part])
        last_action = np.concatenate([t.actor_output["last_action"] for t in part])
        step_type = np.concatenate([t.timestep.step_type[:-1] for t in part])
        frame = np.concatenate([t.timestep.observation[:-1] for t in part])
        assert (step_type[0] == FIRST).all()
        for t, slot in np.ndindex(step_type.shape):
            age = frame[t, slot, 1] - 1
            expected = np.zeros((FRAME_STACK, 2), np.int32)
            kept = min(age + 1, FRAME_STACK)
            expected[FRAME_STACK - kept :] = frame[t + 1 - kept : t + 1, slot]
            np.testing.assert_array_equal(seen[t, slot], expected.ravel())
            assert (last_action[t, slot] == -1) == (age == 0) == (step_type[t, slot] == FIRST)
            num_first += age == 0
    assert num_first > 3 * NUM_ENVS
