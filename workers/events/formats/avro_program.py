"""Compile a writer's schema and the wanted paths into a program for `avro_scanner`.

With a reader's schema, paths use its names and its defaults become constants of the program. Where
resolution requires more than that, the program declines. Logical types are ignored: a timestamp is
the number as written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import fastavro
import numpy as np
from numpy.typing import NDArray

from workers.events.formats import avro_scanner
from workers.events.formats.fitting import ROOT, Fit, child, element, paths_of, wants
from workers.events.log import FALSE, LIST, MAP, MAP_NAMES_MAX, NULL, OTHER, REAL, TEXT, TRUE, VALUE
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path
from workers.runtime.frozen import read_only

PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_NAMED = frozenset(("record", "error", "enum", "fixed"))
_PROMOTED = MappingProxyType(
    {
        "int": ("long", "float", "double"),
        "long": ("float", "double"),
        "float": ("double",),
        "string": ("bytes",),
        "bytes": ("string",),
    }
)


class Unsure(Exception):
    """A case that schema resolution here does not cover; fastavro decides record by record."""


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema in fastavro's form; `names` has all named types, including references."""

    text: Any
    names: Mapping[str, Any] = field(repr=False)

    def as_field(self) -> Any:
        """Return a record schema with this type as its only field, `value`: the encoding is equal.

        fastavro drops the referenced names of a schema that is not an object.
        """
        record = {
            "type": "record",
            "name": "QuietcountEvent",
            "fields": [{"name": "value", "type": self.text}],
        }
        return fastavro.parse_schema(record, named_schemas=dict(self.names))

    def type_of(self, written: Any) -> Any:
        """Resolve a type: a list for a union, else an object with a `type`."""
        while not isinstance(written, list):
            if isinstance(written, str):
                if written in PRIMITIVES:
                    return {"type": written}
                written = self.names[written]
            elif isinstance(written["type"], str) and written["type"] not in self.names:
                return written
            else:
                written = written["type"]
        return written


def parse(text: str, references: Sequence[str] = ()) -> AvroSchema:
    """Parse a schema in JSON and the referenced schemas, dependencies first.

    Raises ValueError if it is invalid; the message shows none of its content.
    """
    names: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(_plain(json.loads(reference)), named_schemas=names)
        parsed = fastavro.parse_schema(_plain(json.loads(text)), named_schemas=names)
    except RecursionError:
        raise ValueError("no Avro schema: nested too deeply") from None
    except Exception as error:  # noqa: BLE001
        # fastavro can raise any exception for a malformed schema.
        raise ValueError(f"no Avro schema: {type(error).__name__}") from None
    return AvroSchema(parsed, names)


def _plain(schema: Any) -> Any:
    """Remove logical types, and replace every primitive `{"type": name}` by its name."""
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        name: value
        for name, value in schema.items()
        if name not in ("logicalType", "precision", "scale")
    }
    for name in ("type", "items", "values"):
        if name in made:
            made[name] = _plain(made[name])
    if isinstance(made.get("fields"), list):
        made["fields"] = [_plain(each) for each in made["fields"]]
    if isinstance(made.get("type"), str) and made["type"] in PRIMITIVES and "name" not in made:
        return made["type"]
    return made


