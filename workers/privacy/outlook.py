"""What a ceiling still allows: how long a worker may run, and a second histogram beside it.

Every histogram of the settings goes on, and no other worker begins another epoch. The epochs to
come are charged in the order in which they begin, and each is decided as `CeilingGuard.check`
decides it. Of several at once it is enough that the fullest period that touches any of them holds:
every period that the worker would look at holds no more. As soon as `endures` holds for the
histograms and whatever charges periods to come still touch, there is no end.

A charge (`total.Charge`) is the cost of one epoch of a histogram, and the epochs charged so far:
letting it go on means raising its `last` epoch. "Running" charges are of the histograms of these
settings; "fixed" ones are already spent and never grow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge as in_order
from itertools import count
from typing import NamedTuple

from msgspec import structs

from workers.mechanisms.config.histogram import HistogramConfig
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import (
    Ceiling,
    all_charges,
    charges_in,
    endures,
    grid_of,
)
from workers.privacy.model import Record
from workers.privacy.total import EVER, Charge
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings

# After so many steps, or a hundred years ahead, it is only known how long the worker may run at
# least.
_LOOKS_MAX = 2_000
_FAR_MS = 36_600 * 86_400_000
# Epochs in a step.
_AT_ONCE_MAX = 1 << 16
# Of two digits, as they are written in settings.
_EPSILONS = tuple(
    float(f"{n}e{power}") for power in range(-4, 0) for n in range(10, 100)
)


class Second(Record, frozen=True):
    """The largest epsilon of a second histogram like `histogram`; None: none fits."""

    histogram: str
    epsilon: float | None


class Outlook(Record, frozen=True):
    """How long the worker may run on after `newest`, the end of its newest tick, in ms.

    `epoch` of `histogram` begins at `until` and does not fit. Without an `epoch`, it may run at
    least `until` then; without `until`, without end, and with any one of `seconds`.
    """

    newest: int
    until: int | None = None
    histogram: str | None = None
    epoch: int | None = None
    seconds: tuple[Second, ...] = ()


def outlook_of(
    ceiling: Ceiling,
    settings: Settings,
    states: Sequence[ReleaseProgress],
    other_charges: Sequence[Charge],
    *,
    seconds: bool = True,
) -> Outlook | None:
    """Return the outlook of a worker that has published, else None.

    `other_charges` are as in `budget_of`. Without `seconds` no second histogram is looked for.

    Raise SettingsError if a histogram that has not begun cannot meet its budget.
    """
    newest = max(map(_newest, states), default=-EVER)
    if newest == -EVER:
        return None
    fixed = all_charges(settings, states, other_charges)
    running = []
    for config in settings.histograms:
        generation = (settings.worker.name, config.name, config.generation)
        charge = next(
            (charge for charge in fixed if charge.generation_id == generation), None
        )
        if charge is None:
            charge = _new_charge(settings, config, newest)
        else:
            fixed.remove(charge)
        running.append(charge)
    end = _end(ceiling, running, fixed, newest)
    if end is not None:
        return Outlook(
            newest=newest, until=end.until, histogram=end.histogram, epoch=end.epoch
        )
    if not seconds:
        return Outlook(newest=newest)
    found = tuple(
        Second(
            histogram=config.name,
            epsilon=_second(ceiling, settings, config, running, fixed, newest),
        )
        for config in settings.histograms
    )
    return Outlook(newest=newest, seconds=found)


def _newest(state: ReleaseProgress) -> int:
    """Return the end, ms, of the newest tick that an owner has published; -EVER: none."""
    lives = (*state.retired, *state.histograms.items())
    ends = (
        grid_of(name, life).end(life.next - 1)
        for name, life in lives
        if life.next is not None
    )
    return max(ends, default=-EVER)


def _new_charge(settings: Settings, config: HistogramConfig, newest_ms: int) -> Charge:
    """Return the charge, of no epoch yet, of a histogram that begins in the newest tick's epoch.

    `newest_ms` is the end of that tick, in ms.
    """
    [charge] = charges_in(settings, [config])
    epoch = 1
    if charge.epoch_ms is not None:
        epoch = max(1, (newest_ms - charge.start_ms) // charge.epoch_ms + 1)
    return replace(charge, worker=settings.worker.name, first=epoch, last=epoch - 1)


class _End(NamedTuple):
    """Where a worker has to stop, or (no `histogram`) how far was looked without finding that."""

    until: int
    histogram: str | None = None
    epoch: int | None = None


def _end(
    ceiling: Ceiling, running: Sequence[Charge], fixed: Sequence[Charge], newest_ms: int
) -> _End | None:
    """Return the first epoch that would exceed the ceiling; None if the worker may run for ever.

    Begin the epochs to come in their order, one at a time or `number` at once: twice as many after
    each step that holds, half as many after one that does not.
    """
    charges = list(running)
    number = 1
    begin = newest_ms
    touched_before = -1
    for _ in range(_LOOKS_MAX):
        coming = in_order(
            *(_coming(charge, i, newest_ms) for i, charge in enumerate(charges))
        )
        first = next(coming, None)
        # Nothing begins any more.
        if first is None:
            return None
        begin = first[0]
        if begin > newest_ms + _FAR_MS:
            break
        touched: list[Charge] = []
        past: list[Charge] = []
        for charge in fixed:
            touches = _touches(ceiling, charge, begin, [*charges, *fixed])
            (touched if touches else past).append(charge)
        # Whether there is no end may change only when a fixed charge is left behind.
        if len(touched) != touched_before:
            touched_before = len(touched)
            if endures(ceiling, [*charges, *touched], past):
                return None
        # The epochs of this step, with all that begin together with the last one.
        step = [first]
        for beginning in coming:
            if len(step) >= number and beginning[0] > begin:
                break
            step.append(beginning)
        charged = list(charges)
        for _, i, epoch in step:
            charged[i] = replace(charged[i], last=epoch)
        if number > 1:
            end = max(charges[i].span(epoch)[1] for _, i, epoch in step)
            fullest = ceiling.fullest([*charged, *fixed], begin, end)
            if not ceiling.holds(fullest.epsilon):
                number //= 2
                continue
        else:
            for _, i, epoch in step:
                fullest = ceiling.fullest([*charged, *fixed], *charges[i].span(epoch))
                if not ceiling.holds(fullest.epsilon):
                    return _End(begin, charges[i].histogram, epoch)
        charges = charged
        number = min(2 * number, _AT_ONCE_MAX)
    return _End(begin)


def _coming(
    charge: Charge, index: int, newest_ms: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (ms, `index`, number) of each further epoch of a charge; ms is when it begins.

    `index` is the caller's, of the charge.
    """
    if charge.epoch_ms is not None:
        yield from (
            (charge.span(epoch)[0], index, epoch) for epoch in count(charge.last + 1)
        )
    # One epoch without an end, if it has not begun.
    elif charge.last < charge.first:
        yield newest_ms, index, charge.first


