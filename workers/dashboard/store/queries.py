"""Queries on the history: a stream over time, its epochs, one tick, as JSON or as a file.

Files are CSV or Parquet, with one row per item and tick. DuckDB writes the whole file next to the
history. The file is unlinked when it is opened, so nothing remains however the process ends. Only
complete files are sent, with a Content-Length.

Row selection: rows of a stream are removed from a level in the order of their places. So the first
places that remain in `ticks` and in `quarters` split the stream into one part per level, and no
tick is found twice.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

import duckdb
import numpy as np
import orjson

from workers.dashboard.snapshots import Stream
from workers.dashboard.store.writing import QUARTER_MS, first


class NotStored(Exception):
    """A key that was never shown; the client sees the message."""


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
    """Location of a stream's ticks; a place is 0 if nothing was removed from a level.

    Attributes:
        newest: place of the newest tick, which is in `ticks` only.
        first_ms, last_ms: `end` of the oldest and the newest stored tick.
        ticks_ms, quarters_ms: `end` of the tick from which on all ticks, or those of the level, are
            stored.
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
        parts = [_rows("ticks", kind, self.stream, f"place >= {self.ticks}")]
        if self.ticks:
            parts.append(
                _rows(
                    "quarters",
                    kind,
                    self.stream,
                    f"place >= {self.quarters} and place < {self.ticks}",
                )
            )
            parts.append(self._epochs(kind))
        return f"({' union all '.join(parts)})"

    def coarse(self, kind: str) -> str:
        """Return the rows of the last tick of each quarter of an hour, as SQL in parentheses."""
        parts = [
            _rows("ticks", kind, self.stream, f"place = {self.newest}"),
            _rows("quarters", kind, self.stream, f"place >= {self.quarters}"),
        ]
        if self.quarters:
            parts.append(self._epochs(kind))
        return f"({' union all '.join(parts)})"

    def last(self, kind: str) -> str:
        """Return the rows of the last tick of each series, as SQL in parentheses."""
        newest = _rows("ticks", kind, self.stream, f"place = {self.newest}")
        return f"({_rows('epochs', kind, self.stream, 'true')} union all {newest})"

    def stepped(self, kind: str, since: int, step: int | None) -> str:
        """Return rows that include the last tick of every step."""
        aligned = step is not None and step % QUARTER_MS == 0 and since % QUARTER_MS == 0
        return self.coarse(kind) if aligned else self.every(kind)

    def _epochs(self, kind: str) -> str:
        before = min(self.quarters, self.ticks)
        return _rows("epochs", kind, self.stream, f"place < {before}")

    @property
    def kept(self) -> dict[str, int]:
        return {
            "first": self.first_ms,
            "last": self.last_ms,
            "ticks": self.ticks_ms,
            "hours": self.quarters_ms,
        }


def locate(cursor: duckdb.DuckDBPyConnection, stream: Stream) -> StoredRange:
    """Return the location of a stream's ticks.

    Raises:
        Unknown: the stream has none.
    """
    found = first(
        cursor,
        "select stream, part, first_end_ms from streams where histogram = ? and key = ?",
        [stream.histogram, stream.key],
    )
    if found is None:
        raise NotStored("no such key: nothing is kept of it; /api/histograms lists the keys")
    number, part, first_ms = found
    places = dict(
        cursor.execute("select level, place from kept where stream = ?", [number]).fetchall()
    )
    ticks, quarters = places.get("ticks", 0), places.get("quarters", 0)
    # Two queries: the largest place is found without reading rows; then only its row is read.
    newest = first(cursor, f"select max(place) from ticks_heads_all where stream = {number}")
    if newest is None or newest[0] is None:
        raise NotStored("nothing is kept of this key")
    last_ms = _end(cursor, "ticks", number, newest[0], first_ms)
    ticks_ms = _end(cursor, "ticks", number, ticks, first_ms)
    quarters_ms = _end(cursor, "quarters", number, quarters, first_ms)
    if ticks:
        thinned = f"{_rows('quarters', 'heads', number, 'true')} union all {_rows('epochs', 'heads', number, 'true')}"
        oldest = first(cursor, f"select min(end_ms) from ({thinned})")
        first_ms = ticks_ms if oldest is None or oldest[0] is None else min(oldest[0], ticks_ms)
    return StoredRange(
        number,
        part,
        ticks,
        min(quarters, ticks),
        newest[0],
        first_ms,
        last_ms,
        ticks_ms,
        min(quarters_ms, ticks_ms),
    )


