"""Measured error beside the error that the mechanism's theorem promises: `python -m bench --only utility [--seeds N]`.

A promise may fail with probability beta = 0.05 in an epoch. So a row's measured error is what all but a share beta of its seeds keep
within; `passed` says how many had more than what is promised. A row is wrong if that number is one that a promise which holds would reach
with a probability below 1e-4. Where a bound is close to exact, and an epoch quickly run, there are ten times as many seeds.
"""

import math
from dataclasses import dataclass

from bench.printed import Promise, error_bounds
from bench.utility_cases import Case, cases
from bench.utility_run import measure

FALSE_ALARM = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise of one case, measured.

    Attributes:
        case: mechanism, settings and input.
        promise: what is promised.
        errors: the worst of each seed's epoch.
    """

    case: Case
    promise: Promise
    errors: tuple[float, ...]

    @property
    def measured(self) -> float:
        """What all but a share beta of the seeds keep within."""
        return sorted(self.errors)[
            math.ceil((1 - self.promise.beta) * len(self.errors)) - 1
        ]

    @property
    def worst(self) -> float:
        """Over all seeds."""
        return max(self.errors)

    @property
    def passed(self) -> int:
        """Seeds in which the error was above what is promised."""
        return sum(error > self.promise.ours for error in self.errors)

    @property
    def holds(self) -> bool:
        """Return whether this many failures are plausible by chance."""
        return tail(len(self.errors), self.promise.beta, self.passed) >= FALSE_ALARM


def tail(tries: int, probability: float, successes: int) -> float:
    """Return P(at least this many successes)."""
    return math.fsum(
        math.comb(tries, n) * probability**n * (1 - probability) ** (tries - n)
        for n in range(successes, tries + 1)
    )


def rows_of(case: Case, seeds: int) -> list[Row]:
    """Every promise of a case, over `case.times` times so many seeds."""
    found = [
        measure(case.config, case.stream(seed), seed)
        for seed in range(seeds * case.times)
    ]
    return [
        Row(
            case=case,
            promise=promise,
            errors=tuple(one.get(promise.name, 0.0) for one in found),
        )
        for promise in error_bounds(case.config, data=case.data)
    ]


def table(seeds: int, ticks: int) -> bool:
    """Prints every row as it is measured; returns whether all promises hold."""
    print(
        "\nerror that 95 % of the seeds keep within, beside the error promised with probability "
        "0.95"
    )
    head = f"{'mechanism':26} {'promise':10} {'seeds':>5} {'measured':>9} {'worst':>7} {'ours':>7} {'printed':>8}"
    print(f"{head} {'meas./ours':>11} {'ours/printed':>13} {'passed':>7}  input")
    good = True
    for case in cases(ticks):
        for row in rows_of(case, seeds):
            promise = row.promise
            printed = row.promise.printed or math.inf
            print(
                f"{case.name:26} {promise.name:10} {len(row.errors):5} {row.measured:9,.0f} "
                f"{row.worst:7,.0f} "
                f"{promise.ours:7,.0f} {printed:8,.0f} {row.measured / promise.ours:11.2f} "
                f"{promise.ours / printed:13.2f} {row.passed:7}  {case.input}"
                + ("" if row.holds else "  DOES NOT HOLD"),
                flush=True,
            )
            good &= row.holds
    return good
