"""What one run is measured by: a row of metrics for each measured tick, delays over all of them (docs/results.md).

A `Watch` sees every tick of one run. Most cost nothing there; at a tick that is measured it compares what was published with the exact
counts of a `View`, column by column.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.backtest.grid import Combination
from workers.backtest.numbers import (
    METRICS,
    PLACE,
    RANKED,
    WEIGHTS,
    Delays,
    Numbers,
    fill_errors,
    fill_unbounded,
    hits,
    over_all,
)
from workers.backtest.results import BoardRow, Series
from workers.backtest.truth import MIRRORED, SIZES
from workers.backtest.view import View, kendall, released_top
from workers.histogram.snapshots import ReleasedTick
from workers.mechanisms.ledger import Ledger, Rows, grown
from workers.mechanisms.mechanism import Answers, Items, Release
from workers.mechanisms.one_shot.algorithms import LIMITED
from workers.mechanisms.one_shot.config import MetaConfig
from workers.replay.stages import ReplayHistogram


class Watch:
    """One run of a histogram that shows counts."""

    #: Whether items come to be shown one after the other, so that there is a delay to measure.
    discovers: bool

    def __init__(self, combination: Combination, seed: int, histogram: ReplayHistogram, view: View) -> None:
        """
        Args:
            combination: what is run.
            seed: of its noise.
            histogram: that runs; its observer is set.
            view: of the exact counts it is held against.
        """
        self.combination, self.seed, self.histogram, self.view = combination, seed, histogram, view
        self.discovers = discovers(combination)
        # Elsewhere a threshold is a distance from another item's count.
        config = combination.config
        self._barred = (config.algorithm if isinstance(config, MetaConfig) else config.mechanism) not in LIMITED
        self.latest: ReleasedTick | None = None
        self.first_tick = self.last_tick = 0
        self.ticks = 0
        self._threshold: int | None = None
        self._rows: dict[int, Numbers] = {}
        self._boards: dict[int, list[BoardRow]] = {}
        self._delays = Delays()
        self._columns: Ledger | None = None
        self._reached: NDArray[np.int64] = np.empty((0, len(SIZES)), dtype=np.int64)
        self._first: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        histogram.observe = self.seen

    # ---- at every tick ---------------------------------------------------------------------------------------------

    def seen(self, shown: ReleasedTick) -> None:
        """Takes what a tick shows."""
        if self.latest is not None and shown.epoch != self.latest.epoch:
            self._end_epoch()
        self.latest = shown
        self.ticks += 1
        self.last_tick = (self.histogram.next or 1) - 1
        self.first_tick = self.first_tick or self.last_tick
        release = shown.release
        if self._barred and not isinstance(release, Answers) and release.threshold is not None:
            self._threshold = release.threshold
        if self.discovers:
            self._columns, self._reached = self.histogram.columns, self.view.truth.reached
            if not self._own_shown:
                rows = self.named(release)
                self._first = grown(self._first, self.view.truth.columns.n)
                self._first[rows[self._first[rows] == 0]] = shown.tick

    @property
    def _own_shown(self) -> bool:
        """Whether the histogram's columns say when a row was first shown."""
        return self.combination.mechanism.kind in MIRRORED

    def named(self, release: Release | Items | Answers) -> Rows:
        """The truth's rows of what is shown."""
        if isinstance(release, Release):
            return release.rows
        if isinstance(release, Items):
            rows = self.view.rows_of_items(release)
            return rows[rows >= 0]
        return np.empty(0, dtype=np.int64)

    def _end_epoch(self) -> None:
        if self.discovers and self._columns is not None:
            first = self._columns.shown if self._own_shown else self._first
            self._delays.add(self._reached, first)
        self._columns, self._first, self._threshold = None, np.empty(0, dtype=np.int64), None

    # ---- at a measured tick ----------------------------------------------------------------------------------------

    def measure(self, board: bool) -> None:
        """Measures the tick that was seen last; the view stands at it.

        Args:
            board: whether its boards are kept as well.
        """
        if self.latest is None:
            return
        keys = self.view.keys
        out = np.full((1 + len(keys), len(METRICS) + len(RANKED) * self.view.top), np.nan)
        self.fill(out, self.latest)
        self._lost(out)
        if len(keys) == 1:
            out[0] = np.where(np.isnan(out[0]), out[1], out[0])
            out = out[:1]
        else:
            of_keys = [
                "recall",
                "precision",
                "recall_unbounded",
                "precision_unbounded",
                "rank_correlation",
                "shortfall",
            ]
            for place in (*(PLACE[name] for name in of_keys), *range(len(METRICS), out.shape[1])):
                defined = out[1:, place][~np.isnan(out[1:, place])]
                out[0, place] = defined.mean() if len(defined) else np.nan
        self._rows[self.last_tick] = out
        if board:
            self._boards[self.last_tick] = list(self.board(self.latest))

    def fill(self, out: Numbers, shown: ReleasedTick) -> None:
        """The metrics of one tick: row 0 of all stream keys together, then of each that is measured."""
        view, release = self.view, shown.release
        if isinstance(release, Answers):
            return
        rows, counts = self._shown_rows(release)
        out[0, PLACE["sd"]] = release.sd
        out[0, PLACE["threshold"]] = math.nan if release.threshold is None else release.threshold
        key_of = view.truth.columns.keys[rows]
        self._errors(out[0], rows, counts, release.sd)
        self._deserving(out[0], None, rows)
        for index, one in enumerate(view.keys):
            alone = one.rows is None
            here = slice(None) if alone else key_of == index
            own_rows, own_counts = rows[here], counts[here]
            row = out[1 + index]
            if not alone:
                self._errors(row, own_rows, own_counts, release.sd)
                self._deserving(row, one.rows, own_rows)
            self._top(row, index, own_rows, own_counts)

    def _shown_rows(self, release: Release | Items) -> tuple[Rows, NDArray[np.int64]]:
        """The truth's rows of what is shown, with the published counts."""
        if isinstance(release, Release):
            return release.rows, release.counts
        rows = self.view.rows_of_items(release)
        known = rows >= 0
        return rows[known], release.counts[known]

    def _errors(self, row: Numbers, rows: Rows, counts: NDArray[np.int64], sd: float) -> None:
        row[PLACE["shown"]] = len(rows)
        if not len(rows):
            return
        error = counts - self.view.counts[rows]
        fill_errors(row, error, sd)
        fill_unbounded(row, counts - self.view.unbounded[rows])

    def _deserving(self, row: Numbers, of_key: Rows | None, shown: Rows) -> None:
        """Of the items above the threshold, how many are shown."""
        if self._threshold is None:
            return
        counts = self.view.counts
        deserving = int(((counts if of_key is None else counts[of_key]) > self._threshold).sum())
        row[PLACE["deserving"]] = deserving
        if deserving:
            row[PLACE["deserving_shown"]] = int((counts[shown] > self._threshold).sum()) / deserving

    def _top(self, row: Numbers, index: int, rows: Rows, counts: NDArray[np.int64]) -> None:
        view, one = self.view, self.view.keys[index]
        named = rows[released_top(rows, counts, view.top)]
        hits(row, "", view.counts[named], one.top.floor, one.top.size)
        hits(row, "_unbounded", view.unbounded[named], one.top_unbounded.floor, one.top_unbounded.size)
        best = one.top.rows
        published = np.full(len(view.counts), np.iinfo(np.int64).min)
        published[rows] = counts
        here = published[best]
        is_shown = here != np.iinfo(np.int64).min
        if len(best) > 1:
            row[PLACE["rank_correlation"]] = kendall(view.counts[best], here)
        first = len(METRICS)
        row[first : first + len(best)] = np.where(is_shown, np.abs(here - view.counts[best]), np.nan)
        row[first + view.top : first + view.top + len(best)] = is_shown

    def _lost(self, out: Numbers) -> None:
        place = PLACE["lost"]
        if self.view.total_unbounded:
            out[0, place] = 1 - self.view.total / self.view.total_unbounded
        for index, one in enumerate(self.view.keys):
            if one.total_unbounded:
                out[1 + index, place] = 1 - one.total / one.total_unbounded

    # ---- boards ----------------------------------------------------------------------------------------------------

    def board(self, shown: ReleasedTick) -> Iterator[BoardRow]:
        """Exact beside published."""
        view, release = self.view, shown.release
        if isinstance(release, Answers):
            return
        rows, counts = self._shown_rows(release)
        key_of = view.truth.columns.keys[rows]
        for index, one in enumerate(view.keys):
            here = np.flatnonzero(key_of == index)
            published = dict(zip(rows[here].tolist(), counts[here].tolist(), strict=True))
            named = rows[here][released_top(rows[here], counts[here], view.top)].tolist()
            yield from self.board_rows(shown, index, one.top.rows.tolist(), named, published)

    def board_rows(
        self, shown: ReleasedTick, index: int, best: Sequence[int], named: Sequence[int], published: dict[int, int]
    ) -> Iterator[BoardRow]:
        """One stream key's exact top, and what else was named.

        Args:
            shown: the tick.
            index: of the stream key.
            best: rows of the exact top, in order.
            named: rows of the published top.
            published: count of each row that has one.
        """
        others = sorted((self.view.rank(index, row), row) for row in set(named).difference(best))
        sd, threshold = self._published(shown)
        for rank, row in [*enumerate(best, start=1), *others]:
            yield BoardRow(
                self.combination.run, self.seed, self.histogram.name, self.view.names[index], self.last_tick, shown.end_ms, rank,
                self.view.label(row), int(self.view.counts[row]), int(self.view.unbounded[row]), row in published or row in named,
                published.get(row), sd, threshold,
            )  # fmt: skip

    @staticmethod
    def _published(shown: ReleasedTick) -> tuple[float | None, int | None]:
        release = shown.release
        return (release.sd, None) if isinstance(release, Answers) else (release.sd, release.threshold)

    # ---- thinning and the end --------------------------------------------------------------------------------------

    def keep(self, ticks: set[int], boards: set[int]) -> None:
        """Forgets the measured ticks, and boards, that are not in these sets."""
        self._rows = {tick: row for tick, row in self._rows.items() if tick in ticks}
        self._boards = {tick: rows for tick, rows in self._boards.items() if tick in boards}

    def finish(self) -> None:
        """No more ticks."""
        self._end_epoch()

    def boards(self) -> Iterator[BoardRow]:
        """Of all ticks that are kept."""
        for _, rows in sorted(self._boards.items()):
            yield from rows

    def series(self) -> Iterator[Series]:
        """All that was measured."""
        ticks = np.array(sorted(self._rows), dtype=np.int64)
        keys = ["", *self.view.names[: max((len(row) for row in self._rows.values()), default=1) - 1]]
        for place, key in enumerate(keys):
            of_key = [
                self._rows[tick][place] if place < len(self._rows[tick]) else self._nothing() for tick in ticks.tolist()
            ]
            table = np.array(of_key).reshape(len(ticks), len(self._nothing()))
            for metric, column in PLACE.items():
                values = table[:, column] if len(ticks) else np.empty(0)
                defined = ~np.isnan(values)
                if defined.any():
                    weight = table[:, PLACE[WEIGHTS[metric]]] if metric in WEIGHTS else None
                    whole = over_all(metric, values[defined], None if weight is None else weight[defined])
                    yield self._one(key, metric, [0, *ticks[defined]], [whole, *values[defined]])
            yield from self._by_rank(key, table)
        yield self._one("", "measured", [0], [len(ticks)])
        for metric, size, value in self._delays.metrics():
            yield self._one("", metric, [0], [value], size=size)

    def _nothing(self) -> Numbers:
        return np.full(len(METRICS) + len(RANKED) * self.view.top, np.nan)

    def _by_rank(self, key: str, table: Numbers) -> Iterator[Series]:
        for i, metric in enumerate(RANKED):
            for rank in range(1, self.view.top + 1):
                values = table[:, len(METRICS) + i * self.view.top + rank - 1] if len(table) else np.empty(0)
                values = values[~np.isnan(values)]
                if len(values):
                    yield self._one(key, metric, [0], [values.mean()], rank=rank)

    def _one(
        self, key: str, metric: str, ticks: Sequence[int], values: Sequence[float], *, rank: int = 0, size: int = 0
    ) -> Series:
        return Series(
            self.combination.run, self.seed, self.histogram.name, key, metric, rank, size,
            np.array(ticks, dtype=np.int64), np.array(values, dtype=np.float64),
        )  # fmt: skip


def discovers(combination: Combination) -> bool:
    """Whether it shows running counts of items it is not told of."""
    kind = combination.mechanism.kind
    return kind in ("unk_base", "pay_what_you_get") or (
        kind in ("meta", "misra_gries") and not combination.mechanism.domain()
    )
