"""The error promised for one-shot releases, for sums of them, and for `pay_what_you_get`.

Noise is that of the calibrated algorithm; the papers' is tau^2 = D0 Dinf^2 / (2 rho),
b = Dinf sqrt(k / (4 rho)) (half of rho picks). R releases (one a tick), n labels, H = h_(kbar+1);
N blocks are added at the worst tick, printed (r - 1) L_r. Promises as printed:

    counts, Gaussian         000 Thm 2: sqrt(2 tau^2 ln(2 n R/beta)); ours: the integer law's exact
                             quantile
    counts, Laplace          001 Fact 6: b ln(n R/beta); ours: as above
    hidden, positive_*       004 Thm 7: h + Z <= m: m + the noise; m = Dinf + b ln(D0/(2 delta)) or
                             Dinf + s PhiInv(1 - delta/D0)
    hidden, unk_gauss        000 Alg. 9: above H: m + the noise of Z' - Z,
                             m = Dinf + sqrt2 s PhiInv(1 - delta/D0)
    hidden, limit_dom_...    002 Lemma 6.2: the same with Laplace noise, m = Dinf + x,
                             (1/2 + x/(4b)) e^(-x/b) = delta/D0
    selection, known_gumbel  000 Lemma D.1: a = b ln((d - 1) k R/beta): peeling, each pick is short
                             of the largest by more with probability at most (d - 1) e^(-a/b);
                             printed with d
    hidden, limit_dom        000 Alg. 6: where fewer than k are shown, above H: BOTTOM's height + a
                             over kbar others; printed height Dinf + 2 b ln(kbar/delta), here half
                             that and min(D0, kbar)
    hidden, pay_what_...     004 Thms 9, 10: the same; printed height Dinf + b ln(kbar/delta), picks
                             k* in all
    counts, meta             000 Thms 2, 3: known_gauss: sqrt(2 N tau_cell^2 ln(2 n R/beta)),
                             tau_cell^2 = L_r tau^2; others: N (what a block hides) + the noise of N
                             blocks; shown too high: `subset_bound`
    counts, misra_gries      003 Thm 8:
                             weight/(k+1) + N (1 + 2 ln(3/delta')/e + 2 ln((k+1) R/beta)/e),
                             e = sqrt(2 rho/L)/m and delta' = delta_cell e^(-e (m-1))/m for an event
                             of m items; "merge": 004 Thm 7, l2 sqrt(k); "pure": 003 Section 6:
                             weight/(k+1) + N 2 b ln(d R/beta), b = 2 L m/epsilon
Where kbar is chosen privately the promise is for kbar_max, and the choice adds
b ln(candidates R/beta).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from workers.mechanisms.misra_gries.misra_gries import MisraGries, MisraGriesConfig
from workers.mechanisms.misra_gries.pure import PureMisraGries
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LAPLACE,
    LIMITED,
    PICKING,
    Algorithm,
    Name,
    Parameters,
    Picking,
    laplace_quantile,
    quantile,
)
from workers.mechanisms.one_shot.config import MetaConfig, OneShotConfig, PayWhatYouGetConfig
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.running.meta import Meta
from workers.privacy.theorems.promise import (
    Data,
    Promise,
    bottom_of,
    discovery_delta,
    laplace_bound,
    laplace_sum,
    most_blocks,
    normal_bound,
    normal_quantile,
    paper_rho,
    subset_bound,
    ticks_of,
)


def one_shot(config: OneShotConfig, mechanism: OneShot, beta: float, data: Data) -> tuple[Promise, ...]:
    """Return what each tick promises of counts shown, and of what is not shown or not chosen."""
    name, p = config.algorithm, config.parameters()
    algorithm, releases = mechanism.algorithm, ticks_of(config, data)
    rho, delta = paper_rho(config, discovers=name not in KNOWN), discovery_delta(mechanism)
    labels = p.domain or data.items
    values = releases * _looked_at(name, p, labels)
    spread = _paper_spread(name, p, rho)
    assumes = "" if name in KNOWN or name in LIMITED else f"at most {labels:,} labels occur in a tick"
    counts = Promise(
        name="counts", bounds=f"error of every count shown, over {releases:,} ticks", assumes=assumes, beta=beta,
        printed=_paper_noise(name, spread, values, beta), ours=_largest(algorithm, values, beta), source=_SOURCE[name][0],
    )  # fmt: skip
    if name == "known_gauss":
        return (counts,)
    if isinstance(algorithm, Picking):
        printed, ours = _choices(name, p, algorithm, spread / 2, labels, releases, delta, beta)
        known = name == "known_gumbel"
        bounds = _above(p) + " where fewer than k are"
        if known:
            bounds = "how far an item not shown lies above one that is, at every tick"
        other = Promise(
            name="selection" if known else "hidden", bounds=bounds, assumes="", beta=beta, printed=printed, ours=ours,
            source=_SOURCE[name][1],
        )  # fmt: skip
        return counts, other
    height = paper_height(name, p, spread, delta)
    threshold = algorithm.threshold or 0
    if name in LIMITED:
        hidden, bounds = threshold + _largest(algorithm, values, beta, difference=True), _above(p)
        tail = normal_bound(2 * spread**2, values, beta)
        if name in LAPLACE:
            tail = laplace_sum(2, spread, values, beta)
    else:
        hidden, bounds = threshold + _largest(algorithm, values, beta), "true count of an item not shown, at every tick"
        tail = _paper_noise(name, spread, values, beta)
    return counts, Promise(
        name="hidden", bounds=bounds, assumes=assumes, beta=beta, printed=height + tail, ours=hidden,
        source=_SOURCE[name][1],
    )  # fmt: skip


def pay(config: PayWhatYouGetConfig, mechanism: PayWhatYouGet, beta: float, data: Data) -> Promise:
    """Bound how far above h_(kbar+1) an item may lie that an answer with BOTTOM does not name."""
    p = config.parameters()
    answers = min(config.queries, max(1, ticks_of(config, data) // config.every))
    picks = min(config.labels, answers * config.k)
    delta = discovery_delta(mechanism) / config.queries
    paper = config.max_count * math.sqrt(config.labels / (8 * paper_rho(config, discovers=True)))
    ours = _bottom(mechanism.public()) + _picking(float(mechanism.scale), p, picks, answers, beta)
    return Promise(
        name="hidden", bounds=_above(p) + " by an answer that is not complete", assumes="", beta=beta,
        printed=p.max_count + paper * math.log(p.kbar / delta) + _picking(paper, p, picks, answers, beta), ours=ours,
        source="Rogers: Theorems 9 and 10; Cardoso, Rogers: Lemma D.1",
    )  # fmt: skip


def blocks(config: MetaConfig, mechanism: Meta, beta: float, data: Data) -> Promise:
    """Bound MetaAlgo's sums; an item that a block does not show counts as 0 in it."""
    name, p, algorithm = config.algorithm, config.parameters(), mechanism.algorithm
    releases = ticks_of(config, data)
    most = {"known_gumbel": p.k, "limit_dom": p.k}.get(name, p.kbar if name in LIMITED else data.items)
    labels = p.domain or min(most, data.items)
    where = " in a block" if name in PICKING + LIMITED else ""
    assumes = "" if name == "known_gauss" else f"at most {most:,} labels occur{where}"
    rho = paper_rho(config, discovers=name not in KNOWN) / mechanism.levels
    delta = discovery_delta(mechanism) / mechanism.levels
    spread, worst = _paper_spread(name, p, rho), (mechanism.radix - 1) * mechanism.levels
    used, half = most_blocks(releases, mechanism.radix), beta / 2
    if name == "known_gauss":
        printed = normal_bound(worst * spread**2, labels * releases, beta)
        ours = normal_bound(used * algorithm.sd**2, labels * releases, beta)
    elif isinstance(algorithm, Picking):
        below = _choices(name, p, algorithm, spread / 2, labels, releases, delta, half)
        printed = worst * below[0] + subset_bound(spread**2, worst, labels * releases, half)
        ours = used * below[1] + subset_bound(algorithm.sd**2, used, labels * releases, half)
    else:
        copies = 2 if name in LIMITED else 1
        height = worst * paper_height(name, p, spread, delta)
        printed = height + _paper_sum(name, spread, copies * worst, labels * releases, beta)
        ours = _sum_error(algorithm, used, copies, labels * releases, beta)
    return Promise(
        name="counts", bounds=f"error of every count, over {releases:,} ticks", assumes=assumes, beta=beta,
        printed=printed, ours=ours, source="Cardoso, Rogers: Theorems 2 and 3; " + _SOURCE[name][-1],
    )  # fmt: skip


