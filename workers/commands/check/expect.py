"""What the first ticks of a histogram would show if events went on as they are in a sample.

An estimate: each item that was met goes on at its rate, and shows where its expected count passes
the threshold. Items that were not met are not in it, nor is what bounds users.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.one_shot.config import OneShotConfig
from workers.privacy.plan.kinds import KINDS
from workers.privacy.plan.noise import blocks_of, discovery_step, last_tick

Pair = tuple[str, str]
"""A stream key and a label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passing:
    """How many of the items that were met would be shown.

    Attributes:
        tick: after which tick of the epoch.
        threshold: the count from which an item is shown.
        shown: how many pass it.
    """

    tick: int
    threshold: int
    shown: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a histogram's ticks would show.

    Attributes:
        counts: whether what is published are counts with noise of this sd.
        sd_first, sd_worst: of the noise, after the first tick and at its worst.
        last: the epoch's last tick, or that of the first year.
        events: expected in a tick.
        largest, median: expected in a tick of the items that were met; 0 without any.
        items: how many (stream key, item) were met.
        passing: after the first tick, and at the horizon; none where no threshold decides.
        declared: the share of what events bring that is in the declared domain; None without one.
    """

    counts: bool
    sd_first: float
    sd_worst: float
    last: int
    events: float
    largest: float
    median: float
    items: int
    passing: tuple[Passing, ...]
    declared: float | None


def expected(
    config: HistogramConfig,
    mechanism: Mechanism,
    events_s: float,
    pairs_s: Mapping[Pair, float],
    sd_worst: float,
) -> Expected:
    """Return what a histogram's ticks would show.

    Args:
        config: of the histogram.
        mechanism: built from it, for its figures alone.
        events_s: events a second that it looks at.
        pairs_s: what they add to each item, a second, within the bounds of an event.
        sd_worst: the largest sd over the ticks.
    """
    tick_s = config.tick_ms / 1000
    a_tick = {pair: rate * tick_s for pair, rate in pairs_s.items()}
    domain = {label.decode() for label in mechanism.domain()}
    inside = None
    if domain:
        known = {pair: count for pair, count in a_tick.items() if pair[1] in domain}
        total = sum(a_tick.values())
        inside = sum(known.values()) / total if total else 0.0
        a_tick = known
    last, first = last_tick(config), discovery_step(config) or 1
    return Expected(
        counts=KINDS[mechanism.kind].counts,
        sd_first=mechanism.sd(min(first, last)),
        sd_worst=sd_worst,
        last=last,
        events=events_s * tick_s,
        largest=max(a_tick.values(), default=0.0),
        median=statistics.median(a_tick.values()) if a_tick else 0.0,
        items=len(a_tick),
        passing=tuple(_passing(config, mechanism, a_tick, tick) for tick in _looked_at(mechanism, first, last)),
        declared=inside,
    )


def _looked_at(mechanism: Mechanism, first: int, last: int) -> list[int]:
    """Return the ticks after which a threshold decides what is shown, the first and the last."""
    ticks = sorted({min(first, last), last // first * first or last})
    return [tick for tick in ticks if mechanism.threshold(tick) is not None]


def _passing(config: HistogramConfig, mechanism: Mechanism, a_tick: Mapping[Pair, float], tick: int) -> Passing:
    kind, threshold = KINDS[mechanism.kind], mechanism.threshold(tick) or 0
    # What one decision is about: this many ticks' counts.
    ticks = 1 if kind.family == "tick" else tick
    if (blocks := blocks_of(mechanism)) is not None:
        ticks = max(blocks.radix**level for level in range(blocks.levels) if blocks.radix**level <= tick)
    counts = {pair: count * ticks for pair, count in a_tick.items()}
    shown = sum(counts[pair] > threshold + bar for pair, bar in _bars(config, counts).items())
    return Passing(tick=tick, threshold=threshold, shown=shown)


def _bars(config: HistogramConfig, counts: Mapping[Pair, float]) -> dict[Pair, float]:
    """Return what the threshold of each item lies above: of some, the (kbar + 1)-th largest."""
    algorithm = config.parameters() if isinstance(config, OneShotConfig) else None
    of_key: dict[str, list[float]] = {}
    for (key, _), count in counts.items():
        of_key.setdefault(key, []).append(count)
    bars = dict.fromkeys(of_key, 0.0)
    if algorithm is not None and algorithm.kbar:
        bars = {key: sorted([*found, 0.0], reverse=True)[min(algorithm.kbar, len(found))] for key, found in of_key.items()}
    return {pair: bars[pair[0]] for pair in counts}
