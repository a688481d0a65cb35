"""Accuracy bounds from each mechanism's own theorem: as printed in the paper, and as proved here.

`error_bounds` returns the main bound first. "counts" bounds the noise on published counts, "hidden"
the true count of an unpublished item, "selection" how wrong a choice may be, "answer" the error of
an order statistic, all of them the worst over labels and ticks. Neighbours, costs and noise are
those of `workers.mechanisms`; nothing here changes a release, so floats suffice.

`printed` is the paper's algorithm with the paper's accounting and constants at the same budget (for
epsilon: its conversion rho + 2 sqrt(rho ln(1/delta))); `ours` is proved for the noise, thresholds
and shares in use. Where a paper bounds one count at one tick, both take the union over an epoch;
where it gives only O(.), the constants are derived below.

    beta        probability that a bound fails, over an epoch of one stream key
    T, d, L_r   ticks, labels, digits of the horizon in base r (the base in use, or the best one)
    tau         the papers' noise at this budget: known budget rho, tau^2 = D0 Dinf^2 / (2 rho)
    b           scale of Laplace or Gumbel noise at this budget
    s_j^2       variance of level j of a counter

    known_base      000 Thm 2: sqrt(2 (r-1) L_r^2 tau^2 ln(2 d T / beta)); ours: the counter's worst
                    variance
    unk_base        000 Thm 2, Lemma F.2: the same; hidden: m_delta + the same,
                    m_delta = Dinf + tau L_r sqrt(r-1) PhiInv(1 - delta/T)
    sparse_gumb     000 Thm 4, App. D: counters at tau_2; selection: eta_t + noise of the test, its
                    threshold and the counters, tau sqrt(s) O(sqrt(r-1) L_r + ln d) in D

Selection in sparse_gumb. If switches remain and none is made at t, every outside item satisfies
count + Y <= least + N + eta_t + Z, N the noise of the least published count: the item exceeds it
by at most eta_t + |N| + Z (+ |Y| where Y may be negative). A choice made at t leaves no outside
item more than b ln(d k (s+1) / beta) above an inside one (exponential mechanism). beta is split
evenly over the tails.

One-shot releases, their sums, and `pay_what_you_get`. `ours` has the calibrated noise; the papers'
is tau^2 = D0 Dinf^2 / (2 rho), b = Dinf sqrt(k / (4 rho)) (half of rho picks). R releases (one per
tick), n labels, H = h_(kbar+1); the worst tick adds N blocks, printed (r - 1) L_r. As printed:

    Gaussian noise      counts, 000 Thm 2: sqrt(2 tau^2 ln(2 n R/beta)); ours: the integer law's
                        exact quantile
    Laplace noise       counts, 001 Fact 6: b ln(n R/beta); ours: as above
    positive_*          hidden, 004 Thm 7: h + Z <= m: m + the noise; m = Dinf + b ln(D0/(2 delta))
                        or Dinf + s PhiInv(1 - delta/D0)
    unk_gauss           hidden, 000 Alg. 9: above H: m + the noise of Z' - Z,
                        m = Dinf + sqrt2 s PhiInv(1 - delta/D0)
    limit_dom_laplace   hidden, 002 Lemma 6.2: the same with Laplace noise, m = Dinf + x,
                        (1/2 + x/(4b)) e^(-x/b) = delta/D0
    known_gumbel        selection, 000 Lemma D.1: a = b ln((d - 1) k R/beta), printed with d: by
                        peeling, a pick falls short by more with probability <= (d - 1) e^(-a/b)
    limit_dom           hidden, 000 Alg. 6: where fewer than k are shown, above H: BOTTOM's height
                        + a over kbar others; printed height Dinf + 2 b ln(kbar/delta), here half
                        that and min(D0, kbar)
    pay_what_you_get    hidden, 004 Thms 9, 10: the same; printed height Dinf + b ln(kbar/delta),
                        picks k* in all
    meta                counts, 000 Thms 2, 3: known_gauss: sqrt(2 N tau_cell^2 ln(2 n R/beta)),
                        tau_cell^2 = L_r tau^2; others: N (what a block hides) + the noise of N
                        blocks; shown too high: `subset_bound`
    misra_gries         counts, 003 Thm 8: with the weight w and events of m items, w/(k+1) +
                        N (1 + 2 ln(3/delta')/e + 2 ln((k+1) R/beta)/e), e = sqrt(2 rho/L)/m,
                        delta' = delta_cell e^(-e (m-1))/m; "merge": 004 Thm 7, l2 sqrt(k); "pure":
                        003 Section 6: w/(k+1) + N 2 b ln(d R/beta), b = 2 L m/epsilon

A privately chosen kbar: the bound holds for kbar_max, and the choice adds b ln(candidates R/beta).

Order statistics (paper 001). `ours` is the `error` in snapshots, in the worst segment that the data
can reach. Segment j ends only if value + |G_j| + low > K_j, so a value that stays at V never ends
the first segment with K_j >= V + column_error(j) + low. `doubling` gets a smaller bound: the true
value of segment j lies between K_(j-1) - low - |G_(j-1)|, since the previous segment has ended, and
min(V, K_j + high + |G_j|); the answer is the value at the segment's start, off by |G_j|.

`printed` is the paper's pure algorithm at the epsilon of the guarantee, with d, the l1 norm of a
row, replaced by D Dinf (D columns an event changes). With e the epsilon of one level:

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

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from statistics import NormalDist
from types import MappingProxyType
from typing import Any

from msgspec import structs

from workers.mechanisms.accounting import paper_epsilon
from workers.mechanisms.budget import DISCOVERY_SHARE
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.tree import best_radix, digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries, PureMisraGries
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
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBase, UnkBase
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb
from workers.privacy.plan.model import Bound, Noise, Printed
from workers.privacy.plan.noise import DigitCurve, counter_of, curve_of, laplace_q

_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Assumptions about the data. Privacy does not depend on them.

    `items`: occurring labels of an unknown domain. `value`: largest watched value (unbounded order
    statistics). `weight`: sum of an epoch's counts (sketches). `ticks`: for unbounded horizons.
    """

    items: int = 1_000
    value: int = 1_000
    weight: int = 100_000
    ticks: int = 1 << 20

    def __post_init__(self) -> None:
        for name in ("items", "value", "weight", "ticks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}: must be at least 1")


