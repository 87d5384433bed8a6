"""The resetting wrapper against episodes played one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import StepType, make
from zerocopy_envs.wrappers import Vectorized, episode_key


def slot_keys(num_slots, seed=0):
    return jax.random.split(jax.random.key(seed, impl="threefry2x32"), num_slots)


def play(environment, keys, actions):
    """Timesteps [T+1, B]."""
    vectorized = Vectorized(environment)

    @jax.jit
    def run(keys, actions):
        state, first = vectorized.reset(keys)
        _, rest = jax.lax.scan(vectorized.step, state, actions)
        return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, rest)

    return jax.device_get(run(keys, actions))


def test_stream_equals_its_episodes_one_by_one():
    environment, num_steps = make("zerocopy:Catch", rows=4), 23
    keys = slot_keys(3)
    actions = np.random.default_rng(0).integers(0, 3, (num_steps, 3), np.int32)
    stream = play(environment, keys, actions)
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    for slot in range(3):
        episode, (state, timestep) = 0, reset(episode_key(keys[slot], 0))
        for t in range(num_steps + 1):
            jax.tree.map(
                np.testing.assert_array_equal,
                jax.device_get(timestep),
                jax.tree.map(lambda rows, t=t, slot=slot: rows[t, slot], stream),
            )
            if t == num_steps:
                break
            if timestep.step_type == StepType.LAST:
                episode += 1
                state, timestep = reset(episode_key(keys[slot], episode))
            else:
                state, timestep = step(state, actions[t, slot])
        assert episode == 5


def test_episodes_of_a_slot_and_of_slots_differ():
    environment = make("gymnax:CartPole-v1", max_steps_in_episode=2)
    stream = play(environment, slot_keys(4), np.zeros((11, 4), np.int32))
    starts = stream.observation[stream.step_type == StepType.FIRST]
    assert len(starts) == 16 and len(np.unique(starts, axis=0)) == 16


def test_the_action_after_last_is_ignored_and_first_earns_nothing():
    environment = make("zerocopy_envs.probes:chosen_reward")
    for action in (0, 1):
        stream = play(environment, slot_keys(2), np.full((4, 2), action, np.int32))
        reward = 2 * action - 1
        np.testing.assert_array_equal(stream.step_type[:, 0], [0, 2, 0, 2, 0])
        np.testing.assert_array_equal(stream.reward[:, 0], [0, reward, 0, reward, 0])
        np.testing.assert_array_equal(stream.discount[:, 0], [1, 0, 1, 0, 1])


class BeginsBadly:
    """Catch, of whose resets some observe NaN."""

    def __init__(self):
        inner = make("zerocopy:Catch", rows=4)
        self.spec, self.step = inner.spec, inner.step

        def reset(key):
            state, timestep = inner.reset(key)
            spoiled = jnp.where(jax.random.bernoulli(key), jnp.nan, timestep.observation)
            return state, timestep._replace(observation=spoiled)

        self.reset = reset


def test_a_first_that_cannot_be_used_is_followed_by_another():
    stream = play(BeginsBadly(), slot_keys(8), np.zeros((9, 8), np.int32))
    is_bad = np.isnan(stream.observation).any((2, 3))
    assert is_bad[0].any() and not is_bad[0].all()
    np.testing.assert_array_equal(stream.step_type[1] == StepType.FIRST, is_bad[0])
    np.testing.assert_array_equal(stream.step_type[1:][is_bad[:-1]], StepType.FIRST)


def test_a_slot_does_not_notice_its_neighbours():
    environment = make("gymnax:CartPole-v1")
    keys, others = slot_keys(3), slot_keys(3, seed=1)
    actions = np.random.default_rng(0).integers(0, 2, (30, 3), np.int32)
    whole = play(environment, keys, actions)
    mixed = play(environment, others.at[2].set(keys[2]), np.where(np.arange(3) == 2, actions, 1))
    alone = play(environment, keys[2:3], actions[:, 2:3])
    for other, slot in ((mixed, 2), (alone, 0)):
        jax.tree.map(lambda a, b, slot=slot: np.testing.assert_array_equal(a[:, 2], b[:, slot]), whole, other)


def test_state_keeps_its_types_and_step_compiles_once():
    vectorized = Vectorized(make("gymnax:CartPole-v1"))
    state, timestep = jax.jit(vectorized.reset)(slot_keys(2))
    traced = []

    def types(tree):
        return jax.tree.map(lambda leaf: jax.typeof(leaf), tree)

    @jax.jit
    def step(state, actions):
        traced.append(1)
        return vectorized.step(state, actions)

    for _ in range(3):
        new_state, new_timestep = step(state, jnp.zeros(2, jnp.int32))
        assert types((new_state, new_timestep)) == types((state, timestep))
        state = new_state
    assert len(traced) == 1


def test_resets_are_computed_only_when_needed():
    environment = make("gymnax:CartPole-v1")
    vectorized = Vectorized(environment)
    state, _ = vectorized.reset(slot_keys(2))
    jaxpr = jax.make_jaxpr(vectorized.step)(state, jnp.zeros(2, jnp.int32))
    outside = {equation.primitive.name for equation in jaxpr.eqns}
    assert "cond" in outside and not any("random" in name or "threefry" in name for name in outside)


class ResetsTwoAtOnce:
    """CartPole, whose resets are said to be dear."""

    num_resets_at_once = 2

    def __init__(self):
        inner = make("gymnax:CartPole-v1", max_steps_in_episode=12)
        self.spec, self.reset, self.step = inner.spec, inner.reset, inner.step


def test_resets_of_some_slots_at_a_time_are_the_same():
    dear = ResetsTwoAtOnce()
    plain = make("gymnax:CartPole-v1", max_steps_in_episode=12)
    # All five end at the limit, more than two groups; then slot 0 falls, out of step with the others.
    actions = np.tile(np.arange(45, dtype=np.int32)[:, None] % 2, (1, 5))
    actions[14:, 0] = 1
    streams = [play(environment, slot_keys(5), actions) for environment in (dear, plain)]
    ends = (streams[1].step_type == StepType.LAST).sum(1)
    assert {0, 1, 5} <= set(ends.tolist())
    jax.tree.map(np.testing.assert_array_equal, *streams)


@pytest.mark.parametrize("make_it", [lambda: make("gymnax:FrozenLake-misc"), ResetsTwoAtOnce])
def test_under_vmap_over_seeds(make_it):
    environment = make_it()
    actions = np.random.default_rng(0).integers(0, 2, (25, 3), np.int32)
    seeds = [slot_keys(3, seed) for seed in (0, 1)]
    vectorized = Vectorized(environment)

    def run(keys):
        state, _ = vectorized.reset(keys)
        return jax.lax.scan(vectorized.step, state, actions)[1]

    both = jax.jit(jax.vmap(run))(jnp.stack(seeds))
    for i, keys in enumerate(seeds):
        jax.tree.map(
            lambda whole, one, i=i: np.testing.assert_array_equal(whole[i], one), both, jax.jit(run)(keys)
        )


@pytest.mark.parametrize(
    "make_it", [lambda: make("zerocopy:Catch"), lambda: make("gymnax:CartPole-v1"), ResetsTwoAtOnce]
)
def test_inside_shard_map(make_it):
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:4]), ("data",))
    over_data = jax.sharding.PartitionSpec("data")
    vectorized = Vectorized(make_it())

    def run(keys):
        state, _ = vectorized.reset(keys)
        actions = jnp.ones((12, keys.shape[0]), jnp.int32)
        return jax.lax.scan(vectorized.step, state, actions)[1].observation.swapaxes(0, 1)

    keys = slot_keys(12)
    sharded = jax.shard_map(run, mesh=mesh, in_specs=over_data, out_specs=over_data)
    np.testing.assert_array_equal(jax.jit(sharded)(keys), jax.jit(run)(keys))
