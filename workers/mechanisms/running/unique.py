"""Unique users of the last W: how many different users had an event with an item, for ever.

    Symbol      Here
    pair        a user and an item; known by its tag, the item's tag xor the user's digest
    a_i(t)      `counts(i)`: pairs of an item whose last event is in window i, ticks b_i(t) + 1..t
    P           `period`: what one user does in one period is protected together
    L_i         levels of window i's noise, which is its own
    K_i         3 * 2^L_i - 2: noise over K_i ticks after another has no node in common with it
    E_i         `memory_of`, r_i + K_i
    K           `rest`, the largest K_i
    overlap     n periods together cost at most min(n, overlap) times what one costs for each

Published of window i: a_i(t) + floor(N_i(t) + 1/2), N_i as in `counters.active`; each window has an
equal part of rho. Labels are hidden, shown and at rest as in `sliding`: a window's test counts what
is in the window.

A user moves a pair's interval in a window, whatever the number of events: a pair is known as its
last event's tick, and is forgotten when that leaves the longest window. `hops.Hops` keeps the
ticks: its rows are pairs here, each with an event in a hop. Where more than half of the pairs are
forgotten, the next step begins with a new state without them.

    mpairs-<block>      pairs in the order met; written when pairs are added
        version, then tags (16 bytes each) and rows (4 bytes each)

Guarantee: docs/decisions/0042-users-without-epochs.md, and T8 of 0036.
"""

import math
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction

import numpy as np

from workers.arrays.number_blocks import add_by_key
from workers.arrays.tag_index import Rows, TagIndex
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bools, Codes, Longs, Tags
from workers.mechanisms.about import RowBytes
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.active import ActiveColumns, ActiveCounter, rest_of
from workers.mechanisms.ledger import (
    FIRST_CAPACITY,
    Contributions,
    Ledger,
    Parts,
    with_capacity,
)
from workers.mechanisms.mechanism import Noise, State, body_of
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.running.hops import Entries, Hops
from workers.mechanisms.running.sliding import (
    LEAST_ROWS,
    Counters,
    Sliding,
    SlidingState,
    WindowNoise,
)
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import read_only

_NAME = re.compile("mpairs-([0-9a-f]{8})")
_VERSION = b"\x01"
# A block has 80 KB.
_BLOCK_PAIRS = 4096
_PAIR_BYTES = 16 + 4
_NONE = read_only(np.empty(0, dtype=np.int64))

Actives = tuple[ActiveCounter, ...]


class Pairs:
    """The pairs of users and items, numbered in the order met, with their last event. Sensitive."""

    def __init__(self) -> None:
        self.n = 0
        # By pair: its tag, the ledger's row of its item, and the tick of its last event.
        self._tags = np.zeros((FIRST_CAPACITY, 2), dtype=np.uint64)
        self._rows = np.zeros(FIRST_CAPACITY, dtype=np.int32)
        self._last = np.zeros(FIRST_CAPACITY, dtype=np.int64)
        self._index = TagIndex()
        # How many of the first pairs are in blocks that `changed` has returned.
        self._stored = 0

    def __repr__(self) -> str:
        return f"Pairs({self.n} pairs)"

    @property
    def rows(self) -> Codes:
        """The ledger's row of each pair's item."""
        return self._rows[: self.n]

    @property
    def last(self) -> Longs:
        """The tick of each pair's last event; 0: not known, as it is in no window."""
        return self._last[: self.n]

    @property
    def nbytes(self) -> int:
        columns = (self._tags, self._rows, self._last)
        return self._index.nbytes + sum(column.nbytes for column in columns)

    def find(self, tags: Tags) -> Rows:
        """Return the pairs of `tags` (n, 2), -1 where unknown."""
        return self._index.find(tags, self._tags)

    def append(self, tags: Tags, rows: Rows) -> Rows:
        """Append pairs of new, distinct tags; return their numbers."""
        first = self.n
        n = first + len(tags)
        self._tags = with_capacity(self._tags, n)
        self._rows = with_capacity(self._rows, n)
        self._last = with_capacity(self._last, n)
        self._tags[first:n] = tags
        self._rows[first:n] = rows
        self._index.enter(n, self._tags)
        self.n = n
        return np.arange(first, n, dtype=np.int64)

    def selected(self, pairs: Rows, new_rows: Longs) -> "Pairs":
        """Return some pairs alone, in this order; `new_rows` has the new number of every row."""
        selection = Pairs()
        selection.append(self._tags.take(pairs, axis=0), new_rows[self._rows[pairs]])
        selection.last[:] = self._last[pairs]
        return selection

    def changed(self) -> Iterator[tuple[str, bytes]]:
        """Yield the blocks with pairs that are not stored yet; then all are taken as stored."""
        if self._stored == self.n:
            return
        # The last stored block may have room for more: it is written again.
        first = self._stored // _BLOCK_PAIRS * _BLOCK_PAIRS
        for begin in range(first, self.n, _BLOCK_PAIRS):
            stop = min(begin + _BLOCK_PAIRS, self.n)
            tags = self._tags[begin:stop].astype("<u8").tobytes()
            rows = self._rows[begin:stop].astype("<u4").tobytes()
            yield f"mpairs-{begin // _BLOCK_PAIRS:08x}", _VERSION + tags + rows
        self._stored = self.n

    def restore(self, blocks: Mapping[str, bytes], rows: int) -> None:
        """Read the blocks of a ledger of `rows` rows; StateRefused if they are damaged."""
        for number, name in enumerate(sorted(blocks)):
            body = body_of(name, blocks[name], _VERSION[0])
            n, rest = divmod(len(body), _PAIR_BYTES)
            # Only the last block may have fewer pairs.
            is_last = number + 1 == len(blocks)
            is_whole = n == _BLOCK_PAIRS or (is_last and 0 < n < _BLOCK_PAIRS)
            if name != f"mpairs-{number:08x}" or rest or not is_whole:
                raise StateRefused(
                    f"stored state: block {name!r} is damaged, or one before it is missing"
                )
            tags = np.frombuffer(body, "<u8", count=2 * n).reshape(-1, 2)
            of_pairs = np.frombuffer(body, "<u4", offset=16 * n).astype(np.int64)
            if of_pairs.max() >= rows or len(np.unique(tags, axis=0)) < n:
                raise StateRefused(f"stored state: block {name!r} is damaged")
            self.append(tags.astype(np.uint64), of_pairs)
        self._stored = self.n


