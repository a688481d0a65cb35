"""Composition: the joint guarantee of several mechanisms, epochs and histograms.

A `PrivacyCost` is a mechanism's cost of one epoch, and the number of epochs charged. A `Charge`
adds its histogram, stream keys and epochs; `charges_by_key` decides which charges one event pays
together: a group. A generation is one set of settings of a histogram: each begins anew, and is
charged anew. Streams may react to published results, so all of this is adaptive composition. A
cost's `failures` are the named parts of its delta (discovery, numerical); the rest of delta
converts rho.

Three ways to compose are valid, and the smallest epsilon is stated: the sum of the epsilons; all
costs composed in zCDP and converted once (`accounting`; exactly if all are Gaussian); and, if some
have a pure epsilon, those summed and the others composed. A single cost, charged once at its own
delta, gets the figures in its snapshots. All sums are exact and rounded up once.

Total of a worker, at the sum of the deltas. An event has one stream key and counts in the
histograms that serve it: the total is that of the costliest key. If histograms take the key from
different fields, the event has one key per field, and the costliest key of each field counts. A
sample on which bounds were chosen may hold any event, so an event pays for it (`sample_of`) also
where it counts in nothing else of a histogram (docs/decisions/0044-bounds.md, B3). A user may come
with every key, so all count; each bounds a user's items over all its keys together.
Generations and new worker names add up for one event; a histogram's epochs do not, since it lies in
one of them. A histogram without epochs (horizon = "never") has one charge for all its windows at
all ticks, for ever, as an epoch without an end has (T2 and T3 of
docs/decisions/0036-windows-without-epochs.md). Where it protects users it is charged for each
period of `user_period` ticks as for an epoch; but periods share noise, and n of them cost up to
`PrivacyCost.overlap` times n (0042).

Group privacy: the loss of a person with k events (or user ids) in an epoch, over some epochs. Every
mechanism's proof has one form (docs/decisions/0009-derivations.md, 0): with one event more, except
for a failure of probability p (an item that is present only because of this event is shown), the
outputs are rho-zCDP apart. For k = `events` (docs/decisions/0017-words-and-people.md proves it) and
p the failures other than "numerical":

    k^2 rho      zCDP: shifts of noise, and lengths of intervals of losses, grow k times
    p_k          failures: sum over i < k of g(i), g(0) = p,
                 g(i) = min over integers a >= 2 of exp((a - 1) i^2 rho - (1 - 1/a) ln(1/p))
    sampling     k times one event's, times (1 + e^epsilon_k) / (1 + e^epsilon)

g(i) bounds p after a shift by i events: the Renyi divergence of an order bounds how a rare output
grows. Group privacy of (epsilon, delta) alone would give delta e^(i epsilon), which is larger with
usual settings. Epochs have fresh noise, so e epochs multiply all three by e. Delta is that of the
settings with the failures grown; the part that converts rho is the same. Without an end of the
epoch, all of a person's events share one noise: k in each of e epochs of the other histograms are
k e events there. So do those of a sample, whose part of rho is charged for k e events once, not for
k in each epoch.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from fractions import Fraction
from itertools import chain, product
from typing import Literal, NamedTuple, Self

from msgspec import structs

from workers.mechanisms.accounting import (
    PrivacyCost,
    delta_of,
    epsilon_of,
    float_up,
)
from workers.mechanisms.budget import NUMERICAL_SHARE
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import MECHANISMS
from workers.privacy.model import Loss, Record, Share, Span, Total
from workers.privacy.phrasing import cautions, is_void, up_to
from workers.runtime.frozen import memoized


class Composed(Record, frozen=True):
    """Joint guarantee of several costs; `epsilon` is None if delta is at least 1.

    `deltas` are the named parts of delta; adding up the epsilons gives `epsilon_of_the_sum`.
    """

    rho: float
    epsilon: float | None
    delta: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float


def total_delta(costs: Iterable[PrivacyCost]) -> float:
    """Return the sum of the costs' deltas, each for all its epochs, rounded up."""
    return _sum((cost.delta, cost.times) for cost in costs)