def sketch(config: MisraGriesConfig, mechanism: MisraGries, beta: float, data: Data) -> Promise:
    """Bound the error of Misra-Gries on the tree, an item that is not shown counting as 0."""
    if isinstance(mechanism, PureMisraGries):
        return _pure_sketch(config, mechanism, beta, data)
    tree, k, releases = mechanism.tree, config.size, ticks_of(config, data)
    worst, used, lost = (tree.radix - 1) * tree.levels, most_blocks(releases, tree.radix), data.weight / (k + 1)
    rho = paper_rho(config, discovers=True) / tree.levels
    delta = discovery_delta(mechanism) / tree.levels
    if config.release == "pmg":
        together = config.max_items * config.max_count
        epsilon = math.sqrt(2 * rho) / together
        log_delta = math.log(together / delta) + epsilon * (together - 1)
        each = 1 + 2 * (math.log(3) + log_delta) / epsilon + 2 * math.log((k + 1) * releases / beta) / epsilon
        printed, source, copies = worst * each, "Lebeda, Tetek: Theorem 8 in each block", 2
    else:
        spread = config.max_count * math.sqrt(k / (2 * rho))
        height = config.max_count + spread * normal_quantile(delta / k)
        printed = worst * height + normal_bound(worst * spread**2, min(data.items, worst * k) * releases, beta)
        source, copies = "Lebeda, Tetek: Section 7; Rogers: Theorem 7 in each block", 1
    values = min(data.items, used * k) * releases
    variance = copies * float(mechanism.sigma_squared)
    ours = max(
        lost + used * (mechanism.threshold(1) or 0) + normal_bound(used * variance, values, beta),
        subset_bound(variance, used, values, beta),
    )
    return Promise(
        name="counts", bounds=f"error of every count, over {releases:,} ticks",
        assumes=f"at most {data.items:,} labels and {data.weight:,} counts in an epoch", beta=beta,
        printed=lost + printed, ours=ours, source=source,
    )  # fmt: skip


