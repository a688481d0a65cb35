"""User items that count several times: parts may come in several ticks, and all are charged."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.test_price import partitions, tail
from tests.contract.variants import TICKS, Variant
from workers.mechanisms.config.histogram import KnownBaseConfig
from workers.mechanisms.mechanism import ticks_of_item
from workers.mechanisms.one_shot.config import PositiveGaussConfig
from workers.mechanisms.registry import build

COUNTS: dict[str, object] = {
    "max_items": 1,
    "max_items_per_user": 3,
    "max_count": 6,
    "epsilon": 0.5,
}
DISCOVERING = [
    Variant("positive_gauss", "", COUNTS, "user"),
    Variant("positive_laplace", "", COUNTS, "user"),
    Variant("meta", "gauss", COUNTS | {"algorithm": "positive_gauss", "radix": 3}, "user"),
]


def shown(mechanism: Any, items: int, count: int) -> float:
    """Return the chance that a user's items are shown, for the dearest spread over ticks."""
    algorithm, levels = mechanism.algorithm, getattr(mechanism, "levels", 1)
    return (
        float(levels)
        * items
        * max(
            sum(tail(algorithm.table, 1, algorithm.threshold + 1 - part) for part in parts)
            for parts in partitions(count, count)
        )
    )


@pytest.mark.parametrize("variant", DISCOVERING, ids=str)
def test_an_item_in_parts_shows_as_rarely_as_is_charged(variant: Variant) -> None:
    """With much noise six ticks with one each are six nearly equal chances; an event has one."""
    mechanism = variant.build()
    charged = dict(mechanism.cost().deltas)["discovery"]
    assert 0.4 * charged < shown(mechanism, 3, 6) <= charged * 1.01


@pytest.mark.parametrize("variant", DISCOVERING, ids=str)
def test_parts_that_are_not_charged_are_seen(variant: Variant) -> None:
    """Control: thresholds of an event, which has its item in one tick."""
    with (
        patch("workers.mechanisms.one_shot.one_shot.ticks_of_item", lambda config, unit: 1),
        patch("workers.mechanisms.running.meta.ticks_of_item", lambda config, unit: 1),
    ):
        mechanism = variant.build()
    assert shown(mechanism, 3, 6) > 2 * dict(mechanism.cost().deltas)["discovery"]


def test_an_item_of_an_event_or_counted_once_lies_in_one_tick() -> None:
    """Mechanisms of earlier settings keep their ids and noise."""
    common: Any = {
        "name": "h",
        "tick_ms": 1,
        "max_items": 1,
        "epsilon": 1.0,
        "delta": 1e-6,
        "keys": "public",
        "domain": ("a",),
    }
    for count, horizon, unit, expected in (
        (1, TICKS, "user", 1),
        (6, TICKS, "event", 1),
        (6, TICKS, "user", 6),
        (99, TICKS, "user", TICKS),
    ):
        config = KnownBaseConfig(**common, horizon=horizon, max_count=count, max_items_per_user=2)
        assert ticks_of_item(config, unit) == expected


def test_more_parts_need_a_higher_threshold_and_no_more_noise() -> None:
    """Parts shift noise by less than the whole; only their separate tests cost."""
    common: Any = {"name": "h", "tick_ms": 1, "delta": 1e-6, "keys": "public", **COUNTS}
    many, few = (
        build(PositiveGaussConfig(**common, horizon=horizon), "user") for horizon in (TICKS, 1)
    )
    assert many.sd(1) == few.sd(1)
    assert (many.threshold(1) or 0) > (few.threshold(1) or 0)
