"""Durations: what is read, and that nothing else is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.settings.durations import MILLISECONDS, format_duration, parse_duration


@given(st.integers(min_value=0, max_value=10**15))
@settings(deadline=None)
def test_a_duration_is_read_back_as_it_was_written(duration_ms: int) -> None:
    """Formatting is used in messages that are copied back into settings."""
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(sorted(MILLISECONDS)))
@settings(deadline=None)
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    """Against a table of its own: a wrong unit would change every tick."""
    factor = {"ms": 1, "s": 1000, "m": 60 * 1000, "h": 60 * 60 * 1000, "d": 24 * 60 * 60 * 1000}
    assert parse_duration(f"{number}{unit}") == number * factor[unit]


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "1.5s", "-1s", "10 s", "10S", "10s\n", "1w", "1h30m", "٣s", 10, None, True],
)
def test_anything_else_is_no_duration(text: object) -> None:
    """What is not understood is refused, with what is allowed."""
    with pytest.raises(ValueError, match="ms, s, m, h or d"):
        parse_duration(text)
