"""The ceiling: the most that one event or user may lose in any period.

    period   a length of time: the limit holds for every window of that length. "epoch": the windows
             are the epochs of all histograms that have begun
    generation  one set of settings of a histogram: each begins anew and is charged anew. Its stored
                state is a "life" (`HistogramProgress`), its ticks lie on a `TickGrid`
    charge   the cost of one epoch of a generation, and the epochs charged so far (`total.Charge`)
    owner       an "owner partition" is a share of the stream keys; its owner publishes them
    fullest     the window, of the period's length, in which the most epsilon was spent
    window   a period, [begin, end) in ms; it "touches" the epochs that overlap it. EVER is a time
             after all others, -EVER one before
    user     pays for every epoch that a window touches, whatever the stream keys
    event    lies in one epoch of each generation, and pays for each generation that a window
             touches: after a restored copy one event may be in two successive ones. It has one
             stream key per key field; the costliest of each counts. In every window it may also be
             in a sample on which bounds were chosen, and pays for each that it does not pay for yet

All charges are composed in zCDP and converted once, at `max_delta`. They come from the progress
that each owner partition stores with its snapshots, ended generations and histograms included. An
epoch is charged in full once it is reserved, before its first tick. Unknown epochs count as
charged: an ended generation pays up to the moment it ended, however little of it was stored,
because the state may be an older copy. `check_ceiling` refuses settings that exceed their own
ceiling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

import msgspec
from msgspec import structs

from workers.mechanisms.accounting import PrivacyCost, epsilon_of
from workers.mechanisms.config.checked import display
from workers.mechanisms.config.durations import format_duration
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.ticks import TickGrid
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import build
from workers.pipeline.histogram import HistogramProgress
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.total import (
    EVER,
    Charge,
    charge_of,
    conversion_delta,
    epsilon_at,
    most_paid,
    sample_of,
    samples_of,
)
from workers.runtime.errors import SettingsError, StateRefused
from workers.settings.settings import PrivacySettings, Settings


def charges_of(
    worker: str,
    progress: ReleaseProgress,
    settings: Settings | None = None,
    beginning: Mapping[str, int] | None = None,
) -> list[Charge]:
    """Return what the generations in one owner partition's stored `progress` are charged.

    A Charge is the cost of an epoch, with the first and the last epoch that have to be paid.
    `beginning` has, by histogram, an epoch that is about to begin, which is charged too. Without
    `settings`, a generation counts as serving every stream key. Raise StateRefused if a stored
    generation has no tick grid.
    """
    charges = []
    for life, running, grid, charge in generations_of(worker, progress, settings):
        epochs = _epochs(life, grid)
        if running and beginning is not None and charge.histogram in beginning:
            epochs.append(beginning[charge.histogram])
        if epochs:
            charge = replace(charge, first=min(epochs), last=max(epochs))
            if not running and charge.epoch_ms is None:
                charge = _ended(charge, life, grid)
            charges.append(charge)
    return charges


class StoredGeneration(NamedTuple):
    """A generation in one owner's state; not `running`: ended.

    `charge` has its cost, but not yet the epochs to be charged.
    """

    life: HistogramProgress
    running: bool
    grid: TickGrid
    charge: Charge


def generations_of(
    worker: str, progress: ReleaseProgress, settings: Settings | None
) -> Iterator[StoredGeneration]:
    """Yield the generations in an owner's state, ended ones first, each with its cost per epoch.

    Raise StateRefused if one has no tick grid.
    """
    configs = () if settings is None else settings.histograms
    # The state does not store stream keys, so those of a retired generation are unknown.
    served = {(config.name, config.generation): config.keys for config in configs}
    stored = [(name, life, False) for name, life in progress.retired]
    stored += [(name, life, True) for name, life in progress.histograms.items()]
    for name, life, running in stored:
        grid = grid_of(name, life)
        keys = served.get((name, life.generation), "public") if running else "public"
        # A text, so that it is exact; None if bounds were not chosen from a sample.
        bounds_rho = life.description.get("bounds_rho")
        accounting = life.description.get("accounting")
        period = period_of(life)
        failures = tuple(life.deltas.items())
        charge = Charge(
            PrivacyCost(
                life.rho,
                life.epsilon,
                life.delta,
                failures=failures,
                pure=accounting == "pure",
                gaussian=accounting == "gaussian",
                sample_rho=float(bounds_rho) if isinstance(bounds_rho, str) else 0.0,
                overlap=1.0 if period is None else period.overlap,
            ),
            None if grid.horizon is None else grid.horizon * grid.tick_ms,
            # Without epochs, events are charged once; users are charged for each period.
            charged_once=period is None and bool(windows_of(life, grid)),
            start_ms=grid.start_ms,
            unit=life.unit,
            worker=worker,
            histogram=name,
            generation=life.generation,
            identity=msgspec.json.encode([name, life.description], order="sorted"),
            key_field=str(_events(life).get("key")),
            keys=None if keys == "public" else frozenset(keys),
        )
        yield StoredGeneration(life, running, grid, charge)


def all_charges(
    settings: Settings,
    states: Iterable[ReleaseProgress],
    others: Iterable[Charge],
    beginning: Mapping[str, int] | None = None,
) -> list[Charge]:
    """Return the merged charges of a worker's owner partitions, and the `others`.

    `beginning` is that of `charges_of`.
    """
    worker = settings.worker.name
    own = (charges_of(worker, state, settings, beginning) for state in states)
    return merge(chain(*own, others))


def merge(charges: Iterable[Charge]) -> list[Charge]:
    """Merge what several owner partitions report for the same generation.

    They publish disjoint stream keys in the same epochs, so an epoch costs once: the merged charge
    spans from the earliest to the latest epoch of any of them.
    """
    merged: dict[tuple[str, bytes], Charge] = {}
    for charge in charges:
        generation = charge.worker, charge.identity
        so_far = merged.get(generation, charge)
        merged[generation] = replace(
            charge,
            first=min(charge.first, so_far.first),
            last=max(charge.last, so_far.last),
            began_ms=min(charge.began_ms, so_far.began_ms),
            ended_ms=max(charge.ended_ms, so_far.ended_ms),
            # None: with some owner it has ended, and its keys are unknown.
            keys=None if so_far.keys is None else charge.keys,
        )
    return list(merged.values())


def grid_of(name: str, life: HistogramProgress) -> TickGrid:
    """Return the ticks of a generation, and the epochs, or periods of users, that it is charged.

    Its `horizon` is None where an epoch has no end, and where there are neither epochs nor periods.
    Raise StateRefused if its description gives no ticks.
    """
    description = life.description
    tick_ms = description.get("tick_ms")
    start_ms = description.get("start_ms")
    if not isinstance(tick_ms, int) or not isinstance(start_ms, int):
        raise StateRefused(
            f"histogram {name!r}: its state does not give the width of its ticks"
        )
    # Mechanisms with a counter state the horizon there.
    counter = description.get("counter")
    horizon = (counter if isinstance(counter, dict) else description).get("horizon")
    if not isinstance(horizon, int):
        horizon = None
    if (period := period_of(life)) is not None:
        horizon = period.ticks
    return TickGrid(tick_ms=tick_ms, start_ms=start_ms, horizon=horizon)


class Period(NamedTuple):
    """Periods of `ticks` each: without epochs, a user is charged for each period.

    They share noise: n of them cost at most min(n, `overlap`) n times the rho of one.
    """

    ticks: int
    overlap: float


def period_of(life: HistogramProgress) -> Period | None:
    """Return the periods in which a generation protects users; None where it has epochs."""
    stored = life.description.get("period")
    if not isinstance(stored, dict):
        return None
    return Period(int(stored["ticks"]), float(stored["overlap"]))


def windows_of(life: HistogramProgress, grid: TickGrid) -> tuple[int, ...]:
    """Return the windows, ms, of a generation without epochs; none of one with epochs."""
    windows = life.description.get("windows")
    if not isinstance(windows, list):
        return ()
    return tuple(ticks * grid.tick_ms for ticks in windows if isinstance(ticks, int))


def topics_of(progress: ReleaseProgress) -> set[str]:
    """Return the names of the events topics that the generations in a state have counted."""
    names: set[str] = set()
    for _, life in (*progress.retired, *progress.histograms.items()):
        topics = _events(life).get("topic")
        names |= set(topics) if isinstance(topics, list) else {str(topics)}
    return names


def _epochs(life: HistogramProgress, grid: TickGrid) -> list[int]:
    """Return epochs whose least and largest bound the charged ones; empty if none is charged.

    They are the epochs of the first and the last published tick, the last epoch charged ahead
    (`reserved`), and that of `until`, the time up to which an ended generation may have published.
    """
    if life.first is None:
        return []
    epochs = []
    if life.next is not None and life.next > life.first:
        epochs = [grid.epoch_of(tick) for tick in (life.first, life.next - 1)]
    if isinstance(life.reserved, int):
        epochs += [grid.epoch_of(life.first), life.reserved]
    if epochs and isinstance(life.until, int):
        # Of the last tick that was complete by then, as an open one is not published.
        epochs.append(grid.epoch_of(max(life.first, grid.tick_at(life.until) - 1)))
    return epochs


def _ended(charge: Charge, life: HistogramProgress, grid: TickGrid) -> Charge:
    """Return the charge of an ended generation whose only epoch has no end, bounded by its ticks.

    This owner has published those in [first, next), any owner none after `until`. Where that is not
    known the charge has no end.
    """
    if life.first is None or not isinstance(life.until, int):
        return charge
    return replace(
        charge,
        began_ms=grid.start(life.first),
        ended_ms=max(grid.start(life.next or 1), life.until),
    )


def _events(life: HistogramProgress) -> Mapping[str, object]:
    """Return the stored settings of the events that a generation counts; empty if unknown."""
    events = life.description.get("events")
    return events if isinstance(events, dict) else {}


# With more windows than this, use an upper bound over all of them.
WINDOWS_MAX = 20_000

Counts = tuple[int, ...]
"""By charge, how many of its epochs a window touches."""


class FullestWindow(NamedTuple):
    """A window [begin, end), ms, and the `epsilon`, at the ceiling's delta, of who pays most in it.

    `counts` says, by charge, how many of its epochs the window touches. If begin and end are None,
    the other two are upper bounds over all windows. `epsilon` None: no guarantee can be given.
    """

    begin: int | None
    end: int | None
    epsilon: float | None
    counts: Counts


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The most epsilon, at `delta`, that one `unit` may lose in a period (None: an epoch)."""

    unit: str
    epsilon: float
    delta: float
    period_ms: int | None

    @classmethod
    def of(cls, privacy: PrivacySettings) -> Ceiling | None:
        """Return the ceiling of the settings; None if they set none."""
        if privacy.max_epsilon is None or privacy.max_delta is None:
            return None
        return cls(
            privacy.unit, privacy.max_epsilon, privacy.max_delta, privacy.period_ms
        )

    def __str__(self) -> str:
        return f"privacy.max_epsilon = {display(self.epsilon)} with max_delta = {display(self.delta)} in {self.period}"

    @property
    def period(self) -> str:
        """What messages call a period, such as "any 30d"."""
        return (
            "an epoch"
            if self.period_ms is None
            else f"any {format_duration(self.period_ms)}"
        )

    def holds(self, epsilon: float | None) -> bool:
        """Return whether an epsilon, None for no guarantee, is within the ceiling."""
        return epsilon is not None and epsilon <= self.epsilon

    def epsilon_of(
        self, charges: Sequence[Charge], counts: Sequence[int]
    ) -> float | None:
        """Return the worst event's or user's epsilon at the ceiling's delta; None: no guarantee.

        `counts` says how many epochs of each charge a window touches. A user pays for all of them.
        An event pays for one epoch of each charge that serves its stream key, and for the samples
        of all other charges.
        """
        touched = [i for i, count in enumerate(counts) if count]
        if any(
            charge.unit != self.unit
            for charge, count in zip(charges, counts, strict=True)
            if count or charge.cost.sample_rho
        ):
            return None  # a promise to events is none to users, and vice versa
        if self.unit == "user":
            epochs = [replace(charges[i].cost, times=counts[i]) for i in touched]
            return epsilon_at(epochs, self.delta)
        epsilons = []
        # The event counts in one choice of charges, and may be in the samples of all others.
        for choice in most_paid([charges[i] for i in touched]):
            chosen = {touched[j] for j in choice}
            costs = [charges[i].cost for i in sorted(chosen)]
            costs += samples_of(
                charge.cost for i, charge in enumerate(charges) if i not in chosen
            )
            epsilons.append(epsilon_at(costs, self.delta))
        return max(epsilons, key=_size)

    def fullest(
        self, charges: Sequence[Charge], begin: int, end: int, *, locate: bool = False
    ) -> FullestWindow:
        """Return the window with the largest loss among those that touch [begin, end), ms.

        Without `locate`, an upper bound over all windows is returned if it is within the ceiling:
        that shows that nothing is exceeded, without looking at every window.
        """
        most = tuple(
            _most_touched(charge, self.period_ms, begin, end) for charge in charges
        )
        # Without a period, `bound` counts all epochs, so it is too large to show anything.
        bound = FullestWindow(None, None, self.epsilon_of(charges, most), most)
        if not locate and self.period_ms is not None and self.holds(bound.epsilon):
            return bound
        windows = list(_windows(charges, self.period_ms, begin, end))
        if len(windows) > WINDOWS_MAX:
            return bound  # perhaps too large, never too small
        # Windows with equal counts cost the same: each is priced once.
        window_of: dict[Counts, tuple[int, int]] = {}
        for window in windows:
            counts = tuple(len(charge.within(*window)) for charge in charges)
            window_of.setdefault(counts, window)
        return fullest_of(
            FullestWindow(*window, self.epsilon_of(charges, counts), counts)
            for counts, window in window_of.items()
        )


