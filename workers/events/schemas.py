"""Schemas by their ids: fetched once, kept for the life of the process.

What is known is never asked for again, so a registry that is away stops nothing but the records of
a schema that nobody here has seen: their shard waits, and nothing is lost. Who waits looks every
tenth of a second whether its partition was given up: requests run in a thread of their own.

An id that the registry does not know may be one that it does not know yet, so it is asked again for
`patience_s`; then its records are rejects. Anybody who may produce can make up ids. So after a wait
that was in vain nobody waits for an unknown id for ten times as long, and after many unknown ids
none is asked for until some of them are forgotten.

A schema as a registry keeps it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Protocol

from workers.runtime.metrics import Metrics

AVRO, PROTOBUF, JSON = "AVRO", "PROTOBUF", "JSON"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one refers to: by which name, and its text."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema.

    Attributes:
        kind: AVRO, PROTOBUF or JSON.
        text: as it was registered.
        references: those it refers to, and those that they do; each behind what it refers to.
    """

    kind: str
    text: str = field(repr=False)
    references: tuple[Reference, ...] = ()


logger = logging.getLogger(__name__)

# Between two looks at whether the partition was given up.
_LOOK_S = 0.1
# Between two requests for the same id, doubled up to the longest.
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 10.0
# After a wait for an unknown id that was in vain, in times of it.
_IMPATIENT = 10
# An unknown id is asked for again after this long, and at most so many are remembered.
_FORGOTTEN_S, _REMEMBERED = 60.0, 1_000
# The registry keeps ids in 32 bits with a sign.
_ID_MAX = 2**31 - 1
# Answers that say nothing about the id: not authorised, busy.
_NOT_ABOUT_THE_ID = frozenset((401, 403, 404, 405, 407, 408, 425, 429))
_UNKNOWN_ID = (40403, 40401, 40402)
_REFERENCES_MAX = 1_000


class Waiting(Protocol):
    """Whoever needs a schema: a shard."""

    def check_open(self) -> None:
        """Raise if it was given up."""

    def goes_on(self) -> None:
        """Note that long work is not stuck."""


class Nobody:
    """Who waits where no partition can be given up."""

    def check_open(self) -> None:
        """Go on."""

    def goes_on(self) -> None:
        """Go on."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to get to a registry: options of confluent-kafka's client. The repr shows no values."""

    url: str
    client: dict[str, Any] = field(repr=False)
    patience_s: float = 30.0


class _Unknown(Exception):
    """The registry has no such schema."""


