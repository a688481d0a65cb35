"""What a worker's release state says of its generations: their identity, price and published ticks.

Only the progress record of each owner partition is read. It also covers generations and histograms
that the settings no longer have. No key is needed, and nothing exact is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec

from workers.agents.merge import VERSION, ReleaseProgress
from workers.agents.release import PROGRESS, read_progress
from workers.ceiling.charges import grid_of, price_of
from workers.errors import StateRefused
from workers.histogram.histogram import Life
from workers.histogram.paging import joined
from workers.kafka.clients import Connection
from workers.kafka.reading import read_partition
from workers.kafka.topics import describe
from workers.mechanisms.ticks import TickGrid
from workers.plan.adding_up import Part
from workers.settings import Settings
from workers.spending.model import Status

# The progress record ends every transaction: only commit markers and aborted records follow it.
_NEWEST = 256
_FURTHER = 64


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


def read_states(
    connection: Connection, settings: Settings, say: Callable[[str], object] = lambda _: None
) -> list[ReleaseProgress | None] | None:
    """Return the progress of each owner partition, None where nothing was released yet.

    Return None if the state topic does not exist.

    Raises:
        SettingsError: no broker answers.
        StateRefused: another version wrote it.
    """
    topic = settings.release_state_topic
    existing = describe(connection, [topic])
    if topic not in existing:
        return None
    owners, found = existing[topic].partitions, []
    for owner in range(owners):
        say(f"owner partition {owner + 1} of {owners}")
        value = _newest(connection, topic, owner)
        progress = None if value is None else read_progress(value)
        if progress is not None and progress.version != VERSION:
            raise StateRefused(
                f"{topic}[{owner}]: its progress has version {progress.version}, this program reads {VERSION}: upgrade"
            )
        found.append(progress)
    return found


def _newest(connection: Connection, topic: str, partition: int) -> bytes | None:
    """Return the newest progress record of a partition."""
    newest: int | None = _NEWEST
    while True:
        found: dict[bytes, bytes | None] = {}
        for message in read_partition(connection, topic, partition, newest=newest):
            key = message.key() or b""
            if key == PROGRESS or key.startswith(PROGRESS + b"."):
                found[key] = message.value()
        if newest is None:
            return joined(PROGRESS, found.get)
        with suppress(StateRefused):  # some of its pages are further back
            if (value := joined(PROGRESS, found.get)) is not None:
                return value
        newest = None if newest >= _NEWEST * _FURTHER**2 else newest * _FURTHER


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
