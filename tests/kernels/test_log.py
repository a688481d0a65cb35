"""What is known of the logs of a batch as a whole."""

from typing import Any

import numpy as np
import pytest

from tests.kernels.uncompiled import WAYS
from workers.kernels.reading.log import DECLINED, ended, longest_log, outcomes, widest
from workers.kernels.reading.views import READ
from workers.mechanisms.texts import fixed


@pytest.mark.parametrize("way", WAYS)
def test_logs_end_where_those_before_and_their_own_rows_end(way: Any) -> None:
    """A declined record has no rows, and one without rows need not be declined."""
    choose = np.random.default_rng(5)
    for n in (0, 1, 2, 100):
        number = choose.integers(-1, 5, n)
        ends, status = np.empty(n, dtype=np.int64), np.full(n, 7, dtype=np.int8)
        way(ended)(number, ends, status)
        assert ends.tolist() == np.cumsum(np.maximum(number, 0)).tolist()
        assert status.tolist() == [DECLINED if rows == DECLINED else 0 for rows in number.tolist()]
        assert way(longest_log)(fixed(ends)) == max([0, *number.tolist()])


@pytest.mark.parametrize("way", WAYS)
def test_the_widest_text_is_found(way: Any) -> None:
    """One without a value is no wider than an empty one."""
    for places, most in (([], 0), ([(-1, -1)], 0), ([(3, 5), (5, 5), (0, 4)], 4), ([(0, 4), (4, 5)], 4), ([(1, 2), (9, 20)], 11)):
        assert way(widest)(fixed(np.array(places, dtype=np.int64).reshape(-1, 2))) == most


@pytest.mark.parametrize("way", WAYS)
def test_outcomes_are_counted(way: Any) -> None:
    """Whether all were read, and whether any is left to the general reader."""
    status = np.array([READ, DECLINED, 1, READ, READ, DECLINED, DECLINED, DECLINED, 1], dtype=np.int8)
    assert way(outcomes)(status, READ) == (4, 3)
    assert way(outcomes)(status[:0], READ) == (0, 0)
