"""zCDP accounting: the cost of a mechanism, and its conversion to (epsilon, delta).

rho-zCDP here: every integer Renyi order a >= 2 obeys D_a <= a rho, where neighbours are the content
of one event emptied, or the reverse. Integer orders only, because the counters' adaptive guarantee
is proved by a shift within a lattice (`docs/guarantee.md`). Minimising over fewer orders is still
valid, and has no visible cost unless rho is large against ln(1/delta).

Every result is rounded to the private side (epsilon and delta up, rho down), to nine significant
digits, after a margin of 1e-10, far above the floating-point error here: all machines publish the
same number.

A cost marked `gaussian` is exactly mu-GDP with mu^2 = 2 rho; so are sums of such costs alone. With
a = epsilon / mu - mu / 2, b = a + mu, the density phi and Mills's ratio R = (1 - Phi) / phi,

    delta = Phi(-a) - e^epsilon Phi(-b) = phi(a) (R(a) - R(b)),    as e^epsilon phi(b) = phi(a).

ln(delta) is concave in epsilon, with slope -R(b) / (R(a) - R(b)), and in mu, with the inverse of
R(a) - R(b). So Newton's steps from the zCDP figure, valid too, stay on the private side. The result
is checked by a delta with a relative error below 1e-36: that of R is below 1e-49; R(a) - R(b) is at
least mu / (b^2 + 3), and R(a) / 1000 for mu > 1; 1e-9 <= mu <= 1000; -mu / 2 <= a <= 39 + mu / 2.

Sources: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", Proposition 12
and Corollary 13; Balle, Wang, "Improving the Gaussian Mechanism", Theorem 8.
"""

import bisect
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, localcontext
from fractions import Fraction
from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from workers.runtime.frozen import memoized

NotNegative = Annotated[float, Meta(ge=0)]
_DIGITS = 9
# Relative margins, wide in rho_of and narrow in epsilon_of: epsilon_of(rho_of(e, d), d) <= e for
# every e of at most nine digits (d ln(epsilon) / d ln(rho) is at least 1/2).
_WIDE_MARGIN = 1e-10
_NARROW_MARGIN = 1e-11
_LARGEST_ORDER = 1 << 50
_LARGEST_EXPONENT = 700.0
_LARGEST_DELTA = 0.5  # in a configuration
PRECISE = Context(prec=60)
CURVE_ERROR = Decimal("1e-30")
_CONVERGED = Decimal("1e-25")
# mu from 1e-9 to 1000
_LEAST_RHO = 5e-19
_LARGEST_RHO = 5e5
ROOT_OF_TWO_PI = Decimal(
    "2.5066282746310005024157652848110452530069867406099383166299236"
)


@dataclass(frozen=True, slots=True)
class PrivacyCost:
    """The cost of one epoch to one event or user, charged `times` epochs.

    Epochs whose noise is not independent, as users' periods without epochs, may cost more than
    their sum: n of them at most min(n, `overlap`) n times one.
    """

    rho: float
    epsilon: float
    delta: float
    _: KW_ONLY
    # Named parts of delta that are set aside; the rest of delta converts rho to epsilon.
    failures: tuple[tuple[str, float], ...] = ()
    # Epsilon holds by itself, without converting rho.
    pure: bool = False
    # Apart from the failures, k events together have exactly mu-GDP, with mu = k sqrt(2 rho).
    gaussian: bool = False
    times: int = 1
    # Part of rho that choosing bounds from a sample cost: paid once for all epochs.
    sample_rho: float = 0.0
    overlap: float = 1.0

    @property
    def together(self) -> Fraction:
        """How many times their sum all `times` epochs cost at most: 1 if noise is independent."""
        return min(Fraction(self.times), Fraction(self.overlap))

    @property
    def rho_charged(self) -> Fraction:
        """The zCDP cost of all `times` epochs."""
        return Fraction(self.rho) * self.times * self.together

    def __post_init__(self) -> None:
        """Raise ValueError if rho or a part of delta is out of range."""
        _check_rho(self.rho)
        for name, failure in self.failures:
            if not 0 <= failure <= 1:
                raise ValueError(
                    f"delta of {name!r} = {failure}: must be a number from 0 to 1"
                )

    @property
    def only_sample(self) -> bool:
        """Whether nothing else was released at this cost than bounds from a sample."""
        return 0 < self.sample_rho == self.rho


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """The guarantee for one `unit`, epoch and stream of snapshots, with its zCDP.

    For users without epochs it is for one `period`, in ms, of a user, and n periods cost at most
    min(n, `overlap`) n times the rho, as in `PrivacyCost`. Otherwise `period` and `overlap` are
    unset.
    """

    unit: str  # "event" or "user"
    rho: NotNegative
    epsilon: NotNegative
    delta: NotNegative
    period: Annotated[int, Meta(ge=1)] | UnsetType = UNSET
    overlap: Annotated[float, Meta(ge=1)] | UnsetType = UNSET


