"""Step messages: equal to the generated code's, and nothing wrong gets through."""

import dataclasses

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

from zerocopy_envs.trees import leaves, map_leaves
from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
    TimeStep,
)
from zerocopy_seed.remote import bridge_pb2, codec
from zerocopy_seed.remote.errors import ProtocolError
from zerocopy_seed.remote.usual import make_usual
from zerocopy_seed.remote.wire_format import make_wire_format, varint

SPECS = {
    "pictures": EnvironmentSpec(ArraySpec((84, 84), np.uint8), DiscreteAction(18)),
    "vector": EnvironmentSpec(ArraySpec((4,), np.float32), BoundedAction((3, 2))),
    "scalar": EnvironmentSpec(ArraySpec((), np.int32), BoundedAction(())),
    "dict": EnvironmentSpec(
        {
            "z": ArraySpec((2, 3), np.float16),
            "action_mask": ArraySpec((13,), np.bool_),
            "empty": ArraySpec((0, 5), np.float64),
        },
        MultiDiscreteAction((2, 11)),
    ),
    "tuple": EnvironmentSpec(
        (ArraySpec((130,), np.int8), (ArraySpec((), np.bool_), ArraySpec((1,), np.int64))), DiscreteAction(2)
    ),
    "nothing": EnvironmentSpec((), DiscreteAction(2)),
}
WIRES = {name: make_wire_format(spec) for name, spec in SPECS.items()}
NUM_ENVIRONMENTS = 40
requests = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))


@st.composite
def steps(draw):
    """(name, request, environment, timestep) with any contents."""
    name = draw(st.sampled_from(list(SPECS)))
    num_rows = draw(st.sampled_from([1, 2, 3, 31, 32, NUM_ENVIRONMENTS]))
    if draw(st.booleans()):
        begin = draw(st.integers(0, NUM_ENVIRONMENTS - num_rows))
        environment = np.arange(begin, begin + num_rows, dtype=np.int32)
    else:
        order = np.random.default_rng(draw(st.integers(0, 9))).permutation(NUM_ENVIRONMENTS)
        environment = order[:num_rows].astype(np.int32)

    def array(dtype, shape=(), elements=None):
        return draw(hnp.arrays(dtype, (num_rows, *shape), elements=elements, fill=elements))

    def bits(leaf):
        generator = np.random.default_rng(draw(st.integers(0, 9)))
        most = 2 if leaf.dtype == np.bool_ else 256
        size = num_rows * int(np.prod(leaf.shape)) * leaf.dtype.itemsize
        return generator.integers(0, most, size, np.uint8).view(leaf.dtype).reshape(num_rows, *leaf.shape)

    timestep = TimeStep(
        array(np.int8, elements=st.integers(0, 2)),
        array(np.float32, elements=st.floats(width=32)),
        array(np.float32, elements=st.sampled_from([0.0, 1.0, 0.5, -0.0])),
        map_leaves(bits, SPECS[name].observation),
    )
    return name, draw(requests), environment, timestep


def message_of(request, environment, timestep) -> bridge_pb2.Observations:
    return bridge_pb2.Observations(
        request=request,
        environment=environment.tobytes(),
        step_type=timestep.step_type.tobytes(),
        reward=timestep.reward.tobytes(),
        discount=timestep.discount.tobytes(),
        observation=[leaf.tobytes() for leaf in leaves(timestep.observation)],
    )


