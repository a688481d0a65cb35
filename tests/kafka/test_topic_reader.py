"""Commands read topics as the worker does, and say what they wait for or cannot read."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka.consumer.fetcher import Fetcher
from aiokafka.errors import CorruptRecordException, TopicAuthorizationFailedError
from confluent_kafka import TopicPartition

from tests.admin import admin_of
from tests.broker import own_broker
from tests.kafka.bombs import CODECS, batch, record
from tests.kafka.harness import await_all, create_topic, unique
from tests.kafka.produced import produce_batch, two_members
from tests.worker.harness import until
from workers.kafka import decoding, topic_reader
from workers.kafka.clients import Connection
from workers.kafka.reading import Partition
from workers.kafka.topic_reader import Bounds, TopicReader, open_reader
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError

Found = dict[Partition, list[tuple[int, bytes | None]]]


def read(
    reader: TopicReader, spans: dict[Partition, tuple[int, int]], **limits: Any
) -> Found:
    found: Found = {log: [] for log in spans}
    ended = []
    for chunk in reader.read(spans, **limits):
        values = [chunk.records.value(i) for i in range(len(chunk.records))]
        found[chunk.where] += zip(chunk.records.offsets.tolist(), values, strict=True)
        ended += [chunk.where] * chunk.ended
    assert not spans and sorted(ended) == sorted(found)
    return found


def silent(text: str) -> None:
    raise AssertionError(text)


def plain(values: list[bytes], codec: str = "none") -> bytes:
    return batch(
        codec, [b"".join(record(i, v)) for i, v in enumerate(values)], len(values)
    )


@pytest.fixture
def topic(bootstrap: str) -> str:
    name = unique("reader")
    create_topic(Connection(bootstrap), name, 2)
    return name


def test_every_batch_that_the_broker_keeps_is_read(bootstrap: str, topic: str) -> None:
    """librdkafka gave half of a gzip batch of two members, and then nothing more."""
    wanted = []
    for codec in CODECS:
        values = [f"{codec}-{i}".encode() for i in range(3)]
        produce_batch(bootstrap, topic, 0, plain(values, codec))
        wanted += values
    produce_batch(bootstrap, topic, 0, two_members(range(100)))
    wanted += [str(i).encode() for i in range(100)]
    log = topic, 0
    with open_reader(Connection(bootstrap), silent) as reader:
        bounds = reader.bounds([log, (topic, 1)])
        assert bounds == {log: Bounds(0, 115, 115), (topic, 1): Bounds(0, 0, 0)}
        assert read(reader, {log: (0, 115)}) == {log: list(enumerate(wanted))}
        # Again, within batches.
        part = list(enumerate(wanted))[4:70]
        assert read(reader, {log: (4, 70)}) == {log: part}


def test_what_is_aborted_or_open_is_not_read_and_where_that_begins_is_known(
    bootstrap: str, topic: str
) -> None:
    connection = Connection(bootstrap)
    first = (topic, 0)
    second = (topic, 1)
    upstream = connection.producer(f"{topic}-t")
    upstream.init_transactions(60)

    def send(value: bytes, partition: int = 0) -> None:
        upstream.produce(topic, value, partition=partition)
        assert upstream.flush(60) == 0

    upstream.begin_transaction()
    send(b"taken back")
    upstream.abort_transaction(60)
    upstream.begin_transaction()
    send(b"kept")
    upstream.commit_transaction(60)
    upstream.begin_transaction()
    send(b"taken back too")
    upstream.abort_transaction(60)
    with open_reader(connection, silent) as reader:
        bounds = reader.bounds([first])
        assert (
            bounds == {first: Bounds(0, 6, 6)}
            and reader.open_transactions(bounds) == []
        )
        assert read(reader, {first: (0, 6)}) == {first: [(2, b"kept")]}
        upstream.begin_transaction()
        send(b"open", 0)
        send(b"open", 1)
        produce_batch(bootstrap, topic, 0, plain([b"behind"] * 5))
        bounds = reader.bounds([first, second])
        assert bounds == {first: Bounds(0, 6, 12), second: Bounds(0, 0, 1)}
        assert reader.open_transactions(bounds) == [
            f"{topic}[0]: ends at offset 6, where a transaction is open that hides up to 6 records",
            f"{topic}[1]: ends at offset 0, where a transaction is open that hides up to 1 records",
        ]
        upstream.commit_transaction(60)
        # Exactly-once producers have one open whenever somebody looks: these are not worth a word. A
        # broker writes the markers after its answer to the commit.
        until(lambda: reader.open_transactions(bounds) == [], "what was open has ended")
        behind = [(offset, b"behind") for offset in range(7, 12)]
        assert read(reader, {first: (6, 13)}) == {first: [(6, b"open"), *behind]}


def test_a_time_is_found_and_reading_ends_when_there_is_no_more_time(
    bootstrap: str, topic: str
) -> None:
    for _ in range(3):
        produce_batch(bootstrap, topic, 0, plain([b"x"] * 2))  # at 1000 and 1001 ms
    with open_reader(Connection(bootstrap), silent) as reader:
        log = topic, 0
        assert reader.offsets_at({log: 1_001}) == {log: 1}
        assert reader.offsets_at({log: 3_000}) == {log: None}
        spans = {log: (0, 6)}
        assert list(reader.read(spans, until_s=time.monotonic())) == [] and log in spans


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def other_codec(data: bytes) -> bytes:
    return data[:22] + b"\7" + data[23:]


@pytest.mark.parametrize("damage", [flipped, other_codec])
@pytest.mark.parametrize("check_crcs", ["true", "false"])
def test_a_damaged_batch_ends_reading_with_its_place(
    bootstrap: str,
    topic: str,
    damage: Callable[[bytes], bytes],
    check_crcs: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    produce_batch(bootstrap, topic, 0, plain([b"good"]))
    produce_batch(bootstrap, topic, 0, plain([b"bad"] * 3, "zstd"))
    init = decoding.RecordSet.__init__
    monkeypatch.setattr(
        decoding.RecordSet,
        "__init__",
        lambda self, data: init(self, damage(bytes(data)) if len(data) > 30 else data),
    )
    connection = Connection(bootstrap, {"check.crcs": check_crcs})
    with (
        open_reader(connection, silent) as reader,
        pytest.raises(CorruptRecordException, match=rf"{topic}\[0\] from offset 1: "),
    ):
        read(reader, {(topic, 0): (1, 4)})


@pytest.mark.slow
def test_a_log_that_gives_nothing_is_named_with_the_reason_and_ends_reading(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a log that lost its end: a reader must say that it waits, and stop at some time."""
    monkeypatch.setattr(topic_reader, "SAY_S", 1)
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 3)
    produce_batch(bootstrap, topic, 0, plain([b"x"]))
    connection = Connection(bootstrap)
    said: list[str] = []
    with open_reader(connection, said.append) as reader:
        reason = "its leader, broker [0-9]+, sends no records from there on"
        with pytest.raises(KafkaAway, match=rf"{topic}\[0\] from offset 1: {reason}"):
            read(reader, {(topic, 0): (0, 5)})
        [line] = said
        assert line.startswith(
            f"nothing could be read for 1 s: {topic}[0] from offset 1: its "
        )
        said.clear()
        reading = reader.read({(topic, 0): (0, 5)})
        assert len(next(reading).records) == 1
        await_all(admin_of(connection).delete_topics([topic]))
        with pytest.raises(
            KafkaAway, match=r"no broker knows this partition|does not answer"
        ):
            list(reading)


