"""Ledger columns and a tick's rows equal a dictionary from (stream key, label) to count."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions, Ledger, tick_rows
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(bytes(range(32)))
TALLIES = st.dictionaries(
    st.sampled_from(["a", "b", "shop"]),
    st.dictionaries(st.text(max_size=6), st.integers(1, 10**12), max_size=12),
    max_size=3,
)


def contributions(tally: dict[str, dict[str, int]]) -> Contributions:
    keys = tuple(tally)
    labels = [label.encode() for items in tally.values() for label in items]
    lengths = [len(items) for items in tally.values()]
    key_of_row = np.repeat(np.arange(len(keys), dtype=np.int32), lengths)
    tags = [
        KEY.tags(key, [label.encode() for label in items])
        for key, items in tally.items()
    ]
    counts = np.array(
        [n for items in tally.values() for n in items.values()], dtype=np.int64
    )
    all_tags = np.concatenate([np.empty((0, 2), np.uint64), *tags])
    return Contributions(keys, key_of_row, all_tags, Texts.of(labels), counts)


def as_dict(columns: Ledger, names: list[str]) -> dict[tuple[str, str], int]:
    labels = [columns.label(row).decode() for row in range(columns.n)]
    pairs = zip((names[key] for key in columns.keys.tolist()), labels, strict=True)
    return dict(zip(pairs, columns.counts.tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("served", [["a", "b", "shop"], ["b"]])
@given(parts=st.lists(TALLIES, max_size=6))
def test_merging_adds_up_like_a_dictionary_and_leaves_out_keys_that_are_not_served(
    served: list[str], parts: list[dict[str, dict[str, int]]]
) -> None:
    """A histogram that declares its keys never holds another key's items."""
    columns = Ledger()
    expected = Counter[tuple[str, str]]()
    for tally in parts:
        index = [served.index(key) if key in served else -1 for key in tally]
        rows = np.array(index, dtype=np.int32)
        columns.merge(contributions(tally), rows, add_rows=True)
        for key in tally.keys() & set(served):
            expected.update({(key, label): n for label, n in tally[key].items()})
    assert as_dict(columns, served) == expected


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(st.lists(TALLIES, max_size=4))
def test_rows_of_a_tick_are_the_sums_of_all_messages(
    parts: list[dict[str, dict[str, int]]],
) -> None:
    """One message is used directly, several are summed, and unserved keys are left out."""
    names = ["shop", "a"]
    expected = Counter[tuple[str, str]]()
    messages = []
    for tally in parts:
        index = [names.index(key) if key in names else -1 for key in tally]
        messages.append((contributions(tally), np.array(index, dtype=np.int32)))
        served = {key: items for key, items in tally.items() if key in names}
        expected.update(
            {(key, label): n for key in served for label, n in served[key].items()}
        )
    found = tick_rows(messages)
    pairs = [
        (names[key], label.decode())
        for key, label in zip(found.keys, found.labels, strict=True)
    ]
    assert dict(zip(pairs, found.counts.tolist(), strict=True)) == expected
    assert len(pairs) == len(expected)
    for (key, label), tag in zip(pairs, found.tags.tolist(), strict=True):
        assert tag == KEY.tags(key, [label.encode()])[0].tolist()


def test_an_unknown_item_gets_no_row_in_a_declared_domain() -> None:
    """KnownBase never holds, so never shows, an item outside its domain."""
    columns = Ledger()
    known = contributions({"a": {"x": 1}})
    columns.merge(known, np.zeros(1, np.int32), add_rows=True)
    more = contributions({"a": {"y": 5, "x": 2}})
    columns.merge(more, np.zeros(1, np.int32), add_rows=False)
    assert as_dict(columns, ["a"]) == {("a", "x"): 3}


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 9_000), st.integers(1, 7))
def test_the_index_finds_every_row_and_nothing_else_as_it_grows(
    n: int, parts: int
) -> None:
    """A row lost during growth would start a second count of its item."""
    rng = np.random.default_rng(n)
    tags = rng.integers(0, 2**63, size=(n, 2), dtype=np.uint64)
    tags[:, 0] &= np.uint64(0xFFF)  # many collide in the first slot
    columns = Ledger()
    for chunk in np.array_split(tags, parts):
        columns.append(
            chunk, np.zeros(len(chunk), np.int32), Texts.of([b""] * len(chunk))
        )
    assert np.array_equal(columns.find(tags), np.arange(n))
    absent = tags.copy()
    absent[:, 1] ^= np.uint64(1 << 63)
    assert (columns.find(absent) == -1).all()


def test_labels_come_back_byte_for_byte() -> None:
    """Labels are slices of one byte column; an off-by-one would name another item."""
    columns = Ledger()
    labels = [b"", b"x", "é\0".encode(), b"y" * 1024, b""]
    for label in labels:
        tags = KEY.tags("k", [label + bytes([columns.n])])
        columns.append(tags, np.zeros(1, np.int32), Texts.of([label]))
    assert [columns.label(i) for i in range(len(labels))] == labels
    assert list(columns.label_column(1, 4)) == labels[1:4]
    assert "y" not in repr(columns)
