"""Measure runs: metrics of every measured tick, delays over all ticks (docs/results.md).

A `Watch` sees every tick of one series of a run (the counts since an epoch began, or a window), at
almost no cost; at a measured tick it compares the published counts with the exact counts of a
`View`, column by column. Order statistics are compared with the exact answers, `pay_what_you_get`
as a board of labels. *Bounded* counts are those after the histogram's bounds (`max_items`,
`max_count`), to which noise is added; *unbounded* ones are of all events. A board is the list of a
stream key's largest items. The top has those with the largest exact counts, `view.top` at most, and
a rank is a place in it.

Exact counts are kept by row, of the `Truth` of the view: a row is an item of a stream key. A run
has rows of its own, unless its mechanism reads the truth's (`has_rows_of_truth`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.types import Bools, Codes, Floats, Longs
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Ledger, with_capacity
from workers.mechanisms.mechanism import Answers, Items, Release
from workers.mechanisms.order_statistics.config import Queries
from workers.pipeline.snapshots import ReleasedTick
from workers.replay.backtest.grid import Run
from workers.replay.backtest.results import BoardRow, Series
from workers.replay.backtest.truth import (
    SIZES,
    KeyView,
    View,
    kendall,
    top_places,
)
from workers.replay.offline import ReplayHistogram

# A normal variable is within this many standard deviations with probability 0.95.
COVERED_SD = 1.96
# An item is new for this many ticks, starting with the one in which it was first shown.
NEW_TICKS = 10

BOUNDED = ("error_mean", "error_rms", "error_worst", "error_bias", "coverage")
UNBOUNDED = ("error_unbounded_mean", "error_unbounded_rms", "error_unbounded_worst")
# Of boards, against bounded and unbounded counts.
TOPS = (
    "recall",
    "precision",
    "recall_unbounded",
    "precision_unbounded",
    "rank_correlation",
)
_SHOWN = (
    "shown",
    "sd",
    "threshold",
    *BOUNDED,
    *UNBOUNDED,
    "deserving",
    "deserving_shown",
)
# Of published sums and means, against those of the bounded, clamped numbers.
SUMS = ("sum_error_mean", "sum_coverage", "mean_error_mean", "mean_coverage")
_FURTHER = ("lost", "within_error", "shortfall", "shown_new", "coverage_new")
METRICS = (*_SHOWN, *TOPS, *_FURTHER, *SUMS)
# Measurements of a stream key at a tick are a float array, NaN where nothing is defined: a column
# for every metric, at
PLACE = {name: i for i, name in enumerate(METRICS)}
# and then, for each of these, a column for each rank: the error of the item of that rank, and
# whether it is shown.
RANKED = ("error_mean", "shown_rate")
# For all stream keys together, these and those by rank are the mean over the keys.
OF_KEYS = (*TOPS, "shortfall")
# A share over all ticks weights each tick by the number that it is a share of.
WEIGHTS = {
    "coverage": "shown",
    "coverage_new": "shown_new",
    "deserving_shown": "deserving",
    "sum_coverage": "shown",
    "mean_coverage": "shown",
}

#: Rows that are shown, and their published counts.
Shown = tuple[Rows, Longs]
Ticks = Codes | Longs


class Delays:
    """Ticks from reaching a size, one of the counts SIZES, to an item's first appearance.

    They are collected over all epochs.
    """

    def __init__(self) -> None:
        # By size: how many items reached it; and of those shown, how often each delay occurred.
        self._passed = np.zeros(len(SIZES), dtype=np.int64)
        self._delays: list[Counter[int]] = [Counter() for _ in SIZES]

    def add(self, reached: Ticks, first: Ticks) -> None:
        """Add a finished epoch, with its ticks by row; 0: never.

        `reached` (rows, sizes) is when an item's count reached a size, `first` (rows,), which may
        have fewer or more rows, when it was first shown.
        """
        first_shown = np.zeros(len(reached), dtype=np.int64)
        first_shown[: min(len(first), len(reached))] = first[: len(reached)]
        for size, counter in enumerate(self._delays):
            rows = np.flatnonzero(reached[:, size])
            self._passed[size] += len(rows)
            found = rows[first_shown[rows] > 0]
            # Noise may show an item before it reaches the size.
            delays = np.maximum(first_shown[found] - reached[found, size], 0)
            counter.update(delays.tolist())

    def metrics(self) -> Iterator[tuple[str, int, float]]:
        """Yield (metric, size, value): how many items reached a size, and how late each showed."""
        sizes = zip(SIZES.tolist(), self._passed.tolist(), self._delays, strict=True)
        for size, passed, counter in sizes:
            if not passed:
                continue
            shown = counter.total()
            yield "passed", size, passed
            yield "found", size, shown / passed
            if shown:
                delays, times = np.array(sorted(counter.items())).T
                yield "delay_mean", size, int((delays * times).sum()) / shown
                # The median of all that passed: those not shown are later than any.
                if 2 * shown > passed:
                    middle = np.searchsorted(np.cumsum(times), (passed + 1) // 2)
                    yield "delay_median", size, int(delays[middle])


def fill_errors(
    row: Floats,
    published: Longs,
    exact: Longs,
    unbounded: Longs,
    sd: float | None = None,
) -> None:
    """Fill in the errors of published counts, at least one; `exact` are the bounded counts.

    `sd` is that of their noise (None: not stated).
    """
    error = published - exact
    for name, off in (("error", error), ("error_unbounded", published - unbounded)):
        size = np.abs(off)
        row[PLACE[f"{name}_mean"]] = size.mean()
        row[PLACE[f"{name}_rms"]] = math.sqrt(np.square(off, dtype=np.float64).mean())
        row[PLACE[f"{name}_worst"]] = size.max()
    row[PLACE["error_bias"]] = error.mean()
    if sd is not None:
        row[PLACE["coverage"]] = _coverage(error, sd)


def _coverage(error: Longs, sd: float) -> float:
    """Return the share of errors within the 95 % interval of noise with standard deviation `sd`."""
    return np.count_nonzero(np.abs(error) <= COVERED_SD * sd) / len(error)


def over_all(metric: str, values: Floats, weight: Floats | None) -> float:
    """Return one number for the whole run from a metric's values at ticks (n,).

    That is the worst of worst errors, the root mean square of such, else the mean, by `weight` if
    the metric is a share (docs/results.md).
    """
    if metric.endswith("_worst"):
        return float(values.max())
    if metric.endswith("_rms"):
        return math.sqrt(float(np.square(values).mean()))
    if weight is not None:
        return float((values * weight).sum() / weight.sum())
    return float(values.mean())


_NO_COUNT = np.iinfo(np.int64).min
_NO_ROWS: Rows = np.empty(0, dtype=np.int64)


class Watch:
    """Observer of one series of a run of a histogram that shows counts.

    `on_tick` sees every tick, `measure` fills in the metrics of a measured one, and `series` has
    all of them in the end. An item deserves to be shown if its exact count is above the threshold.
    """

    def __init__(self, run: Run, histogram: ReplayHistogram, view: View) -> None:
        self.run = run
        self.histogram = histogram
        self.view = view
        #: The series' name, and its window if it has one.
        self.name, _ = histogram.outputs[view.number]
        self.window_ms = histogram.config.series[view.number].window_ms
        # The first columns of every row of results and boards.
        self._row_head = run.number, run.seed, self.name
        # Columns of the measurements of a stream key at a tick.
        self._width = len(METRICS) + len(RANKED) * view.top
        # Whether items are discovered, so that there are delays; and whether the run's rows are
        # those of the truth: then its ledger notes when they were first shown.
        self._discovers = run.combination.discovers
        self._same_rows = has_rows_of_truth(run.combination.config)
        self._threshold_is_count = run.combination.config.threshold_is_count
        self.latest: ReleasedTick | None = None
        self.first_tick = self.last_tick = self.ticks = 0
        self._threshold: int | None = None
        # By measured tick: float64 (1 + stream keys, columns), see `fill`; and the boards kept.
        self._rows: dict[int, Floats] = {}
        self._boards: dict[int, list[BoardRow]] = {}
        self._delays = Delays()
        # Of this epoch: the run's ledger; and by row of the truth, the ticks at which items reached
        # sizes, and (unless the ledger has them) those at which they were first shown.
        self._columns: Ledger | None = None
        self._reached: Longs = np.empty((0, len(SIZES)), dtype=np.int64)
        self._first: Longs = _NO_ROWS

    def on_tick(self, shown: ReleasedTick) -> None:
        """Take note of a released tick; `measure` may follow."""
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self.end_epoch()
        self.latest = shown
        self.ticks += 1
        # In global ticks, which go on over epochs.
        self.last_tick = (self.histogram.next or 1) - 1
        self.first_tick = self.first_tick or self.last_tick
        release = shown.release
        if self._threshold_is_count and release.threshold is not None:
            self._threshold = release.threshold
        if self._discovers:
            self._columns = self.histogram.columns
            self._reached = self.view.truth.reached(self.view.number)
            if not self._same_rows:
                rows = self.shown_rows(release)
                self._first = with_capacity(self._first, self.view.truth.columns.n)
                self._first[rows[self._first[rows] == 0]] = shown.tick

    def shown_rows(self, release: Release | Items | Answers) -> Rows:
        """Return the rows of the items that a release shows."""
        return _NO_ROWS if isinstance(release, Answers) else self._shown(release)[0]

    def end_epoch(self) -> None:
        """Add the epoch's delays, and forget the rest of it."""
        if self._columns is not None:
            first = self._columns.shown if self._same_rows else self._first
            self._delays.add(self._reached, first)
        self._columns = None
        self._first = _NO_ROWS
        self._threshold = None

    def measure(self, *, board: bool) -> None:
        """Measure the last tick seen, which must be the view's; keep its boards if `board`."""
        if self.latest is None:
            return
        view = self.view
        # A single stream key is measured as all together.
        keys = view.keys if len(view.keys) > 1 else []
        out = np.full((1 + len(keys), self._width), np.nan)
        self.fill(out, self.latest)
        counted: list[View | KeyView] = [view, *keys]
        for row, exact in zip(out, counted, strict=True):
            if exact.total_unbounded:
                row[PLACE["lost"]] = 1 - exact.total / exact.total_unbounded
        if keys:
            averaged = [PLACE[metric] for metric in OF_KEYS]
            averaged += range(len(METRICS), self._width)
            for column in averaged:
                of_keys = out[1:, column]
                defined = of_keys[~np.isnan(of_keys)]
                out[0, column] = defined.mean() if len(defined) else np.nan
        self._rows[self.last_tick] = out
        if board:
            self._boards[self.last_tick] = list(self.board(self.latest))

    def by_rank(self, row: Floats, metric: str) -> Floats:
        """Return the columns of a metric of RANKED in a row, one for each rank."""
        first = len(METRICS) + RANKED.index(metric) * self.view.top
        return row[first : first + self.view.top]

    def rows_of_keys(self, out: Floats) -> Floats:
        """Return the row of each measured key; a single key has that of all keys together."""
        return out[len(out) - len(self.view.keys) :]

    def fill(self, out: Floats, shown: ReleasedTick) -> None:
        """Fill in a tick's metrics: in `out`, row 0 is of all stream keys, then one of each.

        With a single stream key there is row 0 only.
        """
        view = self.view
        release = shown.release
        if isinstance(release, Answers):
            return
        rows, counts = self._shown(release)
        out[0, PLACE["sd"]] = release.sd
        out[0, PLACE["threshold"]] = (
            math.nan if release.threshold is None else release.threshold
        )
        key_of = view.truth.columns.keys[rows]
        new = self._new(rows, shown.tick)
        # For all stream keys and for each: which of the shown rows are its own, and the rows of all
        # its items.
        everything = np.ones(len(rows), dtype=np.bool_)
        parts: list[tuple[Bools, Any]] = [(everything, slice(None))]
        if len(out) > 1:
            parts += [(key_of == i, key.rows) for i, key in enumerate(view.keys)]
        for row, (own, exact_rows) in zip(out, parts, strict=True):
            own_new = None if new is None else new[own]
            self._fill_shown(
                row, exact_rows, rows[own], counts[own], release.sd, own_new
            )
            self._fill_sums(row, shown, rows, own)
        for index, row in enumerate(self.rows_of_keys(out)):
            here = key_of == index
            self._fill_top(row, view.keys[index], rows[here], counts[here])

    def _shown(self, release: Release | Items) -> Shown:
        """Return the truth's rows of the items in a release, and their published counts."""
        if isinstance(release, Release):
            if self._same_rows:
                return release.rows, release.counts
            tags = self.histogram.columns.tags.take(release.rows, axis=0)
            return self.view.rows_of_tags(tags), release.counts
        rows = self.view.rows_of_items(release)
        known = rows >= 0
        return rows[known], release.counts[known]

    def _fill_shown(
        self,
        row: Floats,
        exact_rows: Any,
        rows: Rows,
        counts: Longs,
        sd: float,
        new: Bools | None,
    ) -> None:
        """Fill in the errors of the counts shown in `rows`, and how many that deserve it are shown.

        `exact_rows` selects all rows of their stream key; `new` marks the items that are new.
        """
        exact = self.view.counts
        row[PLACE["shown"]] = len(rows)
        if len(rows):
            fill_errors(row, counts, exact[rows], self.view.unbounded[rows], sd)
        if new is not None:
            row[PLACE["shown_new"]] = np.count_nonzero(new)
            if new.any():
                row[PLACE["coverage_new"]] = _coverage((counts - exact[rows])[new], sd)
        if self._threshold is not None:
            deserving = int((exact[exact_rows] > self._threshold).sum())
            row[PLACE["deserving"]] = deserving
            if deserving:
                found = int((exact[rows] > self._threshold).sum())
                row[PLACE["deserving_shown"]] = found / deserving

    def _fill_sums(
        self, row: Floats, shown: ReleasedTick, rows: Rows, own: Bools
    ) -> None:
        """Fill in the errors of published sums and means, of those in `rows` that are `own`.

        Sums are in steps above the low end of the range, so with n the count and S the sum, the
        published, "centred" sum is that of 2 S - n (steps of the range).
        """
        view = self.view
        release = shown.release
        means = shown.means
        if means is None or not isinstance(release, Release) or release.sums is None:
            return
        # A mean of nothing is none.
        places = np.flatnonzero(own & (view.counts[rows] > 0))
        if not len(places):
            return
        counts = view.counts[rows[places]]
        sums = self.histogram.series_sums(view.number)[release.rows[places]]
        published = release.counts[places]
        centred = release.sums.values[places]
        sds = release.sds
        exact_sums = means.sums(counts, 2 * sums - means.steps * counts)
        off = np.abs(means.sums(published, centred) - exact_sums)
        row[PLACE["sum_error_mean"]] = off.mean()
        row[PLACE["sum_coverage"]] = (off <= COVERED_SD * means.sd(*sds)).mean()
        mean, low, high = means.intervals(published, centred, *sds)
        exact = means.means(counts, sums)
        row[PLACE["mean_coverage"]] = ((low <= exact) & (exact <= high)).mean()
        if (defined := ~np.isnan(mean)).any():
            row[PLACE["mean_error_mean"]] = np.abs(mean - exact)[defined].mean()

    def _new(self, rows: Rows, tick: int) -> Bools | None:
        """Return which of the shown items are new; None if the mechanism discovers no items.

        Items carried over from the epoch before are never new.
        """
        if not self._discovers or self._columns is None:
            return None
        first = self._columns.shown if self._same_rows else self._first
        is_new = first[rows] > tick - NEW_TICKS
        return np.asarray(is_new & ~np.isin(rows, self.histogram.carried))

    def _fill_top(self, row: Floats, key: KeyView, rows: Rows, counts: Longs) -> None:
        """Fill in how a stream key's published items compare with its exact top, by rank too.

        `rows` are its shown items, `counts` their published counts.
        """
        view = self.view
        best = key.top.rows
        self.fill_hits(row, key, rows[top_places(rows, counts, view.top)])
        published = np.full(len(view.counts), _NO_COUNT)
        published[rows] = counts
        of_best = published[best]
        is_shown = of_best != _NO_COUNT
        if len(best) > 1:
            # An item that is not shown ranks below all others.
            row[PLACE["rank_correlation"]] = kendall(view.counts[best], of_best)
        errors = np.where(is_shown, np.abs(of_best - view.counts[best]), np.nan)
        self.by_rank(row, "error_mean")[: len(best)] = errors
        self.by_rank(row, "shown_rate")[: len(best)] = is_shown

    def fill_hits(self, row: Floats, key: KeyView, named: Rows) -> None:
        """Fill in precision and recall of the `named` rows against the exact tops of their key."""
        bounded = (self.view.counts, key.top)
        unbounded = (self.view.unbounded, key.top_unbounded)
        for suffix, (counts, top) in (("", bounded), ("_unbounded", unbounded)):
            # An item that counts as much as the last of the top is as right as that.
            right = int((counts[named] >= top.floor).sum())
            if len(named):
                row[PLACE["precision" + suffix]] = right / len(named)
            if size := len(top.rows):
                row[PLACE["recall" + suffix]] = min(right, size) / size

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Yield the exact top and the published top of every stream key."""
        release = shown.release
        if isinstance(release, Answers):
            return
        rows, counts = self._shown(release)
        key_of = self.view.truth.columns.keys[rows]
        for index in range(len(self.view.keys)):
            here = np.flatnonzero(key_of == index)
            key_rows = rows[here]
            key_counts = counts[here]
            published = dict(zip(key_rows.tolist(), key_counts.tolist(), strict=True))
            # The board of a histogram of numbers has all buckets.
            top = self.view.top if shown.numeric is None else len(here)
            named = key_rows[top_places(key_rows, key_counts, top)].tolist()
            yield from self.board_rows(shown, index, named, published)

    def board_rows(
        self,
        shown: ReleasedTick,
        index: int,
        named: Sequence[int],
        published: dict[int, int],
    ) -> Iterator[BoardRow]:
        """Yield a stream key's exact top, then its other `named` rows, by exact rank.

        `published` has the published counts by row; a mechanism that names items has none.
        """
        view = self.view
        release = shown.release
        best = view.keys[index].top.rows.tolist()
        others = sorted(
            (view.rank(index, row), row) for row in set(named).difference(best)
        )
        for rank, row in [*enumerate(best, start=1), *others]:
            yield self.board_row(
                shown,
                index,
                rank=rank,
                label=view.truth.columns.label(row).decode(),
                exact=int(view.counts[row]),
                exact_unbounded=int(view.unbounded[row]),
                shown=row in published or row in named,
                released=published.get(row),
                sd=release.sd,
                threshold=release.threshold,
            )

    def board_row(self, tick: ReleasedTick, index: int, **fields: Any) -> BoardRow:
        """Return a row of a stream key's board; `fields` are those of `BoardRow` from `rank` on."""
        name = self.view.names[index]
        return BoardRow(*self._row_head, name, self.last_tick, tick.end_ms, **fields)

    def retain(self, ticks: set[int], boards: set[int]) -> None:
        """Keep only the measurements of these `ticks`, and the boards of the ticks `boards`."""
        self._rows = {tick: row for tick, row in self._rows.items() if tick in ticks}
        self._boards = {
            tick: rows for tick, rows in self._boards.items() if tick in boards
        }

    def boards(self) -> Iterator[BoardRow]:
        for _, rows in sorted(self._boards.items()):
            yield from rows

    def series(self) -> Iterator[Series]:
        """Yield every metric as a series over the measured ticks; tick 0 is the whole run.

        The stream key "" is all of them together; delays have a size instead of ticks.
        """
        ticks = np.array(sorted(self._rows), dtype=np.int64)
        # Stream keys come up over time: early ticks have fewer rows. `measured` is by key and tick.
        most = max(map(len, self._rows.values()), default=1)
        measured = np.full((most, len(ticks), self._width), np.nan)
        for position, tick in enumerate(ticks.tolist()):
            measured[: len(self._rows[tick]), position] = self._rows[tick]
        for key, table in zip(
            ["", *self.view.names[: most - 1]], measured, strict=True
        ):
            for metric, column in PLACE.items():
                values = table[:, column]
                defined = ~np.isnan(values)
                if defined.any():
                    weight = (
                        table[defined, PLACE[WEIGHTS[metric]]]
                        if metric in WEIGHTS
                        else None
                    )
                    whole = over_all(metric, values[defined], weight)
                    yield self._series(
                        key, metric, [0, *ticks[defined]], [whole, *values[defined]]
                    )
            for metric in RANKED:
                for rank, column in enumerate(self.by_rank(table.T, metric), start=1):
                    values = column[~np.isnan(column)]
                    if len(values):
                        yield self._series(key, metric, [0], [values.mean()], rank=rank)
        yield self._series("", "measured", [0], [len(ticks)])
        for metric, size, value in self._delays.metrics():
            yield self._series("", metric, [0], [value], size=size)

    def _series(
        self,
        key: str,
        metric: str,
        ticks: Sequence[int],
        values: Sequence[float],
        *,
        rank: int = 0,
        size: int = 0,
    ) -> Series:
        """Return values of a metric at ticks as rows of results.parquet."""
        columns = np.array(ticks, dtype=np.int64), np.array(values, dtype=np.float64)
        return Series(*self._row_head, key, metric, rank, size, *columns)


