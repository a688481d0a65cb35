"""Composition: the joint guarantee of several mechanisms, epochs and histograms.

A `Part` is a mechanism's price for one epoch, and the number of epochs charged. Parts are
mechanisms that see the same event (or user). Streams may react to published results, so all of
this is adaptive composition.

    rho, epsilon, delta   of one epoch of a part, as in its snapshots
    failures              the named parts of its delta (discovery, numerical); the rest of delta
                          converts rho

Three ways to compose are valid, and the smallest epsilon is stated: the sum of the epsilons; all
costs composed in zCDP and converted once (Canonne, Kamath, Steinke); and, if some parts have a pure
epsilon, those summed and the others composed. A single part, charged once at its own delta, gets
the figures in its snapshots. All sums are exact and rounded up once.

Total of a worker, at the sum of the deltas. An event has one stream key and counts in the
histograms that serve it, so the total is that of the key with the largest one. If histograms take
the key from different fields, the event has one key per field, and all histograms count. A user
may come with every key, so all histograms count; each bounds a user's items over all its keys
together. For one event, epochs of a histogram do not add up, because the event lies in one of them;
generations do, and so does a new worker name.

Group privacy: the loss of a person with k events (or user ids) in an epoch, over some epochs.
Every mechanism's proof has one form (docs/decisions/0009-derivations.md, 0): with one event more,
except for a failure of probability p (an item that is present only because of this event is shown),
the outputs are rho-zCDP apart. For k events (docs/decisions/0017-words-and-people.md proves it):

    k^2 rho      zCDP: shifts of noise, and lengths of intervals of losses, add up to k times one's
    p_k          failures: sum over i < k of g(i), g(0) = p,
                 g(i) = min over integers a >= 2 of exp((a - 1) i^2 rho - (1 - 1/a) ln(1/p))
    sampling     k times one event's, times (1 + e^epsilon_k) / (1 + e^epsilon)

g(i) bounds p after a shift by i events: the Renyi divergence of an order bounds how a rare output
grows. It is far below p e^(i epsilon), which group privacy of (epsilon, delta) gives. Epochs have
fresh noise: over e epochs all three are taken e times. Delta is that of the settings with the
failures grown; the part that converts rho is the same.

    symbol   here
    k        `events`
    p        the failures of a `Part` except "numerical"
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.accounting import _largest, epsilon_of, float_up, paper_epsilon
from workers.mechanisms.budget import NUMERICAL_SHARE
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.privacy.phrasing import cautions, is_void, up_to
from workers.privacy.plan.model import Loss, Share, Span, Total
from workers.runtime.frozen import memoized


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One mechanism, charged `times` epochs; `pure`: epsilon holds without converting rho.

    `failures` are the named probabilities in `delta` that are not converted. None: unknown, so that
    all of delta counts as failures.
    """

    rho: float
    epsilon: float
    delta: float
    failures: Mapping[str, float] | None = field(default_factory=dict)
    pure: bool = False
    times: int = 1

    @property
    def named(self) -> Mapping[str, float]:
        """The failures; all of delta if they are unknown."""
        return {"unknown": self.delta} if self.failures is None else self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """Joint guarantee of several parts.

    `epsilon` is None if delta is at least 1, which promises nothing. `deltas` are the parts of
    delta that are not converted.
    """

    rho: float
    epsilon: float | None
    delta: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float


def delta_together(parts: Sequence[Part]) -> float:
    """Return the sum of the deltas, rounded up."""
    return _sum((part.delta, part.times) for part in parts)


