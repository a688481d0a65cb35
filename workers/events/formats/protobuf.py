"""Protobuf format: the scanner's program and input, and the general reader of one message.

Message types and the wanted paths are compiled into a program for `protobuf_scanner`: a row for
each type, with a mode, and for each of its fields. Their columns (`ops`) are named there. Where a
mode or a field "declines", the scanner leaves the whole message to the general reader. A registry
stores a schema as text or descriptor; either becomes a message type of upb, Google's reader.

A field is *singular* or *repeated*; a map is a repeated field of messages with a key and a value. A
singular field with *presence* may be absent; any other that a message lacks has its type's default
value. A message has at most one field of a *oneof*. While a message type is walked, a `Fit` notes
which wanted fields it can have, and which it cannot.

A node of the tree of wanted fields says what is wanted at one place: a single value (`slot` is
where it is logged), items to count (`many`: a list of labels, or a map from label to count), fields
of an object (`children`), or something in every element of a list (`elements`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from workers.arrays.types import Bytes, Longs
from workers.events.formats import protobuf_scanner as ops
from workers.events.formats.fitting import (
    NO_MESSAGE,
    NOT_OF_FORMAT,
    ROOT,
    UNWANTED,
    Fit,
    Program,
    RecordScan,
    SchemaFormat,
    SchemaRefused,
    Unreadable,
    child,
    element,
    wants,
)
from workers.events.formats.protobuf_schemas import Compiled, compile_schema
from workers.events.formats.wire import REFUSED, zigzag
from workers.events.log import FALSE, LIST, MAP, OTHER, REAL, TEXT, VALUE, longs
from workers.events.schemas import PROTOBUF, Schema
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path


class ProtobufSchema:
    """A schema and its imports in their own descriptor pool.

    Raises ValueError, without the schema's content, or Unreadable if it cannot be used.
    """

    def __init__(self, schema: Schema) -> None:
        self.compiled = compile_schema(schema)
        self._pool = descriptor_pool.DescriptorPool()
        try:
            for file in self.compiled.files:
                self._pool.Add(file)
        # upb raises it if a file is invalid.
        except TypeError:
            raise ValueError("no Protobuf schema") from None
        # The schema's own file comes after its imports.
        self._file = self.compiled.files[-1]

    def message(self, indexes: Sequence[int]) -> Any:
        """Return the message type that a record names by indexes in the file, level by level."""
        name = self._file.package
        types = self._file.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise SchemaRefused(NO_MESSAGE)
            name = f"{name}.{types[index].name}" if name else types[index].name
            types = types[index].nested_type
        try:
            return self._pool.FindMessageTypeByName(name)
        # TypeError: the name is not UTF-8.
        except (KeyError, TypeError):
            raise SchemaRefused(NO_MESSAGE) from None


def indexes_of(message: bytes) -> list[int]:
    """Parse the message path after a schema id: its length, then the indexes.

    Instead of the usual path, [0], producers write an empty one.
    """
    data = np.frombuffer(message, dtype=np.uint8)
    length, pos = zigzag(data, 0, len(data))
    if length == 0 and pos == len(message):
        return [0]
    indexes = []
    while pos != REFUSED and pos < len(message):
        index, pos = zigzag(data, pos, len(data))
        indexes.append(index)
    if pos == REFUSED or len(indexes) != length:
        raise SchemaRefused(NO_MESSAGE)
    return indexes


# Descriptor type of a group, a deprecated kind of message: only the general reader reads it.
_GROUP = 10
# What marks a field as seen, BIT or STATE (the other is -1), and its log row if it was not: slot,
# KIND, START and STOP.
Missing = tuple[int, int, int, int, int, int]
# Log row (KIND, START, STOP) of the default value, by field type; other types have the number 0.
_DEFAULTS = MappingProxyType(
    {
        ops.ENUM: (TEXT, 0, 0),
        ops.STRING: (TEXT, 0, 0),
        ops.BYTES: (OTHER, -1, -1),
        ops.BOOL: (FALSE, -1, -1),
        ops.DOUBLE: (REAL, 0, -1),
        ops.FLOAT: (REAL, 0, -1),
    }
)


class ProtobufProgram(Program):
    """Builds the tables of `protobuf_scanner`. Methods append rows, and return their numbers."""

    def __init__(self, tree: Node) -> None:
        super().__init__(tree)
        self._messages: list[list[int]] = []
        self._fields: list[list[int]] = []
        self._missing: list[Missing] = []
        #: Number of rows that the scanner's `lists` needs.
        self.lists = 0

    def add(self, message: Any, compiled: Compiled) -> tuple[int, Fit]:
        """Add a message type; return its row and fit.

        Raises Unreadable if a wanted field may need an import that nothing provides.
        """
        fit = Fit(self.tree)
        return _Walk(self, fit, compiled).message(message, self.tree), fit

    def complete(self) -> ops.Program:
        """Return the program so far as the arrays of `protobuf_scanner`."""
        return ops.Program(
            longs(self._messages, ops.MESSAGE_COLUMNS),
            longs(self._fields, ops.FIELD_COLUMNS),
            longs(self._missing, ops.MISSING_COLUMNS),
            longs(self._names, 3),
        )

    def reserve(self) -> int:
        """Append an empty row of `messages`, to `fill`: a recursive type refers to its own row."""
        self._messages.append([0] * ops.MESSAGE_COLUMNS)
        return len(self._messages) - 1

    def fill(
        self, row: int, fields: list[list[int]], mode: int, missing: list[Missing]
    ) -> None:
        """Fill a row of `messages`, and append its fields and its log rows for missing fields.

        The row of a map in `fields` is twice as long: it ends with that of the map's values.
        """
        # The values' rows are found by VALUE_ROW, so they go after those sorted by number.
        first = len(self._fields)
        self._fields += [field[: ops.FIELD_COLUMNS] for field in fields]
        for row_of_map, field in enumerate(fields, first):
            if len(field) > ops.FIELD_COLUMNS:
                self._fields[row_of_map][ops.VALUE_ROW] = len(self._fields)
                self._fields.append(field[ops.FIELD_COLUMNS :])
        self._messages[row] = [
            first,
            len(fields),
            mode,
            len(self._missing),
            len(missing),
        ]
        self._missing += missing

    def list_state(self) -> int:
        """Number a row of the scanner's scratch `lists`, for one list or map."""
        self.lists += 1
        return self.lists - 1


