"""What noise and which threshold release a Misra-Gries sketch, and the privacy that this costs.

A law is public and frozen, and depends on no data. Noise comes from its `table`, by counter (and
once for all counters, where `shared`); a counter is shown iff its noisy count is above `threshold`.
`variance` is that of a published count; `concerned` is how many noise values are added to another
count if the input is a neighbour: the sampler's distance from its law is charged for each.
Neighbours are the content of one event emptied, or the reverse; an event has at most m =
max_items * max_count occurrences. The papers' statements are those of Lebeda and Tetek, "Better
Differentially Private Approximate Histograms and Heavy Hitters using the Misra-Gries Sketch".

    law                of sketches                      guarantee of one release
    PmgLaw             fed item by item (Algorithm 1)   epsilon-DP but for delta; exact for m = 1
    PureLaw            fed, then lowered (Algorithm 3)  epsilon-DP, over a declared domain
    SparseGaussianLaw  merged (Section 7), PAMG         rho-zCDP but for `discovery`; composes
    GshmLaw            the same                         (epsilon, delta)-DP, exactly (Theorem 5)

Symbols: k is `size`; b a Laplace scale, q = exp(-1/b); T(x) = P(Z >= x) for discrete Laplace noise
Z, as `eta` (shared); tau the paper's threshold. Algorithm 2 shows integers from tau on: `threshold`
= tau - 1. Theorem 5 shows counters plus real noise from 1 + tau on: tau = `threshold` - 1/2, as
noise is rounded here.

docs/decisions/0039-releases-of-sketches.md proves what goes beyond the paper.
"""

import heapq
import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import TypeAlias

import numpy as np

from workers.arrays.types import Floats
from workers.mechanisms.accounting import (
    CURVE_ERROR,
    PRECISE,
    float_up,
    gaussian_curve,
    gaussian_rho,
    least_integer,
    upper_tail,
)
from workers.mechanisms.noise import discrete_laplace as laplace
from workers.mechanisms.noise import inversion, rounded_gaussian
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.noise.rounded_gaussian import RoundedGaussian
from workers.runtime.frozen import Frozen, memoized

# Far above the rounding errors of the float sums below, and invisible in a threshold.
_OUTWARD = 1 + 1e-9
_NEGLIGIBLE = 60.0
_HALF = Decimal("0.5")
# The largest float below 1: its complement has a logarithm.
_LARGEST_TAIL = 1 - 2.0**-53


class PmgLaw(Frozen):
    """PMG, Algorithm 2: noise eta of all counters together and Z of each, both of scale b.

    Guarantee: with x and y the sketches of neighbours, some H(x) is within total variation `delta`
    of the release of x, and epsilon-DP apart from that of y (and the reverse). So a release is
    (epsilon, delta)-DP, and epsilons and deltas of releases that compose add up, each by itself.

    m insertions into the stream move the counters that both sketches keep by a * 1 + z with |a| +
    |z|_1 <= m (Lemma 2, m times), which eta and Z hide with b = m / epsilon (Lemma 3). At most
    min(2 m, k) counters leave and as many enter, none above m. With noise paired between them, they
    show in one world alone with a probability of at most P(eta + max Z_j >= tau - m). For m = 1 it
    is P(eta + max(1 + Z_1, Z_2) >= tau), and attained: state S6 of Lemma 2 has such counters. The
    threshold is the least for which this is at most delta; the paper's, 1 + 2 ln(3 / delta) /
    epsilon, bounds six samples by themselves, and is about twice as high.

    Args: size: counters k. together: m. epsilon: above 0. delta: above 0, below 1.
    """

    shared = True

    def __init__(
        self, size: int, together: int, epsilon: Fraction, delta: float
    ) -> None:
        """Find the scale and the threshold for (epsilon, delta), k = `size` and m = `together`."""
        self.scale = _scale(Fraction(together), epsilon)
        self.table: DiscreteLaplace = laplace.discrete_laplace(self.scale)
        # How many counters only one of two neighbouring sketches has. All may be at m; but for
        # m = 1 only one of them is at 1, and the others are at 0.
        leaving = min(2 * together, size)
        higher = 1 if together == 1 else leaving
        lower = leaving - higher
        quantile = shared_quantile(self.scale, higher, lower, delta)
        # tau - 1, with tau = m + the quantile.
        self.threshold = together + quantile - 1
        self.delta = shared_tail(self.scale, higher, lower, quantile)
        self.epsilon = float_up(together / self.scale)
        # Eta, Z of m counters that both sketches keep, and Z of those that leave or enter.
        self.concerned = together + 1 + 2 * leaving
        # Eta and Z together.
        self.variance = 2 * self.table.variance

    def public(self) -> dict[str, object]:
        """Return the parameters that change a noise value or its meaning."""
        return {
            "noise": repr(self.table),
            "table_version": laplace.TABLE_VERSION,
            "threshold": self.threshold,
        }


