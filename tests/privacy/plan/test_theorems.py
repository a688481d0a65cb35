"""Theorem bounds against measured errors, the papers' formulas by hand, and brute force."""

import dataclasses
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from bench.printed import COMPARED, Promise, error_bounds, paper_epsilon, paper_rho
from bench.utility import rows_of, tail
from bench.utility_cases import Case, cases, config, labels
from tests.privacy.test_identity_of_fields import OWN
from workers.mechanisms.about import Data
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.curves import DigitCurve
from workers.mechanisms.mechanism import expect_type
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.on_counters import CounterMechanism

SHORT = cases(128)
# A union over many noises, or several bounds in a row, leaves more slack between promise and
# measurement.
LOOSE = ("meta", "misra_gries", "sparse_gumb", "bounded_max", "two_level")
START = datetime(2026, 1, 1, tzinfo=UTC)


def paper(promise: Promise) -> float:
    assert promise.printed is not None
    return promise.printed


@pytest.mark.slow
@pytest.mark.parametrize("case", SHORT, ids=[case.name for case in SHORT])
def test_measured_errors_keep_within_what_is_promised_and_use_much_of_it(
    case: Case,
) -> None:
    """A bound exceeded more often than beta is wrong; one nothing comes near says nothing.

    Two seeds: none may exceed it, as a promise that fails with probability 0.05 and is this loose
    will not. Where a bound is nearly exact there are twenty, and the binomial law limits how many
    may exceed it. Seeds are fixed.
    """
    floor = 0.1 if case.name.startswith(LOOSE) else 0.4
    for row in rows_of(case, 2):
        assert row.holds and (case.times > 1 or row.passed == 0), row.promise
        assert floor < row.worst / row.promise.ours, row.promise
        if isinstance(build(case.config), COMPARED):
            assert row.promise.ours < paper(row.promise), row.promise


COUNTED = ["known_gauss", "positive_laplace", "unk_gauss", "limit_dom_laplace"]


@pytest.mark.parametrize("name", COUNTED)
def test_a_promise_a_third_too_low_is_seen(name: str) -> None:
    """Negative control: count bounds are the noise's quantile; two thirds fails far too often."""
    [case] = [case for case in SHORT if case.name == name]
    row = rows_of(case, 4)[0]
    assert row.holds
    lower = structs.replace(row.promise, ours=2 / 3 * row.promise.ours)
    assert not dataclasses.replace(row, promise=lower).holds


def test_every_mechanism_has_a_case_and_a_promise() -> None:
    assert {case.config.mechanism for case in SHORT} == set(MECHANISMS) == set(OWN)


LENGTHS: list[tuple[str, Any]] = [
    (name, horizon) for name in OWN for horizon in (1, 1_000, 1 << 30)
]
LENGTHS += [(name, "unbounded") for name in OWN if not MECHANISMS[name].about.needs_end]


@pytest.mark.slow
@pytest.mark.parametrize(("mechanism", "horizon"), LENGTHS)
def test_promises_are_finite_at_every_horizon(
    mechanism: str, horizon: int | str
) -> None:
    """2^30 ticks must not be iterated, and one tick is a valid horizon."""
    made = config(mechanism, horizon=horizon, start=START, **OWN[mechanism])
    for promise in error_bounds(made):
        assert 0 < promise.ours < math.inf
        if isinstance(build(made), COMPARED):
            assert 0 < paper(promise) < math.inf


HORIZONS = (1, 2, 3, 7, 64, 100, 1_000, 1_024)
COUNTERS = [
    (kind, horizon) for kind in ("lifted", "tree", "sqrt") for horizon in HORIZONS
]


@pytest.mark.parametrize(
    ("kind", "horizon"), [*COUNTERS, ("lifted", "unbounded"), ("tree", "unbounded")]
)
def test_the_worst_variance_is_that_of_the_noisiest_tick(
    kind: str, horizon: Any
) -> None:
    made = config(
        "known_base",
        horizon=horizon,
        start=START,
        rho=0.05,
        domain=("a",),
        counter=kind,
    )
    ticks = 1_500 if horizon == "unbounded" else horizon
    counter = make_counter(kind, None if horizon == "unbounded" else horizon, 0.05)
    variances = [float(counter.variance(t)) for t in range(1, ticks + 1)]
    mechanism = expect_type(CounterMechanism, build(made))
    worst = mechanism.worst_variance(ticks)
    assert worst == pytest.approx(max(variances), rel=1e-3)