@dataclass
class _Walk:
    """A walk of message types along one tree: one row for each type at each node.

    Fields are descriptors, as upb has them. What is found about wanted fields goes to `fit`.
    """

    program: ProtobufProgram
    fit: Fit
    compiled: Compiled

    def __post_init__(self) -> None:
        # Row of a message type, by its name and the id of the node.
        self._made: dict[tuple[str, int], int] = {}
        # Keeps the nodes alive whose ids are in keys of `_made`: no other may get the same id.
        self._alive: list[Node] = []
        # First row and number of an enum's names, by its name.
        self._enums: dict[str, tuple[int, int]] = {}

    def message(self, kind: Any, node: Node, path: Path = ROOT) -> int:
        """Return the row of a message type (`kind`, a descriptor), of which `node` is wanted.

        Raises Unreadable if a wanted field may need a missing import (`Compiled.unread`).
        """
        if not wants(node):
            node = UNWANTED  # one object, so one row, for all places
        key = (kind.full_name, id(node))
        if key in self._made:
            return self._made[key]
        self._alive.append(node)
        row = self._made[key] = self.program.reserve()
        children = {
            name: inner for name, inner in node.children.items() if wants(inner)
        }
        if any((kind.full_name, name) in self.compiled.unread for name in children):
            raise Unreadable(self.compiled.missing)
        bits = _bits(kind, list(children))
        # Unknown fields are skipped.
        mode = ops.CLOSED
        # A field with an unknown number may be an extension, which only the general reader checks.
        if kind.extension_ranges or kind.GetOptions().message_set_wire_format:
            mode = ops.STRICT
        # The general reader reads what the scanner cannot follow: more fields than it has bits for,
        # and lists in lists, as it has one state for each list, not for each element.
        if max(bits.values(), default=0) >= ops.BITS_MAX:
            mode = ops.DECLINES
        fields = []
        missing = []
        for field in sorted(kind.fields, key=lambda field: int(field.number)):
            wanted = children.get(field.name)
            bit = bits.get(field.name, -1)
            if wanted is None:
                fields.append(self._unwanted(field, bit))
            else:
                if path.list_at is not None and field.is_repeated:
                    mode = ops.DECLINES
                fields.append(self._wanted(field, wanted, child(path, field.name), bit))
                missing += self._absent(field, wanted, fields[-1])
        self.program.fill(row, fields, mode, missing)
        return row

    def _unwanted(self, field: Any, bit: int) -> list[int]:
        """Return the row of an unwanted field, which is still checked.

        `bit` is that of its oneof if another field of this is wanted, else -1.
        """
        state = ops.UNWANTED if field.is_repeated else -1
        kind = ops.DECLINE if field.type == _GROUP else _kind(field, NO_SLOT)
        inner = 0
        if kind == ops.MESSAGE:
            inner = self.message(field.message_type, UNWANTED)
        return _field_row(field, kind, inner=inner, bit=bit, state=state)

    def _wanted(self, field: Any, node: Node, path: Path, bit: int) -> list[int]:
        """Return the row of a field with something wanted; note in the fit what it can hold."""
        if field.type == _GROUP:
            self.fit.possible(node)
            return _field_row(field, ops.DECLINE)
        if _is_map(field):
            return self._map(field, node, path)
        if field.is_repeated:
            return self._list(field, node, path)
        self.fit.possible(node)
        self.fit.no_elements(node, path, "no repeated field")
        inner, count = self._inner(field, node, path)
        if field.type == ops.MESSAGE and node.many:
            self.fit.refuse(node, path, "a message")
        return _field_row(
            field, field.type, slot=node.slot, inner=inner, count=count, bit=bit
        )

    def _inner(self, field: Any, node: Node, path: Path) -> tuple[int, int]:
        """Return INNER and COUNT of a field's row: of its message type or enum, else zeros.

        Only a message may have the fields that `node` wants in it.
        """
        if field.type == ops.MESSAGE:
            return self.message(
                field.message_type, Node(children=node.children), path
            ), 0
        what = f"of type {_type_name(field)}"
        self.fit.no_fields(node, path, what)
        return self._enum(field.enum_type) if field.type == ops.ENUM else (0, 0)

    def _list(self, field: Any, node: Node, path: Path) -> list[int]:
        """Return the row of a repeated field, wanted as items, by element, or as one value."""
        self.fit.possible(node)
        self.fit.no_fields(node, path, "a repeated field")
        slot = NO_SLOT
        head = NO_SLOT
        outer = NO_SLOT
        if node.many:
            # As items: the elements have the node's own slot.
            inner, count = self._inner(field, Node(node.slot), path)
            slot = node.slot
            head = node.slot
        elif node.elements is not None:
            self.fit.possible(node.elements)
            inner, count = self._inner(field, node.elements, element(path))
            slot = node.elements.slot
            head = node.list_slot
            outer = node.slot
        else:
            # Wanted as one value, which a list is not: at most OTHER is logged.
            inner, count = self._inner(field, Node(), path)
            outer = node.slot
        # The scanner logs each element once: for items or for what is wanted in it.
        is_wanted_twice = node.many and node.elements is not None
        return _field_row(
            field,
            ops.DECLINE if is_wanted_twice else _kind(field, slot),
            slot=slot,
            head=head,
            outer=outer,
            inner=inner,
            count=count,
            state=self.program.list_state(),
        )

    def _map(self, field: Any, node: Node, path: Path) -> list[int]:
        """Return the row of a map field, joined with that of its values (see `fill`).

        A map is wanted as items (label -> count), or some of its keys are wanted as fields. Maps
        that the scanner cannot read, such as those of messages, are left to the general reader.
        """
        self.fit.possible(node)
        self.fit.no_elements(node, path, "a map")
        key = field.message_type.fields_by_name["key"]
        value = field.message_type.fields_by_name["value"]
        for name, wanted in node.children.items():
            self.fit.possible(wanted)
            if value.type != ops.MESSAGE:
                what = f"of type {_type_name(value)}"
                self.fit.no_parts(wanted, child(path, name), what)
        row = _field_row(
            field,
            ops.MAP,
            head=node.slot if node.many else NO_SLOT,
            outer=NO_SLOT if node.many else node.slot,
            state=self.program.list_state(),
        )
        wanted_keys = [(name, inner.slot) for name, inner in node.children.items()]
        has_plain_types = key.type == ops.STRING and value.type != ops.MESSAGE
        is_wanted_twice = node.many and wanted_keys
        if not has_plain_types or is_wanted_twice or len(wanted_keys) > ops.BITS_MAX:
            row[ops.TYPE] = ops.DECLINE
            return row
        row[ops.INNER], row[ops.COUNT] = self.program.names(wanted_keys)
        inner, count = self._enum(value.enum_type) if value.type == ops.ENUM else (0, 0)
        return [*row, *_field_row(value, value.type, inner=inner, count=count)]

    def _enum(self, kind: Any) -> tuple[int, int]:
        """Return the first row of an enum's names, sorted by number, and how many there are."""
        if kind.full_name not in self._enums:
            names = sorted(
                (number, value.name) for number, value in kind.values_by_number.items()
            )
            rows = [(name, number) for number, name in names]
            self._enums[kind.full_name] = self.program.names(rows)
        return self._enums[kind.full_name]

    def _absent(self, field: Any, node: Node, row: list[int]) -> list[Missing]:
        """Return the log rows for a message that lacks a wanted field: a default or empty list.

        `row` is the field's row of `fields`. A field with presence is just absent.
        """
        if field.is_repeated:
            # An empty list is present, without elements; where one value is wanted, it is OTHER.
            state = row[ops.STATE]
            head_kind = MAP if _is_map(field) else LIST
            heads = [(row[ops.OUTER], OTHER, -1), (row[ops.HEAD], head_kind, 0)]
            if node.many and node.elements is not None:
                heads.append((node.list_slot, LIST, 0))
            # From the state, the scanner knows whether the list had a value: see `Missing`.
            return [
                (-1, state, slot, kind, start, -1)
                for slot, kind, start in heads
                if slot >= 0
            ]
        if (
            field.has_presence
            or node.slot == NO_SLOT
            or field.type in (ops.MESSAGE, _GROUP)
        ):
            return []
        kind, start, stop = _DEFAULTS.get(field.type, (VALUE, 0, -1))
        if field.type == ops.ENUM:
            start, stop = self.program.text(field.enum_type.values_by_number[0].name)
        return [(row[ops.BIT], -1, node.slot, kind, start, stop)]


