"""The plan of a histogram without epochs, by window: errors, thresholds, charges and words."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import norm

from workers.arrays.types import Longs
from workers.mechanisms.accounting import epsilon_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import State, WindowReleases
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.mechanisms.running.sliding import Sliding
from workers.privacy.model import HistogramPlan, Plan, WindowPlan, WithoutEpochs
from workers.privacy.plan.make import plan_of
from workers.privacy.plan.text import show
from workers.privacy.total import (
    DAY_MS,
    Charge,
    charge_of,
    conversion_delta,
    group_loss,
    spans_of,
    total_of,
)

pytestmark = pytest.mark.slow

TICK_MS = 2_000
SUM = {"field": "paid", "from": 0, "to": 20, "step": 1}
# Noise of one window at the noisiest tick and its root mean square, thresholds with delta's half.
ALONE = {
    30: (2.72, 2.69, 106),
    150: (3.56, 3.42, 144),
    1_800: (4.75, 4.64, 199),
    43_200: (6.39, None, 283),
}
TOGETHER: dict[tuple[int, ...], tuple[float, ...]] = {
    (30, 150, 1_800): (3.23, 3.93, 4.86),
    (30, 1_800, 43_200): (3.72, 5.41, 6.49),
}


def config(
    *ticks: int, kind: type[HistogramConfig] = UnkBaseConfig, **changes: object
) -> HistogramConfig:
    values: dict[str, object] = {
        "name": "h",
        "tick_ms": TICK_MS,
        "horizon": "never",
        "windows": tuple(TICK_MS * window for window in ticks),
        "max_items": 1,
        "epsilon": 1.0,
        "delta": 1e-9,
        "keys": ("s1",),
    }
    return kind(**(values | changes))  # type: ignore[arg-type]  # checked by the record itself


def mechanism_of(own: HistogramConfig) -> Sliding:
    mechanism = build(own)
    assert isinstance(mechanism, Sliding)
    return mechanism


@cache
def planned(own: HistogramConfig) -> HistogramPlan:
    return plan_of(own, build(own), "w.h", "event")


def windows_of(own: HistogramConfig) -> Sequence[WindowPlan]:
    return without_epochs(own).windows


def without_epochs(own: HistogramConfig) -> WithoutEpochs:
    found = planned(own).without_epochs
    assert found is not None
    return found


def said(*configs: HistogramConfig) -> str:
    text = io.StringIO()
    charges = [charge_of(own, build(own)) for own in configs]
    whole = Plan(
        worker="w",
        histograms=tuple(map(planned, configs)),
        total=total_of(charges),
    )
    show(whole, Console(width=100, file=text))
    assert max(map(len, text.getvalue().splitlines())) <= 100
    return " ".join(text.getvalue().split())


@pytest.mark.parametrize("ticks", ALONE)
def test_errors_and_thresholds_of_a_window_are_those_of_the_record(ticks: int) -> None:
    """Decision 0036 has them for windows that begin at every tick."""
    worst, rms, threshold = ALONE[ticks]
    [window] = windows_of(config(ticks, hop=1))
    assert window.sd_times_mu[0] == pytest.approx(worst, rel=0.01)
    if rms is not None:
        assert window.sd_times_mu[1] == pytest.approx(rms, rel=0.01)
    assert window.threshold == threshold
    assert window.alone is None


@pytest.mark.parametrize("ticks", TOGETHER)
def test_windows_that_share_a_noise_have_the_errors_of_the_record(
    ticks: tuple[int, ...],
) -> None:
    windows = windows_of(config(*ticks, hop=1))
    for window, worst in zip(windows, TOGETHER[ticks], strict=True):
        assert window.sd_times_mu[0] == pytest.approx(worst, rel=0.01)
        assert window.alone is not None
        alone, _, _ = ALONE[window.ticks]
        times = window.alone.worst_sd / window.worst_sd
        assert times == pytest.approx(alone / worst, rel=0.01)
    # The figures of one window are not taken for those of another.
    assert len({round(window.worst_sd, 1) for window in windows}) == len(ticks)


def threshold(own: HistogramConfig, window: WindowPlan, tests: int) -> float:
    """Return the threshold for so many tests of an event in each window."""
    mechanism = mechanism_of(own)
    counter = mechanism.windows[own.window_ticks.index(window.ticks)]
    each = mechanism.delta_discovery / (len(own.windows) * own.max_items * tests)
    sd = math.sqrt(counter.worst_variance())
    return math.ceil(float(norm.isf(each)) * sd + own.max_count - 0.5)


def test_thresholds_are_for_all_ticks_for_which_a_window_tests_a_label() -> None:
    """With the window's length in place of that, an event that reacts is not covered."""
    own = config(30, 1_800, max_items=3, max_count=2)
    for window in windows_of(own):
        rest = without_epochs(own).rests
        assert rest is not None and window.tested_for == window.most_ticks + rest
        assert window.threshold == threshold(own, window, window.tested_for)
        assert window.threshold > threshold(own, window, window.ticks)
        likely = window.threshold + norm.ppf(0.95) * window.worst_sd
        assert window.likely_from == math.ceil(likely)