def paper_rho(config: HistogramConfig, *, discovers: bool) -> float:
    """Return `rho`, or invert the papers' conversion epsilon = rho + 2 sqrt(rho ln(1/delta))."""
    if config.rho is not None:
        return config.rho
    conversion = config.delta * (1 - (DISCOVERY_SHARE if discovers else 0.0))
    return _rho_printed(config.epsilon or 0.0, conversion)


def _rho_printed(epsilon: float, delta: float) -> float:
    log = -math.log(delta)
    # The difference of the roots, without cancellation: a tiny epsilon must not give 0.
    return (epsilon / (math.sqrt(log + epsilon) + math.sqrt(log))) ** 2


def ticks_of(config: HistogramConfig, data: Data) -> int:
    return config.horizon_ticks or data.ticks


def normal_bound(variance: float, values: float, beta: float) -> float:
    """Bound all |sub-Gaussian values|: P(|X| > x) <= 2 exp(-x^2 / (2 v)) (000 Theorem 2)."""
    return math.sqrt(2 * variance * math.log(2 * values / beta))


def laplace_bound(scale: float, values: float, beta: float) -> float:
    """Bound all |Laplace values|: P(|X| > x) = exp(-x / b) (001 Fact 6)."""
    return scale * math.log(values / beta)


def laplace_sum(terms: int, scale: float, values: float, beta: float) -> float:
    """Bound all |sums of `terms` Laplace values| (001 Lemma 2)."""
    log = math.log(2 * values / beta)
    return 2 * scale * math.sqrt(2 * log) * max(math.sqrt(terms), math.sqrt(log))


def subset_bound(variance: float, terms: int, values: float, beta: float) -> float:
    """Bound the sums over all 2^terms subsets, as noise decides which cells show an item."""
    return math.sqrt(
        2 * terms * variance * (terms * math.log(2) + math.log(2 * values / beta))
    )


def most_blocks(ticks: int, radix: int) -> int:
    """Return the most blocks added at any t <= ticks: the largest sum of base-r digits."""
    digits = DigitCurve(radix, [1.0] * digits_of(ticks, radix))
    return int(digits.variance(digits.noisiest(ticks)[:1])[0])


def tree_variance(tau_squared: float, ticks: int, radix: int) -> float:
    """Return (r - 1) L_r^2 tau^2 (000 Theorem 2)."""
    return float((radix - 1) * digits_of(ticks, radix) ** 2) * tau_squared


def worst_variance(mechanism: Mechanism, ticks: int) -> float:
    """Return the counter's largest variance at any tick up to `ticks`, without rounding."""
    curve = curve_of(counter_of(mechanism))
    return float(curve.variance(curve.noisiest(ticks)[:1])[0]) - 1 / 12


def normal_quantile(tail: float) -> float:
    """Return PhiInv(1 - tail); 1 - tail as a float would lose a small tail."""
    return -_NORMAL.inv_cdf(tail)


def discovery_delta(mechanism: Mechanism) -> float:
    return dict(mechanism.cost().failures).get("discovery", 0.0)


def scales(mechanism: Mechanism) -> list[float]:
    found = mechanism.public()["scales"]
    if not isinstance(found, list):
        raise TypeError(f"scales = {found!r}: not a list")
    return [float(Fraction(text)) for text in found]


def bottom_of(public: Mapping[str, Any]) -> int:
    """Return BOTTOM's height above h_(kbar+1), from a mechanism's parameters; 0 without one."""
    bottom = public.get("algorithm", public).get("bottom")
    return int(bottom["above"]) if bottom else 0


