"""Joint guarantee of a page's histograms, and the loss of one person, from their snapshots alone.

A snapshot states the cost of one epoch of its histogram, so the settings are not needed. The total
is for an event or user that counts in all histograms.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

import msgspec

from workers.dashboard.hub import History
from workers.dashboard.snapshots import SeenSnapshot
from workers.privacy.total import Charge, compose, spans_of, stated

LARGEST = 1e9


def together_of(
    history: History, known: Collection[tuple[str, int | None]]
) -> dict[str, object] | None:
    """Return the total and the loss table of docs/api.md; None before anything was published."""
    newest = {snapshot.histogram: snapshot for snapshot in history.all_newest()}
    seen = [(newest[name], horizon) for name, horizon in known if name in newest]
    units = {snapshot.guarantee.unit for snapshot, _ in seen}
    promises = [snapshot.guarantee for snapshot, _ in seen]
    # Nothing published, a changed unit in the settings, or a foreign producer on the topic.
    if len(units) != 1 or any(max(p.rho, p.epsilon) > LARGEST or p.delta > 1 for p in promises):
        return None
    charges = tuple(_charge(snapshot, horizon) for snapshot, horizon in seen)
    return {
        "unit": units.pop(),
        "histograms": [snapshot.histogram for snapshot, _ in seen],
        **_total(charges),
    }


def _charge(snapshot: SeenSnapshot, horizon: int | None) -> Charge:
    promise, width = snapshot.guarantee, snapshot.end - snapshot.start
    epoch_ms = horizon * width if horizon is not None and width > 0 else None
    cost = stated(snapshot.mechanism, promise.rho, promise.epsilon, promise.delta)
    return Charge(cost, epoch_ms)


@lru_cache(maxsize=16)
def _total(charges: tuple[Charge, ...]) -> dict[str, object]:
    found = compose([charge.cost for charge in charges])
    return {
        "rho": found.rho,
        "epsilon": found.epsilon,
        "delta": found.delta,
        "person": msgspec.to_builtins(spans_of(charges)),
    }