def compose(costs: Sequence[PrivacyCost], delta: float | None = None) -> Composed:
    """Return the joint guarantee of costs at `delta`, by default and at least their deltas' sum."""
    least = total_delta(costs)
    if delta is None:
        delta = least
    if delta < least:
        raise ValueError(
            f"delta = {delta}: at least the sum of the parts' deltas, {least}"
        )
    failures: dict[str, list[tuple[float, int]]] = {}
    for cost in costs:
        for name, probability in cost.failures:
            failures.setdefault(name, []).append((probability, cost.times))
    summed = _sum((_own_epsilon(cost), 1) for cost in costs)
    # A single cost, once and at its own delta, keeps the epsilon that its snapshots state.
    epsilon: float | None = summed
    if len(costs) > 1 or costs[0].times > 1 or delta > least:
        epsilon = epsilon_at(costs, delta)
    return Composed(
        rho=_rho(costs),
        epsilon=epsilon if delta < 1 else None,
        delta=min(delta, 1.0),
        deltas=tuple(
            Share(name=name, delta=min(_sum(p), 1.0)) for name, p in failures.items()
        ),
        epsilon_of_the_sum=summed,
    )


def epsilon_at(costs: Sequence[PrivacyCost], delta: float) -> float | None:
    """Return the joint epsilon of costs at any delta, rounded up; None if there is no guarantee.

    Unlike in `compose`, delta may be below the sum of the costs': less of it then converts rho.
    """
    if not costs:
        return 0.0
    ways = _conversions(costs, delta)
    if total_delta(costs) <= delta:
        ways.append(_sum((_own_epsilon(cost), 1) for cost in costs))
    return min(ways, default=None)


def _conversions(costs: Sequence[PrivacyCost], delta: float) -> list[float]:
    """Return the valid epsilons at `delta` of all ways to convert zCDP; empty: there is none.

    Either all costs are composed and converted, or the pure epsilons are added to those of the
    others.
    """
    ways = _composed(costs, delta)
    pure = [cost for cost in costs if cost.pure]
    others = [cost for cost in costs if not cost.pure]
    if pure and others:
        left = float(Fraction(delta) - Fraction(total_delta(pure)))
        of_pure = [(cost.epsilon, cost.times) for cost in pure]
        ways += [_sum([(way, 1), *of_pure]) for way in _composed(others, left)]
    return ways


def sample_of(cost: PrivacyCost) -> PrivacyCost:
    """Return what an event pays if it is only in the sample on which a cost's bounds were chosen.

    Bounds are chosen with Gaussian noise, so this part of rho is converted at all of delta.
    """
    epsilon = epsilon_of(cost.sample_rho, cost.delta, gaussian=True)
    return PrivacyCost(
        cost.sample_rho, epsilon, cost.delta, gaussian=True, sample_rho=cost.sample_rho
    )


def samples_of(costs: Iterable[PrivacyCost]) -> list[PrivacyCost]:
    """Return what the samples among `costs` cost an event that none of them counts."""
    return [sample_of(cost) for cost in costs if cost.sample_rho]


def _composed(costs: Sequence[PrivacyCost], delta: float) -> list[float]:
    """Return the epsilon of all costs composed in zCDP and converted once; empty: impossible.

    What the failures leave of `delta` is used for the conversion.
    """
    spent = _sum(
        (failure, cost.times) for cost in costs for _, failure in cost.failures
    )
    left = float(Fraction(delta) - Fraction(spent))
    if not 0 < left < 1:
        return []
    rho = _rho(costs)
    return [epsilon_of(rho, left, gaussian=all(cost.gaussian for cost in costs))]


def _own_epsilon(cost: PrivacyCost) -> float:
    """Return the epsilon of a cost's epochs, at their deltas' sum.

    Epochs of independent noise add up; others only in zCDP, infinity if that cannot be converted.
    """
    if cost.times == 1 or cost.overlap == 1:
        return _sum([(cost.epsilon, cost.times)])
    return min(_composed([cost], total_delta([cost])), default=math.inf)


def _rho(costs: Iterable[PrivacyCost]) -> float:
    """Return the zCDP cost of all epochs of costs, rounded up."""
    return float_up(sum((cost.rho_charged for cost in costs), Fraction(0)))


