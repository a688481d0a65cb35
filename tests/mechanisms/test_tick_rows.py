"""Contributions of one tick are summed for one-shot releases, whatever messages brought them."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.small import KEY
from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions, tick_rows

NAMES = ("s1", "s2", "not served")

ITEMS = st.tuples(st.integers(0, 2), st.integers(0, 12))
MESSAGES = st.lists(st.dictionaries(ITEMS, st.integers(1, 1 << 50), max_size=20), max_size=4)


@settings(max_examples=200, deadline=None)
@given(MESSAGES)
def test_rows_are_the_sums_of_all_messages(messages: list[dict[tuple[int, int], int]]) -> None:
    """One message is used directly, several are summed, and unserved keys are left out."""
    index = np.array([1, 0, -1], dtype=np.int32)
    parts, wanted = [], Counter[tuple[int, bytes]]()
    for message in messages:
        keys, labels = [key for key, _ in message], [b"item %d" % item for _, item in message]
        counts = list(message.values())
        pairs = zip(keys, labels, strict=True)
        tags = np.array([KEY.tags(NAMES[key], [label])[0] for key, label in pairs], dtype=np.uint64)
        columns = np.array(keys, dtype=np.int32), tags.reshape(-1, 2), Texts.of(labels)
        parts.append((Contributions(NAMES, *columns, np.array(counts, dtype=np.int64)), index))
        for key, label, count in zip(keys, labels, counts, strict=True):
            if index[key] >= 0:
                wanted[int(index[key]), label] += count
    found = tick_rows(parts)
    rows = list(zip(found.keys.tolist(), found.labels, strict=True))
    assert dict(zip(rows, found.counts.tolist(), strict=True)) == wanted
    assert len(rows) == len(wanted)
    for (key, label), tag in zip(rows, found.tags, strict=True):
        assert tag.tolist() == KEY.tags(NAMES[1 - key], [label])[0].tolist()
