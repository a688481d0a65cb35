"""Attacks in short: no claim is disproved, and planted flaws are found; all seeds are fixed."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy.stats import binom

from tests.attacks.__main__ import attack
from tests.attacks.bounds import Worlds, fit, measure
from tests.attacks.canaries import EPSILON, canaries, least_epsilon
from tests.attacks.cases import Case, cases
from tests.attacks.flaws import flaws
from tests.attacks.runs import Published
from tests.attacks.side_channels import SIDES, Seen, seen
from workers.mechanisms.registry import MECHANISMS

#: As many as find the flaws below with seeds of 2, 3 and 4.
SHORT = {"known_base lifted": 20_000, "known_gauss": 20_000, "unk_base new": 20_000}
SHORT |= {"misra_gries_tick lowered": 1_200, "known_base ranks": 2_500}
SHORT |= {"unk_base": 25_000, "positive_laplace": 10_000, "pay_what_you_get": 600}


@cache
def every() -> dict[str, Case]:
    return {
        case.name: replace(case, runs=SHORT.get(case.name, case.runs))
        for case in cases()
    }


def test_every_mechanism_is_attacked() -> None:
    assert {case.config.mechanism for case in every().values()} == set(MECHANISMS)


def test_half_the_noise_is_planted_in_every_mechanism_but_one() -> None:
    halved = {
        one.case.config.mechanism for one in flaws(every()) if one.name == "half noise"
    }
    assert set(MECHANISMS) - halved == {"two_level_k"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("known_base lifted", 1.5), ("known_gauss", 1.2)]
)
def test_an_attack_comes_near_the_claim_and_not_above_it(
    name: str, least: float
) -> None:
    found = attack(every()[name])
    assert found.holds and found.bound.epsilon > least


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "half noise: known_base lifted",
        "half noise: positive_laplace",
        "threshold: unk_base new",
        "shared noise: known_gauss",
        "apart: misra_gries_tick lowered",
        "silent total: known_base ranks",
        "forgotten budget: pay_what_you_get",
        "forgotten count: unk_base",
    ],
)
def test_a_planted_flaw_is_found(name: str) -> None:
    planted = {f"{flaw.name}: {flaw.case.name}": flaw.case for flaw in flaws(every())}
    assert not attack(planted[name]).holds


@pytest.mark.slow
def test_an_item_that_does_not_stay_shown_breaks_no_claim() -> None:
    """Its tests at later ticks are paid for: whether it stays is processing of what is released."""
    [case] = [
        flaw.case
        for flaw in flaws(every())
        if flaw.name == "not sticky" and flaw.case.name == "unk_base new"
    ]
    assert attack(case).holds


def answers(share: float, runs: int, seed: int) -> Published:
    """Return runs that say 1 with probability `share`, else 0."""
    said = np.random.default_rng(seed).random(runs) < share
    return Published(np.empty((runs, 0)), said.astype(np.int64)[:, None])


@pytest.mark.parametrize(("claim", "holds"), [(1.0, True), (0.9, False)])
def test_the_bound_of_randomized_response_is_just_below_its_epsilon(
    claim: float, holds: bool
) -> None:
    """Of 50,000 runs, both ends of the intervals are off by less than 2 %: by 0.05 of epsilon."""
    share = 1 / (1 + math.e)

    def worlds(seed: int) -> Worlds:
        return answers(share, 50_000, seed), answers(1 - share, 50_000, seed + 1)

    fitted = worlds(1)
    fresh = worlds(3)
    bound = measure([fit(fitted, ())], fitted, fresh, claim, 0.0)
    assert 0.95 < bound.epsilon <= 1.0
    assert (bound.epsilon <= claim) is holds and (bound.delta == 0.0) is holds


@pytest.mark.slow
def test_canaries_in_one_run_come_near_the_claim_and_find_half_the_noise() -> None:
    """Fixed by the key and the coins; half the noise makes an epsilon of 4.6."""
    whole, half = (one for one in canaries() if one.name == "known_base lifted")
    assert 0.8 < whole.bound(20_000, 300) < EPSILON < half.bound(20_000, 300)


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_guesses_of_randomized_response_bound_its_epsilon(delta: float) -> None:
    """The most right guesses that 1,000 canaries give in 95 % of runs bound it by what it is."""
    right = int(binom.ppf(0.95, 1_000, math.e / (1 + math.e)))
    assert 0.9 < least_epsilon(1_000, 1_000, right, delta) <= 1.0
    assert least_epsilon(1_000, 1_000, right + 30, delta) > 1.0
    assert least_epsilon(1_000, 1_000, 500, delta) == 0.0


@pytest.mark.slow
def test_a_size_that_depends_on_exact_counts_is_found() -> None:
    """Planted: one more byte of a snapshot where the event is in."""
    found = seen(replace(SIDES[0], ticks=200))
    assert found.messages == {1} and found.bound(1) == 0.0
    for more in (1.0, -1.0):
        sizes = (100 + more * found.world[:, None]).astype(np.float64)
        assert Seen(sizes, found.world, found.messages).bound(0) > 2.0
