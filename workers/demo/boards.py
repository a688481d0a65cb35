"""The newest snapshot of each published histogram, beside the exact counts of the same events."""

from __future__ import annotations

from collections.abc import Sequence
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
        tick, number: of its tick, in its epoch and over all epochs.
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


@dataclass(slots=True)
class Errors:
    """Sums over all snapshots: counts, those within 2 sd of the exact ones, errors and sds."""

    counts: int = 0
    within: int = 0
    absolute: int = 0
    sd: float = 0.0

    def add(self, rows: Sequence[Row], sd: float) -> None:
        """Take in a snapshot's counts, which share one standard deviation."""
        errors = [abs(row.private - row.exact) for row in rows]
        self.counts += len(rows)
        self.within += sum(error <= 2 * sd for error in errors)
        self.absolute += sum(errors)
        self.sd += len(rows) * sd


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
