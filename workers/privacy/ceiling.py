"""What one event or user may lose in any period, and whether charges stay below it.

    period   a length of time: no window of that length, wherever it lies, may hold more. "epoch":
             the windows are the epochs of all histograms that have begun
    user     pays for every epoch that a window touches, whatever the stream keys
    event    lies in one epoch of each generation, and pays for each generation that a window
             touches: generations follow one another, but after a restored copy one event may be in
             two

An event has one stream key for each field that histograms take it from. So it pays for what serves
the costliest key of each such field. All of it adds up in zCDP and is converted once, at
`max_delta`.

What is charged so far, by generation: which epochs, at what price, to whom.

All of it is in the progress that each owner partition stores with its snapshots, also of
generations and histograms that have ended. An epoch is charged in full from the moment at which it
is reserved, before its first tick. What is not known is taken as charged: a generation that was
ended is charged up to the moment at which it was, however little of that was stored, for the state
may be an older copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import msgspec

from workers.mechanisms.config.checked import display
from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.histogram import Life
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.total import Part, epsilon_at
from workers.runtime.errors import StateRefused
from workers.settings.durations import format_duration
from workers.settings.settings import PrivacySettings, Settings

#: Before and after every time that there is.
EVER = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class CeilingCharge:
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
) -> list[CeilingCharge]:
    """Return what one owner partition has charged.

    Args:
        worker: whose it is.
        progress: of that partition.
        settings: that it runs with, from which the stream keys are known; None: they may be any.
        beginning: by histogram, an epoch that is to be charged as well.

    Raises:
        StateRefused: it does not say when its epochs are.
    """
    served = (
        {} if settings is None else {(c.name, c.generation): c.keys for c in settings.histograms}
    )
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
            CeilingCharge(
                worker=worker,
                histogram=name,
                generation=life.generation,
                identity=msgspec.json.encode([name, life.description], order="sorted"),
                grid=grid,
                unit=life.unit,
                price=price_of(life),
                key=key_field(life),
                keys=None if keys == "public" else frozenset(keys),
                first=min(epochs),
                last=max(epochs),
            )
        )
    return found


def merged(charges: Iterable[CeilingCharge]) -> list[CeilingCharge]:
    """Return each generation once, over all owner partitions: an epoch costs once.

    Two settings under one number are two generations.
    """
    found: dict[tuple[str, bytes], CeilingCharge] = {}
    for charge in charges:
        place = charge.worker, charge.identity
        before = found.get(place, charge)
        found[place] = replace(
            charge, first=min(charge.first, before.first), last=max(charge.last, before.last)
        )
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
    return TickGrid(
        tick_ms=tick_ms, start_ms=start_ms, horizon=horizon if isinstance(horizon, int) else None
    )


def price_of(life: Life, times: int = 1) -> Part:
    """Return what so many epochs of a generation cost."""
    return Part(
        rho=life.rho,
        epsilon=life.epsilon,
        delta=life.delta,
        failures=life.deltas,
        pure=life.description.get("accounting") == "pure",
        times=times,
    )


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


# Of more windows or choices of keys, all that they could hold counts: more than in any of them.
WINDOWS_MAX = 20_000
CHOICES_MAX = 256

Counts = tuple[int, ...]
"""By charge, how many of its epochs a window touches."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a window holds for the event or user that pays most in it.

    Attributes:
        begin, end: the window, ms; None where it is more than any window holds.
        epsilon: at the ceiling's delta; None: nothing is promised.
        counts: by charge.
    """

    begin: int | None
    end: int | None
    epsilon: float | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most that one event or user may lose in any period; `period_ms` is None for an epoch."""

    unit: str
    epsilon: float
    delta: float
    period_ms: int | None

    @classmethod
    def of(cls, privacy: PrivacySettings) -> Ceiling | None:
        """Return the ceiling of the settings, None if they have none."""
        if privacy.max_epsilon is None or privacy.max_delta is None:
            return None
        return cls(privacy.unit, privacy.max_epsilon, privacy.max_delta, privacy.period_ms)

    def __str__(self) -> str:
        return f"privacy.max_epsilon = {display(self.epsilon)} with max_delta = {display(self.delta)} in {self.period}"

    @property
    def period(self) -> str:
        """What a period is, in words."""
        return "an epoch" if self.period_ms is None else f"any {format_duration(self.period_ms)}"

    def holds(self, epsilon: float | None) -> bool:
        """Return whether an epsilon at the ceiling's delta is below it."""
        return epsilon is not None and epsilon <= self.epsilon

    def epsilon_of(self, charges: Sequence[CeilingCharge], counts: Sequence[int]) -> float | None:
        """Return the epsilon, at the ceiling's delta, of who pays most; None: nothing is promised.

        Args:
            charges: all there are.
            counts: how many epochs of each count for a user; of an event each counts once.
        """
        paid = [(charge, count) for charge, count in zip(charges, counts, strict=True) if count]
        if any(charge.unit != self.unit for charge, _ in paid):
            return None  # a promise to events is none to users, nor the other way round
        worst = 0.0
        for choice in (
            _choices([charge for charge, _ in paid]) if self.unit == "event" else [range(len(paid))]
        ):
            times = [(paid[i][0].price, 1 if self.unit == "event" else paid[i][1]) for i in choice]
            epsilon = epsilon_at([replace(price, times=n) for price, n in times], self.delta)
            if epsilon is None:
                return None
            worst = max(worst, epsilon)
        return worst

    def fullest(
        self, charges: Sequence[CeilingCharge], begin: int, end: int, *, named: bool = False
    ) -> Held:
        """Return the window that holds most, among those that touch the time from begin to end.

        Unless it is to be `named`, it is enough to know that none holds too much.
        """
        most = tuple(_most(charge, self.period_ms, begin, end) for charge in charges)
        if (
            not named
            and self.period_ms is not None
            and self.holds(epsilon := self.epsilon_of(charges, most))
        ):
            # None holds more. Which one holds most does not matter.
            return Held(None, None, epsilon, most)
        windows = list(_windows(charges, self.period_ms, begin, end))
        if len(windows) > WINDOWS_MAX:
            return Held(None, None, self.epsilon_of(charges, most), most)
        held: dict[Counts, tuple[int, int]] = {}
        for window in windows:
            held.setdefault(tuple(len(charge.within(*window)) for charge in charges), window)
        found = [
            Held(*window, self.epsilon_of(charges, counts), counts)
            for counts, window in held.items()
        ]
        return max(found, key=lambda one: math.inf if one.epsilon is None else one.epsilon)


