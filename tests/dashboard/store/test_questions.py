"""Answers about the past are ticks of the topic: each tick itself, or the last of a step."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pytest

from tests.dashboard.feeding import answer, message
from tests.dashboard.store import making
from tests.dashboard.store.making import (
    BEGIN_MS,
    QUARTER_MS,
    at,
    at_ticks,
    iso,
    opened,
    stepped,
    store,
)
from workers.client.messages import Pages, Stream, select_items
from workers.dashboard.store import queries
from workers.dashboard.store.queries import (
    EpochsQuery,
    HistoryQuery,
    NotStored,
    Range,
    TickQuery,
)
from workers.dashboard.store.writing import Writer, compact, thin

pytestmark = pytest.mark.slow

ONE = Stream("products", "s1")
LIFE = making.life()
HOUR = 3_600_000
LABELS = ("item 0", "never shown", "item 5", "item 0")
Kept = tuple[duckdb.DuckDBPyConnection, Writer]


@pytest.fixture(scope="module", params=["as it came", "sorted", "half of it sorted"])
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Kept]:
    with opened(tmp_path_factory.mktemp("history") / "history.duckdb") as (
        database,
        writer,
    ):
        other = making.life("s2", seed=2)
        both = [document for pair in zip(LIFE, other, strict=True) for document in pair]
        half = len(both) // 2
        store(writer, both[:half])
        if request.param != "as it came":
            compact(database, 1, 1)
        store(writer, both[half:])
        if request.param == "sorted":
            compact(database, 1, 1)
        yield database, writer


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[Kept]:
    with opened(tmp_path / "history.duckdb") as found:
        yield found


def ask(
    database: duckdb.DuckDBPyConnection, reading: float | None = None, **question: Any
) -> dict[str, Any]:
    since = question.pop("since", None)
    until = question.pop("until", None)
    usual = {"stream": ONE, "range": Range(since, until), "limit": 10_000}
    asked = HistoryQuery(**{**usual, **question})
    found: dict[str, Any] = orjson.loads(queries.history(database, asked, reading))
    return found


def ends_of_epochs(
    database: duckdb.DuckDBPyConnection, **question: Any
) -> dict[str, Any]:
    asked = EpochsQuery(stream=ONE, **{"range": Range(), **question})
    found: dict[str, Any] = orjson.loads(queries.epochs(database, asked, None))
    return found


def one_tick(database: duckdb.DuckDBPyConnection, **question: Any) -> Any:
    return queries.one_tick(database, TickQuery(**{"stream": ONE, **question}))


def entries(
    documents: list[dict[str, Any]], labels: tuple[str, ...] = LABELS
) -> list[object]:
    return [entry(document, labels) for document in documents]


@cache
def lasts(since: int | None, until: int | None, step: int | None) -> list[object]:
    return entries(stepped(LIFE, since, until, step))


def entry(document: dict[str, Any], labels: tuple[str, ...]) -> dict[str, Any]:
    items = dict(document["items"])
    same = ("id", "epoch", "tick", "start", "end", "sd", "threshold")
    fields = {name: document[name] for name in same}
    fields |= {"end_time": iso(document["end"])}
    fields |= {"shown": len(items), "total": sum(items.values())}
    fields |= {"counts": [items.get(label) for label in labels]} if labels else {}
    return fields | {name: document[name] for name in ("windows",) if name in document}


@pytest.mark.parametrize("step", [None, 10_000, QUARTER_MS, HOUR, 4 * HOUR, HOUR - 1])
@pytest.mark.parametrize(
    "bounds",
    [
        (None, None),
        (BEGIN_MS, BEGIN_MS + HOUR),
        (BEGIN_MS + 12_345, None),
        (BEGIN_MS + QUARTER_MS, BEGIN_MS + 4 * HOUR),
        # A tick that is held, inside a quarter of an hour.
        (BEGIN_MS, BEGIN_MS + 2 * HOUR + QUARTER_MS // 2 + 1),
        (None, BEGIN_MS + 3 * HOUR - 1),
    ],
)
def test_an_answer_has_the_last_tick_of_each_step(
    kept: Kept, step: int | None, bounds: tuple[int | None, int | None]
) -> None:
    found = ask(kept[0], since=bounds[0], until=bounds[1], step=step, items=LABELS)
    assert found["entries"] == lasts(*bounds, step)
    assert found["items"] == list(LABELS)
    assert (found["complete"], found["more"]) == (True, False)
    assert (found["next"], found["reading"]) == (None, None)
    assert {one["id"][0] for one in found["series"]} == {
        one["id"][0] for one in found["entries"]
    }
    for one in found["series"]:
        assert (one["mechanism"], one["guarantee"]) == (
            "unk_base",
            LIFE[0]["guarantee"],
        )


def test_without_items_an_entry_has_no_counts(kept: Kept) -> None:
    found = ask(kept[0], step=HOUR)
    assert found["entries"] == entries(stepped(LIFE, None, None, HOUR), ())


@pytest.mark.parametrize("step", [None, HOUR, 700_000])
def test_an_answer_goes_on_where_it_was_cut(kept: Kept, step: int | None) -> None:
    wanted = ask(kept[0], step=step, items=LABELS, since=BEGIN_MS)["entries"]
    found: list[object] = []
    since: int | None = BEGIN_MS
    while since is not None:
        part = ask(
            kept[0], step=step, items=LABELS, since=since, limit=3 if step else 500
        )
        found += part["entries"]
        assert part["more"] == (part["next"] is not None)
        since = part["next"]
    assert found == wanted


def test_the_end_of_every_series_is_told_and_which_is_not_final(kept: Kept) -> None:
    ends = [LIFE[399], LIFE[999], LIFE[1129], LIFE[-1]]
    began = [LIFE[0], LIFE[400], LIFE[1000], LIFE[1130]]
    found = ends_of_epochs(kept[0])
    named = [(one["id"][0], one["epoch"], one["final"]) for one in found["epochs"]]
    assert named == [("a", 1, True), ("b", 2, True), ("c", 3, True), ("d", 3, False)]
    for snapshot, document, begin in zip(found["epochs"], ends, began, strict=True):
        total = sum(count for _, count in document["items"])
        more = {"total": total, "final": snapshot["final"], "began": begin["start"]}
        more |= {"end_time": iso(document["end"])}
        assert snapshot == document | more
    cut = ends_of_epochs(kept[0], top=2, limit=3)
    assert cut["more"]
    assert [one["items"] for one in cut["epochs"]] == [
        one["items"][:2] for one in ends[1:]
    ]
    assert all(one["total_items"] == 6 for one in cut["epochs"])
    picked = ends_of_epochs(
        kept[0], range=Range(until=LIFE[999]["end"]), items=["item 3"]
    )
    only = [[item for item in one["items"] if item[0] == "item 3"] for one in ends[:2]]
    assert [one["items"] for one in picked["epochs"]] == only


@pytest.mark.parametrize("place", [0, 1, 399, 400, 1_234, -1])
def test_one_tick_is_the_snapshot_of_the_topic(kept: Kept, place: int) -> None:
    document = LIFE[place]
    questions = [
        {"at": document["end"]},
        {"at": document["start"] + 1},
        {"epoch": document["epoch"], "tick": document["tick"]},
    ]
    for question in questions:
        items = [tuple(item) for item in document["items"]]
        found = one_tick(kept[0], id=document["id"], **question)
        assert found == (document | {"items": items}, {})


def test_of_two_series_at_one_time_the_newer_is_meant(kept: Kept) -> None:
    found, _ = one_tick(kept[0], at=LIFE[1_129]["end"])
    assert (found["id"][0], found["end"]) == ("d", LIFE[1_129]["end"])


def test_a_tick_that_is_not_there_is_never_replaced(kept: Kept) -> None:
    def nearest(**question: Any) -> list[tuple[int, int] | None]:
        found, near = one_tick(kept[0], **question)
        assert found is None
        both = (near[name] for name in ("before", "after"))
        return [one and (one["epoch"], one["tick"]) for one in both]

    assert nearest(at=BEGIN_MS) == [None, (1, 1)]
    assert nearest(at=LIFE[-1]["end"] + 1) == [(3, 700), None]
    assert nearest(epoch=2, tick=601) == [(2, 600), (3, 1)]
    assert nearest(epoch=1, tick=401, id="a" * 32) == [(1, 400), None]
    with pytest.raises(NotStored, match="no such key"):
        one_tick(kept[0], stream=Stream("products", "s3"), at=1)
    with pytest.raises(NotStored, match="no such key"):
        ask(kept[0], stream=Stream("product", "s1"))


@pytest.mark.parametrize(
    "keep",
    [
        (HOUR // 2, 2 * HOUR),
        (HOUR // 2, 40 * HOUR),
        (60_000, 60_000),
        (40 * HOUR, 40 * HOUR),
    ],
)
@pytest.mark.parametrize("settled", [False, True])
def test_what_is_thinned_leaves_the_last_of_each_quarter_and_epoch(
    empty: Kept, keep: tuple[int, int], settled: bool
) -> None:
    database, writer = empty
    for part in (LIFE[:1_200], LIFE[1_200:]):
        store(writer, part, batch=600)
        if settled:
            compact(database, 1, 1)
        thin(database, writer.ends, {"ticks": keep[0], "quarters": keep[1]})
    left = making.thinned(LIFE, *keep)
    found = ask(database, items=LABELS)
    assert found["entries"] == entries(stepped(left, None, None, None))
    assert found["kept"]["first"] == min(document["end"] for document in left)
    assert found["kept"]["last"] == LIFE[-1]["end"]
    whole_from = found["kept"]["ticks"]
    since, of_left = (
        [one for one in documents if one["end"] >= whole_from and one["id"][0] == "d"]
        for documents in (LIFE, left)
    )
    assert since == of_left
    finals = [one["items"] for one in ends_of_epochs(database)["epochs"]]
    assert finals == [LIFE[place]["items"] for place in (399, 999, 1129, -1)]
    if keep[1] > 20 * HOUR:
        found = ask(database, items=LABELS, step=HOUR)
        assert found["entries"] == lasts(None, None, HOUR)
    # The next writer continues: it knows the newest tick of each stream.
    newer = message(701, [("item 0", 1)], epoch=3, id="d" * 32, **at(1_761))
    assert store(Writer(database), [*LIFE[-3:], newer]) == 1


def test_a_stream_that_stands_still_keeps_its_newest_tick(empty: Kept) -> None:
    database, writer = empty
    store(writer, at_ticks(range(1, 11), "s1"))
    store(writer, at_ticks(range(1, 500), "s2"))
    thin(database, writer.ends, {"ticks": 60_000, "quarters": 60_000})
    assert [one["tick"] for one in ask(database)["entries"]] == [10]
    store(writer, at_ticks((11, 500), "s1"))
    thin(database, writer.ends, {"ticks": 60_000, "quarters": 3_600_000})
    assert [one["tick"] for one in ask(database)["entries"]] == [11, 500]


NUMBERS = [("[0,10)", 5), ("<0", -3), (">=10", 0)]
MEDIAN = {"q": 0.5, "bucket": "[0,10)", "value": 4.5, "low": None, "high": 5.0}
LARGE = 2**53 - 1
SMALL = -(2**53) + 1
TEXTS = [
    ("\0", LARGE),
    ("'; drop table labels; --", LARGE),
    ("", 3),
    ("é\U0001f600", SMALL),
]
ODD: list[dict[str, Any]] = [
    answer(1, query="quantile:0.5", value=7, since=1, error=3.5),
    answer(
        1,
        mechanism="two_level_k",
        answers=[{"query": "max", "value": 3}],
        since=0,
        error=1,
    ),
    answer(
        1, mechanism="pay_what_you_get", query="top", labels=["a", "b"], complete=True
    ),
    message(1, []),
    message(1, NUMBERS, edges=[0.0, 10.0], mechanism="known_base", quantiles=[MEDIAN]),
    message(1, TEXTS),
    message(
        1,
        [("a", 5), ("b", 3)],
        sums=[[7.5, 1.5, 0.25, 2.75], [3.0, None, 0.0, 4.0]],
        sum={"from": 0, "to": 4, "step": 0.5, "sd": 2.5},
        all_items={"count": 9, "sd": 3.5},
    ),
]
for number, document in enumerate(ODD, 1):
    document["id"] = str(number) * 32


@pytest.mark.parametrize("document", ODD, ids=lambda document: str(document["id"][0]))
def test_snapshots_of_every_kind_are_kept_as_they_are(
    empty: Kept, document: dict[str, Any]
) -> None:
    database, writer = empty
    # What came before must not decide what the columns are taken for.
    before = (message(tick, **at(tick)) for tick in range(1, 1_200))
    assert store(writer, [*before, document], batch=5_000) == 1_200
    found, _ = one_tick(database, at=document["end"], id=document["id"], top=10_000)
    total = len(document["items"]) if "items" in document else None
    assert found.pop("total_items", None) == total
    expected = dict(document)
    for one in (found, expected):
        if "items" in one:
            one["items"] = sorted(map(list, one["items"]))
    assert orjson.loads(orjson.dumps(found)) == expected
    last = ask(database, items=("[0,10)",))
    [entry] = [one for one in last["entries"] if one["id"] == document["id"]]
    assert ("counts" in entry) == ("items" in document)
    of_answers = {
        "query",
        "value",
        "since",
        "error",
        "answers",
        "labels",
        "complete",
    }
    rest = (of_answers | {"quantiles"}) & document.keys()
    assert {name: entry[name] for name in rest} == {
        name: document[name] for name in rest
    }
    [series] = [one for one in last["series"] if one["id"] == document["id"]]
    assert series.get("edges") == document.get("edges")


def test_sums_are_those_of_the_items_that_an_answer_holds(empty: Kept) -> None:
    """Beside a cut list of items they would be those of others."""
    document = ODD[-1]
    database, writer = empty
    store(writer, [document])
    questions: list[tuple[dict[str, Any], list[int]]]
    questions = [({"top": 1}, [0]), ({"items": ("b",)}, [1])]
    for asked, kept in questions:
        found, _ = one_tick(database, at=document["end"], **asked)
        for name in ("items", "sums"):
            assert [*map(list, found[name])] == [
                list(document[name][place]) for place in kept
            ]
    [entry] = ask(database, items=("c", "b"))["entries"]
    assert entry["sums"] == [None, document["sums"][1]]
    assert "sums" not in ask(database)["entries"][0]
    seen = Pages().receive("products", orjson.dumps(document))
    assert seen is not None
    cut = orjson.loads(select_items(seen, items={"b"}))
    assert (cut["items"], cut["sums"]) == ([["b", 3]], document["sums"][1:])


def test_what_a_bucket_histogram_shows_is_never_cut(empty: Kept) -> None:
    database, writer = empty
    store(writer, [ODD[4]])
    found, _ = one_tick(database, at=ODD[4]["end"], top=1)
    assert len(found["items"]) == 3


def test_an_answer_says_when_the_beginning_was_gone(empty: Kept) -> None:
    database, writer = empty
    writer.note_gap("products", 0)
    store(writer, at_ticks(range(5, 10)))
    writer.note_gap("products", 0)
    store(writer, at_ticks(range(20, 25)))

    def complete(
        since: int | None, until: int | None, reading: float | None = None
    ) -> bool:
        bounds = [tick and at(tick)["end"] for tick in (since, until)]
        return bool(
            ask(database, reading, since=bounds[0], until=bounds[1])["complete"]
        )

    assert not complete(None, None)
    assert not complete(None, 8)
    # Tick 5 of another key is the first that was read: that of this key may be gone.
    assert not complete(4, 8)
    assert complete(5, 8)
    assert not complete(5, 9)  # and tick 9 may have come for another key alone
    assert not complete(9, 20)
    assert not complete(19, None)
    assert complete(20, None)
    # in a stream ticks ascend: these will not come later
    assert complete(20, 24, reading=0.4)
    assert not complete(20, None, reading=0.4)


def test_when_a_series_began_is_said_only_where_its_first_tick_is_kept(
    empty: Kept,
) -> None:
    """A generation that begins within an epoch counts from there, not from the grid's beginning."""
    database, writer = empty

    def began() -> list[int | None]:
        return [one["began"] for one in ends_of_epochs(database)["epochs"]]

    store(writer, at_ticks(range(1, 5)))
    store(writer, at_ticks(range(5, 9), id="b" * 32))
    assert began() == [at(1)["start"], at(5)["start"]]
    writer.note_gap("products", 0)
    store(writer, at_ticks(range(20, 400), id="c" * 32))
    assert began() == [at(1)["start"], at(5)["start"], None]
    thin(database, writer.ends, {"ticks": 60_000, "quarters": 60_000})
    assert began() == [None, None, None]
