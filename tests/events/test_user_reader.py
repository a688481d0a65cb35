"""The reader of users agrees with the full reader and the rule in plain Python."""

from contextlib import suppress
from types import MappingProxyType

import msgspec
import numpy as np
import pytest

from tests.arrays.uncompiled import uncompiled
from tests.events.json_corpus import corpus
from workers.events.json import Json
from workers.events.layout import Layout
from workers.events.project import Projection
from workers.events.reader import AHEAD
from workers.events.user_reader import NO_TIME, RecordUsers, UserReader, read_users
from workers.kafka.records import Records
from workers.mechanisms.config.views import Shape, conditions
from workers.settings.settings import EventsSettings, shape_of

FOREVER = 1 << 62
SHAPE = shape_of(
    EventsSettings(topic="t", key="key", items="items", timestamp="ts"), "user"
)


def users(found: RecordUsers) -> list[bytes | None]:
    return [
        found.data[start:stop].tobytes() if known else None
        for known, (start, stop) in zip(
            found.known.tolist(), found.users.tolist(), strict=True
        )
    ]


def rejects(found: RecordUsers) -> list[tuple[int, str]]:
    return [(reject.index, reject.reason) for reject in found.rejects]


@pytest.mark.slow
@pytest.mark.parametrize("compiled", [True, False])
def test_every_record_of_the_corpus_has_the_user_and_the_time_that_the_rule_says(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scanner handles plain records only, so it must recognize them correctly."""
    if not compiled:
        monkeypatch.setattr(
            "workers.events.user_reader.read_users", uncompiled(read_users)
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
        layout = Layout(Shape(MappingProxyType({}), shape.time, shape.unit, shape.user))
        records = Records.of(values, times=[7] * len(values))
        decode = Json(layout.tree).decoder(records.data, records.values)
        projection = Projection(layout.shape)
        reader = UserReader(shape, max_bytes=4_000)
        found = reader.read(records, FOREVER)
        whole = list(reader._whole.read(records))
        why = {
            reject.index: reject.reason for _, reasons, _ in whole for reject in reasons
        }
        names = users(found)
        said = dict(rejects(found))
        rows = zip(values, names, found.times.tolist(), strict=True)
        for i, (value, name, time) in enumerate(rows):
            wanted = None
            at = 0
            if len(value) <= 4_000:
                with suppress(ValueError):
                    wanted, at = projection.user_and_time(decode(i))
            assert name == (None if wanted is None else wanted.encode()), value
            if wanted is None:
                assert said[i] == why[i], value
                assert time == NO_TIME
            else:
                assert time == (at if layout.time_slot >= 0 else 7), value
                looked += 1
        for part, _, _ in whole:
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
    reader = UserReader(shape_of(events, "user"), max_bytes=1_000)
    values = [
        b'{"type": "ping", "ts": 5}',
        b'{"type": "buy", "key": "k", "items": "a", "ts": 6}',
        b'{"type": "ping", "ts": 7, "user": "ann"}',
        b'{"type": "buy", "ts": "x", "user": 12}',
        b'{"type": "ping", "ts": 8, "user": true}',
    ]
    found = reader.read(Records.of(values), FOREVER)
    assert users(found) == [None, None, b"ann", b"12", None]
    assert found.times.tolist() == [5, NO_TIME, 7, NO_TIME, 8]
    assert rejects(found) == [(1, "missing field 'user'")]


def test_a_user_that_is_the_record_key() -> None:
    """A record without the key is a reject if a histogram selects it."""
    events = EventsSettings(topic="t", key="key", items="items")
    reader = UserReader(shape_of(events, "$key"), max_bytes=1_000)
    good = b'{"key": "k", "items": "a"}'
    keys = [b"ann", None, b"x" * 1_025, b"ann", b"ann"]
    records = Records.of([good, good, good, b"broken", None], keys, [10] * 5)
    found = reader.read(records, FOREVER)
    assert users(found) == [b"ann", None, None, None, None]
    reasons = [*["record key is no label"] * 2, "not JSON", "no value"]
    assert [why for _, why in rejects(found)] == reasons
    # Brokers take no record that is dated far ahead, so it is not sent on where its time counts.
    late = reader.read(Records.of([good, good], [b"ann", b"ann"], [100, 101]), 100)
    assert (rejects(late), users(late)) == ([(1, AHEAD)], [b"ann", None])


def test_users_may_be_numbers_and_escaped() -> None:
    """As in the full reader: the same user must reach the same partition."""
    names = ["ann", "é", 'a"b', "\n", 0, -5, 10**18, 10**400, "x" * 1_024, "x" * 1_025]
    event = {"key": "k", "items": "a", "ts": 1}
    records = Records.of(
        [msgspec.json.encode(event | {"user": name}) for name in names]
    )
    found = UserReader(SHAPE, max_bytes=10_000).read(records, FOREVER)
    wanted = [str(name).encode() for name in names]
    wanted[-1] = None  # type: ignore[call-overload]  # too long
    assert users(found) == wanted
    assert rejects(found) == [(9, "label too long")]
    assert np.array_equal(found.times, [1] * 9 + [NO_TIME])
