"""What the histograms of a worker promise together, at the sum of their deltas.

An event has one stream key, so it counts in those histograms that serve its key: the total is that
of the key with the largest one. Where histograms take the key from different fields it has one of
each, and all histograms count. A user may come with every key, so all histograms count; each
bounds a user's items over all its keys together. Epochs of a histogram do not add for one event,
for it lies in one of them; generations do, and so does a new worker name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.accounting import paper_epsilon
from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.plan.adding_up import Part, together
from workers.plan.model import Total


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
    return worst if len(totals) > 1 else structs.replace(worst, key=None)


def _together(built: Sequence[Built], key: str | None) -> Total:
    found = together([one.part for one in built])
    left = float(Fraction(found.delta) - sum(Fraction(share.delta) for share in found.deltas))
    return Total(
        unit=built[0].mechanism.guarantee.unit,
        histograms=tuple(one.config.name for one in built),
        key=key,
        rho=found.rho,
        # A delta of 1 promises nothing; the sum of the epsilons holds even then.
        epsilon=found.epsilon_of_the_sum if found.epsilon is None else found.epsilon,
        delta=found.delta,
        deltas=found.deltas,
        epsilon_of_the_sum=found.epsilon_of_the_sum,
        epsilon_printed=paper_epsilon(found.rho, left) if found.epsilon is not None and left > 0 else None,
    )
