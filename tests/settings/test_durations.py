"""Durations, also where settings count ticks: what is read, and that nothing else is."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings.test_settings import GOOD, changed, loaded, refusal
from workers.client.config import load_reader_settings
from workers.mechanisms.config.durations import (
    MILLISECONDS,
    format_duration,
    length_of,
    parse_duration,
)
from workers.settings.durations import count_ticks

EVERY = 'keys = ["s1", "s2"]', 'keys = ["s1", "s2"]\nthreshold = "every"\nevery = '


DURATIONS = st.builds(
    "{}{}".format, st.integers(1, 10**6), st.sampled_from(sorted(MILLISECONDS))
)


@given(DURATIONS, DURATIONS)
def test_a_duration_is_its_number_of_ticks_or_refused(tick: str, horizon: str) -> None:
    values: dict[str, Any] = {"tick": tick, "horizon": horizon}
    ticks, rest = divmod(
        parse_duration(values["horizon"]), parse_duration(values["tick"])
    )
    if rest or not ticks:
        with pytest.raises(ValueError, match="no whole number of ticks") as caught:
            count_ticks(values, "")
        nearest = str(caught.value).partition("nearest: ")[2].split('"')[1::2]
        near = list(map(parse_duration, nearest))
        assert near == [
            n * parse_duration(values["tick"]) for n in (ticks, ticks + 1) if n
        ]
    else:
        count_ticks(values, "")
        assert values["horizon"] == ticks


def test_the_histogram_is_that_of_the_number(tmp_path: Path) -> None:
    by_number = loaded(tmp_path, GOOD.replace(EVERY[0], EVERY[1] + "30"))
    text = changed("horizon = 8640", 'horizon = "1d"').replace(
        EVERY[0], EVERY[1] + '"5m"'
    )
    assert by_number == loaded(tmp_path, text)
    unbounded = changed(
        "horizon = 8640", 'horizon = "unbounded"\nstart = 2026-01-01T00:00:00Z'
    )
    assert loaded(tmp_path, unbounded).histograms[0].horizon == "unbounded"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (
            '"15s"',
            'horizon = "15s": no whole number of ticks of 10s; nearest: "10s" and "20s"',
        ),
        ('"1s"', 'horizon = "1s": no whole number of ticks of 10s; nearest: "10s"'),
        (
            '"a day"',
            'horizon = "a day": a whole number of ticks, "unbounded", "never", or a duration: a whole number and a unit',
        ),
        (
            '"400000d"',
            "horizon = 3456000000: a whole number of ticks from 1 to 1,073,741,824",
        ),
        ("0", "horizon = 0: a whole number of ticks from 1 to 1,073,741,824"),
    ],
)
def test_other_horizons_are_refused(tmp_path: Path, value: str, said: str) -> None:
    text = changed("horizon = 8640", f"horizon = {value}")
    assert refusal(tmp_path, text).startswith(f"histogram 'products': {said}")


def test_the_page_reads_the_horizon_as_the_worker_does(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(GOOD.replace("horizon = 8640", 'horizon = "1d"'))
    assert load_reader_settings(tmp_path / "x.toml").histograms[0].horizon == 8640
    (tmp_path / "x.toml").write_text(GOOD.replace("horizon = 8640", 'horizon = "15s"'))
    assert load_reader_settings(tmp_path / "x.toml").histograms[0].horizon is None


@given(st.integers(min_value=0, max_value=10**15))
@settings(deadline=None)
def test_a_duration_is_read_back_as_it_was_written(duration_ms: int) -> None:
    assert parse_duration(format_duration(duration_ms)) == duration_ms


@given(st.integers(min_value=0, max_value=10**9), st.sampled_from(sorted(MILLISECONDS)))
@settings(deadline=None)
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    factor = {
        "ms": 1,
        "s": 1000,
        "m": 60 * 1000,
        "h": 60 * 60 * 1000,
        "d": 24 * 60 * 60 * 1000,
    }
    assert parse_duration(f"{number}{unit}") == number * factor[unit]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "s",
        "1.5s",
        "-1s",
        "10 s",
        "10S",
        "10s\n",
        "1w",
        "1h30m",
        "٣s",
        10,
        None,
        True,
    ],
)
def test_anything_else_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match="ms, s, m, h or d"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ms", "down", "up"),
    [
        (655_360_000, "7 d 14 h", "7 d 15 h"),
        (86_400_000, "1 d", "1 d"),
        (86_399_999, "23 h 59 min", "1 d"),
        (3_600_001, "1 h 1 ms", "1 h 1 ms"),
        (2_000, "2 s", "2 s"),
        (999, "999 ms", "999 ms"),
        (90_000, "1 min 30 s", "1 min 30 s"),
    ],
)
def test_a_length_of_time_in_words_is_rounded_as_asked(
    ms: int, down: str, up: str
) -> None:
    """What holds from some time on must not be said of a shorter one."""
    assert length_of(ms) == down
    assert length_of(ms, up=True) == up
