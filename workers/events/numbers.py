"""Numbers exactly as written, in JSON or in a text, within bounds of memory and time."""

import re
from decimal import Decimal

# Beyond the range of a float, yet small enough that the integer stays short: without a limit, ten
# bytes of JSON would fill the memory.
EXPONENT_MAX = 400
# Python neither reads nor prints longer integers: both take quadratic time.
DIGITS_MAX = 4_300
_HUGE: int = 10 ** (DIGITS_MAX - 1)
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")


def decimal(text: str) -> Decimal | float:
    """Return a number exactly as written; beyond EXPONENT_MAX, as a float, 0 or infinite."""
    try:
        found = Decimal(text)
    except ArithmeticError:  # an exponent of many digits
        return float(text)
    return found if abs(found.adjusted()) <= EXPONENT_MAX else float(text)


def whole(text: str) -> int:
    """Return an integer; instead of one with more than DIGITS_MAX digits, +-10^4299.

    No count, time, number or label can tell them apart.
    """
    if len(text) <= DIGITS_MAX:
        return int(text)
    return -_HUGE if text[0] == "-" else _HUGE


def number_in(text: str) -> int | Decimal | float | None:
    """Return the number that a text holds, written exactly as in JSON; None if it holds none."""
    found = _JSON_NUMBER.fullmatch(text)
    if found is None:
        return None
    # Groups 1 and 2 are the fraction and the exponent.
    return whole(text) if found[1] is None and found[2] is None else decimal(text)
