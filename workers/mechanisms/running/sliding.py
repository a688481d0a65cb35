"""UnkBase and KnownBase without epochs: windows that slide for ever, charged once.

    Symbol      Here
    t, b_i(t)   a tick; window i counts ticks b_i(t) + 1..t, `LineCounter.begin`
    r_i, r      `most_ticks` of window i; of the longest one
    L           levels of the noise, which all windows share
    K           `rest`, r + 3 * 2^L - 2 ticks: windows that end later share no noise with a tick
    E_i         `memory_of`, r_i + K
    m_i         `threshold_of`
    D           `watched`, WATCHED times the longest window
    a_i         `_bars`: in D ticks noise alone passes one of them with probability 1 % at most
    P           `period`, ticks of one user that are protected together; 1 where an event is

Published of window i: count + floor(N(t) - N(b_i(t)) + 1/2). A row of an unknown domain is

    hidden      tested at every tick t, for each window i with an event in ticks t - E_i + 1..t:
                its noisy count is above m_i. One yes shows it in all windows
    shown       printed in all windows from this tick on. At multiples of the longest window's
                ticks it leaves if the count printed there is 0 or less
    watched     for D ticks after that: not printed, but shown again once its noisy count in a
                window is above a_i, a lower bar than m_i
    at rest     for K ticks after that: neither printed nor tested. Then it is hidden

A hidden row without an event in the last max E_i ticks is not tested: it may be forgotten, and met
again as if for the first time, with the noise it would have had. Where more than half of the rows
may be forgotten, the next step begins with a new state without them.

Guarantee: docs/decisions/0036-windows-without-epochs.md, with reaches for windows: T2, T3 (cost),
T4 (thresholds), T5 (rest), T6 (forgetting), T9 (sums and totals), T7 (users, by period).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction

import numpy as np

from workers.arrays.number_blocks import (
    GROUP_ROWS,
    add_at_rows,
    add_by_key,
    find_printed,
)
from workers.arrays.tag_index import Rows
from workers.arrays.types import Bools, Longs, Tags
from workers.mechanisms.about import Bound, Data, Figure, RowBytes
from workers.mechanisms.accounting import float_up
from workers.mechanisms.bounds import normal_bound
from workers.mechanisms.budget import Budgeted
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.line import (
    LineColumns,
    LineCounter,
    WindowCounter,
    line_counters,
    overlap_of,
    rest_of,
)
from workers.mechanisms.counters.ranks import RankColumns, RankedLine, ranked_lines
from workers.mechanisms.curves import Curve
from workers.mechanisms.ledger import Ledger, Parts, with_capacity
from workers.mechanisms.mechanism import (
    Noise,
    Noisy,
    Release,
    State,
    WindowReleases,
    expect_type,
    short_hash,
)
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.running.discovery import window_threshold
from workers.mechanisms.running.hops import Entries, Hops, taken_from
from workers.mechanisms.running.on_counters import (
    SUM_CELLS,
    any_stream,
    cached_bytes,
    counters_of_parts,
    describe_parts,
    sd_at,
)
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import read_only

# With fewer rows none are forgotten: they cost less than renumbering does.
LEAST_ROWS = 4096
# Looking through so many counts takes as long as sorting one row.
COUNTS_PER_SORTED_ROW = 256
# A label that left is watched for so many times the longest window: a board of a day knows one that
# is back after a week.
WATCHED = 7
# The probability, at most, with which noise alone shows a watched label again.
WOKEN_BY_NOISE = 0.01
_NONE = read_only(np.empty(0, dtype=np.int64))

Lines = tuple[LineCounter, ...]
Counters = tuple[WindowCounter, ...]


class SlidingState(State):
    """The rows, what windows count of them, and the hops that will leave (sensitive).

    `discovers` says whether labels are unknown. Then a row's last event decides whether it is
    tested, and hops say when that was (`has_ages`). The ledger's own counts and sums are those of
    one tick, until `count` moves them here.
    """

    def __init__(
        self,
        windows: Counters,
        *,
        has_sums: bool,
        discovers: bool,
    ) -> None:
        super().__init__()
        self.hops = Hops(windows, has_sums=has_sums, has_ages=discovers)
        self._windows = windows
        self._has_sums = has_sums
        self._discovers = discovers
        # (windows, capacity): a column for a row of the ledger.
        self._counts = np.zeros((len(windows), 0), dtype=np.int64)
        self._sums = np.zeros((len(windows), 0), dtype=np.int64)
        # How many rows may not be forgotten: they are shown, at rest, or yet to be tested. None
        # before the first step.
        self.alive: int | None = None
        # Stored blocks by name, until `restored`.
        self._blocks: dict[str, bytes] = {}

    @property
    def nbytes(self) -> int:
        return self._counts.nbytes + self._sums.nbytes + self.hops.nbytes

    @property
    def _last(self) -> Longs:
        """The tick of each row's last event; empty if the mechanism discovers nothing."""
        return self.ledger.last if self._discovers else _NONE

    def counts(self, i: int) -> Longs:
        """Return the exact count of every row in window i."""
        self._grow()
        column: Longs = self._counts[i]
        return column[: self.ledger.n]

    @property
    def counts_by_window(self) -> Longs:
        """The counts of all windows, (windows, capacity): beyond the rows they are 0."""
        self._grow()
        return self._counts

    def sums(self, i: int) -> Longs:
        """Return the exact sum of every row in window i, in steps of the setting `sum`."""
        self._grow()
        column: Longs = self._sums[i]
        return column[: self.ledger.n]

    def count(self, t: int) -> None:
        """Count what was merged as tick t; ticks no longer in a window leave its counts."""
        tick_before = self.hops.tick
        entries = self._take_merged()
        last = self._last
        if self._discovers:
            last[entries.rows] = t
        self.hops.add(t, entries, last)
        for i in range(len(self._windows)):
            self._add(i, entries, 1)
            for leaving in self.hops.leaving(i, tick_before):
                self._add(i, leaving, -1)
        # The ledger stores `last` of rows whose hops are gone: see `hops`.
        self.ledger.last_changed += self.hops.drop(last)

    def changed(self) -> list[tuple[str, bytes | None]]:
        return self.hops.changed()

    def restore(self, name: str, block: bytes) -> None:
        """Keep a stored block; `restored` reads all of them, when the ledger is complete."""
        self._blocks[name] = block

    def restored(self) -> None:
        """Read the stored hops, and count all windows again from them."""
        self.hops.restore(self._blocks, self.ledger.n, self._last)
        self._blocks = {}
        self._check_ticks()
        for i in range(len(self._windows)):
            for entries in self.hops.window(i):
                self._add(i, entries, 1)

    def _check_ticks(self) -> None:
        """Raise StateRefused if a row has a tick, as of its last event, that is not counted yet."""
        ledger = self.ledger
        ticks = [ledger.shown]
        if self._discovers:
            ticks += [ledger.last, ledger.left]
        if max(int(column.max(initial=0)) for column in ticks) > self.hops.tick:
            raise StateRefused(
                f"stored state: a row has a tick after {self.hops.tick}, the last one counted"
            )

    def compacted(self, rows: Rows) -> "SlidingState":
        """Return a state of these rows alone, ascending; the others are in no window."""
        compact = SlidingState(
            self._windows, has_sums=self._has_sums, discovers=self._discovers
        )
        ledger = self.ledger
        new_rows = np.full(ledger.n, -1, dtype=np.int64)
        new_rows[rows] = np.arange(len(rows))
        compact.ledger = ledger.selected(rows)
        compact.key_tags = self.key_tags
        compact.hops = self.hops.renumbered(new_rows, compact._last)
        compact._counts = self._counts.take(rows, axis=1)
        if self._has_sums:
            compact._sums = self._sums.take(rows, axis=1)
        return compact

    def _take_merged(self) -> Entries:
        """Return what was merged since the last call, and set the ledger's counts and sums to 0."""
        ledger = self.ledger
        counts = ledger.counts
        # A row is in `counts_changed` once for each message. Find the distinct ones by looking
        # through all counts, or by sorting them, which is faster if they are few.
        merged = sum(map(len, ledger.counts_changed))
        if COUNTS_PER_SORTED_ROW * merged > len(counts):
            rows, taken = taken_from(counts)
        else:
            rows = np.unique(np.concatenate([_NONE, *ledger.counts_changed]))
            taken = counts[rows]
            counts[rows] = 0
        entries = Entries(rows, taken, _NONE)
        ledger.counts_changed = []
        if self._has_sums:
            sums = ledger.sums
            entries = entries._replace(steps=sums[rows])
            for summed in ledger.sums_changed:
                sums[summed] = 0
            ledger.sums_changed = []
        return entries

    def _add(self, i: int, entries: Entries, sign: int) -> None:
        """Add entries to the counts and sums of window i, or with sign -1 subtract them."""
        add_at_rows(self.counts(i), entries.rows, entries.counts, sign)
        if self._has_sums:
            add_at_rows(self.sums(i), entries.rows, entries.steps, sign)

    def _grow(self) -> None:
        """Make room for the rows that the ledger has got."""
        n = self.ledger.n
        self._counts = with_capacity(self._counts, n, axis=1)
        if self._has_sums:
            self._sums = with_capacity(self._sums, n, axis=1)