# Of 20,000 normal numbers the variance is off by more than this once in 10^9 cases.
OFF = 6.2 * math.sqrt(2 / 20_000)


def agrees(noise: Longs, sd: float) -> bool:
    return abs(float(np.mean(noise.astype(float) ** 2)) / sd**2 - 1) < OFF


def test_published_counts_have_the_noise_of_the_plan() -> None:
    """20,000 counts of each window through the mechanism, at each window's noisiest tick."""
    labels = tuple(f"{i}" for i in range(20_000))
    own = config(6, 30, 100, kind=KnownBaseConfig, domain=labels)
    windows = windows_of(own)
    mechanism = mechanism_of(own)
    state: State = mechanism.init()
    noise = mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    tags = NoiseKey(bytes(32)).tags("s1", [label.encode() for label in labels])
    mechanism.prepare_key(state, 0, tags, [label.encode() for label in labels])
    seen = set()
    for t in range(1, max(window.worst_tick for window in windows) + 1):
        state, release = mechanism.step(state, t, [], noise)
        assert isinstance(release, WindowReleases)
        for window, own_release in zip(windows, release.releases, strict=True):
            if window.worst_tick == t:
                seen.add(window.ms)
                counts = own_release.counts
                assert own_release.sd == pytest.approx(window.worst_sd, rel=1e-3)
                assert agrees(counts, window.worst_sd)
                # Half and double the noise, and the noise of the other windows, are noticed.
                others = [one.worst_sd for one in windows if one is not window]
                for wrong in (window.worst_sd / 2, 2 * window.worst_sd, *others):
                    assert not agrees(counts, wrong)
    assert seen == set(own.windows)


def test_sums_and_totals_have_a_plan_for_each_window() -> None:
    own = config(30, 1_800, sum=SUM, total_share=0.1)
    mechanism = mechanism_of(own)
    rows = zip(
        windows_of(own), mechanism.sum_windows, mechanism.total_windows, strict=True
    )
    for window, of_sums, of_totals in rows:
        assert window.sum is not None and window.all_items is not None
        half = math.sqrt(of_sums.worst_variance()) / 2
        # The middle of 0 to 20 is 10: a sum has ten times a count's noise, and its own.
        assert window.sum.worst_sd == pytest.approx(
            math.hypot(10 * window.worst_sd, half), rel=1e-3
        )
        worst = math.sqrt(of_totals.worst_variance())
        assert window.all_items.worst_sd == pytest.approx(worst, rel=1e-3)
    assert planned(own).sum == windows_of(own)[1].sum
    text = said(own)
    assert "sums of paid from 0 to 20" in text and "total of all items" in text


# ---- what it costs -------------------------------------------------------------------------------


def charge(own: HistogramConfig) -> Charge:
    return charge_of(own, build(own))


def test_all_windows_are_one_charge_once_and_for_ever() -> None:
    """Not one for each window, nor for each day: the total is what snapshots state."""
    one = charge(config(30))
    three = charge(config(30, 1_800, 43_200))
    for own in (one, three):
        assert own.charged_once and own.epochs(365) == 1
        found = total_of([own])
        assert (found.epsilon, found.delta) == (1.0, 1e-9)
    assert three.cost.rho == pytest.approx(one.cost.rho, rel=1e-6)
    # What a charge for each window would come to.
    assert total_of([one] * 3).epsilon > 1.5
    [span] = spans_of([three])
    assert (span.without_epochs, span.epochs) == ("all", 1)
    assert span.losses[0].epsilon == 1.0
    # What a charge for each day would come to.
    *_, year = spans_of([replace(three, epoch_ms=DAY_MS, charged_once=False)])
    assert year.epochs == 365 and (year.losses[0].epsilon or math.inf) > 20


