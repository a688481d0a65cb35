"""`quietcount rejects`: list rejects by reason, and resend those that would be accepted now.

Sensitive: rejects hold the original records. A resent reject goes once, as the original record, to
its own topic and partition. With `privacy.rekey` and an event rejected after re-keying, that is the
topic by user, and the record keeps the marker of the place where it counts.

One transaction sends several rejects of a partition and a record to the rejects topic that lists
their offsets there (`RETRIED`), so a run that is killed at any point and restarted sends none of
them twice. A single position in the topic would not do: rejects that are still not accepted stay,
and may be accepted later. Concurrent runs fence each other by their transactional id.
"""

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

from confluent_kafka import Message
from rich.console import Console

from workers.agents.topics import check_events, connection_of, partitions_by_user
from workers.commands import options
from workers.commands.compiling import ensure_compiled
from workers.commands.json_fault import NOT_JSON, fault_of
from workers.commands.undeclared import UndeclaredKeys, shown_key
from workers.events.formats.reader import RecordFormats
from workers.events.json import JsonDecoder
from workers.events.reading import NOT_DECLARED, SourceReader
from workers.events.tree import Node
from workers.kafka.clients import Connection
from workers.kafka.reading import await_commits, read_partition
from workers.kafka.records import Outgoing, Records
from workers.kafka.topics import describe
from workers.kafka.transaction import Transactions
from workers.mechanisms.config.views import RECORD_KEY
from workers.pipeline.factory import reader_of, source_reader_of
from workers.pipeline.rejected import RETRIED, RETRY, Rejected, read_reject
from workers.pipeline.rekey_markers import read_headers
from workers.runtime.errors import KafkaAway, SettingsError
from workers.runtime.printing import Printer, ProgressLine, iso_time, plural
from workers.settings.settings import Settings

ReasonTest = Callable[[str], bool]  # whether the operator asked for this reason
Placed = tuple[int, Rejected]  # a reject, after its offset in the rejects topic


@dataclass(slots=True)
class ReasonCounts:
    """How many rejects have one reason: `sent` were resent, `cut` are truncated.

    They were rejected from `first_ms` to `last_ms`, and are records of `topics`.
    """

    number: int = 0
    sent: int = 0
    cut: int = 0
    # Later than any reject, so that the first one replaces it.
    first_ms: int = 1 << 62
    last_ms: int = 0
    topics: set[str] = field(default_factory=set)

    def add(self, reject: Rejected, rejected_ms: int, was_sent: bool) -> None:
        """Count a reject, and whether it was resent; `rejected_ms` is when it was rejected."""
        self.number += 1
        self.sent += was_sent
        self.cut += reject.truncated
        self.first_ms = min(self.first_ms, rejected_ms)
        self.last_ms = max(self.last_ms, rejected_ms)
        self.topics.add(reject.topic)


def partitions_of(settings: Settings, connection: Connection) -> int:
    """Return how many partitions the rejects topic has; SettingsError if there is none."""
    topic = settings.rejects_topic
    existing = describe(connection, [topic])
    if topic not in existing:
        raise SettingsError(
            f"topic {topic} does not exist on {settings.kafka.bootstrap}: "
            "`quietcount topics -c FILE --create` makes it, "
            "and a worker that has never run has rejected nothing"
        )
    return existing[topic].partitions


def resent_offsets(connection: Connection, topic: str, partition: int) -> set[int]:
    """Return the offsets of a partition's resent rejects, from the lists (`RETRIED`) in it."""
    offsets = set[int]()
    for message in read_partition(connection, topic, partition):
        if any(name == RETRIED for name, _ in _headers(message)):
            offsets.update(json.loads(message.value() or b"[]"))
    return offsets


def _matching(
    connection: Connection, settings: Settings, partition: int, matches: ReasonTest
) -> Iterator[tuple[Message, Rejected, bool]]:
    """Yield a partition's rejects whose reason matches, and whether each was resent.

    Other records of it list resent rejects: `read_reject` returns None for them.
    """
    sent = resent_offsets(connection, settings.rejects_topic, partition)
    for message in read_partition(connection, settings.rejects_topic, partition):
        reject = read_reject(_headers(message), message.key(), message.value())
        if reject is not None and matches(reject.reason):
            yield message, reject, message.offset() in sent


def _headers(message: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], message.headers() or [])