def fullest_of(windows: Iterable[FullestWindow]) -> FullestWindow:
    """Return the window with the largest epsilon; no guarantee ranks above all."""
    return max(windows, key=lambda window: _size(window.epsilon))


def _size(epsilon: float | None) -> float:
    """Return an epsilon as a number to compare by: no guarantee is larger than any."""
    return math.inf if epsilon is None else epsilon


def parts_of(
    charges: Sequence[Charge], counts: Sequence[int], unit: str
) -> Iterator[tuple[Charge, PrivacyCost]]:
    """Yield the charges that a window touches, with what one event or user pays for them.

    One that it does not touch is there if it has a sample, with the cost of that.
    """
    for charge, count in zip(charges, counts, strict=True):
        if count:
            yield charge, replace(charge.cost, times=1 if unit == "event" else count)
        elif charge.cost.sample_rho:
            yield charge, sample_of(charge.cost)


def _most_touched(charge: Charge, period_ms: int | None, begin: int, end: int) -> int:
    """Bound how many epochs of a charge one window can touch, if it also touches [begin, end), ms.

    Without a period a window is an epoch of any charge, and may touch all epochs of this one.
    """
    if period_ms is None:
        return len(charge.within(-EVER, EVER))
    near = charge.within(begin - period_ms + 1, end + period_ms - 1)
    if charge.epoch_ms is None:
        return len(near)
    return min(len(near), most_epochs(period_ms, charge.epoch_ms))


