"""The worker: start-up checks, and a Faust application that hands record batches to shards.

A worker *runs* until Kafka goes away or its partitions grow; then the next run begins, in the same
process. A *stage* is one of the three agents: `rekey` (if used) reads the events topics and sends
events on by user, `contribute` adds up events, `release` publishes. A shard does one partition of a
stage. A source partition is one that `contribute` reads; an owner partition is one of the
contributions topic, with a share of the stream keys; with `rekey`, the partitions of the events
topics are *origins*.
"""

import asyncio
import errno
import gc
import logging
import signal
import time
from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import closing, nullcontext, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException
from msgspec.structs import replace

from workers.agents.ceiling_guard import CeilingGuard, OtherWorkers
from workers.agents.contribute import ContributeShard, ContributeStage
from workers.agents.growth import Growth, OwnerGrowth
from workers.agents.monitor import OperatorPort
from workers.agents.public_budget import BudgetWriter
from workers.agents.rekey import RekeyShard, RekeyStage
from workers.agents.release import ReleaseShard
from workers.agents.state import (
    await_coordinator,
    check_states,
    emptied_topics,
    load_key,
)
from workers.agents.topics import (
    RunningTopics,
    Topics,
    check_topics,
    connection_of,
    first_state_topic,
    watch_topics,
)
from workers.events.formats.reader import RecordFormats
from workers.kafka.clients import Connection, faust_credentials, text_of
from workers.kafka.handover import EXIT_REFUSED, KAFKA_AWAY, Handover
from workers.kafka.outages import (
    CONFIRM_S,
    filter_outage_logs,
    is_temporary,
    wait_for,
    watch_kafka,
)
from workers.kafka.records import FetchedRecords
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.kafka.topics import cautions, holes
from workers.kafka.transport import BatchSchema, QuietcountApp, create_app, run_app
from workers.mechanisms.config.views import RECORD_KEY
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import (
    count_lane_of,
    declared_keys,
    histograms,
    lanes,
    mechanisms,
    names_by_lane,
    reader_of,
    user_reader_of,
)
from workers.pipeline.growth.epochs import epochs_of_users, next_epoch
from workers.pipeline.growth.sources import Place, Sources, SourceTopic
from workers.pipeline.histogram import Histogram
from workers.pipeline.merge import Merge
from workers.pipeline.signing import Signing
from workers.pipeline.signing_key import SigningKey, read_signing_key
from workers.privacy.ceiling import Ceiling, check_ceiling
from workers.privacy.total import warnings_of
from workers.runtime.errors import KafkaAway, SettingsError
from workers.runtime.frozen import check_frozen
from workers.runtime.gil_lock import GilLock
from workers.runtime.metrics import CONTRIBUTE, REKEY, RELEASE, Metrics
from workers.runtime.printing import iso_time
from workers.runtime.process import keep_freed_memory
from workers.runtime.traces import Traces
from workers.settings.settings import Settings

logger = logging.getLogger(__name__)

#: Errors of a full or failing disk; any other means a wrong name or missing permissions.
_DISK_ERRORS = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS))
#: Least delay before restarting after an outage.
RESTART_DELAY_S = 1.0


