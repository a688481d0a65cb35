"""What a scanner notes of every record."""

from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import WAYS
from workers.events.log import COLUMNS, DECLINED, DECLINED_EACH, Output, end_log


@pytest.mark.parametrize("way", WAYS)
def test_a_log_ends_with_its_rows_and_only_declined_records_take_room(way: Any) -> None:
    """Their bytes, and the objects made from each; one without a value has no bytes."""
    rows = np.empty((0, COLUMNS), dtype=np.int64)
    ends = np.full(4, 7, dtype=np.int64)
    status = np.full(4, 7, dtype=np.int8)
    out = Output(rows, ends, status, declined_bytes=0)
    values = np.array([(0, 500), (500, 600), (-1, -1), (600, 601)])
    room = 1_000
    used = 0
    for record, end, taken in (
        (0, 2, 0),
        (1, DECLINED, 100 + DECLINED_EACH),
        (2, DECLINED, DECLINED_EACH),
        (3, 2, 0),
    ):
        left = way(end_log)(out, record, values, used, end, room)
        assert left == (2, room - taken)
        used, room = left
    assert ends.tolist() == [2, 2, 2, 2]
    assert status.tolist() == [0, DECLINED, DECLINED, 0]
