"""The scripts of deploy/slurm, run with stand-ins for Slurm's commands: what they start, and how they end."""

import contextlib
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import time

import pytest
from command_lines import ROOT, parse

FOLDER = ROOT / "deploy" / "slurm"
SCRIPTS = {path.stem: path for path in sorted(FOLDER.glob("*.sbatch"))}
OPTIONS = set((pathlib.Path(__file__).parent / "schemas" / "sbatch_options.txt").read_text().split())
SRUN_OPTIONS = {"--het-group", "--export", "--kill-on-bad-exit"}

# Each writes what it was called with; the learner stays until it is told to end, or ends with `code`.
STAND_INS = {
    "zerocopy-seed": """
        printf '%s\\n' "$@" > "$RECORD/$1.new" && mv "$RECORD/$1.new" "$RECORD/$1"
        [ "$1" = actor ] && exit "$(cat "$RECORD/actor_code" 2>/dev/null || echo 0)"
        [ -e "$RECORD/code" ] && exit "$(cat "$RECORD/code")"
        trap 'touch "$RECORD/saved"; exit 0' TERM
        echo $$ > "$RECORD/pid"
        sleep 60 & wait
    """,
    "srun": """
        while case "$1" in --*) true;; *) false;; esac; do echo "$1" >> "$RECORD/srun"; shift; done
        "$@"; code=$?
        echo "$code" > "$RECORD/srun_ended.new" && mv "$RECORD/srun_ended.new" "$RECORD/srun_ended"
        exit "$code"
    """,
    "scontrol": 'echo "$@" > "$RECORD/scontrol"',
    "scancel": 'echo "$@" > "$RECORD/scancel"; kill -TERM "$(cat "$RECORD/pid")"',
    "hostname": "echo gpu01",
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts a script as Slurm does, and ends what is left of it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in STAND_INS.items():
        (programs / name).write_text("#!/bin/sh\n" + text)
        (programs / name).chmod(0o755)
    started = []

    def run(name, **environment):
        process = subprocess.Popen(
            ["bash", SCRIPTS[name]],
            cwd=tmp_path,
            env=os.environ
            | {"PATH": f"{programs}:{os.environ['PATH']}", "RECORD": str(tmp_path), "SLURM_JOB_ID": "7"}
            | environment,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for(path):
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"no {path.name}"
        time.sleep(0.02)


def words_of(path):
    return ["zerocopy-seed", *path.read_text().splitlines()]


def directives(script):
    """The options of the #SBATCH lines that Slurm reads: those before the first command."""
    for line in script.splitlines():
        if line.startswith("#SBATCH"):
            yield line.removeprefix("#SBATCH").split("#")[0].strip()
        elif line.strip() and not line.startswith("#"):
            return


def unknown_options(script):
    return [line for line in directives(script) if line != "hetjob" and line.partition("=")[0] not in OPTIONS]


@pytest.mark.parametrize("name", SCRIPTS)
def test_slurm_knows_the_options(name):
    script = SCRIPTS[name].read_text()
    assert len(list(directives(script))) == script.count("\n#SBATCH") > 5
    assert unknown_options(script) == []
    assert unknown_options(script.replace("--cpus-per-task", "--cpu-per-task"))
    assert {"--requeue", "--signal=B:TERM@120", "--open-mode=append"} <= set(directives(script))


CLUSTER = """
ClusterName=none
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=9
AuthType=auth/none
MessageTimeout=1
SelectType=select/cons_tres
GresTypes=gpu
NodeName=n1
PartitionName=all Nodes=n1
"""


@pytest.mark.parametrize("name", SCRIPTS)
def test_sbatch_takes_the_options_and_looks_for_a_cluster(name, tmp_path):
    if shutil.which("sbatch") is None:
        pytest.skip("sbatch is not installed: apt-get install slurm-client")
    (tmp_path / "slurm.conf").write_text(CLUSTER)

    def submitted(script):
        (tmp_path / "script").write_text(script)
        return subprocess.run(
            ["sbatch", "--test-only", tmp_path / "script"],
            capture_output=True,
            text=True,
            env=os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")},
        ).stderr

    script = SCRIPTS[name].read_text()
    assert submitted(script).startswith("allocation failure: Unable to contact slurm controller")
    both = script.replace("#SBATCH --mem-per-cpu=4G", "#SBATCH --mem-per-cpu=4G\n#SBATCH --mem=4G")
    assert "mutually exclusive" in submitted(both)


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_can_read_it(name):
    subprocess.run(["bash", "-n", SCRIPTS[name]], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_shellcheck_finds_nothing(name):
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed: apt-get install shellcheck")
    subprocess.run(["shellcheck", SCRIPTS[name]], check=True)


@pytest.mark.parametrize("name", SCRIPTS)
def test_told_to_end_it_saves_and_stands_in_line_again(name, start, tmp_path):
    process = start(name)
    wait_for(tmp_path / "pid")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "scontrol").read_text() == "requeue 7\n"
    for option in (tmp_path / "srun").read_text().split():
        assert option.partition("=")[0] in SRUN_OPTIONS
    train = words_of(tmp_path / "train")
    config, run_dir = parse(train).values
    with pytest.raises(AssertionError, match="nonsense"):
        parse([*train, "--nonsense", "1"])
    if name == "train":
        wait_for(tmp_path / "actor")
        actor = parse(words_of(tmp_path / "actor"))
        assert actor.values == (f"gpu01:{config.bridge.address.rpartition(':')[2]}",)
        (num_actors,) = [
            line for line in directives(SCRIPTS[name].read_text()) if line.startswith("--ntasks=")
        ][1:]
        assert config.env.num_envs == int(num_actors.partition("=")[2]) * actor.options["num_envs"]

    else:
        sizes = dict(line.split("=") for line in directives(SCRIPTS[name].read_text()) if "=" in line)
        assert config.devices.learner == int(sizes["--nodes"]) * int(sizes["--gpus-per-node"])

    (tmp_path / run_dir).mkdir(parents=True)
    (tmp_path / run_dir / "config.toml").touch()
    (tmp_path / "code").write_text("0")
    assert start(name).wait(60) == 0
    assert words_of(tmp_path / "train") == [*train[:5], "--resume", *train[5:]]


@pytest.mark.parametrize(
    ("code", "restarts", "requeued"), [(0, 0, False), (1, 0, True), (1, 50, False), (2, 0, False)]
)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_run_that_ends_by_itself(name, code, restarts, requeued, start, tmp_path):
    (tmp_path / "code").write_text(str(code))
    ended = start(name, SLURM_RESTART_COUNT=str(restarts)).wait(60)
    assert (tmp_path / "scontrol").exists() == requeued
    assert requeued or ended == code


def test_a_mistake_in_what_actors_are_told_is_not_tried_again(start, tmp_path):
    (tmp_path / "actor_code").write_text("2")
    start("train")
    wait_for(tmp_path / "srun_ended")
    assert (tmp_path / "srun_ended").read_text() == "2\n"


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_hears_signals_before_the_learner_starts(name):
    script = SCRIPTS[name].read_text()
    assert script.index("\ntrap ") < script.index("\nsrun ")
    assert script.index("\ntrap ") < script.index("zerocopy-seed train")


def test_the_commands_of_the_readme_are_the_commands_there_are():
    readme = (ROOT / "deploy" / "README.md").read_text()
    blocks = [block.partition("\n```")[0] for block in readme.split("```sh\n")[1:]]
    commands = [line for block in blocks for line in block.replace("\\\n", "").splitlines()]
    own = [shlex.split(line) for line in commands if line.startswith("zerocopy-seed")]
    parsed = [parse(words) for words in own]
    assert [one.command for one in parsed] == ["certs", "launch"]
    # What is the actors' is handed on as it is, credentials included.
    assert own[1][:5] == ["zerocopy-seed", "launch", "ray", "--actors", "64"]
    assert parsed[1].values == (own[1][5:],) and "--token-file" in own[1]
    assert parsed[1].options == {"num_actors": 64, "num_cpus": 1.0, "ray_address": "auto"}
    for words in map(shlex.split, commands):
        for word in words:
            if ".yaml" in word or ".sbatch" in word:
                assert (ROOT / "deploy" / word.rpartition("=")[2]).exists()