def test_records_that_retention_removed_end_reading_with_their_place(
    bootstrap: str, topic: str
) -> None:
    produce_batch(bootstrap, topic, 0, plain([b"x"] * 10))
    connection = Connection(bootstrap)
    await_all(admin_of(connection).delete_records([TopicPartition(topic, 0, 5)]))
    gone = rf"{topic}\[0\]: offset 2 is no longer in the log"
    with (
        open_reader(connection, silent) as reader,
        pytest.raises(SettingsError, match=gone),
    ):
        read(reader, {(topic, 0): (2, 10)})


@pytest.mark.slow
def test_a_partition_that_does_not_exist_is_named(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_reader, "_ASK_S", 2.0)
    monkeypatch.setattr(topic_reader, "_ALONE_S", 1.0)
    unknown = rf"2 s: {topic}\[7\]: no broker knows this partition"
    connection = Connection(bootstrap)
    with (
        open_reader(connection, silent) as reader,
        pytest.raises(KafkaAway, match=unknown),
    ):
        reader.bounds([(topic, 0), (topic, 7)])


def test_without_a_broker_reading_ends_with_the_address() -> None:
    with (
        pytest.raises(KafkaAway, match="127.0.0.1:1"),
        open_reader(Connection("127.0.0.1:1"), silent),
    ):
        pass


@pytest.mark.usefixtures("own_kafka")
def test_a_broker_that_goes_away_under_way_ends_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reader, "SAY_S", 1)
    monkeypatch.setattr(topic_reader, "GIVE_UP_S", 6)
    monkeypatch.setattr(topic_reader, "_RECENT_MS", 1_000)
    said: list[str] = []
    with own_broker() as kafka:
        connection = Connection(kafka.bootstrap)
        name = unique("away")
        create_topic(connection, name)
        produce_batch(kafka.bootstrap, name, 0, plain([b"x"]))
        with open_reader(connection, said.append) as reader:
            assert len(read(reader, {(name, 0): (0, 1)})[name, 0]) == 1
            kafka.freeze()
            silent = (
                rf"{name}\[0\] from offset 1: its leader, broker 1, does not answer"
            )
            with pytest.raises(KafkaAway, match=silent):
                list(reader.read({(name, 0): (1, 5)}))
            kafka.thaw()
    assert len(said) == 1


def test_a_missing_right_is_one_line_that_says_where_rights_are_listed(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> None:
        raise TopicAuthorizationFailedError(topic)

    monkeypatch.setattr(Fetcher, "_proc_offset_request", refuse)
    connection = Connection(bootstrap)
    refused = rf"Kafka does not allow it: .*{topic}.*deploy/acls.md"
    with (
        open_reader(connection, silent) as reader,
        pytest.raises(KafkaRefuses, match=refused),
    ):
        reader.bounds([(topic, 0)])
