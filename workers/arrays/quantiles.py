"""Kernels for quantiles of bucketed numbers; `pipeline/snapshots.py` derives the formulas."""

import math

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.types import Floats

# Bisections within a bucket: more would change nothing after rounding.
BISECTIONS = 40
# In place of a bucket, for an interval's end that lies in none.
OPEN = -1
EDGE = -2


@kernel_part
def crossing(
    g: float,
    count: float,
    sds: float,
    variance: float,
    covariance: float,
    next_variance: float,
) -> float:
    """Return the fraction f of a bucket at which G + sds sqrt(V) passes 0, from below.

    At f, G = g + f count, and V is the variance of the sum of (1 - f) times the noise of G at the
    bucket's lower edge and f times that at the upper one.

    Args:
        g: G at the lower edge.
        count: the bucket's count.
        sds: how many standard deviations to add; negative: to subtract.
        variance, covariance, next_variance: of G at the lower edge, of both, at the upper edge.
    """
    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        f = (low + high) / 2
        rest = 1 - f
        v = rest * rest * variance + 2 * rest * f * covariance + f * f * next_variance
        # Rounding may leave a variance of 0 below it.
        if g + f * count + sds * math.sqrt(max(v, 0.0)) < 0:
            low = f
        else:
            high = f
    return (low + high) / 2


@kernel_part
def interval(
    counts: Floats,
    g: Floats,
    sd: float,
    normal: float,
    at_edges: Floats,
    beside: Floats,
) -> tuple[int, float, int, float]:
    """Return the ends of a quantile's interval, as bucket and fraction; arguments: `quantile`."""
    n = len(g)
    # The first edge at which G may be 0 or more, and the last at which it may be 0 or less.
    first = n
    last = -1
    for i in range(n):
        margin = normal * (sd * math.sqrt(at_edges[i]))
        if first == n and g[i] + margin >= 0:
            first = i
        if g[i] - margin <= 0:
            last = i
    low = OPEN
    low_at = 0.0
    high = OPEN
    high_at = 0.0
    if first == n:
        low = EDGE
    elif first > 0:
        # G + margin is convex within a bucket, from below 0 to at least 0: it passes 0 once.
        low = first
        low_at = crossing(
            g[first - 1],
            counts[first],
            normal * sd,
            at_edges[first - 1],
            beside[first - 1],
            at_edges[first],
        )
    if last == -1:
        high = EDGE
    elif last < n - 1:
        # G - margin is concave within a bucket, from at most 0 to above 0: it passes 0 once.
        high = last + 1
        high_at = crossing(
            g[last],
            counts[high],
            -normal * sd,
            at_edges[last],
            beside[last],
            at_edges[high],
        )
    return low, low_at, high, high_at


@kernel_part
def fit_crossing(g: Floats, lowest: float, highest: float) -> tuple[int, float]:
    """Return where G's best ascending fit passes 0, as bucket and fraction.

    `g` has G at the edges (n,), `lowest` and `highest` are G below and above all counts. Noise
    makes G itself pass 0 several times.
    """
    n = len(g)
    # The fit passes 0 in the bucket at which the sum of G below is least.
    bucket = 0
    least = 0.0
    below = 0.0
    for i in range(n):
        below += g[i]
        if below < least:
            bucket = i + 1
            least = below
    if bucket == 0 or bucket == n:
        return bucket, 0.0
    # The fit at the edges beside it: the largest mean of G that ends at the left one, the least
    # that begins at the right one; between them, it is a line.
    left = lowest
    total = 0.0
    for i in range(bucket):
        total += g[bucket - 1 - i]
        left = max(left, total / (i + 1))
    right = highest
    total = 0.0
    for i in range(n - bucket):
        total += g[bucket + i]
        right = min(right, total / (i + 1))
    return bucket, -left / (right - left) if right > left else 0.0


@kernel
def quantile(
    counts: Floats,
    sd: float,
    q: float,
    normal: float,
    at_edges: Floats,
    beside: Floats,
    of_total: float,
    g: Floats,
) -> tuple[int, float, int, float, int, float]:
    """Return a quantile and its interval's ends, each as a bucket and a fraction of its width.

    G(x) is the count below x less q times all counts: 0 at the quantile. Its variance is V.

    Args:
        counts: of the buckets in order (n + 1,).
        sd: of the noise of a bucket.
        q: of the quantile.
        normal: how many standard deviations of G the interval allows on either side of 0.
        at_edges: V at the edges (n,), in sd^2.
        beside: the covariance of G at edges i and i + 1 (n - 1,), in sd^2.
        of_total: the variance of all counts together, in sd^2.
        g: scratch (n,), for G at the edges.

    A bucket is OPEN if too little is counted or the interval is open there, EDGE if an end is the
    outermost edge of the other side.
    """
    n = len(g)
    total = 0.0
    for i in range(n):
        total += counts[i]
        g[i] = total
    total += counts[n]
    if total <= normal * sd * math.sqrt(of_total):
        return OPEN, 0.0, OPEN, 0.0, OPEN, 0.0
    for i in range(n):
        g[i] -= q * total
    low, low_at, high, high_at = interval(counts, g, sd, normal, at_edges, beside)
    bucket, fraction = fit_crossing(g, -q * total, (1 - q) * total)
    return bucket, fraction, low, low_at, high, high_at
