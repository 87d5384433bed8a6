import pathlib

import jax
import pytest

from zerocopy_envs.wrappers import Vectorized
from zerocopy_seed.agents import make_agent
from zerocopy_seed.config_file import load_config
from zerocopy_seed.loops.bridge import init_learner
from zerocopy_seed.loops.environments import find_environment
from zerocopy_seed.loops.on_device import init_train_state, make_update
from zerocopy_seed.remote.tables import make_tables, make_trajectory

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
        "vtrace_pendulum",
        "r2d2_cartpole",
        "r2d2_memory_chain",
        "r2d2_atari",
        "vtrace_gymnasium_cartpole",
        "r2d2_gymnasium_cartpole",
        "vtrace_pong",
        "r2d2_pong",
        "vtrace_breakout",
        "r2d2_breakout",
        "dqn_cartpole",
        "double_dqn_cartpole",
        "prioritized_dqn_cartpole",
        "apex_dqn_cartpole",
    } <= names


@pytest.mark.slow
@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_traces_through_an_update(path):
    config = load_config(path)
    environment = find_environment(config.env)
    agent = make_agent(config.agent, config.network, environment.spec, num_slots=config.env.num_envs)

    def init_and_learn():
        if isinstance(environment, Vectorized):
            state = init_train_state(agent, environment, config.seed, config.env.num_envs)
            return state, make_update(agent, environment, config.agent.unroll_length)(state)[:2]
        state = init_learner(agent, config.seed)
        tables = make_tables(
            agent,
            environment.spec,
            agent.acting(state.learner),
            num_slots=config.env.num_envs,
            num_unrolls=config.env.num_envs,
            length=config.agent.unroll_length,
        )
        learner, metrics = agent.learn(state.learner, make_trajectory(config.env.num_envs, tables))
        return state, (state._replace(learner=learner), metrics)

    before, (after, metrics) = jax.eval_shape(init_and_learn)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(
        lambda x: (x.shape, x.dtype), before
    )
    assert metrics
