"""Estimate how many events a second a topic has, from samples of its partitions.

`init` and `check` use this one estimate: all accepted events of a partition, in the time that the
topic covers. The newest records alone would tell the speed of one burst, and the span of a small
partition's few records says nothing about how often they come.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from workers.arrays.types import Longs
from workers.commands.init.fields import OUTLIERS


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PartitionSample:
    """Accepted events of a partition's sample.

    Attributes:
        times: of the sampled events, ms since 1970, in any order.
        events: estimate of how many events there are in the time that the sample covers.
        from_start: whether the partition still has its first record, so that nothing came before.
    """

    times: Longs
    events: float
    from_start: bool


def joined(arrays: Sequence[Longs]) -> Longs:
    """Return arrays, perhaps none, end to end."""
    return np.concatenate([np.empty(0, dtype=np.int64), *arrays])


def event_rates(samples: Sequence[PartitionSample]) -> list[float]:
    """Return the events per second of each partition; 0 where the samples have no time span.

    All partitions end with the newest event of any, and begin with the oldest, but one that lost
    its first records begins with its own.
    """
    ordered = np.sort(joined([sample.times for sample in samples]))
    # One event of another year changes no rate.
    outliers = int(OUTLIERS * len(ordered))
    total = sum(sample.events for sample in samples)
    if len(ordered) < 2 or not total:
        return [0.0] * len(samples)
    first = int(ordered[outliers])
    last = int(ordered[-1 - outliers])
    # Between `first` and `last` lie the events without the outliers; n events are n - 1 intervals.
    share = max(total - 2 * outliers - 1, 1) / total
    rates = []
    for sample in samples:
        begin = first if sample.from_start else max(first, _first(sample.times))
        # It has no span of its own: that of all is taken.
        if not len(sample.times) or last <= begin:
            begin = first
        span_s = (last - begin) / 1000
        rates.append(share * sample.events / span_s if span_s else 0.0)
    return rates


def _first(times: Longs) -> int:
    """Return when a partition's first events are dated, without outliers; 0 without events."""
    if not len(times):
        return 0
    return int(np.sort(times)[int(OUTLIERS * len(times))])


def estimated_records(offsets: Longs, low: int, high: int) -> float:
    """Estimate the records from offset `low` to `high` from a sample of the newest `offsets`.

    Transaction markers, aborted records and compaction leave offsets without records.
    """
    if not len(offsets):
        return 0.0
    covered = high - int(offsets.min())
    return (high - low) * len(offsets) / covered if covered > 0 else float(len(offsets))
