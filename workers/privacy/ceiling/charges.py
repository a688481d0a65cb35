"""What is charged so far, by generation: which epochs, at what price, to whom.

All of it is in the progress that each owner partition stores with its snapshots, also of
generations and histograms that have ended. An epoch is charged in full from the moment at which it
is reserved, before its first tick. What is not known is taken as charged: a generation that was
ended is charged up to the moment at which it was, however little of that was stored, for the state
may be an older copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import msgspec

from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.histogram import Life
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.total import Part
from workers.runtime.errors import StateRefused
from workers.settings.settings import Settings

#: Before and after every time that there is.
EVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """The epochs of one generation that are charged.

    Attributes:
        worker, histogram, generation: what a message calls it.
        identity: what tells it from every other of its worker.
        grid: its ticks.
        unit: what its price is for.
        price: of one epoch.
        key: where an event has the stream key that it counts under.
        keys: the stream keys that it serves; None: any.
        first, last: the epochs; none where `last` is below `first`.
    """

    worker: str
    histogram: str
    generation: int
    identity: bytes
    grid: TickGrid
    unit: str
    price: Part
    key: str
    keys: frozenset[str] | None
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.histogram} generation {self.generation} of worker {self.worker}"

    @property
    def epoch_ms(self) -> int | None:
        """How long an epoch lasts; None: for ever."""
        return None if self.grid.horizon is None else self.grid.horizon * self.grid.tick_ms

    def span(self, epoch: int) -> tuple[int, int]:
        """Return the first ms of an epoch, and the first one after it."""
        if self.epoch_ms is None:
            return -EVER, EVER
        begin = self.grid.start_ms + (epoch - 1) * self.epoch_ms
        return begin, begin + self.epoch_ms

    def within(self, begin: int, end: int) -> range:
        """Return the charged epochs with a part between two times."""
        if self.epoch_ms is None:
            return range(self.first, self.last + 1)
        low = (begin - self.grid.start_ms) // self.epoch_ms + 1
        high = (end - 1 - self.grid.start_ms) // self.epoch_ms + 1
        return range(max(self.first, low), min(self.last, high) + 1)


def charges_of(
    worker: str,
    progress: ReleaseProgress,
    settings: Settings | None = None,
    beginning: Mapping[str, int] | None = None,
) -> list[Charge]:
    """Return what one owner partition has charged.

    Args:
        worker: whose it is.
        progress: of that partition.
        settings: that it runs with, from which the stream keys are known; None: they may be any.
        beginning: by histogram, an epoch that is to be charged as well.

    Raises:
        StateRefused: it does not say when its epochs are.
    """
    served = {} if settings is None else {(c.name, c.generation): c.keys for c in settings.histograms}
    found = []
    for name, life, running in (
        *((*one, False) for one in progress.retired),
        *((*one, True) for one in progress.histograms.items()),
    ):
        grid = grid_of(name, life)
        epochs = _epochs(life, grid)
        if running and beginning is not None and name in beginning:
            epochs.append(beginning[name])
        if not epochs:
            continue
        keys = served.get((name, life.generation), "public") if running else "public"
        found.append(
            Charge(
                worker=worker, histogram=name, generation=life.generation,
                identity=msgspec.json.encode([name, life.description], order="sorted"), grid=grid, unit=life.unit,
                price=price_of(life), key=key_field(life), keys=None if keys == "public" else frozenset(keys),
                first=min(epochs), last=max(epochs),
            )
        )  # fmt: skip
    return found


def merged(charges: Iterable[Charge]) -> list[Charge]:
    """Return each generation once, over all owner partitions: an epoch costs once.

    Two settings under one number are two generations.
    """
    found: dict[tuple[str, bytes], Charge] = {}
    for charge in charges:
        place = charge.worker, charge.identity
        before = found.get(place, charge)
        found[place] = replace(charge, first=min(charge.first, before.first), last=max(charge.last, before.last))
    return list(found.values())


def grid_of(name: str, life: Life) -> TickGrid:
    """Return a generation's ticks, as its stored description says them.

    Raises:
        StateRefused: it does not.
    """
    description = life.description
    tick_ms, start_ms = description.get("tick_ms"), description.get("start_ms")
    if not isinstance(tick_ms, int) or not isinstance(start_ms, int):
        raise StateRefused(f"histogram {name!r}: its state does not give the width of its ticks")
    counter = description.get("counter")
    horizon = (counter if isinstance(counter, dict) else description).get("horizon")
    return TickGrid(tick_ms=tick_ms, start_ms=start_ms, horizon=horizon if isinstance(horizon, int) else None)


def price_of(life: Life, times: int = 1) -> Part:
    """Return what so many epochs of a generation cost."""
    return Part(
        rho=life.rho, epsilon=life.epsilon, delta=life.delta, failures=life.deltas,
        pure=life.description.get("accounting") == "pure", times=times,
    )  # fmt: skip


def key_field(life: Life) -> str:
    """Return where an event has the stream key that a generation counts it under."""
    return str(_events(life).get("key"))


def topics_of(progress: ReleaseProgress) -> set[str]:
    """Return the names and regular expressions of the events topics that a worker counted."""
    found: set[str] = set()
    for life in (*(life for _, life in progress.retired), *progress.histograms.values()):
        topics = _events(life).get("topic")
        found |= set(topics) if isinstance(topics, list) else {str(topics)}
    return found


def _epochs(life: Life, grid: TickGrid) -> list[int]:
    """Return the first and last epoch that a generation is charged, or nothing."""
    if life.first is None:
        return []
    ticks = [] if life.next is None or life.next <= life.first else [life.first, life.next - 1]
    found = [grid.split(tick)[0] for tick in ticks]
    if isinstance(life.reserved, int):
        found += [grid.split(life.first)[0], life.reserved]
    if found and isinstance(life.until, int):
        found.append(grid.split(max(life.first, grid.holding(life.until - 1)))[0])
    return found


def _events(life: Life) -> Mapping[str, object]:
    """Return what a generation's description says of the events."""
    events = life.description.get("events")
    return events if isinstance(events, dict) else {}