def assert_equal(found: codec.Observations, request, environment, timestep):
    assert (found.request, found.goodbye) == (request, False)
    assert found.environment == environment.tobytes()
    assert found.is_usual == bool((timestep.step_type == 1).all() and (timestep.discount == 1).all())
    wanted = [*timestep[:3], *leaves(timestep.observation)]
    for array, there in zip(wanted, [*found[2:5], *found.leaves], strict=True):
        assert (there.dtype, there.shape) == (array.dtype, array.shape)
        assert there.tobytes() == array.tobytes()
        assert not there.flags.writeable


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(steps())
def test_observations_are_those_of_the_generated_code_and_come_back(step):
    name, request, environment, timestep = step
    message = message_of(request, environment, timestep)
    data = codec.encode_observations(WIRES[name], request, environment, timestep)
    assert data == message.SerializeToString()
    in_wire_order = timestep._replace(observation=tuple(leaves(timestep.observation)))
    assert data == codec.encode_observations(WIRES[name], request, environment, in_wire_order)
    assert_equal(
        codec.decode_observations(WIRES[name], data, NUM_ENVIRONMENTS), request, environment, timestep
    )


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(steps(), st.randoms(use_true_random=False))
def test_any_legal_encoding_is_read(step, random):
    """Fields in another order, repeated ones that are overwritten, unknown ones, an overlong number."""
    name, request, environment, timestep = step
    message = message_of(request, environment, timestep)
    fields = []
    for descriptor in bridge_pb2.Observations.DESCRIPTOR.fields:
        if descriptor.name == "observation":
            part = bridge_pb2.Observations(observation=message.observation)
        else:
            part = bridge_pb2.Observations(**{descriptor.name: getattr(message, descriptor.name)})
        fields.append(part.SerializeToString())
    fields[0] = b"\x08\x81\x00\x08" + varint(request)
    fields += [b"\xa2\x06\x03abc", b"\x38\x00"]
    random.shuffle(fields)
    found = codec.decode_observations(WIRES[name], b"".join(fields), NUM_ENVIRONMENTS)
    assert_equal(found, request, environment, timestep)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(st.sampled_from(list(SPECS)), requests, st.integers(0, 70), st.integers(0, 9))
def test_actions_are_those_of_the_generated_code_and_come_back(name, request, num_rows, seed):
    wire = WIRES[name]
    shape = (num_rows, *wire.action_shape)
    action = np.random.default_rng(seed).integers(-9, 9, shape).astype(wire.action_dtype)
    data = codec.encode_actions(wire, request, action)
    assert data == bridge_pb2.Actions(request=request, action=action.tobytes()).SerializeToString()
    backwards = b"\x12" + varint(action.nbytes) + action.tobytes() + b"\x08" + varint(request)
    for encoded in (data, backwards):
        found = codec.decode_actions(wire, encoded, num_rows)
        assert (found.request, found.goodbye) == (request, False)
        assert found.action.dtype == action.dtype and np.array_equal(found.action, action)
        assert not found.action.flags.writeable


def test_goodbyes_are_those_of_the_generated_code():
    wire = WIRES["dict"]
    assert bridge_pb2.Observations(goodbye=True).SerializeToString() == codec.OBSERVATIONS_GOODBYE
    assert bridge_pb2.Actions(goodbye=True).SerializeToString() == codec.ACTIONS_GOODBYE
    assert codec.decode_observations(wire, codec.OBSERVATIONS_GOODBYE, 3).goodbye
    assert codec.decode_actions(wire, codec.ACTIONS_GOODBYE, 3).goodbye


def test_what_is_read_are_views_of_the_message():
    wire = WIRES["pictures"]
    data = codec.encode_observations(wire, 7, *step_of("pictures", 2))
    found = codec.decode_observations(wire, data, 2)
    assert all(array.base is data for array in (found.reward, *found.leaves))
    reply = codec.encode_actions(wire, 7, np.zeros(2, np.int32))
    assert codec.decode_actions(wire, reply, 2).action.base is reply


def test_rewards_may_be_nan_and_arrays_need_not_be_contiguous():
    wire = WIRES["vector"]
    environment, timestep = step_of("vector", 3)
    timestep = timestep._replace(
        reward=np.array([np.nan, -np.inf, 0, 9], np.float32)[::-1][1:][::-1][:3],
        observation=np.arange(24, dtype=np.float32).reshape(3, 8)[:, ::2],
    )
    data = codec.encode_observations(wire, 1, environment, timestep)
    found = codec.decode_observations(wire, data, 3)
    assert np.array_equal(found.reward, timestep.reward, equal_nan=True)
    assert np.array_equal(found.leaves[0], timestep.observation)


