import dataclasses
import re
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

import zerocopy_seed.networks
from zerocopy_envs.errors import UserError
from zerocopy_envs.types import (
    ArraySpec,
    BoundedAction,
    DiscreteAction,
    EnvironmentSpec,
    MultiDiscreteAction,
)
from zerocopy_seed.config import NetworkConfig
from zerocopy_seed.networks import NetworkInput, NetworkOutput, make_network
from zerocopy_seed.networks.conv import Conv
from zerocopy_seed.networks.core import GRU, LSTM
from zerocopy_seed.ops.collectives import local_copy

VECTOR = EnvironmentSpec(ArraySpec((4,), np.float32), DiscreteAction(3))
PICTURE = EnvironmentSpec(ArraySpec((10, 10, 4), np.bool_), DiscreteAction(6))
T, B = 6, 3


def make_key(seed=0):
    return jax.random.key(seed, impl="threefry2x32")


def make_inputs(observation, num_heads=None, first=None, last_action=None, reward=None):
    steps = jax.tree.leaves(observation)[0].shape[:2]
    heads = () if num_heads is None else (num_heads,)
    return NetworkInput(
        observation,
        jnp.full((*steps, *heads), -1, jnp.int32) if last_action is None else last_action,
        jnp.zeros(steps) if reward is None else reward,
        jnp.zeros(steps, bool) if first is None else first,
    )


def normal(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def init(network, inputs):
    """Variables of a network, drawn in numpy: compiling the real initialisers takes most of a test's time."""
    core = network.initial_core(inputs.first.shape[1])
    shapes = jax.eval_shape(network.init, make_key(), inputs, core)
    return fill(shapes), core


def fill(shapes, seed=0):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape) * 0.4, jnp.float32), shapes)


