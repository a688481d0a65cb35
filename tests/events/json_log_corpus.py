"""Records of the corpus on which the scanner's logs, the general reader and `json.loads` must agree.

`python -m tests.events.json_log_corpus [--records N] [--seed S]` is the long run.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np

from tests.events.comparison import Outcome, long_run, together
from tests.events.json_corpus import MAX_BYTES, TOKENS, TREES, Generator
from tests.fuzz.mutations import Mutator
from workers.arrays.texts import readonly_contiguous
from workers.events import json_scanner
from workers.events import log as kinds
from workers.events.json import JsonDecoder, JsonTree
from workers.events.json_scanner import nesting_depth
from workers.events.log import Output
from workers.events.numbers import decimal, whole
from workers.events.tree import NO_SLOT, Node
from workers.kafka.records import Records

Logs = Callable[..., tuple[int, int]]
# A row of a log: slot, kind, and its text, word or number.
Row = tuple[int, int, str | int | None]
# A batch, and the name of its tree.
Batch = tuple[str, Sequence[bytes]]

BATCH = 500
NESTED_MAX = 512


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
    """The scanner's logs; `logs` replaces the compiled `scan_all`."""

    def __init__(self, root: Node, logs: Logs | None = None) -> None:
        self.root = root
        self._walk = JsonTree(root).walk()
        self._logs = logs or json_scanner.scan_all
        self._room = 2

    def read(self, records: Records) -> list[list[Row] | None]:
        """Return the rows of every record; None where the scanner declines it."""
        n = len(records)
        given = (
            readonly_contiguous(records.data),
            readonly_contiguous(records.values),
            readonly_contiguous(np.ones(n, dtype=np.bool_)),
            self._walk,
        )
        ends = np.empty(n, dtype=np.int64)
        status = np.empty(n, dtype=np.int8)
        found: list[list[Row] | None] = []
        while True:
            begin = len(found)
            rows = np.empty((self._room, 4), dtype=np.int64)
            decoded = np.empty(self._room, dtype=np.uint8)
            out = Output(rows, ends, status, declined_bytes=1 << 62)
            done, filled = self._logs(*given, decoded, begin, out)
            content = records.data.tobytes() + decoded[:filled].tobytes()
            first = 0
            for record in range(begin, done):
                log = rows[first : ends[record]].tolist()
                first = ends[record]
                said = [row_back(content, *row) for row in log]
                found.append(None if status[record] == kinds.DECLINED else said)
            if done == n:
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
) -> Outcome:
    """Compare the scanner's logs, the general reader and `json.loads`.

    Readable is what the scanner could have read, by the log's specification.
    """
    scanned = could = 0
    for value, rows in zip(values, scanner.read(Records.of(values)), strict=True):
        scanned += rows is not None
        expected: list[Row] | None = None
        said: object = ValueError
        deep = is_too_deep(value)
        try:
            # Python's decoder reads no byte order mark, and deeper JSON not at all.
            text = value.removeprefix(b"\xef\xbb\xbf").decode().strip(" \t\r\n")
            loaded = refuse("too deep") if deep else LOADS.decode(text)
            said = PLAIN_LOADS.decode(text)
            expected = list(rows_of_object(scanner.root, loaded))
        except (ValueError, NotPlainError, RecursionError):
            pass
        could += expected is not None
        try:
            decoded: object = ValueError if deep else decoder.decode(value)
        except ValueError:
            decoded = ValueError
        differs = None
        if rows is not None and rows != expected:
            differs = f"the scanner says {rows}, json {expected}"
        elif repr(part(scanner.root, decoded)) != repr(part(scanner.root, said)):
            differs = f"decoded {decoded}, json says {said}"
        elif rows is not None and decoded is ValueError:
            differs = f"the scanner says {rows}, and it cannot be decoded"
        if differs is not None:
            return Outcome(f"{value!r}: {differs}", could, scanned)
    return Outcome(None, could, scanned)


def is_too_deep(value: bytes) -> bool:
    if value.count(b"[") + value.count(b"{") <= NESTED_MAX:
        return False
    return nesting_depth(np.frombuffer(value, dtype=np.uint8)) > NESTED_MAX


def compare(batches: Iterable[Batch], logs: Logs | None = None) -> Outcome:
    readers = {
        name: (Scanner(root, logs), JsonDecoder(root)) for name, root in TREES.items()
    }
    return together(difference(*readers[name], values) for name, values in batches)


def random_batches(records: int, seed: int) -> Iterator[Batch]:
    """Yield batches: half of the records as they were made for the tree, half mutated."""
    generator = Generator(seed)
    mutator = Mutator(generator.random, TOKENS, MAX_BYTES)
    trees = cycle(TREES.items())
    for begin in range(0, records, BATCH):
        name, root = next(trees)
        size = min(BATCH, records - begin)
        made = [generator.object(root) for _ in range((size + 1) // 2)]
        yield name, [*made, *(mutator.mutated(made) for _ in range(size // 2))]


def run(records: int, seed: int) -> Outcome:
    return compare(random_batches(records, seed))


if __name__ == "__main__":
    long_run(run)