class Factory:
    """Makes this worker's shards, for one run; local copies are in `data_dir`, None: in memory."""

    def __init__(
        self,
        settings: Settings,
        connection: Connection,
        topics: Topics,
        key: NoiseKey,
        data_dir: Path | None,
        metrics: Metrics | None = None,
        traces: Traces | None = None,
        signing_key: SigningKey | None = None,
    ) -> None:
        """`topics` are checked; `key` makes noise and tags; `signing_key` signs, None: nothing.

        Raises SettingsError for mechanisms that cannot be built or exceed the ceiling.
        """
        self.settings = settings
        self.connection = connection
        self.topics = topics
        self._traces = traces
        self._key = key
        self._signing_key = signing_key
        self._data_dir = data_dir
        self.sources = topics.sources
        self.metrics = Metrics() if metrics is None else metrics
        self.mechanisms: tuple[Mechanism, ...] = tuple(mechanisms(settings))
        check_ceiling(settings, self.mechanisms)
        self._ceiling = Ceiling.of(settings.privacy)
        self._others = OtherWorkers(settings, connection)
        self.budget = BudgetWriter(settings, connection)
        self._reader = reader_of(settings)
        self._formats = RecordFormats(settings, self._reader, self.metrics)
        self._gil_lock = GilLock()
        contributions = settings.contributions_topic
        counted_lanes = tuple(lanes(settings))
        commit_interval_s = settings.worker.commit_interval_ms / 1000
        self.owners = topics.owners
        self._stream = ContributeStage(
            events=settings.events,
            rejects=settings.rejects_topic,
            lanes=counted_lanes,
            commit_interval_s=commit_interval_s,
            max_behind_ms=settings.max_behind_ms,
            sources=topics.sources,
            contributions=contributions,
            owners=self.owners,
            epochs=tuple(config.grid for config in settings.histograms),
            names=MappingProxyType(names_by_lane(settings)),
            count_lane_of=MappingProxyType(count_lane_of(settings.histograms)),
            origins=None if topics.by_user is None else topics.origins.first_count,
            # If the presence of a record is protected, no record may decide when ticks close.
            by_clock=settings.privacy.neighbours == "record",
            reader=self._reader,
            declared=MappingProxyType(declared_keys(settings)),
            key=key,
        )
        self._by_user: RekeyStage | None = None
        if topics.by_user is not None:
            self._by_user = RekeyStage(
                events=settings.events,
                rejects=settings.rejects_topic,
                lanes=counted_lanes,
                commit_interval_s=commit_interval_s,
                max_behind_ms=settings.max_behind_ms,
                sources=topics.origins,
                topic=topics.sources.topics[0],
                with_keys=any(
                    view.key == RECORD_KEY for view in settings.shape.views.values()
                ),
                users=user_reader_of(settings),
                reader=self._reader,
            )
        # Every shard's thread reads these. Metrics and the GIL lock lock themselves.
        check_frozen(
            (self.mechanisms, self._stream, self._by_user, connection), "factory"
        )

    @property
    def stages(self) -> dict[str, dict[str, Callable[[int], Shard | None]]]:
        """By stage and input topic the function that makes a partition's shard.

        It returns None for a partition that does not count (yet).
        """
        origins = Sources(()) if self._by_user is None else self._by_user.sources
        return {
            REKEY: _of_joined(origins, self.rekey_shard),
            CONTRIBUTE: _of_joined(self.sources, self.contribute_shard),
            RELEASE: {self._stream.contributions: self._release_counted},
        }

    @property
    def cannot_grow(self) -> str | None:
        """Why partitions that an events topic gets cannot join; None if they can."""
        # With re-keying users do not move; else they do where epochs of all histograms that bound
        # them begin.
        of_users = epochs_of_users(self._stream.lanes)
        if self.topics.by_user is not None or next_epoch(of_users, 0) is not None:
            return None
        return (
            "users would move to other partitions in the middle of an epoch, since epochs of all histograms never begin "
            "together; privacy.rekey = true, under a new worker.name, needs no epoch"
        )

    def rekey_shard(self, place: Place) -> RekeyShard:
        """Make the shard of one origin."""
        assert self._by_user is not None, "only where events are sent on by user"
        assignment = self._assignment(
            REKEY, place.number, self.settings.rekey_state_topic
        )
        return RekeyShard(
            assignment, place, self._by_user, make_format=self._formats.make
        )

    def contribute_shard(self, place: Place) -> ContributeShard:
        """Make the shard of one source partition."""
        state = self.settings.contribute_state_topic
        assignment = self._assignment(CONTRIBUTE, place.number, state)
        return ContributeShard(
            assignment,
            place,
            self._stream,
            make_format=self._formats.make,
            gil_lock=self._gil_lock,
        )

    def _release_counted(self, partition: int) -> ReleaseShard | None:
        return self.release_shard(partition) if partition < self.owners.number else None

    def release_shard(self, partition: int) -> ReleaseShard:
        """Make the shard of one owner partition."""
        settings = self.settings
        guard = None
        if self._ceiling is not None:
            guard = CeilingGuard(
                self._ceiling, partition, self.owners.number, self._others
            )
        return ReleaseShard(
            self._assignment(RELEASE, partition, settings.release_state_topic),
            contributions=self._stream.contributions,
            merge=self.merge(partition),
            guard=guard,
            grace_ms=settings.events.grace_ms,
            delivery_ms=settings.privacy.delivery_ms,
            keep_ms=settings.worker.keep_contributions_ms,
            # One owner tells: all publish the same ticks.
            note_budget=self.budget.note if partition == 0 else None,
        )

    def merge(self, partition: int) -> Merge:
        """Return the merge of one owner partition, with its histograms before any tick."""
        state = self.settings.release_state_topic
        # As at the first tick: messages tell of later growth, before it takes effect.
        owners_at_first = self.owners.first
        built = histograms(
            Histogram,
            self.settings,
            self.mechanisms,
            key=self._key,
            stream=self.topics.stream(self._stream.contributions, state),
            owner=partition,
            owners=owners_at_first,
        )
        signatures = self.settings.signatures_topic
        signing = None
        if self._signing_key is not None and signatures is not None:
            name = self.settings.worker.name
            signing = Signing(signatures, name, partition, self._key, self._signing_key)
        return Merge(
            built,
            key=self._key,
            sources=self.sources.first_count,
            owners=owners_at_first,
            directory=self._data_dir,
            gil_lock=self._gil_lock,
            signing=signing,
        )

    def _assignment(self, stage: str, partition: int, state: str) -> Assignment:
        """Return what a shard is made from; `state` is the topic of its state."""
        # The directory of its local copy.
        path = (
            None if self._data_dir is None else self._data_dir / f"{stage}-{partition}"
        )
        store = Store(path, Changelog(state, partition, self.topics.id(state)))
        name = f"{self.settings.worker.name}-{stage}-{partition}"
        return Assignment(
            self.connection, name, partition, store, self.metrics, self._traces
        )


