"""What the binary formats share: how wanted fields fit a schema, program texts, known schemas.

While a schema is walked along the tree of wanted fields, a `Fit` notes which of them it can have. A
schema that does not fit the settings is refused, with the reason.

A *program* is the tables that a compiled scanner (`avro_scanner`, `protobuf_scanner`) follows in
place of a schema: rows of integers, with references to each other by number. `tree` is the tree of
wanted fields (`events.tree`), a *node* a place in it with all that is wanted there: a single value
(`slot`), items to count (`many`), fields of an object (`children`), or something in every element
of a list (`elements`). A path names a place for messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from workers.arrays.types import Bytes, Longs
from workers.events.log import Output
from workers.events.schemas import Schema
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path
from workers.runtime.frozen import read_only


class SchemaRefused(Exception):
    """Reason why no event of a schema can be used, from a fixed set, with configured paths."""


NOT_OF_FORMAT = "schema of another format"
UNREADABLE = "schema cannot be read"
NO_MESSAGE = "no such message in the schema"

# Imports that a reason names, and the characters of each: a schema may have any number.
_IMPORTS_MAX = 3
_IMPORT_LENGTH_MAX = 120


class Unreadable(SchemaRefused):
    """No event of a schema can be read; `imports` are those it needs and nothing provides."""

    def __init__(self, imports: Sequence[str] = ()) -> None:
        super().__init__(UNREADABLE)
        self.imports = imports


def imports_named(names: Sequence[str]) -> str:
    """Return the first few imports in words, each truncated, and how many more there are."""
    shown = [repr(name[:_IMPORT_LENGTH_MAX]) for name in names[:_IMPORTS_MAX]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


#: Scans a batch from a record on, until the `Output` is full; returns the first one not scanned.
RecordScan = Callable[[int, Output], int]


class Program:
    """Builder of a scanner's program for one tree, to which a format adds schemas. Not thread-safe.

    Texts of the program (names of fields, symbols of enums, defaults) are rows' starts and stops in
    `texts`, which the caller puts behind the records of a batch: so scanners find all texts in one
    array.
    """

    def __init__(self, tree: Node) -> None:
        self.tree = tree
        self._texts = bytearray()
        self._names: list[tuple[int, int, int]] = []

    def complete(self) -> Any:
        """Return the program as the scanner's arrays."""
        raise NotImplementedError

    @property
    def texts(self) -> Bytes:
        """All texts of the program, in UTF-8, end to end."""
        return read_only(np.frombuffer(bytes(self._texts), dtype=np.uint8))

    def text(self, text: str) -> tuple[int, int]:
        """Add a text; return its start and stop in `texts`."""
        start = len(self._texts)
        # A schema's JSON may hold half a surrogate pair, which UTF-8 cannot encode.
        self._texts += text.encode(errors="replace")
        return start, len(self._texts)

    def names(self, names: list[tuple[str, int]]) -> tuple[int, int]:
        """Add rows of `names`: each a name's start and stop in `texts`, and the number given.

        Returns the first row and how many there are.
        """
        first = len(self._names)
        self._names += [(*self.text(name), number) for name, number in names]
        return first, len(names)


P = TypeVar("P", bound=Program)


class SchemaFormat(Generic[P]):
    """The schemas of records read by one thread; subclasses add, scan and decode them."""

    #: Whether records name a message of their schema.
    names_messages: ClassVar[bool]

    def __init__(self, builder: P) -> None:
        self._builder = builder
        # The program so far, as the scanner's arrays: complete again after each schema.
        self.program = builder.complete()
        self.texts = builder.texts
        #: The scanner's start row, by the number that `add` returns.
        self.roots: list[int] = []
        #: Wanted fields missing from the last schema added.
        self.absent: list[str] = []
        #: Its imports that nothing provides, and that no wanted field needs.
        self.missing: Sequence[str] = ()

    def add(self, schema: Schema, message: bytes) -> int:
        """Add a schema, or its message; return its number. SchemaRefused if no event is usable."""
        raise NotImplementedError

    def scanner(
        self, data: Bytes, values: Longs, roots: Longs, base: int
    ) -> RecordScan:
        """Return the scanner of a batch.

        `values`, int64 (n, 2), has start and stop of each record in `data`, and `roots` the row of
        the program where it starts, or DECLINED; the program's texts are in `data` from `base` on.
        """
        raise NotImplementedError

    def decode(self, number: int, payload: bytes) -> Any:
        """Return a record as Python objects; raise ValueError with the reject reason."""
        raise NotImplementedError

    def _accept(self, root: int, fit: Fit) -> int:
        """Number a schema that the builder has added, with start row `root`; or SchemaRefused."""
        refusal = fit.refusal()
        if refusal is not None:
            raise SchemaRefused(refusal)
        self.absent = fit.absent()
        self.program = self._builder.complete()
        self.texts = self._builder.texts
        self.roots.append(root)
        return len(self.roots) - 1


