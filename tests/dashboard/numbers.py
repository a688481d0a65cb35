"""Made-up snapshots of a histogram of numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.dashboard.feeding import recent
from workers.mechanisms.config.buckets import Buckets
from workers.pipeline.snapshots import Numeric


def numbers(
    tick: int,
    edges: Sequence[float],
    counts: Sequence[int],
    quantiles: Sequence[float],
    sd: float,
    ticks: int = 1,
) -> dict[str, Any]:
    """A snapshot of these counts, in the order of the buckets, as the worker publishes it."""
    numeric = Numeric(Buckets(tuple(edges)), quantiles)
    items = sorted(zip(numeric.labels, counts, strict=True), key=lambda item: (-item[1], item[0]))
    fields = numeric.fields(items, sd)
    return recent(
        tick,
        items,
        ticks=ticks,
        histogram="latency",
        mechanism="known_base",
        threshold=None,
        sd=sd,
        **(fields | {"edges": list(fields["edges"])}),
    )
