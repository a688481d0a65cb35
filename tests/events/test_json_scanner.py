"""The scanner of JSON logs agrees with a plain Python walk, compiled and uncompiled."""

import json
import os
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, chain, product
from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import plain_python
from tests.events.comparison import Outcome
from tests.events.json_corpus import (
    CONTROLS,
    ESCAPES,
    INSIDE,
    NOT_UTF8,
    TREES,
    UTF8,
    VALUES,
    Generator,
    tree,
)
from tests.events.json_log_corpus import (
    Batch,
    Row,
    Scanner,
    compare,
    difference,
    random_batches,
    run,
)
from workers.arrays.texts import readonly_contiguous
from workers.events import json_scanner, log, log_values
from workers.events.json import Json, JsonDecoder
from workers.events.log import (
    FULL,
    OTHER,
    TEXT,
    WHOLE,
    FieldSpans,
    put,
)
from workers.events.tree import Node, Wanted, build
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX

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


def corpus() -> Iterator[Batch]:
    for name, places in PLACES.items():
        values = (*VALUES, *LONG, *(b'"%b"' % inside for inside in ESCAPED))
        yield name, [place.replace(b"@", value) for place in places for value in values]
    named = product(NAMED, (*INSIDE, *ESCAPED))
    yield "flat", [place.replace(b"@", inside) for place, inside in named]
    for name, root in TREES.items():
        generator = Generator(1)
        made = [generator.object(root) for _ in range(4)]
        yield name, [each[:n] for each in made for n in range(len(each))]
        cuts = [
            (each[:n], each[n:]) for each in made[:2] for n in range(0, len(each), 3)
        ]
        yield name, [mark.join(cut) for cut in cuts for mark in MARKS]
        around = product(made[:3], AROUND)
        yield name, [before + each + behind for each, (before, behind) in around]


def plain_logs(old: str = "", new: str = "") -> Callable[..., Any]:
    """Return uncompiled `scan_all` with `old` replaced by `new` in the scanner's source."""
    logs: Callable[..., Any] = plain_python((log, json_scanner), old, new)[
        json_scanner
    ]["scan_all"]
    return logs


def first_difference(
    records: int, logs: Callable[..., Any], every: int = 1
) -> str | None:
    """Compare `logs` instead of `scan_all`, reader, `json.loads`; `every` 5 reads a fifth."""
    hostile = ((name, values[::every]) for name, values in corpus())
    return compare(chain(hostile, random_batches(records, 3)), logs).differs


def test_hostile_records_are_logged_as_they_are() -> None:
    assert compare(corpus()).differs is None


def test_mutated_records_are_logged_as_they_are_and_not_declined() -> None:
    """The long run is `python -m tests.events.json_log_corpus --records 5000000`."""
    outcome = run(30_000, 4)
    assert outcome.differs is None
    # A scanner that declines everything would never be wrong.
    assert outcome.readable > 6_000
    assert outcome.scanned > 0.65 * outcome.readable


def test_the_scanner_as_plain_python_logs_the_same() -> None:
    """Correctness must not depend on how numba compiles the source."""
    assert first_difference(2_000, plain_logs(), every=5) is None