# Spans and groups of a table share these figures.
@memoized(maxsize=1 << 12)
def epsilon_of(rho: float, delta: float, *, gaussian: bool = False) -> float:
    """Return the smallest epsilon (rounded up) for which rho-zCDP gives (epsilon, delta)."""
    if gaussian:
        return gaussian_epsilon(rho, delta)
    _check_rho(rho)
    _check_delta(delta)
    if rho == 0:
        return 0.0
    if math.isinf(rho):
        return math.inf
    lowest = -_largest(lambda order: -(order * rho + _order_cost(order, delta)))
    return _round_up(max(lowest, 0.0))


def rho_of(epsilon: float, delta: float, *, gaussian: bool = False) -> float:
    """Return the largest rho (rounded down) that gives (epsilon, delta), if any is above 0."""
    if gaussian:
        return gaussian_rho(epsilon, delta)
    if not 0 < epsilon < math.inf:
        raise ValueError(f"epsilon = {epsilon}: must be a finite number above 0")
    _check_delta(delta)
    # At a fixed order epsilon is linear in rho.
    rho = _largest(lambda order: (epsilon - _order_cost(order, delta)) / order)
    if rho <= 0:
        raise ValueError(
            f"epsilon = {epsilon}, delta = {delta}: no rho above 0 gives them; raise either"
        )
    return _round(rho * (1 - _WIDE_MARGIN), ROUND_FLOOR)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon (rounded up) for which sqrt(2 rho)-GDP gives (epsilon, delta)."""
    zcdp = epsilon_of(rho, delta)
    # Use the exact figure only if its own delta proves it; that of zCDP always holds.
    exact = _round_up(max(0.0, _newton(rho, zcdp, delta, of_rho=False)))
    return exact if exact < zcdp and gaussian_delta(rho, exact) <= delta else zcdp


@memoized(maxsize=1 << 12)
def gaussian_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho (rounded down) for which sqrt(2 rho)-GDP gives (epsilon, delta)."""
    zcdp = rho_of(epsilon, delta)
    rho = _newton(zcdp, epsilon, delta, of_rho=True)
    # Use the exact figure only if its own delta proves it; that of zCDP always holds.
    exact = _round(rho * (1 - _WIDE_MARGIN), ROUND_FLOOR)
    return exact if exact > zcdp and gaussian_delta(exact, epsilon) <= delta else zcdp


def gaussian_delta(rho: float, epsilon: float) -> Decimal:
    """Return the delta (rounded up) of sqrt(2 rho)-GDP; infinity where no error is proved."""
    if not _LEAST_RHO <= rho <= _LARGEST_RHO:
        return Decimal("Infinity")
    with localcontext(PRECISE):
        return gaussian_curve((2 * Decimal(rho)).sqrt(), Decimal(epsilon))[0] * (
            1 + CURVE_ERROR
        )


def delta_of(rho: float, epsilon: float, *, gaussian: bool = False) -> float:
    """Return the smallest delta (not rounded) with which rho-zCDP gives epsilon."""
    if rho == 0 or math.isinf(epsilon):
        return 0.0

    def minus_log_delta(order: int) -> float:
        """Return -ln of the delta that one Renyi order gives, by Proposition 12."""
        return math.log(order) - (order - 1) * (
            order * rho - epsilon + math.log1p(-1 / order)
        )

    # At least e^-700, as floats underflow below it, and at most 1.
    delta = math.exp(-max(0.0, min(_LARGEST_EXPONENT, _largest(minus_log_delta))))
    return min(delta, float(gaussian_delta(rho, epsilon))) if gaussian else delta


