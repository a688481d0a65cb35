"""A range of round numbers around sampled ones, and buckets in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal

from workers.mechanisms.config.buckets import parse_buckets

# Of the sampled numbers this share at each end may lie outside: outliers make useless buckets.
_OUTSIDE = 0.005
_STEPS = 20
_LARGEST = 1e15
_SMALLEST = 1e-9
# Where the largest numbers are this much above the middle ones, buckets of one ratio show more.
_SKEWED = 20
_PER_DECADE = 3


@dataclass(frozen=True, slots=True)
class Range:
    """What `buckets` says: `count` intervals from `first` to `last`."""

    first: Decimal
    last: Decimal
    count: int
    scale: str = "linear"

    def __str__(self) -> str:
        scale = ', scale = "log"' if self.scale == "log" else ""
        return f"{{ from = {self.first:f}, to = {self.last:f}, count = {self.count}{scale} }}"

    @property
    def edges(self) -> tuple[float, ...]:
        """Return the edges of the buckets."""
        return parse_buckets(self.setting()).edges

    def setting(self) -> dict[str, object]:
        """Return it as a settings file is read."""
        values = {"from": _number(self.first), "to": _number(self.last), "count": self.count}
        return {**values, "scale": self.scale}


def range_of(numbers: Sequence[float]) -> Range | None:
    """Return a range of round numbers around nearly all of `numbers`; None where there is none."""
    ordered = sorted(numbers)
    outside = int(_OUTSIDE * len(ordered))
    low, high = ordered[outside], ordered[-1 - outside]
    if not (math.isfinite(low) and math.isfinite(high)) or max(abs(low), abs(high)) > _LARGEST:
        return None
    middle = ordered[len(ordered) // 2]
    if low >= 0 and middle > 0 and high > _SKEWED * middle:
        least = next(number for number in ordered if number > 0)
        usual = ordered[max(outside, len(ordered) // 20)]
        found = _log(max(least, usual, high / 1e6), high)
    else:
        found = _linear(low, high)
    return found if found is not None and _is_good(found) else None


def around(low: float, high: float) -> Range | None:
    """Return buckets for a range that somebody chose, with its bounds as they are."""
    if not (low < high and max(abs(low), abs(high)) <= _LARGEST and math.isfinite(low) and math.isfinite(high)):
        return None
    found = Range(_plain(Decimal(repr(low))), _plain(Decimal(repr(high))), _STEPS)
    return found if _is_good(found) else None


def _linear(low: float, high: float) -> Range | None:
    if 0 <= low < 0.3 * high:
        low = 0.0
    width = high - low
    if width == 0:
        width = abs(high) or 1.0
        low, high = low - width / 2, high + width / 2
    if width < _SMALLEST:
        return None
    step = _round_step(width / _STEPS)
    first = (Decimal(repr(low)) / step).to_integral_value(ROUND_FLOOR) * step
    last = (Decimal(repr(high)) / step).to_integral_value(ROUND_CEILING) * step
    if last <= Decimal(repr(high)):
        last += step  # the last edge is not inside
    return Range(_plain(first), _plain(last), int((last - first) / step))


def _log(low: float, high: float) -> Range | None:
    if low < _SMALLEST:
        return None
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    return Range(_plain(Decimal(10) ** first), _plain(Decimal(10) ** last), _PER_DECADE * (last - first), "log")


def _round_step(width: float) -> Decimal:
    """Return the smallest of 1, 2, 5, 10, ... and their decimal fractions that is at least this."""
    power = Decimal(10) ** math.floor(math.log10(width))
    return next(power * digit for digit in (1, 2, 5, 10, 20) if power * digit >= Decimal(repr(width)))


def _plain(number: Decimal) -> Decimal:
    whole = number.to_integral_value()
    return Decimal(int(whole)) if number == whole else number.normalize()


def _number(number: Decimal) -> int | float:
    return int(number) if number == number.to_integral_value() else float(number)


def _is_good(found: Range) -> bool:
    try:
        parse_buckets(found.setting())
    except ValueError:
        return False
    return True
