"""Records of a histogram topic become whole snapshots, or are refused."""

from itertools import permutations
from typing import Any

import orjson
import pytest

from tests.dashboard.feeding import GONE, message, snapshot
from workers.client import messages
from workers.client.messages import InvalidSnapshot, Pages, Stream, select_items


def test_a_snapshot_of_one_page_is_kept_byte_for_byte() -> None:
    value = orjson.dumps(message(7))
    found = Pages().receive("products", value)
    assert found is not None
    assert found.json == value
    assert (found.stream, found.tick, found.mechanism) == (
        Stream("products", "s1"),
        7,
        "unk_base",
    )
    assert found.guarantee.epsilon == 1.0


def test_a_snapshot_never_holds_a_line_end() -> None:
    value = orjson.dumps(message(items=[("a\nb", 1)]), option=orjson.OPT_INDENT_2)
    found = Pages().receive("products", value)
    assert found is not None
    assert b"\n" not in found.json
    assert orjson.loads(found.json) == message(items=[("a\nb", 1)])


def test_pages_become_one_snapshot_in_whatever_order_they_come() -> None:
    items = [(f"item {i}", 100 - i) for i in range(9)]
    pages = [
        orjson.dumps(message(3, items[i : i + 3], page=i // 3 + 1, pages=3))
        for i in (0, 3, 6)
    ]
    for order in ([0, 1, 2], [2, 0, 1], [0, 0, 1, 2]):
        together = Pages()
        found = [together.receive("products", pages[i]) for i in order]
        assert found[:-1] == [None] * (len(order) - 1)
        assert found[-1] is not None
        assert orjson.loads(found[-1].json) == message(3, items)


def in_parts(
    tick: int, items: list[list[tuple[str, int]]], **changes: Any
) -> list[bytes]:
    """Return a tick's records by part; a part of more than two items has two pages."""
    found = []
    for part, own in enumerate(items, 1):
        cuts = [own[:2], own[2:]] if len(own) > 2 else [own]
        for page, some in enumerate(cuts, 1):
            found.append(
                orjson.dumps(
                    message(
                        tick,
                        some,
                        part=part,
                        parts=len(items),
                        page=page,
                        pages=len(cuts),
                        **changes,
                    )
                )
            )
    return found


def test_the_parts_of_a_tick_become_one_snapshot_in_whatever_order_they_come() -> None:
    """As if the stream key were not split, largest items first; not before all are there."""
    records = in_parts(3, [[("d", 9), ("b", 4), ("e", -1)], [], [("c", 4), ("a", 2)]])
    whole = message(3, [("d", 9), ("b", 4), ("c", 4), ("a", 2), ("e", -1)])
    for order in permutations(range(len(records))):
        together = Pages()
        found = [together.receive("products", records[i]) for i in order]
        assert found[:-1] == [None] * (len(order) - 1)
        assert found[-1] is not None
        assert orjson.loads(found[-1].json) == whole
        assert together.first_position is None


def test_what_is_left_of_earlier_ticks_waits_no_longer_than_for_the_next_one() -> None:
    """A reader that begins between the parts of a tick never sees its first ones."""
    together = Pages()
    offset = 0
    for tick in (2, 3):
        for record in in_parts(tick, [[("a", 1)], [("b", 1)]])[tick == 2 :]:
            offset += 1
            found = together.receive("products", record, offset)
    assert found is not None and found.tick == 3
    assert together.first_position is None
    ahead = in_parts(9, [[("a", 1)], []], id="f" * 32)[0]  # of another epoch
    assert together.receive("products", ahead, 7) is None
    for offset, record in enumerate(in_parts(4, [[("a", 1)], [("b", 1)]]), 8):
        found = together.receive("products", record, offset)
    assert found is not None and found.tick == 4
    assert together.first_position == 7


def test_ticks_that_never_come_whole_take_no_more_memory_than_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(messages, "WAITING_BYTES_MAX", 20_000)
    pages = Pages()
    for tick in range(1, 100):
        record = orjson.dumps(message(tick, page=1, pages=2))
        assert pages.receive("products", record, tick) is None
    kept = 20_000 // (len(record) + messages.RECORD_BYTES)
    assert 1 < kept == len(pages._waiting) < 99
    assert pages.first_position == 100 - kept


def changed(old: bytes, new: bytes, **fields: Any) -> bytes:
    return orjson.dumps(message(**fields)).replace(old, new)


def with_secret(value: bytes) -> bytes:
    return changed(b'"in place"', value, secret="in place")


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"hello",
        b"[]",
        message() | {"items": [["tea", "secret label"]]},
        message() | {"tick": "secret label"},
        message(guarantee=GONE),
        message(page=3, pages=2),
        message(part=3, parts=2),
        message(sums=[[5.0, 1.0, 0.0, 2.0]]),
        message(sums=[], sum={"from": 0, "to": 2, "step": 1, "sd": 3.0}),
        message(items=GONE, query="max", value=[3], part=0, parts=2),
        message(histogram="other"),
        message(end=0),
        with_secret(b"[" * 5_000 + b"]" * 5_000),
        with_secret(b"[" * 1_100 + b"]" * 1_100),
        with_secret(b"[" * 600 + b"]" * 600),
        with_secret(b'"\xff"'),
        with_secret(b'"\\ud800"'),
        with_secret(b"1e999"),
        changed(b"tea", b"\xff"),
        changed(b",5]", b",9007199254740992]"),
        changed(b'"epoch":1', b'"epoch":1' + b"0" * 400),
        message(sd=-1.0),
        message(guarantee=message()["guarantee"] | {"rho": -1.0}),
        message(page=1, pages=2, items=GONE, query="max", value=3),
        # Within a known field, where a decoder may pass over it.
        changed(b'"rho"', b'"\xff":1,"rho"'),
        changed(b'"rho"', b'"x":"\\ud800","rho"'),
        changed(b'"rho"', b'"x":1e999,"rho"', pages=2),
    ],
)
def test_what_is_no_snapshot_is_refused_and_not_quoted(value: Any) -> None:
    record = orjson.dumps(value) if isinstance(value, dict) else value
    with pytest.raises(InvalidSnapshot) as caught:
        Pages().receive("products", record)
    assert "secret" not in str(caught.value)


def test_a_snapshot_can_be_cut_to_some_items() -> None:
    whole = snapshot(items=[("a", 3), ("b", 2), ("c", 1)])
    assert select_items(whole) is whole.json
    two = message(items=[("a", 3), ("b", 2)])
    last = message(items=[("c", 1)])
    assert orjson.loads(select_items(whole, top=2)) == two | {"total_items": 3}
    assert orjson.loads(select_items(whole, items={"c", "x"})) == last | {
        "total_items": 3
    }
    query = snapshot(items=GONE, query="max", value=7)
    assert select_items(query, top=1) is query.json


def test_a_histogram_of_numbers_is_not_cut_to_its_largest_buckets() -> None:
    items = [("[0,1)", 9), ("<0", 2), (">=1", 1)]
    whole = snapshot(1, edges=[0.0, 1.0], mechanism="known_base", items=items)
    assert orjson.loads(select_items(whole, top=1))["items"] == [
        list(item) for item in items
    ]
    assert orjson.loads(select_items(whole, items={"<0"}))["items"] == [["<0", 2]]
