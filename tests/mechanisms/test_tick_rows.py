"""Contributions of one tick are summed for one-shot releases, whatever messages brought them."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions, tick_rows
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(bytes(32))
NAMES = ("s1", "s2", "not served")

MESSAGES = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, 2), st.integers(0, 12)), st.integers(1, 1 << 50), max_size=20
    ),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(MESSAGES)
def test_rows_are_the_sums_of_all_messages(messages: list[dict[tuple[int, int], int]]) -> None:
    """One message is used directly, several are summed, and unserved keys are left out."""
    index = np.array([1, 0, -1], dtype=np.int32)
    parts, wanted = [], Counter[tuple[int, bytes]]()
    for message in messages:
        labels = [b"item %d" % item for _, item in message]
        tags = [
            KEY.tags(NAMES[key], [label])[0]
            for (key, _), label in zip(message, labels, strict=True)
        ]
        parts.append(
            (
                Contributions(
                    NAMES,
                    np.array([key for key, _ in message], dtype=np.int32),
                    np.array(tags, dtype=np.uint64).reshape(-1, 2),
                    Texts.of(labels),
                    np.array(list(message.values()), dtype=np.int64),
                ),
                index,
            )
        )
        for (key, _), label, count in zip(message, labels, message.values(), strict=True):
            if index[key] >= 0:
                wanted[int(index[key]), label] += count
    found = tick_rows(parts)
    rows = list(zip(found.keys.tolist(), found.labels, strict=True))
    assert dict(zip(rows, found.counts.tolist(), strict=True)) == wanted and len(rows) == len(
        wanted
    )
    for (key, label), tag in zip(rows, found.tags, strict=True):
        assert tag.tolist() == KEY.tags(NAMES[1 - key], [label])[0].tolist()
