"""A declared domain by the tags of its labels: which of a tick's items belong to it, and where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Rows, Tags
from workers.mechanisms.misra_gries.sketch import SketchBatch, positions


class DomainTags:
    """The tags of one stream key's declared labels, in the order declared. Secret, as tags are."""

    def __init__(self, tags: Tags) -> None:
        """
        Args:
            tags: uint64 (d, 2), all different.
        """
        self.tags = tags
        self._order: Rows = np.lexsort((tags[:, 1], tags[:, 0])).astype(np.int64)
        self._ascending: Tags = np.ascontiguousarray(tags[self._order])

    def __repr__(self) -> str:
        return f"DomainTags({len(self.tags)} labels)"

    def places(self, tags: Tags) -> tuple[Rows, NDArray[np.bool_]]:
        """For each of `tags` (n, 2) its place in the domain (any place where there is none), and
        whether there is one.
        """
        before, known = positions(tags, self._ascending)
        if not len(self._order):
            return before, known
        return self._order[np.minimum(before, len(self._order) - 1)], known

    def only(self, items: SketchBatch) -> SketchBatch:
        """The items of the domain alone."""
        _, known = positions(items.tags, self._ascending)
        if known.all():
            return items
        return SketchBatch(items.tags[known], items.labels, items.rows[known], items.counts[known])
