"""NaN and infinities from actors: replaced as they arrive, and what they touch counts for nothing."""

import numpy as np
import pytest
from counting_agent import PARAMS, make_counting_agent
from counting_environment import Counting
from faulty_environment import joined, require_finite
from in_process_actor import InProcessActor

from zerocopy_envs.types import StepType
from zerocopy_envs.usable import is_stand_in
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.specs import spec_to_message


class Broken(Counting):
    """Environment 1 says NaN at two of its steps, 2 an infinite reward at an episode's end, 0 NaN at a FIRST.

    And one FIRST has discount 0, which is how a stand-in is known.
    """

    num_received = 0

    def recv(self):
        slots, timestep = super().recv()
        self.num_received += 1
        count, reward = np.array(timestep.observation["count"]), np.array(timestep.reward)
        discount = np.array(timestep.discount)
        if self.num_received == 5:
            discount[2] = 0
            assert timestep.step_type[2] == StepType.FIRST
        if self.num_received in (7, 8):
            count[1, 1] = np.nan
        if self.num_received == 9:
            reward[2] = -np.inf
            assert timestep.step_type[2] == StepType.LAST
        if self.num_received == 10:
            count[0, 0] = np.nan
            assert timestep.step_type[0] == StepType.FIRST
        return slots, timestep._replace(reward=reward, discount=discount, observation={"count": count})


@pytest.mark.parametrize("lag", [3, np.inf])
def test_through_the_bridge_nothing_comes_of_them(lag):
    environment = Broken(3)
    engine = Engine(
        make_counting_agent(),
        environment.spec,
        PARAMS,
        seed=0,
        num_slots=3,
        unroll_length=4,
        max_policy_lag=lag,
        max_batch=8,
    )
    actor = InProcessActor(engine, environment)
    trajectories = []
    for _ in range(4):
        (taken,) = actor.play(1)
        engine.publish(PARAMS, taken.slot)
        trajectories.append(taken)
    timestep = joined([taken.timestep for taken in trajectories])
    require_finite(timestep)
    rows = np.array([7, 8])
    np.testing.assert_array_equal(np.argwhere(is_stand_in(timestep)), [[7, 1], [8, 1], [9, 2], [10, 0]])
    np.testing.assert_array_equal(timestep.step_type[rows + 1, 1], StepType.FIRST)
    assert timestep.discount[9, 1] == 1
    np.testing.assert_array_equal(timestep.observation["count"][rows, 1], 0)
    assert all(taken.continues.all() for taken in trajectories[1:])
    # The counting agent's action is its steps since a FIRST: its core began anew.
    core = np.concatenate([taken.action for taken in trajectories]) - 100
    np.testing.assert_array_equal(core[6:11, 1], [2, 1, 1, 1, 1])
    np.testing.assert_array_equal(core[6:12, 0], [2, 3, 4, 5, 1, 1])
    figures = engine.figures()
    assert figures["num_episodes"] == 3 * 3 - 3 and figures["dropped_steps"] == 0
    assert figures["episode_return"] == 10.0
    require_named(actor)


def named(bridge):
    return [fields for event, _, fields in bridge.take_events() if event == "unusable_rows_of_actor"]


def require_named(actor):
    """Once, and as the actor's that had the slots, though it is gone; the next one there is not named."""
    actor.lose()
    everything = {"actor": 1, "slots": "0-2", "num_rows": 4, "field": "reward, observation.count"}
    assert named(actor.bridge) == [everything]
    spec = spec_to_message(Broken(3).spec)
    again = actor.bridge.join(bridge_pb2.JoinRequest(version=1, run_id="run", spec=spec, num_environments=3))
    connection = actor.bridge.open(again.id, lambda data: None)
    actor.bridge.name_unusable()
    connection.close()
    assert named(actor.bridge) == []
