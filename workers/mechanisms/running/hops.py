"""What was counted in the last ticks of a histogram without epochs, while a window needs it.

    level     of hops of g ticks: 1, then the hops of all windows, ascending. All are powers of
              two, so a hop of one level is a number of whole hops of the level below
    hop j     of a level: ticks j g + 1 .. (j + 1) g. It is closed, and sums up those below it, once
              its last tick is counted; a tick is a hop of level 0, closed at once
    t, b_i    the last tick counted; window i counts ticks b_i + 1..t, b_i a multiple of its hop

A level keeps the closed hops in its windows, and those in the open hop of the level above. So a
window is its level's hops, then those of the levels below that are in the open hop, down to ticks.
When b_i moves, the hops before it leave the window: what was counted in a tick leaves with that
tick, whatever the times of its events.

A hop is its block from the beginning, here and where it is stored: written once, and deleted once
it is dropped. Hops without rows have none. Sensitive.

    mhead               version, t, and the number of hops of each level     written at every tick
    m<level>-<hop>      one hop, in hexadecimal
        version, rows (uint32), a code of each column (c = 0..3: numbers of 2^c bytes; 255: absent),
        then the columns (`number_blocks.pack`):
        gaps            the first row, and how far each row is from the one before
        counts          above 0
        ages            above level 0: last tick of the hop less the last tick with an event in it
        steps           with sums

`Ledger.last`, the tick of a row's last event, is stored only when the highest level drops the hop
in which it lies: before that it is the latest of what the row's hops say. So a tick writes what it
adds, and not a block of 1,024 rows for each row.
"""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from workers.arrays.number_blocks import add_at_rows, pack, take_counts, unpack
from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs
from workers.mechanisms.counters.line import WindowCounter
from workers.mechanisms.mechanism import unknown_block
from workers.runtime.errors import StateRefused
from workers.runtime.frozen import read_only

HEAD = "mhead"
_NAME = re.compile("m([0-9a-f]{2})-([0-9a-f]{11})")
_VERSION = 1
# Version, rows, width codes: of gaps, counts, ages and steps.
_HOP = struct.Struct("<BI4B")
# In place of a width code: there is no such column.
_ABSENT = 255
_NONE = read_only(np.empty(0, dtype=np.int64))
_MOST_TICKS = 1 << 40


class Entries(NamedTuple):
    """Rows, ascending, and what was counted in each. Sensitive: its repr shows none of it."""

    rows: Rows
    counts: Longs  # above 0
    steps: Longs  # the sums of a histogram with `sum`, in its steps; else empty

    def __repr__(self) -> str:
        return f"Entries({len(self.rows)} rows)"


def encode(entries: Entries, ages: Longs) -> bytes:
    """Return the block of a hop; `ages` are as in the module, empty at level 0."""
    gaps = entries.rows.copy()
    gaps[1:] -= entries.rows[:-1]
    codes = []
    parts = []
    for column in (gaps, entries.counts, ages, entries.steps):
        code, packed = pack(column)
        codes.append(code if len(column) else _ABSENT)
        parts.append(packed)
    return _HOP.pack(_VERSION, len(gaps), *codes) + b"".join(parts)


def decode(block: bytes) -> tuple[Entries, Longs]:
    """Return the entries of a block that `encode` made, and their ages (or none)."""
    _version, rows, *codes = _HOP.unpack_from(block)
    columns = []
    begin = _HOP.size
    for code in codes:
        if code == _ABSENT:
            columns.append(_NONE)
            continue
        columns.append(unpack(code, block, count=rows, offset=begin))
        begin += rows << code
    gaps, *others = columns
    counts, ages, steps = (column.astype(np.int64) for column in others)
    return Entries(np.cumsum(gaps, dtype=np.int64), counts, steps), ages


