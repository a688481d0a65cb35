"""The error that each mechanism's own theorem promises, as printed and for what is built here.

What: `promises` gives the main promise first. "counts" bounds the noise on what is shown, "hidden"
the true count of what is not shown, "selection" how wrong a choice may be, "answer" an order
statistic.
Why two figures: `printed` is the paper's algorithm with the paper's accounting and constants at the
same budget (for epsilon: its conversion rho + 2 sqrt(rho ln(1/delta))); `ours` is proved for the
noise, thresholds and shares in use here. Where a paper bounds one count at one tick, both take the
union over all of an epoch; where it gives O(.) alone, the constants are derived below. Worst over
all labels and ticks, with tau, b the noise at this budget:

    known_base      000 Thm 2: sqrt(2 (r-1) L_r^2 tau^2 ln(2 d T / beta)); ours: the counter's worst
                    variance
    unk_base        000 Thm 2, Lemma F.2: the same; hidden: m_delta + the same,
                    m_delta = Dinf + tau L_r sqrt(r-1) PhiInv(1 - delta/T)
    sparse_gumb     000 Thm 4, App. D: counters at tau_2; selection: eta_t + noise of the test, its
                    threshold and the counters. D gives tau sqrt(s) O(sqrt(r-1) L_r + ln d): each of
                    these tails at its part of beta
    others          `releases`: one-shot, `meta`, `pay_what_you_get`, `misra_gries`;
                    `order_statistics`: `bounded_max`, `doubling`, `two_level`, `two_level_k`

sparse_gumb, selection. While switches are left and none is made at t: count + Y <= least + N +
eta_t + Z for all outside, N the noise of the least published count: an item outside is at most
eta_t + |N| + Z (+ |Y| where Y may be negative) above it. A choice made at t leaves none outside
more than b ln(d k (s+1) / beta) above one inside (exponential mechanism). beta is split evenly.
"""

from __future__ import annotations

import math

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.tree import best_radix
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.one_shot.pay import PayWhatYouGet
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build, in_events
from workers.mechanisms.running.known_base import KnownBase
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb
from workers.mechanisms.running.unk_base import UnkBase
from workers.privacy.theorems.order_statistics import answer
from workers.privacy.theorems.promise import (
    Data,
    Promise,
    discovery_delta,
    laplace_bound,
    normal_bound,
    normal_quantile,
    paper_rho,
    scales,
    ticks_of,
    tree_variance,
    worst_variance,
)
from workers.privacy.theorems.releases import blocks, one_shot, pay, sketch

BETA = 0.05
"""Probability of failure where none is given."""


def promises(
    config: HistogramConfig,
    *,
    beta: float = BETA,
    data: Data | None = None,
    mechanism: Mechanism | None = None,
    unit: str = "event",
) -> tuple[Promise, ...]:
    """Return every promise of a configuration, the main one first.

    Args:
        config: of any mechanism.
        beta: failure probability of each promise; the order statistics have `config.beta`.
        data: what is taken for granted about the data.
        mechanism: built from this configuration; saves building it again.
        unit: whose presence is hidden, as `registry.build` takes it.

    Raises:
        ValueError: beta is not inside 0..1, or the budget cannot be met.
    """
    if not 0 < beta < 1:
        raise ValueError(f"beta = {beta}: must be a number above 0 and below 1")
    given = data or Data()
    built = build(config, unit) if mechanism is None else mechanism
    own = in_events(config, unit)
    match built:
        case KnownBase() | UnkBase():
            return _running(built, beta, given)
        case SparseGumb():
            return _sparse(built, beta, given)
        case OneShot():
            return one_shot(built.config, built, beta, given)
        case Meta():
            return (blocks(built.config, built, beta, given),)
        case MisraGries():
            return (sketch(built.config, built, beta, given),)
        case PayWhatYouGet():
            return (pay(built.config, built, beta, given),)
        case OrderStatistics() if isinstance(own, MaxConfig):
            return (answer(own, built, given),)
    raise ValueError(f"mechanism = {built.kind}: no theorem is known for it")


