"""Do error bars hold right after an item appears? `unk_base` itself, with its noise and thresholds, over items that grow.

An item over an unknown domain is shown once its noisy count passed a threshold, so at that tick its noise is mostly high. Measured, by
ticks since an item appeared: the share of counts inside

    plain        count +- 1.96 sd, as in every snapshot
    wide         count - z sd to count + 1.96 sd with z = sqrt(2 ln(40 T)): no tick of T has such noise, with 97.5 % (Chernoff's bound,
                 which holds for sums of discrete Gaussians, at each of T ticks)
    conditional  all true counts c for which a noisy count, known to be above the threshold, lies within its middle 95 %: the truncated
                 normal law, P(X >= y | X > m) with X normal around c; it takes the threshold's tick as the only test

`python -m bench --only coverage` prints the table of docs/guarantee.md.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr

from workers.arrays.types import Floats
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import UnkBaseConfig

AGES = (0, 1, 2, 5, 10, 20, 50)
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Coverage:
    """Shares of counts inside the three intervals, and their mean lengths in sd, at so many ticks after items appeared."""

    age: int
    items: int
    plain: float
    wide: float
    conditional: float
    bias: float
    wide_length: float
    conditional_length: float


def measure(
    items: int,
    horizon: int,
    rates: tuple[float, float],
    epsilon: float = 1.0,
    seed: int = 0,
    below: float | None = None,
) -> list[Coverage]:
    """Return the coverage by age of items that get Poisson counts at rates spread evenly in their logarithm.

    Args:
        items: how many grow.
        horizon: ticks of the epoch.
        rates: least and most events a tick.
        epsilon: of the histogram; delta is 1e-9, one item an event.
        seed: of the rates, the counts and the noise.
        below: instead, all counts come at tick 1, so many of the largest sd below the lowest threshold, and stay.
    """
    config = UnkBaseConfig(
        name="h",
        tick_ms=1_000,
        horizon=horizon,
        max_items=1,
        epsilon=epsilon,
        delta=1e-9,
        keys="public",
    )
    mechanism = build(config)
    draw = np.random.default_rng(seed)
    key = NoiseKey(draw.bytes(32))
    tags = key.tags("s", [b"%d" % i for i in range(items)])
    noise = mechanism.noise(key.stream(b"coverage of bars"))
    rate = np.exp(draw.uniform(math.log(rates[0]), math.log(rates[1]), items))
    counts = np.zeros(items, dtype=np.int64)
    appeared = np.zeros(items, dtype=np.int64)
    inside: dict[int, list[tuple[float, ...]]] = {age: [] for age in AGES}
    widest = math.sqrt(2 * math.log(40 * horizon))
    if below is not None:
        least = min(mechanism.threshold(t) or 0 for t in range(1, horizon + 1))
        most = max(mechanism.sd(t) for t in range(1, horizon + 1))
        counts += round(least - below * most)
        rate[:] = 0.0
    for t in range(1, horizon + 1):
        counts += draw.poisson(rate)
        found = noise.at(t, tags)
        sd = mechanism.sd(t)
        threshold = mechanism.threshold(t)
        if threshold is not None:
            appeared[(appeared == 0) & (counts > 0) & (counts + found > threshold)] = t
        for age in AGES:
            of = (
                np.flatnonzero(appeared == t - age)
                if t > age
                else np.empty(0, dtype=np.int64)
            )
            if not len(of) or threshold is None:
                continue
            off = found[of] / sd
            shown = (counts + found)[of]
            low, high = conditional((shown - threshold) / sd)
            # Noise above the threshold is what the interval takes for granted; where later noise
            # fell below it, the plain one is left.
            fell = shown <= threshold
            low = np.where(fell, -NORMAL_95, low)
            high = np.where(fell, NORMAL_95, high)
            # Intervals in sd around the published count; a count is never below 0.
            floor = -shown / sd
            low = np.maximum(low, floor)
            inside[age].append(
                (
                    len(of),
                    int((np.abs(off) <= NORMAL_95).sum()),
                    int(((off <= widest) & (off >= -NORMAL_95)).sum()),
                    int(((-off >= low - 1e-9) & (-off <= high)).sum()),
                    float(off.sum()),
                    float((np.minimum(widest, -floor) + NORMAL_95).sum()),
                    float((high - low).sum()),
                )
            )
    return [
        _row(age, np.array(rows, dtype=np.float64))
        for age, rows in inside.items()
        if rows
    ]


def _row(age: int, rows: Floats) -> Coverage:
    total = rows.sum(axis=0)
    share = total[1:] / total[0]
    return Coverage(
        age, int(total[0]), share[0], share[1], share[2], share[3], share[4], share[5]
    )


def conditional(above: Floats) -> tuple[Floats, Floats]:
    """Return the interval for the true count, in sd around the published one, given how many sd that lies above the threshold.

    For a true count of c = y + x sd, P(X >= y | X > m) = Q(-x) / Q(-x - above), Q the normal upper tail; it falls with a smaller x.
    """
    return _solve(above, 0.025), _solve(above, 0.975)


def _solve(above: Floats, share: float) -> Floats:
    low: Floats = np.full(above.shape, -60.0)
    high: Floats = np.full(above.shape, 10.0)
    for _ in range(60):
        at = (low + high) / 2
        small = log_ndtr(at) - log_ndtr(at + above) < math.log(share)
        low = np.where(small, at, low)
        high = np.where(small, high, at)
    middle: Floats = (low + high) / 2
    return middle


def table(items: int = 20_000, horizon: int = 1_024) -> None:
    """Print coverage by age, for slow, mixed and fast items."""
    kinds: tuple[tuple[str, tuple[float, float], float | None], ...] = (
        ("slow", (0.05, 0.5), None),
        ("mixed", (0.05, 50.0), None),
        ("fast", (20.0, 200.0), None),
        ("stopped", (1.0, 1.0), 1.0),
    )
    for name, rates, below in kinds:
        what = (
            f"{rates[0]:g} to {rates[1]:g} events a tick"
            if below is None
            else f"a count {below:g} sd below the lowest threshold"
        )
        print(f"\n{name}: {items:,} items of {what}, {horizon:,} ticks, epsilon 1")
        print(
            "  ticks since it appeared   items  plain   wide  (length)  conditional (length)  "
            "noise, mean"
        )
        for row in measure(items, horizon, rates, below=below):
            print(
                f"  {row.age:23} {row.items:7,}  {row.plain:5.1%}  {row.wide:5.1%}  "
                f"{row.wide_length:5.2f} sd  "
                f"{row.conditional:10.1%}  {row.conditional_length:5.2f} sd  {row.bias:+6.2f} sd",
                flush=True,
            )
