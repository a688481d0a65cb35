"""Queries on the history: a stream over time, its epochs, one tick, as JSON.

A stream is a histogram's snapshots for one stream key, a series the part of it that counts on from
one zero: an epoch. Levels are `ticks` (every tick), `quarters` (the last of each quarter of an
hour) and `epochs` (the last of each series); old ticks are removed from the first two. A head is a
tick's row without its counts. A place numbers a stored tick, in order of arrival. `kind` is "heads"
or "counts" (column `n`), which are in tables of their own, by level (`writing`).

Rows of a stream are removed from a level in the order of their places. So the first places that
remain in `ticks` and in `quarters` split the stream into one part per level, without overlap.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson

from workers.client.messages import Stream
from workers.client.tables import SUMS
from workers.dashboard.store.writing import QUARTER_MS, Database, first


class NotStored(Exception):
    """A key that was never shown; the client sees the message."""


class NotReadYet(Exception):
    """An answer without a tick, of a history that is still being read."""


class AnswerTooLarge(Exception):
    """A query whose answer would be too large; the client sees the message."""


class Range(NamedTuple):
    """Ticks with `since` < end <= `until`, ms; None: unbounded."""

    since: int | None = None
    until: int | None = None

    @property
    def where(self) -> str:
        """The SQL condition; it contains only integers."""
        bounds = [f"end_ms > {self.since}"] if self.since is not None else []
        bounds += [f"end_ms <= {self.until}"] if self.until is not None else []
        return " and ".join(bounds) or "true"


class StoredRange(NamedTuple):
    """Where a stream's ticks are stored, by level, and which times they cover.

    `stream` is its number, `part` its partition. `ticks_place` and `quarters_place` are the first
    places that remain in these levels, 0 if nothing was removed; `newest_place` is that of the
    newest tick, which is in `ticks` only. `first_ms` and `last_ms` are the oldest and newest `end`
    stored; `ticks_ms` and `quarters_ms` the `end` from which a level is complete.
    """

    stream: int
    part: int
    ticks_place: int
    quarters_place: int
    newest_place: int
    first_ms: int
    last_ms: int
    ticks_ms: int
    quarters_ms: int

    def every(self, kind: str) -> str:
        """Return as SQL, in parentheses, the rows of all stored ticks, each from one level."""
        selects = [self._rows("ticks", kind, f"place >= {self.ticks_place}")]
        if self.ticks_place:
            older = f"place >= {self.quarters_place} and place < {self.ticks_place}"
            selects += [self._rows("quarters", kind, older), self._epochs(kind)]
        return f"({' union all '.join(selects)})"

    def coarse(self, kind: str, until: int | None) -> str:
        """Return as SQL the rows of the last tick of each quarter of an hour.

        They are in `quarters`, the oldest in `epochs`, and the newest tick is in `ticks` only. Of
        the quarter in which `until` lies, it is the last tick that ends by then.
        """
        selects = [
            self._newest(kind),
            self._rows("quarters", kind, f"place >= {self.quarters_place}"),
        ]
        if self.quarters_place:
            selects.append(self._epochs(kind))
        if until is not None and until % QUARTER_MS:
            inside = f"stream = {self.stream} and end_ms > {until // QUARTER_MS * QUARTER_MS} and end_ms <= {until}"
            last = f"place = (select max(place) from ticks_heads_all where {inside})"
            # Not twice: it may be the last of its quarter, or the newest of all.
            selected = f"select place from quarters_heads_all where {inside}"
            condition = (
                f"{last} and place <> {self.newest_place} and place not in ({selected})"
            )
            selects.append(self._rows("ticks", kind, condition))
        return f"({' union all '.join(selects)})"

    def last(self, kind: str) -> str:
        """Return as SQL the rows of the last tick of each series."""
        return f"({self._rows('epochs', kind, 'true')} union all {self._newest(kind)})"

    def stepped(self, kind: str, span: Range, step: int | None) -> str:
        """Return as SQL rows among which is the last tick of every step of `step` ms in a span.

        None: all ticks. Steps of whole quarters of an hour need only the coarse rows.
        """
        # Steps begin at `since`: do all of them end with a quarter?
        since = span.since or 0
        aligned = (
            step is not None and step % QUARTER_MS == 0 and since % QUARTER_MS == 0
        )
        return self.coarse(kind, span.until) if aligned else self.every(kind)

    def _rows(self, level: str, kind: str, condition: str) -> str:
        return _rows(level, kind, self.stream, condition)

    def _newest(self, kind: str) -> str:
        """Return as SQL the rows of the newest tick."""
        return self._rows("ticks", kind, f"place = {self.newest_place}")

    def _epochs(self, kind: str) -> str:
        """Return as SQL the rows of `epochs` that are older than all in the finer levels."""
        return self._rows(
            "epochs", kind, f"place < {min(self.quarters_place, self.ticks_place)}"
        )

    @property
    def kept(self) -> dict[str, int]:
        """What answers state as `kept` (docs/api.md): ends of ticks, ms."""
        return {
            "first": self.first_ms,
            "last": self.last_ms,
            "ticks": self.ticks_ms,
            "hours": self.quarters_ms,
        }


def locate(cursor: Database, stream: Stream) -> StoredRange:
    """Return where a stream's ticks are stored; raise `NotStored` if it has none."""
    query = (
        "select stream, part, first_end_ms from streams where histogram = ? and key = ?"
    )
    row = first(cursor, query, [stream.histogram, stream.key])
    if row is None:
        raise NotStored("no such key in the history; /api/histograms lists the keys")
    number, part, first_ms = row
    kept = "select level, place from kept where stream = ?"
    places = dict(cursor.execute(kept, [number]).fetchall())
    ticks = places.get("ticks", 0)
    quarters = places.get("quarters", 0)
    # Two queries: the largest place is found without reading rows; then only its row is read.
    newest = first(
        cursor, f"select max(place) from ticks_heads_all where stream = {number}"
    )
    if newest is None or newest[0] is None:
        raise NotStored("the history has nothing of this key")
    last_ms = _end(cursor, "ticks", number, newest[0], first_ms)
    ticks_ms = _end(cursor, "ticks", number, ticks, first_ms)
    quarters_ms = _end(cursor, "quarters", number, quarters, first_ms)
    if ticks:
        # Ticks were removed: the oldest that is left may be in a coarser level.
        coarser = f"{_rows('quarters', 'heads', number, 'true')} union all {_rows('epochs', 'heads', number, 'true')}"
        oldest = first(cursor, f"select min(end_ms) from ({coarser})")
        first_ms = ticks_ms
        if oldest is not None and oldest[0] is not None:
            first_ms = min(oldest[0], ticks_ms)
    return StoredRange(
        stream=number,
        part=part,
        ticks_place=ticks,
        # From `ticks_place` on there is every tick: quarters count only before it.
        quarters_place=min(quarters, ticks),
        newest_place=newest[0],
        first_ms=first_ms,
        last_ms=last_ms,
        ticks_ms=ticks_ms,
        quarters_ms=min(quarters_ms, ticks_ms),
    )