def parts_of(
    charges: Sequence[CeilingCharge], counts: Sequence[int], unit: str
) -> Iterator[tuple[CeilingCharge, Part]]:
    """Yield the charges that count, with their price as often as they do."""
    for charge, count in zip(charges, counts, strict=True):
        if count:
            yield charge, replace(charge.price, times=1 if unit == "event" else count)


def _choices(charges: Sequence[CeilingCharge]) -> Iterator[Sequence[int]]:
    """Yield what one event can pay for: one stream key for each field that they are taken from."""
    fields: dict[str, list[int]] = {}
    for i, charge in enumerate(charges):
        fields.setdefault(charge.key, []).append(i)
    served = [list(_served(charges, found)) for found in fields.values()]
    if math.prod(map(len, served)) > CHOICES_MAX:
        yield range(len(charges))
        return
    for choice in product(*served):
        yield [i for part in choice for i in sorted(part)]


def _served(charges: Sequence[CeilingCharge], among: Sequence[int]) -> Iterator[frozenset[int]]:
    """Yield what serves one stream key, without what another key has and more."""
    declared: Mapping[str | None, set[int]] = {
        None: set(),
        **{key: set() for i in among for key in charges[i].keys or ()},
    }
    for i in among:
        keys = charges[i].keys
        for key in declared if keys is None else keys:
            declared[key].add(i)
    found = {frozenset(serving) for serving in declared.values()}
    for one in found:
        if not any(one < other for other in found):
            yield one


def _most(charge: CeilingCharge, period_ms: int | None, begin: int, end: int) -> int:
    """Return as many epochs as any window has that touches this time, or more."""
    if period_ms is None or charge.epoch_ms is None:
        return len(charge.within(-EVER, EVER))
    return min(
        len(charge.within(begin - period_ms + 1, end + period_ms - 1)),
        most_epochs(period_ms, charge.epoch_ms),
    )


def most_epochs(window_ms: int, epoch_ms: int) -> int:
    """Return how many epochs a window touches at most: 31 days' in any 30 days."""
    return (window_ms - 2) // epoch_ms + 2


def _windows(
    charges: Sequence[CeilingCharge], period_ms: int | None, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield windows that touch the time from begin to end, one that holds most among them."""
    yielded = 0
    if period_ms is None:
        yield begin, end
        for charge in charges:
            epochs = charge.within(begin, end)
            # Those between the first and the last lie within the time given, which holds no less.
            for epoch in {*epochs[:1], *epochs[-1:]}:
                yield charge.span(epoch)
        return
    yield (begin, begin + period_ms) if begin > -EVER else (0, period_ms)
    for charge in charges:
        if charge.epoch_ms is None:
            continue
        # A window that is moved on until its first epoch is about to leave it loses none.
        for epoch in charge.within(begin - period_ms + 1, end):
            last = charge.span(epoch)[1] - 1
            if begin - period_ms < last < end:
                yield last, last + period_ms
                yielded += 1
                if yielded > WINDOWS_MAX:
                    return
