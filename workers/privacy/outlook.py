"""What a ceiling still allows: how long a worker may run, and a second histogram beside it.

A ceiling limits the epsilon of every period of some length. The worker stops before an epoch with
which the fullest period, the one with the largest epsilon, would exceed it. To foresee that, the
epochs to come are charged here in the order in which they begin. It is assumed that every histogram
of the settings goes on, and that no other worker begins another epoch.

A charge (`total.Charge`) is the cost of one epoch of a histogram, and the epochs charged so far:
letting it go on means raising its `last` epoch. "Running" charges are of the histograms of these
settings; "fixed" ones are already spent and never grow.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import merge as in_order
from itertools import count

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

# After so many steps, or a hundred years ahead, the search ends without an answer: it is only known
# how long the worker may run at least.
_STEPS_MAX = 2_000
_FAR_MS = 36_600 * 86_400_000
# Epochs that are charged in one step.
_AT_ONCE_MAX = 1 << 16
# The epsilons to try for a second histogram: of two digits, as they are written in settings.
_EPSILONS = tuple(
    float(f"{n}e{power}") for power in range(-4, 0) for n in range(10, 100)
)


class Second(Record, frozen=True):
    """The largest epsilon of a second histogram like `histogram`; None: none fits."""

    histogram: str
    epsilon: float | None


class Outlook(Record, frozen=True):
    """How long the worker may run on after `newest`, the end of its newest tick, in ms.

    until       when it has to stop: `epoch` of `histogram` would begin then, and does not fit. If
                these are None, it may run at least until then. None: it may run for ever
    seconds     if it may run for ever: second histograms (`Second`), any one of which would fit too
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

    `states` are those of its owner partitions, `other_charges` those of other workers that count
    toward the ceiling. Without `seconds` no second histogram is looked for.

    Raise SettingsError if a histogram that has not begun cannot meet its budget.
    """
    newest_ms = max(map(_newest, states), default=-EVER)
    if newest_ms == -EVER:
        return None
    fixed = all_charges(settings, states, other_charges)
    running = []
    for config in settings.histograms:
        generation = (settings.worker.name, config.name, config.generation)
        charge = next(
            (charge for charge in fixed if charge.generation_id == generation), None
        )
        if charge is None:
            charge = _new_charge(settings, config, newest_ms)
        else:
            fixed.remove(charge)  # it goes on, so it is not fixed
        running.append(charge)
    outlook = _find_end(ceiling, running, fixed, newest_ms)
    if outlook.until is not None or not seconds:
        return outlook
    found = tuple(
        Second(
            histogram=config.name,
            epsilon=_second_epsilon(
                ceiling, settings, config, running, fixed, newest_ms
            ),
        )
        for config in settings.histograms
    )
    return Outlook(newest=newest_ms, seconds=found)


def _newest(state: ReleaseProgress) -> int:
    """Return the end, ms, of the newest tick that an owner has published; -EVER if it has none."""
    lives = (*state.retired, *state.histograms.items())
    ends = (
        grid_of(name, life).end(life.next - 1)
        for name, life in lives
        if life.next is not None
    )
    return max(ends, default=-EVER)


def _new_charge(settings: Settings, config: HistogramConfig, newest_ms: int) -> Charge:
    """Return the charge of a histogram that is about to begin: of no epoch yet, so last < first.

    Its first epoch is the one at `newest_ms`, the end of the worker's newest tick.
    """
    [charge] = charges_in(settings, [config])
    epoch = 1
    if charge.epoch_ms is not None:
        epoch = max(1, (newest_ms - charge.start_ms) // charge.epoch_ms + 1)
    return replace(charge, worker=settings.worker.name, first=epoch, last=epoch - 1)


def _find_end(
    ceiling: Ceiling, running: Sequence[Charge], fixed: Sequence[Charge], newest_ms: int
) -> Outlook:
    """Return the outlook, without `seconds`: the first epoch that would exceed the ceiling.

    Charge the epochs to come in their order, `at_once` in a step: twice as many after each step
    that stays within the ceiling. One that does not is taken back and halved, so that in the end a
    step is the one epoch that does not fit.
    """
    charges = list(running)
    at_once = 1
    begin = newest_ms
    touched_before = -1
    for _ in range(_STEPS_MAX):
        coming = in_order(
            *(_coming(charge, i, newest_ms) for i, charge in enumerate(charges))
        )
        first = next(coming, None)
        if first is None:  # nothing begins any more
            return Outlook(newest=newest_ms)
        begin = first[0]
        if begin > newest_ms + _FAR_MS:
            break  # too far ahead to look further
        # Fixed charges that periods to come still touch, and those that none does.
        touched: list[Charge] = []
        past: list[Charge] = []
        for charge in fixed:
            touches = _touches(ceiling, charge, begin, [*charges, *fixed])
            (touched if touches else past).append(charge)
        # The answer changes only when a fixed charge is left behind.
        if len(touched) != touched_before:
            touched_before = len(touched)
            if endures(ceiling, [*charges, *touched], past):
                return Outlook(newest=newest_ms)
        # The epochs of this step: so many, or all that begin with the first if these are more.
        step = [first]
        for beginning in coming:
            if len(step) >= at_once and beginning[0] > begin:
                break
            step.append(beginning)
        charged = list(charges)
        for _, i, epoch in step:
            charged[i] = replace(charged[i], last=epoch)
        # A step of one epoch, or of several that begin at the same time, is tested epoch by epoch,
        # to name the one that does not fit. That ends the search.
        if at_once > 1:
            # Only periods that touch these epochs became fuller: all hold if the fullest does.
            end = max(charges[i].span(epoch)[1] for _, i, epoch in step)
            fullest = ceiling.fullest([*charged, *fixed], begin, end)
            if not ceiling.holds(fullest.epsilon):
                at_once //= 2
                continue
        else:
            for _, i, epoch in step:
                fullest = ceiling.fullest([*charged, *fixed], *charges[i].span(epoch))
                if not ceiling.holds(fullest.epsilon):
                    name = charges[i].histogram
                    return Outlook(
                        newest=newest_ms, until=begin, histogram=name, epoch=epoch
                    )
        charges = charged
        at_once = min(2 * at_once, _AT_ONCE_MAX)
    # No end was found, nor proof that there is none: it may run at least until here.
    return Outlook(newest=newest_ms, until=begin)


def _coming(
    charge: Charge, index: int, newest_ms: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (when it begins, ms, `index`, its number) for each epoch of a charge still to come.

    `index` is the caller's number of the charge, to tell it from others.
    """
    if charge.epoch_ms is not None:
        yield from (
            (charge.span(epoch)[0], index, epoch) for epoch in count(charge.last + 1)
        )
    # It has only one epoch, without an end: to come only if it has not begun.
    elif charge.last < charge.first:
        yield newest_ms, index, charge.first


def _touches(
    ceiling: Ceiling, charge: Charge, begin: int, charges: Sequence[Charge]
) -> bool:
    """Return whether a period that ends after `begin` can touch an epoch of `charge`.

    If not, the charge is too old to limit what begins from then on. `charges` are all there are.
    """
    lengths = [one.epoch_ms for one in charges]
    longest = ceiling.period_ms
    if longest is None:
        # The periods are the epochs of `charges`.
        longest = max(EVER if length is None else length for length in lengths)
    return len(charge.within(begin - longest + 1, EVER)) > 0


def _second_epsilon(
    ceiling: Ceiling,
    settings: Settings,
    config: HistogramConfig,
    running: Sequence[Charge],
    fixed: Sequence[Charge],
    newest_ms: int,
) -> float | None:
    """Return the largest epsilon of `_EPSILONS` with which another `config` fits without end.

    None: not even the least does. `running` and `fixed` charges are those of the module.
    """
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
        # Where it may run for ever `endures` holds; as that is quick, it is asked first.
        if (
            endures(ceiling, charges, fixed)
            and _find_end(ceiling, charges, fixed, newest_ms).until is None
        ):
            low = middle + 1
            most = epsilon
        else:
            high = middle
    return most
