"""Bounding sets the sensitivity: at most D0 labels of one event, each at most Dinf times."""

from collections import Counter
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from workers.arrays import tallies

LABELS = st.tuples(st.integers(0, 5), st.integers(0, 9))
NUMBER = st.integers(0, 9)
ROWS = st.lists(LABELS, unique_by=lambda row: row[0])
EVENTS = st.lists(st.tuples(st.integers(0, 3), ROWS), max_size=12)
SECRET = np.uint64(0x0123456789ABCDEF)


@pytest.mark.slow
@settings(max_examples=80)
@given(EVENTS, st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_an_event_adds_at_most_d0_labels_of_at_most_dinf_each(
    events: list[tuple[int, list[tuple[int, int]]]],
    max_items: int,
    max_count: int,
    weighted: bool,
) -> None:
    """l0 and l-infinity sensitivity; the first labels are kept, and every key is reported."""
    ends = np.cumsum([len(rows) for _, rows in events], dtype=np.int64)
    labels = np.array(
        [label for _, rows in events for label, _ in rows], dtype=np.int32
    )
    given_amounts = [n for _, rows in events for _, n in rows] if weighted else []
    amounts = np.array(given_amounts, dtype=np.int64)
    keys = np.array([key for key, _ in events], dtype=np.int32)
    expected: Counter[tuple[int, int]] = Counter()
    for key, rows in events:
        for label, n in rows[:max_items]:
            expected[key, label] += min(n, max_count) if weighted else 1
    for way, tables in product(WAYS, product((-1, 3), repeat=2)):
        size = len(events) + len(labels) + 1
        pairs = np.empty(size, dtype=np.uint64)
        counts = np.empty(size, dtype=np.int64)
        used = 0
        has_row = np.zeros(4, dtype=np.bool_)
        # A tally continues across batches, and its table may change between them.
        for part, bits in zip(
            np.array_split(np.arange(len(events)), 2), tables, strict=True
        ):
            of_slots = 4 << bits if bits >= 0 else 1 << (2 * size - 1).bit_length()
            slots = np.full(of_slots, -1, dtype=np.int32)
            table = tallies.Table(SECRET, bits, slots, has_row, pairs, counts)
            batch = tallies.LabeledEvents(
                np.empty(0, dtype=np.bool_), keys, ends, labels, amounts
            )
            way(tallies.fill_slots)(table, used)
            used = way(tallies.count_events)(
                part, batch, max_items, max_count, table, used
            )
        table_rows = zip(pairs[:used].tolist(), counts[:used].tolist(), strict=True)
        found = {(pair >> 32, pair & tallies.NO_LABEL): n for pair, n in table_rows}
        assert len(found) == used
        assert {key for key, label in found if label == tallies.NO_LABEL} == set(
            keys.tolist()
        )
        assert {
            row: n for row, n in found.items() if row[1] != tallies.NO_LABEL
        } == +expected
        bounded = np.empty(len(labels), dtype=np.int64)
        way(tallies.bound_events)(ends, amounts, max_items, max_count, bounded)
        again: Counter[tuple[int, int]] = Counter()
        of_row = np.repeat(keys, np.diff(ends, prepend=0))
        for key, label, n in zip(
            of_row.tolist(), labels.tolist(), bounded.tolist(), strict=True
        ):
            again[key, label] += n
        assert +again == +expected


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.tuples(NUMBER, NUMBER))), max_size=6)
)
def test_a_number_is_multiplied_by_how_often_its_own_label_counts(
    events: list[tuple[bool, list[tuple[int, int]]]],
) -> None:
    """Events come with (amount, number) of each label; a view may leave events out."""
    ends = np.cumsum([len(rows) for _, rows in events], dtype=np.int64)
    counted = np.array([n for _, rows in events for n, _ in rows], dtype=np.int64)
    kept = [(rows if seen else []) for seen, rows in events]
    of_numbers = np.cumsum([len(rows) for rows in kept], dtype=np.int64)
    numbers = np.array([x for rows in kept for _, x in rows], dtype=np.int64)
    for way, of_all in product(WAYS, (numbers, numbers[:0])):
        out = np.zeros_like(numbers)
        assert way(tallies.multiply_numbers)(ends, counted, of_numbers, of_all, out)
        assert out.tolist() == [
            n * (x if len(of_all) else 1) for rows in kept for n, x in rows
        ]
        if kept and kept[0]:
            other = of_numbers + np.array([1] + [0] * (len(kept) - 1))
            assert not way(tallies.multiply_numbers)(ends, counted, other, of_all, out)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(-1, 3)), unique=True, max_size=20
    ),
    st.lists(st.integers(0, 2), min_size=5, max_size=5),
    st.randoms(use_true_random=False),
)
def test_rows_come_by_owner_and_key_and_within_both_as_they_were_met(
    rows: list[tuple[int, int]], owner_of: list[int], random: Random
) -> None:
    """A label of -1 is the key itself, which precedes its labels."""
    met = list(dict.fromkeys(key for key, _ in rows))
    rows = [(key, -1) for key in met] + [row for row in rows if row[1] >= 0]
    random.shuffle(rows)
    rows.sort(key=lambda row: row[1] >= 0)
    own = tallies.NO_LABEL  # of the key itself
    encoded = [key << 32 | (own if label < 0 else label) for key, label in rows]
    pairs = np.array(encoded, dtype=np.uint64)
    counts = np.arange(100, 100 + len(rows))
    met = [key for key, label in rows if label < 0]
    order = sorted(met, key=owner_of.__getitem__)
    for way in WAYS:
        n = len(rows) - len(met)
        out = of_rows, labels, sums = tallies.LabelRows(
            np.empty(n, dtype=np.uint64),
            np.empty(n, dtype=np.int64),
            np.empty(n, dtype=np.int64),
        )
        slots = np.empty(0, dtype=np.int32)
        has_row = np.ones(5, dtype=np.bool_)
        table = tallies.Table(SECRET, 0, slots, has_row, pairs, counts)
        owners = np.array(owner_of, dtype=np.int32)
        keys, bounds, starts = way(tallies.group_by_owner)(
            table, len(rows), owners, 3, out
        )
        assert keys.tolist() == order
        assert bounds.tolist() == [
            sum(owner_of[key] < owner for key in met) for owner in range(4)
        ]
        columns = zip(of_rows.tolist(), labels.tolist(), sums.tolist(), strict=True)
        found = [(pair >> 32, label, n) for pair, label, n in columns]
        counted = zip(rows, counts.tolist(), strict=True)
        of_labels = [(*row, count) for row, count in counted if row[1] >= 0]
        assert found == [row for key in order for row in of_labels if row[0] == key]
        assert [int(pair) & tallies.NO_LABEL for pair in of_rows] == labels.tolist()
        met_before = [order[:place] for place in range(len(keys) + 1)]
        assert starts.tolist() == [
            sum(row[0] in some for row in found) for some in met_before
        ]


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=15),
    st.integers(0, 70),
    st.integers(0, 9),
    st.integers(0, 40),
    st.data(),
)
def test_events_count_at_their_time_or_at_the_watermark_in_the_tick_that_holds_it(
    dated: list[int], latest: int, grace: int, before: int, data: st.DataObject
) -> None:
    """By hand, one event at a time; an event dated before tick 1 has none."""
    start = data.draw(st.integers(0, 30))
    width = data.draw(st.integers(1, 12))
    mark = before
    counted = []
    wanted = []
    for time in dated:
        mark = max(mark, min(time, latest) - grace)
        counted.append(max(time, mark))
        wanted.append((counted[-1] - start) // width + 1 if time >= start else 0)
    begins = [i for i in range(len(dated)) if i == 0 or wanted[i] != wanted[i - 1]]
    for way in WAYS:
        times = np.array(dated)
        out = np.empty(len(dated), dtype=np.int64)
        assert way(tallies.effective_times)(times, latest, grace, before, out) == mark
        assert out.tolist() == counted
        ticks = np.empty(len(dated), dtype=np.int64)
        places = np.empty(len(dated), dtype=np.int64)
        found, ascending = way(tallies.ticks_of)(
            times, out, start, width, ticks, places
        )
        assert ticks.tolist() == wanted
        assert places[:found].tolist() == begins
        assert ascending is (wanted == sorted(wanted))
