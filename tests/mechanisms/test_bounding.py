"""Bounding decides the sensitivity: at most D0 labels of one event, each at most Dinf times."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from workers.mechanisms.bounding import Items, bound, bound_lists

LABELS = st.text("abc", max_size=2)
ITEMS: st.SearchStrategy[Items] = st.one_of(
    LABELS, st.lists(LABELS, max_size=8), st.dictionaries(LABELS, st.integers(0, 9), max_size=8)
)


def by_hand(items: Items, max_items: int, max_count: int) -> dict[str, int]:
    counts: dict[str, int] = {}
    if isinstance(items, str):
        items = [items]
    if isinstance(items, list):
        for label in items:
            counts[label] = counts.get(label, 0) + 1
    else:
        counts = dict(items)
    kept = list(counts)[:max_items]
    return {label: min(counts[label], max_count) for label in kept if counts[label]}


@given(ITEMS, st.integers(1, 4), st.integers(1, 4))
def test_an_event_moves_at_most_d0_items_by_at_most_dinf(items: Items, max_items: int, max_count: int) -> None:
    """l0 and l-infinity sensitivity, and that the first labels are the ones kept."""
    bounded = {label: n for label, n in bound(items, max_items, max_count).items() if n}
    assert len(bounded) <= max_items and all(1 <= n <= max_count for n in bounded.values())
    assert bounded == by_hand(items, max_items, max_count)


@given(st.lists(st.tuples(st.sampled_from("xy"), ITEMS), max_size=8), st.integers(1, 4))
def test_a_batch_is_bounded_like_its_events_one_by_one(events: list[tuple[str, Items]], max_items: int) -> None:
    """The fast path for max_count = 1 must be the same rule."""
    batch = bound_lists([key for key, _ in events], [items for _, items in events], max_items)
    expected: dict[str, Counter[str]] = {}
    for key, items in events:
        expected.setdefault(key, Counter()).update(by_hand(items, max_items, 1))
    assert {key: Counter(labels) for key, labels in batch.items()} == expected