def _sum(values: Iterable[tuple[float, int]]) -> float:
    """Return the exact sum of (value, times) pairs, rounded up to a float."""
    return float_up(
        sum((Fraction(value) * times for value, times in values), Fraction(0))
    )


# The failure "sampling": noise is not drawn from exactly its law.
NUMERICAL = "numerical"
# Both round outward. They are far above the float errors of exp and of any exponent used here.
_OUTWARD = 1 + 1e-12
_MARGIN = 1e-9
# exp overflows soon after.
_LARGEST_EXPONENT = 700.0


def group_loss(
    costs: Sequence[PrivacyCost],
    events: int,
    endless: Sequence[PrivacyCost] = (),
    epochs: int = 1,
) -> tuple[float | None, float]:
    """Return (epsilon, delta) for a person with `events` events (or user ids) in every epoch.

    All `costs` and `endless` ones, at least one in all, count every event. The epochs of `endless`
    ones have no end, so there the events of all `epochs` count together, as they do in a sample.
    The module says how the loss grows; for one event in one epoch it is that of `compose`. Return
    (None, 1) if there is no guarantee. Raise ValueError if `events` is below 1.
    """
    if events < 1:
        raise ValueError(f"events = {events}: must be at least 1")
    in_all = events * epochs
    most = in_all if endless or any(cost.sample_rho for cost in costs) else events
    if most == 1 and all(cost.times == 1 for cost in costs):
        joint = compose([*costs, *endless])
        return joint.epsilon, joint.delta
    counted = [_Counted(cost, events, in_all) for cost in costs]
    counted += [_Counted(cost, in_all, in_all) for cost in endless]
    # One way: compose those that are not pure in zCDP, and add the epsilons of the pure ones.
    pure = [part for part in counted if part.cost.pure]
    epsilon, delta = _composed_events([part for part in counted if not part.cost.pure])
    if epsilon < math.inf:
        of_pure = [(part.cost.epsilon, part.events * part.cost.times) for part in pure]
        epsilon = _sum([(epsilon, 1), *of_pure])
    failures = sum(
        part.cost.times * _failures(part, part.cost.epsilon * part.events)
        for part in pure
    )
    apart = epsilon, float_up(min(Fraction(delta) + failures, Fraction(1)))
    # The other: compose all of them.
    ways = (apart, _composed_events(counted))
    sound = [
        (epsilon, delta) for epsilon, delta in ways if delta < 1 and epsilon < math.inf
    ]
    return min(sound) if sound else (None, 1.0)


class _Counted(NamedTuple):
    """A cost, and a person's events: `events` count in each epoch, `in_sample` may be in a sample.

    The sample, if any, is the one on which bounds were chosen: it may hold all of them.
    """

    cost: PrivacyCost
    events: int
    in_sample: int

    @property
    def rho(self) -> Fraction:
        """The cost of all epochs, and of the sample, for the person: it grows with the square."""
        of_sample = Fraction(self.cost.sample_rho)
        # Epochs that share noise cost `together` times their sum.
        epochs = self.cost.times * self.cost.together
        of_epochs = (Fraction(self.cost.rho) - of_sample) * epochs
        return of_epochs * self.events**2 + of_sample * self.in_sample**2


def conversion_delta(costs: Sequence[PrivacyCost]) -> float:
    """Return the part of the configured deltas that converts rho."""
    spent = sum((Fraction(p) for cost in costs for _, p in cost.failures), Fraction(0))
    return float(sum((Fraction(cost.delta) for cost in costs), Fraction(0)) - spent)


@memoized(maxsize=1 << 12)
def group_failure(probability: float, rho: float, events: int) -> float:
    """Bound a failure's probability for a person with k = `events`: p_k of the module, rounded up.

    For one event it has this `probability`, p; `rho` is the cost of one event.
    """
    total = Fraction(probability)
    for i in range(1, events):
        if total >= 1 or probability == 0:
            break
        total += Fraction(_shifted(probability, rho=i * i * rho))
    return float_up(min(total, Fraction(1)))


