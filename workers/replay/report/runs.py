"""Prepare a report's data from a results directory, by histogram, run and metric.

A run is a combination of settings, tried with several seeds. A board is the list of a stream key's
items at a tick, with exact and published counts: *exact* are those after the histogram's bounds,
to which noise is added, *unbounded* those before. The metrics are those of docs/results.md.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from workers.arrays.types import Floats, Longs
from workers.mechanisms.config.buckets import Buckets, short
from workers.mechanisms.config.durations import format_duration
from workers.pipeline.snapshots import RANKS, Numeric
from workers.replay.backtest.recommend import RECALL, Recommendation
from workers.replay.backtest.results import (
    BoardRow,
    Input,
    Outcome,
    Spread,
    Tables,
    by_histogram,
)
from workers.replay.report.pages import Table, label

#: Columns of a metric's values: tick (0: of the whole run), size (0: none), and value. A size is a
#: count that items reached, where the metric is about these items.
Values = tuple[Longs, Longs, Floats]
#: Rows of one stream key's boards by tick.
Boards = dict[int, list[BoardRow]]


@dataclass(frozen=True, slots=True)
class Line:
    """A metric over ticks or sizes, `at`, which rise: its mean over the seeds that have a value.

    `seeds` is how many have one; all are (n,).
    """

    at: Longs
    mean: Floats
    seeds: Longs


@dataclass(frozen=True, slots=True)
class Measured:
    """Measurements of one histogram, or window, in all its runs.

    `series` has the values by run number and metric, of all stream keys together.
    """

    name: str
    runs: Sequence[Outcome]
    input: Input
    series: Mapping[tuple[int, str], Values]
    boards: Sequence[BoardRow]

    def over_ticks(self, run: Outcome, metric: str) -> Line:
        """Return a metric of a run by tick."""
        ticks, sizes, values = self.series.get((run.number, metric), _NONE)
        return _line(ticks, values, (ticks > 0) & (sizes == 0))

    def by_size(self, run: Outcome, metric: str) -> Line:
        """Return a metric of the whole run by the size that a count reached."""
        ticks, sizes, values = self.series.get((run.number, metric), _NONE)
        return _line(sizes, values, (ticks == 0) & (sizes > 0))

    def board(self, run: Outcome) -> dict[str, Boards]:
        """Return the first seed's items by stream key and tick, in order of their exact counts."""
        boards: dict[str, Boards] = {}
        mine = [row for row in self.boards if row.run == run.number]
        seed = min((row.seed for row in mine), default=0)
        for row in sorted(mine, key=lambda row: row.rank):
            if row.seed == seed:
                boards.setdefault(row.key, {}).setdefault(row.tick, []).append(row)
        return boards

    def begin_ms(self, run: Outcome) -> int | None:
        """Return when the first tick of a run began; None if it has no board, which tells it."""
        for row in self.boards:
            if row.run == run.number:
                return (
                    row.end_ms - (row.tick - run.row.first_tick + 1) * run.row.tick_ms
                )
        return None


def measured(tables: Tables) -> list[Measured]:
    """Return the measurements of all histograms in a results directory."""
    boards: dict[str, list[BoardRow]] = defaultdict(list)
    for row in tables.boards.to_pylist():
        boards[row["histogram"]].append(BoardRow(**row))
    series = _series(tables.results)
    return [
        Measured(name, outcomes, tables.input, series[name], boards[name])
        for name, outcomes in by_histogram(tables).items()
    ]


def when(milliseconds: int) -> str:
    """Return a time, UTC, without trailing zeros."""
    moment = datetime.fromtimestamp(milliseconds // 1000, UTC)
    if milliseconds % 86_400_000 == 0:
        return f"{moment:%Y-%m-%d}"
    return f"{moment:%Y-%m-%d %H:%M:%S}".removesuffix(":00")


_NONE: Values = np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0)