# Defects to plant in the scanner: current source and its replacement.
DEFECTS = {
    "a wanted name twice": ("if seen[child, SEEN]:", "if False:"),
    "a name of items twice": ("other, STOP]", "other, START] - 1"),
    "half of a name decides": (
        "if same(data, start, stop, names, name_start, name_stop):",
        "if True:",
    ),
    "an expected name that only begins so": ("NAME_STOP] + 1", "NAME_STOP]"),
    "-0": ("not (zero and pos > begin)", "True"),
    "leading zeros": (" or (zero and digits > 1)", ""),
    "no digits": ("if digits == 0 or (zero", "if (zero"),
    "no digits behind the point": (
        "if end == pos:\n            return REFUSED, kinds.OTHER\n        if",
        "if",
    ),
    "no digits of an exponent": (
        "if end == pos:\n        return REFUSED, kinds.OTHER\n    within",
        "within",
    ),
    "a number beyond the limits": ("REFUSED if kind == kinds.OTHER else end", "end"),
    "many digits of an exponent": ("EXPONENT_DIGITS", "3"),
    "any letter before an exponent": ("byte | LOWER != SMALL_E", "byte < 65"),
    "many digits before the point": ("digits <= POINT_DIGITS", "True"),
    "many digits": ("digits <= WHOLE_DIGITS", "digits <= 20"),
    "many digits behind the point": ("BEHIND_DIGITS", "31"),
    "any bracket closes": (
        "!= (CLOSE_OBJECT if list_row == NONE else",
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
        "if byte != COMMA:\n                return DECLINED, filled\n            pos = skip_space(data, pos + 1,",
        "pos = skip_space(data, pos + (byte == COMMA),",
    ),
    "no comma between items": (
        "if byte != COMMA:\n            return REFUSED, used, filled\n        ",
        "",
    ),
    "no colon": (
        "if peek(data, pos, stop) != COLON:\n            return DECLINED, filled\n        ",
        "",
    ),
    "no colon in items": (
        "if peek(data, pos, stop) != COLON:\n                return REFUSED, used, filled\n            ",
        "",
    ),
    "something behind the record": ("skip_space(data, pos, stop) == stop", "True"),
    "items of several sorts": ("\n                or sort == SEVERAL", ""),
    "null is an element": ("byte == NULL[0] and list_row == NONE:", "byte == NULL[0]:"),
    "elements are not counted": ("log[list_row, START] += 1", "pass"),
    "items are not counted": ("count += 1", "pass"),
    "the level around is forgotten": ("node = stack[level - 1, HELD_NODE]", "pass"),
    "the list around is forgotten": (
        "list_row = stack[level - 1, HELD_LIST_ROW]",
        "pass",
    ),
    "a string goes on behind a backslash": (
        "byte in (QUOTE, BACKSLASH)",
        "byte == QUOTE",
    ),
    "a string holds control characters": (" or byte < SPACE:", ":"),
    "UTF-8 is not looked at": (
        "if length == 0:\n                break\n            pos += length\n        elif",
        "pos += 1\n        elif",
    ),
    "overlong UTF-8": ("low = 0xA0", "low = 0x80"),
    "overlong UTF-8 of two bytes": ("lead < 0xC2", "lead < 0xC0"),
    "surrogates": ("high = 0x9F", "high = 0xBF"),
    "beyond U+10FFFF": ("high = 0x8F", "high = 0xBF"),
    "lead bytes beyond UTF-8": ("lead > 0xF4", "lead > 0xF7"),
    "third bytes of any kind": ("if not 0x80 <= data[place] <= 0xBF:", "if False:"),
    "any escape": ("ESCAPES[after] if after != END else REFUSED", "after"),
    "digits that are none": ("[place]]", "[place]] & 15"),
    "the first half of a pair": ("if HIGH <= point < LOW:", "if False:"),
    "a pair of two first halves": ("if not LOW", "if not HIGH"),
    "a pair with any second half": (
        "if not LOW <= second < SURROGATES_STOP:",
        "if second < 0:",
    ),
    "a pair of a half and a short escape": (
        " or peek(data, pos + 1, stop) != SMALL_U:",
        ":",
    ),
    "the second half of a pair alone": (" or LOW <= point < SURROGATES_STOP", ""),
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
    "an escaped name as it is written": ("decoded, filled, more", "data, pos + 1, end"),
    "an escaped name is no child": (
        "child_named(decoded, filled, more, ",
        "NONE and (",
    ),
    "an escaped name of items twice": (
        "return same(first, start, stop, second, begin, end)",
        "return first is second and same(first, start, stop, second, begin, end)",
    ),
    "a name is looked up as if it had no escape": ("first = decoded", "pass"),
    "a name is compared as if others had no escape": ("second = decoded", "pass"),
    "texts of another record": ("filled = more", "pass"),
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
PLAIN = [
    b"{}",
    b' \t\r\n{ "order" : null , "m" : null , "tags" : null } \n',
    b'{"order":{"id":-17,"x":[{"id":1}],"lines":[{"qty":2.50,"sku":"a"},{},{"sku":true,"qty":[{}]}]}}',
    b'{"tags":["a",false,null,7,{}],"order":{"lines":[]}}',
    b'{"m":["a",1,[]]}',
    b'{"m":{"a":1,"b":{},"":"x"}}',
    '{"m":"\U0001f600 žluť"}'.encode(),
    b'{"m":[1e-05,1.5E+3,-0.0e7,100e99]}',
    b'{"m":"\\ud83d\\ude00 \\u017e\\u0000\\uFFFF\\b\\f\\n\\r\\t\\/\\\\\\""}',
    '{"m":{"\\u00e9":"\\n","é\\u0301":1,"ab":2,"a\\u0062\\u0063":3,"abd":4}}'.encode(),
    b'{"order":{"\\u0069\\u0064":"a\\u0062","line\\u0073":[{"sku":"\\t"},{"s\\u006bu":"c"}],"\\n":1},"x\\u0020":"\\u00e9"}',
    b'{"x":[1e3,-1.5E-7,0e+00,-0,1E999,'
    + b"9" * 400
    + b"."
    + b"9" * 400
    + b'],"y":-0.0,"m":1}',
    b'{"m":"' + b"x" * 100_000 + b'"}',
    b'{"x":"\\ud83d","y":[{"\\udc00":"\\ud83d\\ud83d"}],"m":1}',
    b'{"id":1,"lines":[{"sku":"b"}],"order.id":2,"orde":3,"orders":4}',
]


@pytest.mark.parametrize("value", PLAIN, ids=range(len(PLAIN)))
def test_plain_records_are_logged(value: bytes) -> None:
    """Rows as the corpus's own walk says, in the order of the record; none of them is declined."""
    outcome = difference(Scanner(ORDERS), JsonDecoder(ORDERS), [value])
    assert outcome == Outcome(None, readable=1, scanned=1)


def test_items_have_as_many_names_as_can_be_compared() -> None:
    """With one more name, the general reader decides."""
    for n, expected in ((64, 129), (65, None)):
        found = rows(
            ORDERS, b'{"m":{' + b",".join(b'"l%d":1' % i for i in range(n)) + b"}}"
        )
        assert expected == (found and len(found))


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


def scanned(records: Records) -> Iterator[FieldSpans]:
    every = np.ones(len(records), dtype=np.bool_)
    return Json(ORDERS).scan(records.data, records.values, every)


def test_what_is_decoded_lies_behind_the_bytes_of_the_batch() -> None:
    """Only records that were read have decoded text; without any, bytes are not copied."""
    values = [
        b'{"m":"\\u0061\\u0062"}',
        b'{"m":"\\u0063","x":}',
        b'{"m":"d","x":"\\u00e9"}',
        b'{"m":{"\\n":1,"e":2}}',
    ]
    records = Records.of(values)
    [logs] = scanned(records)
    assert logs.data.tobytes() == b"".join(values) + b"ab\n"
    assert logs.status.tolist() == [0, log.DECLINED, 0, 0]
    places = [place for _, kind, *place in logs.rows.tolist() if kind == TEXT]
    texts = [logs.data[start:stop].tobytes() for start, stop in places]
    assert texts == [b"ab", b"d", b"\n", b"e"]
    plain = Records.of(values[2:3])
    assert next(scanned(plain)).data is plain.data


def test_records_that_share_bytes_are_decoded_too() -> None:
    """Decoded text is then longer than the input; there is room for one record at a time."""
    record = b'{"m":["\\n' + b"x" * 50 + b'"]}'
    data = np.frombuffer(record, dtype=np.uint8)
    values = np.array([[0, len(record)]] * 100)
    found = list(scanned(replace(Records.of([record] * 100), data=data, values=values)))
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


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_utf8_is_what_cpython_says_it_is() -> None:
    """Covers every first two bytes, followed by all mixtures of valid and invalid ones."""
    tails = b"\x80 \x80\x80 \xbf\xbf \x80a \xc0\x80 \x80\xff a \x7f\x80 \xbf\xbf\xbf".split()
    heads = (bytes(pair) for pair in product(range(256), repeat=2))
    texts = [head + tail for head, tail in product(heads, [b"", *tails])]
    rng = random.Random(1)
    texts += [bytes(rng.choices(range(0x70, 256), k=n % 9)) for n in range(20_000)]
    records = Records.of(texts)
    valid = json_scanner.valid_texts(records.data, records.values, 1_024)
    assert valid.tolist() == [is_utf8(text) for text in texts]
    few = records.values[::97]
    plain = plain_python([log, json_scanner])[json_scanner]["valid_texts"]
    assert plain(records.data, few, 1_024).tolist() == valid[::97].tolist()


def test_a_label_is_no_longer_than_a_label_may_be() -> None:
    """Both sides of the greatest length, and without a text."""
    records = Records.of([b"x" * 1024, b"x" * 1025, None, b"", "é".encode() * 512])
    found = json_scanner.valid_texts(records.data, records.values, 1_024)
    assert found.tolist() == [True, False, False, True, True]
    assert log_values.LABEL_BYTES_MAX == LABEL_BYTES_MAX


def depth_of(value: bytes) -> int:
    """Return the depth of brackets outside strings; a string ends with the record at the latest."""
    outside = re.sub(rb'"(?:\\.|[^"\\])*(?:"|\\?\Z)', b"", value, flags=re.DOTALL)
    steps = ((byte in b"[{") - (byte in b"]}") for byte in outside)
    return max(0, *accumulate(steps, initial=0))


def test_depth_is_that_of_brackets_outside_strings() -> None:
    """A string may be full of brackets and escaped quotes."""
    generator = Generator(4)
    made = [generator.object(TREES["flat"]) for _ in range(2_000)]
    plain = plain_python([log, json_scanner])[json_scanner]["nesting_depth"]
    for value in [*filter(None, (*VALUES, *INSIDE)), *made]:
        record = readonly_contiguous(np.frombuffer(value, dtype=np.uint8))
        assert json_scanner.nesting_depth(record) == plain(record) == depth_of(value)
