"""Base of the shards that read events: refuses changed topics, and decides when to commit.

A commit is one Kafka transaction: the stage's messages, the rejects, and the progress record with
the resume offset. It happens when a tick closes, every `commit_interval`, or if enough is pending.

A shard reads one source partition, or one *origin*: a partition whose events are forwarded by user.
Both kinds are numbered. Partitions that a topic gets later *join* when the shard of number 0
commits that they count.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from workers.agents.progress import PROGRESS
from workers.events.reading import Reject
from workers.kafka.offsets import LogEnd
from workers.kafka.records import Batch, Forwarded, Outgoing, Records
from workers.kafka.shard import Assignment, Shard
from workers.mechanisms.config.histogram import Lane
from workers.pipeline.growth.sources import (
    SOURCES,
    VERSION,
    Place,
    SourceProgress,
    Sources,
    SourceTopic,
    decode_sources,
    refuse_other_count,
    refuse_other_set,
    refuse_other_topic,
    refuse_several,
)
from workers.pipeline.ledger_blocks import decode_stored, read_paged, split_pages
from workers.pipeline.rejected import REJECT_HEADERS_BYTES_MAX, rejected
from workers.pipeline.watermark import Watermark
from workers.runtime.errors import SourcesGrown, StateRefused
from workers.runtime.logs import REPEAT_S, json_fields
from workers.runtime.metrics import Metrics
from workers.runtime.printing import iso_time
from workers.runtime.sizes import Change
from workers.settings.settings import EventsSettings

logger = logging.getLogger(__name__)

# Rejects that reach either limit are committed after that part of a batch. They exceed it by at
# most the bytes of a part (`kafka/decoding.py`), and 1,000 for each of its 60,000 records.
REJECTS_MAX = 10_000
REJECTS_BYTES_MAX = 32 << 20
# Python's overhead per header of at least 3 bytes (measured: 120 to 170); a reject has five.
HEADER_BYTES = 200
# Above this, rejects omit the records' own headers, as if they were too long.
_HEADERS_BYTES_MAX = 128 << 20


class Rejects:
    """Records that were rejected since the last commit, as messages for the rejects topic."""

    def __init__(self, topic: str, place: Place, metrics: Metrics) -> None:
        """`topic` gets the rejects; the records are those of partition `place`."""
        self._topic = topic
        self._place = place
        self._metrics = metrics
        self.messages: list[Outgoing] = []
        self.nbytes = 0
        # By reason: how many since the last commit, how many of committed ones are not logged yet,
        # and when some were logged last, by the monotonic clock.
        self._reasons: Counter[str] = Counter()
        self._unlogged: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}

    @property
    def full(self) -> bool:
        return len(self.messages) >= REJECTS_MAX or self.nbytes >= REJECTS_BYTES_MAX

    def add(self, records: Records, rejects: Sequence[Reject]) -> None:
        """Add a message for every reject. The `index` of a reject is its row in `records`."""
        for reject in rejects:
            i = reject.index
            # Longer headers of a record are left out; if much is in memory, all headers are.
            most = REJECT_HEADERS_BYTES_MAX if self.nbytes < _HEADERS_BYTES_MAX else 0
            message = rejected(
                self._topic,
                records.key(i),
                records.value(i),
                reason=reject.reason,
                source=(*self._place.log, int(records.offsets[i])),
                time_ms=int(records.times[i]),
                further=records.headers(i, most),
            )
            self.messages.append(message)
            self.nbytes += message.nbytes + HEADER_BYTES * len(message.headers)
            self._reasons[reject.reason] += 1

    def committed(self) -> None:
        """Count the rejects of the transaction that was just committed, and forget them."""
        for reason, n in self._reasons.items():
            self._metrics.rejects.labels(reason).inc(n)
        self._unlogged += self._reasons
        self.messages = []
        self.nbytes = 0
        self._reasons = Counter()

    def warn(self, now_s: float) -> None:
        """Log the committed rejects, a line for each reason, each at most every `REPEAT_S`.

        `now_s` is the monotonic clock.
        """
        for reason, n in sorted(self._unlogged.items()):
            if now_s - self._logged_s.get(reason, -math.inf) < REPEAT_S:
                continue
            topic, partition = self._place.log
            logger.warning(
                "%s: records rejected: %s (%d); see topic %s",
                self._place,
                reason,
                n,
                self._topic,
                extra=json_fields(
                    event="rejected",
                    topic=topic,
                    partition=partition,
                    reason=reason,
                    records=n,
                ),
            )
            self._logged_s[reason] = now_s
            del self._unlogged[reason]


P = TypeVar("P", bound=SourceProgress)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsStage:
    """What the shards of a stage that reads events share.

    `sources` are the partitions that it reads, of all workers. `lanes` say how the histograms cut
    events into ticks and how much of an event, or user, counts. `rejects` is the topic of rejects.
    `commit_interval_s` is the longest time from reading an event to its commit. Events count until
    `max_behind_ms` after the time that they carry; None: no limit.
    """

    events: EventsSettings
    sources: Sources
    rejects: str
    lanes: Sequence[Lane]
    commit_interval_s: float
    max_behind_ms: int | None = None


class SourceShard(Shard):
    """Shard of one partition of events; subclasses read them and implement `_commit`."""

    def __init__(
        self,
        assignment: Assignment,
        place: Place,
        stream: EventsStage,
        clock: Watermark,
    ) -> None:
        """`place` is the partition that it reads; `clock` says when ticks of it close."""
        super().__init__(assignment)
        self._place = place
        self._stream = stream
        self._clock = clock
        self.longest_value = stream.events.max_bytes
        self._rejects = Rejects(stream.rejects, place, self.metrics)
        self._sources = stream.sources
        # Whether the state has the set of events topics, or needs none: there is only one.
        self._set_stored = stream.sources.plain
        # The topics as they are now, if new partitions of them are to join.
        self._growing: tuple[SourceTopic, ...] = ()
        # Whether the next commit announces that partitions join.
        self._joining = False
        # Stored with the progress, to detect that the state topic was created again.
        self._state_id = self.store.changelog.topic_id

    @property
    def watermark(self) -> int | None:
        """Time up to which this partition has closed its ticks, ms since 1970."""
        return self._clock.watermark

    def _stored(self, decoder: msgspec.json.Decoder[P]) -> P | None:
        """Return the stored progress, None if there is none; refuse another version's."""
        value = read_paged(PROGRESS, self.store.get)
        if value is None:
            return None
        topic = self.store.changelog.topic
        progress = decode_stored(decoder, value, f"{topic}: the stored progress")
        if progress.version != VERSION:
            raise StateRefused(
                f"{topic}: version {progress.version}; this worker knows {VERSION}: upgrade it"
            )
        return progress

    def _check_sources(self, progress: SourceProgress) -> None:
        """Compare the events topics with those of the stored `progress`; take over their growth.

        Raise StateRefused if the events topics or the state topic are not the same; SourcesGrown,
        for a restart, if another worker has meanwhile begun with fewer partitions.
        """
        state = self.store.changelog
        begun_id = progress.state_id
        if begun_id is not None and begun_id != state.topic_id:
            raise StateRefused(
                f"topic {state.topic} was deleted and created again after its state was begun, so only the last part of "
                "it is there. Restore the topic, or take a new worker name (a new stream, charged again)"
            )
        stored_set = read_paged(SOURCES, self.store.get)
        sources = self._sources
        topic = self._place.topic
        # Nothing was stored when this run started, so it assumed that all partitions count. Then a
        # worker that had seen fewer partitions committed first.
        if sources.assumed and progress.sources < sources.first_count:
            raise SourcesGrown(
                f"only {progress.sources} partitions of {sources} are counted yet"
            )
        if stored_set is not None:
            refuse_other_set(sources.topics, decode_sources(stored_set))
            self._set_stored = True
        else:
            # No set is stored, so the state is of a single topic: it must be this one.
            refuse_several(sources.topics)
            refuse_other_topic(topic, progress.sources, progress.topic_id)
        refuse_other_count(str(sources), sources.first_count, progress.sources)
        # Only partition 0's progress has the growth; the others keep what was read at the start.
        if self.partition == 0:
            self._sources = msgspec.structs.replace(sources, joined=progress.joined)

    def grow(self, topics: Sequence[SourceTopic]) -> None:
        """Let new partitions of `topics` join soon, if this is source partition 0. Thread-safe.

        From then on they are source partitions, and count.
        """
        if self.partition == 0:
            self._growing = tuple(topics)

    def _users_from(self) -> int | None:
        """Return the event time, ms, from which on users may be placed on partitions that join.

        A hook. None, as here, means that the stage does not rely on where a user's records are.
        """
        return None

    def _join(self) -> None:
        """Commit that the partitions asked for join, then raise SourcesGrown, for a restart.

        This run does not read them.
        """
        joined = self._sources.grown(self._growing, self.watermark, self._users_from())
        self._growing = ()
        # Nothing can be committed before anything is read: growth is requested again later.
        if self.offset is None or joined == self._sources.joined:
            return
        self._sources = msgspec.structs.replace(self._sources, joined=joined)
        self._joining = True
        self._commit(self.offset)
        at = self._sources.users_from
        said = f"{len(self._sources)} partitions of {self._sources} are counted"
        if at is not None:
            said += f", and users are placed on all of them from {iso_time(at)} on"
        raise SourcesGrown(said)

    def _reject(
        self, records: Records, rejects: Sequence[Reject], relevant: int
    ) -> None:
        """Add rejects to the next commit, and note their share: too high a one is reported.

        `rejects` name rows of `records`. `relevant`: how many records were rejected or are for a
        histogram.
        """
        self._rejects.add(records, rejects)
        reasons = Counter(reject.reason for reject in rejects)
        self.metrics.rejecting.note(
            self._place.topic.name, time.monotonic(), relevant, reasons
        )

    def wants_end(self, now_ms: int) -> bool:
        """Return whether the clock closes a tick, at the place where the log ends now."""
        return self._clock.closes_by_clock(now_ms, self.ends.noted_ms)

    def reached(self, end: LogEnd) -> None:
        """Close by the clock: all records before this noted end of the log were processed."""
        self._clock.read_to_end(end.now_ms)
        self.idle()

    def idle(self) -> None:
        """Commit if that is due, also when no record arrives: the clock closes ticks too."""
        self._rejects.warn(time.monotonic())
        if self._growing:
            self._join()
        nothing_new = (
            self.offset == self.committed and not self._clock.has_closed_tick()
        )
        if self.offset is None or nothing_new:
            return
        if self._due():
            self._commit(self.offset)

    def _done(self, batch: Batch, stop: int, *, enough: bool) -> None:
        """Note that a batch's records up to row `stop` are processed.

        Commit them if that is due, or `enough` is pending.
        """
        if self._due() or enough or self._rejects.full:
            # Resume at the next record's offset: there may be gaps between offsets.
            offsets = batch.records.offsets
            self._commit(batch.end if stop == len(offsets) else int(offsets[stop]))
        self.report_progress()

    def _due(self) -> bool:
        """Return whether to commit now, for a closed tick or after `commit_interval_s`."""
        age_s = time.monotonic() - self.last_commit_s
        return age_s >= self._stream.commit_interval_s or self._clock.commit_due()

    def _commit(self, offset: int) -> None:
        """Commit everything before `offset`, with `_transact`."""
        raise NotImplementedError

    def _transact(
        self,
        progress: SourceProgress,
        messages: list[Outgoing],
        changes: Sequence[Change] = (),
        forwarded: Sequence[Forwarded] = (),
    ) -> None:
        """Commit a stage's messages, with the rejects and the progress, in one transaction.

        `changes` are those of its own state, `forwarded` records that are sent on.
        """
        changes = list(changes)
        # The first commit stores the set of topics.
        if not self._set_stored:
            changes += split_pages(SOURCES, self._sources.encoded())
        changes += split_pages(PROGRESS, msgspec.json.encode(progress))
        messages = messages + self._rejects.messages
        self.transact(messages, changes, progress.offset, forwarded)
        self._set_stored = True
        self._joining = False
        self._rejects.committed()
        self._rejects.warn(time.monotonic())
