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

    Also None if the only epoch of a grid has no end. Without grids it is the next ms.
    """
    # At `begin_ms`, and again every `step_ms`, epochs of all grids so far begin.
    begin_ms = after_ms + 1
    step_ms = 1
    for grid in grids:
        if grid.horizon is None:
            return None
        epoch_ms = grid.horizon * grid.tick_ms
        # From `begin_ms` to the next beginning of an epoch of this grid.
        wait_ms = (grid.start_ms - begin_ms) % epoch_ms
        # Steps and epochs only meet where their common divisor divides the distance.
        common = gcd(step_ms, epoch_ms)
        if wait_ms % common:
            return None
        # Chinese remainder theorem: the least number of steps with steps * step_ms = wait_ms,
        # modulo the epoch; `pow` with -1 is an inverse.
        modulus = epoch_ms // common
        steps = wait_ms // common * pow(step_ms // common, -1, modulus) % modulus
        begin_ms += step_ms * steps
        step_ms = step_ms // common * epoch_ms
    return begin_ms