def compose(parts: Sequence[Part], delta: float | None = None) -> Composed:
    """Return the joint guarantee of at least one part, at `delta` or the sum of the parts' deltas.

    Raises:
        ValueError: delta is smaller than that sum.
    """
    least = delta_together(parts)
    at = least if delta is None else delta
    if at < least:
        raise ValueError(f"delta = {at}: at least the sum of the parts' deltas, {least}")
    failures: dict[str, list[tuple[float, int]]] = {}
    for part in parts:
        for name, probability in part.named.items():
            failures.setdefault(name, []).append((probability, part.times))
    summed = _sum((part.epsilon, part.times) for part in parts)
    ways = [summed]
    if len(parts) > 1 or parts[0].times > 1 or at > least:
        ways += _composed(parts, at)
        others = [part for part in parts if not part.pure]
        pure = [part for part in parts if part.pure]
        if pure and others:
            # The pure parts keep their own deltas.
            left = Fraction(at) - Fraction(delta_together(pure))
            ways += [
                _sum([(way, 1), *((p.epsilon, p.times) for p in pure)])
                for way in _composed(others, float(left))
            ]
    return Composed(
        rho=_sum((part.rho, part.times) for part in parts),
        epsilon=min(ways) if at < 1 else None,
        delta=min(at, 1.0),
        deltas=tuple(
            Share(name=name, delta=min(_sum(each), 1.0)) for name, each in failures.items()
        ),
        epsilon_of_the_sum=summed,
    )


def epsilon_at(parts: Sequence[Part], delta: float) -> float | None:
    """Return the joint epsilon of parts at any delta, rounded up; None if there is no guarantee.

    Unlike in `compose`, delta may be below the sum of the parts' own deltas; then less of it
    converts rho.
    """
    if not parts:
        return 0.0
    ways = _composed(parts, delta)
    if delta_together(parts) <= delta:
        ways.append(_sum((part.epsilon, part.times) for part in parts))
    pure, others = [part for part in parts if part.pure], [part for part in parts if not part.pure]
    if pure and others:
        left = Fraction(delta) - Fraction(delta_together(pure))
        ways += [
            _sum([(way, 1), *((p.epsilon, p.times) for p in pure)])
            for way in _composed(others, float(left))
        ]
    return min(ways, default=None)


def _composed(parts: Sequence[Part], delta: float) -> list[float]:
    """Return the epsilon of zCDP composition; empty if no delta is left for the conversion."""
    spent = _sum((probability, part.times) for part in parts for probability in part.named.values())
    left = float(Fraction(delta) - Fraction(spent))
    return (
        [epsilon_of(_sum((part.rho, part.times) for part in parts), left)] if 0 < left < 1 else []
    )


def _sum(values: Iterable[tuple[float, int]]) -> float:
    """Return the sum of value times count, rounded up."""
    return float_up(sum((Fraction(value) * times for value, times in values), Fraction(0)))


NUMERICAL = "numerical"
# Spans and groups of a table share these figures.
_epsilon_of = memoized(maxsize=1 << 12)(epsilon_of)
# Far above the floating-point error in an exponent of this size.
_OUTWARD = 1 + 1e-12
_MARGIN = 1e-9
_LARGEST_EXPONENT = 700.0
# Epsilon may be pure and delta sampling error only; a snapshot does not say so.
_MAY_BE_PURE = frozenset({"bounded_max", "doubling", "two_level", "two_level_k", "misra_gries"})


def group_loss(parts: Sequence[Part], events: int) -> tuple[float | None, float]:
    """Return (epsilon, delta) for a person with `events` events in every epoch of every part.

    `events` may also be the user ids of one person. There is at least one part, and all parts
    count every event. Without a guarantee the result is (None, 1). One event and one epoch give the
    figures of `compose`.

    Raises:
        ValueError: events is below 1.
    """
    if events < 1:
        raise ValueError(f"events = {events}: must be at least 1")
    if events == 1 and all(part.times == 1 for part in parts):
        found = compose(parts)
        return found.epsilon, found.delta
    plain = [part for part in parts if part.pure or part.failures is None]
    composed = [part for part in parts if part not in plain]
    ways = [_apart(plain, events, _composed_events(composed, events))]
    if all(part.failures is not None for part in plain):
        ways.append(_composed_events(parts, events))
    sound = [(epsilon, delta) for epsilon, delta in ways if delta < 1 and epsilon < math.inf]
    return min(sound) if sound else (None, 1.0)


def converting(parts: Sequence[Part]) -> float:
    """Return the part of the configured deltas that is left to convert rho."""
    spent = sum((Fraction(p) for part in parts for p in part.named.values()), Fraction(0))
    return float(sum((Fraction(part.delta) for part in parts), Fraction(0)) - spent)


