"""Configuration: what is refused, how it is named, and that it survives being written down."""

import argparse
import dataclasses
import math
import pathlib
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zerocopy_envs.errors import UserError
from zerocopy_seed.config import (
    CheckpointConfig,
    Config,
    DevicesConfig,
    EnvConfig,
    LearningConfig,
    MetricsConfig,
    NetworkConfig,
    R2D2Config,
    VTraceConfig,
)
from zerocopy_seed.config_checks import validate
from zerocopy_seed.config_file import (
    dump_config,
    load_config,
    load_run_config,
    refuse_changed_mathematics,
    resume_differences,
)
from zerocopy_seed.config_flags import add_flags
from zerocopy_seed.config_keys import keys
from zerocopy_seed.config_tables import structure
from zerocopy_seed.replay_layout import make_layout

MINIMAL = 'total_env_steps = 1000\n[env]\nname = "gymnax:CartPole-v1"\n'
BASE = Config(env=EnvConfig(name="gymnax:CartPole-v1"), total_env_steps=1000)


@pytest.fixture
def load(tmp_path):
    def load_text(text: str = MINIMAL, *flags: str) -> Config:
        path = tmp_path / "experiment.toml"
        path.write_text(text, encoding="utf-8")
        return load_config(path, flags)

    return load_text


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_file_without_options_gives_the_defaults(load):
    assert load() == BASE


def test_every_key_of_the_design_reaches_its_field(load):
    config = load(
        """
        seed = 3
        total_env_steps = 500_000
        [env]
        name = "package.module:factory"
        num_envs = 128
        settings = {memory_length = 10, nested = {levels = ["a", "b"]}}
        [agent]
        name = "vtrace"
        learning_rate = 2.5e-3
        max_grad_norm = 40
        reward_clip = inf
        [network]
        hidden_sizes = [256]
        core = "lstm"
        [checkpoint]
        every_s = 0
        """
    )
    assert config.seed == 3
    assert config.total_env_steps == 500_000
    assert config.env == EnvConfig(
        "package.module:factory", 128, {"memory_length": 10, "nested": {"levels": ["a", "b"]}}
    )
    assert config.agent == VTraceConfig(learning_rate=0.0025, max_grad_norm=40.0)
    assert type(config.agent.max_grad_norm) is float  # an integer is a number
    assert config.network == NetworkConfig(hidden_sizes=(256,), core="lstm")
    assert config.checkpoint.every_s == 0.0


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            "[agent]\nlearnig_rate = 1e-3",
            ("agent.learnig_rate", "experiment.toml", "did you mean learning_rate?"),
        ),
        ("[agnet]\nlearning_rate = 1e-3", ("agnet", "did you mean agent?")),
        ("[network]\nlearning_rate = 1e-3", ("network.learning_rate", "did you mean agent.learning_rate?")),
        ('[agent]\nlearning_rate = "1e-3"', ("agent.learning_rate", "a number", "'1e-3'", "without quotes")),
        ('[agent]\nlearning_rate = "abc"', ("agent.learning_rate", "a number", "'abc'")),
        ("[agent]\nlearning_rate = true", ("agent.learning_rate", "a number", "true")),
        ("[agent]\nunroll_length = 32.5", ("agent.unroll_length", "an integer", "32.5")),
        ("[agent]\nunroll_length = 1e2", ("agent.unroll_length", "an integer", "write 100")),
        ("[agent]\nunroll_length = true", ("agent.unroll_length", "an integer", "true")),
        ("[agent]\nadaptive_entropy = 1", ("agent.adaptive_entropy", "found 1; write true")),
        ('[agent]\nadaptive_entropy = "True"', ("agent.adaptive_entropy", "write true without quotes")),
        ('[agent]\nname = "vtrac"', ("agent.name", "'vtrace'", "'vtrac'", "did you mean vtrace?")),
        (
            "[agent]\nn_step = 3",
            (
                "agent.n_step",
                "experiment.toml",
                "agent.name = 'vtrace'",
                "one of agent.name = 'r2d2'",
                "choose r2d2",
            ),
        ),
        ('[agent]\nname = "r2d2"\nn_stp = 3', ("agent.n_stp", "did you mean n_step?")),
        (
            '[checkpoint]\nreplay = "false"',
            ("checkpoint.replay", "'auto' or true or false", "false without quotes"),
        ),
        ('[checkpoint]\nreplay = "True"', ("checkpoint.replay", "found 'True'; write true without quotes")),
        ("[checkpoint]\nreplay = 0", ("checkpoint.replay", "found 0; write false")),
        ("[checkpoint]\nreplay = 1", ("checkpoint.replay", "found 1; write true")),
        ('[checkpoint]\nreplay = "atuo"', ("checkpoint.replay", "did you mean auto?")),
        ("[checkpoint]\nreplay = 2.0", ("checkpoint.replay", "found 2.0")),
        ('[network]\ntorso = "mpl"', ("network.torso", "'mlp' or 'minatar_conv'", "did you mean mlp?")),
        ("[network]\nhidden_sizes = 64", ("network.hidden_sizes", "a list of integers", "64; write [64]")),
        ("[network]\nhidden_sizes = [64, 1.5]", ("network.hidden_sizes", "[1]", "an integer", "1.5")),
        ("[network]\nsettings = 3", ("network.settings", "a table", "found 3")),
        ("[network.torso]\nname = 3", ("network.torso", "found a table")),
        ("[[agent]]\nname = 'vtrace'", ("agent", "a table")),
    ],
)
def test_refusal_names_the_key_and_the_remedy(load, table, words):
    message = refusal(load, MINIMAL + table)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[env]\nname = "a:b"', ("total_env_steps", "an integer", "--total-env-steps")),
        ("total_env_steps = 1", ("env.name", "a string", "--env.name")),
        ("total_env_steps = ", ("experiment.toml", "Invalid value")),
        ("seed = 1\nseed = 2", ("experiment.toml", "Cannot overwrite")),
    ],
)
def test_incomplete_or_broken_file(load, text, words):
    message = refusal(load, text)
    assert [word for word in words if word not in message] == []


