"""Cache of schemas by id, fetched from a Schema Registry once per process.

A registry outage stops only records with schemas new to this process: their shard (the thread that
reads them) waits, and nothing is lost. Requests run in their own thread, so a waiting shard can
check every tenth of a second whether it was closed.

An id that the registry does not know may be too new: it is retried for `patience_s`, then its
records are rejects. Any producer can make up ids. So after one wait in vain, nobody waits for an
unknown id for ten times as long, and after many unknown ids none is requested until some expire.
"""

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from workers.runtime.errors import SettingsError
from workers.runtime.metrics import Metrics

AVRO = "AVRO"
PROTOBUF = "PROTOBUF"
JSON = "JSON"


@dataclass(frozen=True, slots=True)
class Reference:
    """A schema that another one imports, under the name in the import."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema as registered; `references` are transitive, dependencies first."""

    kind: str  # AVRO, PROTOBUF or JSON
    text: str = field(repr=False)
    references: tuple[Reference, ...] = ()


logger = logging.getLogger(__name__)

# Interval between checks whether the caller was closed.
_LOOK_S = 0.1
# Pause between two requests for the same id, doubled up to the longest.
_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 10.0
# Time without waiting after a wait in vain, as a multiple of `patience_s`.
_IMPATIENCE = 10
# Expiry of unknown ids, and the maximum number remembered.
_FORGOTTEN_S = 60.0
_REMEMBERED = 1_000
# Registry ids are signed 32-bit integers.
_ID_MAX = 2**31 - 1
# Of one answer: the longest schema, and the longest time for it.
_ANSWER_BYTES_MAX = 16 << 20
_ANSWER_S = 60.0
# HTTP statuses that do not concern the id: not authorized, busy.
_NOT_ABOUT_THE_ID = frozenset((401, 403, 404, 405, 407, 408, 425, 429))
_UNKNOWN_ID_CODES = (40403, 40401, 40402)
_REFERENCES_MAX = 1_000
_REFERENCES_DEEP = 100


class SchemaWaiter(Protocol):
    """A shard that waits for a schema."""

    def check_open(self) -> None:
        """Raise ShardClosed if it was closed meanwhile."""

    def report_progress(self) -> None:
        """Say that it waits, and is not stuck."""


class AlwaysOpen:
    """The `SchemaWaiter` of commands and tests, which nobody closes or watches."""

    def check_open(self) -> None: ...

    def report_progress(self) -> None: ...


class CommandWait(AlwaysOpen):
    """A command's wait for the registry: `patience_s` in total, then it raises `refusal`."""

    def __init__(self, patience_s: float, refusal: SettingsError) -> None:
        self._deadline = time.monotonic() + patience_s
        self._refusal = refusal

    def check_open(self) -> None:
        if time.monotonic() > self._deadline:
            raise self._refusal


@dataclass(frozen=True, slots=True)
class Access:
    """Registry connection: options of confluent-kafka's client. The repr shows no values.

    An id that the registry does not know is asked for again during `patience_s`.
    """

    url: str
    client: dict[str, Any] = field(repr=False)
    patience_s: float = 30.0


class _UnknownId(Exception):
    """The registry answers that it has no such schema."""


@dataclass(slots=True)
class _Request:
    """A pending request for one id; its thread runs as long as a caller waits.

    Attributes:
        done: set when the thread ends.
        schema: the answer; None, if the request was `answered`: the id is unknown.
        answered: False at the end if nobody waited any more.
        waiting: number of callers.
    """

    done: threading.Event = field(default_factory=threading.Event)
    schema: Schema | None = None
    answered: bool = False
    waiting: int = 0