def _of_joined(
    sources: Sources, make: Callable[[Place], Shard]
) -> dict[str, Callable[[int], Shard | None]]:
    """Return by topic the function that makes a partition's shard, by `make`.

    It returns None for a partition that has not joined.
    """

    def make_joined(topic: str, partition: int) -> Shard | None:
        place = sources.find(topic, partition)
        return None if place is None else make(place)

    return {topic.name: partial(make_joined, topic.name) for topic in sources.topics}


def build_app(factory: Factory) -> QuietcountApp:
    """Return Faust's application, with an agent for every stage that feeds its shards."""
    worker = factory.settings.worker
    stages = factory.stages
    shards = {name: make for topics in stages.values() for name, make in topics.items()}
    handover = Handover(shards, metrics=factory.metrics)
    app = create_app(worker.name, factory.connection, handover, worker.data_dir)

    async def feed(stream: AsyncIterable[FetchedRecords]) -> None:
        async for batch in stream:
            await handover.feed(batch)

    for stage, topics in stages.items():
        if topics:
            app.agent(app.topic(*topics, schema=BatchSchema()), name=stage)(feed)
    return app


def run(
    settings: Settings,
    *,
    metrics_port: int | None = None,
    data_dir: Path | None = None,
    embedded: str | None = None,
) -> int:
    """Run until a signal (exit status 0), refused settings or state (2), or fencing (75).

    `metrics_port` and `data_dir` replace the settings' own; `embedded` is the id of the caller's
    embedded cluster, None for a real one. Raises SettingsError if it cannot start.
    """
    # What names the directory, for a message.
    setting = "worker.data_dir"
    if data_dir is not None:
        setting = "--data-dir"
        settings = replace(settings, worker=replace(settings.worker, data_dir=data_dir))
    check_ceiling(settings)
    connection = connection_of(settings, embedded)
    # Now, as it raises errors that waiting for Kafka would not fix.
    faust_credentials(connection)
    key = load_key(settings, connection)
    signing = settings.worker.signing_key_file
    signing_key = None if signing is None else read_signing_key(signing)
    _make_data_dir(settings.worker.data_dir, setting)
    metrics = Metrics()
    filter_outage_logs()
    port = settings.worker.metrics_port if metrics_port is None else metrics_port
    name = settings.worker.name
    url = settings.worker.traces
    traces = None if url is None else Traces(url, name)
    topics: Topics | None = None
    with (
        OperatorPort(settings, port) as operator,
        nullcontext() if traces is None else closing(traces),
    ):
        while True:
            factory = _prepared(
                settings,
                connection,
                key,
                signing_key,
                metrics,
                traces,
                operator,
                topics,
            )
            topics = factory.topics
            # The state says now how many owners there are; with growth the setting would be wrong.
            worker = replace(settings.worker, owner_partitions=None)
            settings = replace(settings, worker=worker)
            if not factory.topics.embedded:
                await_coordinator(connection, name)
            status = _run_once(factory, operator)
            # What it owned is large.
            del factory
            gc.collect()
            if status != KAFKA_AWAY:
                return status
            time.sleep(RESTART_DELAY_S)