class _ShownColumns:
    """The noise of sums, for the rows that are shown.

    `LineColumns` is fast for tags that are the same from tick to tick, with new ones only behind
    them, while shown rows leave and return. So it is given the tags of all rows asked for since
    `_start_anew`, in that order, and those that are shown now are picked from its noise.
    """

    def __init__(self, counters: Lines, stream: NoiseStream) -> None:
        self._counters = counters
        self._stream = stream
        self._start_anew()

    def _start_anew(self) -> None:
        """Begin without columns, at first and when most of their rows are no longer shown."""
        self._columns = LineColumns(self._counters, self._stream)
        # The rows of the columns; and, by row, its place among them, or -1.
        self._rows = _NONE
        self._places = np.empty(0, dtype=np.int64)

    def at(self, t: int, tags: Tags, rows: Rows) -> list[Longs]:
        """Return the noise of the sums of `rows`, by window; `tags` are those of all rows."""
        if len(self._rows) > 2 * len(rows) + LEAST_ROWS:
            self._start_anew()
        if more := len(tags) - len(self._places):
            self._places = np.concatenate((self._places, np.full(more, -1)))
        # Rows that have no place in the columns yet get the next ones.
        new = rows[self._places[rows] < 0]
        self._places[new] = np.arange(len(new)) + len(self._rows)
        self._rows = np.concatenate((self._rows, new))
        places = self._places[rows]
        # With `SUM_CELLS` a row's tag names noise other than that of its count.
        drawn = self._columns.at(t, tags[self._rows] ^ SUM_CELLS)
        return [noise[places] for noise in drawn]


