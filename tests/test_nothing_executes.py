"""Nothing that arrives is executed: neither the syntax trees nor a run unpickle or evaluate anything."""

import ast
import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
FOLDERS = (ROOT / "zerocopy_seed", ROOT / "envs" / "zerocopy_envs", ROOT / "scripts", ROOT / "examples")

MODULES = {
    "pickle",
    "_pickle",
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "yaml",
    "codeop",
}
BUILTINS = {"eval", "exec", "compile", "__import__"}
CALLS = {"load_pickle", "read_pickle", "unsafe_load", "full_load"}


def dangers(tree: ast.AST) -> list[str]:
    """What in a syntax tree may execute what it reads, by line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [alias.name for alias in node.names]
            roots = {name.partition(".")[0] for name in ([module] if module else names)}
            found += [f"{node.lineno}: imports {root}" for root in sorted(roots & MODULES)]
            if isinstance(node, ast.ImportFrom):
                found += [f"{node.lineno}: imports {name}" for name in names if name in CALLS]
        elif isinstance(node, ast.Name) and node.id in BUILTINS:
            found.append(f"{node.lineno}: {node.id}")
        elif isinstance(node, ast.Attribute):
            of_builtins = isinstance(node.value, ast.Name) and node.value.id in ("builtins", "__builtins__")
            if node.attr in CALLS or (of_builtins and node.attr in BUILTINS):
                found.append(f"{node.lineno}: {node.attr}")
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                is_false = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg == "allow_pickle" and not is_false:
                    found.append(f"{node.lineno}: allow_pickle")
                is_true = isinstance(keyword.value, ast.Constant) and keyword.value.value is True
                if keyword.arg == "shell" and is_true:
                    found.append(f"{node.lineno}: shell")
            if isinstance(node.func, ast.Attribute) and node.func.attr in ("system", "popen"):
                found.append(f"{node.lineno}: {node.func.attr}")
    return found


def test_no_syntax_tree_holds_what_executes():
    files = [path for folder in FOLDERS for path in sorted(folder.rglob("*.py"))]
    assert len(files) > 150
    found = {
        str(path.relative_to(ROOT)): wrong
        for path in files
        if (wrong := dangers(ast.parse(path.read_text(encoding="utf-8"))))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from pickle import loads",
        "import os, cloudpickle.cloudpickle",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=wanted)",
        "eval(text)",
        "run = exec",
        "builtins.eval(text)",
        "pandas.read_pickle(path)",
        "import marshal",
        "import shelve",
        "import yaml",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
    ],
)
def test_the_rule_notices_what_executes(line):
    assert dangers(ast.parse(f"def f():\n    {line}"))


def test_the_rule_lets_the_rest_pass():
    harmless = "np.load(path, allow_pickle=False); jax.jit(f).lower(x).compile(); re.compile(x); model.eval()"
    assert dangers(ast.parse(harmless)) == []


# Imported by the interpreter before anything else of a process, its children's too.
_SITECUSTOMIZE = """
import os, pickle, _pickle, marshal, shelve


def refuse(*arguments, **options):
    with open(os.environ["UNPICKLED"], "a") as file:
        file.write("1")
    raise RuntimeError("somebody unpickles")


class Refusing:
    def __init__(self, *arguments, **options):
        refuse()


for module in (pickle, _pickle):
    module.load = module.loads = refuse
    module.Unpickler = Refusing
pickle._Unpickler = Refusing
shelve.open = refuse
"""

_CONFIG = """
total_env_steps = 64
agent = { unroll_length = 4 }
network = { hidden_sizes = [4], init = "lecun" }
metrics = { every_env_steps = 32, tensorboard = false }
[env]
name = "zerocopy:Catch"
num_envs = 4
settings = { rows = 4, columns = 3 }
"""


_PROGRAM = """
import pickle, sys
try:
    pickle.loads(pickle.dumps(1))
except RuntimeError:
    pass
else:
    sys.exit("pickle works")
from zerocopy_seed import cli
for words in (
    "train small.toml --run-dir run --env.place actors --bridge.local-actors 1",
    "train --resume --run-dir run --total-env-steps 128",
    "evaluate run --episodes 4",
):
    if code := cli.main(words.split()):
        sys.exit(f"{words}: {code}")
"""


@pytest.mark.slow
def test_training_saving_restoring_and_actors_work_where_nothing_can_be_unpickled(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(_SITECUSTOMIZE)
    (tmp_path / "small.toml").write_text(_CONFIG)
    noted = tmp_path / "unpickled"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}:{ROOT}:{ROOT / 'envs'}",
        "UNPICKLED": str(noted),
    }
    command = [sys.executable, "-c", _PROGRAM]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert found.returncode == 0, (found.stdout, found.stderr)
    assert noted.read_text() == "1"  # the program's own try
    assert "resuming run at" in found.stdout and "4 episodes: " in found.stdout, found.stdout
