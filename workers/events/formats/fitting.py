"""Whether what is wanted can be in a schema: a string has no fields, a record no elements.

What it means that a schema cannot be used.

What a binary format's scanner finds of a batch, whichever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from workers.events.logs import Logs, parts
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path


class Refused(Exception):
    """Why no event of a schema can be used: a reason from a fixed set, with paths of settings."""


NOT_OF_FORMAT = "schema of another format"
UNREADABLE = "schema cannot be read"
NO_MESSAGE = "no such message in the schema"


Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]
#: From a record on, into `number` and the log behind what is used of it: where it stopped, and how
#: much is used now.
Logging = Callable[[int, Longs, Longs, int], tuple[int, int]]


def logged(
    data: Bytes, values: Longs, logging: Logging, decode: Callable[[int], object]
) -> Iterator[Logs]:
    """Scan the records of a batch; see `events.logs.parts`."""
    return parts(
        values, lambda begin, number, rows: (data, logging(begin, number, rows, 0)[0]), decode
    )


ROOT = Path(())


def child(path: Path, name: str) -> Path:
    """Return the path of a field of what is at `path`."""
    return Path((*path.steps, name), path.list_at)


def element(path: Path) -> Path:
    """Return the path of each element of the list at `path`."""
    return Path(path.steps, len(path.steps))


def paths_of(node: Node, path: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield the slots of a tree, but those of lists, with their paths."""
    if node.slot != NO_SLOT:
        yield node.slot, path
    for name, inner in node.children.items():
        yield from paths_of(inner, child(path, name))
    if node.elements is not None:
        yield from paths_of(node.elements, element(path))


def wants(node: Node | None) -> bool:
    """Tell whether anything is wanted at or within a place."""
    return node is not None and (
        node.slot != NO_SLOT or bool(node.children) or node.elements is not None
    )


class Fit:
    """What was found out about each wanted field while a schema was walked. Of one thread."""

    def __init__(self, tree: Node) -> None:
        self._paths: Mapping[int, Path] = dict(paths_of(tree))
        self._possible: set[int] = set()
        self._why: dict[int, str] = {}

    def possible(self, node: Node) -> None:
        """Note that there is a value at a place, of whatever type."""
        self._possible.add(node.slot)

    def impossible(self, node: Node, path: Path, what: str) -> None:
        """Note that what is wanted at and within `path` cannot be there, which is `what`."""
        for slot, inner in paths_of(node, path):
            if inner == path:
                reason = f"field {str(inner)!r} is {what} in the schema"
            else:
                outer = repr(str(path)) if path.steps else "the event"
                reason = f"field {str(inner)!r}: {outer} is {what} in the schema"
            self._why.setdefault(slot, reason)

    def refuse(self, node: Node, path: Path, what: str) -> None:
        """Note that what is at `path` is nothing that can be wanted there."""
        self._possible.discard(node.slot)
        self.impossible(Node(node.slot), path, what)

    def within(self, node: Node, path: Path, what: str) -> None:
        """Note that nothing can be within what is at `path`, which is `what`."""
        self.impossible(Node(children=node.children, elements=node.elements), path, what)

    def refusal(self) -> str | None:
        """Return why events of the schema cannot be used: the first field that cannot be in it."""
        for slot in self._paths:
            if slot in self._why and slot not in self._possible:
                return self._why[slot]
        return None

    def absent(self) -> list[str]:
        """Return the paths of fields that the schema does not have."""
        return [
            str(path)
            for slot, path in self._paths.items()
            if slot not in self._possible | self._why.keys()
        ]
