"""`quietcount rejects`: list rejects by reason, and resend those that would be accepted now.

Sensitive: rejects hold the original records.

A resent reject goes once, as the original record, to its own topic and partition. With
`privacy.rekey` and an event rejected after re-keying, that is the topic by user, and the record
keeps the marker of the place where it counts.

One transaction sends several rejects of a partition and a record to the rejects topic that lists
their offsets there (`RETRIED`). A run that is killed at any point and restarted therefore sends
none of them twice. A single position in the topic would not do: rejects that are still not
accepted stay, and may be accepted later. Concurrent runs fence each other by their transactional
id.
"""

from __future__ import annotations

import json
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message
from rich.console import Console

from workers.agents.topics import connection_of, partitions_by_user, source_partitions
from workers.commands.compiling import ensure_compiled
from workers.events.decoders import Decoders
from workers.events.source_reader import SourceReader
from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, end_of, read_partition, reader
from workers.kafka.records import Outgoing, Records
from workers.kafka.topics import describe
from workers.kafka.transaction import Transactions
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.factory import reader_of, source_reader_of
from workers.pipeline.rejected import RETRIED, RETRY, Rejected, read_reject
from workers.pipeline.rekey_markers import read_headers
from workers.runtime.errors import KafkaAway, SettingsError
from workers.runtime.printing import Printer, many, when
from workers.runtime.progress import ProgressLine
from workers.settings.settings import Settings

# How long to wait for earlier transactions to end; a worker's take seconds.
_LISTING_PATIENCE_S = 60.0
_AGAIN_S = 0.2


@dataclass(slots=True)
class OfReason:
    """Rejects with one reason; `cut` ones cannot be resent because part of the record was left out.

    `sent` is how many were resent; `topics` are the source topics.
    """

    number: int = 0
    sent: int = 0
    cut: int = 0
    first_ms: int = 1 << 62
    last_ms: int = 0
    topics: set[str] = field(default_factory=set)


def partitions_of(settings: Settings, connection: Connection) -> int:
    """Return the number of partitions of the rejects topic.

    Raises:
        SettingsError: the topic does not exist, or no broker answers.
    """
    topic = settings.rejects_topic
    existing = describe(connection, [topic])
    if topic not in existing:
        raise SettingsError(
            f"topic {topic} does not exist on {settings.kafka.bootstrap}: `quietcount topics -c FILE --create` makes it, "
            "and a worker that has never run has rejected nothing"
        )
    return existing[topic].partitions


def by_reason(
    settings: Settings,
    connection: Connection,
    wanted: Callable[[str], bool],
    take: Callable[[Rejected, bool], object],
) -> dict[str, OfReason]:
    """Return the rejects by reason, most common first.

    Args:
        wanted: selects reasons.
        take: called with every selected reject, in order, and whether it was resent.
    """
    found: dict[str, OfReason] = {}
    for partition in range(partitions_of(settings, connection)):
        sent = sent_back(connection, settings.rejects_topic, partition)
        for message in read_partition(connection, settings.rejects_topic, partition):
            reject = reject_of(message)
            if reject is None or not wanted(reject.reason):
                continue
            one, was_sent = (
                found.setdefault(reject.reason, OfReason()),
                (message.offset() or 0) in sent,
            )
            at = message.timestamp()[1]
            one.number += 1
            one.sent += was_sent
            one.cut += reject.truncated
            one.first_ms, one.last_ms = min(one.first_ms, at), max(one.last_ms, at)
            one.topics.add(reject.topic)
            take(reject, was_sent)
    return dict(sorted(found.items(), key=lambda one: -one[1].number))


def sent_back(connection: Connection, topic: str, partition: int) -> set[int]:
    """Return the offsets of a partition's resent rejects, from the records readable now."""
    found = array("q")
    for message in read_partition(connection, topic, partition):
        found.extend(offsets_of(message))
    return set(found)


def reject_of(message: Message) -> Rejected | None:
    return read_reject(_headers(message), message.key(), message.value())


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], message.headers() or [])


def offsets_of(message: Message) -> Iterator[int]:
    """Yield the offsets that a record lists as resent; none for other records."""
    if any(name == RETRIED for name, _ in _headers(message)):
        yield from json.loads(message.value() or b"[]")


def wait_for_end(connection: Connection, topic: str, partition: int) -> None:
    """Wait until everything now in a partition can be read.

    A worker's open transaction hides another run's resent records behind it until it ends.

    Raises:
        SettingsError: a transaction does not end.
    """
    end = end_of(connection, topic, partition)
    deadline = time.monotonic() + _LISTING_PATIENCE_S
    with reader(connection) as consumer:
        while bounds_of(consumer, topic, partition)[1] < end:
            if time.monotonic() > deadline:
                raise SettingsError(
                    f"{topic}[{partition}]: a transaction has been open for {_LISTING_PATIENCE_S:g} s, so what lies behind it cannot be "
                    "read: try again when it has ended (a worker that died ends its own when it starts again)"
                )
            time.sleep(_AGAIN_S)


