"""Exact counts that a backtest measures against. Sensitive; nothing here is ever published.

A truth is a histogram whose mechanism adds no noise and shows nothing, with the contributions,
start and epochs of the histograms compared with it. Runs with the same bounds share a truth, and
mechanisms that keep their counts in the ledger (`About.in_ledger`; a table with a row per item and
epoch, `mechanisms.ledger`) read its columns instead of counting again (`ExactLedger`): only their
noise is their own. Histograms without epochs count windows, each for itself, on both sides. A
series is what is published as one: the counts since an epoch began, or a window. A `View` holds the
exact boards, the largest items, of one series at one tick, computed once for all runs. A lane is a
tick grid with bounds, by which events are summed; within a tick, lanes are released in order.

"Bounded" counts are those after the histogram's bounds on an event's items and their counts, to
which noise is added; "unbounded", or "wide", ones are of everything that the events have. A tag is
a keyed hash of (stream key, label), by which an item's row is found.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs, Tags
from workers.events.log_values import AMOUNT_MAX
from workers.mechanisms.accounting import Guarantee, PrivacyCost
from workers.mechanisms.config.histogram import HistogramConfig, Lane
from workers.mechanisms.counters.line import LineCounter, line_counters
from workers.mechanisms.ledger import Contributions, Ledger, Parts, with_capacity
from workers.mechanisms.mechanism import (
    Items,
    Mechanism,
    Noise,
    Release,
    State,
    WindowReleases,
)
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream
from workers.mechanisms.running.sliding import SlidingState
from workers.replay.offline import ReplayHistogram
from workers.runtime.frozen import thawed

# Record the tick at which an item reaches each of these counts.
SIZES = np.array(
    [m * 10**e for e in range(6) for m in (1, 2, 5)] + [10**6], dtype=np.int64
)
ITEMS_UNBOUNDED = (1 << 31) - 1

_EMPTY: Rows = np.empty(0, dtype=np.int64)


class Sizes:
    """When the count of every row (an item) in one series first reached each of SIZES.

    `level`, (capacity,), is how many of SIZES a row has reached; `reached`, (capacity, sizes), has
    the tick of the epoch at which it first reached each, or 0.
    """

    def __init__(self) -> None:
        self.level = np.zeros(0, dtype=np.int8)
        self.reached = np.zeros((0, len(SIZES)), dtype=np.int64)

    def record(self, counts: Longs, rows: Rows, t: int) -> None:
        """Note tick t for every size that the counts of `rows` have reached since the last call.

        `counts` has those of all rows; `rows` are those that have changed.
        """
        self.level = with_capacity(self.level, len(counts))
        self.reached = with_capacity(self.reached, len(counts))
        # A count equal to a size has reached it.
        levels = np.searchsorted(SIZES, counts[rows], side="right").astype(np.int8)
        risen = levels > self.level[rows]
        rows = rows[risen]
        levels = levels[risen]
        if not len(rows):
            return
        old_levels = self.level[rows]
        for size in range(int(old_levels.min()), int(levels.max())):
            self.reached[rows[(old_levels <= size) & (size < levels)], size] = t
        self.level[rows] = levels


class TruthState(State):
    """Exact columns of an epoch; `sizes` has those of its only series."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = (Sizes(),)


class TruthWindows(SlidingState):
    """Exact columns of windows, of every label ever met: no row is forgotten.

    `sizes` has those of each window.
    """

    def __init__(self, windows: tuple[LineCounter, ...]) -> None:
        super().__init__(windows, has_sums=False, discovers=False)
        self.sizes = tuple(Sizes() for _ in windows)


