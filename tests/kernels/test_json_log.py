"""What the scanner of JSON logs is what a walk in plain Python finds; with the compiler and without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.kernels.json_log_corpus import TREES, Row, Scanner, corpus, difference, mutations, tree
from tests.kernels.uncompiled import plain_python
from workers.events.json_objects import JsonDecoder
from workers.events.tree import Node
from workers.kafka.records import Records
from workers.kernels.reading import json_log, json_parts, log
from workers.kernels.reading.log import FALSE, FULL, LIST, MAP, NULL, NUMBER, OTHER, TEXT, TRUE, WHOLE, put

EVENTS = tree("key", "items", "ts", many=["items"])


def plain_logs(old: str = "", new: str = "") -> Callable[..., Any]:
    """Return the kernel `logs` as plain Python, with `old` replaced by `new` in the source of the scanner."""
    logs: Callable[..., Any] = plain_python((json_parts, log, json_log), old, new)[json_log]["logs"]
    return logs


def first_difference(records: int, logs: Callable[..., Any] | None = None, every: int = 1) -> str | None:
    """Return what scanner, general reader and `json.loads` first differ in.

    Args:
        records: how many mutated ones are looked at after the corpus.
        logs: the scanner; None: as it is compiled.
        every: 5 reads one in five of the corpus.
    """
    readers = {name: (Scanner(root, logs), JsonDecoder(root)) for name, root in TREES.items()}

    def batches() -> Iterator[tuple[str, list[bytes]]]:
        for name, values in corpus():
            yield name, values[::every]
        yield from mutations(records, 3)

    said = (difference(*readers[name], values)[0] for name, values in batches())
    return next((found for found in said if found), None)


def test_hostile_and_mutated_records_are_logged_as_they_are() -> None:
    """The long run is `python -m tests.kernels.json_log_corpus --records 5000000`."""
    assert first_difference(100_000) is None


def test_the_scanner_does_not_decline_what_a_log_can_say() -> None:
    """A scanner that declines everything would say nothing wrong."""
    readers = {name: (Scanner(root), JsonDecoder(root)) for name, root in TREES.items()}
    scanned = could = 0
    for name, values in mutations(40_000, 4):
        said, more, might = difference(*readers[name], values)
        assert said is None
        scanned, could = scanned + more, could + might
    assert could > 8_000
    assert scanned > 0.65 * could


def test_the_scanner_as_plain_python_logs_the_same() -> None:
    """What is compiled is what one reads: nothing rests on how numba compiles it."""
    assert first_difference(4_000, plain_logs(), every=5) is None


# Something the scanner must not do: what it says now, and what it would say.
DEFECTS = {
    "a wanted name twice": ("if seen[child]:", "if False:"),
    "a name of items twice": ("log[other, START], log[other, STOP]", "log[other, START], log[other, START] - 1"),
    "half of a name decides": ("if same(data, start, stop, names, begin, end):", "if True:"),
    "-0": ("(REFUSED if zero and at > begin else end)", "end"),
    "leading zeros": (" or (zero and end > at + 1)", ""),
    "no digits": ("if end == at or (zero", "if (zero"),
    "no digits behind the point": ("(end if end > at else REFUSED)", "end"),
    "many digits before the point": ("end - at > POINT_DIGITS", "False"),
    "many digits": ("digits(data, at, stop, WHOLE_DIGITS)", "digits(data, at, stop, 20)"),
    "many digits behind the point": ("digits(data, at, stop, BEHIND_DIGITS)", "digits(data, at, stop, 31)"),
    "any bracket closes": ("byte != (CLOSE_OBJECT if row == NONE else CLOSE_LIST)", "byte not in (CLOSE_OBJECT, CLOSE_LIST)"),
    "any bracket closes items": ("if byte == close:", "if byte in (CLOSE_OBJECT, CLOSE_LIST):"),
    "any bracket opens": ("byte != (OPEN_OBJECT if sort == OBJECT else OPEN_LIST)", "byte not in (OPEN_OBJECT, OPEN_LIST)"),
    "no comma": (
        "if byte != COMMA:\n                return DECLINED\n            at = space(data, at + 1, stop)",
        "at = space(data, at + (byte == COMMA), stop)",
    ),
    "no comma between items": ("if byte != COMMA:\n            return REFUSED, used\n        at =", "at ="),
    "no colon": ("if look(data, at, stop) != COLON:\n            return DECLINED\n        at =", "at ="),
    "no colon in items": ("if look(data, at, stop) != COLON:\n                return REFUSED, used\n            at =", "at ="),
    "something behind the record": ("space(data, at, stop) == stop", "True"),
    "items of several sorts": (" or sort == SEVERAL:", ":"),
    "null is an element": ("byte == NULL_WORD[0] and row == NONE:", "byte == NULL_WORD[0]:"),
    "elements are not counted": ("log[row, START] += 1", "pass"),
    "items are not counted": ("count += 1", "pass"),
    "the level around is forgotten": ("node = stack[level - 1, HELD_NODE]", "pass"),
    "the list around is forgotten": ("row = stack[level - 1, HELD_ROW]", "pass"),
    "a string goes on behind a backslash": ("byte in (QUOTE, BACKSLASH)", "byte == QUOTE"),
    "a string holds control characters": (" or byte < SPACE:", ":"),
    "UTF-8 is not looked at": ("if length == 0:\n                break\n            at += length\n        elif", "at += 1\n        elif"),
    "overlong UTF-8": ("low = 0xA0", "low = 0x80"),
    "overlong UTF-8 of two bytes": ("lead < 0xC2", "lead < 0xC0"),
    "surrogates": ("high = 0x9F", "high = 0xBF"),
    "beyond U+10FFFF": ("high = 0x8F", "high = 0xBF"),
    "lead bytes beyond UTF-8": ("lead > 0xF4", "lead > 0xF7"),
    "third bytes of any kind": ("if not 0x80 <= data[place] <= 0xBF:", "if False:"),
    "leading zeros where nobody looks": (" or (data[at] == ZERO and end > at + 1)", ""),
    "an exponent without digits": ("EXPONENT_DIGITS)\n        if end == at:", "EXPONENT_DIGITS)\n        if False:"),
    "a point without digits where nobody looks": ("NUMBER_DIGITS)\n        if end == at:", "NUMBER_DIGITS)\n        if False:"),
    "any escape": ("after == END or not ESCAPES[after]", "after == END"),
    "a vertical tab is space": ("byte not in (SPACE, NEWLINE, TAB, RETURN)", "byte not in (SPACE, NEWLINE, TAB, RETURN, 11)"),
}  # fmt: skip


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_would_be_seen(defect: str) -> None:
    """A run over millions of records says something only if a disagreement would be seen."""
    logs = plain_logs(*DEFECTS[defect])
    try:
        found = first_difference(10_000, logs)
    except (IndexError, AssertionError):  # an index beyond the bytes; a number that is none by the words of the log
        return
    assert found


def rows(root: Node, value: bytes) -> list[Row] | None:
    """Return the rows of one record."""
    (found,) = Scanner(root).read(Records.of([value]))
    return found


ORDERS = tree("order.lines[].sku", "order.lines[].qty", "order.id", "order", "tags[]", "m", many=["m"])
LINES, TAGS = 1_000, 1_001
LOGGED: dict[bytes, list[Row]] = {
    b"{}": [],
    b' \t\r\n{ "order" : null , "m" : null , "tags" : null } \n': [(3, NULL, "null"), (5, NULL, "null")],
    b'{"order":{"id":-17,"x":[{"id":1}],"lines":[{"qty":2.50,"sku":"a"},{},{"sku":true,"qty":[{}]}]}}': [
        (3, OTHER, None), (2, WHOLE, "-17"), (LINES, LIST, 3), (1, NUMBER, "2.50"), (0, TEXT, "a"), (0, TRUE, "true"), (1, OTHER, None),
    ],
    b'{"tags":["a",false,null,7,{}],"order":{"lines":[]}}': [
        (TAGS, LIST, 5), (4, TEXT, "a"), (4, FALSE, "false"), (4, NULL, "null"), (4, WHOLE, "7"), (4, OTHER, None),
        (3, OTHER, None), (LINES, LIST, 0),
    ],
    b'{"m":["a",1,[]]}': [(5, LIST, 3), (5, TEXT, "a"), (5, WHOLE, "1"), (5, OTHER, None)],
    b'{"m":{"a":1,"b":{},"":"x"}}': [
        (5, MAP, 3), (5, TEXT, "a"), (5, WHOLE, "1"), (5, TEXT, "b"), (5, OTHER, None), (5, TEXT, ""), (5, TEXT, "x"),
    ],
    b'{"m":"a"}': [(5, TEXT, "a")],
    '{"m":"\U0001f600 žluť"}'.encode(): [(5, TEXT, "\U0001f600 žluť")],
    b'{"m":999999999999999999,"order":{"id":0}}': [(5, WHOLE, "9" * 18), (3, OTHER, None), (2, WHOLE, "0")],
    b'{"m":-999999999999999.123456789012345678901234567890}': [(5, NUMBER, "-999999999999999.123456789012345678901234567890")],
    b'{"x":1.7976931348623157E+30,"y":[-9.1e-07,' + b"9" * 40 + b"." + b"9" * 40 + b'],"m":1795296236471000000}': [
        (5, WHOLE, "1795296236471000000"),
    ],
    b'{"m":"' + b"x" * 100_000 + b'"}': [(5, TEXT, "x" * 100_000)],
    b'{"id":1,"lines":[{"sku":"b"}],"order.id":2,"orde":3,"orders":4}': [],
    b'{"x":' + b"[" * 32 + b"]" * 32 + b',"m":0.0}': [(5, NUMBER, "0.0")],
}  # fmt: skip


@pytest.mark.parametrize("value", LOGGED, ids=range(len(LOGGED)))
def test_plain_records_are_logged(value: bytes) -> None:
    """Rows come in the order of the record, so in that of the elements of each list."""
    assert rows(ORDERS, value) == LOGGED[value]


def test_items_have_as_many_names_as_can_be_compared() -> None:
    """One more, and the general reader decides."""
    for n, expected in ((64, 129), (65, None)):
        found = rows(ORDERS, b'{"m":{' + b",".join(b'"l%d":1' % i for i in range(n)) + b"}}")
        assert expected == (found and len(found))


DECLINED = [
    b"", b" ", b"[]", b"null", b'{"order":5}', b'{"order":[]}', b'{"order":{"lines":{}}}', b'{"order":{"lines":[null]}}',
    b'{"order":{"lines":[{},[]]}}', b'{"m":"\\u0061"}', b'{"\\u006d":1}', b'{"x\\n":1}', b'{"order":{"x\\n":1}}', b'{"m":1e5}',
    b'{"m":-0}', b'{"m":NaN}', b'{"m":[1}',
    b'{"m":1,"m":1}', b'{"m":{"a":1,"a":1}}', b'{"order":{"id":1,"id":1}}', b'{"m":"\xed\xa0\x80"}', b'{"m":1}{}',
    b'\xef\xbb\xbf{"m":1}', b'{"m":1}\0', b'{"m":99999999999999999999}', b'{"m":1.0000000000000000000000000000000}',
]  # fmt: skip


@pytest.mark.parametrize("value", DECLINED)
def test_what_is_not_plain_is_left_to_the_general_reader(value: bytes) -> None:
    """The scanner never says what it is not sure of."""
    assert rows(ORDERS, value) is None


def test_a_record_is_read_alone() -> None:
    """What one record left in the scratch, also a hostile one, means nothing to the next."""
    values = [b'{"m":1,"order":{"id":1', b'{"order":{"id":2},"m":3}', b'{"order":{"lines":[{"sku":1', b'{"m":4}'] * 20
    found = Scanner(ORDERS).read(Records.of(values))
    assert found == [rows(ORDERS, value) for value in values]
    assert found[1] == [(3, OTHER, None), (2, WHOLE, "2"), (5, WHOLE, "3")]


def test_a_log_without_room_is_no_log() -> None:
    """Neither a row beyond its end, nor one more behind that."""
    room = np.full((3, 4), 7, dtype=np.int64)
    assert put(room[:2], 1, 5, TEXT, 1, 2) == 2
    assert room.tolist() == [[7] * 4, [5, TEXT, 1, 2], [7] * 4]
    for used in (2, FULL, log.DECLINED):
        assert put(room[:2], used, 5, TEXT, 1, 2) == (FULL if used == 2 else used)
    assert room.tolist() == [[7] * 4, [5, TEXT, 1, 2], [7] * 4]


def test_an_index_beyond_the_bytes_raises() -> None:
    """A mistake of ours in where records lie must not read the memory behind them."""
    records = Records.of([b'{"key":"k","items":["a"],"ts":12345678}'])
    beyond = Records(records.data[:-9], records.keys, records.values, records.times, records.offsets)
    with pytest.raises(IndexError):
        Scanner(EVENTS).read(beyond)
