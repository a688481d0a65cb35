"""The scanner of JSON logs agrees with a plain Python walk, compiled and uncompiled."""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import plain_python
from tests.events.json_corpus import CONTROLS, ESCAPES, INSIDE, NOT_UTF8, UTF8, VALUES
from tests.events.json_log_corpus import (
    TREES,
    Row,
    Scanner,
    Shapes,
    compare,
    difference,
    mutations,
    tree,
)
from workers.events import json_scanner, log
from workers.events.json import Json, JsonDecoder
from workers.events.log import (
    EXPONENT,
    FALSE,
    FULL,
    LIST,
    MAP,
    NULL,
    NUMBER,
    OTHER,
    TEXT,
    TRUE,
    WHOLE,
    put,
)
from workers.events.tree import Node, Wanted, build
from workers.kafka.records import Records

pytestmark = pytest.mark.slow

EVENTS = tree("key", "items", "ts", many=["items"])
# Positions for every value, hostile or not; it replaces @.
PLACES = {
    "flat": (
        b'@ {"items":@} {"items":[@]} {"items":["a",@,1]} {"items":{"a":@}} {"items":{"a":1,"b":@}} '
        b'{"key":@,"ts":1} {"x":@,"ts":1} {"ts":[1,@]} {"ts":1,"key":"k",@} @{"ts":1} {"ts":1}@ '
        b'{"ts":1,@"key":2} {"key":1,"ts":@,"key":2} {"key"@:1} {"key":1@,"ts":2} {"items":["a"@]} '
        b'{"items":{"a"@1}}'
    ).split(),
    "nested": (
        b'{"order":@,"ts":1} {"order":{"lines":@}} {"order":{"lines":[@]}} '
        b'{"order":{"lines":[{"sku":"a"},@]}} '
        b'{"order":{"lines":[{"qty":1,"sku":@},{"sku":"b","x":@}],"id":7},"ts":1} '
        b'{"order":{"id":@,"shop":{"name":@}}} {"order":{"lines":[{"sku":"a"}@{"sku":"b"}]}} '
        b'{"order":{"shop":{"name":1},@"id":2}} {"order":{"lines":[{"sku":1}@}} '
        b'{"order":{"lines":[{},{"sku":@}],"lines":[]}} {"ts":@,"order":{"id":1}} '
        b'{"order":{"shop":{"x":@}}@'
    ).split(),
    "lists": (
        b'{"tags":@} {"tags":[@,2],"meta":{"a":@}} {"a":{"b":[1,@]}} {"a":{"b":@},"meta":[@]} '
        b'{"meta2":{"x":@}}'
    ).split(),
    "itself and within": (
        b'{"order":@} {"order":{"lines":@,"id":1}} {"order":{"lines":[{"sku":@}]},"ts":@} '
        b'{"order":null@}'
    ).split(),
    "several": (
        b'{"m":@,"ts":1} {"l":@} {"b":@} {"m":null,"l":null,"b":null,"ts":@}'
    ).split(),
}
NAMED = (
    b'{"@":1,"key":"k","items":["a"]} {"items":{"@":1}} {"items":{"a":1,"@":2}} '
    b'{"x":{"@":1},"key":"k"} {"\\u006bey":1,"@":2} {"key":1,"@":{"key":2}} '
    b'{"items":{"@":1,"@":2}} {"items":{"\\u0061":1,"@":2}} {"items":{"@":1,"\\u0061":2}} '
    b'{"items":["@","@"],"key":"@","@":"@"}'
).split()
# String rules must also hold before and after escapes; a name has several spellings.
ESCAPED = [
    b"\\u0061" + part + b"\\n" for part in (*UTF8, *NOT_UTF8, *CONTROLS, *ESCAPES)
]
ESCAPED += (
    b"\\uD83D\\uDE00 \\u07ff\\u0800 \\uffff\\uD800\\uDC00 \\uDBFF\\uDFFF \\ud7ff\\ue000 b\\u0000 "
    b"\\u0062\\ \\ud83d\\nde00 \\u006bey ke\\u0079 ite\\u006ds \\u0069\\u0074\\u0065\\u006d\\u0073"
).split()
ESCAPED.append(b"\\u00e9" * 200)
LONG = [b"9" * n for n in (401, 4_300, 4_301)] + b"-0e-0 0E+00 1.0e".split()
LONG += [b"-0." + b"3" * 401, b"1e" + b"1" * 401, b"9" * 4_301 + b"e1"]

