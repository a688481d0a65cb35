"""What a snapshot says of each window: how exact the change of a count over it is.

What: the standard deviation of an item's count at tick t less its count `ticks` before, as both
were published. It follows from the settings and t alone: no state, and it costs nothing.
Why: two snapshots share noise, which cancels: taken for independent, their errors give a bar that
is three times as long as it should be over one tick (`haar`), less over longer windows.

Where the epoch is younger than a window, the change is that since its start, where every count is
0 without noise: `ticks` is then `tick` itself.
"""

from __future__ import annotations

from collections.abc import Callable

from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.mechanism import Mechanism

SD_DIGITS = 4  # as a snapshot says every other one


class Windows:
    """The windows of one histogram; one thread has it, a backtest with a mechanism of its own.

    Args:
        config: which names them.
        mechanism: built from it.

    Raises:
        TypeError: there are windows, but no counts that can be subtracted.
    """

    def __init__(self, config: HistogramConfig, mechanism: Mechanism) -> None:
        self._ticks = tuple((length, length // config.tick_ms) for length in config.windows)
        # A backtest's mechanism stands before another one: what it has counts, not what it is.
        subtracts = bool(self._ticks) and config.subtracts
        self._sd: Callable[[int, int], float] | None = getattr(mechanism, "difference_sd", None) if subtracts else None
        if self._ticks and self._sd is None:
            raise TypeError(f"mechanism = {mechanism.kind}: must have counts that can be subtracted")

    def at(self, t: int) -> dict[str, object]:
        """Return the snapshot's field at a tick of the epoch; nothing without windows."""
        if self._sd is None:
            return {}
        found = []
        for length, ticks in self._ticks:
            covered = min(ticks, t)
            sd = self._sd(t, t - covered)
            found.append({"ms": length, "ticks": covered, "sd": round(sd, SD_DIGITS)})
        return {"windows": found}