def _running(mechanism: KnownBase | UnkBase, beta: float, data: Data) -> tuple[Promise, ...]:
    config, known = mechanism.config, isinstance(mechanism, KnownBase)
    ticks, labels = ticks_of(config, data), len(mechanism.domain()) or data.items
    radix = config.radix or best_radix(ticks)
    tau_squared = config.max_items * config.max_count**2 / (2 * paper_rho(config, discovers=not known))
    variance = tree_variance(tau_squared, ticks, radix)
    printed = normal_bound(variance, labels * ticks, beta)
    worst = worst_variance(mechanism, ticks)
    ours = normal_bound(worst, labels * ticks, beta) + _rounding(config)
    assumes = "" if known else f"at most {labels:,} labels occur"
    where = f"{labels:,} labels and {ticks:,} ticks"
    counts = Promise(
        name="counts", bounds=f"error of every count shown, over {where}", assumes=assumes, beta=beta,
        printed=printed, ours=ours, source="Cardoso, Rogers: Theorem 2" + ("" if known else ", Lemma F.3"),
    )  # fmt: skip
    if isinstance(mechanism, KnownBase):
        return (counts,)
    share = discovery_delta(mechanism) / config.max_items
    paper_threshold = config.max_count + math.sqrt(variance) * normal_quantile(share / ticks)
    hidden = Promise(
        name="hidden", bounds="true count of an item not shown, at every tick that may show new items",
        assumes=assumes, beta=beta, printed=paper_threshold + printed,
        ours=_worst_threshold(mechanism, worst, ticks) + ours, source="Cardoso, Rogers: Theorem 6, Lemma F.2",
    )  # fmt: skip
    return counts, hidden


def _worst_threshold(mechanism: UnkBase, worst: float, ticks: int) -> float:
    """Bound every m_t by the sub-Gaussian tail; the thresholds in use take the best of several."""
    config = mechanism.config
    if config.threshold == "constant":
        return mechanism.threshold(1) or 0
    tests = max(1, ticks // (config.every or 1))
    delta = discovery_delta(mechanism) / config.max_items
    octave = tests.bit_length() - 1
    shares = math.log(math.pi**2 / 6) + 2 * math.log(1 + octave) + octave * math.log(2)
    log = math.log(delta) - (math.log(tests) if config.horizon_ticks is not None else shares)
    return config.max_count + 0.5 + math.sqrt(-2 * (log - 1e-9) * worst)


def _rounding(config: HistogramConfig) -> float:
    """Return how far rounding to an integer may move a count."""
    return 0.0 if config.counter == "tree" else 0.5


def _sparse(mechanism: SparseGumb, beta: float, data: Data) -> tuple[Promise, ...]:
    config, d = mechanism.config, len(mechanism.domain())
    ticks, k, s = ticks_of(config, data), config.top_k, config.switches
    radix = config.radix or best_radix(ticks)
    tau_squared = (k + 2) * config.max_count**2 / paper_rho(config, discovers=False)
    tau = math.sqrt(tau_squared)
    variance = tree_variance((s + 1) * tau_squared, ticks, radix)
    worst, rounding = worst_variance(mechanism, ticks), _rounding(config)
    counts = Promise(
        name="counts", bounds=f"error of every count shown, over {d:,} labels and {ticks:,} ticks", assumes="", beta=beta,
        printed=normal_bound(variance, d * ticks, beta), ours=normal_bound(worst, d * ticks, beta) + rounding,
        source="Cardoso, Rogers: Theorems 2 and 4",
    )  # fmt: skip
    # Four parts: counters, the threshold's noise, the tests' if it may be negative, the choices.
    part, picks, one_sided = beta / 4, k * (s + 1), config.accounting == "tight"
    paper_eta = 2 * math.sqrt(variance) + 4 * math.sqrt(s) * tau * math.log(d * (ticks + 1))
    printed = normal_bound(variance, d * ticks, part) + (paper_eta if config.eta is None else config.eta)
    printed += laplace_bound(2 * math.sqrt(s) * tau, s, part) + laplace_bound(4 * math.sqrt(s) * tau, d * ticks, part)
    paper_pick = math.sqrt(s + 1) * tau / 2 * math.log(d * picks / part)
    pick, threshold, test = scales(mechanism)
    usual = math.ceil(2 * math.sqrt(worst + 1 / 12) + test * math.log(d * (ticks + 1)))
    eta = usual if config.eta is None else config.eta
    ours = normal_bound(worst, d * ticks, part) + rounding + eta + laplace_bound(threshold, s, part) + 1
    if not one_sided:
        ours += laplace_bound(test, d * ticks, part) + 1
    selection = Promise(
        name="selection", bounds="how far an item not shown lies above one that is, at every tick until the last switch is made",
        assumes="", beta=beta, printed=max(printed, paper_pick), ours=max(ours, pick * math.log(d * picks / part)),
        source="Cardoso, Rogers: Theorem 4 and Appendix D (constants derived here)",
    )  # fmt: skip
    return counts, selection