# Maximum per transaction.
RECORDS_MAX = 1_000
BYTES_MAX = 16 << 20
# How long Kafka may not answer; checks further apart than the pause belong to separate waits.
_PATIENCE_S, _PAUSE_S = 120.0, 10.0


@dataclass(slots=True)
class Outcome:
    """Counts of processed rejects.

    Attributes:
        refused: would be rejected again, or skipped.
        cut: truncated, so no longer the original events.
        foreign: from a topic or partition that the settings do not read.
        timeless: of an earlier version, without the time that counts.
    """

    sent: int = 0
    refused: int = 0
    cut: int = 0
    foreign: int = 0
    timeless: int = 0


class _Alone:
    """Transaction owner that only another run can displace, by fencing it."""

    def __init__(self) -> None:
        self._since_s = self._asked_s = 0.0

    def check_open(self) -> None:
        """Raise if Kafka makes no progress for two minutes; called every second or so of a wait."""
        now_s = time.monotonic()
        if now_s - self._asked_s > _PAUSE_S:
            self._since_s = now_s
        self._asked_s = now_s
        if now_s - self._since_s > _PATIENCE_S:
            raise KafkaAway(
                f"Kafka has not answered for {_PATIENCE_S:g} s: what was sent back is not sent again; start it again"
            )

    def report_progress(self) -> None: ...

    def note_abort(self) -> None: ...

    def confirm(self) -> None:
        """Raise: another run may already have sent the rejects that this one has yet to send."""
        raise KafkaAway(
            "Kafka ended a transaction, or answered too late: what was sent back is not sent again; "
            "start it again"
        )


def transactional_id(settings: Settings) -> str:
    return f"{settings.worker.name}-rejects-retry"


def retry_rejects(
    settings: Settings, connection: Connection, wanted: Callable[[str], bool]
) -> Outcome:
    """Resend the rejects that would be accepted now.

    Args:
        wanted: selects reasons.

    Raises:
        Fenced: another run began meanwhile; rejects already resent stay sent.
        SettingsError: a topic is missing, or cannot be read yet.
    """
    judge, outcome = _Judge(settings, connection), Outcome()
    partitions = partitions_of(settings, connection)
    transactions = Transactions(
        connection, transactional_id(settings), (settings.rejects_topic, 0), _Alone()
    )
    # End the transaction of a killed run; only then is it settled what that run sent.
    transactions.take_over()
    try:
        for partition in range(partitions):
            for some in _chunks(settings, connection, partition, wanted):
                good = judge.good(some, outcome)
                if good:
                    told = note(settings.rejects_topic, partition, [offset for offset, _ in good])
                    transactions.run([*(sent_again(reject) for _, reject in good), told], [])
                    outcome.sent += len(good)
    finally:
        transactions.close()
    return outcome


def note(topic: str, partition: int, offsets: Sequence[int]) -> Outgoing:
    """Return the record that lists resent rejects, at most RECORDS_MAX."""
    return Outgoing(topic, partition, None, json.dumps(offsets).encode(), [(RETRIED, b"true")])


def sent_again(reject: Rejected) -> Outgoing:
    origin = f"{reject.topic}/{reject.partition}/{reject.offset}".encode()
    headers = [
        *((name, content) for name, content in reject.headers if name != RETRY),
        (RETRY, origin),
    ]
    return Outgoing(
        reject.topic, reject.partition, reject.key, reject.value, headers, reject.time_ms
    )


def _chunks(
    settings: Settings, connection: Connection, partition: int, wanted: Callable[[str], bool]
) -> Iterator[list[tuple[int, Rejected]]]:
    wait_for_end(connection, settings.rejects_topic, partition)
    sent = sent_back(connection, settings.rejects_topic, partition)
    chunk: list[tuple[int, Rejected]] = []
    nbytes = 0
    for message in read_partition(connection, settings.rejects_topic, partition):
        offset, reject = message.offset() or 0, reject_of(message)
        if reject is None or offset in sent or not wanted(reject.reason):
            continue
        chunk.append((offset, reject))
        nbytes += len(reject.value or b"") + len(reject.key or b"")
        if len(chunk) >= RECORDS_MAX or nbytes >= BYTES_MAX:
            yield chunk
            chunk, nbytes = [], 0
    if chunk:
        yield chunk


