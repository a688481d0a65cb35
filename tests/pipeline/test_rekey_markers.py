"""Origin headers of re-keyed records, and the marks between them."""

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.arrays.uncompiled import uncompiled
from tests.events.reading import columns as event_columns
from tests.kafka.bombs import columns
from workers.events.reading import Reject
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.intake import Intake
from workers.pipeline.rekey_markers import (
    HEADER,
    NO_TIME,
    Mark,
    Origin,
    Origins,
    encode_header,
    parse_markers,
    read_headers,
    restore_originals,
)
from workers.runtime.errors import StateRefused

Header = tuple[str, bytes | None]


def framed(rows: Sequence[tuple[bytes | None, bytes | None, list[Header]]]) -> Records:
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, (key, value, headers) in enumerate(rows):
        builder.append(i, 1_000 + i, key, value, headers)
    [part] = columns(bytes(builder.build())).take(0, len(rows)).parts()
    return part.records


def keys(records: Records) -> list[bytes | None]:
    return [records.key(i) for i in range(len(records))]


@pytest.mark.parametrize("compiled", [True, False])
def test_only_our_headers_are_read(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer's own header of any name or length must not be taken for ours."""
    if not compiled:
        monkeypatch.setattr(
            "workers.pipeline.rekey_markers.parse_markers", uncompiled(parse_markers)
        )
    cases: list[tuple[list[Header], int, bytes | None]] = [
        ([], NO_TIME, None),
        ([(HEADER, encode_header(NO_TIME, b"session"))], NO_TIME, b"session"),
        ([(HEADER, encode_header(0, b""))], 0, b""),
        (
            [(HEADER, encode_header(1 << 52, None)), ("trace", b"x" * 300)],
            1 << 52,
            None,
        ),
        (
            [
                (HEADER, encode_header(NO_TIME, None)),
                (HEADER, encode_header(5, b"forged")),
            ],
            NO_TIME,
            None,
        ),
        ([("trace", b"1"), (HEADER, encode_header(5, b"forged"))], NO_TIME, None),
        ([(HEADER, None)], NO_TIME, None),
        ([(HEADER, b"short")], NO_TIME, None),
        ([(HEADER[:-1] + "s", encode_header(5, b"forged"))], NO_TIME, None),
        ([(HEADER, encode_header(7, b"k" * 5_000))], 7, b"k" * 5_000),
    ]
    records = framed(
        [(b"ann", b"{}", headers) for headers, _, _ in cases] + [(b"mark", None, [])]
    )
    found, late = restore_originals(records, user_is_key=False)
    assert keys(found) == [key for _, _, key in cases] + [b"mark"]
    assert late.tolist() == [time for _, time, _ in cases] + [NO_TIME]
    expected = [(time, key) for _, time, key in cases]
    assert [read_headers(headers) for headers, _, _ in cases] == expected
    assert keys(restore_originals(records, user_is_key=True)[0]) == [b"ann"] * len(
        cases
    ) + [b"mark"]
    plain = Records.of([b"{}"], [b"ann"])
    assert keys(restore_originals(plain, user_is_key=False)[0]) == [None], (
        "nothing known: not Kafka's bytes"
    )


def marks(*said: Mark | bytes | None) -> tuple[Records, range, list[Reject]]:
    keys = [
        msgspec.json.encode(mark) if isinstance(mark, Mark) else mark for mark in said
    ]
    records = Records.of([None] * len(said), keys)
    return records, range(len(said)), [Reject(i, "no value") for i in range(len(said))]


def test_the_watermark_is_the_least_of_all_origins() -> None:
    """An origin that lags, or sent no mark, holds every tick open."""
    known = Origins(2)
    assert known.watermark is None
    assert known.take(*marks(Mark(0, 2, 0, 50)), "t[0]") == []
    assert known.watermark is None
    known.take(*marks(Mark(0, 2, 1, 70), Mark(1, 2, 0, 20)), "t[0]")
    assert known.watermark == 20
    known.take(*marks(Mark(1, 2, 1, 90)), "t[0]")
    assert known.watermark == 70
    assert Origins(None).watermark is None


def test_origins_join_with_the_mark_of_the_first_and_begin_at_its_watermark() -> None:
    """Nothing of theirs may count in a tick that the others have closed."""
    known = Origins(2)
    known.take(*marks(Mark(0, 2, 0, 50), Mark(1, 2, 0, 90), Mark(0, 4, 1, 70)), "t[0]")
    assert known.all[2:] == [Origin(0, 70), Origin(0, 70)] and known.watermark == 70
    known.take(*marks(Mark(1, 2, 1, 95), Mark(0, 4, 2, 99), Mark(3, 4, 0, 80)), "t[0]")
    assert known.watermark == 70  # the third has sent none
    known.take(*marks(Mark(2, 4, 0, 96)), "t[0]")
    assert known.watermark == 80


def test_marks_that_are_missing_or_come_again_are_refused_and_what_is_none_is_a_reject() -> (
    None
):
    """Marks vouch for the events before them: duplicates or losses would miscount silently."""
    for bad, word in (
        (Mark(0, 2, 2, 5), "mark 2 of partition 0 of the events, where 1 follows"),
        (Mark(0, 2, 0, 5), "mark 0 of partition 0 of the events, where 1 follows"),
        (Mark(1, 2, 1, 5), "mark 1 of partition 1 of the events, where 0 follows"),
        (Mark(2, 3, 0, 5), "a mark of partition 2 of the events, of which 2 are known"),
    ):
        known = Origins(2)
        known.take(*marks(Mark(0, 2, 0, 1)), "t[0]")
        with pytest.raises(StateRefused, match=word):
            known.take(*marks(bad), "t[0]")
    known = Origins(2)
    foreign = b'{"origin": 2, "of": 2, "sequence": 0, "watermark": 1}'
    none = (b"", None, b"ann", foreign, b'{"origin": 0}')
    assert [reject.index for reject in known.take(*marks(*none), "t[0]")] == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert known.all == Origins(2).all
    late = Origins(None)  # a replay may begin anywhere
    late.take(*marks(Mark(1, 3, 17, 5)), "t[0]")
    assert len(late.all) == 3
    with pytest.raises(StateRefused, match="where 18 follows"):
        late.take(*marks(Mark(1, 3, 19, 5)), "t[0]")


def test_events_that_were_sent_on_count_where_they_say_and_do_not_move_the_watermark() -> (
    None
):
    """Otherwise a leading origin would make a lagging origin's events late."""
    lane = Lane(10, 0, 1, 1)
    intake = Intake([lane], grace_ms=0, key=NoiseKey(bytes(32)))

    def add(*events: tuple[int, int]) -> None:
        late = np.array([late for _, late in events])
        intake.add(event_columns([("k", ["a"], at) for at, _ in events]), None, late)

    add((105, NO_TIME), (25, NO_TIME), (31, 47))
    assert (
        intake.watermark is None and intake.first == 25 and not intake.has_closed_tick()
    )
    intake.advance_to(25)
    assert intake.has_closed_tick() and intake.watermark == 25
    [(_, message)] = intake.take_messages(source=0, sequences=[0], offset=3)
    rows = sorted((part.tick, len(part.keys)) for part in message.sections)
    assert rows == [(3, 1), (5, 1), (11, 1)]
    assert message.first == 25 and message.watermark == 25
    add((26, NO_TIME), (12, 25), (200, NO_TIME))
    intake.advance_to(90)
    intake.advance_to(80)  # never backwards
    [(_, message)] = intake.take_messages(source=0, sequences=[1], offset=6)
    assert sorted(part.tick for part in message.sections) == [3, 21]
    assert message.watermark == 90 and message.first == 25
