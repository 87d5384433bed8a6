"""The command: help without JAX, one line for a mistake, and what it hands on."""

import dataclasses
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import types

import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed import cli
from zerocopy_seed.config import Config
from zerocopy_seed.config_file import dump_config, load_config
from zerocopy_seed.config_keys import keys

ROOT = pathlib.Path(__file__).parent.parent
MINIMAL = 'total_env_steps = 1000\n[env]\nname = "gymnax:CartPole-v1"\nnum_envs = 16\n'


@pytest.fixture
def config_path(tmp_path):
    path = tmp_path / "small.toml"
    path.write_text(MINIMAL)
    return path


@pytest.fixture
def stand_in(monkeypatch):
    """Puts a module with these attributes in the place of a real one, so that no JAX runs here."""

    def put(name: str, **attributes) -> None:
        module = types.ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)

    return put


@pytest.fixture
def calls(stand_in):
    """Arguments with which `train` was called."""
    seen = []

    def train(config, run_dir, *, resume, init_from, profile, stop):
        seen.append((config, run_dir, resume))
        return 0

    stand_in("zerocopy_seed.loops.train", train=train)
    return seen


def complaint(capsys, *words: str) -> str:
    """The one line on stderr, after exit code 2."""
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


def run_command(*words: str, before: str = "") -> subprocess.CompletedProcess:
    """The command in a process of its own, in which JAX cannot be imported."""
    lines = (
        "import sys",
        "sys.modules['jax'] = None",
        before,
        "from zerocopy_seed import cli",
        "sys.exit(cli.main())",
    )
    program = "\n".join(lines)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}", "COLUMNS": "110"}
    return subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env=environment
    )


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["evaluate", "-h"], ["--version"], []])
def test_help_needs_no_jax(words):
    result = run_command(*words)
    assert (result.returncode, result.stderr) == (0, "")
    assert "zerocopy-seed" in result.stdout


@pytest.mark.parametrize(
    "command", ["train", "actor", "evaluate", "plot", "bench", "envs", "certs", "doctor"]
)
def test_every_command_has_help(command, capsys):
    with (
        pytest.raises(SystemExit, match="^0$") if command != "train" else pytest.raises(SystemExit) as caught
    ):
        sys.exit(cli.main([command, "--help"]))
    assert caught.value.code == 0
    assert f"usage: zerocopy-seed {command}" in capsys.readouterr().out


