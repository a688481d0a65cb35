"""Queries on the history: a stream over time, its epochs, one tick, as JSON.

Rows of a stream are removed from a level in the order of their places. So the first places that
remain in `ticks` and in `quarters` split the stream into one part per level, without overlap.

A stream is a histogram's snapshots for one stream key, a series the part of it that counts on from
one zero: an epoch. Levels are `ticks` (every tick), `quarters` (the last of each quarter of an
hour) and `epochs` (the last of each series); old ticks are removed from the first two. A head is a
tick's row without its counts. A place numbers a stored tick. `kind` is "heads" or "counts", which
are in tables of their own (`writing`).
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

    `stream` is its number, `part` its partition. `ticks` and `quarters` are the first places that
    remain in these levels, 0 if nothing was removed; `newest` is the place of the newest tick,
    which is in `ticks` only. `first_ms` and `last_ms` are the oldest and newest `end` stored;
    `ticks_ms` and `quarters_ms` the `end` from which a level is complete.
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
        """Return the rows of all stored ticks, as SQL in parentheses."""
        parts = [self._rows("ticks", kind, f"place >= {self.ticks}")]
        if self.ticks:
            older = f"place >= {self.quarters} and place < {self.ticks}"
            parts += [self._rows("quarters", kind, older), self._epochs(kind)]
        return f"({' union all '.join(parts)})"

    def coarse(self, kind: str, until: int | None) -> str:
        """Return as SQL the rows of the last tick of each quarter of an hour.

        Of the quarter in which `until` lies, it is the last tick that ends by then.
        """
        parts = [
            self._newest(kind),
            self._rows("quarters", kind, f"place >= {self.quarters}"),
        ]
        if self.quarters:
            parts.append(self._epochs(kind))
        if until is not None and until % QUARTER_MS:
            inside = f"stream = {self.stream} and end_ms > {until // QUARTER_MS * QUARTER_MS} and end_ms <= {until}"
            last = f"place = (select max(place) from ticks_heads_all where {inside})"
            # It may be the last of its quarter, or the newest of all.
            known = f"select place from quarters_heads_all where {inside}"
            which = f"{last} and place <> {self.newest} and place not in ({known})"
            parts.append(self._rows("ticks", kind, which))
        return f"({' union all '.join(parts)})"

    def last(self, kind: str) -> str:
        """Return as SQL the rows of the last tick of each series."""
        return f"({self._rows('epochs', kind, 'true')} union all {self._newest(kind)})"

    def stepped(self, kind: str, span: Range, step: int | None) -> str:
        """Return as SQL rows that include the last tick of every step of `step` ms in a span.

        Steps of whole quarters of an hour need only the coarse rows.
        """
        since = span.since or 0
        aligned = (
            step is not None and step % QUARTER_MS == 0 and since % QUARTER_MS == 0
        )
        return self.coarse(kind, span.until) if aligned else self.every(kind)

    def _rows(self, level: str, kind: str, which: str) -> str:
        return _rows(level, kind, self.stream, which)

    def _newest(self, kind: str) -> str:
        """Return as SQL the rows of the newest tick."""
        return self._rows("ticks", kind, f"place = {self.newest}")

    def _epochs(self, kind: str) -> str:
        """Return as SQL the rows older than what is left in the finer levels."""
        return self._rows("epochs", kind, f"place < {min(self.quarters, self.ticks)}")

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
    """Return the location of a stream's ticks; raise `NotStored` if it has none."""
    row = (
        "select stream, part, first_end_ms from streams where histogram = ? and key = ?"
    )
    stored = first(cursor, row, [stream.histogram, stream.key])
    if stored is None:
        raise NotStored("no such key in the history; /api/histograms lists the keys")
    number, part, first_ms = stored
    kept = cursor.execute(
        "select level, place from kept where stream = ?", [number]
    ).fetchall()
    ticks, quarters = (dict(kept).get(level, 0) for level in ("ticks", "quarters"))
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
        # The first tick may be gone: the oldest that is left is in a coarser level.
        thinned = f"{_rows('quarters', 'heads', number, 'true')} union all {_rows('epochs', 'heads', number, 'true')}"
        oldest = first(cursor, f"select min(end_ms) from ({thinned})")
        first_ms = ticks_ms
        if oldest is not None and oldest[0] is not None:
            first_ms = min(oldest[0], ticks_ms)
    return StoredRange(
        stream=number,
        part=part,
        ticks=ticks,
        # Quarters of ticks that are all there are not needed.
        quarters=min(quarters, ticks),
        newest=newest[0],
        first_ms=first_ms,
        last_ms=last_ms,
        ticks_ms=ticks_ms,
        quarters_ms=min(quarters_ms, ticks_ms),
    )


