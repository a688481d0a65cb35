"""What a histogram without epochs has cost, and what a ceiling makes of it: one charge, once, ever."""

import pytest
from msgspec import structs

from tests.privacy.ceiling.test_ceiling import with_ceiling
from tests.privacy.spending.test_spent import settings, state, text_of, words
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig
from workers.privacy.ceiling import charges_of, check_ceiling, merge
from workers.privacy.spending import Budget, budget_of
from workers.runtime.errors import SettingsError

DAY_MS = 86_400_000
YEAR = 365 * 24 * 60


def never(*minutes: int, **changes: object) -> HistogramConfig:
    values: dict[str, object] = {
        "name": "h",
        "tick_ms": 60_000,
        "horizon": "never",
        "windows": tuple(60_000 * length for length in minutes),
        "max_items": 2,
        "epsilon": 1.0,
        "delta": 1e-9,
        "keys": "public",
    }
    return UnkBaseConfig(**(values | changes))  # type: ignore[arg-type]  # checked by the record


def budget(own: HistogramConfig, ticks: int, *older: HistogramConfig) -> Budget:
    retired = [(one, 1, 1_000) for one in older]
    return budget_of(settings(own), [state([(own, 1_000, 1_000 + ticks)], retired)])


@pytest.mark.parametrize("windows", [(60,), (5, 60, 1_440)])
@pytest.mark.parametrize("ticks", [1, YEAR])
def test_all_windows_are_charged_once_however_long_they_run(
    windows: tuple[int, ...], ticks: int
) -> None:
    """Neither for each window, nor for each day: the charge is what every snapshot states."""
    own = never(*windows)
    found = budget(own, ticks)
    [[generation]] = [one.generations for one in found.histograms]
    promise = build(own).guarantee
    assert generation.windows == own.windows
    assert (generation.horizon, generation.epochs_begun) == (None, 1)
    assert generation.charged is not None and generation.charged.epochs == 1
    [epoch] = generation.epochs
    assert len(set(epoch.ids)) == len(windows)
    for charged in (generation.charged, found.total):
        assert charged is not None
        assert charged.rho == promise.rho
        assert (charged.epsilon, charged.delta) == (promise.epsilon, promise.delta)
    [span] = found.person
    assert span.without_epochs == "all"
    text = words(text_of(found))
    assert "for ever, cost one event once, in full from the first tick" in text
    assert "charged to one event: once, ever; a new generation is charged again" in text
    assert "an epoch" not in text


def test_a_new_generation_is_charged_again() -> None:
    """An event is in one of them, unless both counted at the same time."""
    old = never(60, generation=1)
    found = budget(never(60, 1_440, generation=2), 10, old)
    charged = [one.charged for one in found.histograms[0].generations]
    assert len(charged) == 2
    assert all(one is not None and one.epsilon == 1.0 for one in charged)
    assert found.total is not None and found.total.epsilon == 1.0


def test_partitions_that_hold_it_charge_it_once() -> None:
    own = never(5, 60)
    states = [state([(own, 10, 20)]), state([(own, 15, 900_000)])]
    charges = merge(charge for one in states for charge in charges_of("w", one))
    assert [(one.first, one.last, one.charged_once) for one in charges] == [
        (1, 1, True)
    ]


@pytest.mark.slow
def test_under_a_ceiling_it_counts_once_in_every_period_and_runs_without_end() -> None:
    own = never(5, 1_440)
    plain = settings(own)
    delta = own.delta
    with pytest.raises(SettingsError, match="exceed it by themselves"):
        check_ceiling(with_ceiling(plain, 0.99, delta, period="1d"))
    limited = with_ceiling(plain, 1.0, delta, period="1d")
    assert check_ceiling(limited) == 1.0
    found = budget_of(limited, [state([(own, 1, YEAR)])]).ceiling
    assert found is not None and found.outlook is not None
    assert found.epsilon == 1.0 and found.next == ()
    assert [part.epochs for part in found.parts] == [1]
    assert (found.outlook.until, found.outlook.epoch) == (None, None)
    # Beside it, a day's epoch is charged on top; a second one without epochs as well.
    daily = structs.replace(own, name="d", horizon=1_440, windows=())
    for other in (daily, structs.replace(own, name="d")):
        both = with_ceiling(settings(own, other), 1.0, 2 * delta, period="1d")
        with pytest.raises(SettingsError, match="exceed it by themselves"):
            check_ceiling(both)
