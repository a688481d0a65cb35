"""Counters and mechanisms without their noise tables, which take seconds to build where a budget is small: for what is only compared.

What: `UntabledCounter` has the figures of a counter, `Untabled` those of `known_base`, `unk_base` and `sparse_gumb`. The variances are
those that `haar` and `tree` would take, rounded up to the same grid, so `sd` and `threshold` are theirs exactly (tested).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.accounting import float_up
from workers.mechanisms.budget import split
from workers.mechanisms.config import HistogramConfig, KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.counters.budget import rho_of_item
from workers.mechanisms.counters.counter import NoiseColumns
from workers.mechanisms.counters.haar import _bounded_weights, _unbounded_weights
from workers.mechanisms.counters.tree import LONGEST_HORIZON, best_radix, digits_of
from workers.mechanisms.frozen import Frozen
from workers.mechanisms.noise.gaussian import LARGEST_SIGMA_SQUARED, round_up_sigma_squared
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.running.discovery import Discovery
from workers.mechanisms.running.discovery_schedule import make_discovery
from workers.mechanisms.running.sparse_gumb import SparseGumbConfig, tau_squared_of
from workers.mechanisms.running.sparse_gumb import rho_of_item as rho_of_chosen

UNBOUNDED_RADIX = 5


class UntabledCounter(Frozen):
    """See the module, and `counters.Counter` for what each member means.

    Args:
        kind: "haar" or "tree".
        horizon: ticks; None is unbounded.
        rho_item: what one unit of change of one item may cost.
        radix: base of the tree; None takes the best one, 5 if unbounded.

    Raises:
        ValueError: a counter that draws could not be made, its noise is too wide.
    """

    cells_per_event = 0
    tv = 0.0
    test_tv = 0.0

    def __init__(self, kind: str, horizon: int | None, rho_item: float, radix: int | None = None) -> None:
        self.kind, self.horizon = kind, horizon
        last = LONGEST_HORIZON - 1 if horizon is None else horizon
        if kind == "haar":
            self.radix = 2
            weights = _unbounded_weights() if horizon is None else _bounded_weights((horizon - 1).bit_length())
        else:
            self.radix = radix or (UNBOUNDED_RADIX if horizon is None else best_radix(last))
            levels = range(digits_of(last, self.radix))
            weights = [Fraction(1, 1 if horizon is not None else level + 2) for level in levels]
        scale = sum(weights, Fraction(0)) / (2 * Fraction(rho_item))
        self._sigma_squared = tuple(round_up_sigma_squared(scale / weight) for weight in weights)
        if max(self._sigma_squared) > LARGEST_SIGMA_SQUARED:
            raise ValueError(
                f"noise of variance {float(max(self._sigma_squared)):.3g} is more than there is a table for"
            )
        self.rho_item = float_up(sum((1 / (2 * value) for value in self._sigma_squared), Fraction(0)))

    def variance(self, t: int) -> Fraction:
        return sum((c * c * sigma_squared for c, sigma_squared in self.terms(t)), Fraction(0))

    def sd(self, t: int) -> float:
        if self.kind == "tree":
            return math.sqrt(self.variance(t))
        levels = len(self._sigma_squared) - 1
        fractional_bits = levels - min((t & -t).bit_length() - 1, levels)
        return math.sqrt(self.variance(t) + (1 - Fraction(1, 4**fractional_bits)) / 12)

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        found = []
        if self.kind == "tree":
            for sigma_squared in self._sigma_squared:
                t, digit = divmod(t, self.radix)
                found += [(Fraction(1), sigma_squared)] * digit
            return found
        for level, sigma_squared in enumerate(self._sigma_squared[1:], start=1):
            inside = t % (1 << level)
            if inside:
                found.append((Fraction(min(inside, (1 << level) - inside), 1 << level), sigma_squared))
        return [*found, (Fraction(t, 1 << (len(self._sigma_squared) - 1)), self._sigma_squared[0])]

    def public(self) -> dict[str, object]:
        return {"kind": self.kind, "radix": self.radix, "sigma_squared": [str(value) for value in self._sigma_squared]}

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """
        Raises:
            TypeError: always; there are no tables.
        """
        raise TypeError("a counter without tables is only looked at")

    def columns(self, stream: NoiseStream) -> NoiseColumns:
        """
        Raises:
            TypeError: always; there are no tables.
        """
        raise TypeError("a counter without tables is only looked at")


class Untabled:
    """The published figures of a mechanism that keeps a counter for each item.

    Attributes:
        kind: its name in the settings.
    """

    def __init__(self, kind: str, counter: UntabledCounter, discovery: Discovery | None) -> None:
        self.kind = kind
        self._counter, self._discovery = counter, discovery

    def public(self) -> Mapping[str, object]:
        return {"counter": self._counter.public()}

    def sd(self, t: int) -> float:
        return self._counter.sd(t)

    def threshold(self, t: int) -> int | None:
        if self._discovery is None or not self._discovery.discovers(t):
            return None
        return self._discovery.threshold(t)


def untabled(config: HistogramConfig) -> Untabled | None:
    """The figures of a configuration's mechanism, None where it is of another kind or its counter is "sqrt".

    Args:
        config: with D0 in `max_items`.

    Raises:
        ValueError: the budget buys nothing, or noise that is too wide.
    """
    if config.counter == "sqrt":
        return None
    kind, ticks, radix = config.counter, config.horizon_ticks, config.radix
    if not isinstance(config, KnownBaseConfig | UnkBaseConfig | SparseGumbConfig):
        return None
    own = split(config, discovers=isinstance(config, UnkBaseConfig))
    if isinstance(config, SparseGumbConfig):
        rho_item = rho_of_chosen(config, tau_squared_of(config, own))
        return Untabled(config.mechanism, UntabledCounter(kind, ticks, rho_item, radix), None)
    counter, discovery = UntabledCounter(kind, ticks, rho_of_item(config, own), radix), None
    if isinstance(config, UnkBaseConfig):
        delta = own.delta_discovery
        discovery = make_discovery(counter, config.max_items, config.max_count, delta, config.threshold, config.every)
    return Untabled(config.mechanism, counter, discovery)