class UniqueState(SlidingState):
    """The items, the pairs, and how many pairs of each item are in each window (sensitive)."""

    def __init__(self, windows: Counters, *, discovers: bool) -> None:
        super().__init__(windows, has_sums=False, discovers=discovers)
        # The rows of hops are pairs. A restart reads from the ages when each had its last event.
        self.hops = Hops(windows, has_sums=False, has_ages=True)
        self.pairs = Pairs()
        # The pairs with an event in the tick that is being merged, message by message.
        self._merged: list[Rows] = []

    @property
    def nbytes(self) -> int:
        return super().nbytes + self.pairs.nbytes

    @property
    def live_pairs(self) -> Bools:
        """Return which pairs are in a window."""
        t = self.hops.tick
        begin = min(window.begin(t) for window in self._windows)
        # At least 0, as pairs in no window may have a `last` of 0.
        return self.pairs.last > max(begin, 0)

    @property
    def wastes(self) -> bool:
        """Return whether there are many pairs, more than half of them in no window."""
        pairs = self.pairs
        return (
            pairs.n >= LEAST_ROWS
            and 2 * int(np.count_nonzero(self.live_pairs)) < pairs.n
        )

    def merge(self, contributions: Parts, *, add_rows: bool) -> None:
        """Note the pairs of user and item in one tick's messages, for `count`.

        Pairs not met before get a number. An item that the ledger lacks gets a row; without
        `add_rows` its pairs are left out.
        """
        for part, key_index in contributions:
            if part.users is None:
                raise TypeError("contributions without users")
            # -1: of a stream key that this process does not serve.
            keys = key_index[part.key_of_row]
            served = np.flatnonzero(keys >= 0)
            item_tags = part.tags.take(served, axis=0)
            # The pairs' tags: see the module.
            tags = readonly_contiguous(item_tags ^ part.users.take(served, axis=0))
            pairs = self.pairs.find(tags)
            self._merged.append(pairs[pairs >= 0])
            new = np.flatnonzero(pairs < 0)
            if not len(new):
                continue
            new = new[_first_of_each(tags.take(new, axis=0))]
            rows = self.ledger.find(item_tags.take(new, axis=0))
            if add_rows and (rows < 0).any():
                self._append_items(part, keys, served[new[rows < 0]])
                rows = self.ledger.find(item_tags.take(new, axis=0))
            has_row = rows >= 0
            added = self.pairs.append(tags.take(new[has_row], axis=0), rows[has_row])
            self._merged.append(added)

    def _append_items(self, part: Contributions, keys: Codes, rows: Longs) -> None:
        """Append to the ledger the items that it lacks, each once.

        They are in `rows` of a message, all of served stream keys. `keys` has the ledger's index of
        the stream key for every row of the message.
        """
        rows = rows[_first_of_each(part.tags.take(rows, axis=0))]
        labels = part.labels.take(rows)
        self.ledger.append(part.tags.take(rows, axis=0), keys[rows], labels)

    def count(self, t: int) -> None:
        """Count what was merged as tick t; pairs without an event in a window leave its counts."""
        tick_before = self.hops.tick
        pairs = self.pairs
        merged = _distinct(self._merged)
        self._merged = []
        last = pairs.last
        last_before = last[merged]
        last[merged] = t
        if self._discovers:
            self.ledger.last[pairs.rows[merged]] = t
        ones = np.ones(len(merged), dtype=np.int64)
        self.hops.add(t, Entries(merged, ones, _NONE), last)
        for i, window in enumerate(self._windows):
            # Pairs that the window did not count before this tick. (Its begin may be below 0.)
            is_new = (last_before == 0) | (last_before <= window.begin(tick_before))
            self._add_pairs(i, merged[is_new], 1)
            # Pairs in hops that leave the window leave it too, if they have no later event.
            left = [entries.rows for entries in self.hops.leaving(i, tick_before)]
            leaving = _distinct(left)
            self._add_pairs(i, leaving[last[leaving] <= window.begin(t)], -1)
        # No hop has these pairs' last ticks any more, so a restart could not read those of their
        # items from hops: the ledger stores them. It needs none for an item with a later event,
        # which another pair has in a hop that is kept.
        for dropped in self.hops.drop(last):
            if self._discovers:
                rows = np.unique(pairs.rows[dropped]).astype(np.int64)
                end = int(last[dropped].max(initial=0))
                self.ledger.last_changed.append(rows[self.ledger.last[rows] <= end])

    def changed(self) -> list[tuple[str, bytes | None]]:
        return [*self.pairs.changed(), *super().changed()]

    def restored(self) -> None:
        """Read pairs and hops, and count all windows again from them."""
        ledger = self.ledger
        # The blocks of pairs; the others are of hops.
        blocks = {
            name: self._blocks.pop(name)
            for name in sorted(self._blocks)
            if _NAME.fullmatch(name)
        }
        self.pairs.restore(blocks, ledger.n)
        last = self.pairs.last
        self.hops.restore(self._blocks, self.pairs.n, last)
        self._blocks = {}
        # An item's last event is the latest of its pairs'.
        if self._discovers:
            np.maximum.at(ledger.last, self.pairs.rows, last)
        self._check_ticks()
        for i, window in enumerate(self._windows):
            # At least 0, as pairs without an event in any window have a `last` of 0.
            begin = max(window.begin(self.hops.tick), 0)
            self._add_pairs(i, np.flatnonzero(last > begin), 1)

    def compacted(self, rows: Rows) -> "UniqueState":
        """Return a state of some rows alone, ascending, and of the pairs that are in a window."""
        compact = UniqueState(self._windows, discovers=self._discovers)
        ledger = self.ledger
        new_rows = np.full(ledger.n, -1, dtype=np.int64)
        new_rows[rows] = np.arange(len(rows))
        # Their items are among `rows`: an item with an event in a window is never forgotten.
        live = np.flatnonzero(self.live_pairs)
        compact.ledger = ledger.selected(rows)
        compact.key_tags = self.key_tags
        compact.pairs = self.pairs.selected(live, new_rows)
        new_pairs = np.full(self.pairs.n, -1, dtype=np.int64)
        new_pairs[live] = np.arange(len(live))
        compact.hops = self.hops.renumbered(new_pairs, compact.pairs.last)
        # The ledger may have rows that have no counts yet.
        self._grow()
        compact._counts = self._counts.take(rows, axis=1)
        return compact

    def _add_pairs(self, i: int, pairs: Rows, sign: int) -> None:
        """Add one for each of the pairs to its item's count in window i; sign -1: subtract it."""
        rows = readonly_contiguous(self.pairs.rows[pairs])
        signs = np.full(len(pairs), sign, dtype=np.int64)
        add_by_key(rows, signs, self.counts(i))