def test_most_blocks_is_the_largest_sum_of_digits() -> None:
    for radix in (2, 3, 10):
        worst = 0
        for t in range(1, 400):
            digits = 0
            rest = t
            while rest:
                rest, digit = divmod(rest, radix)
                digits += digit
            worst = max(worst, digits)
            assert DigitCurve(radix, []).used_blocks(t) == worst


def test_printed_counts_are_theorem_2_with_a_union_bound() -> None:
    """000 Theorem 2 by hand: r = 4 at T = 64 has four digits, so (r - 1) L^2 = 48; tau^2 = D0
    Dinf^2 / (2 rho) = 2 * 9 / 1.
    """
    made = config(
        "known_base",
        rho=0.5,
        max_items=2,
        max_count=3,
        domain=labels(8),
        counter="tree",
        radix=4,
        horizon=64,
    )
    bound = math.sqrt(2 * 48 * 18 * math.log(2 * 8 * 64 / 0.05))
    assert error_bounds(made)[0].printed == pytest.approx(bound)


def test_printed_thresholds_are_theorem_7() -> None:
    """004 Theorem 7 by hand, with its noise: b = sqrt(D0 / (2 rho)) = 2, delta for discovery is
    half of 1e-6.
    """
    made = config("positive_laplace", horizon=10, rho=0.5, max_items=4)
    threshold = 1 + 2 * math.log(4 / (2 * 5e-7))
    noise = 2 * math.log(100 * 10 / 0.05)
    hidden = error_bounds(made, data=Data(items=100))[1]
    assert hidden.printed == pytest.approx(threshold + noise)


def test_the_papers_budget_is_the_one_whose_conversion_gives_epsilon() -> None:
    """Printed figures are for the same epsilon and delta, not for the same rho."""
    for epsilon in (0.1, 1.0, 8.0):
        made = config("known_base", horizon=10, epsilon=epsilon, domain=("a",))
        assert paper_epsilon(paper_rho(made, discovers=False), 1e-6) == pytest.approx(
            epsilon
        )
        assert paper_epsilon(paper_rho(made, discovers=True), 5e-7) == pytest.approx(
            epsilon
        )


def test_a_promise_follows_what_is_taken_for_granted_about_the_data() -> None:
    """More labels, larger values or more weight must change the promise."""
    assumed = {"unk_base": "items", "two_level": "value", "misra_gries": "weight"}
    for mechanism, name in assumed.items():
        made = config(mechanism, horizon=256, **OWN[mechanism])
        data = (Data(**{name: number}) for number in (2_000, 2_000_000))
        small, large = (error_bounds(made, data=one)[0] for one in data)
        assert small.ours < large.ours and paper(small) < paper(large)
        assert small.assumes != large.assumes


def test_a_rarer_failure_is_promised_at_a_larger_error() -> None:
    """beta must reach every part of a bound."""
    for mechanism, values in OWN.items():
        if "beta" not in MECHANISMS[mechanism].__struct_fields__:
            made = config(mechanism, horizon=256, **values)
            for often, rarely in zip(
                error_bounds(made), error_bounds(made, beta=1e-6), strict=True
            ):
                assert often.ours < rarely.ours
                if isinstance(build(made), COMPARED):
                    assert paper(often) < paper(rarely)


def test_users_are_promised_what_their_items_cost() -> None:
    """With a user as the unit, D0 is the user's items, so noise and promise grow with them."""
    made = config("known_base", horizon=64, domain=labels(8), max_items_per_user=9)
    assert error_bounds(made, unit="user")[0].ours > 2 * error_bounds(made)[0].ours


@pytest.mark.parametrize("beta", [0.0, 1.0, -1.0, math.nan])
def test_a_probability_of_failure_lies_inside_0_to_1(beta: float) -> None:
    with pytest.raises(ValueError, match="beta"):
        error_bounds(config("known_base", horizon=64, domain=("a",)), beta=beta)


def test_data_below_one_are_refused() -> None:
    """A promise for no labels would be minus infinity."""
    with pytest.raises(ValueError, match="items = 0"):
        Data(items=0)


def test_the_verdict_is_the_binomial_tail() -> None:
    """3 of 4 heads or more has probability 5/16."""
    assert tail(4, 0.5, 3) == pytest.approx(5 / 16) and tail(
        20, 0.05, 0
    ) == pytest.approx(1)
