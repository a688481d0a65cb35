"""The worker's stages without Kafka, from a fetched batch to the commit: peak memory and CPU time."""

import gc
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from tests.bounds.encoded import OneSchema, encode_all
from tests.bounds.shapes import BATCH_BYTES, CODECS, NOW_MS, Kind, Shape, of
from tests.cluster.offline import factory_of, worker_document
from tests.worker.harness import known, unk
from workers.agents.rekey import RekeyShard
from workers.agents.source_shard import SourceShard
from workers.agents.worker import Factory
from workers.commands.check.examine import examine
from workers.commands.check.sample import Part, Sample
from workers.events.formats.reader import FormatReader, FramedJson, make_format
from workers.events.json import Json
from workers.events.log import Format
from workers.events.schemas import AlwaysOpen
from workers.events.tree import Node
from workers.kafka.decoding import PART_RECORDS, ColumnRecords, RecordSet
from workers.kafka.records import Outgoing, Records
from workers.kafka.shard import Shard
from workers.kafka.transaction import Delivery
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.growth.sources import Place, SourceTopic
from workers.replay.offline import replay
from workers.replay.sources import open_source
from workers.runtime.errors import SettingsError
from workers.settings.settings import Settings
from workers.settings.settings import settings_of as parse_settings

Column = Sequence[bytes | None]
KEY = NoiseKey(bytes(range(32)))
#: A producer's largest request, uncompressed: where a record batch ends.
REQUEST_BYTES = 1_000_000
_KINDS = [f"kind{i}" for i in range(50)]
#: Takes every way through a reader of events.
_ORDINARY = Shape(
    (
        of(items=("words", 20), user=("word", 1)),
        Kind((("items", "words", 20),), "names twice"),
        of(items=("depth", 2_000)),
        Kind((), null=True),
    ),
    rounds=50,
)
_BUCKETS = {"from": 0, "to": 999, "count": 999}


def _prices() -> dict[str, object]:
    found = known("prices", items="price", buckets=_BUCKETS, max_items=1)
    del found["domain"]
    return found


#: Settings that have the most work with an event, each of its own sort: [events], [privacy], histograms.
VARIANTS: MappingProxyType[str, dict[str, Any]] = MappingProxyType(
    {
        "items": {"histogram": [unk()]},
        "lines": {
            "events": {"items": "lines[].sku", "count": "lines[].qty"},
            "histogram": [unk(where=[{"field": "kind", "not_in": _KINDS}])],
        },
        "buckets": {"histogram": [_prices()]},
        "several": {
            "events": {"missing": "empty"},
            "histogram": [
                unk(),
                unk("lines", items="lines[].sku", count="lines[].qty", max_items=1_000),
                _prices(),
                unk(
                    "kinds",
                    key="kind",
                    items="other",
                    where=[{"field": "price", "min": 3}],
                ),
                unk("names", items="user", where=[{"field": "kind", "in": _KINDS}]),
            ],
        },
        "sums": {
            "events": {"items": "lines[].sku"},
            "histogram": [
                unk(
                    f"sums{n}",
                    sum={"field": "lines[].qty", "from": 0, "to": 10 + n, "step": 1},
                )
                for n in range(5)
            ],
        },
        "users": {
            "events": {"user": "user"},
            "privacy": {"unit": "user"},
            "histogram": [
                unk(max_items_per_user=20, max_items=10, epsilon=1.0, delta=1e-9)
            ],
        },
        "rekey": {
            "events": {"user": "user"},
            "privacy": {"unit": "user", "rekey": True},
            "histogram": [
                unk(max_items_per_user=20, max_items=10, epsilon=1.0, delta=1e-9)
            ],
        },
    }
)


@dataclass(frozen=True, slots=True)
class Cost:
    nbytes: int  # uncompressed, of the keys, values and framing read
    peak: (
        int  # bytes allocated at the same time by Python and numpy, beyond those before
    )
    cpu_ns: int  # processor time of the thread


_EVENTS = {"topic": "events", "key": "key", "items": "items", "timestamp": "ts"}


