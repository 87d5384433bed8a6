"""An actor whose messages reach the bridge without a transport, one at a time."""

import jax
import numpy as np

from zerocopy_envs.types import HostEnvironment
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.bridge import Bridge, RunDescription
from zerocopy_seed.remote.codec import decode_actions, encode_observations
from zerocopy_seed.remote.engine import Engine
from zerocopy_seed.remote.specs import spec_to_message
from zerocopy_seed.remote.wire_format import make_wire_format
from zerocopy_seed.types import Trajectory


class InProcessActor:
    """Joins with all of `environment`, and resets it.

    Args:
      engine: acts; nobody else uses it meanwhile.
      environment: fills all of the engine's slots.

    Attributes:
      sent: the timestep [N] that was sent last.
      bridge: that it has joined.
    """

    def __init__(self, engine: Engine, environment: HostEnvironment):
        spec, num_envs = environment.spec, environment.num_envs
        self._engine, self._environment, self._wire = engine, environment, make_wire_format(spec)
        self._answers: list[bytes] = []
        self._num_requests = 0
        self.bridge = Bridge(engine, RunDescription("run", "tests", {}, spec, num_envs), notify=lambda: None)
        session = self.bridge.join(
            bridge_pb2.JoinRequest(
                version=1, run_id="run", spec=spec_to_message(spec), num_environments=num_envs
            )
        )
        self._connection = self.bridge.open(session.id, self._answers.append)
        self._seeds = list(session.seeds)
        self.reset()

    def reset(self) -> None:
        """Begins anew, whatever is under way."""
        self._timestep = self._environment.reset(self._seeds)

    def play(self, num_unrolls: int) -> list[Trajectory]:
        """Steps until the learner has had so many trajectories; copies of them, as numpy arrays."""
        taken = []
        while len(taken) < num_unrolls:
            self._environment.send(self._act())
            self._timestep = self._environment.recv()[1]
            if (found := self._engine.take(0.0)) is not None:
                taken.append(jax.tree.map(np.array, found.trajectory))
        return taken

    def lose(self) -> None:
        """Ends the stream without a goodbye."""
        self._connection.close()

    def _act(self) -> np.ndarray:
        self._num_requests += 1
        self.sent = self._timestep
        num_envs = self._environment.num_envs
        places = np.arange(num_envs, dtype=np.int32)
        self._connection.receive(encode_observations(self._wire, self._num_requests, places, self._timestep))
        for request, actions in self._engine.step():
            request.answer(actions)
        (answer,) = self._answers
        self._answers.clear()
        actions = decode_actions(self._wire, answer, num_envs)
        assert actions.request == self._num_requests
        return actions.action
