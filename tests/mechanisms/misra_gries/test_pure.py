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
from workers.runtime.errors import StateRefused

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


@settings(deadline=None, max_examples=60)
@given(ticks=common.STREAMS, size=st.integers(1, 6))
def test_a_count_is_too_low_by_at_most_its_share_before_noise(
    ticks: list[Tick], size: int
) -> None:
    """n/(k+1), the sketch's loss plus Algorithm 3's; half a count for rounding."""
    mechanism = PureMisraGries(config(size=size))
    state = start(mechanism)
    exact: Counter[int] = Counter()
    for t, tick in enumerate(ticks, 1):
        exact.update({item: n for item, n in tick.items() if item in ITEMS})
        shown = released(mechanism.step(state, t, [part({"k": tick})], Silent())[1])
        for item in ITEMS:
            short = exact[item] - shown.get(item, 0)
            assert -0.5 <= short <= exact.total() / (size + 1) + 0.5


@pytest.mark.parametrize(
    ("max_items", "max_count", "size"), [(1, 1, 1), (1, 1, 5), (3, 2, 5), (2, 1, 40)]
)
def test_the_cost_is_the_sum_of_the_levels(
    max_items: int, max_count: int, size: int
) -> None:
    """epsilon = L m (2k - 1) / b; rho = epsilon^2 / (2 L) (pure levels); delta: samplers only."""
    mechanism = PureMisraGries(
        config(
            max_items=max_items,
            max_count=max_count,
            size=size,
            epsilon=1.0,
            delta=1e-20,
        )
    )
    levels = mechanism.tree.levels
    guarantee = mechanism.guarantee
    spent = levels * max_items * max_count * (2 * size - 1) / mechanism.scale
    assert levels == 3 and 0.9999 < spent <= 1 == guarantee.epsilon
    assert mechanism.cost().rho == guarantee.rho == pytest.approx(1 / 6, rel=1e-4)
    assert guarantee.rho <= 1 / 6 * (1 + 1e-9)
    assert (
        dict(mechanism.cost().failures) == {"numerical": 1e-20}
        and guarantee.delta == 1e-20
    )


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


def test_the_domain_is_stored_in_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """A restarted worker needs it to give absent labels their noise."""
    monkeypatch.setattr("workers.mechanisms.misra_gries.state.PAGE_BYTES", 100)
    mechanism = PureMisraGries(config())
    state = start(mechanism)
    noise = mechanism.noise(common.STREAM)
    blocks = dict(state.changed())
    assert {name[:2] for name in blocks} == {"md"} and len(blocks) == 2 * 2
    again = mechanism.init()
    lacking = mechanism.init()
    for other in (again, lacking):
        other.key_tags = state.key_tags
        for name, block in blocks.items():
            if other is again or not name.startswith("md00000001"):
                other.restore(name, block)
    tick = [part({"k": {0: 60, 1: 20, 9: 5}})]
    before, after = (
        released(mechanism.step(one, 1, tick, noise)[1]) for one in (state, again)
    )
    assert before == after != {}
    with pytest.raises(StateRefused, match="domain of stream key 1 is missing"):
        mechanism.step(lacking, 1, tick, noise)


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
