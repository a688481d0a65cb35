"""Users' pairs in compiled tables: a dict of dicts is the oracle."""

from collections import defaultdict
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from workers.mechanisms.config.histogram import Lane
from workers.pipeline import users as kernels
from workers.pipeline.users import Batch, UserEpoch

Event = tuple[int, list[tuple[int, int]]]  # user, rows of pair and amount
ROW = st.tuples(st.integers(0, 7), st.integers(0, 4))
EVENT = st.tuples(st.integers(0, 5), st.lists(ROW, max_size=6))


def lane(most: int, max_count: int) -> Lane:
    return Lane(10, 0, 10, max_count, most, None)


def by_hand(batches: list[list[Event]], most: int, max_count: int) -> list[int]:
    held: dict[int, dict[int, int]] = defaultdict(dict)
    counted = []
    for events in batches:
        for user, rows in events:
            of_user = held[user]
            for pair, amount in rows:
                added = 0
                if amount > 0 and (pair in of_user or len(of_user) < most):
                    added = min(amount, max_count - of_user.get(pair, 0))
                    of_user[pair] = of_user.get(pair, 0) + added
                counted.append(added)
    return counted


def digest(user: int) -> tuple[int, int]:
    """Return a digest; half of the users differ in the first word only, half in the second."""
    return (user, 0) if user % 2 else (0, user)


def take(epoch: UserEpoch, events: list[Event], *, ones: bool = False) -> list[int]:
    number = np.array([len(rows) for _, rows in events], dtype=np.int64)
    rows = [row for _, rows in events for row in rows]
    users = np.array([digest(user) for user, _ in events], dtype=np.uint64).reshape(
        -1, 2
    )
    pairs = np.array([pair for pair, _ in rows], dtype=np.uint64)
    amounts: NDArray[np.int64] = np.array(
        [] if ones else [n for _, n in rows], dtype=np.int64
    )
    counted = np.zeros(len(rows), dtype=np.int64)
    at = np.cumsum(number) - number
    batch = Batch(users, at, number, pairs, amounts)
    epoch.take(np.arange(len(events)), batch, counted)
    return [int(n) for n in counted]


def flat(constant: int) -> Any:
    return lambda first, second, seed: np.uint64(constant << 32)


@pytest.mark.slow
@settings(max_examples=300)
@given(
    st.lists(st.lists(EVENT, max_size=12), max_size=6),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_what_counts_is_what_a_dictionary_says(
    batches: list[list[Event]], most: int, max_count: int
) -> None:
    """Tables begin with room for one row, so they grow within batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "_ROOM", 1)
        epoch = UserEpoch(lane(most, max_count), keeps=True)
        found = [n for events in batches for n in take(epoch, events)]
    assert found == by_hand(batches, most, max_count)
    assert epoch.new_rows == sum(n > 0 for n in found)


@pytest.mark.slow
def test_many_users_and_pairs_over_many_blocks_are_exact() -> None:
    """Guesses cover a block of events; later events must see what earlier ones add."""
    rng = np.random.default_rng(3)
    for most, max_count in ((4, 1), (4, 3), (10_000, 1_000_000)):

        def visit() -> Event:
            user = int(rng.zipf(1.3)) % 3_000
            return user, [
                (int(p), int(rng.integers(0, 3))) for p in rng.integers(0, 9, 3)
            ]

        batches = [[visit() for _ in range(4_000)] for _ in range(3)]
        epoch = UserEpoch(lane(most, max_count), keeps=False)
        assert [n for b in batches for n in take(epoch, b)] == by_hand(
            batches, most, max_count
        )


def test_without_amounts_each_row_is_one() -> None:
    """Most streams count occurrences; no column of ones is made for them."""
    events = [(1, [(1, 1), (2, 1), (1, 1)]), (2, [(1, 1)]), (1, [(1, 1), (3, 1)])]
    assert take(UserEpoch(lane(2, 2), keeps=False), events, ones=True) == [
        1,
        1,
        1,
        1,
        0,
        0,
    ]


def test_no_user_moves_what_another_counts_even_with_the_same_pairs() -> None:
    """Pairs are compared within a user: collisions of digests across users do not matter."""
    epoch = UserEpoch(lane(1, 1), keeps=False)
    assert take(epoch, [(user, [(7, 1), (8, 1)]) for user in range(50)]) == [1, 0] * 50


@pytest.mark.parametrize("compiled", [True, False])
def test_uncompiled_and_where_all_hashes_collide_the_same_counts(
    monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """Python source and compiled code agree; a hash affects look-up time only."""
    monkeypatch.setattr(kernels, "_ROOM", 1)
    if not compiled:
        indexing = "user_slot", "pair_slot", "index_users", "index_pairs"
        for name in ("mark", "number_users", "count_pairs", "entries", *indexing):
            monkeypatch.setattr(
                kernels, name, cast(Any, getattr(kernels, name)).py_func
            )
    rng = np.random.default_rng(4)

    def visit() -> Event:
        return int(rng.integers(0, 40)), [(int(p), 1) for p in rng.integers(0, 5, 2)]

    batches = [[visit() for _ in range(300)] for _ in range(2)]
    plain: Any = getattr(kernels.spread, "py_func", None)
    spreads = [kernels.spread] if compiled else [plain, flat(0), flat(2**31 - 1)]
    for spread in spreads:
        monkeypatch.setattr(kernels, "spread", spread)
        epoch = UserEpoch(lane(3, 2), keeps=True)
        with np.errstate(over="ignore"):
            found = [n for events in batches for n in take(epoch, events)]
        assert found == by_hand(batches, 3, 2)


def test_hashes_differ_with_the_seed_and_spread_over_all_slots() -> None:
    """Without a seed somebody could collect names that share a slot."""
    words = np.arange(4_096, dtype=np.uint64)

    def slots(seed: int) -> NDArray[np.int64]:
        spread = [
            int(kernels.spread(word, np.uint64(0), np.uint64(seed))) for word in words
        ]
        return np.array([(value >> 32) & 4_095 for value in spread])

    one = slots(1)
    other = slots(2)
    assert np.count_nonzero(one == other) < 30
    # Of 4,096 balls in as many urns 63 % of the urns have one; the standard deviation is 0.5 %.
    assert 0.60 < len(set(one.tolist())) / 4_096 < 0.66


def test_room_has_an_end_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of 31 bits must not wrap into other users'."""
    monkeypatch.setattr(kernels, "_ROOM", 1)
    monkeypatch.setattr(kernels, "_ROWS_MAX", 3)
    epoch = UserEpoch(lane(2, 1), keeps=False)
    with pytest.raises(MemoryError, match="users or pairs in one epoch: at most 3"):
        take(epoch, [(user, [(1, 1)]) for user in range(9)])


def test_what_users_hold_is_not_shown() -> None:
    epoch = UserEpoch(lane(2, 1), keeps=True)
    take(epoch, [(1, [(1, 1)])])
    held: Any = epoch
    assert repr(held._table) == "Table(<sensitive>)" and "array" not in repr(epoch)