Fields = Mapping[str, Any]


class Pair(NamedTuple):
    """A published number of an answer, and the exact ones, with its `name` on a board.

    `rank` is its place if the answer is a list of the largest, else 0.
    """

    name: str
    rank: int
    published: int
    exact: int
    unbounded: int
    allowed: int  # the published error

    @property
    def error(self) -> int:
        return abs(self.published - self.exact)


class QueryWatch(Watch):
    """Observer of a mechanism that answers queries: order statistics, such as the largest count."""

    def __init__(
        self, run: Run, histogram: ReplayHistogram, view: View, config: HistogramConfig
    ) -> None:
        super().__init__(run, histogram, view)
        self._queries = Queries(config.asked, config.declared)
        # Of each label in the domain, whose order is that of a stream key's rows.
        self._place = {label: i for i, label in enumerate(config.declared)}

    def fill(self, out: Floats, shown: ReleasedTick) -> None:
        """Fill in the errors of the answers: row 0 for all stream keys, then one each."""
        if not isinstance(shown.release, Answers):
            return
        every: list[Pair] = []
        # Of the first stream keys only; all count in the row of all.
        rows = self.rows_of_keys(out)
        for index in range(len(self.view.names)):
            fields: Fields = shown.release.of_key[index]
            pairs = list(self._pairs(index, fields))
            every += pairs
            if index < len(rows):
                row = rows[index]
                self._fill_answers(row, pairs)
                self._fill_labels(row, index, fields)
                errors_by_rank = self.by_rank(row, "error_mean")
                for pair in pairs:
                    if 0 < pair.rank <= self.view.top:
                        errors_by_rank[pair.rank - 1] = pair.error
        self._fill_answers(out[0], every)

    @staticmethod
    def _fill_answers(row: Floats, pairs: Sequence[Pair]) -> None:
        """Fill in the errors of published answers, if there are any."""
        if pairs:
            counts = [(pair.published, pair.exact, pair.unbounded) for pair in pairs]
            fill_errors(row, *np.array(counts).T)
            row[PLACE["within_error"]] = np.mean(
                [pair.error <= pair.allowed for pair in pairs]
            )

    def _fill_labels(self, row: Floats, index: int, fields: Fields) -> None:
        """Fill in how good the labels are that answers name, such as the most frequent one."""
        exact, unbounded = self._exact_counts(index)
        named = [
            [self._place[label] for label in labels]
            for _, labels in _answer_labels(fields)
        ]
        if not named:
            return
        # How much more the true top counts than the labels that are named as the top.
        best = np.sort(exact)
        short = [(best[-len(places) :] - exact[places]).mean() for places in named]
        row[PLACE["shortfall"]] = np.mean(short)
        for suffix, counts in (("", exact), ("_unbounded", unbounded)):
            best = np.sort(counts)
            right = [(counts[places] >= best[-len(places)]).mean() for places in named]
            row[PLACE["recall" + suffix]] = np.mean(right)
            row[PLACE["precision" + suffix]] = np.mean(right)

    def _exact_counts(self, index: int) -> tuple[Longs, Longs]:
        """Return a stream key's exact counts, in the order of the domain, bounded and not."""
        # The truth has a row for every declared label, stream key after stream key.
        d = len(self._place)
        rows = slice(index * d, (index + 1) * d)
        return self.view.counts[rows], self.view.unbounded[rows]

    def _pairs(self, index: int, fields: Fields) -> Iterator[Pair]:
        """Yield the published numbers of a stream key's answers with the exact ones.

        Answers that name labels have none.
        """
        exact, unbounded = map(self._queries.answers, self._exact_counts(index))
        allowed = fields["error"]
        for answer, right, wide in zip(_answers(fields), exact, unbounded, strict=True):
            query = str(answer["query"])
            # Published, exact and unbounded: each is a number, or a list.
            values: tuple[Any, Any, Any] = (
                answer["value"],
                right["value"],
                wide["value"],
            )
            if query == "histogram":
                for (label, published), (_, bounded), (_, without) in zip(
                    *values, strict=True
                ):
                    yield Pair(label, 0, published, bounded, without, allowed)
            elif query.startswith("top_k:"):
                for rank, counts in enumerate(zip(*values, strict=True), start=1):
                    yield Pair(f"{query} {rank}", rank, *counts, allowed)
            elif isinstance(answer["value"], int):
                yield Pair(query, 0, *values, allowed)

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Yield the answers, exact and published, in the order of the queries."""
        if not isinstance(shown.release, Answers):
            return
        for index in range(len(self.view.keys)):
            fields: Fields = shown.release.of_key[index]
            pairs = list(self._pairs(index, fields))
            # Lists of the largest stay in their order, after what is sorted by its exact count.
            pairs.sort(key=lambda pair: 0 if pair.rank else -pair.exact)
            for rank, pair in enumerate(pairs[: 2 * self.view.top], start=1):
                yield self.board_row(
                    shown,
                    index,
                    rank=rank,
                    label=pair.name,
                    exact=pair.exact,
                    exact_unbounded=pair.unbounded,
                    shown=True,
                    released=pair.published,
                )
            exact, unbounded = self._exact_counts(index)
            for query, labels in _answer_labels(fields):
                for rank, label in enumerate(labels[: self.view.top], start=1):
                    row = self._place[label]
                    yield self.board_row(
                        shown,
                        index,
                        rank=rank,
                        label=f"{query}: {label}",
                        exact=int(exact[row]),
                        exact_unbounded=int(unbounded[row]),
                        shown=True,
                        released=None,
                    )


class LabelsWatch(Watch):
    """Observer of `pay_what_you_get`, which names labels at some ticks, without their counts.

    Its board is the last labels that it named.
    """

    def __init__(self, run: Run, histogram: ReplayHistogram, view: View) -> None:
        super().__init__(run, histogram, view)
        # By index of the stream key: the last labels named in this epoch.
        self._last: dict[int, Sequence[str]] = {}

    def on_tick(self, shown: ReleasedTick) -> None:
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self._last = {}
        if isinstance(shown.release, Answers):
            self._last |= _labels_shown(shown.release)
        super().on_tick(shown)

    def shown_rows(self, release: Release | Items | Answers) -> Rows:
        """Return the rows of the labels that this tick names, of all stream keys."""
        if not isinstance(release, Answers):
            return super().shown_rows(release)
        found = [
            self._rows_of(index, labels)
            for index, labels in _labels_shown(release).items()
        ]
        return np.concatenate([_NO_ROWS, *found])

    def _rows_of(self, index: int, labels: Sequence[str]) -> Rows:
        return self.view.rows_of(index, [label.encode() for label in labels])

    def fill(self, out: Floats, shown: ReleasedTick) -> None:
        """Fill in how the last labels named compare with every stream key's exact top."""
        out[0, PLACE["shown"]] = sum(map(len, self._last.values()))
        for index, row in enumerate(self.rows_of_keys(out)):
            if index in self._last:  # it had a query
                self._fill_key(row, index)

    def _fill_key(self, row: Floats, index: int) -> None:
        """Fill in a stream key's metrics, and which items of its exact top were named."""
        view = self.view
        key = view.keys[index]
        labels = self._last[index]
        named = self._rows_of(index, labels)[: view.top]
        exact_top = key.top.rows
        row[PLACE["shown"]] = len(labels)
        self.fill_hits(row, key, named)
        if len(exact_top) > 1:
            # In place of counts, which are not published: the label named first is the largest.
            scores = {item: -rank for rank, item in enumerate(named.tolist())}
            of_top = [scores.get(item, -view.top) for item in exact_top.tolist()]
            row[PLACE["rank_correlation"]] = kendall(
                view.counts[exact_top], np.array(of_top)
            )
        shown = np.isin(exact_top, named)
        self.by_rank(row, "shown_rate")[: len(exact_top)] = shown

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        for index in range(len(self.view.keys)):
            named = self._rows_of(index, self._last.get(index, ())).tolist()
            yield from self.board_rows(shown, index, named, {})