def _make_data_dir(data_dir: Path, setting: str) -> None:
    """Make the directory of local copies; `setting` is what named it, for the message."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        # A failing disk does not stop the worker: stores log it and keep their copies in memory.
        if error.errno not in _DISK_ERRORS:
            raise SettingsError(
                f"{setting} = {str(data_dir)!r}: {error.strerror}; give a directory that can be written"
            ) from error


def _prepared(
    settings: Settings,
    connection: Connection,
    key: NoiseKey,
    signing_key: SigningKey | None,
    metrics: Metrics,
    traces: Traces | None,
    operator: OperatorPort,
    before: Topics | None,
) -> Factory:
    """Wait for Kafka, check the topics, and return what makes the next run's shards.

    `before` are the topics of the run before; None: this is the first.
    """
    # After a run, a topic may be missing for a moment: that is an error only if it stays so.
    confirm_s = 0.0 if before is None else CONFIRM_S
    while True:
        try:
            topics = _topics(settings, connection, metrics, operator, confirm_s)
            copies = None if topics.embedded else settings.worker.data_dir
            factory = Factory(
                settings,
                connection,
                topics,
                key,
                copies,
                metrics,
                traces,
                signing_key,
            )
            _log_sources(topics)
            if before is None:
                _begin(factory, connection, key)
            elif not topics.embedded:
                # Topics that were made again: the run before may have ended before it saw that.
                for hole in holes(topics.plan, before.existing, topics.existing):
                    logger.warning("%s", hole)
        except (KafkaException, KafkaAway) as error:
            # A broker may end between two calls: begin again.
            if not is_temporary(error):
                raise
            metrics.outage.begin(text_of(error))
            time.sleep(RESTART_DELAY_S)
        else:
            return factory


def _begin(factory: Factory, connection: Connection, key: NoiseKey) -> None:
    """Check the stored states, log the start, and set up the process: once a worker."""
    if not factory.topics.embedded:
        check_states(factory.settings, connection, key, factory.merge)
        for topic in emptied_topics(factory.settings, connection):
            logger.warning(
                "topic %s is empty, but snapshots were published there: it was deleted and created again, and what was in "
                "it is not published again",
                topic,
            )
    _log_start(factory)
    _prepare()


def _topics(
    settings: Settings,
    connection: Connection,
    metrics: Metrics,
    operator: OperatorPort,
    confirm_s: float,
) -> Topics:
    """Return the topics, checked, as soon as Kafka can be reached.

    Until then, the operator's port reports the worker as alive but not ready. A refusal of the
    topics is final only after it has lasted for `confirm_s`.
    """
    # This one has no shards: those of an earlier run are gone, and its event loop has stopped.
    nothing_yet = Handover({}, metrics=metrics)

    def waiting() -> None:
        """Show, before every retry, that this process is not stuck."""
        nothing_yet.beat()
        operator.show(nothing_yet, {})

    return wait_for(
        lambda: check_topics(settings, connection), metrics.outage, waiting, confirm_s
    )


def _log_start(factory: Factory) -> None:
    """Log what a worker publishes, its promises, and what deserves a look."""
    settings = factory.settings
    topics = factory.topics
    for caution in cautions(topics.plan, topics.existing):
        logger.warning("%s", caution)
    logger.info("worker %s", settings.worker.name)
    built = list(zip(settings.histograms, factory.mechanisms, strict=True))
    for config, mechanism in built:
        promise = mechanism.guarantee
        if config.charged_once:
            span = ", once and for ever"
        elif config.without_epochs:
            span = " and period"
        else:
            span = " and epoch"
        logger.info(
            "histogram %s: %s, epsilon %.4g and delta %.3g for one %s%s",
            config.name,
            mechanism.kind,
            promise.epsilon,
            promise.delta,
            promise.unit,
            span,
        )
    for warning in warnings_of(built):
        logger.warning("%s", warning)


def _log_sources(topics: Topics) -> None:
    """Log the numbers of the events topics' partitions, unless they are as in the only topic."""
    origins = topics.origins
    if origins.plain and not origins.joined:
        return
    what = "source partitions" if topics.by_user is None else "origins"
    for (name, at), places in groupby(
        origins, lambda place: (place.topic.name, place.watermark)
    ):
        numbers = [place.number for place in places]
        joined = "" if at is None else f", joined at {iso_time(at)}"
        logger.info(
            "%s %d to %d are those of topic %s%s",
            what,
            numbers[0],
            numbers[-1],
            name,
            joined,
        )


