"""Three readers agree on any shape; the compiled one reads plain events of every ordinary shape."""

import functools
import json
import random
from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import plain_python
from tests.events.comparison import together
from tests.events.json_corpus import corpus
from tests.events.shapes_corpus import (
    SUMS,
    Case,
    Maker,
    difference,
    run,
    settings_or_none,
    told,
    views_of,
)
from tests.events.shapes_values import dumped
from workers.events import json_scanner, log, log_values, views
from workers.events import reading as module
from workers.events.reading import EventReader
from workers.kafka.records import Records

pytestmark = pytest.mark.slow


def test_three_readers_agree_over_random_shapes() -> None:
    """The long run is `python -m tests.events.shapes_corpus --records 2000000`."""
    outcome = run(12_000, 11)
    assert outcome.differs is None
    # Readers that reject or decline everything would also agree.
    assert outcome.readable > 0.6 * 12_000
    assert outcome.scanned > 0.5 * 12_000


def case_of(
    events: dict[str, Any], *histograms: dict[str, Any], user: str | None = None
) -> Case:
    stated = list(histograms) or [{}]
    settings = settings_or_none(events, stated, user)
    assert settings is not None
    return Case(
        events, stated, user, EventReader(settings.shape), views_of(settings), []
    )


NS = 1_795_296_236_471_000_123
S = 1_795_296_236.4719999
KEYED = {"key": "k", "items": "i"}
AT_A_TIME = {"key": "$all", "items": "i", "timestamp": "t"}
ISO, SECONDS = (AT_A_TIME | {"timestamp_unit": unit} for unit in ("iso", "s"))
PURCHASE = [{"field": "type", "in": ["purchase", 7, True]}]
LINES = {"items": "order.lines[].sku", "count": "order.lines[].qty"}
# Typical settings of one histogram with a typical event.
SINGLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a label": (KEYED, {"k": "a", "i": "x"}),
    "numbers as labels and keys": (
        KEYED,
        {"k": 76_561_198_000_000_001, "i": [1, -5, True, 0]},
    ),
    "a list": (
        KEYED | {"timestamp": "t"},
        {"k": "é", "i": ["a", "b", "a"], "t": 5, "x": 1.5e-07, "y": -(10**18)},
    ),
    "an object": (KEYED, {"k": "a", "i": {"x": 3, "y": 0}}),
    "nested": (
        {"key": "o.shop.id", "items": "o.p.q"},
        {"o": {"p": {"q": "x", "z": {}}, "shop": {"id": 4}}},
    ),
    "quoted": (
        {"key": 'o."shop.name"', "items": '"$i"'},
        {"o": {"shop.name": "s"}, "$i": ["a"]},
    ),
    "order lines": (
        LINES | {"key": "shop", "timestamp": "at", "timestamp_unit": "iso"},
        {
            "shop": "s",
            "order": {
                "id": "o-1",
                "lines": [{"sku": "a", "qty": 2, "x": 9.99}, {"qty": 1, "sku": 17}],
            },
            "at": "2026-11-22T10:00:00.123456Z",
        },
    ),
    "elements that are labels": (
        {"key": "$all", "items": "tags[]"},
        {"tags": ["a", "b"]},
    ),
    "a label with a count": (
        {"key": "$key", "items": "sku", "count": "qty"},
        {"sku": "a", "qty": 5},
    ),
    "missing items": (KEYED | {"missing": "empty"}, {"k": "a"}),
    "null items": (
        {"key": "k", "items": "o.i[].x", "missing": "empty"},
        {"k": "a", "o": None},
    ),
    "an element's null": (
        {"key": "k", "items": "i[].x", "missing": "empty"},
        {"k": "a", "i": [{"x": None}, {"x": "b"}]},
    ),
    "seconds": (SECONDS, {"i": "a", "t": S}),
    "whole seconds": (SECONDS, {"i": "a", "t": 1_795_296_236}),
    "microseconds": (
        AT_A_TIME | {"timestamp_unit": "us"},
        {"i": "a", "t": NS // 1_000},
    ),
    "nanoseconds": (AT_A_TIME | {"timestamp_unit": "ns"}, {"i": "a", "t": NS}),
    "a time without a zone": (ISO, {"i": "a", "t": "2026-11-22 10:00:00"}),
    "UTC as an offset": (ISO, {"i": "a", "t": "2026-11-22T10:00:00.5+00:00"}),
    "a purchase": (KEYED | {"where": PURCHASE}, {"k": "a", "i": "x", "type": True}),
    "no purchase": (
        KEYED | {"where": PURCHASE, "timestamp": "t"},
        {"type": "view", "t": 1, "i": {"a": []}},
    ),
    "bounds": (
        {"key": "$all", "items": "i", "where": [{"field": "n", "min": 0.5, "max": 7}]},
        {"i": "x", "n": 0.30000000000000004},
    ),
    "what is there": (
        {"key": "$all", "items": "i", "where": [{"field": "e", "exists": False}]},
        {"i": "x"},
    ),
}
ORDINARY = {
    name: (case_of(events), record) for name, (events, record) in SINGLE.items()
} | {
    "a user": (case_of(KEYED, user="who.id"), {"k": "a", "i": "x", "who": {"id": 17}}),
    "latencies": (
        case_of({"key": "k", "items": "ms"}, {"buckets": [0, 10, 50]}),
        {"k": "a", "ms": 12.345678901234567},
    ),
    "readings": (
        case_of({"key": "k", "items": "r[].v"}, {"buckets": [-10, 0, 0.5]}),
        {"k": "a", "r": [{"v": -3.25}, {"v": 0.00012345678901234567}, {"v": 7}]},
    ),
    "numbers in texts": (
        case_of(
            {"key": "$all", "items": "i", "count": "n"},
            {"items": "i", "sum": {"field": "p", "from": 0, "to": 10, "step": 0.5}},
            {"items": "p", "buckets": [0, 2, 5]},
            {"items": "i", "where": [{"field": "n", "min": 2, "max": 2}]},
            {"items": "o"},
        ),
        {"i": "a", "n": "2", "p": "2.5", "o": {"x": "3"}},
    ),
    "prices": (
        case_of(
            {"key": "k", "items": "l[].s", "timestamp": "t"},
            {"sum": {"field": "l[].p", "from": 0, "to": 100, "step": 0.01}},
            {"sum": {"field": "total", "from": -10, "to": 10, "step": 1}},
        ),
        {
            "k": "a",
            "t": 5,
            "total": -3.25,
            "l": [{"s": "x", "p": 9.99}, {"s": "y", "p": 120}],
        },
    ),
    "prices halfway between two steps": (
        case_of(
            {"key": "k", "items": "l[].s"},
            {"sum": {"field": "l[].p", "from": 0, "to": 100, "step": 0.01}},
            {"sum": {"field": "total", "from": -10, "to": 10, "step": 1}},
        ),
        {
            "k": "a",
            "total": -2.5,
            "l": [
                {"s": "x", "p": 0.005},
                {"s": "y", "p": 1.115},
                {"s": "z", "p": 1.1149999999999998},
            ],
        },
    ),
    "prices of a list and an object": (
        case_of(
            {"key": "k", "items": "i"},
            {"sum": {"field": "p", "from": 0, "to": 1, "step": 0.001}},
            {"items": "o", "sum": {"field": "p", "from": 0, "to": 1, "step": 0.001}},
        ),
        {"k": "a", "i": ["a", "b", "a"], "o": {"x": 3, "y": 0}, "p": 0.3217},
    ),
    "five histograms": (
        case_of(
            {
                "key": "shop",
                "items": "lines[].sku",
                "count": "lines[].qty",
                "timestamp": "t",
            },
            {},
            {"items": "country"},
            {"items": "page.type", "where": PURCHASE},
            {"items": "total", "buckets": [0, 10, 100]},
            {"key": "$all", "items": "tags"},
        ),
        {"shop": 5, "t": 12, "lines": [{"sku": "a", "qty": 1}], "country": "at"}
        | {"page": {"type": "home"}, "type": 7, "total": 99.5, "tags": ["x", "y"]},
    ),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_plain_events_of_ordinary_shapes_are_read_by_the_scanner(name: str) -> None:
    """A shape that falls back to the general reader costs fifty times as much per event."""
    case, record = ORDINARY[name]
    choose = random.Random(1)
    values = [dumped(record, choose).encode() for _ in range(20)]
    outcome = difference(case, values)
    # The first two record keys are invalid.
    assert outcome.differs is None
    assert outcome.readable >= 18
    [reading] = case.reader.read(Records.of(values, [b"k"] * 20, range(20)))
    assert (len(reading), reading.declined) == (20, 0)
    views = [found[2] for found in told(case, reading).values()]
    is_looked_at = any(view is not None for seen in views for view in seen)
    assert is_looked_at is (name != "no purchase" and name != "bounds")


DAYS = [
    "2024-02-29",
    "2023-02-29",
    "2000-02-29",
    "2100-02-29",
    "2026-02-30",
    "2026-04-30",
    "2026-04-31",
    "2026-07-31",
    "2026-08-31",
    "2026-09-31",
    "2026-12-31",
    "2026-13-01",
    "2026-00-01",
    "2026-01-00",
    "2026-01-32",
    "1969-12-31",
    "1970-01-01",
    "9999-12-31",
    "2026/01-01",
    "2026-01/01",
    "26-01-01",
    "20260131",
    "20260231",
    "202601-31",
    "2026-0131",
    "0000-01-01",
    "10000-01-01",
    "+002026-01-01",
    "2026-W01-1",
    "2026-001",
    "0001-01-01",
]
CLOCKS = [
    "00:00:00",
    "23:59:59",
    "24:00:00",
    "25:00:00",
    "23:60:00",
    "23:59:60",
    "23:59:61",
    "12:00",
    "12-00-00",
    "1:00:00",
    "aa:00:00",
    "1200",
    "120000",
    "12:0000",
    "1200:00",
    "12",
    "24:00",
    "2400",
    "24:00:00.000",
    "24:00:00.001",
    "24:00:01",
    "24:01",
    "23:59:60.5",
    "235960",
    "23:58:60",
    "00:59:60",
    "22:59:60",
]
BEHIND = (
    "",
    "Z",
    ".5Z",
    ".05Z",
    ".123456789Z",
    ".Z",
    ",5Z",
    "+00:00",
    "+01:00",
    "-00:30",
    "+00:01",
    "-00:00",
    "+0100",
    " Z",
    "ZZ",
    "z",
    "UTC",
    "GMT",
    " UTC",
    " GMT",
    "  Z",
    "utc",
    " utc",
    "UTC+1",
    "GMT+01:00",
    "Z+01:00",
    "+00",
    "-05",
    "+0530",
    "+05:30",
    "-0930",
    " +00",
    " -0500",
    "+1",
    "+01:",
    "+01:0",
    "+",
    "-",
    "+23:59",
    "-23:59",
    "+24",
    "+24:00",
    "-24:00",
    "+00:60",
    "+0060",
    "+99",
    "+01:00:00",
    "+1:00",
    "Z[UTC]",
    "+01:00[Europe/Berlin]",
    "-03[America/Argentina/La_Rioja]",
    "Z[Etc/GMT+1][u-ca=iso]",
    "[Europe/Berlin]",
    "[UTC]",
    "+01:00[",
    "+01:00[]",
    "+01:00[x]y",
    " Europe/Berlin",
    " CET",
    " PM",
    ",123456789+01",
    ".1234567890",
    ".123456789012345678Z",
    ",Z",
    "+01:00 ",
)
NUMBERS: tuple[Any, ...] = (
    0,
    1,
    -1,
    -999,
    999,
    2**53 - 1,
    2**53,
    2**53 + 1,
    2**53 // 1_000,
    2**53 // 1_000 + 1,
    2**53 * 1_000 + 999,
    10**18 - 1,
    10**18,
    10**19 - 1,
    10**19,
    -(10**18),
    999_999_999_999,
    10**12,
    2**40,
    "5",
    True,
    None,
    [],
    {},
)
DECIMALS = [
    "0.0",
    "-0.0",
    "0.5",
    "-0.5",
    "0.9999",
    "1.0005",
    "9007199254740.991",
    "9007199254740.992",
    "9007199254740.9929",
    "9007199254740.993",
    "10.0",
    "9.99999999999999999",
    "10.000000000000000000001",
    "50.00000000000001",
    "49.999999999999999",
    "999999999999999.9",
    "1e1",
    "1E400",
    "5e-1",
    "5E-01",
    "0.5e+0",
    "49999999999999999e-17",
    "500000000000000.1e-15",
    "1e01",
    "1E+1",
    "10000000000000001e-15",
    "0.01e3",
    "9.99999999999999999e0",
    "1e-99",
    "1e99",
    "1e100",
    "-1e1",
    "0e99",
    "-0e0",
    "5.0e1",
    "1.5e3",
    "2.00",
    "2.01",
    "2e0",
    "1795296236471.999",
    "1795296236471.0",
    "1.795296236471e12",
    "-1.0",
    "-0.4",
    "1795296236471999.9",
    "999.999999",
]
TEXTS = (
    "",
    " ",
    " 1",
    "1 ",
    "1\n",
    "+1",
    "007",
    "00",
    "01.5",
    "-",
    "1.",
    ".5",
    "1e",
    "1,5",
    "1_000",
    "2 kg",
    "NaN",
    "Infinity",
    "-Infinity",
    "inf",
    "0x10",
    "true",
    "null",
    "\u0661\u0662",
    "-0",
    "1795296236471000",
    "12345678901234567890",
    "9" * 19,
    "9" * 20,
    "1" + "0" * 400,
    "5e-1x",
    "2026-11-22T10:00:00Z",
    "-5",
    "--5",
    "5-",
    "1" + "0" * 5_000,
    "-1" + "0" * 5_000,
)


def probes() -> list[tuple[Case, list[bytes]]]:
    """Return values on both sides of the limits of times, counts and edges."""
    moments = [
        f"{day}{mark}{clock}{behind}"
        for day, clock, behind, mark in (
            *((day, "01:02:03", "Z", "T") for day in DAYS),
            *(
                (DAYS[0], clock, zone, " ")
                for clock in CLOCKS
                for zone in ("", "Z", "-0100")
            ),
            *((DAYS[0], "01:02:03", behind, "T") for behind in BEHIND),
            *((DAYS[0], "01:02:03", "Z", mark) for mark in "Tt _x"),
        )
    ]
    found = [
        (case_of(ISO), [b'{"i":"a","t":"%b"}' % moment.encode() for moment in moments])
    ]
    numbers = [
        *(dumped(number, random.Random(1)).encode() for number in NUMBERS),
        *(number.encode() for number in DECIMALS),
        *(b'"%b"' % number.encode() for number in DECIMALS),
        *(json.dumps(text).encode() for text in TEXTS),
    ]
    times = [b'{"i":"a","t":%b}' % number for number in numbers]
    for unit in ("ms", "s", "us", "ns"):
        found.append((case_of(AT_A_TIME | {"timestamp_unit": unit}), times))
    lists = {"items": "l[].i", "count": "l[].n"}
    counts = case_of({"key": "$all", "items": "i", "count": "n"}, {}, lists)
    counted = [
        b'{"i":"a","n":%b,"l":[{"i":"a","n":%b}]}' % (each, each) for each in numbers
    ]
    several = [
        b'{"i":%b,"n":2,"l":[{"i":"a","n":2}]}' % i for i in (b'["a"]', b'{"a":1}')
    ]
    found.append((counts, counted + several))
    users = [
        b'{"k":"a","i":"x","u":%b}' % user for user in (b"true", b"7", b"1.5", b"null")
    ]
    found.append((case_of(KEYED, user="u"), users))
    long = [b"x" * length for length in (1_024, 1_025)]
    labels = [b'{"k":"%b","i":["%b"]}' % (key, item) for key in long for item in long]
    found.append((case_of(KEYED), labels))
    bounds = [{"field": "n", "min": 0.5}], [{"field": "n", "max": 10}]
    edges = case_of(
        {"key": "$all", "items": "n"},
        {"buckets": [0, 0.5, 10, 50]},
        {"buckets": [-1, 2, 9]},
        *({"items": "i", "where": where} for where in bounds),
    )
    numbered = [b'{"i":"a","n":%b}' % number for number in numbers]
    found.append((edges, numbered))
    # Conditions alone: buckets decline what is no number.
    conditions = case_of(
        {"key": "$all", "items": "i"}, *({"where": where} for where in bounds)
    )
    found.append((conditions, numbered))
    sums = [{"sum": of | {"field": "n"}} for of in SUMS]
    prices = case_of({"key": "$all", "items": "i"}, *sums)
    steps = [
        f"{half / 2 + off:.3f}" for half in range(-14, 22) for off in (0, 0.25, -0.001)
    ]
    given = [*numbers, *(step.encode() for step in steps)]
    found.append((prices, [b'{"i":"a","n":%b}' % number for number in given]))
    return found


def test_readers_agree_on_both_sides_of_each_bound() -> None:
    """Random values seldom hit an edge."""
    outcome = together(difference(case, values) for case, values in probes())
    assert outcome.differs is None


@pytest.mark.parametrize(
    ("events", "user"),
    [
        ({"key": "key", "items": "items", "timestamp": "ts"}, "user"),
        ({"key": "key", "items": "items"}, "$key"),
        ({"key": "$key", "items": "x", "timestamp": "ts"}, None),
    ],
)
def test_readers_agree_about_hostile_bytes_everywhere_in_an_event(
    events: dict[str, Any], user: str | None
) -> None:
    case = case_of(events, user=user)
    values = corpus()
    # A batch of all of them would be read in parts.
    batches = (values[start : start + 500] for start in range(0, len(values), 500))
    outcome = together(difference(case, batch, hostile=True) for batch in batches)
    assert outcome.differs is None
    # All sorts of text are read, and by the scanner.
    assert outcome.readable > 300
    assert outcome.scanned > 0.5 * outcome.readable


def plain_views(old: str = "", new: str = "") -> Any:
    """Return uncompiled `project_views` with `old` replaced by `new` in the view logic's source."""
    made = plain_python((log, json_scanner, log_values, views), old, new)
    return made[views]["project_views"]


@functools.cache
def some() -> list[tuple[Case, list[bytes]]]:
    maker = Maker(5)
    cases = (maker.case() for _ in range(90))
    return [*probes(), *((case, maker.batch(case, 60)) for case in cases)]


def first_difference() -> str | None:
    ordinary = (
        (case, [dumped(record, random.Random(1)).encode()] * 3)
        for case, record in ORDINARY.values()
    )
    cases = (difference(case, values) for case, values in [*ordinary, *some()])
    return together(cases).differs


def test_views_as_plain_python_agree_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Correctness must not depend on how numba compiles the source."""
    monkeypatch.setattr(module, "project_views", plain_views())
    assert first_difference() is None


# Defects to plant in the kernel: current source and its replacement.
DEFECTS = {
    "a condition is any of its values": (
        "return int(found == (asks == IN))",
        "return 1",
    ),
    "not_in means in": ("found == (asks == IN)", "found"),
    "absent is in": ("return int(asks == NOT_IN)", "return 1"),
    "absent is not outside": ("return int(asks == NOT_IN)", "return 0"),
    "null is there": (" and logs.rows[row, KIND] != kinds.NULL", ""),
    "exists is turned round": (
        "int(there == (operand == 1))",
        "int(there != (operand == 1))",
    ),
    "min is exclusive": (
        "low >= bound\n        high_holds = high >=",
        "low > bound\n        high_holds = high >",
    ),
    "max is exclusive": (
        "low <= bound\n        high_holds = high <=",
        "low < bound\n        high_holds = high <",
    ),
    "near a bound is sure": (" if low_holds == high_holds else DECLINED", ""),
    "text is a number": (
        "is_number:\n        return 0",
        "is_number:\n        return 1",
    ),
    "one condition is enough": ("holds &= answer", "holds |= answer"),
    "the last condition decides": ("holds &= answer", "holds = answer"),
    "a bucket has its upper edge": (
        "found += edges[i] <= value",
        "found += edges[i] < value",
    ),
    "the edges of the first view": (
        "(low, edges, first, edges_stop)",
        "(low, edges, 0, edges_stop - first)",
    ),
    "near an edge is sure": (
        "sure = low == high or found ==",
        "sure = found == found or found ==",
    ),
    "what is no number has a bucket": (" is_number and", ""),
    "any count of a bucket": ("sure and amount >= 0", "sure"),
    "any count": (
        "written_used if labels[n_labels, 0] >= 0 and amount >= 0",
        "written_used if labels[n_labels, 0] >= 0",
    ),
    "any label": (
        "written_used if labels[n_labels, 0] >= 0 and amount >= 0",
        "written_used if amount >= 0",
    ),
    "counts are those of the element before": ("\n            count += 1", ""),
    "an element without a count": (
        "stop:\n                return DECLINED, n_labels",
        "stop:\n                count = row + 1",
    ),
    "an element without an item": (
        "stop:\n            return DECLINED, n_labels",
        "stop:\n            break",
    ),
    "null elements are none": (" or not to.program.empty", ""),
    "null in a list is none": (" and to.program.empty", ""),
    "a count beside a list": ("LIST:\n        if counts_one or", "LIST:\n        if"),
    "one value where a list is wanted": (" column[ONLY_LIST] or", ""),
    "an object beside a count": ("counts_one or column[BUCKETS]", "column[BUCKETS]"),
    "an item without its count": (
        "if count_row >= 0 else -1",
        "if count_row >= 0 else 1",
    ),
    "near a step is sure": ("if least == most:", "if True:"),
    "what is no number is in steps": ("if not is_number:\n        return -1", "pass"),
    "halfway goes down": ("part >= edge_part % PART", "part > edge_part % PART"),
    "edges are whole numbers": ("edge += edge_part // PART", "edge_part = 0"),
    "the steps of the first column": ("program.sums[column]", "program.sums[0]"),
    "missing items are none": (
        "if not program.empty:\n                    status[event] = DECLINED",
        "pass",
    ),
    "any key": (">= 0 and (", ">= 0 and (False and "),
    "the first key of all views": ("views[view, VIEW_KEY]]", "0]"),
    "any time": ("if included or may_be_time(log, time_row, unit):", "if False:"),
    "a skipped event's odd time is none": (
        " or may_be_time(log, time_row, unit):",
        ":",
    ),
    "a skipped event without a time": (
        "elif status[event] == READ:\n                    status[event] = SKIPPED",
        "else:\n                    pass",
    ),
    "true is a user": (" or log[user_row, KIND] in (kinds.TRUE, kinds.FALSE):", ":"),
    "no user": ("user_row < 0 or log[user_row, KIND] in", "log[user_row, KIND] in"),
    "any user": (
        "\n                        status[event] = DECLINED",
        "\n                        users[event, 0], users[event, 1] = 0, 0",
    ),
    "what one view sees all see": (
        "label_counts[view, event] = added[column]\n                ",
        "",
    ),
    "labels of no event": ("column], 0", "column], 0) + (added[column] > 1"),
    "long labels": ("stop - start <= LABEL_BYTES_MAX", "True"),
    "a minus is a digit": (
        "data[start] == MINUS\n    if minus:\n        position += 1\n    #",
        "False\n    #",
    ),
    "the second word of digits is the first": (
        "data, stop - WORD, WORD\n",
        "data, position, WORD\n",
    ),
    "digits before the last eight are nothing": ("* WORD_POWER +", "* 0 +"),
    "numbers without their sign": ("(-real if minus else real),", "real,"),
    "the point is nowhere": ("power -= not before_point", "power -= 0"),
    "all numbers are exact": (
        "digits <= EXACT_DIGITS and abs(power) <= EXACT_POWER",
        "True",
    ),
    "an exponent is nothing": (
        "parse_integer(data, position + 1 + (data[position + 1] == PLUS), stop)",
        "0",
    ),
    "an exponent has no sign": (
        ":\n        power",
        ":\n        position += data[position + 1] == 45\n        power",
    ),
    "counts of any length": (" stop - start <= COUNT_DIGITS and", ""),
    "times beyond the greatest": ("ms <= TIME_MAX_MS", "ms"),
    "us are ns": ("3 if unit == US else 6", "6"),
    "a time before 1970": (
        "    if data[start] == MINUS:\n        return -1\n",
        "",
    ),
    "seconds are ms": ("value * 1000 if value", "value if value"),
    "tenths are ms": ("point + 4", "point + 2"),
    "us of a second count": ("point + 4", "point + 5"),
    "every fourth year": (" and (year % 100 != 0 or year % 400 == 0)", ""),
    "the 31st of any month": (
        "30 + ((month + (month > 7)) & 1) if month != 2 else 28 + leap",
        "31",
    ),
    "the 24th hour": ("hour > 23", "hour > 24"),
    "a minute of 61 seconds": ("second > 59", "second > 60"),
    "a fraction of tenths": ("scale //= 10\n            ", ""),
    "any zone is UTC": ("offset = offset_minutes(data, position, stop)", "offset = 0"),
    "west is east": ("else -60 * hours - minutes", "else 60 * hours + minutes"),
    "minutes of an offset are nothing": (
        "return 60 * hours + minutes",
        "return 60 * hours",
    ),
    "an offset of a day": ("0 <= hours <= 23", "0 <= hours <= 24"),
    "an offset of 60 minutes": ("0 <= minutes <= 59", "0 <= minutes <= 60"),
    "a text that only begins as a number": ("end == stop and kind", "kind"),
    "a text of doubt is no number": (
        "return -math.inf, math.inf, True",
        "return 0.0, 0.0, False",
    ),
    "a count with a fraction": ("if data[pos] != ZERO:\n            return -1", "pass"),
    "a text in any form is a time": ("data[start + 4] != MINUS", "False"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_each_defect_would_be_seen(
    defect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run over millions of events proves something only if it detects disagreements."""
    monkeypatch.setattr(module, "project_views", plain_views(*DEFECTS[defect]))
    try:
        with np.errstate(divide="raise"):  # a defect that divides by nothing is seen
            found = first_difference()
    except (IndexError, ValueError, OverflowError, FloatingPointError):
        return  # an index beyond the bytes, a text that is none
    assert found
