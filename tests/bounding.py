"""Bounding of one event in plain Python, against which the compiled loops are held."""

from collections import Counter

Items = str | list[str] | dict[str, int]


def bound(items: Items, max_items: int, max_count: int) -> dict[str, int]:
    """Return one event's contribution by label, bounded by D0 `max_items` and Dinf `max_count`."""
    if isinstance(items, str):
        return {items: 1}
    counts: dict[str, int] = items if isinstance(items, dict) else Counter(items)
    return {
        label: min(count, max_count)
        for label, count in list(counts.items())[:max_items]
    }
