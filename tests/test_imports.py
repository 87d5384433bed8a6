"""Who may import whom, over every file there is."""

import ast
import importlib.util
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = {"zerocopy_seed": ROOT / "zerocopy_seed", "zerocopy_envs": ROOT / "envs" / "zerocopy_envs"}

# Imports point down this list only; modules of one line do not import each other. "" is the package itself.
LAYERS = (
    ("",),
    ("cli",),
    ("bench", "certificates", "doctor", "launch_ray"),
    ("policy",),
    ("loops",),
    ("summary",),
    ("checkpoint", "experience", "plotting", "progress"),
    ("curves",),
    ("journal", "manifest", "metrics", "metrics_page"),
    ("hosts", "orbax_arrays", "tensorboard"),
    ("files", "leaves", "rendezvous"),
    ("remote",),
    ("rollout", "episodes"),
    ("agents",),
    ("recurrent",),
    ("networks", "replay"),
    ("ops", "keys"),
    ("config_file",),
    ("config_checks", "config_flags", "extras"),
    ("config_sources", "config_sweep", "config_tables"),
    ("config_keys", "replay_layout"),
    ("config", "interquartile", "restarts", "types"),
)
PURE = {
    "rollout",
    "episodes",
    "agents",
    "recurrent",
    "networks",
    "replay",
    "replay_layout",
    "ops",
    "keys",
    "leaves",
    "config",
    "config_checks",
    "config_keys",
    "config_sources",
    "config_sweep",
    "config_tables",
    "config_flags",
    "interquartile",
    "types",
}
IMPURE_MODULES = {"grpc", "orbax", "logging", "time", "datetime", "tensorboardX", "matplotlib"}
JAX_FREE = {
    "zerocopy_seed",
    "zerocopy_seed.bench.bridge_client",
    "zerocopy_seed.certificates",
    "zerocopy_seed.cli",
    "zerocopy_seed.config",
    "zerocopy_seed.config_checks",
    "zerocopy_seed.config_file",
    "zerocopy_seed.curves",
    "zerocopy_seed.doctor",
    "zerocopy_seed.experience",
    "zerocopy_seed.extras",
    "zerocopy_seed.files",
    "zerocopy_seed.journal",
    "zerocopy_seed.launch_ray",
    "zerocopy_seed.metrics_page",
    "zerocopy_seed.plotting",
    "zerocopy_seed.rendezvous",
    "zerocopy_seed.replay_layout",
    "zerocopy_seed.restarts",
    "zerocopy_seed.types",
    "zerocopy_seed.remote",
    "zerocopy_seed.remote.access",
    "zerocopy_seed.remote.actor",
    "zerocopy_seed.remote.addresses",
    "zerocopy_seed.remote.client",
    "zerocopy_seed.remote.codec",
    "zerocopy_seed.remote.diagnosis",
    "zerocopy_seed.remote.errors",
    "zerocopy_seed.remote.halves",
    "zerocopy_seed.remote.joining",
    "zerocopy_seed.remote.outbox",
    "zerocopy_seed.remote.retry",
    "zerocopy_seed.remote.specs",
    "zerocopy_seed.remote.transport",
    "zerocopy_seed.remote.usual",
    "zerocopy_seed.remote.wire_format",
    "zerocopy_envs",
    "zerocopy_envs.ale_games",
    "zerocopy_envs.brax_backends",
    "zerocopy_envs.checks.host_environment",
    "zerocopy_envs.checks.stream",
    "zerocopy_envs.errors",
    "zerocopy_envs.host_steps",
    "zerocopy_envs.listing",
    "zerocopy_envs.playground_names",
    "zerocopy_envs.registry",
    "zerocopy_envs.settings",
    "zerocopy_envs.suite_names",
    "zerocopy_envs.testing",
    "zerocopy_envs.trees",
    "zerocopy_envs.types",
    "zerocopy_envs.usable",
}
WITH_JAX = {
    "zerocopy_envs.host_adapter",  # the host contract around a JAX environment
    "zerocopy_envs.envpool_suite",  # EnvPool imports JAX
}


