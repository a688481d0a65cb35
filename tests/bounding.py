"""Bounding of one event in plain Python, against which the compiled loops are held."""

from collections import Counter

Items = str | list[str] | dict[str, int]


def bound(items: Items, max_items: int, max_count: int) -> dict[str, int]:
    """Return what one event adds, by label; at most `max_items` labels with at most `max_count` each.

    Args:
        items: a label, a list of labels (a label counts once for each time it occurs), or label -> count.
        max_items: D0.
        max_count: Dinf.
    """
    if isinstance(items, str):
        return {items: 1}
    counts: dict[str, int] = items if isinstance(items, dict) else Counter(items)
    return {label: min(count, max_count) for label, count in list(counts.items())[:max_items]}
