"""Bounds chosen with noise: what they cost, that the histogram pays, and how good they are."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from bench import bounds
from tests.commands.init.topics import comments, loaded, sample_of, written
from workers.commands.init.draft import Draft, SampleGuesses
from workers.commands.init.formats import CannotGuess, decode_sample
from workers.commands.init.private import ITEMS, NUMBERS, PrivateChoice
from workers.mechanisms.accounting import rho_of
from workers.mechanisms.counters.ranks import ranked_counter, ranks_of
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.on_counters import OnCounters

RHO = 0.002
NOW_MS = 1_795_300_000_000


@pytest.fixture(autouse=True)
def fixed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice has a new key; here they are known ones."""
    rng = np.random.default_rng(42)
    monkeypatch.setattr("os.urandom", rng.bytes)


def test_a_choice_is_a_quantile_of_ranks_with_the_noise_that_is_charged() -> None:
    """The released ranks are those of `mechanisms.counters.ranks` at the stated cost."""
    choice = PrivateChoice(RHO, 2)
    values = [1] * 9_000 + [3] * 900 + [40] * 100
    assert choice.bound("items", values, ITEMS) == 3
    counter = ranked_counter(len(ITEMS), 1, RHO / 2, None)
    assert choice.rho == pytest.approx(counter.rho_item)
    choice.ends(np.random.default_rng(1).lognormal(4, 1, 10_000).tolist())
    ends = ranked_counter(len(NUMBERS) + 1, 1, RHO / 2, None)
    both = Fraction(counter.rho_item) + Fraction(ends.rho_item)
    assert Fraction(choice.rho) >= both * (1 - Fraction(1, 10**12))
    assert 0.99 * RHO < choice.rho <= RHO


@pytest.mark.parametrize("number", [len(ITEMS), len(NUMBERS) + 1])
def test_the_noise_of_a_choice_costs_what_is_charged(number: int) -> None:
    """Whitened by the covariance that the charge is computed from; not half of it, nor twice."""
    cells = np.arange(number).repeat(7).tolist()
    exact = 7 * np.arange(1, number + 1)
    noise = []
    for _ in range(60):
        choice = PrivateChoice(RHO, 1)
        ranks, sd = choice.ranks("items", cells, number)
        noise.append(ranks - exact)
    places = np.arange(1, number + 1).repeat(number)
    others = np.tile(np.arange(1, number + 1), number)
    of_ranks = ranks_of(number)
    shape = of_ranks.covariance(places, others).reshape(number, number)
    precise = np.linalg.inv(shape * sd**2 / of_ranks.of_bucket)

    def agrees(found: Any) -> bool:
        squares = np.einsum("ij,jk,ik->i", found, precise, found)
        return bool(0.9 < squares.mean() / number < 1.1)

    drawn = np.array(noise)
    assert agrees(drawn)
    assert not agrees(drawn * math.sqrt(0.5))
    assert not agrees(drawn * math.sqrt(2))
    # An event more in a cell raises all ranks from there on.
    shifts = np.triu(np.ones((number, number)))
    losses = np.einsum("ij,jk,ik->i", shifts, precise, shifts)
    assert 0.8 * 2 * choice.rho < losses.max() <= 2 * choice.rho


@pytest.mark.slow
def test_choices_are_useful_on_flights_and_heavy_tails() -> None:
    """With the default sample and epsilon 0.1, as `python -m bench.bounds` prints it."""
    rho = rho_of(bounds.EPSILON, bounds.DELTA, gaussian=True)
    for name, values in bounds.samples(20_000).items():
        found = bounds.of_ends(values, rho, choices=5)
        assert not found.refused, name
        assert found.most < 0.08, name
        assert not found.wider > 3, name
    for name, numbers in bounds.sizes(20_000).items():
        found = bounds.of_items(numbers, rho, choices=5)
        assert found.most < 0.08, name
        assert found.wider <= 1.5, name


