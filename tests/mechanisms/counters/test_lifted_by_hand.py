"""The page of arithmetic in docs/decisions/0030-lifted-haar.md is what the code computes."""

import math
import re
from fractions import Fraction
from pathlib import Path

from tests.mechanisms.counters.test_lifted import strategy
from workers.mechanisms.counters.lifted import LiftedCounter, weights

PAGE = Path(__file__).parents[3] / "docs" / "decisions" / "0030-lifted-haar.md"
TEXT = PAGE.read_text().partition("## 7 By hand: 8 ticks")[2]
NODES = [(1, 0), (1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (0, 0)]
TICKS = (2, 3, 8)


def rows() -> list[list[Fraction]]:
    lines = [
        line.split("|")[2:-1]
        for line in TEXT.splitlines()
        if re.match(r"\| (\d|total)", line)
    ]
    return [[Fraction(cell.strip()) for cell in line] for line in lines]


def test_the_table_is_that_of_the_counter() -> None:
    counter = LiftedCounter(8, 0.5)
    matrix = strategy(3)
    of_levels, of_total = weights(3)
    assert len(rows()) == len(NODES)
    for (level, k), (weight, change, cost, *decoder) in zip(NODES, rows(), strict=True):
        pair = of_levels[level - 1] if level else (of_total, of_total)
        assert weight == pair[k in (0, (1 << (3 - level)) - 1)]
        assert change == matrix[level, k][2]
        assert cost == weight * change**2
        found = [
            Fraction(counter.nodes(t).get((level, k), 0), counter._denominator)
            for t in TICKS
        ]
        assert decoder == found
        # The counter's variances are these weights, rounded up.
        s2 = counter.variance_of((level, k)) * weight
        assert 1 <= s2 / (Fraction(11998, 4096) + of_total) < 1 + Fraction(1, 1000)


def test_the_sums_are_those_of_the_table() -> None:
    table = rows()
    for place, expected in enumerate((0, 1, 1)):
        assert sum((row[1] * row[3 + place] for row in table), Fraction(0)) == expected
    cost = sum((row[2] for row in table), Fraction(0))
    assert f"{cost} = {float(cost):.3f}" in TEXT
    variance = sum((row[4] ** 2 / row[0] for row in table), Fraction(0))
    assert f"{variance} = {float(variance):.4f}" in TEXT.replace("\n", " ")
    of_all = Fraction(11998, 4096) + table[-1][0]
    assert f"{math.sqrt(of_all * variance):.3f}" in TEXT
    costs = [
        sum(
            (
                row[0] * change[t] ** 2
                for row, change in zip(table, columns(), strict=True)
            ),
            Fraction(0),
        )
        for t in range(8)
    ]
    assert costs[0] == costs[7] == max(costs) <= of_all
    assert f"{float(max(costs)):.4f}" in TEXT and f"{float(of_all):.4f}" in TEXT


def columns() -> list[list[Fraction]]:
    matrix = strategy(3)
    return [matrix[node] for node in NODES]
