"""Figures as the papers' own formulas give them, beside ours, at the same settings.

tau    the papers' noise for the rho that is spent here: rho = D0 Dinf^2 / (2 tau^2)
L_r    digits of the horizon in base r, r the base in use, or the best one
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction
from statistics import NormalDist

from msgspec import structs

from workers.mechanisms.accounting import paper_epsilon
from workers.mechanisms.config import HistogramConfig, UnkBaseConfig
from workers.mechanisms.counters.tree import best_radix, digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.one_shot.algorithms import Algorithm, Parameters
from workers.mechanisms.one_shot.config import MetaConfig, OneShotConfig
from workers.mechanisms.one_shot.mechanism import OneShot
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb, SparseGumbConfig
from workers.plan.model import Noise, Printed
from workers.plan.noise import laplace_q

_NORMAL = NormalDist()
CONVERSION = "rho + 2 sqrt(rho ln(1/delta))"


def printed_of(config: HistogramConfig, mechanism: Mechanism, noise: Noise, conversion: float) -> Iterator[Printed]:
    """Every figure that a paper states another way.

    Args:
        config: with D0 in `max_items` (`registry.in_events`).
        mechanism: built from it.
        noise: its noise.
        conversion: the part of delta that turns rho into epsilon; 0 where none does.
    """
    if conversion > 0:
        yield from _conversion(mechanism, conversion)
    if config.mechanism in ("known_base", "unk_base") and config.horizon_ticks is not None:
        yield from _running(config, mechanism, noise)
    if isinstance(config, SparseGumbConfig) and isinstance(mechanism, SparseGumb):
        yield from _sparse(config, mechanism)
    if isinstance(config, OneShotConfig) and isinstance(mechanism, OneShot):
        yield from _one_shot(config.algorithm, config.parameters(), mechanism.algorithm, _discovery(mechanism))
    if isinstance(config, MetaConfig) and isinstance(mechanism, Meta):
        share = _discovery(mechanism) / mechanism.levels
        yield from _one_shot(config.algorithm, config.parameters(), mechanism.algorithm, share)
    if isinstance(config, MaxConfig) and isinstance(mechanism, OrderStatistics):
        yield from _accounting(config, mechanism)


def _conversion(mechanism: Mechanism, delta: float) -> Iterator[Printed]:
    guarantee, log = mechanism.guarantee, -math.log(delta)
    source = "Bun, Steinke 2016; ours: Canonne, Kamath, Steinke"
    yield Printed(
        name="epsilon_for_this_rho", ours=guarantee.epsilon, printed=paper_epsilon(guarantee.rho, delta),
        formula=CONVERSION, source=source,
    )  # fmt: skip
    yield Printed(
        name="rho_for_this_epsilon", ours=guarantee.rho,
        printed=(math.sqrt(log + guarantee.epsilon) - math.sqrt(log)) ** 2,
        formula=f"the rho with epsilon = {CONVERSION}", source=source,
    )  # fmt: skip


def _running(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Iterator[Printed]:
    """000 formula (4): noise and threshold at the worst tick of a tree with the best base."""
    ticks = noise.ticks_looked_at
    radix = config.radix or best_radix(ticks)
    tau = math.sqrt(config.max_items * config.max_count**2 / (2 * mechanism.guarantee.rho))
    worst = tau * digits_of(ticks, radix) * math.sqrt(radix - 1)
    formula = f"tau L_r sqrt(r - 1), r = {radix}"
    yield Printed(
        name="worst_sd", ours=noise.worst_sd, printed=worst, formula=formula, source="Cardoso, Rogers: Theorem 2"
    )
    threshold = max((tick.threshold or 0.0 for tick in noise.ticks), default=0.0)
    if isinstance(config, UnkBaseConfig) and threshold:
        quantile = _normal_quantile(_discovery(mechanism) / config.max_items / ticks)
        yield Printed(
            name="worst_threshold", ours=threshold, printed=config.max_count + worst * quantile,
            formula=f"Dinf + {formula.split(',')[0]} PhiInv(1 - delta/T)", source="Cardoso, Rogers: formula (4)",
        )  # fmt: skip


def _sparse(config: SparseGumbConfig, mechanism: SparseGumb) -> Iterator[Printed]:
    ours = config.top_k + (0.125 if config.accounting == "tight" else 2.0)
    yield Printed(
        name="rho_times_tau_squared", ours=ours, printed=config.top_k + 2.0, formula="k + 2",
        source="Cardoso, Rogers: Theorem 4",
    )  # fmt: skip
    tau_squared = (config.top_k + 2) / mechanism.guarantee.rho * config.max_count**2
    yield Printed(
        name="test_noise_sd", ours=_test_sd(mechanism, one_sided=config.accounting == "tight"),
        printed=4 * math.sqrt(2 * config.switches * tau_squared), formula="Lap(4 tau sqrt(s))",
        source="Cardoso, Rogers: Algorithm 8",
    )  # fmt: skip


def _test_sd(mechanism: SparseGumb, *, one_sided: bool) -> float:
    scales = mechanism.public()["scales"]
    if not isinstance(scales, list):
        raise TypeError(f"scales = {scales!r}: not a list")
    q = math.exp(-1 / float(Fraction(scales[2])))
    return math.sqrt((1.0 if one_sided else 2.0) * q) / (1 - q)


def _one_shot(name: str, p: Parameters, algorithm: Algorithm, delta: float) -> Iterator[Printed]:
    """The thresholds of 004 Theorems 7 and 8, 002 Lemma 6.2 and Algorithm 1, 000 Algorithms 6 and 9."""
    sd, changed = algorithm.sd, p.max_items
    if name == "positive_gauss":
        yield _threshold(
            algorithm, p.max_count + sd * _normal_quantile(delta / changed), "Dinf + s PhiInv(1 - delta/D0)",
            "Rogers: Theorem 7",
        )  # fmt: skip
    elif name == "positive_laplace":
        scale = -1 / math.log(laplace_q(sd))
        yield _threshold(
            algorithm, p.max_count + scale * math.log(changed / (2 * delta)), "Dinf + b ln(D0/(2 delta))",
            "Rogers: Theorem 7",
        )  # fmt: skip
    elif name == "unk_gauss":
        yield _threshold(
            algorithm, p.max_count + math.sqrt(2) * sd * _normal_quantile(delta / changed),
            "Dinf + sqrt2 tau PhiInv(1 - delta/D0)", "Cardoso, Rogers: Algorithm 9",
        )  # fmt: skip
    elif name == "limit_dom_laplace":
        scale = -1 / math.log(laplace_q(sd))
        yield _threshold(
            algorithm, p.max_count + scale * _difference_quantile(delta / changed),
            "Dinf + x, (1/2 + x/(4b)) e^(-x/b) = delta/D0", "Durfee, Rogers: Lemma 6.2",
        )  # fmt: skip
    elif name == "limit_dom":
        public = algorithm.public()
        scale, bottom = float(Fraction(str(public["scale"]))), public["bottom"]
        if isinstance(bottom, dict):
            yield Printed(
                name="bar_above_the_rest", ours=float(bottom["above"]),
                printed=p.max_count + 2 * scale * math.log(min(changed, p.kbar) / delta),
                formula="Dinf + tau ln(min(D0, kbar)/delta), tau = 2 b", source="Cardoso, Rogers: Algorithm 6",
            )  # fmt: skip


def _threshold(algorithm: Algorithm, printed: float, formula: str, source: str) -> Printed:
    return Printed(
        name="threshold", ours=float(algorithm.threshold or 0), printed=printed, formula=formula, source=source
    )


def _accounting(config: MaxConfig, mechanism: OrderStatistics) -> Iterator[Printed]:
    """The other accounting at the same epsilon, where there are noise tables for it."""
    if config.epsilon is None:
        return
    try:
        pure: Mechanism = mechanism
        if config.accounting != "pure":  # which has a counter of its own
            pure = build(structs.replace(config, accounting="pure", counter="haar", radix=None))
    except ValueError:
        return
    if isinstance(pure, OrderStatistics):
        yield Printed(
            name="error_in_segment_1", ours=mechanism.error(1), printed=pure.error(1),
            formula='accounting = "pure"', source="Henzinger, Sricharan, Steiner",
        )  # fmt: skip


def _discovery(mechanism: Mechanism) -> float:
    return dict(mechanism.cost().deltas).get("discovery", 0.0)


def _normal_quantile(tail: float) -> float:
    """PhiInv(1 - tail); 1 - tail as a float would lose a small tail."""
    return -_NORMAL.inv_cdf(tail)


def _difference_quantile(tail: float) -> float:
    """x / b with (1/2 + x/(4b)) e^(-x/b) = tail, by bisection."""
    low, high = 0.0, 2000.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if (0.5 + middle / 4) * math.exp(-middle) > tail else (low, middle)
    return high
