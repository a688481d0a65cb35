"""What the histograms of a worker promise together, for one event (or user), at the sum of their deltas.

An event has one stream key, so it counts in those histograms that serve its key: the total is that of the key with the largest one.
A user may come with every key, so all histograms count; each bounds a user's items over all its keys together.
Epochs of a histogram do not add for one event, for it lies in one of them; generations do, and so does beginning anew.

Three ways to add up are valid, and the smallest epsilon is stated: the sum of the epsilons; all costs composed in zCDP and
converted once; and, where some histograms have a pure epsilon (`accounting` or `release = "pure"`), those summed and the others composed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from workers.mechanisms.accounting import Cost, compose, epsilon_of, float_up, paper_epsilon
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.plan.model import Share, Total


@dataclass(frozen=True, slots=True)
class Built:
    """A histogram's configuration and its mechanism."""

    config: HistogramConfig
    mechanism: Mechanism

    @property
    def pure(self) -> bool:
        """Whether its epsilon holds without converting rho."""
        return self.config.pure


def total_of(built: Sequence[Built]) -> Total:
    """The total of the stream key that pays most; where users are protected, of all histograms."""
    if built[0].mechanism.guarantee.unit != "event":
        return _together(built, None)
    declared = {key for one in built if one.config.keys != "public" for key in one.config.keys}
    groups: dict[tuple[str, ...], tuple[list[Built], str | None]] = {}
    for key in (*sorted(declared), None):  # None: a key that no histogram declares
        served = [one for one in built if one.config.keys == "public" or key in one.config.keys]
        if served:
            groups.setdefault(tuple(one.config.name for one in served), (served, key))
    totals = [_together(served, key) for served, key in groups.values()]
    worst = max(totals, key=lambda total: (total.epsilon, total.delta))
    return worst if len(totals) > 1 else _for_every_key(worst)


def _together(built: Sequence[Built], key: str | None) -> Total:
    costs = [one.mechanism.cost() for one in built]
    cost, delta = compose(costs), _sum([one.config.delta for one in built])
    epsilons = [one.mechanism.guarantee.epsilon for one in built]
    summed = _sum(epsilons)
    ways = [summed]
    if len(built) > 1 and (left := delta - cost.delta) > 0:
        ways.append(epsilon_of(cost.rho, left))
    pure = [one for one in built if one.pure]
    if pure and len(pure) < len(built):
        others = compose(one.mechanism.cost() for one in built if not one.pure)
        left = _sum([one.config.delta for one in built if not one.pure]) - others.delta
        ways.append(_sum([one.mechanism.guarantee.epsilon for one in pure] + [epsilon_of(others.rho, left)]))
    return Total(
        unit=built[0].mechanism.guarantee.unit,
        histograms=tuple(one.config.name for one in built),
        key=key,
        rho=cost.rho,
        epsilon=min(ways),
        delta=delta,
        deltas=_shares(cost),
        epsilon_of_the_sum=summed,
        epsilon_printed=paper_epsilon(cost.rho, delta - cost.delta) if delta > cost.delta else None,
    )


def _for_every_key(total: Total) -> Total:
    """The same for every stream key: none is named."""
    return Total(**{name: getattr(total, name) for name in total.__struct_fields__} | {"key": None})


def _shares(cost: Cost) -> tuple[Share, ...]:
    return tuple(Share(name=name, delta=delta) for name, delta in cost.deltas)


def _sum(values: Sequence[float]) -> float:
    """Rounded up."""
    return float_up(sum((Fraction(value) for value in values), Fraction(0)))
