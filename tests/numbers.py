"""Numbers for events whose histogram has buckets."""

from workers.mechanisms.config.buckets import Buckets


def number_in(buckets: Buckets, place: int) -> float:
    edges = (buckets.edges[0] - 1, *buckets.edges, buckets.edges[-1] + 1)
    return (edges[place] + edges[place + 1]) / 2
