"""Read spans of topics as the worker reads them, but synchronously and without a group.

`check`, `init` and `replay` use it, so they read every record batch that the worker reads, within
the same bounds (`decoding`). aiokafka fetches in a thread of its own; the caller decodes.

aiokafka retries everything without a word. So a log that gives nothing for `SAY_S` although it has
more is named, with the reason, and after `GIVE_UP_S` reading ends with an error.
"""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.consumer.fetcher import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    Fetcher,
    FetchResult,
)
from aiokafka.consumer.subscription_state import SubscriptionState
from aiokafka.errors import (
    CorruptRecordException,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
)
from aiokafka.errors import KafkaError as ConsumerError

from workers.kafka.clients import (
    METADATA_MS,
    Connection,
    consumer_security,
    forbidden,
    text_of,
)
from workers.kafka.decoding import adapt_consumers, take_batch
from workers.kafka.reading import Partition, name_of
from workers.kafka.records import FetchedRecords, Records
from workers.runtime.availability import listed
from workers.runtime.errors import KafkaAway, KafkaRefuses, SettingsError
from workers.runtime.sizes import MESSAGE_BYTES

SAY_S = 10
GIVE_UP_S = 60
# Timeouts of a question about all logs (and of the first connection), and about one alone.
_ASK_S = 15.0
_ALONE_S = 5.0
_FETCH_BYTES = 4 << 20
_RESPONSE_BYTES = 16 << 20
_FETCH_WAIT_MS = 100
_REQUEST_MS = 40_000
_WAIT_S = 0.2
# A leader that has answered a fetch this recently is there.
_RECENT_MS = 5_000
_CLOSE_S = 3.0
# In place of a time, these ask for a log's end and for its first offset.
_LATEST = -1
_EARLIEST = -2

T = TypeVar("T")
# Takes a line for the person who runs the command.
Say = Callable[[str], object]


class Bounds(NamedTuple):
    """Offsets of a log: the first one, and its ends: of what is committed, and of all."""

    low: int
    stable: int
    high: int


class ReadRecords(NamedTuple):
    """A log's next records, the position after them, and whether its span has ended."""

    where: Partition
    records: Records
    position: int
    ended: bool


