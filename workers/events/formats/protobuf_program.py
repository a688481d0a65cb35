"""Compile message types and the wanted paths into a program for `protobuf_scanner`.

A registry stores a schema as text or descriptor; either becomes a message type of upb.
"""

from __future__ import annotations

import base64
import binascii
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from workers.events.formats import protobuf_scanner
from workers.events.formats.fitting import ROOT, Fit, child, element, wants
from workers.events.formats.wire import REFUSED, zigzag
from workers.events.log import FALSE, LIST, MAP, OTHER, REAL, TEXT, VALUE
from workers.events.schemas import Schema
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path
from workers.runtime.frozen import read_only

_MAIN = "quietcount/event.proto"
_PROTOC_S = 30.0


class ProtobufSchema:
    """A schema's file and its imports, compiled into their own descriptor pool.

    Raises ValueError if it is invalid; the message shows none of its content.
    """

    def __init__(self, schema: Schema) -> None:
        found = _compiled(schema)
        self._pool = descriptor_pool.DescriptorPool()
        try:
            for file in found:
                self._pool.Add(file)
        except TypeError:
            raise ValueError("no Protobuf schema") from None
        self._file = found[-1]

    def message(self, indexes: Sequence[int]) -> Any:
        """Return the message at a path of indexes through nested messages, else ValueError."""
        name, types = self._file.package, self._file.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise ValueError("no such message in the schema")
            name = f"{name}.{types[index].name}" if name else types[index].name
            types = types[index].nested_type
        try:
            return self._pool.FindMessageTypeByName(name)
        except (KeyError, TypeError):
            raise ValueError("no such message in the schema") from None


def indexes_of(message: bytes) -> list[int]:
    """Parse the message path after a schema id: its length, then the indexes; else ValueError."""
    data = np.frombuffer(message, dtype=np.uint8)
    number, at = zigzag(data, 0, len(data))
    if number == 0 and at == len(message):
        return [0]
    found = []
    while at != REFUSED and at < len(message):
        index, at = zigzag(data, at, len(data))
        found.append(index)
    if at == REFUSED or len(found) != number:
        raise ValueError("no message indexes")
    return found


