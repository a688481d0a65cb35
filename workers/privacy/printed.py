"""Figures by the papers' own formulas, next to ours, at the same settings.

tau    the papers' noise for the rho spent here: rho = D0 Dinf^2 / (2 tau^2)
L_r    digits of the horizon in base r, r the base in use, or the best one
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType

from msgspec import structs

from workers.mechanisms.accounting import paper_epsilon
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.tree import best_radix, digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.one_shot.algorithms import LAPLACE, Algorithm, Name, Parameters
from workers.mechanisms.one_shot.config import MetaConfig, OneShotConfig
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb
from workers.privacy.plan.model import Noise, Printed
from workers.privacy.plan.noise import laplace_q
from workers.privacy.theorems import (
    bottom_of,
    discovery_delta,
    normal_quantile,
    paper_height,
    scales,
)

CONVERSION = "rho + 2 sqrt(rho ln(1/delta))"
_CARDOSO = "Cardoso, Rogers: "
_THRESHOLDS: Mapping[Name, tuple[str, str]] = MappingProxyType(
    {
        "positive_gauss": ("Dinf + s PhiInv(1 - delta/D0)", "Rogers: Theorem 7"),
        "positive_laplace": ("Dinf + b ln(D0/(2 delta))", "Rogers: Theorem 7"),
        "unk_gauss": ("Dinf + sqrt2 tau PhiInv(1 - delta/D0)", _CARDOSO + "Algorithm 9"),
        "limit_dom_laplace": (
            "Dinf + x, (1/2 + x/(4b)) e^(-x/b) = delta/D0",
            "Durfee, Rogers: Lemma 6.2",
        ),
    }
)


def printed_of(
    config: HistogramConfig, mechanism: Mechanism, noise: Noise, conversion: float
) -> Iterator[Printed]:
    """Yield every figure that a paper states differently.

    `config` has D0 in `max_items` (`registry.in_events`); `conversion` is the part of delta that
    converts rho into epsilon, 0 if none.
    """
    if conversion > 0:
        yield from _conversion(mechanism, conversion)
    if config.mechanism in ("known_base", "unk_base") and config.horizon_ticks is not None:
        yield from _running(config, mechanism, noise)
    if isinstance(mechanism, SparseGumb):
        yield from _sparse(mechanism)
    if isinstance(config, OneShotConfig) and isinstance(mechanism, OneShot):
        yield from _one_shot(
            config.algorithm, config.parameters(), mechanism.algorithm, discovery_delta(mechanism)
        )
    if isinstance(config, MetaConfig) and isinstance(mechanism, Meta):
        share = discovery_delta(mechanism) / mechanism.levels
        yield from _one_shot(config.algorithm, config.parameters(), mechanism.algorithm, share)
    if isinstance(mechanism, OrderStatistics):
        yield from _accounting(config, mechanism)


def _conversion(mechanism: Mechanism, delta: float) -> Iterator[Printed]:
    guarantee, log = mechanism.guarantee, -math.log(delta)
    source = "Bun, Steinke 2016; ours: Canonne, Kamath, Steinke"
    yield Printed(
        "epsilon_for_this_rho",
        guarantee.epsilon,
        paper_epsilon(guarantee.rho, delta),
        CONVERSION,
        source,
    )
    yield Printed(
        "rho_for_this_epsilon",
        guarantee.rho,
        (math.sqrt(log + guarantee.epsilon) - math.sqrt(log)) ** 2,
        f"the rho with epsilon = {CONVERSION}",
        source,
    )


def _running(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Iterator[Printed]:
    """Yield noise and threshold at the worst tick of a tree of the best base: 000 formula (4)."""
    ticks = noise.ticks_looked_at
    radix = config.radix or best_radix(ticks)
    tau = math.sqrt(config.max_items * config.max_count**2 / (2 * mechanism.guarantee.rho))
    worst = tau * digits_of(ticks, radix) * math.sqrt(radix - 1)
    formula = "tau L_r sqrt(r - 1)"
    yield Printed(
        "worst_sd", noise.worst_sd, worst, f"{formula}, r = {radix}", _CARDOSO + "Theorem 2"
    )
    threshold = max((tick.threshold or 0.0 for tick in noise.ticks), default=0.0)
    if threshold:
        quantile = normal_quantile(discovery_delta(mechanism) / config.max_items / ticks)
        yield Printed(
            "worst_threshold",
            threshold,
            config.max_count + worst * quantile,
            f"Dinf + {formula} PhiInv(1 - delta/T)",
            _CARDOSO + "formula (4)",
        )


def _sparse(mechanism: SparseGumb) -> Iterator[Printed]:
    config, tight = mechanism.config, mechanism.config.accounting == "tight"
    yield Printed(
        "rho_times_tau_squared",
        config.top_k + (0.125 if tight else 2.0),
        config.top_k + 2.0,
        "k + 2",
        _CARDOSO + "Theorem 4",
    )
    tau_squared = (config.top_k + 2) / mechanism.guarantee.rho * config.max_count**2
    q = math.exp(-1 / scales(mechanism)[2])
    yield Printed(
        "test_noise_sd",
        math.sqrt((1.0 if tight else 2.0) * q) / (1 - q),
        4 * math.sqrt(2 * config.switches * tau_squared),
        "Lap(4 tau sqrt(s))",
        _CARDOSO + "Algorithm 8",
    )


def _one_shot(name: Name, p: Parameters, algorithm: Algorithm, delta: float) -> Iterator[Printed]:
    """Yield the threshold: 004 Thms 7 and 8, 002 Lemma 6.2 and Alg. 1, 000 Algs 6 and 9."""
    if name in _THRESHOLDS:
        formula, source = _THRESHOLDS[name]
        spread = -1 / math.log(laplace_q(algorithm.sd)) if name in LAPLACE else algorithm.sd
        if name == "unk_gauss":  # a threshold on a count that includes the bar's noise
            name, spread = "positive_gauss", math.sqrt(2) * spread
        yield Printed(
            "threshold",
            float(algorithm.threshold or 0),
            paper_height(name, p, spread, delta),
            formula,
            source,
        )
    public = algorithm.public()
    above = bottom_of(public)
    if above is not None:
        scale = float(Fraction(str(public["scale"])))
        yield Printed(
            "bar_above_the_rest",
            float(above),
            p.max_count + 2 * scale * math.log(min(p.max_items, p.kbar) / delta),
            "Dinf + tau ln(min(D0, kbar)/delta), tau = 2 b",
            _CARDOSO + "Algorithm 6",
        )


def _accounting(config: HistogramConfig, mechanism: OrderStatistics) -> Iterator[Printed]:
    """Yield the error by the papers' accounting at the same epsilon, if tables exist for it."""
    if config.epsilon is None:
        return
    try:
        pure: Mechanism = mechanism
        if not config.pure:  # pure accounting has its own counter
            pure = build(structs.replace(config, accounting="pure", counter="haar", radix=None))
    except ValueError:
        return
    if isinstance(pure, OrderStatistics):
        yield Printed(
            "error_in_segment_1",
            mechanism.error(1),
            pure.error(1),
            'accounting = "pure"',
            "Henzinger, Sricharan, Steiner",
        )