def most_epochs(window_ms: int, epoch_ms: int) -> int:
    """Return the most epochs that a window can touch: 31 daily ones in any 30 days."""
    # Its first ms is the last of one epoch; the other window_ms - 1 begin another.
    return (window_ms - 2) // epoch_ms + 2


def _windows(
    charges: Sequence[Charge], period_ms: int | None, begin: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield candidate windows that touch [begin, end), ms; among them is one with the largest loss.

    So no window need be moved tick by tick. Without a period, windows are the epochs of `charges`.
    Stop once there are more than WINDOWS_MAX, which is too many for the caller.
    """
    yielded = 0
    if period_ms is None:
        yield begin, end
        for charge in charges:
            epochs = charge.within(begin, end)
            # [begin, end) contains all epochs between the first and the last, so they hold no more.
            for epoch in {*epochs[:1], *epochs[-1:]}:
                yield charge.span(epoch)
        return
    # This one is enough if no charged epoch ends, as all windows are alike then. No window can
    # begin at -EVER, so take any.
    yield (begin, begin + period_ms) if begin > -EVER else (0, period_ms)
    for charge in charges:
        if charge.span(charge.last)[1] == EVER:
            continue  # no window can be moved past its only epoch
        # Moving a window forward until its first epoch is about to leave loses no epoch. So the
        # candidates begin at the last ms of an epoch.
        for epoch in charge.within(begin - period_ms + 1, end):
            last = charge.span(epoch)[1] - 1
            if begin - period_ms < last < end:
                yield last, last + period_ms
                yielded += 1
                if yielded > WINDOWS_MAX:
                    return


# Shares of the epsilon that fits by arithmetic; each is tried by building the mechanism.
_TRIES = (1.0, 0.98, 0.9, 0.75, 0.5)
_HALVINGS = 40
# Epochs in an unbounded window: more than any budget covers.
_ENDLESS = 10**9


def check_ceiling(
    settings: Settings, mechanisms: Sequence[Mechanism] | None = None
) -> float | None:
    """Return the epsilon of the fullest period at the ceiling's delta; None without a ceiling.

    `mechanisms` are those of the histograms, if they are built already. Raise SettingsError if the
    settings alone exceed the ceiling, or a budget cannot be met.
    """
    ceiling = Ceiling.of(settings.privacy)
    if ceiling is None:
        return None
    configs = settings.histograms
    built = mechanisms or [mechanism_of(config, ceiling.unit) for config in configs]
    charges = _charges(settings, configs, built)
    worst = _worst(ceiling, charges)
    epsilon = worst.epsilon
    if ceiling.holds(epsilon):
        return epsilon
    raise SettingsError(
        f"{ceiling}: these settings exceed it by themselves: for one {ceiling.unit} "
        f"{', '.join(_epochs_named(ceiling, settings, worst.counts))} come to {_sum_named(epsilon, charges, worst.counts)}; "
        f"{_fitting(ceiling, settings, charges)}"
    )


def mechanism_of(config: HistogramConfig, unit: str) -> Mechanism:
    """Build a histogram's mechanism; raise SettingsError if its budget cannot be met."""
    try:
        return build(config, unit)
    except ValueError as error:
        raise SettingsError(f"{config.where()}{error}") from error


def charges_in(settings: Settings, configs: Sequence[HistogramConfig]) -> list[Charge]:
    """Return the charge of an epoch of each; raise SettingsError if a budget cannot be met."""
    unit = settings.privacy.unit
    return _charges(
        settings, configs, (mechanism_of(config, unit) for config in configs)
    )


def endures(
    ceiling: Ceiling, charges: Sequence[Charge], past: Sequence[Charge]
) -> bool:
    """Return whether all of `charges` may go on without end, however their epochs lie.

    Then no period, however far ahead, can exceed the ceiling. `past` charges lie before all of
    these periods: only their samples count.
    """
    return ceiling.holds(_worst(ceiling, charges, past).epsilon)


def _charges(
    settings: Settings,
    configs: Sequence[HistogramConfig],
    mechanisms: Iterable[Mechanism],
) -> list[Charge]:
    """Return the charge of one epoch of each histogram, with the field of its stream key.

    It is that of [events] if the histogram names none.
    """
    charges = map(charge_of, configs, mechanisms)
    return [
        replace(charge, key_field=charge.key_field or settings.events.key)
        for charge in charges
    ]


def _worst(
    ceiling: Ceiling, charges: Sequence[Charge], past: Sequence[Charge] = ()
) -> FullestWindow:
    """Return the fullest window that these charges can ever make, if all of them run for ever.

    An event is in one epoch of each; a user in as many epochs as a window can touch. `past` charges
    are in none. `counts` of the result are of `charges` alone.
    """
    period = ceiling.period_ms
    # By window: how many epochs of each charge it touches.
    if ceiling.unit == "event":
        touched = [(1,) * len(charges)]
    elif period is not None:
        lengths = [charge.epoch_ms for charge in charges]
        touched = [
            tuple(1 if ms is None else most_epochs(period, ms) for ms in lengths)
        ]
    else:
        # The windows are the epochs of all charges.
        touched = [
            tuple(_touched(window, other) for other in charges) for window in charges
        ]
    every = [*charges, *past]
    none = (0,) * len(past)
    return fullest_of(
        FullestWindow(None, None, ceiling.epsilon_of(every, (*counts, *none)), counts)
        for counts in dict.fromkeys(touched)
    )


def _touched(window: Charge, other: Charge) -> int:
    """Return the most epochs of `other` that one epoch of `window` can touch."""
    if other.epoch_ms is None:
        return 1
    if window.epoch_ms is None:
        return _ENDLESS
    # Epochs of `window` begin at various places within epochs of `other`, which are multiples of
    # the greatest common divisor apart. One that begins at the latest place touches most.
    step = math.gcd(window.epoch_ms, other.epoch_ms)
    latest = other.epoch_ms - step + (window.start_ms - other.start_ms) % step
    return (latest + window.epoch_ms - 1) // other.epoch_ms + 1


def _epochs_named(
    ceiling: Ceiling, settings: Settings, counts: Sequence[int]
) -> Iterator[str]:
    """Yield the histograms, each with how many of its epochs count in a period, for a message."""
    for config, count in zip(settings.histograms, counts, strict=True):
        times = 1 if ceiling.unit == "event" else count
        if times >= _ENDLESS:
            yield f"{config.name} (epochs without end)"
        elif times > 1:
            yield f"{config.name} ({times:,} epochs)"
        else:
            yield config.name


def _sum_named(
    epsilon: float | None, charges: Sequence[Charge], counts: Sequence[int]
) -> str:
    """Return what the charges come to, for a message: an epsilon, or why there is none."""
    if epsilon is not None:
        return f"epsilon {epsilon:.6g} at that delta"
    spent = Fraction(0)
    for charge, n in zip(charges, counts, strict=True):
        spent += n * sum(Fraction(failure) for _, failure in charge.cost.failures)
    return f"a delta of {min(float(spent), 1.0):.3g} before anything is converted, so to no epsilon at that delta"


def _fitting(ceiling: Ceiling, settings: Settings, charges: Sequence[Charge]) -> str:
    """Return advice for a message: the epsilons that would fit, with a smaller delta if needed."""
    counts = _worst(ceiling, charges).counts
    # An event pays for one epoch of each histogram, a user for all that a period touches.
    times = len(counts) if ceiling.unit == "event" else sum(counts)
    # The ceiling's delta divided among them, to two significant digits. Settings accept no delta
    # below 1e-50.
    least = max(_down(ceiling.delta / times, 2), 1e-50)
    given = settings.histograms
    smaller = [structs.replace(one, delta=min(one.delta, least)) for one in given]
    for configs, delta in (
        (given, ""),
        (smaller, f", with delta = {least:.2g} in each,"),
    ):
        epsilons = _fitting_epsilons(ceiling, settings, charges, configs)
        if epsilons is None:
            continue
        texts = [f"{epsilon:.3g}" for epsilon in epsilons]
        advice = f"epsilon = {texts[0]} in each"
        if len(set(texts)) > 1:
            named = zip(configs, texts, strict=True)
            advice = ", ".join(f"{config.name}: epsilon = {e}" for config, e in named)
        return f"{advice}{delta} would fit"
    return "no epsilon would fit: a higher ceiling, a shorter period or longer epochs"


def _fitting_epsilons(
    ceiling: Ceiling,
    settings: Settings,
    charges: Sequence[Charge],
    configs: Sequence[HistogramConfig],
) -> list[float] | None:
    """Return an epsilon for each histogram that together meet the ceiling; None: there are none.

    Reduce every rho in the same ratio, found by bisection; then build the mechanisms, to be sure.
    """
    # The costs at the deltas of `configs`, assuming that the parts of delta scale with it. Building
    # the mechanisms verifies the estimate.
    costs = [
        _with_delta(charge.cost, config.delta / charge.cost.delta)
        for charge, config in zip(charges, configs, strict=True)
    ]
    low = 0.0
    high = 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        pairs = zip(charges, costs, strict=True)
        tried = [replace(charge, cost=_scaled(cost, middle)) for charge, cost in pairs]
        if ceiling.holds(_worst(ceiling, tried).epsilon):
            low = middle
        else:
            high = middle
    if not low:
        return None
    # Try what fits by arithmetic, to three significant digits, then less, until the mechanisms fit:
    # they may cost more than arithmetic says.
    for share in _TRIES:
        epsilons = [_down(_scaled(cost, low).epsilon * share, 3) for cost in costs]
        try:
            smaller = [
                structs.replace(config, epsilon=epsilon, rho=None)
                for config, epsilon in zip(configs, epsilons, strict=True)
            ]
            mechanisms = [build(config, ceiling.unit) for config in smaller]
        except ValueError:  # too small for any settings, or for this mechanism
            continue
        if ceiling.holds(
            _worst(ceiling, _charges(settings, smaller, mechanisms)).epsilon
        ):
            return epsilons
    return None


def _with_delta(cost: PrivacyCost, delta_ratio: float) -> PrivacyCost:
    """Return a cost with delta, and every named part of it, multiplied by `delta_ratio`."""
    failures = tuple((name, share * delta_ratio) for name, share in cost.failures)
    return replace(cost, delta=cost.delta * delta_ratio, failures=failures)


def _scaled(cost: PrivacyCost, factor: float) -> PrivacyCost:
    """Return a cost with rho multiplied by `factor`, and the epsilon that follows at its delta.

    A pure epsilon does not follow from rho: it is multiplied too.
    """
    rho = cost.rho * factor
    epsilon = cost.epsilon * factor
    if not cost.pure and (left := conversion_delta([cost])) > 0:
        epsilon = epsilon_of(rho, left, gaussian=cost.gaussian)
    return replace(cost, rho=rho, epsilon=epsilon)


def _down(value: float, digits: int) -> float:
    """Return a number rounded down to so many significant `digits`."""
    return float(
        Context(prec=digits, rounding=ROUND_FLOOR).create_decimal(Decimal(value))
    )
