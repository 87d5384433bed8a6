"""The programs to copy from in examples/ do what they say, and stay short."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import nbclient
import nbformat
import numpy as np
import pytest

from examples.own_environment import FindExit, State
from zerocopy_envs import StepType
from zerocopy_envs.testing import check_environment
from zerocopy_seed.config import NetworkConfig
from zerocopy_seed.networks import NetworkInput, make_network

ROOT = pathlib.Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    """Child processes find the packages, and `examples` as from a checkout's root."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(ROOT / "envs")]))


def run(*words: str) -> str:
    return subprocess.run([sys.executable, *words], check=True, stdout=subprocess.PIPE, text=True).stdout


def trained_return(run_dir: pathlib.Path, config: str, *flags: str) -> float:
    """What `zerocopy-seed train` and then `evaluate` come to."""
    command = "-m", "zerocopy_seed.cli"
    run(*command, "train", str(ROOT / "configs" / config), "--run-dir", str(run_dir), *flags)
    return mean_return(run(*command, "evaluate", str(run_dir)))


def mean_return(printed: str) -> float:
    return float(printed.partition(": return ")[2].split()[0])


def test_the_environment_keeps_the_contract():
    check_environment("examples.own_environment:FindExit", size=3, max_steps=4, num_steps=50)


def test_the_environment_terminates_at_the_exit_and_is_cut_off_when_time_runs_out():
    environment = FindExit(size=4, max_steps=2)
    up, right = jnp.int32(0), jnp.int32(3)
    state = State(jnp.array([0, 0]), jnp.array([0, 2]), jnp.int32(0))
    step = jax.jit(environment.step)
    state, timestep = step(state, up)  # against the edge
    assert (timestep.step_type, timestep.discount, state.walker.tolist()) == (StepType.MID, 1, [0, 0])
    _, cut = step(state, right)
    assert (cut.step_type, cut.discount, cut.reward) == (StepType.LAST, 1, np.float32(-0.01))
    expected = np.zeros((4, 4, 2))
    expected[0, 1, 0] = expected[0, 2, 1] = 1
    np.testing.assert_array_equal(cut.observation, expected)
    _, arrived = step(State(jnp.array([0, 1]), jnp.array([0, 2]), jnp.int32(0)), right)
    assert (arrived.step_type, arrived.discount, arrived.reward) == (StepType.LAST, 0, 1)


def test_the_network_remembers_until_an_episode_begins():
    """Its memory by the paper's equations, in numpy: a FIRST in the middle empties it."""
    config = NetworkConfig(
        name="examples.own_network:MinGRU", settings={"hidden_sizes": [], "memory_size": 3}
    )
    network = make_network(config, FindExit(size=2).spec)
    generator = np.random.default_rng(0)
    observation = generator.random((3, 2, 2, 2, 2), np.float32)
    first = np.array([[True, False], [False, True], [False, False]])
    actions, rewards = jnp.full((3, 2), -1), jnp.zeros((3, 2))
    inputs = NetworkInput(observation, actions, rewards, jnp.asarray(first))
    core = jnp.full((2, 3), 0.5)
    shapes = jax.eval_shape(lambda: network.init(jax.random.key(0, impl="threefry2x32"), inputs, core))
    variables = jax.tree.map(lambda leaf: generator.standard_normal(leaf.shape, np.float32), shapes)
    _, memory = jax.jit(network.apply)(variables, inputs, core)

    gate, content = (variables["params"][f"Dense_{layer}"] for layer in (0, 1))
    x, expected = observation.reshape(3, 2, -1), np.full((2, 3), 0.5)
    for t in range(3):
        update = 1 / (1 + np.exp(-x[t] @ gate["kernel"] - gate["bias"]))
        candidate = np.tanh(x[t] @ content["kernel"] + content["bias"])
        expected = (1 - update) * np.where(first[t, :, None], 0, expected) + update * candidate
    np.testing.assert_allclose(memory, expected, atol=1e-5)


@pytest.mark.slow
def test_the_agent_learns_catch():
    printed = run(str(EXAMPLES / "own_agent.py"))
    assert printed.startswith("128 episodes: ") and mean_return(printed) > 0.8


@pytest.mark.slow
def test_the_environment_is_checked_and_learned(tmp_path):
    assert run(str(EXAMPLES / "own_environment.py")) == "it keeps the contract\n"
    flags = "--env.name", "examples.own_environment:FindExit", "--total-env-steps", "200_000"
    assert trained_return(tmp_path / "run", "vtrace_catch.toml", *flags) > 0.9


@pytest.mark.slow
def test_the_network_solves_what_takes_memory(tmp_path):
    flags = "--network.name", "examples.own_network:MinGRU", "--total-env-steps", "300_000"
    assert trained_return(tmp_path / "run", "vtrace_memory_chain.toml", *flags) > 0.9


@pytest.mark.slow
def test_the_notebook_trains_plots_evaluates_and_shows_an_episode(tmp_path, monkeypatch):
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(EXAMPLES / "first_run.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [kind for output in outputs for kind in output.get("data", ()) if kind.startswith("image/")]
    assert pictures == ["image/png", "image/gif"]
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert mean_return(printed) > 0.9 and "128 episodes" in printed


def test_they_are_short():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text().splitlines()) < 80, path.name