def _prepare() -> None:
    """Set up this process for many short-lived objects and arrays, once."""
    import uvloop

    uvloop.install()
    # Events are short-lived lists without cycles. At Python's usual thresholds, the cycle collector
    # takes a third of the time it takes to read them (measured: 1.65 us an event; 0.93 with these).
    keep_freed_memory()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)


def _run_once(factory: Factory, operator: OperatorPort) -> int:
    """Run the worker until it ends or Kafka goes away, which leaves the same state as a kill.

    Return the exit status; KAFKA_AWAY asks for another run.
    """
    # An earlier run's loop is closed.
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # Faust replaces the handler, and at its end puts back the system's, not ours.
    handler_before = signal.getsignal(signal.SIGTERM)
    connection = factory.connection
    metrics = factory.metrics
    app = build_app(factory)
    # How many partitions each stage reads, for the metrics.
    partitions = {
        CONTRIBUTE: len(factory.topics.sources),
        RELEASE: factory.owners.number,
    }
    if factory.topics.by_user is not None:
        partitions[REKEY] = len(factory.topics.origins)
    operator.show(app.handover, partitions)

    def in_loop(call: Callable[..., object], *args: object) -> None:
        """Call a function in the event loop; callable from any thread."""
        # Unless the loop has ended.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(call, *args)

    give_up = partial(in_loop, app.handover.stop_for_outage)
    running = _running_topics(factory, app.handover, in_loop, give_up)
    try:
        with (
            # A function, because `used` changes during the run.
            watch_kafka(
                connection, lambda: running.used, metrics.outage, metrics.waits, give_up
            ),
            watch_topics(connection, running),
            factory.budget.running(),
        ):
            return run_app(app)
    finally:
        signal.signal(signal.SIGTERM, handler_before)


def _running_topics(
    factory: Factory,
    handover: Handover,
    in_loop: Callable[..., None],
    restart: Callable[[], None],
) -> RunningTopics:
    """Return the watch over the topics of a run: it notices growth, and changes that end the run.

    `in_loop` calls a function in the event loop; `restart` begins the next run.
    """
    settings = factory.settings
    topics = factory.topics
    if topics.embedded:
        return RunningTopics(settings, topics, factory.metrics)
    # This stage reads the events topics, so it decides when their new partitions count.
    first_stage = ContributeShard if topics.by_user is None else RekeyShard

    def grow(now: Sequence[SourceTopic]) -> None:
        """Have all present partitions of the events topics counted."""
        for shard in list(handover.shards.values()):
            if isinstance(shard, first_stage):
                shard.grow(now)

    def grow_owners(number: int) -> None:
        """Have this many owners counted."""
        for shard in list(handover.shards.values()):
            if isinstance(shard, ContributeShard):
                shard.grow_owners(number)

    growth = Growth(
        connection=factory.connection,
        state=first_state_topic(settings),
        sources=topics.origins,
        grow=partial(in_loop, grow),
        restart=restart,
        refusal=factory.cannot_grow,
    )
    owner_growth = OwnerGrowth(
        connection=factory.connection,
        settings=settings,
        owners=factory.owners,
        grow=partial(in_loop, grow_owners),
        restart=restart,
    )
    return RunningTopics(
        settings,
        topics,
        factory.metrics,
        growths=(growth, owner_growth),
        fail=partial(in_loop, handover.fail, EXIT_REFUSED),
    )
