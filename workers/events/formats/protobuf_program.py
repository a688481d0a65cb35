"""Message types and the wanted paths as the program of `events.formats.protobuf_scanner`."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.events.formats import protobuf_scanner
from workers.events.formats.fitting import ROOT, Fit, child, element, wants
from workers.events.log import FALSE, LIST, MAP, OTHER, REAL, TEXT, VALUE
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path
from workers.runtime.frozen import read_only

Longs = NDArray[np.int64]

_GROUP = 10


@dataclass(frozen=True)
class ProtobufArrays:
    """What `protobuf_log.event` takes of a program; `texts` uint8, which lie behind the records."""

    messages: Longs
    fields: Longs
    missing: Longs
    names: Longs
    texts: NDArray[np.uint8]
    lists: int


class ProtobufProgram:
    """A program of one tree, to which message types are added. Of one thread."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        self._messages: list[list[int]] = []
        self._fields: list[list[int]] = []
        self._missing: list[tuple[int, int, int, int, int, int]] = []
        self._names: list[tuple[int, int, int]] = []
        self._texts = bytearray()
        self._lists = 0

    def add(self, message: Any) -> tuple[int, Fit]:
        """Add a message type; return its row for a whole record, and what can be in it."""
        fit = Fit(self._tree)
        return _Walk(self, fit).message(message, self._tree, ROOT), fit

    def arrays(self) -> ProtobufArrays:
        """Return the program so far."""

        def longs(rows: object, columns: int) -> Longs:
            return read_only(np.array(rows, dtype=np.int64).reshape(-1, columns))

        return ProtobufArrays(
            longs(self._messages, protobuf_scanner.MESSAGE_COLUMNS),
            longs(self._fields, protobuf_scanner.FIELD_COLUMNS),
            longs(self._missing, 6),
            longs(self._names, 3),
            read_only(np.frombuffer(bytes(self._texts), dtype=np.uint8)),
            self._lists,
        )

    # ---- what a walk adds ---------------------------------------------------------------------

    def reserve(self) -> int:
        self._messages.append([0] * protobuf_scanner.MESSAGE_COLUMNS)
        return len(self._messages) - 1

    def fill(self, row: int, fields: list[list[int]], mode: int, missing: list[tuple[int, int, int, int, int, int]]) -> None:
        # A map's value has no number of its own: it lies behind its map, out of the search's way.
        whole = [field[: protobuf_scanner.FIELD_COLUMNS] for field in fields]
        first = len(self._fields)
        self._fields += whole
        for at, field in enumerate(fields):
            if len(field) > protobuf_scanner.FIELD_COLUMNS:
                self._fields[first + at][protobuf_scanner.VALUE_ROW] = len(self._fields)
                self._fields.append(field[protobuf_scanner.FIELD_COLUMNS :])
        self._messages[row] = [first, len(whole), mode, len(self._missing), len(missing)]
        self._missing += missing

    def text(self, text: str) -> tuple[int, int]:
        start = len(self._texts)
        self._texts += text.encode()
        return start, len(self._texts)

    def names(self, names: list[tuple[str, int]]) -> tuple[int, int]:
        first = len(self._names)
        self._names += [(*self.text(name), number) for name, number in names]
        return first, len(names)

    def list_state(self) -> int:
        self._lists += 1
        return self._lists - 1


