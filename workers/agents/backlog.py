"""What a backlog is, and how its ticks share transactions."""

from __future__ import annotations

import time
from collections.abc import Sequence

from workers.mechanisms.config import Lane

# A transaction costs this worker and the brokers about as much as ten thousand events, however
# little it says, and more the more topics it writes to.
_APART_S = 0.5
# A backlog is what is further behind the wall clock than this: to wait for more of it pays.
_BEHIND_MS = 10_000
# One old event is enough to have every tick since then published: hours of empty snapshots.
BACKLOG_TICKS_MAX = 10_000_000


def apart_s(lanes: Sequence[Lane]) -> float:
    """Return how long ticks of a backlog that close or are complete soon after others wait for
    further ones: they share a transaction.
    """
    return min([_APART_S, *(lane.tick_ms / 2000 for lane in lanes)])


def is_behind(watermark: int | None, grace_ms: int) -> bool:
    """Tell whether a backlog is being read, by where its ticks are closed."""
    return watermark is None or time.time_ns() // 1_000_000 - grace_ms - watermark > _BEHIND_MS
