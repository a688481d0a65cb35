"""Large batches are read in parts, and the result does not depend on where parts end."""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path as Directory
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.agents.monitor.scene import Scene
from tests.agents.test_rekey_users import read_all
from tests.events.json_corpus import MAX_BYTES, corpus
from tests.events.reading import FIELDS, Row, event_reader, read_back, read_general
from workers.agents.contribute import ContributeProgress, ContributeShard
from workers.agents.progress import PROGRESS
from workers.events import log
from workers.events.formats.reader import FramedJson
from workers.events.json import Json
from workers.events.log import DECLINED_EACH
from workers.events.project import bucket, number_of
from workers.events.reading import EventReader, Reject
from workers.kafka.records import Batch, Outgoing, Records
from workers.mechanisms.config.views import ALL_KEYS, Path, Shape, View
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import decode
from workers.runtime.sizes import Change
from workers.settings.settings import EventsSettings, shape_of

KEY = NoiseKey(bytes(32))


def small(monkeypatch: pytest.MonkeyPatch, rows: int = 3, declined: int = 700) -> None:
    """Limit a part to this many rows and this many bytes of declined records."""
    monkeypatch.setattr(log, "ROWS_EXPECTED", 0)
    monkeypatch.setattr(log, "ROWS_MIN", rows)
    monkeypatch.setattr(log, "DECLINED_BYTES", declined)


def joined(
    reader: EventReader, records: Records, *, scanned: bool, fmt: Any = None
) -> tuple[list[Row], list[Reject], list[int]]:
    rows: list[Row] = []
    rejects: list[Reject] = []
    stops: list[int] = []
    read = EventReader.read if scanned else read_general
    for reading in read(reader, records, fmt):
        assert reading.start == (stops[-1] if stops else 0)
        part = range(reading.start, reading.stop)
        found = read_back(reading)
        assert all(row[0] in part for row in found)
        assert all(reject.index in part for reject in reading.rejects)
        rows = rows + found
        rejects = rejects + reading.rejects
        stops = [*stops, reading.stop]
    return rows, rejects, stops


