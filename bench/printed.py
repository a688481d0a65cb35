"""The papers' own error bounds and figures at the same budget, beside those that are proved here.

`printed` is the paper's algorithm with the paper's accounting and constants at the same budget (for
epsilon: its conversion rho + 2 sqrt(rho ln(1/delta))); `ours` is `Mechanism.bounds`, proved for the
noise, thresholds and shares in use. Where a paper bounds one count at one tick, both take the union
over an epoch; where it gives only O(.), the constants are derived below. Nothing here is released.

    beta        probability that a bound fails, over an epoch of one stream key
    T, d, L_r   ticks, labels, digits of the horizon in base r (the base in use, or the best one)
    tau         the papers' noise at this budget: known budget rho, tau^2 = D0 Dinf^2 / (2 rho)
    b           scale of Laplace or Gumbel noise at this budget
    s_j^2       variance of level j of a counter

    known_base      000 Thm 2: sqrt(2 (r-1) L_r^2 tau^2 ln(2 d T / beta))
    unk_base        000 Thm 2, Lemma F.2: the same; hidden: m_delta + the same,
                    m_delta = Dinf + tau L_r sqrt(r-1) PhiInv(1 - delta/T)
    sparse_gumb     000 Thm 4, App. D: counters at tau_2; selection: eta_t + noise of the test, its
                    threshold and the counters, tau sqrt(s) O(sqrt(r-1) L_r + ln d) in D

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

Order statistics (paper 001). `printed` is the paper's pure algorithm at the epsilon of the
guarantee, with d, the l1 norm of a row, replaced by D Dinf (D columns an event changes). With e the
epsilon of one level:

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
from fractions import Fraction
from types import MappingProxyType
from typing import NamedTuple

from msgspec import structs

from workers.mechanisms.about import Bound, Data
from workers.mechanisms.bounds import (
    laplace_bound,
    laplace_sum,
    normal_bound,
    normal_quantile,
    subset_bound,
)
from workers.mechanisms.budget import DISCOVERY_SHARE
from workers.mechanisms.config.histogram import ERROR_BETA, HistogramConfig
from workers.mechanisms.counters.tree import best_radix, digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries, PureMisraGries
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LAPLACE,
    LIMITED,
    PICKING,
    Algorithm,
    Name,
    Parameters,
    Picking,
    Sketched,
)
from workers.mechanisms.one_shot.bounds import pick_error
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.order_statistics.config import OrderStatisticConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBase, UnkBase
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb
from workers.privacy.model import Noise
from workers.privacy.plan.noise import laplace_q

# Of all others, papers state no bound on such noise.
COMPARED = (
    KnownBase,
    UnkBase,
    SparseGumb,
    OneShot,
    Meta,
    MisraGries,
    PayWhatYouGet,
    OrderStatistics,
)


class Promise(Bound, frozen=True):
    """A bound, and the paper's; None at epsilon 0, where the paper's algorithm has no guarantee."""

    printed: float | None


class Printed(NamedTuple):
    """A figure that a paper states differently."""

    name: str
    ours: float
    printed: float
    formula: str
    source: str


def error_bounds(
    config: HistogramConfig,
    *,
    beta: float = ERROR_BETA,
    data: Data | None = None,
    mechanism: Mechanism | None = None,
    unit: str = "event",
) -> tuple[Promise, ...]:
    """Return every accuracy bound of a configuration, the main one first.

    Order statistics fail with `config.beta`, others with `beta`. Raise ValueError for a beta
    outside (0, 1) or a budget that cannot be met.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta}: must be a number above 0 and below 1")
    given = data or Data()
    built = build(config, unit) if mechanism is None else mechanism
    bounds = built.bounds(beta, given)
    return tuple(
        Promise(**structs.asdict(bound), printed=printed)
        for bound, printed in zip(bounds, _papers(built, beta, given), strict=True)
    )


def _papers(mechanism: Mechanism, beta: float, data: Data) -> list[float | None]:
    match mechanism:
        case KnownBase() | UnkBase():
            return _running(mechanism, beta, data)
        case SparseGumb():
            return _sparse(mechanism, beta, data)
        case OneShot():
            return _one_shot(mechanism, beta, data)
        case Meta():
            return [_meta(mechanism, beta, data)]
        case PureMisraGries():
            return [_pure_sketch(mechanism, beta, data)]
        case MisraGries():
            return [_sketch(mechanism, beta, data)]
        case PayWhatYouGet():
            return [_pay(mechanism, beta, data)]
        case OrderStatistics():
            return [_answer(mechanism, data)]
    return [None] * len(mechanism.bounds(beta, data))


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