def _bound_answers(client: Any) -> None:
    """Make a client give up answers that are too long or too late; on its own it reads any.

    A compressed answer could grow beyond the bound after it is counted, so none is taken.
    """
    # confluent-kafka's client is built on it; its hooks and errors are used here.
    import httpx2 as httpx

    class Bounded(httpx.SyncByteStream):
        """The bytes of an answer; raises instead of going beyond _ANSWER_BYTES_MAX or _ANSWER_S."""

        def __init__(self, stream: httpx.SyncByteStream) -> None:
            self._stream = stream

        def __iter__(self) -> Iterator[bytes]:
            """Yield the answer as it arrives; raise once it is too long or takes too long."""
            left = _ANSWER_BYTES_MAX
            until_s = time.monotonic() + _ANSWER_S
            for piece in self._stream:
                left -= len(piece)
                if left < 0:
                    raise httpx.ReadError(
                        f"an answer of more than {_ANSWER_BYTES_MAX:,} bytes"
                    )
                if time.monotonic() > until_s:
                    raise httpx.ReadTimeout(
                        f"an answer that takes more than {_ANSWER_S:g} s"
                    )
                yield piece

        def close(self) -> None:
            self._stream.close()

    def bound(response: httpx.Response) -> None:
        if "content-encoding" in response.headers:
            raise httpx.DecodingError("a compressed answer, which was not asked for")
        response.stream = Bounded(cast(httpx.SyncByteStream, response.stream))

    session: httpx.Client = client._rest_client.session
    session.headers["accept-encoding"] = "identity"
    session.event_hooks = {"response": [bound]}


