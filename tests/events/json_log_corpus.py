"""Random records on which the tree scanner must agree with the general reader and `json.loads`.

`python -m tests.events.json_log_corpus [--records N] [--seed S]` reads N records and prints the
counts; exit 1 at the first difference.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from tests.events.json_corpus import Compared, Generator, long_run
from workers.arrays.texts import readonly_contiguous
from workers.events import json_scanner
from workers.events import log as kinds
from workers.events.json import JsonDecoder, JsonTree
from workers.events.json_scanner import nesting_depths
from workers.events.numbers import decimal, whole
from workers.events.tree import NO_SLOT, Node, Wanted, build
from workers.kafka.records import Records

Logs = Callable[..., tuple[int, int]]
# A row of a log: slot, kind, and its text, word or number.
Row = tuple[int, int, str | int | None]

BATCH = 2_000
NESTED_MAX = 512


def tree(*paths: str, many: Sequence[str] = ()) -> Node:
    """Return the tree of paths without quoted names, in slot order; list slots start at 1,000."""
    lists: dict[str, int] = {}
    wanted = []
    for slot, path in enumerate(paths):
        before, brackets, _ = path.partition("[]")
        at = before.count(".") + 1 if brackets else None
        listed = lists.setdefault(before, 1_000 + len(lists)) if brackets else NO_SLOT
        wanted.append(
            Wanted(
                tuple(path.replace("[]", "").split(".")), at, slot, path in many, listed
            )
        )
    return build(wanted)


DOTTED = build(
    [
        Wanted(("shop.name", '"'), None, 0),
        Wanted(("order", "a[]", "é"), 2, 1, False, 2),
        Wanted(("order.a[]",), None, 3),
    ]
)
TREES = {
    "flat": tree("key", "items", "ts", "user", many=["items"]),
    "nested": tree(
        "order.lines[].sku", "order.lines[].qty", "order.id", "order.shop.name", "ts"
    ),
    "lists": tree("tags[]", "a.b[]", "meta", "meta2.x", many=["meta"]),
    "itself and within": tree(
        "order",
        "order.id",
        "order.lines",
        "order.lines[].sku",
        "order.lines[].sku.x",
        "ts",
    ),
    "several": tree("m", "m.x", "l", "l[].y", "b.c", "b[].c", "ts", many=["m", "l"]),
    "prefixes": tree(
        *("i", "it", "ite", "item", "items", "smeti", "é", "žluťoučký", "\x7f"),
        "",
        "a b",
        many=["items"],
    ),
    "names as no TOML has them": DOTTED,
    "many fields": tree(
        *(f"field{i}" for i in range(90)), *(f"in.f{i}.x" for i in range(70))
    ),
    "deep": tree(".".join("abcdefghijklmnop"), "a.b.c.d[].e.f.g"),
}


class Shapes(Generator):
    def object(self, node: Node) -> bytes:
        """Return an object with most of the wanted fields and some others."""
        draw = self._random.random
        choice = self._random.choice
        names = list(node.children)
        if len(names) > 12:
            names = self._random.sample(names, 5)
        parts = [
            (name.encode(), self.at(node.children[name]))
            for name in names
            if draw() < 0.85
        ]
        for _ in range(choice((0, 0, 1, 2))):
            known = [name.encode() for name in names[:2]]
            parts.append(
                (choice((b"x", b"xs", b"ke", b"field95", *known)), self.value())
            )
        if draw() < 0.3:
            self._random.shuffle(parts)
        comma, colon, around = self.marks()
        quoted = (self.quoted(name.decode()) for name, _ in parts)
        fields = [
            name + colon + value for name, (_, value) in zip(quoted, parts, strict=True)
        ]
        return b"{%b%b}%b" % (around, comma.join(fields), around)

    def at(self, node: Node) -> bytes:
        """Return a valid value for a node, sometimes null, and sometimes any value."""
        kind = self._random.random()
        if kind < 0.03:
            return b"null"
        if kind < 0.05:
            return self.value()
        if node.children and (node.elements is None or kind < 0.5):
            return self.object(node)
        if node.elements is not None:
            number = self._random.choice((0, 1, 2, 2, 3, 9))
            return b"[%b]" % b",".join(self.at(node.elements) for _ in range(number))
        return self.items() if node.many else self.scalar()

    def quoted(self, text: str) -> bytes:
        """Return a string literal: unescaped, in ASCII, or with random escapes."""
        kind = self._random.random()
        if kind < 0.93:
            return json.dumps(text, ensure_ascii=kind > 0.9).encode()
        choice = self._random.choice
        digits = self._random.choice("xX")
        parts = []
        for each in text:
            units = memoryview(each.encode("utf-16-le")).cast("H")
            plain, short = (
                json.dumps(each, ensure_ascii=ascii)[1:-1] for ascii in (False, True)
            )
            parts.append(
                choice(
                    (plain, short, "".join(f"\\u{unit:04{digits}}" for unit in units))
                )
            )
        return f'"{"".join(parts)}"'.encode()

    def label(self) -> bytes:
        made = super().label()
        try:
            return (
                made if self._random.random() < 0.8 else self.quoted(json.loads(made))
            )
        except ValueError:  # it is not JSON, or half a surrogate pair
            return made

    def scalar(self) -> bytes:
        pick = self._random.randrange
        kind = self._random.random()
        if kind < 0.4:
            return self.label()
        if kind < 0.7:
            return b"%d" % (pick(10 ** pick(1, 20)) * self._random.choice((1, 1, -1)))
        if kind < 0.85:
            return b"%d.%d" % (pick(10 ** pick(1, 17)), pick(10 ** pick(1, 17)))
        if kind < 0.9:
            point = b".%d" % pick(10 ** pick(1, 17)) if pick(2) else b""
            mark = self._random.choice((b"e", b"E", b"e+", b"E-", b"e-", b"E+"))
            return b"%d%b%b%d" % (pick(10 ** pick(1, 17)), point, mark, pick(120))
        return self._random.choice(
            (b"true", b"false", b"null", b"0", b"1e5", b"-0", b"{}", b"[]")
        )

    def shaped(self, root: Node, size: int) -> list[bytes]:
        """Return records: half unchanged, the rest mutated up to four times."""
        bases = [self.object(root) for _ in range(size // 4 + 1)]
        return self.mutations(bases, size, (0, 0, 0, 1, 2, 4))


class Whole(str):
    __slots__ = ()


class Number(str):
    __slots__ = ()


class Pairs(list[tuple[str, Any]]):
    """The pairs of an object, including duplicate names."""


class NotPlainError(Exception):
    """Raised where the scanner may decline."""


def refuse(word: str) -> object:
    """Refuse NaN and similar constants, which Python reads but JSON does not allow."""
    raise ValueError(word)


def rows_of(node: Node, value: object) -> Iterator[Row]:
    """Yield the rows of a value at a node; NotPlainError if no log can express the value."""
    inner = bool(node.children) or node.elements is not None
    if node.many and not inner and isinstance(value, list):
        yield (
            node.slot,
            kinds.MAP if isinstance(value, Pairs) else kinds.LIST,
            len(value),
        )
        if isinstance(value, Pairs) and len({name for name, _ in value}) < len(value):
            raise NotPlainError
        for each in value:
            if isinstance(value, Pairs):
                yield node.slot, kinds.TEXT, decodable(each[0])
            yield one(node.slot, each[1] if isinstance(value, Pairs) else each)
        return
    if node.slot != NO_SLOT:
        yield one(node.slot, value)
    if value is None or not inner:
        return
    if node.many or (node.children and node.elements is not None):
        raise NotPlainError
    if node.elements is not None:
        if isinstance(value, Pairs) or not isinstance(value, list):
            raise NotPlainError
        yield node.list_slot, kinds.LIST, len(value)
        for each in value:
            if each is None and (node.elements.children or node.elements.elements):
                raise NotPlainError
            yield from rows_of(node.elements, each)
        return
    yield from rows_of_object(node, value)


def rows_of_object(node: Node, value: object) -> Iterator[Row]:
    if not isinstance(value, Pairs):
        raise NotPlainError
    for name, _ in value:
        decodable(name)
    names = [name for name, _ in value if name in node.children]
    if len(set(names)) < len(names):
        raise NotPlainError
    for name, each in value:
        if name in node.children:
            yield from rows_of(node.children[name], each)


def decodable(text: str) -> str:
    """Return a text, or a name beside wanted ones; NotPlainError if it has half a surrogate pair."""
    if any("\ud800" <= each < "\ue000" for each in text):
        raise NotPlainError
    return text


def one(slot: int, value: object) -> Row:
    if isinstance(value, Whole):
        return slot, kinds.WHOLE, str(value)
    if isinstance(value, Number):
        return (
            slot,
            kinds.EXPONENT if "e" in value.lower() else kinds.NUMBER,
            str(value),
        )
    if isinstance(value, str):
        return slot, kinds.TEXT, decodable(value)
    if value is None or isinstance(value, bool):
        return (
            slot,
            {None: kinds.NULL, True: kinds.TRUE, False: kinds.FALSE}[value],
            json.dumps(value),
        )
    return slot, kinds.OTHER, None


INTEGER = r"-?(0|[1-9][0-9]{0,14})"
BEHIND_POINT = r"\.[0-9]{1,30}"
FORMS = {
    kinds.WHOLE: re.compile(r"(?!-0)-?(0|[1-9][0-9]{0,18})", re.ASCII),
    kinds.NUMBER: re.compile(INTEGER + BEHIND_POINT, re.ASCII),
    kinds.EXPONENT: re.compile(
        f"{INTEGER}({BEHIND_POINT})?[eE][+-]?[0-9]{{1,2}}", re.ASCII
    ),
    kinds.TRUE: re.compile("true"),
    kinds.FALSE: re.compile("false"),
    kinds.NULL: re.compile("null"),
}


class Scanner:
    def __init__(self, root: Node, logs: Logs | None = None) -> None:
        self.root = root
        self._walk = JsonTree(root).walk()
        self._logs = logs or json_scanner.scan_all
        self._room = 2

    def read(self, records: Records) -> list[list[Row] | None]:
        """Return the rows of every record; None where the scanner declines it."""
        data = readonly_contiguous(records.data)
        values = readonly_contiguous(records.values)
        number = np.empty(len(records), dtype=np.int64)
        done = 0
        found: list[list[Row] | None] = []
        while True:
            begin = done
            rows = np.empty((self._room, 4), dtype=np.int64)
            decoded = np.empty(self._room, dtype=np.uint8)
            done, filled = self._logs(
                data, values, self._walk, begin, number, rows, decoded
            )
            content = records.data.tobytes() + decoded[:filled].tobytes()
            left = iter(rows[: np.maximum(number[begin:done], 0).sum()].tolist())
            for more in number[begin:done].tolist():
                said = [row_back(content, *row) for row in islice(left, max(more, 0))]
                found.append(None if more == kinds.DECLINED else said)
            if done == len(records):
                return found
            self._room *= 2


def row_back(content: bytes, slot: int, kind: int, start: int, stop: int) -> Row:
    """Return a row with the bytes at its positions; check that they are as the log promises."""
    if kind in (kinds.LIST, kinds.MAP):
        return slot, kind, start
    if kind == kinds.OTHER:
        return slot, kind, None
    text = content[start:stop].decode("utf-8", "surrogateescape")
    if kind in FORMS:
        assert FORMS[kind].fullmatch(text), f"kind {kind}: {text}"
    return slot, kind, text


def part(node: Node, value: object) -> object:
    """Return the wanted part of a decoded value, or all of it if it has another shape."""
    if node.many or (node.children and node.elements is not None):
        return value
    if node.children and isinstance(value, dict):
        return {
            name: part(child, value[name])
            for name, child in node.children.items()
            if name in value
        }
    if node.elements is not None and isinstance(value, list):
        return [part(node.elements, each) for each in value]
    return value


LOADS = json.JSONDecoder(
    object_pairs_hook=Pairs, parse_int=Whole, parse_float=Number, parse_constant=refuse
)
PLAIN_LOADS = json.JSONDecoder(
    parse_float=decimal, parse_int=whole, parse_constant=refuse
)


def difference(
    scanner: Scanner, decoder: JsonDecoder, values: Sequence[bytes]
) -> tuple[str | None, int, int]:
    """Return the first record on which scanner, general reader and `json.loads` disagree, with
    their results; the number of records the scanner read; and the number it could have read
    according to the log's specification.
    """
    records = Records.of(values)
    scanned = could = 0
    for value, depth, rows in zip(
        values,
        nesting_depths(
            readonly_contiguous(records.data), readonly_contiguous(records.values)
        ),
        scanner.read(records),
        strict=True,
    ):
        scanned += rows is not None
        expected: list[Row] | None = None
        said: object = ValueError
        try:
            # Python's decoder reads no byte order mark, and deeper JSON not at all.
            text = value.removeprefix(b"\xef\xbb\xbf").decode().strip(" \t\r\n")
            loaded = LOADS.decode(text) if depth <= NESTED_MAX else refuse("too deep")
            said = PLAIN_LOADS.decode(text)
            expected = list(rows_of_object(scanner.root, loaded))
        except (ValueError, NotPlainError, RecursionError):
            pass
        could += expected is not None
        if rows is not None and rows != expected:
            return (
                f"{value!r}: the scanner says {rows}, json {expected}",
                scanned,
                could,
            )
        try:
            decoded: object = (
                decoder.decode(value) if depth <= NESTED_MAX else ValueError
            )
        except ValueError:
            decoded = ValueError
        same = repr(part(scanner.root, decoded)) == repr(part(scanner.root, said))
        if not same:
            return f"{value!r}: decoded {decoded}, json says {said}", scanned, could
        if rows is not None and decoded is ValueError:
            return (
                f"{value!r}: the scanner says {rows}, and it cannot be decoded",
                scanned,
                could,
            )
    return None, scanned, could


def mutations(records: int, seed: int) -> Iterator[tuple[str, list[bytes]]]:
    """Yield batches, `records` records in total, with the tree name of each batch."""
    shapes = Shapes(seed)
    done = 0
    while done < records:
        for name, root in TREES.items():
            size = min(BATCH, records - done)
            if size:
                yield name, shapes.shaped(root, size)
            done += size


def compare(records: int, seed: int) -> Iterator[Compared]:
    readers = {name: (Scanner(root), JsonDecoder(root)) for name, root in TREES.items()}
    for name, values in mutations(records, seed):
        yield *difference(*readers[name], values), len(values)


if __name__ == "__main__":
    sys.exit(long_run(compare))