# Rejects in one transaction.
RECORDS_MAX = 1_000
BYTES_MAX = 16 << 20
# How long Kafka may not answer; checks further apart than the pause belong to separate waits.
_PATIENCE_S = 120.0
_PAUSE_S = 10.0
_JSON = JsonDecoder(Node())


@dataclass(slots=True)
class RetryCounts:
    """Counts of processed rejects: `refused` would be rejected again or skipped.

    `cut` rejects are truncated; `foreign` ones belong to a topic or partition not in the settings.
    """

    sent: int = 0
    refused: int = 0
    cut: int = 0
    foreign: int = 0


class _CommandOwner:
    """What `Transactions` asks its owner, answered by a command instead of a worker's shard.

    It gives up after waiting too long, and keeps no statistics of waits and aborts.
    """

    def __init__(self) -> None:
        # When the present wait began, and the last call of `check_open`; as if there were none yet.
        self._wait_begun_s = 0.0
        self._checked_s = 0.0

    def check_open(self) -> None:
        """Raise if Kafka makes no progress for two minutes; called about every second of a wait."""
        now_s = time.monotonic()
        # Without calls for a while, something was done: another wait begins.
        if now_s - self._checked_s > _PAUSE_S:
            self._wait_begun_s = now_s
        self._checked_s = now_s
        if now_s - self._wait_begun_s > _PATIENCE_S:
            raise KafkaAway(
                f"Kafka has not answered for {_PATIENCE_S:g} s: start this command again; it sends "
                "no reject twice"
            )

    def report_progress(self) -> None: ...

    def note_wait(self, waits: Mapping[str, str]) -> bool:
        """Explain no wait, so that `Transactions` gives up after a while."""
        return False

    def note_abort(self) -> None: ...

    def confirm(self) -> None:
        """Give up after a transaction of which it is in doubt whether it was committed.

        A worker would find out, and go on; here the next run does.
        """
        raise KafkaAway(
            "Kafka ended a transaction, or answered too late: start this command again; it sends "
            "no reject twice"
        )


def retry_rejects(
    settings: Settings, connection: Connection, matches: ReasonTest
) -> RetryCounts:
    """Resend matching rejects accepted now; raise Fenced if another run began (sent ones stay)."""
    acceptable = _AcceptanceFilter(settings, connection)
    outcome = RetryCounts()
    partitions = partitions_of(settings, connection)
    transactional_id = f"{settings.worker.name}-rejects-retry"
    # Where a worker's state changes would go; here are none.
    state_log = (settings.rejects_topic, 0)
    transactions = Transactions(
        connection, transactional_id, state_log, _CommandOwner()
    )
    # End the transaction of a killed run; only then is it settled what that run sent.
    transactions.take_over()
    try:
        for partition in range(partitions):
            for chunk in _chunks(settings, connection, partition, matches):
                accepted = acceptable.select(chunk, outcome)
                if accepted:
                    offsets = [offset for offset, _ in accepted]
                    records = [resent_record(reject) for _, reject in accepted]
                    listing = resent_listing(settings.rejects_topic, partition, offsets)
                    transactions.transact([*records, listing], [])
                    outcome.sent += len(accepted)
    finally:
        transactions.close()
    return outcome


def resent_listing(topic: str, partition: int, offsets: Sequence[int]) -> Outgoing:
    """Return the record that lists rejects sent back, so that none is sent again."""
    return Outgoing(
        topic, partition, None, json.dumps(offsets).encode(), [(RETRIED, b"true")]
    )


def resent_record(reject: Rejected) -> Outgoing:
    """Return a reject as the original record, marked with where it was rejected."""
    origin = f"{reject.topic}/{reject.partition}/{reject.offset}".encode()
    headers = [(name, value) for name, value in reject.headers if name != RETRY]
    return Outgoing(
        reject.topic,
        reject.partition,
        reject.key,
        reject.value,
        [*headers, (RETRY, origin)],
        reject.time_ms,
    )