@lru_cache(maxsize=16)
def settings_of(variant: str) -> Settings:
    given = VARIANTS[variant]
    document = worker_document(
        "bounds",
        events=_EVENTS | given.get("events", {}),
        privacy={"unit": "event", **given.get("privacy", {})},
        histogram=given["histogram"],
    )
    return parse_settings(document, Path("/"))


class _Committed:
    def __init__(self, shard: Shard) -> None:
        self.messages: list[Outgoing] = []
        self.forwarded: list[tuple[bytes, bytes | None]] = []
        self._shard = shard
        shard.transact = self.transact  # type: ignore[method-assign]
        shard.offset = 0
        shard.store.open()

    def transact(
        self,
        messages: Sequence[Outgoing],
        changes: Any,
        group_offset: int,
        forwarded: Any = (),
        delivery: Delivery | None = None,
    ) -> None:
        self.messages += messages
        self.messages += () if delivery is None else delivery.messages
        for records in forwarded:
            self.forwarded += [(value, key) for value, key, *_ in records.messages()]
        self._shard.committed = group_offset


@lru_cache(maxsize=16)
def _factory(variant: str) -> Factory:
    settings = settings_of(variant)
    own = (*settings.internal_topics, "bounds.by-user", "bounds.rekey-state")
    return factory_of(settings, KEY, dict.fromkeys(("events", *own), 1))


def fetched(keys: Column, values: Column, codec: str = "none") -> bytes:
    out = bytearray()
    at = 0
    offset = 0
    while at < len(values):
        builder = DefaultRecordBatchBuilder(
            2, CODECS.index(codec), 0, -1, -1, -1, 1 << 30
        )
        size = 0
        first = at
        while at < len(values) and (at == first or size < REQUEST_BYTES):
            builder.append(at - first, NOW_MS, keys[at], values[at], [])
            size += len(values[at] or b"") + len(keys[at] or b"") + 8
            at += 1
        batch = builder.build()
        batch[:8] = offset.to_bytes(8, "big")
        out += batch
        offset = at
    return bytes(out)


def _feed(shard: Shard, raw: bytes) -> None:
    response = PartitionRecords(
        TopicPartition("t", 0),
        RecordSet(raw),
        None,
        0,
        None,
        None,
        True,
        READ_COMMITTED,
    )
    records = ColumnRecords.of(response)
    start = 0
    while records.has_more():
        taken = records.take(start, PART_RECORDS)
        shard.feed_fetched(taken)
        start = taken.end


