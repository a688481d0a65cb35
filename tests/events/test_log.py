"""Properties of the logs of a batch as a whole."""

from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import WAYS
from workers.arrays.texts import readonly_contiguous
from workers.events.log import (
    DECLINED,
    DECLINED_EACH,
    log_ends,
    longest_log,
    longest_value,
)


@pytest.mark.parametrize("way", WAYS)
def test_logs_end_where_those_before_and_their_own_rows_end(way: Any) -> None:
    """A declined record has no rows, and one without rows need not be declined."""
    choose = np.random.default_rng(5)
    for n in (0, 1, 2, 100):
        number = choose.integers(-1, 5, n)
        ends = np.empty(n, dtype=np.int64)
        status = np.full(n, 7, dtype=np.int8)
        values = readonly_contiguous(np.zeros((n, 2), dtype=np.int64))
        assert way(log_ends)(number, values, 1 << 40, ends, status) == n
        assert ends.tolist() == np.cumsum(np.maximum(number, 0)).tolist()
        assert status.tolist() == [
            DECLINED if rows == DECLINED else 0 for rows in number.tolist()
        ]
        assert way(longest_log)(readonly_contiguous(ends)) == max([0, *number.tolist()])


@pytest.mark.parametrize("way", WAYS)
def test_a_part_ends_with_the_declined_record_that_takes_the_last_of_its_room(
    way: Any,
) -> None:
    """Only declined records take room: their bytes, and the objects made from each."""
    number = np.array([2, DECLINED, 3, DECLINED, DECLINED])
    values = readonly_contiguous(
        np.array([(0, 500), (500, 600), (600, 9_000), (9_000, 9_001), (9_001, 9_900)])
    )
    ends = np.empty(5, dtype=np.int64)
    status = np.empty(5, dtype=np.int8)
    second = 100 + DECLINED_EACH
    third = second + 1 + DECLINED_EACH
    for room, records in (
        (1, 2),
        (second, 2),
        (second + 1, 4),
        (third, 4),
        (third + 1, 5),
    ):
        assert way(log_ends)(number, values, room, ends, status) == records
        assert ends[:records].tolist() == [2, 2, 5, 5, 5][:records]


@pytest.mark.parametrize("way", WAYS)
def test_the_widest_text_is_found(way: Any) -> None:
    """A log entry without a value is no wider than an empty one."""
    for places, most in (
        ([], 0),
        ([(-1, -1)], 0),
        ([(3, 5), (5, 5), (0, 4)], 4),
        ([(0, 4), (4, 5)], 4),
        ([(1, 2), (9, 20)], 11),
    ):
        texts = np.array(places, dtype=np.int64).reshape(-1, 2)
        assert way(longest_value)(readonly_contiguous(texts)) == most
