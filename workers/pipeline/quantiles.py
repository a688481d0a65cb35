"""What a snapshot says of a histogram of numbers: its edges, and quantiles with their intervals.

What: post-processing of the released counts, of public edges and of the public sd of the noise.
Nothing else goes in, so it costs nothing, and every reader can compute it again.

    c_j, C_k    released count of bucket j = 0..n; sum of c_0 .. c_k, the count below edge k
    N, sd       sum of all c_j; standard deviation of the noise of each, independent of each other
    G(x)        count below x, minus q N: the q-quantile is where it passes 0

Value. G at the edges is made monotone (least squares) and kept within -q N and (1 - q) N; between
the two edges where it passes 0 it is taken as straight, as if the bucket were filled evenly. A fit
passes 0 where the sums of what was fitted are least, and its value there is the largest mean that
ends on the left, the smallest that begins on the right (the max-min form of isotonic regression).

Interval. It holds every x at which G(x) = 0 is not rejected, at 95 %. At the fraction f of bucket b
the noise of G is a sum of independent ones, of weight 1 - q below, f - q in the bucket, -q above:

    V = sd^2 (b (1 - q)^2 + (f - q)^2 + (n - b) q^2)

and x is rejected where |G| > 1.96 sqrt(V). With c + z the counts, z normal, this is exact at the x
that the same computation finds in the counts without noise. The set may have gaps: the interval
reaches from its first point to its last. It is open (None) below where the quantile may lie under
the first edge, above where it may lie beyond the last.

Numbers are sums, products and square roots of doubles in a fixed order, rounded at the end: the
same bytes on every machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.arrays.texts import fixed
from workers.mechanisms.config.buckets import Buckets
from workers.runtime.frozen import Frozen

Floats = NDArray[np.float64]
# Of 95 %: 1.9599639845400545.
NORMAL_95 = 1.959963984540054


class Numeric(Frozen):
    """The fields that the snapshots of one histogram have for its numbers."""

    def __init__(self, buckets: Buckets, quantiles: Sequence[float]) -> None:
        self.quantiles = tuple(quantiles)
        self.labels = buckets.labels
        self.edges = buckets.edges
        # After the point, for six significant digits of a bucket's width.
        self._places = tuple(5 - Decimal(high / 2 - low / 2).adjusted() for low, high in pairwise(buckets.edges))

    def fields(self, items: Sequence[tuple[str, int]], sd: float) -> dict[str, Any]:
        """Return them.

        Args:
            items: labels and released counts, in any order.
            sd: of each count, as the snapshot says it.
        """
        found: dict[str, Any] = {"edges": self.edges}
        if self.quantiles:
            counts = dict(items)
            in_order = np.array([counts[label] for label in self.labels], dtype=np.float64)
            found["quantiles"] = [self.quantile(in_order, sd, q) for q in self.quantiles]
        return found

    def quantile(self, counts: Floats, sd: float, q: float) -> dict[str, Any]:
        """Return one quantile as a snapshot says it.

        Args:
            counts: (n + 1,), of the buckets in their order.
            sd: of each count; 0 for exact ones.
            q: above 0 and below 1.
        """
        from workers.arrays import buckets as kernels

        bucket, at, lowest, low_at, highest, high_at = kernels.quantile(
            fixed(counts), float(sd), float(q), NORMAL_95, np.empty(len(self.edges))
        )
        none = {"q": q, "bucket": None, "value": None, "low": None, "high": None}
        if bucket == kernels.OPEN:
            return none
        low, high = self._end(lowest, low_at, self.edges[-1]), self._end(highest, high_at, self.edges[0])
        value = None
        if 0 < bucket < len(self.edges):
            value = self._at(bucket, at)
            value = value if low is None else max(value, low)
            value = value if high is None else min(value, high)
        return none | {"bucket": self.labels[bucket], "value": value, "low": low, "high": high}

    def _end(self, bucket: int, fraction: float, edge: float) -> float | None:
        """Return an end of the interval; None: there is none on that side."""
        from workers.arrays.buckets import EDGE

        return edge if bucket == EDGE else self._at(bucket, fraction) if bucket > 0 else None

    def _at(self, bucket: int, fraction: float) -> float:
        """Return the number at a fraction of a bucket, to 6 significant digits of its width."""
        low, high = self.edges[bucket - 1], self.edges[bucket]
        found = low * (1 - fraction) + high * fraction
        return min(max(round(found, self._places[bucket - 1]), low), high) or 0.0