def is_complete(
    cursor: duckdb.DuckDBPyConnection,
    stream: Stream,
    where: StoredRange,
    asked: Range,
    reading: float | None,
) -> bool:
    """Return whether no tick of a range is still unread or was removed before it was read.

    Within a stream ticks arrive in order: nothing before the newest is unread.
    """
    if reading is not None and (asked.until is None or asked.until > where.last_ms):
        return False
    gaps = cursor.execute(
        "select after_ms, until_ms from gaps where histogram = ? and part = ?",
        [stream.histogram, where.part],
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


def series_of(
    cursor: duckdb.DuckDBPyConnection, numbers: Iterable[int]
) -> dict[int, dict[str, Any]]:
    found = {}
    for series, *texts in cursor.execute(
        "select series, id, epoch, mechanism, guarantee, edges from series where series in (select unnest(?::integer[]))",
        [sorted(set(numbers))],
    ).fetchall():
        identity, epoch, mechanism, guarantee, edges = texts
        fields = {
            "id": identity,
            "epoch": epoch,
            "mechanism": mechanism,
            "guarantee": orjson.loads(guarantee),
        }
        found[series] = fields | ({"edges": orjson.loads(edges)} if edges else {})
    return found


def chosen(cursor: duckdb.DuckDBPyConnection, places: Sequence[int]) -> str:
    """Create the table `chosen` of places; return a condition that narrows a search for them."""
    cursor.register("chosen", {"place": np.array(places, np.int64)})
    return f"place between {min(places, default=0)} and {max(places, default=0)}"


def _rows(level: str, kind: str, stream: int, which: str) -> str:
    return f"select * from {level}_{kind}_all where stream = {stream} and {which}"


def _end(
    cursor: duckdb.DuckDBPyConnection, level: str, stream: int, place: int, first_ms: int
) -> int:
    if not place:
        return first_ms
    found = first(
        cursor, f"select end_ms from {level}_heads_all where stream = {stream} and place = {place}"
    )
    return first_ms if found is None else int(found[0])


ROWS = 20_000_000
Format = Literal["csv", "parquet"]
_OPTIONS = {"csv": "format csv, header true", "parquet": "format parquet, compression zstd"}
_NUMBERS = itertools.count()


def history_file(
    cursor: duckdb.DuckDBPyConnection,
    asked: HistoryQuery | EpochsQuery,
    reading: float | None,
    format: Format,
    path: Path,
) -> BinaryIO:
    """Return an open file with the answer; `path` is that of the history.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `ROWS` rows.
        duckdb.Error: it could not be written.
    """
    where = locate(cursor, asked.stream)
    complete = is_complete(cursor, asked.stream, where, asked.range, reading)
    if isinstance(asked, HistoryQuery):
        heads = selected(where, asked)
        counts = where.stepped("counts", asked.range.since or 0, asked.step)
    else:
        heads = (
            f"select * exclude newest from (select *, max(place) over (partition by series) as newest from {where.last('heads')}) "
            f"where place = newest and {asked.range.where}"
        )
        counts = where.last("counts")
    cursor.execute(f"create or replace temp table heads as {heads}")
    rows = "greatest(coalesce(shown, 0), 1)" if not asked.items else str(len(asked.items))
    found = first(
        cursor, f"select coalesce(sum({rows}), 0)::bigint, min(place), max(place) from heads"
    )
    if found is not None and found[0] > ROWS:
        raise AnswerTooLarge(
            f"the file would have {found[0]:,} rows: at most {ROWS:,}; take a shorter time, a longer step or fewer items"
        )
    narrow = (
        "false" if found is None or found[1] is None else f"place between {found[1]} and {found[2]}"
    )
    if asked.items:
        numbers = item_numbers(cursor, asked.items)
        wanted = list(dict.fromkeys(asked.items))
        cursor.register(
            "wanted",
            {
                "nr": np.arange(len(wanted)),
                "label": _texts(wanted),
                "item": np.array([numbers.get(label, -1) for label in wanted], np.int32),
            },
        )
        cells, order = "heads cross join wanted", "nr"
    else:
        cells, order = "heads", "n desc, label"
    of_tick = f"(select place, item, n from {counts} where {narrow})"
    joined = (
        f"{cells} left join {of_tick} using (place, item)"
        if asked.items
        else f"{cells} left join {of_tick} using (place) left join labels using (item)"
    )
    written = path.with_name(f"{path.name}.file-{os.getpid()}-{next(_NUMBERS)}")
    cursor.register(
        "stream_name",
        {"histogram": _texts([asked.stream.histogram]), "key": _texts([asked.stream.key])},
    )
    try:
        cursor.execute(
            f"""copy (
                select histogram, key, id, epoch, tick, start_ms as "start", end_ms as "end", label as item, n as count, sd,
                    threshold, mechanism, nullif(rest, '') as rest, {str(complete).lower()} as complete
                from {joined} join series using (series) cross join stream_name
                order by end_ms, place, {order})
            to '{_quoted(written)}' ({_OPTIONS[format]})"""
        )
        return written.open("rb")
    finally:
        written.unlink(missing_ok=True)


def remove_files(path: Path) -> None:
    """Remove files left by processes that were killed while writing."""
    for left in path.parent.glob(f"{path.name}.file-*"):
        left.unlink(missing_ok=True)


def _texts(values: list[str]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


# Most counts in one answer.
CELLS = 1_000_000
_HEAD = "place, series, tick, start_ms, end_ms, sd, threshold, shown, total, rest"
_Head = tuple[int, int, int, int, int, float | None, float | None, int | None, int | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuery:
    """A stream over time; `step` in ms, None: every stored tick."""

    stream: Stream
    range: Range
    items: Sequence[str] = ()
    step: int | None = None
    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsQuery:
    """The last ticks of the newest epochs in a range."""

    stream: Stream
    range: Range
    items: Sequence[str] = ()
    top: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TickQuery:
    """One tick, by a time `at` that it contains or by its number."""

    stream: Stream
    at: int | None = None
    epoch: int | None = None
    tick: int | None = None
    id: str | None = None
    items: Sequence[str] = ()
    top: int | None = None


def history(cursor: duckdb.DuckDBPyConnection, asked: HistoryQuery, reading: float | None) -> bytes:
    """Return the answer to /api/history.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = locate(cursor, asked.stream)
    heads: list[_Head] = cursor.execute(
        f"select {_HEAD} from ({selected(where, asked)}) order by end_ms, place limit {asked.limit + 1}"
    ).fetchall()
    heads, more = heads[: asked.limit], len(heads) > asked.limit
    if len(heads) * len(asked.items) > CELLS:
        raise AnswerTooLarge(
            f"{len(heads):,} entries of {len(asked.items)} items: at most {CELLS:,} counts; take a longer step"
        )
    counts = _matrix(cursor, where, heads, asked) if asked.items else None
    series = series_of(cursor, (head[1] for head in heads))
    return orjson.dumps(
        {
            "histogram": asked.stream.histogram,
            "key": asked.stream.key,
            "from": asked.range.since,
            "to": asked.range.until,
            "step": asked.step,
            "items": list(asked.items),
            "complete": is_complete(cursor, asked.stream, where, asked.range, reading),
            "reading": reading,
            "more": more,
            "next": _next(heads[-1][4], asked) if more else None,
            "kept": where.kept,
            "series": list(series.values()),
            "entries": [
                _entry(head, series[head[1]], None if counts is None else counts[row])
                for row, head in enumerate(heads)
            ],
        }
    )


def epochs(cursor: duckdb.DuckDBPyConnection, asked: EpochsQuery, reading: float | None) -> bytes:
    """Return the answer to /api/epochs.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = locate(cursor, asked.stream)
    heads: list[_Head] = cursor.execute(
        f"select {_HEAD} from (select *, max(place) over (partition by series) as newest from {where.last('heads')}) "
        f"where place = newest and {asked.range.where} order by end_ms desc, place desc limit {asked.limit + 1}"
    ).fetchall()
    heads, more = heads[: asked.limit][::-1], len(heads) > asked.limit
    found = _snapshots(cursor, where.last("counts"), heads, asked)
    for head, snapshot in zip(heads, found, strict=True):
        snapshot |= {"total": head[8], "final": head[0] != where.newest}
    return orjson.dumps(
        {
            "epochs": found,
            "complete": is_complete(cursor, asked.stream, where, asked.range, reading),
            "reading": reading,
            "kept": where.kept,
            "more": more,
        }
    )


def one_tick(
    cursor: duckdb.DuckDBPyConnection, asked: TickQuery
) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the snapshot of a tick, or None and the nearest ticks before and after it.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = locate(cursor, asked.stream)
    of_id = "series in (select series from series where id = ?)" if asked.id is not None else "true"
    values = [asked.id] if asked.id is not None else []
    if asked.at is not None:
        is_it, before, after = (
            f"start_ms < {asked.at} and end_ms >= {asked.at}",
            f"end_ms < {asked.at}",
            f"end_ms > {asked.at}",
        )
        order = "end_ms"
    else:
        # Stream order: epochs by number, then ticks within them.
        order = "epoch {0}, tick"
        is_it = f"epoch = {asked.epoch} and tick = {asked.tick}"
        before = f"(epoch < {asked.epoch} or epoch = {asked.epoch} and tick < {asked.tick})"
        after = f"(epoch > {asked.epoch} or epoch = {asked.epoch} and tick > {asked.tick})"
    heads = where.every("heads")
    if asked.at is None:
        heads = f"(select heads.*, series.epoch from {heads} heads join series using (series))"
    found: list[_Head] = cursor.execute(
        f"select {_HEAD} from {heads} where {is_it} and {of_id} order by place desc limit 1", values
    ).fetchall()
    if found:
        return _snapshots(cursor, where.every("counts"), found, asked)[0], {}
    nearest: dict[str, Any] = {}
    for name, condition, way in (("before", before, "desc"), ("after", after, "asc")):
        near = first(
            cursor,
            f"select series, tick, end_ms from {heads} where {condition} and {of_id} "
            f"order by {order.format(way)} {way}, place {way} limit 1",
            values,
        )
        nearest[name] = None
        if near is not None:
            common = series_of(cursor, [near[0]])[near[0]]
            nearest[name] = {
                "id": common["id"],
                "epoch": common["epoch"],
                "tick": near[1],
                "end": near[2],
            }
    return None, nearest


def selected(where: StoredRange, asked: HistoryQuery) -> str:
    """Return the heads of a query's ticks as SQL; with a step, the last tick of every step."""
    origin = asked.range.since or 0
    heads = f"select * from {where.stepped('heads', origin, asked.step)} where {asked.range.where}"
    if asked.step is None:
        return heads
    last = f"select max(place) as place from ({heads}) group by (end_ms - 1 - {origin}) // {asked.step}"
    return f"select * from ({heads}) semi join ({last}) using (place)"


# ---- parts of answers ----------------------------------------------------------------------------


def _entry(
    head: _Head, common: Mapping[str, Any], counts: list[int | None] | None
) -> dict[str, Any]:
    _, _, tick, start, end, sd, threshold, shown, total, rest = head
    entry = {
        "id": common["id"],
        "epoch": common["epoch"],
        "tick": tick,
        "start": start,
        "end": end,
        "sd": sd,
        "threshold": threshold,
        "shown": shown,
        "total": total,
    }
    if counts is not None and shown is not None:
        entry["counts"] = counts
    return entry | (orjson.loads(rest) if rest else {})


def _matrix(
    cursor: duckdb.DuckDBPyConnection,
    where: StoredRange,
    heads: Sequence[_Head],
    asked: HistoryQuery,
) -> list[list[int | None]]:
    """Return counts, a row per head and a column per item; None if the item is not shown."""
    numbers = item_numbers(cursor, asked.items)
    matrix: list[list[int | None]] = [[None] * len(asked.items) for _ in heads]
    if not numbers or not heads:
        return matrix
    places = [head[0] for head in heads]
    narrow = chosen(cursor, places)
    rows = cursor.execute(
        f"select place, item, n from {where.stepped('counts', asked.range.since or 0, asked.step)} "
        f"semi join chosen using (place) where {narrow} and item in ({', '.join(map(str, numbers.values()))})"
    ).fetchnumpy()
    row_of = {place: row for row, place in enumerate(places)}
    columns: dict[int, list[int]] = {}
    for column, label in enumerate(asked.items):
        if label in numbers:
            columns.setdefault(numbers[label], []).append(column)
    for place, item, count in zip(
        *(rows[name].tolist() for name in ("place", "item", "n")), strict=True
    ):
        for column in columns[item]:
            matrix[row_of[place]][column] = count
    return matrix


def _snapshots(
    cursor: duckdb.DuckDBPyConnection,
    counts: str,
    heads: Sequence[_Head],
    asked: EpochsQuery | TickQuery,
) -> list[dict[str, Any]]:
    """Return snapshots as in the topic, with `total_items` if items may have been cut."""
    series = series_of(cursor, (head[1] for head in heads))
    cut = asked.top is not None or bool(asked.items)
    numbers = item_numbers(cursor, asked.items)
    narrow = chosen(cursor, [head[0] for head in heads])
    picked = (
        f"item in ({', '.join(map(str, numbers.values())) or 'null'})" if asked.items else "true"
    )
    # Keep all buckets of numbers.
    whole = [head[0] for head in heads if "edges" in series[head[1]]] if not asked.items else []
    cursor.register("whole", {"place": np.array(whole, np.int64)})
    best = ""
    if asked.top is not None:
        rank = "row_number() over (partition by place order by n desc, label)"
        best = f"qualify {rank} <= {asked.top} or place in (select place from whole)"
    rows = cursor.execute(
        f"select place, label, n from {counts} semi join chosen using (place) join labels using (item) "
        f"where {narrow} and {picked} {best} order by place, n desc, label limit {CELLS + 1}"
    ).fetchall()
    if len(rows) > CELLS:
        raise AnswerTooLarge(
            f"more than {CELLS:,} counts: ask for the largest with `top`, or for fewer with `item` or `limit`"
        )
    items: dict[int, list[tuple[str, int]]] = {head[0]: [] for head in heads}
    for place, label, count in rows:
        items[place].append((label, count))
    return [_snapshot(asked.stream, head, series[head[1]], items[head[0]], cut) for head in heads]


def _snapshot(
    stream: Stream, head: _Head, common: Mapping[str, Any], items: list[tuple[str, int]], cut: bool
) -> dict[str, Any]:
    _, _, tick, start, end, sd, threshold, shown, _, rest = head
    fields: dict[str, Any] = {
        "histogram": stream.histogram,
        "key": stream.key,
        "epoch": common["epoch"],
        "tick": tick,
        "start": start,
        "end": end,
    }
    if shown is not None:
        fields["items"] = items
    if "edges" in common:
        fields["edges"] = common["edges"]
    fields |= orjson.loads(rest) if rest else {}
    fields |= {
        "sd": sd,
        "threshold": threshold,
        "guarantee": common["guarantee"],
        "mechanism": common["mechanism"],
        "id": common["id"],
        "page": 1,
        "pages": 1,
    }
    if cut and shown is not None:
        fields["total_items"] = shown
    return fields


def _next(end_ms: int, asked: HistoryQuery) -> int:
    """Return the `from` of the next page: with a step, the end of the step."""
    if asked.step is None:
        return end_ms
    origin = asked.range.since or 0
    return origin + -((origin - end_ms) // asked.step) * asked.step
