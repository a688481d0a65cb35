"""Lower bounds on epsilon, measured by attacks, beside the claims: `python -m tests.attacks`.

Every mechanism runs many times on two neighbouring streams; what tells the runs apart bounds
epsilon from below (`bounds`). A bound above the claim disproves it; one below proves nothing. Seeds
are fixed, so the table is the same every time. Exit status 1 if a claim is disproved, or a planted
flaw is not found; what times tell is only printed. `--only arrivals` prints just that at a consumer.
"""

import argparse
import sys
import time
from dataclasses import dataclass

from tests.attacks import arrivals, side_channels
from tests.attacks.bounds import Bound, Worlds, fit, fit_by_tick, measure
from tests.attacks.canaries import CANARIES, GUESSES, canaries
from tests.attacks.canaries import EPSILON as CANARIES_EPSILON
from tests.attacks.cases import Case, cases
from tests.attacks.flaws import flaws
from tests.attacks.runs import Runs
from tests.broker import kafka_programs
from tests.system import provide
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


def attack(case: Case, seed: int = 2) -> Found:
    """Run a case and bound its epsilon and delta from below."""
    mechanism = case.make(case.config, case.unit)
    claim = build(case.config, case.unit).guarantee
    runs = Runs(mechanism, case.alike, case.noise_of)
    seeds = iter(range(4 * seed, 4 * seed + 4))
    without, more = case.worlds

    def both() -> Worlds:
        return (
            runs.publish(without, case.runs, next(seeds)),
            runs.publish(more, case.runs, next(seeds)),
        )

    fitted = both()
    fresh = both()
    statistics = [fit(fitted, case.new), fit_by_tick(fitted, case.new)]
    statistics += case.ratios(mechanism)
    bound = measure(statistics, fitted, fresh, claim.epsilon, claim.delta)
    return Found(claim.epsilon, claim.delta, bound)


def table() -> bool:
    """Print claims beside measured bounds; return whether no claim is disproved and every flaw is."""
    print(
        f"\n{'attack':42} {'runs':>7} {'epsilon':>8} {'at least':>9} {'delta':>7} {'at least':>9} {'s':>5}"
    )
    every = {case.name: case for case in cases()}
    good = True
    for case in every.values():
        good &= _row(case.name, case, breaks=False)
    print("\nplanted flaws: attacks must find all but the harmless one")
    for flaw in flaws(every):
        good &= _row(f"{flaw.name}: {flaw.case.name}", flaw.case, flaw.breaks)
    print(
        f"\n{CANARIES:,} canaries in one run, {GUESSES:,} guesses; half the noise must be found"
    )
    for each in canaries():
        start = time.monotonic()
        bound = each.bound()
        name = f"{'half noise: ' if each.half_noise else ''}{each.name}"
        figures = f"{1:7} {CANARIES_EPSILON:8.2f} {bound:9.2f} {'':17}"
        disproved = bound > CANARIES_EPSILON
        good &= _print(name, figures, start, disproved, each.half_noise)
    good &= side_channels.table()
    arrivals.table()
    return good


def _row(name: str, case: Case, breaks: bool) -> bool:
    start = time.monotonic()
    found = attack(case)
    bound = found.bound
    figures = (
        f"{2 * case.runs:7,} {found.epsilon:8.2f} {bound.epsilon:9.2f} "
        f"{found.delta:7.4f} {bound.delta:9.4f}"
    )
    return _print(name, figures, start, not found.holds, breaks)


def _print(
    name: str, figures: str, start_s: float, disproved: bool, expected: bool
) -> bool:
    """Print a row; return whether the claim is disproved exactly where that is expected."""
    seconds = time.monotonic() - start_s
    verdict = "  DISPROVED" if disproved else ""
    if disproved is not expected:
        verdict += "  UNEXPECTED"
    print(f"{name:42} {figures} {seconds:5.1f}{verdict}", flush=True)
    return disproved is expected


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.attacks")
    parser.add_argument("--only", choices=["arrivals"], help="times at a consumer")
    given = parser.parse_args()
    if (refusal := provide(kafka_programs)) is not None:
        sys.exit(refusal)
    if given.only:
        arrivals.table()
        return
    sys.exit(not table())


if __name__ == "__main__":
    main()
