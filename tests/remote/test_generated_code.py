"""The committed code is what the generator makes of bridge.proto."""

import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_the_committed_code_is_the_generators(tmp_path):
    pytest.importorskip("grpc_tools")
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{ROOT}", *outputs]
    subprocess.run([*command, str(ROOT / "zerocopy_seed/remote/bridge.proto")], check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "zerocopy_seed/remote").iterdir()}
    folder = ROOT / "zerocopy_seed/remote"
    assert sorted(made) == ["bridge_pb2.py", "bridge_pb2.pyi", "bridge_pb2_grpc.py"]
    for name, text in made.items():
        assert (folder / name).read_text() == text, f"{name}: run `make proto`"
