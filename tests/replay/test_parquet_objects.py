"""Parquet that is looked into gives what JSON lines of the same rows give."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.events.shapes_corpus import document
from tests.replay.site import T0
from tests.replay.test_sources import write_lines, write_rows
from workers.events.columns import EventColumns, Events
from workers.replay.parquet import UNREADABLE, objects_of
from workers.replay.sources import open_source
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings, settings_of

LINE = pa.struct([("sku", pa.string()), ("qty", pa.int32()), ("price", pa.float64())])
ORDER = pa.struct(
    [("shop", pa.int64()), ("lines", pa.list_(LINE)), ("total", pa.decimal128(9, 2))]
)
KINDS = {
    "order": ORDER,
    "type": pa.dictionary(pa.int8(), pa.string()),
    "at": pa.int64(),
    "tags": pa.large_list(pa.int16()),
    "vip": pa.bool_(),
    "props": pa.map_(pa.string(), pa.int64()),
}


def row(place: int, **changes: Any) -> dict[str, Any]:
    """Return a row; some have nulls where an event may have none."""
    lines = [
        {"sku": f"p{place % 3}", "qty": place % 4, "price": place / 7},
        {"sku": None if place % 11 == 5 else "é", "qty": 2**31 - 1, "price": 9.99},
    ]
    found: dict[str, Any] = {
        "order": {
            "shop": place % 2,
            "lines": None if place % 13 == 6 else lines[: place % 5],
            "total": Decimal(place * 37) / 100,
        },
        "type": ("purchase", "view", None)[place % 3],
        "at": T0 + place,
        "tags": [place % 3, -1] if place % 5 else None,
        "vip": place % 4 == 0,
        "props": [("a", place % 3), ("b", 2)] if place % 7 else [],
    }
    return found | changes


def as_json(value: Any) -> Any:
    return json.loads(
        json.dumps(value | {"props": dict(value["props"])}, default=float)
    )


PURCHASE = [{"field": "type", "in": ["purchase"]}]
NOT_VIP = {"field": "vip", "not_in": [True]}
OF = {"key": "order.shop", "items": "order.lines[].sku", "timestamp": "at"}
SHAPES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "elements with counts": (
        OF | {"count": "order.lines[].qty", "missing": "empty"},
        [{}],
    ),
    "a null is a reject": (OF, [{}]),
    "several histograms": (
        OF | {"missing": "empty"},
        [
            {"where": PURCHASE},
            {"items": "tags"},
            {"items": "vip", "key": "$all"},
            {"items": "order.total", "buckets": [0, 1, 2.5, 100]},
            {"items": "props"},
        ],
    ),
    "buckets in elements": (
        OF | {"items": "order.lines[].price", "missing": "empty"},
        [{"buckets": [0, 1, 5, 9.99, 10]}],
    ),
    "conditions": (
        OF | {"items": "tags", "missing": "empty"},
        [
            {"where": [{"field": "order.total", "min": 3.7, "max": 20}, NOT_VIP]},
            {"where": [{"field": "props.b", "exists": True}]},
        ],
    ),
    "a count beside a label": (
        OF | {"items": "type", "count": "props.a", "missing": "empty"},
        [{}],
    ),
}


def settings(events: dict[str, Any], histograms: list[dict[str, Any]]) -> Settings:
    return settings_of(document(events, histograms, None), Path())


def read(given: Settings, path: Path) -> tuple[list[Any], list[tuple[int, str]]]:
    """Return (time, and for each histogram its key and counts) of each event, and the rejects."""
    found: list[Any] = []
    rejects: list[tuple[int, str]] = []
    with open_source(given, str(path)) as source:
        for batch in source.batches():
            events = batch.events
            views = [
                column(events, events.views[config.view]) for config in given.histograms
            ]
            found += list(zip(events.times.tolist(), *views, strict=True))
            rejects += batch.rejects
    return found, rejects


def column(events: Events, columns: EventColumns) -> list[Any]:
    labels = [columns.label_names.name(code) for code in columns.labels.tolist()]
    amounts = columns.amounts.tolist() or [1] * len(labels)
    ends = columns.ends.tolist()
    seen = (
        [True] * len(events) if columns.included is None else columns.included.tolist()
    )
    return [
        (columns.key_names.name(key), dict(zip(labels[a:b], amounts[a:b], strict=True)))
        if looks
        else None
        for looks, key, a, b in zip(
            seen, columns.keys.tolist(), [0, *ends], ends, strict=False
        )
    ]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_parquet_and_json_agree(tmp_path: Path, name: str, size: int) -> None:
    """What JSON events say is held against plain Python in tests/events/test_shapes.py."""
    rows = [row(place) for place in range(200)]
    lines = write_lines(tmp_path / "a.jsonl", [as_json(one) for one in rows])
    given = settings(*SHAPES[name])
    table = write_rows(tmp_path / "a.parquet", KINDS, rows, size)
    events, rejected = read(given, table)
    assert (events, rejected) == read(given, lines)
    rejecting = name in ("a null is a reject", "a count beside a label")
    assert len(events) > 100 and (len(rejected) > 10) is rejecting


@pytest.mark.parametrize(
    ("kind", "unit", "value"),
    [
        (pa.timestamp("s"), "ms", T0 // 1_000),
        (pa.timestamp("ms"), "ms", T0),
        (pa.timestamp("us", "Asia/Tokyo"), "ms", T0 * 1_000 + 999),
        (pa.uint64(), "ms", T0),
        (pa.timestamp("ns"), "ms", T0 * 1_000_000 + 999_999),
        (pa.timestamp("ns", "UTC"), "iso", T0 * 1_000_000 + 1),
        (pa.timestamp("us"), "s", T0 * 1_000),
        (pa.int64(), "ms", T0),
        (pa.int64(), "us", T0 * 1_000 + 999),
        (pa.uint64(), "ns", T0 * 1_000_000 + 999_999),
        (pa.int32(), "s", T0 // 1_000),
        (pa.float64(), "s", T0 / 1_000),
        (pa.decimal128(16, 3), "s", Decimal(T0) / 1_000),
        (pa.string(), "iso", datetime.fromtimestamp(T0 // 1_000, UTC).isoformat()),
        (pa.large_string(), "iso", "2026-01-01T00:00:00Z"),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_times_of_each_unit_and_type(
    tmp_path: Path, kind: Any, unit: str, value: Any, nested: bool
) -> None:
    own = pa.int64() if pa.types.is_timestamp(kind) else kind
    times = pa.array([value, None], own).cast(kind)
    place = "t"
    if nested:
        times = pa.StructArray.from_arrays([times], ["at"])
        place = "t.at"
    pq.write_table(
        pa.table({"t": times, "i": pa.array(["5", "5"])}), tmp_path / "a.parquet"
    )
    of = {"key": "$all", "items": "i", "timestamp": place, "timestamp_unit": unit}
    given = settings(of, [{}])
    events, rejects = read(given, tmp_path / "a.parquet")
    assert T0 % 1_000 == 0 and events == [(T0, ("all", {"5": 1}))]
    ((number, why),) = rejects
    assert number == 2 and (why.endswith(" is null") or "is not a" in why)


def test_nothing_in_a_file_stops_its_reading(tmp_path: Path) -> None:
    texts = pa.array([b"a", b"\xff", b"a", b"a", b"a", b"a"])
    broken = pa.Array.from_buffers(pa.string(), 6, texts.buffers())
    far = pa.array([T0, T0, 2**62, T0, -(2**62), T0], pa.int64()).cast(
        pa.timestamp("ms")
    )
    values = pa.array([1.5, 1.5, 1.5, float("nan"), float("inf"), float("-inf")])
    both = pa.StructArray.from_arrays([broken, far], ["k", "t"])
    days = pa.array([2**30] * 6, pa.int32()).cast(pa.date32())
    pq.write_table(
        pa.table({"o": both, "v": values, "d": days}), tmp_path / "a.parquet"
    )
    of: dict[str, Any] = {"key": "o.k", "items": "v", "timestamp": "o.t", "grace": "1h"}
    where = [{"field": "d", "not_in": ["x"]}]
    given = settings(of | {"where": where}, [{"buckets": [0, 2]}])
    events, rejects = read(given, tmp_path / "a.parquet")
    assert events == [(T0, ("a", {"[0,2)": 1})), (T0, ("a", {"<0": 1}))]
    assert [number for number, _ in rejects] == [2, 3, 4, 5]
    assert "field 'o.k' is not a string, whole number or boolean" in dict(rejects)[2]


def test_a_map_may_have_any_keys(tmp_path: Path) -> None:
    of = {"key": "type", "items": "m", "where": [{"field": "type", "in": ["a"]}]}
    texts = [[(b"7", 1), (b"8", 2)], [], [(b"\xff", 1)]]
    for kind, given in (
        (pa.int32(), [[(7, 1), (8, 2)], [], None]),
        (pa.binary(), texts),
    ):
        maps = pa.array(given, pa.map_(kind, pa.int64()))
        table = pa.table({"m": maps, "ts": [T0] * 3, "type": ["a"] * 3})
        pq.write_table(table, tmp_path / "a.parquet")
        events, rejects = read(settings(of, [{}]), tmp_path / "a.parquet")
        assert [counts for _, (_, counts) in events] == [{"7": 1, "8": 2}, {}]
        assert [number for number, _ in rejects] == [3]


ELEMENT = "struct<sku: string, qty: int32, price: double>"
TOTAL = "decimal128(9, 2) is there"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "items=order.linse[].sku",
            "nothing is there; its columns are order, type, at, tags",
        ),
        ("items=type[].x", "nothing is there"),
        ("items=order.lines", "which: q[].label"),
        ("items=order.lines[]", f"{ELEMENT} is there; it must be text"),
        (
            "items=order.total",
            f"{TOTAL}; it must be text, whole numbers or booleans, a list of them, or a map",
        ),
        ("key=order.total", f"{TOTAL}; it must be text, whole numbers or booleans"),
        ("count=order.lines[].price", "double is there; it must be whole numbers"),
        (
            "timestamp=type",
            "string is there; it must be a timestamp, or whole numbers in ms",
        ),
        ("where=order.shpo", "nothing is there"),
    ],
)
def test_a_path_that_leads_nowhere_is_named(
    tmp_path: Path, given: str, message: str
) -> None:
    setting, _, place = given.partition("=")
    value = [{"field": place, "exists": True}] if setting == "where" else place
    events: dict[str, Any] = {setting: value}
    path = write_rows(tmp_path / "a.parquet", KINDS, [row(1)])
    with pytest.raises(SettingsError) as refused:
        read(settings(OF | events, [{}]), path)
    text = str(refused.value)
    assert f"{setting} = {place!r}: " in text and message in text and "\n" not in text


def test_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    arrays = [pa.array(["a"]), pa.array([1]), pa.array([T0]), pa.array(["b"])]
    table = pa.Table.from_arrays(arrays, names=["k", "i", "ts", "k"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(SettingsError, match="key = 'k': 2 columns have that name"):
        read(settings({"key": "k", "items": "i"}, [{}]), tmp_path / "a.parquet")


def test_values_are_what_json_has_in_their_place() -> None:
    day = datetime(2026, 1, 1, tzinfo=UTC)
    map_of = pa.map_(pa.bool_(), pa.date32())
    for kind, value, plain in (
        (pa.string_view(), "é", "é"),
        (pa.binary(), b"\xc3\xa9", "é"),
        (pa.binary(), b"\xff", UNREADABLE),
        (pa.dictionary(pa.int8(), pa.string()), "a", "a"),
        (pa.uint64(), 2**64 - 1, 2**64 - 1),
        (pa.float32(), 1.5, 1.5),
        (pa.bool_(), True, True),
        (pa.decimal128(5, 2), Decimal("1.50"), Decimal("1.50")),
        (pa.date32(), day.date(), "2026-01-01"),
        (pa.date64(), day.date(), "2026-01-01"),
        (pa.time32("s"), day.time(), UNREADABLE),
        (pa.duration("us"), timedelta(1), UNREADABLE),
        (pa.timestamp("us", "Europe/Prague"), day, T0),
        (pa.list_(pa.timestamp("ns")), [day, None], [T0, None]),
        (
            map_of,
            [(True, day.date()), (False, None)],
            {"true": "2026-01-01", "false": None},
        ),
        (pa.null(), None, None),
    ):
        assert objects_of(pa.array([value, None], kind)) == [plain, None], kind
