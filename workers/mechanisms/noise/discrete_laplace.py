"""Discrete Laplace and geometric noise by exact inversion of a 128-bit cumulative table.

On an integer query of l1 sensitivity D, discrete Laplace noise of scale b is D/b-DP like the
continuous one; the geometric is the integer form of one-sided (exponential) noise.

    b           `scale`
    q           exp(-1/b)
    C(x)        thresholds, round(2^128 P(X <= x)); discrete Laplace: P(X <= -j) = q^j / (1 + q) for
                j >= 1; geometric: P(X <= x) = 1 - q^(x+1). A word of 128 bits gives the integer
                with as many thresholds at or below it

Source: Ghosh, Roughgarden, Sundararajan, "Universally Utility-Maximizing Privacy Mechanisms".
"""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

from workers.mechanisms.noise import inversion
from workers.mechanisms.noise.inversion import WORD_BITS, InversionTable
from workers.runtime.frozen import memoized

# Incremented whenever the same scale would give another table; part of every mechanism id.
TABLE_VERSION = 1
# 1.5 million values a side, 47 MB: with more noise than this no histogram is useful.
LARGEST_SCALE = 1 << 14


def round_up_scale(scale: Fraction) -> Fraction:
    return inversion.round_up_to_grid(scale, "scale")


class _OfScale(InversionTable):
    """The table of either law; `two_sided`: discrete Laplace."""

    def __init__(self, scale: Fraction, *, two_sided: bool) -> None:
        if not 0 < scale <= LARGEST_SCALE:
            raise ValueError(
                f"scale = {float(scale):g}: must be above 0 and at most {LARGEST_SCALE} "
                "(a larger budget needs less noise)"
            )
        self.scale = Fraction(scale)
        # P(X >= j) for j = 1, 2, ..., falling. Two-sided, they are P(X <= -j) too.
        tails = _tail_thresholds(self.scale, two_sided=two_sided)
        # Thresholds ascend. Two-sided, they are C(-n)..C(-1), then by symmetry those from 0 on.
        # One-sided, they are C(j - 1) = 1 - P(X >= j), from C(0) on.
        if two_sided:
            super().__init__(inversion.mirrored(tails[::-1]), lowest=-len(tails))
        else:
            super().__init__([(1 << WORD_BITS) - tail for tail in tails], lowest=0)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(scale={self.scale})"


class DiscreteLaplace(_OfScale):
    """Sampler of P(x) proportional to exp(-|x|/scale), of variance 2 q / (1 - q)^2."""

    def __init__(self, scale: Fraction) -> None:
        super().__init__(scale, two_sided=True)
        self.variance = 2 * _one_sided_variance(self.scale)


class Geometric(_OfScale):
    """P(x) proportional to exp(-x/scale), x >= 0, mean q / (1 - q), q = exp(-1/scale)."""

    def __init__(self, scale: Fraction) -> None:
        super().__init__(scale, two_sided=False)
        # q / (1 - q) = 1 / (e^(1/b) - 1); below e^-700 it is taken as 0, as e^(1/b) would overflow.
        self.mean = (
            0.0
            if self.scale < Fraction(1, 700)
            else 1 / math.expm1(float(1 / self.scale))
        )
        self.variance = _one_sided_variance(self.scale)


@memoized(256)
def discrete_laplace(scale: Fraction) -> DiscreteLaplace:
    return DiscreteLaplace(scale)


@memoized(256)
def geometric(scale: Fraction) -> Geometric:
    return Geometric(scale)


def _tail_thresholds(scale: Fraction, *, two_sided: bool) -> list[int]:
    """Return round(2^128 q^j) for j = 1, 2, ... while above 0; two-sided: divided by 1 + q."""
    thresholds: list[int] = []
    with localcontext(inversion.TABLE_CONTEXT):
        q = (Decimal(-scale.denominator) / scale.numerator).exp()
        mass = (1 << WORD_BITS) * q
        if two_sided:
            mass /= 1 + q
        while (threshold := int(mass.to_integral_value())) > 0:
            thresholds.append(threshold)
            mass *= q
    return thresholds


def _one_sided_variance(scale: Fraction) -> float:
    """Return q / (1 - q)^2 = 1 / (4 sinh^2(1 / (2 scale))), the variance of the geometric law."""
    # Below e^-700 it is taken as 0, as sinh would overflow.
    if scale < Fraction(1, 700):
        return 0.0
    return 1 / (4 * math.sinh(float(1 / (2 * scale))) ** 2)
