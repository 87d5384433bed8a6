"""What the agent's whole programs show in test_r2d2_agent.py is not repeated here."""

import jax.numpy as jnp
import numpy as np
import pytest

from zerocopy_envs.types import StepType, TimeStep
from zerocopy_seed.agents.r2d2 import R2D2Output
from zerocopy_seed.agents.r2d2_loss import initial_mass, q_values
from zerocopy_seed.config import R2D2Config
from zerocopy_seed.networks import NetworkOutput
from zerocopy_seed.ops.distributions import ILLEGAL_LOGIT
from zerocopy_seed.replay import Windows
from zerocopy_seed.types import RecurrentState


@pytest.mark.parametrize(("dueling", "worth"), [(True, 0.5), (False, 0.0)])
def test_where_no_action_is_legal_all_are_worth_the_same(dueling, worth):
    output = NetworkOutput(jnp.full((1, 1, 4), ILLEGAL_LOGIT), jnp.full((1, 1), 0.5))
    np.testing.assert_array_equal(q_values(output, dueling=dueling)[0, 0], np.full(4, worth, np.float32))


def test_the_look_ahead_lengthens_returns_and_has_no_priority():
    config = R2D2Config(
        burn_in=1, sequence_length=1, look_ahead=2, n_step=3, rescale_values=False, priority_exponent=0.5
    )
    settings = {name: jnp.float32(getattr(config, name)) for name in ("reward_clip", "priority_eta")}
    settings |= {"discount": jnp.float32(0.5), "priority_exponent": jnp.float32(0.5)}
    rewards = np.array([[0, 7, 1, 2, 4]], np.float32).T  # earned by the action before
    q_value = np.array([[9, 1, 100, 100, 100]], np.float32).T
    q_max = np.array([[9, 9, 100, 100, 8]], np.float32).T
    timestep = TimeStep(
        jnp.full((5, 1), StepType.MID, jnp.int8), jnp.asarray(rewards), jnp.ones((5, 1)), jnp.zeros((5, 1, 1))
    )
    windows = Windows(
        timestep=timestep,
        action=jnp.zeros((4, 1), jnp.int32),
        actor_output=R2D2Output(jnp.asarray(q_value), jnp.asarray(q_max)),
        recurrent=RecurrentState((), (), jnp.zeros([1], jnp.int32)),
    )
    # 1 + 2 / 2 + 4 / 4 + 8 / 8, less the Q-value of the one trained row
    np.testing.assert_allclose(initial_mass(config, windows, settings), [np.sqrt(4.0 - 1.0)], rtol=1e-6)