def _bits(kind: Any, wanted: list[str]) -> dict[str, int]:
    """Return a bit for every wanted singular field, which marks it as seen in a message.

    `kind` is the message type, `wanted` has names of fields. All members of a oneof share the bit,
    even unwanted ones, since a later one clears the others.
    """
    bits: dict[str, int] = {}
    for bit, name in enumerate(wanted):
        field = kind.fields_by_name.get(name)
        if name not in bits and field is not None and not field.is_repeated:
            oneof = field.containing_oneof
            members = [field] if oneof is None else oneof.fields
            bits |= {member.name: bit for member in members}
    return bits


def _kind(field: Any, slot: int) -> int:
    """Return the type that a field's row has: its own, or INT64 for an unwanted varint.

    Decoders accept any 64 bits there, and nobody reads them.
    """
    kind: int = field.type
    return ops.INT64 if slot == NO_SLOT and ops.WIRES[kind] == ops.VARINT else kind


def _is_map(field: Any) -> bool:
    return bool(field.type == ops.MESSAGE and field.message_type.GetOptions().map_entry)


def _field_row(
    field: Any,
    kind: int,
    *,
    slot: int = NO_SLOT,
    head: int = NO_SLOT,
    outer: int = NO_SLOT,
    inner: int = 0,
    count: int = 0,
    bit: int = -1,
    state: int = -1,
) -> list[int]:
    """Return a row of the scanner's `fields`; what a field does not need has its default.

    Args:
        kind: its type, or what is done with it.
        slot: of its value, or of its list's values.
        head, outer: of a list or map: slots of the list itself, and of the field as one value.
        inner, count: of a message, its row; of an enum or map, its first name, and their number.
        bit: the bit of a singular field or of its oneof, by which a missing one is noticed.
        state: of a list or map, its row of the lists that are being read.
    """
    # VALUE_ROW, which only maps have: 0 until `fill` knows it.
    return [field.number, kind, slot, head, outer, inner, count, bit, state, 0]