def _first_of_each(tags: Tags) -> Rows:
    """Return the index of the first row of each distinct tag, ascending."""
    order = np.argsort(tags[:, 0], kind="stable")
    first_half = tags[order, 0]
    second_half = tags[order, 1]
    is_new = first_half[1:] != first_half[:-1]
    differs = second_half[1:] != second_half[:-1]
    if (differs & ~is_new).any():
        # Tags of equal first halves, which chance hardly makes: order by both.
        order = np.lexsort((tags[:, 1], tags[:, 0]))
        ordered = tags[order]
        is_new = (ordered[1:] != ordered[:-1]).any(axis=1)
    is_first = np.ones(len(tags), dtype=np.bool_)
    is_first[1:] = is_new
    return np.sort(order[is_first])


def _distinct(parts: list[Rows]) -> Rows:
    """Return the distinct numbers of all parts, ascending; faster than the hashing `np.unique`."""
    rows = np.sort(np.concatenate([_NONE, *parts]))
    is_first = np.ones(len(rows), dtype=np.bool_)
    is_first[1:] = rows[1:] != rows[:-1]
    return rows[is_first]


class UniqueNoise(WindowNoise):
    """The noise of unique users in all windows, each with columns of its own, for one thread."""

    def __init__(self, stream: NoiseStream, windows: Actives) -> None:
        # The noise of counts, sums and totals in `sliding` is not used.
        super().__init__(stream, of_counts=(), of_sums=(), of_totals=())
        self._actives = windows
        self._columns: list[ActiveColumns] = []

    def at(self, t: int, tags: Tags) -> Longs:
        """Return the noise of counts in the first window."""
        return self._actives[0].draw(self._stream, t, tags)

    @property
    def bytes_per_row(self) -> int:
        columns = (ActiveColumns(one, self._stream) for one in self._actives)
        return sum(one.bytes_per_row for one in columns)

    def counts(self, t: int, state: State) -> Longs:
        """Return the noise of the counts of all rows, (windows, n)."""
        ledger = state.ledger
        self._follow(ledger)
        of_windows = [
            columns.at(t, ledger.tags ^ cells_of_window(i))
            for i, columns in enumerate(self._columns)
        ]
        return np.array(of_windows)

    def _follow(self, ledger: Ledger) -> None:
        """Begin new columns if this is another ledger than before: its rows are others."""
        if ledger is not self._ledger:
            self._ledger = ledger
            self._columns = [
                ActiveColumns(window, self._stream) for window in self._actives
            ]