@memoized(maxsize=1 << 12)
def group_failure(probability: float, rho: float, events: int) -> float:
    """Return p_k, rounded up, at most 1; `probability` is p and `rho` the cost of one event."""
    total = Fraction(probability)
    for i in range(1, events):
        if total >= 1 or probability == 0:
            break
        total += Fraction(_grown(probability, i * i * rho))
    return float_up(min(total, Fraction(1)))


def stated(mechanism: str, rho: float, epsilon: float, delta: float) -> Part:
    """Return a mechanism's price as its snapshot states it, with the parts of delta.

    If epsilon was converted, the delta that rho does not need counts as failures. That is the
    mechanism's own figure, or slightly more. If epsilon may be pure, all of that delta counts as
    sampling error too.
    """
    if delta <= 0:
        return Part(rho=rho, epsilon=epsilon, delta=0.0, pure=True)
    numerical = delta * NUMERICAL_SHARE
    converting = delta_of(rho, epsilon) * (1 - 1e-8)
    if converting >= delta - numerical:
        return Part(rho=rho, epsilon=epsilon, delta=delta, failures={NUMERICAL: delta}, pure=True)
    rest = float_up(Fraction(delta) - Fraction(converting))
    halved = abs(rest / delta - 0.5) < 0.01  # discovery takes half of delta
    samplers = rest if mechanism in _MAY_BE_PURE and not halved else numerical
    failures = {NUMERICAL: samplers, "discovery": max(rest - numerical, 0.0)}
    return Part(rho=rho, epsilon=epsilon, delta=delta, failures=failures)


def delta_of(rho: float, epsilon: float) -> float:
    """Return the smallest delta with which rho-zCDP gives epsilon, at integer orders."""
    if rho == 0 or math.isinf(epsilon):
        return 0.0

    def exponent(order: int) -> float:
        return (order - 1) * (order * rho - epsilon + math.log1p(-1 / order)) - math.log(order)

    lowest = -_largest(lambda order: -exponent(order))
    return math.exp(min(0.0, max(-_LARGEST_EXPONENT, lowest)))


def _composed_events(parts: Sequence[Part], events: int) -> tuple[float, float]:
    """Return (epsilon, delta) of zCDP composition, converted once; (inf, 1) if impossible."""
    if not parts:
        return 0.0, 0.0
    left = converting(parts)
    if not 0 < left < 1:
        return math.inf, 1.0
    rho = float_up(
        sum((Fraction(part.rho) * part.times * events**2 for part in parts), Fraction(0))
    )
    epsilon = _epsilon_of(rho, left)
    failures = sum(part.times * _failures(part, events, epsilon) for part in parts)
    return epsilon, float_up(min(Fraction(left) + failures, Fraction(1)))


def _apart(parts: Sequence[Part], events: int, others: tuple[float, float]) -> tuple[float, float]:
    """Return (epsilon, delta) of `others` plus the sums over parts."""
    epsilon, delta = Fraction(others[0]) if others[0] < math.inf else None, Fraction(others[1])
    for part in parts:
        grown = part.epsilon * events
        epsilon = (
            None if epsilon is None else epsilon + Fraction(part.epsilon) * events * part.times
        )
        unknown = part.failures is None
        delta += part.times * (
            _group_delta(part, events) if unknown else _failures(part, events, grown)
        )
    return math.inf if epsilon is None else float_up(epsilon), float_up(min(delta, Fraction(1)))


def _failures(part: Part, events: int, epsilon: float) -> Fraction:
    """Return the failures of one epoch for k events; `epsilon` is that of all of them."""
    total = Fraction(0)
    for name, probability in part.named.items():
        if name == NUMERICAL:
            total += Fraction(probability) * events * Fraction(_samplers(part.epsilon, epsilon))
        else:
            total += Fraction(group_failure(probability, part.rho, events))
    return min(total, Fraction(1))


def _samplers(one: float, all_of_them: float) -> float:
    """Return (1 + e^epsilon_k) / (1 + e^epsilon), rounded up, at least 1."""
    if all_of_them > _LARGEST_EXPONENT:
        return 1e300
    return max(1.0, (1 + math.exp(all_of_them)) / (1 + math.exp(one)) * (1 + _MARGIN))


