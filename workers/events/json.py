"""JSON format, one object per record: the node tree for the scanner, and the general reader.

A record is JSON as RFC 8259 has it: UTF-8 throughout, even in unwanted fields. A byte order mark
before it is ignored. The general reader decodes with msgspec along the tree of wanted paths. A
record of another shape is decoded completely, so that the reject can say what is wrong with it.
Python decodes the JSON that msgspec refuses: unpaired surrogate escapes, which `events.project`
rejects in wanted fields, and integers of more than 4,300 digits.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypedDict

import msgspec
import numpy as np

from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.arrays.words import WORD
from workers.events import json_scanner as scanner
from workers.events.log import FieldSpans, Output, scan_parts
from workers.events.numbers import decimal, whole
from workers.events.tree import Node
from workers.runtime.frozen import Frozen, read_only

# Nested lists and objects. CPython allows a recursion depth of about 1,000, including our own
# calls; which of msgspec's calls count differs by version. All versions allow this many.
NESTED_MAX = 512
# RFC 8259 lets a reader ignore it; .NET and Windows write it.
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonTree(Frozen):
    """The wanted fields for the scanner, shared by all threads.

    Attributes:
        nodes: int64 (n, NODE_COLUMNS), the tree; see `json_scanner` for its columns.
        names: the names of the nodes in quotes, as UTF-8.
        levels: how deep the wanted fields are nested.
    """

    def __init__(self, root: Node) -> None:
        builder = _Rows()
        builder.add(root, b"")
        # A record is an object, and so a level, whatever fields are wanted.
        self.levels = max(1, builder.fill(0, root))
        builder.rows[0][scanner.SORT] = scanner.OBJECT
        # Names are read in whole words, beyond the end of the last one.
        names = np.frombuffer(bytes(builder.names) + bytes(WORD), dtype=np.uint8)
        self.names = readonly_contiguous(names)
        nodes = np.array(builder.rows, dtype=np.int64)
        # A name is compared with a node's only where their signatures are equal, and looked up only
        # where the parent's BITS have its signature's bit.
        for row in nodes:
            row[scanner.SIGNATURE] = scanner.signature(
                self.names, row[scanner.NAME_START], row[scanner.NAME_STOP]
            )
        for row in nodes:
            signatures = nodes[
                row[scanner.CHILDREN] : row[scanner.CHILDREN_STOP], scanner.SIGNATURE
            ].tolist()
            bits = np.uint64(
                sum(1 << each for each in set(map(scanner.bit, signatures)))
            )
            row[scanner.BITS] = bits.view(np.int64)
        self.nodes = read_only(nodes)

    def walk(self) -> scanner.Walk:
        """Return the scanner's arguments with scratch for one thread."""
        seen = np.zeros((len(self.nodes), scanner.SEEN_COLUMNS), dtype=np.int64)
        # Initially, expect the order of the settings, and after the last field the first one.
        for node, (first, stop) in enumerate(
            self.nodes[:, [scanner.CHILDREN, scanner.CHILDREN_STOP]].tolist()
        ):
            if first < stop:
                seen[node, scanner.LAST_FIRST] = first
                seen[first:stop, scanner.LAST_NEXT] = [*range(first + 1, stop), first]
        stack = np.empty((self.levels, scanner.HELD_COLUMNS), dtype=np.int64)
        return scanner.Walk(self.nodes, self.names, stack, seen)