class PureLaw(Frozen):
    """Algorithm 3: noise of scale b on each label of a domain, in units of 1 / (k + 1).

    Guarantee: epsilon-DP. One insertion moves the lowered counters by at most 2 k - 1 units in l1
    (decision 0009, 1), an event by m (2 k - 1): b = m (2 k - 1) / epsilon.

    Args: as for `PmgLaw`.
    """

    shared = False
    threshold = None
    delta = 0.0

    def __init__(self, size: int, together: int, epsilon: Fraction) -> None:
        """Find the scale that epsilon pays for, with k = `size` and m = `together`."""
        units = together * (2 * size - 1)
        self.scale = _scale(Fraction(units), epsilon)
        self.table: DiscreteLaplace = laplace.discrete_laplace(self.scale)
        self.epsilon = float_up(units / self.scale)
        # Labels with a counter in either neighbour's sketch.
        self.concerned = 2 * size
        # For a count: one noise value, and the rounding of a multiple of 1 / (k + 1).
        parts = (size + 1) ** 2
        self.variance = self.table.variance / parts + (1 - 1 / parts) / 12

    def public(self) -> dict[str, object]:
        return {"scale": str(self.scale), "table_version": laplace.TABLE_VERSION}


class SparseGaussianLaw(Frozen):
    """Rounded Gaussian noise on every counter above zero, of neighbours as `GshmLaw` has them.

    Guarantee: sqrt(2 rho)-GDP, and so rho-zCDP, but for `discovery`, the probability 1 - Phi(tau /
    sigma)^l that a counter of one world alone shows. That is how releases compose.

    Args: changed: l, the labels whose counters may differ, by one each. threshold: as the module's.
    """

    shared = False

    def __init__(self, changed: int, sigma_squared: Fraction, threshold: int) -> None:
        """Compute what a release costs where at most l = `changed` counters differ, by one each."""
        self.changed = changed
        self.sigma_squared = sigma_squared
        self.threshold = threshold
        self.table: RoundedGaussian = rounded_gaussian.rounded_gaussian(sigma_squared)
        self.rho = float_up(changed / (2 * sigma_squared))
        self.discovery = float_up(Fraction(exposed(changed, sigma_squared, threshold)))
        # The noise of these counters, in both worlds.
        self.concerned = 2 * changed
        # Rounding to an integer adds 1/12.
        self.variance = float(sigma_squared) + 1 / 12

    def public(self) -> dict[str, object]:
        """Return the parameters that change a noise value or its meaning."""
        return {
            "noise": repr(self.table),
            "table_version": rounded_gaussian.TABLE_VERSION,
            "threshold": self.threshold,
        }


