"""EnvPool under the host contract, where it is installed."""

import numpy as np
import pytest

pytest.importorskip("envpool")

from zerocopy_envs import ArraySpec, DiscreteAction, StepType, UserError, make  # noqa: E402
from zerocopy_envs.testing import check_environment  # noqa: E402


@pytest.mark.parametrize(
    ("name", "settings"),
    [("CartPole-v1", {"max_episode_steps": 9}), ("Pendulum-v1", {"max_episode_steps": 20}), ("Pong-v5", {})],
)
def test_conformance(name, settings):
    check_environment(f"envpool:{name}", num_steps=40, num_envs=3, **settings)


def test_pong_gives_single_frames_and_says_how_long_a_game_is():
    spec = make("envpool:Pong-v5").spec
    assert (spec.observation, spec.action) == (ArraySpec((84, 84), np.uint8, 0, 255), DiscreteAction(6))
    assert (spec.max_episode_steps, spec.action_repeat) == (27_000, 4)
    assert make("envpool:Pong-v5", stack_num=4).spec.observation.shape == (4, 84, 84)


def test_a_time_limit_truncates():
    environment = make("envpool:Pendulum-v1", num_envs=2, max_episode_steps=3)
    environment.reset([2**63, 1])
    for expected in (StepType.MID, StepType.MID, StepType.LAST, StepType.FIRST):
        environment.send(np.zeros((2, 1), np.float32))
        slots, timestep = environment.recv()
        assert slots.tolist() == [0, 1]
        assert timestep.step_type.tolist() == [expected] * 2
        assert timestep.discount.tolist() == [1, 1]
    environment.close()


def test_mistakes_name_what_is_right():
    with pytest.raises(UserError, match=r"did you mean CartPole-v1\?"):
        make("envpool:CartPole-v7")
    with pytest.raises(UserError, match=r"did you mean max_episode_steps\?"):
        make("envpool:CartPole-v1", max_episode_step=3)