class _Judge:
    """Filter for rejects that would be accepted now, using the worker's own readers."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self._settings, self._reader = settings, reader_of(settings)
        self._forms = Decoders(settings, self._reader)
        self._sources = {source.log: source for source in source_partitions(settings, connection)}
        self._sources |= {source.log: source for source in partitions_by_user(settings, connection)}
        self._readers: dict[tuple[str, int], SourceReader] = {}

    def good(
        self, rejects: Sequence[tuple[int, Rejected]], outcome: Outcome
    ) -> list[tuple[int, Rejected]]:
        """Return the rejects that would be accepted; count the others in `outcome`."""
        whole: dict[tuple[str, int], list[tuple[int, Rejected]]] = {}
        of_record = self._settings.events.timestamp is None
        for offset, reject in rejects:
            log = reject.topic, reject.partition
            if log not in self._sources:
                outcome.foreign += 1
            elif reject.truncated:
                outcome.cut += 1
            elif reject.time_ms is None and of_record:
                outcome.timeless += 1
            else:
                whole.setdefault(log, []).append((offset, reject))
        found: list[tuple[int, Rejected]] = []
        for log, some in whole.items():
            accepted = self._accepted(log, [reject for _, reject in some])
            found += [some[i] for i in accepted]
            outcome.refused += len(some) - len(accepted)
        return sorted(found, key=lambda one: one[0])

    def _accepted(self, log: tuple[str, int], rejects: Sequence[Rejected]) -> list[int]:
        source = self._sources[log]
        if log not in self._readers:
            self._readers[log] = source_reader_of(
                self._settings,
                self._reader,
                source.partition,
                source.partitions,
                self._forms.form(),
            )
        records = Records.of(
            [reject.value for reject in rejects],
            [self._key(reject) for reject in rejects],
            [reject.time_ms or 0 for reject in rejects],
        )
        latest = time.time_ns() // 1_000_000 + self._settings.events.max_ahead_ms
        most = self._settings.max_behind_ms
        # Resent records go to the end, where the clock has moved the watermark.
        watermark = latest - self._settings.events.max_ahead_ms - self._settings.events.grace_ms
        accepted: list[int] = []
        for events, _, _ in self._readers[log].read(records, latest):
            wanted = events.looked_at
            if most is not None:
                wanted &= watermark - events.times <= most
            accepted += events.index[wanted].tolist()
        return accepted

    def _key(self, reject: Rejected) -> bytes | None:
        """Return a record's key from before it was keyed by user."""
        settings = self._settings
        if reject.topic != settings.by_user_topic or settings.events.user == RECORD_KEY:
            return reject.key
        return read_headers(reject.headers)[1]


def list_rejects(settings: Settings, *, reason: str | None, show: int | None, retry: bool) -> int:
    """List the rejects whose reason contains `reason`, print up to `show` of them, and resend them.

    Return exit code 0.

    Raises:
        SettingsError: the rejects topic does not exist, or cannot be read.
    """
    say, connection = Printer(Console(highlight=False)), connection_of(settings)

    def wanted(text: str) -> bool:
        return reason is None or reason in text

    shown: list[Rejected] = []
    read = 0

    def keep(reject: Rejected, sent: bool) -> None:
        nonlocal read
        read += 1
        if read % 1_000 == 0:
            progress.update(f"{read:,} rejects read")
        if show is not None and not sent and len(shown) < show:
            shown.append(reject)

    if retry:
        ensure_compiled()
        _retried(retry_rejects(settings, connection, wanted), say)
        say.line()
    with ProgressLine() as progress:
        found = by_reason(settings, connection, wanted, keep)
    if not found:
        of_reason = "" if reason is None else f" with a reason that holds {reason!r}"
        say.line(f"topic {settings.rejects_topic}: no rejects{of_reason}.")
        return 0
    number = sum(one.number for one in found.values())
    say.line(f"topic {settings.rejects_topic}: {many(number, 'reject')}", style="bold")
    for text, one in found.items():
        say.line(f"{text}: {one.number:,}", 2)
        say.line(
            f"{when(one.first_ms)} to {when(one.last_ms)}, from {', '.join(sorted(one.topics))}", 6
        )
        if one.sent:
            say.line(f"{one.sent:,} sent back", 6)
        if one.cut:
            say.line(f"{one.cut:,} not whole, as the record was too long: cannot be sent back", 6)
    if show is not None:
        say.line()
        say.line(
            f"The first {len(shown):,} that were not sent back. Exact: for the operator only.",
            style="bold",
        )
        for reject in shown:
            at = "" if reject.time_ms is None else f", {when(reject.time_ms)}"
            say.line(
                f"{reject.topic}[{reject.partition}] offset {reject.offset:,}{at}: {reject.reason}",
                2,
            )
            say.exact(
                "no value"
                if reject.value is None
                else reject.value.decode(errors="backslashreplace"),
                6,
            )
    return 0


def _retried(outcome: Outcome, say: Printer) -> None:
    say.line(
        f"sent back: {many(outcome.sent, 'record')}, to the topics and partitions they came from",
        style="bold",
    )
    if outcome.sent:
        say.line(
            "a worker counts each in the tick that is open when it reads it, if its own tick is closed by then",
            2,
        )
        say.line("a worker that still runs with other settings may reject them again", 2)
    for number, text in (
        (outcome.refused, "would not be accepted now, and stay"),
        (outcome.cut, "not whole, as the record was too long: cannot be sent back"),
        (outcome.foreign, "of topics or partitions that these settings do not read"),
        (outcome.timeless, "without their time, as an earlier version rejected them"),
    ):
        if number:
            say.line(f"{number:,} {text}", 2)
