"""The worker's parts as replay runs them: told of the input's end, and watched at every tick."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from workers.agents.backlog import BACKLOG_TICKS_MAX
from workers.agents.merge import Merge
from workers.errors import StateRefused
from workers.histogram.histogram import Histogram
from workers.histogram.snapshots import ReleasedTick, Snapshot
from workers.mechanisms.config import Lane
from workers.mechanisms.ledger import Contributions
from workers.replay.source import when


class ReplayMerge(Merge):
    """A merge whose input may end, and which refuses to publish a gap of very many ticks.

    No event does that to a worker: no clock bounds the times in a file.
    """

    _ends: dict[Lane, int] | None = None

    def _begin(self, lane: Lane, users: Sequence[Histogram], complete: int) -> None:
        super()._begin(lane, users, complete)
        for histogram in users:
            if histogram.next is None or (gap := histogram.grid.holding(complete) - histogram.next) <= BACKLOG_TICKS_MAX:
                continue
            raise StateRefused(
                f"histogram {histogram.name!r}: {gap:,} ticks are to be published after {when(histogram.grid.start(histogram.next))} "
                f"at once, more than {BACKLOG_TICKS_MAX:,}: are all times of the events right? If they are, set start later or "
                "tick wider"
            )

    def end_of_input(self, until_ms: int | None = None) -> None:
        """Take the tick that holds the watermark for complete as well, in every lane: no message
        follows.

        Args:
            until_ms: but no tick that ends later; None: no limit.
        """
        complete = self.complete_ms
        if complete is not None:
            ends = {
                lane: lane.start_ms + ((complete - lane.start_ms) // lane.tick_ms + 1) * lane.tick_ms
                for lane in self._lanes
            }
            self._ends = {lane: end if until_ms is None else min(end, until_ms) for lane, end in ends.items()}

    def _complete_in(self, lane: Lane, complete: int) -> int:
        return complete if self._ends is None else self._ends[lane]


class ReplayHistogram(Histogram):
    """A histogram that is watched while it runs, and stores nothing.

    Attributes:
        observe: called with what each tick shows; the exact `columns` are those of that tick.
        written: whether its ticks become snapshots; False where nobody reads them.
    """

    observe: Callable[[ReleasedTick], object] | None = None
    written = True

    def step(self, parts: Sequence[Contributions]) -> Iterator[Snapshot]:
        shown = self.advance(parts)
        if self.observe is not None:
            self.observe(shown)
        return self.snapshots(shown) if self.written else iter(())

    def forget(self) -> None:
        """Drop what `changes` would return."""
        self._gone, self._stored_keys = [], len(self._keys)
        self._state.changed()
        self._state.ledger.clean()
