"""Statistics that tell two neighbours apart, and the lower bounds on epsilon and delta that follow.

    W0, W1      the two neighbours' published runs, n each for fitting and n for measuring
    S           a set of outcomes: those whose statistic is above (or below) a threshold
    p, q        P(S) in one world and in the other
    epsilon     at least ln((p - delta) / q), and delta at least p - e^epsilon q, for every S

The statistic, its threshold and its direction are chosen on the first half of the runs; the bounds come from the second half, with p at
the lower and q at the upper end of Clopper-Pearson intervals that both hold with 95 % (each end fails with 2.5 %).

Where the noise is a Gaussian counter's, one statistic is the likelihood ratio itself: d' Sigma^-1 y, with Sigma from the counter's
nodes and d the event's part in the counts. Others are fitted, to all ticks together and as a sum over the ticks: runs that publish the
same texts and labels form a group; its part is the logarithm of the group's frequencies in W1 and W0 (of picks: the likelihood ratio),
plus, in the group, a linear discriminant of the counts y and of |y - m0| - |y - m1|, m0 and m1 the medians in the two worlds (of
Laplace noise: the likelihood ratio).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.attacks.runs import Published
from workers.arrays.types import Floats, Longs
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.counters.ranks import Ranked

FAILURE = 0.05
_CERTAIN = 1e6  # of an outcome that only W1 has
_RIDGE = 1e-7
_ROWS_A_FEATURE = 20
Statistic = Callable[[Published], Floats]
Worlds = tuple[Published, Published]


@dataclass(frozen=True, slots=True)
class Bound:
    """Lower bounds of one set S."""

    epsilon: float  # at the claimed delta
    delta: float  # at the claimed epsilon


@dataclass(frozen=True, slots=True)
class _Choice:
    """A set S: outcomes whose statistic is above the threshold (below it, if the sign is -1)."""

    statistic: Statistic
    threshold: float
    sign: int

    def ends(self, worlds: Worlds) -> tuple[Floats, Floats]:
        hits = [
            np.array(
                [(self.sign * self.statistic(world) > self.sign * self.threshold).sum()]
            )
            for world in worlds
        ]
        more, less = hits[::-1] if self.sign > 0 else hits
        return _ends(more, less, len(worlds[0]))


def measure(
    statistics: Sequence[Statistic],
    fitted: Worlds,
    fresh: Worlds,
    epsilon: float,
    delta: float,
) -> Bound:
    """Return the bounds from `fresh` runs by what tells `fitted` runs apart best."""
    chosen = [_choose(statistics, fitted, lambda p, q: _epsilon(p, q, delta))]
    chosen += [_choose(statistics, fitted, lambda p, q: _delta(p, q, epsilon))]
    (p, q), (r, s) = (choice.ends(fresh) for choice in chosen)
    found = float(_epsilon(p, q, delta)[0]), float(_delta(r, s, epsilon)[0])
    return Bound(max(0.0, found[0]), max(0.0, found[1]))


def _choose(
    statistics: Sequence[Statistic],
    worlds: Worlds,
    bound: Callable[[Floats, Floats], Floats],
) -> _Choice:
    found: list[tuple[float, _Choice]] = []
    n = len(worlds[0])
    tails = np.geomspace(1 / n, 0.5, 200)
    for statistic in statistics:
        scores = [np.sort(statistic(world)) for world in worlds]
        ranks = np.concatenate([tails, 1 - tails])
        thresholds = np.unique(
            np.quantile(np.concatenate(scores), ranks, method="lower")
        )
        less = [np.searchsorted(score, thresholds, side="left") for score in scores]
        more = [
            n - np.searchsorted(score, thresholds, side="right") for score in scores
        ]
        for sign, (hits, others) in ((1, more[::-1]), (-1, less)):
            bounds = bound(*_ends(hits, others, n))
            best = int(np.argmax(bounds))
            choice = _Choice(statistic, float(thresholds[best]), sign)
            found.append((float(bounds[best]), choice))
    return max(found, key=lambda one: one[0])[1]


def _ends(hits: Longs, others: Longs, n: int) -> tuple[Floats, Floats]:
    """Return the lower end for `hits` of n, and the upper end for `others` of n."""
    from scipy.stats import beta

    lower = np.nan_to_num(beta.ppf(FAILURE / 2, hits, n - hits + 1), nan=0.0)
    upper = np.nan_to_num(beta.ppf(1 - FAILURE / 2, others + 1, n - others), nan=1.0)
    return lower, upper


def _epsilon(p: Floats, q: Floats, delta: float) -> Floats:
    """Return what the ends prove; below 0, where they prove nothing, it only ranks the choices."""
    found: Floats = np.where(
        p > delta, np.log(np.maximum(p - delta, 1e-300) / q), p - 1
    )
    return found


def _delta(p: Floats, q: Floats, epsilon: float) -> Floats:
    found: Floats = p - math.exp(epsilon) * q
    return found


# ---- statistics ----------------------------------------------------------------------------------


def counter_ratio(counter: Counter, moved: Floats, new: Sequence[int]) -> Statistic:
    """Return the likelihood ratio for counts under a counter's noise.

    Args:
        counter: of every item.
        moved: (ticks, labels) the event's part in the running counts.
        new: columns of labels that only the event brought.
    """
    ticks = range(1, len(moved) + 1)
    nodes = [counter.nodes(t) for t in ticks]
    every = sorted(set().union(*nodes))
    rows = np.array(
        [[one.get(node, 0) for node in every] for one in nodes], dtype=np.float64
    )
    rows *= (
        np.sqrt([float(counter.variance_of(node)) for node in every])
        / counter._denominator
    )
    sigma = rows @ rows.T
    if isinstance(counter, Ranked):
        weights = np.linalg.solve(
            np.kron(sigma, _of_buckets(counter)), moved.reshape(-1)
        )
    else:
        rounding = np.eye(len(moved)) / 12
        weights = np.linalg.solve(sigma + rounding, moved).reshape(-1)

    def ratio(runs: Published) -> Floats:
        found: Floats = np.nan_to_num(runs.counts) @ weights
        return _certain(found, runs, new)

    return ratio


def _of_buckets(counter: Ranked) -> Floats:
    """Return the covariances of buckets, where every row has variance 1."""
    places = np.arange(counter.ranks.buckets + 1)
    pairs = np.meshgrid(places, places)
    flat = counter.ranks.covariance(*(one.reshape(-1) for one in pairs))
    of_places = flat.reshape(len(places), len(places))
    found: Floats = np.diff(np.diff(of_places, axis=0), axis=1)
    return found


def fit(worlds: Worlds, new: Sequence[int]) -> Statistic:
    """Return the statistic fitted to runs of both worlds; `new`: columns only the event brought."""
    outcomes = [_groups(world) for world in worlds]
    names, numbers = np.unique(np.concatenate(outcomes), return_inverse=True)
    groups = np.split(numbers.reshape(-1), [len(worlds[0])])
    sizes = np.array([np.bincount(group, minlength=len(names)) for group in groups])
    # In small groups chance looks like a difference; they are one.
    rare = sizes.sum(axis=0) < _ROWS_A_FEATURE
    sizes[:, rare] = sizes[:, rare].sum(axis=1, keepdims=True)
    base = np.log((sizes[1] + 0.5) / (sizes[0] + 0.5))
    unknown = base[rare][0] if rare.any() else 0.0
    linear: dict[int, _Linear] = {}
    enough = ~rare & (sizes.min(axis=0) >= 2 * _ROWS_A_FEATURE)
    for group in np.flatnonzero(enough).tolist():
        own = [
            world.counts[of == group] for world, of in zip(worlds, groups, strict=True)
        ]
        found = _Linear.fit(own[0], own[1])
        if found is not None:
            linear[group] = found

    def score(runs: Published) -> Floats:
        keys = _groups(runs)
        places = np.minimum(np.searchsorted(names, keys), len(names) - 1)
        known = names[places] == keys
        found: Floats = np.where(known, base[places], unknown)
        for group, line in linear.items():
            rows = np.flatnonzero(known & (places == group))
            found[rows] += line.of(runs.counts[rows])
        return _certain(found, runs, new)

    return score


def fit_by_tick(worlds: Worlds, new: Sequence[int]) -> Statistic:
    """Return the sum of statistics fitted tick by tick: for releases that are independent."""
    ticks = range(1, worlds[0].texts.shape[1] + 1)
    each = [fit((worlds[0].tick(t), worlds[1].tick(t)), ()) for t in ticks]

    def score(runs: Published) -> Floats:
        found: Floats = np.sum(
            [one(runs.tick(t)) for t, one in zip(ticks, each, strict=True)], axis=0
        )
        return _certain(found, runs, new)

    return score


def _certain(scores: Floats, runs: Published, new: Sequence[int]) -> Floats:
    shown = ~np.isnan(runs.counts[:, list(new)]).all(axis=1)
    found: Floats = np.where(shown, _CERTAIN, scores)
    return found


def _groups(runs: Published) -> Longs:
    """Return one name for the texts and shown columns of each run."""
    bits = np.packbits(~np.isnan(runs.counts), axis=1)
    columns = np.concatenate(
        [runs.texts.astype("<i4").view(np.uint8).reshape(len(runs), -1), bits], axis=1
    )
    whole = np.ascontiguousarray(columns)
    found: Longs = whole.view(f"V{whole.shape[1]}").reshape(-1)
    return found


@dataclass(frozen=True, slots=True)
class _Linear:
    """A linear discriminant of counts of one group."""

    columns: Longs  # shown
    medians: Floats  # (2, columns)
    used: Longs  # features that vary
    weights: Floats
    constant: float

    @classmethod
    def fit(cls, zero: Floats, one: Floats) -> "_Linear | None":
        columns = np.flatnonzero(~np.isnan(one[0]))
        if not len(columns):
            return None
        medians = np.array(
            [np.median(rows[:, columns], axis=0) for rows in (zero, one)]
        )
        x = [_features(rows[:, columns], medians) for rows in (zero, one)]
        centered = np.concatenate([rows - rows.mean(axis=0) for rows in x])
        sd = centered.std(axis=0)
        used = np.flatnonzero(sd > 0)
        if len(used) * _ROWS_A_FEATURE > min(len(zero), len(one)) or not len(used):
            return None
        means = [rows[:, used].mean(axis=0) for rows in x]
        covariance = np.cov(centered[:, used] / sd[used], rowvar=False).reshape(
            len(used), -1
        )
        ridge = covariance + _RIDGE * np.eye(len(used))
        weights = np.linalg.solve(ridge, (means[1] - means[0]) / sd[used]) / sd[used]
        return cls(
            columns, medians, used, weights, float(weights @ (means[0] + means[1]) / 2)
        )

    def of(self, counts: Floats) -> Floats:
        x = _features(counts[:, self.columns], self.medians)[:, self.used]
        found: Floats = x @ self.weights - self.constant
        return found


def _features(counts: Floats, medians: Floats) -> Floats:
    apart = np.abs(counts - medians[0]) - np.abs(counts - medians[1])
    return np.concatenate([counts, apart], axis=1)