def _series(table: pa.Table) -> dict[str, dict[tuple[int, str], Values]]:
    """Return the values by histogram, then run and metric: of all keys together, of no rank."""
    together = pc.and_(pc.equal(table["key"], ""), pc.equal(table["rank"], 0))
    by = ["histogram", "run", "metric"]
    groups = table.filter(together).group_by(by, use_threads=False)
    # A row for each histogram, run and metric, with lists of its ticks, sizes and values.
    lists = groups.aggregate([("tick", "list"), ("size", "list"), ("value", "list")])
    names = (lists[name].to_pylist() for name in by)
    columns = (
        [cell.values.to_numpy() for cell in lists[f"{name}_list"]]
        for name in ("tick", "size", "value")
    )
    series: dict[str, dict[tuple[int, str], Values]] = defaultdict(dict)
    rows = zip(*names, *columns, strict=True)
    for histogram, run, metric, ticks, sizes, values in rows:
        series[histogram][run, metric] = ticks, sizes, values
    return series


def _line(at: Longs, values: Floats, chosen: NDArray[np.bool_]) -> Line:
    """Return a metric's mean over the seeds by tick or size, to be drawn as a line.

    `at`, the ticks or sizes, and `values` have a row for each seed; only the rows `chosen` count.
    """
    places, place_of = np.unique(at[chosen], return_inverse=True)
    seeds = np.bincount(place_of, minlength=len(places))
    sums = np.bincount(place_of, weights=values[chosen], minlength=len(places))
    return Line(places, sums / seeds, seeds)


SIDE_LETTERS = 48
BOARD_ROWS = 12
BOARD_TICKS = 3
# Maximum number of buckets listed in order; with more, the largest are listed.
BUCKET_ROWS = 40
#: Columns of the table of runs: metric, heading, and number format.
COLUMNS = (
    ("recall_unbounded", "true top {n} shown", "share"),
    ("recall", "bounded top {n} shown", "share"),
    ("deserving_shown", "above thresh\u00adold shown", "share"),
    ("rank_correlation", "rank corre\u00adlation", "plain"),
    ("error_rms", "error, rms", "count"),
    ("error_worst", "error, largest", "count"),
    ("error_unbounded_mean", "error with bounds, mean", "count"),
    ("lost", "lost to bounds", "share"),
    ("shown", "items shown", "count"),
    ("coverage", "error bars hold", "share"),
    ("coverage_new", "of new items", "share"),
    ("sum_error_mean", "error of sums, mean", "count"),
    ("sum_coverage", "error bars of sums hold", "share"),
    ("mean_error_mean", "error of means, mean", "count"),
    ("mean_coverage", "intervals of means hold", "share"),
    ("within_error", "answers within error", "share"),
    ("shortfall", "short\u00adfall", "count"),
)
# Below this share, bounds cut nothing off.
LOST_LEAST = 0.0005


def rank_key(run: Outcome, advice: Recommendation) -> tuple[float, float, int]:
    """Order runs: best score first, then smallest epsilon."""
    score = advice.scores.get(run.number, math.inf)
    better = -score if advice.metric == RECALL and score < math.inf else score
    return better, run.row.epsilon, run.number


def chosen_ticks(ticks: Boards) -> Boards:
    """Return at most `BOARD_TICKS` of them, evenly spaced, the last among them."""
    ordered = sorted(ticks)
    most = min(BOARD_TICKS, len(ordered))
    places = (round(number * len(ordered) / most) for number in range(1, most + 1))
    return {ordered[place - 1]: ticks[ordered[place - 1]] for place in places}


def epoch_of(run: Outcome) -> str:
    """Describe the epoch of a run in words."""
    tick = format_duration(run.row.tick_ms)
    if run.without_epochs:
        return f"no epochs: windows in ticks of {tick}, for all of which it is charged once, ever"
    if run.epoch_ms is None:
        return f"without an end, in ticks of {tick}"
    return f"{format_duration(run.epoch_ms)}: {run.epoch_ms // run.row.tick_ms:,} ticks of {tick}"


