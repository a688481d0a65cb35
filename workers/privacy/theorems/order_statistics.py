"""The error that paper 001 promises for order statistics: as printed, and for what is built.

`ours` is the `error` that snapshots carry, in the worst segment that the data can reach. Segment j
ends only if value + |G_j| + low > K_j; so a value that stays at V never ends the first segment with
K_j >= V + column_error(j) + low. For `doubling` it is smaller than that `error`: the true value of
segment j lies between K_(j-1) - low - |G_(j-1)|, since the segment before has ended, and
min(V, K_j + high + |G_j|); the answer is the one at the segment's start, off by |G_j|. (It watches
one value, so K_(j-1) is its own.)

`printed` is the paper's pure algorithm at the epsilon of the guarantee, with d, the l1 norm of a
row, replaced by D Dinf (D columns an event changes). For e the epsilon of one level:

    a_mu, a_tau     (8/e) ln(3 T/beta), (4/e) ln(3 c_max/beta): Lemma 5; with Delta for c_max:
                    Lemma 13; log2 T: Lemma 8
    err(n, beta)    8 D log2(n) ln(2 d n/beta) / e: Lemma 52, each column at e/(2 D)
    bounded_max     6 (err(c_max, beta/3) + a_mu + a_tau): Lemma 6
    doubling        2^(j-1) + 2 a_DM, the growth of segment j, + a_G: Theorem 2;
                    a_G = (4 D/e) sqrt(2 j) ln(3 d log2 T/beta)
    two_level       6 (a_G + err(Delta, beta'/3) + a_mu + a_tau): Lemma 14; e = epsilon/2,
                    beta' = beta/(2 L), Delta the growth
    two_level_k     max(K + C + 3 err + a_SV + 2 a_U + 1, K + 3 C + 2 err) + a_G,
                    K = 3 (C + err(k Delta) + a_G): Equations 37 and 39, Lemma 31; H at e/3

j is the last segment: 2^(j-2) <= V + a_G + a_mu + a_tau (Equation 20), at most log2 T while V <= T.
Corrected: the text after Lemma 5 has 4 for the 8 in err, which is H at e and not at e/2.
"""

from __future__ import annotations

import math

from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.privacy.theorems.promise import Data, Promise

_SOURCES = {
    "bounded_max": "Henzinger, Sricharan, Steiner: Lemma 6",
    "doubling": "Henzinger, Sricharan, Steiner: Theorem 2",
    "two_level": "Henzinger, Sricharan, Steiner: Lemmas 14 and 15",
    "two_level_k": "Henzinger, Sricharan, Steiner: Lemmas 31 and 32",
}


def answer(config: MaxConfig, mechanism: OrderStatistics, data: Data) -> Promise:
    """Bound the error of every answer at every tick; beta is the configuration's own."""
    value = config.c_max if isinstance(config, BoundedMaxConfig) else data.value
    if not mechanism.guarantee.epsilon:
        # A rho that delta alone covers: the paper has no noise for a pure epsilon of 0.
        printed = math.inf
    elif isinstance(config, BoundedMaxConfig):
        epsilon, beta = mechanism.guarantee.epsilon, config.beta
        tests = (8 * math.log(3 * config.ticks / beta) + 4 * math.log(3 * config.c_max / beta)) / epsilon
        printed = 6 * (_err(config, config.c_max, beta / 3, epsilon / 2) + tests)
    else:
        printed = _printed_segments(config, mechanism, value)
    return Promise(
        name="answer",
        bounds=f"error of every answer, over {config.ticks:,} ticks",
        assumes=f"no watched value passes {value:,}",
        beta=config.beta,
        printed=printed,
        ours=max(_error(config, mechanism, segment, value) for segment in range(1, last_segment(mechanism, value) + 1)),
        source=_SOURCES[config.mechanism],
    )


def last_segment(mechanism: OrderStatistics, value: int) -> int:
    """Return the segment that does not end while no watched value passes `value` (but for beta)."""
    segments = mechanism.segments
    if segments is None:
        return 1
    for segment in range(1, segments.most):
        if segments.threshold(segment) >= value + segments.column_error(segment) + segments.bounds(segment)[0]:
            return segment
    return segments.most


def _error(config: MaxConfig, mechanism: OrderStatistics, segment: int, value: int) -> float:
    published, segments = mechanism.error(segment), mechanism.segments
    if config.mechanism != "doubling" or segments is None:
        return published
    high = min(float(value), segments.threshold(segment) + segments.bounds(segment)[1] + segments.column_error(segment))
    low = 0.0
    if segment > 1:
        below = segment - 1
        low = segments.threshold(below) - segments.bounds(below)[0] - segments.column_error(below)
    return min(published, high - max(low, 0.0) + segments.column_error(segment))


def _printed_segments(config: MaxConfig, mechanism: OrderStatistics, value: int) -> float:
    alone = config.mechanism == "doubling"
    epsilon = mechanism.guarantee.epsilon / (1 if alone else 2)
    beta = config.beta / (1 if alone else 2)
    d, log_ticks = len(config.domain), max(1.0, math.log2(config.ticks))
    tests = (8 * math.log(3 * config.ticks / beta) + 4 * math.log(3 * log_ticks / beta)) / epsilon

    def column_error(segment: int) -> float:
        each = 4 * config.most_columns * config.max_count / epsilon
        return each * math.sqrt(2 * segment) * math.log(3 * d * log_ticks / beta)

    last = 1
    # At most log2 T segments are the paper's own, whose values cannot pass T.
    while 2 ** (last - 1) <= value + column_error(last) + tests and (last < log_ticks or value > config.ticks):
        last += 1
    noise = column_error(last)
    growth = 2.0 ** (last - 1) + 2 * (tests + noise + last)
    if alone:
        return growth + noise
    if mechanism.queries.k == 1:
        part = beta / last
        inner = 8 * math.log(3 * config.ticks / part) + 4 * math.log(3 * growth / part)
        return 6 * (noise + _err(config, growth, part / 3, epsilon / 2) + inner / epsilon)
    return _printed_several(config, mechanism.queries.k, growth, noise, epsilon, beta / last)


def _printed_several(config: MaxConfig, k: int, growth: float, noise: float, epsilon: float, beta: float) -> float:
    intervals, ticks = k * growth, config.ticks
    err = _err(config, intervals, beta / 3, epsilon / 3)
    many, each = math.log(6 * intervals / beta), math.log(6 * ticks / beta)
    clearance = 18 / epsilon * (k * many + each)
    step = 3 * (clearance + err + noise)
    tests = 12 / epsilon * (many + each)
    update = 6 * k / epsilon * math.log(3 * intervals / beta)
    return max(step + clearance + 3 * err + tests + 2 * update + 1, step + 3 * clearance + 2 * err) + noise


def _err(config: MaxConfig, intervals: float, beta: float, epsilon: float) -> float:
    """Return 4 D log2(n) ln(2 d n / beta) / epsilon: Lemma 52 for H, each column at epsilon / D."""
    reach = config.most_columns * config.max_count
    levels = max(1.0, math.log2(intervals))
    return 4 * reach * levels * math.log(2 * len(config.domain) * intervals / beta) / epsilon
