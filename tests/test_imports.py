"""Imports run one way, from room to room; and the core knows no Kafka, clock, environment or log."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "workers"
# A module may import its own room and those after it.
ROOMS = (
    "cli",
    "commands",
    "dashboard",
    "client",
    "replay",
    "agents",
    "privacy",
    "pipeline",
    "events",
    "kafka",
    "settings",
    "mechanisms",
    "arrays",
    "runtime",
)
# What the pure core may use: itself, arithmetic, and what turns keys into words.
CORE = {
    "__future__",
    "cryptography",
    "bisect",
    "collections",
    "dataclasses",
    "datetime",
    "decimal",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "importlib",  # the registry imports every module of the room
    "itertools",
    "json",
    "math",
    "msgspec",
    "numpy",
    "pathlib",
    "pkgutil",
    "re",
    "statistics",
    "struct",
    "threading",
    "types",
    "typing",
    "workers.runtime.errors",
    "workers.runtime.frozen",
    "workers.runtime.sizes",
    "workers.arrays",
    "workers.mechanisms",
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `workers`."""
    found = {}
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return {name: path for name, path in found.items() if name}


@cache
def imported(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports, wherever in the file it does."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                names.add(
                    full
                    if full.removeprefix("workers.") in modules()
                    else node.module or ""
                )
    return names


def rank(module: str) -> int:
    return ROOMS.index(module.split(".")[0])


def above(module: str, names: set[str]) -> Iterator[str]:
    own = {
        name.removeprefix("workers.") for name in names if name.startswith("workers.")
    }
    return (name for name in own if rank(name) < rank(module))


def allowed_in_core(name: str) -> bool:
    return any(name == good or name.startswith(good + ".") for good in CORE)


def test_the_core_does_arithmetic_and_nothing_else() -> None:
    """A release must be a function of its inputs: time, offsets and randomness arrive as arguments."""
    files = list((ROOT / "mechanisms").rglob("*.py"))
    assert len(files) > 40
    for path in files:
        foreign = {name for name in imported(path) if not allowed_in_core(name)}
        assert not foreign, f"{path.name} imports {foreign}"


@pytest.mark.slow
def test_no_room_imports_one_above_it() -> None:
    """What knows Kafka may know the core; never the other way round."""
    for module, path in modules().items():
        found = sorted(above(module, imported(path)))
        assert not found, f"workers.{module} imports {found}, which lie above it"


@pytest.mark.slow
def test_no_modules_import_each_other_in_a_circle() -> None:
    """Within a room too: a circle is one idea in two files, or two ideas that do not know which comes first."""
    own = modules().keys()
    edges = {
        m: {n.removeprefix("workers.") for n in imported(p)} & own - {m}
        for m, p in modules().items()
    }
    while leaves := {module for module, to in edges.items() if not to & edges.keys()}:
        edges = {module: to for module, to in edges.items() if module not in leaves}
    assert not edges, f"each of these imports another of them: {sorted(edges)}"


@pytest.mark.parametrize(
    "name",
    ["time", "os", "random", "logging", "confluent_kafka", "workers.kafka.shard"],
)
def test_the_check_refuses_what_it_is_there_for(name: str) -> None:
    """A rule that lets everything through tests nothing."""
    assert not allowed_in_core(name)
    assert list(above("mechanisms.noise.keyed", {"workers.kafka.shard"})) == [
        "kafka.shard"
    ]
    assert list(above("mechanisms.noise.keyed", {"workers.settings.files"})) == [
        "settings.files"
    ]


def test_shards_decode_with_decoders_that_were_made_at_import() -> None:
    """Two threads that first decode into a struct type at once crash the process, in msgspec."""
    for module, path in modules().items():
        if module.split(".")[0] in {"events", "kafka", "pipeline", "agents"}:
            assert not re.findall(r"msgspec\.\w+\.decode\(.*type=", path.read_text()), (
                module
            )
