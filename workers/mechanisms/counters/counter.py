"""Counters: the noise of one item's running sum over the ticks, published at every tick.

What: a counter says which noise an item's count gets at tick t, what one event costs, and how large
the error is. It is stateless: the noise of (item, t) is a function of the key, so an item first
seen at t0 gets the counter that ran from tick 1, as it must (a fresh counter at t0 would show when
the item came: t0 is data).
Neighbours: the content of one event emptied, or the reverse. The costs here are for an event that
changes one count by one. One of up to D0 items and Dinf each costs D0 Dinf^2 times as much.

Kinds: `haar` (the default: half the error of `tree`), `tree` (the papers' baseline) and `sqrt`
(three quarters of the error of `haar`, with O(T) state and time an item: for the few items of a
declared domain, over at most 2^16 ticks).
"""

from workers.mechanisms.counters.haar import HaarCounter
from workers.mechanisms.counters.levels import Counter
from workers.mechanisms.counters.sqrt import SqrtCounter
from workers.mechanisms.counters.tree import TreeCounter
from workers.runtime.frozen import kept

KINDS = ("haar", "tree", "sqrt")


@kept(256)
def make_counter(
    kind: str, horizon: int | None, rho_item: float, radix: int | None = None, end_share: float | None = None
) -> Counter:
    """Return a counter calibrated to cost at most rho_item; equal ones are one object.

    So histograms of equal budgets share what is kept of a counter's ticks.

    Args:
        kind: one of KINDS.
        horizon: ticks, at least 1; None is unbounded (not `sqrt`).
        rho_item: above 0; see `levels`.
        radix: base of the tree, at least 2 (`tree` only); None takes the best one for the horizon,
            5 if unbounded.
        end_share: what the last tick's noise gets of rho_item, above 0 and below 1 (`haar` with a
            horizon only); None gives no tick more than the others.

    Raises:
        ValueError: a parameter is outside its range.
    """
    if kind != "tree" and radix is not None:
        raise ValueError(f"radix = {radix}: only counter 'tree' has one")
    if kind != "haar" and end_share is not None:
        raise ValueError(f"end_share = {end_share}: only counter 'haar' has one")
    if kind == "haar":
        return HaarCounter(horizon, rho_item, end_share)
    if kind == "sqrt":
        return SqrtCounter(horizon, rho_item)
    if kind == "tree":
        return TreeCounter(horizon, rho_item, radix)
    raise ValueError(f"counter = {kind!r}: must be one of {', '.join(KINDS)}")