class Exact(Mechanism, shared=False):
    """Exact counts with the interface of a mechanism, so that a histogram can keep them.

    Unlike a mechanism it has a state, so threads do not share it.
    """

    kind = "exact"
    law = "none"
    _unit = "none"
    # Nothing is promised.
    _cost = PrivacyCost(float("inf"), float("inf"), 1.0)

    def __init__(
        self,
        domain: Sequence[bytes],
        *,
        per_tick: bool,
        sizes: bool,
        windows: tuple[LineCounter, ...] = (),
    ) -> None:
        """Count the labels in `domain` (empty: all), from 0 every tick if `per_tick`.

        `sizes`: record when they reach SIZES. With `windows` each of these is counted, and there
        are no epochs.
        """
        self._domain = tuple(domain)
        self._per_tick = per_tick
        self._sizes = sizes
        self._windows = windows
        # Of the running epoch.
        self.state: TruthState | TruthWindows = self.init()

    @property
    def guarantee(self) -> Guarantee:
        """Return what every mechanism has; it is infinite, as exact counts are never published."""
        cost = self._cost
        return Guarantee(
            unit=self._unit, rho=cost.rho, epsilon=cost.epsilon, delta=cost.delta
        )

    def public(self) -> Mapping[str, object]:
        return {"mechanism": self.kind}

    def sd(self, t: int) -> float:
        return 0.0

    def threshold(self, t: int) -> None:
        return None

    def init(self) -> TruthState | TruthWindows:
        windows = self._windows
        self.state = TruthWindows(windows) if windows else TruthState()
        return self.state

    def noise(self, stream: NoiseStream) -> Noise:
        return _NoNoise()

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release | WindowReleases]:
        """Count a tick's contributions exactly; release nothing."""
        # No rows, no counts, an sd of 0, no threshold.
        nothing = Release(_EMPTY, _EMPTY, 0.0, None)
        ledger = state.ledger
        if self._per_tick:
            ledger.counts[:] = 0
        state.merge(contributions, add_rows=not self._domain)
        changed_rows = ledger.counts_changed
        if isinstance(state, TruthWindows):
            # Moves the counts of this tick, which are in the ledger, to those of the windows.
            state.count(t)
            self._record_sizes(changed_rows, t)
            begins = tuple(window.begin(t) for window in self._windows)
            return state, WindowReleases((nothing,) * len(begins), begins)
        self._record_sizes(changed_rows, t)
        # A truth is not stored, so what has changed is forgotten at once.
        ledger.counts_changed = []
        return state, nothing

    def _record_sizes(self, changed_rows: Sequence[Rows], t: int) -> None:
        """Note the sizes that rows counted in tick t have reached, in every series."""
        if not self._sizes:
            return
        for number, sizes in enumerate(self.state.sizes):
            counts = self.state.counts(number)
            for rows in changed_rows:
                sizes.record(counts, rows, t)


class _NoNoise:
    def at(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)


class ExactLedger(Ledger):
    """The ledger of a run that reads the columns of a truth, which has already counted the tick.

    Only the column `shown`, when an item first appeared, is the run's own.
    """

    def __init__(self, truth: Ledger) -> None:
        super().__init__()
        self._truth = truth

    def _sync(self) -> None:
        """Take over the truth's arrays, which are replaced whenever they grow.

        Only `shown` is its own; it needs room for as many rows.
        """
        truth = self._truth
        self.n = truth.n
        self._tags = truth._tags
        self._keys = truth._keys
        self._counts = truth._counts
        self._ends = truth._ends
        self._text = truth._text
        self._index = truth._index
        shown: NDArray[Any] = self._shown
        self._shown = with_capacity(shown, self.n)

    def append(self, tags: Tags, keys: Codes, labels: Texts) -> Rows:
        """Return the rows of items; those that the truth lacks are added to it, with count 0.

        It lacks items that a mechanism carries over into an epoch in which they have not occurred.
        """
        absent = np.flatnonzero(self._truth.find(tags) < 0)
        if len(absent):
            of_absent = labels.take(absent)
            self._truth.append(tags.take(absent, axis=0), keys[absent], of_absent)
        self._sync()
        return self.find(tags)

    def merge(
        self, contributions: Contributions, key_index: Codes, *, add_rows: bool
    ) -> None:
        """Count nothing: the truth has counted these contributions."""
        self._sync()


class Mirrored:
    """A mechanism whose states read a truth's columns instead of counting themselves.

    Everything but `init`, which makes a state, is taken from `mechanism`.
    """

    def __init__(self, mechanism: Mechanism, truth: ReplayHistogram) -> None:
        self._mechanism = mechanism
        self._truth = truth

    def __getattr__(self, name: str) -> Any:
        return getattr(self._mechanism, name)

    def init(self) -> State:
        state = self._mechanism.init()
        state.ledger = ExactLedger(self._truth.columns)
        return state


