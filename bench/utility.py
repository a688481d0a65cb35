"""Measured error beside the error that the mechanism's theorem promises: `python -m bench --only utility [--seeds N]`.

A promise may fail with probability beta = 0.05 in an epoch. Each row says how many seeds passed it; a row is wrong if that number is one
that a promise which holds would reach with a probability below 1e-6.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.utility_cases import Case, cases
from bench.utility_run import measure
from workers.plan.theorems import Promise, promises

FALSE_ALARM = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One promise of one case, measured.

    Attributes:
        case: mechanism, settings and input.
        promise: what is promised.
        measured: the worst error of each seed.
    """

    case: Case
    promise: Promise
    measured: tuple[float, ...]

    @property
    def worst(self) -> float:
        """Over all seeds."""
        return max(self.measured)

    @property
    def passed(self) -> int:
        """Seeds in which the error was above what is promised."""
        return sum(error > self.promise.ours for error in self.measured)

    @property
    def holds(self) -> bool:
        """Whether so many failures may well be chance."""
        return tail(len(self.measured), self.promise.beta, self.passed) >= FALSE_ALARM


def tail(tries: int, probability: float, successes: int) -> float:
    """P(at least so many successes)."""
    return math.fsum(
        math.comb(tries, n) * probability**n * (1 - probability) ** (tries - n) for n in range(successes, tries + 1)
    )


def rows_of(case: Case, seeds: int) -> list[Row]:
    """Every promise of a case over so many seeds."""
    found = [measure(case.config, case.stream(seed), seed) for seed in range(seeds)]
    return [
        Row(case=case, promise=promise, measured=tuple(one.get(promise.name, 0.0) for one in found))
        for promise in promises(case.config, data=case.data)
    ]


def table(seeds: int, ticks: int) -> bool:
    """Prints every row as it is measured; returns whether all promises hold."""
    print(f"\nmeasured error beside the error promised (beta = 0.05), {seeds} seeds each, the worst of them")
    head = f"{'mechanism':26} {'promise':10} {'measured':>9} {'ours':>9} {'printed':>10} {'meas./ours':>11}"
    print(f"{head} {'ours/printed':>13} {'passed':>7}  input")
    good = True
    for case in cases(ticks):
        for row in rows_of(case, seeds):
            promise = row.promise
            print(
                f"{case.name:26} {promise.name:10} {row.worst:9,.0f} {promise.ours:9,.0f} {promise.printed:10,.0f} "
                f"{row.worst / promise.ours:11.2f} {promise.ours / promise.printed:13.2f} {row.passed:7}  {case.input}"
                + ("" if row.holds else "  DOES NOT HOLD"),
                flush=True,
            )
            good &= row.holds
    return good