class Registry:
    """A Schema Registry client, shared by all threads of a process."""

    def __init__(self, access: Access, metrics: Metrics | None = None) -> None:
        # Imported here: it takes half a second, and only workers with schemas need it.
        from confluent_kafka.schema_registry import SchemaRegistryClient

        self._client = SchemaRegistryClient(
            {"url": access.url, "max.retries": 0, **access.client}
        )
        _bound_answers(self._client)
        self._url = access.url
        self._patience_s = access.patience_s
        self._waits = (Metrics() if metrics is None else metrics).registry_waits
        self._lock = threading.Lock()
        self._known: dict[int, Schema] = {}
        self._requests: dict[int, _Request] = {}
        # Expiry time by unknown id, in this order.
        self._unknown: OrderedDict[int, float] = OrderedDict()
        # Until then, nobody waits for unknown ids.
        self._impatient_until_s = 0.0
        # By id of which the registry says nothing: since when.
        self._silent_since: dict[int, float] = {}

    def schema(self, schema_id: int, waiting: SchemaWaiter) -> Schema | None:
        """Wait for a schema and return it; None if the registry knows no such id.

        Blocks until there is an answer; meanwhile `waiting` may raise, such as ShardClosed. Callers
        that wait for the same id share a request, which runs in a thread of its own.
        """
        while True:
            found = self._known.get(schema_id)
            if found is not None:
                return found
            with self._lock:
                # A header has room for larger ids than registries have.
                if schema_id > _ID_MAX or self._is_unknown(schema_id):
                    return None
                request = self._requests.get(schema_id)
                if request is None:
                    request = self._requests[schema_id] = _Request()
                    name = f"schema-{schema_id}"
                    threading.Thread(
                        target=self._ask,
                        args=(schema_id, request),
                        name=name,
                        daemon=True,
                    ).start()
                request.waiting += 1
            try:
                while not request.done.wait(_LOOK_S):
                    waiting.check_open()
                    waiting.report_progress()
            finally:
                with self._lock:
                    request.waiting -= 1
            # Otherwise the request ended for lack of callers just as this thread began to wait: ask
            # once more.
            if request.answered:
                return request.schema

    def _is_unknown(self, schema_id: int) -> bool:
        """Return whether an id was unknown within the last minute, or too many were. Forgets older.

        The caller holds the lock.
        """
        now = time.monotonic()
        while self._unknown and next(iter(self._unknown.values())) <= now:
            self._unknown.popitem(last=False)
        # This many unknown ids must be made up; requesting them all would take all day.
        return schema_id in self._unknown or len(self._unknown) >= _REMEMBERED

    def _ask(self, schema_id: int, request: _Request) -> None:
        """Ask for a schema, in a thread of its own, until there is an answer or no caller waits."""
        pause = _PAUSE_S
        begun = time.monotonic()
        try:
            while True:
                try:
                    request.schema = self._known[schema_id] = self._fetch(schema_id)
                    request.answered = True
                    return
                except _UnknownId:
                    self._note_answer(schema_id)
                    if self._give_up(schema_id, begun):
                        request.answered = True
                        return
                except Exception as error:  # noqa: BLE001
                    # Waiting loses nothing, whatever the error.
                    self._note_outage(schema_id, error)
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
                with self._lock:
                    if request.waiting == 0:
                        return
        finally:
            with self._lock:
                del self._requests[schema_id]
            self._note_answer(schema_id)
            request.done.set()

    def _fetch(self, schema_id: int) -> Schema:
        """Return a schema and its transitive references; raise _UnknownId if any is missing."""
        from confluent_kafka.schema_registry.error import SchemaRegistryError

        try:
            registered = self._client.get_schema(schema_id)
            references: dict[str, Reference] = {}
            self._add_references(registered, references, set())
        except SchemaRegistryError as error:
            status = error.http_status_code
            code = error.error_code
            if code in _UNKNOWN_ID_CODES or (
                400 <= status < 500 and status not in _NOT_ABOUT_THE_ID
            ):
                raise _UnknownId from None
            raise
        return Schema(
            # Registries leave out the type of Avro schemas.
            registered.schema_type or AVRO,
            registered.schema_str or "",
            tuple(references.values()),
        )

    def _add_references(
        self, schema: Any, found: dict[str, Reference], above: set[str]
    ) -> None:
        """Add a schema's references to `found`, by name, dependencies first.

        `above` are the names through which this schema was reached: a cycle ends there.
        """
        for each in schema.references or ():
            if each.name in found or each.name in above:
                continue
            # Too many to fetch: the records become rejects, as if a reference were missing.
            if len(above) > _REFERENCES_DEEP or len(found) >= _REFERENCES_MAX:
                raise _UnknownId
            inner = self._client.get_version(each.subject, each.version).schema
            self._add_references(inner, found, above | {each.name})
            found[each.name] = Reference(each.name, inner.schema_str or "")

    def _note_outage(self, schema_id: int, error: Exception) -> None:
        """Warn once per outage, whatever the number of records and schemas."""
        with self._lock:
            begins = not self._silent_since
            self._silent_since.setdefault(schema_id, time.monotonic())
        if begins:
            self._waits.inc()
            # Brief, and without text that a server may have sent.
            status = getattr(error, "http_status_code", None)
            what = (
                f"{type(error).__name__}: {error}"[:200]
                if status is None
                else f"HTTP {status}"
            )
            logger.warning(
                "the schema registry at %s does not answer (%s): records of schemas not seen yet wait for it",
                self._url,
                what,
            )

    def _note_answer(self, schema_id: int) -> None:
        """Note that the registry answers about an id; log it once none waits any more."""
        with self._lock:
            since = self._silent_since.pop(schema_id, None)
            still_silent = bool(self._silent_since)
        if since is not None and not still_silent:
            logger.info(
                "the schema registry answers again, after %.1f s; reading continues",
                time.monotonic() - since,
            )

    def _give_up(self, schema_id: int, begun: float) -> bool:
        """Note that an id is unknown, and return True, if it was asked for long enough.

        That is `patience_s` since `begun`, or at once for some time after such a wait in vain.
        """
        now = time.monotonic()
        with self._lock:
            in_vain = now - begun >= self._patience_s
            if not in_vain and now >= self._impatient_until_s:
                return False
            if in_vain:
                self._impatient_until_s = now + _IMPATIENCE * self._patience_s
            self._unknown[schema_id] = now + _FORGOTTEN_S
        logger.warning(
            "the schema registry knows no schema %d: its records are rejects", schema_id
        )
        return True