MARKS = [bytes([byte]) for byte in b'",:}] \\\0']
AROUND = [(b"\xef\xbb\xbf", b""), (b"\0", b""), (b" \t\r\n", b"\n "), (b"[", b"]")]
AROUND += [(b"", behind) for behind in (b"\0", b"{}", b",")]


def corpus() -> Iterator[tuple[str, list[bytes]]]:
    for name, places in PLACES.items():
        values = (*VALUES, *LONG, *(b'"%b"' % inside for inside in ESCAPED))
        yield name, [place.replace(b"@", value) for place in places for value in values]
    yield (
        "flat",
        [
            place.replace(b"@", inside)
            for place in NAMED
            for inside in (*INSIDE, *ESCAPED)
        ],
    )
    for name, root in TREES.items():
        shapes = Shapes(1)
        made = [shapes.object(root) for _ in range(60)]
        yield name, [each[:n] for each in made[:4] for n in range(len(each))]
        cuts = [
            (each[:n], each[n:]) for each in made[:2] for n in range(0, len(each), 3)
        ]
        yield (
            name,
            [before + mark + behind for before, behind in cuts for mark in MARKS],
        )
        yield (
            name,
            [before + each + behind for each in made[:3] for before, behind in AROUND],
        )


def plain_logs(old: str = "", new: str = "") -> Callable[..., Any]:
    """Return uncompiled `scan_all` with `old` replaced by `new` in the scanner's source."""
    logs: Callable[..., Any] = plain_python((log, json_scanner), old, new)[
        json_scanner
    ]["scan_all"]
    return logs


def first_difference(
    records: int, logs: Callable[..., Any] | None = None, every: int = 1
) -> str | None:
    """Compare `scan_all` (None: compiled), reader, `json.loads`; `every` 5 reads a fifth."""
    readers = {
        name: (Scanner(root, logs), JsonDecoder(root)) for name, root in TREES.items()
    }

    def batches() -> Iterator[tuple[str, list[bytes]]]:
        for name, values in corpus():
            yield name, values[::every]
        yield from mutations(records, 3)

    said = (difference(*readers[name], values)[0] for name, values in batches())
    return next((found for found in said if found), None)


def test_hostile_and_mutated_records_are_logged_as_they_are() -> None:
    """The long run is `python -m tests.events.json_log_corpus --records 5000000`."""
    assert first_difference(50_000) is None


def test_the_scanner_does_not_decline_what_a_log_can_say() -> None:
    """A scanner that declines everything would never be wrong."""
    said, scanned, could, _ = zip(*compare(20_000, 4), strict=True)
    assert set(said) == {None}
    assert sum(could) > 4_000
    assert sum(scanned) > 0.65 * sum(could)


def test_the_scanner_as_plain_python_logs_the_same() -> None:
    """Correctness must not depend on how numba compiles the source."""
    assert first_difference(4_000, plain_logs(), every=5) is None


