"""Lower bounds on epsilon, measured by attacks, beside the claims: `python -m bench --only attacks`.

Every mechanism runs many times on two neighbouring streams; what tells the runs apart bounds epsilon from below (`attack_bounds`). A bound
above the claim disproves it; one below proves nothing. Seeds are fixed, so the table is the same every time.
"""

import time
from dataclasses import dataclass

from bench import attack_arrivals, attack_side_channels
from bench.attack_bounds import Bound, Worlds, fit, fit_by_tick, measure
from bench.attack_canaries import CANARIES, GUESSES, canaries
from bench.attack_canaries import EPSILON as CANARIES_EPSILON
from bench.attack_cases import Case, cases
from bench.attack_flaws import flaws
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
        holds = bound <= CANARIES_EPSILON
        good &= holds is not each.half_noise
        name = f"{'half noise: ' if each.half_noise else ''}{each.name}"
        print(
            f"{name:42} {1:7} {CANARIES_EPSILON:8.2f} {bound:9.2f} {'':17} "
            f"{time.monotonic() - start:5.1f}"
            + ("" if holds else "  DISPROVED")
            + ("" if holds is not each.half_noise else "  UNEXPECTED"),
            flush=True,
        )
    good &= attack_side_channels.table()
    attack_arrivals.table()
    return good


def _row(name: str, case: Case, breaks: bool) -> bool:
    start = time.monotonic()
    found = attack(case)
    print(
        f"{name:42} {2 * case.runs:7,} {found.epsilon:8.2f} {found.bound.epsilon:9.2f} "
        f"{found.delta:7.4f} {found.bound.delta:9.4f} {time.monotonic() - start:5.1f}"
        + ("" if found.holds else "  DISPROVED")
        + ("" if found.holds is not breaks else "  UNEXPECTED"),
        flush=True,
    )
    return found.holds is not breaks
