"""A declared domain by the tags of its labels: which of a tick's items belong to it, and where."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.mechanisms.ledger import Rows, Tags
from workers.mechanisms.misra_gries.sketch import SketchBatch
from workers.mechanisms.misra_gries.sorted_tags import SortedTags


class DomainTags:
    """The tags of one stream key's declared labels, in the order declared. Secret, as tags are."""

    def __init__(self, tags: Tags) -> None:
        """
        Args:
            tags: uint64 (d, 2), all different.
        """
        self.tags = tags
        self._sorted = SortedTags(tags)

    def __repr__(self) -> str:
        return f"DomainTags({len(self.tags)} labels)"

    def places(self, tags: Tags) -> tuple[Rows, NDArray[np.bool_]]:
        """For each of `tags` (n, 2) its place in the domain (any place where there is none), and
        whether there is one.
        """
        before, known = self._sorted.positions(tags)
        if not len(self._sorted):
            return before, known
        return self._sorted.rows[np.minimum(before, len(self._sorted) - 1)], known

    def only(self, items: SketchBatch) -> SketchBatch:
        """The items of the domain alone."""
        _, known = self._sorted.positions(items.tags.all())
        return items if known.all() else items.part(np.flatnonzero(known))