def tree_variance(tau_squared: float, ticks: int, radix: int) -> float:
    """Return (r - 1) L_r^2 tau^2 (000 Theorem 2)."""
    return float((radix - 1) * digits_of(ticks, radix) ** 2) * tau_squared


def _scales(mechanism: Mechanism) -> list[float]:
    found = mechanism.public()["scales"]
    if not isinstance(found, list):
        raise TypeError(f"scales = {found!r}: not a list")
    return [float(Fraction(text)) for text in found]


def _one_shot(mechanism: OneShot, beta: float, data: Data) -> list[float | None]:
    config = mechanism.config
    name = config.algorithm
    p = config.parameters()
    releases = ticks_of(config, data)
    rho = paper_rho(config, discovers=name not in KNOWN)
    delta = mechanism.delta_discovery
    labels = p.domain or data.items
    candidates = min(labels, p.kbar) if name in LIMITED else labels
    values = releases * (p.k if name in PICKING else candidates)
    spread = _paper_spread(name, p, rho)
    noise = normal_bound(spread**2, values, beta)
    if name in LAPLACE:
        noise = laplace_bound(spread, values, beta)
    if name == "known_gauss":
        return [noise]
    if isinstance(mechanism.algorithm, Picking):
        return [
            noise,
            _choices(p, mechanism.algorithm, spread / 2, releases, delta, beta),
        ]
    counts = noise
    if name in LIMITED:
        noise = _paper_sum(name, spread, 2, values, beta)
    return [counts, paper_height(name, p, spread, delta) + noise]


