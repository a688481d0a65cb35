"""Users as re-keying reads them agree with the full reader and the rule in plain Python."""

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import pytest

from tests.arrays.uncompiled import uncompiled
from tests.events.json_corpus import corpus
from workers.agents.rekey import read_users
from workers.events.json import Json
from workers.events.project import Projection
from workers.events.reading import AHEAD, EventReader
from workers.events.views import Layout, project_views
from workers.kafka.records import Records
from workers.mechanisms.config.views import Shape, conditions
from workers.pipeline.rekey_markers import NO_TIME
from workers.settings.settings import EventsSettings, shape_of

FOREVER = 1 << 62
SHAPE = shape_of(
    EventsSettings(topic="t", key="key", items="items", timestamp="ts"), "user"
)


class Read(NamedTuple):
    """What re-keying reads of a batch, for each record; and how many were declined."""

    users: list[bytes | None]
    times: list[int]
    rejects: list[tuple[int, str]]
    declined: int


def read_all(
    shape: Shape, records: Records, latest_ms: int = FOREVER, max_bytes: int = 10_000
) -> Read:
    names: list[bytes | None] = [None] * len(records)
    times: list[int] = []
    rejects: list[tuple[int, str]] = []
    declined = 0
    events = EventReader(shape, max_bytes=max_bytes)
    alone = EventReader(without_views(shape), max_bytes=max_bytes)
    for part in read_users(alone, events, records, latest_ms):
        assert part.start == len(times)
        for row, (start, stop) in zip(
            part.rows.tolist(), part.users.tolist(), strict=True
        ):
            names[row] = part.data[start:stop].tobytes()
        times += part.times.tolist()
        rejects += [(reject.index, reject.reason) for reject in part.rejects]
        declined += part.declined
    return Read(names, times, rejects, declined)


def without_views(shape: Shape) -> Shape:
    return replace(shape, views=MappingProxyType({}))


def by_the_rule(projection: Projection, record: object) -> tuple[str | None, int]:
    """Return user and time, None and NO_TIME if unreadable, of a shape without views."""
    event = projection.event(record)
    return (None, NO_TIME) if isinstance(event, str) else (event.user, event.time)


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_every_record_of_the_corpus_has_the_user_and_the_time_that_the_rule_says(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scanner handles plain records only, so it must recognize them correctly."""
    if not compiled:
        monkeypatch.setattr(
            "workers.events.reading.project_views", uncompiled(project_views)
        )
    values = corpus()
    looked = 0
    for user, timestamp in (
        ("user", "ts"),
        ("user", None),
        ("key", "user"),
        ("user.name", "ts"),
    ):
        key = "key" if user != "key" else "$all"
        items = "items"
        shape = shape_of(
            EventsSettings(topic="t", key=key, items=items, timestamp=timestamp), user
        )
        layout = Layout(without_views(shape))
        records = Records.of(values, times=[7] * len(values))
        decode = Json(layout.tree).decoder(records.data, records.values)
        projection = Projection(layout.shape)
        found = read_all(shape, records, max_bytes=4_000)
        whole = list(EventReader(shape, max_bytes=4_000).read(records))
        why = {
            reject.index: reject.reason
            for reading in whole
            for reject in reading.rejects
        }
        names = found.users
        said = dict(found.rejects)
        rows = zip(values, names, found.times, strict=True)
        for i, (value, name, time) in enumerate(rows):
            wanted = None
            at = 0
            if len(value) <= 4_000:
                with suppress(ValueError):
                    wanted, at = by_the_rule(projection, decode(i))
            assert name == (None if wanted is None else wanted.encode()), value
            if wanted is None:
                assert said[i] == why[i], value
                assert time == NO_TIME
            else:
                assert time == (at if layout.time_slot >= 0 else 7), value
                looked += 1
        for part in whole:
            assert part.users is not None
            for i, (start, stop) in zip(
                part.index.tolist(), part.users.tolist(), strict=True
            ):
                assert names[i] == part.data[start:stop].tobytes()
    assert looked > 500


def test_what_no_histogram_looks_at_needs_no_user_and_its_time_still_counts() -> None:
    """A heartbeat without a user is not a reject; its time advances the partition."""
    where = conditions([{"field": "type", "in": ["buy"]}])
    events = EventsSettings(
        topic="t", key="key", items="items", timestamp="ts", where_=where
    )
    values = [
        b'{"type": "ping", "ts": 5}',
        b'{"type": "buy", "key": "k", "items": "a", "ts": 6}',
        b'{"type": "ping", "ts": 7, "user": "ann"}',
        b'{"type": "buy", "ts": "x", "user": 12}',
        b'{"type": "ping", "ts": 8, "user": true}',
    ]
    found = read_all(shape_of(events, "user"), Records.of(values))
    assert found.users == [None, None, b"ann", b"12", None]
    assert found.times == [5, NO_TIME, 7, NO_TIME, 8]
    assert found.rejects == [(1, "missing field 'user'")]


def test_a_user_that_is_the_record_key() -> None:
    """A record without the key is a reject if a histogram selects it."""
    events = EventsSettings(topic="t", key="key", items="items")
    shape = shape_of(events, "$key")
    good = b'{"key": "k", "items": "a"}'
    keys = [b"ann", None, b"x" * 1_025, b"ann", b"ann"]
    records = Records.of([good, good, good, b"broken", None], keys, [10] * 5)
    found = read_all(shape, records)
    assert found.users == [b"ann", None, None, None, None]
    reasons = [*["record key is no label"] * 2, "not JSON", "no value"]
    assert [why for _, why in found.rejects] == reasons
    # Brokers take no record that is dated far ahead, so it is not sent on where its time counts.
    both = Records.of([good, good], [b"ann", b"ann"], [100, 101])
    late = read_all(shape, both, latest_ms=100)
    assert (late.rejects, late.users) == ([(1, AHEAD)], [b"ann", None])
    assert late.times == [100, NO_TIME]


def test_users_may_be_numbers_and_escaped() -> None:
    """As in the full reader: the same user must reach the same partition."""
    names = ["ann", "é", 'a"b', "\n", 0, -5, 10**18, 10**400, "x" * 1_024, "x" * 1_025]
    event = {"key": "k", "items": "a", "ts": 1}
    records = Records.of(
        [msgspec.json.encode(event | {"user": name}) for name in names]
    )
    found = read_all(SHAPE, records)
    wanted = [str(name).encode() for name in names]
    wanted[-1] = None  # type: ignore[call-overload]  # too long
    assert found.users == wanted
    assert found.rejects == [(9, "label too long")]
    assert found.times == [1] * 9 + [NO_TIME]
