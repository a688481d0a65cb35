"""Gaussian noise rounded to an integer, floor(N(0, sigma^2) + 1/2), by exact inversion of a table.

A count is an integer, so its rounded noise is the rounding of the count with real noise: whatever
holds for a release with real Gaussian noise holds for this one, as post-processing, and an integer
bar m that a noisy count must exceed is the real one m + 1/2.

    sigma^2         `sigma_squared`
    C(x)            thresholds: P(X <= x) = Phi((x + 1/2) / sigma)
    R               Mills's ratio, Phi(-z) = phi(z) R(z), with a relative error below 1e-49
                    (`accounting.mills`), far below half a unit of 2^-128
"""

from decimal import Decimal, localcontext
from fractions import Fraction

from workers.mechanisms.accounting import PRECISE, upper_tail
from workers.mechanisms.noise import inversion
from workers.mechanisms.noise.inversion import WORD_BITS, InversionTable
from workers.runtime.frozen import memoized

# Incremented whenever the same sigma^2 would give another table; part of every mechanism id.
TABLE_VERSION = 1
# 27,000 thresholds a side, some seconds to build: with more noise no sketch of counters is useful.
LARGEST_SIGMA_SQUARED = 1 << 22


class RoundedGaussian(InversionTable):
    """Sampler of floor(N(0, sigma_squared) + 1/2), cached by `rounded_gaussian`."""

    def __init__(self, sigma_squared: Fraction) -> None:
        if not 0 < sigma_squared <= LARGEST_SIGMA_SQUARED:
            raise ValueError(
                f"sigma_squared = {float(sigma_squared):,.0f}: must be above 0 and at most "
                f"{LARGEST_SIGMA_SQUARED:,} (a larger epsilon, or a smaller size, needs less noise)"
            )
        self.sigma_squared = Fraction(sigma_squared)
        # Thresholds of negative values, from which the others follow by symmetry.
        lower = _lower_thresholds(self.sigma_squared)
        super().__init__(inversion.mirrored(lower), lowest=-len(lower))

    def __repr__(self) -> str:
        return f"RoundedGaussian(sigma_squared={self.sigma_squared})"


@memoized(64)
def rounded_gaussian(sigma_squared: Fraction) -> RoundedGaussian:
    return RoundedGaussian(sigma_squared)


def _lower_thresholds(sigma_squared: Fraction) -> list[int]:
    """Return round(2^128 P(X <= x)) for x = -bound .. -1, all above 0."""
    thresholds: list[int] = []
    with localcontext(PRECISE):
        sigma = (Decimal(sigma_squared.numerator) / sigma_squared.denominator).sqrt()
        x = Decimal("0.5")
        while scaled := int(
            ((1 << WORD_BITS) * upper_tail(x / sigma)).to_integral_value()
        ):
            thresholds.append(scaled)
            x += 1
    return thresholds[::-1]
