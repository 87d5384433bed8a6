"""Seeds and settings: which runs a configuration is, and what it may not vary."""

import dataclasses
import math

import numpy as np
import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed.config_checks import validate
from zerocopy_seed.config_file import dump_config, load_config, refuse_changed_mathematics
from zerocopy_seed.config_sweep import has_members, learning_settings, make_members

MINIMAL = 'total_env_steps = 1000\nseed = 7\n[env]\nname = "gymnax:CartPole-v1"\nnum_envs = 16\n'

LONG = (
    "learning_rate", "optimizer_epsilon", "adam_b1", "adam_b2", "rmsprop_decay", "discount", "reward_clip",
    "max_grad_norm", "baseline_cost",
)  # fmt: skip


@pytest.fixture
def load(tmp_path):
    def load(text="", *flags):
        path = tmp_path / "config.toml"
        path.write_text(MINIMAL + text)
        return load_config(path, flags)

    return load


def test_one_run_has_no_members(load):
    assert not has_members(load())
    assert has_members(load("", "--num-seeds", "2"))


def test_members_are_settings_times_seeds(load):
    config = load(
        "[sweep]\nagent.learning_rate = [1e-3, 1]\nagent.discount = [0.9, 0.99]", "--num-seeds", "2"
    )
    members = make_members(config)
    assert [member.name for member in members[:3]] == [
        "learning_rate=0.001,discount=0.9,seed=7",
        "learning_rate=0.001,discount=0.9,seed=8",
        "learning_rate=0.001,discount=0.99,seed=7",
    ]
    assert len({member.name for member in members}) == len(members) == 8
    last = members[-1]
    assert last.setting == {"agent.learning_rate": 1.0, "agent.discount": 0.99}
    alone = load("", "--seed", "8", "--agent.learning-rate", "1", "--agent.discount", "0.99")
    assert last.config == alone


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("[sweep]\nagent.discount = [0.5, 0.9]", ()),
        ('[sweep]\n"agent.discount" = [0.5, 0.9]', ()),
        ("[sweep.agent]\ndiscount = [0.5, 0.9]", ()),
        ("", ("--sweep.agent.discount", "0.5", "0.9")),
        ("", ("--sweep.agent.discount", "[0.5, 0.9]")),
        ("[sweep]\nagent.discount = [0.1]", ("--sweep.agent.discount=[0.5, 0.9]",)),
    ],
)
def test_file_and_flags_say_the_same(load, text, flags):
    assert [member.config.agent.discount for member in make_members(load(text, *flags))] == [0.5, 0.9]