# Defects to plant in the scanner: current source and its replacement.
DEFECTS = {
    "a wanted name twice": ("if seen[child, SEEN]:", "if False:"),
    "a name of items twice": ("other, STOP]", "other, START] - 1"),
    "half of a name decides": (
        "if same(data, start, stop, names, begin, end):",
        "if True:",
    ),
    "an expected name that only begins so": ("NAME_STOP] + 1", "NAME_STOP]"),
    "-0": ("(REFUSED if zero and at > begin else end)", "end"),
    "leading zeros": (" or (zero and end > at + 1)", ""),
    "no digits": ("if end == at or (zero", "if (zero"),
    "no digits behind the point": (
        "if end == at:\n            return REFUSED, kinds.NUMBER\n        ",
        "",
    ),
    "no digits of an exponent that is wanted": (
        "(end if end > at else REFUSED)",
        "end",
    ),
    "many digits of an exponent": ("EXPONENT_DIGITS", "3"),
    "any letter before an exponent": ("byte | LOWER != SMALL_E", "byte < 65"),
    "many digits before the point": ("end - at > POINT_DIGITS", "False"),
    "many digits": (
        "skip_digits(data, at, stop, WHOLE_DIGITS)",
        "skip_digits(data, at, stop, 20)",
    ),
    "many digits behind the point": ("BEHIND_DIGITS", "31"),
    "any bracket closes": (
        "!= (CLOSE_OBJECT if row == NONE else",
        "not in (CLOSE_OBJECT,",
    ),
    "any bracket closes items": (
        "if byte == close:",
        "if byte in (CLOSE_OBJECT, CLOSE_LIST):",
    ),
    "any bracket opens": (
        "!= (OPEN_OBJECT if sort == OBJECT else",
        "not in (OPEN_OBJECT,",
    ),
    "no comma": (
        "if byte != COMMA:\n                return DECLINED, filled\n            at = skip_space(data, at + 1,",
        "at = skip_space(data, at + (byte == COMMA),",
    ),
    "no comma between items": (
        "if byte != COMMA:\n            return REFUSED, used, filled\n        ",
        "",
    ),
    "no colon": (
        "if peek(data, at, stop) != COLON:\n            return DECLINED, filled\n        ",
        "",
    ),
    "no colon in items": (
        "if peek(data, at, stop) != COLON:\n                return REFUSED, used, filled\n            ",
        "",
    ),
    "something behind the record": ("skip_space(data, at, stop) == stop", "True"),
    "items of several sorts": (" or sort == SEVERAL:", ":"),
    "null is an element": ("byte == NULL[0] and row == NONE:", "byte == NULL[0]:"),
    "elements are not counted": ("log[row, START] += 1", "pass"),
    "items are not counted": ("count += 1", "pass"),
    "the level around is forgotten": ("node = stack[level - 1, HELD_NODE]", "pass"),
    "the list around is forgotten": ("row = stack[level - 1, HELD_ROW]", "pass"),
    "a string goes on behind a backslash": (
        "byte in (QUOTE, BACKSLASH)",
        "byte == QUOTE",
    ),
    "a string holds control characters": (" or byte < SPACE:", ":"),
    "UTF-8 is not looked at": (
        "if length == 0:\n                break\n            at += length\n        elif",
        "at += 1\n        elif",
    ),
    "overlong UTF-8": ("low = 0xA0", "low = 0x80"),
    "overlong UTF-8 of two bytes": ("lead < 0xC2", "lead < 0xC0"),
    "surrogates": ("high = 0x9F", "high = 0xBF"),
    "beyond U+10FFFF": ("high = 0x8F", "high = 0xBF"),
    "lead bytes beyond UTF-8": ("lead > 0xF4", "lead > 0xF7"),
    "third bytes of any kind": ("if not 0x80 <= data[place] <= 0xBF:", "if False:"),
    "any escape": ("ESCAPES[after] if after != END else REFUSED", "after"),
    "digits that are none": ("[place]]", "[place]] & 15"),
    "the first half of a pair": ("if HIGH <= found < LOW:", "if False:"),
    "a pair of two first halves": ("if not LOW", "if not HIGH"),
    "a pair with any second half": (
        "if not LOW <= second < SURROGATES_STOP:",
        "if second < 0:",
    ),
    "a pair of a half and a short escape": (
        " or peek(data, at + 1, stop) != SMALL_U:",
        ":",
    ),
    "the second half of a pair alone": (" or LOW <= found < SURROGATES_STOP", ""),
    "characters of three bytes in two": ("point < 0x800:", "point < 0x1000:"),
    "characters of two bytes in three": ("point < 0x800:", "point < 0x400:"),
    "characters of four bytes in three": ("if point < 0x10000:", "if point < 0x20000:"),
    "a control character behind an escape": (
        "byte < SPACE or length == 0",
        "length == 0",
    ),
    "invalid UTF-8 behind an escape": (
        "or length == 0",
        "or (length := max(length, 1)) == 0",
    ),
    "an escaped name as it is written": ("decoded, filled, more", "data, at + 1, end"),
    "an escaped name is no child": (
        "child_named(decoded, filled, more, ",
        "NONE and (",
    ),
    "an escaped name of items twice": (
        "same(decoded, behind, behind + length, decoded, beyond, beyond + length)",
        "False",
    ),
    "a plain name behind the same escaped one": (
        "behind < 0",
        "behind < 0:\n        return False\n    if False",
    ),
    "an escaped name behind the same plain one": (
        "beyond < 0",
        "beyond < 0:\n        return False\n    if False",
    ),
    "texts of another record": ("used, filled = end, more", "used = end"),
    "leading zeros of what nobody wants": (
        "(data[at] == ZERO and at + 1 < end)",
        "False",
    ),
    "no digits of what nobody wants": ("if at == end or", "if"),
    "no digits behind a point that nobody wants": (
        "if at == end:\n            return REFUSED\n        ",
        "",
    ),
    "no digits of an exponent": ("end if at < end else REFUSED", "end"),
    "a vertical tab is space": (", RETURN", ", RETURN, 11"),
}


