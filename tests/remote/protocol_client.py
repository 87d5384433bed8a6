"""An actor after docs/protocol.md, of the generated code and numpy alone.

Its environments end every `episode_steps` steps, even ones by terminating and odd ones by truncation.
"""

from __future__ import annotations

import queue
from typing import Any

import grpc
import numpy as np

from zerocopy_seed.remote import bridge_pb2, bridge_pb2_grpc


def play(
    address: str, *, num_environments: int = 2, num_steps: int = 20, episode_steps: int = 5
) -> list[tuple[list[int], np.ndarray]]:
    """Joins the run at `address`, steps every environment `num_steps` times, says goodbye.

    Returns:
      Of every answer: the environments that it was about, and their actions.

    Raises:
      grpc.RpcError: the learner refused or broke off.
    """
    options = [("grpc.max_receive_message_length", -1), ("grpc.enable_http_proxy", 0)]
    with grpc.insecure_channel(address, options=options) as channel:
        stub: Any = bridge_pb2_grpc.BridgeStub(channel)
        run = stub.Describe(bridge_pb2.DescribeRequest(version=1, software="protocol_client"), timeout=60)
        session = stub.Join(
            bridge_pb2.JoinRequest(
                version=1,
                software="protocol_client",
                run_id=run.run_id,
                spec=run.spec,
                num_environments=num_environments,
            ),
            timeout=60,
        )
        assert len(session.slots) == len(session.seeds) == num_environments
        outbox: queue.SimpleQueue = queue.SimpleQueue()
        answers = stub.Step(iter(outbox.get, None), metadata=(("session", session.id),))
        generator = np.random.default_rng(list(session.seeds))
        every = np.arange(num_environments, dtype=np.int32)
        halves = [
            half for half in (every[: num_environments // 2], every[num_environments // 2 :]) if len(half)
        ]
        age = np.zeros(num_environments, np.int64)
        left = np.full(num_environments, num_steps)
        waiting: dict[int, np.ndarray] = {}
        received: list[tuple[list[int], np.ndarray]] = []
        for request, half in enumerate(halves, 1):
            waiting[request] = half
            outbox.put(_observe(run.spec, request, half, age[half], episode_steps, generator))
        request = len(halves)
        while waiting:
            answer = next(answers)
            assert not answer.goodbye
            environments = waiting.pop(answer.request)
            received.append((environments.tolist(), _actions(run.spec, answer, len(environments))))
            age[environments] = (age[environments] + 1) % (episode_steps + 1)
            left[environments] -= 1
            if left[environments[0]]:
                request += 1
                waiting[request] = environments
                outbox.put(
                    _observe(run.spec, request, environments, age[environments], episode_steps, generator)
                )
        outbox.put(bridge_pb2.Observations(goodbye=True))
        outbox.put(None)
        assert list(answers) == []
        return received


def _observe(spec, request, environments, age, episode_steps, generator) -> bridge_pb2.Observations:
    ends = age == episode_steps
    step_type = np.where(age == 0, 0, np.where(ends, 2, 1))
    terminates = ends & (environments % 2 == 0)
    arrays = []
    for array in spec.observation:
        shape = (len(environments), *array.shape)
        arrays.append(generator.integers(0, 2, shape).astype(array.dtype).tobytes())
    return bridge_pb2.Observations(
        request=request,
        environment=environments.astype("<i4").tobytes(),
        step_type=step_type.astype("i1").tobytes(),
        reward=np.where(age == 0, 0, 1).astype("<f4").tobytes(),
        discount=np.where(terminates, 0, 1).astype("<f4").tobytes(),
        observation=arrays,
    )


def _actions(spec, answer, num_rows: int) -> np.ndarray:
    kind = spec.WhichOneof("action")
    if kind == "bounded":
        actions = np.frombuffer(answer.action, "<f4").reshape(num_rows, *spec.bounded.shape)
        assert (np.abs(actions) <= 1).all()
        return actions
    if kind == "discrete":
        actions = np.frombuffer(answer.action, "<i4").reshape(num_rows)
        sizes = spec.discrete.num_values
    else:
        actions = np.frombuffer(answer.action, "<i4").reshape(num_rows, -1)
        sizes = np.array(spec.multi_discrete.num_values)
    assert (actions >= 0).all() and (actions < sizes).all()
    return actions