def one_shot_bounds(mechanism: OneShot, beta: float, data: Data) -> tuple[Bound, ...]:
    config = mechanism.config
    name = config.algorithm
    p = config.parameters()
    algorithm = mechanism.algorithm
    releases = ticks_of(config, data)
    rho = paper_rho(config, discovers=name not in KNOWN)
    delta = discovery_delta(mechanism)
    labels = p.domain or data.items
    looked_at = min(labels, p.kbar) if name in LIMITED else labels
    values = releases * (p.k if name in PICKING else looked_at)
    spread = _paper_spread(name, p, rho)
    assumes = (
        f"at most {labels:,} labels occur in a tick"
        if name not in KNOWN + LIMITED
        else ""
    )
    source, further = _SOURCE[name]
    noise = normal_bound(spread**2, values, beta)
    own = _largest(algorithm, values, beta)
    if name in LAPLACE:
        noise = laplace_bound(spread, values, beta)
    bounds = f"error of every count shown, over {releases:,} ticks"
    counts = Bound("counts", bounds, assumes, beta, own, noise, source)
    if name == "known_gauss":
        return (counts,)
    if isinstance(algorithm, Picking):
        printed, ours = _choices(p, algorithm, spread / 2, releases, delta, beta)
        bounds = _above(p) + " where fewer than k are"
        if known := name == "known_gumbel":
            bounds = "by how much a hidden item exceeds a shown one, at every tick"
        kind = "selection" if known else "hidden"
        return counts, Bound(kind, bounds, "", beta, ours, printed, further)
    bounds = "true count of an item not shown, at every tick"
    if name in LIMITED:
        bounds = _above(p)
        own = _largest(algorithm, values, beta, difference=True)
        noise = _paper_sum(name, spread, 2, values, beta)
    printed = paper_height(name, p, spread, delta) + noise
    ours = (algorithm.threshold or 0) + own
    return counts, Bound("hidden", bounds, assumes, beta, ours, printed, further)