def test_train_help_shows_every_key_with_its_default(capsys):
    cli.main(["train", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    for key in keys(Config):
        assert f"--{key.path.replace('_', '-')}" in words
        assert key.doc in words
    assert "--agent.learning-rate FLOAT Step size at the start. (default: 0.001)" in words
    assert re.search(r"--total-env-steps INT [^(]*\(default: none, required\)", words)
    assert "--network.torso {mlp,minatar_conv,nature_conv,halving_conv,impala_resnet}" in words


def test_train_help_shows_the_values_of_the_file_and_the_flags(config_path, capsys):
    cli.main(["train", str(config_path), "--agent.learning-rate", "0.5", "--help"])
    words = " ".join(capsys.readouterr().out.split())
    assert "--agent.learning-rate FLOAT Step size at the start. (default: 0.5)" in words
    assert re.search(r"--env.num-envs INT [^(]*\(default: 16\)", words)
    assert re.search(r"--total-env-steps INT [^(]*\(default: 1000\)", words)


def test_train_hands_on_the_configuration(config_path, tmp_path, calls):
    words = [
        "--seed",
        "7",
        "--agent.learning-rate",
        "1e-2",
        "--run-dir",
        str(tmp_path / "run"),
        "--env.num-envs=32",
    ]
    assert cli.main(["train", str(config_path), *words]) == 0
    expected = load_config(
        config_path, ["--seed", "7", "--agent.learning-rate", "1e-2", "--env.num-envs", "32"]
    )
    assert calls == [(expected, tmp_path / "run", False)]


def test_own_options_may_stand_before_the_configuration(config_path, tmp_path, calls):
    assert cli.main(["train", "--resume", "--run-dir", str(tmp_path), str(config_path), "--seed", "-0"]) == 0
    assert calls == [(load_config(config_path), tmp_path, True)]


def test_run_directory_is_named_after_the_configuration_and_the_time(config_path, calls):
    cli.main(["train", str(config_path)])
    ((_, run_dir, resume),) = calls
    assert re.fullmatch(r"runs/small-\d{8}-\d{6}", run_dir.as_posix())
    assert resume is False


def test_resume_finds_the_configuration_of_the_run(config_path, tmp_path, calls):
    config = load_config(config_path, ["--seed", "3"])
    (tmp_path / "config.toml").write_text(dump_config(config))
    assert cli.main(["train", "--resume", "--run-dir", str(tmp_path), "--total-env-steps", "2000"]) == 0
    assert calls == [(dataclasses.replace(config, total_env_steps=2000), tmp_path, True)]


def test_resume_as_another_agent_is_refused_before_its_keys(config_path, tmp_path, capsys):
    (tmp_path / "config.toml").write_text(dump_config(load_config(config_path)))
    assert cli.main(["train", "--resume", "--run-dir", str(tmp_path), "--agent.name", "r2d2"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("agent.name: expected 'vtrace', as in the run that is resumed, found 'r2d2'")


def test_exit_code_of_train_is_the_commands(config_path, stand_in):
    stand_in("zerocopy_seed.loops.train", train=lambda *arguments, **options: 1)
    assert cli.main(["train", str(config_path)]) == 1


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["trian"], ("trian", "did you mean train?")),
        (["--frobnicate"], ("--frobnicate", "--help")),
        (["train"], ("a configuration file", "CONFIG.toml")),
        (["train", "--resume"], ("--resume", "--run-dir")),
        (["train", "missing.toml"], ("missing.toml", "no such file")),
        (["train", "CONFIG", "other.toml"], ("other.toml", "--help")),
        (
            ["train", "CONFIG", "--agent.learnig-rate", "1"],
            ("--agent.learnig-rate", "did you mean learning_rate?"),
        ),
        (["train", "CONFIG", "--run-dir"], ("--run-dir", "expected one argument")),
        (["train", "CONFIG", "--env.num-envs", "6", "--devices.learner", "4"], ("4", "found 6")),
        (["evaluate"], ("RUN_DIR",)),
        (["evaluate", "missing"], ("missing", "config.toml")),
        (["evaluate", "missing", "--episodes", "0"], ("--episodes", "at least 1", "0")),
        (["evaluate", "missing", "--episodes", "x"], ("--episodes", "x")),
        (["plot"], ("RUN_DIR",)),
        (["plot", "missing"], ("missing", "a run directory", "config.toml")),
        (["plot", "missing", "--output", "curves.gif"], ("--output curves.gif", ".png, .svg or .pdf")),
        (["bench", "on_devcie"], ("on_devcie", "did you mean on_device?")),
        (["bench", "on_device", "--config", "missing.toml"], ("missing.toml",)),
        (["doctor", "--json"], ("--json",)),
    ],
)
def test_a_mistake_is_one_line(words, expected, config_path, calls, capsys):
    line = complaint(capsys, *(str(config_path) if word == "CONFIG" else word for word in words))
    assert [part for part in expected if part not in line] == []
    assert calls == []


def test_a_user_error_from_below_is_one_line(config_path, stand_in, capsys):
    def train(config, run_dir, *, resume, init_from, profile, stop):
        raise UserError(
            "environment 'gymnax:CartPol'", expected="a\nname", remedy="did you mean CartPole-v1?"
        )

    stand_in("zerocopy_seed.loops.train", train=train)
    assert "did you mean CartPole-v1?" in complaint(capsys, "train", str(config_path))


def test_an_unknown_environment_is_refused_before_anything_is_written(config_path, tmp_path, capsys):
    run_dir = tmp_path / "run"
    line = complaint(
        capsys, "train", str(config_path), "--env.name", "gymnax:CartPol-v1", "--run-dir", str(run_dir)
    )
    assert "'gymnax:CartPol-v1'" in line and "did you mean CartPole-v1?" in line
    assert not run_dir.exists()


def test_a_fault_of_the_program_is_not_hidden(config_path, stand_in):
    def train(config, run_dir, *, resume, init_from, profile, stop):
        importlib.import_module("zerocopy_seed.no_such_module")

    stand_in("zerocopy_seed.loops.train", train=train)
    with pytest.raises(ModuleNotFoundError):
        cli.main(["train", str(config_path)])


def test_a_missing_extra_names_the_command(config_path):
    plant = "import types; m = types.ModuleType('zerocopy_seed.loops.train')"
    plant += "; m.__getattr__ = lambda name: __import__('jax'); sys.modules[m.__name__] = m"
    result = run_command("train", str(config_path), before=plant)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("jax: expected it to be installed")
    assert line.endswith('; pip install "zerocopy_seed[learner]"')


def test_evaluate_prints_json_last(tmp_path, config_path, stand_in, capsys):
    (tmp_path / "config.toml").write_text(config_path.read_text())
    seen = []

    class Result:
        def to_json_object(self):
            return {"num_episodes": 3, "return_mean": 0.0}

        def __str__(self):
            return "3 episodes"

    def evaluate_run(run_dir, **options):
        seen.append((run_dir, options))
        return Result()

    stand_in("zerocopy_seed.loops.evaluate", evaluate_run=evaluate_run)
    assert (
        cli.main(["evaluate", str(tmp_path), "--episodes", "3", "--seed", "0", "--step", "0", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"num_episodes": 3, "return_mean": 0.0}
    assert cli.main(["evaluate", str(tmp_path), "--env", "gymnax:Other"]) == 0
    assert capsys.readouterr().out == "3 episodes\n"
    for _, options in seen:
        assert callable(options.pop("warn"))
    assert seen == [
        (tmp_path, {"num_episodes": 3, "seed": 0, "step": 0, "env": None, "video": None}),
        (tmp_path, {"num_episodes": 128, "seed": 0, "step": None, "env": "gymnax:Other", "video": None}),
    ]


def test_plot_draws_runs_and_refuses_what_it_cannot_read_or_write(tmp_path, config_path, capsys):
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "config.toml").write_text(config_path.read_text())
    assert "run: expected a run with metrics, found no metrics.jsonl there" in complaint(
        capsys, "plot", str(run_dir)
    )
    rows = [{"env_steps": 10 * n, "num_episodes": 1, "episode_return": float(n)} for n in range(1, 4)]
    (run_dir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    picture = tmp_path / "nowhere" / "curves.png"
    assert "a file that can be written" in complaint(capsys, "plot", str(run_dir), "--output", str(picture))
    picture = tmp_path / "curves.png"
    assert cli.main(["plot", str(run_dir), "--output", str(picture)]) == 0
    assert capsys.readouterr().out == f"{picture}: 1 curve of 1 run directory\n"
    assert picture.stat().st_size > 0


def test_bench_hands_on_configurations(config_path, stand_in):
    seen = []
    stand_in("zerocopy_seed.bench.on_device", run=lambda **options: seen.append(options))
    stand_in("zerocopy_seed.bench", on_device=None)
    assert cli.main(["bench", "on_device", "--json"]) == 0
    assert cli.main(["bench", "on_device", "--config", str(config_path)]) == 0
    assert cli.main(["bench", "on_device", "--num-envs", "64", "4096"]) == 0
    assert seen == [
        {"num_envs": [], "as_json": True},
        {"configs": [load_config(config_path)], "num_envs": [], "as_json": False},
        {"num_envs": [64, 4096], "as_json": False},
    ]


def test_words_that_a_flag_has_no_room_for_are_the_commands(config_path, stand_in):
    seen = []

    def train(config, run_dir, *, resume, init_from, profile, stop):
        seen.append(config)
        return 0

    stand_in("zerocopy_seed.loops.train", train=train)
    flags = ["--seed", "3", "--network.hidden-sizes", "8", "16", "--agent.discount=0.5"]
    assert cli.main(["train", *flags, str(config_path)]) == 0
    assert (seen[0].seed, seen[0].network.hidden_sizes, seen[0].agent.discount) == (3, (8, 16), 0.5)


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    observation: str = ""
    action: str = ""
    max_episode_steps: int | None = None
    problem: str = ""
    note: str = ""


def test_envs_prints_a_table_and_problems_below(stand_in, capsys):
    rows = [
        Row("gymnax:CartPole-v1", "float32[4]", "discrete(2)", 500),
        Row("a:b", "float32[10, 10, 4]", "bounded[2]", note="backends: one; not two"),
        Row("brax:*", problem='pip install "zerocopy_seed[brax]"'),
    ]
    stand_in("zerocopy_envs.listing", describe_environments=lambda: iter(rows))
    assert cli.main(["envs"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name                observation         action       max episode steps",
        "gymnax:CartPole-v1  float32[4]          discrete(2)  500",
        "a:b                 float32[10, 10, 4]  bounded[2]   -",
        "a:b: backends: one; not two",
        'brax:*: pip install "zerocopy_seed[brax]"',
    ]
    assert cli.main(["envs", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == [dataclasses.asdict(row) for row in rows]


def test_doctor_without_jax():
    hide = "import importlib.util as u; find = u.find_spec"
    hide += "; u.find_spec = lambda name, *rest: None if name == 'jax' else find(name, *rest)"
    result = run_command("doctor", before=hide)
    assert (result.returncode, result.stderr) == (0, "")
    assert re.search(r'learner +missing jax; pip install "zerocopy_seed\[learner\]"', result.stdout)
    assert "JAX\n" not in result.stdout


def test_modules_of_the_users_own_are_found_where_the_command_is_run(tmp_path):
    """The console script's directory is first on the path, not the current one."""
    script = tmp_path / "bin" / "zerocopy-seed"
    script.parent.mkdir()
    script.write_text("import sys\nfrom zerocopy_seed.cli import main\nsys.exit(main())\n")
    project = tmp_path / "project"
    project.mkdir()
    (project / "my_env.py").write_text("from zerocopy_envs.catch import Catch as make\n")
    (project / "my_net.py").write_text("import flax.linen\nclass Net(flax.linen.Module): ...\n")
    (project / "own.toml").write_text(
        'total_env_steps = 1000\n[env]\nname = "my_env:make"\n[network]\nname = "my_net:Net"\n'
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}"}
    result = subprocess.run(
        [sys.executable, str(script), "train", "own.toml"],
        capture_output=True,
        text=True,
        env=environment,
        cwd=project,
    )
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith("network.name 'my_net:Net': expected a class with a field 'spec'")


def test_the_package_offers_load_policy_without_importing_jax(tmp_path):
    program = "import sys, zerocopy_seed\nassert 'jax' not in sys.modules\nfrom zerocopy_seed import *"
    program += f"\ntry: load_policy({str(tmp_path)!r})\nexcept UserError as error: print(error)"
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}"}
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert result.stderr == ""
    assert result.stdout.startswith(f"{tmp_path}: expected a run directory")
