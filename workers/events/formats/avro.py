"""Avro format: the scanner's program and input, and the general reader of one record.

Compiles a writer's schema and the wanted paths into a program for `avro_scanner`. With a reader's
schema, paths use its names and its defaults become constants; the program declines what requires
any other resolution. Logical types are ignored: a timestamp is the number as written.

A program is integer tables, whose rows refer to each other by number; their columns (`ops`) are
named in `avro_scanner`. A row that *declines* leaves the whole record to the general reader,
fastavro. `Unsure` is raised, while a row is built, where it must decline. A `Fit` notes on the way
which wanted fields the schema can have, and which it cannot.

A node of the tree of wanted fields says what is wanted at one place: a single value (`slot` is
where it is logged), items to count (`many`: a list of labels, or a map from label to count), fields
of an object (`children`), or something in every element of a list (`elements`).
"""

import io
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import fastavro
import numpy as np

from workers.arrays.types import Bytes, Longs
from workers.events.formats import avro_scanner as ops
from workers.events.formats.fitting import (
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
    paths_of,
    wants,
)
from workers.events.formats.wire import INT64_MAX, INT64_MIN
from workers.events.log import (
    COLUMNS,
    DECLINED,
    FALSE,
    LIST,
    MAP,
    MAP_NAMES_MAX,
    NULL,
    OTHER,
    REAL,
    TEXT,
    TRUE,
    VALUE,
    longs,
)
from workers.events.schemas import AVRO, Schema
from workers.events.tree import NO_SLOT, Node
from workers.mechanisms.config.views import Path
from workers.runtime.errors import SettingsError
from workers.runtime.frozen import read_only
from workers.settings.files import read_file

# Largest size of a `fixed` type, in bytes: more than any record may have.
FIXED_MAX = 2**31 - 1
PRIMITIVES = frozenset(
    ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
)
_NAMED = frozenset(("record", "error", "enum", "fixed"))
# By a writer's type: the other types as which a reader may read it.
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
    """Schema resolution here does not cover this; fastavro decides record by record."""


