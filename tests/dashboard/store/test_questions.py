"""What is answered about the past is what was on the topic: each tick itself, or the last of a step, never anything else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from tests.dashboard.feeding import GONE, message
from tests.dashboard.store.making import (
    BEGIN_MS,
    QUARTER_MS,
    at,
    life,
    opened,
    stepped,
    store,
    thinned,
)
from workers.dashboard.snapshots import Stream
from workers.dashboard.store.queries import (
    EpochsQuery,
    HistoryQuery,
    NotStored,
    Range,
    TickQuery,
    epochs,
    history,
    one_tick,
)
from workers.dashboard.store.writing import Writer, settle, thin

pytestmark = pytest.mark.slow

ONE = Stream("products", "s1")
LIFE = life()
HOUR = 3_600_000
LABELS = ("item 0", "never shown", "item 5", "item 0")
Kept = tuple[duckdb.DuckDBPyConnection, Writer]


@pytest.fixture(scope="module", params=["as it came", "sorted", "half of it sorted"])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    """Two streams that came in turns."""
    with opened(tmp_path_factory.mktemp("history") / "history.duckdb") as (database, writer):
        other = life("s2", seed=2)
        both = [document for pair in zip(LIFE, other, strict=True) for document in pair]
        half = len(both) // 2
        store(writer, both[:half])
        if request.param != "as it came":
            settle(database, 1, 1)
        store(writer, both[half:])
        if request.param == "sorted":
            settle(database, 1, 1)
        yield database, writer


def ask(
    database: duckdb.DuckDBPyConnection, reading: float | None = None, **question: Any
) -> dict[str, Any]:
    since, until = question.pop("since", None), question.pop("until", None)
    asked = HistoryQuery(stream=ONE, range=Range(since, until), **{"limit": 10_000, **question})
    found: dict[str, Any] = orjson.loads(history(database, asked, reading))
    return found


def entry(document: dict[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    """An entry of an answer, from the snapshot on the topic."""
    items = dict(document["items"])
    fields = {
        name: document[name] for name in ("id", "epoch", "tick", "start", "end", "sd", "threshold")
    }
    fields |= {"shown": len(items), "total": sum(items.values())}
    fields |= {"counts": [items.get(label) for label in labels]} if labels else {}
    return fields | {name: document[name] for name in ("windows",) if name in document}


@pytest.mark.parametrize("step", [None, 10_000, 70_000, QUARTER_MS, HOUR, 4 * HOUR, HOUR - 1])
@pytest.mark.parametrize(
    "bounds",
    [
        (None, None),
        (BEGIN_MS, BEGIN_MS + HOUR),
        (BEGIN_MS + 12_345, None),
        (BEGIN_MS + QUARTER_MS, BEGIN_MS + 4 * HOUR),
    ],
)
def test_an_answer_has_the_last_tick_of_each_step(
    kept: Kept, step: int | None, bounds: tuple[int | None, int | None]
) -> None:
    """Whatever the level, and the table, in which it lies."""
    found = ask(kept[0], since=bounds[0], until=bounds[1], step=step, items=LABELS)
    assert found["entries"] == [
        entry(document, LABELS) for document in stepped(LIFE, *bounds, step)
    ]
    assert found["items"] == list(LABELS)
    assert (found["complete"], found["more"], found["next"], found["reading"]) == (
        True,
        False,
        None,
        None,
    )
    assert {one["id"][0] for one in found["series"]} == {one["id"][0] for one in found["entries"]}
    assert all(
        one["mechanism"] == "unk_base" and one["guarantee"] == LIFE[0]["guarantee"]
        for one in found["series"]
    )


def test_without_items_an_entry_has_no_counts(kept: Kept) -> None:
    """A chart of totals needs none."""
    found = ask(kept[0], step=HOUR)
    assert found["entries"] == [entry(document, ()) for document in stepped(LIFE, None, None, HOUR)]


@pytest.mark.parametrize("step", [None, HOUR, 700_000])
def test_an_answer_goes_on_where_it_was_cut(kept: Kept, step: int | None) -> None:
    """Each entry once, and the same ones as at once."""
    wanted = ask(kept[0], step=step, items=LABELS, since=BEGIN_MS)["entries"]
    found: list[object] = []
    since: int | None = BEGIN_MS
    while since is not None:
        part = ask(kept[0], step=step, items=LABELS, since=since, limit=3 if step else 500)
        found += part["entries"]
        assert part["more"] == (part["next"] is not None)
        since = part["next"]
    assert found == wanted


def test_the_end_of_every_series_is_told_and_which_is_not_final(kept: Kept) -> None:
    """Yesterday's total must not be gone at midnight, nor that of an older generation."""
    ends = [LIFE[399], LIFE[999], LIFE[1129], LIFE[-1]]
    found = orjson.loads(epochs(kept[0], EpochsQuery(stream=ONE, range=Range()), None))
    assert [(one["id"][0], one["epoch"], one["final"]) for one in found["epochs"]] == [
        ("a", 1, True),
        ("b", 2, True),
        ("c", 3, True),
        ("d", 3, False),
    ]
    for snapshot, document in zip(found["epochs"], ends, strict=True):
        total = sum(count for _, count in document["items"])
        more = {"total": total, "final": snapshot["final"]}
        assert snapshot == document | more
    cut = orjson.loads(
        epochs(kept[0], EpochsQuery(stream=ONE, range=Range(), top=2, limit=3), None)
    )
    assert cut["more"]
    assert [one["items"] for one in cut["epochs"]] == [
        document["items"][:2] for document in ends[1:]
    ]
    assert all(one["total_items"] == 6 for one in cut["epochs"])
    picked = orjson.loads(
        epochs(
            kept[0],
            EpochsQuery(stream=ONE, range=Range(until=LIFE[999]["end"]), items=["item 3"]),
            None,
        )
    )
    assert [one["items"] for one in picked["epochs"]] == [
        [item for item in document["items"] if item[0] == "item 3"] for document in ends[:2]
    ]