class Truth(ReplayHistogram):
    """The exact counts of histograms with equal bounds, as a histogram that publishes nothing."""

    mechanism: Exact

    @property
    def names(self) -> list[str]:
        return self._keys

    def counts(self, number: int) -> Longs:
        """Return the exact count of every row in series `number`."""
        return self.mechanism.state.counts(number)

    def reached(self, number: int) -> Longs:
        """Return, by row and size, the tick at which series `number` first reached it, or 0."""
        return self.mechanism.state.sizes[number].reached[: self.columns.n]


def with_cache(mechanism: Mechanism) -> Mechanism:
    """Return a copy, for one thread, that remembers its last `sd` and `threshold`.

    All seeds ask for those of the same tick. Recomputing them would take a third of a seed's time.
    """
    own = thawed(mechanism)
    for name in ("sd", "threshold"):
        setattr(own, name, lru_cache(maxsize=1)(getattr(mechanism, name)))
    return own


def unbounded(lane: Lane) -> Lane:
    """Return the lane of the same ticks without bounds.

    Among the lanes of a tick that read the same fields, a merge releases it last, as it orders them
    by `split`, then by sketches and bounds. So all runs can be measured against it.
    """
    return Lane(
        lane.tick_ms,
        lane.start_ms,
        ITEMS_UNBOUNDED,
        AMOUNT_MAX,
        view=lane.view,
        split=lane.split + 1,
    )


def truth_of(
    config: HistogramConfig,
    key: NoiseKey,
    domain: Sequence[bytes],
    *,
    lane: Lane,
    sizes: bool,
) -> Truth:
    """Return the exact counts for `config`, bounded by `lane`.

    They are of the labels in `domain` (empty: of all). `sizes`: record when they reach SIZES. `key`
    is that of the tags only: there is no noise.
    """
    plain = msgspec.structs.replace(config, sum=None)
    windows: tuple[LineCounter, ...] = ()
    if config.without_epochs:
        # Only their ticks and hops matter: without noise any rho will do.
        windows = line_counters(config.window_ticks, config.hops, 1.0)
    else:
        # With epochs, `windows` describe noise, of which exact counts have none.
        plain = msgspec.structs.replace(plain, windows=())
    per_tick = config.about.family == "tick"
    exact = Exact(domain, per_tick=per_tick, sizes=sizes, windows=windows)
    # It neither draws noise nor publishes, so names and events, which enter both, do not matter.
    truth = Truth(
        plain,
        exact,
        key=key,
        worker="",
        topic="",
        stream="truth",
        events={},
        owner=(0, 1),  # number 0 of 1
    )
    truth.lane = lane
    truth.sum_lane = None
    truth.written = False
    return truth


# Number of stream keys, from the first, that are measured individually.
KEYS_MAX = 8


class Top(NamedTuple):
    """At most n rows with the largest counts, all above 0, the largest first.

    `floor` is the count with which an item is as large as one of them: that of the last row, 1 if
    there is none.
    """

    rows: Rows
    floor: int


class KeyView(NamedTuple):
    """Exact figures of one stream key; the totals are of all its items.

    `rows`: its rows in the bounded truth, None if it is the only key. `top` has rows of the bounded
    truth, `top_unbounded` those of the unbounded truth: the same item has another row there.
    """

    rows: Rows | None
    top: Top
    top_unbounded: Top
    total: int
    total_unbounded: int