def cells_of_window(i: int) -> Tags:
    """Return what a row's tag is xored with in window i, so that each window has its own noise.

    Noise is AES(tag XOR cell), so this amounts to other cells. These bits are in the level of a
    cell, its first word, above those of any counter's level, so windows share no cell.
    """
    return np.array([i << 40, 0], dtype=np.uint64)


class UniqueUsers(Sliding):
    """Unique users of the last W over an unknown or a declared domain.

    Guarantee: as `Budgeted`, for everything that one user does in one period; n periods cost at
    most min(n, `PrivacyCost.overlap`) n times that. Streams may react as `Sliding` says.
    """

    def _make_counters(self) -> tuple[Fraction, float]:
        """Set a counter for each window, and `rest`; return the overlap of periods, and the cost.

        A user's period may change `max_items` counts in each window, whose noise is its own.
        """
        config = self.config
        windows = len(config.windows)
        items = config.max_items
        share = Fraction(self._cost.rho) / (windows * items)
        rho_item = math.nextafter(float(share), 0.0)
        sizes = zip(config.window_ticks, config.hops, strict=True)
        self._actives = tuple(
            ActiveCounter(window, hop, self.period, rho_item) for window, hop in sizes
        )
        self.windows = self._actives
        self.rest = max(rest_of(window.levels) for window in self._actives)
        spent = Fraction(rho_item) * windows * items
        overlap = max(window.overlap for window in self._actives)
        return overlap, math.nextafter(float(spent), math.inf)

    def memory_of(self, i: int) -> int:
        """Return E_i: window i tests an item at a tick and the E_i - 1 ticks after each event."""
        window = self.windows[i]
        return window.most_ticks + rest_of(window.levels)

    def _periods_in(self, i: int) -> int:
        """Return 1: in a window a user counts once, whatever the periods."""
        return 1

    def _parameters(self) -> Mapping[str, object]:
        counters = [window.public() for window in self.windows]
        return dict(super()._parameters()) | {"counters": counters, "counts": "users"}

    def init(self) -> UniqueState:
        return UniqueState(self.windows, discovers=self._discovers)

    def noise(self, stream: NoiseStream) -> Noise:
        return UniqueNoise(stream, self._actives)

    def _without_forgotten(self, state: SlidingState) -> SlidingState:
        """Return the state, or one without forgotten rows and pairs.

        It drops them if more than half of the rows, or of the pairs (`wastes`), are forgotten.
        """
        kept = super()._without_forgotten(state)
        if kept is state and isinstance(state, UniqueState) and state.wastes:
            return state.compacted(np.flatnonzero(self._is_alive(state)))
        return kept

    def row_bytes(self) -> RowBytes:
        note = "beside these, a user of an item takes 41 to 71 bytes for as long as the longest window"
        return super().row_bytes()._replace(note=note)


def sliding_of(config: HistogramConfig, unit: str) -> Sliding | None:
    """Return the mechanism of a histogram without epochs; None of one with epochs."""
    if not config.without_epochs:
        return None
    return UniqueUsers(config, unit) if config.unique_users else Sliding(config, unit)