class _Rows:
    """Builder of node rows and names; the children of a node get contiguous rows."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self.names = bytearray()

    def add(self, node: Node, name: bytes) -> int:
        """Append the row of a node and its name; return its number. `fill` adds what is below it.

        The root and the elements of a list have no name: b"".
        """
        # Behind the opening quote.
        start = len(self.names) + 1
        self.names += b'"' + name + b'"'
        row = [scanner.NONE] * scanner.NODE_COLUMNS
        row[scanner.NODE_SLOT] = node.slot
        row[scanner.LIST_SLOT] = node.list_slot
        row[scanner.SORT] = _sort(node)
        row[scanner.NAME_START] = start
        row[scanner.NAME_STOP] = start + len(name)
        # JSON must escape these; other bytes, of valid UTF-8 here, may be in a record as they are.
        has_escapes = any(byte < 32 or byte in b'"\\' for byte in name)
        row[scanner.UNESCAPED] = int(bool(name) and not has_escapes)
        self.rows.append(row)
        return len(self.rows) - 1

    def fill(self, row: int, node: Node) -> int:
        """Add the rows below a node, which has `row`; return how many levels deep they are.

        All children get their rows first, next to each other, before those below them.
        """
        first = len(self.rows)
        named = node.children.items()
        children = [(self.add(child, name.encode()), child) for name, child in named]
        self.rows[row][scanner.CHILDREN] = first
        self.rows[row][scanner.CHILDREN_STOP] = first + len(children)
        if node.elements is not None:
            self.rows[row][scanner.ELEMENTS] = self.add(node.elements, b"")
            children.append((self.rows[row][scanner.ELEMENTS], node.elements))
        depths = [self.fill(child_row, child) for child_row, child in children]
        return 1 + max(depths) if depths else 0


def _sort(node: Node) -> int:
    """Return how the scanner reads a node: one value, items, an object, a list, or several."""
    sorts = []
    if node.many:
        sorts.append(scanner.ITEMS)
    if node.children:
        sorts.append(scanner.OBJECT)
    if node.elements is not None:
        sorts.append(scanner.ELEMENTS_OF)
    if len(sorts) > 1:
        return scanner.SEVERAL
    return sorts[0] if sorts else scanner.ONE


class JsonDecoder(Frozen):
    """Decodes one record at a time, by the tree of wanted fields. Shared by all threads.

    Methods raise ValueError("not JSON").
    """

    def __init__(self, tree: Node) -> None:
        wanted: Any = msgspec.json.Decoder(_type(tree), float_hook=decimal)
        anything: Any = msgspec.json.Decoder(float_hook=decimal)
        self._wanted: Callable[[str], Any] = wanted.decode
        self._anything: Callable[[str], Any] = anything.decode

    def decode(self, value: bytes) -> object:
        """Return a record as dict, list, str, int, bool and None, with `decimal` for other numbers.

        Unwanted fields are left out, unless the record has another shape. The last value of a
        repeated name wins.
        """
        text = _checked_text(value)
        try:
            return self._wanted(text)
        except (ValueError, RecursionError):  # msgspec's own errors are ValueErrors
            return self._decode_all(text)

    def decode_all(self, value: bytes) -> object:
        """As `decode`, with every field of the record."""
        return self._decode_all(_checked_text(value))

    def _decode_all(self, text: str) -> object:
        """Decode every field; Python reads what msgspec refuses (see the module)."""
        try:
            return self._anything(text)
        except (ValueError, RecursionError):
            pass
        try:
            return _PYTHON.decode(text)
        except (ValueError, RecursionError):
            raise ValueError("not JSON") from None


def _refuse_constant(word: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python reads and writes, but JSON does not have."""
    raise ValueError(word)


_PYTHON = json.JSONDecoder(
    parse_float=decimal, parse_int=whole, parse_constant=_refuse_constant
)


class Json(JsonDecoder):
    """JSON reader, shared by all threads of a worker. See `Format`."""

    def __init__(self, tree: Node) -> None:
        super().__init__(tree)
        self._tree = JsonTree(tree)

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        """Log the wanted fields of the `plain` records, part by part (`events.log`)."""
        batch = (
            readonly_contiguous(data),
            readonly_contiguous(values),
            readonly_contiguous(plain),
            self._tree.walk(),
        )

        def scan(begin: int, out: Output) -> tuple[Bytes, int]:
            """Scan a part; return the bytes, decoded texts behind them, and where to resume."""
            # Decoding never lengthens a text: one record always has room.
            decoded = np.empty_like(data)
            done, filled = scanner.scan_all(*batch, decoded, begin, out)
            return (np.concatenate([data, decoded[:filled]]) if filled else data), done

        return scan_parts(values, scan, self.decoder(data, values))

    def decoder(self, data: Bytes, values: Longs) -> Callable[[int], object]:
        """Return the general reader: a function from a batch index to the decoded record."""

        def decode(row: int) -> object:
            start, stop = values[row].tolist()
            return self.decode(data[start:stop].tobytes())

        return decode


def _checked_text(value: bytes) -> str:
    """Return the text of a record that is nested no deeper than its readers go."""
    # Only then can it be nested too deep; nearly all records have fewer brackets.
    if value.count(b"[") + value.count(b"{") > NESTED_MAX:
        record = np.frombuffer(value, dtype=np.uint8)
        if scanner.nesting_depth(record) > NESTED_MAX:
            raise ValueError("not JSON")
    try:
        return value.removeprefix(_BYTE_ORDER_MARK).decode()
    except UnicodeDecodeError:
        raise ValueError("not JSON") from None


def _type(node: Node) -> Any:
    """Return the type as which msgspec decodes a node, so that it skips unwanted fields.

    It is never stricter than needed: a record that does not fit is decoded once more, as a whole.
    """
    # A value may be a list, an object or neither; or it is wanted both as a list and as an object.
    if node.many or (node.children and node.elements is not None):
        return Any
    if node.elements is not None:
        return list[_type(node.elements)] | None  # type: ignore[misc]
    if node.children:
        if not all(map(str.isascii, node.children)):
            # msgspec does not find names beyond ASCII in a TypedDict (its #1126; so in 0.22).
            return dict[str, Any] | None
        fields = {name: _type(child) for name, child in node.children.items()}
        made: Any = TypedDict
        return made("Wanted", fields, total=False) | None
    return Any
