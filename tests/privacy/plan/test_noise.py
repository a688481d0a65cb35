"""Plan noise: worst tick and mean against brute force, errors against noise really drawn."""

import math
from datetime import UTC, datetime
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.kinds import make_counter
from workers.mechanisms.counters.lifted import LiftedCurve
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.one_shot.one_shot import PositiveLaplaceConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.privacy.plan.noise import (
    half_width_95,
    mean_absolute_error,
    mean_over_ticks,
    noise_of,
    thresholds_of,
    worst_of_all,
)

SHARED: dict[str, object] = {
    "name": "h",
    "tick_ms": 1000,
    "max_items": 2,
    "epsilon": 2.0,
    "delta": 1e-6,
    "keys": ("s1",),
    "horizon": 64,
}
START = datetime(2026, 11, 21, tzinfo=UTC)
LABELS = ("tea", "cup", "pot", "spoon")


def config(kind: type[HistogramConfig], **changes: object) -> HistogramConfig:
    return kind(**(SHARED | changes))  # type: ignore[arg-type]  # checked by the record itself


@pytest.mark.parametrize(
    ("kind", "end_share"), [("lifted", None), ("lifted", 0.6), ("tree", None)]
)
@pytest.mark.parametrize("horizon", [1, 2, 3, 5, 64, 100, 4097, 9999, 20000])
def test_worst_tick_and_mean_are_those_of_a_full_scan(
    kind: str, end_share: float | None, horizon: int
) -> None:
    """A horizon of 2^30 cannot be scanned; the shortcut must match a full scan."""
    counter = make_counter(kind, horizon, 0.01, end_share=end_share)
    found = counter.curve()
    ticks = np.arange(1, horizon + 1)
    variances = found.variance(ticks)
    for t in {1, horizon, horizon // 2 + 1, horizon // 3 + 1}:
        assert math.sqrt(variances[t - 1]) == pytest.approx(counter.sd(t), rel=1e-9)
    noisiest = found.noisiest(horizon)
    assert noisiest.min() >= 1 and noisiest.max() <= horizon
    # Beyond 4,096 ticks at most 2^-12 of one level's variance may be missed.
    assert variances[noisiest[0] - 1] >= variances.max() * (1 - 2**-12)
    assert found.mean(horizon) == pytest.approx(variances.mean(), rel=1e-9)


def test_worst_noise_of_long_horizons_is_that_stated() -> None:
    """Worst sd times sqrt(2 rho), as docs/mechanisms.md states it for an endless epoch."""
    expected = {"lifted": (5.52, 7.88, 9.5, 13.68), "tree": (11.9, 18.3, 21.8, 32.0)}
    for kind, figures in expected.items():
        found = make_counter(kind, None, 0.5).curve()
        for exponent, figure in zip((10, 16, 20, 30), figures, strict=True):
            worst = found.variance(found.noisiest(1 << exponent)[:1])[0]
            assert math.sqrt(worst) == pytest.approx(figure, abs=0.1)


def test_a_curve_of_other_variances_has_another_worst_tick() -> None:
    """The search must follow the levels' variances, not a known pattern of ticks."""
    ticks = np.arange(1, 129)
    for heavy in range(8):
        pairs = [(1.0, 1.0) if level == heavy else (0.001, 0.001) for level in range(8)]
        found = LiftedCurve(pairs, 0)
        assert found.noisiest(128)[0] == ticks[found.variance(ticks).argmax()]


@pytest.mark.parametrize("horizon", [1, 7, 500, 4096])
def test_the_curve_of_the_sqrt_counter_is_that_of_its_own_ticks(horizon: int) -> None:
    """The curve is a closed form: it sums the squares of the square root's coefficients."""
    counter = make_counter("sqrt", horizon, 0.001)
    found = counter.curve()
    for t in {1, horizon // 2 + 1, horizon}:
        sd = math.sqrt(found.variance(np.array([t]))[0])
        assert sd == pytest.approx(counter.sd(t), rel=1e-9)


def drawn(mechanism: Mechanism, ticks: range, rows: int) -> NDArray[np.int64]:
    key = NoiseKey(bytes(range(32)))
    noise = mechanism.noise(key.stream(bytes(16)))
    tags = key.tags("s1", [b"%d" % row for row in range(rows)])
    return np.array([noise.at(t, tags) for t in ticks])


def is_right(stated: float, found: float, rows: int) -> bool:
    """Return whether a stated mean of |noise| agrees with the mean over `rows` independent rows.

    |noise| has a standard deviation of at most 1.05 of its mean (Laplace: 1, Gaussian: 0.76), rows
    are independent, and averaging over ticks of one row does not widen that: 5 standard errors are
    exceeded once in a million runs. 1 % more for the closed form.
    """
    return abs(found / stated - 1) < 5 * 1.05 / math.sqrt(rows) + 0.01


counted = pytest.mark.parametrize(
    "own",
    [config(KnownBaseConfig, domain=LABELS), config(PositiveLaplaceConfig)],
    ids=["known_base", "positive_laplace"],
)


@counted
def test_the_mean_error_and_the_half_width_are_those_of_drawn_noise(
    own: HistogramConfig,
) -> None:
    mechanism = build(own)
    rows = 20_000
    noise = drawn(mechanism, range(1, 65), rows)
    stated = mean_over_ticks(mechanism, 64)
    assert stated is not None
    found = float(np.abs(noise).mean())
    assert is_right(stated, found, rows)
    assert not is_right(stated / 2, found, rows) and not is_right(
        stated * 2, found, rows
    )
    for tick in noise_of(mechanism, own).ticks:
        width = half_width_95(mechanism.law, tick.noise_sd)
        assert width is not None and width == tick.half_width_95
        # For integers the mass at the edge may lie on either side: 5 standard errors of a share of
        # 20,000, 0.77 %.
        errors = np.abs(noise[tick.tick - 1])
        assert float((errors < width - 0.5).mean()) < 0.95 + 0.0077
        assert float((errors < width + 0.5).mean()) > 0.95 - 0.0077
        assert float((errors < width / 2).mean()) < 0.85


def test_small_noise_has_no_more_error_than_its_variance() -> None:
    """A normal law overstates noise that is mostly 0; for integers the variance is a bound."""
    for variance in (0.05, 0.3, 1.0, 4.0):
        exact = np.exp(-(np.arange(-40, 41) ** 2) / (2 * variance))
        exact /= exact.sum()
        sd = math.sqrt(float(exact @ np.arange(-40, 41) ** 2))
        found = float(exact @ np.abs(np.arange(-40, 41)))
        assert mean_absolute_error("gaussian", sd) == pytest.approx(found, rel=0.04)


@counted
def test_counts_are_off_by_more_than_stated_with_probability_beta(
    own: HistogramConfig,
) -> None:
    """The bound covers all items and ticks at once, holds in 95 % of epochs, and is not loose."""
    mechanism = build(own)
    epochs = 1_000
    items = 8
    noise = np.abs(drawn(mechanism, range(1, 65), epochs * items)).reshape(
        64, epochs, items
    )
    worst = noise.max(axis=(0, 2))
    bound = worst_of_all(
        mechanism.law, noise_of(mechanism, own).worst_sd, 64 * items, 0.05
    )
    # P(more than 85 of 1,000 | p = 0.05) < 1e-6; the union bound itself is loose where ticks share
    # noise.
    assert (worst > bound).sum() <= 85
    assert (worst > bound / 2).sum() > 900


@pytest.mark.parametrize("threshold", ["per_tick", "constant", "every"])
def test_the_highest_threshold_is_that_of_all_ticks(threshold: str) -> None:
    every_tick = 8 if threshold == "every" else None
    own = config(UnkBaseConfig, horizon=100, threshold=threshold, every=every_tick)
    mechanism = build(own)
    found = thresholds_of(mechanism, own, noise_of(mechanism, own))
    thresholds = {
        t: value for t in range(1, 101) if (value := mechanism.threshold(t)) is not None
    }
    every = thresholds.values()
    assert found is not None
    assert (found.least, found.most) == (min(every), max(every))
    assert found.ticks_computed == len(every)
    assert thresholds[found.most_tick] == found.most
    below = [(m - found.likely_from) / mechanism.sd(t) for t, m in thresholds.items()]
    shown = [math.erfc(distance / math.sqrt(2)) / 2 for distance in below]
    assert 0.95 <= min(shown) < 0.98


def test_a_plan_of_a_long_or_endless_epoch_looks_at_its_last_ticks() -> None:
    long = config(UnkBaseConfig, horizon=2**30)
    found = noise_of(build(long), long)
    assert found.ticks[-1].tick == 2**30
    assert found.curve[-1].last == 2**30
    assert len(found.curve) <= 64
    assert found.worst_sd >= max(tick.noise_sd for tick in found.ticks)
    endless = config(UnkBaseConfig, horizon="unbounded", start=START, tick_ms=60_000)
    assert noise_of(build(endless), endless).ticks_looked_at == 525_600


@pytest.mark.parametrize(
    "changes", [{}, {"release": "pure", "domain": ("a", "b", "c")}], ids=["pmg", "pure"]
)
def test_blocks_have_the_noise_of_their_digits(changes: dict[str, object]) -> None:
    """One noise per digit of t, rounded once; the curve must use the mechanism's own base."""
    own = config(MECHANISMS["misra_gries"], size=10, radix=4, horizon=100, **changes)
    mechanism = build(own)
    ticks = np.arange(1, 101)
    variances = mechanism.curve(100).variance(ticks)
    assert np.allclose(np.sqrt(variances), [mechanism.sd(t) for t in range(1, 101)])
    found = noise_of(mechanism, own)
    assert Fraction(found.worst_sd) == max(
        Fraction(mechanism.sd(t)) for t in range(1, 101)
    )
    assert found.rms_sd**2 == pytest.approx(np.mean(variances))
    assert found.law == ("laplace" if changes else "gaussian")
