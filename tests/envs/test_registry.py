import subprocess
import sys

import pytest

import zerocopy_envs
from zerocopy_envs import UserError, registry
from zerocopy_envs.registry import Suite


def test_importing_and_listing_import_no_jax_and_no_suite():
    program = (
        "import sys, zerocopy_envs as z\n"
        "[z.environment_names(suite) for suite in z.suite_names()]\n"
        "print([m for m in ('jax', 'gymnax', 'gymnasium', 'ale_py', 'matplotlib') if m in sys.modules])"
    )
    path = [path for path in sys.path if path]
    out = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {path}\n{program}"],
        capture_output=True,
        text=True,
    )
    assert out.stdout.strip() == "[]", out.stderr


def test_gymnax_is_listed_whole_but_for_the_one_that_downloads():
    from zerocopy_envs.gymnax_suite import registration

    names = {name.removeprefix("gymnax:") for name in zerocopy_envs.environment_names("gymnax")}
    assert names == set(registration.registered_envs) - {"MNISTBandit-bsuite"}
    assert len(names) == 25


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("gymnaz:CartPole-v1", {}, ["'gymnaz:CartPole-v1'", "did you mean gymnax?"]),
        ("gymnax:CartPole-v2", {}, ["did you mean CartPole-v1?"]),
        ("gymnax:cartpole-v1", {}, ["did you mean CartPole-v1?"]),
        ("CartPole-v1", {}, ["suite:name", "did you mean gymnax:CartPole-v1?"]),
        ("gymnax:", {}, ["suite:name"]),
        (":Catch", {}, ["suite:name"]),
        ("no-such-thing", {}, ["suite:name", "zerocopy-seed envs"]),
        ("zerocopy:Blackjack", {}, ["known: Catch"]),
        ("..x:y", {}, ["suite:name"]),
        ("zerocopy:Catch", {"row": 4}, ["'row'", "did you mean rows?"]),
        ("zerocopy:Catch", {"rows": 4.5}, ["'rows'", "int", "4.5"]),
        ("zerocopy:Catch", {"rows": True}, ["'rows'", "int", "True"]),
        ("zerocopy:Catch", {"rows": 1}, ["'rows'", ">= 2"]),
        ("gymnax:CartPole-v1", {"max_steps": 4}, ["'max_steps'", "did you mean max_steps_in_episode?"]),
        ("gymnax:CartPole-v1", {"gravity": "9"}, ["'gravity'", "float"]),
        ("gymnax:CartPole-v1", {"max_steps_in_episode": 0}, ["'max_steps_in_episode'", ">= 1", "0"]),
        ("gymnax:MemoryChain-bsuite", {"memory_length": 1000}, ["'memory_length'", "max_steps_in_episode"]),
        ("gymnax:FrozenLake-misc", {"map_name": "5x5"}, ["5x5", "'4x4' or '8x8'"]),
        ("zerocopy_envs.nothing:make", {}, ["zerocopy_envs.nothing", "PYTHONPATH"]),
        ("zerocopy_envs.probes:truncate", {}, ["'truncate'", "did you mean truncated?"]),
        ("zerocopy_envs.probes:truncated", {"lenght": 3}, ["'lenght'", "did you mean length?"]),
        ("collections:OrderedDict", {}, ["OrderedDict", "EnvironmentSpec"]),
    ],
)
def test_mistakes_get_one_line_with_the_nearest_right_name(name, settings, words):
    with pytest.raises(UserError) as caught:
        zerocopy_envs.make(name, **settings)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


def test_a_factory_needs_no_registration():
    environment = zerocopy_envs.make("zerocopy_envs.probes:truncated", length=3)
    assert environment.spec.max_episode_steps == 3
    assert zerocopy_envs.environment_kind(environment) == "jax"


@pytest.fixture
def suites(monkeypatch):
    monkeypatch.setattr(registry, "_suites", dict(registry._suites))


def test_a_registered_suite_wins_over_a_module_of_its_name(suites):
    from zerocopy_envs.catch import Catch

    zerocopy_envs.register("json", lambda name, columns=5: Catch(columns=columns), ["loads"])
    assert isinstance(zerocopy_envs.make("json:loads", columns=3), Catch)
    with pytest.raises(UserError, match="did you mean columns"):
        zerocopy_envs.make("json:loads", column=3)
    with pytest.raises(UserError, match="not taken"):
        zerocopy_envs.register("json", "a.b:c", [])