ROOT = Path(())
#: A place where nothing is wanted.
UNWANTED = Node()


def child(path: Path, name: str) -> Path:
    """Return the path of a field of the object at `path`."""
    return Path((*path.steps, name), path.list_at)


def element(path: Path) -> Path:
    """Return the path of every element of the list at `path`."""
    return Path(path.steps, len(path.steps))


def paths_of(node: Node, path: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield the slots of wanted values in a tree, with their paths.

    A list of objects has a slot too, which only tells its elements apart: it is left out.
    """
    if node.slot != NO_SLOT:
        yield node.slot, path
    for name, inner in node.children.items():
        yield from paths_of(inner, child(path, name))
    if node.elements is not None:
        yield from paths_of(node.elements, element(path))


def wants(node: Node) -> bool:
    """Return whether anything is wanted at a place or below it."""
    return node.slot != NO_SLOT or bool(node.children) or node.elements is not None


class Fit:
    """Findings per wanted field while a schema is walked. Not thread-safe.

    A schema may have several types at a place (a union). It is refused if a wanted field is
    impossible in one of them and possible in none. A field about which nothing is found is absent,
    which refuses nothing: its events may be rejects.
    """

    def __init__(self, tree: Node) -> None:
        # All by slot.
        self._paths: Mapping[int, Path] = dict(paths_of(tree))
        self._possible: set[int] = set()
        self._why_impossible: dict[int, str] = {}

    def possible(self, node: Node) -> None:
        """Note that a place may have a value, of whatever type; not what may be in it."""
        self._possible.add(node.slot)

    def _impossible(self, node: Node, path: Path, what: str) -> None:
        """Note that nothing wanted at or below `path` can exist: the schema has `what` there."""
        for slot, inner in paths_of(node, path):
            if inner == path:
                reason = f"field {str(inner)!r} is {what} in the schema"
            else:
                outer = repr(str(path)) if path.steps else "the event"
                reason = f"field {str(inner)!r}: {outer} is {what} in the schema"
            self._why_impossible.setdefault(slot, reason)

    def refuse(self, node: Node, path: Path, what: str) -> None:
        """Note that the value at `path` has a type that cannot be wanted: not even `possible`."""
        self._possible.discard(node.slot)
        self._impossible(Node(node.slot), path, what)

    def no_fields(self, node: Node, path: Path, what: str) -> None:
        """Note that the value at `path` has no fields: the schema has `what` there."""
        self._impossible(Node(children=node.children), path, what)

    def no_elements(self, node: Node, path: Path, what: str) -> None:
        """Note that the value at `path` has no elements: the schema has `what` there."""
        self._impossible(Node(elements=node.elements), path, what)

    def no_parts(self, node: Node, path: Path, what: str) -> None:
        """Note that the value at `path` has no fields or elements: the schema has `what` there."""
        self.no_fields(node, path, what)
        self.no_elements(node, path, what)

    def refusal(self) -> str | None:
        """Return the refusal of the schema, naming the first impossible field; None if usable."""
        # A field may be impossible in one branch of a union and possible in another.
        for slot in self._paths:
            if slot in self._why_impossible and slot not in self._possible:
                return self._why_impossible[slot]
        return None

    def absent(self) -> list[str]:
        """Return the wanted fields that the schema does not mention."""
        return [
            str(path)
            for slot, path in self._paths.items()
            if slot not in self._possible | self._why_impossible.keys()
        ]
