"""What stands before a payload is cut off exactly; whatever else stands there is no schema id."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tests.arrays.uncompiled import WAYS, uncompiled
from workers.events.formats import wire
from workers.events.formats.reader import json_payloads
from workers.events.formats.wire import NO_ID, NO_VALUE, UNKNOWN
from workers.kafka.records import Records


def parse_headers(
    way: Any,
    values: Sequence[bytes | None],
    known: Sequence[tuple[int, int]] = (),
    named: bool = False,
    begin: int = 0,
) -> tuple[int, Any, Any, Any]:
    records = Records.of(values)
    n = len(values)
    new_pair = np.full(2, -7)
    payloads = np.full((n, 2), -7)
    numbers = np.full(n, -7)
    rows = np.array(known, dtype=np.int64).reshape(-1, 2)
    done = way(wire.parse_headers)(
        records.data, records.values, named, rows, begin, new_pair, payloads, numbers
    )
    return done, new_pair.tolist(), payloads.tolist(), numbers.tolist()


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param is uncompiled:
        for name in ("message_path", "zigzag"):
            monkeypatch.setattr(wire, name, uncompiled(getattr(wire, name)))
    return request.param


@pytest.mark.slow
def test_ids_and_payloads(way: Any) -> None:
    values = [
        b"\0\0\0\1\2abc",
        b"\0\xff\xff\xff\xff",
        None,
        b"",
        b"\1\0\0\1\2abc",
        b"\0\0\0\1",
        b"\0\0\0\1\2",
    ]
    done, _, payloads, numbers = parse_headers(way, values, [(2**32 - 1, 0), (258, 0)])
    assert done == len(values)
    assert numbers == [1, 0, NO_VALUE, NO_ID, NO_ID, NO_ID, 1]
    assert payloads == [[5, 8], [13, 13], *[[-1, -1]] * 4, [30, 30]]


def test_it_stops_where_a_schema_is_not_known_and_goes_on_there(way: Any) -> None:
    values = [b"\0\0\0\0\1x", b"\0\0\0\0\2x", b"\0\0\0\0\1x"]
    done, new_pair, payloads, numbers = parse_headers(way, values, [(1, 0)])
    assert (done, new_pair, payloads[1], numbers) == (
        1,
        [2, 0],
        [11, 12],
        [0, UNKNOWN, -7],
    )
    done, _, _, numbers = parse_headers(way, values, [(1, 0), (2, 0)], begin=done)
    assert (done, numbers) == (3, [-7, 1, 0])


def test_protobuf_says_which_message_it_is(way: Any) -> None:
    heads = [b"\0", b"\2\0", b"\2\2", b"\4\0\2", b"\2\x80\x02", b"\x0c\2\2\2\2\2\2"]
    values = [b"\0\0\0\0\7" + head + b"\x0a\x01s" for head in heads]
    known = [(7, int.from_bytes(head, "little")) for head in heads]
    assert len(set(known)) == len(heads)
    done, _, payloads, numbers = parse_headers(way, values, known, named=True)
    assert done == len(values)
    assert [known[number] for number in numbers] == known
    assert [stop - start for start, stop in payloads] == [3] * len(values)
    # Cut short, negative, in a long form, longer than any schema's.
    short = b"", b"\2", b"\1", b"\4\0", b"\2\1", b"\2\x80"
    for wrong in (*short, b"\x80\0\0", b"\x0e\2\2\2\2\2\2\2", b"\xff" * 12):
        assert parse_headers(way, [b"\0\0\0\0\7" + wrong], known, named=True)[3] == [
            NO_ID
        ]


def test_json_behind_an_id_is_cut_without_a_schema() -> None:
    values = [b"\0\0\0\0\1{}", None, b"{}", b"\0\0\0\0", b"", b"\0\0\0\0\1"]
    records = Records.of(values)
    payloads, refused = json_payloads(records.data, records.values)
    assert payloads.tolist() == [[5, 7], *[[-1, -1]] * 4, [18, 18]]
    assert refused == {
        1: "no value",
        2: "no schema id",
        3: "no schema id",
        4: "no schema id",
    }
    assert (
        json_payloads(np.empty(0, dtype=np.uint8), np.empty((0, 2), dtype=np.int64))[1]
        == {}
    )
