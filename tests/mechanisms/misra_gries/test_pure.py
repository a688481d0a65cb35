"""misra_gries with release = "pure": releases, cost and accepted settings."""

import math
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.misra_gries import test_misra_gries as common
from tests.mechanisms.misra_gries.test_misra_gries import Tick, part, released, start
from tests.mechanisms.misra_gries.test_sketch import one_by_one
from tests.mechanisms.small import Silent
from workers.mechanisms.misra_gries.misra_gries import (
    MisraGries,
    MisraGriesConfig,
    PureMisraGries,
)

# Declared in an order that is neither that of labels nor that of tags; items 8 to 11 of the streams
# are not declared.
ITEMS = (5, 2, 7, 0, 3, 6, 1, 4)
DOMAIN = tuple(f"{item:03d}" for item in ITEMS)


def config(**changes: object) -> MisraGriesConfig:
    return common.config(**({"release": "pure", "domain": DOMAIN} | changes))


def expected(mechanism: PureMisraGries, ticks: list[Tick], t: int) -> dict[int, int]:
    """Return the noiseless release at t: the largest (k+1) c - sum c per cell, rounded once."""
    place = common.by_tag("k", range(12))
    size = mechanism.config.size
    total: Counter[int] = Counter()
    for of_cell in common.cells_of(mechanism, ticks, t):
        cell: dict[int, int] = {}
        for tick in of_cell:
            declared = {place[item]: n for item, n in tick.items() if item in ITEMS}
            cell = one_by_one(size, cell, declared)
        gamma = sum(cell.values())
        parts = {
            item: max(0, (size + 1) * cell.get(place[item], 0) - gamma)
            for item in ITEMS
        }
        for item in sorted(ITEMS, key=lambda item: (-parts[item], item))[:size]:
            total[item] += parts[item]
    return {item: math.floor(n / (size + 1) + 0.5) for item, n in total.items()}


@pytest.mark.slow
@settings(deadline=None, max_examples=80)
@given(ticks=common.STREAMS, size=st.integers(1, 9), radix=st.integers(2, 5))
def test_it_is_algorithm_3_in_the_cells_of_t(
    ticks: list[Tick], size: int, radix: int
) -> None:
    """Undeclared items take no counter; large sizes show all; empty cells are released."""
    mechanism = PureMisraGries(config(size=size, radix=radix))
    state = start(mechanism)
    for t, tick in enumerate(ticks, 1):
        _, items = mechanism.step(
            state, t, [part({"k": tick, "none": {5: 5}})], Silent()
        )
        assert released(items) == Counter(expected(mechanism, ticks[:t], t))
        other = released(items, 1)
        assert not any(other.values()) and len(other) >= min(size, len(DOMAIN))
        assert items.threshold is None and items.sd == mechanism.sd(t)
        assert state.counters <= len(common.KEYS) * mechanism.counters_max


def test_a_base_of_the_tree_is_chosen_for_a_pure_epsilon() -> None:
    """Levels cost more than in zCDP: the default base is best by the bound (r - 1) L^3."""
    chosen = PureMisraGries(config(radix=None, horizon=64))
    assert (chosen.tree.radix, chosen.tree.levels) == (9, 2)
    worst = [
        PureMisraGries(config(radix=radix, horizon=64)) for radix in (2, 3, 4, 5, 8, 16)
    ]
    bound = [
        (one.tree.radix - 1) * one.tree.levels * one.cell_variance
        for one in [chosen, *worst]
    ]
    assert min(bound) == bound[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"domain": None},
            'domain, domain_file or buckets is missing: release = "pure" needs one',
        ),
        ({"release": "pmg"}, 'domain is set: release = "pmg" has none'),
        ({"release": "merge"}, 'domain is set: release = "merge" has none'),
        ({"epsilon": None, "rho": 0.1}, 'release = "pure": needs epsilon, not rho'),
        ({"domain": ("a", "a")}, 'domain holds "a" more than once'),
        ({"domain": ()}, "domain = "),
        ({"domain": ("x" * 1025,)}, "1,025 bytes"),
        ({"horizon": "unbounded"}, "needs a number of ticks"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    changes: dict[str, Any], message: str
) -> None:
    """Ignoring a domain, or taking a budget that cannot be pure, would mislead."""
    with pytest.raises(ValueError, match=re.escape(message)) as refused:
        config(**changes)
    assert "\n" not in str(refused.value)


def test_noise_that_no_table_holds_and_a_delta_below_the_samplers_are_refused() -> None:
    message = r'release = "pure": .* = 29,997: at most 16,384, with a smaller size'
    with pytest.raises(ValueError, match=message):
        MisraGries.make(config(size=5_000, epsilon=1.0), "event")
    with pytest.raises(ValueError, match="below what the integer samplers can promise"):
        MisraGries.make(config(delta=1e-50), "event")
    assert type(MisraGries.make(config(), "event")) is PureMisraGries
    assert type(MisraGries.make(common.config(), "event")) is not PureMisraGries
