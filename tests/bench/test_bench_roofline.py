import contextlib
import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed.bench import roofline
from zerocopy_seed.config import Config, EnvConfig, NetworkConfig, R2D2Config, VTraceConfig

ROOT = pathlib.Path(__file__).resolve().parents[2]
HIDDEN, NUM_ENVS, LENGTH, PASSES = 128, 16, 8, 3
CONFIG = Config(
    env=EnvConfig("zerocopy:Catch", NUM_ENVS),
    total_env_steps=1,
    agent=VTraceConfig(unroll_length=LENGTH, num_passes=PASSES, num_minibatches=2),
    network=NetworkConfig(hidden_sizes=(HIDDEN, HIDDEN), init="lecun"),
)


@pytest.mark.slow
def test_operations_are_those_of_the_products_and_little_else():
    flops, moved = roofline.count(CONFIG)
    rows = 2 * (10 * 5 * HIDDEN + HIDDEN * HIDDEN + HIDDEN * (3 + 1))  # of one observation, there
    # On the way back each product has two; the observation needs no gradient. The last row only bootstraps.
    learned = PASSES * NUM_ENVS * (LENGTH + 1) * (3 * rows - 2 * 10 * 5 * HIDDEN)
    expected = NUM_ENVS * LENGTH * rows + learned
    assert expected < flops < 1.3 * expected
    assert moved > 4 * NUM_ENVS * LENGTH * HIDDEN


@pytest.mark.slow
def test_the_figures_belong_together():
    figures = roofline.measure(CONFIG, (1e9, 1e15))
    assert figures["bound"] == "FLOPs"
    assert figures["env_steps_per_s"] == pytest.approx(NUM_ENVS * LENGTH / figures["update_s"])
    seconds = figures["flops_per_env_step"] * NUM_ENVS * LENGTH / 1e9
    assert figures["ratio_to_roofline"] == pytest.approx(seconds / figures["update_s"])


def test_a_call_of_the_host_is_found():
    def noisy(x):
        jax.debug.callback(lambda x: None, x)
        return x + 1

    for function, is_found in ((noisy, True), (lambda x: jnp.sin(x) + 1, False)):
        program = jax.jit(function).lower(jnp.float32(1)).compile().as_text() or ""
        with pytest.raises(RuntimeError, match="callback") if is_found else contextlib.nullcontext():
            roofline.require_no_host_calls(program)


def test_loops_that_are_not_counted_are_refused():
    for changed in (
        Config(env=CONFIG.env, total_env_steps=1, agent=R2D2Config()),
        Config(env=CONFIG.env, total_env_steps=1, network=NetworkConfig(core="lstm")),
    ):
        with pytest.raises(UserError, match="bench roofline"):
            roofline.require_counted(changed)


@pytest.mark.slow
def test_the_check_of_an_accelerator_runs_through(tmp_path):
    environment = os.environ | {"PYTHON": sys.executable, "SIZES": "16", "STEPS": "1000"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "envs")])
    subprocess.run([ROOT / "scripts" / "gpu_check.sh", tmp_path], check=True, env=environment)
    for name in ("vtrace_cartpole", "vtrace_breakout_minatar", "vtrace_ant"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["env_steps_per_s"] > 0
    assert list(tmp_path.glob("ant-*/checkpoints/*"))