def read(
    name: str, block: bytes, *, rows: int, hop: int, has_ages: bool, has_sums: bool
) -> tuple[Entries, Longs]:
    """Decode the stored block `name`, of a hop of `hop` ticks and a ledger of `rows` rows.

    Raise StateRefused if no such block can have these bytes.
    """
    if block[:1] != bytes((_VERSION,)):
        raise StateRefused(
            f"stored state: block {name!r} is damaged or of another version"
        )
    damaged = StateRefused(f"stored state: block {name!r} is damaged or cut short")
    if len(block) < _HOP.size:
        raise damaged
    _version, n, *codes = _HOP.unpack_from(block)
    present = [code != _ABSENT for code in codes]
    widths = [code for code in codes if code != _ABSENT]
    size = _HOP.size + sum(n << width for width in widths if width <= 3)
    if present != [True, True, has_ages, has_sums] or max(widths) > 3:
        raise damaged
    if not 1 <= n <= rows or len(block) != size:
        raise damaged
    entries, ages = decode(block)
    gaps = np.diff(entries.rows)
    if entries.rows[0] < 0 or entries.rows[-1] >= rows or gaps.min(initial=1) < 1:
        raise damaged
    if entries.counts.min() < 1 or entries.steps.min(initial=0) < 0:
        raise damaged
    if ages.min(initial=0) < 0 or ages.max(initial=0) >= hop:
        raise damaged
    return entries, ages


class _Level:
    """The closed hops of `hop` ticks, as blocks, and the windows that begin at multiples of it."""

    def __init__(self, hop: int) -> None:
        self.hop = hop
        self.windows: list[WindowCounter] = []
        # By number, ascending.
        self.hops: dict[int, bytes] = {}

    def begin(self, t: int) -> int:
        """Return after which tick the longest window of this level counts at tick t.

        t if no window begins at multiples of this hop.
        """
        return min((window.begin(t) for window in self.windows), default=t)