def is_complete(
    cursor: Database,
    stored: StoredRange,
    query: HistoryQuery | EpochsQuery,
    reading: float | None,
    tick_count: int,
) -> bool:
    """Return whether an answer of `tick_count` ticks has all that its query's range ever had.

    `reading` is the share of the topics read so far, None once all are. Raise NotReadYet, rather
    than answer that there is nothing, while that is not certain.
    """
    end = query.range.until
    # A stream's ticks arrive in order: only those after its newest may still be read.
    may_come = reading is not None and (end is None or end > stored.last_ms)
    # Removed from the topic before they were read.
    lost = _lost(_gaps(cursor, query.stream, stored), query.range)
    if not tick_count and reading is not None and (may_come or lost):
        raise NotReadYet
    return not may_come and not lost


def _gaps(
    cursor: Database, stream: Stream, stored: StoredRange
) -> list[tuple[Any, ...]]:
    """Return (after, until), ms, of times in which records were removed before they were read.

    They are of all streams in the stream's partition; None: unbounded.
    """
    gaps = "select after_ms, until_ms from gaps where histogram = ? and part = ?"
    return cursor.execute(gaps, [stream.histogram, stored.part]).fetchall()


def _lost(gaps: Iterable[tuple[Any, ...]], span: Range) -> bool:
    """Return whether a gap, (after, until) in ms, overlaps a range, so that ticks may be lost.

    None is unbounded, in gaps and in the range.
    """
    begin, end = span
    return any(
        (until is None or begin is None or begin < until)
        and (after is None or end is None or end > after)
        for after, until in gaps
    )