@pytest.mark.slow
@pytest.mark.parametrize("scanned", [True, False])
@pytest.mark.parametrize(
    ("key", "timestamp", "user"),
    [
        ("key", "ts", None),
        ("key", None, "$key"),
        ("$key", None, "user"),
        ("$all", None, None),
    ],
)
def test_events_and_rejects_are_the_same_wherever_parts_end(
    monkeypatch: pytest.MonkeyPatch,
    key: str,
    timestamp: str | None,
    user: str | None,
    scanned: bool,
) -> None:
    """Times, keys, users and decoded texts of a record come from its own part."""
    values = corpus()[:: 1 if scanned else 7]
    keys = [None if i % 50 == 0 else b"k%d" % (i % 7) for i in range(len(values))]
    records = Records.of(values, keys, range(len(values)))
    events = replace(FIELDS, key=key, timestamp=timestamp, max_bytes=MAX_BYTES)
    reader = event_reader(events, user)
    rows, rejects, whole = joined(reader, records, scanned=scanned)
    small(monkeypatch)
    again = joined(reader, records, scanned=scanned)
    assert (again[0], again[1]) == (rows, rejects)
    assert again[2][-1] == len(values)
    assert len(again[2]) > max(len(whole), len(values) // 10)


def test_json_behind_a_schema_id_comes_in_parts_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Decoded text and reject reasons are addressed by position in the batch."""
    bodies = [
        b'{"key":"k","items":["a%d","\\u00e9"],"ts":%d}' % (i, i) for i in range(40)
    ]
    values = [
        b"x"
        if i % 5 == 0
        else b"\0\0\0\0\1" + (body[:-1] + b',"ts":7}' if i % 3 == 0 else body)
        for i, body in enumerate(bodies)
    ]
    reader = event_reader(FIELDS)
    fmt = FramedJson(Json(reader.layout.tree))
    records = Records.of(values)
    whole = joined(reader, records, scanned=True, fmt=fmt)
    small(monkeypatch, rows=11)
    again = joined(reader, records, scanned=True, fmt=fmt)
    assert again[:2] == whole[:2]
    assert (len(whole[0]), len(whole[1]), len(whole[2])) == (32, 8, 1)
    assert len(again[2]) > 5


@pytest.mark.parametrize(
    ("user", "timestamp"), [("user", "ts"), ("user", None), ("$key", "ts")]
)
def test_users_are_the_same_wherever_parts_end(
    monkeypatch: pytest.MonkeyPatch, user: str, timestamp: str | None
) -> None:
    """Texts decoded by a part follow those of earlier parts."""
    values = [
        *corpus()[::3],
        *(b'{"key":"k","items":"a","ts":5,"user":"\\u00e9%d"}' % i for i in range(50)),
    ]
    records = Records.of(
        values, [b"u%d" % (i % 9) for i in range(len(values))], range(len(values))
    )
    shape = shape_of(replace(FIELDS, timestamp=timestamp), user)
    whole = read_all(shape, records, max_bytes=MAX_BYTES)
    small(monkeypatch)
    assert read_all(shape, records, max_bytes=MAX_BYTES) == whole


def test_ordinary_batches_are_one_part() -> None:
    """A part costs as much as a small batch."""
    value = b'{"key":"k1","items":["item1","item2"],"ts":1795296236471}'
    reader = event_reader(FIELDS)
    records = Records.of([value] * 60_000)
    assert [reading.stop for reading in reader.read(records)] == [60_000]
    few = Records.of(
        [value[:-1] + b',"ts":1}' if i % 100 == 0 else value for i in range(60_000)]
    )
    assert [reading.stop for reading in reader.read(few)] == [60_000]


def test_a_part_ends_where_it_has_enough_rows_or_declined_records() -> None:
    """One record of a megabyte may have 490,000 rows of its own; others wait."""
    items = b'{"i":[%b]}' % b",".join([b"1"] * 490_000)
    reader = event_reader(EventsSettings(topic="t", key="$all", items="i"))
    small_one = b'{"i":"a"}'
    parts = list(
        reader.read(Records.of([small_one, items, small_one, items, items, small_one]))
    )
    # A small record may fit after a large one.
    assert [reading.stop for reading in parts] == [1, 3, 4, 6]
    assert [int(reading.label_counts[0].sum()) for reading in parts] == [
        1,
        490_001,
        490_000,
        490_001,
    ]
    assert not any(reading.rejects or reading.declined for reading in parts)
    most = log.DECLINED_BYTES // DECLINED_EACH
    nothing = Records.of([None] * (2 * most + 1))
    assert [reading.stop for reading in reader.read(nothing)] == [
        most,
        2 * most,
        2 * most + 1,
    ]


class Killed(Exception): ...


def sent(shard: Any) -> tuple[list[Outgoing], list[list[Change]]]:
    messages: list[Outgoing] = []
    changes: list[list[Change]] = []

    def transact(
        some: Sequence[Outgoing], changed: Sequence[Change], offset: int, *_: object
    ) -> None:
        messages.extend(some)
        changes.append(list(changed))
        shard.committed = offset

    shard.transact = transact
    return messages, changes


def shards(
    directory: Directory,
) -> Iterator[tuple[ContributeShard, list[Outgoing], list[list[Change]]]]:
    """Yield successive owners of a partition; all commit after every part."""
    stored: list[Change] = []
    while True:
        shard = Scene(directory).contribute[0]
        shard.store.open().write(stored, 1)
        shard.offset = 0
        shard.restore()
        shard.last_commit_s = -math.inf  # always due
        messages, changes = sent(shard)
        yield shard, messages, changes
        stored += [change for each in changes for change in each]


def totals(
    messages: Sequence[Outgoing],
) -> tuple[Counter[str], Counter[str], list[int]]:
    """Return counts by label, rejects by reason, and the sequence numbers that owners receive."""
    counts = Counter[str]()
    reasons = Counter[str]()
    sequences = []
    for message in messages:
        if message.topic == "rejects":
            reasons[dict(message.headers)["reason"].decode()] += 1  # type: ignore[union-attr]
            continue
        told = decode(message.value or b"")
        sequences.append(told.sequence)
        for section in told.sections:
            found = section.contributions()
            for label, n in zip(found.labels, found.counts.tolist(), strict=True):
                counts[label.decode()] += n
    return counts, reasons, sequences


def test_a_commit_in_the_middle_of_a_batch_is_gone_on_from(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Directory
) -> None:
    """A new owner after any commit reads the rest of the same batch, and nothing twice."""
    now_ms = 1_767_225_600_000
    values = [
        b"{" if i % 7 == 0 else b'{"shop":"s1","products":["a%d","\\u0062"]}' % (i % 5)
        for i in range(60)
    ]
    # Offsets with gaps, as in a compacted topic.
    offsets = [3 * i for i in range(60)]
    times = [now_ms + i for i in range(60)]
    batch = Batch(0, 200, Records.of(values, times=times, offsets=offsets))
    [(shard, messages, _)] = [next(shards(tmp_path))]
    shard.process(batch)
    expected = totals(messages)
    assert shard.committed == 200
    assert (sum(expected[0].values()), sum(expected[1].values())) == (102, 9)
    small(monkeypatch, rows=12, declined=300)
    everything: list[Outgoing] = []
    committed: list[int] = []
    owners = 0
    for shard, messages, changes in shards(tmp_path):
        _, rest = batch.split(shard.offset or 0)
        if rest.start == rest.end:
            break
        owners += 1
        shard.report_progress = stop_after(shard, 2)  # type: ignore[method-assign]
        with suppress(Killed):
            shard.process(rest)
        everything += messages
        progress = [
            value or b"" for each in changes for key, value in each if key == PROGRESS
        ]
        decode_progress = msgspec.json.Decoder(ContributeProgress).decode
        committed += [decode_progress(value).offset for value in progress]
    assert committed[-1] == 200
    assert committed == sorted(set(committed))
    assert len(committed) > owners > 2
    assert all(offset % 3 == 0 for offset in committed[:-1])
    counts, reasons, sequences = totals(everything)
    assert (counts, reasons) == expected[:2]
    assert sequences == list(range(len(sequences)))


def stop_after(shard: ContributeShard, parts: int) -> Any:
    left = [parts]

    def report_progress() -> None:
        left[0] -= 1
        if not left[0]:
            raise Killed

    return report_progress


def calls(edges: Sequence[float], numbers: int) -> int:
    """Return how many calls the general reader makes for a record with this many numbers."""
    view = View(ALL_KEYS, Path(("i",)), edges=tuple(edges))
    reader = EventReader(Shape(MappingProxyType({"": view})))
    records = Records.of(
        [b'{"i":[%b]}' % b",".join(b"%de100" % i for i in range(numbers))]
    )
    number = 0

    def count(frame: object, event: str, _: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    list(read_general(reader, records))
    sys.setprofile(count)
    try:
        list(read_general(reader, records))
    finally:
        sys.setprofile(None)
    return number


def test_what_a_number_costs_does_not_grow_with_the_edges() -> None:
    """One record of 240,000 numbers took 13.6 s: Python compared each with all 1,000 edges."""
    few = calls([0.5], 4_000)
    many = calls(range(1_000), 4_000)
    assert many == few
    assert few < 30 * 4_000
    assert calls([0.5], 8_000) < 2.1 * few


def test_a_bucket_is_how_many_edges_are_at_most_a_number() -> None:
    """Also covers infinities, signed zeros and numbers that no float64 holds."""
    edges = (-math.inf, -1e300, -1.0, 0.0, 5e-324, 0.1, 1.0, 2.0**53, 1e308, math.inf)
    near = [
        math.nextafter(edge, to) for edge in edges for to in (edge, math.inf, -math.inf)
    ]
    odd = [-0.0, 10**400, -(10**400), 2**53 + 1, 0, 1]
    decimals = map(Decimal, ("0.1", "0.10000000000000001", "1E-400"))
    numbers: list[float | Decimal] = [*near, *odd, *decimals]
    for number in numbers:
        as_float = number_of(number)
        assert as_float is not None
        for first in range(len(edges)):
            assert bucket(edges[first:], number) == sum(
                edge <= as_float for edge in edges[first:]
            )