def test_file_that_is_not_there(tmp_path):
    (tmp_path / "vtrace_catch.toml").write_text(MINIMAL)
    assert "did you mean vtrace_catch.toml?" in refusal(load_config, tmp_path / "vtrace_cath.toml")
    assert "a directory" in refusal(load_config, tmp_path)
    assert "no config.toml" in refusal(load_run_config, tmp_path)
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "binary.toml" in refusal(load_config, tmp_path / "binary.toml")


# Flags.


def test_flags_are_typed_like_the_file(load):
    config = load(
        MINIMAL,
        *("--agent.learning-rate", "1e-3", "--agent.max_grad_norm=40", "--agent.baseline-cost", "0"),
        *("--env.num-envs", "128", "--seed", "7", "--total-env-steps", "500_000"),
        *("--devices.inference", "1"),
        *("--network.hidden-sizes", "32", "16", "--network.torso", "minatar_conv"),
        *("--agent.adaptive-entropy", "True", "--agent.eval-greedy", "false", "--agent.normalize-advantages"),
    )
    assert (config.env.num_envs, config.seed, config.total_env_steps) == (128, 7, 500_000)
    assert config.devices.inference == 1
    assert config.network == NetworkConfig(hidden_sizes=(32, 16), torso="minatar_conv")
    assert config.agent == VTraceConfig(
        learning_rate=0.001,
        max_grad_norm=40.0,
        baseline_cost=0.0,
        adaptive_entropy=True,
        eval_greedy=False,
        normalize_advantages=True,
    )


def test_flags_win_over_the_file_and_the_last_over_the_first(load):
    text = MINIMAL + "[agent]\nlearning_rate = 1e-2\nbaseline_cost = 0.25"
    config = load(text, "--agent.learning-rate", "1", "--agent.learning-rate", "2")
    assert config.agent == VTraceConfig(learning_rate=2.0, baseline_cost=0.25)


def test_flags_of_the_agent_that_the_file_or_a_flag_names(load):
    in_file = load(
        MINIMAL + '[agent]\nname = "r2d2"\nperiod = 64', "--agent.n-step", "3", "--agent.dueling=false"
    )
    assert in_file.agent == R2D2Config(period=64, n_step=3, dueling=False)
    by_flag = load(
        MINIMAL, "--agent.unroll-length", "16", "--agent.name", "r2d2", "--agent.eval-epsilon", "0"
    )
    assert by_flag.agent == R2D2Config(unroll_length=16, eval_epsilon=0.0)


