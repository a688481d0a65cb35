"""What somebody loses who has k events (or user ids) in an epoch, over some epochs.

Every mechanism's proof has one form (docs/decisions/0009-derivations.md, 0): with one event more,
but for a failure of probability p (an item that is there because of this event alone is shown), the
outputs are rho-zCDP apart. For k events (docs/decisions/0017-words-and-people.md proves it):

    k^2 rho      zCDP: shifts of noise, and lengths of intervals of losses, add up to k times one's
    p_k          failures: sum over i < k of g(i), g(0) = p,
                 g(i) = min over integers a >= 2 of exp((a - 1) i^2 rho - (1 - 1/a) ln(1/p))
    sampling     k times one event's, times (1 + e^epsilon_k) / (1 + e^epsilon)

g(i) is what p can become under a shift by i events: an order's Renyi divergence bounds how a rare
output grows. It is far below p e^(i epsilon), which group privacy of (epsilon, delta) gives. Epochs
have fresh noise: over e of them all three are taken e times. Delta is that of the settings with the
failures grown; the part of it that converts rho is the same.

    symbol   here
    k        `events`
    p        the failures of a `Part` except "numerical"
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache

from workers.mechanisms.accounting import _largest, epsilon_of, float_up
from workers.mechanisms.budget import NUMERICAL_SHARE
from workers.plan.adding_up import Part, together

NUMERICAL = "numerical"
# A table asks for the same figures over and over: spans and groups share them.
_epsilon_of = lru_cache(maxsize=1 << 12)(epsilon_of)
# Far above what floating point loses in an exponent of this size.
_OUTWARD = 1 + 1e-12
_MARGIN = 1e-9
_LARGEST_EXPONENT = 700.0
# Whose epsilon may be pure, and delta the samplers' alone; a snapshot does not say so.
_MAY_BE_PURE = frozenset({"bounded_max", "doubling", "two_level", "two_level_k", "misra_gries"})


def lost(parts: Sequence[Part], events: int) -> tuple[float | None, float]:
    """Return (epsilon, delta) for somebody with so many events in each epoch of each part.

    Args:
        parts: what counts each event, `times` epochs of each; at least one.
        events: in an epoch, or user ids of one person; at least 1.

    Returns:
        Epsilon is None, and delta 1, where nothing is promised. With one event and one epoch this
        is `adding_up.together`.

    Raises:
        ValueError: events is below 1.
    """
    if events < 1:
        raise ValueError(f"events = {events}: must be at least 1")
    if events == 1 and all(part.times == 1 for part in parts):
        found = together(parts)
        return found.epsilon, found.delta
    plain = [part for part in parts if part.pure or part.failures is None]
    composed = [part for part in parts if part not in plain]
    ways = [_apart(plain, events, _composed(composed, events))]
    if all(part.failures is not None for part in plain):
        ways.append(_composed(parts, events))
    sound = [(epsilon, delta) for epsilon, delta in ways if delta < 1 and epsilon < math.inf]
    return min(sound) if sound else (None, 1.0)


def converting(parts: Sequence[Part]) -> float:
    """Return what is left of the configured deltas to convert rho with."""
    spent = sum((Fraction(p) for part in parts for p in part.named.values()), Fraction(0))
    return float(sum((Fraction(part.delta) for part in parts), Fraction(0)) - spent)


@lru_cache(maxsize=1 << 12)
def group_failure(probability: float, rho: float, events: int) -> float:
    """Return p_k, rounded up, at most 1.

    Args:
        probability: p, of one event.
        rho: of one event.
        events: k.
    """
    total = Fraction(probability)
    for i in range(1, events):
        if total >= 1 or probability == 0:
            break
        total += Fraction(_grown(probability, i * i * rho))
    return float_up(min(total, Fraction(1)))


def stated(mechanism: str, rho: float, epsilon: float, delta: float) -> Part:
    """Return what a snapshot's guarantee says of its mechanism's price, and of delta's parts.

    Of a converted epsilon, what rho does not need of delta counts as failures. That is what the
    mechanism states, or a little more. Where epsilon may be pure, all of it counts as the samplers'
    as well.
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


def _composed(parts: Sequence[Part], events: int) -> tuple[float, float]:
    """Return (epsilon, delta) of parts composed in zCDP, converted once; delta 1 if it cannot."""
    if not parts:
        return 0.0, 0.0
    left = converting(parts)
    if not 0 < left < 1:
        return math.inf, 1.0
    rho = float_up(sum((Fraction(part.rho) * part.times * events**2 for part in parts), Fraction(0)))
    epsilon = _epsilon_of(rho, left)
    failures = sum(part.times * _failures(part, events, epsilon) for part in parts)
    return epsilon, float_up(min(Fraction(left) + failures, Fraction(1)))


def _apart(parts: Sequence[Part], events: int, others: tuple[float, float]) -> tuple[float, float]:
    """Return (epsilon, delta) of parts whose epsilons are added up, and of others as they are."""
    epsilon, delta = Fraction(others[0]) if others[0] < math.inf else None, Fraction(others[1])
    for part in parts:
        grown = part.epsilon * events
        epsilon = None if epsilon is None else epsilon + Fraction(part.epsilon) * events * part.times
        unknown = part.failures is None
        delta += part.times * (_group_delta(part, events) if unknown else _failures(part, events, grown))
    return math.inf if epsilon is None else float_up(epsilon), float_up(min(delta, Fraction(1)))


def _failures(part: Part, events: int, epsilon: float) -> Fraction:
    """Return the failures of one epoch, for k events whose epsilon in all is given."""
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
    """Return what p can become under a shift that costs rho: the best integer order, rounded up."""
    unlikely = -math.log(probability)
    best = math.sqrt(unlikely / rho) if rho > 0 else math.inf
    if not best < 1e15:
        # The order would be beyond all floats: its bound is p but for the margin.
        best = 1e15
    orders = {max(2, math.floor(best)), max(2, math.ceil(best))}
    exponent = min((order - 1) * rho - (1 - 1 / order) * unlikely for order in orders)
    return min(1.0, math.exp(min(exponent, 0.0)) * (1 + _MARGIN) * _OUTWARD)