class _Walk:
    """Of one message type through one tree."""

    def __init__(self, program: ProtobufProgram, fit: Fit) -> None:
        self._program, self._fit = program, fit
        self._made: dict[tuple[str, int], int] = {}
        # Their ids are in the keys of what was made.
        self._alive: list[Node | None] = []
        self._enums: dict[str, tuple[int, int]] = {}

    def message(self, kind: Any, node: Node | None, path: Path) -> int:
        """Return the row of a message type at a place."""
        if not wants(node):
            node = None
        key = (kind.full_name, id(node))
        if key in self._made:
            return self._made[key]
        self._alive.append(node)
        row = self._made[key] = self._program.reserve()
        children = {} if node is None else node.children
        bits, mode = _bits(kind, [name for name in children if wants(children[name])]), protobuf_scanner.CLOSED
        if kind.extension_ranges or kind.GetOptions().message_set_wire_format:
            mode = protobuf_scanner.STRICT
        if max(bits.values(), default=0) >= protobuf_scanner.BITS_MAX:
            mode = protobuf_scanner.DECLINES
        fields, missing = [], []
        for field in sorted(kind.fields, key=lambda field: int(field.number)):
            wanted = children.get(field.name)
            if wanted is None or not wants(wanted):
                fields.append(self._unwanted(field, bits.get(field.name, -1)))
            else:
                if path.list_at is not None and field.is_repeated:
                    mode = protobuf_scanner.DECLINES
                fields.append(self._wanted(field, wanted, child(path, field.name), bits.get(field.name, -1)))
                missing += self._absent(field, wanted, fields[-1])
        self._program.fill(row, fields, mode, missing)
        return row

    def _unwanted(self, field: Any, bit: int) -> list[int]:
        """Return the row of a field that is looked at all the same."""
        state = protobuf_scanner.UNWANTED if field.is_repeated else -1
        kind, inner = field.type, 0
        if kind == protobuf_scanner.MESSAGE:
            inner = self.message(field.message_type, None, ROOT)
        elif kind == _GROUP:
            kind = protobuf_scanner.DECLINE
        elif protobuf_scanner.WIRES[kind] == protobuf_scanner.VARINT:
            # Of numbers that nobody wants any 64 bits will do.
            kind = protobuf_scanner.INT64
        return [field.number, kind, NO_SLOT, NO_SLOT, NO_SLOT, inner, 0, bit, state, 0]

    def _wanted(self, field: Any, node: Node, path: Path, bit: int) -> list[int]:
        if field.type == _GROUP:
            self._fit.possible(node)
            return [field.number, protobuf_scanner.DECLINE, NO_SLOT, NO_SLOT, NO_SLOT, 0, 0, -1, -1, 0]
        if _is_map(field):
            return self._map(field, node, path)
        if field.is_repeated:
            return self._list(field, node, path)
        self._fit.possible(node)
        self._fit.impossible(Node(elements=node.elements), path, "no repeated field")
        inner, count = self._inner(field, node, path)
        if field.type == protobuf_scanner.MESSAGE and node.many:
            self._fit.refuse(node, path, "a message")
        return [field.number, field.type, node.slot, NO_SLOT, NO_SLOT, inner, count, bit, -1, 0]

    def _inner(self, field: Any, node: Node, path: Path) -> tuple[int, int]:
        """Return what a value consists of: columns INNER and COUNT."""
        if field.type == protobuf_scanner.MESSAGE:
            return self.message(field.message_type, Node(children=node.children), path), 0
        self._fit.impossible(Node(children=node.children), path, f"of type {_TYPES.get(field.type, 'group')}")
        return self._enum(field.enum_type) if field.type == protobuf_scanner.ENUM else (0, 0)

    def _list(self, field: Any, node: Node, path: Path) -> list[int]:
        self._fit.possible(node)
        self._fit.impossible(Node(children=node.children), path, "a repeated field")
        kind, state = field.type, self._program.list_state()
        slot = head = outer = NO_SLOT
        of = Node()
        if node.many:
            slot = head = node.slot
            of = Node(node.slot)
        else:
            outer = node.slot
            if node.elements is not None:
                of, slot, head = node.elements, node.elements.slot, node.list_slot
                self._fit.possible(of)
        inner, count = self._inner(field, of, element(path) if of is node.elements else path)
        if node.many and node.elements is not None:
            kind = protobuf_scanner.DECLINE
        elif slot == NO_SLOT and protobuf_scanner.WIRES[kind] == protobuf_scanner.VARINT:
            kind = protobuf_scanner.INT64
        return [field.number, kind, slot, head, outer, inner, count, -1, state, 0]

    def _map(self, field: Any, node: Node, path: Path) -> list[int]:
        self._fit.possible(node)
        self._fit.impossible(Node(elements=node.elements), path, "a map")
        key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
        row = [field.number, protobuf_scanner.MAP, NO_SLOT, NO_SLOT, NO_SLOT, 0, 0, -1, self._program.list_state(), 0]
        if node.many:
            row[protobuf_scanner.HEAD] = node.slot
        else:
            row[protobuf_scanner.OUTER] = node.slot
        for name, each in node.children.items():
            self._fit.possible(each)
            if value.type != protobuf_scanner.MESSAGE:
                self._fit.within(each, child(path, name), f"of type {_TYPES[value.type]}")
        reached = [(name, each.slot) for name, each in node.children.items()]
        if (
            key.type != protobuf_scanner.STRING
            or value.type == protobuf_scanner.MESSAGE
            or (node.many and reached)
            or len(reached) > protobuf_scanner.BITS_MAX
        ):
            row[protobuf_scanner.TYPE] = protobuf_scanner.DECLINE
            return row
        row[protobuf_scanner.INNER], row[protobuf_scanner.COUNT] = self._program.names(reached)
        inner, count = self._enum(value.enum_type) if value.type == protobuf_scanner.ENUM else (0, 0)
        return [*row, 0, value.type, NO_SLOT, NO_SLOT, NO_SLOT, inner, count, -1, -1, 0]

    def _enum(self, kind: Any) -> tuple[int, int]:
        """Return where an enum's names are, sorted by number, and how many there are."""
        if kind.full_name not in self._enums:
            names = sorted((number, value.name) for number, value in kind.values_by_number.items())
            self._enums[kind.full_name] = self._program.names([(name, number) for number, name in names])
        return self._enums[kind.full_name]

    def _absent(self, field: Any, node: Node, row: list[int]) -> list[tuple[int, int, int, int, int, int]]:
        """Return the rows of the log where the field is not there."""
        if field.is_repeated:
            state = row[protobuf_scanner.STATE]
            heads = [(row[protobuf_scanner.OUTER], OTHER, -1), (row[protobuf_scanner.HEAD], MAP if _is_map(field) else LIST, 0)]
            if node.many and node.elements is not None:
                heads.append((node.list_slot, LIST, 0))
            return [(-1, state, slot, kind, number, -1) for slot, kind, number in heads if slot >= 0]
        if field.has_presence or node.slot == NO_SLOT or field.type in (protobuf_scanner.MESSAGE, _GROUP):
            return []
        start, stop, kind = 0, -1, VALUE
        if field.type == protobuf_scanner.ENUM:
            kind = TEXT
            start, stop = self._program.text(field.enum_type.values_by_number[0].name)
        elif field.type == protobuf_scanner.STRING:
            kind, stop = TEXT, 0
        elif field.type == protobuf_scanner.BYTES:
            start, kind = -1, OTHER
        elif field.type == protobuf_scanner.BOOL:
            start, kind = -1, FALSE
        elif field.type in (protobuf_scanner.DOUBLE, protobuf_scanner.FLOAT):
            kind = REAL
        return [(row[protobuf_scanner.BIT], -1, node.slot, kind, start, stop)]


