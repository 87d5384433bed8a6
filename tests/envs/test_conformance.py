"""Every registered environment passes the check that users run on theirs."""

import pytest
from zerocopy_envs import environment_names, suite_names
from zerocopy_envs.testing import check_environment

# Compiling these takes many seconds each.
SLOW = {
    "gymnax:Asterix-MinAtar",
    "gymnax:Freeway-MinAtar",
    "gymnax:Seaquest-MinAtar",
    "gymnax:SpaceInvaders-MinAtar",
    "gymnax:MetaMaze-misc",
    "gymnax:PointRobot-misc",
    "gymnax:Acrobot-v1",
}
PROBES = [
    f"zerocopy_envs.probes:{probe}"
    for probe in (
        "constant_reward",
        "observed_reward",
        "delayed_reward",
        "chosen_reward",
        "truncated",
        "masked",
        "two_heads",
    )
]
REGISTERED = [name for suite in suite_names() for name in environment_names(suite)]


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in PROBES + REGISTERED],
)
def test_conforms(name):
    check_environment(name)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("zerocopy:Catch", {"rows": 3, "columns": 7}),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 7}),
        ("gymnax:Pendulum-v1", {"max_steps_in_episode": 1}),
    ],
)
def test_conforms_with_settings(name, settings):
    check_environment(name, num_steps=50, **settings)