class Stages:
    """The stages of one variant of settings and one format; each call begins with fresh ones."""

    def __init__(self, variant: str, form: str = "json") -> None:
        """`form` is the encoding of records."""
        self.variant = variant
        self.form = form
        self._settings = settings_of(variant)

    def warm(self) -> None:
        """Run every stage once: a first run loads kernels, or compiles them, and makes tables."""
        self.run(_ORDINARY, memory=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the stages, in the order in which `run` has them."""
        first = ("rekey",) if self._settings.privacy.rekey else ()
        offline = ("check", "replay") if self.form == "json" else ()
        return (*first, "contribute", "release", *offline)

    def run(
        self,
        shape: Shape,
        most: int = BATCH_BYTES,
        *,
        memory: bool = True,
        only: str | None = None,
    ) -> dict[str, Cost]:
        """Return what a batch costs each stage, or `only` one; those before it run as well.

        `most`: the approximate bytes of the batch.
        `memory`: trace memory, which takes time; else `peak` is 0.
        """
        # As in a worker, collections of garbage pass over what was there before: it would take them
        # longer than most batches take.
        gc.freeze()
        try:
            return self._run(*shape.records(most), shape.codec, memory, only)
        finally:
            # Only what is young: a replay has unfrozen the rest.
            gc.collect(1)
            gc.unfreeze()

    def _run(
        self, keys: Column, values: Column, codec: str, memory: bool, only: str | None
    ) -> dict[str, Cost]:
        if self.form != "json":
            values = encode_all(self.form, values)
        if only in ("check", "replay"):
            work = self._check if only == "check" else self._replay
            return {only: work(keys, values, memory)}
        factory = _factory(self.variant)
        found: dict[str, Cost] = {}
        if self._settings.privacy.rekey:
            assert factory._by_user is not None
            rekey = factory.rekey_shard(next(iter(factory._by_user.sources)))
            self._give_format(rekey, factory)
            found["rekey"], committed = self._stage(rekey, keys, values, codec, memory)
            values = [value for value, _ in committed.forwarded]
            keys = [key for _, key in committed.forwarded]
            if not values or only == "rekey":
                return found
        contribute = factory.contribute_shard(next(iter(factory.sources)))
        self._give_format(contribute, factory)
        found["contribute"], committed = self._stage(
            contribute, keys, values, codec, memory
        )
        topic = self._settings.contributions_topic
        sent = [
            message.value for message in committed.messages if message.topic == topic
        ]
        if sent and only != "contribute":
            records = [None] * len(sent), sent
            found["release"], _ = self._stage(
                factory.release_shard(0), *records, "none", memory
            )
        if only is None and self.form == "json" and not self._settings.privacy.rekey:
            found["check"] = self._check(keys, values, memory)
            found["replay"] = self._replay(keys, values, memory)
        return found

    def _give_format(self, shard: Any, factory: Factory) -> None:
        """Have a shard read records of this format; the settings alone would ask a registry."""
        if self.form == "json":
            return

        def form(tree: Node) -> Format:
            if self.form == "json_schema":
                return FramedJson(Json(tree))
            return FormatReader(
                make_format(self.form, tree, None), OneSchema(self.form), AlwaysOpen()
            )

        reader = factory._reader
        if isinstance(shard, RekeyShard):
            shard._users_format = form(shard._stream.users.layout.tree)
            shard._events_format = form(reader.layout.tree)
        else:
            shard._reader._fmt = form(reader.layout.tree)

    def _stage(
        self, shard: Any, keys: Column, values: Column, codec: str, memory: bool
    ) -> tuple[Cost, _Committed]:
        raw = fetched(keys, values, codec)
        committed = _Committed(shard)

        def work() -> None:
            _feed(shard, raw)
            if isinstance(shard, SourceShard) and shard.committed != shard.offset:
                assert shard.offset is not None
                shard._commit(shard.offset)

        try:
            return _measured(work, _size(keys, values), memory), committed
        finally:
            shard._pool.shutdown(wait=False)

    def _check(self, keys: Column, values: Column, memory: bool) -> Cost:
        settings = self._settings
        records = Records.of(values, keys, [NOW_MS] * len(values))
        part = Part(Place(0, SourceTopic("events", 1, None), 0), records)
        sample = Sample("the newest records", [part], settings.shape, live=True)
        return _measured(lambda: examine(settings, sample), _size(keys, values), memory)

    def _replay(self, keys: Column, values: Column, memory: bool) -> Cost:
        lines = [(value or b"").replace(b"\n", b" ") for value in values]
        with TemporaryDirectory() as directory:
            path = Path(directory) / "events.jsonl"
            path.write_bytes(b"\n".join(lines))

            def work() -> None:
                # What is out of order ends a replay with a message.
                with (
                    suppress(SettingsError),
                    open_source(self._settings, str(path)) as source,
                ):
                    replay(self._settings, KEY, source, lambda snapshot: None)

            return _measured(work, _size([], values), memory)


def _size(keys: Column, values: Column) -> int:
    return (
        sum(len(v or b"") for v in values)
        + sum(len(k or b"") for k in keys)
        + 8 * len(values)
    )


def _measured(work: Callable[[], object], nbytes: int, memory: bool) -> Cost:
    if memory:
        tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        begun = time.thread_time_ns()
        work()
        peak = tracemalloc.get_traced_memory()[1] - before
        return Cost(nbytes, peak, time.thread_time_ns() - begun)
    finally:
        tracemalloc.stop()