def _pure_sketch(config: MisraGriesConfig, mechanism: PureMisraGries, beta: float, data: Data) -> Promise:
    """Bound the same over a declared domain.

    One cell is released at each tick: R d noises. A label that a cell does not show lies in it
    below one that is shown with a count of 0 before noise (k labels at most have more): its own is
    at most two noises.
    """
    tree, releases = mechanism.tree, ticks_of(config, data)
    worst, used, lost = (tree.radix - 1) * tree.levels, most_blocks(releases, tree.radix), data.weight / (config.size + 1)
    values = len(mechanism.domain()) * releases
    scale = 2 * tree.levels * config.max_items * config.max_count / (config.epsilon or 0.0)
    largest = laplace_quantile(mechanism.scale, beta / values / 2) - 1
    return Promise(
        name="counts", bounds=f"error of every count, over {releases:,} ticks",
        assumes=f"at most {data.weight:,} counts of the domain in an epoch", beta=beta,
        printed=lost + worst * 2 * laplace_bound(scale, values, beta),
        ours=lost + used * 2 * largest / (config.size + 1) + 0.5, source="Lebeda, Tetek: Section 6 in each block",
    )  # fmt: skip


# ---- the papers' noise and thresholds ----

_D1 = "Cardoso, Rogers: Lemma D.1"
_SOURCE: dict[Name, tuple[str, str]] = {
    "known_gauss": ("Cardoso, Rogers: Theorems 2 and 7", "Theorem 7"),
    "known_gumbel": ("Cardoso, Rogers: Theorems 2 and 8", _D1),
    "positive_laplace": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
    "positive_gauss": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
    "unk_gauss": ("Cardoso, Rogers: Theorems 2 and 5", "Cardoso, Rogers: Theorem 5; Rogers: Theorem 8"),
    "limit_dom_laplace": ("Durfee, Rogers: Lemma 6.2", "Durfee, Rogers: Lemma 6.2"),
    "limit_dom": ("Cardoso, Rogers: Theorems 2 and 9", f"{_D1}, Algorithm 6"),
}


