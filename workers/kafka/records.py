"""What goes into a shard and comes out of it: batches of records, and the messages of a transaction."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Outgoing(NamedTuple):
    """One message of a transaction; partition None leaves the choice to librdkafka's partitioner."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp_ms: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of key, value and headers together."""
        named = sum(len(name.encode()) + len(value) for name, value in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


class Batch:
    """Consecutive records of one partition, as columns; `start` and `end` are positions, not the records' offsets.

    `end` may lie beyond the last record (what nobody may see is skipped); the next batch starts there.
    """

    __slots__ = ("end", "keys", "offsets", "shard", "start", "timestamps", "values")

    def __init__(
        self,
        start: int,
        end: int,
        values: list[bytes | None],
        keys: list[bytes | None],
        timestamps: list[int],
        offsets: list[int],
        shard: object | None = None,
    ) -> None:
        self.shard = shard
        self.start = start
        self.end = end
        self.values = values
        self.keys = keys
        self.timestamps = timestamps
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.values)

    def split(self, position: int) -> tuple[Batch, Batch]:
        """Return what lies before `position` and the rest; a position outside gives one that is empty."""
        position = min(max(position, self.start), self.end)
        at = bisect_left(self.offsets, position)
        before = slice(None, at), self.start, position
        rest = slice(at, None), position, self.end
        first, second = (
            Batch(start, end, self.values[part], self.keys[part], self.timestamps[part], self.offsets[part], self.shard)
            for part, start, end in (before, rest)
        )
        return first, second

    def __repr__(self) -> str:
        return f"Batch({self.start}..{self.end}, {len(self)} records)"


@dataclass
class ShardStats:
    """What a shard has done, for the hand-over and the health check; written by its thread, read by any."""

    transactions: int = 0
    aborted: int = 0
    last_commit_s: float = 0.0  # monotonic; when it was opened, before the first
    fence_s: float = 0.0
    load_s: float = 0.0
    loaded_records: int = 0
