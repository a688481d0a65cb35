"""Bounds chosen with noise: what they cost, that the histogram pays, and how good they are."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from tests.commands.init.topics import sample_of
from workers.commands.init.draft import Draft, SampleGuesses
from workers.commands.init.formats import CannotGuess, decode_sample
from workers.commands.init.private import ITEMS, NUMBERS, PrivateChoice
from workers.mechanisms.counters.ranks import ranked_counter
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import KnownBase

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


def settings(**changes: Any) -> KnownBase:
    values: dict[str, Any] = {
        "name": "h",
        "tick_ms": 1_000,
        "horizon": 64,
        "max_items": 2,
        "rho": 0.1,
        "delta": 1e-9,
        "keys": ("s",),
        "domain": ("a", "b"),
    }
    made = build(MECHANISMS["known_base"](**values | changes))
    assert isinstance(made, KnownBase)
    return made


def test_a_histogram_pays_for_its_bounds() -> None:
    """The counters get the rest, and the stated cost is both: never the counters' alone."""
    plain = settings()
    charged = settings(bounds_rho=0.01)
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


def test_a_draft_has_the_chosen_bounds_and_their_charge() -> None:
    draft = draft_of(RHO)
    assert draft.private is not None
    assert 2 <= draft.max_items <= 6
    assert draft.max_count <= 5
    assert 0 < draft.private.rho <= RHO
    assert draft_of(None).private is None


def test_a_noise_key_of_a_choice_is_used_once() -> None:
    """Two choices share no noise: the difference of their ranks is not that of the data."""
    first = PrivateChoice(RHO, 1)
    second = PrivateChoice(RHO, 1)
    assert isinstance(first._key, NoiseKey)
    assert first._key.fingerprint != second._key.fingerprint
