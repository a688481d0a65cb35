"""A number beside an item, in steps: what the settings allow, and exact decimal rounding."""

from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.mechanisms.config.sums import STEPS_MAX, parse_sum

PRICE = {"field": "price", "from": 0, "to": 100, "step": 0.01}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"from": 100}, ".from = 100: below to = 100"),
        ({"step": 0}, ".step = 0: above 0"),
        ({"step": 0.03}, ".step = 0.03: to - from must be a whole number of steps"),
        ({"step": 200}, "it is 0.5"),
        ({"step": 1e-5}, f"from 1 to {STEPS_MAX:,}; it is 10000000"),
        ({"to": float("inf")}, ".to = Infinity: a number with at most 15 digits"),
        ({"to": 1e15}, ".to = 1000000000000000.0: a number with at most 15 digits"),
        ({"to": "100"}, '.to = "100": a number'),
        ({"step": True}, ".step = true: a number"),
        ({"from": -1e-16}, ".from = -1e-16: a number with at most 15 digits"),
        ({"field": ""}, '.field = "": the path of a number'),
        ({"share": 1}, ".share = 1: a number from 0.05 to 0.95"),
        ({"clamp": 1}, ".clamp: unknown name; one of field, from, to, step, share"),
    ],
)
def test_a_range_that_cannot_be_counted_in_steps_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=".") as caught:
        parse_sum(PRICE | changes)
    assert said in str(caught.value)


def test_all_but_the_share_is_needed() -> None:
    for name in PRICE:
        with pytest.raises(ValueError, match=rf"\.{name} is missing"):
            parse_sum({key: value for key, value in PRICE.items() if key != name})


def test_decimals_count_as_they_are_written() -> None:
    """0.1 + 0.2 is three steps of 0.1, though not as floats; 1, 1.0 and 1e0 are one number."""
    assert parse_sum(PRICE | {"to": 0.3, "step": 0.1}).steps == 3
    assert parse_sum(PRICE | {"from": 1e0}) == parse_sum(PRICE | {"from": 1})


RANGES = [
    (0, 100, 0.01),
    (-5.5, 9.5, 0.5),
    (-20, -19, 1),
    (0.1, 0.7, 0.2),
    (-1e14, 1e14, 1e9),
]
DECIMALS = st.decimals(-200, 200, places=4) | st.decimals(
    allow_nan=False, allow_infinity=True
)


@given(st.sampled_from(RANGES), DECIMALS | st.integers() | st.floats(allow_nan=False))
def test_a_number_is_its_clamped_value_rounded_to_the_nearest_step_and_up_from_halfway(
    range_: tuple[float, float, float], value: float | Decimal
) -> None:
    low, high, step = range_
    of = parse_sum({"field": "x", "from": low, "to": high, "step": step})
    least, most, width = (Fraction(repr(end)) for end in range_)
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if exact <= Decimal(repr(low)):
        wanted = 0
    elif exact >= Decimal(repr(high)):
        wanted = of.steps
    else:
        wanted = int((Fraction(exact) - least) / width + Fraction(1, 2))
    assert of.steps_of(value) == wanted
    assert of.steps == (most - least) / width


@given(st.sampled_from(RANGES), st.integers(0, 14), st.sampled_from((-1, 0, 1)))
def test_halfway_between_two_steps_goes_up_whatever_the_float(
    range_: tuple[float, float, float], steps: int, off: int
) -> None:
    of = parse_sum(
        dict(zip(("field", "from", "to", "step"), ("x", *range_), strict=True))
    )
    steps = min(steps, of.steps - 1)
    with localcontext(prec=60):
        halfway = of.from_ + of.step * steps + of.step / 2 + Decimal(off) / 10**20
    assert of.steps_of(halfway) == steps + (off >= 0)