@dataclass(frozen=True)
class AvroSchema:
    """A parsed schema in fastavro's form: the `type` of its records.

    `names` has all named types, including those of references.
    """

    type: Any
    names: Mapping[str, Any] = field(repr=False)

    def as_field(self) -> Any:
        """Wrap the type in an equally encoded record: fastavro drops a bare type's references."""
        value = {"name": "value", "type": self.type}
        record = {"type": "record", "name": "QuietcountEvent", "fields": [value]}
        return fastavro.parse_schema(record, named_schemas=dict(self.names))

    def type_of(self, written: Any) -> Any:
        """Resolve names and nested `type`s: a list for a union, else an object with a `type`."""
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
    """Parse a JSON schema and its references, dependencies first; ValueError shows no content."""
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
    """Remove logical types, as fastavro would convert their values; simplify primitive types.

    `{"type": "long"}` becomes "long", so that primitive types are never objects.
    """
    if isinstance(schema, list):
        return [_plain(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    logical = ("logicalType", "precision", "scale")
    plain = {name: value for name, value in schema.items() if name not in logical}
    for name in ("type", "items", "values"):
        if name in plain:
            plain[name] = _plain(plain[name])
    if isinstance(plain.get("fields"), list):
        plain["fields"] = [_plain(each) for each in plain["fields"]]
    # An object with a name is a field, not a type.
    kind = plain.get("type")
    is_primitive = isinstance(kind, str) and kind in PRIMITIVES and "name" not in plain
    return kind if is_primitive else plain


def matches(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> bool:
    """Return whether fastavro reads a type `written` by one schema as the type `read` of another.

    It goes by names, however the contents differ, and takes any union: those are resolved branch by
    branch. Raises Unsure for equal names of different kinds.
    """
    written_type = writer.type_of(written)
    read_type = reader.type_of(read)
    if isinstance(written_type, list) or isinstance(read_type, list):
        return True
    kind = written_type["type"]
    read_kind = read_type["type"]
    if kind in _NAMED and read_kind in _NAMED:
        name = written_type["name"]
        aliases = read_type.get("aliases", ())
        short = name.rsplit(".", 1)[-1]
        if (
            short != read_type["name"].rsplit(".", 1)[-1]
            and name not in aliases
            and short not in aliases
        ):
            return False
        if kind != read_kind or (
            kind == "fixed" and written_type["size"] != read_type["size"]
        ):
            raise Unsure
        return True
    if kind == read_kind == "map":
        return matches(writer, written_type["values"], reader, read_type["values"])
    if kind == read_kind == "array":
        return matches(writer, written_type["items"], reader, read_type["items"])
    return bool(kind == read_kind or read_kind in _PROMOTED.get(kind, ()))


def chosen(writer: AvroSchema, written: Any, reader: AvroSchema, read: Any) -> Any:
    """Return the type, `read` or a branch of that union, as which a type `written` is read.

    `written` is no union. The first branch that matches is taken; raises Unsure if none does.
    """
    options = reader.type_of(read)
    for option in options if isinstance(options, list) else [options]:
        if matches(writer, written, reader, option):
            return reader.type_of(option)
    raise Unsure


def fields_of(
    written: Mapping[str, Any], read: Mapping[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Return the reader's field, or None, for each of the writer's; and the reader's other fields.

    `written` and `read` are record types. Raises Unsure if two fields would become the same one.
    """
    left = {each["name"]: each for each in read["fields"]}
    aliases = {
        alias: each for each in read["fields"] for alias in each.get("aliases", ())
    }
    found: list[Any] = []
    for each in written["fields"]:
        taken = left.get(each["name"], aliases.get(each["name"]))
        if taken is not None and left.pop(taken["name"], None) is None:
            raise Unsure
        found.append(taken)
    return found, list(left.values())


# By type name: the scanner's code, and the words for a reject.
_FLAT: Mapping[str, tuple[int, str]] = MappingProxyType(
    {
        "null": (ops.NULL_OP, "null"),
        "boolean": (ops.BOOLEAN, "a boolean"),
        "int": (ops.INT, "an int"),
        "long": (ops.LONG, "a long"),
        "float": (ops.FLOAT, "a float"),
        "double": (ops.DOUBLE, "a double"),
        "string": (ops.STRING, "a string"),
        "bytes": (ops.BYTES, "bytes"),
        "fixed": (ops.FIXED, "fixed bytes"),
        "enum": (ops.ENUM, "an enum"),
    }
)
# A row of the log that the scanner writes as it is: SLOT, KIND, START and STOP.
LogRow = tuple[int, int, int, int]


class AvroProgram(Program):
    """Builds the scanner's tables. Methods append rows, and return their numbers.

    The columns of a row are OP, SLOT, A, B, C and D (`avro_scanner`).
    """

    def __init__(self, tree: Node) -> None:
        super().__init__(tree)
        self._rows: list[list[int]] = []
        self._parts: list[int] = []
        self._constants: list[LogRow] = []

    def add(
        self, writer: AvroSchema, reader: AvroSchema | None = None
    ) -> tuple[int, int, Fit]:
        """Add a schema; return its start row, a second one for `AvroFormat.decode`, and its `Fit`.

        A scan from the second row only checks every byte: nothing is wanted, so nothing declines.
        """
        fit = Fit(self.tree)
        read = None if reader is None else reader.type
        walk = _Walk(self, fit, writer, reader or writer)
        root = walk.place(writer.type, read, self.tree)
        checking = _Walk(self, Fit(UNWANTED), writer, writer)
        return root, checking.place(writer.type, None, UNWANTED), fit

    def complete(self) -> ops.Program:
        """Return the program so far as the arrays of `avro_scanner`."""
        return ops.Program(
            longs(self._rows, ops.COLUMNS),
            read_only(np.array(self._parts, dtype=np.int64)),
            longs(self._names, 3),
            longs(self._constants, 4),
        )

    def row(self, *columns: int) -> int:
        """Append a row with the columns OP, SLOT, A, ... given, the others 0; return its number."""
        self._rows.append([])
        return self.fill(len(self._rows) - 1, *columns)

    def fill(self, row: int, *columns: int) -> int:
        """Replace the columns of an earlier row; return its number."""
        self._rows[row] = [*columns, *([0] * (ops.COLUMNS - len(columns)))]
        return row

    def declining(self) -> int:
        """Append a row that leaves the record to the general reader."""
        return self.row(ops.DECLINE, NO_SLOT)

    def parts(self, rows: list[int]) -> tuple[int, int]:
        """Append the rows of a record's fields or a union's branches to `parts`.

        Returns A and B of that record or union: the first of them in `parts`, and how many.
        """
        first = len(self._parts)
        self._parts += rows
        return first, len(rows)

    def constants(self, rows: list[LogRow]) -> int:
        """Append a row that writes these log rows whatever the record holds, such as defaults."""
        first = len(self._constants)
        self._constants += rows
        return self.row(ops.CONSTANT, NO_SLOT, first, len(rows))


@dataclass
class _Walk:
    """A walk of one schema along one tree: one row for each type at each node.

    `written_type` and `read_type` are a value's type in the writer's and in the reader's schema;
    the latter is None to read it as written. `written` and `read` are these types as a schema has
    them, perhaps names. `path` is that of `node`, for messages.
    """

    program: AvroProgram
    fit: Fit
    writer: AvroSchema
    reader: AvroSchema

    def __post_init__(self) -> None:
        self._made: dict[tuple[int, int, int], int] = {}
        # Keeps the objects alive whose ids are in keys of `_made`: no other may get the same id.
        self._alive: list[object] = []

    def place(self, written: Any, read: Any, node: Node, path: Path = ROOT) -> int:
        """Return the row of a value of type `written`, read as type `read` (None: as written).

        It is a new one, unless the same types have one at this node.
        """
        written_type = self.writer.type_of(written)
        if not wants(node):
            node = UNWANTED  # one object, so one row, for all places
        read_type = None if read is None else self.reader.type_of(read)
        key = (id(written_type), id(read_type), id(node))
        if key in self._made:
            return self._made[key]
        # Reserved before its content, since a recursive type refers to its own row.
        row = self.program.declining()
        kind = "union" if isinstance(written_type, list) else written_type["type"]
        # Not for primitive types: `type_of` makes a new object each time, so its id never recurs.
        if kind not in PRIMITIVES:
            self._alive += (written_type, read_type, node)
            self._made[key] = row
        try:
            if kind == "union":
                rows = [
                    self._branch(branch, read, node, path) for branch in written_type
                ]
                self.program.fill(row, ops.UNION, NO_SLOT, *self.program.parts(rows))
            else:
                if read_type is not None:
                    read_type = chosen(
                        self.writer, written_type, self.reader, read_type
                    )
                fill = self._record
                if kind in _FLAT:
                    fill = self._flat
                elif kind == "array":
                    fill = self._array
                elif kind == "map":
                    fill = self._map
                fill(row, written_type, read_type, node, path)
        except Unsure:
            self.program.fill(row, ops.DECLINE, NO_SLOT)
        return row

    def _branch(self, written: Any, read: Any, node: Node, path: Path) -> int:
        """Return a union branch's row; it declines if fields are wanted in a value without parts.

        The general reader then says what is wrong with the event. A null does not decline: all that
        is wanted in it is absent.
        """
        written_type = self.writer.type_of(written)
        if (
            (node.children or node.elements)
            and written_type["type"] in _FLAT
            and written_type["type"] != "null"
        ):
            self.fit.possible(node)
            _, words = _FLAT[written_type["type"]]
            self.fit.no_parts(node, path, words)
            return self.program.declining()
        return self.place(written, read, node, path)

    def _flat(
        self, row: int, written_type: Any, read_type: Any, node: Node, path: Path
    ) -> None:
        """Fill a row for a type without parts; Unsure if the reader's type converts its value.

        It may convert an unwanted value, which is not logged, and an int to a long or a float to a
        double, which are logged alike.
        """
        kind: str = written_type["type"]
        op, words = _FLAT[kind]
        if kind != "null":
            self.fit.possible(node)
            self.fit.no_parts(node, path, words)
        equal = read_type is None or node.slot == NO_SLOT or kind == read_type["type"]
        if not equal and (kind, read_type["type"]) not in (
            ("int", "long"),
            ("float", "double"),
        ):
            raise Unsure
        a = b = 0
        if kind == "fixed":
            a = written_type["size"]
            if type(a) is not int or not 0 <= a <= FIXED_MAX:  # fastavro takes any
                raise ValueError(f"a fixed of {a} bytes")
        elif kind == "enum":
            if read_type is not None and not set(written_type["symbols"]) <= set(
                read_type["symbols"]
            ):
                raise Unsure
            a, b = self.program.names(
                [(symbol, 0) for symbol in written_type["symbols"]]
            )
        self.program.fill(row, op, node.slot, a, b)

    def _inner_type(self, written_type: Any, read_type: Any, name: str) -> Any:
        """Return the reader's type of `items` or `values` (`name`); None: as written."""
        if read_type is None:
            return None
        if not matches(self.writer, written_type[name], self.reader, read_type[name]):
            raise Unsure
        return read_type[name]

    def _array(
        self, row: int, written_type: Any, read_type: Any, node: Node, path: Path
    ) -> None:
        """Fill a row for an array; Unsure if its items are read as another type."""
        items_read = self._inner_type(written_type, read_type, "items")
        self.fit.possible(node)
        self.fit.no_fields(node, path, "a list")
        slot = node.slot
        list_slot = node.list_slot
        inner = node.elements or UNWANTED
        if node.many:
            # As items: the rows of the list and its labels share the slot.
            slot = NO_SLOT
            list_slot = node.slot
            inner = _opened(node)
        items = self._element(written_type["items"], items_read, inner, element(path))
        self.program.fill(row, ops.ARRAY, slot, items, list_slot)

    def _element(self, written: Any, read: Any, node: Node, path: Path) -> int:
        """Return the row of a list's element; a null declines if its fields are wanted.

        Elsewhere it means that the fields are absent; but in a list, the n-th row of a field in the
        log must be that of the n-th element.
        """
        written_type = self.writer.type_of(written)
        if not node.children or not isinstance(written_type, list):
            return self.place(written, read, node, path)
        rows = [
            self.program.declining()
            if self.writer.type_of(branch) == {"type": "null"}
            else self._branch(branch, read, node, path)
            for branch in written_type
        ]
        return self.program.row(ops.UNION, NO_SLOT, *self.program.parts(rows))

    def _map(
        self, row: int, written_type: Any, read_type: Any, node: Node, path: Path
    ) -> None:
        """Fill a row for a map: rows for wanted names, and one for the values of all others."""
        values_read = self._inner_type(written_type, read_type, "values")
        self.fit.possible(node)
        self.fit.no_elements(node, path, "a map")
        slot = node.slot
        map_slot = NO_SLOT
        inner = UNWANTED
        if node.many:
            # As items: the rows of the map, its names and its counts share the slot.
            slot = NO_SLOT
            map_slot = node.slot
            inner = _opened(node)
        if len(node.children) > ops.CHILDREN_MAX:
            raise Unsure
        rows = [
            (
                name,
                self.place(
                    written_type["values"], values_read, each, child(path, name)
                ),
            )
            for name, each in node.children.items()
        ]
        first, number = self.program.names(rows)
        values = self.place(written_type["values"], values_read, inner, path)
        self.program.fill(row, ops.MAP_OP, slot, values, map_slot, first, number)

    def _record(
        self, row: int, written_type: Any, read_type: Any, node: Node, path: Path
    ) -> None:
        """Fill a row for a record: the written fields, then the defaults of the reader's others.

        As items, a record is read as a map of counts: constants write the MAP row and the names.
        With a reader's schema, which may rename, add and drop fields, that is left to fastavro.
        """
        written_fields = written_type["fields"]
        read_fields: list[Any] = [None] * len(written_fields)
        defaulted: list[Any] = []
        if read_type is not None:
            read_fields, defaulted = fields_of(written_type, read_type)
        self.fit.possible(node)
        self.fit.no_elements(node, path, "a record")
        if node.many and (len(written_fields) > MAP_NAMES_MAX or read_type is not None):
            raise Unsure
        rows: list[int] = []
        # What is wanted of each field, as items.
        opened = _opened(node) if node.many else None
        if opened is not None:
            head = (opened.slot, MAP, len(written_fields), -1)
            rows.append(self.program.constants([head]))
        for written_field, read_field in zip(written_fields, read_fields, strict=True):
            name = written_field["name"] if read_field is None else read_field["name"]
            read = None if read_field is None else read_field["type"]
            inner = UNWANTED
            if opened is not None:
                text = self.program.text(name)
                rows.append(self.program.constants([(opened.slot, TEXT, *text)]))
                inner = opened
            elif read_type is None or read_field is not None:
                # The reader keeps this field.
                inner = node.children.get(name, UNWANTED)
            rows.append(
                self.place(written_field["type"], read, inner, child(path, name))
            )
        for read_field in defaulted:
            if "default" not in read_field:
                raise Unsure
            inner = node.children.get(read_field["name"], UNWANTED)
            if wants(inner):
                rows.append(
                    self.program.constants(self._default(read_field["default"], inner))
                )
        slot = NO_SLOT if node.many else node.slot
        self.program.fill(row, ops.RECORD, slot, *self.program.parts(rows))

    def _default(self, value: Any, node: Node) -> list[LogRow]:
        """Return the log rows of a reader's default for what is wanted at and below `node`.

        Unsure where the default has another shape than is wanted.
        """
        # The reader's schema has these fields, even if the default does not.
        for slot, _ in paths_of(node):
            self.fit.possible(Node(slot))
        # Items: a list of labels, or an object label -> count.
        if node.many and isinstance(value, dict | list):
            slot = _opened(node).slot
            if isinstance(value, list):
                items = [self._scalar(item, slot) for item in value]
                return [(slot, LIST, len(value), -1), *items]
            if len(value) > MAP_NAMES_MAX:
                raise Unsure
            entries = [(slot, MAP, len(value), -1)]
            for name, count in value.items():
                entries += [self._scalar(name, slot), self._scalar(count, slot)]
            return entries
        rows = [] if node.slot == NO_SLOT else [self._scalar(value, node.slot)]
        if isinstance(value, dict):
            for name, child_node in node.children.items():
                if name in value:
                    rows += self._default(value[name], child_node)
        elif isinstance(value, list) and node.elements is not None:
            rows.append((node.list_slot, LIST, len(value), -1))
            for item in value:
                if node.elements.children and not isinstance(item, dict):
                    raise Unsure
                rows += self._default(item, node.elements)
        elif value is not None and (node.children or node.elements is not None):
            raise Unsure
        return rows

    def _scalar(self, value: Any, slot: int) -> LogRow:
        """Return the log row of a default where one value is wanted; OTHER for a list or object."""
        if isinstance(value, str):
            return (slot, TEXT, *self.program.text(value))
        if value is None:
            return slot, NULL, -1, -1
        if isinstance(value, bool):
            return slot, TRUE if value else FALSE, -1, -1
        if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
            return slot, VALUE, value, -1
        if isinstance(value, float) and not math.isnan(value):
            return slot, REAL, int(np.float64(value).view(np.int64)), -1
        return slot, OTHER, -1, -1


def _opened(node: Node) -> Node:
    """Return the node of what is in a list or map of items: names and values share its slot.

    Unsure if more is wanted in it.
    """
    if node.children or node.elements is not None:
        raise Unsure
    return Node(node.slot)


NOT_AVRO = "not Avro"
NOT_OF_READER = "not what the reader schema says"
# Nesting limit for records, lists and maps, as in JSON: fastavro recurses as well.
NESTED_MAX = 512
# Nesting limit of the scanner; the general reader handles deeper records.
STACK = 64


def read_reader_schema(path: pathlib.Path, tree: Node) -> AvroSchema:
    """Return the reader schema at `path`; raise SettingsError if it is invalid or lacks fields."""
    where = f"schema_registry.reader_schema: {path}"
    try:
        schema = parse(read_file(path).decode())
        # Only to see how the wanted fields fit: its rows are not used.
        _, _, fit = AvroProgram(tree).add(schema)
    except Exception as error:  # noqa: BLE001
        # As for writer schemas: fastavro accepts some malformed ones.
        why = str(error) if isinstance(error, SettingsError) else "no Avro schema"
        raise SettingsError(f"{where}: {why}") from None
    if refusal := fit.refusal():
        raise SettingsError(f"{where}: {refusal}")
    if absent := fit.absent():
        raise SettingsError(f"{where}: it has no field {absent[0]!r}")
    return schema


class AvroFormat(SchemaFormat[AvroProgram]):
    """Avro's `SchemaFormat`: writer schemas, for one thread.

    The names in `tree` are those of the schema `reader`, or, if None, of each writer's.
    """

    names_messages = False

    def __init__(self, tree: Node, reader: AvroSchema | None = None) -> None:
        super().__init__(AvroProgram(tree))
        self._reader = reader
        # By the number that `add` returns: the writer's schema, and the start row that only checks
        # every byte.
        self._writers: list[tuple[AvroSchema, int]] = []

    def add(self, schema: Schema, message: bytes = b"") -> int:
        """Add a writer schema; return its number. SchemaRefused if no event of it is usable."""
        if schema.kind != AVRO:
            raise SchemaRefused(NOT_OF_FORMAT)
        try:
            writer = parse(
                schema.text, [reference.text for reference in schema.references]
            )
            root, checking_root, fit = self._builder.add(writer, self._reader)
        except Exception:  # noqa: BLE001
            # fastavro accepts malformed schemas, such as a union in a union.
            raise Unreadable from None
        number = self._accept(root, fit)
        self._writers.append((writer, checking_root))
        return number

    def scanner(
        self, data: Bytes, values: Longs, roots: Longs, base: int
    ) -> RecordScan:
        """Return the scanner of a batch, see `SchemaFormat`; its stack is for one thread."""
        stack = np.empty((STACK, ops.FRAME), dtype=np.int64)
        scan = ops.Scan(data, base, self.program, stack)
        return partial(ops.scan_all, scan, values, roots)

    def decode(self, number: int, payload: bytes) -> Any:
        """Return a record as Python objects; raise ValueError with the reject reason.

        Scans every byte first: fastavro would allocate memory for 2^62 nulls, recurse without
        limit, and ignore trailing bytes.
        """
        writer, checking_root = self._writers[number]
        reader = self._reader
        stack = np.empty((NESTED_MAX, ops.FRAME), dtype=np.int64)
        data = np.frombuffer(payload, dtype=np.uint8)
        # Nothing is wanted, so nothing is logged, and no text of the program is looked at.
        log = np.empty((0, COLUMNS), dtype=np.int64)
        scan = ops.Scan(data, 0, self.program, stack)
        if ops.scan_record(scan, 0, len(data), checking_root, log, 0) == DECLINED:
            raise ValueError(NOT_AVRO)
        # The type "string", or a union, is read as the field of a record: see `as_field`.
        schemas = [writer] if reader is None else [writer, reader]
        are_objects = all(isinstance(schema.type, dict) for schema in schemas)
        texts = [
            schema.type if are_objects else schema.as_field() for schema in schemas
        ]
        try:
            record: Any = fastavro.schemaless_reader(io.BytesIO(payload), *texts)
        except Exception:  # noqa: BLE001
            # fastavro's schema resolution can raise almost any exception.
            raise ValueError(NOT_AVRO if reader is None else NOT_OF_READER) from None
        return record if are_objects else record["value"]