def beginnings(
    cursor: Database, stream: Stream, stored: StoredRange, ids: Iterable[str]
) -> dict[str, int | None]:
    """Return when each series, by its `id`, began to count from zero, ms since 1970.

    None if its first tick may be missing. A series may begin within an epoch, with the worker or
    with a generation: so the number of its first tick need not be 1.
    """
    gaps = _gaps(cursor, stream, stored)
    rows = cursor.execute(
        "select id, min(start_ms), min(end_ms), min(tick) from series join "
        f"{stored.every('heads')} heads using (series) "
        "where id in (select unnest(?::varchar[])) group by id",
        [list(ids)],
    ).fetchall()
    begins: dict[str, int | None] = {}
    for series, start, end, tick in rows:
        # Beside tick 1, the oldest stored tick is the first of its series if one that ended at its
        # start would be stored: neither thinned out nor lost.
        unthinned = not stored.ticks_place or end > stored.ticks_ms
        sure = tick == 1 or (unthinned and not _lost(gaps, Range(start - 1, start)))
        begins[series] = start if sure else None
    return begins


def item_numbers(cursor: Database, labels: Iterable[str]) -> dict[str, int]:
    """Return the numbers by which labels are stored; unknown labels are left out."""
    with_numbers = (
        "select label, item from labels where label in (select unnest(?::varchar[]))"
    )
    return dict(cursor.execute(with_numbers, [list(labels)]).fetchall())