def _group_delta(part: Part, events: int) -> Fraction:
    """Return delta (e^(k epsilon) - 1) / (e^epsilon - 1): group privacy of (epsilon, delta)."""
    if part.epsilon * events > _LARGEST_EXPONENT:
        return Fraction(1)
    one, all_of_them = math.expm1(part.epsilon), math.expm1(part.epsilon * events)
    times = float(events) if part.epsilon < 1e-12 else all_of_them / one
    return Fraction(min(1.0, part.delta * times * (1 + _MARGIN)))


def _grown(probability: float, rho: float) -> float:
    """Bound p after a shift that costs rho: the best integer order, rounded up."""
    unlikely = -math.log(probability)
    best = math.sqrt(unlikely / rho) if rho > 0 else math.inf
    if not best < 1e15:
        # The order would exceed all floats; its bound is p but for the margin.
        best = 1e15
    orders = {max(2, math.floor(best)), max(2, math.ceil(best))}
    exponent = min((order - 1) * rho - (1 - 1 / order) * unlikely for order in orders)
    return min(1.0, math.exp(min(exponent, 0.0)) * (1 + _MARGIN) * _OUTWARD)


EVENTS = (1, 2, 5, 10, 50)
DAY_MS = 86_400_000
DAYS = (None, 1, 30, 365)
VOID = "void"


