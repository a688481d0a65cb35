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
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from workers.mechanisms.config.checked import display
from workers.privacy.ceiling.charges import EVER, Charge
from workers.privacy.total import Part, epsilon_at
from workers.settings.durations import format_duration
from workers.settings.settings import PrivacySettings

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

    def epsilon_of(self, charges: Sequence[Charge], counts: Sequence[int]) -> float | None:
        """Return the epsilon, at the ceiling's delta, of who pays most; None: nothing is promised.

        Args:
            charges: all there are.
            counts: how many epochs of each count for a user; of an event each counts once.
        """
        paid = [(charge, count) for charge, count in zip(charges, counts, strict=True) if count]
        if any(charge.unit != self.unit for charge, _ in paid):
            return None  # a promise to events is none to users, nor the other way round
        worst = 0.0
        for choice in _choices([charge for charge, _ in paid]) if self.unit == "event" else [range(len(paid))]:
            times = [(paid[i][0].price, 1 if self.unit == "event" else paid[i][1]) for i in choice]
            epsilon = epsilon_at([replace(price, times=n) for price, n in times], self.delta)
            if epsilon is None:
                return None
            worst = max(worst, epsilon)
        return worst

    def fullest(self, charges: Sequence[Charge], begin: int, end: int, *, named: bool = False) -> Held:
        """Return the window that holds most, among those that touch the time from begin to end.

        Unless it is to be `named`, it is enough to know that none holds too much.
        """
        most = tuple(_most(charge, self.period_ms, begin, end) for charge in charges)
        if not named and self.period_ms is not None and self.holds(epsilon := self.epsilon_of(charges, most)):
            # None holds more. Which one holds most does not matter.
            return Held(None, None, epsilon, most)
        windows = list(_windows(charges, self.period_ms, begin, end))
        if len(windows) > WINDOWS_MAX:
            return Held(None, None, self.epsilon_of(charges, most), most)
        held: dict[Counts, tuple[int, int]] = {}
        for window in windows:
            held.setdefault(tuple(len(charge.within(*window)) for charge in charges), window)
        found = [Held(*window, self.epsilon_of(charges, counts), counts) for counts, window in held.items()]
        return max(found, key=lambda one: math.inf if one.epsilon is None else one.epsilon)


def parts_of(charges: Sequence[Charge], counts: Sequence[int], unit: str) -> Iterator[tuple[Charge, Part]]:
    """Yield the charges that count, with their price as often as they do."""
    for charge, count in zip(charges, counts, strict=True):
        if count:
            yield charge, replace(charge.price, times=1 if unit == "event" else count)


def _choices(charges: Sequence[Charge]) -> Iterator[Sequence[int]]:
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


def _served(charges: Sequence[Charge], among: Sequence[int]) -> Iterator[frozenset[int]]:
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


def _most(charge: Charge, period_ms: int | None, begin: int, end: int) -> int:
    """Return as many epochs as any window has that touches this time, or more."""
    if period_ms is None or charge.epoch_ms is None:
        return len(charge.within(-EVER, EVER))
    return min(len(charge.within(begin - period_ms + 1, end + period_ms - 1)), most_epochs(period_ms, charge.epoch_ms))


def most_epochs(window_ms: int, epoch_ms: int) -> int:
    """Return how many epochs a window touches at most: 31 days' in any 30 days."""
    return (window_ms - 2) // epoch_ms + 2


def _windows(charges: Sequence[Charge], period_ms: int | None, begin: int, end: int) -> Iterator[tuple[int, int]]:
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
