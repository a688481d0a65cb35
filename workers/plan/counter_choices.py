"""The counters that a mechanism can have, at the same cost: what each would do to the noise."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from workers.mechanisms.config import SQRT_HORIZON_MAX, SQRT_MECHANISMS, HistogramConfig
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.counters.tree import best_radix, digits_of, usual_radix
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import build
from workers.plan.curves import curve_of, rho_item_of, sqrt_curve
from workers.plan.memory import memory_of
from workers.plan.model import CounterChoice, Noise
from workers.plan.noise import Blocks, blocks_of, curve, worst_and_rms

_HAAR_LEVELS = 51
_NARROW = 2  # bytes of a cached noise value while it fits 16 bits


def counter_choices(config: HistogramConfig, mechanism: Mechanism, noise: Noise) -> Iterator[CounterChoice]:
    """Yield every counter, the one in use first; none where a mechanism keeps no counter.

    Args:
        config: with D0 in `max_items`.
        mechanism: built from it.
        noise: its noise.
    """
    counter = mechanism.public().get("counter")
    if blocks := blocks_of(mechanism):
        yield from _blocks(config, blocks, noise)
    elif isinstance(mechanism, OrderStatistics):
        if mechanism.inner is not None and not config.pure:
            yield from _intervals(config, mechanism)
    elif isinstance(counter, dict):
        yield from _running(config, mechanism, noise, rho_item_of(counter))


def _running(config: HistogramConfig, mechanism: Mechanism, noise: Noise, rho_item: float) -> Iterator[CounterChoice]:
    ticks, best = config.horizon_ticks, usual_radix(config.horizon_ticks)
    kinds: list[tuple[str, int | None]] = [("haar", None), ("tree", best), ("tree", 2), ("sqrt", None)]
    own = (config.counter, (config.radix or best) if config.counter == "tree" else None)
    for kind, radix in dict.fromkeys([own, *kinds]):
        chosen = (kind, radix) == own
        reason = _why_not_sqrt(config) if kind == "sqrt" else ""
        if chosen:
            worst, rms, held = noise.worst_sd, noise.rms_sd, memory_of(mechanism, config).noise_per_row
        elif kind == "sqrt" and (ticks is None or ticks > SQRT_HORIZON_MAX):
            yield CounterChoice(counter=kind, radix=None, chosen=False, possible=False, reason=reason)
            continue
        else:
            closed = kind == "sqrt" and ticks is not None
            other = (
                sqrt_curve(ticks or 1, rho_item)
                if closed
                else curve_of(make_counter(kind, ticks, rho_item, radix).public())
            )
            worst, rms = worst_and_rms(other, noise.ticks_looked_at)
            held = _held(config, kind, radix)
        yield CounterChoice(
            counter=kind, radix=radix, chosen=chosen, possible=not reason, reason=reason, worst_sd=worst,
            rms_sd=rms, times_worst=worst / noise.worst_sd, noise_per_row=held,
        )  # fmt: skip


def _why_not_sqrt(config: HistogramConfig) -> str:
    if config.mechanism not in SQRT_MECHANISMS:
        return "only where labels are declared: an item that comes later would be caught up from tick 1"
    if config.horizon_ticks is None or config.horizon_ticks > SQRT_HORIZON_MAX:
        return f"only for a horizon of at most {SQRT_HORIZON_MAX:,} ticks"
    return ""


def _held(config: HistogramConfig, kind: str, radix: int | None) -> int:
    """Return about the bytes a row of a counter's cache, while its noise fits 16 bits."""
    ticks = config.horizon_ticks
    if kind == "sqrt":
        return 8 * (ticks or 0)
    if config.mechanism == "sparse_gumb":  # which draws anew for the few it shows
        return 0
    if kind == "haar":
        return _NARROW * (_HAAR_LEVELS if ticks is None else (ticks - 1).bit_length() + 1)
    return _NARROW * digits_of((1 << 40) - 1 if ticks is None else ticks, radix or 2)


def _blocks(config: HistogramConfig, blocks: Blocks, noise: Noise) -> Iterator[CounterChoice]:
    """Yield other bases of the tree of blocks, each a mechanism with thresholds of its own."""
    last, own = noise.ticks_looked_at, blocks.radix
    for radix in dict.fromkeys((own, best_radix(last), 2, 4, 16)):
        if radix == own:
            worst, rms = noise.worst_sd, noise.rms_sd
        elif radix > last:
            continue
        else:
            try:
                other = build(structs.replace(config, radix=radix))
            except ValueError:
                continue
            worst, rms = worst_and_rms(curve(other, last), last)
        yield CounterChoice(
            counter="tree", radix=radix, chosen=radix == own, possible=True, worst_sd=worst, rms_sd=rms,
            times_worst=worst / noise.worst_sd,
        )  # fmt: skip


def _intervals(config: HistogramConfig, mechanism: OrderStatistics) -> Iterator[CounterChoice]:
    """Yield counters of closed intervals, by the error that they let the mechanism promise."""
    own = (config.counter, config.radix)
    for kind, radix in dict.fromkeys([own, ("haar", None), ("tree", None)]):
        chosen = (kind, radix) == own
        other = mechanism if chosen else build(structs.replace(config, counter=kind, radix=radix))
        if isinstance(other, OrderStatistics):
            yield CounterChoice(
                counter=kind, radix=radix, chosen=chosen, possible=True, error=other.error(1),
                times_worst=other.error(1) / mechanism.error(1),
            )  # fmt: skip