def _type_name(field: Any) -> str:
    """Return a type as a schema's text has it, such as "int64"; "group" for a group."""
    name: str = descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)
    return name.removeprefix("TYPE_").lower()


NOT_PROTOBUF = "not Protobuf"
# Nesting limit of the scanner; upb reads deeper messages, up to 100.
STACK = 64


class ProtobufFormat(SchemaFormat[ProtobufProgram]):
    """The message types of records read by one thread; `tree` None decodes all their fields."""

    names_messages = True

    def __init__(self, tree: Node | None) -> None:
        """`tree` has the wanted fields; None: `decode` returns all, and the scanner logs none."""
        super().__init__(ProtobufProgram(tree or Node()))
        self._tree = tree
        # Compiled once, whichever of its messages the records name.
        self._schemas: dict[Schema, ProtobufSchema] = {}
        # upb's classes of messages, by the number that `add` returns.
        self._classes: list[Any] = []

    def add(self, schema: Schema, message: bytes = b"\0") -> int:
        """Add a message type by the encoded path after the schema id; return its number.

        The default is an empty path, which names the first type in the file.
        """
        if schema.kind != PROTOBUF:
            raise SchemaRefused(NOT_OF_FORMAT)
        try:
            source = self._schemas.get(schema)
            if source is None:
                source = self._schemas[schema] = ProtobufSchema(schema)
            descriptor = source.message(indexes_of(message))
            root, fit = self._builder.add(descriptor, source.compiled)
            kind = message_factory.GetMessageClass(descriptor)
        except (ValueError, RecursionError):
            raise Unreadable from None
        number = self._accept(root, fit)
        self.missing = source.compiled.missing
        self._classes.append(kind)
        return number

    def scanner(
        self, data: Bytes, values: Longs, roots: Longs, base: int
    ) -> RecordScan:
        """Return the scanner of a batch, see `SchemaFormat`; its scratch is for one thread."""
        stack = np.empty((STACK, ops.FRAME), dtype=np.int64)
        lists = np.empty((self._builder.lists, ops.LIST_COLUMNS), dtype=np.int64)
        scan = ops.Scan(data, base, self.program, stack, lists)
        return partial(ops.scan_all, scan, values, roots)

    def decode(self, number: int, payload: bytes) -> object:
        """Return the wanted fields of a message; raise ValueError with the reject reason."""
        try:
            message = self._classes[number].FromString(payload)
        except Exception:  # noqa: BLE001
            # upb raises DecodeError, which in one version is a RuntimeError for deep messages.
            raise ValueError(NOT_PROTOBUF) from None
        return _object(message, self._tree)


