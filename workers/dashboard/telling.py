"""Delivers alerts to webhooks and topics, each at least once, and keeps what is not delivered yet.

Every destination has a queue and a task of its own: one that is away holds up no other, and is
tried again for ever. What has been seen and what waits is in a file beside the store, replaced
whole. It is written before a delivery is tried, so what is delivered again after a crash has the
same `alert_id`.
"""

import asyncio
import logging
import os
import tempfile
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
import orjson
from confluent_kafka import KafkaException

from workers.client.config import ReaderSettings
from workers.client.messages import SeenSnapshot
from workers.dashboard.alerts import Alarms, Watched
from workers.kafka.answered import AnsweredProducer

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
# Pauses after the first, second, ... failure of a delivery; the last one again and again.
RETRY_S = (1.0, 2.0, 5.0, 15.0, 60.0)
# How often the file is written without alarms: after a crash newer ticks are looked at again.
SAVE_S = 5.0
# A destination that is away until more alerts wait loses the oldest.
WAITING_MAX = 10_000


class Destination(NamedTuple):
    """A webhook and its address, or a topic and its name."""

    kind: str
    where: str

    def __str__(self) -> str:
        """Name it for the log: a webhook's address may hold a secret beyond its host."""
        if self.kind == "topic":
            return f"topic {self.where}"
        return f"webhook at {urlsplit(self.where).hostname}"


class Stored(msgspec.Struct):
    """The content of the file.

    `seen` is what each alert has seen, by the digest of its settings and by stream key; `waiting`
    are messages with the kind and address of their destination, the oldest first.
    """

    seen: dict[str, dict[str, Watched]] = {}
    waiting: list[tuple[str, str, dict[str, Any]]] = []


class Teller:
    """Looks at snapshots (`take`), and delivers what they alarm of (`run`), in one event loop."""

    def __init__(self, settings: ReaderSettings) -> None:
        self._alarms = Alarms(settings.alerts)
        self._path = state_path(settings)
        self._queues: dict[Destination, deque[dict[str, Any]]] = {}
        for alert in settings.alerts:
            for destination in _destinations(alert.webhook, alert.topic):
                self._queues.setdefault(destination, deque(maxlen=WAITING_MAX))
        # Each is set while something may be in the queue.
        self._events = {destination: asyncio.Event() for destination in self._queues}
        # Held while the file is written (`_save`).
        self._saving = asyncio.Lock()
        self._producer = AnsweredProducer(settings.connection, ANSWER_S)
        # Whether the file could not be written last time, which is logged once.
        self._failed = False

    async def run(self) -> None:
        """Deliver until cancelled, with a task for each destination; also save what was seen."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            tasks = [
                asyncio.create_task(self._deliver(destination, session))
                for destination in self._queues
            ]
            try:
                while True:
                    await asyncio.sleep(SAVE_S)
                    await self._save()
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._save()

    def take(self, snapshots: Iterable[SeenSnapshot]) -> None:
        """Look at new snapshots, and queue the messages about their alarms.

        A snapshot with something unexpected in it is skipped: it must not stop the dashboard.
        """
        for snapshot in snapshots:
            try:
                found = self._alarms.take(snapshot)
            except (ArithmeticError, LookupError, TypeError, ValueError) as error:
                logger.warning(
                    "alerts: a snapshot of %s is skipped: %s",
                    snapshot.histogram,
                    type(error).__name__,
                )
                continue
            for alert, message in found:
                logger.info("alert %s: %s", alert.name, message["alert_id"])
                for destination in _destinations(alert.webhook, alert.topic):
                    self._put(destination, message)

    def _put(self, destination: Destination, message: dict[str, Any]) -> None:
        """Let a message wait for its delivery; a full queue drops the oldest by itself."""
        queue = self._queues[destination]
        if len(queue) == WAITING_MAX:
            logger.warning(
                "%s: more than %d alerts wait; the oldest is dropped",
                destination,
                WAITING_MAX,
            )
        queue.append(message)
        self._events[destination].set()

    async def _deliver(
        self, destination: Destination, session: aiohttp.ClientSession
    ) -> None:
        """Deliver what waits for a destination, in order, until cancelled."""
        queue = self._queues[destination]
        tries = 0
        while True:
            if not queue:
                self._events[destination].clear()
                await self._events[destination].wait()
            message = queue[0]
            # Before it is sent: after a crash it is sent again, not lost.
            await self._save()
            why = await self._send(destination, message, session)
            if why is None:
                # It is not there if the queue was full and dropped it meanwhile.
                with suppress(ValueError):
                    queue.remove(message)
                tries = 0
                await self._save()
                continue
            if tries.bit_count() <= 1:  # the first, second, third, fifth, ... time
                logger.warning("%s: not delivered, tried again: %s", destination, why)
            await asyncio.sleep(RETRY_S[min(tries, len(RETRY_S) - 1)])
            tries += 1

    async def _send(
        self,
        destination: Destination,
        message: dict[str, Any],
        session: aiohttp.ClientSession,
    ) -> str | None:
        """Send a message to a webhook or a topic; return why that failed, or None.

        Of a webhook's answer only the status counts.
        """
        body = orjson.dumps(message)
        if destination.kind == "topic":
            return await asyncio.to_thread(self._produce, destination.where, body)
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": message["alert_id"],
        }
        try:
            request = session.post(
                destination.where, data=body, headers=headers, allow_redirects=False
            )
            async with request as answer:
                return None if 200 <= answer.status < 300 else f"status {answer.status}"
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # The text of an error may name the address.
            return type(error).__name__

    def _produce(self, topic: str, body: bytes) -> str | None:
        """Write a message to a topic; return why that failed, or None. It blocks."""
        try:
            # Longer than the record's own timeout, `ANSWER_S`, after which the reason is known.
            return self._producer.produce(topic, body, 2 * ANSWER_S)
        except (KafkaException, BufferError) as error:
            return str(error)

    async def _save(self) -> None:
        """Write the file; if that is impossible, log it once and go on."""
        # One at a time: an older state must not replace a newer one.
        async with self._saving:
            waiting = [
                (destination.kind, destination.where, message)
                for destination, queue in self._queues.items()
                for message in queue
            ]
            content = msgspec.json.encode(Stored(self._alarms.stored(), waiting))
            try:
                await asyncio.to_thread(_replace, self._path, content)
                self._failed = False
            except OSError as error:
                if not self._failed:
                    logger.warning(
                        "%s: cannot be written: %s", self._path, error.strerror
                    )
                self._failed = True

    def load(self) -> None:
        """Read what was seen and what waits from the file, before anything is looked at.

        Without one, or from a broken one, alerts begin anew. It blocks.
        """
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=Stored)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s: cannot be read, begun again: %s", self._path, error)
            return
        self._alarms.restore(stored.seen)
        for kind, where, message in stored.waiting:
            destination = Destination(kind, where)
            # The settings may not name it any more.
            if destination in self._queues:
                self._queues[destination].append(message)


def state_path(settings: ReaderSettings) -> Path:
    """Return the file beside the store; without a store there are no alerts."""
    store = settings.history.store
    if store is None:
        raise ValueError("alerts need a store")
    return store.with_name(f"{store.name}.alerts.json")


def _destinations(webhook: str | None, topic: str | None) -> list[Destination]:
    """Return where an alert with these settings is delivered; None: not there."""
    named = (("webhook", webhook), ("topic", topic))
    return [Destination(kind, where) for kind, where in named if where is not None]


def _replace(path: Path, content: bytes) -> None:
    """Replace a file whole, readable by its owner only."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