def test_drawn_settings_are_log_uniform_and_drawn_together(load):
    flags = ("--sweep.agent.learning-rate.low", "1e-5", "--sweep.agent.learning-rate.high", "1e-1")
    text = "[sweep]\nagent.entropy_cost = { low = 1e-3, high = 1e-2, num = 400 }"
    members = make_members(load(text, *flags, "--sweep.agent.learning-rate.num", "400"))
    assert len(members) == 400
    rates = np.log10([member.config.agent.learning_rate for member in members])
    costs = np.log10([member.setting["agent.entropy_cost"] for member in members])
    assert (rates >= -5).all() and (rates <= -1).all() and (costs >= -3).all() and (costs <= -2).all()
    counts, _ = np.histogram(rates, 4, (-5, -1))
    assert (counts > 70).all()  # 100 in each decade, standard deviation 9
    assert abs(np.corrcoef(rates, costs)[0, 1]) < 0.2
    assert make_members(load(text, "--seed", "8"))[0].setting != make_members(load(text))[0].setting
    first = make_members(load(text.replace("400", "3")))
    assert [member.setting for member in first] == [member.setting for member in make_members(load(text))[:3]]


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ("agent.unroll_length = [8, 16]", ("sweep.agent.unroll_length", "found an integer")),
        ("agent.optimizer = ['adam']", ("sweep.agent.optimizer", "found 'adam' or 'rmsprop'")),
        ("agent.adaptive_entropy = [true]", ("sweep.agent.adaptive_entropy", "found true or false")),
        ("env.num_envs = [8, 16]", ("sweep.env.num_envs", "found an integer")),
        ("env.name = ['a:b']", ("sweep.env.name", "found a string")),
        ("seed = [1, 2]", ("sweep.seed", "set num_seeds instead")),
        ("agent.learnig_rate = [1e-3]", ("sweep.agent.learnig_rate", "did you mean agent.learning_rate?")),
        ("learning_rate = [1e-3]", ("sweep.learning_rate", "did you mean agent.learning_rate?")),
        ("agent.priority_eta = [0.5]", ("sweep.agent.priority_eta", "an unknown key")),
        ("agent = [1]", ("sweep.agent", "an unknown key")),
        ("agent.discount = [0.9, 1.5]", ("sweep.agent.discount[1]", "at most 1", "found 1.5")),
        ("agent.learning_rate = [nan]", ("sweep.agent.learning_rate[0]", "found nan")),
        ("agent.learning_rate = [true]", ("sweep.agent.learning_rate[0]", "a number", "found True")),
        ("agent.learning_rate = ['1e-3']", ("sweep.agent.learning_rate[0]", "a number")),
        ("agent.learning_rate = [1e-3, 0.001]", ("sweep.agent.learning_rate[1]", "found 0.001 again")),
        ("agent.max_grad_norm = [" + "9" * 400 + "]", ("sweep.agent.max_grad_norm[0]", "a larger one")),
        (
            "\n".join(f"agent.{name} = [0.123456789012345]" for name in LONG),
            ("sweep: expected settings whose names", "at most 200 characters", "in 9 settings"),
        ),
        ("agent.learning_rate = []", ("sweep.agent.learning_rate", "a list of numbers")),
        ("agent.learning_rate = 1e-3", ("sweep.agent.learning_rate", "write [0.001]")),
        ("agent.learning_rate = { low = 0, high = 1, num = 3 }", ("sweep.agent.learning_rate", "0 < low")),
        (
            "agent.learning_rate = { low = 1e-3, high = 1 }",
            ("sweep.agent.learning_rate.num", "found nothing"),
        ),
        (
            "agent.learning_rate = { low = 1e-3, high = 1, num = 3, step = 1 }",
            ("sweep.agent.learning_rate.step", "found an unknown key"),
        ),
        (
            "agent.learning_rate = { low = 1.001, high = 1.002, num = 4 }",
            ("sweep.agent.learning_rate.num", "at most the 2 numbers", "found 4"),
        ),
        (
            "agent.learning_rate = { low = 1e-3, high = 1, num = 2.5 }",
            ("sweep.agent.learning_rate.num", "an integer", "found 2.5"),
        ),
        (
            "agent.learning_rate = { low = 1e-3, high = 1, num = 3 }\n"
            "agent.discount = { low = 0.1, high = 1, num = 4 }",
            ("sweep.agent.discount.num", "3 as in sweep.agent.learning_rate", "found 4"),
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_by_name(load, sweep, words):
    with pytest.raises(UserError) as caught:
        load(f"[sweep]\n{sweep}")
    message = str(caught.value)
    assert [word for word in words if word not in message] == []
    assert "\n" not in message


def test_what_members_may_not_be(load):
    with pytest.raises(UserError, match=r"^devices\.learner: expected a divisor of the 6 runs .*found 4$"):
        load("", "--num-seeds", "6", "--devices.learner", "4")
    # Members are spread, so that slots need not be.
    assert load("", "--num-seeds", "9", "--devices.learner", "3", "--env.num-envs", "16").num_seeds == 9
    with pytest.raises(UserError, match="^devices.inference: expected 0 with many runs at once, .* found 1;"):
        load("", "--num-seeds", "2", "--devices.inference", "1")
    with pytest.raises(UserError, match=r"^num_seeds: expected seeds less than 2\^32"):
        load("", "--num-seeds", "2", "--seed", str(2**32 - 1))
    with pytest.raises(UserError, match=r"^num_seeds: expected at most 1,024 runs at once"):
        load("", "--num-seeds", "5000")
    with pytest.raises(UserError, match=r"^agent\.entropy_cost: expected more than 0"):
        load("[sweep]\nagent.entropy_cost = [0.1, 0]", "--agent.adaptive-entropy", "true")


def test_what_acting_alone_reads_is_not_swept(load):
    with pytest.raises(UserError, match=r"sweep\.agent\.eval_epsilon: .*found one that acting alone reads"):
        load("[sweep]\nagent.eval_epsilon = [0.1, 0.2]", "--agent.name", "r2d2")
    config = load("", "--agent.name", "r2d2").agent
    assert "epsilon_base" not in learning_settings(config) and "discount" in learning_settings(config)


def test_a_sweep_survives_its_file(load, tmp_path):
    config = load(
        '[sweep]\n"agent.discount" = [0.5, 1]\nagent.reward_clip = [1.0, inf]\n'
        "agent.learning_rate = { low = 1e-3, high = 1.0, num = 2 }",
        "--num-seeds",
        "3",
    )
    path = tmp_path / "again.toml"
    path.write_text(dump_config(config))
    again = load_config(path)
    assert again == config
    assert make_members(again) == make_members(config)
    assert any(math.isinf(member.config.agent.reward_clip) for member in make_members(config))
    for changed in (dataclasses.replace(config, num_seeds=2), dataclasses.replace(config, sweep={})):
        validate(changed)
        with pytest.raises(UserError, match="as in the run that is resumed"):
            refuse_changed_mathematics(config, changed)
