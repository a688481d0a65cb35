"""What the questions share: which rows of which level hold a stream's ticks.

Rows of a stream are removed from a level in the order of their places. So with the first place that
is left in `ticks` and in `quarters`, each level answers for its own part of the stream, and no tick
is found twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import duckdb
import numpy as np
import orjson

from workers.dashboard.snapshots import Stream
from workers.dashboard.store.schema import QUARTER_MS, first


class Unknown(Exception):
    """Nothing was ever shown for this key; its asker is shown the text."""


class TooMuch(Exception):
    """A question whose answer would be too large; its asker is shown the text."""


class Range(NamedTuple):
    """Ticks with `since` < end <= `until`, ms; None: without that bound."""

    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> str:
        """The condition, for SQL: whole numbers only."""
        bounds = [f"end_ms > {self.since}"] if self.since is not None else []
        bounds += [f"end_ms <= {self.until}"] if self.until is not None else []
        return " and ".join(bounds) or "true"


class Held(NamedTuple):
    """Where the ticks of a stream are; a place is 0 where nothing was removed from a level.

    Attributes:
        newest: place of the newest tick, which is in `ticks` alone.
        first_ms, last_ms: `end` of the oldest tick that is kept, and of the newest.
        ticks_ms, quarters_ms: `end` of the first tick since which all are kept, or those of the
            level.
    """

    stream: int
    part: int
    ticks: int
    quarters: int
    newest: int
    first_ms: int
    last_ms: int
    ticks_ms: int
    quarters_ms: int

    def every(self, kind: str) -> str:
        """Return the rows of all ticks that are kept, as SQL in brackets."""
        parts = [_rows("ticks", kind, self.stream, f"place >= {self.ticks}")]
        if self.ticks:
            parts.append(_rows("quarters", kind, self.stream, f"place >= {self.quarters} and place < {self.ticks}"))
            parts.append(self._epochs(kind))
        return f"({' union all '.join(parts)})"

    def coarse(self, kind: str) -> str:
        """Return the rows of the last tick of each quarter of an hour, as SQL in brackets."""
        parts = [
            _rows("ticks", kind, self.stream, f"place = {self.newest}"),
            _rows("quarters", kind, self.stream, f"place >= {self.quarters}"),
        ]
        if self.quarters:
            parts.append(self._epochs(kind))
        return f"({' union all '.join(parts)})"

    def last(self, kind: str) -> str:
        """Return the rows of the last tick of each series, as SQL in brackets."""
        newest = _rows("ticks", kind, self.stream, f"place = {self.newest}")
        return f"({_rows('epochs', kind, self.stream, 'true')} union all {newest})"

    def stepped(self, kind: str, since: int, step: int | None) -> str:
        """Return the rows among which the last tick of each step is."""
        aligned = step is not None and step % QUARTER_MS == 0 and since % QUARTER_MS == 0
        return self.coarse(kind) if aligned else self.every(kind)

    def _epochs(self, kind: str) -> str:
        before = min(self.quarters, self.ticks)
        return _rows("epochs", kind, self.stream, f"place < {before}")

    @property
    def kept(self) -> dict[str, int]:
        """What is kept, for an answer."""
        return {"first": self.first_ms, "last": self.last_ms, "ticks": self.ticks_ms, "hours": self.quarters_ms}


def held(cursor: duckdb.DuckDBPyConnection, stream: Stream) -> Held:
    """Return where the ticks of a stream are.

    Raises:
        Unknown: there are none.
    """
    found = first(
        cursor,
        "select stream, part, first_end_ms from streams where histogram = ? and key = ?", [stream.histogram, stream.key]
    )
    if found is None:
        raise Unknown("no such key: nothing is kept of it; /api/histograms lists the keys")
    number, part, first_ms = found
    places = dict(cursor.execute("select level, place from kept where stream = ?", [number]).fetchall())
    ticks, quarters = places.get("ticks", 0), places.get("quarters", 0)
    # Two questions: the largest place is found without reading the rows, and then only its row is.
    newest = first(cursor, f"select max(place) from ticks_heads_all where stream = {number}")
    if newest is None or newest[0] is None:
        raise Unknown("nothing is kept of this key")
    last_ms = _end(cursor, "ticks", number, newest[0], first_ms)
    ticks_ms = _end(cursor, "ticks", number, ticks, first_ms)
    quarters_ms = _end(cursor, "quarters", number, quarters, first_ms)
    if ticks:
        thinned = f"{_rows('quarters', 'heads', number, 'true')} union all {_rows('epochs', 'heads', number, 'true')}"
        oldest = first(cursor, f"select min(end_ms) from ({thinned})")
        first_ms = ticks_ms if oldest is None or oldest[0] is None else min(oldest[0], ticks_ms)
    return Held(number, part, ticks, min(quarters, ticks), newest[0], first_ms, last_ms, ticks_ms, min(quarters_ms, ticks_ms))


def is_complete(
    cursor: duckdb.DuckDBPyConnection, stream: Stream, where: Held, asked: Range, reading: float | None
) -> bool:
    """Return whether no tick of a range was removed from the topic unread, or is yet to be read.

    Within a stream ticks come in their order: up to the newest, nothing is unread.
    """
    if reading is not None and (asked.until is None or asked.until > where.last_ms):
        return False
    gaps = cursor.execute(
        "select after_ms, until_ms from gaps where histogram = ? and part = ?", [stream.histogram, where.part]
    ).fetchall()
    return not any(
        (until is None or asked.since is None or asked.since < until)
        and (after is None or asked.until is None or asked.until > after)
        for after, until in gaps
    )


def item_numbers(cursor: duckdb.DuckDBPyConnection, labels: Iterable[str]) -> dict[str, int]:
    """Return the numbers of those labels that were ever shown."""
    sought = list(labels)
    if not sought:
        return {}
    with_numbers = "select label, item from labels where label in (select unnest(?::varchar[]))"
    return dict(cursor.execute(with_numbers, [sought]).fetchall())


def series_of(cursor: duckdb.DuckDBPyConnection, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return what the ticks of each of these series have in common."""
    found = {}
    for series, *texts in cursor.execute(
        "select series, id, epoch, mechanism, guarantee, edges from series where series in (select unnest(?::integer[]))",
        [sorted(set(numbers))],
    ).fetchall():
        identity, epoch, mechanism, guarantee, edges = texts
        fields = {"id": identity, "epoch": epoch, "mechanism": mechanism, "guarantee": orjson.loads(guarantee)}
        found[series] = fields | ({"edges": orjson.loads(edges)} if edges else {})
    return found


def chosen(cursor: duckdb.DuckDBPyConnection, places: Sequence[int]) -> str:
    """Make the table `chosen` of some places; return a condition that narrows a search for them."""
    cursor.register("chosen", {"place": np.array(places, np.int64)})
    return f"place between {min(places, default=0)} and {max(places, default=0)}"


def _rows(level: str, kind: str, stream: int, which: str) -> str:
    return f"select * from {level}_{kind}_all where stream = {stream} and {which}"


def _end(cursor: duckdb.DuckDBPyConnection, level: str, stream: int, place: int, first_ms: int) -> int:
    if not place:
        return first_ms
    found = first(cursor, f"select end_ms from {level}_heads_all where stream = {stream} and place = {place}")
    return first_ms if found is None else int(found[0])