@pytest.mark.parametrize(
    ("text", "word", "value"),
    [("true", "True", True), ("false", "false", False), ('"auto"', "auto", "auto")],
)
def test_a_choice_between_a_word_and_booleans(load, text, word, value):
    for config in (
        load(MINIMAL + f"[checkpoint]\nreplay = {text}"),
        load(MINIMAL, "--checkpoint.replay", word),
    ):
        assert config.checkpoint == CheckpointConfig(replay=value)
        assert type(config.checkpoint.replay) is type(value)


def test_flags_supply_what_the_file_lacks(load):
    assert load("", "--env.name", "gymnax:CartPole-v1", "--total-env-steps", "1000") == BASE


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("10",), 10),
        (("1e-3",), 0.001),
        (("-0.5",), -0.5),
        (("true",), True),
        (("False",), False),
        (("hard",), "hard"),
        (('"10"',), "10"),
        (("[1, 2]",), [1, 2]),
        (("1", "2"), [1, 2]),
        (("1\nother = 2",), "1\nother = 2"),
    ],
)
def test_free_form_settings_read_words_as_toml(load, words, value):
    config = load(MINIMAL + "settings = {kept = 1}", "--env.settings.memory-length", *words)
    assert config.env.settings == {"kept": 1, "memory_length": value}
    assert type(config.env.settings["memory_length"]) is type(value)


def test_nested_free_form_setting(load):
    assert load(MINIMAL, "--env.settings.reward.scale", "2").env.settings == {"reward": {"scale": 2}}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--agent.learnig-rate", "1"), ("--agent.learnig-rate", "did you mean learning_rate?")),
        (("--learning-rate", "1"), ("--learning-rate", "did you mean agent.learning_rate?")),
        (("--agent.learning-rate", "abc"), ("--agent.learning-rate", "a number", "'abc'")),
        (("--agent.unroll-length", "32.5"), ("--agent.unroll-length", "an integer", "32.5")),
        (("--network.torso", "mpl"), ("--network.torso", "did you mean mlp?")),
        (("--network.hidden-sizes", "64,64"), ("--network.hidden-sizes", "an integer", "write 64 64")),
        (("--seed",), ("--seed", "an integer", "nothing")),
        (("--seed", "1", "2"), ("--seed", "an integer", "1 2")),
        (("--seed.low", "1"), ("--seed.low", "an integer")),
        (("--env", "CartPole"), ("--env", "a table", "CartPole; did you mean env.name?")),
        (("--env.settings", "3"), ("--env.settings", "a table", "3")),
        (("seed", "1"), ("seed", "a flag")),
        (("--agent.n-step", "3"), ("--agent.n-step", "agent.name = 'vtrace'", "--agent.name r2d2")),
        (("--agent.name", "r2d2", "--agent.clip-c", "1"), ("--agent.clip-c", "'r2d2'", "choose vtrace")),
        (("--n-step", "3"), ("--n-step", "did you mean agent.n_step?")),
        (
            ("--agent.name", "dqn"),
            ("--agent.name", "'vtrace' or 'r2d2'", "a setting of r2d2", "configs/dqn_*"),
        ),
        (("--agent.name", "Apex-DQN"), ("--agent.name", "configs/apex_dqn_*.toml")),
        (("--checkpoint.replay", '"false"'), ("--checkpoint.replay", "write false without quotes")),
        (("--checkpoint.replay", "0"), ("--checkpoint.replay", "found '0'; write false")),
        (("--checkpoint.replay",), ("--checkpoint.replay", "'auto' or true or false", "nothing")),
    ],
)
def test_wrong_flag_is_named_as_typed(load, flags, words):
    message = refusal(load, MINIMAL, *flags)
    assert [word for word in words if word not in message] == []
    assert "experiment.toml" not in message  # the file is not to blame


def test_error_in_the_file_is_not_blamed_on_flags(load):
    message = refusal(load, MINIMAL + "[agent]\nlearnig_rate = 1", "--agent.learning-rate", "1")
    assert "experiment.toml" in message