def tiles(run: Outcome, top: int) -> list[tuple[str, str, str]]:
    """Return headline figures: name, value, meaning."""
    # By metric: name, number format (`_written`), meaning.
    figures = {
        "recall_unbounded": (
            f"of the true top {top}",
            "share",
            "are shown, on average",
        ),
        "error_unbounded_mean": (
            "a published count is off",
            "count",
            "on average, bounds included",
        ),
        "coverage": ("of the error bars", "share", "hold the exact count; 95 % should"),
        "sum_coverage": (
            "of the error bars of sums",
            "share",
            "hold the exact sum; 95 % should",
        ),
        "mean_coverage": (
            "of the intervals of means",
            "share",
            "hold the exact mean; 95 % should",
        ),
    }
    shown = []
    for metric, (name, kind, meaning) in figures.items():
        if (text := _written(run.metrics.get(metric), kind)) is not None:
            shown.append((name, text, meaning))
    who = "one event" if run.row.unit == "event" else "one user"
    promise = f"{run.row.epsilon:.4g}"
    per = ", once, ever" if run.without_epochs else " and epoch"
    shown.append((f"epsilon for {who}{per}", promise, f"with delta {run.row.delta:g}"))
    return shown


def run_table(data: Measured, advice: Recommendation) -> Table:
    """Return the table of runs, best first: varied settings, then informative metrics."""
    settings = list(dict.fromkeys(name for run in data.runs for name in run.given))
    columns = [column for column in COLUMNS if _is_informative(data, column[0])]
    several_lengths = len({run.row.ticks for run in data.runs}) > 1
    rows: list[dict[str, str | None]] = []
    kinds = []
    for run in sorted(data.runs, key=lambda run: rank_key(run, advice)):
        row: dict[str, str | None] = {"run": f"{run.number}"}
        row |= {name: run.given.get(name, "") for name in settings}
        if "epsilon" not in settings:
            row["epsilon"] = f"{run.row.epsilon:.4g}"
        for metric, heading, kind in columns:
            row[heading.format(n=data.input.top)] = _written(
                run.metrics.get(metric), kind
            )
        if several_lengths:
            row["ticks"] = f"{run.row.ticks:,}"
        rows.append(row)
        classes = []
        if run.number == advice.chosen:
            classes.append("chosen")
        if run.number in advice.front and len(data.runs) > 1:
            classes.append("front")
        kinds.append(" ".join(classes))
    cells = [list(row.values()) for row in rows]
    return Table(list(rows[0]), cells, words=range(1, 1 + len(settings)), kinds=kinds)


def board_tables(
    data: Measured, run: Outcome, keys: int, labels: Sequence[str] = ()
) -> list[tuple[str, list[tuple[str, Table]]]]:
    """Return a run's boards by stream key, with tables for the first `keys` of them.

    Items come largest first, or in the order of `labels` if these are few.
    """
    few_labels = 0 < len(labels) <= BUCKET_ROWS
    boards = []
    for number, (key, ticks) in enumerate(data.board(run).items()):
        tables = []
        for tick, rows in chosen_ticks(ticks).items() if number < keys else ():
            if few_labels:
                rows.sort(key=lambda row: labels.index(row.label))
            else:
                del rows[BOARD_ROWS:]
            tables.append(_board_table(run, tick, rows))
        boards.append((key, tables))
    return boards


def _board_table(
    run: Outcome, tick: int, rows: Sequence[BoardRow]
) -> tuple[str, Table]:
    """Return the name and the table of a board at one tick.

    The column of unbounded counts is left out if they equal the exact ones.
    """
    unbounded = any(row.exact_unbounded not in (None, row.exact) for row in rows)
    headings = ("", "exact", "published", "unbounded")[: 4 if unbounded else 3]
    cells = []
    for row in rows:
        published = _count(row.released) or ("shown" if row.shown else "not shown")
        counts = _count(row.exact), published, _count(row.exact_unbounded)
        cells.append((label(row.label, SIDE_LETTERS), *counts)[: len(headings)])
    # Ticks are numbered over all epochs: here from the run's first one.
    name = f"Tick {tick - run.row.first_tick + 1:,}, to {when(rows[0].end_ms)} (UTC)"
    return name, Table(headings, cells)


def _count(value: int | None) -> str | None:
    return None if value is None else f"{value:,}"


def _is_informative(data: Measured, metric: str) -> bool:
    """Return whether a metric gets a column: if it was measured, and says something.

    Where bounds cut nothing off, "lost" is 0, and "recall" the same as "recall_unbounded".
    """
    known = {name for run in data.runs for name in run.metrics}
    if metric in ("recall", "lost"):
        losses = (
            run.metrics["lost"].most for run in data.runs if "lost" in run.metrics
        )
        if not any(most > LOST_LEAST for most in losses):
            return metric == "recall" and "recall_unbounded" not in known
    return metric in known