def matches(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> bool:
    """Return whether fastavro's preliminary check accepts type `written` for type `read`.

    Raises Unsure if it accepts types that differ in kind.
    """
    w, r = writer.type_of(written), reader.type_of(read)
    if isinstance(w, list) or isinstance(r, list):
        return True
    kind, other = w["type"], r["type"]
    if kind in _NAMED and other in _NAMED:
        name, aliases = w["name"], r.get("aliases", ())
        short = name.rsplit(".", 1)[-1]
        if short != r["name"].rsplit(".", 1)[-1] and name not in aliases and short not in aliases:
            return False
        if kind != other or (kind == "fixed" and w["size"] != r["size"]):
            raise Unsure
        return True
    if kind == other == "map":
        return matches(writer, w["values"], reader, r["values"])
    if kind == other == "array":
        return matches(writer, w["items"], reader, r["items"])
    return bool(kind == other or other in _PROMOTED.get(kind, ()))


def chosen(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> Any:
    """Return the branch of `read` that a non-union type `written` becomes; raise Unsure if none."""
    options = reader.type_of(read)
    for option in options if isinstance(options, list) else [options]:
        if matches(writer, written, reader, option):
            return reader.type_of(option)
    raise Unsure


def fields_of(w: Mapping[str, Any], r: Mapping[str, Any]) -> tuple[list[Any], list[Any]]:
    """Match the fields of a writer's record `w` to those of a reader's record `r`.

    Returns the reader's field for each of the writer's, None if dropped; then the reader's fields
    that the writer does not have. Raises Unsure if two fields would become the same one.
    """
    left = {each["name"]: each for each in r["fields"]}
    aliases = {alias: each for each in r["fields"] for alias in each.get("aliases", ())}
    found: list[Any] = []
    for each in w["fields"]:
        taken = left.get(each["name"], aliases.get(each["name"]))
        if taken is not None and left.pop(taken["name"], None) is None:
            raise Unsure
        found.append(taken)
    return found, list(left.values())


Longs = NDArray[np.int64]

_FLAT = MappingProxyType(
    {
        "null": avro_scanner.NULL_OP,
        "boolean": avro_scanner.BOOLEAN,
        "int": avro_scanner.INT,
        "long": avro_scanner.LONG,
        "float": avro_scanner.FLOAT,
        "double": avro_scanner.DOUBLE,
        "string": avro_scanner.STRING,
        "bytes": avro_scanner.BYTES,
        "fixed": avro_scanner.FIXED,
        "enum": avro_scanner.ENUM,
    }
)
_WORDS = MappingProxyType(
    {
        "boolean": "a boolean",
        "int": "an int",
        "long": "a long",
        "float": "a float",
        "double": "a double",
        "string": "a string",
        "bytes": "bytes",
        "fixed": "fixed bytes",
        "enum": "an enum",
    }
)
_LEAST, _MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class AvroArrays:
    """The program arguments of `avro_scanner.event`; `texts`, uint8, follows the records."""

    program: Longs
    parts: Longs
    names: Longs
    constants: Longs
    texts: NDArray[np.uint8]


class AvroProgram:
    """The program for one tree, to which schemas are added. Not thread-safe."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        self._rows: list[list[int]] = []
        self._parts: list[int] = []
        self._names: list[tuple[int, int, int]] = []
        self._constants: list[tuple[int, int, int, int]] = []
        self._texts = bytearray()

    def add(self, writer: AvroSchema, reader: AvroSchema | None = None) -> tuple[int, int, Fit]:
        """Add a schema; return its start row, another that only checks every byte, and the fit."""
        fit = Fit(self._tree)
        root = _Walk(self, fit, writer, reader).place(
            writer.text, None if reader is None else reader.text, self._tree
        )
        return root, _Walk(self, Fit(Node()), writer, None).place(writer.text, None, None), fit

    def arrays(self) -> AvroArrays:
        def longs(rows: object, columns: int) -> Longs:
            return read_only(np.array(rows, dtype=np.int64).reshape(-1, columns))

        return AvroArrays(
            longs(self._rows, avro_scanner.COLUMNS),
            read_only(np.array(self._parts, dtype=np.int64)),
            longs(self._names, 3),
            longs(self._constants, 4),
            read_only(np.frombuffer(bytes(self._texts), dtype=np.uint8)),
        )

    def row(
        self, op: int, slot: int = NO_SLOT, a: int = 0, b: int = 0, c: int = 0, d: int = 0
    ) -> int:
        self._rows.append([op, slot, a, b, c, d])
        return len(self._rows) - 1

    def fill(self, row: int, *columns: int) -> None:
        self._rows[row] = [*columns, *([0] * (avro_scanner.COLUMNS - len(columns)))]

    def text(self, text: str) -> tuple[int, int]:
        start = len(self._texts)
        self._texts += text.encode(errors="replace")
        return start, len(self._texts)

    def parts(self, rows: list[int]) -> tuple[int, int]:
        first = len(self._parts)
        self._parts += rows
        return first, len(rows)

    def names(self, names: list[tuple[str, int]]) -> tuple[int, int]:
        first = len(self._names)
        self._names += [(*self.text(name), row) for name, row in names]
        return first, len(names)

    def constants(self, rows: list[tuple[int, int, int, int]]) -> int:
        first = len(self._constants)
        self._constants += rows
        return self.row(avro_scanner.CONSTANT, NO_SLOT, first, len(rows))


class _Walk:
    """A walk of one schema along one tree. Every type at every place gets one row."""

    def __init__(
        self, program: AvroProgram, fit: Fit, writer: AvroSchema, reader: AvroSchema | None
    ) -> None:
        self._program, self._fit, self._writer, self._reader = program, fit, writer, reader
        self._made: dict[tuple[int, int, int], int] = {}
        # Keeps objects alive whose ids are keys of `_made`.
        self._alive: list[object] = []

    def place(self, written: Any, read: Any, node: Node | None, path: Path = ROOT) -> int:
        """Return the row of a value of type `written`, read as type `read` (None: as written)."""
        w = self._writer.type_of(written)
        if not wants(node):
            node = None
        r = None if read is None or self._reader is None else self._reader.type_of(read)
        if isinstance(w, dict) and w["type"] in _FLAT and w["type"] not in ("enum", "fixed"):
            key = None
        else:
            key = (id(w), id(r), id(node))
            if key in self._made:
                return self._made[key]
            self._alive += (w, r, node)
        row = self._program.row(avro_scanner.DECLINE)
        if key is not None:
            self._made[key] = row
        try:
            if isinstance(w, list):
                rows = [self._branch(branch, read, node, path) for branch in w]
                self._program.fill(row, avro_scanner.UNION, NO_SLOT, *self._program.parts(rows))
            else:
                r = (
                    None
                    if r is None or self._reader is None
                    else chosen(self._writer, w, self._reader, r)
                )
                self._one(row, w, r, node, path)
        except Unsure:
            self._program.fill(row, avro_scanner.DECLINE, NO_SLOT)
        return row

    def _branch(self, written: Any, read: Any, node: Node | None, path: Path) -> int:
        """Return the row of a union branch; a flat value on a wanted path declines."""
        w = self._writer.type_of(written)
        within = node is not None and bool(node.children or node.elements)
        if within and node is not None and w["type"] in _FLAT and w["type"] != "null":
            # The general reader decides how paths through such a value resolve.
            self._fit.possible(node)
            self._fit.within(node, path, _WORDS[w["type"]])
            return self._program.row(avro_scanner.DECLINE)
        return self.place(written, read, node, path)

    def _one(self, row: int, w: Any, r: Any, node: Node | None, path: Path) -> None:
        kind: str = w["type"]
        if kind in _FLAT:
            self._flat(row, w, r, node, path)
        elif kind == "array":
            self._array(row, w, r, node, path)
        elif kind == "map":
            self._map(row, w, r, node, path)
        else:
            self._record(row, w, r, node, path)

    def _flat(self, row: int, w: Any, r: Any, node: Node | None, path: Path) -> None:
        kind: str = w["type"]
        slot = NO_SLOT if node is None else node.slot
        if node is not None and kind != "null":
            self._fit.possible(node)
            self._fit.within(node, path, _WORDS[kind])
        if (
            r is not None
            and slot != NO_SLOT
            and kind != r["type"]
            and (kind, r["type"]) not in (("int", "long"), ("float", "double"))
        ):
            raise Unsure
        a = b = 0
        if kind == "fixed":
            a = w["size"]
        elif kind == "enum":
            if r is not None and not set(w["symbols"]) <= set(r["symbols"]):
                raise Unsure
            a, b = self._program.names([(symbol, 0) for symbol in w["symbols"]])
        self._program.fill(row, _FLAT[kind], slot, a, b)

    def _array(self, row: int, w: Any, r: Any, node: Node | None, path: Path) -> None:
        of = None if r is None else r["items"]
        if (
            r is not None
            and self._reader is not None
            and not matches(self._writer, w["items"], self._reader, of)
        ):
            raise Unsure
        slot, head, inner = NO_SLOT, NO_SLOT, None
        if node is not None:
            self._fit.possible(node)
            self._fit.impossible(Node(children=node.children), path, "a list")
            if node.many:
                if node.children or node.elements is not None:
                    raise Unsure
                head, inner = node.slot, Node(node.slot)
            else:
                slot = node.slot
                if node.elements is not None:
                    head, inner = node.list_slot, node.elements
            if node.many or node.elements is not None:
                path = element(path)
        items = self._element(w["items"], of, inner, path)
        self._program.fill(row, avro_scanner.ARRAY, slot, items, head)

    def _element(self, written: Any, read: Any, node: Node | None, path: Path) -> int:
        """Return the row of an element; a null declines if its fields are wanted."""
        w = self._writer.type_of(written)
        if node is None or not node.children or not isinstance(w, list):
            return self.place(written, read, node, path)
        rows = [
            self._program.row(avro_scanner.DECLINE)
            if self._writer.type_of(branch) == {"type": "null"}
            else self._branch(branch, read, node, path)
            for branch in w
        ]
        return self._program.row(avro_scanner.UNION, NO_SLOT, *self._program.parts(rows))

    def _map(self, row: int, w: Any, r: Any, node: Node | None, path: Path) -> None:
        of = None if r is None else r["values"]
        if (
            r is not None
            and self._reader is not None
            and not matches(self._writer, w["values"], self._reader, of)
        ):
            raise Unsure
        slot, head, inner, first, number = NO_SLOT, NO_SLOT, None, 0, 0
        if node is not None:
            self._fit.possible(node)
            self._fit.impossible(Node(elements=node.elements), path, "a map")
            if node.many:
                if node.children or node.elements is not None:
                    raise Unsure
                head, inner = node.slot, Node(node.slot)
            else:
                slot = node.slot
                if len(node.children) > avro_scanner.CHILDREN_MAX:
                    raise Unsure
                rows = [
                    (name, self.place(w["values"], of, each, child(path, name)))
                    for name, each in node.children.items()
                ]
                first, number = self._program.names(rows)
        values = self.place(w["values"], of, inner, path)
        self._program.fill(row, avro_scanner.MAP_OP, slot, values, head, first, number)

    def _record(self, row: int, w: Any, r: Any, node: Node | None, path: Path) -> None:
        read, left = ([None] * len(w["fields"]), []) if r is None else fields_of(w, r)
        many = node is not None and node.many
        if node is not None:
            self._fit.possible(node)
            self._fit.impossible(Node(elements=node.elements), path, "a record")
            if many and (
                node.children
                or node.elements is not None
                or len(w["fields"]) > MAP_NAMES_MAX
                or r is not None
            ):
                raise Unsure
        rows: list[int] = []
        if node is not None and many:
            rows.append(self._program.constants([(node.slot, MAP, len(w["fields"]), -1)]))
        for each, becomes in zip(w["fields"], read, strict=True):
            name = each["name"] if becomes is None else becomes["name"]
            of = None if becomes is None else becomes["type"]
            inner = None
            if node is not None and many:
                rows.append(self._program.constants([(node.slot, TEXT, *self._program.text(name))]))
                inner = Node(node.slot)
            elif node is not None and (r is None or becomes is not None):
                inner = node.children.get(name)
            rows.append(self.place(each["type"], of, inner, child(path, name)))
        for each in left:
            if "default" not in each:
                raise Unsure
            inner = None if node is None else node.children.get(each["name"])
            if wants(inner) and inner is not None:
                rows.append(
                    self._program.constants(list(self._default(each["default"], inner, path)))
                )
        slot = NO_SLOT if node is None or many else node.slot
        self._program.fill(row, avro_scanner.RECORD, slot, *self._program.parts(rows))

    def _default(self, value: Any, node: Node, path: Path) -> list[tuple[int, int, int, int]]:
        """Return log rows for a reader's default, which is a JSON value."""
        for slot, _ in paths_of(node):
            self._fit.possible(Node(slot))
        rows: list[tuple[int, int, int, int]] = []
        if isinstance(value, dict):
            if node.many:
                if len(value) > MAP_NAMES_MAX or node.children or node.elements is not None:
                    raise Unsure
                rows.append((node.slot, MAP, len(value), -1))
                for name, each in value.items():
                    rows += [
                        (node.slot, TEXT, *self._program.text(name)),
                        self._scalar(each, node.slot),
                    ]
                return rows
            if node.slot != NO_SLOT:
                rows.append((node.slot, OTHER, -1, -1))
            for name, each in node.children.items():
                if name in value:
                    rows += self._default(value[name], each, path)
        elif isinstance(value, list) and node.many:
            if node.elements is not None:
                raise Unsure
            rows = [
                (node.slot, LIST, len(value), -1),
                *(self._scalar(each, node.slot) for each in value),
            ]
        elif isinstance(value, list) and node.elements is not None:
            if node.slot != NO_SLOT:
                rows.append((node.slot, OTHER, -1, -1))
            rows.append((node.list_slot, LIST, len(value), -1))
            for each in value:
                if node.elements.children and not isinstance(each, dict):
                    raise Unsure
                rows += self._default(each, node.elements, path)
        else:
            if value is not None and (node.children or node.elements is not None):
                raise Unsure
            if node.slot != NO_SLOT:
                rows.append(self._scalar(value, node.slot))
        return rows

    def _scalar(self, value: Any, slot: int) -> tuple[int, int, int, int]:
        if isinstance(value, str):
            return (slot, TEXT, *self._program.text(value))
        if value is None or isinstance(value, bool):
            return slot, NULL if value is None else TRUE if value else FALSE, -1, -1
        if isinstance(value, int) and _LEAST <= value <= _MOST:
            return slot, VALUE, value, -1
        if isinstance(value, float) and not math.isnan(value):
            return slot, REAL, int(np.float64(value).view(np.int64)), -1
        return slot, OTHER, -1, -1
