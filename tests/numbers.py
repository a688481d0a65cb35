"""What an event says where a histogram counts numbers, until the readers take numbers (issue 13, item 4).

The one place to change when they do: `READ = True`, and then neither `READ` nor labels are needed.
"""

from __future__ import annotations

from workers.mechanisms.buckets import Buckets

READ = False


def number_in(buckets: Buckets, place: int) -> float | str:
    """A number of the bucket at a place, from 0; while numbers are not read, what they will be read as: its label."""
    if not READ:
        return buckets.labels[place]
    edges = (buckets.edges[0] - 1, *buckets.edges, buckets.edges[-1] + 1)
    return (edges[place] + edges[place + 1]) / 2
