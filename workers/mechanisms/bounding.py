"""Bounding: what of one event counts (mechanisms.md, neighbours; interfaces.md, Events).

The first `max_items` (D0) distinct labels of the event, in the order in which they stand, each at most `max_count` (Dinf) times.
Then one event touches at most D0 items and moves each by at most Dinf, which is what every sensitivity here is computed from. More
than that is not an error. The rule reads nothing but the event itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

Items = str | list[str] | dict[str, int]


def bound(items: Items, max_items: int, max_count: int) -> dict[str, int]:
    """What one event adds, by label; at most `max_items` labels with at most `max_count` each.

    Args:
        items: a label, a list of labels (a label counts once for each time it stands there), or label -> count.
        max_items: D0.
        max_count: Dinf.
    """
    if isinstance(items, str):
        return {items: 1}
    counts: dict[str, int] = items if isinstance(items, dict) else Counter(items)
    return {label: min(count, max_count) for label, count in list(counts.items())[:max_items]}


def bound_lists(keys: Sequence[str], items: Sequence[Items], max_items: int) -> dict[str, list[str]]:
    """`bound` with `max_count` 1 for a batch of events: the labels that count, by stream key, one entry for each 1 to add.

    A key whose events bring no label stands in the result with an empty list.
    """
    by_key: dict[str, list[str]] = {}
    for key, labels in zip(keys, items, strict=True):
        into = by_key.get(key)
        if into is None:
            into = by_key[key] = []
        if isinstance(labels, list):
            n = len(labels)
            if n < 2:
                into += labels
            elif n == 2 and max_items >= 2:
                into += labels if labels[0] != labels[1] else labels[:1]
            else:
                into += list(dict.fromkeys(labels))[:max_items]
        elif isinstance(labels, str):
            into.append(labels)
        else:
            into += [label for label, count in list(labels.items())[:max_items] if count]
    return by_key