def is_complete(
    cursor: Database,
    where: StoredRange,
    query: HistoryQuery | EpochsQuery,
    reading: float | None,
    ticks: int,
) -> bool:
    """Return whether all ticks of a range were read: a stream's ticks arrive in order.

    `reading` is the share of the topics read so far, None once all are; `ticks` how many ticks the
    answer has. NotReadYet if it has none, and some may still come.
    """
    end = query.range.until
    may_come = reading is not None and (end is None or end > where.last_ms)
    lost = _lost(_gaps(cursor, query.stream, where), query.range)
    if not ticks and reading is not None and (may_come or lost):
        raise NotReadYet
    return not may_come and not lost


def _gaps(
    cursor: Database, stream: Stream, where: StoredRange
) -> list[tuple[Any, ...]]:
    """Return (after, until), ms, of times in which records were removed before they were read."""
    gaps = "select after_ms, until_ms from gaps where histogram = ? and part = ?"
    return cursor.execute(gaps, [stream.histogram, where.part]).fetchall()


def _lost(gaps: Iterable[tuple[Any, ...]], span: Range) -> bool:
    """Return whether a gap, (after, until) in ms, overlaps a range, so that ticks may be lost."""
    begin, end = span
    # None is unbounded.
    return any(
        (until is None or begin is None or begin < until)
        and (after is None or end is None or end > after)
        for after, until in gaps
    )


def beginnings(
    cursor: Database, stream: Stream, where: StoredRange, ids: Iterable[str]
) -> dict[str, int | None]:
    """Return when each series began to count from zero: None if its first tick may be missing.

    A series may begin within an epoch, with the worker or with a generation.
    """
    gaps = _gaps(cursor, stream, where)
    rows = cursor.execute(
        "select id, min(start_ms), min(end_ms), min(tick) from series join "
        f"{where.every('heads')} heads using (series) "
        "where id in (select unnest(?::varchar[])) group by id",
        [list(ids)],
    ).fetchall()
    begins: dict[str, int | None] = {}
    for series, start, end, tick in rows:
        # The tick that ends at `start`, had there been one, would be kept.
        kept = not where.ticks or end > where.ticks_ms
        sure = tick == 1 or (kept and not _lost(gaps, Range(start - 1, start)))
        begins[series] = start if sure else None
    return begins


def item_numbers(cursor: Database, labels: Iterable[str]) -> dict[str, int]:
    """Return the numbers by which labels are stored; unknown labels are left out."""
    with_numbers = (
        "select label, item from labels where label in (select unnest(?::varchar[]))"
    )
    return dict(cursor.execute(with_numbers, [list(labels)]).fetchall())


