"""Windows without epochs, `horizon = "never"`: what the settings become, and what is refused."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.settings.test_settings import (
    GOOD,
    assert_refused,
    changed,
    loaded,
    refusal,
    with_users,
)
from workers.mechanisms.config.windows import default_hop

NEVER = changed("horizon = 8640", 'horizon = "never"\nwindows = ["1m", "1h", "1d"]')
WITHOUT_WINDOWS = changed("horizon = 8640", 'horizon = "never"')


def of_users(further: str = "", bound: str = "max_items_per_user = 4\n") -> str:
    text = with_users(bound + further)
    return text.replace("horizon = 8640", 'horizon = "never"\nwindows = ["1m", "1h"]')


UNIQUE = "unique_users = true\n"
PAY = GOOD.replace('"unk_base"', '"unk_gauss"') + "kbar = 3\n"

REFUSALS = [
    (WITHOUT_WINDOWS, 'windows is missing: horizon = "never" needs it, such as ["1m"'),
    (WITHOUT_WINDOWS + "windows = []\n", "windows is missing"),
    (
        WITHOUT_WINDOWS + 'windows = ["15s"]\n',
        "windows holds 15000 ms: a multiple of the tick, 10000 ms",
    ),
    (
        WITHOUT_WINDOWS.replace('"10s"', '"1ms"') + 'windows = ["2h"]\n',
        "windows holds 7200000 ms: at most 4,194,304 ticks",
    ),
    (NEVER + "hop = 3\n", "hop = 3: a power of two; nearest: 2 and 4"),
    (NEVER + "hop = 8\n", "hop = 8: at most the shortest window, 6 ticks"),
    (NEVER + "hop = 0\n", "hop = 0: a power of two of ticks, from 1 to 4,194,304"),
    (
        NEVER + 'hop = "never"\n',
        'hop = "never": a whole number of ticks, or a duration',
    ),
    (GOOD + "hop = 4\n", 'hop = 4: only with horizon = "never"'),
    (NEVER + 'counter = "tree"\n', 'counter = "tree": leave it out'),
    (NEVER + "radix = 4\n", "radix = 4: only with"),
    (NEVER + "end_share = 0.5\n", "end_share = 0.5: only in"),
    (
        NEVER + 'threshold = "constant"\n',
        'threshold = "constant": with horizon = "never" only "per_tick"',
    ),
    (NEVER + 'threshold = "every"\nevery = 4\n', 'threshold = "every": with horizon'),
    (NEVER + "every = 4\n", "every = 4: only with"),
    (
        PAY.replace("horizon = 8640", 'horizon = "never"\nwindows = ["1m"]'),
        'horizon = "never": only in known_base and unk_base',
    ),
    (NEVER + "user_period = 6\n", 'user_period = 6: only with privacy.unit = "user"'),
    (GOOD + "user_period = 6\n", 'user_period = 6: only with horizon = "never"'),
    (
        GOOD + "unique_users = true\n",
        'unique_users = true: only with horizon = "never"; with epochs, max_count = 1',
    ),
    (
        NEVER + "unique_users = true\n",
        'unique_users = true: needs privacy.unit = "user", max_items_per_user and',
    ),
    (NEVER + "unique_users = 1\n", "unique_users = 1: true or false"),
    (of_users(bound=""), "max_items_per_user is missing"),
    (
        of_users(),
        'user_period is missing: horizon = "never" with max_items_per_user needs',
    ),
    (of_users("user_period = 0\n"), "user_period = 0: a whole number of ticks from 1"),
    (of_users('user_period = "5s"\n'), 'user_period = "5s": no whole number of ticks'),
    (
        of_users(UNIQUE + "user_period = 7\n"),
        "user_period = 7: with unique_users = true at most the shortest window, 1m",
    ),
    (
        of_users(UNIQUE + "user_period = 6\nmax_count = 2\n"),
        "max_count = 2: leave it out with unique_users = true",
    ),
    (
        of_users(UNIQUE + "user_period = 6\ntotal_share = 0.1\n"),
        "total_share is set: not with unique_users = true",
    ),
    (
        NEVER + f'topic = "{"a" * 247}"\n',
        "of 250 characters, and a topic's name has at most 249",
    ),
]


@pytest.mark.parametrize(("text", "said"), REFUSALS)
def test_what_is_wrong_is_named_with_what_is_allowed(
    tmp_path: Path, text: str, said: str
) -> None:
    assert_refused(tmp_path, text, f"histogram 'products': ... {said}")


START = "start = 2026-01-01T00:00:00Z\n"
UNBOUNDED = GOOD.replace("horizon = 8640", 'horizon = "unbounded"')
SHORT = WITHOUT_WINDOWS + 'windows = ["1m"]\n'
LAST_MS = datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1_000 - 1


def with_tick(text: str, tick: str) -> str:
    return text.replace('tick = "10s"', f'tick = "{tick}"')


@pytest.mark.parametrize(
    ("text", "least_ms"),
    [(SHORT, 4), (SHORT + START, 3), (UNBOUNDED + START, 3)],
    ids=["never", "never_from_2026", "unbounded_from_2026"],
)
def test_tick_numbers_stay_below_the_counters_end_until_2100(
    tmp_path: Path, text: str, least_ms: int
) -> None:
    """A worker would stop at the first event; only ticks so short are refused."""
    [config] = loaded(tmp_path, with_tick(text, f"{least_ms}ms")).histograms
    assert config.grid.tick_at(int(LAST_MS)) < 2**40
    said = f'tick = "{least_ms - 1}ms": ticks are numbered from start on, and pass 2^40'
    remedy = f"set a tick of at least {least_ms}ms"
    if START not in text:
        remedy += (
            ", or start = 2026-01-01T00:00:00Z (or later) and a tick of at least 3ms"
        )
    line = refusal(tmp_path, with_tick(text, f"{least_ms - 1}ms"))
    assert said in line
    assert line.endswith(f"before the year 2100: {remedy}")
    shorter = replace(config.grid, tick_ms=least_ms - 1)
    assert shorter.tick_at(int(LAST_MS)) >= 2**40


def test_ticks_that_no_counter_numbers_may_be_short(tmp_path: Path) -> None:
    """A number of ticks as horizon begins at 1 in each epoch; one-shot mechanisms have no end."""
    [config] = loaded(tmp_path, with_tick(GOOD, "1ms")).histograms
    assert config.tick_ms == 1
    one_shot = UNBOUNDED.replace('"unk_base"', '"positive_gauss"') + START
    [config] = loaded(tmp_path, with_tick(one_shot, "1ms")).histograms
    assert config.horizon == "unbounded"


def test_a_window_is_a_series_with_a_name_and_a_topic_of_its_own(
    tmp_path: Path,
) -> None:
    settings = loaded(tmp_path, NEVER)
    [config] = settings.histograms
    assert config.without_epochs
    assert (config.horizon_ticks, config.grid.horizon, config.start_ms) == (
        None,
    ) * 2 + (0,)
    assert [one.name for one in config.series] == [
        "products.1m",
        "products.1h",
        "products.1d",
    ]
    assert settings.outputs(config) == (
        ("products.1m", "orders.products.1m"),
        ("products.1h", "orders.products.1h"),
        ("products.1d", "orders.products.1d"),
    )
    [with_epochs] = loaded(tmp_path, GOOD).histograms
    assert with_epochs.series == (("products", None),)
    assert with_epochs.hops == ()
    assert loaded(tmp_path, GOOD).outputs(with_epochs) == (
        ("products", "orders.products"),
    )


def test_hops_leave_at_least_64_in_a_window(tmp_path: Path) -> None:
    [config] = loaded(tmp_path, NEVER).histograms
    assert (config.window_ticks, config.hops) == ((6, 360, 8640), (1, 4, 128))
    assert [default_hop(ticks) for ticks in (1, 30, 150, 1800, 43_200)] == [
        1,
        1,
        2,
        16,
        512,
    ]
    for hop in ("4", '"40s"'):
        [config] = loaded(tmp_path, NEVER + f"hop = {hop}\n").histograms
        assert config.hops == (4, 4, 4)


def test_late_events_count_as_long_as_the_longest_window(tmp_path: Path) -> None:
    day = 86_400_000
    assert loaded(tmp_path, NEVER).max_behind_ms == 7 * day
    longer = NEVER.replace('"1d"', '"10d"')
    assert loaded(tmp_path, longer).max_behind_ms == 10 * day


def test_a_series_and_another_histogram_cannot_share_a_topic(tmp_path: Path) -> None:
    second = GOOD.partition("[[histogram]]")[2].replace("products", "other")
    text = f'{NEVER}[[histogram]]{second}topic = "orders.products.1h"\n'
    assert_refused(
        tmp_path,
        text,
        "histogram 'other': topic = \"orders.products.1h\": needs a topic of its own; "
        "histogram 'products': topic of products.1h has this name too",
    )


def test_users_are_bounded_by_period(tmp_path: Path) -> None:
    """Stage 1 takes a period for an epoch; unique users have a lane of their own."""
    [events] = loaded(tmp_path, of_users('user_period = "1m"\n')).histograms
    assert events.user_period == events.lane.horizon == 6
    assert events.lane.max_count == events.max_count and not events.lane.names_users
    assert events.charge_grid.split(13) == (3, 1)
    assert not events.charged_once
    [unique] = loaded(tmp_path, of_users(UNIQUE + "user_period = 6\n")).histograms
    assert unique.lane.names_users and unique.lane.horizon == 6
    [plain] = loaded(tmp_path, NEVER).histograms
    assert plain.charged_once and plain.lane.horizon is None
