"""What the histograms of a worker promise together, at the sum of their deltas.

An event has one stream key, so it counts in those histograms that serve its key: the total is that
of the key with the largest one. Where histograms take the key from different fields it has one of
each, and all histograms count. A user may come with every key, so all histograms count; each
bounds a user's items over all its keys together. Epochs of a histogram do not add for one event,
for it lies in one of them; generations do, and so does a new worker name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.accounting import paper_epsilon
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.plan.adding_up import Part, together
from workers.plan.model import Total
from workers.plan.person.table import Charge, spans_of
from workers.plan.person.words import cautions


@dataclass(frozen=True, slots=True)
class Built:
    """A histogram's configuration and its mechanism."""

    config: HistogramConfig
    mechanism: Mechanism

    @property
    def part(self) -> Part:
        """What one epoch of it costs."""
        promise, failures = self.mechanism.guarantee, dict(self.mechanism.cost().deltas)
        return Part(
            rho=promise.rho, epsilon=promise.epsilon, delta=self.config.delta, failures=failures, pure=self.config.pure,
        )  # fmt: skip

    @property
    def charge(self) -> Charge:
        """Its price, and the length of an epoch."""
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
    """Yield what to warn of before a run: of each histogram, and of what they promise together."""
    built = [Built(config, mechanism) for config, mechanism in histograms]
    for one in built:
        promise = one.mechanism.guarantee
        for warning in cautions(promise.epsilon, promise.delta, promise.unit):
            yield f"histogram {one.config.name}: {warning}"
    if len(built) > 1:
        for warning in total_of(built).warnings:
            yield f"all histograms together: {warning}"


def _together(built: Sequence[Built], key: str | None) -> Total:
    found = together([one.part for one in built])
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
        epsilon_printed=paper_epsilon(found.rho, left) if found.epsilon is not None and left > 0 else None,
        warnings=tuple(cautions(found.epsilon, found.delta, unit)),
        person=spans_of([one.charge for one in built]),
    )
