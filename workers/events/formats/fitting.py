"""Check that wanted fields can occur in a schema (a string has no fields), and shared helpers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from workers.events.field_spans import FieldSpans, parts
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path


class Refused(Exception):
    """Reason why no event of a schema can be used, from a fixed set, with configured paths."""


NOT_OF_FORMAT = "schema of another format"
UNREADABLE = "schema cannot be read"
NO_MESSAGE = "no such message in the schema"


Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
#: Scans from a record on into `number` and the unused log; returns the next record and rows used.
Logging = Callable[[int, Longs, Longs, int], tuple[int, int]]


def logged(
    data: Bytes, values: Longs, logging: Logging, decode: Callable[[int], object]
) -> Iterator[FieldSpans]:
    return parts(
        values, lambda begin, number, rows: (data, logging(begin, number, rows, 0)[0]), decode
    )


ROOT = Path(())


def child(path: Path, name: str) -> Path:
    return Path((*path.steps, name), path.list_at)


def element(path: Path) -> Path:
    return Path(path.steps, len(path.steps))


def paths_of(node: Node, path: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield the slots of a tree, except those of lists, with their paths."""
    if node.slot != NO_SLOT:
        yield node.slot, path
    for name, inner in node.children.items():
        yield from paths_of(inner, child(path, name))
    if node.elements is not None:
        yield from paths_of(node.elements, element(path))


def wants(node: Node | None) -> bool:
    """Return whether a node or anything below it is wanted."""
    return node is not None and (
        node.slot != NO_SLOT or bool(node.children) or node.elements is not None
    )


class Fit:
    """Findings per wanted field while a schema is walked. Not thread-safe."""

    def __init__(self, tree: Node) -> None:
        self._paths: Mapping[int, Path] = dict(paths_of(tree))
        self._possible: set[int] = set()
        self._why: dict[int, str] = {}

    def possible(self, node: Node) -> None:
        """Note that a place may have a value, of whatever type."""
        self._possible.add(node.slot)

    def impossible(self, node: Node, path: Path, what: str) -> None:
        """Note that nothing wanted at or below `path` can exist: the schema has `what` there."""
        for slot, inner in paths_of(node, path):
            if inner == path:
                reason = f"field {str(inner)!r} is {what} in the schema"
            else:
                outer = repr(str(path)) if path.steps else "the event"
                reason = f"field {str(inner)!r}: {outer} is {what} in the schema"
            self._why.setdefault(slot, reason)

    def refuse(self, node: Node, path: Path, what: str) -> None:
        """Note that the value at `path` is of a type that cannot be wanted there."""
        self._possible.discard(node.slot)
        self.impossible(Node(node.slot), path, what)

    def within(self, node: Node, path: Path, what: str) -> None:
        """Note that nothing can exist below `path`: the schema has `what` there."""
        self.impossible(Node(children=node.children, elements=node.elements), path, what)

    def refusal(self) -> str | None:
        """Return the refusal of the schema, naming the first impossible field; None if usable."""
        for slot in self._paths:
            if slot in self._why and slot not in self._possible:
                return self._why[slot]
        return None

    def absent(self) -> list[str]:
        return [
            str(path)
            for slot, path in self._paths.items()
            if slot not in self._possible | self._why.keys()
        ]