def modules(package: str, folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Dotted names and files of all modules of a package."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        found[".".join((package, *(part for part in parts if part != "__init__")))] = path
    return found


def imported(name: str, path: pathlib.Path, known: set[str]) -> Iterator[str]:
    """Dotted names of what a module imports, at any depth; `from package import module` gives the module."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield inner if inner in known else base


def layer_violations(sources: dict[str, pathlib.Path]) -> list[str]:
    """Imports up, sideways, or from zerocopy_envs to zerocopy_seed; and modules without a place."""
    rank = {module: place for place, layer in enumerate(LAYERS) for module in layer}
    every = {package: modules(package, folder) for package, folder in sources.items()}
    known = {name for found in every.values() for name in found}
    violations = []
    for name, path in every["zerocopy_envs"].items():
        up = {other for other in imported(name, path, known) if other.split(".")[0] == "zerocopy_seed"}
        violations += [f"{name} imports {other}" for other in sorted(up)]
    for name, path in every["zerocopy_seed"].items():
        own = _part(name)
        if own not in rank:
            violations.append(f"{name} has no place in LAYERS")
            continue
        others = {other for other in imported(name, path, known) if other.split(".")[0] == "zerocopy_seed"}
        violations += [
            f"{name} imports {other}"
            for other in sorted(others)
            if _part(other) != own and rank.get(_part(other), len(LAYERS)) <= rank[own]
        ]
    return violations


def purity_violations(sources: dict[str, pathlib.Path]) -> list[str]:
    """Impure imports and jit in pure modules; zerocopy_envs, whose checks compile, may jit in functions."""
    violations = []
    for package, folder in sources.items():
        found = modules(package, folder)
        for name, path in found.items():
            if package == "zerocopy_seed" and _part(name) not in PURE:
                continue
            impure = {other.split(".")[0] for other in imported(name, path, set(found))} & IMPURE_MODULES
            if package == "zerocopy_envs":
                impure -= {"time"}
            violations += [f"{name} imports {other}" for other in sorted(impure)]
            tree = ast.parse(path.read_text(encoding="utf-8"))
            nodes = ast.walk(tree) if package == "zerocopy_seed" else _module_level(tree)
            if any(_is_jit(node) for node in nodes):
                violations.append(f"{name} jits")
    return violations


def _part(name: str) -> str:
    """The module or package directly below the root package that a name belongs to."""
    return name.split(".")[1] if "." in name else ""


def _is_jit(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("jit", "pmap") and isinstance(node.value, ast.Name) and node.value.id == "jax"
    return isinstance(node, ast.Name) and node.id in ("jit", "pmap")


def _module_level(node: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: decorators and defaults, not the bodies of functions."""
    for field, value in ast.iter_fields(node):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and field == "body":
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
                yield from _module_level(child)


def _is_host_adapter(path: pathlib.Path) -> bool:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            bases = {base.id for base in node.bases if isinstance(base, ast.Name)}
            methods = {inner.name for inner in node.body if isinstance(inner, ast.FunctionDef)}
            if {"send", "recv"} <= methods and "Protocol" not in bases:
                return True
    return False


def test_imports_point_down():
    assert layer_violations(SOURCES) == []


def test_pure_modules_stay_pure():
    assert purity_violations(SOURCES) == []


def test_scripts_are_imported_by_nobody():
    for package, folder in SOURCES.items():
        for name, path in modules(package, folder).items():
            assert not {other for other in imported(name, path, set()) if other.split(".")[0] == "scripts"}, (
                name
            )


def test_no_jax_where_actors_and_help_need_none():
    found = {
        name: path for package, folder in SOURCES.items() for name, path in modules(package, folder).items()
    }
    names = [
        name for name, path in found.items() if name in JAX_FREE or name.startswith("zerocopy_seed.config")
    ]
    adapters = [
        name
        for name, path in found.items()
        if name not in names and name not in WITH_JAX and _is_host_adapter(path)
    ]
    assert len(names) > 10
    program = """
import importlib, sys
num_required = int(sys.argv[1])
for place, name in enumerate(sys.argv[2:]):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if place < num_required or error.name.startswith("zerocopy_"):
            raise  # an adapter's simulator may be missing, nothing else
    if "jax" in sys.modules or "jaxlib" in sys.modules:
        sys.exit(f"{name} imports jax")
"""
    command = [sys.executable, "-c", program, str(len(names)), *names, *adapters]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'envs'}"}
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_the_rules_notice_what_breaks_them(tmp_path):
    files = {
        "seed/__init__.py": "",
        "seed/novelty.py": "",
        "seed/types.py": "import logging",
        "seed/ops/__init__.py": "",
        "seed/ops/targets.py": "from zerocopy_seed.agents import actor_critic",
        "seed/agents/__init__.py": "from . import actor_critic\nfrom .. import types",
        "seed/agents/actor_critic.py": "import jax\ndef f():\n  import zerocopy_seed.loops\n  jax.jit(f)",
        "seed/loops/__init__.py": "import time, jax\nrun = jax.jit(f)",
        "envs/__init__.py": "import zerocopy_seed.types",
        "envs/testing.py": "import jax\ndef check():\n  return jax.jit(f)",
        "envs/eager.py": "import jax\n@jax.jit\ndef step(): ...",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    sources = {"zerocopy_seed": tmp_path / "seed", "zerocopy_envs": tmp_path / "envs"}
    assert sorted(layer_violations(sources)) == [
        "zerocopy_envs imports zerocopy_seed.types",
        "zerocopy_seed.agents.actor_critic imports zerocopy_seed.loops",
        "zerocopy_seed.novelty has no place in LAYERS",
        "zerocopy_seed.ops.targets imports zerocopy_seed.agents.actor_critic",
    ]
    assert sorted(purity_violations(sources)) == [
        "zerocopy_envs.eager jits",
        "zerocopy_seed.agents.actor_critic jits",
        "zerocopy_seed.types imports logging",
    ]