# All of them take ten minutes; QUIETCOUNT_DEFECTS=all runs all.
CHOSEN = [*DEFECTS][:: 1 if os.environ.get("QUIETCOUNT_DEFECTS") == "all" else 8]


@pytest.mark.slow
@pytest.mark.parametrize("defect", CHOSEN)
def test_each_defect_would_be_seen(defect: str) -> None:
    """A run over millions of records proves something only if it detects disagreements."""
    logs = plain_logs(*DEFECTS[defect])
    try:
        found = first_difference(10_000, logs)
    except (IndexError, AssertionError, OverflowError, ValueError):
        return  # an index beyond the bytes; a number or a byte that is none
    assert found


@pytest.mark.parametrize(
    ("name", "written", "wrong"),
    [
        ('a"b', b'a\\"b', b'a"b'),
        ("c\\d", b"c\\\\d", b"c\\d"),
        ("e\tf", b"e\\tf", b"e\tf"),
        ("", b"", b'"'),
    ],
)
def test_an_expected_name_stands_there_as_json_writes_it(
    name: str, written: bytes, wrong: bytes
) -> None:
    """Names are compared byte for byte; one that JSON must escape never matches."""
    root = build([Wanted((name,), None, 0), Wanted(("k",), None, 1)])
    right = b'{"%b":17,"k":1}' % written
    found = Scanner(root).read(
        Records.of([right, right, b'{"%b":17,"k":1}' % wrong, right])
    )
    assert found[2] is None and [each is None for each in found] == [
        False,
        False,
        True,
        False,
    ]


def rows(root: Node, value: bytes) -> list[Row] | None:
    (found,) = Scanner(root).read(Records.of([value]))
    return found


ORDERS = tree(
    "order.lines[].sku",
    "order.lines[].qty",
    "order.id",
    "order",
    "tags[]",
    "m",
    many=["m"],
)
SKU, QTY, ID, ORDER, TAG, M, LINES, TAGS = *range(6), 1_000, 1_001
INSIDE_ORDER: Row = (ORDER, OTHER, None)


def items(*values: tuple[int, str | int | None]) -> list[Row]:
    """Return the rows of items: a list or map, and what it holds."""
    return [(M, *value) for value in values]


