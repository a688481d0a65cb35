"""Ticks and epochs: whole-number arithmetic between event time, global ticks and ticks of an epoch.

A *global tick* counts from 1 at `start_ms` without end; an epoch is `horizon` of them, and ticks
are numbered from 1 in each epoch. Tick g covers the times
start_ms + (g-1) * tick_ms <= time < start_ms + g * tick_ms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TickGrid:
    """The ticks of one histogram.

    Attributes:
        start_ms: start of global tick 1.
        horizon: ticks in an epoch, None for one epoch without end.
    """

    tick_ms: int
    start_ms: int
    horizon: int | None

    def holding(self, time_ms: int) -> int:
        """Return the global tick containing a time; below 1 before the start."""
        return (time_ms - self.start_ms) // self.tick_ms + 1

    def start(self, tick: int) -> int:
        return self.start_ms + (tick - 1) * self.tick_ms

    def end(self, tick: int) -> int:
        """Return the first ms after a global tick."""
        return self.start_ms + tick * self.tick_ms

    def split(self, tick: int) -> tuple[int, int]:
        """Return (epoch, tick in it), both from 1."""
        if self.horizon is None:
            return 1, tick
        epoch, t = divmod(tick - 1, self.horizon)
        return epoch + 1, t + 1


def window_complaints(windows: Sequence[int], tick_ms: int, horizon: int | None) -> Iterator[str]:
    """Yield errors in a histogram's windows (ms); a horizon of None is unbounded."""
    for number, window_ms in enumerate(windows):
        if window_ms % tick_ms:
            yield f"windows holds {window_ms} ms: a multiple of the tick, {tick_ms} ms"
        elif horizon is not None and window_ms > horizon * tick_ms:
            yield f"windows holds {window_ms} ms: at most the epoch, {horizon * tick_ms} ms"
        elif window_ms in windows[:number]:
            yield f"windows holds {window_ms} ms more than once: every one only once"