@pytest.mark.parametrize("place", [0, 1, 399, 400, 1_234, -1])
def test_one_tick_is_the_snapshot_of_the_topic(kept: Kept, place: int) -> None:
    """By a time within it, its end, or its number."""
    document = LIFE[place]
    questions = [
        {"at": document["end"]},
        {"at": document["start"] + 1},
        {"epoch": document["epoch"], "tick": document["tick"]},
    ]
    for question in questions:
        found, nearest = one_tick(kept[0], TickQuery(stream=ONE, id=document["id"], **question))
        assert (found, nearest) == (
            document | {"items": [tuple(item) for item in document["items"]]},
            {},
        )


def test_of_two_series_at_one_time_the_newer_is_meant(kept: Kept) -> None:
    """A new generation says it again, and better."""
    found, _ = one_tick(kept[0], TickQuery(stream=ONE, at=LIFE[1_129]["end"]))
    assert found is not None
    assert (found["id"][0], found["end"]) == ("d", LIFE[1_129]["end"])


def test_a_tick_that_is_not_there_is_never_replaced(kept: Kept) -> None:
    """The nearest are named instead."""

    def nearest(**question: Any) -> list[tuple[int, int] | None]:
        found, near = one_tick(kept[0], TickQuery(stream=ONE, **question))
        assert found is None
        return [
            near[name] and (near[name]["epoch"], near[name]["tick"]) for name in ("before", "after")
        ]

    assert nearest(at=BEGIN_MS) == [None, (1, 1)]
    assert nearest(at=LIFE[-1]["end"] + 1) == [(3, 700), None]
    assert nearest(epoch=2, tick=601) == [(2, 600), (3, 1)]
    assert nearest(epoch=1, tick=401, id="a" * 32) == [(1, 400), None]
    with pytest.raises(NotStored, match="no such key"):
        one_tick(kept[0], TickQuery(stream=Stream("products", "s3"), at=1))
    with pytest.raises(NotStored, match="no such key"):
        history(kept[0], HistoryQuery(stream=Stream("product", "s1"), range=Range()), None)


