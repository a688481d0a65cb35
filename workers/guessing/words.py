"""How figures are said in comments."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """Return a share in per cent; what is there is never shown as nothing, nor what is missing as
    all.
    """
    if share >= 1:
        return "100 %"
    if share <= 0:
        return "0 %"
    return f"{min(max(100 * share, 0.1), 99.9):.3g} %"


def many(number: int, thing: str) -> str:
    """Return a number of things."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def about(number: float) -> str:
    """Return a positive number to two digits."""
    if number <= 0 or not math.isfinite(number):
        return "0"
    digits = 1 - math.floor(math.log10(number))
    rounded = round(number, digits)
    return f"{rounded:,.0f}" if rounded >= 10 else f"{rounded:g}"
