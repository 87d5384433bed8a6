"""Every registered environment passes the check that users run on theirs."""

import pytest
from optional_suites import OPTIONAL, missing_suites

from zerocopy_envs import environment_names, suite_names
from zerocopy_envs.testing import check_environment

# Compiling takes seconds each: the default run has one environment of every kind, the slow run all.
QUICK = {
    "zerocopy:Catch",
    "gymnax:CartPole-v1",
    "gymnax:Pendulum-v1",
    "gymnax:Breakout-MinAtar",
    "gymnax:DeepSea-bsuite",
    "gymnax:MemoryChain-bsuite",
    "gymnax:UmbrellaChain-bsuite",
    "gymnax:DiscountingChain-bsuite",
    "gymnax:SimpleBandit-bsuite",
    "gymnax:FourRooms-misc",
    "gymnax:FrozenLake-misc",
    "gymnax:Swimmer-misc",
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
        "bounded_target",
    )
]
REGISTERED = [
    name for suite in suite_names() if suite not in missing_suites() for name in environment_names(suite)
]


def marks(name):
    """Slow but for the quick ones; what other packages warn of in their own code is theirs to mend."""
    theirs = [pytest.mark.filterwarnings("ignore")] if name.split(":")[0] in OPTIONAL else []
    return theirs if name in QUICK else [pytest.mark.slow, *theirs]


@pytest.mark.parametrize("name", PROBES + [pytest.param(name, marks=marks(name)) for name in REGISTERED])
def test_conforms(name):
    check_environment(name)


def test_the_quick_ones_are_registered():
    assert set(REGISTERED) > QUICK


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