def step_of(name, num_rows) -> tuple[np.ndarray, TimeStep]:
    observation = map_leaves(
        lambda leaf: np.zeros((num_rows, *leaf.shape), leaf.dtype), SPECS[name].observation
    )
    timestep = TimeStep(
        np.ones(num_rows, np.int8), np.zeros(num_rows, np.float32), np.ones(num_rows, np.float32), observation
    )
    return np.arange(num_rows, dtype=np.int32), timestep


def changed(name="dict", num_rows=3, **fields) -> bytes:
    message = message_of(1, *step_of(name, num_rows))
    for field, value in fields.items():
        if field == "observation":
            message.observation[:] = value
        else:
            setattr(message, field, value)
    return message.SerializeToString()


def floats(*values) -> bytes:
    return np.array(values, np.float32).tobytes()


def ints(*values) -> bytes:
    return np.array(values, np.int32).tobytes()


DICT_LEAVES = [leaf.tobytes() for leaf in leaves(step_of("dict", 3)[1].observation)]


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"", "environment: expected 4 bytes for each of 1 to 5 rows, found 0 bytes"),
        (changed(environment=ints(0, 1)), "step_type: expected int8[2] (2 bytes), found 3 bytes"),
        (changed(environment=ints(*range(6))), "rows, found 24 bytes"),
        (changed(environment=ints(0, 1, 2)[:-1]), "rows, found 11 bytes"),
        (changed(environment=ints(0, 1, 1)), "environment: expected each at most once, found 1 twice"),
        (changed(environment=ints(3, 4, 5)), "environment: expected 0 to 4, found 5"),
        (changed(environment=ints(-1, 0, 1)), "environment: expected 0 to 4, found -1"),
        (changed(environment=ints(2**31 - 1, 0, 1)), "environment: expected 0 to 4, found 2147483647"),
        (changed(step_type=b"\0\1\3"), "step_type: expected 0, 1 or 2, found 3"),
        (changed(step_type=b"\0\1\xff"), "step_type: expected 0, 1 or 2, found -1"),
        (changed(reward=floats(1, 2)), "reward: expected float32[3] (12 bytes), found 8 bytes"),
        (changed(discount=floats(1, 2, 1)), "discount: expected 0 to 1, found 2.0"),
        (changed(discount=floats(1, -0.5, 1)), "discount: expected 0 to 1, found -0.5"),
        (changed(discount=floats(1, np.nan, 1)), "discount: expected 0 to 1, found nan"),
        (changed(observation=DICT_LEAVES[:2]), "observation: expected 3 arrays, found 2"),
        (changed(observation=[*DICT_LEAVES, b""]), "observation: expected 3 arrays, found 4"),
        (
            changed(observation=[DICT_LEAVES[0][:-1], *DICT_LEAVES[1:]]),
            "observation.action_mask: expected bool[3, 13] (39 bytes), found 38 bytes",
        ),
        (changed(observation=[b"\2" * 39, *DICT_LEAVES[1:]]), "action_mask: expected bytes 0 or 1, found 2"),
        (changed()[:-1], "Observations: expected a message"),
        (b"\x08" + b"\xff" * 11, "Observations: expected a message"),
        (b"\x08\xff", "Observations: expected a message"),
        (b"\x08\x01\x12\xff\xff\xff\xff\x0f", "Observations: expected a message"),
        (b"\x08\x01\x12\xff\xff\xff\xff\xff\xff\xff\x7f" + bytes(8), "Observations: expected a message"),
        (b"\xff" * 64, "Observations: expected a message"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(data, line):
    with pytest.raises(ProtocolError) as caught:
        codec.decode_observations(WIRES["dict"], data, 5)
    assert line in str(caught.value) and "\n" not in str(caught.value)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(steps(), st.integers(0, 2))
def test_the_usual_message_and_no_other_is_known_by_its_bytes(step, num_wrong):
    name, number, environment, timestep = step
    usual = make_usual(WIRES[name], environment.tobytes())
    ones = np.ones(len(environment), np.float32)
    timestep = timestep._replace(step_type=ones.astype(np.int8), discount=ones)
    timestep.step_type[: num_wrong == 1] = 2
    if num_wrong == 2:
        environment = environment[::-1]
    data = codec.encode_observations(WIRES[name], number, environment, timestep)
    read_number, begin = codec.read_request(data)
    found = usual.read(data, begin)
    is_left_to_the_parser = number >= 2**63  # of ten bytes
    if num_wrong == 1 or (num_wrong == 2 and len(environment) > 1) or is_left_to_the_parser:
        assert found is None
        return
    assert found is not None
    reward, observation = found
    message = codec.Observations(
        read_number, environment.tobytes(), usual.step_type, reward, usual.discount, observation, True
    )
    assert_equal(message, number, environment, timestep)
    assert usual.read(data[:-1], begin) is usual.read(data + b"\0", begin) is None


def test_a_usual_message_with_bools_that_are_none_is_refused():
    environment = np.arange(3, dtype="<i4").tobytes()
    usual = make_usual(WIRES["dict"], environment)
    data = changed(step_type=b"\1" * 3, discount=floats(1, 1, 1), observation=[b"\2" * 39, *DICT_LEAVES[1:]])
    with pytest.raises(ProtocolError, match="action_mask: expected bytes 0 or 1, found 2"):
        usual.read(data, codec.read_request(data)[1])


@hypothesis.settings(deadline=None, max_examples=80)
@hypothesis.given(st.data())
def test_damaged_messages_are_read_or_refused_never_anything_else(data):
    whole = changed(name=data.draw(st.sampled_from(["dict", "scalar"])))
    damaged = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(damaged[: data.draw(st.integers(0, len(damaged)))])
    for name, wire in WIRES.items():
        try:
            found = codec.decode_observations(wire, damaged, 5)
        except ProtocolError:
            continue
        if not found.goodbye:
            assert 0 < len(found.environment) // 4 <= 5, name


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (codec.encode_actions(WIRES["pictures"], 1, np.zeros(2, np.int32)), "action: expected int32[3]"),
        (b"", "action: expected int32[3] (12 bytes), found 0 bytes"),
        (b"\x12\x0cabc", "Actions: expected a message"),
    ],
)
def test_answers_that_do_not_fit_are_refused(data, line):
    with pytest.raises(ProtocolError) as caught:
        codec.decode_actions(WIRES["pictures"], data, 3)
    assert line in str(caught.value)