def series_of(cursor: Database, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the fields that all snapshots of a series share, for each series by its number."""
    names = ("id", "epoch", "mechanism", "guarantee", "edges")
    sql = f"select series, {', '.join(names)} from series where series in (select unnest(?::integer[]))"
    fields_of = {}
    for series, *values in cursor.execute(sql, [sorted(set(numbers))]).fetchall():
        fields_of[series] = fields = dict(zip(names, values, strict=True))
        for name in ("guarantee", "edges"):
            fields[name] = orjson.loads(fields[name] or "null")
        if fields["edges"] is None:
            del fields["edges"]
    return fields_of


def register_chosen(cursor: Database, places: Sequence[int]) -> str:
    """Register the table `chosen` of places, for joins; return a condition that they all meet.

    It is for the same query: DuckDB reads only the blocks of a table in that range of places.
    """
    cursor.register("chosen", {"place": np.array(places, np.int64)})
    return f"place between {min(places, default=0)} and {max(places, default=0)}"


def _rows(level: str, kind: str, stream: int, condition: str) -> str:
    """Return as SQL the rows of a stream in a level for which a condition holds."""
    return f"select * from {level}_{kind}_all where stream = {stream} and {condition}"


def _end(cursor: Database, level: str, stream: int, place: int, first_ms: int) -> int:
    """Return the end, ms, of the tick at a place; `first_ms` for place 0, or if it is not there."""
    query = f"select end_ms from {level}_heads_all where stream = {stream} and place = {place}"
    row = first(cursor, query) if place else None
    return first_ms if row is None else int(row[0])


COUNTS_MAX = 1_000_000


class Head(NamedTuple):
    """A tick's row without its counts; `rest` is JSON of the snapshot's fields without a column.

    `series` is the number of its series. `shown` is how many items it has, None for mechanisms that
    publish no items; `total` is the sum of their counts.
    """

    place: int
    series: int
    tick: int
    start_ms: int
    end_ms: int
    sd: float | None
    threshold: float | None
    shown: int | None
    total: int | None
    rest: str

    @property
    def further(self) -> dict[str, Any]:
        """The fields of the snapshot that have no column."""
        fields: dict[str, Any] = orjson.loads(self.rest or "{}")
        return fields


_HEAD = ", ".join(Head._fields)
_SUMS = ", ".join(f'"{name}"' for name in SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamQuery:
    """A query about one stream; `items` are the labels wanted, empty: all."""

    stream: Stream
    items: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery(_StreamQuery):
    """A stream over time: the last tick of every step of `step` ms; None: every stored tick."""

    range: Range
    step: int | None = None
    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsQuery(_StreamQuery):
    """The last tick of each of the newest `limit` epochs in a range.

    Of each tick the `top` largest items are listed, None: all.
    """

    range: Range
    top: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TickQuery(_StreamQuery):
    """One tick: that which contains the time `at` (ms), or else number `tick` of an `epoch`.

    `id` names a series that it must be of, None: any. Its `top` largest items are listed, None:
    all.
    """

    at: int | None = None
    epoch: int | None = None
    tick: int | None = None
    id: str | None = None
    top: int | None = None


def iso(ms: int) -> str:
    """Return a time in UTC, as files have it, also beyond the year 9999."""
    return f"{np.datetime64(ms, 'ms')}Z"


def heads_of(
    cursor: Database, source: str, values: Sequence[object] = ()
) -> list[Head]:
    """Return heads; `source` is the SQL after `from`, with all conditions, and `values` are its."""
    rows = cursor.execute(f"select {_HEAD} from {source}", list(values)).fetchall()
    return [Head(*row) for row in rows]


def history(cursor: Database, query: HistoryQuery, reading: float | None) -> bytes:
    """Return the answer to /api/history as JSON: a query's ticks, each with its items' counts.

    `reading` is the share of the topics read so far, None once all are. Raises `NotStored`,
    `NotReadYet`, or `AnswerTooLarge` above `COUNTS_MAX` counts.
    """
    stored = locate(cursor, query.stream)
    heads = heads_of(
        cursor,
        f"({heads_of_history(stored, query)}) order by end_ms, place limit {query.limit + 1}",
    )
    # One more than the limit was asked for.
    more = len(heads) > query.limit
    heads = heads[: query.limit]
    complete = is_complete(cursor, stored, query, reading, len(heads))
    if len(heads) * len(query.items) > COUNTS_MAX:
        raise AnswerTooLarge(
            f"{len(heads):,} entries of {len(query.items)} items: at most {COUNTS_MAX:,} counts; take a longer step"
        )
    shown = _matrix(cursor, stored, heads, query)
    series = series_of(cursor, (head.series for head in heads))
    entries = [
        _entry(head, series[head.series], query.items, row)
        for head, row in zip(heads, shown, strict=True)
    ]
    return orjson.dumps(
        {
            **query.stream._asdict(),
            "from": query.range.since,
            "to": query.range.until,
            "step": query.step,
            "items": list(query.items),
            "complete": complete,
            "reading": reading,
            "more": more,
            "next": _next(heads[-1].end_ms, query) if more else None,
            "kept": stored.kept,
            "series": list(series.values()),
            "entries": entries,
        }
    )


def epochs(cursor: Database, query: EpochsQuery, reading: float | None) -> bytes:
    """Return the answer to /api/epochs, JSON with the last stored snapshot of each epoch.

    `reading` is the share of the topics read so far, None once all are. Raises as `history`.
    """
    stored = locate(cursor, query.stream)
    rows = f"({heads_of_epochs(stored, query)}) order by end_ms desc, place desc limit {query.limit + 1}"
    heads = heads_of(cursor, rows)
    more = len(heads) > query.limit
    heads = heads[: query.limit][::-1]  # the oldest first
    snapshots = _snapshots(cursor, stored.last("counts"), heads, query)
    began = beginnings(
        cursor, query.stream, stored, {snapshot["id"] for snapshot in snapshots}
    )
    for head, snapshot in zip(heads, snapshots, strict=True):
        # An epoch is over unless its tick is the stream's newest.
        snapshot |= {"total": head.total, "final": head.place != stored.newest_place}
        snapshot |= {"began": began.get(snapshot["id"]), "end_time": iso(head.end_ms)}
    complete = is_complete(cursor, stored, query, reading, len(heads))
    about = {
        "complete": complete,
        "reading": reading,
        "kept": stored.kept,
        "more": more,
    }
    return orjson.dumps({"epochs": snapshots} | about)


def one_tick(
    cursor: Database, query: TickQuery
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return (snapshot, {}) of a tick, or (None, neighbours) if it is not stored.

    Neighbours are the nearest stored ticks, "before" and "after". Raises as `history`.
    """
    stored = locate(cursor, query.stream)
    in_series = "true"
    values: list[object] = []
    if query.id is not None:
        in_series = "series in (select series from series where id = ?)"
        values = [query.id]
    heads = stored.every("heads")
    # Ticks are in the order of `position`; `target` is that of the tick which is asked for.
    if query.at is not None:
        matches = f"start_ms < {query.at} and end_ms >= {query.at}"
        position = "end_ms"
        target = f"{query.at}"
    else:
        position = "(epoch, tick)"
        target = f"({query.epoch}, {query.tick})"
        matches = f"epoch = {query.epoch} and tick = {query.tick}"
        heads = f"(select heads.*, series.epoch from {heads} heads join series using (series))"
    found = heads_of(
        cursor,
        f"{heads} where {matches} and {in_series} order by place desc limit 1",
        values,
    )
    if found:
        return _snapshots(cursor, stored.every("counts"), found, query)[0], {}
    nearest: dict[str, Any] = {}
    for name, sign, direction in (("before", "<", "desc"), ("after", ">", "asc")):
        source = (
            f"{heads} where {position} {sign} {target} and {in_series} "
            f"order by {position} {direction}, place {direction} limit 1"
        )
        nearest[name] = None
        for head in heads_of(cursor, source, values):
            common = series_of(cursor, [head.series])[head.series]
            about = {"id": common["id"], "epoch": common["epoch"]}
            nearest[name] = about | {"tick": head.tick, "end": head.end_ms}
    return None, nearest


def heads_of_history(stored: StoredRange, query: HistoryQuery) -> str:
    """Return the heads of a query's ticks as SQL; with a step, the last tick of every step."""
    # Steps begin at the beginning of the range, ms.
    origin = query.range.since or 0
    heads = f"select * from {stored.stepped('heads', query.range, query.step)} where {query.range.where}"
    if query.step is None:
        return heads
    # A tick that ends with a step belongs to it, not to the next one: hence - 1.
    last = f"select max(place) as place from ({heads}) group by (end_ms - 1 - {origin}) // {query.step}"
    return f"select * from ({heads}) semi join ({last}) using (place)"


def heads_of_epochs(stored: StoredRange, query: EpochsQuery) -> str:
    """Return as SQL the head of the last tick of each epoch in a query's range."""
    # `epochs` got a tick whenever another series came: several of a series that then went on.
    newest = f"select *, max(place) over (partition by series) as newest from {stored.last('heads')}"
    return f"select * exclude newest from ({newest}) where place = newest and {query.range.where}"


def _entry(
    head: Head,
    common: Mapping[str, Any],
    items: Sequence[str],
    shown: list[_Row | None],
) -> dict[str, Any]:
    """Return a tick of an answer to /api/history.

    `common` are the fields of its series; `shown` has what it shows of each of the `items` asked
    for, None if it does not show one.
    """
    entry = {"id": common["id"], "epoch": common["epoch"], "tick": head.tick}
    entry |= {"start": head.start_ms, "end": head.end_ms, "end_time": iso(head.end_ms)}
    entry |= {"sd": head.sd}
    entry |= {"threshold": head.threshold, "shown": head.shown, "total": head.total}
    if items and head.shown is not None:
        entry["counts"] = [None if row is None else row.n for row in shown]
    further = head.further
    entry |= further
    if items and "sum" in further:
        entry["sums"] = [None if row is None else row.sums for row in shown]
    return entry


class _Row(NamedTuple):
    """What a tick shows of an item: its count `n`, and its sum, mean and interval (`SUMS`).

    These are None for a histogram without sums.
    """

    n: int
    sums: tuple[float | None, ...]


def _matrix(
    cursor: Database, stored: StoredRange, heads: Sequence[Head], query: HistoryQuery
) -> list[list[_Row | None]]:
    """Return a row for each head, with an entry for each item of the query; None: not shown."""
    numbers = item_numbers(cursor, query.items)
    matrix: list[list[_Row | None]] = [[None] * len(query.items) for _ in heads]
    if not numbers or not heads:
        return matrix
    places = [head.place for head in heads]
    in_range = register_chosen(cursor, places)
    rows = cursor.execute(
        f"select place, item, n, {_SUMS} from {stored.stepped('counts', query.range, query.step)} "
        f"semi join chosen using (place) where {in_range} and item in ({', '.join(map(str, numbers.values()))})"
    ).fetchall()
    row_of = {place: row for row, place in enumerate(places)}
    # Of each item, by its number: a query may name one twice.
    columns: dict[int, list[int]] = {}
    for column, label in enumerate(query.items):
        if label in numbers:
            columns.setdefault(numbers[label], []).append(column)
    for place, item, count, *sums in rows:
        for column in columns[item]:
            matrix[row_of[place]][column] = _Row(count, tuple(sums))
    return matrix


def _snapshots(
    cursor: Database,
    counts: str,
    heads: Sequence[Head],
    query: EpochsQuery | TickQuery,
) -> list[dict[str, Any]]:
    """Return the snapshots of ticks as in the topic, with the items that a query asks for.

    `counts` is the SQL of the rows to take these from. Where items may have been cut, `total_items`
    is added.
    """
    series = series_of(cursor, (head.series for head in heads))
    cut = query.top is not None or bool(query.items)
    in_range = register_chosen(cursor, [head.place for head in heads])
    is_wanted = "true"
    if query.items:
        numbers = item_numbers(cursor, query.items).values()
        is_wanted = f"item in ({', '.join(map(str, numbers)) or 'null'})"
    # Histograms of numbers keep all their buckets.
    whole = [
        head.place
        for head in heads
        if not query.items and "edges" in series[head.series]
    ]
    cursor.register("whole", {"place": np.array(whole, np.int64)})
    largest = ""
    if query.top is not None:
        rank = "row_number() over (partition by place order by n desc, label)"
        largest = f"qualify {rank} <= {query.top} or place in (select place from whole)"
    rows = cursor.execute(
        f"select place, label, n, {_SUMS} from {counts} semi join chosen using (place) join labels using (item) "
        f"where {in_range} and {is_wanted} {largest} order by place, n desc, label limit {COUNTS_MAX + 1}"
    ).fetchall()
    if len(rows) > COUNTS_MAX:
        raise AnswerTooLarge(
            f"more than {COUNTS_MAX:,} counts: ask for the largest with `top`, or for fewer with `item` or `limit`"
        )
    items: dict[int, list[tuple[str, _Row]]] = {head.place: [] for head in heads}
    for place, label, count, *sums in rows:
        items[place].append((label, _Row(count, tuple(sums))))
    return [
        snapshot_of(query.stream, head, series[head.series], items[head.place], cut)
        for head in heads
    ]


def snapshot_of(
    stream: Stream,
    head: Head,
    common: Mapping[str, Any],
    items: Sequence[tuple[str, _Row]] = (),
    cut: bool = False,
) -> dict[str, Any]:
    """Return a stored tick with the fields that its snapshot had in the topic.

    `common` are those of its series, `items` the labels to list with their rows. `cut`: some may
    have been left out, so `total_items` says how many there are.
    """
    fields: dict[str, Any] = {
        **stream._asdict(),
        "epoch": common["epoch"],
        "tick": head.tick,
    }
    fields |= {"start": head.start_ms, "end": head.end_ms}
    if head.shown is not None:
        fields["items"] = [(label, row.n) for label, row in items]
    if "edges" in common:
        fields["edges"] = common["edges"]
    fields |= head.further
    if "sum" in fields and all(row.sums[0] is not None for _, row in items):
        fields["sums"] = [row.sums for _, row in items]
    fields |= {"sd": head.sd, "threshold": head.threshold}
    fields |= {name: common[name] for name in ("guarantee", "mechanism", "id")}
    fields |= {"page": 1, "pages": 1}
    if cut and head.shown is not None:
        fields["total_items"] = head.shown
    return fields


def _next(end_ms: int, query: HistoryQuery) -> int:
    """Return the `from` of the next page, ms, after one whose last tick ends at `end_ms`.

    With a step, that is the end of the step in which the tick is.
    """
    if query.step is None:
        return end_ms
    origin = query.range.since or 0
    # How many steps there are up to and including that one: rounded up.
    steps = -((origin - end_ms) // query.step)
    return origin + steps * query.step
