"""Random valid and invalid field values."""

import json
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

One = Callable[[random.Random], Any]
# `json.dumps` reuses its encoder only for the ASCII default.
WRITERS = tuple(
    json.JSONEncoder(ensure_ascii=ascii_only).encode for ascii_only in (False, True)
)


class Raw(str):
    __slots__ = ()


def dumped(value: Any, choose: random.Random) -> str:
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, dict):
        comma, colon = choose.choice(((",", ":"), (", ", ": "), (" ,", "\n:")))
        fields = [
            dumped(name, choose) + colon + dumped(of, choose)
            for name, of in value.items()
        ]
        return "{" + comma.join(fields) + "}"
    if isinstance(value, list):
        return (
            "["
            + choose.choice((",", ", ")).join(dumped(inner, choose) for inner in value)
            + "]"
        )
    in_ascii = choose.random() < 0.005 or any(
        "\ud800" <= each < "\ue000" for each in str(value)
    )
    return WRITERS[in_ascii](value)


def a_label(choose: random.Random) -> Any:
    kind = choose.random()
    if kind < 0.7:
        return choose.choice("abcdefgh") + str(choose.randrange(4))
    if kind < 0.985:
        return choose.choice(
            (0, 1, -1, 17, 999_999_999_999_999_999, -123_456, True, False)
        )
    quoted = 'a "quoted" \\ one'
    long = ("x" * 1024, "é" * 512)
    return choose.choice(
        ("", "é商\U0001f600", long[0], quoted, "\x00\n", long[1], 10**18, -(10**30))
    )


def a_number(choose: random.Random) -> Any:
    kind = choose.random()
    if kind < 0.4:
        return choose.choice((-5, 0, 1, 2, 9, 10, 11, 50, 99, 100, 101))
    if kind < 0.8:
        usual = "0.1 -0.1 9.99 10.0 10.000000000000001 99.9999 -0.0"
        return Raw(choose.choice(usual.split()))
    if kind < 0.83:
        rare = "1e2 -0 1E-9 0.30000000000000004 123456789.1234567 1e400"
        return Raw(choose.choice(rare.split()))
    exact = choose.random() < 0.1
    number = choose.uniform(-20, 120)
    text = repr(number) if exact else f"{number:.2f}"
    return text if choose.random() < 0.1 else Raw(text)


def a_count(choose: random.Random) -> Any:
    if choose.random() < 0.1:
        return choose.choice(("2", "0", Raw("3.0"), "12345678901", "4.0"))
    if choose.random() < 0.02:
        return choose.choice((40, 999_999_999_999, 2**40, 2**41, 2**70))
    return choose.randrange(5)


def a_time(unit: str) -> One:
    def drawn(choose: random.Random) -> Any:
        ms = choose.choice((0, 999, 1_795_296_236_471, choose.randrange(2**41)))
        if unit == "iso":
            rare = choose.random() < 0.03
            at = time.gmtime(min(ms // 1_000, 2**34))
            fractions = (
                "",
                "",
                ".5",
                ".123",
                ".999999",
                *((".123456789", ",25") if rare else ()),
            )
            odd = ("z", "-00:00", " UTC", "Z[UTC]", " +01", "+01:00[Europe/Berlin]")
            zones = (
                odd if rare else ("Z", "", "+00:00", "+02:00", "-0530", "+00", "-05")
            )
            mark = choose.choice("t" if rare else "T ")
            text = time.strftime(f"%Y-%m-%d{mark}%H:%M:%S", at)
            return text + choose.choice(fractions) + choose.choice(zones)
        if unit == "s":
            s = ms / 1_000
            whole = ms // 1_000
            return Raw(
                choose.choice((str(whole), f"{s:.3f}", repr(s), f"{whole}.9999"))
            )
        below_ms = choose.randrange(1 if unit == "ms" else 1_000)
        since = ms * {"ms": 1, "us": 1_000, "ns": 1_000_000}[unit] + below_ms
        return str(since) if choose.random() < 0.1 else since

    return drawn


def a_user(choose: random.Random) -> Any:
    return choose.choice(("ann", "bob", "", 17, -3, "é" * 9, 10**17))


ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    5,
    "5",
    "",
    "x",
    [],
    {},
    [None],
    ["x", 5],
    [[]],
    [{}],
    {"a": 1},
    {"a": -1},
    {"a": 1.5},
    {"5": 5, "": 0},
    "x" * 1025,
    *map(
        Raw,
        (
            "1.0",
            "1.5",
            "1e3",
            "-0",
            "1e400",
            "12345678901234567890",
            "9007199254740993",
        ),
    ),
    *map(Raw, ("-0.5", '{"a":1,"a":2}', "9007199254740992", "9007199254740.9921")),
    Raw("0.00000000000000000001"),
    "2026-01-02T03:04:05Z",
    "2026-02-30T00:00:00Z",
    "1969-12-31T23:59:59Z",
    "2026-01-02T03:04",
    "\ud83d",
    "a\udc00b",
    ["a", "\ud800"],
    {"\udfff": 1},
    "12",
    "1.50",
    "-3",
    "07",
    "NaN",
    "2 kg",
    "2026-01-02T03:04:60Z",
    "2024-02-29 23:59:59.999",
    "0001-01-01T00:00:00+01:00",
    "9999-12-31T23:59:59-01:00",
)


def some_of(values: Sequence[Any]) -> One:
    return lambda choose: choose.choice(values)


def many(one: One, *, objects: bool) -> One:
    """Return a generator of a value, a list of values, or an object of counts."""

    def drawn(choose: random.Random) -> Any:
        number = choose.choice((0, 1, 2, 3, 9))
        kind = choose.random()
        if objects and kind < 0.4:
            return {str(a_label(choose)): a_count(choose) for _ in range(number)}
        return one(choose) if kind < 0.5 else [one(choose) for _ in range(number)]

    return drawn