def _chunks(
    settings: Settings, connection: Connection, partition: int, matches: ReasonTest
) -> Iterator[list[Placed]]:
    """Yield a partition's wanted rejects that were not resent, in chunks of one transaction."""
    try:
        # A worker's open transaction hides another run's resent records behind it until it ends.
        await_commits(connection, [(settings.rejects_topic, partition)])
    except KafkaAway:
        raise SettingsError(
            f"{settings.rejects_topic}[{partition}]: a transaction has been open for 60 s, so what "
            "lies behind it cannot be read: try again when it has ended (a worker that died ends "
            "its own when it starts again)"
        ) from None
    chunk: list[Placed] = []
    nbytes = 0
    for message, reject, was_sent in _matching(
        connection, settings, partition, matches
    ):
        if was_sent:
            continue
        chunk.append((message.offset() or 0, reject))
        nbytes += len(reject.value or b"") + len(reject.key or b"")
        if len(chunk) >= RECORDS_MAX or nbytes >= BYTES_MAX:
            yield chunk
            chunk = []
            nbytes = 0
    if chunk:
        yield chunk


class _AcceptanceFilter:
    """Tells which rejects the worker would accept under these settings, if they came now.

    A "log" is one partition of a topic: (topic, partition).
    """

    def __init__(self, settings: Settings, connection: Connection) -> None:
        """Find the partitions that the worker reads now."""
        self._settings = settings
        self._event_reader = reader_of(settings)
        self._formats = RecordFormats(settings, self._event_reader)
        # A record was rejected in an events topic, or later, in the topic re-keyed by user.
        events = check_events(settings, connection, as_produced=True)
        by_user = partitions_by_user(settings, connection)
        self._partitions = {place.log: place for place in (*events, *by_user)}
        # Made when the first reject of a partition comes.
        self._reader_of_log: dict[tuple[str, int], SourceReader] = {}

    def select(self, rejects: Sequence[Placed], outcome: RetryCounts) -> list[Placed]:
        """Return the rejects that would be accepted; count the others in `outcome`."""
        whole: dict[tuple[str, int], list[Placed]] = {}
        for offset, reject in rejects:
            log = reject.topic, reject.partition
            if log not in self._partitions:
                outcome.foreign += 1
            elif reject.truncated:
                outcome.cut += 1
            else:
                whole.setdefault(log, []).append((offset, reject))
        selected: list[Placed] = []
        for log, placed in whole.items():
            accepted = self._accepted(log, [reject for _, reject in placed])
            selected += [placed[i] for i in accepted]
            outcome.refused += len(placed) - len(accepted)
        # In the order in which they were rejected.
        return sorted(selected, key=lambda placed: placed[0])

    def _accepted(self, log: tuple[str, int], rejects: Sequence[Rejected]) -> list[int]:
        """Return the indices of rejects of one partition that would be accepted now."""
        if log not in self._reader_of_log:
            topic = self._partitions[log].topic
            # (since when, ms, over how many partitions users are spread): always as many as now.
            placements = [(0, topic.partitions)]
            fmt = self._formats.make()
            self._reader_of_log[log] = source_reader_of(
                self._settings, self._event_reader, log[1], placements, fmt
            )
        records = Records.of(
            [reject.value for reject in rejects],
            [record_key(self._settings, reject) for reject in rejects],
            [reject.time_ms for reject in rejects],
        )
        now_ms = time.time_ns() // 1_000_000
        max_behind_ms = self._settings.max_behind_ms
        # Resent records go to the end, where the clock has moved the watermark. An event that is
        # too far behind it is rejected again.
        watermark_ms = now_ms - self._settings.events.grace_ms
        latest_ms = now_ms + self._settings.events.max_ahead_ms
        accepted: list[int] = []
        for reading in self._reader_of_log[log].read(records, latest_ms):
            events = reading.events
            # An event in no view would be skipped.
            is_accepted = events.in_any_view
            if max_behind_ms is not None:
                is_accepted &= watermark_ms - events.times <= max_behind_ms
            accepted += events.index[is_accepted].tolist()
        return accepted


def record_key(settings: Settings, reject: Rejected) -> bytes | None:
    """Return the key that the producer gave a rejected record; None: none."""
    # In the topic by user the key is the user, and a header has the producer's, unless both are
    # the same.
    if reject.topic != settings.by_user_topic or settings.events.user == RECORD_KEY:
        return reject.key
    _time_ms, original = read_headers(reject.headers)
    return original


def _shown(key: bytes | None) -> str:
    return "none" if key is None else shown_key(key.decode(errors="backslashreplace"))


def _decoded(settings: Settings, reject: Rejected) -> object:
    """Return a reject's JSON as objects; None if it is none, or needs a schema of a registry."""
    if settings.events.format != "json" or reject.value is None:
        return None
    with suppress(ValueError):
        return _JSON.decode_all(reject.value)
    return None