class View:
    """Exact counts of a series, bounded and unbounded, at the last tick that both have counted."""

    def __init__(
        self, truth: Truth, wide: Truth, key: NoiseKey, top: int, number: int = 0
    ) -> None:
        """Compare with bounded counts, `truth`, whose rows are those here, and unbounded, `wide`.

        `number` is the series' place among those of its histogram, `top` the n of the top n, and
        `key` that of the tags.
        """
        self.number = number
        self.truth = truth
        self._wide = wide
        self._key = key
        self.top = top
        #: All stream keys by index, including those not measured individually.
        self.names: Sequence[str] = truth.names
        # The ledgers of the epoch, and the row in the unbounded one of each row here, found once.
        self._columns: Ledger | None = None
        self._wide_columns: Ledger | None = None
        self._wide_rows = _EMPTY
        # By row: the exact count, bounded and not.
        self.counts = _EMPTY
        self.unbounded = _EMPTY
        self.keys: list[KeyView] = []
        self.total = self.total_unbounded = 0

    def update(self) -> None:
        """Take the counts of the tick that both truths have counted last, and the tops of it."""
        columns = self.truth.columns
        wide = self._wide.columns
        # An epoch has ledgers of its own, so rows of the one before mean nothing.
        if columns is not self._columns or wide is not self._wide_columns:
            self._columns = columns
            self._wide_columns = wide
            self._wide_rows = _EMPTY
        wide_rows = np.full(columns.n, -1, dtype=np.int64)
        wide_rows[: len(self._wide_rows)] = self._wide_rows
        missing = np.flatnonzero(wide_rows < 0)
        wide_rows[missing] = wide.find(columns.tags[missing])
        # Still -1: labels that have not occurred, declared or carried over.
        self._wide_rows = wide_rows
        self.counts = self.truth.counts(self.number)
        wide_counts = self._wide.counts(self.number)
        self.unbounded = np.zeros_like(self.counts)
        if wide.n:
            self.unbounded = np.where(wide_rows >= 0, wide_counts[wide_rows], 0)
        self.total = int(self.counts.sum())
        self.total_unbounded = int(wide_counts.sum())
        self.keys = []
        for index in range(min(len(self.names), KEYS_MAX)):
            rows, top, total = self._of_key(columns, self.counts, index)
            _, top_unbounded, total_unbounded = self._of_key(wide, wide_counts, index)
            self.keys.append(KeyView(rows, top, top_unbounded, total, total_unbounded))

    def _of_key(
        self, columns: Ledger, counts: Longs, index: int
    ) -> tuple[Rows | None, Top, int]:
        """Return a stream key's rows (None: it is the only key), its top and its total.

        `columns` and `counts` are those of the bounded or of the unbounded truth, `index` the key.
        """
        rows = None if len(self.names) == 1 else np.flatnonzero(columns.keys == index)
        counted = np.flatnonzero(counts > 0) if rows is None else rows[counts[rows] > 0]
        best = counted[top_places(counted, counts[counted], self.top)]
        floor = int(counts[best[-1]]) if len(best) else 1
        return rows, Top(best, floor), int(counts[counted].sum())

    def rows_of_tags(self, tags: Tags) -> Rows:
        """Return the rows of keyed tags; -1 for an item without a row."""
        return self.truth.columns.find(tags)

    def rows_of(self, index: int, labels: Sequence[bytes]) -> Rows:
        """Return the rows of labels of one stream key; -1 for a label without a row."""
        return self.rows_of_tags(self._key.tags(self.names[index], labels))

    def rows_of_items(self, items: Items) -> Rows:
        """Return the rows of published items, -1 for an item without a row."""
        rows = np.full(len(items.counts), -1, dtype=np.int64)
        for index in np.unique(items.keys).tolist():
            here = np.flatnonzero(items.keys == index)
            rows[here] = self.rows_of(index, [items.labels[i] for i in here.tolist()])
        return rows

    def rank(self, index: int, row: int) -> int:
        """Return a row's rank by exact count within its stream key, from 1."""
        rows = self.keys[index].rows
        counts = self.counts if rows is None else self.counts[rows]
        numbers = np.arange(len(counts)) if rows is None else rows
        count = self.counts[row]
        larger = np.count_nonzero(counts > count)
        equal_before = np.count_nonzero((counts == count) & (numbers < row))
        return int(larger + equal_before) + 1


def top_places(rows: Rows, counts: Longs, n: int) -> Rows:
    """Return the places in `rows` of the n largest counts, largest first, ties by row.

    `counts` has those of `rows`.
    """
    places = np.arange(len(rows))
    if len(rows) > n:
        least = np.partition(counts, len(rows) - n)[len(rows) - n]
        places = np.flatnonzero(counts >= least)
    return places[np.lexsort((rows[places], -counts[places]))][:n]


def kendall(exact: Longs, published: Longs) -> float:
    """Return Kendall's tau-b of two columns, how far they agree in order, from -1 to 1.

    It is nan if either is all ties.
    """
    a = _comparisons(exact)
    b = _comparisons(published)
    untied_a = int(np.abs(a).sum())
    untied_b = int(np.abs(b).sum())
    scale = math.sqrt(untied_a * untied_b)
    return int((a * b).sum()) / scale if scale else math.nan


def _comparisons(values: Longs) -> Longs:
    """Return, for every pair of n values, 1 if the first is larger, -1 if the second is: (n, n)."""
    firsts = values[:, None]
    seconds = values[None, :]
    # Not as the sign of a difference, which could overflow.
    return (firsts > seconds).astype(np.int64) - (firsts < seconds)
