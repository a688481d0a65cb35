"""When growth takes effect: where epochs begin, and not before every worker can know of it.

Growth is a higher number of source or owner partitions. Users or stream keys then move between
partitions; where an epoch begins, nothing that was counted has to move with them.
"""

from collections.abc import Iterable
from math import gcd

from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.config.ticks import TickGrid

#: Before users or stream keys move, every worker has this long to notice.
NOTICE_MS = 60_000


def epochs_of_users(lanes: Iterable[Lane]) -> list[TickGrid]:
    """Return the epochs in which users are bounded."""
    return [
        TickGrid(tick_ms=lane.tick_ms, start_ms=lane.start_ms, horizon=lane.horizon)
        for lane in lanes
        if lane.max_items_per_user is not None
    ]


def next_epoch(grids: Iterable[TickGrid], after_ms: int) -> int | None:
    """Return the first time after `after_ms` at which epochs of all grids begin; None: never.

    Grid by grid, move on until an epoch of this one begins too; then only by multiples of all
    epochs so far.
    """
    begin_ms = after_ms + 1
    step = 1
    for grid in grids:
        if grid.horizon is None:
            return None
        epoch_ms = grid.horizon * grid.tick_ms
        common = gcd(step, epoch_ms)
        behind = (grid.start_ms - begin_ms) % epoch_ms
        if behind % common:
            return None
        # Chinese remainder theorem: the number of steps with steps * step = behind, modulo the
        # epoch; `pow` with -1 is an inverse. Whole steps keep the epochs of earlier grids.
        modulus = epoch_ms // common
        steps = behind // common * pow(step // common, -1, modulus) % modulus
        begin_ms += step * steps
        step = step // common * epoch_ms
    return begin_ms
