"""State of paper 001's mechanisms: each stream key's segment and interval, beside the exact sums.

Stored block "mNNNNNNNN" (stream key's index, hexadecimal), written only at a tick that ends a
segment or closes an interval; where it is longer than a message may be (8 (6 + k + 3 d) bytes, so
beyond 28,000 columns), it goes on in "mNNNNNNNN.PPPP". k, d and the number of pages never change.

    version, segment, interval, since, k, d     six little-endian int64
    thresholds    k int64     K_i
    start         d int64     G: noise of each column since the segment began
    noise         d int64     N: noise of each column since the interval began
    shown         d int64     the noisy sums that the answers are read off

All else that a release depends on is the columns' exact counts, or a function of noise words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.mechanism import State
from workers.runtime.errors import StateRefused
from workers.runtime.sizes import VALUE_BYTES

BLOCK_VERSION = 1
_NUMBER = np.dtype("<i8")
_HEAD = 6
_HEXADECIMAL = frozenset("0123456789abcdef")


@dataclass(slots=True)
class KeyState:
    """One stream key's place. Sensitive.

    Attributes:
        segment: j of the outer level, from 1.
        interval: j of the partition, from 1; one more than were closed since the segment began.
        since: tick at which `shown` was made; 0 before the first.
        thresholds: K_i of the partition.
        start: G.
        noise: N.
        shown: noisy sums as of `since`.
        gap, outer, tau, outer_tau: worked out from the rest when `stale`, or when a run of
            AboveThreshold begins.
        answer: what is published, as long as `shown` stays.
    """

    segment: int
    interval: int
    since: int
    thresholds: NDArray[np.int64]
    start: NDArray[np.int64]
    noise: NDArray[np.int64]
    shown: NDArray[np.int64]
    changed: bool = True
    stale: bool = True
    gap: int = 0
    outer: int = 0
    tau: int | None = None
    outer_tau: int | None = None
    answer: Mapping[str, object] = field(default_factory=dict)

    def __repr__(self) -> str:
        return "KeyState(<sensitive>)"

    def encode(self) -> bytes:
        """Return the stored block."""
        head = (BLOCK_VERSION, self.segment, self.interval, self.since, len(self.thresholds), len(self.start))
        parts = (np.array(head), self.thresholds, self.start, self.noise, self.shown)
        return b"".join(part.astype(_NUMBER).tobytes() for part in parts)

    @classmethod
    def decode(cls, block: bytes) -> KeyState:
        """Take a stored block back, refusing one that is not whole or of another version."""
        if len(block) < 8 * _HEAD or len(block) % 8:
            raise StateRefused("stored state of a partition is cut short")
        numbers = np.frombuffer(block, dtype=_NUMBER).astype(np.int64)
        version, segment, interval, since, k, d = numbers[:_HEAD].tolist()
        if version != BLOCK_VERSION:
            raise StateRefused(f"stored state of a partition has version {version}: this one reads {BLOCK_VERSION}")
        numbers = numbers[_HEAD:]
        if k < 0 or d < 0 or len(numbers) != k + 3 * d:
            raise StateRefused("stored state of a partition has another length than it says")
        thresholds, start, noise, shown = np.split(numbers, [k, k + d, k + 2 * d])
        return cls(segment, interval, since, thresholds.copy(), start.copy(), noise.copy(), shown.copy(), changed=False)


class MaxState(State):
    """The columns, d rows for each stream key in the keys' order, with a `KeyState` for each."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[KeyState | None] = []
        self._begun: dict[int, bytes] = {}  # blocks of which pages are still to come

    def __repr__(self) -> str:
        return f"MaxState({len(self.of)} keys)"

    def set(self, key: int, value: KeyState) -> None:
        """Enter one stream key's state."""
        self.of += [None] * (key + 1 - len(self.of))
        self.of[key] = value

    def key(self, key: int) -> KeyState:
        """Return one stream key's state."""
        one = self.of[key]
        if one is None:
            raise TypeError(f"stream key {key} has no state")
        return one

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the blocks of the stream keys that closed or ended something since last asked."""
        blocks: list[tuple[str, bytes]] = []
        for key, state in enumerate(self.of):
            if state is not None and state.changed:
                state.changed = False
                block = state.encode()
                for page, at in enumerate(range(0, len(block), VALUE_BYTES)):
                    blocks.append((f"m{key:08x}" + (f".{page:04x}" if page else ""), block[at : at + VALUE_BYTES]))
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        """Take a block back; pages of one block come in their order."""
        of_key, _, number = name[1:].partition(".")
        if name[:1] != "m" or len(of_key) != 8 or len(number) not in (0, 4) or not set(of_key + number) <= _HEXADECIMAL:
            super().restore(name, block)
        key, page = int(of_key, 16), int(number or "0", 16)
        before = self._begun.pop(key, b"")
        if page * VALUE_BYTES != len(before):
            raise StateRefused(f"stored state: a page of block m{of_key} is missing")
        whole = before + block
        if len(block) == VALUE_BYTES and len(whole) < _length(whole):
            self._begun[key] = whole
        else:
            self.set(key, KeyState.decode(whole))


def _length(block: bytes) -> int:
    """Return how long a block is by what its head says."""
    k, d = np.frombuffer(block, dtype=_NUMBER, count=_HEAD)[4:].tolist()
    return 8 * int(_HEAD + k + 3 * d)