def test_ends_hold_nearly_all_numbers_and_no_decade_that_only_noise_has() -> None:
    """Of a hundred choices; most of the grid has no event at all."""
    numbers = np.random.default_rng(2).lognormal(4, 1, 20_000)
    for _ in range(100):
        found = PrivateChoice(RHO, 1).ends(numbers.tolist())
        assert found is not None
        low, high = float(found.first), float(found.last)
        inside = np.mean((numbers >= low) & (numbers < high))
        assert inside > 0.9
        assert low >= 0 and high <= 10_000


def test_too_few_events_are_refused_with_the_number_that_it_takes() -> None:
    with pytest.raises(CannotGuess, match="takes a sample of about .* events"):
        PrivateChoice(1e-5, 3).bound("items", [1] * 1_000, ITEMS)


def settings(kind: str = "known_base", /, **changes: Any) -> OnCounters:
    values: dict[str, Any] = {
        "name": "h",
        "tick_ms": 1_000,
        "horizon": 64,
        "max_items": 2,
        "rho": 0.1,
        "delta": 1e-9,
        "keys": ("s",),
    }
    if kind == "known_base":
        values["domain"] = ("a", "b")
    made = build(MECHANISMS[kind](**values | changes))
    assert isinstance(made, OnCounters)
    return made


@pytest.mark.parametrize("kind", ["known_base", "unk_base"])
def test_a_histogram_pays_for_its_bounds(kind: str) -> None:
    """The counters get the rest, and the stated cost is both: never the counters' alone."""
    plain = settings(kind)
    charged = settings(kind, bounds_rho=0.01)
    assert charged.cost().sample_rho == 0.01
    assert charged.cost().failures == plain.cost().failures
    high = charged.threshold(64)
    low = plain.threshold(64)
    # Thresholds follow the larger noise, so that what they hide is the same.
    assert (high is None) == (low is None) == (kind == "known_base")
    assert high is None or low is None or high > low
    assert charged.cost().rho == pytest.approx(plain.cost().rho)
    assert charged.rho_item == pytest.approx(0.9 * plain.rho_item)
    spent = 2 * Fraction(charged.rho_item) + Fraction(0.01)
    assert Fraction(charged.cost().rho) >= spent * (1 - Fraction(1, 10**12))
    assert charged.public()["bounds_rho"] == "0.01"
    assert charged.sd(64) > plain.sd(64)


def test_bounds_of_more_than_half_the_budget_are_refused() -> None:
    with pytest.raises(ValueError, match="more than half of the budget"):
        settings(bounds_rho=0.06)


def draft_of(rho: float | None) -> Draft:
    rng = np.random.default_rng(3)
    records = []
    for i in range(12_000):
        products = [f"p{n}" for n in rng.integers(0, 30, 1 + rng.poisson(1))]
        records.append((None, {"products": products, "ts": NOW_MS - 1_000 * i}))
    sample = sample_of(records)
    decoded = decode_sample([record.value for record in sample.records], None)
    return SampleGuesses(sample, decoded, NOW_MS).draft(private_rho=rho)


@pytest.mark.slow
def test_a_draft_has_the_chosen_bounds_and_their_charge() -> None:
    draft = draft_of(RHO)
    assert draft.private is not None
    assert 2 <= draft.max_items <= 6
    assert draft.max_count <= 5
    assert 0 < draft.private.rho <= RHO
    assert draft_of(None).private is None


def test_what_has_no_bound_costs_nothing_and_loads() -> None:
    """Of events with one label each nothing is chosen."""
    rng = np.random.default_rng(4)
    drawn = (f"c{n}" for n in rng.integers(0, 9, 500))
    records = [(None, {"city": city, "ts": NOW_MS - 60_000}) for city in drawn]
    text, _ = written(sample_of(records), {"private_rho": RHO})
    assert loaded(text).histograms[0].bounds_rho is None
    assert "No bound was chosen from the sample." in comments(text)


def test_a_noise_key_of_a_choice_is_used_once() -> None:
    """Two choices share no noise: the difference of their ranks is not that of the data."""
    first = PrivateChoice(RHO, 1)
    second = PrivateChoice(RHO, 1)
    assert isinstance(first._key, NoiseKey)
    assert first._key.fingerprint != second._key.fingerprint