def series_of(cursor: Database, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
    """Return the common fields of all snapshots of each series, by its number."""
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


def chosen(cursor: Database, places: Sequence[int]) -> str:
    """Create the table `chosen` of places; return a condition that narrows a search for them."""
    cursor.register("chosen", {"place": np.array(places, np.int64)})
    return f"place between {min(places, default=0)} and {max(places, default=0)}"


def _rows(level: str, kind: str, stream: int, which: str) -> str:
    """Return as SQL the rows of a stream in a level for which the condition `which` holds."""
    return f"select * from {level}_{kind}_all where stream = {stream} and {which}"


def _end(cursor: Database, level: str, stream: int, place: int, first_ms: int) -> int:
    """Return the end, ms, of the tick at a place, or `first_ms` if there is none."""
    row = f"select end_ms from {level}_heads_all where stream = {stream} and place = {place}"
    found = first(cursor, row) if place else None
    return first_ms if found is None else int(found[0])


COUNTS_MAX = 1_000_000


class Head(NamedTuple):
    """A tick's row without its counts; `rest` is JSON of the fields without a column.

    `shown` is how many items it has, None for mechanisms that publish no items; `total` their sum.
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
        found: dict[str, Any] = orjson.loads(self.rest or "{}")
        return found


_HEAD = ", ".join(Head._fields)
_SUMS = ", ".join(f'"{name}"' for name in SUMS)


@dataclass(frozen=True, slots=True, kw_only=True)
class _StreamQuery:
    """A query about one stream; `items` are the labels wanted, empty: all."""

    stream: Stream
    items: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery(_StreamQuery):
    """A stream over time; `step` in ms, None: every stored tick."""

    range: Range
    step: int | None = None
    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsQuery(_StreamQuery):
    """The last tick of each of the newest `limit` epochs in a range.

    `top` is how many of its largest items it lists, None: all.
    """

    range: Range
    top: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TickQuery(_StreamQuery):
    """One tick, by a time `at` that it contains or by its number."""

    at: int | None = None
    epoch: int | None = None
    tick: int | None = None
    id: str | None = None
    top: int | None = None


def iso(ms: int) -> str:
    """Return a time in UTC, as files have it, also beyond the year 9999."""
    return f"{np.datetime64(ms, 'ms')}Z"


def heads_of(cursor: Database, rows: str, values: Sequence[object] = ()) -> list[Head]:
    """Return the heads that `rows`, SQL from the table on, selects."""
    found = cursor.execute(f"select {_HEAD} from {rows}", list(values)).fetchall()
    return [Head(*row) for row in found]


def history(cursor: Database, query: HistoryQuery, reading: float | None) -> bytes:
    """Answer /api/history.

    Raises `NotStored`, `NotReadYet`, or `AnswerTooLarge` above `COUNTS_MAX` counts.
    """
    where = locate(cursor, query.stream)
    heads = heads_of(
        cursor,
        f"({selected(where, query)}) order by end_ms, place limit {query.limit + 1}",
    )
    more = len(heads) > query.limit
    heads = heads[: query.limit]
    complete = is_complete(cursor, where, query, reading, len(heads))
    if len(heads) * len(query.items) > COUNTS_MAX:
        raise AnswerTooLarge(
            f"{len(heads):,} entries of {len(query.items)} items: at most {COUNTS_MAX:,} counts; take a longer step"
        )
    shown = _matrix(cursor, where, heads, query)
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
            "kept": where.kept,
            "series": list(series.values()),
            "entries": entries,
        }
    )


def epochs(cursor: Database, query: EpochsQuery, reading: float | None) -> bytes:
    """Return the answer to /api/epochs, JSON with the last stored snapshot of each epoch.

    `reading` is how far the store has read the topics, None once it has. Raise NotStored for a
    stream that is not stored.
    """
    where = locate(cursor, query.stream)
    rows = f"({last_of_epochs(where, query)}) order by end_ms desc, place desc limit {query.limit + 1}"
    heads = heads_of(cursor, rows)
    more = len(heads) > query.limit
    heads = heads[: query.limit][::-1]
    snapshots = _snapshots(cursor, where.last("counts"), heads, query)
    began = beginnings(
        cursor, query.stream, where, {snapshot["id"] for snapshot in snapshots}
    )
    for head, snapshot in zip(heads, snapshots, strict=True):
        snapshot |= {"total": head.total, "final": head.place != where.newest}
        snapshot |= {"began": began.get(snapshot["id"]), "end_time": iso(head.end_ms)}
    complete = is_complete(cursor, where, query, reading, len(heads))
    about = {"complete": complete, "reading": reading, "kept": where.kept, "more": more}
    return orjson.dumps({"epochs": snapshots} | about)


def one_tick(
    cursor: Database, query: TickQuery
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return (snapshot, {}) of a tick, or (None, neighbours): the nearest stored ticks.

    Neighbours are by "before" and "after". Raises as `history`.
    """
    where = locate(cursor, query.stream)
    of_id = (
        "series in (select series from series where id = ?)"
        if query.id is not None
        else "true"
    )
    values = [query.id] if query.id is not None else []
    heads = where.every("heads")
    if query.at is not None:
        is_it = f"start_ms < {query.at} and end_ms >= {query.at}"
        order = "end_ms {0}"
        beyond = f"end_ms {{0}} {query.at}"
    else:
        # Stream order: epochs by number, then ticks within them.
        is_it = f"epoch = {query.epoch} and tick = {query.tick}"
        order = "epoch {0}, tick {0}"
        beyond = f"(epoch {{0}} {query.epoch} or epoch = {query.epoch} and tick {{0}} {query.tick})"
        heads = f"(select heads.*, series.epoch from {heads} heads join series using (series))"
    found = heads_of(
        cursor, f"{heads} where {is_it} and {of_id} order by place desc limit 1", values
    )
    if found:
        return _snapshots(cursor, where.every("counts"), found, query)[0], {}
    nearest: dict[str, Any] = {}
    for name, sign, way in (("before", "<", "desc"), ("after", ">", "asc")):
        rows = f"{heads} where {beyond.format(sign)} and {of_id} order by {order.format(way)}, place {way} limit 1"
        nearest[name] = None
        for near in heads_of(cursor, rows, values):
            common = series_of(cursor, [near.series])[near.series]
            about = {"id": common["id"], "epoch": common["epoch"]}
            nearest[name] = about | {"tick": near.tick, "end": near.end_ms}
    return None, nearest


def selected(where: StoredRange, query: HistoryQuery) -> str:
    """Return the heads of a query's ticks as SQL; with a step, the last tick of every step."""
    origin = query.range.since or 0
    # All ticks, or where steps are whole quarters of an hour those that end one.
    heads = f"select * from {where.stepped('heads', query.range, query.step)} where {query.range.where}"
    if query.step is None:
        return heads
    # A tick that ends with a step belongs to it, not to the next one: hence - 1.
    last = f"select max(place) as place from ({heads}) group by (end_ms - 1 - {origin}) // {query.step}"
    return f"select * from ({heads}) semi join ({last}) using (place)"


def last_of_epochs(where: StoredRange, query: EpochsQuery) -> str:
    """Return as SQL the head of the last tick of each epoch in a query's range."""
    newest = f"select *, max(place) over (partition by series) as newest from {where.last('heads')}"
    return f"select * exclude newest from ({newest}) where place = newest and {query.range.where}"


def _entry(
    head: Head,
    common: Mapping[str, Any],
    items: Sequence[str],
    shown: list[_Row | None],
) -> dict[str, Any]:
    """Return a tick of an answer to /api/history; `shown` are the `items` asked for."""
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
    """What a tick shows of an item; `sums` has only nulls without them."""

    n: int
    sums: tuple[float | None, ...]


def _matrix(
    cursor: Database, where: StoredRange, heads: Sequence[Head], query: HistoryQuery
) -> list[list[_Row | None]]:
    """Return a row for each head, with an entry for each item; None if it is not shown."""
    numbers = item_numbers(cursor, query.items)
    matrix: list[list[_Row | None]] = [[None] * len(query.items) for _ in heads]
    if not numbers or not heads:
        return matrix
    places = [head.place for head in heads]
    narrow = chosen(cursor, places)
    rows = cursor.execute(
        f"select place, item, n, {_SUMS} from {where.stepped('counts', query.range, query.step)} "
        f"semi join chosen using (place) where {narrow} and item in ({', '.join(map(str, numbers.values()))})"
    ).fetchall()
    row_of = {place: row for row, place in enumerate(places)}
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
    """Return snapshots as in the topic, with `total_items` if items may have been cut."""
    series = series_of(cursor, (head.series for head in heads))
    cut = query.top is not None or bool(query.items)
    narrow = chosen(cursor, [head.place for head in heads])
    picked = "true"
    if query.items:
        numbers = item_numbers(cursor, query.items).values()
        picked = f"item in ({', '.join(map(str, numbers)) or 'null'})"
    # Keep all buckets of numbers.
    whole = [
        head.place
        for head in heads
        if not query.items and "edges" in series[head.series]
    ]
    cursor.register("whole", {"place": np.array(whole, np.int64)})
    best = ""
    if query.top is not None:
        rank = "row_number() over (partition by place order by n desc, label)"
        best = f"qualify {rank} <= {query.top} or place in (select place from whole)"
    rows = cursor.execute(
        f"select place, label, n, {_SUMS} from {counts} semi join chosen using (place) join labels using (item) "
        f"where {narrow} and {picked} {best} order by place, n desc, label limit {COUNTS_MAX + 1}"
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

    `common` are those of its series; `cut`: items may have been left out.
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
    """Return the `from` of the next page, ms: with a step, the end of the step."""
    if query.step is None:
        return end_ms
    origin = query.range.since or 0
    # Steps up to and including the one that ends at `end_ms` or later: rounded up.
    steps = -((origin - end_ms) // query.step)
    return origin + steps * query.step