def sampler_delta(epsilon: float, draws: int, tv: float) -> float:
    """Return the delta charged for sampling noise from a table: (1 + e^epsilon) `draws` `tv`.

    Count in `draws` only noise that is added to a true value that differs between neighbours. The
    rest does not matter, however many items and ticks there are. `tv` is the sampler's distance
    from its law in one draw, or in all draws together if `draws` is 1.
    Source: docs/decisions/0009-derivations.md, 8.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon = {epsilon}: must be a number of at least 0")
    if epsilon > _LARGEST_EXPONENT:
        return 1.0
    return min(1.0, _round_up((1 + math.exp(epsilon)) * draws * tv))


def check_sampler_delta(
    delta: float, epsilon: float, required: float, share: float
) -> None:
    """Raise `ValueError` if the samplers' part of delta, delta * share, is less than `required`.

    `required` is what `sampler_delta` charges at this epsilon.
    """
    if required <= delta * share:
        return
    least = required / share
    # Rounded up to two significant digits, as the suggested value must suffice. The margin keeps an
    # error of the division from raising a value that has only two digits already.
    enough = _round(least * (1 - _NARROW_MARGIN), ROUND_CEILING, 2)
    found = f"{enough:.1e}"
    mend = "a larger delta, or "
    if not least <= _LARGEST_DELTA:  # or not a number
        found = "no delta is enough"
        mend = ""
    raise ValueError(
        f"delta = {delta}: below what the integer samplers can promise at epsilon = {epsilon:.4g} "
        f"({found}): {mend}a smaller epsilon or rho"
    )


def float_up(value: Fraction) -> float:
    """Return the smallest float that is at least `value`."""
    nearest = float(value)
    return nearest if Fraction(nearest) >= value else math.nextafter(nearest, math.inf)


def least_integer(is_enough: Callable[[int], bool]) -> int:
    """Return the least x >= 1 for which `is_enough` holds; it must hold for every larger x too."""
    high = 1
    while not is_enough(high):
        high *= 2
    # The index of a number in this range is one less than the number.
    return bisect.bisect_left(range(1, high), True, key=is_enough) + 1


def _newton(rho: float, epsilon: float, delta: float, *, of_rho: bool) -> float:
    """Return the rho (`of_rho`) or the epsilon at which sqrt(2 rho)-GDP gives exactly `delta`.

    The other one is fixed. Newton's method in ln(delta) (see the module) starts from a valid pair:
    its true delta is at most `delta`. So rho only rises, and epsilon only falls. A negative epsilon
    ends the search.
    """
    # No error is proved outside this range, so return the start.
    if not _LEAST_RHO <= rho <= _LARGEST_RHO:
        return rho if of_rho else epsilon
    mu = (2 * Decimal(rho)).sqrt(PRECISE)
    epsilon_now = Decimal(epsilon)
    # ln of delta over the delta reached so far.
    unused = Decimal(1)
    with localcontext(PRECISE):
        while unused > _CONVERGED and epsilon_now >= 0:
            reached, lower, upper = gaussian_curve(mu, epsilon_now)
            unused = (Decimal(delta) / reached).ln()
            # d mu / d ln(delta) = R(a) - R(b); d epsilon / d ln(delta) = -(R(a) - R(b)) / R(b).
            step = unused * (lower - upper)
            if of_rho:
                mu += step
            else:
                epsilon_now -= step / upper
        return float(mu * mu / 2 if of_rho else epsilon_now)


def gaussian_curve(mu: Decimal, epsilon: Decimal) -> tuple[Decimal, Decimal, Decimal]:
    """Return the delta of mu-GDP at epsilon, and R(a) and R(b) of the module's formula for it."""
    a = epsilon / mu - mu / 2
    lower = mills(a)
    upper = mills(a + mu)
    return (-a * a / 2).exp() / ROOT_OF_TWO_PI * (lower - upper), lower, upper


def upper_tail(x: Decimal) -> Decimal:
    """Return 1 - Phi(x), in the context `PRECISE`, for x from -40 on."""
    return (-x * x / 2).exp() / ROOT_OF_TWO_PI * mills(x)


def mills(x: Decimal) -> Decimal:
    """Return R(x) from its continued fraction, or power series; what is left out is below 1e-50."""
    if x < 0:
        return ROOT_OF_TWO_PI * (x * x / 2).exp() - mills(-x)
    value = Decimal(0)
    # 200 levels of the fraction and 121 terms of the series leave out less than that.
    if x >= 5:
        for n in range(200, 0, -1):
            value = n / (x + value)
        return 1 / (x + value)
    for n in range(241, 0, -2):
        value = 1 + value * x * x / (n + 2)
    return ROOT_OF_TWO_PI / 2 * (x * x / 2).exp() - value * x


def _order_cost(order: int, delta: float) -> float:
    """Return what conversion at one Renyi order adds to epsilon, beside order * rho."""
    return (-math.log(delta) - math.log(order)) / (order - 1) + math.log1p(-1 / order)


def _largest(value: Callable[[int], float]) -> float:
    """Return the largest `value` of an order >= 2; a missed peak costs accuracy, never privacy."""
    # Orders a quarter apart, then a search between the neighbours of the best one.
    grid = [2]
    while grid[-1] < _LARGEST_ORDER:
        grid.append(grid[-1] + max(1, grid[-1] // 4))
    values = [value(order) for order in grid]
    best = max(range(len(grid)), key=values.__getitem__)
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]
    while high - low > 3:
        third = (high - low) // 3
        if value(low + third) < value(high - third):
            low += third
        else:
            high -= third
    return max(values[best], *(value(order) for order in range(low, high + 1)))


def _round_up(value: float) -> float:
    """Round up, after a margin for floating-point errors."""
    return _round(value * (1 + _NARROW_MARGIN), ROUND_CEILING)


def _round(value: float, rounding: str, digits: int = _DIGITS) -> float:
    """Round to significant decimal digits, in the direction `rounding`."""
    return float(Context(prec=digits, rounding=rounding).create_decimal(Decimal(value)))


def _check_rho(rho: float) -> None:
    if not rho >= 0:
        raise ValueError(f"rho = {rho}: must be a number of at least 0")


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ValueError(f"delta = {delta}: must be a number above 0 and below 1")


def check_rho_item(rho_item: float) -> None:
    if not 0 < rho_item < math.inf:
        raise ValueError(f"rho_item = {rho_item}: must be a finite number above 0")