class GshmLaw(SparseGaussianLaw):
    """The Gaussian sparse histogram mechanism, by the exact condition of Theorem 5.

    Guarantee: (epsilon, delta)-DP where neighbours' counters differ for at most l labels, all by
    one, all in the same direction, and zero counters are not stored. `discovery` is at most half of
    delta. Merged sketches (Corollary 2) and PAMG (Lemma 9, Corollary 10) have l = k.

    Args: changed: l. epsilon: above 0. delta: above 0, below 1.
    """

    def __init__(self, changed: int, epsilon: float, delta: float) -> None:
        """Find noise and a threshold for (epsilon, delta), where l = `changed` counters differ."""
        # Begin with the noise that takes all of delta if all l counters are in both worlds. If
        # fewer are, hiding the others costs delta too, but the noise takes less. The exact
        # condition decides whether that fits.
        rho = gaussian_rho(epsilon, delta)
        least = changed / (2 * Fraction(rho))
        # More noise, by twice as much each time, until the condition holds.
        step = Fraction(1, 1 << 20)
        while True:
            sigma_squared = inversion.round_up_to_grid(least, "sigma_squared")
            threshold = gshm_threshold(changed, sigma_squared, delta / 2)
            if gshm_delta(changed, sigma_squared, threshold, epsilon) <= delta:
                break
            least = sigma_squared * (1 + step)
            step *= 2
        super().__init__(changed, sigma_squared, threshold)
        self.epsilon = epsilon
        self.delta = delta


Law: TypeAlias = PmgLaw | PureLaw | SparseGaussianLaw


def shared_tail(scale: Fraction, higher: int, lower: int, x: int) -> float:
    """Bound P(eta + max(Z_1, ..., Z_higher, Z'_1 - 1, ..., Z'_lower - 1) >= x) from above.

    This is the chance that noise lifts a counter to a bar, where `higher` counters are x below it
    and `lower` counters x + 1. All Z and eta are independent discrete Laplace. Given eta = e it is
    1 - (1 - T(x - e))^higher (1 - T(x + 1 - e))^lower; all terms are positive, and the relative
    error of each is far below 1e-9. Values of eta beyond `largest` count as if they always showed:
    at most exp(-60) of P(eta >= x).
    """
    b = float(scale)
    largest = abs(x) + math.ceil(_NEGLIGIBLE * b)
    e = np.arange(-largest, largest + 1, dtype=np.float64)
    q = math.exp(-1 / b)
    # P(eta = e) for all e, and the logarithm of the chance that no counter shows then.
    weights = math.tanh(1 / (2 * b)) * np.exp(-np.abs(e) / b)
    log_hidden = np.zeros(len(e))
    for counters, bar in ((higher, x), (lower, x + 1)):
        if counters:
            log_hidden += counters * np.log1p(
                -np.minimum(_tail(b, bar - e), _LARGEST_TAIL)
            )
    # P(|eta| > largest).
    beyond = 2 * q ** (largest + 1) / (1 + q)
    return (float((weights * -np.expm1(log_hidden)).sum()) + beyond) * _OUTWARD


def _tail(b: float, x: Floats) -> Floats:
    """Return T(x) of integers x: q^x / (1 + q) for x > 0, else 1 - T(1 - x)."""
    far = np.exp(-np.where(x > 0, x, 1 - x) / b) / (1 + math.exp(-1 / b))
    return np.where(x > 0, far, 1 - far)


@memoized(1 << 10)
def shared_quantile(scale: Fraction, higher: int, lower: int, delta: float) -> int:
    """Return the least x for which `shared_tail` is at most delta."""
    return least_integer(lambda x: shared_tail(scale, higher, lower, x) <= delta)


