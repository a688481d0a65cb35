"""Measure runs: metrics of every measured tick, delays over all ticks (docs/results.md).

A `Watch` sees every tick of one series of a run (the counts since an epoch began, or a window), at
almost no cost; at a measured tick it compares the published counts with the exact counts of a
`View`, column by column. Order statistics are compared with the exact answers, `pay_what_you_get`
as a board of labels. *Bounded* counts are those after the histogram's bounds (`max_items`,
`max_count`), to which noise is added; *unbounded* ones are of all events. A board is the list of a
stream key's largest items. The top has those with the largest exact counts, `view.top` at most, and
a rank is a place in it.

Exact counts are kept by row, of the `Truth` of the view: a row is an item of a stream key. A run
has rows of its own, unless its mechanism reads the truth's (`has_rows_of_truth`). It releases rows
with counts (`Release`), labels with counts (`Items`), or answers to queries (`Answers`). A delay is
the number of ticks from when an item's exact count reaches one of SIZES until the item is shown.

The *figures* of a stream key at a tick are its measurements, an array of floats: one for each
metric, at PLACE[metric], then, for each metric in RANKED, one for each rank. NaN: not defined.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows
from workers.arrays.types import Bools, Codes, Floats, Longs
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import with_capacity
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
PLACE = {name: i for i, name in enumerate(METRICS)}
# By rank: the error of its item, and whether that is shown.
RANKED = ("error_mean", "shown_rate")
# For all stream keys together, these and those in RANKED are the mean over the keys.
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
    """The delays of one series, over all epochs: how often each occurred, by size.

    A size is one of the counts SIZES.
    """

    def __init__(self) -> None:
        # By size: how many items reached it; and of those shown, how many had each delay.
        self._passed = np.zeros(len(SIZES), dtype=np.int64)
        self._delays: list[Counter[int]] = [Counter() for _ in SIZES]

    def add(self, reached: Ticks, first: Ticks) -> None:
        """Add a finished epoch, from ticks by row; 0: never.

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
    figures: Floats,
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
        figures[PLACE[f"{name}_mean"]] = size.mean()
        figures[PLACE[f"{name}_rms"]] = math.sqrt(
            np.square(off, dtype=np.float64).mean()
        )
        figures[PLACE[f"{name}_worst"]] = size.max()
    figures[PLACE["error_bias"]] = error.mean()
    if sd is not None:
        figures[PLACE["coverage"]] = _coverage(error, sd)


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


