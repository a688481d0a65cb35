"""The lifted transform, by its definition in docs/decisions/0030-lifted-haar.md, in exact numbers."""

from collections.abc import Mapping
from fractions import Fraction

Nodes = dict[tuple[int, int], Fraction]


def nodes_of(counts: Mapping[int, int], levels: int) -> Nodes:
    """Return the nodes of counts by place, the first of which is 0; (0, 0) is their total."""
    none = Fraction(0)
    sums = {place: Fraction(count) for place, count in counts.items()}
    found: Nodes = {}
    for level in range(1, levels + 1):
        last = (1 << (levels - level)) - 1
        blocks = {place >> 1 for place in sums}
        nodes = {k: sums.get(2 * k, none) - sums.get(2 * k + 1, none) for k in blocks}
        # Reflected beyond the edges.
        padded = nodes | {-1: -nodes.get(0, none), last + 1: -nodes.get(last, none)}
        near = {k + i for k in blocks for i in (-1, 0, 1)}
        sums = {
            k: sums.get(2 * k, none)
            + sums.get(2 * k + 1, none)
            + (padded.get(k + 1, none) - padded.get(k - 1, none)) / 8
            for k in near
            if 0 <= k <= last
        }
        found |= {(level, k): node for k, node in nodes.items() if node}
    return found | {(0, 0): sums[0]}
