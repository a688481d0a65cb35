"""User items that count several times: parts may come in several ticks, and all are charged."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from tests.contract.test_price import in_parts
from tests.contract.variants import TICKS, Variant
from tests.mechanisms.small import SMALL
from workers.mechanisms.config.histogram import KnownBaseConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.one_shot.config import PositiveGaussConfig
from workers.mechanisms.registry import build

COUNTS: dict[str, object] = {"max_items_per_user": 3, "max_count": 6}
COUNTS |= {"max_items": 1, "epsilon": 0.5}
DISCOVERING = [
    Variant("positive_gauss", "", COUNTS, "user"),
    Variant("positive_laplace", "", COUNTS, "user"),
    Variant("meta", "gauss", COUNTS | {"algorithm": "positive_gauss", "radix": 3}, "user"),
]


def shown(mechanism: Any, items: int, count: int) -> float:
    """Return the chance that a user's items are shown, for the dearest spread over ticks."""
    algorithm, levels = mechanism.algorithm, getattr(mechanism, "levels", 1)
    return float(levels) * items * in_parts(algorithm.table, algorithm.threshold, count)


@pytest.mark.parametrize("variant", DISCOVERING, ids=str)
def test_an_item_in_parts_shows_as_rarely_as_is_charged(variant: Variant) -> None:
    """With much noise six ticks with one each are six nearly equal chances; an event has one."""
    mechanism = variant.build()
    charged = dict(mechanism.cost().failures)["discovery"]
    assert 0.4 * charged < shown(mechanism, 3, 6) <= charged * 1.01


@pytest.mark.parametrize("variant", DISCOVERING, ids=str)
def test_parts_that_are_not_charged_are_seen(variant: Variant) -> None:
    """Control: thresholds of an event, which has its item in one tick."""
    with patch.object(Mechanism, "ticks_of_item", lambda mechanism: 1):
        mechanism = variant.build()
    assert shown(mechanism, 3, 6) > 2 * dict(mechanism.cost().failures)["discovery"]


def test_an_item_of_an_event_or_counted_once_lies_in_one_tick() -> None:
    common: Any = SMALL | {"horizon": TICKS, "domain": ("a",), "max_items_per_user": 2}
    cases = (1, "user", 1), (6, "event", 1), (6, "user", 6), (99, "user", TICKS)
    for count, unit, expected in cases:
        mechanism: Any = build(KnownBaseConfig(**common, max_count=count), unit)
        assert mechanism.ticks_of_item() == expected


def test_more_parts_need_a_higher_threshold_and_no_more_noise() -> None:
    """Parts shift noise by less than the whole; only their separate tests cost."""
    settings: list[Any] = [SMALL | COUNTS | {"horizon": horizon} for horizon in (TICKS, 1)]
    many, few = (build(PositiveGaussConfig(**one), "user") for one in settings)
    assert many.sd(1) == few.sd(1)
    assert (many.threshold(1) or 0) > (few.threshold(1) or 0)