def has_rows_of_truth(config: HistogramConfig) -> bool:
    """Return whether a run reads the columns of its truth, so that both have the same rows.

    Without epochs a run forgets rows, so it counts by itself.
    """
    return config.about.in_ledger and not config.without_epochs


def watch(run: Run, histogram: ReplayHistogram, view: View) -> Watch:
    """Return the observer for the kind of mechanism that a run has."""
    config = run.combination.config
    family = config.about.family
    if family == "statistic":
        return QueryWatch(run, histogram, view, config)
    kind = LabelsWatch if family == "labels" else Watch
    return kind(run, histogram, view)


def _answers(fields: Fields) -> Sequence[Fields]:
    """Return the answers of one stream key: several, or the fields themselves as the only one."""
    return fields.get("answers") or [fields]


def _answer_labels(fields: Fields) -> Iterator[tuple[str, Sequence[str]]]:
    """Yield (query, labels) of every answer that names labels."""
    for answer in _answers(fields):
        query = str(answer["query"])
        value = answer["value"]
        if isinstance(value, str):
            yield query, [value]
        elif query.startswith("top_k_select") and value:
            yield query, value


def _labels_shown(release: Answers) -> dict[int, Any]:
    """Return the labels that a tick names, by index of the stream key."""
    return {
        key: one["labels"] for key, one in release.of_key.items() if "labels" in one
    }