class Hops:
    """The closed hops of all levels, from which windows are counted, and subtracted from.

    `has_ages`: whether hops say when each of their rows had its last event.
    """

    def __init__(
        self, windows: Sequence[WindowCounter], *, has_sums: bool, has_ages: bool
    ) -> None:
        """Begin without hops; `has_sums` and `has_ages` say which columns they will have."""
        # t, the last tick counted.
        self.tick = 0
        self._has_sums = has_sums
        self._has_ages = has_ages
        self._levels = [
            _Level(hop) for hop in sorted({1, *(window.hop for window in windows)})
        ]
        # Version, t, and the number of hops of each level.
        self._head = struct.Struct(f"<BQ{len(self._levels)}I")
        # By window: the place of its level in `_levels`, from here on called its height.
        self._level_of: list[int] = []
        hops = [level.hop for level in self._levels]
        for window in windows:
            height = hops.index(window.hop)
            self._levels[height].windows.append(window)
            self._level_of.append(height)
        self._windows = tuple(windows)
        # Blocks to store, and to delete (None), since `changed` was last called.
        self._changes: dict[str, bytes | None] = {}
        self._stored_tick = 0

    def __repr__(self) -> str:
        return f"Hops(tick={self.tick}, {self.number} hops)"

    @property
    def number(self) -> int:
        return sum(len(level.hops) for level in self._levels)

    @property
    def nbytes(self) -> int:
        """The bytes of all blocks of hops, as they are in memory."""
        return sum(
            len(block) for level in self._levels for block in level.hops.values()
        )

    def add(self, t: int, entries: Entries, last: Longs) -> None:
        """Count tick t; `last` has every row's last tick with an event, t included."""
        tick_before = self.tick
        self.tick = t
        # A tick is a hop of level 0; hops are numbered from 0, ticks from 1.
        if len(entries.rows):
            self._keep(0, t - 1, encode(entries, _NONE))
        # From below: a level adds up the hops of the one below.
        for height in range(1, len(self._levels)):
            self._close(height, tick_before, last)

    def leaving(self, i: int, before: int) -> Iterator[Entries]:
        """Yield the hops that leave window i as it moves on from tick `before` to the last one."""
        window = self._windows[i]
        hops = self._levels[self._level_of[i]].hops
        # By number: those from the old beginning of the window to the new one.
        begin = window.begin(before) // window.hop
        end = window.begin(self.tick) // window.hop
        # Usually few, but after a long time without ticks far more than there are hops.
        numbers = range(begin, end) if end - begin <= len(hops) else sorted(hops)
        for number in numbers:
            if begin <= number < end and number in hops:
                yield decode(hops[number])[0]

    def drop(self, last: Longs) -> list[Rows]:
        """Drop the hops that no window needs any more.

        Returns the rows whose last tick with an event, `last` (rows,), lay in a dropped hop and so
        cannot be read back from hops: the ledger must store it.
        """
        undated = []
        highest = len(self._levels) - 1
        for height, level in enumerate(self._levels):
            # The number of the first hop still needed: by a window, or to be summed up in the open
            # hop of the level above.
            least = level.begin(self.tick) // level.hop
            if height < highest:
                upper = self._levels[height + 1]
                opened = self.tick // upper.hop * upper.hop
                least = min(least, opened // level.hop)
            # Ascending.
            for number in list(level.hops):
                if number >= least:
                    break
                block = level.hops.pop(number)
                name = _name(height, number)
                # A block that was never stored need be neither stored nor deleted.
                if self._changes.pop(name, None) is None:
                    self._changes[name] = None
                # Of lower levels, a hop of the level above still has the ages.
                if self._has_ages and height == highest:
                    rows = decode(block)[0].rows
                    undated.append(rows[last[rows] <= (number + 1) * level.hop])
        return undated

    def window(self, i: int) -> Iterator[Entries]:
        """Yield the hops that together are all that window i counts; a row may be in several.

        That is the closed hops of its own level, then of each level below those in the open hop.
        """
        begin = self._windows[i].begin(self.tick)
        height = self._level_of[i]
        # Each level continues where the closed hops of the one above end.
        for level in reversed(self._levels[: height + 1]):
            end = self.tick // level.hop * level.hop
            for number, block in level.hops.items():
                if begin <= number * level.hop < end:
                    yield decode(block)[0]
            begin = end

    def renumbered(self, new_rows: Longs, last: Longs) -> "Hops":
        """Return these hops for a ledger whose rows have other numbers; all are yet to be stored.

        `new_rows` has the new number of every old row, and keeps the order; every row in a hop has
        one. `last` is by new number.
        """
        hops = Hops(self._windows, has_sums=self._has_sums, has_ages=self._has_ages)
        hops.tick = self.tick
        for height, level in enumerate(self._levels):
            for number, block in level.hops.items():
                entries = decode(block)[0]
                moved = entries._replace(rows=new_rows[entries.rows])
                ages = self._ages(height, number, moved.rows, last)
                hops._keep(height, number, encode(moved, ages))
        return hops

    def changed(self) -> list[tuple[str, bytes | None]]:
        """Return the blocks written and deleted (None) since the last call."""
        if self._stored_tick == self.tick and not self._changes:
            return []
        numbers = [len(level.hops) for level in self._levels]
        head = self._head.pack(_VERSION, self.tick, *numbers)
        blocks = [(HEAD, head), *self._changes.items()]
        self._changes = {}
        self._stored_tick = self.tick
        return blocks

    def restore(self, blocks: Mapping[str, bytes], rows: int, last: Longs) -> None:
        """Read the stored blocks, by name, of a ledger of `rows` rows.

        If ages are stored, raise `last` (rows,) to the last tick that a hop has of each row. Raise
        StateRefused if a block is damaged or missing.
        """
        numbers = self._restore_head(blocks)
        for name, block in blocks.items():
            if name == HEAD:
                continue
            height, number = self._height_and_number(name)
            level = self._levels[height]
            entries, ages = read(
                name,
                block,
                rows=rows,
                hop=level.hop,
                has_ages=self._has_ages and height > 0,
                has_sums=self._has_sums,
            )
            end = (number + 1) * level.hop
            if end > self.tick:
                raise StateRefused(
                    f"stored state: block {name!r} is of ticks that are not counted yet"
                )
            level.hops[number] = block
            if self._has_ages:
                # A hop of level 0 has no ages: it is a tick.
                last_ticks = end - ages if height else end
                last[entries.rows] = np.maximum(last[entries.rows], last_ticks)
        for level, expected in zip(self._levels, numbers, strict=True):
            if len(level.hops) != expected:
                raise StateRefused(
                    f"stored state: {len(level.hops)} hops of {level.hop} ticks where there were {expected}; "
                    "a block of them is missing"
                )
            level.hops = dict(sorted(level.hops.items()))
        self._stored_tick = self.tick

    def _restore_head(self, blocks: Mapping[str, bytes]) -> list[int]:
        """Read the last tick counted; return how many hops each level should have."""
        head = blocks.get(HEAD, b"")
        if head[:1] not in (b"", bytes((_VERSION,))):
            raise StateRefused(
                "stored state: the head of its hops is of another version"
            )
        if len(head) != self._head.size:
            raise StateRefused(
                "stored state: the head of its hops is missing or damaged"
            )
        _version, tick, *numbers = self._head.unpack(head)
        if not 1 <= tick <= _MOST_TICKS:
            raise StateRefused("stored state: the head of its hops is damaged")
        self.tick = tick
        return numbers

    def _height_and_number(self, name: str) -> tuple[int, int]:
        """Return the level and the number of the hop in a stored block, from its name."""
        match = _NAME.fullmatch(name)
        if match is None or int(match[1], 16) >= len(self._levels):
            raise unknown_block(name)
        return int(match[1], 16), int(match[2], 16)

    def _keep(self, height: int, number: int, block: bytes) -> None:
        """Keep a closed hop, and store it."""
        self._levels[height].hops[number] = block
        self._changes[_name(height, number)] = block

    def _close(self, height: int, tick_before: int, last: Longs) -> None:
        """Close the hops of a level that end after `tick_before`, up to the last tick counted.

        A hop is the sum of its hops of the level below; `last` is as in `add`.
        """
        level = self._levels[height]
        below = self._levels[height - 1]
        first = tick_before // level.hop
        end = self.tick // level.hop
        if first == end:
            return
        ratio = level.hop // below.hop
        parts: dict[int, list[Entries]] = {}
        for number, block in below.hops.items():
            if first <= number // ratio < end:
                parts.setdefault(number // ratio, []).append(decode(block)[0])
        for number, entries in parts.items():
            total = _added_up(entries)
            ages = self._ages(height, number, total.rows, last)
            self._keep(height, number, encode(total, ages))

    def _ages(self, height: int, number: int, rows: Rows, last: Longs) -> Longs:
        """Return the ages of rows in a hop (see the module); none at level 0 or if not kept."""
        if not self._has_ages or not height:
            return _NONE
        end = (number + 1) * self._levels[height].hop
        # An event after the hop says nothing here: its own hop has its age.
        ages: Longs = end - np.minimum(last[rows], end)
        return ages


def _name(height: int, number: int) -> str:
    return f"m{height:02x}-{number:011x}"


def _added_up(parts: Sequence[Entries]) -> Entries:
    """Return the sum of several entries, by row; all have `steps`, or none has."""
    if len(parts) == 1:
        return parts[0]
    # Room for the rows of all parts.
    n = 1 + max(int(part.rows[-1]) for part in parts)
    counts = np.zeros(n, dtype=np.int64)
    steps = np.zeros(n if len(parts[0].steps) else 0, dtype=np.int64)
    for part in parts:
        # 1 is the sign: they are added.
        add_at_rows(counts, part.rows, part.counts, 1)
        if len(steps):
            add_at_rows(steps, part.rows, part.steps, 1)
    rows, taken = taken_from(counts)
    return Entries(rows, taken, steps[rows] if len(steps) else steps)


def taken_from(counts: Longs) -> tuple[Rows, Longs]:
    """Return the rows with a count, ascending, and their counts, which become 0."""
    rows = np.empty(len(counts), dtype=np.int64)
    taken = np.empty(len(counts), dtype=np.int64)
    found = take_counts(counts, rows, taken)
    return rows[:found], taken[:found]