LOGGED: dict[bytes, list[Row]] = {
    b"{}": [],
    b' \t\r\n{ "order" : null , "m" : null , "tags" : null } \n': [
        *((ORDER, NULL, "null"), (M, NULL, "null"))
    ],
    b'{"order":{"id":-17,"x":[{"id":1}],"lines":[{"qty":2.50,"sku":"a"},{},{"sku":true,"qty":[{}]}]}}': [
        *(INSIDE_ORDER, (ID, WHOLE, "-17"), (LINES, LIST, 3), (QTY, NUMBER, "2.50")),
        *((SKU, TEXT, "a"), (SKU, TRUE, "true"), (QTY, OTHER, None)),
    ],
    b'{"tags":["a",false,null,7,{}],"order":{"lines":[]}}': [
        *(
            (TAGS, LIST, 5),
            (TAG, TEXT, "a"),
            (TAG, FALSE, "false"),
            (TAG, NULL, "null"),
        ),
        *((TAG, WHOLE, "7"), (TAG, OTHER, None), INSIDE_ORDER, (LINES, LIST, 0)),
    ],
    b'{"m":["a",1,[]]}': items((LIST, 3), (TEXT, "a"), (WHOLE, "1"), (OTHER, None)),
    b'{"m":{"a":1,"b":{},"":"x"}}': items(
        *(
            (MAP, 3),
            (TEXT, "a"),
            (WHOLE, "1"),
            (TEXT, "b"),
            (OTHER, None),
            (TEXT, ""),
            (TEXT, "x"),
        )
    ),
    '{"m":"\U0001f600 žluť"}'.encode(): items((TEXT, "\U0001f600 žluť")),
    b'{"m":[1e-05,1.5E+3,-0.0e7,100e99]}': items(
        (LIST, 4),
        *((EXPONENT, each) for each in ("1e-05", "1.5E+3", "-0.0e7", "100e99")),
    ),
    b'{"m":"\\ud83d\\ude00 \\u017e\\u0000\\uFFFF\\b\\f\\n\\r\\t\\/\\\\\\""}': items(
        (TEXT, '\U0001f600 \u017e\0\uffff\b\f\n\r\t/\\"')
    ),
    '{"m":{"\\u00e9":"\\n","é\\u0301":1,"ab":2,"a\\u0062\\u0063":3,"abd":4}}'.encode(): items(
        *(
            (MAP, 5),
            (TEXT, "é"),
            (TEXT, "\n"),
            (TEXT, "é\u0301"),
            (WHOLE, "1"),
            (TEXT, "ab"),
        ),
        *((WHOLE, "2"), (TEXT, "abc"), (WHOLE, "3"), (TEXT, "abd"), (WHOLE, "4")),
    ),
    b'{"order":{"\\u0069\\u0064":"a\\u0062","line\\u0073":[{"sku":"\\t"},{"s\\u006bu":"c"}],"\\n":1},"x\\u0020":"\\u00e9"}': [
        *(
            INSIDE_ORDER,
            (ID, TEXT, "ab"),
            (LINES, LIST, 2),
            (SKU, TEXT, "\t"),
            (SKU, TEXT, "c"),
        )
    ],
    b'{"x":[1e3,-1.5E-7,0e+00,-0,1E999,'
    + b"9" * 400
    + b"."
    + b"9" * 400
    + b'],"y":-0.0,"m":1}': items((WHOLE, "1")),
    b'{"m":"' + b"x" * 100_000 + b'"}': items((TEXT, "x" * 100_000)),
    b'{"x":"\\ud83d","y":[{"\\udc00":"\\ud83d\\ud83d"}],"m":1}': items((WHOLE, "1")),
    b'{"id":1,"lines":[{"sku":"b"}],"order.id":2,"orde":3,"orders":4}': [],
}


@pytest.mark.parametrize("value", LOGGED, ids=range(len(LOGGED)))
def test_plain_records_are_logged(value: bytes) -> None:
    """Rows follow the order of the record, and so the order of list elements."""
    assert rows(ORDERS, value) == LOGGED[value]


def test_items_have_as_many_names_as_can_be_compared() -> None:
    """With one more name, the general reader decides."""
    for n, expected in ((64, 129), (65, None)):
        found = rows(
            ORDERS, b'{"m":{' + b",".join(b'"l%d":1' % i for i in range(n)) + b"}}"
        )
        assert expected == (found and len(found))


DECLINED = [
    b"",
    b" ",
    *(
        b'[] null {"order":5} {"order":[]} {"order":{"lines":{}}} {"order":{"lines":[null]}} '
        b'{"order":{"lines":[{},[]]}} {"m":"\\u006"} {"\\u006d":1,"m":2} {"x\\d":1} '
        b'{"order":{"x\\u":1}} {"m":1e100} {"m":-0} {"m":1,"m":1} {"m":{"a":1,"a":1}} '
        b'{"order":{"id":1,"id":1}} {"m":"\xed\xa0\x80"} {"m":1}{} \xef\xbb\xbf{"m":1} '
        b'{"m":1}\x00 {"m":99999999999999999999} {"m":1.0000000000000000000000000000000} '
        b'{"m":NaN} {"m":[1} {"m":{"a":1,"\\u0061":1}} {"m":{"\\u0061":1,"\\u0061":1}} '
        b'{"m":"\\ud83d"} {"\\ude00":1} {"m":"\\ud83d\\n"} {"x":1e} {"x":"\\ude0"}'
    ).split(),
    b'{"x":' + b"9" * 401 + b"}",
    *b'{"x":-00} {"m":-0.0e+} {"m":1e} {"m":1.e1} {"m":1000000000000000e1} {"m":1e1.5}'.split(),
]


