"""What `budget` says of the time to come is what the ceiling decides, epoch by epoch."""

from typing import Any

import pytest
from msgspec import structs

from tests.privacy.ceiling.test_ceiling import daily, with_ceiling
from tests.privacy.spending.test_spent import Lived, settings, state, text_of, words
from workers.mechanisms.config.histogram import HistogramConfig
from workers.pipeline.merge import ReleaseProgress
from workers.privacy import spending
from workers.privacy.ceiling import Ceiling, check_ceiling
from workers.privacy.outlook import Outlook
from workers.privacy.spending import Budget, budget_of
from workers.runtime.errors import SettingsError

DAY = 86_400_000
# From here on the histograms of the settings publish, after ten days of an older generation.
NOW = 20_160
OLD_DAYS = 10


def days(
    name: str = "h", horizon: int = 1, epsilon: float = 0.2, **more: Any
) -> HistogramConfig:
    more = {"generation": 2, "delta": 1e-9} | more
    return daily(name, tick_ms=DAY, horizon=horizon, epsilon=epsilon, **more)


def older(epsilon: float) -> HistogramConfig:
    return days(epsilon=epsilon, generation=1)


class Case:
    """A worker under a ceiling, whose histograms are each at the beginning of an epoch."""

    def __init__(
        self,
        unit: str,
        period: str,
        epsilon: float,
        *configs: HistogramConfig,
        old: float = 0.5,
    ) -> None:
        each = {"max_items_per_user": 1 if unit == "user" else None}
        plain = settings(*(structs.replace(one, **each) for one in configs), unit=unit)
        self.settings = with_ceiling(plain, epsilon, 1e-4, period=period)
        self.old = (structs.replace(older(old), **each), NOW - OLD_DAYS, NOW)
        self.lives: dict[str, Lived] = {}
        for one in self.settings.histograms:
            horizon = int(one.horizon)
            self.lives[one.name] = (one, NOW, -(-NOW // horizon) * horizon + 1)

    @property
    def state(self) -> ReleaseProgress:
        return state(
            [*self.lives.values()], [self.old], unit=self.settings.privacy.unit
        )

    def budget(self) -> Budget:
        return budget_of(self.settings, [self.state])

    def outlook(self) -> Outlook:
        left = self.budget().ceiling
        assert left is not None and left.outlook is not None
        return left.outlook

    def stops(self, epochs: int) -> int | None:
        """Return when an epoch begins that does not fit, having charged all before it in turn."""
        ceiling = Ceiling.of(self.settings.privacy)
        assert ceiling is not None
        for _ in range(epochs):
            left = spending._next(ceiling, self.settings, [self.state], ())
            following = min(left, key=lambda one: one.begins or 0)
            if not following.fits:
                return following.begins
            config, first, _ = self.lives[following.histogram]
            after = following.epoch * int(config.horizon) + 1
            self.lives[following.histogram] = (config, first, after)
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "ends"),
    [
        (Case("user", "30d", 1.0, days()), True),
        (Case("user", "12d", 1.0, days()), False),
        (Case("user", "30d", 1.05, days(), days("b", 7)), True),
        (Case("user", "epoch", 0.35, days(horizon=9), old=0.1), False),
        (Case("event", "30d", 0.62, days()), False),
        (Case("event", "30d", 0.2, days(), days("b", 7)), True),
    ],
)
def test_a_worker_may_run_exactly_as_long_as_every_epoch_fits(
    case: Case, ends: bool
) -> None:
    found = case.outlook()
    assert found.newest == max(tick - 1 for _, _, tick in case.lives.values()) * DAY
    assert found.until == case.stops(50)
    assert (found.until is not None) is ends


@pytest.mark.slow
def test_a_second_histogram_fits_with_the_epsilon_that_is_said_and_with_no_more() -> (
    None
):
    case = Case("user", "30d", 1.5, days(), old=0.2)
    [second] = case.outlook().seconds
    assert second.histogram == "h" and second.epsilon is not None
    for step, fits in ((0.0, True), (0.01, False)):
        more = days(
            "again", epsilon=round(second.epsilon + step, 2), max_items_per_user=1
        )
        given = structs.replace(
            case.settings, histograms=(*case.settings.histograms, more)
        )
        if fits:
            check_ceiling(given)
            beside = Case("user", "30d", 1.5, days(), more, old=0.2)
            assert beside.stops(40) is None
        else:
            with pytest.raises(
                SettingsError, match="these settings exceed it by themselves"
            ):
                check_ceiling(given)


def test_budget_says_in_words_what_the_ceiling_allows() -> None:
    said = words(text_of(Case("user", "30d", 1.0, days()).budget()))
    assert (
        "the worker may run on until 2025-03-22T00:00:00Z, 9 days after its newest tick"
        in said
    )
    assert "it ends before epoch 20,170 of h, which does not fit" in said
    said = words(text_of(Case("user", "30d", 0.9, days()).budget()))
    assert "the worker may not run on: epoch 20,161 of h does not fit" in said
    said = words(text_of(Case("user", "30d", 1.5, days(), old=0.2).budget()))
    assert "may run on without end: no period will come above the ceiling" in said
    assert (
        "a second histogram like h beside it fits with an epsilon of at most 0." in said
    )
    without = Case("user", "30d", 1.5, days())
    without.settings = settings(*without.settings.histograms, unit="user")
    assert "there is no ceiling (privacy.max_epsilon)" in words(
        text_of(without.budget())
    )


@pytest.mark.slow
def test_a_histogram_that_has_not_begun_counts_and_without_a_tick_nothing_is_said() -> (
    None
):
    """It will be charged with its first tick, so it is not room that is left."""
    case = Case("user", "30d", 1.0, days())
    alone = case.outlook().until
    more = days("new", max_items_per_user=1)
    case.settings = structs.replace(
        case.settings, histograms=(*case.settings.histograms, more)
    )
    sooner = case.outlook().until
    assert sooner is not None and alone is not None and sooner < alone
    left = budget_of(case.settings, [state([], unit="user")]).ceiling
    assert left is not None and left.outlook is None