def test_what_would_be_written_wrong_is_refused():
    wire = WIRES["vector"]
    environment, timestep = step_of("vector", 3)
    wrong = {
        "reward": np.zeros(3),
        "step_type": np.zeros(2, np.int8),
        "observation": np.zeros((3, 5), np.float32),
    }
    for field, array in wrong.items():
        with pytest.raises(ProtocolError, match=field):
            codec.encode_observations(wire, 0, environment, timestep._replace(**{field: array}))
    with pytest.raises(ProtocolError, match="found 2 arrays"):
        codec.encode_observations(wire, 0, environment, timestep._replace(observation=(environment,) * 2))
    with pytest.raises(ProtocolError, match=r"action: expected float32\[3, 3, 2\], found int64\[3\]"):
        codec.encode_actions(wire, 0, np.zeros(3, np.int64))


def test_sizes_follow_from_the_spec():
    wire = WIRES["dict"]
    assert wire.observation_bytes == 12 + 13
    assert wire.row_bytes == 25 + 4 + 1 + 4 + 4
    assert wire.action_bytes == 8
    for num_rows in (1, 100, 10_000):
        environment, timestep = step_of("dict", num_rows)
        size = len(codec.encode_observations(wire, 2**64 - 1, environment, timestep))
        assert size <= wire.max_message_bytes(num_rows) < size + 100
    assert dataclasses.replace(wire) == wire
