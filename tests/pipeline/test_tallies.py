"""A tally's sums do not depend on its look-up method, nor on when that changes."""

from collections import Counter

import numpy as np
import pytest

from workers.arrays import tallies as kernels
from workers.arrays.texts import Texts
from workers.events.columns import NO_AMOUNTS, EventColumns
from workers.events.vocabulary import Vocabulary
from workers.pipeline.tallies import Tally


def count_of(tally: Tally) -> Counter[tuple[int, int]]:
    """Return the tally's counts by the codes of key and label, each from one row."""
    n = len(tally)
    out = pairs, labels, counts = kernels.LabelRows(
        np.empty(n, dtype=np.uint64), np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    )
    names, _, starts = tally.write(np.zeros(len(tally.key_names), dtype=np.int32), 1, out)
    used = int(starts[-1])
    rows = zip(pairs[:used].tolist(), labels[:used].tolist(), strict=True)
    of_rows = [(pair >> 32, label) for pair, label in rows]
    found = Counter(dict(zip(of_rows, counts[:used].tolist(), strict=True)))
    assert len(found) == used == n - len(names)
    places = np.repeat(np.arange(len(names)), np.diff(starts)).tolist()
    named = [names[place] for place in places]
    assert named == [tally.key_names.name(key) for key, _ in of_rows]
    return found


@pytest.mark.parametrize("seed", range(8))
def test_counts_are_the_same_while_vocabularies_and_batches_grow(seed: int) -> None:
    """Few events among many labels use a hash, many use an index; switching loses nothing."""
    rng = np.random.default_rng(seed)
    keys, labels = Vocabulary(), Vocabulary()
    tally, expected, tables = Tally(keys, labels), Counter[tuple[int, int]](), set()
    n_keys, n_labels = 3, 300
    for n in (1, 3, 200, 5, 40_000, 2, 3_000):
        n_keys, n_labels = n_keys + int(rng.integers(0, 5)), n_labels * int(rng.integers(1, 3))
        for names, number in ((keys, n_keys), (labels, n_labels)):
            names.codes_of(Texts.of(str(i).encode() for i in range(len(names), number)))
        of_keys = rng.integers(0, n_keys, n).astype(np.int32)
        of_labels = rng.integers(0, n_labels, n).astype(np.int32)
        ends = np.arange(1, n + 1)
        columns = EventColumns(of_keys, keys, ends, of_labels, NO_AMOUNTS, labels, None)
        tally.add(columns, np.arange(n), NO_AMOUNTS, 1, 1)
        expected.update(zip(of_keys.tolist(), of_labels.tolist(), strict=True))
        tables.add(tally._table.bits >= 0)
        assert count_of(tally) == expected
    assert tables == {True, False}