# Ranges and divisibility.


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--total-env-steps", "0"),
        ("--env.num-envs", "0"),
        ("--agent.unroll-length", "-1"),
        ("--agent.discount", "1.01"),
        ("--agent.discount", "nan"),
        ("--agent.learning-rate", "-1e-3"),
        ("--agent.learning-rate", "inf"),
        ("--agent.learning-rate", "nan"),
        ("--agent.learning-rate-decay-env-steps", "0"),
        ("--agent.max-grad-norm", "-1"),
        ("--agent.reward-clip", "nan"),
        ("--checkpoint.max-to-keep", "0"),
        ("--checkpoint.every-s", "-1"),
        ("--network.hidden-sizes", "0"),
        ("--seed", "-1"),
        ("--seed", str(2**32)),
    ],
)
def test_out_of_range(load, flag, value):
    message = refusal(load, MINIMAL, flag, value)
    assert flag.removeprefix("--").replace("-", "_") in message
    assert (
        "expected at least 0" in message
        or "expected at least 1" in message
        or "expected more than 0" in message
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("0.5", "0.4"), "sources.device + sources.actors: expected 1, all of a batch, found 0.9"),
        (("0", "1"), "set env.place = 'actors'"),
        (("0.3", "0.7"), "sources.device: expected a share of env.num_envs = 4 that is a whole number"),
        (("0.5", "0.5", "--env.place", "actors"), "env.place: expected 'auto'"),
        (("0.5", "0.5", "--agent.num-shards", "2"), "agent.num_shards: expected 1"),
        (("0.5", "0.5", "--bridge.local-actors", "3"), "at most the 2 of env.num_envs"),
    ],
)
def test_shares_of_sources(load, flags, message):
    device, actors, *others = flags
    shares = ("--env.num-envs", "4", "--sources.device", device, "--sources.actors", actors)
    assert message in refusal(load, MINIMAL, *shares, *others)


@pytest.mark.parametrize(
    ("flag", "value", "remedy"),
    [
        ("--agent.discount", "99", "99 % is 0.99"),
        ("--agent.max-grad-norm", "-1", "inf switches it off"),
        ("--agent.learning-rate-decay-env-steps", "0", "inf switches it off"),
        ("--bridge.max-policy-lag", "1.5", "use 2"),
    ],
)
def test_out_of_range_has_a_remedy(load, flag, value, remedy):
    assert refusal(load, MINIMAL, flag, value).endswith(f"; {remedy}")


@pytest.mark.parametrize(
    "flag",
    ["--agent.learning-rate", "--agent.discount", "--agent.entropy-cost", "--agent.max-grad-norm",
     "--agent.reward-clip", "--agent.adam-b1", "--agent.baseline-cost", "--checkpoint.every-s", "--seed"],
)  # fmt: skip
def test_zero_is_a_value(load, flag):
    config = load("seed = 5\n" + MINIMAL + "[agent]\nlearning_rate = 1e-2", flag, "0")
    path = flag.removeprefix("--").replace("-", "_")
    assert {key.path: key.value for key in keys(Config, config)}[path] == 0


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            dataclasses.replace(BASE, env=EnvConfig("a:b", num_envs=6), devices=DevicesConfig(learner=4)),
            ("env.num_envs", "devices.learner = 4", "found 6", "use 4 or 8"),
        ),
        (
            dataclasses.replace(BASE, agent=VTraceConfig(num_shards=2), devices=DevicesConfig(learner=4)),
            ("agent.num_shards", "devices.learner = 4", "found 2", "use 4"),
        ),
        (
            dataclasses.replace(BASE, agent=VTraceConfig(num_shards=4, num_minibatches=3)),
            ("env.num_envs", "= 12", "found 64", "use 60 or 72"),
        ),
    ],
)
def test_indivisible(config, words):
    message = refusal(validate, config)
    assert [word for word in words if word not in message] == []


