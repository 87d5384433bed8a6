import pathlib

import jax
import pytest

from zerocopy_seed.agents import make_agent
from zerocopy_seed.config_file import load_config
from zerocopy_seed.loops.environments import make_environment
from zerocopy_seed.loops.on_device import init_train_state, make_update

CONFIGS = sorted((pathlib.Path(__file__).parent.parent / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_sound(path):
    config = load_config(path)
    assert path.stem.split("_")[0] in (config.agent.name, "dqn", "double", "prioritized", "apex")


def test_the_configs_named_so_are_there():
    names = {path.stem for path in CONFIGS}
    assert {
        "vtrace_cartpole",
        "vtrace_catch",
        "vtrace_memory_chain",
        "r2d2_cartpole",
        "r2d2_memory_chain",
        "r2d2_atari",
        "dqn_cartpole",
        "double_dqn_cartpole",
        "prioritized_dqn_cartpole",
        "apex_dqn_cartpole",
    } <= names


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_traces_through_an_update(path):
    config = load_config(path)
    environment = make_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)
    update = make_update(agent, environment, config.agent.unroll_length)
    state = jax.eval_shape(lambda: init_train_state(agent, environment, config.seed, config.env.num_envs))
    after, metrics, _ = jax.eval_shape(update, state)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), state
    )
    assert metrics