@dataclass(frozen=True, slots=True)
class Charge:
    """A mechanism's price for one epoch, and the epoch's length; None if unbounded."""

    part: Part
    epoch_ms: int | None

    def epochs(self, days: int | None) -> int:
        """Return the number of epochs in a span; a partial epoch counts in full."""
        if days is None or self.epoch_ms is None:
            return 1
        return max(1, -(-days * DAY_MS // self.epoch_ms))


def spans_of(*groups: Sequence[Charge]) -> tuple[Span, ...]:
    """Return the loss over an epoch, a day, thirty days and a year.

    Every group, at least one, has the mechanisms that count the events of one kind of stream key. A
    person's events may have several keys. Rho and failures are convex in the number of events per
    key, so the largest of any group bounds every mixture.
    """
    return tuple(_span(groups, days) for days in DAYS)


def _span(groups: Sequence[Sequence[Charge]], days: int | None) -> Span:
    parts = [[replace(one.part, times=one.epochs(days)) for one in group] for group in groups]
    losses = []
    for events in EVENTS:
        epsilon, delta = _most(
            [(*group_loss(group, events), converting(group)) for group in parts], events
        )
        losses.append(
            Loss(events=events, epsilon=epsilon, delta=delta, void=is_void(epsilon, delta))
        )
    return Span(
        days=days, epochs=max(part.times for group in parts for part in group), losses=tuple(losses)
    )


def _most(
    found: Sequence[tuple[float | None, float, float]], events: int
) -> tuple[float | None, float]:
    """Bound every mixture of groups, given as (epsilon, delta, the part of delta that converts)."""
    epsilons, deltas, converted = zip(*found, strict=True)
    delta = max(deltas)
    if events > 1 and len(found) > 1:
        # One group's part of delta converts in a mixture, and failures are at most the largest.
        failures = max(one - part for one, part in zip(deltas, converted, strict=True))
        delta = math.nextafter(max(delta, max(converted) + failures), 2)
    if delta >= 1 or None in epsilons:
        return None, 1.0
    return max(epsilons), delta


def rows_of(spans: Sequence[Span], unit: str) -> tuple[list[str], list[list[str]]]:
    """Return the headings and rows of the loss table, with figures rounded up to three digits.

    A span with no more epochs than the one before it is left out.
    """
    shown = [span for at, span in enumerate(spans) if not at or span.epochs > spans[at - 1].epochs]
    headings = [f"{unit}s" if unit == "event" else f"{unit} ids", *map(_heading, shown)]
    rows = [
        [f"{losses[0].events}", *(_cell(loss) for loss in losses)]
        for losses in zip(*(span.losses for span in shown), strict=True)
    ]
    return headings, rows


def explained(unit: str) -> str:
    whose = "events in every epoch" if unit == "event" else "user ids, who comes in every epoch"
    return (
        f"epsilon, and delta, for somebody with so many {whose}; {VOID}: epsilon is above 20 or delta 0.01 or more, "
        "so next to nothing is promised, or nothing"
    )


def _heading(span: Span) -> str:
    if span.days is None:
        return "an epoch"
    name = "a day" if span.days == 1 else "a year" if span.days == 365 else f"{span.days} days"
    return f"{name}: {span.epochs:,} epoch{'s' if span.epochs > 1 else ''}"


def _cell(loss: Loss) -> str:
    return (
        VOID
        if loss.void or loss.epsilon is None
        else f"{up_to(loss.epsilon)}, {up_to(loss.delta, 2)}"
    )


@dataclass(frozen=True, slots=True)
class Built:
    config: HistogramConfig
    mechanism: Mechanism

    @property
    def part(self) -> Part:
        promise, failures = self.mechanism.guarantee, dict(self.mechanism.cost().deltas)
        return Part(
            rho=promise.rho,
            epsilon=promise.epsilon,
            delta=self.config.delta,
            failures=failures,
            pure=self.config.pure,
        )

    @property
    def charge(self) -> Charge:
        ticks = self.config.horizon_ticks
        return Charge(self.part, None if ticks is None else ticks * self.config.tick_ms)


def total_of(built: Sequence[Built]) -> Total:
    """Return the total of the stream key that pays most; for users, of all histograms."""
    if built[0].mechanism.guarantee.unit != "event":
        return _together(built, None)
    if len({one.config.key for one in built}) > 1:
        return _together(built, None)
    declared = {key for one in built if one.config.keys != "public" for key in one.config.keys}
    groups: dict[tuple[str, ...], tuple[list[Built], str | None]] = {}
    for key in (*sorted(declared), None):  # None is a key that no histogram declares
        served = [one for one in built if one.config.keys == "public" or key in one.config.keys]
        if served:
            groups.setdefault(tuple(one.config.name for one in served), (served, key))
    totals = [_together(served, key) for served, key in groups.values()]
    worst = max(totals, key=lambda total: (total.epsilon, total.delta))
    if len(groups) > 1:
        person = spans_of(*([one.charge for one in served] for served, _ in groups.values()))
        most = person[0].losses[0]
        worst = structs.replace(
            worst, person=person, warnings=tuple(cautions(most.epsilon, most.delta, worst.unit))
        )
    return worst if len(totals) > 1 else structs.replace(worst, key=None)


def warnings_of(histograms: Iterable[tuple[HistogramConfig, Mechanism]]) -> Iterator[str]:
    """Yield the warnings to show before a run, for single histograms and their joint guarantee."""
    built = [Built(config, mechanism) for config, mechanism in histograms]
    for one in built:
        promise = one.mechanism.guarantee
        for warning in cautions(promise.epsilon, promise.delta, promise.unit):
            yield f"histogram {one.config.name}: {warning}"
    if len(built) > 1:
        for warning in total_of(built).warnings:
            yield f"all histograms together: {warning}"


def _together(built: Sequence[Built], key: str | None) -> Total:
    found = compose([one.part for one in built])
    left = float(Fraction(found.delta) - sum(Fraction(share.delta) for share in found.deltas))
    unit = built[0].mechanism.guarantee.unit
    return Total(
        unit=unit,
        histograms=tuple(one.config.name for one in built),
        key=key,
        rho=found.rho,
        # A delta of 1 promises nothing; the sum of the epsilons holds even then.
        epsilon=found.epsilon_of_the_sum if found.epsilon is None else found.epsilon,
        delta=found.delta,
        deltas=found.deltas,
        epsilon_of_the_sum=found.epsilon_of_the_sum,
        epsilon_printed=paper_epsilon(found.rho, left)
        if found.epsilon is not None and left > 0
        else None,
        warnings=tuple(cautions(found.epsilon, found.delta, unit)),
        person=spans_of([one.charge for one in built]),
    )
