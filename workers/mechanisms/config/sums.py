"""Clamped sums: a number beside an item, as a whole number of steps above the least one.

    sum = { field = "price", from = 0, to = 100, step = 0.01 }

    a, b, s     `from_`, `to`, `step`: decimals as written; R = (b - a) / s, `steps`, is whole
    v -> x      x = floor((v - a) / s + 1/2), with v below a taken as a and v above b as b

So x is in 0..R, and a number halfway between two steps goes up. The decimal number that an event
writes decides, not its nearest float; a float of a binary format is its shortest decimal.

Bound: R Dinf <= `STEPS_MAX`, Dinf how often an item of an event counts, so twice the steps of n
events are below 2^63 for n < 4.6e12: 53 days of a million events a second, all of one item.
"""

from decimal import ROUND_FLOOR, Context, Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

import msgspec

from workers.mechanisms.config.checked import display, is_finite
from workers.runtime.frozen import Frozen

STEPS_MAX = 1_000_000
DIGITS_MAX = 15
DEFAULT_SHARE = 0.5
ALLOWED = 'a field and its range, such as { field = "price", from = 0, to = 100, step = 0.01 }'
_NUMBER = (
    f"a number with at most {DIGITS_MAX} digits before the point, and as many after it"
)
_SHARE = "a number from 0.05 to 0.95, such as 0.5"
_EXACT = Context(prec=2 * DIGITS_MAX + 10)
# Half a step, where rounding goes up, has one digit more after the point than a step.
UNIT_DIGITS = DIGITS_MAX + 1
_UNIT = Decimal((0, (1,), -UNIT_DIGITS))
_DOWN = Context(prec=2 * DIGITS_MAX + 10, rounding=ROUND_FLOOR)


class Sum(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The field to add up, its range, and the share of rho that the sums get."""

    field: str
    from_: Decimal = msgspec.field(name="from")
    to: Decimal
    step: Decimal
    share: float = DEFAULT_SHARE

    @property
    def steps(self) -> int:
        """R of the module: how many steps the range has."""
        return int((Fraction(self.to) - Fraction(self.from_)) / Fraction(self.step))

    @property
    def middle(self) -> Fraction:
        return (Fraction(self.from_) + Fraction(self.to)) / 2

    def steps_of(self, value: float | Decimal) -> int:
        """Return a number, not NaN, in steps above `from`; see `Rounding`."""
        return Rounding(self).steps_of(value)

    @staticmethod
    def exactly(value: float | Decimal) -> int | Decimal:
        """Return a number as it is written; a float as its shortest decimal."""
        return Decimal(repr(value)) if isinstance(value, float) else value


class Rounding(Frozen):
    """Rounds numbers to steps of a sum, exactly, by whole units of 10^-`UNIT_DIGITS`.

    `from`, and all numbers halfway between two steps, are whole units. So a number may be cut off
    to whole units first.
    """

    def __init__(self, summed: Sum) -> None:
        self._least = summed.from_
        self._most = summed.to
        self._steps = summed.steps
        # In whole units of 10^-`UNIT_DIGITS`.
        self._from_units = _units(summed.from_)
        self._step_units = _units(summed.step)

    def steps_of(self, value: float | Decimal) -> int:
        """Return x of the module: a number in steps above `from`, clamped to 0..R."""
        number = Sum.exactly(value)
        # Before any arithmetic: an exponent may be too large for it.
        if number <= self._least:
            return 0
        if number >= self._most:
            return self._steps
        # In half steps, cut off: an odd number of them goes up to the next whole step.
        half_steps = (
            2 * (_units(Decimal(number)) - self._from_units) // self._step_units
        )
        return (half_steps + 1) // 2


def _units(number: Decimal) -> int:
    """Return a number of at most `DIGITS_MAX` digits before the point in whole units, down."""
    return int(_DOWN.scaleb(_DOWN.quantize(number, _UNIT), UNIT_DIGITS))


def parse_sum(value: object) -> Sum:
    """Return the `sum` of a settings file, or raise `ValueError` with the allowed values.

    Messages begin with " = " or ".field": the caller puts the setting's name before them.
    """
    if not isinstance(value, dict):
        raise ValueError(f" = {display(value)}: {ALLOWED}")  # noqa: TRY004 - of a settings file
    names = ("field", "from", "to", "step")
    for name in value:
        if name not in (*names, "share"):
            raise ValueError(f".{name}: unknown name; one of {', '.join(names)}, share")
    for name in names:
        if name not in value:
            raise ValueError(f".{name} is missing: {ALLOWED}")
    field = value["field"]
    share = value.get("share", DEFAULT_SHARE)
    if not isinstance(field, str) or not field:
        raise ValueError(
            f".field = {display(field)}: the path of a number, such as price"
        )
    if not is_finite(share) or not 0.05 <= share <= 0.95:
        raise ValueError(f".share = {display(share)}: {_SHARE}")
    low, high, step = (_decimal(value[name], name) for name in names[1:])
    if low >= high:
        raise ValueError(f".from = {low}: below to = {high}")
    if step <= 0:
        raise ValueError(f".step = {step}: above 0")
    steps = (Fraction(high) - Fraction(low)) / Fraction(step)
    if steps.denominator != 1 or not 1 <= steps <= STEPS_MAX:
        raise ValueError(
            f".step = {step}: to - from must be a whole number of steps, from 1 to {STEPS_MAX:,}; "
            f"it is {float(steps):.9g}"
        )
    return Sum(field=field, from_=low, to=high, step=step, share=float(share))


def _decimal(value: Any, name: str) -> Decimal:
    """Return a number as written: 0.1 is a tenth, not the nearest double."""
    try:
        if not is_finite(value):
            raise ValueError
        written = Decimal(repr(value))
        # At most DIGITS_MAX digits before the point, and as many after it.
        last_digit = Decimal((0, (1,), -DIGITS_MAX))
        cut = written.quantize(last_digit, context=_EXACT)
        if abs(written) >= 10**DIGITS_MAX or written != cut:
            raise ValueError
    except (ValueError, OverflowError, InvalidOperation):
        raise ValueError(f".{name} = {display(value)}: {_NUMBER}") from None
    # One text for 1, 1.0 and 1e0, and 0 for -0.0.
    plain = written.normalize(_EXACT) + 0
    return plain.quantize(Decimal(1)) if plain == plain.to_integral_value() else plain
