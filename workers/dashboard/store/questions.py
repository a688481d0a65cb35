"""Questions that are answered with JSON: a stream over time, its epochs, one tick.

Questions that are answered with a file, CSV or Parquet: a row an item and tick.

DuckDB writes the whole file beside the history; it loses its name when it is opened, so nothing is
left of it however the process ends. Only a file that is whole is sent, and its length before it.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import duckdb
import numpy as np
import orjson

from workers.dashboard.snapshots import Stream
from workers.dashboard.store.reading import Held, Range, TooMuch, chosen, held, is_complete, item_numbers, series_of
from workers.dashboard.store.schema import first

ROWS = 20_000_000
Format = Literal["csv", "parquet"]
_OPTIONS = {"csv": "format csv, header true", "parquet": "format parquet, compression zstd"}
_NUMBERS = itertools.count()


def history_file(
    cursor: duckdb.DuckDBPyConnection, asked: HistoryQuestion | EpochsQuestion, reading: float | None, format: Format, path: Path
) -> BinaryIO:
    """Return an open file with the answer; `path` is that of the history.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `ROWS` rows.
        duckdb.Error: it could not be written.
    """
    where = held(cursor, asked.stream)
    complete = is_complete(cursor, asked.stream, where, asked.range, reading)
    if isinstance(asked, HistoryQuestion):
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
    found = first(cursor, f"select coalesce(sum({rows}), 0)::bigint, min(place), max(place) from heads")
    if found is not None and found[0] > ROWS:
        raise TooMuch(f"the file would have {found[0]:,} rows: at most {ROWS:,}; take a shorter time, a longer step or fewer items")
    narrow = "false" if found is None or found[1] is None else f"place between {found[1]} and {found[2]}"
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
    cursor.register("stream_name", {"histogram": _texts([asked.stream.histogram]), "key": _texts([asked.stream.key])})
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
    """Remove what processes left that were killed while they wrote."""
    for left in path.parent.glob(f"{path.name}.file-*"):
        left.unlink(missing_ok=True)


def _texts(values: list[str]) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    found = np.empty(len(values), object)
    found[:] = values
    return found


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")


#: Most counts of one answer.
CELLS = 1_000_000
_HEAD = "place, series, tick, start_ms, end_ms, sd, threshold, shown, total, rest"
_Head = tuple[int, int, int, int, int, float | None, float | None, int | None, int | None, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryQuestion:
    """A stream over time; `step` in ms, None: every tick that is kept."""

    stream: Stream
    range: Range
    items: Sequence[str] = ()
    step: int | None = None
    limit: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochsQuestion:
    """The last ticks of the newest epochs in a range."""

    stream: Stream
    range: Range
    items: Sequence[str] = ()
    top: int | None = None
    limit: int = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class TickQuestion:
    """One tick: the one that holds the time `at`, or that with this number."""

    stream: Stream
    at: int | None = None
    epoch: int | None = None
    tick: int | None = None
    id: str | None = None
    items: Sequence[str] = ()
    top: int | None = None


def history(cursor: duckdb.DuckDBPyConnection, asked: HistoryQuestion, reading: float | None) -> bytes:
    """Return the answer to /api/history.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = held(cursor, asked.stream)
    heads: list[_Head] = cursor.execute(
        f"select {_HEAD} from ({selected(where, asked)}) order by end_ms, place limit {asked.limit + 1}"
    ).fetchall()
    heads, more = heads[: asked.limit], len(heads) > asked.limit
    if len(heads) * len(asked.items) > CELLS:
        raise TooMuch(f"{len(heads):,} entries of {len(asked.items)} items: at most {CELLS:,} counts; take a longer step")
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
                _entry(head, series[head[1]], None if counts is None else counts[row]) for row, head in enumerate(heads)
            ],
        }
    )