def list_rejects(settings: Settings, chosen: options.Rejects) -> int:
    """List rejects with `chosen.reason` in their reason; resend and print some if asked to."""
    say = Printer(Console(highlight=False))
    connection = connection_of(settings)
    reason = chosen.reason

    def matches(text: str) -> bool:
        return reason is None or reason in text

    # First, so that what is sent back now is listed as such.
    if chosen.retry:
        ensure_compiled()
        _print_retry(retry_rejects(settings, connection, matches), say)
        say.line()
    by_reason = defaultdict[str, ReasonCounts](ReasonCounts)
    undeclared = UndeclaredKeys(settings)
    shown: list[Rejected] = []
    number = 0
    with ProgressLine() as progress:
        for partition in range(partitions_of(settings, connection)):
            for message, reject, was_sent in _matching(
                connection, settings, partition, matches
            ):
                _kind, rejected_ms = message.timestamp()
                by_reason[reject.reason].add(reject, rejected_ms, was_sent)
                if reject.reason == NOT_DECLARED:
                    undeclared.add(
                        record_key(settings, reject), _decoded(settings, reject)
                    )
                if not was_sent and len(shown) < (chosen.show or 0):
                    shown.append(reject)
                number += 1
                if number % 1_000 == 0:
                    progress.update(f"{number:,} rejects read")
    if not by_reason:
        of_reason = "" if reason is None else f" with a reason that holds {reason!r}"
        say.line(f"topic {settings.rejects_topic}: no rejects{of_reason}.")
        return 0
    say.line(
        f"topic {settings.rejects_topic}: {plural(number, 'reject')}", style="bold"
    )
    _print_reasons(by_reason, undeclared, say)
    if chosen.show is not None:
        say.line()
        say.line(
            f"The first {len(shown):,} that were not sent back. Exact: for the operator only.",
            style="bold",
        )
        for reject in shown:
            _print_reject(settings, reject, say)
    return 0


def _print_reasons(
    counts: Mapping[str, ReasonCounts], undeclared: UndeclaredKeys, say: Printer
) -> None:
    """Print how many rejects each reason has, the most first, and where they come from."""
    for reason, counted in sorted(counts.items(), key=lambda entry: -entry[1].number):
        say.line(f"  {reason}: {counted.number:,}")
        topics = ", ".join(sorted(counted.topics))
        say.line(
            f"      {iso_time(counted.first_ms)} to {iso_time(counted.last_ms)}, from {topics}",
        )
        if reason == NOT_DECLARED:
            for line in undeclared.lines():
                say.line(f"      {line}")
        if counted.sent:
            say.line(f"      {counted.sent:,} sent back")
        if counted.cut:
            say.line(
                f"      {counted.cut:,} not whole, as the record was too long: cannot be sent back",
            )


def _print_reject(settings: Settings, reject: Rejected, say: Printer) -> None:
    """Print a reject as it is, and where its JSON has a fault."""
    say.line(
        f"  {reject.topic}[{reject.partition}] offset {reject.offset:,}, {iso_time(reject.time_ms)}: {reject.reason}",
    )
    if any(view.key == RECORD_KEY for view in settings.shape.views.values()):
        say.one_line(f"record key: {_shown(record_key(settings, reject))}", 6)
    if reject.reason == NOT_JSON and not reject.truncated:
        fault = fault_of(settings, reject.value)
        if fault is not None:
            say.line(f"      the fault: {fault.what}")
            say.one_line(fault.context, 6)
    text = "no value"
    if reject.value is not None:
        text = reject.value.decode(errors="backslashreplace")
    say.one_line(text, 6)


def _print_retry(outcome: RetryCounts, say: Printer) -> None:
    """Print how many rejects were sent back, and why others were not."""
    sent = plural(outcome.sent, "record")
    say.line(
        f"sent back: {sent}, to the topics and partitions they came from", style="bold"
    )
    if outcome.sent:
        say.line(
            "  a worker counts each in the tick that is open when it reads it, "
            "if its own tick is closed by then",
        )
        say.line("  a worker that still runs with other settings may reject them again")
    for number, text in (
        (outcome.refused, "would not be accepted now, and stay"),
        (outcome.cut, "not whole, as the record was too long: cannot be sent back"),
        (outcome.foreign, "of topics or partitions that these settings do not read"),
    ):
        if number:
            say.line(f"  {number:,} {text}")
