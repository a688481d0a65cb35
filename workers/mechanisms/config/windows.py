"""The windows of a histogram without epochs: where they begin, and what their series are called.

A window of W ticks begins at a multiple of its *hop*, g ticks, so it covers W to W + g - 1 ticks
(docs/decisions/0036-windows-without-epochs.md): state then needs W / g + 1 sums an item in place
of W.
"""

from collections.abc import Iterator
from typing import NamedTuple

from workers.mechanisms.config.durations import format_duration

NEVER = "never"
# The longest window, and so the longest hop.
TICKS_MAX = 1 << 22
# A hop that is not stated is the longest one with at least so many in a window.
HOPS_MIN = 64


class Series(NamedTuple):
    """The snapshots of a histogram that follow each other: of one window, or since an epoch began.

    They have a name and a topic of their own. `suffix` is what both end in: the window, if any.
    """

    name: str
    window_ms: int | None

    @property
    def suffix(self) -> str:
        return "" if self.window_ms is None else f".{format_duration(self.window_ms)}"


def series_of(name: str, window_ms: int) -> Series:
    """Return the series of a window, of the histogram `name`."""
    return Series(f"{name}.{format_duration(window_ms)}", window_ms)


def default_hop(ticks: int) -> int:
    """Return the hop of a window of `ticks` ticks whose settings state none.

    It is the largest power of two of which the window has at least HOPS_MIN; 1 for short ones.
    """
    return 1 << (max(1, ticks // HOPS_MIN).bit_length() - 1)


def hop_complaints(hop: int, shortest: int) -> Iterator[str]:
    """Yield why windows, the shortest of `shortest` ticks, cannot begin at multiples of `hop`."""
    if hop & (hop - 1):
        below = 1 << (hop.bit_length() - 1)
        yield f"hop = {hop}: a power of two; nearest: {below} and {2 * below}"
    elif hop > shortest:
        yield f"hop = {hop}: at most the shortest window, {shortest:,} ticks"