def r2d2(
    num_envs=4,
    core: Literal["none", "lstm", "gru"] = "none",
    frame_stack=1,
    network_name="default",
    **settings,
):
    """Sequences of 8, 4 slots with rings of 16 rows."""
    small = {"unroll_length": 4, "period": 4, "sequence_length": 8, "replay_capacity": 16, "min_replay": 4}
    return dataclasses.replace(
        BASE,
        env=EnvConfig("a:b", num_envs=num_envs),
        agent=R2D2Config(**{**small, "batch_size": 4, **settings}),
        network=NetworkConfig(name=network_name, core=core, frame_stack=frame_stack),
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (r2d2(num_envs=6, num_shards=4), ("env.num_envs", "agent.num_shards = 4", "found 6", "use 4 or 8")),
        (r2d2(batch_size=6, num_shards=4), ("agent.batch_size", "agent.num_shards = 4", "found 6")),
        (r2d2(period=6), ("agent.period", "divisor of agent.unroll_length = 4", "found 6", "use 1 or 4")),
        (
            r2d2(period=2, core="gru"),
            ("agent.period", "unroll_length = 4 with network.core = 'gru'", "use 4"),
        ),
        (r2d2(period=6, core="lstm"), ("agent.period", "multiple of agent.unroll_length = 4", "use 8")),
        (r2d2(min_replay=17), ("agent.min_replay", "at most agent.replay_capacity = 16", "found 17")),
        # a ring has 16 rows; a sequence, the step after it and an unroll need 13
        (
            r2d2(burn_in=4, core="gru"),
            ("agent.replay_capacity", "room for 17 steps", "env.num_envs = 4", "keeps 16", "use 20"),
        ),
        (r2d2(look_ahead=4), ("agent.replay_capacity", "room for 17 steps")),
        (
            r2d2(burn_in=2**31 - 1, core="lstm"),
            ("agent.replay_capacity", "at most 1073741824", "lower those"),
        ),
        (
            r2d2(updates_per_insert=2**30),
            ("agent.updates_per_insert", "1073741824 times agent.batch_size = 4"),
        ),
        (r2d2(frame_stack=5), ("agent.replay_capacity", "room for 17 steps", "frames stacked", "use 20")),
        (r2d2(replay_capacity=12), ("agent.replay_capacity", "room for 13 steps", "keeps 12", "use 16")),
        (
            r2d2(n_step=11, look_ahead=2),
            ("agent.n_step", "sequence_length + look_ahead = 10", "found 11", "use 10", "look_ahead to 10"),
        ),
        (r2d2(look_ahead=2, n_step=2), ("agent.look_ahead", "less than agent.n_step = 2", "use 1")),
        (r2d2(burn_in=1), ("agent.burn_in", "0 with network.core = 'none'", "no core to warm up", "found 1")),
        (r2d2(start_state="zero"), ("agent.start_state", "'stored' with network.core", "found 'zero'")),
        (
            r2d2(num_envs=1, batch_size=1, period=4096, replay_capacity=2**20),
            (
                "agent.replay_capacity",
                "at most 262144 sequences with a start every agent.period = 4096 steps",
                "found 1048576 sequences, which take 4294967296 steps",
                "use at most 262144",
            ),
        ),
        (
            r2d2(num_envs=2**21, batch_size=4, period=1, replay_capacity=2**31 - 1),
            (
                "agent.replay_capacity",
                f"at most {2**21 * 512} sequences",
                f"sequences, which take {2**31} steps",
                f"use at most {2**21 * 512}",
            ),
        ),
    ],
)
def test_r2d2_settings_that_do_not_fit_each_other(config, words):
    message = refusal(validate, config)
    assert [word for word in words if word not in message] == []


def test_r2d2_settings_that_fit():
    validate(dataclasses.replace(BASE, agent=R2D2Config()))
    for config in (
        r2d2(min_replay=16),
        r2d2(look_ahead=1, n_step=2),
        r2d2(burn_in=1, start_state="zero", core="lstm"),
        r2d2(burn_in=1, start_state="zero", network_name="package.module:Class"),
        r2d2(period=8, replay_capacity=8, min_replay=4, core="lstm"),
        r2d2(period=1, replay_capacity=64),
        r2d2(frame_stack=4),
        r2d2(num_shards=4),
        r2d2(n_step=10, look_ahead=2),
        r2d2(n_step=3, sequence_length=1, look_ahead=2, period=1, replay_capacity=31, min_replay=16),
        r2d2(num_envs=1, batch_size=1, period=4096, replay_capacity=2**18),
    ):
        validate(config)


