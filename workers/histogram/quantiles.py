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

import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.buckets import Buckets
from workers.mechanisms.frozen import Frozen, kept, read_only

Floats = NDArray[np.float64]
# Of 95 %: 1.9599639845400545.
NORMAL_95 = 1.959963984540054
# Halvings of a bucket: further ones change nothing that is left after rounding.
_HALVINGS = 40


class Numeric(Frozen):
    """The fields that the snapshots of one histogram have for its numbers."""

    def __init__(self, buckets: Buckets, quantiles: Sequence[float]) -> None:
        self.quantiles = tuple(quantiles)
        self.labels = buckets.labels
        self.edges = buckets.edges
        self._edges: Floats = read_only(np.array(buckets.edges))

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
        below = np.cumsum(counts)
        total = float(below[-1])
        none = {"q": q, "bucket": None, "value": None, "low": None, "high": None}
        if total <= NORMAL_95 * sd * math.sqrt(len(counts)):
            return none
        g = below[:-1] - q * total
        low, high = self._low(counts, g, sd, q), self._high(counts, g, sd, q)
        bucket = int(np.argmin(np.concatenate(([0.0], np.cumsum(g)))))
        value = None
        if 0 < bucket < len(g):
            left = max(float((np.cumsum(g[bucket - 1 :: -1]) / np.arange(1, bucket + 1)).max()), -q * total)
            right = min(float((np.cumsum(g[bucket:]) / np.arange(1, len(g) - bucket + 1)).min()), (1 - q) * total)
            value = self._at(bucket, -left / (right - left) if right > left else 0.0)
            value = value if low is None else max(value, low)
            value = value if high is None else min(value, high)
        return none | {"bucket": self.labels[bucket], "value": value, "low": low, "high": high}

    def _low(self, counts: Floats, g: Floats, sd: float, q: float) -> float | None:
        """Return the first number that is not rejected; None: nor are those below the edges."""
        upper = g + NORMAL_95 * _sd_at_edges(len(g), sd, q)
        if upper[0] >= 0:
            return None
        if upper.max() < 0:
            return self.edges[-1]
        # Upper is convex within a bucket, from below 0 to at least 0: it passes 0 once.
        return self._root(int(np.argmax(upper >= 0)), counts, g, sd, q, 1)

    def _high(self, counts: Floats, g: Floats, sd: float, q: float) -> float | None:
        """Return the last number that is not rejected; None: nor are those above the edges."""
        lower = g - NORMAL_95 * _sd_at_edges(len(g), sd, q)
        if lower[-1] <= 0:
            return None
        if lower.min() > 0:
            return self.edges[0]
        # Lower is concave within a bucket, from at most 0 to above 0: it passes 0 once.
        return self._root(len(g) - int(np.argmax(lower[::-1] <= 0)), counts, g, sd, q, -1)

    def _root(self, bucket: int, counts: Floats, g: Floats, sd: float, q: float, side: int) -> float:
        """Return where G + side * 1.96 sqrt(V) passes 0 in a bucket, from below."""
        start, count, others = float(g[bucket - 1]), float(counts[bucket]), len(g) - bucket
        fixed = bucket * (1 - q) * (1 - q) + others * q * q
        low, high, times = 0.0, 1.0, side * NORMAL_95
        for _ in range(_HALVINGS):
            f = (low + high) / 2
            off = f - q
            if start + f * count + times * (sd * math.sqrt(fixed + off * off)) < 0:
                low = f
            else:
                high = f
        return self._at(bucket, (low + high) / 2)

    def _at(self, bucket: int, fraction: float) -> float:
        """Return the number at a fraction of a bucket, to 6 significant digits of its width."""
        low, high = self.edges[bucket - 1], self.edges[bucket]
        found = low * (1 - fraction) + high * fraction
        places = 5 - Decimal(high / 2 - low / 2).adjusted()
        return min(max(round(found, places), low), high) or 0.0


@kept(256)
def _sd_at_edges(n: int, sd: float, q: float) -> Floats:
    """Return the sd of G at each edge: 1 + k buckets below edge k, n - k above."""
    below = np.arange(1.0, n + 1)
    found: Floats = sd * np.sqrt(below * ((1 - q) * (1 - q)) + (n - below + 1) * (q * q))
    return read_only(found)