def epochs(cursor: duckdb.DuckDBPyConnection, asked: EpochsQuestion, reading: float | None) -> bytes:
    """Return the answer to /api/epochs.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = held(cursor, asked.stream)
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


def one_tick(cursor: duckdb.DuckDBPyConnection, asked: TickQuestion) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Return the snapshot of a tick, or None and the nearest ticks before and after it.

    Raises:
        Unknown: no such stream.
        TooMuch: more than `CELLS` counts.
    """
    where = held(cursor, asked.stream)
    of_id = "series in (select series from series where id = ?)" if asked.id is not None else "true"
    values = [asked.id] if asked.id is not None else []
    if asked.at is not None:
        is_it, before, after = f"start_ms < {asked.at} and end_ms >= {asked.at}", f"end_ms < {asked.at}", f"end_ms > {asked.at}"
        order = "end_ms"
    else:
        # Epochs by number, and ticks within them: the order of the stream.
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
            nearest[name] = {"id": common["id"], "epoch": common["epoch"], "tick": near[1], "end": near[2]}
    return None, nearest


def selected(where: Held, asked: HistoryQuestion) -> str:
    """Return the heads of the ticks that a question is about, as SQL: with a step its last ones."""
    origin = asked.range.since or 0
    heads = f"select * from {where.stepped('heads', origin, asked.step)} where {asked.range.where}"
    if asked.step is None:
        return heads
    last = f"select max(place) as place from ({heads}) group by (end_ms - 1 - {origin}) // {asked.step}"
    return f"select * from ({heads}) semi join ({last}) using (place)"


# ---- parts of answers ----------------------------------------------------------------------------


def _entry(head: _Head, common: Mapping[str, Any], counts: list[int | None] | None) -> dict[str, Any]:
    _, _, tick, start, end, sd, threshold, shown, total, rest = head
    entry = {
        "id": common["id"], "epoch": common["epoch"], "tick": tick, "start": start, "end": end, "sd": sd, "threshold": threshold,
        "shown": shown, "total": total,
    }  # fmt: skip
    if counts is not None and shown is not None:
        entry["counts"] = counts
    return entry | (orjson.loads(rest) if rest else {})


def _matrix(
    cursor: duckdb.DuckDBPyConnection, where: Held, heads: Sequence[_Head], asked: HistoryQuestion
) -> list[list[int | None]]:
    """Return a row of counts for each head, a column for each item; None where it is not shown."""
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
    for place, item, count in zip(*(rows[name].tolist() for name in ("place", "item", "n")), strict=True):
        for column in columns[item]:
            matrix[row_of[place]][column] = count
    return matrix


def _snapshots(
    cursor: duckdb.DuckDBPyConnection, counts: str, heads: Sequence[_Head], asked: EpochsQuestion | TickQuestion
) -> list[dict[str, Any]]:
    """Return snapshots as the topic had them, with `total_items` where items may have been cut."""
    series = series_of(cursor, (head[1] for head in heads))
    cut = asked.top is not None or bool(asked.items)
    numbers = item_numbers(cursor, asked.items)
    narrow = chosen(cursor, [head[0] for head in heads])
    picked = f"item in ({', '.join(map(str, numbers.values())) or 'null'})" if asked.items else "true"
    # Buckets of numbers are kept whole.
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
        raise TooMuch(f"more than {CELLS:,} counts: ask for the largest with `top`, or for fewer with `item` or `limit`")
    items: dict[int, list[tuple[str, int]]] = {head[0]: [] for head in heads}
    for place, label, count in rows:
        items[place].append((label, count))
    return [_snapshot(asked.stream, head, series[head[1]], items[head[0]], cut) for head in heads]


def _snapshot(
    stream: Stream, head: _Head, common: Mapping[str, Any], items: list[tuple[str, int]], cut: bool
) -> dict[str, Any]:
    _, _, tick, start, end, sd, threshold, shown, _, rest = head
    fields: dict[str, Any] = {
        "histogram": stream.histogram, "key": stream.key, "epoch": common["epoch"], "tick": tick, "start": start, "end": end,
    }  # fmt: skip
    if shown is not None:
        fields["items"] = items
    if "edges" in common:
        fields["edges"] = common["edges"]
    fields |= orjson.loads(rest) if rest else {}
    fields |= {
        "sd": sd, "threshold": threshold, "guarantee": common["guarantee"], "mechanism": common["mechanism"], "id": common["id"],
        "page": 1, "pages": 1,
    }  # fmt: skip
    if cut and shown is not None:
        fields["total_items"] = shown
    return fields


def _next(end_ms: int, asked: HistoryQuestion) -> int:
    """Return the `from` with which an answer goes on: with a step, the end of the step."""
    if asked.step is None:
        return end_ms
    origin = asked.range.since or 0
    return origin + -((origin - end_ms) // asked.step) * asked.step