def test_the_ring_holds_whole_unrolls():
    def layout(num_slots=4, frame_stack=1, **settings):
        return make_layout(R2D2Config(**settings), num_slots=num_slots, frame_stack=frame_stack)

    assert layout(replay_capacity=10, period=3, unroll_length=6).ring_length == 12
    assert layout(replay_capacity=13, period=3, unroll_length=6).ring_length == 12
    assert layout(replay_capacity=13, period=6, unroll_length=3).ring_length == 24
    full = layout(burn_in=2, sequence_length=3, look_ahead=4, unroll_length=8, period=4, frame_stack=3)
    assert (full.window_length, full.context, full.least_ring_length) == (9, 2, 9 + 1 + 2 + 8)
    for unroll_length, period in ((4, 4), (6, 3), (3, 6), (8, 1), (1, 8)):
        rows_of = [
            layout(1, unroll_length=unroll_length, period=period, replay_capacity=capacity).ring_length
            for capacity in range(1, 50)
        ]
        for most in range(40):
            found = layout(unroll_length=unroll_length, period=period).starts_within(most)
            assert found == sum(rows <= most for rows in rows_of)


def test_divisible_counts_pass():
    validate(
        dataclasses.replace(
            BASE,
            env=EnvConfig("a:b", num_envs=48),
            agent=VTraceConfig(num_shards=8, num_minibatches=3),
            devices=DevicesConfig(learner=4),
        )
    )


# Writing.

_scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8")),
)
_names = st.text(st.characters(codec="utf-8"), max_size=5)
_free_form = st.dictionaries(
    _names,
    st.recursive(
        _scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_names, inner, max_size=3)
    ),
)


@settings(max_examples=20, deadline=None)
@given(free_form=_free_form, rate=st.floats(0, 1e30), sizes=st.lists(st.integers(1, 2**31 - 1), max_size=3))
def test_a_dumped_configuration_reloads_equal(tmp_path_factory, free_form, rate, sizes):
    config = dataclasses.replace(
        BASE,
        env=EnvConfig("a:b", settings=free_form),
        total_env_steps=2**40,
        agent=VTraceConfig(learning_rate=rate, max_grad_norm=math.inf, clip_c=0.0),
        network=NetworkConfig(hidden_sizes=tuple(sizes), settings={"empty": {}}),
    )
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_text(dump_config(config), encoding="utf-8")
    assert load_config(path) == config