def _bits(kind: Any, wanted: list[str]) -> dict[str, int]:
    """Return the bits of fields that may be there once: those wanted, and what is beside them.

    A field of a oneof takes the place of any other of it.
    """
    bits: dict[str, int] = {}
    oneofs: dict[str, int] = {}
    for number, name in enumerate(wanted):
        field = kind.fields_by_name.get(name)
        if field is None or field.is_repeated:
            continue
        oneof = field.containing_oneof
        if oneof is None:
            bits[name] = number
        else:
            bit = oneofs.setdefault(oneof.full_name, number)
            bits |= {each.name: bit for each in oneof.fields}
    return bits


def _is_map(field: Any) -> bool:
    return bool(field.type == protobuf_scanner.MESSAGE and field.message_type.GetOptions().map_entry)


_TYPES = MappingProxyType({
    protobuf_scanner.DOUBLE: "double",
    protobuf_scanner.FLOAT: "float",
    protobuf_scanner.INT64: "int64",
    protobuf_scanner.UINT64: "uint64",
    protobuf_scanner.INT32: "int32",
    protobuf_scanner.FIXED64: "fixed64",
    protobuf_scanner.FIXED32: "fixed32",
    protobuf_scanner.BOOL: "bool",
    protobuf_scanner.STRING: "string",
    protobuf_scanner.BYTES: "bytes",
    protobuf_scanner.UINT32: "uint32",
    protobuf_scanner.ENUM: "enum",
    protobuf_scanner.SFIXED32: "sfixed32",
    protobuf_scanner.SFIXED64: "sfixed64",
    protobuf_scanner.SINT32: "sint32",
    protobuf_scanner.SINT64: "sint64",
})
