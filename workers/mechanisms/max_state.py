"""State of the mechanisms of paper 001: for each stream key where it stands in its segments and partition, beside the exact sums.

Stored block "mNNNNNNNN" (stream key's index, hexadecimal), written only at a tick that ends a segment or closes an interval:

    version, segment, interval, since, k, d     six little-endian int64
    thresholds    k int64     K_i
    start         d int64     G: noise of each column since the segment began
    noise         d int64     N: noise of each column since the interval began
    shown         d int64     the noisy sums that the answers are read off

Everything else that a release depends on is the columns' exact counts, or a function of noise words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from workers.errors import StateRefused
from workers.mechanisms.mechanism import State

BLOCK_VERSION = 1
_NUMBER = np.dtype("<i8")
_HEAD = 6
NO_ANSWER: Mapping[str, object] = MappingProxyType({})


@dataclass(slots=True)
class KeyState:
    """Where one stream key stands. Sensitive.

    Attributes:
        segment: j of the outer level, from 1.
        interval: j of the partition, from 1; one more than were closed since the segment began.
        since: tick at which `shown` was made; 0 before the first.
        thresholds: K_i of the partition.
        start: G.
        noise: N.
        shown: noisy sums as of `since`.
        gap, outer, tau, outer_tau: worked out from the rest when `stale`, or when a run of AboveThreshold begins.
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
        """The stored block."""
        head = (BLOCK_VERSION, self.segment, self.interval, self.since, len(self.thresholds), len(self.start))
        parts = (np.array(head), self.thresholds, self.start, self.noise, self.shown)
        return b"".join(part.astype(_NUMBER).tobytes() for part in parts)

    @classmethod
    def decode(cls, block: bytes) -> KeyState:
        """Takes a stored block back.

        Raises:
            StateRefused: another version wrote it, or it is not whole.
        """
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
    """The columns, d rows for each stream key in the order of the keys, and a `KeyState` for each."""

    def __init__(self) -> None:
        super().__init__()
        self.of: list[KeyState | None] = []

    def __repr__(self) -> str:
        return f"MaxState({len(self.of)} keys)"

    def set(self, key: int, value: KeyState) -> None:
        """Enters one stream key's state."""
        self.of += [None] * (key + 1 - len(self.of))
        self.of[key] = value

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """The blocks of the stream keys that closed or ended something since the last call."""
        blocks = []
        for key, state in enumerate(self.of):
            if state is not None and state.changed:
                state.changed = False
                blocks.append((f"m{key:08x}", state.encode()))
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        if len(name) != 9 or name[0] != "m":
            super().restore(name, block)
        try:
            key = int(name[1:], 16)
        except ValueError:
            super().restore(name, block)
            raise
        self.set(key, KeyState.decode(block))