def test_events_of_a_person_add_up_over_all_time() -> None:
    """Beside daily epochs, a year of one event a day is 365 events in the histogram without."""
    never = charge(config(30, epsilon=0.01))
    daily = charge(config(horizon=43_200, windows=(), epsilon=0.01))
    [ever] = spans_of([never])
    assert [loss.epsilon for loss in ever.losses] == [
        group_loss([never.cost], events)[0] for events in (1, 2, 5, 10, 50)
    ]
    *_, year = spans_of([daily, never])
    assert (year.without_epochs, year.epochs) == ("some", 365)
    rho = 365 * daily.cost.rho + 365**2 * never.cost.rho
    left = conversion_delta([daily.cost, never.cost])
    exact = epsilon_of(rho, left, gaussian=True)
    assert year.losses[0].epsilon == pytest.approx(exact, rel=1e-8)
    assert year.losses[0].delta > 366 * never.cost.failures[0][1]
    # A person who is in one of two groups, that without epochs, has those events too.
    *_, apart = spans_of([daily], [never])
    least, _ = group_loss([never.cost], 365)
    assert apart.losses[0].epsilon is not None and least is not None
    assert apart.losses[0].epsilon >= least


# ---- words ---------------------------------------------------------------------------------------


def test_the_text_says_what_is_charged_and_how_labels_leave() -> None:
    own = config(30, 1_800, 43_200)
    plan = without_epochs(own)
    text = said(own)
    for words in (
        "topics w.h.1m, w.h.1h, w.h.1d",
        "for one event, over all snapshots of all windows for ever",
        "This is charged once, ever",
        "Once every 43,200 ticks (1 d)",
        "shown again as soon as its noisy count passes a lower bar, for 7 d.",
        f"rests for {plan.rests:,} ticks",
        f"for up to {plan.remembered:,} ticks",
        "events of one person that are 7 d 15 h or more apart share no noise",
        'If you need no window but 1m: windows = ["1m"] alone would have',
        'For counts that begin at zero every 1d, take a histogram with horizon = "1d"',
        "With a list of labels, known_base would show them all",
        "this many events in all, ever",
    ):
        assert words in text, words
    for wrong in ("snapshots of an epoch", "epochs do not add up", "end_share", "tree"):
        assert wrong not in text, wrong
    assert re.search(r"events ever", text)


def test_declared_labels_have_no_thresholds_and_never_leave() -> None:
    own = config(30, 1_800, kind=KnownBaseConfig, domain=("a", "b"))
    plan = without_epochs(own)
    assert (plan.leaves_at, plan.rests, plan.remembered) == (None, None, None)
    assert plan.watched is None
    assert [window.threshold for window in plan.windows] == [None, None]
    assert planned(own).thresholds is None
    text = said(own)
    assert "how labels come and leave" not in text and "With a list" not in text


def test_comparisons_are_those_that_answer_the_same_question() -> None:
    rows = planned(config(30, 1_800)).mechanisms
    assert [(row.mechanism, row.assumed) for row in rows] == [
        ("unk_base", {}),
        ("unk_base", {"horizon": "1h"}),
        ("known_base", {"horizon": "never"}),
    ]
    assert rows[2].threshold is None and rows[2].worst_sd == pytest.approx(
        windows_of(config(30, 1_800, kind=KnownBaseConfig, domain=("a",)))[1].worst_sd
    )
    plan = planned(config(30, 1_800))
    assert plan.counters == () and plan.ends == () and plan.counter == "line"


def test_an_epoch_with_windows_hears_of_windows_without_epochs() -> None:
    """Where these settings rule them out, or they would be noisier, nothing is said."""
    plan = planned(config(30, 150, horizon=43_200))
    advice = " ".join(plan.advice)
    [window] = [row for row in plan.noise.windows if row.ticks == 150]
    sliding = windows_of(config(30, 150))[1]
    assert f"sd {sliding.worst_sd:,.3g} for the last 5m" in advice
    assert f"has up to {window.most_sd:,.3g}" in advice
    for other in (
        config(30, 150, horizon=43_200, end_share=0.5),
        config(horizon=43_200, windows=()),
    ):
        assert "never" not in " ".join(planned(other).advice)
