"""Epochs without an end go on past tick 2^31."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest

from tests.mechanisms.running.test_histograms import unk
from tests.mechanisms.small import STREAM
from tests.mechanisms.test_ledger import contributions


@pytest.mark.parametrize("tick", [2**31 - 1, 2**31, 2**32])
def test_an_epoch_without_an_end_shows_new_items_at_late_ticks(tick: int) -> None:
    """Ticks of 1 ms pass 2^31 after 25 days; an int32 first tick stopped the worker repeatedly."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    mechanism = unk(horizon="unbounded", start=start, epsilon=20.0)
    state, noise = mechanism.init(), mechanism.noise(STREAM)
    part = contributions({"k": {"often": 100_000}})
    state, release = mechanism.step(state, tick, [(part, np.zeros(1, np.int32))], noise)
    assert release.rows.tolist() == [0]
    assert state.ledger.shown.tolist() == [tick]