# The published count of an item that is not shown.
_NO_COUNT = np.iinfo(np.int64).min
_NO_ROWS: Rows = np.empty(0, dtype=np.int64)
_NONE_REACHED: Longs = np.empty((0, len(SIZES)), dtype=np.int64)


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
        # The first columns of every row of results and boards: run, seed, histogram.
        self._row_head = run.number, run.seed, self.name
        # How many figures a stream key has at a tick.
        self._width = len(METRICS) + len(RANKED) * view.top
        # Only items that are discovered have delays.
        self._discovers = run.combination.discovers
        self._same_rows = has_rows_of_truth(run.combination.config)
        # If it is not a distance between counts, it says which items deserve to be shown.
        self._threshold_is_count = run.combination.config.threshold_is_count
        self.latest: ReleasedTick | None = None
        #: First and last tick seen, numbered over all epochs, and how many were seen.
        self.first_tick = self.last_tick = self.ticks = 0
        # By measured tick: the figures of all stream keys together, then of each (`fill`).
        self._figures: dict[int, Floats] = {}
        self._boards: dict[int, list[BoardRow]] = {}
        self._delays = Delays()
        # Of this epoch: the last threshold; and by row of the truth, the ticks at which the count
        # reached each size, (rows, sizes), and at which the item was first shown; 0: never.
        self._threshold: int | None = None
        self._reached = _NONE_REACHED
        self._first_shown: NDArray[Any] = _NO_ROWS

    def on_tick(self, shown: ReleasedTick) -> None:
        """Take note of a released tick; `measure` may follow."""
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self.end_epoch()
        self.latest = shown
        self.ticks += 1
        self.last_tick = self.histogram.last_tick
        self.first_tick = self.first_tick or self.last_tick
        release = shown.release
        # A tick that tests no items has no threshold; that of the last test still counts.
        if self._threshold_is_count and release.threshold is not None:
            self._threshold = release.threshold
        if self._discovers:
            truth = self.view.truth
            self._reached = truth.reached(self.view.number)
            if self._same_rows:
                self._first_shown = self.histogram.columns.shown
            else:
                rows = self.shown_rows(release)
                self._first_shown = with_capacity(self._first_shown, truth.columns.n)
                new = rows[self._first_shown[rows] == 0]
                self._first_shown[new] = shown.tick  # of the epoch, unlike `last_tick`

    def shown_rows(self, release: Release | Items | Answers) -> Rows:
        """Return the rows of the items that a release shows."""
        return _NO_ROWS if isinstance(release, Answers) else self._shown(release)[0]

    def end_epoch(self) -> None:
        """Add the epoch's delays to those of earlier epochs, and reset for the next epoch."""
        self._delays.add(self._reached, self._first_shown)
        self._reached = _NONE_REACHED
        self._first_shown = _NO_ROWS
        self._threshold = None

    def measure(self, *, board: bool) -> None:
        """Measure the last tick seen, which must be the view's; keep its boards if `board`."""
        if self.latest is None:
            return
        view = self.view
        # A single stream key has the figures of all together.
        keys = view.keys if len(view.keys) > 1 else []
        out = np.full((1 + len(keys), self._width), np.nan)
        self.fill(out, self.latest)
        counted: list[View | KeyView] = [view, *keys]
        for figures, exact in zip(out, counted, strict=True):
            if exact.total_unbounded:
                figures[PLACE["lost"]] = 1 - exact.total / exact.total_unbounded
        # These are means over the stream keys that have them; the others were filled in above.
        if keys:
            by_rank = range(len(METRICS), self._width)
            for place in [*(PLACE[metric] for metric in OF_KEYS), *by_rank]:
                of_keys = out[1:, place]
                defined = of_keys[~np.isnan(of_keys)]
                out[0, place] = defined.mean() if len(defined) else np.nan
        self._figures[self.last_tick] = out
        if board:
            self._boards[self.last_tick] = list(self.board(self.latest))

    def by_rank(self, figures: Floats, metric: str) -> Floats:
        """Return the figures of a metric of RANKED, one for each rank."""
        first = len(METRICS) + RANKED.index(metric) * self.view.top
        return figures[first : first + self.view.top]

    def figures_of_keys(self, out: Floats) -> Floats:
        """Return the figures of each measured key; a single key has those of all keys together."""
        return out[len(out) - len(self.view.keys) :]

    def fill(self, out: Floats, shown: ReleasedTick) -> None:
        """Fill in a tick's figures: `out[0]` are those of all stream keys, then come each key's.

        With a single stream key there is `out[0]` only.
        """
        view = self.view
        release = shown.release
        if isinstance(release, Answers):
            return
        rows, counts = self._shown(release)
        out[0, PLACE["sd"]] = release.sd
        if release.threshold is not None:
            out[0, PLACE["threshold"]] = release.threshold
        key_of = view.truth.columns.keys[rows]
        new = self._new(rows, shown.tick)
        # For all stream keys together, then for each: which of the shown rows are its own, and a
        # selection of all its rows, shown or not.
        everything = np.ones(len(rows), dtype=np.bool_)
        parts: list[tuple[Bools, Any]] = [(everything, slice(None))]
        if len(out) > 1:
            parts += [(key_of == i, key.rows) for i, key in enumerate(view.keys)]
        for figures, (own, exact_rows) in zip(out, parts, strict=True):
            own_new = None if new is None else new[own]
            self._fill_shown(
                figures, exact_rows, rows[own], counts[own], release.sd, own_new
            )
            self._fill_sums(figures, shown, rows, own)
        # A top belongs to one stream key: `measure` takes the mean over the keys.
        for index, figures in enumerate(self.figures_of_keys(out)):
            own = key_of == index
            self._fill_top(figures, view.keys[index], rows[own], counts[own])

    def _shown(self, release: Release | Items) -> Shown:
        """Return the truth's rows of the items in a release, and their published counts."""
        if isinstance(release, Release):
            if self._same_rows:
                return release.rows, release.counts
            tags = self.histogram.columns.tags.take(release.rows, axis=0)
            return self.view.rows_of_tags(tags), release.counts
        rows = self.view.rows_of_items(release)
        # Labels that never occurred have no row.
        known = rows >= 0
        return rows[known], release.counts[known]

    def _fill_shown(
        self,
        figures: Floats,
        exact_rows: Any,
        rows: Rows,
        counts: Longs,
        sd: float,
        new: Bools | None,
    ) -> None:
        """Fill in the errors of the `counts` shown in `rows`, and the deserving items shown.

        `exact_rows` selects all rows of their stream key; `new` marks the items that are new.
        """
        exact = self.view.counts
        figures[PLACE["shown"]] = len(rows)
        if len(rows):
            fill_errors(figures, counts, exact[rows], self.view.unbounded[rows], sd)
        if new is not None:
            figures[PLACE["shown_new"]] = np.count_nonzero(new)
            if new.any():
                figures[PLACE["coverage_new"]] = _coverage(
                    (counts - exact[rows])[new], sd
                )
        if self._threshold is not None:
            deserving = int((exact[exact_rows] > self._threshold).sum())
            figures[PLACE["deserving"]] = deserving
            if deserving:
                found = int((exact[rows] > self._threshold).sum())
                figures[PLACE["deserving_shown"]] = found / deserving

    def _fill_sums(
        self, figures: Floats, shown: ReleasedTick, rows: Rows, own: Bools
    ) -> None:
        """Fill in the errors of published sums and means, of those in `rows` that are `own`.

        With n an item's count, S its sum in steps above the low end of the range, and R the range
        in steps (`means.steps`), noise is added to the "centred" 2 S - R n (`Release.sums`).
        """
        view = self.view
        release = shown.release
        means = shown.means
        if means is None or not isinstance(release, Release) or release.sums is None:
            return
        # What was never counted has no mean.
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
        figures[PLACE["sum_error_mean"]] = off.mean()
        figures[PLACE["sum_coverage"]] = (off <= COVERED_SD * means.sd(*sds)).mean()
        mean, low, high = means.intervals(published, centred, *sds)
        exact = means.means(counts, sums)
        figures[PLACE["mean_coverage"]] = ((low <= exact) & (exact <= high)).mean()
        # NaN: published counts that are too small for their noise have no mean.
        if (defined := ~np.isnan(mean)).any():
            figures[PLACE["mean_error_mean"]] = np.abs(mean - exact)[defined].mean()

    def _new(self, rows: Rows, tick: int) -> Bools | None:
        """Return which of the shown items are new; None if the mechanism discovers no items.

        Items carried over from the epoch before are never new.
        """
        if not self._discovers:
            return None
        is_new = self._first_shown[rows] > tick - NEW_TICKS
        return np.asarray(is_new & ~np.isin(rows, self.histogram.carried))

    def _fill_top(
        self, figures: Floats, key: KeyView, rows: Rows, counts: Longs
    ) -> None:
        """Fill in how a stream key's published items compare with its exact top, by rank too.

        `rows` are its shown items, `counts` their published counts.
        """
        view = self.view
        best = key.top.rows
        self.fill_hits(figures, key, rows[top_places(rows, counts, view.top)])
        published = np.full(len(view.counts), _NO_COUNT)
        published[rows] = counts
        of_best = published[best]
        is_shown = of_best != _NO_COUNT
        if len(best) > 1:
            # An item that is not shown ranks below all others.
            figures[PLACE["rank_correlation"]] = kendall(view.counts[best], of_best)
        errors = np.where(is_shown, np.abs(of_best - view.counts[best]), np.nan)
        self.by_rank(figures, "error_mean")[: len(best)] = errors
        self.by_rank(figures, "shown_rate")[: len(best)] = is_shown

    def fill_hits(self, figures: Floats, key: KeyView, named: Rows) -> None:
        """Fill in precision and recall of the `named` rows against the exact tops of their key."""
        bounded = (self.view.counts, key.top)
        unbounded = (self.view.unbounded, key.top_unbounded)
        for suffix, (counts, top) in (("", bounded), ("_unbounded", unbounded)):
            # An item that counts as much as the last of the top is as right as that.
            right = int((counts[named] >= top.floor).sum())
            if len(named):
                figures[PLACE["precision" + suffix]] = right / len(named)
            if size := len(top.rows):
                figures[PLACE["recall" + suffix]] = min(right, size) / size

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
        self._figures = {
            tick: figures for tick, figures in self._figures.items() if tick in ticks
        }
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
        ticks = np.array(sorted(self._figures), dtype=np.int64)
        # By stream key and tick. Keys appear over time: NaN at the ticks before.
        most = max(map(len, self._figures.values()), default=1)
        measured = np.full((most, len(ticks), self._width), np.nan)
        for i, tick in enumerate(ticks.tolist()):
            measured[: len(self._figures[tick]), i] = self._figures[tick]
        names = ["", *self.view.names[: most - 1]]
        for key, table in zip(names, measured, strict=True):
            for metric, place in PLACE.items():
                values = table[:, place]
                defined = ~np.isnan(values)
                if defined.any():
                    weight = None
                    if metric in WEIGHTS:
                        weight = table[defined, PLACE[WEIGHTS[metric]]]
                    whole = over_all(metric, values[defined], weight)
                    yield self._series(
                        key, metric, [0, *ticks[defined]], [whole, *values[defined]]
                    )
            for metric in RANKED:
                # Transposed: for each rank, its figures at all ticks.
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
        """Return values of a metric at ticks as rows of results.parquet; 0: no rank, no size."""
        # In the order of the fields.
        columns = np.array(ticks, dtype=np.int64), np.array(values, dtype=np.float64)
        return Series(*self._row_head, key, metric, rank, size, *columns)


