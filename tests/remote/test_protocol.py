"""docs/protocol.md says what is so."""

import pathlib
import re

import grpc
import numpy as np
import protocol_client
import pytest
from echo_server import EchoServer

from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    TimeStep,
)
from zerocopy_seed.remote import codec
from zerocopy_seed.remote.wire_format import make_wire_format

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "protocol.md"


def test_the_bytes_of_the_page():
    blocks = re.findall(r"\n\n((?:    (?:[0-9a-f]{2} )+.*\n)+)", PAGE.read_text())
    observations, actions = (
        bytes.fromhex("".join(re.findall("^    ((?:[0-9a-f]{2} )+)", block, re.MULTILINE)))
        for block in blocks
    )
    wire = make_wire_format(EnvironmentSpec(ArraySpec((3,), np.uint8), DiscreteAction(4)))
    timestep = TimeStep(
        np.array([1, 2], np.int8),
        np.array([0, 1], np.float32),
        np.array([1, 0], np.float32),
        np.array([[1, 2, 3], [4, 5, 6]], np.uint8),
    )
    environment = np.array([0, 1], np.int32)
    assert codec.encode_observations(wire, 300, environment, timestep) == observations
    assert codec.encode_actions(wire, 300, np.array([3, 0], np.int32)) == actions
    assert "`38 01`" in PAGE.read_text() and codec.OBSERVATIONS_GOODBYE == b"\x38\x01"  # noqa: SIM300
    assert "`18 01`" in PAGE.read_text() and codec.ACTIONS_GOODBYE == b"\x18\x01"  # noqa: SIM300


@pytest.mark.parametrize("action", [DiscreteAction(3), MultiDiscreteAction((2, 3)), BoundedAction((2,))])
def test_an_actor_after_the_page(action):
    observation = {"mask": ArraySpec((3,), np.bool_), "picture": ArraySpec((4, 4), np.uint8)}
    spec = EnvironmentSpec(observation, action)
    with EchoServer(spec) as server:
        received = protocol_client.play(server.address, num_environments=3, num_steps=12)
    assert len(received) == 24 and server.goodbyes == [True]
    wire = make_wire_format(spec)
    for message in server.messages[0]:
        codec.decode_observations(wire, message.SerializeToString(), 3)


def test_an_actor_after_the_page_sees_refusals():
    refusal = (grpc.StatusCode.FAILED_PRECONDITION, "run_id: expected a, found b")
    spec = EnvironmentSpec(ArraySpec((), np.float32), DiscreteAction(2))
    with EchoServer(spec, refuse={"Join": refusal}) as server, pytest.raises(grpc.RpcError) as caught:
        protocol_client.play(server.address)
    assert refusal[1] in str(caught.value)