def _paper_spread(name: Name, p: Parameters, rho: float) -> float:
    """Return tau, or b of Laplace noise; for picks tau = 2 b with k/tau^2 = rho."""
    return p.max_count * math.sqrt(p.k / rho if name in PICKING else p.max_items / (2 * rho))


def _paper_noise(name: Name, spread: float, values: float, beta: float) -> float:
    return laplace_bound(spread, values, beta) if name in LAPLACE else normal_bound(spread**2, values, beta)


def _paper_sum(name: Name, spread: float, terms: int, values: float, beta: float) -> float:
    if name in LAPLACE:
        return laplace_sum(terms, spread, values, beta)
    return normal_bound(terms * spread**2, values, beta)


def paper_height(name: Name, p: Parameters, spread: float, delta: float) -> float:
    """Return the papers' threshold, or its height above h_(kbar+1), for noise of this tau or b."""
    each = delta / p.max_items
    if name == "positive_laplace":
        return p.max_count + spread * math.log(p.max_items / (2 * delta))
    if name != "limit_dom_laplace":
        bar = math.sqrt(2) if name == "unk_gauss" else 1  # which has noise of its own
        return p.max_count + spread * normal_quantile(each) * bar
    # x / b with (1/2 + x/(4b)) e^(-x/b) = delta/D0, by bisection.
    low, high = 0.0, 2000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (0.5 + middle / 4) * math.exp(-middle) > each else (low, middle)
    return p.max_count + spread * high


# ---- what is built here ----


def _looked_at(name: Name, p: Parameters, labels: int) -> int:
    """Return how many labels of one release have noise that can matter."""
    if name in PICKING:
        return p.k
    return min(labels, p.kbar) if name in LIMITED else labels


def _largest(algorithm: Algorithm, values: float, beta: float, *, difference: bool = False) -> float:
    """Bound all |noise values|, or all differences of two: the exact integer law."""
    each = beta / (values if difference else 2 * values)
    return quantile(algorithm.table, each, difference=difference) - 1


def _sum_error(algorithm: Algorithm, used: int, copies: int, values: float, beta: float) -> float:
    """Bound sums of blocks: low by what they hide, high by the noise of those that show."""
    height = used * (algorithm.threshold or 0)
    if isinstance(algorithm.table, DiscreteLaplace):
        scale = float(algorithm.table.scale)
        high = laplace_sum(used, scale, values * 2.0**used, beta)
        return max(height + laplace_sum(copies * used, scale, values, beta), high)
    low = height + normal_bound(copies * used * algorithm.sd**2, values, beta)
    return max(low, subset_bound(algorithm.sd**2, used, values, beta))


def _choices(
    name: Name, p: Parameters, algorithm: Picking, paper: float, labels: int, releases: int, delta: float, beta: float
) -> tuple[float, float]:
    """Return (printed, ours): how far an item not picked may lie above one shown, or h_(kbar+1)."""
    scale = float(algorithm.scale)
    if name == "known_gumbel":
        among = p.k * releases / beta
        return paper * math.log(labels * among), scale * math.log(max(1, labels - 1) * among)
    picks = p.k * releases
    height = p.max_count + 2 * paper * math.log(p.kbar / delta)
    return (
        height + _picking(paper, p, picks, releases, beta),
        _bottom(algorithm.public()) + _picking(scale, p, picks, releases, beta),
    )


def _picking(scale: float, p: Parameters, picks: int, releases: int, beta: float) -> float:
    """Bound how far picks among kbar items and BOTTOM, and of kbar, fall short of the largest."""
    if not p.private:
        return scale * math.log(p.kbar * picks / beta)
    candidates = max(1, p.kbar - p.k)
    return scale * (math.log(2 * p.kbar * picks / beta) + math.log(2 * candidates * releases / beta))


def _bottom(public: Mapping[str, object]) -> int:
    """Return BOTTOM's height above h_(kbar+1)."""
    above = bottom_of(public)
    if above is None:
        raise TypeError(f"bottom = {public.get('bottom')!r}: not BOTTOM's parameters")
    return above


def _above(p: Parameters) -> str:
    return f"how far an item not shown lies above the ({p.kbar:,} + 1)-th largest"
