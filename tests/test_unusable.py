"""NaN and infinities: what they touch counts for nothing, and they reach neither parameters nor replay."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from faulty_environment import FAULT_AT, Faulty, joined, require_finite
from small_runs import LSTM, R2D2

from zerocopy_envs.types import StepType
from zerocopy_envs.usable import is_stand_in
from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config import VTraceConfig
from zerocopy_seed.loops.on_device import init_train_state, play
from zerocopy_seed.ops.counters import as_int
from zerocopy_seed.types import valid_transitions

NUM_ENVS = 16
VTRACE = VTraceConfig(
    unroll_length=5, learning_rate=1e-2, normalize_observations=True, normalize_rewards=True
)


def make_run(config):
    """play, learn, and a state of NUM_ENVS slots, for V-trace or R2D2 with a core."""
    environment = Vectorized(Faulty())
    agent = make_agent(config, LSTM, environment.spec, num_slots=NUM_ENVS)
    state = jax.jit(lambda: init_train_state(agent, environment, 3, NUM_ENVS))()
    return jax.jit(lambda state: play(agent, environment, state, 5)), jax.jit(agent.learn), state


@pytest.fixture(scope="module")
def vtrace():
    return make_run(VTRACE)


def require_faults_cut_out(timestep):
    """Of unrolls in turn, joined [T+1, B]: a stand-in where an episode went wrong, then a whole new one."""
    age, kind = timestep.observation["seen"][..., 0], timestep.observation["seen"][..., 1]
    stands_in = is_stand_in(timestep)
    ended = timestep.step_type[:-1] == StepType.LAST
    wrong = np.zeros_like(stands_in[1:])
    for which, fault_at in FAULT_AT.items():
        wrong |= (kind[:-1] == which) & (age[:-1] == fault_at - 1) & ~stands_in[:-1] & ~ended
    np.testing.assert_array_equal(stands_in[1:], wrong)
    begun = stands_in[:-1] | ended
    np.testing.assert_array_equal(timestep.step_type[1:][begun], StepType.FIRST)
    np.testing.assert_array_equal(age[1:][begun], 0)
    valid = valid_transitions(timestep.step_type)
    assert not valid[stands_in[:-1]].any() and not valid[stands_in[1:]].any()
    np.testing.assert_array_equal(timestep.reward[stands_in], 0)
    for fault_at in FAULT_AT.values():  # it has happened
        assert (wrong & (age[:-1] == fault_at - 1)).any()


@pytest.mark.parametrize("name", ["vtrace", "r2d2"])
def test_on_the_device_nothing_comes_of_them(name, vtrace):
    play, learn, state = (
        vtrace if name == "vtrace" else make_run(dataclasses.replace(R2D2, replay_capacity=320))
    )
    timesteps, counted, num_episodes = [], 0, 0
    for _ in range(6):
        state, trajectory, (ended, lengths, returns) = play(state)
        learner, metrics = learn(state.learner, trajectory)
        state = state._replace(learner=learner)
        timesteps.append(jax.device_get(trajectory.timestep))
        counted += int(metrics["num_unusable_rows"])
        assert (lengths, returns) == (5 * ended, 5.0 * ended)  # whole episodes, and sound ones
        num_episodes += int(ended)
        assert np.isfinite(metrics["grad_norm"]) and metrics["num_skipped_updates"] == 0
    timestep = joined(timesteps)
    require_faults_cut_out(timestep)
    require_finite(learner._replace(settings=()))
    assert counted == is_stand_in(timestep)[1:].sum() and num_episodes
    assert as_int(learner.env_steps) == valid_transitions(timestep.step_type).sum()
    if name == "vtrace":
        # Statistics are of what was validly acted upon: the stand-ins' zeros are not among it.
        valid = valid_transitions(timestep.step_type)
        seen = timestep.observation["seen"][:-1][valid]
        assert as_int(learner.statistics.observation.count) == valid.sum()
        np.testing.assert_allclose(learner.statistics.observation.mean[1].total, seen.mean(0), rtol=1e-5)


def test_episodes_go_on_past_what_32_bits_hold(vtrace):
    play, _, state = vtrace
    environment = state.actor.env_state._replace(episode=jnp.full(NUM_ENVS, 2**31 - 2, jnp.int32))
    state = state._replace(actor=state.actor._replace(env_state=environment))
    for _ in range(4):
        state, trajectory, _ = play(state)
    assert (state.actor.env_state.episode < 0).any()  # a number to draw keys by, no more
    assert len(np.unique(trajectory.timestep.observation["seen"][..., 1])) > 2


def test_an_update_that_overflows_is_left_out(vtrace):
    play, learn, state = vtrace
    _, trajectory, _ = play(state)
    huge = trajectory.timestep._replace(reward=jnp.where(trajectory.timestep.reward > 0, 1.8e19, 0.0))
    settings = state.learner.settings
    too_much = state.learner._replace(settings=settings | {"baseline_cost": jnp.float32(1e30)})
    learner, metrics = learn(too_much, trajectory._replace(timestep=huge))
    assert metrics["num_skipped_updates"] == 1
    for before, after in zip(
        jax.tree.leaves((state.learner.params, state.learner.opt_state, state.learner.statistics.reward)),
        jax.tree.leaves((learner.params, learner.opt_state, learner.statistics.reward)),
        strict=True,
    ):
        np.testing.assert_array_equal(before, after)
    assert as_int(learner.num_updates) == 1
    learner, metrics = learn(learner._replace(settings=settings), trajectory)
    assert metrics["num_skipped_updates"] == 0
    require_finite(learner._replace(settings=()))
