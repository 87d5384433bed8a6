"""Devices exchange gradients once a minibatch, and scalars or statistics of fixed size; nothing else."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from small_runs import MLP, R2D2

from zerocopy_seed.agents import make_agent
from zerocopy_seed.bench.collectives import Collective, collectives
from zerocopy_seed.config import DevicesConfig, EnvConfig, VTraceConfig
from zerocopy_seed.loops.devices import make_mesh
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.layout import DATA_AXIS, STATE_SPECS, lay_out, shard_dispatch
from zerocopy_seed.loops.on_device import (
    init_train_state,
    make_dispatch,
    make_update,
    make_window,
    metric_names,
)

VTRACE = VTraceConfig(
    num_shards=4,
    num_minibatches=2,
    num_passes=2,
    normalize_advantages=True,
    normalize_observations=True,
    normalize_rewards=True,
)
SHARDED_R2D2 = dataclasses.replace(R2D2, num_shards=4)


def of_training(agent_config, num_envs):
    """Collectives of the on-device program on four devices, and the number of its parameters."""
    environment = make_environment(EnvConfig("zerocopy:Catch"))
    alone, agent = (
        make_agent(agent_config, MLP, environment.spec, num_slots=num_envs, axis_name=axis_name)
        for axis_name in (None, DATA_AXIS)
    )
    mesh = make_mesh(DevicesConfig(learner=4)) or pytest.fail("one device")
    types = jax.eval_shape(lambda: init_train_state(alone, environment, 0, num_envs))
    length = agent_config.unroll_length
    names = metric_names(make_update(alone, environment, length), types)
    update = make_update(agent, environment, length, axis_name=DATA_AXIS)
    dispatch = jax.jit(shard_dispatch(make_dispatch(update, names), mesh), donate_argnums=(0, 1))
    arguments = lay_out(STATE_SPECS, types, mesh), make_window(len(names)), jnp.int32(1)
    num_params = sum(leaf.size for leaf in jax.tree.leaves(types.learner.params))
    return collectives(dispatch.lower(*arguments).compile().as_text() or ""), num_params


@pytest.mark.parametrize(
    ("small", "large"),
    [
        (
            (dataclasses.replace(VTRACE, unroll_length=3), 16),
            (dataclasses.replace(VTRACE, unroll_length=6), 64),
        ),
        pytest.param(
            (SHARDED_R2D2, 4),
            (dataclasses.replace(SHARDED_R2D2, batch_size=16, replay_capacity=480), 8),
            marks=pytest.mark.slow,
        ),
    ],
    ids=["vtrace", "r2d2"],
)
def test_what_devices_exchange_does_not_grow_with_unrolls_batches_or_replay(small, large):
    found, num_params = of_training(*small)
    assert {collective.kind for collective in found} == {"all-reduce"}
    with_gradients = [collective for collective in found if collective.num_elements >= num_params]
    assert len(with_gradients) == 1  # in the loop over minibatches
    assert with_gradients[0].num_elements < num_params + 20  # and metrics
    assert found == of_training(*large)[0]


def test_collectives_are_read_from_a_program():
    program = """
  %a.1 = (f32[3]{0}, s32[], /*index=2*/f32[8,3]{1,0}) all-reduce(%x, %y), channel_id=1
  ROOT %b = bf16[4,2]{1,0} all-gather(f32[2,2]{1,0} %all-reduce.9), dimensions={0}
  %c = f32[] add(%all-reduce.1, %d)
  %e = (f32[2]{0}, f32[4]{0}) all-gather-start(f32[2]{0} %z)
"""
    assert collectives(program) == [
        Collective("all-gather", (("bf16", (4, 2)),)),
        Collective("all-gather", (("f32", (2,)), ("f32", (4,)))),
        Collective("all-reduce", (("f32", (3,)), ("f32", (8, 3)), ("s32", ()))),
    ]