class TopicReader:
    """A reader of committed records; `open_reader` opens and closes it. Not thread-safe.

    Its coroutines run in a thread of its own, where aiokafka fetches ahead.
    """

    def __init__(self, connection: Connection, say: Say) -> None:
        """Start the thread; `start` connects. `say` tells the user which logs are silent."""
        self._connection = connection
        self._say = say
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(
            target=self._loop.run_forever, name="topic-reader", daemon=True
        )
        self._thread.start()
        # The logs that are fetched.
        self._wanted: set[TopicPartition] = set()
        # Seconds for which each of them has given nothing.
        self._silent_s: Counter[TopicPartition] = Counter()
        # Silent logs that the person who runs the command was told of.
        self._named: set[TopicPartition] = set()
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._call(self._start())

    def _call(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the reader's thread and wait for it; KafkaRefuses if forbidden."""
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop).result()
        except ConsumerError as error:
            if (reason := forbidden(error)) is None:
                raise
            raise KafkaRefuses(reason) from error

    async def _start(self) -> None:
        """Make the client and the fetcher of aiokafka's consumer, without a group, and connect."""
        adapt_consumers()
        connection = self._connection
        servers = [server.strip() for server in connection.bootstrap.split(",")]
        self._client = AIOKafkaClient(
            bootstrap_servers=servers,
            client_id=connection.client.get("client.id", "quietcount"),
            metadata_max_age_ms=METADATA_MS,
            request_timeout_ms=_REQUEST_MS,
            **consumer_security(connection),
        )
        self._subscription = SubscriptionState()
        self._fetcher = Fetcher(
            self._client,
            self._subscription,
            fetch_max_wait_ms=_FETCH_WAIT_MS,
            max_partition_fetch_bytes=_FETCH_BYTES,
            fetch_max_bytes=_RESPONSE_BYTES,
            check_crcs=connection.client.get("check.crcs", "true").lower() != "false",
            # A position that the log no longer has is an error.
            auto_offset_reset="none",
            isolation_level="read_committed",
            client_rack=connection.client.get("client.rack"),
        )
        await asyncio.wait_for(self._client.bootstrap(), _ASK_S)

    def close(self) -> None:
        """Close the connections, if that works within `_CLOSE_S`, and end the thread."""
        with suppress(Exception):
            self._call(asyncio.wait_for(self._close(), _CLOSE_S))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_S)
        # A loop that still runs must not be closed; its thread ends with the process.
        if not self._thread.is_alive():
            self._loop.close()

    async def _close(self) -> None:
        """Close the fetcher and the client's connections, in the reader's thread."""
        if self._watching is not None:
            self._watching.cancel()
        await self._fetcher.close()
        await self._client.close()

    def bounds(self, logs: Iterable[Partition]) -> dict[Partition, Bounds]:
        """Return the bounds of logs; KafkaAway names one that does not answer."""
        asked = list(logs)
        low = self._call(self._ask(dict.fromkeys(asked, _EARLIEST)))
        # Logs grow meanwhile: `high`, asked for last, is never below `stable`.
        stable = self._call(self._ask(dict.fromkeys(asked, _LATEST)))
        high = self._call(self._ask(dict.fromkeys(asked, _LATEST), READ_UNCOMMITTED))
        return {
            log: Bounds(low[log] or 0, stable[log] or 0, high[log] or 0)
            for log in asked
        }

    def offsets_at(self, times: Mapping[Partition, int]) -> dict[Partition, int | None]:
        """Return the first offset of records from a time on (ms), None if there is none yet."""
        return self._call(self._ask(times))

    async def _ask(
        self, times: Mapping[Partition, int], isolation: int = READ_COMMITTED
    ) -> dict[Partition, int | None]:
        """Return by log the first offset from a time on, None if there is no such record.

        `times` are in ms, or `_EARLIEST` or `_LATEST`. After a timeout the logs are asked one by
        one, so that KafkaAway names those that do not answer.
        """
        fetcher = self._fetcher
        # The client would take an empty set of topics for all topics.
        if not times:
            return {}
        times_asked = {TopicPartition(*log): time_ms for log, time_ms in times.items()}
        # aiokafka has no other way to ask for the end of what is not committed yet.
        fetcher._isolation_level = isolation
        try:
            # The client looks up the leaders of these topics.
            self._client.set_topics({tp.topic for tp in (*times_asked, *self._wanted)})
            answered = await fetcher._retrieve_offsets(times_asked, _ASK_S * 1000)
        except KafkaTimeoutError:
            alone = (
                fetcher._retrieve_offsets({tp: times_asked[tp]}, _ALONE_S * 1000)
                for tp in times_asked
            )
            answers = await asyncio.gather(*alone, return_exceptions=True)
            pairs = zip(times_asked, answers, strict=True)
            silent = [tp for tp, answer in pairs if isinstance(answer, BaseException)]
            raise self._away(silent or list(times_asked), _ASK_S) from None
        finally:
            fetcher._isolation_level = READ_COMMITTED
        # Offset (-1: no such record) and time of each.
        offsets = {log: answered.get(log, (-1, None))[0] for log in times}
        return {log: None if offset < 0 else offset for log, offset in offsets.items()}

    def open_transactions(self, bounds: Mapping[Partition, Bounds]) -> list[str]:
        """Return a sentence for each log whose end an open transaction hides.

        It did when `bounds` were read, and still does: exactly-once producers nearly always have a
        transaction open, but not for long.
        """
        hidden = {log: ends for log, ends in bounds.items() if ends.stable < ends.high}
        stable_now = self._call(self._ask(dict.fromkeys(hidden, _LATEST)))
        return [
            f"{name_of(log)}: ends at offset {ends.stable}, where a transaction is open that hides "
            f"up to {ends.high - ends.stable:,} records"
            for log, ends in hidden.items()
            if stable_now[log] == ends.stable
        ]

    def read(
        self,
        spans: dict[Partition, tuple[int, int]],
        longest: int = MESSAGE_BYTES,
        until_s: float = math.inf,
    ) -> Iterator[ReadRecords]:
        """Yield the records in `spans` of offsets until every span has ended, or at `until_s`.

        A span that has ended is deleted from `spans`; the caller may delete others to end them
        early. Values far longer than `longest` bytes are truncated, but stay too long. `until_s` is
        monotonic. Raises KafkaAway if a log gives nothing for a minute, and CorruptRecordException
        for a damaged record batch.
        """
        self._call(self._seek({log: start for log, (start, _) in spans.items()}))
        while spans and time.monotonic() < until_s:
            for log, fetched in self._call(self._take(set(spans))):
                if log in spans:
                    yield from self._parts(log, fetched, spans, longest, until_s)

    def _parts(
        self,
        where: Partition,
        fetched: FetchedRecords,
        spans: dict[Partition, tuple[int, int]],
        longest: int,
        until_s: float,
    ) -> Iterator[ReadRecords]:
        """Decode what was fetched of one log, up to its span's end or until `until_s`."""
        end = spans[where][1]
        for part in fetched.parts(longest):
            inside, _ = part.split(end)
            ended = part.end >= end
            if ended:
                del spans[where]
            yield ReadRecords(where, inside.records, inside.end, ended)
            # The span has ended, or the caller has deleted it.
            if where not in spans or time.monotonic() >= until_s:
                return

    async def _seek(self, starts: Mapping[Partition, int]) -> None:
        """Fetch only these logs from now on, at these offsets; reset the times of their silence."""
        start_of = {TopicPartition(*log): start for log, start in starts.items()}
        if self._watching is not None:
            self._watching.cancel()
        self._wanted = set(start_of)
        self._silent_s.clear()
        self._subscription.assign_from_user(list(start_of))
        self._client.set_topics([tp.topic for tp in start_of])
        for tp, start in start_of.items():
            self._fetcher.seek_to(tp, start)
        self._watching = asyncio.ensure_future(self._watch())

    async def _take(
        self, logs: set[Partition]
    ) -> list[tuple[TopicPartition, FetchedRecords]]:
        """Return fetched records of `logs`, waiting a moment for some; stop fetching other logs."""
        # Drop what was fetched ahead from logs whose spans have ended.
        for tp in self._wanted - logs:
            self._subscription.pause(tp)
            self._fetcher._records.pop(tp, None)
        self._wanted = {TopicPartition(*log) for log in logs}
        fetched = await self._drain()
        if not fetched:
            waiter = self._fetcher._create_fetch_waiter()
            await asyncio.wait([waiter], timeout=_WAIT_S)
            waiter.cancel()
            fetched = await self._drain()
        if not fetched:
            self._report_silent()
        return fetched

    async def _drain(self) -> list[tuple[TopicPartition, FetchedRecords]]:
        """Take what has been fetched; a log's error is raised once nothing is left before it."""
        fetcher = self._fetcher
        fetched: list[tuple[TopicPartition, FetchedRecords]] = []
        for tp in [tp for tp in fetcher._records if tp in self._wanted]:
            result = fetcher._records[tp]
            if not isinstance(result, FetchResult):
                if fetched:
                    break  # raised by a later call, once the caller has these
                del fetcher._records[tp]
                await self._raise_error(tp, result)
                continue
            # Otherwise it was fetched before a seek.
            if result.check_assignment(tp):
                position = self._subscription._assigned_state(tp).position
                try:
                    fetched.append((tp, take_batch(result, position)))
                except CorruptRecordException as error:
                    text = f"{name_of(tp)} from offset {position}: {error.args[0]}"
                    raise CorruptRecordException(text) from error
            # A response that is used up makes way for the next fetch.
            if not result.has_more():
                del fetcher._records[tp]
                fetcher._notify(fetcher._wait_consume_future)
        return fetched

    async def _raise_error(self, tp: TopicPartition, result: Any) -> None:
        """Raise the error of a fetch, unless a replica in our rack lacks what the leader has.

        In that case aiokafka fetches again.
        """
        try:
            result.check_raise()
        except OffsetOutOfRangeError:
            position = self._subscription._assigned_state(tp).position
            low = (await self._ask({tp: _EARLIEST}))[tp] or 0
            high = (await self._ask({tp: _LATEST}))[tp] or 0
            if not low <= position < high:
                raise SettingsError(
                    f"{name_of(tp)}: offset {position} is no longer in the log: retention removed it, or "
                    "the log was cut, while it was read"
                ) from None

    async def _watch(self) -> None:
        """Count for how long each log has given nothing; a suspended process counts no time."""
        positions: dict[TopicPartition, int] = {}
        while True:
            await asyncio.sleep(1)
            for tp in self._wanted:
                position = self._subscription._assigned_state(tp).position
                if position == positions.get(tp) and tp not in self._fetcher._records:
                    self._silent_s[tp] += 1
                else:
                    self._silent_s[tp] = 0
                positions[tp] = position

    def _report_silent(self) -> None:
        """Name logs that have been silent for `SAY_S`, once; KafkaAway after `GIVE_UP_S`."""
        if self._fetcher._fetch_task.done():
            raise KafkaAway("the Kafka client ended by itself; try again")
        silent = [tp for tp in sorted(self._wanted) if self._silent_s[tp] >= SAY_S]
        if given_up := [tp for tp in silent if self._silent_s[tp] >= GIVE_UP_S]:
            raise self._away(given_up, GIVE_UP_S)
        if new := [tp for tp in silent if tp not in self._named]:
            self._named.update(new)
            error = self._away(new, SAY_S)
            self._say(f"{error}. Waiting for it, for a minute in all")

    def _away(self, silent: list[TopicPartition], seconds: float) -> KafkaAway:
        """Return the error for logs that were silent for so many seconds, with reasons."""
        named = [
            f"{name_of(tp)}{self._from_position(tp)}: {self._why(tp)}" for tp in silent
        ]
        return KafkaAway(
            f"nothing could be read for {seconds:g} s: {listed(named, '; ')}"
        )

    def _from_position(self, tp: TopicPartition) -> str:
        if tp not in self._wanted:
            return ""
        return f" from offset {self._subscription._assigned_state(tp).position}"

    def _why(self, tp: TopicPartition) -> str:
        """Say why a log gives nothing, as far as this client knows."""
        leader = self._client.cluster.leader_for_partition(tp)
        if leader is None:
            return "no broker knows this partition: was the topic deleted?"
        if leader == -1:
            return "it has no leader"
        state = self._subscription._assigned_state(tp) if tp in self._wanted else None
        if (
            state is not None
            and time.time() * 1000 - (state.timestamp or 0) < _RECENT_MS
        ):
            return f"its leader, broker {leader}, sends no records from there on"
        return f"its leader, broker {leader}, does not answer"


@contextmanager
def open_reader(connection: Connection, say: Say) -> Iterator[TopicReader]:
    """Open a reader, which names logs that give nothing with `say`; KafkaAway without a broker."""
    reader = TopicReader(connection, say)
    try:
        try:
            reader.start()
        except (ConsumerError, TimeoutError) as error:
            reason = (
                text_of(error)
                if isinstance(error, ConsumerError)
                else "no broker answers"
            )
            raise KafkaAway(
                f"kafka.bootstrap = {connection.bootstrap!r}: {reason}"
            ) from error
        yield reader
    finally:
        reader.close()