def test_the_default_network():
    network = make_network(NetworkConfig(), VECTOR)
    inputs = make_inputs(normal(T, B, 4))
    variables, core = init(network, inputs)
    output, next_core = jax.jit(network.apply)(variables, inputs, core)
    assert core == next_core == ()
    assert output.policy.shape == (T, B, 3) and output.value.shape == (T, B)
    assert output.policy.dtype == output.value.dtype == jnp.float32
    params = variables["params"]
    x = np.asarray(inputs.observation)
    for index in range(2):
        layer = params["torso"][f"dense_{index}"]
        x = np.tanh(x @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"]))
    heads = jax.tree.map(np.asarray, params["heads"])
    policy, value = (x @ heads[name]["kernel"] + heads[name]["bias"] for name in ("policy", "value"))
    np.testing.assert_allclose(output.policy, policy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(output.value, value[..., 0], rtol=1e-4, atol=1e-5)


def test_each_head_has_hidden_layers_of_its_own():
    config = NetworkConfig(hidden_sizes=(), head_hidden_sizes=(6, 5), activation="silu")
    network = make_network(config, VECTOR)
    inputs = make_inputs(normal(2, B, 4))
    variables, core = init(network, inputs)
    output, _ = network.apply(variables, inputs, core)
    heads = jax.tree.map(np.asarray, variables["params"]["heads"])
    for name, found in (("policy", output.policy), ("value", output.value[..., None])):
        x = np.asarray(inputs.observation)
        for layer in (heads[f"{name}_dense_0"], heads[f"{name}_dense_1"]):
            x = x @ layer["kernel"] + layer["bias"]
            x = x / (1 + np.exp(-x))
        expected = x @ heads[name]["kernel"] + heads[name]["bias"]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert len(heads) == 6


def test_initial_weights():
    # Few different shapes: each compiles a QR decomposition of its own.
    spec = EnvironmentSpec(ArraySpec((4,), np.float32), DiscreteAction(4))
    inputs = make_inputs(normal(T, B, 4))

    def initial_params(name, width):
        network = make_network(NetworkConfig(init=name, hidden_sizes=(width, width)), spec)
        return network.init(make_key(), inputs, ())["params"]

    params = initial_params("orthogonal", 4)
    singular = {
        "hidden": (params["torso"]["dense_1"]["kernel"], 2**0.5),
        "policy": (params["heads"]["policy"]["kernel"], 0.01),
        "value": (params["heads"]["value"]["kernel"], 1.0),
    }
    for kernel, scale in singular.values():
        np.testing.assert_allclose(np.linalg.svd(np.asarray(kernel), compute_uv=False), scale, rtol=1e-4)
    lecun = initial_params("lecun", 64)
    np.testing.assert_allclose(np.asarray(lecun["torso"]["dense_1"]["kernel"]).std(), 1 / 8, rtol=0.1)


def test_observations_of_every_kind_reach_the_torso():
    spec = EnvironmentSpec(
        {
            "b_pixels": ArraySpec((2, 2), np.uint8),
            "a_clock": ArraySpec((), np.int32),
            "c_flags": (ArraySpec((3,), np.bool_), ArraySpec((1,), np.float32)),
            "action_mask": ArraySpec((3,), np.bool_),
        },
        DiscreteAction(3),
    )
    observation = {
        "b_pixels": jnp.full((T, B, 2, 2), 255, jnp.uint8),
        "a_clock": jnp.full((T, B), 7, jnp.int32),
        "c_flags": (jnp.ones((T, B, 3), bool), jnp.full((T, B, 1), 0.5)),
        "action_mask": jnp.ones((T, B, 3), bool),
    }
    network = make_network(NetworkConfig(hidden_sizes=()), spec)
    inputs = make_inputs(observation)
    variables, core = init(network, inputs)
    output, _ = network.apply(variables, inputs, core)
    features = np.array([7, 1, 1, 1, 1, 1, 1, 1, 0.5], np.float32)
    head = jax.tree.map(np.asarray, variables["params"]["heads"]["value"])
    expected = (features @ head["kernel"] + head["bias"])[0]
    np.testing.assert_allclose(output.value, np.full((T, B), expected), rtol=1e-5)


def test_illegal_actions_are_masked():
    spec = EnvironmentSpec(
        {"x": ArraySpec((2,), np.float32), "action_mask": ArraySpec((5,), np.bool_)},
        MultiDiscreteAction((2, 3)),
    )
    network = make_network(NetworkConfig(hidden_sizes=(8,)), spec)
    mask = jnp.asarray(np.random.default_rng(0).random((T, B, 5)) < 0.5)
    inputs = make_inputs({"x": normal(T, B, 2), "action_mask": mask}, num_heads=2)
    variables, core = init(network, inputs)
    output, _ = network.apply(variables, inputs, core)
    np.testing.assert_array_equal(output.policy > -1e8, mask)


def test_last_action_and_reward_join_the_features():
    spec = EnvironmentSpec(ArraySpec((1,), np.float32), MultiDiscreteAction((2, 3)))
    network = make_network(NetworkConfig(hidden_sizes=(), use_last_action=True, use_last_reward=True), spec)
    last_action = jnp.array([[[1, 2], [-1, -1]]], jnp.int32)
    inputs = make_inputs(jnp.full((1, 2, 1), 3.0), last_action=last_action, reward=jnp.array([[-2.0, 0.0]]))
    variables, core = init(network, inputs)
    output, _ = network.apply(variables, inputs, core)
    features = np.array([[3, 0, 1, 0, 0, 1, -2], [3, 0, 0, 0, 0, 0, 0]], np.float32)
    head = jax.tree.map(np.asarray, variables["params"]["heads"]["value"])
    np.testing.assert_allclose(output.value[0], (features @ head["kernel"] + head["bias"])[:, 0], rtol=1e-5)


@pytest.mark.parametrize(
    "kernel_size, strides, padding",
    [
        ((3, 3), (1, 1), "VALID"),
        ((8, 8), (4, 4), "VALID"),
        ((4, 4), (2, 2), "VALID"),
        ((4, 3), (2, 1), "SAME"),
        ((3, 3), (2, 2), "SAME"),
    ],
)
def test_both_ways_of_convolving_agree(kernel_size, strides, padding):
    x = normal(2, 11, 14, 3)
    plain, lax = (Conv(5, kernel_size, strides, padding, method) for method in ("plain", "lax"))
    shapes = [jax.eval_shape(conv.init, make_key(), x) for conv in (plain, lax)]
    assert shapes[0] == shapes[1]
    variables = fill(shapes[0])
    weights = normal(*jax.eval_shape(lax.apply, variables, x).shape, seed=2)

    def results(conv):
        def loss(variables, x):
            y = conv.apply(variables, x)
            return jnp.sum(y * weights), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(variables, x)

    for a, b in zip(jax.tree.leaves(results(plain)), jax.tree.leaves(results(lax)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_minatar_network_agrees_both_ways():
    network = make_network(
        NetworkConfig(torso="minatar_conv", hidden_sizes=(32,), activation="relu"), PICTURE
    )
    picture = jnp.asarray(np.random.default_rng(0).random((2, B, 10, 10, 4)) < 0.3)
    inputs = make_inputs(picture)
    variables, core = init(network, inputs)
    params = variables["params"]["torso"]
    assert params["conv_0"]["kernel"].shape == (3, 3, 4, 16)
    assert params["dense_0"]["kernel"].shape == (8 * 8 * 16, 32)
    results = []
    for method in ("plain", "lax"):
        chosen = network.clone(torso=network.torso.clone(conv_method=method))
        loss = jax.jit(
            jax.value_and_grad(lambda v, n=chosen: jnp.sum(n.apply(v, inputs, core)[0].value ** 2))
        )
        results.append(loss(variables))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_the_nature_network_is_its_convolutions_one_after_another():
    spec = EnvironmentSpec(ArraySpec((40, 36), np.uint8), DiscreteAction(3))
    network = make_network(NetworkConfig(torso="nature_conv", hidden_sizes=(5,), frame_stack=2), spec)
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 256, (1, 2, 40, 36, 2), np.uint8)
    variables, _ = init(network, make_inputs(picture))
    variables = jax.tree.map(lambda x: 0.1 * x, variables)
    torso = variables["params"]["torso"]
    x = picture[0].astype(np.float32) / 255
    for name, stride in (("conv_0", 4), ("conv_0_1", 2), ("conv_0_2", 1)):
        layer = jax.tree.map(np.asarray, torso[name])
        size = len(layer["kernel"])
        windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), (1, 2))[:, ::stride, ::stride]
        x = np.tanh(np.einsum("nhwcij,ijcf->nhwf", windows, layer["kernel"]) + layer["bias"])
    assert x.shape == (2, 1, 1, 64) and torso["conv_0_1"]["kernel"].shape == (4, 4, 32, 64)
    features = jax.jit(network.torso.apply)({"params": torso}, picture[0])
    dense = jax.tree.map(np.asarray, torso["dense_0"])
    expected = np.tanh(x.reshape(2, -1) @ dense["kernel"] + dense["bias"])
    np.testing.assert_allclose(features, expected, rtol=1e-4, atol=1e-5)


def test_the_impala_network_is_its_sections_one_after_another():
    spec = EnvironmentSpec(ArraySpec((7, 6), np.uint8), DiscreteAction(3))
    config = NetworkConfig(torso="impala_resnet", torso_channels=(2,), hidden_sizes=(), activation="relu")
    network = make_network(dataclasses.replace(config, frame_stack=2), spec)
    picture = np.random.default_rng(0).integers(0, 256, (1, 2, 7, 6, 2), np.uint8)
    variables, _ = init(network, make_inputs(picture))
    section = jax.tree.map(np.asarray, variables["params"]["torso"]["conv_0_section_0"])

    def convolve(x, layer):
        x = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
        return np.einsum("nhwcij,ijcf->nhwf", windows, layer["kernel"]) + layer["bias"]

    x = convolve(picture[0].astype(np.float32) / 255, section["conv"])
    # SAME at steps of 2: 7 rows get one at both ends, 6 columns one at the end.
    x = np.pad(x, ((0, 0), (1, 1), (0, 1), (0, 0)), constant_values=-np.inf)
    x = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))[:, ::2, ::2].max((-1, -2))
    for block in range(2):
        inner = convolve(np.maximum(x, 0), section[f"block_{block}_conv_0"])
        x = x + convolve(np.maximum(inner, 0), section[f"block_{block}_conv_1"])
    assert x.shape == (2, 4, 3, 2)
    features = jax.jit(network.torso.apply)({"params": variables["params"]["torso"]}, picture[0])
    np.testing.assert_allclose(features, np.maximum(x, 0).reshape(2, -1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("torso", "channels", "num_params"),
    [
        # (C k k + 1) F a convolution, and the dense layer
        ("nature_conv", (), 8224 + 32832 + 36928 + 7 * 7 * 64 * 5 + 5),
        ("nature_conv", (4, 6), 4 * 257 + 6 * 65 + 9 * 9 * 6 * 5 + 5),
        ("impala_resnet", (), 592 + 4 * 2320 + 4640 + 4 * 9248 + 5 * 9248 + 11 * 11 * 32 * 5 + 5),
        ("impala_resnet", (2,), 74 + 4 * 38 + 42 * 42 * 2 * 5 + 5),
    ],
)
def test_channels_of_a_torso(torso, channels, num_params):
    spec = EnvironmentSpec(ArraySpec((84, 84), np.uint8), DiscreteAction(3))
    config = NetworkConfig(torso=torso, torso_channels=channels, hidden_sizes=(5,), frame_stack=4)
    network = make_network(config, spec)
    picture = jax.ShapeDtypeStruct((1, 84, 84, 4), np.uint8)
    variables = jax.eval_shape(network.torso.init, make_key(), picture)
    assert sum(leaf.size for leaf in jax.tree.leaves(variables)) == num_params


@pytest.mark.parametrize(
    ("torso", "channels", "message"),
    [
        ("mlp", (8,), "torso_channels: expected none, found 1 and network.torso mlp"),
        (
            "minatar_conv",
            (8, 8),
            "torso_channels: expected at most 1 for network.torso minatar_conv, found 2",
        ),
    ],
)
def test_channels_that_a_torso_has_not(torso, channels, message):
    with pytest.raises(UserError, match=message):
        make_network(NetworkConfig(torso=torso, torso_channels=channels), PICTURE)


def test_pictures_and_vectors_together():
    spec = EnvironmentSpec(
        {"screen": ArraySpec((6, 5), np.uint8), "speed": ArraySpec((2,), np.float32)}, DiscreteAction(2)
    )
    network = make_network(NetworkConfig(torso="minatar_conv", hidden_sizes=(8,), frame_stack=3), spec)
    observation = {"screen": jnp.ones((T, B, 6, 5, 3), jnp.uint8), "speed": normal(T, B, 6)}
    variables, _ = init(network, make_inputs(observation))
    assert variables["params"]["torso"]["conv_0"]["kernel"].shape == (3, 3, 3, 16)
    assert variables["params"]["torso"]["dense_0"]["kernel"].shape == (4 * 3 * 16 + 6, 8)


def flax_variables(core, params):
    """Our kernels as flax names them: one block of columns a gate."""
    gates = {"lstm": "ifgo", "gru": "rzn"}[core]
    flat = {}
    for index, gate in enumerate(gates):
        columns = slice(index * 7, (index + 1) * 7)
        ours = {"kernel": params["input"]["kernel"][:, columns]}
        theirs = {"kernel": params["recurrent"][:, columns]}
        (theirs if core == "lstm" else ours)["bias"] = params["input"]["bias"][columns]
        if (core, gate) == ("gru", "n"):
            theirs["bias"] = jnp.zeros(7)
        flat["i" + gate], flat["h" + gate] = ours, theirs
    return {"params": flat}


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_cores_agree_with_flax(core):
    ours = {"lstm": LSTM, "gru": GRU}[core](7, nn.initializers.lecun_normal())
    theirs = nn.RNN({"lstm": nn.LSTMCell, "gru": nn.GRUCell}[core](7), time_major=True, return_carry=True)
    x, first = normal(T, B, 5), jnp.zeros((T, B), bool)
    carry = jax.tree.map(lambda c: normal(*c.shape, seed=3), ours.initial_carry(B))
    variables = fill(jax.eval_shape(ours.init, make_key(), x, first, carry))
    outputs, last = jax.jit(ours.apply)(variables, x, first, carry)
    cell = flax_variables(core, variables["params"])
    apply = jax.jit(lambda v, x, carry: theirs.apply(v, x, initial_carry=carry))
    expected_last, expected = apply({"params": {"cell": cell["params"]}}, x, carry)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-5)
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(expected_last), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_gradients_are_those_of_steps_one_by_one(core):
    core = {"lstm": LSTM, "gru": GRU}[core](7, nn.initializers.lecun_normal())
    x, first = (
        normal(T, B, 5),
        jnp.zeros((T, B), bool).at[0, 1].set(True).at[3, 0].set(True).at[5, 2].set(True),
    )
    carry = jax.tree.map(lambda c: normal(*c.shape, seed=3), core.initial_carry(B))
    variables = fill(jax.eval_shape(core.init, make_key(), x, first, carry))
    weights = normal(T, B, 7, seed=4)

    def whole(variables, x, carry):
        return core.apply(variables, x, first, carry)

    def one_by_one(variables, x, carry):
        # A single step is differentiated as it stands.
        def step(carry, row):
            output, carry = core.apply(variables, row[0][None], row[1][None], carry)
            return carry, output[0]

        carry, outputs = jax.lax.scan(step, carry, (x, first))
        return outputs, carry

    def gradients(unroll):
        def loss(*arguments):
            outputs, carry = unroll(*arguments)
            return jnp.sum(outputs * weights) + sum(jnp.sum(c**2) for c in jax.tree.leaves(carry))

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(variables, x, carry)

    for a, b in zip(*map(jax.tree.leaves, (gradients(whole), gradients(one_by_one))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("core", ["lstm", "gru"])
def test_the_core_is_reset_in_the_middle_of_a_sequence(core):
    network = make_network(NetworkConfig(hidden_sizes=(8,), core=core, core_size=8), VECTOR)
    first = jnp.zeros((T, B), bool).at[3, 0].set(True)
    inputs = make_inputs(normal(T, B, 4), first=first)
    variables, core_state = init(network, inputs)
    core_state = jax.tree.map(lambda c: normal(*c.shape, seed=5), core_state)
    apply = jax.jit(network.apply)
    whole, last = apply(variables, inputs, core_state)
    tail = jax.tree.map(lambda x: x[3:], inputs)._replace(first=jnp.zeros((3, B), bool))
    fresh, fresh_last = apply(variables, tail, network.initial_core(B))
    np.testing.assert_allclose(whole.value[3:, 0], fresh.value[:, 0], rtol=1e-5, atol=1e-6)
    assert np.abs(whole.value[3:, 1] - fresh.value[:, 1]).min() > 1e-4
    for a, b in zip(jax.tree.leaves(last), jax.tree.leaves(fresh_last), strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-5, atol=1e-6)

    def value_after_the_reset(core_state):
        return apply(variables, inputs, core_state)[0].value[3:, 0].sum()

    for gradient in jax.tree.leaves(jax.grad(value_after_the_reset)(core_state)):
        np.testing.assert_array_equal(gradient, 0)


def test_one_step_needs_no_scan():
    network = make_network(NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=8), VECTOR)
    inputs = make_inputs(normal(1, B, 4))
    variables, core = init(network, inputs)
    assert "scan" not in str(jax.make_jaxpr(network.apply)(variables, inputs, core))
    two = make_inputs(normal(2, B, 4))
    assert "scan" in str(jax.make_jaxpr(network.apply)(variables, two, core))


@pytest.mark.parametrize("core", ["none", pytest.param("lstm", marks=pytest.mark.slow)])
def test_networks_run_under_vmap_over_seeds_and_in_shard_map(core):
    config = NetworkConfig(hidden_sizes=(8,), core=core, core_size=8, use_last_action=True)
    network = make_network(config, VECTOR)
    inputs = make_inputs(normal(T, 4, 4), first=jnp.zeros((T, 4), bool).at[2, 1].set(True))
    variables, _ = init(network, inputs)

    def loss(variables, inputs):
        output, _ = network.apply(variables, inputs, network.initial_core(inputs.first.shape[1]))
        return jnp.sum(output.value**2) + jnp.sum(output.policy[..., 0])

    expected = jax.jit(jax.grad(loss))(variables, inputs)
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    along_batch = jax.tree.map(lambda _: PartitionSpec(None, "data"), inputs)
    sharded = jax.jit(
        jax.shard_map(
            jax.grad(loss), mesh=mesh, in_specs=(PartitionSpec(), along_batch), out_specs=PartitionSpec()
        )
    )(variables, inputs)
    # With copies of its own each device's gradients are local, and summed by hand.
    own = jax.jit(
        jax.shard_map(
            lambda v, i: jax.lax.psum(jax.grad(loss)(local_copy(v, "data"), i), "data"),
            mesh=mesh,
            in_specs=(PartitionSpec(), along_batch),
            out_specs=PartitionSpec(),
        )
    )(variables, inputs)
    both = jax.tree.map(lambda a, b: jnp.stack([a, b]), variables, fill(variables, seed=1))
    stacked = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(both, inputs)
    for a, b, c, d in zip(*map(jax.tree.leaves, (expected, sharded, own, stacked)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a, c, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(a, d[0], rtol=1e-4, atol=1e-5)


def test_heads_of_another_agent_fit_in():
    class Heads(nn.Module):
        num_policy_params: int
        scaled_init: object
        hidden_sizes: tuple
        activation: object

        @nn.compact
        def __call__(self, features, mask):
            return nn.Dense(self.num_policy_params)(features)

    network = make_network(NetworkConfig(), VECTOR, heads=Heads)
    inputs = make_inputs(normal(T, B, 4))
    variables, core = init(network, inputs)
    assert network.apply(variables, inputs, core)[0].shape == (T, B, 3)


def test_specs_that_do_not_fit_are_refused():
    conv = NetworkConfig(torso="minatar_conv")
    with pytest.raises(UserError, match=r"minatar_conv.*observation \(4,\).*mlp"):
        make_network(conv, VECTOR)
    small = EnvironmentSpec({"eye": ArraySpec((2, 9, 1), np.float32)}, DiscreteAction(2))
    with pytest.raises(UserError, match=r"3 x 3.*observation\['eye'\] \(2, 9, 1\)"):
        make_network(conv, small)
    narrow = EnvironmentSpec(ArraySpec((84, 35, 1), np.uint8), DiscreteAction(2))
    with pytest.raises(UserError, match=r"nature_conv.*36 x 36.*\(84, 35, 1\)"):
        make_network(NetworkConfig(torso="nature_conv"), narrow)
    mask = {"x": VECTOR.observation, "action_mask": ArraySpec((2,), np.bool_)}
    with pytest.raises(UserError, match=r"action_mask.*\(3,\).*\(2,\)"):
        make_network(NetworkConfig(), EnvironmentSpec(mask, DiscreteAction(3)))
    with pytest.raises(UserError, match=r"action_mask.*none with bounded actions"):
        make_network(NetworkConfig(), EnvironmentSpec(mask, BoundedAction((1,))))


@pytest.mark.parametrize("scale", ["independent", "state"])
def test_bounded_actions_have_means_and_deviations(scale):
    spec = EnvironmentSpec(VECTOR.observation, BoundedAction((2, 1)))
    config = NetworkConfig(
        hidden_sizes=(8,), use_last_action=True, action_scale=scale, init_action_std=0.3, init="lecun"
    )
    network = make_network(config, spec)
    last_action = jnp.asarray(normal(T, B, 2, 1))
    inputs = make_inputs(normal(T, B, 4))._replace(last_action=last_action)
    core = network.initial_core(B)
    variables = network.init(jax.random.key(0, impl="threefry2x32"), inputs, core)
    policy = np.asarray(network.apply(variables, inputs, core)[0].policy)
    assert policy.shape == (T, B, 4)
    std = 1e-3 + np.log1p(np.exp(policy[..., 2:]))
    if scale == "independent":
        np.testing.assert_allclose(std, 0.3, rtol=1e-5)
    else:
        assert std.std() > 0.01 and 0.1 < np.median(std) < 1
    other = inputs._replace(last_action=-last_action)
    assert not np.allclose(policy, network.apply(variables, other, core)[0].policy)


@pytest.fixture
def my_module(monkeypatch):
    """A module `my_nets` with the class that the package's docstring shows."""
    example = re.search(r"( +)class Mine.*?return \(\)\n", zerocopy_seed.networks.__doc__ or "", re.DOTALL)
    assert example
    module = types.ModuleType("my_nets")
    vars(module).update(nn=nn, NetworkOutput=NetworkOutput, EnvironmentSpec=EnvironmentSpec, jnp=jnp)
    exec(re.sub(r"(?m)^    ", "", example.group(0)), vars(module))
    monkeypatch.setitem(sys.modules, "my_nets", module)
    return module


def test_the_users_own_network(my_module):
    network = make_network(NetworkConfig(name="my_nets:Mine", settings={"width": 5}), VECTOR)
    inputs = make_inputs(normal(T, B, 4))
    variables, core = init(network, inputs)
    output, core = network.apply(variables, inputs, core)
    assert core == () and output.policy.shape == (T, B, 3) and output.value.shape == (T, B)
    assert variables["params"]["Dense_0"]["kernel"].shape == (4, 5)


@pytest.mark.parametrize(
    "name, settings, message",
    [
        ("defualt", {}, r"network.name 'defualt': expected \"default\".*did you mean default"),
        ("my_netz:Mine", {}, "module 'my_netz'.*No module named 'my_netz'"),
        ("my_nets:Mime", {}, "no 'Mime' there; did you mean Mine"),
        ("my_nets:number", {}, "subclass of flax.linen.Module"),
        ("my_nets:Mine", {"widht": 5}, "network.settings.widht.*did you mean width"),
        ("my_nets:Needs", {}, "network.settings.depth.*no default"),
        ("my_nets:NoSpec", {}, "field 'spec'"),
        ("my_nets:NoCore", {}, r"initial_core\(batch_size\)"),
        ("my_nets:WideValue", {}, r"its value .*expected float32 \(2, 3\), found float32 \(2, 3, 1\)"),
        ("my_nets:LostCore", {}, r"the core that it returns.*float32\[3, 2\]"),
        ("my_nets:Tuple", {}, "NetworkOutput.*found tuple"),
    ],
)
def test_faults_of_the_users_own_network(my_module, name, settings, message):
    class NoSpec(nn.Module):
        num_policy_params: int

    class NoCore(nn.Module):
        spec: EnvironmentSpec
        num_policy_params: int

    class Needs(nn.Module):
        spec: EnvironmentSpec
        num_policy_params: int
        depth: int

    class WideValue(my_module.Mine):
        def __call__(self, inputs, core):
            output, core = super().__call__(inputs, core)
            return output._replace(value=output.value[..., None]), core

    class LostCore(my_module.Mine):
        def initial_core(self, batch_size):
            return jnp.zeros((batch_size, 2))

        def __call__(self, inputs, core):
            return super().__call__(inputs, core)[0], ()

    class Tuple(my_module.Mine):
        def __call__(self, inputs, core):
            return tuple(super().__call__(inputs, core)[0]), core

    vars(my_module).update(locals(), number=3)
    with pytest.raises(UserError, match=message) as error:
        make_network(NetworkConfig(name=name, settings=settings), VECTOR)
    assert "\n" not in str(error.value)


def dtypes_of_products(function, *arguments):
    """Result dtypes of every product and convolution in `function`, traced."""
    traced = str(jax.make_jaxpr(function)(*arguments))
    return re.findall(r":(\w+)\[[^\]]*\] = (?:dot_general|conv_general_dilated)", traced)


def test_half_precision_is_the_torsos_alone():
    config = NetworkConfig(torso="minatar_conv", hidden_sizes=(32,), head_hidden_sizes=(8,))
    inputs = make_inputs(jnp.asarray(np.random.default_rng(0).random((T, B, 10, 10, 4)) < 0.3))
    whole = make_network(config, PICTURE)
    half = make_network(dataclasses.replace(config, compute_dtype="bfloat16"), PICTURE)
    variables, core = init(whole, inputs)
    variables = jax.tree.map(lambda x: 0.3 * x, variables)
    shapes = jax.eval_shape(half.init, make_key(), inputs, core)
    assert shapes == jax.eval_shape(lambda: variables)  # parameters are float32 and have the same names

    def loss(network, variables):
        output, _ = network.apply(variables, inputs, core)
        return (output.policy**2).sum() + output.value.sum(), output

    (exact, outputs), (near, halved) = (loss(network, variables) for network in (whole, half))
    assert outputs.policy.dtype == halved.policy.dtype == halved.value.dtype == jnp.float32
    np.testing.assert_allclose(halved.policy, outputs.policy, rtol=0.05, atol=0.02)
    assert exact != near
    grads = jax.grad(lambda variables: loss(half, variables)[0])(variables)
    assert {leaf.dtype for leaf in jax.tree.leaves(grads)} == {np.dtype(np.float32)}

    products, of_whole = (dtypes_of_products(lambda v, n=n: loss(n, v)[0], variables) for n in (half, whole))
    assert len(products) == len(of_whole) == 6 and set(of_whole) == {"f32"}
    assert products.count("bf16") == 2  # the convolution and the dense layer


def test_what_is_recomputed_changes_nothing():
    config = NetworkConfig(torso="minatar_conv", hidden_sizes=(16,))
    inputs = make_inputs(jnp.asarray(np.random.default_rng(0).random((T, B, 10, 10, 4)) < 0.3))
    kept = make_network(config, PICTURE)
    recomputed = make_network(dataclasses.replace(config, rematerialize=True), PICTURE)
    variables, core = init(kept, inputs)
    gradients = []
    for network in (kept, recomputed):

        def loss(variables, network=network):
            output, _ = network.apply(variables, inputs, core)
            return (output.policy**2).sum() + output.value.sum()

        gradients.append(jax.jit(jax.grad(loss))(variables))
        # One product for the dense layer on the way there, and it again on the way back.
        assert ("remat" in str(jax.make_jaxpr(jax.grad(loss))(variables))) is (network is recomputed)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *gradients)
