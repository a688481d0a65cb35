"""What the report draws, taken from the tables of a results directory: by histogram, run and metric, over all seeds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workers.backtest.results import SET, BoardRow, Input, Tables

if TYPE_CHECKING:
    import pyarrow as pa

Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneRun:
    """A combination of settings, all its seeds together.

    Attributes:
        number: from 1.
        varied: the settings that `--vary` gave several values, without the histogram's name.
        name: they as text; without any the mechanism.
        settings: all of them.
        seeds: how many.
        others: as in `results.Run`.
    """

    number: int
    histogram: str
    mechanism: str
    varied: Mapping[str, str]
    name: str
    settings: Mapping[str, Any]
    rho: float
    epsilon: float
    delta: float
    unit: str
    tick_ms: int
    first_tick: int
    ticks: int
    epochs: int
    seeds: int


@dataclass(frozen=True, slots=True)
class Spread:
    """A number over the seeds."""

    mean: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class Line:
    """A metric over `at` (ticks, sizes or ranks, rising): mean over the seeds, and how many seeds have a value."""

    at: Longs
    mean: Floats
    seeds: Longs


class Measured:
    """One histogram of a results directory."""

    def __init__(self, name: str, runs: list[OneRun], input_: Input, rows: _Rows, boards: list[BoardRow]) -> None:
        self.name, self.runs, self.input = name, runs, input_
        self._rows, self._boards = rows, boards
        self.by_number = {run.number: run for run in runs}

    def whole(self, run: OneRun, metric: str) -> Spread | None:
        """A metric of the whole run, of all stream keys together; None where it does not apply."""
        rows = self._rows.of(self.name, run.number, metric, "")
        values = rows.value[(rows.tick == 0) & (rows.rank == 0) & (rows.size == 0)]
        if not len(values):
            return None
        return Spread(float(values.mean()), float(values.min()), float(values.max()))

    def over_ticks(self, run: OneRun, metric: str) -> Line:
        """A metric tick by tick; global ticks."""
        rows = self._rows.of(self.name, run.number, metric, "")
        return _line(rows.tick, rows.value, (rows.tick > 0) & (rows.rank == 0) & (rows.size == 0))

    def by_size(self, run: OneRun, metric: str) -> Line:
        """A metric of the whole run by the size that a count reached."""
        rows = self._rows.of(self.name, run.number, metric, "")
        return _line(rows.size, rows.value, (rows.tick == 0) & (rows.size > 0))

    def board(self, run: OneRun) -> dict[str, dict[int, list[BoardRow]]]:
        """By stream key and tick: the items of the first seed's board, in the order of their exact counts."""
        found: dict[str, dict[int, list[BoardRow]]] = {}
        mine = [row for row in self._boards if row.run == run.number]
        seed = min((row.seed for row in mine), default=0)
        for row in mine:
            if row.seed == seed:
                found.setdefault(row.key, {}).setdefault(row.tick, []).append(row)
        for ticks in found.values():
            for rows in ticks.values():
                rows.sort(key=lambda row: row.rank)
        return found

    def begin_ms(self, run: OneRun) -> int | None:
        """When the first tick began, where the boards tell."""
        for row in self._boards:
            if row.run == run.number:
                return row.end_ms - (row.tick - run.first_tick + 1) * run.tick_ms
        return None


def measured(tables: Tables) -> list[Measured]:
    """The histograms of a results directory, in the order in which they were run."""
    runs = _runs(tables.runs)
    rows = _Rows(tables.results)
    boards: dict[str, list[BoardRow]] = {}
    for row in tables.boards.to_pylist():
        boards.setdefault(row["histogram"], []).append(BoardRow(**row))
    return [Measured(name, of, tables.input, rows, boards.get(name, [])) for name, of in runs.items()]


def when(milliseconds: int) -> str:
    """A time, UTC, without what is zero at its end."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    if milliseconds % 86_400_000 == 0:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M}" if moment.second == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"


def _runs(table: pa.Table) -> dict[str, list[OneRun]]:
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in table.to_pylist():
        found.setdefault((row["histogram"], row["run"]), []).append(row)
    runs: dict[str, list[OneRun]] = {}
    # A setting that was given one value tells nothing of a run.
    given = [name for name in table.column_names if name.startswith(SET)]
    telling = [name for name in given if len(set(table[name].to_pylist()) - {None}) > 1]
    kept = ("histogram", "mechanism", "rho", "epsilon", "delta", "unit", "tick_ms", "first_tick", "ticks", "epochs")
    for (histogram, number), rows in found.items():
        row, prefix = rows[0], f"{SET}{histogram}."
        values = ((name.removeprefix(prefix), row[name]) for name in telling if name.startswith(prefix))
        varied = {name: value for name, value in values if value is not None}
        parts = [value if setting == "mechanism" else f"{setting} {value}" for setting, value in varied.items()]
        runs.setdefault(histogram, []).append(
            OneRun(
                number=number,
                varied=varied,
                name=", ".join(parts) or row["mechanism"],
                settings=json.loads(row["settings"]),
                seeds=len(rows),
                **{field: row[field] for field in kept},
            )
        )
    for of in runs.values():
        of.sort(key=lambda run: run.number)
    return runs


@dataclass(frozen=True, slots=True)
class _Columns:
    tick: Longs
    rank: Longs
    size: Longs
    value: Floats


class _Rows:
    """results.parquet, in order of histogram, run, metric and stream key, with the place of each."""

    def __init__(self, table: pa.Table) -> None:
        coded = [_coded(table, name) for name in ("histogram", "metric", "key")]
        run = table.column("run").to_numpy().astype(np.int64)
        codes = run
        for numbers, names in coded:
            codes = codes * max(len(names), 1) + numbers
        order = np.argsort(codes, kind="stable")
        tick, rank, size = (table.column(name).to_numpy()[order].astype(np.int64) for name in ("tick", "rank", "size"))
        self._columns = _Columns(tick, rank, size, table.column("value").to_numpy()[order])
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        ends = [*firsts[1:].tolist(), len(codes)][: len(firsts)]
        self._place: dict[tuple[str, int, str, str], slice] = {}
        for first, end in zip(firsts.tolist(), ends, strict=True):
            at = order[first]
            histogram, metric, key = (names[numbers[at]] for numbers, names in coded)
            self._place[histogram, int(run[at]), metric, key] = slice(first, end)

    def of(self, histogram: str, run: int, metric: str, key: str) -> _Columns:
        at, all_ = self._place.get((histogram, run, metric, key), slice(0, 0)), self._columns
        return _Columns(all_.tick[at], all_.rank[at], all_.size[at], all_.value[at])


def _coded(table: pa.Table, name: str) -> tuple[Longs, list[str]]:
    column = table.column(name).combine_chunks().dictionary_encode()
    return column.indices.to_numpy(zero_copy_only=False).astype(np.int64), column.dictionary.to_pylist()


def _line(at: Longs, values: Floats, chosen: NDArray[np.bool_]) -> Line:
    places, where = np.unique(at[chosen], return_inverse=True)
    seeds = np.bincount(where, minlength=len(places))
    return Line(places, np.bincount(where, weights=values[chosen], minlength=len(places)) / np.maximum(seeds, 1), seeds)