def _descriptor(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Parse a file in base64, as Python producers register it; None for any other text."""
    try:
        made = descriptor_pb2.FileDescriptorProto.FromString(
            base64.b64decode(text.strip(), validate=True)
        )
    except (binascii.Error, ValueError, DecodeError):
        return None
    return made if text.strip() else None


def _compiled(schema: Schema) -> list[descriptor_pb2.FileDescriptorProto]:
    texts: dict[str, str] = {}
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    main = _MAIN
    for name, text in [
        *((each.name, each.text) for each in schema.references),
        (_MAIN, schema.text),
    ]:
        file = _descriptor(text)
        if file is None:
            texts[name] = text
            continue
        if name == _MAIN:
            main = name = file.name or _MAIN
        file.name = name
        files[name] = file
    if not texts and all(name in files for file in files.values() for name in file.dependency):
        return list(files.values())
    return _by_protoc(texts, list(files.values()), main)


def _by_protoc(
    texts: Mapping[str, str], files: Sequence[descriptor_pb2.FileDescriptorProto], main: str
) -> list[descriptor_pb2.FileDescriptorProto]:
    """Compile texts and return the file `main`, preceded by its imports.

    protoc runs in its own process, so that no text can crash or stall this one.
    """
    with tempfile.TemporaryDirectory(prefix="quietcount-protoc-") as made:
        place = pathlib.Path(made)
        (place / "texts").mkdir()
        for name, text in texts.items():
            path = pathlib.PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name:
                raise ValueError("no Protobuf schema: a reference's name")
            (place / "texts" / path).parent.mkdir(parents=True, exist_ok=True)
            (place / "texts" / path).write_text(text, encoding="utf-8", errors="replace")
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={place / 'texts'}",
            *_shipped(),
        ]
        if files:
            (place / "known").write_bytes(
                descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()
            )
            command.append(f"--descriptor_set_in={place / 'known'}")
        command += ["--include_imports", f"--descriptor_set_out={place / 'out'}", main]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PROTOC_S)
            found = descriptor_pb2.FileDescriptorSet.FromString((place / "out").read_bytes())
        except (subprocess.SubprocessError, OSError, DecodeError, ValueError):
            raise ValueError("no Protobuf schema") from None
    return list(found.file)


def _shipped() -> list[str]:
    """Return the paths of files that registries do not store: Google's own types."""
    places = []
    for package, inner in (("grpc_tools", "_proto"), ("google.type", "../..")):
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            spec = None
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            places.append(f"--proto_path={pathlib.Path(place, inner).resolve()}")
    return places


Longs = NDArray[np.int64]

_GROUP = 10


@dataclass(frozen=True)
class ProtobufArrays:
    """The program arguments of `protobuf_scanner.event`; `texts`, uint8, follows the records."""

    messages: Longs
    fields: Longs
    missing: Longs
    names: Longs
    texts: NDArray[np.uint8]
    lists: int


class ProtobufProgram:
    """The program for one tree, to which message types are added. Not thread-safe."""

    def __init__(self, tree: Node) -> None:
        self._tree = tree
        self._messages: list[list[int]] = []
        self._fields: list[list[int]] = []
        self._missing: list[tuple[int, int, int, int, int, int]] = []
        self._names: list[tuple[int, int, int]] = []
        self._texts = bytearray()
        self._lists = 0

    def add(self, message: Any) -> tuple[int, Fit]:
        fit = Fit(self._tree)
        return _Walk(self, fit).message(message, self._tree, ROOT), fit

    def arrays(self) -> ProtobufArrays:
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

    def reserve(self) -> int:
        self._messages.append([0] * protobuf_scanner.MESSAGE_COLUMNS)
        return len(self._messages) - 1

    def fill(
        self,
        row: int,
        fields: list[list[int]],
        mode: int,
        missing: list[tuple[int, int, int, int, int, int]],
    ) -> None:
        # A map's value has no field number, so its row goes after the sorted rows.
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
    def __init__(self, program: ProtobufProgram, fit: Fit) -> None:
        self._program, self._fit = program, fit
        self._made: dict[tuple[str, int], int] = {}
        # Keeps nodes alive whose ids are in keys of `_made`.
        self._alive: list[Node | None] = []
        self._enums: dict[str, tuple[int, int]] = {}

    def message(self, kind: Any, node: Node | None, path: Path) -> int:
        if not wants(node):
            node = None
        key = (kind.full_name, id(node))
        if key in self._made:
            return self._made[key]
        self._alive.append(node)
        row = self._made[key] = self._program.reserve()
        children = {} if node is None else node.children
        bits, mode = (
            _bits(kind, [name for name in children if wants(children[name])]),
            protobuf_scanner.CLOSED,
        )
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
                fields.append(
                    self._wanted(field, wanted, child(path, field.name), bits.get(field.name, -1))
                )
                missing += self._absent(field, wanted, fields[-1])
        self._program.fill(row, fields, mode, missing)
        return row

    def _unwanted(self, field: Any, bit: int) -> list[int]:
        """Return the row of an unwanted field, which is still checked."""
        state = protobuf_scanner.UNWANTED if field.is_repeated else -1
        kind, inner = field.type, 0
        if kind == protobuf_scanner.MESSAGE:
            inner = self.message(field.message_type, None, ROOT)
        elif kind == _GROUP:
            kind = protobuf_scanner.DECLINE
        elif protobuf_scanner.WIRES[kind] == protobuf_scanner.VARINT:
            # An unwanted number may be any 64 bits.
            kind = protobuf_scanner.INT64
        return [field.number, kind, NO_SLOT, NO_SLOT, NO_SLOT, inner, 0, bit, state, 0]

    def _wanted(self, field: Any, node: Node, path: Path, bit: int) -> list[int]:
        if field.type == _GROUP:
            self._fit.possible(node)
            return [
                field.number,
                protobuf_scanner.DECLINE,
                NO_SLOT,
                NO_SLOT,
                NO_SLOT,
                0,
                0,
                -1,
                -1,
                0,
            ]
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
        if field.type == protobuf_scanner.MESSAGE:
            return self.message(field.message_type, Node(children=node.children), path), 0
        self._fit.impossible(
            Node(children=node.children), path, f"of type {_TYPES.get(field.type, 'group')}"
        )
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
        row = [
            field.number,
            protobuf_scanner.MAP,
            NO_SLOT,
            NO_SLOT,
            NO_SLOT,
            0,
            0,
            -1,
            self._program.list_state(),
            0,
        ]
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
        inner, count = (
            self._enum(value.enum_type) if value.type == protobuf_scanner.ENUM else (0, 0)
        )
        return [*row, 0, value.type, NO_SLOT, NO_SLOT, NO_SLOT, inner, count, -1, -1, 0]

    def _enum(self, kind: Any) -> tuple[int, int]:
        """Return where an enum's names begin, sorted by number, and how many there are."""
        if kind.full_name not in self._enums:
            names = sorted((number, value.name) for number, value in kind.values_by_number.items())
            self._enums[kind.full_name] = self._program.names(
                [(name, number) for number, name in names]
            )
        return self._enums[kind.full_name]

    def _absent(
        self, field: Any, node: Node, row: list[int]
    ) -> list[tuple[int, int, int, int, int, int]]:
        """Return the `missing` rows to log if the field is absent."""
        if field.is_repeated:
            state = row[protobuf_scanner.STATE]
            heads = [
                (row[protobuf_scanner.OUTER], OTHER, -1),
                (row[protobuf_scanner.HEAD], MAP if _is_map(field) else LIST, 0),
            ]
            if node.many and node.elements is not None:
                heads.append((node.list_slot, LIST, 0))
            return [
                (-1, state, slot, kind, number, -1) for slot, kind, number in heads if slot >= 0
            ]
        if (
            field.has_presence
            or node.slot == NO_SLOT
            or field.type in (protobuf_scanner.MESSAGE, _GROUP)
        ):
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
    """Return the bits of wanted singular fields and all other members of their oneofs.

    All members of a oneof share a bit, since setting one replaces another.
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
    return bool(
        field.type == protobuf_scanner.MESSAGE and field.message_type.GetOptions().map_entry
    )


_TYPES = MappingProxyType(
    {
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
    }
)
