"""A made-up history, and the expected answers computed from its snapshots in plain Python."""

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb

from tests.dashboard.feeding import GONE, START_MS, TICK_MS, Document, message, seen
from workers.dashboard.store.writing import Arrival, Position, Writer, connect

QUARTER_MS = 900_000
#: An hour ends here: what follows does not depend on where in one it begins.
BEGIN_MS = START_MS // 3_600_000 * 3_600_000


def at(tick: int, begin_ms: int = BEGIN_MS) -> Document:
    return {"start": begin_ms + (tick - 1) * TICK_MS, "end": begin_ms + tick * TICK_MS}


def iso(ms: int) -> str:
    whole = datetime.fromtimestamp(ms // 1000, UTC)
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{ms % 1000:03}Z"


def at_ticks(ticks: Iterable[int], *keys: str, **changes: Any) -> list[Document]:
    return [
        message(tick, key=key, **at(tick), **changes)
        for tick in ticks
        for key in keys or ("s1",)
    ]


def store(
    writer: Writer, documents: Sequence[Document], batch: int = 97, part: int = 0
) -> int:
    """Writes documents in batches, as they would come; returns how many were new."""
    new = 0
    for start in range(0, len(documents), batch):
        piece = [
            Arrival(part, seen(document))
            for document in documents[start : start + batch]
        ]
        new += writer.write(
            piece, {("topic", part): Position("id", start + len(piece))}
        )
    return new


@contextmanager
def opened(path: Path) -> Iterator[tuple[duckdb.DuckDBPyConnection, Writer]]:
    database = connect(path)
    try:
        yield database, Writer(database)
    finally:
        database.close()


def life(key: str = "s1", seed: int = 1) -> list[Document]:
    """Three epochs, a generation that begins a little earlier, and snapshots of every kind between them; 1,830 ticks, five hours."""
    draw = random.Random(seed)
    found = []
    tick_of_all = 0
    lives = [
        (1, 400, 0, "a"),
        (2, 600, 400, "b"),
        (3, 130, 1_000, "c"),
        (3, 700, 1_060, "d"),
    ]
    for epoch, ticks, begin, series in lives:
        for tick in range(1, ticks + 1):
            tick_of_all += 1
            items = [
                (f"item {i}", 10 * tick * (i + 1) + draw.randrange(-400, 400))
                for i in range(6)
                if tick > 20 * i
            ]
            items.sort(key=lambda item: (-item[1], item[0]))
            windows = [{"ms": 60_000, "ticks": 6, "sd": 3.5 + tick % 2}]
            own = {"key": key, "epoch": epoch, "id": series * 32} | at(begin + tick)
            own |= {"sd": 17.25 + tick % 3, "threshold": 100.0 + tick % 7}
            own["windows"] = windows if series == "b" else GONE
            found.append(message(tick, items, **own))
    return found


def stepped(
    documents: Sequence[Document],
    since: int | None,
    until: int | None,
    step: int | None,
) -> list[Document]:
    """The last of each step, in the order of time: what an answer must hold."""
    chosen: dict[int, tuple[int, int, Document]] = {}
    for place, document in enumerate(documents):
        end = document["end"]
        if (since is None or end > since) and (until is None or end <= until):
            number = place if step is None else (end - 1 - (since or 0)) // step
            chosen[number] = end, place, document
    return [
        document for _, _, document in sorted(chosen.values(), key=lambda one: one[:2])
    ]


def thinned(
    documents: Sequence[Document], keep_ticks: int, keep_hours: int
) -> list[Document]:
    """Those of one stream that are left: all of a time, the last of each quarter of an hour before it, of each series before that."""
    newest = max(document["end"] for document in documents)
    series = [document["id"] for document in documents] + [None]
    quarters = [(one["id"], (one["end"] - 1) // QUARTER_MS) for one in documents] + [
        None
    ]
    last = len(documents) - 1

    def first(keep: int, among: Sequence[int]) -> int:
        kept = (place for place in among if documents[place]["end"] > newest - keep)
        return next(kept, among[-1])

    of_quarters = [
        place for place in range(last) if quarters[place] != quarters[place + 1]
    ]
    ticks_from = first(keep_ticks, range(last + 1))
    quarters_from = first(keep_hours, of_quarters)
    return [
        document
        for place, document in enumerate(documents)
        if place >= ticks_from
        or (place in of_quarters and place >= quarters_from)
        or (place != last and series[place] != series[place + 1])
    ]
