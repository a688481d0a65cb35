"""What one tick contributes, each item once. The rows live for a tick only: they need no text, and
no index where one message has all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Contributions
from workers.mechanisms.tag_index import TagIndex, Tags
from workers.mechanisms.texts import Texts

Parts = Sequence[tuple[Contributions, NDArray[np.int32]]]


class TickRows(NamedTuple):
    """A tick's rows. Sensitive: its repr shows none of them.

    Attributes:
        tags: uint64 (n, 2), which all differ.
        keys: int32 (n,), index of the stream key.
        counts: int64 (n,), each above 0.
        labels: UTF-8 of each.
    """

    tags: Tags
    keys: NDArray[np.int32]
    counts: NDArray[np.int64]
    labels: Texts

    def __repr__(self) -> str:
        return f"TickRows({len(self.counts)} rows)"


def tick_rows(contributions: Parts) -> TickRows:
    """Adds up what several messages contribute.

    Args:
        contributions: of one tick, with the index of each of a message's stream keys, -1 for one
            that is not served.
    """
    parts = [_served(part, key_index) for part, key_index in contributions]
    if len(parts) == 1:
        return parts[0]
    most = sum(len(part.counts) for part in parts)
    tags, keys = np.empty((most, 2), dtype=np.uint64), np.empty(most, dtype=np.int32)
    counts = np.zeros(most, dtype=np.int64)
    labels: list[Texts] = []
    index, n = TagIndex(), 0
    for part in parts:
        rows, unknown = index.add(counts, tags, part.tags, part.counts)
        if unknown:
            new = np.flatnonzero(rows < 0)
            added = slice(n, n + unknown)
            tags[added], keys[added] = part.tags.take(new, axis=0), part.keys[new]
            counts[added] = part.counts[new]  # each row once: see Contributions
            labels.append(part.labels.take(new))
            n += unknown
            index.enter(n, tags)
    return TickRows(tags[:n], keys[:n], counts[:n], Texts.concat(labels))


def _served(part: Contributions, key_index: NDArray[np.int32]) -> TickRows:
    """The rows of one message whose stream keys are served."""
    keys = key_index[part.key_of_row]
    if not (keys < 0).any():
        return TickRows(part.tags, keys, part.counts, part.labels)
    rows = np.flatnonzero(keys >= 0)
    return TickRows(part.tags.take(rows, axis=0), keys[rows], part.counts[rows], part.labels.take(rows))
