"""A small plot for a terminal: the band of the noise of each run of ticks, as columns of blocks."""

from __future__ import annotations

from collections.abc import Sequence

from workers.plan.model import Bucket

ROWS = 6
_COLUMNS = 32
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_PLAIN = "    ####"
_BAND, _PLAIN_BAND = "░", ":"


def band(buckets: Sequence[Bucket], *, unicode: bool) -> list[str]:
    """Return lines of a plot from 0 on: solid up to the least sd of a run, shaded up to the most.

    Args:
        buckets: at least one; a column each.
        unicode: whether the terminal can show block characters.
    """
    top = max(bucket.most for bucket in buckets) or 1.0
    lines = []
    for row in range(ROWS - 1, -1, -1):
        cells = "".join(_cell(bucket.least / top, bucket.most / top, row, unicode) for bucket in buckets)
        label = f"{top:10.4g}" if row == ROWS - 1 else f"{top / 2:10.4g}" if row == ROWS // 2 - 1 else " " * 10
        lines.append(f"{label} {'┤' if unicode else '|'}{cells}")
    first, middle, last = f"{buckets[0].first:,}", f"{buckets[len(buckets) // 2].first:,}", f"{buckets[-1].last:,}"
    width = len(buckets)
    if width < len(first) + len(middle) + len(last) + 4:
        lines.append(f"{'':10} tick {first} to {last}")
        return lines
    place = width // 2
    axis = first + " " * (place - len(first)) + middle
    lines.append(f"{'tick':>10}  {axis}{last:>{width - len(axis)}}")
    return lines


def line(buckets: Sequence[Bucket], top: float, *, unicode: bool) -> str:
    """Return the largest sd of each of up to 32 runs of ticks as one character, from 0 to `top`.

    Eighths of a block, or where the terminal cannot show these the digits 0 to 9.
    """
    step = -(-len(buckets) // _COLUMNS)
    most = [max(bucket.most for bucket in buckets[at : at + step]) for at in range(0, len(buckets) - 1, step)]
    shares = [value / top for value in (*most, buckets[-1].least)]
    return "".join(_EIGHTHS[max(1, round(8 * share))] if unicode else f"{min(9, int(10 * share))}" for share in shares)


def _cell(least: float, most: float, row: int, unicode: bool) -> str:
    """Return how much of this row lies under `least`, or within the band, as one character."""
    filled = min(max(least * ROWS - row, 0.0), 1.0)
    if filled >= 1 - 1 / 16:
        return "█" if unicode else "#"
    shaded = most * ROWS - row > 0.5 and most > least
    if filled > 1 / 16 and not shaded:
        return (_EIGHTHS if unicode else _PLAIN)[min(7, round(filled * 8))]
    if shaded or (filled > 1 / 16 and unicode):
        return _BAND if unicode else _PLAIN_BAND
    return " "