def pay_bound(mechanism: PayWhatYouGet, beta: float, data: Data) -> Bound:
    """Bound how far an item that an answer with BOTTOM omits may lie above h_(kbar+1)."""
    config = mechanism.config
    p = mechanism.config.parameters()
    answers = min(config.queries, max(1, ticks_of(config, data) // config.every))
    picks = min(config.labels, answers * config.k)
    delta = discovery_delta(mechanism) / config.queries
    paper = config.max_count * math.sqrt(
        config.labels / (8 * paper_rho(config, discovers=True))
    )
    ours = bottom_of(mechanism.public()) + _picking(
        float(mechanism.scale), p, picks, answers, beta
    )
    height = p.max_count + paper * math.log(p.kbar / delta)
    printed = height + _picking(paper, p, picks, answers, beta)
    bounds = _above(p) + " by an answer that is not complete"
    source = "Rogers: Theorems 9 and 10; Cardoso, Rogers: Lemma D.1"
    return Bound("hidden", bounds, "", beta, ours, printed, source)


def meta_bound(mechanism: Meta, beta: float, data: Data) -> Bound:
    """Bound MetaAlgo's sums; an item that a block does not show counts as 0 in that block."""
    config = mechanism.config
    name = config.algorithm
    p = config.parameters()
    algorithm = mechanism.algorithm
    releases = ticks_of(config, data)
    most = p.k if name in PICKING else p.kbar if name in LIMITED else data.items
    labels = p.domain or min(most, data.items)
    where = " in a block" if name in PICKING + LIMITED else ""
    assumes = "" if name == "known_gauss" else f"at most {most:,} labels occur{where}"
    rho = paper_rho(config, discovers=name not in KNOWN) / mechanism.levels
    delta = discovery_delta(mechanism) / mechanism.levels
    spread = _paper_spread(name, p, rho)
    worst = (mechanism.radix - 1) * mechanism.levels
    used = most_blocks(releases, mechanism.radix)
    half = beta / 2
    if name == "known_gauss":
        printed = normal_bound(worst * spread**2, labels * releases, beta)
        ours = normal_bound(used * algorithm.sd**2, labels * releases, beta)
    elif isinstance(algorithm, Picking):
        below = _choices(p, algorithm, spread / 2, releases, delta, half)
        printed = worst * below[0] + subset_bound(
            spread**2, worst, labels * releases, half
        )
        ours = used * below[1] + subset_bound(
            algorithm.sd**2, used, labels * releases, half
        )
    else:
        copies = 2 if name in LIMITED else 1
        height = worst * paper_height(name, p, spread, delta)
        printed = height + _paper_sum(
            name, spread, copies * worst, labels * releases, beta
        )
        ours = _sum_error(algorithm, used, copies, labels * releases, beta)
    bounds = f"error of every count, over {releases:,} ticks"
    source = "Cardoso, Rogers: Theorems 2 and 3; " + _SOURCE[name][-1]
    return Bound("counts", bounds, assumes, beta, ours, printed, source)


def sketch_bound(mechanism: MisraGries, beta: float, data: Data) -> Bound:
    """Bound the error of Misra-Gries on the tree; an unpublished item counts as 0."""
    if isinstance(mechanism, PureMisraGries):
        return _pure_sketch_bound(mechanism, beta, data)
    config = mechanism.config
    tree = mechanism.tree
    k = config.size
    releases = ticks_of(config, data)
    worst = (tree.radix - 1) * tree.levels
    used = most_blocks(releases, tree.radix)
    lost = data.weight / (k + 1)
    rho = paper_rho(config, discovers=True) / tree.levels
    delta = discovery_delta(mechanism) / tree.levels
    if config.release == "pmg":
        together = config.max_items * config.max_count
        epsilon = math.sqrt(2 * rho) / together
        log_delta = math.log(together / delta) + epsilon * (together - 1)
        tails = math.log(3) + log_delta, math.log((k + 1) * releases / beta)
        each = 1 + 2 * tails[0] / epsilon + 2 * tails[1] / epsilon
        printed = worst * each
        source = "Lebeda, Tetek: Theorem 8 in each block"
        copies = 2
    else:
        spread = config.max_count * math.sqrt(k / (2 * rho))
        height = config.max_count + spread * normal_quantile(delta / k)
        values = min(data.items, worst * k) * releases
        printed = worst * height + normal_bound(worst * spread**2, values, beta)
        source = "Lebeda, Tetek: Section 7; Rogers: Theorem 7 in each block"
        copies = 1
    values = min(data.items, used * k) * releases
    variance = copies * float(mechanism.sigma_squared)
    low = (
        lost
        + used * (mechanism.threshold(1) or 0)
        + normal_bound(used * variance, values, beta)
    )
    ours = max(low, subset_bound(variance, used, values, beta))
    bounds = f"error of every count, over {releases:,} ticks"
    assumes = f"at most {data.items:,} labels and {data.weight:,} counts in an epoch"
    return Bound("counts", bounds, assumes, beta, ours, lost + printed, source)


def _pure_sketch_bound(mechanism: PureMisraGries, beta: float, data: Data) -> Bound:
    """Bound the error of Misra-Gries over a declared domain.

    Each tick releases one cell: R d noise values. At most k labels have a count above 0 before
    noise, so a label not shown ranks below a shown one with count 0: it has at most two noises.
    """
    config = mechanism.config
    tree = mechanism.tree
    releases = ticks_of(config, data)
    worst = (tree.radix - 1) * tree.levels
    used = most_blocks(releases, tree.radix)
    lost = data.weight / (config.size + 1)
    values = len(mechanism.domain()) * releases
    scale = (
        2 * tree.levels * config.max_items * config.max_count / (config.epsilon or 0.0)
    )
    largest = laplace_quantile(mechanism.scale, beta / values / 2) - 1
    bounds = f"error of every count, over {releases:,} ticks"
    assumes = f"at most {data.weight:,} counts of the domain in an epoch"
    printed = lost + worst * 2 * laplace_bound(scale, values, beta)
    ours = lost + used * 2 * largest / (config.size + 1) + 0.5
    source = "Lebeda, Tetek: Section 6 in each block"
    return Bound("counts", bounds, assumes, beta, ours, printed, source)


_D1 = "Cardoso, Rogers: Lemma D.1"
_SOURCE: dict[Name, tuple[str, str]] = {
    "known_gauss": ("Cardoso, Rogers: Theorems 2 and 7", "Theorem 7"),
    "known_gumbel": ("Cardoso, Rogers: Theorems 2 and 8", _D1),
    "positive_laplace": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
    "positive_gauss": ("Rogers: Theorem 7", "Rogers: Theorem 7"),
    "unk_gauss": (
        "Cardoso, Rogers: Theorems 2 and 5",
        "Cardoso, Rogers: Theorem 5; Rogers: Theorem 8",
    ),
    "limit_dom_laplace": ("Durfee, Rogers: Lemma 6.2", "Durfee, Rogers: Lemma 6.2"),
    "limit_dom": ("Cardoso, Rogers: Theorems 2 and 9", f"{_D1}, Algorithm 6"),
}


def _paper_spread(name: Name, p: Parameters, rho: float) -> float:
    """Return tau, or b of Laplace noise; for picks tau = 2 b with k/tau^2 = rho."""
    return p.max_count * math.sqrt(
        p.k / rho if name in PICKING else p.max_items / (2 * rho)
    )


def _paper_sum(
    name: Name, spread: float, terms: int, values: float, beta: float
) -> float:
    if name in LAPLACE:
        return laplace_sum(terms, spread, values, beta)
    return normal_bound(terms * spread**2, values, beta)


def paper_height(name: Name, p: Parameters, spread: float, delta: float) -> float:
    """Return the papers' threshold, or its height above h_(kbar+1), for noise of this tau or b."""
    each = delta / p.max_items
    if name == "positive_laplace":
        return p.max_count + spread * math.log(p.max_items / (2 * delta))
    if name != "limit_dom_laplace":
        bar = math.sqrt(2) if name == "unk_gauss" else 1  # the bar has its own noise
        return p.max_count + spread * normal_quantile(each) * bar
    # x / b with (1/2 + x/(4b)) e^(-x/b) = delta/D0, by bisection.
    low = 0.0
    high = 2000.0
    for _ in range(200):
        middle = (low + high) / 2
        if (0.5 + middle / 4) * math.exp(-middle) > each:
            low = middle
        else:
            high = middle
    return p.max_count + spread * high


def _largest(
    algorithm: Algorithm, values: float, beta: float, *, difference: bool = False
) -> float:
    """Bound all |noise values|, or all differences of two, by the exact integer law."""
    each = beta / (values if difference else 2 * values)
    return quantile(algorithm.table, each, difference=difference) - 1


def _sum_error(
    algorithm: Algorithm, used: int, copies: int, values: float, beta: float
) -> float:
    """Bound sums of blocks: too low by hidden counts, too high by the noise of showing blocks."""
    height = used * (algorithm.threshold or 0)
    if isinstance(algorithm.table, DiscreteLaplace):
        scale = float(algorithm.table.scale)
        high = laplace_sum(used, scale, values * 2.0**used, beta)
        return max(height + laplace_sum(copies * used, scale, values, beta), high)
    low = height + normal_bound(copies * used * algorithm.sd**2, values, beta)
    return max(low, subset_bound(algorithm.sd**2, used, values, beta))


def _choices(
    p: Parameters,
    algorithm: Picking,
    paper: float,
    releases: int,
    delta: float,
    beta: float,
) -> tuple[float, float]:
    """Return (printed, ours): how far an unpicked item may lie above a shown one or h_(kbar+1)."""
    scale = float(algorithm.scale)
    picks = p.k * releases
    above = bottom_of(algorithm.public())
    if not above:
        among = picks / beta
        return paper * math.log(p.domain * among), scale * math.log(
            max(1, p.domain - 1) * among
        )
    height = p.max_count + 2 * paper * math.log(p.kbar / delta)
    printed = height + _picking(paper, p, picks, releases, beta)
    return printed, above + _picking(scale, p, picks, releases, beta)


def _picking(
    scale: float, p: Parameters, picks: int, releases: int, beta: float
) -> float:
    """Bound the shortfall of picks among kbar items and BOTTOM, and of the choice of kbar."""
    if not p.private:
        return scale * math.log(p.kbar * picks / beta)
    chosen = math.log(2 * max(1, p.kbar - p.k) * releases / beta)
    return scale * (math.log(2 * p.kbar * picks / beta) + chosen)


def _above(p: Parameters) -> str:
    return f"how far an item not shown lies above the ({p.kbar:,} + 1)-th largest"


_SOURCES = {
    "bounded_max": "Henzinger, Sricharan, Steiner: Lemma 6",
    "doubling": "Henzinger, Sricharan, Steiner: Theorem 2",
    "two_level": "Henzinger, Sricharan, Steiner: Lemmas 14 and 15",
    "two_level_k": "Henzinger, Sricharan, Steiner: Lemmas 31 and 32",
}


def answer_bound(mechanism: OrderStatistics, data: Data) -> Bound:
    config = mechanism.config
    value = config.c_max if isinstance(config, BoundedMaxConfig) else data.value
    printed: float | None
    if not mechanism.guarantee.epsilon:
        # Delta alone covers this rho: the paper has no noise for a pure epsilon of 0.
        printed = None
    elif isinstance(config, BoundedMaxConfig):
        epsilon = mechanism.guarantee.epsilon
        beta = config.beta
        tests = 8 * math.log(3 * config.ticks / beta) + 4 * math.log(
            3 * config.c_max / beta
        )
        tests /= epsilon
        printed = 6 * (_err(config, config.c_max, beta / 3, epsilon / 2) + tests)
    else:
        printed = _printed_segments(mechanism, value)
    bounds = f"error of every answer, over {config.ticks:,} ticks"
    assumes = f"no watched value passes {value:,}"
    source = _SOURCES[config.mechanism]
    segments = range(1, last_segment(mechanism, value) + 1)
    ours = max(_error(mechanism, segment, value) for segment in segments)
    return Bound("answer", bounds, assumes, config.beta, ours, printed, source)


def last_segment(mechanism: OrderStatistics, value: int) -> int:
    """Return a segment that never ends, with probability 1 - beta, up to `value`."""
    segments = mechanism.segments
    if segments is None:
        return 1
    for segment in range(1, segments.most):
        reached = value + segments.column_error(segment) + segments.bounds(segment)[0]
        if segments.threshold(segment) >= reached:
            return segment
    return segments.most


def _error(mechanism: OrderStatistics, segment: int, value: int) -> float:
    published = mechanism.error(segment)
    segments = mechanism.segments
    if mechanism.config.mechanism != "doubling" or segments is None:
        return published
    error = segments.column_error(segment)
    above = segments.bounds(segment)[1]
    high = min(float(value), segments.threshold(segment) + above + error)
    low = 0.0
    if segment > 1:
        below = segment - 1
        low = (
            segments.threshold(below)
            - segments.bounds(below)[0]
            - segments.column_error(below)
        )
    return min(published, high - max(low, 0.0) + error)


def _printed_segments(mechanism: OrderStatistics, value: int) -> float:
    config = mechanism.config
    alone = config.mechanism == "doubling"
    epsilon = mechanism.guarantee.epsilon / (1 if alone else 2)
    beta = config.beta / (1 if alone else 2)
    d = len(config.domain)
    log_ticks = max(1.0, math.log2(config.ticks))
    tests = (
        8 * math.log(3 * config.ticks / beta) + 4 * math.log(3 * log_ticks / beta)
    ) / epsilon

    def column_error(segment: int) -> float:
        each = 4 * config.most_columns * config.max_count / epsilon
        return each * math.sqrt(2 * segment) * math.log(3 * d * log_ticks / beta)

    last = 1
    # The paper, whose values cannot exceed T, has at most log2 T segments.
    while 2 ** (last - 1) <= value + column_error(last) + tests and (
        last < log_ticks or value > config.ticks
    ):
        last += 1
    noise = column_error(last)
    growth = 2.0 ** (last - 1) + 2 * (tests + noise + last)
    if alone:
        return growth + noise
    if mechanism.queries.k == 1:
        part = beta / last
        inner = 8 * math.log(3 * config.ticks / part) + 4 * math.log(3 * growth / part)
        return 6 * (
            noise + _err(config, growth, part / 3, epsilon / 2) + inner / epsilon
        )
    return _printed_several(
        config, mechanism.queries.k, growth, noise, epsilon, beta / last
    )


def _printed_several(
    config: MaxConfig, k: int, growth: float, noise: float, epsilon: float, beta: float
) -> float:
    intervals = k * growth
    ticks = config.ticks
    err = _err(config, intervals, beta / 3, epsilon / 3)
    many = math.log(6 * intervals / beta)
    each = math.log(6 * ticks / beta)
    clearance = 18 / epsilon * (k * many + each)
    step = 3 * (clearance + err + noise)
    tests = 12 / epsilon * (many + each)
    update = 6 * k / epsilon * math.log(3 * intervals / beta)
    unmoved = step + clearance + 3 * err + tests + 2 * update + 1
    return max(unmoved, step + 3 * clearance + 2 * err) + noise


def _err(config: MaxConfig, intervals: float, beta: float, epsilon: float) -> float:
    """Return 4 D log2(n) ln(2 d n / beta) / epsilon: Lemma 52 for H, each column at epsilon / D."""
    reach = config.most_columns * config.max_count
    levels = max(1.0, math.log2(intervals))
    return (
        4
        * reach
        * levels
        * math.log(2 * len(config.domain) * intervals / beta)
        / epsilon
    )


BETA = 0.05
"""Probability of failure where none is given."""


def error_bounds(
    config: HistogramConfig,
    *,
    beta: float = BETA,
    data: Data | None = None,
    mechanism: Mechanism | None = None,
    unit: str = "event",
) -> tuple[Bound, ...]:
    """Return every accuracy bound of a configuration, the main one first.

    Order statistics fail with `config.beta`, others with `beta`. Raise ValueError for a beta
    outside (0, 1) or a budget that cannot be met.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta}: must be a number above 0 and below 1")
    given = data or Data()
    built = build(config, unit) if mechanism is None else mechanism
    match built:
        case KnownBase() | UnkBase():
            return _running_bounds(built, beta, given)
        case SparseGumb():
            return _sparse_bounds(built, beta, given)
        case OneShot():
            return one_shot_bounds(built, beta, given)
        case Meta():
            return (meta_bound(built, beta, given),)
        case MisraGries():
            return (sketch_bound(built, beta, given),)
        case PayWhatYouGet():
            return (pay_bound(built, beta, given),)
        case OrderStatistics():
            return (answer_bound(built, given),)
    raise ValueError(f"mechanism = {built.kind}: no theorem is known for it")


def _running_bounds(
    mechanism: KnownBase | UnkBase, beta: float, data: Data
) -> tuple[Bound, ...]:
    config = mechanism.config
    known = isinstance(mechanism, KnownBase)
    ticks = ticks_of(config, data)
    labels = len(mechanism.domain()) or data.items
    radix = config.radix or best_radix(ticks)
    rho = paper_rho(config, discovers=not known)
    variance = tree_variance(
        config.max_items * config.max_count**2 / (2 * rho), ticks, radix
    )
    printed = normal_bound(variance, labels * ticks, beta)
    worst = worst_variance(mechanism, ticks)
    ours = normal_bound(worst, labels * ticks, beta) + 0.5
    bounds = f"error of every count shown, over {labels:,} labels and {ticks:,} ticks"
    if isinstance(mechanism, KnownBase):
        source = "Cardoso, Rogers: Theorem 2"
        return (Bound("counts", bounds, "", beta, ours, printed, source),)
    assumes = f"at most {labels:,} labels occur"
    source = "Cardoso, Rogers: Theorem 2, Lemma F.3"
    counts = Bound("counts", bounds, assumes, beta, ours, printed, source)
    share = discovery_delta(mechanism) / config.max_items
    paper_threshold = config.max_count + math.sqrt(variance) * normal_quantile(
        share / ticks
    )
    printed += paper_threshold
    ours += _worst_threshold(mechanism, worst, ticks)
    bounds = "true count of an item not shown, at every tick that may show new items"
    source = "Cardoso, Rogers: Theorem 6, Lemma F.2"
    return counts, Bound("hidden", bounds, assumes, beta, ours, printed, source)


def _worst_threshold(mechanism: UnkBase, worst: float, ticks: int) -> float:
    """Bound every m_t, by the largest variance and the smallest delta_t."""
    config = mechanism.config
    if config.threshold == "constant":
        return mechanism.threshold(1) or 0
    tests = max(1, ticks // (config.every or 1))
    delta = discovery_delta(mechanism) / config.max_items
    octave = tests.bit_length() - 1
    shares = math.log(math.pi**2 / 6) + 2 * math.log(1 + octave) + octave * math.log(2)
    log = math.log(delta) - (
        math.log(tests) if config.horizon_ticks is not None else shares
    )
    return (
        config.max_count
        + 0.5
        + normal_quantile(math.exp(log - 1e-9)) * math.sqrt(worst)
    )


def _sparse_bounds(mechanism: SparseGumb, beta: float, data: Data) -> tuple[Bound, ...]:
    config = mechanism.config
    d = len(mechanism.domain())
    ticks = ticks_of(config, data)
    k = config.top_k
    s = config.switches
    radix = config.radix or best_radix(ticks)
    tau_squared = (k + 2) * config.max_count**2 / paper_rho(config, discovers=False)
    tau = math.sqrt(tau_squared)
    variance = tree_variance((s + 1) * tau_squared, ticks, radix)
    worst = worst_variance(mechanism, ticks)
    rounding = 0.5
    bounds = f"error of every count shown, over {d:,} labels and {ticks:,} ticks"
    ours = normal_bound(worst, d * ticks, beta) + rounding
    printed = normal_bound(variance, d * ticks, beta)
    counts = Bound(
        "counts", bounds, "", beta, ours, printed, "Cardoso, Rogers: Theorems 2 and 4"
    )
    # Four parts: counters, threshold noise, test noise if it may be negative, choices.
    part = beta / 4
    picks = k * (s + 1)
    one_sided = config.accounting == "tight"
    unit = math.sqrt(s) * tau
    paper_eta: float | None = config.eta
    if paper_eta is None:
        paper_eta = 2 * math.sqrt(variance) + 4 * unit * math.log(d * (ticks + 1))
    printed = normal_bound(variance, d * ticks, part) + paper_eta
    printed += laplace_bound(2 * unit, s, part) + laplace_bound(
        4 * unit, d * ticks, part
    )
    paper_pick = math.sqrt(s + 1) * tau / 2 * math.log(d * picks / part)
    pick, threshold, test = scales(mechanism)
    eta = config.eta
    if eta is None:
        eta = math.ceil(
            2 * math.sqrt(worst + 1 / 12) + test * math.log(d * (ticks + 1))
        )
    noise = normal_bound(worst, d * ticks, part)
    late = laplace_bound(threshold, s, part)
    ours = noise + rounding + eta + late + 1
    if not one_sided:
        ours += laplace_bound(test, d * ticks, part) + 1
    ours = max(ours, pick * math.log(d * picks / part))
    printed = max(printed, paper_pick)
    bounds = "by how much a hidden item exceeds a shown one, at every tick until the last switch is made"
    source = "Cardoso, Rogers: Theorem 4 and Appendix D (constants derived here)"
    return counts, Bound("selection", bounds, "", beta, ours, printed, source)


CONVERSION = "rho + 2 sqrt(rho ln(1/delta))"
_CARDOSO = "Cardoso, Rogers: "
_THRESHOLDS: Mapping[Name, tuple[str, str]] = MappingProxyType(
    {
        "positive_gauss": ("Dinf + s PhiInv(1 - delta/D0)", "Rogers: Theorem 7"),
        "positive_laplace": ("Dinf + b ln(D0/(2 delta))", "Rogers: Theorem 7"),
        "unk_gauss": (
            "Dinf + sqrt2 tau PhiInv(1 - delta/D0)",
            _CARDOSO + "Algorithm 9",
        ),
        "limit_dom_laplace": (
            "Dinf + x, (1/2 + x/(4b)) e^(-x/b) = delta/D0",
            "Durfee, Rogers: Lemma 6.2",
        ),
    }
)


def printed_of(
    mechanism: Mechanism, noise: Noise, conversion: float
) -> Iterator[Printed]:
    """Yield figures that papers state differently; `conversion`: the delta converting rho, or 0."""
    if conversion > 0:
        yield from _printed_conversion(mechanism, conversion)
    if (
        isinstance(mechanism, KnownBase | UnkBase)
        and mechanism.config.horizon_ticks is not None
    ):
        yield from _printed_running(mechanism, noise)
    if isinstance(mechanism, SparseGumb):
        yield from _printed_sparse(mechanism)
    if isinstance(mechanism, OneShot | Meta):
        levels = mechanism.levels if isinstance(mechanism, Meta) else 1
        own = mechanism.config
        delta = discovery_delta(mechanism) / levels
        yield from _printed_one_shot(
            own.algorithm, own.parameters(), mechanism.algorithm, delta
        )
    if isinstance(mechanism, OrderStatistics):
        yield from _printed_accounting(mechanism)


def _printed_conversion(mechanism: Mechanism, delta: float) -> Iterator[Printed]:
    guarantee = mechanism.guarantee
    source = "Bun, Steinke 2016; ours: Canonne, Kamath, Steinke"
    paper = paper_epsilon(guarantee.rho, delta)
    yield Printed("epsilon_for_this_rho", guarantee.epsilon, paper, CONVERSION, source)
    paper = _rho_printed(guarantee.epsilon, delta)
    formula = f"the rho with epsilon = {CONVERSION}"
    yield Printed("rho_for_this_epsilon", guarantee.rho, paper, formula, source)


def _printed_running(mechanism: KnownBase | UnkBase, noise: Noise) -> Iterator[Printed]:
    """Yield noise and threshold at the worst tick of a tree of the best base: 000 formula (4)."""
    config = mechanism.config
    ticks = noise.ticks_looked_at
    radix = config.radix or best_radix(ticks)
    tau = math.sqrt(
        config.max_items * config.max_count**2 / (2 * mechanism.guarantee.rho)
    )
    worst = tau * digits_of(ticks, radix) * math.sqrt(radix - 1)
    formula = "tau L_r sqrt(r - 1)"
    source = _CARDOSO + "Theorem 2"
    yield Printed("worst_sd", noise.worst_sd, worst, f"{formula}, r = {radix}", source)
    threshold = max((tick.threshold or 0.0 for tick in noise.ticks), default=0.0)
    if threshold:
        share = discovery_delta(mechanism) / config.max_items / ticks
        paper = config.max_count + worst * normal_quantile(share)
        formula = f"Dinf + {formula} PhiInv(1 - delta/T)"
        source = _CARDOSO + "formula (4)"
        yield Printed("worst_threshold", threshold, paper, formula, source)


def _printed_sparse(mechanism: SparseGumb) -> Iterator[Printed]:
    config = mechanism.config
    tight = mechanism.config.accounting == "tight"
    k = config.top_k
    source = _CARDOSO + "Theorem 4"
    yield Printed(
        "rho_times_tau_squared", k + (0.125 if tight else 2.0), k + 2.0, "k + 2", source
    )
    tau_squared = (config.top_k + 2) / mechanism.guarantee.rho * config.max_count**2
    q = math.exp(-1 / scales(mechanism)[2])
    ours = math.sqrt((1.0 if tight else 2.0) * q) / (1 - q)
    paper = 4 * math.sqrt(2 * config.switches * tau_squared)
    yield Printed(
        "test_noise_sd", ours, paper, "Lap(4 tau sqrt(s))", _CARDOSO + "Algorithm 8"
    )


def _printed_one_shot(
    name: Name, p: Parameters, algorithm: Algorithm, delta: float
) -> Iterator[Printed]:
    """Yield the threshold: 004 Thms 7 and 8, 002 Lemma 6.2 and Alg. 1, 000 Algs 6 and 9."""
    if name in _THRESHOLDS:
        formula, source = _THRESHOLDS[name]
        spread = (
            -1 / math.log(laplace_q(algorithm.sd)) if name in LAPLACE else algorithm.sd
        )
        if name == "unk_gauss":  # a threshold on a count that includes the bar's noise
            name = "positive_gauss"
            spread = math.sqrt(2) * spread
        paper = paper_height(name, p, spread, delta)
        yield Printed(
            "threshold", float(algorithm.threshold or 0), paper, formula, source
        )
    public = algorithm.public()
    if above := bottom_of(public):
        scale = float(Fraction(str(public["scale"])))
        paper = p.max_count + 2 * scale * math.log(min(p.max_items, p.kbar) / delta)
        formula = "Dinf + tau ln(min(D0, kbar)/delta), tau = 2 b"
        source = _CARDOSO + "Algorithm 6"
        yield Printed("bar_above_the_rest", float(above), paper, formula, source)


def _printed_accounting(mechanism: OrderStatistics) -> Iterator[Printed]:
    """Yield the error by the papers' accounting at the same epsilon, if tables exist for it."""
    config = mechanism.config
    if config.epsilon is None:
        return
    try:
        pure: Mechanism = mechanism
        if not config.pure:  # pure accounting has its own counter
            pure = build(
                structs.replace(config, accounting="pure", counter="lifted", radix=None)
            )
    except ValueError:
        return
    if isinstance(pure, OrderStatistics):
        ours = mechanism.error(1)
        paper = pure.error(1)
        source = "Henzinger, Sricharan, Steiner"
        yield Printed("error_in_segment_1", ours, paper, 'accounting = "pure"', source)
