"""Ticks and epochs: whole-number arithmetic between event time, global ticks and ticks of an epoch.

A *global tick* counts from 1 at `start_ms` without end; an epoch is `horizon` of them, its ticks
numbered from 1. Tick g covers the times
start_ms + (g-1) * tick_ms <= time < start_ms + g * tick_ms.
"""

from dataclasses import dataclass

# 2100-01-01T00:00:00Z. A settings file that is accepted must not stop a worker before it.
_FAR_MS = 4_102_444_800_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TickGrid:
    """The ticks and epochs of a histogram."""

    tick_ms: int
    start_ms: int  # start of global tick 1
    horizon: int | None  # ticks in an epoch, None for one epoch without end

    def tick_at(self, time_ms: int) -> int:
        """Return the global tick containing a time; below 1 before the start."""
        return (time_ms - self.start_ms) // self.tick_ms + 1

    def start(self, tick: int) -> int:
        """Return the time at which a global tick begins."""
        return self.start_ms + (tick - 1) * self.tick_ms

    def end(self, tick: int) -> int:
        """Return the time at which a global tick ends: the first that is not in it."""
        return self.start_ms + tick * self.tick_ms

    def split(self, tick: int) -> tuple[int, int]:
        """Return (epoch, tick in it), both from 1."""
        if self.horizon is None:
            return 1, tick
        epoch, t = divmod(tick - 1, self.horizon)
        return epoch + 1, t + 1

    def epoch_of(self, tick: int) -> int:
        """Return the epoch of a global tick."""
        return self.split(tick)[0]


def shortest_tick(start_ms: int, last_tick: int) -> int:
    """Return the least `tick_ms` with which tick numbers stay within `last_tick` until 2100."""
    # The time from the start to 2100, divided by `last_tick` and rounded up.
    return max(1, (_FAR_MS - 1 - start_ms) // last_tick + 1)
