"""The model of docs/scaling.md: its arithmetic, what it counts, and that the page has what it gives."""

import dataclasses
import math
import pathlib

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from small_runs import CATCH

from scripts import scaling, scaling_inputs
from scripts.scaling_model import (
    Machine,
    Workload,
    act_s,
    all_reduce_s,
    bridge_rates,
    limit,
    lock_step_slowdown,
    lost_share,
    on_device_rate,
    read,
    sequences_that_fit,
    update,
    work_s,
)

ROOT = pathlib.Path(__file__).parent.parent
DATA = ROOT / "docs" / "results" / "scaling.json"

# Round numbers: a product a nanosecond, another operation four, all links 1 GB/s.
MACHINE = Machine(
    gpus_per_host=4,
    product_rate=1e10,
    product_efficiency=0.1,
    memory_rate=1e9,
    bytes_per_operation=4.0,
    kernel_s=1e-3,
    gpu_memory=1000.0,
    nvlink_rate=1e9,
    network_rate=5e8,
    link_efficiency=0.5,
    base_s=1.0,
    nvlink_hop_s=0.1,
    network_hop_s=0.01,
    actors_network_rate=2e6,
    pcie_rate=1e6,
    max_batch=8,
    message_s=1e-3,
    row_s=1e-4,
    actor_step_s=0.01,
    gpu_hours_per_failure=100.0,
)
WORK = Workload(
    config="",
    num_envs=10,
    unroll_length=5,
    parameters=100,
    learner_bytes=100.0,
    loop_bytes=0.0,
    replay_bytes=1000.0,
    observation_bytes=50.0,
    wire_bytes_up=100.0,
    wire_bytes_down=4.0,
    act_products=1e6,
    act_rest=0.0,
    environment_products=0.0,
    environment_rest=1e6,
    learn_products=2e6,
    learn_rest=0.0,
    act_kernels=2,
    environment_kernels=8,
    learn_kernels=200,
    exchanges=[[2, 1e9], [1, 0.0]],
    exchange_kinds=["all-reduce"],
)


def test_arithmetic_takes_products_at_a_share_of_the_peak_and_the_rest_by_memory():
    assert work_s(MACHINE, 1e9, 0.0) == pytest.approx(1.0)
    assert work_s(MACHINE, 1e9, 1e9) == pytest.approx(1.0 + 4.0)


def test_a_sum_over_devices():
    assert all_reduce_s(MACHINE, 1e9, 1) == 0
    # Four on a host: 1 + 2 * 3 * .1 s, and 2 * 3/4 of 1 GB at .5 GB/s.
    assert all_reduce_s(MACHINE, 1e9, 4) == pytest.approx(1.6 + 3.0)
    # Sixteen on four: two hops more each way, and 2 * 15/16 of it at .25 GB/s.
    assert all_reduce_s(MACHINE, 1e9, 16) == pytest.approx(1.6 + 2 * 2 * 0.01 + 7.5)


def test_an_update_on_the_device():
    # Ten environments, 1 ms + 4 ms each a step; 50 env_steps of learning, 2 ms each, and 200 kernels.
    spent = update(WORK, MACHINE, 4, 10, on_device=True)
    assert spent == pytest.approx((5 * 0.05, 0.1, 0.1, 2 * 4.6 + 1.6))
    assert on_device_rate(WORK, MACHINE, 4, 10)[0] == pytest.approx(4 * 50 / (0.25 + 0.2 + 10.8))
    # One environment: a step's 10 kernels take 10 ms, twice its arithmetic.
    assert update(WORK, MACHINE, 1, 1, on_device=True) == pytest.approx((0.025, 0.01, 0.025 + 0.19, 0.0))


def test_what_the_bridge_carries():
    rates = bridge_rates(WORK, MACHINE, gpus=1, actors=6, envs=8)
    assert rates["actors"] == pytest.approx(600)
    assert rates["event loops"] == pytest.approx(4 / 1.4e-3)
    assert rates["network"] == pytest.approx(1e6 / 100)
    assert rates["PCIe"] == pytest.approx(5e5 / 50)
    assert rates["GPUs"] == pytest.approx(1 / (1e-3 + 0.2 / 50))  # acting, and learning by its kernels
    assert limit(rates) == ("GPUs", rates["GPUs"])
    assert act_s(WORK, MACHINE, 1) == pytest.approx(2e-3)  # two kernels for one row


def test_hosts_and_event_loops_multiply_what_is_theirs():
    one = bridge_rates(WORK, MACHINE, gpus=4, actors=1e6, envs=8)
    two = bridge_rates(WORK, MACHINE, gpus=8, actors=1e6, envs=8)
    loops = bridge_rates(WORK, dataclasses.replace(MACHINE, loops_per_host=4), gpus=4, actors=1e6, envs=8)
    assert two["event loops"] == pytest.approx(2 * one["event loops"])
    assert two["network"] == pytest.approx(2 * one["network"])
    assert loops["event loops"] == pytest.approx(4 * one["event loops"])
    assert loops["network"] == one["network"]
    # The first of four GPUs acts for all; a loop's only GPU for a quarter.
    learning = update(WORK, MACHINE, 4, 10, on_device=False).seconds / 50
    assert one["GPUs"] == pytest.approx(1 / (1e-3 + learning / 4))
    assert loops["GPUs"] == pytest.approx(4 / (1e-3 + learning))


