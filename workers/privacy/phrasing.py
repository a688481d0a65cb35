"""Wording of an (epsilon, delta) guarantee, true for all values of both.

An observer who takes presence and absence for equally likely guesses right with probability at
most 1 - (1 - delta) / (1 + e^epsilon) (Kairouz, Oh, Viswanath 2015: both errors of a test add up
to at least 2 (1 - delta) / (1 + e^epsilon)). `WORDS` names ranges of these odds, and every
sentence about what an observer learns takes its words from there:

    epsilon up to    right at most, of 100    words
    0.2              55                       only slightly better than a coin toss
    1                73.2                     better than a coin toss, but not reliably
    3                95.3                     right most of the time
    5                99.34                    nearly sure
    20               nearly every time        practically sure
    above            nearly every time        sure

Limits of warnings and their sources (docs/decisions/0017-words-and-people.md):

    epsilon <= 5     "a conservative choice" (Near, Darais, NIST 2022); above, `plan`, `run` warn
    epsilon <= 20    above, the guarantee is almost void (the largest of the deployments there)
    delta <= 1e-5    above, they warn: n delta of n events may be unprotected, and a topic of a
                     hundred thousand events is a small one
    delta < 0.01     at or above, the guarantee is void (a choice)
    delta < 1        at or above, or without a finite epsilon (None), nothing is promised

Rounding never overstates the guarantee. `dashboard/page/promise.js` writes the same text, compared
by test_page_words.py; tests/docs/test_words.py compares the documents.
"""

import math
from collections.abc import Iterator
from typing import Literal

EPSILON_WARNED = 5.0
EPSILON_VOID = 20.0
DELTA_WARNED = 1e-5
DELTA_VOID = 0.01

#: What an observer can do, by the largest epsilon for which the words hold.
WORDS = (
    (0.2, "can guess only slightly better than by a coin toss"),
    (1.0, "can guess better than by a coin toss, but not reliably,"),
    (3.0, "can guess right most of the time"),
    (EPSILON_WARNED, "can be nearly sure"),
    (EPSILON_VOID, "can be practically sure"),
    (math.inf, "can be sure"),
)

Grade = Literal["sound", "weak", "void", "none"]

_LARGE = ((1e15, "quadrillion"), (1e12, "trillion"), (1e9, "billion"), (1e6, "million"))
# So that a floating-point error is not rounded up to a further unit: far above such an error, far
# below the three digits written.
_SLACK = 1e-9
# From here on, write e^epsilon as a power of ten.
_NAMED_BELOW = math.log(1e18)


def grade(epsilon: float | None, delta: float) -> Grade:
    """Return how much a guarantee is worth; the module gives the limits and their sources."""
    if epsilon is None or not delta < 1 or math.isinf(epsilon):
        return "none"
    if epsilon > EPSILON_VOID or delta >= DELTA_VOID:
        return "void"
    if epsilon > EPSILON_WARNED or delta > DELTA_WARNED:
        return "weak"
    return "sound"


def is_void(epsilon: float | None, delta: float) -> bool:
    """Return whether a guarantee is of no use: its grade is "void" or "none"."""
    return grade(epsilon, delta) in ("void", "none")


def can_do(epsilon: float) -> str:
    """Return what an observer can do at this epsilon, such as "can be nearly sure"."""
    return next(words for most, words in WORDS if epsilon <= most)


def verdict(epsilon: float | None, delta: float, whether: str) -> str:
    """Return the end of "Someone who sees everything ...": how well they can tell `whether`."""
    if epsilon is None or grade(epsilon, delta) == "none":
        return (
            f"may learn whether {whether}: nothing is promised, as delta is 1 or more."
        )
    learned = can_do(epsilon)  # may end with a comma, for the "whether" after it
    odds = _odds(epsilon, delta)
    if delta <= DELTA_WARNED:
        return f"{learned} whether {whether}: at even odds, {odds}{_weakness(epsilon)}."
    large = (
        "next to nothing is promised" if delta >= DELTA_VOID else "the promise is weak"
    )
    return (
        f"may, with a chance of up to {one_in(delta)}, see for certain whether {whether}: {large}, "
        f"as delta is above 0.00001. Otherwise they {learned.rstrip(',')}{_weakness(epsilon)}. At "
        f"even odds, they are {odds}."
    )


def _odds(epsilon: float, delta: float) -> str:
    """Return how often a guess at even odds is right: "right at most 73.2 times in 100 ..."."""
    right = guesses_right(epsilon, delta)
    if right is None:
        return "right nearly every time instead of 50 times in 100"
    return f"right at most {right} times in 100 instead of 50"


def _weakness(epsilon: float) -> str:
    """Return the remark that ends a sentence if epsilon is so large that little is promised."""
    if epsilon <= EPSILON_WARNED:
        return ""
    if epsilon <= EPSILON_VOID:
        return "; the promise is weak, as epsilon is above 5"
    return "; next to nothing is promised, as epsilon is above 20"