def stated_cost(
    mechanism: str, rho: float, epsilon: float, delta: float, sample_rho: float = 0.0
) -> PrivacyCost:
    """Return the cost of an epoch whose snapshots state these figures; to add up what was spent.

    A snapshot does not state the parts of its delta, so they are bounded here, never too small:
    what the conversion of rho does not need counts as failures. `sample_rho` is that of the
    settings: no snapshot states it.
    """
    if delta <= 0:
        return PrivacyCost(rho, epsilon, 0.0, pure=True)
    config = MECHANISMS.get(mechanism)
    gaussian = config is not None and config.about.gaussian
    # The delta that converts rho. Epsilon is stated with nine digits only; what is subtracted is
    # far more than that error.
    conversion = delta_of(rho, epsilon, gaussian=gaussian) * (1 - 1e-8)
    # The rest of delta is for failures.
    rest = float_up(max(Fraction(delta) - Fraction(conversion), Fraction(0)))
    if gaussian:
        # If it always has a known domain, all of delta converts rho.
        known_domain = config is not None and config.lists_labels({})
        return PrivacyCost(
            rho,
            epsilon,
            delta,
            failures=() if known_domain else (("discovery", rest),),
            gaussian=True,
            sample_rho=min(sample_rho, rho),
        )
    numerical = delta * NUMERICAL_SHARE
    if conversion >= delta - numerical:
        # Nothing is left for failures, so epsilon is pure, and all of delta is a failure:
        # of the threshold, if items are shown by one, else of sampling.
        has_threshold = config is not None and config.about.threshold_rule == "each"
        name = "discovery" if has_threshold else NUMERICAL
        return PrivacyCost(rho, epsilon, delta, failures=((name, delta),), pure=True)
    # The rest is for discovery and sampling; if their parts are not known, both are charged. If
    # epsilon is pure, which no snapshot says, all of the rest may be sampling error.
    may_be_pure = config is not None and config.about.may_be_pure
    # Where there is discovery, it has half of delta.
    is_for_discovery = abs(rest / delta - 0.5) < 0.01
    sampling = rest if may_be_pure and not is_for_discovery else numerical
    return PrivacyCost(
        rho,
        epsilon,
        delta,
        failures=((NUMERICAL, sampling), ("discovery", max(rest - numerical, 0.0))),
    )


def _composed_events(counted: Sequence[_Counted]) -> tuple[float, float]:
    """Return (epsilon, delta) of zCDP composition, converted once; (inf, 1) if impossible."""
    if not counted:
        return 0.0, 0.0
    costs = [one.cost for one in counted]
    left = conversion_delta(costs)
    if not 0 < left < 1:
        return math.inf, 1.0
    rho = float_up(sum((one.rho for one in counted), Fraction(0)))
    epsilon = epsilon_of(rho, left, gaussian=all(cost.gaussian for cost in costs))
    failures = sum(one.cost.times * _failures(one, epsilon) for one in counted)
    return epsilon, float_up(min(Fraction(left) + failures, Fraction(1)))


def _failures(counted: _Counted, epsilon: float) -> Fraction:
    """Bound how probable it is that one epoch's guarantee fails for a person with its events.

    That is the sum of the module's p_k over the failures. The failure "numerical" is "sampling"
    there; it grows with `epsilon`, which is the person's for all events.
    """
    cost = counted.cost
    events = counted.events
    total = Fraction(0)
    # Where epochs share noise, what a person does in others shifts the outcome of this one's test.
    rho = cost.rho if cost.overlap == 1 else float_up(cost.rho_charged)
    for name, probability in cost.failures:
        if name == NUMERICAL:
            growth = Fraction(_sampling_growth(cost.epsilon, epsilon))
            total += Fraction(probability) * events * growth
        else:
            total += Fraction(group_failure(probability, rho, events))
    return min(total, Fraction(1))


def _sampling_growth(of_event: float, of_person: float) -> float:
    """Return the factor by which sampling errors grow (see the module) from an event to a person.

    `of_event` and `of_person` are their epsilons. It is rounded up by _MARGIN, for errors of exp.
    """
    if of_person > _LARGEST_EXPONENT:
        return 1e300  # no guarantee is left
    grown = (1 + math.exp(of_person)) / (1 + math.exp(of_event))
    return max(1.0, grown * (1 + _MARGIN))