def test_memory_failures_and_lock_step():
    assert sequences_that_fit(WORK, MACHINE, 100, 300.0) == 50  # 900 - 100 - 300 bytes, ten each
    # 100 GPUs: a failure an hour costs half of 360 s and 180 s, and 36 s of each 360 go to saving.
    assert lost_share(MACHINE, 100, every_s=360.0, save_s=36.0, restart_s=180.0) == pytest.approx(0.1 + 0.1)
    assert lock_step_slowdown(1, 10, 1.0) == 1
    assert lock_step_slowdown(math.exp(8), 100, 0.5) == pytest.approx(1 + 0.05 * 4)


def test_operations_of_a_network_are_counted():
    def network(w0, w1, x):
        return jnp.tanh(x @ w0) @ w1

    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 8), (8, 2), (5, 3))]
    found = scaling_inputs.num_operations(jax.make_jaxpr(network)(*shapes).jaxpr)
    assert found == {"products": 2 * 5 * (3 * 8 + 8 * 2), "rest": 5 * 8}
    gradients = jax.grad(lambda *arguments: network(*arguments).sum(), argnums=(0, 1))
    found = scaling_inputs.num_operations(jax.make_jaxpr(gradients)(*shapes).jaxpr)
    # Forward; back for the second layer's weights and inputs, and for the first's weights.
    assert found["products"] == 2 * 5 * (3 * 8 + 8 * 2) + 2 * 5 * (2 * 8 * 2 + 3 * 8)


def test_a_scan_counts_as_often_as_it_runs_and_a_cond_by_its_larger_branch():
    def run(x):
        y, _ = lax.scan(lambda y, _: (y @ x, None), x, length=7)
        return lax.cond(y[0, 0] > 0, lambda y: y @ x, lambda y: y, y)

    found = scaling_inputs.num_operations(jax.make_jaxpr(run)(jnp.ones((4, 4))).jaxpr)
    assert found["products"] == 8 * 2 * 4**3


def test_a_convolution_is_counted():
    layout = ("NHWC", "HWIO", "NHWC")
    pictures, kernel = jnp.ones((6, 9, 9, 3)), jnp.ones((3, 3, 3, 5))

    def run(x, kernel):
        return lax.conv_general_dilated(x, kernel, (2, 2), "VALID", dimension_numbers=layout)

    found = scaling_inputs.num_operations(jax.make_jaxpr(run)(pictures, kernel).jaxpr)
    assert found["products"] == 2 * (6 * 4 * 4 * 5) * (3 * 3 * 3)


def test_a_share_of_a_run_is_counted():
    counts = scaling_inputs.count_operations(CATCH)
    # Catch of 4 x 3, one hidden layer of 8, three actions and a value.
    assert counts["parameters"] == 12 * 8 + 8 + 8 * 4 + 4
    assert counts["act_products"] == 2 * (12 * 8 + 8 * 4)
    assert counts["learn_products"] == pytest.approx(2 * (6 / 5) * (2 * 12 * 8 + 3 * 8 * 4))
    assert counts["observation_bytes"] < counts["wire_bytes_up"] < counts["observation_bytes"] + 20


def test_loops_of_a_program_count_as_often_as_they_run():
    program = """
%body.1 (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%p), kind=kLoop, calls=%inside
  ROOT %all-reduce.1 = f32[4]{0} all-reduce(%f), channel_id=1, to_apply=%sum
}

ENTRY %main (x: f32[4]) -> f32[4] {
  %x = f32[4]{0} parameter(0)
  %y = f32[4]{0} dot(%x, %x)
  ROOT %w = f32[4]{0} while(%y), condition=%cond, body=%body.1, backend_config={"known_trip_count":{"n":"5"}}
}
"""
    kernels, exchanges = scaling_inputs.walk(program)
    assert kernels == 1 + 5
    assert [times for times, _ in exchanges] == [5]


def test_gradients_are_exchanged_once_a_minibatch_by_the_figures_that_are_kept():
    workloads, _ = read(DATA)
    for name, times in (("ant", 4 * 16), ("impala", 16), ("r2d2", 3)):
        w = workloads[name]
        (of_gradients,) = [(n, size) for n, size in w.exchanges if size >= 4 * w.parameters]
        assert of_gradients[0] == times
        assert of_gradients[1] < 4 * w.parameters + 100
        assert w.exchange_kinds == ["all-reduce"]
    ant = workloads["ant"]
    assert ant.act_products == 2 * (27 * 256 + 256 * 256 + 256 * (8 + 1))  # policy and value


def test_the_page_has_the_tables_of_the_figures_that_are_kept():
    page = (ROOT / "docs" / "scaling.md").read_text()
    assert scaling.put_in(page, scaling.blocks(*read(DATA))) == page
