"""What a report draws, by histogram, run and metric, from the tables of a results directory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from workers.replay.backtest.outcomes import Outcome, outcomes
from workers.replay.backtest.results import BoardRow, Input, Tables

if TYPE_CHECKING:
    import pyarrow as pa


Floats = NDArray[np.float64]
Longs = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Line:
    """A metric over `at` (ticks or sizes, rising): its mean, and how many seeds have a value."""

    at: Longs
    mean: Floats
    seeds: Longs


@dataclass(frozen=True, slots=True)
class Measured:
    """One histogram of a results directory.

    Attributes:
        name: of the histogram.
        runs: its combinations of settings.
        input: what was read.
        series: ticks, sizes and values by run and metric, of all stream keys together.
        boards: rows of boards.parquet.
    """

    name: str
    runs: Sequence[Outcome]
    input: Input
    series: Mapping[tuple[int, str], tuple[Longs, Longs, Floats]]
    boards: Sequence[BoardRow]

    def over_ticks(self, run: Outcome, metric: str) -> Line:
        """Return a metric by global tick."""
        ticks, sizes, values = self.series.get((run.number, metric), _NONE)
        return _line(ticks, values, (ticks > 0) & (sizes == 0))

    def by_size(self, run: Outcome, metric: str) -> Line:
        """Return a metric of the whole run by the size that a count reached."""
        ticks, sizes, values = self.series.get((run.number, metric), _NONE)
        return _line(sizes, values, (ticks == 0) & (sizes > 0))

    def board(self, run: Outcome) -> dict[str, dict[int, list[BoardRow]]]:
        """Return the first seed's items by stream key and tick, in order of their exact counts."""
        found: dict[str, dict[int, list[BoardRow]]] = {}
        mine = [row for row in self.boards if row.run == run.number]
        seed = min((row.seed for row in mine), default=0)
        for row in sorted(mine, key=lambda row: row.rank):
            if row.seed == seed:
                found.setdefault(row.key, {}).setdefault(row.tick, []).append(row)
        return found

    def begin_ms(self, run: Outcome) -> int | None:
        """Return when the first tick began; None where no board tells."""
        row = next((row for row in self.boards if row.run == run.number), None)
        if row is None:
            return None
        return row.end_ms - (row.tick - run.row.first_tick + 1) * run.row.tick_ms


def measured(tables: Tables) -> list[Measured]:
    """Return the histograms of a results directory, in the order in which they were run."""
    runs: dict[str, list[Outcome]] = {}
    for one in outcomes(tables):
        runs.setdefault(one.row.histogram, []).append(one)
    boards: dict[str, list[BoardRow]] = {}
    for row in tables.boards.to_pylist():
        boards.setdefault(row["histogram"], []).append(BoardRow(**row))
    series = _series(tables.results)
    return [Measured(name, of, tables.input, series, boards.get(name, [])) for name, of in runs.items()]


def when(milliseconds: int) -> str:
    """Return a time, UTC, without the zeros at its end."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    if milliseconds % 86_400_000 == 0:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M}" if moment.second == 0 else f"{moment:%Y-%m-%d %H:%M:%S}"


_NONE: tuple[Longs, Longs, Floats] = (np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))


def _series(table: pa.Table) -> dict[tuple[int, str], tuple[Longs, Longs, Floats]]:
    import pyarrow.compute as pc

    together = pc.and_(pc.equal(table["key"], ""), pc.equal(table["rank"], 0))
    groups = table.filter(together).group_by(["run", "metric"], use_threads=False)
    lists = groups.aggregate([("tick", "list"), ("size", "list"), ("value", "list")])
    names = zip(lists["run"].to_pylist(), lists["metric"].to_pylist(), strict=True)
    columns = zip(lists["tick_list"], lists["size_list"], lists["value_list"], strict=True)
    return {
        name: (ticks.values.to_numpy(), sizes.values.to_numpy(), values.values.to_numpy())
        for name, (ticks, sizes, values) in zip(names, columns, strict=True)
    }


def _line(at: Longs, values: Floats, chosen: NDArray[np.bool_]) -> Line:
    places, where = np.unique(at[chosen], return_inverse=True)
    seeds = np.bincount(where, minlength=len(places))
    sums = np.bincount(where, weights=values[chosen], minlength=len(places))
    return Line(places, sums / np.maximum(seeds, 1), seeds)