def _written(spread: Spread | None, kind: str) -> str | None:
    """Format a metric's mean over the seeds; None if it was not measured.

    `kind`: "share" is in percent, "plain" with three decimals, "count" with three digits or more.
    """
    if spread is None:
        return None
    if kind == "share":
        return f"{100 * spread.mean:.1f} %"
    if kind == "plain":
        return f"{spread.mean:.3f}"
    return f"{spread.mean:,.0f}" if spread.mean >= 100 else f"{spread.mean:.3g}"


@dataclass(frozen=True, slots=True)
class BucketCounts:
    """Counts of all buckets of one stream key at one tick, in order, and the published ones' sd.

    For n edges they are float64 (n + 1,).
    """

    exact: Floats
    published: Floats
    sd: float

    def quantiles(
        self, numeric: Numeric, q: float
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return quantile q as published, and as exact counts give it."""
        published = numeric.quantile(self.published, self.sd, q)
        return published, numeric.quantile(self.exact, 0.0, q)


def numeric_of(run: Outcome) -> Numeric | None:
    """Return a run's buckets and quantiles; None if not all its buckets are shown."""
    settings = run.settings
    quantiles = settings.get("quantiles")
    if "buckets" not in settings or quantiles is None:
        return None
    ranks = settings.get("for") == RANKS
    return Numeric(Buckets(tuple(settings["buckets"])), quantiles, ranks=ranks)


def quantile_table(data: Measured, run: Outcome, numeric: Numeric) -> Table:
    """Return how far a run's published quantiles are off, over all its boards."""
    boards: dict[tuple[int, str, int], list[BoardRow]] = {}
    for row in data.boards:
        if row.run == run.number:
            boards.setdefault((row.seed, row.key, row.tick), []).append(row)
    counted = [buckets_of(numeric, rows) for rows in boards.values()]
    rows: list[list[str | None]] = []
    for q in numeric.quantiles:
        number = 0
        hold: list[bool] = []
        off: list[float] = []
        for buckets in counted:
            published, truth = buckets.quantiles(numeric, q)
            # No exact counts have no quantile; noise may leave none to be published.
            if truth["bucket"] is None:
                continue
            number += 1
            if published["bucket"] is None:
                continue
            hold.append(interval_holds(numeric, truth, published))
            if None not in (published["value"], truth["value"]):
                off.append(abs(published["value"] - truth["value"]))
        rows.append(
            [
                short(q),
                f"{number:,}",
                f"{number - len(hold):,}",
                f"{sum(off) / len(off):.4g}" if off else None,
                f"{max(off):.4g}" if off else None,
                f"{100 * sum(hold) / len(hold):.0f} %" if hold else None,
            ]
        )
    headings = ("quantile", "boards", "nothing said", "off, mean", "off, most")
    return Table((*headings, "interval holds the exact one"), rows, words=())


def interval_holds(
    numeric: Numeric, truth: dict[str, Any], published: dict[str, Any]
) -> bool:
    """Return whether a published interval holds the exact quantile; both are as in a snapshot.

    A quantile in an open-ended bucket has no value, and an interval that reaches into one no `low`
    or no `high`.
    """
    value = truth["value"]
    if value is None and truth["bucket"] == numeric.labels[0]:
        return published["low"] is None
    if value is None:
        return published["high"] is None
    low = published["low"]
    high = published["high"]
    return (low is None or low <= value) and (high is None or value <= high)


def buckets_of(numeric: Numeric, rows: Sequence[BoardRow]) -> BucketCounts:
    """Return the counts of all buckets from the rows of a board, 0 for one that is not there."""
    place = {label: i for i, label in enumerate(numeric.labels)}
    exact, published = np.zeros((2, len(place)))
    for row in rows:
        exact[place[row.label]] = row.exact or 0
        published[place[row.label]] = row.released or 0
    return BucketCounts(exact, published, max(row.sd or 0.0 for row in rows))
