"""Lower bounds on epsilon, measured by attacks, beside the claims: `python -m bench --only attacks`.

Every mechanism runs many times on two neighbouring streams; what tells the runs apart bounds epsilon from below (`attack_bounds`). A bound
above the claim disproves it; one below proves nothing. Seeds are fixed, so the table is the same every time.
"""

import time
from dataclasses import dataclass

from bench.attack_bounds import Bound, fit, measure
from bench.attack_cases import Case, cases
from bench.attack_runs import Runs
from workers.mechanisms.registry import build


@dataclass(frozen=True, slots=True)
class Found:
    """A case's claim beside what an attack found."""

    epsilon: float
    delta: float
    bound: Bound

    @property
    def holds(self) -> bool:
        return self.bound.epsilon <= self.epsilon


def attack(case: Case, seed: int = 1) -> Found:
    """Run a case and bound its epsilon and delta from below."""
    mechanism = case.make(case.config, case.unit)
    claim = build(case.config, case.unit).guarantee
    runs = Runs(mechanism, case.alike, case.noise_of)
    seeds = iter(range(4 * seed, 4 * seed + 4))
    fitted, fresh = (
        tuple(runs.publish(stream, case.runs, next(seeds)) for stream in case.worlds)
        for _ in range(2)
    )
    statistics = [*case.ratios(mechanism), fit(fitted, case.new)]
    bound = measure(statistics, fitted, fresh, claim.epsilon, claim.delta)
    return Found(claim.epsilon, claim.delta, bound)


def table() -> bool:
    """Print every mechanism's claim beside the measured bounds; return whether no claim is disproved."""
    good = True
    print(
        f"\n{'attack':32} {'runs':>7} {'epsilon':>8} {'at least':>9} {'delta':>7} {'at least':>9} {'s':>5}"
    )
    for case in cases():
        start = time.monotonic()
        found = attack(case)
        print(
            f"{case.name:32} {2 * case.runs:7,} {found.epsilon:8.2f} {found.bound.epsilon:9.2f} "
            f"{found.delta:7.4f} {found.bound.delta:9.4f} {time.monotonic() - start:5.1f}"
            + ("" if found.holds else "  DISPROVED"),
            flush=True,
        )
        good &= found.holds
    return good
