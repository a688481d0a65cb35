"""What the demo knows of each published histogram: the newest snapshot, beside the exact counts of the same events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.demo.exact import ExactCounts, Running


@dataclass(frozen=True, slots=True)
class Row:
    """One count as published, and as it really is."""

    label: str
    private: int
    exact: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One snapshot with the exact counts.

    Attributes:
        histogram, key: which one.
        tick: number in its epoch.
        number: of its tick, over all epochs.
        end_ms: end of its tick, ms since 1970.
        sd: standard deviation of every private count.
        threshold: what a private count had to exceed to be shown first; None: all are shown.
        rows: as published, largest private count first.
        hidden: labels that occurred and are not shown. Exact.
    """

    histogram: str
    key: str
    tick: int
    number: int
    end_ms: int
    sd: float
    threshold: float | None
    rows: Sequence[Row]
    hidden: int


class Errors:
    """How far published counts lie from the exact ones, over all snapshots."""

    def __init__(self) -> None:
        self.counts = 0
        self.within = 0
        self._absolute = 0.0
        self._sd = 0.0
        self._relative_squares = 0.0

    def add(self, rows: Iterable[Row], sd: float) -> None:
        """Take in a snapshot's counts, which share one standard deviation."""
        for row in rows:
            error = abs(row.private - row.exact)
            self.counts += 1
            self.within += error <= 2 * sd
            self._absolute += error
            self._sd += sd
            self._relative_squares += (error / sd) ** 2

    @property
    def mean_absolute(self) -> float:
        return self._absolute / self.counts

    @property
    def mean_sd(self) -> float:
        return self._sd / self.counts

    @property
    def relative(self) -> float:
        """Root mean square of the errors in standard deviations: about 1 when the published ones are true."""
        return math.sqrt(self._relative_squares / self.counts)

    @property
    def share_within(self) -> float:
        """Share of counts no more than 2 standard deviations off; Gaussian noise gives about 95 %."""
        return self.within / self.counts


class Boards:
    """The newest board of every (histogram, stream key)."""

    def __init__(self, exact: ExactCounts, histograms: Sequence[str], keys: Sequence[str]) -> None:
        self._exact = exact
        self._running = {(histogram, key): Running(exact, key) for histogram in histograms for key in keys}
        self._pages: dict[tuple[str, str], list[tuple[str, int]]] = {}
        self.newest: dict[tuple[str, str], Board] = {}
        self.errors = {histogram: Errors() for histogram in histograms}
        self.snapshots = 0

    @property
    def ticks(self) -> int:
        """Ticks of which every snapshot was seen."""
        return min(running.next for running in self._running.values()) - 1

    def complete(self) -> bool:
        """Return whether there is a board for every histogram and key."""
        return len(self.newest) == len(self._running)

    def receive(self, snapshot: dict[str, Any]) -> Board | None:
        """Take in a message of a histogram topic.

        Returns:
            The new board; None while pages are missing, and for a tick that was seen.
        """
        at = (snapshot["histogram"], snapshot["key"])
        running = self._running[at]
        number = self._exact.grid.holding(snapshot["start"])
        if number < running.next:
            return None
        pages = self._pages.setdefault(at, [])
        pages += [(label, count) for label, count in snapshot["items"]]
        if snapshot["page"] < snapshot["pages"]:
            return None
        exact = running.advance(number)
        rows = [Row(label, count, exact[label]) for label, count in self._pages.pop(at)]
        board = Board(
            histogram=at[0],
            key=at[1],
            tick=snapshot["tick"],
            number=number,
            end_ms=snapshot["end"],
            sd=snapshot["sd"],
            threshold=snapshot["threshold"],
            rows=rows,
            hidden=len(exact.keys() - {row.label for row in rows}),
        )
        self.newest[at] = board
        self.snapshots += 1
        self.errors[at[0]].add(rows, board.sd)
        self._exact.forget(self.ticks + 1)
        return board
