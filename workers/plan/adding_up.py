"""What several mechanisms, or several epochs of one, promise together.

A `Part` is a mechanism's price for one epoch, and how many of them are charged. Parts are
mechanisms that see the same event (or user); streams may react to what was published, so all of
this is adaptive composition.

    rho, epsilon, delta   of one epoch of a part, as in its snapshots
    failures              the named parts of its delta (discovery, numerical); what is left of delta
                          converts rho

Three ways to add up are valid, and the smallest epsilon is stated: the sum of the epsilons; all
costs composed in zCDP and converted once (Canonne, Kamath, Steinke); and, where some parts have a
pure epsilon, those summed and the others composed. With one part, once, at its own delta, it is
what its snapshots say. All sums are exact and rounded up once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from workers.mechanisms.accounting import epsilon_of, float_up
from workers.plan.model import Share


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One mechanism, charged `times` epochs.

    Attributes:
        failures: named probabilities in `delta` that are not converted; None where they are not
            known, and all of delta is taken as such.
        pure: whether epsilon holds without converting rho.
    """

    rho: float
    epsilon: float
    delta: float
    failures: Mapping[str, float] | None = field(default_factory=dict)
    pure: bool = False
    times: int = 1

    @property
    def named(self) -> Mapping[str, float]:
        """The failures; all of delta where they are not known."""
        return {"unknown": self.delta} if self.failures is None else self.failures


@dataclass(frozen=True, slots=True, kw_only=True)
class Together:
    """What parts promise together.

    Attributes:
        epsilon: None where delta is 1 or more: then nothing is promised.
        deltas: parts of delta that are not converted.
    """

    rho: float
    epsilon: float | None
    delta: float
    deltas: tuple[Share, ...]
    epsilon_of_the_sum: float


def delta_together(parts: Sequence[Part]) -> float:
    """Return the sum of the deltas, rounded up."""
    return _sum((part.delta, part.times) for part in parts)


def together(parts: Sequence[Part], delta: float | None = None) -> Together:
    """Return what the parts promise together.

    Args:
        parts: at least one.
        delta: to state the epsilon at; at least the sum of the parts' deltas, which is the default.

    Raises:
        ValueError: delta is smaller.
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
            # The pure parts' deltas stay theirs.
            left = Fraction(at) - Fraction(delta_together(pure))
            ways += [_sum([(way, 1), *((p.epsilon, p.times) for p in pure)]) for way in _composed(others, float(left))]
    return Together(
        rho=_sum((part.rho, part.times) for part in parts),
        epsilon=min(ways) if at < 1 else None,
        delta=min(at, 1.0),
        deltas=tuple(Share(name=name, delta=min(_sum(each), 1.0)) for name, each in failures.items()),
        epsilon_of_the_sum=summed,
    )


def epsilon_at(parts: Sequence[Part], delta: float) -> float | None:
    """Return the epsilon that parts promise together at a delta of any size, rounded up.

    Unlike in `together`, delta may be below the sum of the parts' own: what they convert rho at is
    then less. None where nothing is promised at this delta.
    """
    if not parts:
        return 0.0
    ways = _composed(parts, delta)
    if delta_together(parts) <= delta:
        ways.append(_sum((part.epsilon, part.times) for part in parts))
    pure, others = [part for part in parts if part.pure], [part for part in parts if not part.pure]
    if pure and others:
        left = Fraction(delta) - Fraction(delta_together(pure))
        ways += [_sum([(way, 1), *((p.epsilon, p.times) for p in pure)]) for way in _composed(others, float(left))]
    return min(ways, default=None)


def _composed(parts: Sequence[Part], delta: float) -> list[float]:
    """Return the epsilon of all composed in zCDP; none where no delta is left to convert with."""
    spent = _sum((probability, part.times) for part in parts for probability in part.named.values())
    left = float(Fraction(delta) - Fraction(spent))
    return [epsilon_of(_sum((part.rho, part.times) for part in parts), left)] if 0 < left < 1 else []


def _sum(values: Iterable[tuple[float, int]]) -> float:
    """Return the sum of value times number, rounded up."""
    return float_up(sum((Fraction(value) * times for value, times in values), Fraction(0)))