class _Asking:
    """One id that is being asked for, by a thread of its own for as long as anybody waits."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.schema: Schema | None = None
        self.answered = False
        self.waiting = 0


class Registry:
    """A Schema Registry, for all threads of a process."""

    def __init__(self, access: Access, metrics: Metrics | None = None) -> None:
        """Describe it; nothing is asked yet."""
        # Half a second of imports that only workers with schemas need.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._client = SchemaRegistryClient({"url": access.url, "max.retries": 0, **access.client})
        self._url, self._patience_s = access.url, access.patience_s
        self._waits = (Metrics() if metrics is None else metrics).registry_waits
        self._lock = threading.Lock()
        self._known: dict[int, Schema] = {}
        self._asking: dict[int, _Asking] = {}
        # Until when an id counts as unknown.
        self._unknown: OrderedDict[int, float] = OrderedDict()
        self._impatient_until_s = 0.0
        # Ids that wait for an answer, since when.
        self._away: dict[int, float] = {}

    def schema(self, schema_id: int, waiting: Waiting) -> Schema | None:
        """Return a schema, or None where the registry has none of this id.

        It waits as long as the registry does not answer.

        Raises:
            ShardClosed: by `waiting`, where its partition was given up.
        """
        while True:
            found = self._known.get(schema_id)
            if found is not None:
                return found
            with self._lock:
                if schema_id > _ID_MAX or self._is_unknown(schema_id):
                    return None
                asking = self._asking.get(schema_id)
                if asking is None:
                    asking = self._asking[schema_id] = _Asking()
                    name = f"schema-{schema_id}"
                    threading.Thread(
                        target=self._ask, args=(schema_id, asking), name=name, daemon=True
                    ).start()
                asking.waiting += 1
            try:
                while not asking.done.wait(_LOOK_S):
                    waiting.check_open()
                    waiting.goes_on()
            finally:
                with self._lock:
                    asking.waiting -= 1
            # Otherwise it ended because nobody waited, just when this thread began to.
            if asking.answered:
                return asking.schema

    def _is_unknown(self, schema_id: int) -> bool:
        now = time.monotonic()
        while self._unknown and next(iter(self._unknown.values())) <= now:
            self._unknown.popitem(last=False)
        # With so many unknown ids somebody makes them up: asking for each would take the day.
        return schema_id in self._unknown or len(self._unknown) >= _REMEMBERED

    def _ask(self, schema_id: int, asking: _Asking) -> None:
        """Ask until there is an answer, or nobody waits for it."""
        pause, begun = _PAUSE_S, time.monotonic()
        try:
            while True:
                try:
                    asking.schema = self._known[schema_id] = self._fetched(schema_id)
                    asking.answered = True
                    return
                except _Unknown:
                    self._answers(schema_id)
                    if self._given_up(schema_id, begun):
                        asking.answered = True
                        return
                except Exception as error:  # noqa: BLE001
                    # Whatever it is, to wait loses nothing.
                    self._does_not_answer(schema_id, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                with self._lock:
                    if asking.waiting == 0:
                        return
        finally:
            with self._lock:
                del self._asking[schema_id]
            self._answers(schema_id)
            asking.done.set()

    def _fetched(self, schema_id: int) -> Schema:
        """Return a schema with all that it refers to.

        Raises:
            _Unknown: the registry has no schema of this id, or not all that it refers to.
        """
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            found = self._client.get_schema(schema_id)
            references: dict[str, Reference] = {}
            self._add_references(found, references, 0)
        except SchemaRegistryError as error:
            status, code = error.http_status_code, error.error_code
            if code in _UNKNOWN_ID or (400 <= status < 500 and status not in _NOT_ABOUT_THE_ID):
                raise _Unknown from None
            raise
        return Schema(found.schema_type or AVRO, found.schema_str or "", tuple(references.values()))

    def _add_references(self, schema: Any, found: dict[str, Reference], depth: int) -> None:
        for each in schema.references or ():
            if each.name in found:
                continue
            if depth > 100 or len(found) >= _REFERENCES_MAX:
                raise _Unknown
            inner = self._client.get_version(each.subject, each.version).schema
            self._add_references(inner, found, depth + 1)
            found[each.name] = Reference(each.name, inner.schema_str or "")

    # ---- what the operator is told ------------------------------------------------------------

    def _does_not_answer(self, schema_id: int, error: Exception) -> None:
        """Say once that records wait, however many of them and of whatever schemas."""
        with self._lock:
            first = not self._away
            self._away.setdefault(schema_id, time.monotonic())
        if first:
            self._waits.inc()
            logger.warning(
                "the schema registry at %s does not answer (%s): records of schemas not seen yet wait for it",
                self._url,
                _what(error),
            )

    def _answers(self, schema_id: int) -> None:
        with self._lock:
            since = self._away.pop(schema_id, None)
            last = since is not None and not self._away
        if last and since is not None:
            logger.info(
                "the schema registry answers again, after %.1f s: records go on",
                time.monotonic() - since,
            )

    def _given_up(self, schema_id: int, begun: float) -> bool:
        """Tell whether an id that the registry does not know is not to be asked for again now."""
        now = time.monotonic()
        with self._lock:
            over = now - begun >= self._patience_s
            if not over and now >= self._impatient_until_s:
                return False
            if over:
                self._impatient_until_s = now + _IMPATIENT * self._patience_s
            self._unknown[schema_id] = now + _FORGOTTEN_S
        logger.warning("the schema registry knows no schema %d: its records are rejects", schema_id)
        return True


def _what(error: Exception) -> str:
    """Return what went wrong in a few words, without what a server may have sent."""
    status = getattr(error, "http_status_code", None)
    return f"HTTP {status}" if status is not None else f"{type(error).__name__}: {error}"[:200]
