"""Read a bounded sample of records from topic partitions, for `init` and `check`."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Mapping

from confluent_kafka import Consumer, Message

from workers.kafka.reading import EVENTS, Partition, take

# Offsets are not records: transaction markers take some, and compaction leaves holes.
WIDER = 4

Spans = dict[Partition, tuple[int, int]]


def read_sample(
    consumer: Consumer,
    spans: Mapping[Partition, tuple[int, int]],
    deadline: float,
    bytes_max: int,
    limit: int = sys.maxsize,
    *,
    oldest: bool = False,
) -> tuple[dict[Partition, list[Message]], bool]:
    """Return the committed records in spans of offsets, and whether `bytes_max` left some out.

    Every partition has an equal share of `bytes_max` and at least one record. Of more than `limit`
    records it keeps the newest, or the `oldest`. Stops at the deadline with what was read by then.
    """
    left, share, cut = dict(spans), bytes_max // max(len(spans), 1), False
    found = {where: deque[Message]() for where in spans}
    sizes = Counter[Partition]()
    for where, messages, _, _ in take(consumer, left, most=EVENTS, until_s=deadline):
        kept = found[where]
        for message in messages:
            if oldest and (len(kept) >= limit or sizes[where] > share):
                cut = cut or len(kept) < limit
                left.pop(where, None)
                break
            kept.append(message)
            sizes[where] += _size(message)
            while not oldest and len(kept) > 1 and (len(kept) > limit or sizes[where] > share):
                cut = cut or len(kept) <= limit
                sizes[where] -= _size(kept.popleft())
    return {where: list(kept) for where, kept in found.items()}, cut


def _size(message: Message) -> int:
    return len(message) + len(message.key() or b"")
