"""What a worker's release state says of its generations: their identity, price and published ticks.

It also covers generations and histograms that the settings no longer have. No key is needed, and
nothing exact is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import msgspec

from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.histogram import Life
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling.charges import grid_of, price_of
from workers.privacy.spending.model import Status
from workers.privacy.total import Charge, Part
from workers.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class Piece:
    """One generation in one owner partition, with something published."""

    owner: int
    life: Life
    running: bool

    @property
    def first(self) -> int:
        """First global tick published."""
        return self.life.first or 0

    @property
    def last(self) -> int:
        """Last global tick published; less than `first` if nothing was."""
        return (self.life.next or 0) - 1


@dataclass(slots=True)
class Entry:
    """One generation in all owner partitions; two settings under one number are two."""

    name: str
    life: Life
    pieces: list[Piece] = field(default_factory=list)
    status: Status = "ended"

    @property
    def grid(self) -> TickGrid:
        """Its ticks."""
        return grid_of(self.name, self.life)

    @property
    def first(self) -> int:
        """First global tick published by any owner partition."""
        return min(piece.first for piece in self.pieces)

    @property
    def last(self) -> int:
        """Last global tick published by any."""
        return max(piece.last for piece in self.pieces)

    @property
    def epochs(self) -> range:
        """The epochs that have begun; empty if nothing was published."""
        if not self.pieces:
            return range(0)
        return range(self.grid.split(self.first)[0], self.grid.split(self.last)[0] + 1)

    @property
    def charged_epochs(self) -> int:
        """How many epochs are charged: one to an event, which falls in one; all to a user."""
        return min(len(self.epochs), 1) if self.life.unit == "event" else len(self.epochs)

    @property
    def part(self) -> Part:
        """What this generation costs one event or user."""
        return price_of(self.life, self.charged_epochs)

    @property
    def charge(self) -> Charge:
        """Its price, and the length of an epoch."""
        grid = self.grid
        return Charge(replace(self.part, times=1), None if grid.horizon is None else grid.horizon * grid.tick_ms)


def entries_of(states: Sequence[ReleaseProgress | None], settings: Settings) -> list[Entry]:
    """Return every generation, in the order of the settings; unknown histograms last."""
    found: dict[tuple[str, int, bytes], Entry] = {}
    for owner, state in enumerate(states):
        if state is None:
            continue
        lives = [(*one, False) for one in state.retired] + [(*one, True) for one in state.histograms.items()]
        for name, life, running in lives:
            key = (name, life.generation, msgspec.json.encode(life.description, order="sorted"))
            entry = found.setdefault(key, Entry(name, life))
            if life.first is not None and life.next is not None and life.next > life.first:
                entry.pieces.append(Piece(owner, life, running))
            if running:
                entry.status = "running" if generations_in(settings).get(name) == life.generation else "left out"
    place = {config.name: i for i, config in enumerate(settings.histograms)}
    return sorted(
        found.values(), key=lambda entry: (place.get(entry.name, len(place)), entry.name, entry.life.generation)
    )


def generations_in(settings: Settings) -> dict[str, int]:
    return {config.name: config.generation for config in settings.histograms}
