"""The general JSON reader along a tree; `json_log_corpus.py` compares it with Python's own."""

import subprocess
import sys
from decimal import Decimal
from itertools import product

import pytest

from tests.events.json_corpus import tree
from workers.events.json import JsonDecoder
from workers.events.tree import Wanted, build

DECODER = JsonDecoder(
    tree("order.lines[].sku", "order.id", "tags[]", "meta", "ts", many=["meta"])
)


def test_only_what_is_wanted_is_there() -> None:
    """A null is None at every level."""
    assert DECODER.decode(
        b'{"order":{"lines":[{"sku":"a","x":1},{}],"x":2},"x":3,"ts":null,"meta":{"a":[1]}}'
    ) == {"order": {"lines": [{"sku": "a"}, {}]}, "ts": None, "meta": {"a": [1]}}
    found = DECODER.decode(b'{"order":null,"tags":null,"meta":true}')
    assert found == {"order": None, "tags": None, "meta": True}
    assert DECODER.decode(b'{"ts":1,"ts":2,"\\u0074s":3}') == {"ts": 3}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"[1]", [1]),
        (b"null", None),
        (b'"a"', "a"),
        (b'{"order":5,"x":1}', {"order": 5, "x": 1}),
        (b'{"order":{"lines":[null,1]}}', {"order": {"lines": [None, 1]}}),
        (b'{"tags":{"a":1}}', {"tags": {"a": 1}}),
    ],
)
def test_a_record_of_another_shape_is_there_whole(
    value: bytes, expected: object
) -> None:
    """The message can then name the invalid field."""
    assert DECODER.decode(value) == expected


EXACT = ("1.10", "0.1000000000000000055511151231257827", "-0.0", "1e3", "1e400")
NUMBERS: dict[str, object] = {text: Decimal(text) for text in EXACT} | {
    "9" * 30: int("9" * 30),
    "-0": 0,
}
NUMBERS |= {
    "1e401": float("inf"),
    "-1e999999": float("-inf"),
    "1e-401": 0.0,
    "1e99999999999999999999": float("inf"),
    "-1e-99999999999999999999": -0.0,
}


@pytest.mark.parametrize(("text", "expected"), NUMBERS.items())
def test_numbers_are_what_is_written(text: str, expected: object) -> None:
    """No binary rounding, and no number whose digits fill the memory."""
    found = DECODER.decode(b'{"ts":%b}' % text.encode())
    assert isinstance(found, dict)
    assert repr(found["ts"]) == repr(expected)


NOT_JSON = (
    b"",
    b'{"ts":1}x',
    b'\xef\xbb\xbf\xef\xbb\xbf{"ts":1}',
    b'{"ts":"\xff"}',
    b'{"order":5,"x":"\xff"}',
    b"[" * 100_000,
    b'{"x":-Infinity,"y":"\\ud800"}',
)


@pytest.mark.parametrize("value", NOT_JSON)
def test_what_is_not_json_is_not_json(value: bytes) -> None:
    """All cases give one reason, which shows nothing of the record; no other error escapes."""
    with pytest.raises(ValueError, match=r"^not JSON$") as caught:
        DECODER.decode(value)
    error = caught.value
    assert error.__cause__ is None and (
        error.__suppress_context__ or error.__context__ is None
    )


def test_all_that_is_json_is_decoded() -> None:
    """msgspec refuses half a surrogate pair everywhere, and integers that Python would not print."""
    long = b"9" * 5_000
    assert (
        DECODER.decode(b'{"x":"\\ud83d","\\udc00":1,"ts":1,"y":%b}' % long)["ts"] == 1  # type: ignore[index]
    )
    found = DECODER.decode(b'{"ts":[-%b,"\\ud83d",1.50]}' % long)
    assert found == {"ts": [-(10**4299), "\ud83d", Decimal("1.50")]}
    assert DECODER.decode(b'\xef\xbb\xbf {"ts":1}') == {"ts": 1}


def test_any_name_is_found() -> None:
    """Covers names that Python or msgspec treat specially, also those new to the process."""
    names = [
        "a.b",
        "class",
        "",
        "a b",
        "1",
        '"',
        "\\",
        "é",
        "žluťoučký",
        "商品",
        "\U0001f600",
        "__init__",
        "total",
    ]
    pairs = enumerate(product(names, repeat=2))
    JsonDecoder(build([Wanted(pair, None, slot) for slot, pair in pairs]))
    code = f"""
import json
from workers.events.json import JsonDecoder
from workers.events.tree import Wanted, build
names = {names!a}
for name in names:
    decoder = JsonDecoder(build([Wanted((name, name), None, 0), Wanted(("other",), None, 1)]))
    value = {{name: {{name: 1}}, "other": 2}}
    assert decoder.decode(json.dumps(value, ensure_ascii=False).encode()) == value, name
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
