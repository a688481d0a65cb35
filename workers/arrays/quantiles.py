"""Kernels for quantiles of numbers that are counted in buckets, with noise on every count.

    edges       n ascending numbers; edge k is the upper end of bucket k = 0..n, which the last
                bucket has not
    G(x)        the count of numbers below x less q times all counts: 0 at the q-quantile. Between
                edges it is a line, as if buckets were filled evenly
    sd, V       standard deviation of a bucket's noise; variance of the noise of G. Variances and
                covariances are given in units of sd^2
    interval    all x at which |G(x)| <= `normal` sd sqrt(V): a wider G is not due to noise

A place is a bucket and a fraction of its width. Instead of a bucket, an end of an interval may have
OPEN (beyond all edges on its own side) or EDGE (the outermost edge of the other side).
`pipeline/snapshots.py` derives the formulas.
"""

import math

from workers.arrays.compiled import kernel, kernel_part
from workers.arrays.types import Floats

# Bisections within a bucket: more would change nothing after rounding.
BISECTIONS = 40
OPEN = -1
EDGE = -2


@kernel_part
def crossing(
    g: float,
    count: float,
    margin: float,
    lower_variance: float,
    covariance: float,
    upper_variance: float,
) -> float:
    """Return the fraction f of a bucket at which G + margin sqrt(V) passes 0, from below.

    At f, G = g + f count, and V is the variance of the sum of (1 - f) times the noise of G at the
    bucket's lower edge and f times that at the upper one. It must pass 0 once; f is found by
    bisection.

    Args:
        g: G at the lower edge.
        count: the bucket's count.
        margin: `normal` sd, negative to subtract.
        lower_variance, covariance, upper_variance: of G at the lower edge, of both, at the upper.
    """
    low = 0.0
    high = 1.0
    for _ in range(BISECTIONS):
        f = (low + high) / 2
        rest = 1 - f
        v = (
            rest * rest * lower_variance
            + 2 * rest * f * covariance
            + f * f * upper_variance
        )
        # Rounding may leave a variance of 0 below it.
        if g + f * count + margin * math.sqrt(max(v, 0.0)) < 0:
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
    variances: Floats,
    covariances: Floats,
) -> tuple[int, float, int, float]:
    """Return both ends of a quantile's interval, each as bucket (or OPEN, EDGE) and fraction.

    `g`, `variances` (n,) and `covariances` (n - 1,) are those of G at the edges, and of G at
    neighbouring edges; `counts` (n + 1,) are the buckets'.
    """
    n = len(g)
    # The first edge at which G may be 0 or more, and the last at which it may be 0 or less.
    first = n
    last = -1
    for i in range(n):
        margin = normal * (sd * math.sqrt(variances[i]))
        if first == n and g[i] + margin >= 0:
            first = i
        if g[i] - margin <= 0:
            last = i
    low = OPEN
    low_fraction = 0.0
    high = OPEN
    high_fraction = 0.0
    if first == n:
        low = EDGE
    elif first > 0:
        # G + margin is convex within a bucket, from below 0 to at least 0: it passes 0 once.
        low = first
        low_fraction = crossing(
            g[first - 1],
            counts[first],
            normal * sd,
            variances[first - 1],
            covariances[first - 1],
            variances[first],
        )
    if last == -1:
        high = EDGE
    elif last < n - 1:
        # G - margin is concave within a bucket, from at most 0 to above 0: it passes 0 once.
        high = last + 1
        high_fraction = crossing(
            g[last],
            counts[high],
            -normal * sd,
            variances[last],
            covariances[last],
            variances[high],
        )
    return low, low_fraction, high, high_fraction


@kernel_part
def fit_crossing(g: Floats, lowest: float, highest: float) -> tuple[int, float]:
    """Return where the ascending function that fits G best passes 0, as bucket and fraction.

    Noise makes G itself pass 0 several times; the least-squares ascending fit (isotonic regression)
    does once. `g` has G at the edges (n,). `lowest` and `highest`, G below and above all counts,
    bound the fit.
    """
    n = len(g)
    # The fit passes 0 in the bucket at which the sum of G over all edges below is least.
    bucket = 0
    least = 0.0
    below = 0.0
    for i in range(n):
        below += g[i]
        if below < least:
            bucket = i + 1
            least = below
    # The outermost buckets have no width, so there is no fraction of it.
    if bucket == 0 or bucket == n:
        return bucket, 0.0
    # The fit at the edges beside it, by its min-max form: the largest mean of G over edges that end
    # at the left one, the least over edges that begin at the right one. Between them, the fit is a
    # line from left <= 0 to right >= 0, which passes 0 at the fraction -left / (right - left).
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
    variances: Floats,
    covariances: Floats,
    total_variance: float,
    g: Floats,
) -> tuple[int, float, int, float, int, float]:
    """Return the q-quantile and both ends of its interval, each as a bucket and a fraction.

    Args:
        counts: of the buckets in order (n + 1,), with noise.
        sd: of the noise of a bucket; 0 for exact counts.
        q: which quantile, above 0 and below 1.
        normal: how many standard deviations of G the interval allows on either side of 0.
        variances: V at the edges (n,).
        covariances: of G at edges i and i + 1 (n - 1,).
        total_variance: of the sum of all counts.
        g: scratch (n,), for G at the edges.

    All three buckets are OPEN if all counts together may be noise alone.
    """
    n = len(g)
    total = 0.0
    for i in range(n):
        total += counts[i]
        g[i] = total
    total += counts[n]
    if total <= normal * sd * math.sqrt(total_variance):
        return OPEN, 0.0, OPEN, 0.0, OPEN, 0.0
    for i in range(n):
        g[i] -= q * total
    low, low_fraction, high, high_fraction = interval(
        counts, g, sd, normal, variances, covariances
    )
    bucket, fraction = fit_crossing(g, -q * total, (1 - q) * total)
    return bucket, fraction, low, low_fraction, high, high_fraction
