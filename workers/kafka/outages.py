"""Detect Kafka outages with a dedicated client, and filter the clients' repetitive log lines.

    ASK_S      timeout of one request, sent every second; any broker may answer
    LOOK_S     while one answers, the worker's partitions are looked at this often (`unavailable`)
    AWAY_S     without an answer for this long, Kafka counts as away: logged once
    GIVE_UP_S  away for this long, the worker releases everything, and restarts when Kafka is back

The group session expires after ten seconds, so the release gives up nothing that this worker still
owns, and the clients survive a shorter restart of a broker. Every client logs every failed
connection attempt; the filter drops these lines, but never a broker's refusal (password,
authorization). `--debug` shows all.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Event, Thread
from types import MappingProxyType
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from workers.kafka.clients import Connection, text_of, unreachable
from workers.kafka.reading import Callback
from workers.kafka.unavailable import NO_ANSWER, UsedTopics, unavailable
from workers.kafka.verdicts import Verdict, verdict_of
from workers.runtime.availability import PARTITIONS, Outage, Waits
from workers.runtime.errors import KafkaAway, SettingsError

# Lines that are dropped, by logger: what they begin with (aiokafka, librdkafka, our own `clients`)
# or have in them (Faust). Those of aiokafka are about one failed request that is retried.
_AIOKAFKA = (
    "Unable connect to",
    "Unable to request metadata",
    "Unable to update metadata",
    "Failed fetch messages from",
    "Failed fetch offsets from",
    "Error sending ",
    "Marking the coordinator dead",
    "Heartbeat send request failed",
    "Heartbeat session expired",
    "Heartbeat failed",
    "Group Coordinator Request failed",
    "LeaveGroup request failed",
    "OffsetCommit failed",
    "No broker metadata found",
    "Unexpected error in coordinator routine",
    "Unexpected error in fetcher routine",
)
_LIBRDKAFKA = re.compile(
    r"FAIL|METADATAUPDATE|GETPID|REQTMOUT|TIMEOUT|TXNERR|COORDQUERY|TXNCOORD|ADDPARTS|FATAL"
)
_OURS = re.compile(r"Kafka client: (_TRANSPORT|_ALL_BROKERS_DOWN|_TIMED_OUT|_RESOLVE)")
_FAUST = ("Thread keepalive is not responding", "No active partitions for")
# A refusal in a line of librdkafka's, which is kept.
_REFUSES = re.compile(r"authenti|authori[sz]|sasl|ssl|certificate", re.IGNORECASE)


def _is_informative(record: logging.LogRecord) -> bool:
    """Return whether to keep a log line: it is more than a client's report of a failed attempt."""
    source = record.name.partition(".")[0]
    text = record.getMessage()
    if source == "aiokafka":
        return not text.startswith(_AIOKAFKA)
    if source == "librdkafka":
        return _LIBRDKAFKA.match(text) is None or _REFUSES.search(text) is not None
    if source in ("faust", "mode"):
        return not any(words in text for words in _FAUST)
    return record.name != "workers.kafka.clients" or _OURS.match(text) is None


def filter_outage_logs() -> None:
    """Drop the clients' lines about failed attempts from now on, except at DEBUG."""
    root = logging.getLogger()
    if root.level > logging.DEBUG:
        for handler in root.handlers:
            handler.addFilter(_is_informative)


ASK_S = 3.0
LOOK_S = 2.0
AWAY_S = 5.0
GIVE_UP_S = 15.0
#: How long a broker that had accepted us before must refuse us until that is not taken for
#: temporary: after an outage, and (CONFIRM_S) without one.
REFUSED_S = 30.0
CONFIRM_S = 5.0
INTERVAL_S = 1.0
_END_S = 10.0
#: Detect a recovered broker quickly; replace a connection that hangs.
_EAGER = MappingProxyType(
    {"reconnect.backoff.max.ms": 1_000, "socket.timeout.ms": 6_000}
)

T = TypeVar("T")


