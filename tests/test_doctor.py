"""What the doctor finds: real files, ports and limits; a driver that a script stands in for."""

import contextlib
import os
import pathlib
import resource
import socket
import subprocess
import sys

import pytest

from zerocopy_envs.errors import UserError
from zerocopy_seed import doctor
from zerocopy_seed.doctor import gpu, machine, packages
from zerocopy_seed.doctor.finding import Finding


def test_numbers_of_versions():
    assert packages.is_older("0.9.1", "0.10")
    assert packages.is_older("525.60", "525.60.13")
    assert not packages.is_older("580.65.06", "580")
    assert not packages.is_older("1.0", "1.0.0")
    assert not packages.is_older("2.0rc1", "2")


@pytest.fixture
def versions(monkeypatch):
    """Stands in for what is installed."""

    def put(**installed: str) -> None:
        def version_of(package: str) -> str:
            return installed.get(package.replace("-", "_"), "")

        monkeypatch.setattr(packages, "version_of", version_of)
        monkeypatch.setattr(gpu, "version_of", version_of)

    return put


def test_what_is_too_old_or_does_not_fit_is_broken(versions, monkeypatch):
    monkeypatch.setattr(
        "importlib.metadata.requires", lambda _: ['jax[cuda12]>=0.10; extra == "cuda12"', "tomli-w"]
    )
    versions(jax="0.9.2", jaxlib="0.9.2", jax_cuda12_plugin="0.8.0")
    broken = {finding.subject: finding for finding in packages.check_packages() if finding.is_broken}
    assert set(broken) == {"jax", "jax-cuda12-plugin"}
    assert broken["jax"].remedy == 'at least 0.10 is needed: pip install "jax>=0.10"'
    assert "jaxlib is 0.9.2" in broken["jax-cuda12-plugin"].remedy


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """Puts an nvidia-smi first on the path."""

    def put(*lines: str, code: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        says = "\n".join(f"echo '{line}'" for line in lines)
        program.write_text(f"#!/bin/sh\n{says}\nexit {code}\n")
        program.chmod(0o755)

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return put


@pytest.mark.parametrize(
    ("number", "installed", "words", "is_broken"),
    [
        ("570.86.10", "cuda12", "570.86.10, new enough for cuda12 (525)", False),
        (
            "570.86.10",
            "cuda13",
            "570.86.10, too old for cuda13; update the driver to 580 or newer, or pip ",
            True,
        ),
        ("580.65.06", "cuda13", "580.65.06, new enough for cuda13 (580)", False),
        ("470.1", "cuda12", "470.1, too old for cuda12; update the driver to 525 or newer", True),
        ("580.65.06", "", 'no CUDA extra is installed; pip install "zerocopy_seed[cuda13]"', False),
        ("570.86.10", "", 'no CUDA extra is installed; pip install "zerocopy_seed[cuda12]"', False),
        ("470.1", "", "no CUDA extra is installed; 525 or newer is needed", False),
    ],
)
def test_the_driver_against_the_cuda_extra(driver, versions, number, installed, words, is_broken):
    driver(f"NVIDIA H200, {number}")
    versions(**({f"jax_{installed}_plugin": "0.10.2"} if installed else {}))
    device, found = gpu.check_gpu()
    assert device == Finding("device", "NVIDIA H200")
    line = f"{found.found}; {found.remedy}" if found.remedy else found.found
    assert words in line and found.is_broken == is_broken


def test_no_gpu(driver, versions, monkeypatch):
    driver("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.", code=9)
    versions()
    (found,) = gpu.check_gpu()
    assert found.is_broken and "could not communicate" in found.found and "--gpus all" in found.remedy
    monkeypatch.setenv("PATH", "/nowhere")
    assert [*gpu.check_gpu()] == [Finding("device", "none (no nvidia-smi)")]
    versions(jax_cuda12_plugin="0.10.2")
    (found,) = gpu.check_gpu()
    assert found.is_broken and found.found == "none (no nvidia-smi), and cuda12 is installed"


def test_addresses(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        text = f"127.0.0.1:{taken.getsockname()[1]}"
        found = machine.check_address(text)
        assert found.is_broken and found.found == f"{text}: Address already in use"
    assert machine.check_address(text) == Finding("address", f"{text} can be listened on")
    assert "needs TLS and a token" in machine.check_address("0.0.0.0:0").remedy
    assert machine.check_address("192.0.2.7:0").is_broken  # nobody's here
    assert not machine.check_address(f"unix:{tmp_path}/bridge").remedy
    with pytest.raises(UserError):
        machine.check_address("nonsense")


@contextlib.contextmanager
def small_disk(path: pathlib.Path):
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)


def test_disks(tmp_path):
    found = machine.check_disk(tmp_path / "runs" / "one")
    assert f"GB free for {tmp_path}/runs/one" in found.found and not found.is_broken
    (tmp_path / "file").write_text("")
    found = machine.check_disk(tmp_path / "file" / "run")
    assert found.is_broken and found.found == f"{tmp_path}/file cannot be written"


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small disk needs root")
def test_a_full_disk(tmp_path):
    with small_disk(tmp_path / "small"):
        found = machine.check_disk(tmp_path / "small" / "run")
    assert found.is_broken and found.found.startswith("0.0 GB free")


def test_open_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (250, hard))
        assert machine.check_files().is_broken
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        assert machine.check_files() == Finding(
            "open files", "1024, room for 384 actors", "ulimit -n 2304 for more"
        )
        if hard == resource.RLIM_INFINITY or hard >= 2304:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2304, hard))
            assert machine.check_files() == Finding("open files", "2304, room for 1,024 actors", "")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_roms(tmp_path, monkeypatch):
    (tmp_path / "ale_py").mkdir()
    (tmp_path / "ale_py" / "__init__.py").write_text("")
    (tmp_path / "ale_py" / "roms.py").write_text(
        "def get_all_rom_ids(): return ['pong', 'alien']\ndef get_rom_path(name): return None\n"
    )
    for name in ("ale_py", "ale_py.roms"):
        monkeypatch.setitem(sys.modules, name, None)  # noted, so that the stand-in is forgotten afterwards
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = machine.check_roms()
    assert found.is_broken and found.found == "0 found, not Pong"


def test_what_is_broken_is_marked_and_ends_with_1(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        doctor, "_check_jax", lambda: [Finding("computes", "no: it is stubbed", "mend it", True)]
    )
    monkeypatch.setattr(doctor, "check_gpu", lambda: ())
    assert doctor.run("127.0.0.1:0", tmp_path) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "! computes           no: it is stubbed; mend it" in lines
    assert lines[-1] == "1 thing is broken, marked with !"
    monkeypatch.setattr(doctor, "_check_jax", lambda: [Finding("computes", "yes")])
    assert doctor.run("127.0.0.1:0", tmp_path) == 0