def test_atari_through_gymnasium_needs_ale_py(monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)
    with pytest.raises(UserError, match=r"ale-py.*zerocopy_seed\[atari\]"):
        zerocopy_envs.make("gymnasium:ALE/Pong-v5")


def test_a_missing_package_names_the_command(monkeypatch):
    monkeypatch.setattr(registry, "_suites", {})
    zerocopy_envs.register("away", "no_such_package_here:make", ["A"], install='pip install "x[y]"')
    with pytest.raises(UserError, match=r'no_such_package_here.*pip install "x\[y\]"'):
        zerocopy_envs.make("away:A")
    rows = [row for row in zerocopy_envs.describe_environments()]
    assert [(row.name, row.problem) for row in rows] == [("away:*", 'pip install "x[y]"')]


def test_a_listing_says_what_a_suite_notes(monkeypatch):
    from zerocopy_envs.catch import Catch

    notes = {"A": "slow", "C": "broken here"}
    noted = Suite(("A", "B"), lambda name: Catch(rows=3), notes=notes)
    monkeypatch.setattr(registry, "_suites", {"noted": noted})
    rows = [(row.name, row.note, row.problem) for row in zerocopy_envs.describe_environments()]
    assert rows == [("noted:A", "slow", ""), ("noted:B", "", ""), ("noted:C", "", "broken here")]


@pytest.mark.parametrize("name", ["gymnasium:CartPole-v1", "gymnasium:Any-v0", "ale:Pong"])
def test_host_suites_without_their_packages_name_the_extra(monkeypatch, name):
    for module in ("gymnasium", "ale_py", "zerocopy_envs.gymnasium_suite", "zerocopy_envs.ale_suite"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=r'pip install "zerocopy_seed\[atari\]"'):
        zerocopy_envs.make(name)


class FakeEntryPoint:
    def __init__(self, name, value, loads):
        self.name, self.value, self._loads = name, value, loads

    def load(self):
        if isinstance(self._loads, Exception):
            raise self._loads
        return self._loads


def test_third_parties_register_by_entry_point(monkeypatch):
    from zerocopy_envs.catch import Catch

    points = [
        FakeEntryPoint("theirs", "theirs.envs:suite", Suite(("Small",), lambda name: Catch(rows=3))),
        FakeEntryPoint("broken", "broken.envs:suite", ImportError("no module named broken")),
        FakeEntryPoint("wrong", "wrong.envs:suite", 3),
    ]
    monkeypatch.setattr(registry.importlib.metadata, "entry_points", lambda group: points)
    assert {"theirs", "broken", "wrong"} < set(zerocopy_envs.suite_names())
    assert zerocopy_envs.environment_names("theirs") == ("theirs:Small",)
    assert zerocopy_envs.make("theirs:Small").spec.max_episode_steps == 2
    with pytest.raises(UserError, match="broken.envs:suite"):
        zerocopy_envs.make("broken:A")
    with pytest.raises(UserError, match="expected a zerocopy_envs.Suite"):
        zerocopy_envs.make("wrong:A")


@pytest.mark.slow
def test_environments_are_described():
    every = {row.name: row for row in zerocopy_envs.describe_environments()}
    always = ("zerocopy", "gymnax", "gymnasium", "ale")  # other suites may be missing, then they have one row
    rows = {name: row for name, row in every.items() if name.split(":")[0] in always}
    for suite in set(zerocopy_envs.suite_names()) - set(always):
        listed = [name for name in every if name.startswith(f"{suite}:")]
        assert listed == [f"{suite}:*"] or len(listed) == len(zerocopy_envs.environment_names(suite))
    assert len(rows) == 26 + 11 + 104 and not any(row.problem for row in rows.values())
    cartpole, pendulum = rows["gymnax:CartPole-v1"], rows["gymnax:Pendulum-v1"]
    assert (cartpole.observation, cartpole.action, cartpole.max_episode_steps) == (
        "float32[4]",
        "discrete(2)",
        500,
    )
    assert (pendulum.observation, pendulum.action) == ("float32[3]", "bounded[1]")
    pong, taxi = rows["ale:Pong"], rows["gymnasium:Taxi-v4"]
    assert (pong.observation, pong.action, pong.max_episode_steps) == ("uint8[84, 84]", "discrete(6)", 27_000)
    assert (taxi.observation, taxi.action) == ("float32[500]", "discrete(6)")