@dataclass
class _Watch:
    """What the watching thread does: it asks every second, until `ended` is set.

    `topics` returns the topics in use; `give_up` is called once, after GIVE_UP_S without an answer.
    """

    connection: Connection
    topics: Callable[[], UsedTopics]
    outage: Outage
    waits: Waits
    give_up: Callback
    ended: Event

    def __post_init__(self) -> None:
        # When a broker answered last, and when partitions are looked at next (monotonic).
        self._answered_s = time.monotonic()
        self._next_look_s = self._answered_s + LOOK_S

    def run(self) -> None:
        """Ask every second, with a new client after one that cannot ask again."""
        while not self.ended.is_set():
            errors: list[KafkaError] = []
            with _eager_admin(self.connection, errors) as admin:
                is_usable = True
                while is_usable and not self.ended.wait(INTERVAL_S):
                    is_usable = self._ask(admin, errors)

    def _ask(self, admin: AdminClient, errors: list[KafkaError]) -> bool:
        """Ask once, and look at the partitions if that is due; log what has changed.

        `errors` are those of the client `admin`. Return whether that client can ask again.
        """
        try:
            # Any broker answers this; describe_cluster asks one, which may be away.
            admin.list_topics(self.topics().names[0], timeout=ASK_S)
        except KafkaException:
            admin.poll(0)  # appends to `errors`
            self._note_silence(errors)
            return True
        self._answered_s = time.monotonic()
        self.outage.end()
        reasons: dict[str, str] = {}
        if self._answered_s >= self._next_look_s:
            reasons = unavailable(
                admin, errors, self.topics(), ASK_S, self.ended.is_set
            )
            # The look ended early, so these are not all reasons.
            if self.ended.is_set():
                return False
            self.waits.note(PARTITIONS, reasons)
            self._next_look_s = time.monotonic() + LOOK_S
        errors.clear()
        self.waits.say()
        # A client whose leaders refuse it reconnects without a pause: it is replaced.
        return NO_ANSWER not in reasons.values()

    def _note_silence(self, errors: list[KafkaError]) -> None:
        """React to a request without an answer: after AWAY_S log it, after GIVE_UP_S end."""
        silent_s = time.monotonic() - self._answered_s
        if silent_s < AWAY_S:
            return
        # Before an outage is logged, one more question.
        if not self.outage.is_active and _answers(self.connection, self.topics()):
            self._answered_s = time.monotonic()
            return
        if not self.ended.is_set():
            self.waits.forget()
            self.outage.begin(self.connection.no_answer(errors), self._answered_s)
        if silent_s >= GIVE_UP_S:
            self.give_up()
            self.ended.set()


@contextmanager
def watch_kafka(
    connection: Connection,
    topics: Callable[[], UsedTopics],
    outage: Outage,
    waits: Waits,
    give_up: Callback,
) -> Iterator[None]:
    """Monitor Kafka, unless embedded, while the block runs; call `give_up` after GIVE_UP_S.

    Logs `outage`, and `waits` with the partitions among `topics()` that are not available.
    """
    if connection.embedded is not None:
        yield
        return
    ended = Event()
    watch = _Watch(connection, topics, outage, waits, give_up, ended)
    thread = Thread(target=watch.run, name="kafka-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Its client's thread calls into Python, so it must not outlive Python.
        thread.join(_END_S)


def _eager_admin(connection: Connection, errors: list[KafkaError]) -> AdminClient:
    """Return a quiet client with `_EAGER` settings, except those that the operator has set."""
    eager = {
        name: value for name, value in _EAGER.items() if name not in connection.client
    }
    # librdkafka refuses a maximum below the operator's own minimum.
    if "reconnect.backoff.ms" in connection.client:
        eager.pop("reconnect.backoff.max.ms", None)
    return connection.quiet_admin(errors, **eager)


def _answers(connection: Connection, topics: UsedTopics) -> bool:
    """Ask with a new client: the other one may only know brokers that are frozen or cut off."""
    with suppress(KafkaException), _eager_admin(connection, []) as admin:
        admin.list_topics(topics.names[0], timeout=ASK_S)
        return True
    return False


def is_temporary(error: BaseException) -> bool:
    """Return whether a start should wait: also for partitions that a client does not know.

    A client whose broker has ended says that it does not know topics that were just listed. If a
    topic really is gone, the next listing raises SettingsError.
    """
    return unreachable(error) or verdict_of(error) is Verdict.MISSING


def wait_for(
    ask: Callable[[], T],
    outage: Outage,
    on_wait: Callback = lambda: None,
    confirm_s: float = 0.0,
) -> T:
    """Return the answer of `ask`, retrying while Kafka is away; call `on_wait` before every retry.

    Raises SettingsError if Kafka refuses us or the topic does not exist: once that has lasted for
    `confirm_s`, or for REFUSED_S after an outage, since a broker that has just started may not know
    everything yet. Other errors of Kafka that waiting does not cure are raised at once.
    """
    refused_since_s: float | None = None
    was_away = outage.is_active
    while True:
        began_s = time.monotonic()
        try:
            answer = ask()
        except (SettingsError, KafkaAway, KafkaException) as error:
            if is_temporary(error):
                was_away = True
                refused_since_s = None
                outage.begin(text_of(error))
            else:
                if isinstance(error, KafkaException):
                    raise
                if refused_since_s is None:
                    refused_since_s = began_s
                if began_s - refused_since_s >= (REFUSED_S if was_away else confirm_s):
                    raise
                # The outage goes on, now with this reason.
                if was_away:
                    outage.begin(str(error))
        else:
            outage.end()
            return answer
        on_wait()
        time.sleep(max(0.0, INTERVAL_S - (time.monotonic() - began_s)))
