"""Counters: the noise of one item's running sum over the ticks, published at every tick.

What: a counter says which noise an item's count gets at tick t, what one event costs, and how large the error is. It is
stateless: the noise of (item, t) is a function of the key, so an item first seen at t0 gets the counter that ran from
tick 1, as it must (a fresh counter at t0 would show when the item came: t0 is data).
Neighbours: the content of one event emptied, or the reverse. The costs here are for
an event that changes one count by one. One of up to D0 items and Dinf each costs D0 Dinf^2 times as much.

    Symbol          Here
    T               `horizon`, ticks; None is unbounded
    rho_item        zCDP that one unit of change of one item's count at one tick costs over all releases
    c_j, sigma_j^2  `terms(t)`: the release at t is h_t + floor(sum_j c_j Z_j + 1/2), Z_j ~ N_Z(0, sigma_j^2)
    TV              `tv`: total variation distance of the sampled noise from the ideal, over the cells one event changes
    K               `test_tv`: the same for a single test of the noise at one tick against a threshold

Kinds: `haar` (the default: half the error of `tree`), `tree` (the papers' baseline) and `sqrt` (three quarters of the error of `haar`,
with O(T) state and time an item: for the few items of a declared domain, over at most 2^16 ticks).
"""

from fractions import Fraction
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.counters.haar import HaarCounter
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.mechanisms.noise.keyed import NoiseStream

KINDS = ("haar", "tree", "sqrt")


class NoiseColumns(Protocol):
    """A cache of the noise of every row of a partition: equal to `Counter.draw`, fast for consecutive ticks."""

    @property
    def bytes_per_row(self) -> int:
        """Memory of the cache, per row in use."""
        ...

    def at(self, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The noise of each row at tick t.

        Args:
            t: any tick of the horizon, in any order; consecutive ones are fast.
            tags: uint64 (n, 2); between calls rows may only be appended.

        Returns:
            A new int64 array (n,).

        Raises:
            HorizonExceeded: t is outside the horizon.
        """
        ...


class Counter(Protocol):
    """One counter's public parameters and its noise."""

    @property
    def kind(self) -> str:
        """The name in the settings."""
        ...

    @property
    def horizon(self) -> int | None:
        """Ticks in an epoch; None is unbounded."""
        ...

    @property
    def rho_item(self) -> float:
        """What one unit of change of one item costs, after the variances were rounded up: at most what was asked."""
        ...

    @property
    def cells_per_event(self) -> int:
        """Cells whose true value an event of one item changes."""
        ...

    @property
    def tv(self) -> float:
        """Upper bound on the total variation distance of these cells' noise, together, from the ideal."""
        ...

    @property
    def test_tv(self) -> float:
        """Upper bound on how much likelier than the ideal noise the sampled one passes a threshold at one tick.

        It is a sum over the cells that a tick adds, of `IntegerGaussian.test_tv`: with all other cells
        fixed, a threshold on the sum is a threshold on one cell, whatever its coefficient.
        """
        ...

    def variance(self, t: int) -> Fraction:
        """sum_j c_j^2 sigma_j^2: the variance of the noise before it is rounded to an integer."""
        ...

    def sd(self, t: int) -> float:
        """The standard deviation of the published integer, the rounding included."""
        ...

    def terms(self, t: int) -> list[tuple[Fraction, Fraction]]:
        """The non-zero terms (c_j, sigma_j^2) of the noise at t, each an independent discrete Gaussian."""
        ...

    def public(self) -> dict[str, object]:
        """Every parameter that changes a noise value, as JSON-able data: part of the mechanism id."""
        ...

    def draw(self, stream: NoiseStream, t: int, tags: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The noise of each row at tick t, rounded to an integer: floor(x + 1/2).

        Args:
            stream: the mechanism's noise.
            t: the tick in its epoch.
            tags: uint64 (n, 2).

        Raises:
            HorizonExceeded: t is outside the horizon.
        """
        ...

    def columns(self, stream: NoiseStream) -> NoiseColumns:
        """A cache of this counter's noise; it belongs to one thread."""
        ...


def make_counter(kind: str, horizon: int | None, rho_item: float, radix: int | None = None) -> Counter:
    """A counter calibrated to cost at most rho_item.

    Args:
        kind: one of KINDS.
        horizon: ticks, at least 1; None is unbounded (not `sqrt`).
        rho_item: above 0; see the module.
        radix: base of the tree, at least 2 (`tree` only); None takes the best one for the horizon, 5 if unbounded.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if kind != "tree" and radix is not None:
        raise ValueError(f"radix = {radix}: only counter 'tree' has one")
    if kind == "haar":
        return HaarCounter(horizon, rho_item)
    if kind == "sqrt":
        return SqrtCounter(horizon, rho_item)
    if kind == "tree":
        return TreeCounter(horizon, rho_item, radix)
    raise ValueError(f"counter = {kind!r}: must be one of {', '.join(KINDS)}")
