"""Epochs without an end go on past tick 2^31."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from tests.mechanisms.test_ledger import contributions
from workers.mechanisms.config.histogram import UnkBaseConfig
from workers.mechanisms.mechanism import Release
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build


@pytest.mark.parametrize("tick", [2**31 - 1, 2**31, 2**32])
def test_an_epoch_without_an_end_shows_new_items_at_late_ticks(tick: int) -> None:
    """Ticks of 1 ms pass 2^31 after 25 days; an int32 first tick stopped the worker repeatedly."""
    mechanism = build(
        UnkBaseConfig(
            name="h",
            tick_ms=1,
            horizon="unbounded",
            start=datetime(2026, 1, 1, tzinfo=UTC),
            max_items=1,
            epsilon=20.0,
            delta=1e-6,
            keys="public",
        )
    )
    state, noise = mechanism.init(), mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    part = contributions({"k": {"often": 100_000}})
    state, release = mechanism.step(state, tick, [(part, np.zeros(1, np.int32))], noise)
    assert isinstance(release, Release) and release.rows.tolist() == [0]
    assert state.ledger.shown.tolist() == [tick]
