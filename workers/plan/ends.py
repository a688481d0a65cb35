"""What `end_share` would do: the noise over an epoch and at its last tick, at the same cost.

Which to name: an epoch's other ticks pay for its last one. Named is the largest share with which
the worst tick has at most a third more noise than without any, if the last tick then has at least
a twentieth less; whether the last tick is what people look at, settings do not tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from msgspec import structs

from workers.mechanisms.config import HistogramConfig, UnkBaseConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.registry import build
from workers.plan.curves import curve_of
from workers.plan.model import Bucket, EndChoice
from workers.plan.noise import buckets_of, worst_and_rms

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
_MORE_AT_WORST = Fraction(4, 3)
_WORTH = 0.95
# A constant threshold is solved from every tick: 0.1 s at this horizon (measured).
_CONSTANT_MOST = 1 << 16


@dataclass(frozen=True, slots=True)
class _Row:
    share: float | None
    offset: int
    worst: float
    rms: float
    last: float
    threshold: float | None
    curve: tuple[Bucket, ...]


def end_choices(config: HistogramConfig, mechanism: Mechanism, unit: str) -> tuple[EndChoice, ...]:
    """Return what each share does, none first; nothing where `end_share` has no meaning.

    Args:
        config: with D0 in `max_items`.
        mechanism: built from it.
        unit: whose presence is hidden.
    """
    last = config.horizon_ticks
    if not config.can_end or last is None or last == 1:
        return ()
    own = config.end_share
    shares = [None, *sorted({*SHARES, *(() if own is None else (own,))})]
    rows = list(_rows(config, mechanism, unit, shares, last))
    named = _named(rows)
    return tuple(
        EndChoice(
            end_share=row.share, chosen=row.share == own, recommended=row is named, offset=row.offset,
            worst_sd=row.worst, rms_sd=row.rms, last_sd=row.last, last_threshold=row.threshold, curve=row.curve,
        )
        for row in rows
    )  # fmt: skip


def _rows(
    config: HistogramConfig, mechanism: Mechanism, unit: str, shares: Sequence[float | None], last: int
) -> Iterator[_Row]:
    """Yield the figures of each share that the budget allows."""
    slow = isinstance(config, UnkBaseConfig) and config.threshold == "constant" and last > _CONSTANT_MOST
    for share in shares:
        changed = structs.replace(config, end_share=share)
        if slow and isinstance(changed, UnkBaseConfig):
            # Its noise is the same, its threshold is left out.
            changed = structs.replace(changed, threshold="per_tick")
        try:
            one = mechanism if share == config.end_share else build(changed, unit)
        except ValueError:
            continue  # more noise than there is a table for
        counter = one.public()["counter"]
        if not isinstance(counter, dict):
            raise TypeError(f"counter = {counter!r}: not what a counter publishes")
        variance = curve_of(counter)
        worst, rms = worst_and_rms(variance, last)
        threshold = None if slow else one.threshold(last)
        yield _Row(
            share, counter.get("offset", 0), worst, rms, one.sd(last),
            None if threshold is None else float(threshold), buckets_of(variance, last),
        )  # fmt: skip


def _named(rows: Sequence[_Row]) -> _Row | None:
    """Return the share to name, as the module says."""
    none = next((row for row in rows if row.share is None), None)
    if none is None:
        return None
    most = none.worst * math.nextafter(float(_MORE_AT_WORST), 2)
    near = [row for row in rows if row.share is not None and row.worst <= most]
    best = min(near, key=lambda row: row.last, default=None)
    return best if best is not None and best.last <= _WORTH * none.last else None
