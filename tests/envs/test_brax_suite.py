"""The adapter of brax against brax itself, and its episodes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs import StepType, UserError, make
from zerocopy_envs.brax_backends import (
    BACKENDS,
    ENVIRONMENTS,
    UNSUPPORTED,
    backend_notes,
    working_environments,
)
from zerocopy_envs.testing import check_environment
from zerocopy_envs.wrappers import Vectorized, episode_key

pytest.importorskip("brax")


def key(seed=0):
    return jax.random.key(seed, impl="threefry2x32")


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pendulum_falls_on_each_backend(backend):
    """One program, since compiling takes all of the time; the conformance check is among the slow tests."""
    environment = make("brax:inverted_pendulum", backend=backend)

    @jax.jit
    def play(key):
        start, first = environment.reset(key)

        def step(state, _):
            return environment.step(state, jnp.full(1, 0.3, jnp.float32))

        return first, jax.lax.scan(step, start, None, length=40)[1]

    first, stream = play(key())
    assert first.step_type == StepType.FIRST and first.reward == 0
    ends = np.flatnonzero(stream.step_type == StepType.LAST)
    assert 0 < ends[0] < 40 and (stream.step_type[: ends[0]] == StepType.MID).all()
    np.testing.assert_array_equal(stream.discount[: ends[0] + 1], [1] * ends[0] + [0])
    assert np.isfinite(stream.observation).all() and abs(stream.observation[ends[0], 1]) > 0.2


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_each_pair_conforms_or_does_not_run(name, backend):
    if (name, backend) not in UNSUPPORTED:
        check_environment(f"brax:{name}", backend=backend, num_steps=40)
        return
    from zerocopy_envs.brax_interface import BraxInterface
    from zerocopy_envs.brax_suite import make_on_backend

    with pytest.raises(ValueError):  # UserError is one too
        check_environment(
            BraxInterface(make_on_backend(name, backend), "pipeline_state", 1000, 1), num_steps=40
        )


def test_what_does_not_run_is_refused_and_listed(monkeypatch):
    monkeypatch.setitem(UNSUPPORTED, ("hopper", "mjx"), "no legs there")
    with pytest.raises(
        UserError, match="expected one that runs: spring, generalized, positional, found 'mjx'"
    ):
        make("brax:hopper", backend="mjx")
    assert backend_notes()["hopper"] == ("backends: spring, generalized, positional; not mjx (no legs there)")
    assert "fast" not in backend_notes() and "swimmer" not in working_environments()
    for name, settings, said in (
        ("swimmer", {}, "backends: none; not spring, positional, mjx"),
        ("fast", {"backend": "sprin"}, "did you mean spring"),
        ("hoper", {}, "did you mean hopper"),
    ):
        with pytest.raises(UserError, match=said):
            make(f"brax:{name}", **settings)


@pytest.mark.slow
def test_episodes_of_a_slot_start_apart_and_nothing_compiles_twice():
    vectorized = Vectorized(make("brax:inverted_pendulum", max_episode_steps=2))
    traced = []

    @jax.jit
    def step(state, actions):
        traced.append(1)
        return vectorized.step(state, actions)

    state, timestep = jax.jit(vectorized.reset)(jax.random.split(key(), 2))
    rows = [timestep]
    for _ in range(7):
        state, timestep = step(state, jnp.zeros((2, 1), jnp.float32))
        rows.append(timestep)
    assert len(traced) == 1
    stream = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    np.testing.assert_array_equal(stream.step_type[:, 0], [0, 1, 2, 0, 1, 2, 0, 1])
    np.testing.assert_array_equal(stream.discount, 1)
    starts = stream.observation[stream.step_type == StepType.FIRST]
    assert len(starts) == 6 and len(np.unique(starts, axis=0)) == 6
    np.testing.assert_array_equal(stream.reward, stream.step_type > 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["inverted_pendulum", "hopper"])
def test_a_stream_is_brax_s_own(name):
    from brax import envs

    theirs: Any = envs.get_environment(name, backend="spring")
    ours = make(f"brax:{name}")
    start: Any = theirs.reset(episode_key(key(), 0))
    state, timestep = ours.reset(episode_key(key(), 0))
    step, their_step = jax.jit(ours.step), jax.jit(theirs.step)
    actions = np.random.default_rng(0).uniform(-1.5, 1.5, (100, *ours.spec.action.shape)).astype(np.float32)
    for action in actions:
        np.testing.assert_allclose(timestep.observation, start.obs, rtol=1e-3, atol=1e-4)
        start = their_step(start, np.clip(action, -1, 1))
        state, timestep = step(state, action)
        np.testing.assert_allclose(timestep.reward, start.reward, rtol=1e-3, atol=1e-4)
        assert (timestep.discount == 0) == (start.done == 1) == (timestep.step_type == StepType.LAST)
        if start.done:
            break
    else:
        pytest.fail("no end within 100 steps")


def test_settings_reach_the_constructor():
    spec = make("brax:fast", obs_mode="dict_state", max_episode_steps=3).spec
    assert (spec.observation["state"].shape, spec.max_episode_steps) == ((2,), 3)
    for settings, named in (
        ({"reset_noise": 0.5}, "did you mean reset_noise_scale"),
        ({"healthy_reward": "much"}, "a float"),
        ({"max_episode_steps": 0}, "expected >= 1"),
        ({"action_repeat": 1.5}, "a int"),
    ):
        with pytest.raises(UserError, match=named):
            make("brax:hopper", **settings)
