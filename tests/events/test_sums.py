"""Numbers of a sum count as written, to the nearest step, and the compiled reader decides about all."""

import random
from collections.abc import Iterator
from decimal import Decimal, localcontext

import numpy as np
import pytest

from tests.events.reading import amounts_of
from tests.events.test_shapes import case_of
from workers.events import views as kernels
from workers.events.log import COLUMNS, KIND, REAL, START
from workers.kafka.records import Records
from workers.mechanisms.config.sums import Rounding, Sum, parse_sum

RANGES = [
    (0, 100, 0.01),
    (-5.5, 9.5, 0.5),
    (-20, -19, 1),
    (0.1, 0.7, 0.2),
    (-1e14, 1e14, 1e9),
    (0, 1e-9, 1e-15),
    (123456789.012345, 123456790.012345, 1e-6),
    (999999999999998, 999999999999999, 0.000001),
    (-999999999999999, -999999999999998, 0.5),
]


def sum_of(low: float, high: float, step: float) -> Sum:
    return parse_sum({"field": "n", "from": low, "to": high, "step": step})


def numbers(of: Sum, rng: random.Random, count: int) -> Iterator[Decimal]:
    """Yield numbers at an edge between steps, a little beside it, and elsewhere."""
    for _ in range(count):
        edge = of.from_ + of.step * (2 * rng.randrange(-2, of.steps + 3) + 1) / 2
        off = Decimal(rng.choice((0, 0, 1, -1, rng.random()))) * Decimal(
            10
        ) ** -rng.randrange(2, 25)
        yield (
            (edge + off * rng.choice((1, of.step)))
            .quantize(Decimal("1e-28"))
            .normalize()
        )


def written(number: Decimal, rng: random.Random) -> str:
    """Return one of the texts of a number in JSON, of at most 30 digits after the point."""
    sign, digits, exponent = number.as_tuple()
    text = "".join(map(str, digits))
    power = int(exponent) + len(text) - 1
    if rng.random() < 0.3 and len(text) <= 31 and abs(power) < 90:
        return f"{'-' * sign}{text[0]}.{text[1:] or 0}{rng.choice('eE')}{power:+}"
    whole, _, behind = f"{number:f}".partition(".")
    return f"{whole}.{behind or 0}" + "0" * rng.randrange(31 - max(len(behind), 1))


@pytest.mark.parametrize("range_", RANGES)
def test_every_number_of_a_sum_is_read_by_the_scanner_exactly(
    range_: tuple[float, float, float],
) -> None:
    """Halfway between two steps, with many digits or an exponent; 30 us an event otherwise."""
    rng = random.Random(1)
    low, high, step = range_
    of = sum_of(low, high, step)
    stated = {"field": "n[].p", "from": low, "to": high, "step": step}
    case = case_of({"key": "$all", "items": "n[].i"}, {"sum": stated})
    with localcontext(prec=60):
        given = list(numbers(of, rng, 4_000))
    texts = [written(number, rng) for number in given]
    texts += [
        "0",
        "-0.0",
        "0." + "0" * 29 + "1",
        "9" * 15 + ".5",
        "9" * 19,
        "5e-1",
        "0e99",
    ]
    # Also as texts.
    given_as = [text if i % 3 else f'"{text}"' for i, text in enumerate(texts)]
    lists = [given_as[start : start + 40] for start in range(0, len(texts), 40)]
    values = [
        (
            '{"n":['
            + ",".join(f'{{"i":"{i}","p":{text}}}' for i, text in enumerate(some))
            + "]}"
        ).encode()
        for some in lists
    ]
    [spans] = case.reader.read(
        Records.of(values, [b"k"] * len(values), range(len(values)))
    )
    assert not spans.rejects and spans.declined == 0
    [column] = [
        n
        for n, items in enumerate(case.reader.layout.items_of)
        if items.sum is not None
    ]
    found = amounts_of(spans, column)[: len(texts)]
    rounding = Rounding(of)
    assert found == [rounding.steps_of(Decimal(text)) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("range_", RANGES[:6])
def test_a_float_counts_as_its_shortest_decimal_without_the_general_reader(
    range_: tuple[float, float, float],
) -> None:
    rng = random.Random(2)
    of = sum_of(*range_)
    case = case_of(
        {"key": "$all", "items": "i"},
        {
            "sum": dict(
                zip(("field", "from", "to", "step"), ("n", *range_), strict=True)
            )
        },
    )
    [exact] = [row for row in case.reader.layout.program.exact_sums if row.any()]
    assert exact[kernels.DIGITS] >= 0
    rounding = Rounding(of)
    empty = np.empty(0, dtype=np.uint8)
    with localcontext(prec=60):
        reals = [float(number) for number in numbers(of, rng, 4_000)]
    reals += [
        float(np.nextafter(real, way))
        for real in reals[:1000]
        for way in (-np.inf, np.inf)
    ]
    for real in reals:
        rows = np.zeros((1, COLUMNS), dtype=np.int64)
        rows[0, KIND] = REAL
        rows[0, START] = np.float64(real).view(np.int64)
        logs = kernels.Logs(empty, rows, np.ones(1, dtype=np.int64), empty)
        assert kernels.exact_steps(logs, 0, exact, 0, of.steps) == rounding.steps_of(
            real
        )