class WindowNoise:
    """The noise of counts, sums and totals in all windows, for one thread.

    `of_counts`, `of_sums` and `of_totals` have a counter for each window, or none. What is kept for
    drawing is by row: it begins anew with another ledger, as after `compacted`.
    """

    def __init__(
        self,
        stream: NoiseStream,
        of_counts: Lines,
        of_sums: Lines,
        of_totals: Lines,
    ) -> None:
        self._stream = stream
        self._of_counts = of_counts
        self._of_sums = of_sums
        self._totals = LineColumns(of_totals, stream) if of_totals else None
        ranked = tuple(one for one in of_counts if isinstance(one, RankedLine))
        self._ranks = RankColumns(ranked, stream) if ranked else None
        # The ledger of the rows in `_counts` and `_sums`; `_follow` sets all three.
        self._ledger: Ledger | None = None
        self._counts: LineColumns
        self._sums: _ShownColumns

    @property
    def bytes_per_row(self) -> int:
        """Bytes kept for the noise of a row's counts and sum; totals are of stream keys."""
        # Measure columns made for this: those in use are made with the first ledger.
        sums = 0
        if self._of_sums:
            sums = LineColumns(self._of_sums, self._stream).bytes_per_row
        if self._ranks is not None:
            return self._ranks.bytes_per_row + sums
        return LineColumns(self._of_counts, self._stream).bytes_per_row + sums

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of counts in the first window."""
        return self._of_counts[0].draw(self._stream, t, tags)

    def counts(self, t: int, state: State) -> Longs:
        """Return the noise of the counts of all rows, (windows, n).

        With ranks the rows are the buckets of every stream key, and noise is drawn by stream key.
        """
        if self._ranks is not None:
            return np.array(self._ranks.windows(t, state.key_tags))
        self._follow(state.ledger)
        return self._counts.at(t, state.ledger.tags)

    def sums(self, t: int, ledger: Ledger, rows: Rows) -> list[Longs]:
        """Return by window the noise of the sums of `rows`; only of a histogram with sums."""
        self._follow(ledger)
        return self._sums.at(t, ledger.tags, rows)

    def totals(self, t: int, key_tags: Tags) -> Iterable[Longs]:
        return () if self._totals is None else self._totals.at(t, key_tags)

    def _follow(self, ledger: Ledger) -> None:
        """Begin new columns if the ledger is a new one, with other rows (`compacted`)."""
        if ledger is not self._ledger:
            self._ledger = ledger
            self._counts = LineColumns(self._of_counts, self._stream)
            if self._of_sums:
                self._sums = _ShownColumns(self._of_sums, self._stream)


class Sliding(Budgeted):
    """Windows without epochs over an unknown or a declared domain.

    `windows` are in the order of the settings; `sd`, `curve` and `threshold` are those of the
    longest. Guarantee: as `Budgeted`, once and for ever, on streams that do not react to what is
    published; what else is proved for those that do, 0036 says (T4b).
    """

    # A counter of each window for counts, sums and totals.
    windows: Counters
    _of_counts: Lines = ()
    sum_windows: Lines = ()
    total_windows: Lines = ()
    rest: int

    def __init__(self, config: HistogramConfig, unit: str = "event") -> None:
        """Make counters that the budget pays for, and thresholds and bars for an unknown domain.

        With a declared domain thresholds are None, as all rows are printed, and there are no bars.
        """
        self._discovers = not config.about.whole_domain
        super().__init__(config, unit, discovers=self._discovers)
        self.period = config.user_period or 1
        overlap, spent = self._make_counters()
        self._set_cost(spent, 0.0)  # no sampler has a part in it
        self._cost = replace(self._cost, overlap=float_up(overlap))
        self._longest = max(
            range(len(self.windows)), key=lambda i: self.windows[i].window
        )
        self.watched = WATCHED * self._line.window
        self._thresholds: tuple[int | None, ...] = (None,) * len(self.windows)
        self._bars: tuple[int, ...] = ()
        if self._discovers:
            places = range(len(self.windows))
            self._thresholds = tuple(map(self._compute_threshold, places))
            self._bars = tuple(map(self._compute_bar, places))
        self._threshold = self._thresholds[self._longest]

    def _make_counters(self) -> tuple[Fraction, float]:
        """Set the counters, and `rest`; return the overlap of periods, and what they cost."""
        config = self.config
        counters, spent = counters_of_parts(config, self._cost.rho, self._lines)
        of_counts = counters["counts"]
        self.windows = self._of_counts = of_counts
        self.sum_windows = counters.get("sums", ())
        self.total_windows = counters.get("totals", ())
        # All windows have the same levels, as they share their noise.
        levels = of_counts[0].levels
        self.rest = rest_of(levels, max(window.most_ticks for window in of_counts))
        overlap = Fraction(1)
        if config.user_period is not None:
            overlap = overlap_of(levels, of_counts[0].shortest, self.period)
        return overlap, spent

    def _lines(self, rho_item: float) -> Lines:
        """Return a counter for each window; together they cost at most rho_item a unit change."""
        windows = self.config.window_ticks
        hops = self.config.hops
        if self.config.ranks:
            return ranked_lines(len(self._domain), windows, hops, rho_item)
        return line_counters(windows, hops, rho_item)

    def _compute_threshold(self, i: int) -> int:
        """Return m_i: a window tests an item at most P + E_i - 1 times for the events of a period.

        Every window gets an equal share of delta. A count may have events of one user from all
        periods in the window (docs/decisions/0042-users-without-epochs.md).
        """
        config = self.config
        most_count = config.max_count * self._periods_in(i)
        tests = len(self.windows) * (self.period + self.memory_of(i) - 1)
        return window_threshold(
            self.windows[i], tests, config.max_items, most_count, self.delta_discovery
        )

    def _periods_in(self, i: int) -> int:
        """Return how many periods of a user a window can count; 1 where an event is protected."""
        if self.config.user_period is None:
            return 1
        # A window may begin in the last tick of a period: its other ticks are in later ones.
        other_ticks = self.windows[i].most_ticks - 1
        return 1 + -(-other_ticks // self.period)

    def _compute_bar(self, i: int) -> int:
        """Return a_i, at most m_i, which watched labels of count 0 rarely pass by noise alone.

        Nothing that is promised depends on it.
        """
        # A watched label is looked at once a tick in every window.
        looks = len(self.windows) * self.watched
        bar = window_threshold(
            self.windows[i],
            tests=looks,
            max_items=1,
            max_count=0,
            delta=WOKEN_BY_NOISE,
        )
        return min(bar, self._compute_threshold(i))

    def memory_of(self, i: int) -> int:
        """Return E_i: window i tests an item at a tick and the E_i - 1 ticks after each event."""
        return self.windows[i].most_ticks + self.rest

    def threshold_of(self, i: int) -> int | None:
        """Return the noisy count above which window i shows an item; None: all are shown."""
        return self._thresholds[i]

    @property
    def _line(self) -> WindowCounter:
        """The counter of the longest window."""
        return self.windows[self._longest]

    def sd(self, t: int) -> float:
        return sd_at(self._line, t)

    def _parameters(self) -> Mapping[str, object]:
        """Return what the mechanism's id depends on, beside what all mechanisms have."""
        windows = self.windows
        parameters: dict[str, object] = {
            "windows": [window.window for window in windows],
            "hops": [window.hop for window in windows],
            "counter": shared(windows),
        }
        if self.config.user_period is not None:
            parameters["period"] = {
                "ticks": self.period,
                "overlap": repr(self._cost.overlap),
            }
        if self._discovers:
            delta = repr(self.delta_discovery)
            parameters["discovery"] = {"delta": delta, "schedule": "windows"}
        else:
            domain = repr(sorted(self._domain)).encode()
            parameters["domain"] = short_hash(domain)
        parts = [
            shared(counters) if counters else None
            for counters in (self.sum_windows, self.total_windows)
        ]
        return parameters | describe_parts(self.config, *parts)

    def init(self) -> SlidingState:
        return SlidingState(
            self.windows, has_sums=bool(self.sum_windows), discovers=self._discovers
        )

    def noise(self, stream: NoiseStream) -> Noise:
        return WindowNoise(
            stream, self._of_counts, self.sum_windows, self.total_windows
        )

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, WindowReleases]:
        """Count a tick, test hidden rows, release every window, and let small rows leave.

        They leave at the end: this tick still prints them.
        """
        self._check(t)
        state = expect_type(SlidingState, state)
        drawn = expect_type(WindowNoise, noise)
        state = self._without_forgotten(state)
        state.merge(contributions, add_rows=self._discovers)
        state.count(t)
        of_counts = drawn.counts(t, state)
        n = state.ledger.n
        if self._discovers:
            rows, printed = self._find_printed(state, t, of_counts)
        else:
            rows = np.arange(n, dtype=np.int64)
            printed = state.counts_by_window[:, :n] + of_counts
        sums = self._sums(state, t, rows, drawn)
        totals = self._totals(state, t, drawn)
        releases = tuple(
            Release(
                rows,
                printed[i],
                sd_at(window, t),
                self._thresholds[i],
                sums[i],
                totals[i],
            )
            for i, window in enumerate(self.windows)
        )
        if self._discovers and t % self._line.window == 0:
            leaving = rows[printed[self._longest] <= 0]
            if len(leaving):
                state.ledger.mark_left(leaving, t)
        begins = tuple(window.begin(t) for window in self.windows)
        return state, WindowReleases(releases, begins)

    def _find_printed(
        self, state: SlidingState, t: int, drawn: Longs
    ) -> tuple[Rows, Longs]:
        """Return the rows printed at tick t, after all tests of hidden ones, and what is printed.

        That is their noisy counts, (windows, rows). `drawn` is the noise of all rows, (windows, n).
        """
        ledger = state.ledger
        # Before tests: a watched label that is back is shown without one.
        self._show_watched(state, t, drawn)
        shown = ledger.shown_for(t)
        left = ledger.left
        last = ledger.last
        since = [t - self.memory_of(i) for i in range(len(self.windows))]
        # For the kernel to fill: rows that passed and were hidden, all printed rows, and their
        # noisy counts.
        new = np.empty(ledger.n, dtype=np.int64)
        rows = np.empty(ledger.n, dtype=np.int64)
        noisy = np.empty_like(drawn)
        scratch = np.empty(GROUP_ROWS, dtype=np.int64)
        newly_shown, printed, state.alive = find_printed(
            state.counts_by_window,
            drawn,
            np.array(self._thresholds, dtype=np.int64),
            # A window tests rows with an event after its tick in `since`.
            np.array(since, dtype=np.int64),
            shown,
            left,
            last,
            # Rows that left at this tick or later are not tested.
            self._resting_since(t),
            # Hidden rows without an event after this tick may be forgotten.
            t - self._most_memory,
            scratch,
            new,
            rows,
            noisy,
        )
        if newly_shown:
            ledger.mark_returned(new[:newly_shown].copy(), t)
        # Copies: the buffers are as long as the ledger.
        return rows[:printed].copy(), noisy[:, :printed].copy()

    def _show_watched(self, state: SlidingState, t: int, drawn: Longs) -> None:
        """Show watched labels again whose noisy count in a window is above that window's bar."""
        ledger = state.ledger
        # At least 1: 0 says that a label did not leave.
        rows = np.flatnonzero(ledger.left >= max(1, t - self.watched))
        if not len(rows):
            return
        is_back = np.zeros(len(rows), dtype=np.bool_)
        for i, noise in enumerate(drawn):
            is_back |= state.counts(i)[rows] + noise[rows] > self._bars[i]
        if is_back.any():
            ledger.mark_returned(rows[is_back], t)

    def _resting_since(self, t: int) -> int:
        """Return the tick D + K before t: labels that left then or later are not tested at t.

        They are watched or at rest. At least 1: 0 says that a label did not leave.
        """
        return max(1, t - self.watched - self.rest)

    @property
    def _most_memory(self) -> int:
        return max(map(self.memory_of, range(len(self.windows))))

    def _without_forgotten(self, state: SlidingState) -> SlidingState:
        """Return the state, or one of the rows alive alone if they are fewer than half."""
        ledger = state.ledger
        alive = state.alive
        if alive is None or ledger.n < LEAST_ROWS or 2 * alive >= ledger.n:
            return state
        return state.compacted(np.flatnonzero(self._is_alive(state)))

    def _is_alive(self, state: SlidingState) -> Bools:
        """Return which rows may not be forgotten: shown, watched, at rest or still tested ones."""
        ledger = state.ledger
        if not self._discovers:
            return np.ones(ledger.n, dtype=np.bool_)
        t = state.hops.tick
        alive: Bools = ledger.shown != 0
        alive |= ledger.left >= self._resting_since(t)
        alive |= ledger.last > t - self._most_memory
        return alive

    def _sums(
        self, state: SlidingState, t: int, rows: Rows, drawn: WindowNoise
    ) -> list[Noisy | None]:
        """Return by window the noisy sums of rows, as `Release.sums` has them."""
        summed = self.config.sum
        if summed is None:
            return [None] * len(self.windows)
        of_windows: list[Noisy | None] = []
        for i, noise in enumerate(drawn.sums(t, state.ledger, rows)):
            # 2 S - R n: see `OnCounters`.
            centred = 2 * state.sums(i)[rows] - summed.steps * state.counts(i)[rows]
            of_windows.append(Noisy(centred + noise, sd_at(self.sum_windows[i], t)))
        return of_windows

    def _totals(
        self, state: SlidingState, t: int, drawn: WindowNoise
    ) -> list[Noisy | None]:
        """Return by window the noisy total of every stream key, as in `Release.totals`."""
        if not self.total_windows:
            return [None] * len(self.windows)
        of_windows: list[Noisy | None] = []
        for i, noise in enumerate(drawn.totals(t, state.key_tags)):
            values = noise.copy()
            add_by_key(state.ledger.keys, state.counts(i), values)
            of_windows.append(Noisy(values, sd_at(self.total_windows[i], t)))
        return of_windows

    def curve(self, last: int) -> Curve:
        return self._line.curve()

    def sum_curve(self) -> Curve | None:
        return self.sum_windows[self._longest].curve() if self.sum_windows else None

    def total_curve(self) -> Curve | None:
        return self.total_windows[self._longest].curve() if self.total_windows else None

    def row_bytes(self) -> RowBytes:
        """Return the bytes of a row beside the ledger: its cached noise, counts, sums and ticks."""
        windows = len(self.windows)
        noise = cached_bytes(self.noise(any_stream()))
        # A count in each window, perhaps a sum too, and two ticks (`last` and `left`).
        state = 8 * windows
        if self.sum_windows:
            state *= 2
        return RowBytes(noise=noise, state=state + 16 * self._discovers)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Return the bound on noise in all windows, and that plus the largest threshold."""
        labels = data.items if self._discovers else len(self._domain)
        windows = len(self.windows)
        worst = max(window.worst_variance() for window in self.windows)
        error = normal_bound(worst, labels * data.ticks * windows, beta) + 0.5
        # With a declared domain, nothing is assumed.
        assumes = f"at most {labels:,} labels occur" if self._discovers else ""
        over = f"{labels:,} labels, {data.ticks:,} ticks and {windows} windows"
        source = "docs/decisions/0036-windows-without-epochs.md, T3"
        counts = Bound(
            "counts",
            f"error of every count shown, over {over}",
            assumes,
            beta,
            error,
            source,
        )
        if not self._discovers:
            return (counts,)
        hidden = error + max(m for m in self._thresholds if m is not None)
        text = "true count in a window of an item neither shown nor at rest"
        return counts, Bound("hidden", text, assumes, beta, hidden, source)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        """Yield D and K, how long items that left are watched, then at rest, if any can leave."""
        if self._discovers:
            meaning = "ticks for which an item that left is shown again at a low bar"
            yield Figure("watched", float(self.watched), meaning)
            meaning = "ticks after them for which it cannot return"
            yield Figure("rest", float(self.rest), meaning)


def shared(windows: Counters) -> dict[str, object]:
    """Return the public parameters that the counters of all windows share."""
    # These are each window's own.
    of_one = ("window", "hop")
    public = windows[0].public()
    return {name: value for name, value in public.items() if name not in of_one}
