"""What SparseGumb remembers of each stream key, and the noise it takes.

    block "m<key>"   version (1 byte), 2; switches used and number of the chosen (uint32 each); the
                     chosen, places in the domain in the order picked (uint32 each)

Cells of the noise, apart from those of the counters (whose upper half stays below 2^16):
    (0x20 << 56, t)            of a row: the noise of its test at tick t
    (0x21 << 56, n)            of a stream key: the noise of the test's threshold after n switches
    (0x22 << 56 | i, n)        of a stream key: the word of pick i of its n-th choice, the first is
                               n = 0
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.mechanisms.counters.counter import Counter
from workers.mechanisms.ledger import Rows, Tags
from workers.mechanisms.mechanism import State
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import NoiseStream

# 2: says how many are chosen, so that a block that lost some is seen.
STATE_VERSION = 2
TEST, THRESHOLD, PICK = 0x20 << 56, 0x21 << 56, 0x22 << 56

_HEAD = struct.Struct("<BII")


class SparseState(State):
    """The chosen of every stream key. Public in itself: all of it can be read off the snapshots."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: dict[int, tuple[int, ...]] = {}
        self.used: dict[int, int] = {}
        self._changed: set[int] = set()

    def choose(self, key: int, chosen: Sequence[int], used: int) -> None:
        """Note a choice of places in the domain, and how many switches it makes."""
        self.chosen[key], self.used[key] = tuple(chosen), used
        self._changed.add(key)

    def changed(self) -> Sequence[tuple[str, bytes]]:
        blocks = []
        for key in sorted(self._changed):
            chosen = self.chosen[key]
            head = _HEAD.pack(STATE_VERSION, self.used[key], len(chosen))
            blocks.append((f"m{key:08x}", head + np.array(chosen, dtype="<u4").tobytes()))
        self._changed = set()
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        if len(name) != 9 or name[0] != "m" or not set(name[1:]) <= set("0123456789abcdef"):
            super().restore(name, block)
        if len(block) < _HEAD.size:
            raise StateRefused(f"stored state: block {name!r} of {len(block)} bytes is cut short")
        version, used, k = _HEAD.unpack_from(block)
        if version != STATE_VERSION:
            raise StateRefused(f"stored state has version {version} of sparse_gumb's blocks, this is {STATE_VERSION}")
        if len(block) != _HEAD.size + 4 * k:
            raise StateRefused(f"stored state: block {name!r} of {k} items is cut short or too long")
        places = np.frombuffer(block, dtype="<u4", offset=_HEAD.size).tolist()
        self.chosen[int(name[1:], 16)], self.used[int(name[1:], 16)] = tuple(places), used


class SparseNoise:
    """All noise of one epoch, as functions of the words."""

    def __init__(self, stream: NoiseStream, counter: Counter, test: InversionTable, threshold: InversionTable) -> None:
        self._stream, self._counter = stream, counter
        self._test, self._threshold = test, threshold
        # A sqrt counter's noise depends on its ticks before; others are drawn for the chosen alone.
        self._columns = counter.columns(stream) if counter.kind == "sqrt" else None

    def __repr__(self) -> str:
        return f"SparseNoise({self._counter!r})"

    def at(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Return the counters' noise of each row at tick t."""
        return self._counter.draw(self._stream, t, tags)

    def chosen(self, t: int, tags: Tags, rows: Rows) -> NDArray[np.int64]:
        """Return the noise of some rows at tick t, of counters that ran from tick 1."""
        if self._columns is not None:
            return self._columns.at(t, tags)[rows]
        return self._counter.draw(self._stream, t, tags.take(rows, axis=0))

    def test(self, t: int, tags: Tags) -> NDArray[np.int64]:
        """Return the noise of each row's test at tick t."""
        return self._test.values(self._stream, (TEST, t), tags)

    def threshold(self, key_tag: Tags, used: int) -> int:
        """Return the noise of a stream key's threshold after a number of switches."""
        return int(self._threshold.values(self._stream, (THRESHOLD, used), key_tag)[0])

    def picks(self, key_tag: Tags, choice: int, k: int) -> list[tuple[int, int]]:
        """Return the words of one choice of k."""
        words = (self._stream.words(key_tag, (PICK | i, choice))[0].tolist() for i in range(k))
        return [(upper, lower) for upper, lower in words]