def _object(message: Any, node: Node | None) -> dict[str, object]:
    """Return the wanted fields of a message, or all if `node` is None.

    Of those with presence, only the ones that are set.
    """
    fields = message.DESCRIPTOR.fields_by_name
    values: dict[str, object] = {}
    for name in fields if node is None else node.children:
        # None below a None: all fields there.
        inner = node and node.children[name]
        field = fields.get(name)
        if field is None or (field.has_presence and not message.HasField(name)):
            continue
        content = getattr(message, name)
        if not field.is_repeated:
            values[name] = _value(field, content, inner)
        elif _is_map(field):
            value_field = field.message_type.fields_by_name["value"]
            entries: dict[str, object] = {}
            for key, value in content.items():
                key_name = _name(key)
                wanted = inner and inner.children.get(key_name, UNWANTED)
                entries[key_name] = _value(value_field, value, wanted)
            values[name] = entries
        else:
            elements = inner and (inner.elements or UNWANTED)
            values[name] = [_value(field, value, elements) for value in content]
    return values


def _name(key: object) -> str:
    """Return a map's key as JSON has it, a text."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def _value(field: Any, value: Any, node: Node | None) -> object:
    """Return one value of a field: an object for a message, a name for a known enum number."""
    if field.message_type is not None:
        return _object(value, node)
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return value if named is None else named.name
    return value
