"""The counters that a mechanism can have, at the same cost: what each would do to the noise."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec import structs

from workers.mechanisms.config import SQRT_HORIZON_MAX, SQRT_MECHANISMS, HistogramConfig
from workers.mechanisms.counters.tree import best_radix, digits_of
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.order_statistics.config import MaxConfig
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build
from workers.mechanisms.running.meta import Meta
from workers.plan.curves import Curve, curve_of, rho_item_of, sqrt_curve
from workers.plan.memory import memory_of
from workers.plan.model import CounterChoice, Noise
from workers.plan.noise import curve
from workers.plan.untabled import UNBOUNDED_RADIX, UntabledCounter

_HAAR_LEVELS = 51
_NARROW = 2  # bytes of a cached noise value while it fits 16 bits


def counter_choices(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Iterator[CounterChoice]:
    """Every counter, the one in use first; none where a mechanism keeps no counter.

    Args:
        config: with D0 in `max_items`.
        mechanism: built from it.
        noise: its noise.
    """
    if isinstance(mechanism, (Meta, MisraGries)):
        yield from _blocks(config, mechanism, noise)
        return
    if isinstance(mechanism, OrderStatistics) and isinstance(config, MaxConfig):
        if mechanism.inner is not None:
            yield from _intervals(config, mechanism)
        return
    counter = mechanism.public().get("counter")
    if isinstance(counter, dict):
        yield from _running(config, mechanism, noise, rho_item_of(counter))


def _running(config: HistogramConfig, mechanism: Mechanism, noise: Noise, rho_item: float) -> Iterator[CounterChoice]:
    ticks, own_radix = config.horizon_ticks, config.radix
    best = UNBOUNDED_RADIX if ticks is None else best_radix(ticks)
    kinds: list[tuple[str, int | None]] = [("haar", None), ("tree", best), ("tree", 2), ("sqrt", None)]
    own = (config.counter, (own_radix or best) if config.counter == "tree" else None)
    for kind, radix in [own, *(other for other in dict.fromkeys(kinds) if other != own)]:
        reason = _why_not_sqrt(config) if kind == "sqrt" else ""
        if (kind, radix) == own:
            worst, rms, held = noise.worst_sd, noise.rms_sd, memory_of(mechanism, config).noise_per_row
        elif kind == "sqrt" and (ticks is None or ticks > SQRT_HORIZON_MAX):
            yield CounterChoice(
                counter=kind, radix=None, chosen=False, possible=False, reason=reason, worst_sd=None, rms_sd=None, error=None,
                times_worst=None, noise_per_row=None,
            )  # fmt: skip
            continue
        else:
            last, other = noise.ticks_looked_at, _curve(kind, ticks, rho_item, radix)
            worst = math.sqrt(other.variance(other.loudest(last)[:1])[0])
            rms = math.sqrt(other.mean(last))
            held = _held(config, kind, radix)
        yield CounterChoice(
            counter=kind, radix=radix, chosen=(kind, radix) == own, possible=not reason, reason=reason, worst_sd=worst,
            rms_sd=rms, error=None, times_worst=worst / noise.worst_sd, noise_per_row=held,
        )  # fmt: skip


def _curve(kind: str, ticks: int | None, rho_item: float, radix: int | None) -> Curve:
    if kind == "sqrt" and ticks is not None:
        return sqrt_curve(ticks, rho_item)
    return curve_of(UntabledCounter(kind, ticks, rho_item, radix).public())


def _why_not_sqrt(config: HistogramConfig) -> str:
    if config.mechanism not in SQRT_MECHANISMS:
        return "only where labels are declared: an item that comes later would be caught up from tick 1"
    if config.horizon_ticks is None or config.horizon_ticks > SQRT_HORIZON_MAX:
        return f"only for a horizon of at most {SQRT_HORIZON_MAX:,} ticks"
    return ""


def _held(config: HistogramConfig, kind: str, radix: int | None) -> int:
    """About the bytes a row of a counter's cache, while its noise fits 16 bits; sparse_gumb draws anew for the few it shows."""
    ticks = config.horizon_ticks
    if kind == "sqrt":
        return 8 * (ticks or 0)
    if config.mechanism == "sparse_gumb":
        return 0
    if kind == "haar":
        return _NARROW * (_HAAR_LEVELS if ticks is None else (ticks - 1).bit_length() + 1)
    return _NARROW * digits_of((1 << 40) - 1 if ticks is None else ticks, radix or 2)


def _blocks(config: HistogramConfig, mechanism: Meta | MisraGries, noise: Noise) -> Iterator[CounterChoice]:
    """Other bases of the tree of blocks: a mechanism each, for thresholds follow from the number of levels."""
    own = mechanism.radix if isinstance(mechanism, Meta) else mechanism.tree.radix
    best = best_radix(noise.ticks_looked_at)
    for radix in dict.fromkeys((own, best, 2, 4, 16)):
        if radix == own:
            worst, rms = noise.worst_sd, noise.rms_sd
        elif radix > noise.ticks_looked_at:
            continue
        else:
            try:
                other = build(structs.replace(config, radix=radix))
            except ValueError:
                continue
            variance = curve(other, noise.ticks_looked_at)
            worst = math.sqrt(variance.variance(variance.loudest(noise.ticks_looked_at)[:1])[0])
            rms = math.sqrt(variance.mean(noise.ticks_looked_at))
        yield CounterChoice(
            counter="tree", radix=radix, chosen=radix == own, possible=True, reason="", worst_sd=worst, rms_sd=rms, error=None,
            times_worst=worst / noise.worst_sd, noise_per_row=None,
        )  # fmt: skip


def _intervals(config: MaxConfig, mechanism: OrderStatistics) -> Iterator[CounterChoice]:
    """Counters of closed intervals, by the error that they let the mechanism promise."""
    if config.accounting == "pure":
        return
    own = (config.counter, config.radix)
    for kind, radix in dict.fromkeys([own, ("haar", None), ("tree", None)]):
        other = mechanism if (kind, radix) == own else build(structs.replace(config, counter=kind, radix=radix))
        if isinstance(other, OrderStatistics):
            yield CounterChoice(
                counter=kind, radix=radix, chosen=(kind, radix) == own, possible=True, reason="", worst_sd=None, rms_sd=None,
                error=other.error(1), times_worst=other.error(1) / mechanism.error(1), noise_per_row=None,
            )  # fmt: skip