def _pay(mechanism: PayWhatYouGet, beta: float, data: Data) -> float:
    config = mechanism.config
    p = config.parameters()
    answers = min(config.queries, max(1, ticks_of(config, data) // config.every))
    picks = min(config.labels, answers * config.k)
    delta = mechanism.delta_discovery / config.queries
    rho = paper_rho(config, discovers=True)
    scale = config.max_count * math.sqrt(config.labels / (8 * rho))
    height = p.max_count + scale * math.log(p.kbar / delta)
    return height + pick_error(scale, p, picks, answers, beta)


def _meta(mechanism: Meta, beta: float, data: Data) -> float | None:
    if isinstance(mechanism.algorithm, Sketched):
        return None
    config = mechanism.config
    name = config.algorithm
    p = config.parameters()
    releases = ticks_of(config, data)
    most = p.k if name in PICKING else p.kbar if name in LIMITED else data.items
    values = (p.domain or min(most, data.items)) * releases
    rho = paper_rho(config, discovers=name not in KNOWN) / mechanism.levels
    delta = mechanism.delta_discovery / mechanism.levels
    spread = _paper_spread(name, p, rho)
    worst = mechanism.blocks().most_blocks
    if name == "known_gauss":
        return normal_bound(worst * spread**2, values, beta)
    if isinstance(mechanism.algorithm, Picking):
        half = beta / 2
        below = _choices(p, mechanism.algorithm, spread / 2, releases, delta, half)
        return worst * below + subset_bound(spread**2, worst, values, half)
    copies = 2 if name in LIMITED else 1
    height = worst * paper_height(name, p, spread, delta)
    return height + _paper_sum(name, spread, copies * worst, values, beta)


def _sketch(mechanism: MisraGries, beta: float, data: Data) -> float:
    config = mechanism.config
    tree = mechanism.tree
    k = config.size
    releases = ticks_of(config, data)
    worst = mechanism.blocks().most_blocks
    lost = data.weight / (k + 1)
    rho = paper_rho(config, discovers=True) / tree.levels
    delta = mechanism.delta_discovery / tree.levels
    if config.release == "pmg":
        together = config.max_items * config.max_count
        epsilon = math.sqrt(2 * rho) / together
        log_delta = math.log(together / delta) + epsilon * (together - 1)
        tails = math.log(3) + log_delta, math.log((k + 1) * releases / beta)
        each = 1 + 2 * tails[0] / epsilon + 2 * tails[1] / epsilon
        return lost + worst * each
    spread = config.max_count * math.sqrt(k / (2 * rho))
    height = config.max_count + spread * normal_quantile(delta / k)
    values = min(data.items, worst * k) * releases
    noise = normal_bound(worst * spread**2, values, beta)
    return lost + worst * height + noise


def _pure_sketch(mechanism: PureMisraGries, beta: float, data: Data) -> float:
    config = mechanism.config
    values = len(mechanism.domain()) * ticks_of(config, data)
    events = mechanism.tree.levels * config.max_items * config.max_count
    scale = 2 * events / (config.epsilon or 0.0)
    noise = 2 * laplace_bound(scale, values, beta)
    return data.weight / (config.size + 1) + mechanism.blocks().most_blocks * noise


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


def _choices(
    p: Parameters,
    algorithm: Picking,
    scale: float,
    releases: int,
    delta: float,
    beta: float,
) -> float:
    picks = p.k * releases
    if not algorithm.bar:
        return scale * math.log(p.domain * (picks / beta))
    height = p.max_count + 2 * scale * math.log(p.kbar / delta)
    return height + pick_error(scale, p, picks, releases, beta)


def _answer(mechanism: OrderStatistics, data: Data) -> float | None:
    config = mechanism.config
    epsilon = mechanism.guarantee.epsilon
    if not epsilon:
        # Delta alone covers this rho: the paper has no noise for a pure epsilon of 0.
        return None
    if not isinstance(config, BoundedMaxConfig):
        return _printed_segments(mechanism, data.value)
    beta = config.beta
    tests = 8 * math.log(3 * config.ticks / beta)
    tests += 4 * math.log(3 * config.c_max / beta)
    tests /= epsilon
    return 6 * (_err(config, config.c_max, beta / 3, epsilon / 2) + tests)


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
    config: OrderStatisticConfig,
    k: int,
    growth: float,
    noise: float,
    epsilon: float,
    beta: float,
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


def _err(
    config: OrderStatisticConfig, intervals: float, beta: float, epsilon: float
) -> float:
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


def _running(
    mechanism: KnownBase | UnkBase, beta: float, data: Data
) -> list[float | None]:
    config = mechanism.config
    known = isinstance(mechanism, KnownBase)
    ticks = ticks_of(config, data)
    labels = len(mechanism.domain()) or data.items
    radix = config.radix or best_radix(ticks)
    rho = paper_rho(config, discovers=not known)
    variance = tree_variance(
        config.max_items * config.max_count**2 / (2 * rho), ticks, radix
    )
    counts = normal_bound(variance, labels * ticks, beta)
    if known:
        return [counts]
    share = mechanism.delta_discovery / config.max_items
    threshold = config.max_count + math.sqrt(variance) * normal_quantile(share / ticks)
    return [counts, counts + threshold]


def _sparse(mechanism: SparseGumb, beta: float, data: Data) -> list[float | None]:
    config = mechanism.config
    d = len(mechanism.domain())
    ticks = ticks_of(config, data)
    k = config.top_k
    s = config.switches
    radix = config.radix or best_radix(ticks)
    tau_squared = (k + 2) * config.max_count**2 / paper_rho(config, discovers=False)
    tau = math.sqrt(tau_squared)
    variance = tree_variance((s + 1) * tau_squared, ticks, radix)
    part = beta / 4
    picks = k * (s + 1)
    unit = math.sqrt(s) * tau
    eta: float | None = config.eta
    if eta is None:
        eta = 2 * math.sqrt(variance) + 4 * unit * math.log(d * (ticks + 1))
    selection = normal_bound(variance, d * ticks, part) + eta
    selection += laplace_bound(2 * unit, s, part)
    selection += laplace_bound(4 * unit, d * ticks, part)
    pick = math.sqrt(s + 1) * tau / 2 * math.log(d * picks / part)
    return [normal_bound(variance, d * ticks, beta), max(selection, pick)]


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
        delta = mechanism.delta_discovery / levels
        yield from _printed_one_shot(
            own.algorithm, own.parameters(), mechanism.algorithm, delta
        )
    if isinstance(mechanism, OrderStatistics):
        yield from _printed_accounting(mechanism)


def paper_epsilon(rho: float, delta: float) -> float:
    """Return rho + 2 sqrt(rho ln(1/delta)): Bun, Steinke 2016, Proposition 1.3."""
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


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
        share = mechanism.delta_discovery / config.max_items / ticks
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
    q = math.exp(-1 / _scales(mechanism)[2])
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
    if isinstance(algorithm, Picking) and (above := algorithm.bar):
        scale = float(algorithm.scale)
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
