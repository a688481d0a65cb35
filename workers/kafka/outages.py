"""Asks Kafka every second whether it is there, with a client of its own.

    ASK_S      one question; an answer of any broker will do
    AWAY_S     without an answer for so long Kafka is away: said once
    GIVE_UP_S  away for so long the worker lets everything go, and begins again when Kafka is back

The group's session is over after ten seconds without a broker, so whoever lets go after that gives
up nothing that is still his. A broker that restarts within the time is ridden out by the clients.

Log lines of the clients that say no more than our own two: Kafka is away, and back.

Every client reports each attempt to reach a broker, for ever. What a broker refuses (a password, a
right) is never held back. `--debug` shows all of it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import contextmanager
from types import MappingProxyType
from typing import TypeVar

from confluent_kafka import KafkaError, KafkaException

from workers.kafka.clients import Connection, text_of, unreachable
from workers.runtime.availability import Away
from workers.runtime.errors import KafkaAway, SettingsError

#: How their lines begin, by logger; aiokafka's are of one request that failed and is repeated.
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
_LIBRDKAFKA = (
    "FAIL",
    "METADATAUPDATE",
    "GETPID",
    "REQTMOUT",
    "TIMEOUT",
    "TXNERR",
    "COORDQUERY",
    "TXNCOORD",
)
_OURS = (
    "Kafka client: _TRANSPORT",
    "Kafka client: _ALL_BROKERS_DOWN",
    "Kafka client: _TIMED_OUT",
    "Kafka client: _RESOLVE",
)
_FAUST = ("Thread keepalive is not responding", "No active partitions for")
_REFUSES = re.compile(r"authenti|authori[sz]|sasl|ssl|certificate", re.IGNORECASE)


class _WithoutOutages(logging.Filter):
    """Lets through what is not about a broker that cannot be reached."""

    def filter(self, record: logging.LogRecord) -> bool:
        source = record.name.partition(".")[0]
        text = record.getMessage()
        if source == "aiokafka":
            return not text.startswith(_AIOKAFKA)
        if source == "librdkafka":
            return not text.startswith(_LIBRDKAFKA) or _REFUSES.search(text) is not None
        if source in ("faust", "mode"):
            return not any(words in text for words in _FAUST)
        return not (record.name == "workers.kafka.clients" and text.startswith(_OURS))


def without_outages() -> None:
    """Hold these lines back, unless the log was set up with `--debug`."""
    root = logging.getLogger()
    if root.level > logging.DEBUG:
        for handler in root.handlers:
            handler.addFilter(_WithoutOutages())


logger = logging.getLogger(__name__)

ASK_S = 3.0
AWAY_S = 5.0
GIVE_UP_S = 15.0
#: A broker that refuses us for so long, after it had let us in, does not do so by mistake.
REFUSED_S = 30.0
#: Between two questions.
LOOK_S = 1.0
# How soon a question is left, and how long that may take.
_SLICE_S, _END_S = 0.1, 10.0
#: A broker that is back should be found soon, and a connection that hangs be made again.
_EAGER = MappingProxyType({"reconnect.backoff.max.ms": 1_000, "socket.timeout.ms": 6_000})

T = TypeVar("T")


@contextmanager
def watching(connection: Connection, away: Away, gone: Callable[[], None]) -> Iterator[None]:
    """Look, while the block runs, whether Kafka is there; call `gone` when it is worth letting go.

    The embedded cluster ends with the demo, so nobody looks at it.
    """
    if connection.embedded is not None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(
        target=_look, args=(connection, away, gone, ended), name="kafka-watch", daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        # Its client calls into Python from a thread of its own, which must not outlive Python.
        thread.join(_END_S)


def _look(
    connection: Connection, away: Away, gone: Callable[[], None], ended: threading.Event
) -> None:
    errors: list[KafkaError] = []
    eager = {name: value for name, value in _EAGER.items() if name not in connection.client}
    if "reconnect.backoff.ms" in connection.client:
        eager.pop("reconnect.backoff.max.ms", None)
    with connection.asking(errors, **eager) as admin:
        answered_s = time.monotonic()
        while not ended.wait(LOOK_S):
            try:
                # Of the cluster, not of its topics, of which there may be thousands.
                asked = admin.describe_cluster(request_timeout=ASK_S)
                while not wait((asked,), _SLICE_S).done:
                    if ended.is_set():
                        return
                asked.result()
            except KafkaException:
                admin.poll(0)  # serves the callback
                silent_s = time.monotonic() - answered_s
                if silent_s >= AWAY_S and not ended.is_set():
                    away.lost(connection.silence(errors), answered_s)
                if silent_s >= GIVE_UP_S:
                    gone()
                    return
            else:
                answered_s = time.monotonic()
                errors.clear()
                away.found()


def wait_for(ask: Callable[[], T], away: Away, waiting: Callable[[], None] = lambda: None) -> T:
    """Return the answer to what is asked of Kafka, for which it waits as long as Kafka is away.

    Args:
        ask: raises `KafkaAway`, or an error of librdkafka, where no broker answers.
        away: told what becomes of it.
        waiting: called once, if it has to wait.

    Raises:
        SettingsError: Kafka refuses us, or has no such topic: at once, but after an outage only if
            that stays so, for a broker that has just started may not know everything yet.
    """
    refused_s: float | None = None
    seen = away.is_so
    while True:
        began_s = time.monotonic()
        try:
            answer = ask()
        except KafkaAway as error:
            seen, refused_s = True, None
            away.lost(str(error))
        except KafkaException as error:
            if not unreachable(error):
                raise
            seen, refused_s = True, None
            away.lost(text_of(error))
        except SettingsError as error:
            if not seen:
                raise
            away.lost(str(error))
            refused_s = began_s if refused_s is None else refused_s
            if began_s - refused_s >= REFUSED_S:
                raise
        else:
            away.found()
            return answer
        waiting()
        time.sleep(max(0.0, LOOK_S - (time.monotonic() - began_s)))
