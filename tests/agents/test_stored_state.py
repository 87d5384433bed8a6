"""What R2D2's replay has stored of a core that counts its steps since FIRST, from acting to sampling."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from zerocopy_envs.types import StepType
from zerocopy_seed import replay as replays
from zerocopy_seed.agents.r2d2 import make_r2d2_agent
from zerocopy_seed.config import EnvConfig, R2D2Config
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.networks import NetworkOutput
from zerocopy_seed.replay_layout import make_layout
from zerocopy_seed.rollout import unroll
from zerocopy_seed.types import Mode

NUM_SLOTS = 2
CONFIG = R2D2Config(
    unroll_length=3, sequence_length=6, period=3, replay_capacity=16, min_replay=4, batch_size=2,
    sampling="uniform", n_step=1, double_q=False, dueling=False, rescale_values=False,
)  # fmt: skip


class StepCounter(nn.Module):
    """Its core is how many steps of the episode it has seen."""

    num_actions: int

    @nn.compact
    def __call__(self, inputs, core):
        def step(count, first):
            count = jnp.where(first, 0, count) + 1
            return count, count

        core, counts = jax.lax.scan(step, core, inputs.first)
        output = nn.Dense(self.num_actions + 1)(counts[..., None].astype(jnp.float32))
        return NetworkOutput(output[..., 1:], output[..., 0]), core

    def initial_core(self, batch_size):
        return jnp.zeros([batch_size], jnp.int32)


def test_a_windows_core_has_counted_the_steps_before_its_first_row():
    environment = make_environment(EnvConfig("zerocopy:Catch", NUM_SLOTS, {"rows": 5, "columns": 3}))
    agent = make_r2d2_agent(CONFIG, StepCounter(3), environment.spec, num_slots=NUM_SLOTS)
    layout = make_layout(CONFIG, num_slots=NUM_SLOTS, frame_stack=1)
    slots = jnp.arange(NUM_SLOTS, dtype=jnp.int32)

    @jax.jit
    def update(state, uniforms):
        actor, trajectory = unroll(
            agent.act, environment.step, agent.acting(state.learner), state.actor, slots,
            length=CONFIG.unroll_length, mode=Mode.TRAIN,
        )  # fmt: skip
        learner, _ = agent.learn(state.learner, trajectory)
        draw, windows = replays.sample(layout, learner.replay, uniforms, num_shards=1)
        return state._replace(learner=learner, actor=actor), draw, windows

    state = jax.jit(lambda: init_train_state(agent, environment, 0, NUM_SLOTS))()
    rng = np.random.default_rng(0)
    seen = set()
    for _ in range(20):
        uniforms = rng.random((1, 8, replays.num_uniforms(state.learner.replay)), np.float32)
        state, draw, windows = update(state, uniforms)
        drawn = np.asarray(draw.probability) > 0
        board, first = windows.timestep.observation[0], windows.timestep.step_type[0] == StepType.FIRST
        # The ball falls a row a step; the paddle is in the last row, where the ball ends.
        step = np.asarray(board.any(-1).argmax(-1))
        np.testing.assert_array_equal(step == 0, first)
        # What enters a FIRST is the last episode's, and is forgotten.
        counted = np.where(first, 0, windows.recurrent.core)
        np.testing.assert_array_equal(counted[drawn], step[drawn])
        seen |= set(step[drawn])
    assert seen == set(range(5))
