import dataclasses

import numpy as np
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_envs.trees import named_leaves
from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)
from zerocopy_seed.remote import bridge_pb2
from zerocopy_seed.remote.errors import ProtocolError
from zerocopy_seed.remote.specs import first_difference, spec_from_message, spec_to_message

PICTURE = ArraySpec((84, 84), np.uint8, 0, 255)
NESTED = {
    "camera": (PICTURE, ArraySpec((3,), np.float32)),
    "action_mask": ArraySpec((4,), np.bool_),
    "a.b": ArraySpec((), np.int32, maximum=7.5),
    "a": {"": ArraySpec((2,), np.float16), '"[0]': ArraySpec((), np.int8)},
    **{f"part{i}": ArraySpec((i,), np.int8) for i in range(12)},
}


@pytest.mark.parametrize(
    "spec",
    [
        EnvironmentSpec(PICTURE, DiscreteAction(18), 27_000, 4),
        EnvironmentSpec(NESTED, MultiDiscreteAction((2, 11))),
        EnvironmentSpec(tuple(ArraySpec((), np.int8) for _ in range(12)), BoundedAction((3, 2))),
        EnvironmentSpec((), DiscreteAction(1)),
    ],
)
def test_specs_survive_the_way_there_and_back_with_the_order_of_their_arrays(spec):
    message = spec_to_message(spec)
    again = spec_from_message(bridge_pb2.Spec.FromString(message.SerializeToString()))
    assert again == spec
    assert [array.path for array in message.observation] == [p for p, _ in named_leaves(again.observation)]


def test_dictionaries_travel_in_the_order_of_their_keys():
    spec = EnvironmentSpec({"b": PICTURE, "a": PICTURE, "c": (PICTURE, PICTURE)}, DiscreteAction(2))
    paths = [array.path for array in spec_to_message(spec).observation]
    assert paths == ["observation.a", "observation.b", "observation.c[0]", "observation.c[1]"]


def test_what_the_protocol_cannot_say_is_refused_where_it_is_made():
    with pytest.raises(UserError, match="complex64"):
        spec_to_message(EnvironmentSpec(ArraySpec((), np.complex64), DiscreteAction(2)))
    with pytest.raises(UserError, match="spec.observation: expected keys that are strings, found 3"):
        spec_to_message(EnvironmentSpec({3: PICTURE}, DiscreteAction(2)))


@pytest.mark.parametrize(
    ("paths", "field"),
    [
        (["observation", "observation"], "'observation' twice"),
        (["observation", "observation.a"], "both"),
        (["observation[0]", "observation[2]"], "indices from 0"),
        (["observation[0]", "observation.a"], "indices from 0"),
        (["observation.a.", 'observation["a'], "'observation[\"a'"),
        (["picture"], "'picture'"),
        (['observation["\\x"]'], "quoted"),
        (["observation[00]"], "observation[00]"),
        (["observation" + ".a" * 20_000], "at most 1000 characters"),
        (["observation[" + "9" * 5_000 + "]"], "at most 1000 characters"),
    ],
)
def test_paths_that_make_no_tree_are_refused(paths, field):
    message = spec_to_message(EnvironmentSpec((), DiscreteAction(2)))
    for path in paths:
        message.observation.add(path=path, dtype="uint8")
    with pytest.raises(ProtocolError) as caught:
        spec_from_message(message)
    assert field in str(caught.value) and "\n" not in str(caught.value)


def test_dtypes_and_actions_that_are_none_are_refused():
    for dtype in ("object", ">f4", "U3", ""):
        with pytest.raises(ProtocolError, match="dtype"):
            array = bridge_pb2.Array(path="observation", dtype=dtype)
            spec_from_message(bridge_pb2.Spec(observation=[array], discrete={"num_values": 2}))
    nothing = [
        bridge_pb2.Spec(),
        bridge_pb2.Spec(discrete=bridge_pb2.Discrete()),
        bridge_pb2.Spec(multi_discrete=bridge_pb2.MultiDiscrete()),
        bridge_pb2.Spec(bounded=bridge_pb2.Bounded(shape=[3, 0])),
    ]
    for message in nothing:
        message.observation.add(path="observation", dtype="uint8")
        with pytest.raises(ProtocolError, match="spec.action"):
            spec_from_message(message)


def test_the_first_difference_is_named():
    spec = EnvironmentSpec({"a": PICTURE, "b": ArraySpec((3,), np.float32)}, DiscreteAction(3), 10)
    bounds = {"a": ArraySpec((84, 84), np.uint8), "b": ArraySpec((3,), np.float32, -1, 1)}
    assert first_difference(spec, EnvironmentSpec(bounds, DiscreteAction(3), None, 4)) is None
    stacked = EnvironmentSpec({**bounds, "a": ArraySpec((84, 84, 4), np.uint8)}, DiscreteAction(3))
    assert first_difference(spec, stacked) == ("observation.a", "uint8[84, 84]", "uint8[84, 84, 4]")
    wider = EnvironmentSpec({**bounds, "b": ArraySpec((3,), np.int32)}, DiscreteAction(3))
    assert first_difference(spec, wider) == ("observation.b", "float32[3]", "int32[3]")
    fewer = EnvironmentSpec({"a": PICTURE}, DiscreteAction(3))
    assert first_difference(spec, fewer) == (
        "observation", "observation.a, observation.b", "observation.a"
    )  # fmt: skip
    other = dataclasses.replace(spec, action=DiscreteAction(4))
    assert first_difference(spec, other) == (
        "action", "DiscreteAction(num_values=3)", "DiscreteAction(num_values=4)"
    )  # fmt: skip