@pytest.mark.parametrize("replay", ["auto", True, False])
def test_a_dumped_r2d2_configuration_reloads_equal(tmp_path, replay):
    agent = R2D2Config(burn_in=3, dueling=False, start_state="zero", sampling="uniform")
    config = dataclasses.replace(
        BASE, agent=agent, network=NetworkConfig(core="gru"), checkpoint=CheckpointConfig(replay=replay)
    )
    (tmp_path / "dumped.toml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(tmp_path / "dumped.toml") == config


def test_run_config_is_found_and_overridden(tmp_path: pathlib.Path):
    (tmp_path / "config.toml").write_text(dump_config(BASE))
    assert load_run_config(tmp_path) == BASE
    assert load_run_config(tmp_path, ["--total-env-steps", "2000"]).total_env_steps == 2000


# Resuming.


def test_resume_may_change_what_leaves_the_mathematics_alone():
    new = dataclasses.replace(
        BASE,
        total_env_steps=2000,
        checkpoint=CheckpointConfig(every_s=1.0, max_to_keep=1, replay=False),
        metrics=MetricsConfig(every_env_steps=5, tensorboard=False),
        devices=DevicesConfig(learner=8),
    )
    assert resume_differences(BASE, new) == []
    refuse_changed_mathematics(BASE, new)


def test_resume_refuses_the_rest_by_name():
    new = dataclasses.replace(
        BASE,
        seed=1,
        env=dataclasses.replace(BASE.env, settings={"length": {"of": 3}}),
        agent=VTraceConfig(learning_rate=0.5),
        network=NetworkConfig(hidden_sizes=(64,)),
    )
    assert {path for path, _, _ in resume_differences(BASE, new)} == {
        "seed",
        "env.settings.length.of",
        "agent.learning_rate",
        "network.hidden_sizes",
    }
    message = refusal(
        refuse_changed_mathematics, BASE, dataclasses.replace(BASE, agent=VTraceConfig(discount=0.5))
    )
    assert [word for word in ("agent.discount", "0.99", "0.5") if word not in message] == []


def test_resume_as_another_agent_is_refused_by_its_name():
    message = refusal(
        refuse_changed_mathematics, BASE, dataclasses.replace(BASE, agent=R2D2Config(discount=0.5))
    )
    assert message.startswith("agent.name: expected 'vtrace'") and "found 'r2d2'" in message


@pytest.mark.parametrize("agent", [VTraceConfig(), R2D2Config()])
def test_resume_compares_every_key(agent):
    base = dataclasses.replace(BASE, agent=agent)
    free = {"total_env_steps", "checkpoint", "metrics", "devices", "bridge", "record"}
    free |= {"agent.eval_epsilon", "agent.eval_greedy"}  # only evaluation reads them
    for key in keys(Config, base):
        section, _, name = key.path.rpartition(".")
        other = {"changed": 1} if isinstance(key.value, dict) else "changed"
        path = f"{key.path}.changed" if isinstance(key.value, dict) else key.path
        if section:
            changed = dataclasses.replace(
                base, **{section: dataclasses.replace(getattr(base, section), **{name: other})}
            )
        else:
            changed = dataclasses.replace(base, **{name: other})
        expected = [] if {key.path, section or key.path} & free else [path]
        assert [path for path, _, _ in resume_differences(base, changed)] == expected


# The schema itself.


def test_every_key_has_help_and_every_number_a_range():
    for key in keys(Config):
        assert key.doc, key.path
        assert key.kind not in (int, float), f"{key.path} has no range"


def test_keys_of_all_agents_come_once():
    found = list(keys(Config))
    paths = [key.path for key in found]
    assert len(paths) == len(set(paths))
    for agent in (VTraceConfig, R2D2Config):
        config = dataclasses.replace(BASE, agent=agent())
        of_one = [key for key in keys(Config, config) if key.path.startswith("agent.")]
        assert {key.path for key in of_one} <= set(paths) and all(key.doc for key in of_one)
        assert {key.owner for key in of_one} == {agent}
    owners = {key.path: key.owner for key in found}
    assert owners["agent.discount"] is owners["agent.name"] is LearningConfig
    assert owners["agent.clip_rho"] is VTraceConfig and owners["agent.n_step"] is R2D2Config
    (name,) = [key for key in found if key.path == "agent.name"]
    assert name.kind == Literal["vtrace", "r2d2"]


def help_of(config):
    parser = argparse.ArgumentParser(usage="")
    add_flags(parser, config)
    return " ".join(parser.format_help().split())


def test_help_lists_both_agents_or_the_one_of_the_file():
    both = help_of(None)
    for text in (
        "agent: What every agent has", "agent (name = vtrace): V-trace", "agent (name = r2d2): Recurrent",
        "--agent.name {vtrace,r2d2}", "--agent.clip-rho FLOAT", "--checkpoint.replay {auto,true,false}",
    ):  # fmt: skip
        assert both.count(text) == 1, text
    assert both.count("--agent.discount FLOAT") == both.count("--agent.n-step INT") == 1
    one = help_of(dataclasses.replace(BASE, agent=R2D2Config(n_step=7)))
    assert "agent: Recurrent replayed Q-learning" in one and "(default: 7)" in one
    assert "--agent.clip-rho" not in one and "name = " not in one
    assert one.count("--agent.discount FLOAT") == 1


@dataclasses.dataclass(frozen=True)
class First:
    """One agent."""

    name: Literal["first"] = "first"
    rate: float = 1.0


@dataclasses.dataclass(frozen=True)
class Second:
    """Another."""

    name: Literal["second"] = "second"
    burn_in: int = 4


def test_name_chooses_among_a_union_of_dataclasses():
    def choose(table):
        return structure(First | Second, table, "agent", "experiment.toml")

    assert choose({"name": "second", "burn_in": 8}) == Second(burn_in=8)
    assert choose({"name": "first", "rate": 2}) == First(rate=2.0)
    assert choose({}) == First()
    assert "agent.rate" in refusal(choose, {"name": "second", "rate": 2})
    message = refusal(choose, {"name": "secnd", "burn_in": 8})
    assert "agent.name" in message
    assert "did you mean second?" in message