def _touches(
    ceiling: Ceiling, charge: Charge, begin: int, charges: Sequence[Charge]
) -> bool:
    """Return whether a period that lasts until `begin` or later touches a charged epoch.

    If not, the charge no longer limits what is to come.
    """
    lengths = [one.epoch_ms for one in charges]
    longest = ceiling.period_ms
    if longest is None:
        longest = max(EVER if length is None else length for length in lengths)
    return len(charge.within(begin - longest + 1, EVER)) > 0


def _second(
    ceiling: Ceiling,
    settings: Settings,
    config: HistogramConfig,
    running: Sequence[Charge],
    fixed: Sequence[Charge],
    newest_ms: int,
) -> float | None:
    """Return the largest epsilon, to two digits, with which another `config` fits without end."""
    low = 0
    high = len(_EPSILONS)
    most = None
    while low < high:
        middle = (low + high) // 2
        epsilon = _EPSILONS[middle]
        try:
            second = _new_charge(
                settings, structs.replace(config, epsilon=epsilon, rho=None), newest_ms
            )
        except SettingsError:  # too small for this mechanism
            low = middle + 1
            continue
        charges = [*running, second]
        # `endures` is quick, and necessary.
        if (
            endures(ceiling, charges, fixed)
            and _end(ceiling, charges, fixed, newest_ms) is None
        ):
            low = middle + 1
            most = epsilon
        else:
            high = middle
    return most
