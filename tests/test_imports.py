"""Imports run one way: cli -> app -> agents -> mechanisms; and the core knows no Kafka, clock, environment or log."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "workers"
LAYERS = (
    "cli", "commands", "demo", "dashboard", "replay", "app", "plan", "monitor", "agents", "kafka", "tables", "mechanisms",
    "metrics", "logs", "errors",
)  # fmt: skip
# What the pure core may use: itself, arithmetic, and what turns keys into words.
CORE = {
    "__future__", "cryptography", "bisect", "collections", "dataclasses", "datetime", "decimal", "fractions", "functools", "hashlib",
    "heapq", "itertools", "json", "math", "msgspec", "numpy", "pathlib", "statistics", "struct", "threading", "types", "typing",
    "workers.errors", "workers.mechanisms",
}  # fmt: skip


def imported(path: Path) -> set[str]:
    """Dotted names of the modules that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return names


def allowed_in_core(name: str) -> bool:
    return any(name == good or name.startswith(good + ".") for good in CORE)


def test_the_core_does_arithmetic_and_nothing_else() -> None:
    """A release must be a function of its inputs: time, offsets and randomness arrive as arguments."""
    for path in (ROOT / "mechanisms").glob("*.py"):
        foreign = {name for name in imported(path) if not allowed_in_core(name)}
        assert not foreign, f"{path.name} imports {foreign}"


def test_no_layer_imports_one_above_it() -> None:
    """What knows Kafka may know the core; never the other way round."""
    rank = {layer: i for i, layer in enumerate(LAYERS)}
    for path in ROOT.rglob("*.py"):
        own = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for name in imported(path):
            layer = name.split(".")[1] if name.startswith("workers.") else None
            if own in rank and layer in rank:
                if own == "tables" and layer == "kafka":
                    continue  # the store reads its changelog through a connection
                if {own, layer} <= {"cli", "commands", "demo", "replay", "app"}:
                    continue  # the outermost ring
                assert rank[own] <= rank[layer], f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("name", ["time", "os", "random", "logging", "confluent_kafka", "workers.kafka.shard"])
def test_the_check_refuses_what_it_is_there_for(name: str) -> None:
    """A rule that lets everything through tests nothing."""
    assert not allowed_in_core(name)


def test_no_file_holds_two_ideas() -> None:
    """Past 400 lines a file is looked through, not found."""
    long = [p for folder in (ROOT, ROOT.parent / "tests", ROOT.parent / "bench") for p in folder.rglob("*.py")]
    assert not [str(p) for p in long if len(p.read_text().splitlines()) > 400]