def counted(unit: str) -> str:
    """Return what an observer may guess: the end of "whether ..."."""
    if unit == "event":
        return "any one event was counted"
    return "any one user's events were counted"


def measures(epsilon: float | None, delta: float) -> list[str]:
    """Return the sentence on what epsilon and delta bound, which follows a verdict.

    The list is empty if there is no guarantee.
    """
    if epsilon is None or grade(epsilon, delta) == "none":
        return []
    return [
        f"Whatever they see is at most {factor(epsilon)} times as likely in one case as in the other, "
        + f"but for a chance of {one_in(delta)}."
    ]


def cautions(epsilon: float | None, delta: float, unit: str) -> Iterator[str]:
    """Yield warnings about a guarantee whose epsilon or delta is large."""
    if epsilon is None or grade(epsilon, delta) == "none":
        yield f"delta is 1 or more: nothing is promised to any {unit}"
        return
    if epsilon > EPSILON_WARNED:
        void = epsilon > EPSILON_VOID
        what = "next to nothing is promised" if void else "the promise is weak"
        yield (
            f"epsilon = {epsilon:.6g} is above {EPSILON_WARNED:g}: {what}; whoever sees all "
            f"snapshots {can_do(epsilon)} whether any one {unit} was counted"
        )
    if delta > DELTA_WARNED:
        lost = f"nothing at all may be promised to {one_in(delta)} {unit}s"
        yield f"delta = {delta:.6g} is above {DELTA_WARNED:g}: {lost}"


def factor(epsilon: float) -> str:
    """Return e^epsilon as text, rounded up; epsilon is finite."""
    excess = math.expm1(min(epsilon, _NAMED_BELOW))
    # Near 1, two significant digits of what is above 1: 1.00123 becomes "1.0013".
    if excess < 0.1:
        return "1" + _plain(*_digits(excess, 2, up=True))[1:]
    if epsilon < _NAMED_BELOW:
        return large(excess + 1, up=True)
    return f"10^{math.ceil(epsilon / math.log(10))}"


def one_in(delta: float) -> str:
    """Return a probability above 0 as text, rounded up: "1 in a billion", "50 in 100".

    `_SLACK` keeps float errors from rounding up to the next number.
    """
    # Above it, "1 in 13" would be coarse.
    if delta > 0.05:
        return f"{math.ceil(100 * delta * (1 - _SLACK))} in 100"
    times = 1 / delta * (1 + _SLACK)
    named = (
        f"10^{math.floor(math.log10(times))}"
        if times >= 1e18
        else large(times, up=False)
    )
    return f"1 in {named}"


def guesses_right(epsilon: float, delta: float) -> str | None:
    """Return how many of 100 guesses are right at most, as text; None if nearly all are."""
    # Cut off before exp overflows, where nearly all are right.
    wrong = 100 * (1 - delta) / (1 + math.exp(min(epsilon, 700.0)))
    # One decimal, or two where nearly all are right.
    places = 1 if wrong >= 1 else 2
    units = 10**places
    # Wrong guesses are rounded down, so that right ones are rounded up. `_SLACK` is for the errors
    # of floats.
    right = 100 * units - math.floor(wrong * units * (1 - _SLACK))
    if right == 100 * units:
        return None
    whole, part = divmod(right, units)
    return f"{whole}.{part:0{places}d}".rstrip("0").rstrip(".")


def large(value: float, *, up: bool) -> str:
    """Return a number of at least 1 to three significant digits, named from a million on.

    It is rounded up, or down if not `up`.
    """
    digits, exponent = _digits(value, 3, up=up)
    rounded = digits * 10.0**exponent
    for size, name in _LARGE:
        # A million may come out a little below; with three digits nothing else is so near.
        if rounded >= size * 0.9999:
            text = _plain(*_digits(rounded / size, 3, up=None))
            return f"{'a' if text == '1' else text} {name}"
    return _plain(digits, exponent)


def up_to(value: float, digits: int = 3) -> str:
    """Return a number above 0 as text, rounded up to `digits` digits: 1.42, 3.9e-08."""
    mantissa, exponent = _digits(value, digits, up=True)
    return f"{float(f'{mantissa}e{exponent}'):.{digits}g}"


def _digits(value: float, count: int, *, up: bool | None) -> tuple[int, int]:
    """Return a number above 0 as (`count` significant digits, exponent of ten).

    `up` is None to round to nearest.
    """
    mantissa, power = f"{value:.{count - 1}e}".split("e")
    digits = int(mantissa.replace(".", ""))
    exponent = int(power) - count + 1
    written = float(f"{digits}e{exponent}")
    if up is True and written < value:
        digits += 1
    elif up is False and written > value:
        digits -= 1
    return digits, exponent


def _plain(digits: int, exponent: int) -> str:
    """Return digits times 10^exponent as text, without trailing zeros after the point."""
    if exponent >= 0:
        return f"{digits * 10**exponent:,}"
    whole, part = divmod(digits, 10**-exponent)
    return f"{whole:,}.{part:0{-exponent}d}".rstrip("0").rstrip(".")
