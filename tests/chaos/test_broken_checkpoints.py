"""A broken checkpoint is never loaded silently, by whoever asks for one."""

import pathlib
import shutil

import jax
import numpy as np
import pytest
from small_runs import CATCH, read_checkpoint

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli, load_policy
from zerocopy_seed.agents import make_agent
from zerocopy_seed.checkpoint import Checkpointer
from zerocopy_seed.config_file import dump_config
from zerocopy_seed.leaves import is_key
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import init_train_state
from zerocopy_seed.loops.run_checkpoint import checkpoint_items, restore_acting

STEPS = (20, 40, 60)


@pytest.fixture(scope="module")
def three_checkpoints(tmp_path_factory):
    """A run directory that holds three, which stand in for those of a run."""
    run_dir = tmp_path_factory.mktemp("run")
    environment = make_environment(CATCH.env)
    agent = make_agent(CATCH.agent, CATCH.network, environment.spec, num_slots=CATCH.env.num_envs)
    types = jax.eval_shape(lambda: init_train_state(agent, environment, 0, CATCH.env.num_envs))
    state = jax.tree.map(zeros, types)
    (run_dir / "config.toml").write_text(dump_config(CATCH))
    with Checkpointer(run_dir / "checkpoints") as saves:
        for step in STEPS:
            saves.save(step, checkpoint_items(agent, state))
    return run_dir


@pytest.fixture
def run_dir(three_checkpoints, tmp_path):
    return shutil.copytree(three_checkpoints, tmp_path / "run")


def zeros(leaf):
    """Of a type, without compiling anything."""
    if is_key(leaf):
        return jax.random.wrap_key_data(zeros(jax.eval_shape(jax.random.key_data, leaf)), impl="threefry2x32")
    return jax.device_put(np.zeros(leaf.shape, leaf.dtype))


def files(run_dir, step):
    paths = sorted((run_dir / "checkpoints" / str(step)).rglob("*"))
    return [path for path in paths if path.is_file() and path.stat().st_size]


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_bit, truncate, pathlib.Path.unlink])
def test_the_newest_intact_one_is_used_and_a_warning_says_so(run_dir, damage):
    for path in files(run_dir, STEPS[-1]):
        before = path.read_bytes()
        damage(path)
        said: list[str] = []
        assert restore_acting(run_dir, warn=said.append)[2] == STEPS[-2]
        with pytest.warns(UserWarning, match=f"checkpoint {STEPS[-1]} is damaged and skipped"):
            assert read_checkpoint(CATCH, run_dir)[0] == STEPS[-2]
        assert len(said) == 1 and str(path) in said[0]
        path.write_bytes(before)
    assert restore_acting(run_dir, warn=pytest.fail)[2] == STEPS[-1]


def test_where_all_are_broken_every_command_names_the_directory(run_dir, capsys):
    for step, damage in zip(STEPS, (flip_bit, truncate, pathlib.Path.unlink), strict=True):
        damage(files(run_dir, step)[-1])
    more = str(CATCH.total_env_steps * 2)
    for words in (
        ["train", "--run-dir", str(run_dir), "--resume", "--total-env-steps", more],
        ["evaluate", str(run_dir), "--episodes", "1"],
    ):
        assert cli.main(words) == 2
        *warnings, refusal = capsys.readouterr().err.splitlines()
        assert len(warnings) == 3 and all("is damaged and skipped" in line for line in warnings)
        assert refusal.startswith(f"{run_dir}/checkpoints: expected an intact checkpoint, found only damaged")
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(UserError, match=str(run_dir)):
        load_policy(run_dir)
    # What is there must stay, for whoever can mend it.
    assert len(files(run_dir, STEPS[0])) and len(list((run_dir / "checkpoints").iterdir())) == 3


@pytest.mark.parametrize("damage", [lambda path: path.write_text("seed = \n"), pathlib.Path.unlink])
def test_a_configuration_that_cannot_be_read_is_named(run_dir, capsys, damage):
    damage(run_dir / "config.toml")
    for words in (["train", "--run-dir", str(run_dir), "--resume"], ["evaluate", str(run_dir)]):
        assert cli.main(words) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(run_dir) in line