def _shifted(probability: float, rho: float) -> float:
    """Bound a probability p after a shift that costs rho: g of the module, rounded up.

    g is the least of exp((a - 1) rho - (1 - 1/a) ln(1/p)) over integer orders a.
    """
    log_inverse = -math.log(probability)
    # The order at which the exponent is least; one of the two integers beside it is taken.
    best = math.sqrt(log_inverse / rho) if rho > 0 else math.inf
    # Floats still tell this order from the next; there the bound is p already.
    best = min(best, 1e15)
    orders = {max(2, math.floor(best)), max(2, math.ceil(best))}
    exponent = min((a - 1) * rho - (1 - 1 / a) * log_inverse for a in orders)
    # Rounded up: _MARGIN is for the error of the exponent, _OUTWARD for that of exp.
    return min(1.0, math.exp(min(exponent, 0.0)) * (1 + _MARGIN) * _OUTWARD)


# For each of these numbers of events an epoch, and for each of the spans DAYS (None: an epoch), the
# loss of one person is stated.
EVENTS = (1, 2, 5, 10, 50)
DAY_MS = 86_400_000
_WEEK_MS = 7 * DAY_MS
DAYS = (None, 1, 30, 365)
VOID = "void"


#: Beyond every timestamp, in both directions.
EVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Charge:
    """The cost of one epoch of a generation, and its charged epochs, from `first` to `last`.

    None is charged if `last` < `first`. Times are in ms; EVER is after and -EVER before all others.
    Epoch 1 starts at `start_ms`. `epoch_ms` is None if an epoch has no end, and without epochs,
    where the cost is `charged_once`, ever: then its ticks lie in [began_ms, ended_ms), and nothing
    that it published depends on an event elsewhere.
    `identity` is unique among the worker's generations. `key_field` is the field of the stream key
    ("": that of [events]), `keys` are those served (None: any).
    """

    cost: PrivacyCost
    epoch_ms: int | None
    _: KW_ONLY
    charged_once: bool = False
    start_ms: int = 0
    unit: str = "event"
    worker: str = ""
    histogram: str = ""
    generation: int = 1
    identity: bytes = b""
    key_field: str = ""
    keys: frozenset[str] | None = None
    first: int = 1
    last: int = 1
    began_ms: int = -EVER
    ended_ms: int = EVER

    @property
    def generation_id(self) -> tuple[str, str, int]:
        """What names the generation: worker, histogram and number."""
        return self.worker, self.histogram, self.generation

    def __str__(self) -> str:
        return f"{self.histogram} generation {self.generation} of worker {self.worker}"

    def epochs(self, days: int | None) -> int:
        """Return how many epochs lie in a span of days; a partial one counts in full.

        It is 1 if the span is an epoch (`days` None), or if the epoch has no end.
        """
        if days is None or self.epoch_ms is None:
            return 1
        return max(1, -(-days * DAY_MS // self.epoch_ms))

    def span(self, epoch: int) -> tuple[int, int]:
        """Return an epoch as a half-open interval in ms."""
        if self.epoch_ms is None:
            return self.began_ms, self.ended_ms
        begin = self.start_ms + (epoch - 1) * self.epoch_ms
        return begin, begin + self.epoch_ms

    def within(self, begin: int, end: int) -> range:
        """Return the numbers of the charged epochs that overlap [begin, end), ms."""
        if self.epoch_ms is None:
            overlaps = self.began_ms < end and begin < self.ended_ms
            return range(self.first, self.last + 1 if overlaps else self.first)
        low = (begin - self.start_ms) // self.epoch_ms + 1
        high = (end - 1 - self.start_ms) // self.epoch_ms + 1
        return range(max(self.first, low), min(self.last, high) + 1)


def charge_of(config: HistogramConfig, mechanism: Mechanism) -> Charge:
    """Return the charge of a histogram's first epoch; a histogram without epochs has just one."""
    promise = mechanism.guarantee
    ticks = config.charge_grid.horizon
    return Charge(
        mechanism.cost(),
        None if ticks is None else ticks * config.tick_ms,
        charged_once=config.charged_once,
        start_ms=config.start_ms,
        unit=promise.unit,
        histogram=config.name,
        generation=config.generation,
        key_field=config.key or "",
        keys=None if config.keys == "public" else frozenset(config.keys),
    )


# With more choices of stream keys than this, an event is assumed to pay everything.
CHOICES_MAX = 256


def charges_by_key(
    charges: Sequence[Charge],
) -> Iterator[tuple[str | None, frozenset[int]]]:
    """Yield (stream key, indices of the charges that an event with it pays).

    The key None stands for every undeclared key. If there are several key fields, an event has a
    key in each: then the sets are those of `most_paid`, and the key is always None.
    """
    if len({charge.key_field for charge in charges}) > 1:
        yield from ((None, paid) for paid in most_paid(charges))
        return
    declared = {key for charge in charges for key in charge.keys or ()}
    for key in (None, *sorted(declared)):
        paid = (
            i
            for i, charge in enumerate(charges)
            if charge.keys is None or key in charge.keys
        )
        yield key, frozenset(paid)


def most_paid(charges: Sequence[Charge]) -> list[frozenset[int]]:
    """Return the largest sets of charges, by index, that one event can pay: none is within another.

    The event has one stream key for each key field, and pays the charges that serve it. If there
    are more than CHOICES_MAX such sets, return one that has them all: every charge.
    """
    fields: dict[str, list[int]] = {}
    for i, charge in enumerate(charges):
        fields.setdefault(charge.key_field, []).append(i)
    # By field; a set within another costs no more than that one, so it is left out.
    largest = []
    for members in fields.values():
        of_field = charges_by_key([charges[i] for i in members])
        sets = {frozenset(members[i] for i in paid) for _, paid in of_field}
        largest.append([paid for paid in sets if not any(paid < more for more in sets)])
    if math.prod(map(len, largest)) > CHOICES_MAX:
        return [frozenset(range(len(charges)))]
    return [frozenset(chain(*choice)) for choice in product(*largest)]


def spans_of(*groups: Sequence[Charge]) -> tuple[Span, ...]:
    """Return the loss over an epoch, a day, thirty days and a year; without epochs that of ever.

    A group (at least one) has the mechanisms that count one kind of stream key. A person's events
    may have several keys; rho and failures are convex in the events per key, so the largest of any
    group bounds every mixture. All of them may be in the samples of every group.
    """
    if all(charge.charged_once for charge in chain(*groups)):
        return (_span(groups, None),)
    return tuple(_span(groups, days) for days in DAYS)


def _span(groups: Sequence[Sequence[Charge]], days: int | None) -> Span:
    """Return the losses over a span of `days` (None: an epoch), for each number in EVENTS.

    A group has the charges that one event may pay, as in `spans_of`.
    """
    epochs, paid = _costs_over(groups, days)
    losses = tuple(_loss(paid, events, epochs) for events in EVENTS)
    charged_once = [charge.charged_once for charge in chain(*groups)]
    without_epochs: Literal["all", "some", "none"] = "none"
    if any(charged_once):
        without_epochs = "all" if all(charged_once) else "some"
    return Span(
        days=days,
        epochs=epochs,
        losses=losses,
        without_epochs=without_epochs,
        weekly=_weekly(groups, days),
    )


def _weekly(groups: Sequence[Sequence[Charge]], days: int | None) -> Loss | None:
    """Return the loss of one event a week; None if no epoch ends."""
    lengths = [charge.epoch_ms for charge in chain(*groups) if charge.epoch_ms]
    if not lengths:
        return None
    # The most events in an epoch; and the most epochs with an event, one for each week.
    in_epoch = -(-max(lengths) // _WEEK_MS)
    weeks = 1 if days is None else -(-days * DAY_MS // _WEEK_MS)
    epochs, paid = _costs_over(groups, days, at_most=weeks)
    return _loss(paid, in_epoch, epochs)


def _costs_over(
    groups: Sequence[Sequence[Charge]], days: int | None, *, at_most: int | None = None
) -> tuple[int, list["_Paid"]]:
    """Return the most epochs of any charge in `days`, and what each group costs over them.

    Without `days` that is one epoch. `at_most` limits the epochs in which the person has events
    (None: all). A group also pays for the samples of all other groups.
    """
    charges = list(chain(*groups))
    epochs = max(_epochs(charge, days, at_most) for charge in charges)
    return epochs, [_Paid.of(group, days, charges, at_most) for group in groups]


def _loss(paid: Sequence["_Paid"], events: int, epochs: int) -> Loss:
    """Return the loss of a person with `events` events in each of so many epochs."""
    epsilon, delta = _mixed_loss(paid, events, epochs)
    void = is_void(epsilon, delta)
    return Loss(events=events, epsilon=epsilon, delta=delta, void=void)


def _epochs(charge: Charge, days: int | None, at_most: int | None) -> int:
    """Return in how many of a charge's epochs in `days` a person can have events."""
    epochs = charge.epochs(days)
    return epochs if at_most is None else min(epochs, at_most)


class _Paid(NamedTuple):
    """What a group of charges costs over a span: `costs` for each epoch, `endless` ones just once.

    Endless are epochs without an end, and the samples on which bounds were chosen.
    """

    costs: Sequence[PrivacyCost]
    endless: Sequence[PrivacyCost]

    @classmethod
    def of(
        cls,
        group: Sequence[Charge],
        days: int | None,
        charges: Iterable[Charge],
        at_most: int | None,
    ) -> Self:
        """Return what a group costs over `days` (None: one epoch), at most `at_most` of its epochs.

        The samples of the other `charges`, which are those of all groups, are paid for as well.
        """
        costs = []
        others = dict.fromkeys(charge for charge in charges if charge not in group)
        endless = samples_of(charge.cost for charge in others)
        for charge in group:
            if charge.epoch_ms is None:
                endless.append(charge.cost)
            else:
                epochs = _epochs(charge, days, at_most)
                costs.append(replace(charge.cost, times=epochs))
        return cls(costs, endless)

    @property
    def all(self) -> Sequence[PrivacyCost]:
        return [*self.costs, *self.endless]


def _mixed_loss(
    groups: Sequence[_Paid], events: int, epochs: int
) -> tuple[float | None, float]:
    """Bound the (epsilon, delta) of a person with `events` an epoch, perhaps in different groups.

    If all are in one group, it is the largest loss of any group; a mixture has its own delta.
    """
    mixed = len(groups) > 1 and events * epochs > 1
    # A mixture is Gaussian only if every cost is.
    if mixed and not all(cost.gaussian for group in groups for cost in group.all):
        groups = [
            _Paid(
                [replace(cost, gaussian=False) for cost in group.costs],
                [replace(cost, gaussian=False) for cost in group.endless],
            )
            for group in groups
        ]
    losses = [
        group_loss(group.costs, events, group.endless, epochs) for group in groups
    ]
    epsilons = [epsilon for epsilon, _ in losses]
    deltas = [delta for _, delta in losses]
    delta = max(deltas)
    if mixed:
        # Delta has a part that converts rho, and the rest is for failures. In a mixture each is at
        # most the largest of any group, but these two may be from different groups.
        converted = [conversion_delta(group.all) for group in groups]
        failures = max(
            bound - part for bound, part in zip(deltas, converted, strict=True)
        )
        # Rounded up, as the sum and the differences were rounded.
        delta = math.nextafter(max(delta, max(converted) + failures), 2)
    known = [epsilon for epsilon in epsilons if epsilon is not None]
    if delta >= 1 or len(known) < len(epsilons):
        return None, 1.0
    return max(known), delta


def loss_table(spans: Sequence[Span], unit: str) -> tuple[list[str], list[list[str]]]:
    """Return (headings, rows) of the losses by events and span, all figures rounded up.

    A span that adds no epochs to the one before is left out.
    """
    shown = [
        span
        for i, span in enumerate(spans)
        if not i or span.epochs > spans[i - 1].epochs
    ]
    headings = ["events" if unit == "event" else f"{unit} ids", *map(_heading, shown)]
    rows = [
        [f"{losses[0].events}", *(_cell(loss) for loss in losses)]
        for losses in zip(*(span.losses for span in shown), strict=True)
    ]
    weekly = [_cell(span.weekly) for span in shown if span.weekly is not None]
    if weekly:
        rows.append(["1 a week", *weekly])
    return headings, rows


def loss_caption(spans: Sequence[Span], unit: str) -> str:
    """Return the line under the loss table, which says what its figures mean.

    Only histograms that protect events are charged once, ever: users are charged by period, as they
    are by epoch.
    """
    without = spans[0].without_epochs if spans else "none"
    whose = (
        "events in every epoch"
        if unit == "event"
        else "user ids that appear in every epoch"
    )
    if without == "all":
        whose = "events in all, ever (one event a week makes 53 a year)"
    elif without == "some":
        whose += ", which in a histogram without epochs all count together"
    else:
        whose += " (last row: one event a week), over all epochs of a column; each single epoch keeps its own promise"
    return (
        f"epsilon and delta for a person with this many {whose}; {VOID}: epsilon is above 20 or "
        "delta 0.01 or more, so next to nothing, or nothing, is promised"
    )


def _heading(span: Span) -> str:
    """Return the heading of a span's column: its length, and its number of epochs."""
    if span.without_epochs == "all":
        return "ever"
    if span.days is None:
        return "an epoch"
    name = {1: "a day", 365: "a year"}.get(span.days, f"{span.days} days")
    return f"{name}: {span.epochs:,} epoch{'s' if span.epochs > 1 else ''}"


def _cell(loss: Loss) -> str:
    """Return a loss as "epsilon, delta", or "void" if next to nothing is promised."""
    if loss.void or loss.epsilon is None:
        return VOID
    return f"{up_to(loss.epsilon)}, {up_to(loss.delta, 2)}"


def total_of(charges: Sequence[Charge]) -> Total:
    """Return the total of the stream key that pays most; for users, of all histograms."""
    unit = charges[0].unit
    # A stream key for every set of charges, by index, that an event may pay.
    key_of = dict[frozenset[int], str | None]()
    if unit == "event":
        # Of several keys, name the first declared one; undeclared keys have no name.
        undeclared, *declared = charges_by_key(charges)
        for key, paid in (*declared, undeclared):
            if paid:
                key_of.setdefault(paid, key)
    # For users, or if every event pays the same, take all charges and name no key.
    if len(key_of) <= 1:
        key_of = {frozenset(range(len(charges))): None}
    groups = [[charges[i] for i in sorted(paid)] for paid in key_of]
    costs = []
    for paid in key_of:
        others = (charge.cost for i, charge in enumerate(charges) if i not in paid)
        costs.append([*(charges[i].cost for i in sorted(paid)), *samples_of(others)])
    worst, joint = worst_group(costs)
    # A delta of 1 promises nothing; the sum of the epsilons holds even then.
    epsilon = joint.epsilon_of_the_sum if joint.epsilon is None else joint.epsilon
    person = spans_of(*groups)
    # One event in one epoch.
    once = person[0].losses[0]
    return Total(
        **structs.asdict(joint) | {"epsilon": epsilon},
        unit=unit,
        histograms=tuple(one.histogram for one in groups[worst]),
        key=list(key_of.values())[worst],
        warnings=tuple(cautions(once.epsilon, once.delta, unit)),
        person=person,
    )


def warnings_of(
    histograms: Iterable[tuple[HistogramConfig, Mechanism]],
) -> Iterator[str]:
    """Yield the warnings about every histogram, and about all of them together."""
    charges = [charge_of(config, mechanism) for config, mechanism in histograms]
    for one in charges:
        for warning in cautions(one.cost.epsilon, one.cost.delta, one.unit):
            yield f"histogram {one.histogram}: {warning}"
    if len(charges) > 1:
        for warning in total_of(charges).warnings:
            yield f"all histograms together: {warning}"


def worst_group(groups: Sequence[Sequence[PrivacyCost]]) -> tuple[int, Composed]:
    """Return the index and guarantee of the group that loses most, all converted at one delta.

    So the guarantee holds for every group.
    """
    delta = max(map(total_delta, groups))
    joint = [compose(group, delta) for group in groups]

    def loss(i: int) -> tuple[float, float]:
        epsilon = joint[i].epsilon
        # No guarantee is the largest loss.
        return math.inf if epsilon is None else epsilon, joint[i].rho

    worst = max(range(len(joint)), key=loss)
    return worst, joint[worst]