Fields = Mapping[str, Any]


class Pair(NamedTuple):
    """A published number of an answer, and the exact ones, with its `name` on a board.

    `rank` is its place if the answer is a list of the largest, else 0; `allowed` is the published
    error.
    """

    name: str
    rank: int
    allowed: int
    published: int
    exact: int
    unbounded: int

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
        """Fill in the errors of the answers: in `out[0]` of all stream keys, then of each."""
        if not isinstance(shown.release, Answers):
            return
        every: list[Pair] = []
        # Only the first stream keys have figures of their own; `out[0]` is of all.
        figures_of_keys = self.figures_of_keys(out)
        for index in range(len(self.view.names)):
            fields: Fields = shown.release.of_key[index]
            pairs = list(self._pairs(index, fields))
            every += pairs
            if index < len(figures_of_keys):
                figures = figures_of_keys[index]
                self._fill_answers(figures, pairs)
                self._fill_labels(figures, index, fields)
                errors_by_rank = self.by_rank(figures, "error_mean")
                for pair in pairs:
                    if 0 < pair.rank <= self.view.top:
                        errors_by_rank[pair.rank - 1] = pair.error
        self._fill_answers(out[0], every)

    @staticmethod
    def _fill_answers(figures: Floats, pairs: Sequence[Pair]) -> None:
        """Fill in the errors of published answers, if there are any."""
        if pairs:
            counts = [(pair.published, pair.exact, pair.unbounded) for pair in pairs]
            fill_errors(figures, *np.array(counts).T)
            figures[PLACE["within_error"]] = np.mean(
                [pair.error <= pair.allowed for pair in pairs]
            )

    def _fill_labels(self, figures: Floats, index: int, fields: Fields) -> None:
        """Fill in how good the labels are that answers name, such as the most frequent one."""
        exact, unbounded = self._exact_counts(index)
        named = [
            [self._place[label] for label in labels]
            for _, labels in _answer_labels(fields)
        ]
        if not named:
            return
        # How much larger the n largest counts are than the counts of the n labels named.
        best = np.sort(exact)
        short = [(best[-len(places) :] - exact[places]).mean() for places in named]
        figures[PLACE["shortfall"]] = np.mean(short)
        for suffix, counts in (("", exact), ("_unbounded", unbounded)):
            best = np.sort(counts)
            right = [(counts[places] >= best[-len(places)]).mean() for places in named]
            # As many are named as belong in the top, so both are the same share.
            figures[PLACE["recall" + suffix]] = np.mean(right)
            figures[PLACE["precision" + suffix]] = np.mean(right)

    def _exact_counts(self, index: int) -> tuple[Longs, Longs]:
        """Return a stream key's exact counts, in the order of the domain, bounded and not."""
        # The truth has a row for every declared label, stream key after stream key.
        d = len(self._place)
        rows = slice(index * d, (index + 1) * d)
        return self.view.counts[rows], self.view.unbounded[rows]

    def _pairs(self, index: int, fields: Fields) -> Iterator[Pair]:
        """Yield the published numbers of a stream key's answers with the exact ones.

        `fields` are those of its snapshot. Answers that name labels have no numbers.
        """
        exact, unbounded = map(self._queries.answers, self._exact_counts(index))
        allowed = fields["error"]
        for answers in zip(_answers(fields), exact, unbounded, strict=True):
            query = str(answers[0]["query"])
            # The published value, the exact one and the unbounded one. A `Pair` ends with these; it
            # begins with its name, rank (0: none) and the error allowed.
            values: list[Any] = [answer["value"] for answer in answers]
            if query == "histogram":  # lists of [label, count]
                for items in zip(*values, strict=True):
                    yield Pair(items[0][0], 0, allowed, *(count for _, count in items))
            elif query.startswith("top_k:"):  # lists of counts, the largest first
                for rank, counts in enumerate(zip(*values, strict=True), start=1):
                    yield Pair(f"{query} {rank}", rank, allowed, *counts)
            elif isinstance(values[0], int):
                yield Pair(query, 0, allowed, *values)

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Yield the answers, exact and published, in the order of the queries."""
        if not isinstance(shown.release, Answers):
            return
        for index in range(len(self.view.keys)):
            fields: Fields = shown.release.of_key[index]
            pairs = list(self._pairs(index, fields))
            # The largest exact number first; then lists of the largest, with ranks, as listed.
            # There may be both, so a board may have up to twice the usual number of rows.
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
        """Take note of a released tick, and of the labels that it names, if any."""
        super().on_tick(shown)
        if isinstance(shown.release, Answers):
            self._last |= _labels_shown(shown.release)

    def end_epoch(self) -> None:
        """Also forget the labels: they are chosen from the counts of one epoch."""
        super().end_epoch()
        self._last = {}

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
        for index, figures in enumerate(self.figures_of_keys(out)):
            # Before a key's first labels in an epoch, nothing is defined.
            if index in self._last:
                self._fill_key(figures, index)

    def _fill_key(self, figures: Floats, index: int) -> None:
        """Fill in a stream key's figures, and which items of its exact top were named."""
        view = self.view
        key = view.keys[index]
        labels = self._last[index]
        named = self._rows_of(index, labels)[: view.top]
        exact_top = key.top.rows
        figures[PLACE["shown"]] = len(labels)
        self.fill_hits(figures, key, named)
        if len(exact_top) > 1:
            # In place of counts, which are not published: the label named first is the largest,
            # and those not named are the smallest.
            scores = {item: -rank for rank, item in enumerate(named.tolist())}
            of_top = [scores.get(item, -view.top) for item in exact_top.tolist()]
            figures[PLACE["rank_correlation"]] = kendall(
                view.counts[exact_top], np.array(of_top)
            )
        shown = np.isin(exact_top, named)
        self.by_rank(figures, "shown_rate")[: len(exact_top)] = shown

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Yield the exact top and the labels named last of every stream key, without counts."""
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