def gshm_delta(
    changed: int, sigma_squared: Fraction, threshold: int, epsilon: float
) -> Decimal:
    """Return the delta of Theorem 5, rounded up by less than a part in 10^9.

    With l = `changed`, of which j counters are in both worlds, t = -ln Phi(tau / sigma), and
    d(mu, e) the delta of mu-GDP at e, Theorem 5 is the maximum over j from 0 to l of

        1 - exp(-(l - j) t) (1 - d(sqrt(j) / sigma, epsilon + (l - j) t))    a world shows more
        d(sqrt(j) / sigma, epsilon - (l - j) t)                              and the other way round

    d grows with mu and falls with e. So over j = first .. last both terms are at most those with
    first in l - j and last in d, and the interval with the largest bound is halved until the bound
    is nearly reached. Every number has a relative error below 1e-30 (`accounting`).
    """
    with localcontext(PRECISE):
        sigma = _root(sigma_squared)
        tail = upper_tail((threshold - _HALF) / sigma)
        t = -_log_complement(tail)
        exact_epsilon = Decimal(epsilon)

        def bound(first: int, last: int) -> Decimal:
            """Bound both terms of Theorem 5 for all j in first..last; exact if first == last.

            j of the l = `changed` counters are in both worlds; t is -ln of the chance that noise
            hides a given one of the others.
            """
            # (l - j) t, for the first j and for the last.
            most = (changed - first) * t
            least = (changed - last) * t
            shown = -_expm1(-most)
            if last == 0:
                return shown
            mu = Decimal(last).sqrt() / sigma
            more = shown + (-least).exp() * _gaussian_delta(mu, exact_epsilon + least)
            return max(more, _gaussian_delta(mu, exact_epsilon - most))

        # A heap of bound, first and last, the largest bound first. An interval of one j is exact,
        # so once it comes first no j has more.
        intervals = [(-bound(0, changed), 0, changed)]
        while True:
            highest, first, last = intervals[0]
            lower = max(bound(first, first), bound(last, last))
            if first == last or -highest <= lower * (1 + _CLOSE):
                return -highest * (1 + CURVE_ERROR)
            middle = (first + last) // 2
            heapq.heapreplace(intervals, (-bound(first, middle), first, middle))
            heapq.heappush(intervals, (-bound(middle + 1, last), middle + 1, last))


_CLOSE = Decimal("1e-10")


def gshm_threshold(changed: int, sigma_squared: Fraction, delta: float) -> int:
    """Return the least threshold at which `exposed` is at most `delta`."""
    return least_integer(lambda x: exposed(changed, sigma_squared, x) <= delta)


def exposed(changed: int, sigma_squared: Fraction, threshold: int) -> Decimal:
    """Return the probability that noise shows one of `changed` counters at 1, rounded up.

    That is 1 - Phi(tau / sigma)^l, with tau = threshold - 1/2 and l = `changed`.
    """
    with localcontext(PRECISE):
        tail = upper_tail((threshold - _HALF) / _root(sigma_squared))
        return -_expm1(changed * _log_complement(tail)) * (1 + CURVE_ERROR)


def _gaussian_delta(mu: Decimal, epsilon: Decimal) -> Decimal:
    return gaussian_curve(mu, epsilon)[0]


def _scale(units: Fraction, epsilon: Fraction | float) -> Fraction:
    """Return the Laplace scale for an l1 sensitivity of `units`: units / epsilon, rounded up."""
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
    return laplace.round_up_scale(units / Fraction(epsilon))


# The functions from here on compute in the current decimal context: call them within `PRECISE`.
def _root(square: Fraction) -> Decimal:
    return (Decimal(square.numerator) / square.denominator).sqrt()


def _log_complement(tail: Decimal) -> Decimal:
    """Return ln(1 - tail), with a relative error below 1e-30 for a tail of at least 1e-60."""
    if tail > _SMALL:
        return (1 - tail).ln()
    return -tail * (1 + tail * (_HALF + tail * (_THIRD + tail / 4)))


def _expm1(x: Decimal) -> Decimal:
    """Return exp(x) - 1 for x <= 0, with a relative error below 1e-30."""
    if x < -_SMALL:
        return x.exp() - 1
    return x * (1 + x * (_HALF + x * (1 + x / 4) / 6))


# Below it four terms of a series are enough: what is left out is below 1e-40 of the sum.
_SMALL = Decimal("1e-10")
_THIRD = Decimal(1) / 3