@pytest.mark.parametrize("value", DECLINED)
def test_what_is_not_plain_is_left_to_the_general_reader(value: bytes) -> None:
    """The scanner declines every record it is not sure of."""
    assert rows(ORDERS, value) is None


def test_a_record_is_read_alone() -> None:
    """Scratch left by one record, even a hostile one, must not affect the next."""
    broken = b'{"m":1,"order":{"id":1', b'{"order":{"lines":[{"sku":1'
    values = [broken[0], b'{"order":{"id":2},"m":3}', broken[1], b'{"m":4}'] * 20
    found = Scanner(ORDERS).read(Records.of(values))
    assert found == [rows(ORDERS, value) for value in values]
    assert found[1] == [(3, OTHER, None), (2, WHOLE, "2"), (5, WHOLE, "3")]


def test_a_log_without_room_is_no_log() -> None:
    """Nothing is written past the end of the log, neither one row nor more."""
    room = np.full((3, 4), 7, dtype=np.int64)
    assert put(room[:2], 1, 5, TEXT, 1, 2) == 2
    assert room.tolist() == [[7] * 4, [5, TEXT, 1, 2], [7] * 4]
    for used in (2, FULL, log.DECLINED):
        assert put(room[:2], used, 5, TEXT, 1, 2) == (FULL if used == 2 else used)
    assert room.tolist() == [[7] * 4, [5, TEXT, 1, 2], [7] * 4]


def test_what_is_decoded_lies_behind_the_bytes_of_the_batch() -> None:
    """Only records that were read have decoded text; without any, bytes are not copied."""
    values = [b'{"m":"\\u0061\\u0062"}', b'{"m":"\\u0063","x":}']
    values += [b'{"m":"d","x":"\\u00e9"}', b'{"m":{"\\n":1,"e":2}}']
    records = Records.of(values)
    [logs] = Json(ORDERS).scan(records.data, records.values)
    assert logs.data.tobytes() == b"".join(values) + b"ab\n"
    assert logs.status.tolist() == [0, log.DECLINED, 0, 0]
    places = [place for _, kind, *place in logs.rows.tolist() if kind == TEXT]
    texts = [logs.data[start:stop].tobytes() for start, stop in places]
    assert texts == [b"ab", b"d", b"\n", b"e"]
    plain = Records.of(values[2:3])
    assert next(Json(ORDERS).scan(plain.data, plain.values)).data is plain.data


def test_records_that_share_bytes_are_decoded_too() -> None:
    """Decoded text is then longer than the input; there is room for one record at a time."""
    record = b'{"m":["\\n' + b"x" * 50 + b'"]}'
    values = np.array([[0, len(record)]] * 100)
    found = list(Json(ORDERS).scan(np.frombuffer(record, dtype=np.uint8), values))
    assert [logs.begin for logs in found] == list(range(100))
    for logs in found:
        assert logs.data.tobytes() == record + b"\n" + b"x" * 50
        assert logs.rows[1, 2:].tolist() == [len(record), len(logs.data)]


def test_every_character_can_be_escaped() -> None:
    """Every UTF-16 unit except surrogate halves, and every edge of the pairs."""
    units = [f"\\u{unit:04{digits}}" for unit in range(1 << 16) for digits in "xX"]
    firsts = (0xD7FF, 0xD800, 0xDBFF, 0xDC00)
    seconds = (0xDBFF, 0xDC00, 0xDFFF, 0xE000)
    edges = [f"\\u{first:x}\\u{second:x}" for first in firsts for second in seconds]
    values = [b'{"m":"%b"}' % text.encode() for text in (*units, *edges)]
    for value, found in zip(
        values, Scanner(ORDERS).read(Records.of(values)), strict=True
    ):
        text = json.loads(value)["m"]
        halves = any(0xD800 <= ord(each) < 0xE000 for each in text)
        assert found == (None if halves else [(5, TEXT, text)])


def test_an_index_beyond_the_bytes_raises() -> None:
    """A bug in our record positions must not read memory past the bytes."""
    records = Records.of([b'{"key":"k","items":["a"],"ts":12345678}'])
    beyond = replace(records, data=records.data[:-9])
    with pytest.raises(IndexError):
        Scanner(EVENTS).read(beyond)