@pytest.mark.parametrize(
    "keep",
    [(HOUR // 2, 2 * HOUR), (HOUR // 2, 40 * HOUR), (60_000, 60_000), (40 * HOUR, 40 * HOUR)],
)
@pytest.mark.parametrize("settled", [False, True])
def test_what_is_thinned_leaves_the_last_of_each_quarter_and_epoch(
    tmp_path: Path, keep: tuple[int, int], settled: bool
) -> None:
    """By age, from the newest tick; no final total is ever lost, and the answer says from when on all are there."""
    with opened(tmp_path / "history.duckdb") as (database, writer):
        for part in (LIFE[:1_200], LIFE[1_200:]):
            store(writer, part)
            if settled:
                settle(database, 1, 1)
            thin(database, writer.ends, {"ticks": keep[0], "quarters": keep[1]})
        left = thinned(LIFE, *keep)
        found = ask(database, items=LABELS)
        assert found["entries"] == [
            entry(document, LABELS) for document in stepped(left, None, None, None)
        ]
        assert found["kept"]["first"] == min(document["end"] for document in left)
        assert found["kept"]["last"] == LIFE[-1]["end"]
        since = [
            document
            for document in LIFE
            if document["end"] >= found["kept"]["ticks"] and document["id"][0] == "d"
        ]
        assert since == [
            document
            for document in left
            if document["end"] >= found["kept"]["ticks"] and document["id"][0] == "d"
        ]
        finals = orjson.loads(epochs(database, EpochsQuery(stream=ONE, range=Range()), None))[
            "epochs"
        ]
        assert [one["items"] for one in finals] == [
            LIFE[place]["items"] for place in (399, 999, 1129, -1)
        ]
        if keep[1] > 20 * HOUR:
            found = ask(database, items=LABELS, step=HOUR)
            assert found["entries"] == [
                entry(document, LABELS) for document in stepped(LIFE, None, None, HOUR)
            ]
        # It goes on where it was: the next writer knows the newest of each stream.
        assert (
            store(
                Writer(database),
                [*LIFE[-3:], message(701, [("item 0", 1)], epoch=3, id="d" * 32, **at(1_761))],
            )
            == 1
        )


def test_a_stream_that_stands_still_keeps_its_newest_tick(tmp_path: Path) -> None:
    """Another stream of the histogram goes on, and with it the histogram's time."""
    with opened(tmp_path / "history.duckdb") as (database, writer):
        store(writer, [message(tick, key="s1", **at(tick)) for tick in range(1, 11)])
        store(writer, [message(tick, key="s2", **at(tick)) for tick in range(1, 5_000)])
        thin(database, writer.ends, {"ticks": 60_000, "quarters": 60_000})
        assert [one["tick"] for one in ask(database)["entries"]] == [10]
        store(writer, [message(tick, key="s1", **at(tick)) for tick in (11, 5_000)])
        thin(database, writer.ends, {"ticks": 60_000, "quarters": 3_600_000})
        assert [one["tick"] for one in ask(database)["entries"]] == [11, 5_000]


ODD: list[dict[str, Any]] = [
    message(
        1,
        GONE,
        sd=None,
        threshold=None,
        mechanism="two_level",
        query="quantile:0.5",
        value=7,
        since=1,
        error=3.5,
        id="1" * 32,
    ),
    message(
        1,
        GONE,
        sd=None,
        threshold=None,
        mechanism="two_level_k",
        answers=[{"query": "max", "value": 3}],
        since=0,
        error=1,
        id="2" * 32,
    ),
    message(
        1,
        GONE,
        sd=None,
        threshold=None,
        mechanism="pay_what_you_get",
        query="top",
        labels=["a", "b"],
        complete=True,
        id="3" * 32,
    ),
    message(1, [], id="4" * 32),
    message(
        1,
        [("[0,10)", 5), ("<0", -3), (">=10", 0)],
        edges=[0.0, 10.0],
        mechanism="known_base",
        id="5" * 32,
        quantiles=[{"q": 0.5, "bucket": "[0,10)", "value": 4.5, "low": None, "high": 5.0}],
    ),
    message(
        1,
        [
            ("\0", 2**53 - 1),
            ("'; drop table labels; --", 2**53 - 1),
            ("", 3),
            ("é\U0001f600", -(2**53) + 1),
        ],
        id="6" * 32,
    ),
]


@pytest.mark.parametrize("document", ODD, ids=lambda document: str(document["id"][0]))
def test_snapshots_of_every_kind_are_kept_as_they_are(
    tmp_path: Path, document: dict[str, Any]
) -> None:
    """Answers, labels for a budget, buckets, nothing shown, any text."""
    with opened(tmp_path / "history.duckdb") as (database, writer):
        # What came before must not decide what the columns are taken for.
        assert (
            store(
                writer,
                [*(message(tick, **at(tick)) for tick in range(1, 1_200)), document],
                batch=5_000,
            )
            == 1_200
        )
        found, _ = one_tick(
            database, TickQuery(stream=ONE, at=document["end"], id=document["id"], top=10_000)
        )
        assert found is not None
        assert found.pop("total_items", None) == (
            len(document["items"]) if "items" in document else None
        )
        items = found.get("items")
        assert orjson.loads(
            orjson.dumps(found | ({"items": sorted(items)} if items is not None else {}))
        ) == document | ({"items": sorted(document["items"])} if "items" in document else {})
        last = ask(database, items=("[0,10)",))
        [entry] = [one for one in last["entries"] if one["id"] == document["id"]]
        assert ("counts" in entry) == ("items" in document)
        rest = {
            "query",
            "value",
            "since",
            "error",
            "answers",
            "labels",
            "complete",
            "quantiles",
        } & document.keys()
        assert {name: entry[name] for name in rest} == {name: document[name] for name in rest}
        [series] = [one for one in last["series"] if one["id"] == document["id"]]
        assert series.get("edges") == document.get("edges")


def test_what_a_bucket_histogram_shows_is_never_cut(tmp_path: Path) -> None:
    """A histogram of numbers with a bucket less is another histogram."""
    with opened(tmp_path / "history.duckdb") as (database, writer):
        store(writer, [ODD[4]])
        found, _ = one_tick(database, TickQuery(stream=ONE, at=ODD[4]["end"], top=1))
        assert found is not None
        assert len(found["items"]) == 3


def test_an_answer_says_when_the_beginning_was_gone(tmp_path: Path) -> None:
    """Rows that nobody could read are not taken for ticks that showed nothing."""
    with opened(tmp_path / "history.duckdb") as (database, writer):
        writer.note_gap("products", 0)
        store(writer, [message(tick, **at(tick)) for tick in range(5, 10)])
        writer.note_gap("products", 0)
        store(writer, [message(tick, **at(tick)) for tick in range(20, 25)])

        def complete(since: int | None, until: int | None, reading: float | None = None) -> bool:
            bounds = [tick and at(tick)["end"] for tick in (since, until)]
            return bool(ask(database, reading, since=bounds[0], until=bounds[1])["complete"])

        assert not complete(None, None)
        assert not complete(None, 8)
        assert not complete(
            4, 8
        )  # tick 5 of another key is the first that was read: of this one it may have gone
        assert complete(5, 8)
        assert not complete(5, 9)  # and tick 9 may have come for another key alone
        assert not complete(9, 20)
        assert not complete(19, None)
        assert complete(20, None)
        assert complete(20, 24, reading=0.4)  # in a stream ticks ascend: these will not come later
        assert not complete(20, None, reading=0.4)
