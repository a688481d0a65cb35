"""Compile kernels ahead of use: at installation, or when a command first counts on this machine.

numba compiles a kernel for the types of its arguments, so a few made-up events take every path from
record batches to recovery; the compiled code is cached (`arrays/compiler.py`). `make` and the
Dockerfile run `python -m workers.commands.compiling`.

Values mean nothing here; types do, and so do layouts: a read-only array, or one that is a part of
another, has another type than one of its own.
"""

import gc
import io
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from workers.arrays import compiler
from workers.arrays.number_blocks import (
    GROUP_ROWS,
    add_at_rows,
    find_printed,
    find_shown,
    mark_blocks,
    take_counts,
    xor,
)
from workers.arrays.quantiles import quantile
from workers.arrays.texts import Texts, readonly_contiguous
from workers.arrays.types import Bools, Bytes, Longs
from workers.commands.failures import log
from workers.events.columns import one_label_each
from workers.events.formats.reader import FormatReader, make_format
from workers.events.json import Json
from workers.events.json_scanner import nesting_depth
from workers.events.log import FieldSpans, Format
from workers.events.reading import EARLIEST_MS, EventReader, SourceReader
from workers.events.schemas import AVRO, PROTOBUF, AlwaysOpen, Schema, SchemaWaiter
from workers.events.tree import Node
from workers.kafka.placement import PARTITIONERS, Placement, partitions_of
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.config.views import RECORD_KEY
from workers.mechanisms.counters.kinds import KINDS, make_counter
from workers.mechanisms.counters.line import LineColumns, line_counters
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.misra_gries.sketch import ROUNDS, Sketch, batch
from workers.mechanisms.noise.inversion import InversionTable
from workers.mechanisms.noise.keyed import MECHANISM_ID_BYTES, NoiseKey
from workers.pipeline import ledger_blocks
from workers.pipeline.contributions import decode
from workers.pipeline.intake import Intake
from workers.pipeline.rekey_markers import restore_originals
from workers.replay.offline import fresh_histograms, replay
from workers.replay.sources import JsonLines
from workers.runtime.process import cores
from workers.settings.settings import EventsSettings, Settings, settings_of, shape_of

logger = logging.getLogger(__name__)

_EVENTS = 64
# Argument with which the second process is started.
_SECOND = "apart"
_SUM = {"field": "n", "from": 0, "to": 9, "step": 0.5}
_TICK_MS = 1000
# Earlier events would be rejected, and what counts events would not be compiled.
_BEGIN_MS = EARLIEST_MS
_KEY = NoiseKey(bytes(range(32)))
_SCHEMAS = MappingProxyType(
    {
        AVRO: '{"type": "record", "name": "Event", "fields": []}',
        PROTOBUF: 'syntax = "proto3"; message Event {}',
    }
)


def ensure_compiled(say: Callable[[str], object] = log) -> None:
    """Compile missing kernels; first say, in one line, why the start takes longer."""
    if not compiler.all_compiled():
        say("compiling the loops that count, once on this machine: about 20 s")
        compile_kernels()


def compile_kernels() -> float:
    """Compile every kernel that counting needs; return the seconds taken.

    A second process runs `_compile_share` if a core is free and its results can be cached: 17 s
    instead of 31.
    """
    begun = time.perf_counter()
    with _fast_compiler(), _second_process() as wait:
        # What the second process does not compile: quantiles, the general reader, Avro.
        # (Counts, their sd, q, a normal quantile, three kinds of variances, and room to work in.)
        ones = readonly_contiguous(np.ones(3))
        quantile(ones, 1.0, 0.5, 2.0, ones[:2], ones[:1], 3.0, np.empty(2))
        _compile_batches(_Unscanned)
        if _with_formats():
            _compile_format(AVRO)
        wait()
        # Loads what the second process has compiled, or compiles it, if there is none.
        _compile_share()
        # After both shares, as these use kernels of both: none is compiled twice.
        _compile_batches()
        _compile_replay()
    compiler.mark_all_compiled()
    return time.perf_counter() - begun


@contextmanager
def _fast_compiler() -> Iterator[None]:
    """Disable the cyclic garbage collector: saves a tenth of the time.

    Also have numba build its flags' comparison key, needed 300,000 times, in one step instead of
    from 25 properties: saves a twentieth.
    """
    from numba.core.targetconfig import TargetConfig

    config = cast(Any, TargetConfig)
    original = config.values
    defaults = dict[object, dict[str, object]]()

    def values(flags: Any) -> object:
        """Return the values of all flags by name: their defaults, but for those that were set."""
        kind = type(flags)
        if kind not in defaults:
            defaults[kind] = {
                name: option.default for name, option in kind.options.items()
            }
        return defaults[kind] | flags._values

    on = gc.isenabled()
    gc.disable()
    config.values = values
    try:
        yield
    finally:
        config.values = original
        if on:
            gc.enable()


@contextmanager
def _second_process() -> Iterator[Callable[[], object]]:
    """Compile the second share in a process of its own; yield a function that waits for its end.

    Without a free core, or if the results cannot be shared, there is no process.
    """
    if not compiler.can_cache() or cores() < 2:
        yield lambda: None
        return
    command = [sys.executable, "-m", "workers.commands.compiling", _SECOND]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as second:
        try:
            yield second.wait
        finally:
            second.kill()


def _compile_share() -> None:
    """Compile the second process's share: scanning records, feeding sketches, drawing noise."""
    data = b"".join(_events())
    ends = np.cumsum([len(event) for event in _events()])
    places = np.stack((np.concatenate(([0], ends[:-1])), ends), axis=1)
    shape = shape_of(
        EventsSettings(topic="t", key="key", items="items", timestamp="ts"), "user"
    )
    scanned = Json(EventReader(shape).layout.tree).scan(
        np.frombuffer(data, dtype=np.uint8),
        places,
        np.ones(len(places), dtype=np.bool_),
    )
    # A generator, which runs when it is read.
    list(scanned)
    # What only batches of one label an event, and deeply nested records, need.
    row = readonly_contiguous(np.zeros(1, dtype=np.int64))
    one_label_each(row, row)
    nesting_depth(np.frombuffer(b"[]", dtype=np.uint8))
    # A sketch fed more items than it has counters, including an item that takes all rounds.
    labels = [b"a", b"b", b"c"]
    Sketch(1).feed(
        batch(_KEY.tags("", labels), Texts.of(labels), np.array([1, 2, ROUNDS + 1]))
    )
    _compile_noise()
    if _with_formats():
        _compile_format(PROTOBUF)


def _with_formats() -> bool:
    """Return whether the extra is installed; if it comes later, its loops compile at first use."""
    return find_spec("fastavro") is not None


class _Unscanned(Json):
    """JSON format that leaves every record to the general reader, so that its kernels compile."""

    def scan(self, data: Bytes, values: Longs, plain: Bools) -> Iterator[FieldSpans]:
        """Yield all records as ones that the fast scanner declined."""
        yield FieldSpans.declined(data, len(values), self.decoder(data, values))


def _events() -> list[bytes]:
    """Return events of all shapes, including some that only the general reader can read."""
    many = [f"item-{i}" for i in range(20)] * 2
    # JSON writes the last one with escapes.
    shapes: list[object] = ["a", ["a", "b"], {"a": 1, "b": 2}, many, ["\u00e4\n"]]
    events = []
    for i in range(_EVENTS):
        about = {
            "key": f"k{i % 3}",
            "user": f"u{i % 7}",
            "ts": _BEGIN_MS + i * 100,
            "n": i % 11,
        }
        events.append(json.dumps(about | {"items": shapes[i % len(shapes)]}).encode())
    # A name that occurs twice: only the general reader reads that.
    events[0] = events[0][:-1] + b', "ts": %d}' % _BEGIN_MS
    return events


def _compile_noise() -> None:
    """Draw noise of every width and kind, and mark rows as only large streams do."""
    words = np.zeros((1, 2), dtype=np.uint64)
    for lowest in (0, 1 << 16):  # noise of 16 and of 32 bits
        table = InversionTable([1 << 127], lowest)
        table.sample(words, np.zeros(1, dtype=table.dtype))
    # What only large streams, noise of 64 bits and ledgers of several blocks need. The kernels of
    # rows read the same zeros everywhere; what they write to, the last ones, are other arrays.
    row = np.zeros(1, dtype=np.int64)
    xor(readonly_contiguous(words), words, words)
    find_shown(row, row, row, 0, True, row.copy(), row.copy(), row.copy())
    mark_blocks(readonly_contiguous(row), 10, np.zeros(1, dtype=np.bool_))
    # The rows shown are numbered with 64 or 32 bits.
    by_window = np.zeros((1, 1), dtype=np.int64)
    passed = np.zeros(GROUP_ROWS, dtype=np.int64)
    for shown in (row, row.astype(np.int32)):
        find_printed(
            by_window,
            by_window,
            row,
            row,
            shown,
            row,
            row,
            1,
            1,
            passed,
            row.copy(),
            row.copy(),
            by_window.copy(),
        )
    take_counts(row.copy(), row.copy(), row.copy())
    add_at_rows(row.copy(), row, row, 1)
    stream = _KEY.stream(bytes(MECHANISM_ID_BYTES))
    for kind in KINDS:
        # A small rho makes large noise: state of 32 and of 64 bits.
        for rho_item in (1.0, 1e-8):
            counter = make_counter(kind, 4, rho_item)
            columns = counter.columns(stream)
            # Noise for 1 row, then 3: the one fills its array, of the next these are a part.
            for t in (1, 2):
                columns.at(t, np.zeros((2 * t - 1, 2), dtype=np.uint64))
            counter.draw(stream, 1, words)
    # The same for windows without epochs.
    for rho_item in (1.0, 1e-12):
        windows = LineColumns(line_counters((2,), (1,), rho_item), stream)
        for t in (1, 2):
            windows.at(t, np.zeros((2 * t - 1, 2), dtype=np.uint64))


def _compile_batches(form: Callable[[Node], Format] = Json) -> None:
    """Read events from Kafka's record batches in every shape of settings, up to messages.

    `form` makes the format that reads the values.
    """
    # Not imported by `replay` of a file once everything is compiled.
    from aiokafka import TopicPartition
    from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
    from aiokafka.record.default_records import DefaultRecordBatchBuilder

    from workers.kafka.decoding import ColumnRecords, RecordSet
    from workers.kafka.store import Changelog, Store

    # Of format 2, without compression, transaction or a producer's id, epoch and sequence (-1), up
    # to 1 MiB.
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for i, value in enumerate(_events()):
        builder.append(i, _BEGIN_MS + i * 100, f"u{i % 7}".encode(), value, [])
    # Of events; of users, in epochs of 4 ticks; and of events in sketches.
    grid = _TICK_MS, _BEGIN_MS
    lanes = [
        Lane(*grid, max_items=2, max_count=1),
        Lane(*grid, max_items=2, max_count=3, max_items_per_user=2, horizon=4),
        Lane(*grid, max_items=9, max_count=1, sketch=2),
    ]
    store = Store(None, Changelog("state", 0)).open()
    # (stream key, timestamp, user), from fields or the record.
    all_shapes = (("key", "ts", "user"), ("$key", None, "$key"), ("$all", "ts", "user"))
    for key, timestamp, user in all_shapes:
        batches = RecordSet(bytes(builder.build()))
        partition = TopicPartition("t", 0)
        # No transaction was aborted, offset 0 was asked for, bytes stay bytes, checksums count.
        response = PartitionRecords(
            partition, batches, None, 0, None, None, True, READ_COMMITTED
        )
        [fetched] = ColumnRecords.of(response).take(0, _EVENTS).parts()
        records = fetched.records
        events_section = EventsSettings(
            topic="t", key=key, items="items", timestamp=timestamp
        )
        shape = shape_of(events_section, user)
        events = EventReader(shape)
        # As re-keying reads: only users.
        users = EventReader(replace(shape, views=MappingProxyType({})))
        [reading] = users.read(records, form(users.layout.tree))
        if reading.users is not None:
            partitions_of(reading.data, reading.users, 3)
        restore_originals(records, user_is_key=user == RECORD_KEY)
        for partitioner in PARTITIONERS:
            # Since time 0, all users are in the only partition.
            placement = Placement(partitioner, 0, [(0, 1)])
            reader = SourceReader(
                events, {"": None}, placement, form(events.layout.tree)
            )
            # Without grace.
            intake = Intake(lanes, 0, _KEY, store)
            # Of messages, by owner partition.
            sequences = [0, 0]
            # A part of records has other types than the whole.
            for part in (records, records.part(0, _EVENTS // 2)):
                [reading] = reader.read(part)
                intake.add(reading.events)
                store.write(intake.user_changes(), 0)
                messages = intake.take_messages(source=0, sequences=sequences, offset=0)
                store.write(intake.sketch_changes(), 0)
                # As a worker that starts again, before its first watermark and event.
                Intake(lanes, 0, _KEY, store).restore(None, None)
                contributions = [
                    section.contributions()
                    for _owner, message in messages
                    for section in decode(message.encoded()).sections
                ]
                _require(bool(contributions))


def _compile_replay() -> None:
    """Replay events with every kind of mechanism, and store and load its ledger."""
    text = b"".join(event + b"\n" for event in _events())
    for unit in ("event", "user"):
        settings = _settings(unit)
        histograms = fresh_histograms(settings, _KEY)
        lines = JsonLines(settings, "text", io.BytesIO(text), total=len(text))
        replay(settings, _KEY, lines, lambda _: None, histograms=histograms)
        _require(any(len(histogram._state.ledger.tags) for histogram in histograms))
        for histogram in histograms:
            ledger: Ledger = histogram._state.ledger
            # As if no row were stored and every count had changed: `changes` stores all of them.
            ledger.stored_rows = 0
            ledger.counts_changed = [ledger.find(ledger.tags)]
            ledger_blocks.load(ledger_blocks.changes(ledger), len(histogram._keys))


def _require(counted: bool) -> None:
    """Fail if nothing was counted: a worker would compile kernels in its first batch."""
    if not counted:
        raise RuntimeError("the events that compile the kernels were not counted")


class _Registry(NamedTuple):
    """A registry in which every id is of one schema, of this kind."""

    kind: str

    def schema(self, schema_id: int, waiting: SchemaWaiter) -> Schema:
        """Return the schema at once, whatever the id."""
        return Schema(self.kind, _SCHEMAS[self.kind])


def _compile_format(kind: str) -> None:
    """Scan a record that names a schema, by the id 0, and one that is too short to name one."""
    fmt = make_format(kind.lower(), Node())
    reader = FormatReader(fmt, _Registry(kind), AlwaysOpen())
    records = Records.of([bytes(8), b""])
    plain = np.ones(len(records), dtype=np.bool_)
    list(reader.scan(records.data, records.values, plain))


def _settings(unit: str) -> Settings:
    """Return settings with a histogram of every kind whose kernels differ, for this unit."""
    shared: dict[str, object] = {"tick": "1s", "horizon": 64, "max_items": 2}
    shared |= {"epsilon": 4.0, "delta": 1e-6, "keys": ["k0", "k1", "k2"]}
    events = {"topic": "t", "key": "key", "items": "items", "timestamp": "ts"}
    domain = {"domain": ["a", "b"]}
    kinds: list[dict[str, object]]
    kinds = [{"mechanism": "unk_base"}, {"mechanism": "known_base", **domain}]
    kinds.append({"mechanism": "unk_base", "sum": _SUM, "total_share": 0.1})
    if unit == "user":
        events["user"] = "user"
        shared["max_items_per_user"] = 3
    else:
        sketch = {"mechanism": "misra_gries"}
        kinds.append({**sketch, "size": 8, "release": "pmg"})
        kinds.append({**sketch, "size": 8, "release": "pamg"})
        kinds.append({**sketch, "size": 5, "release": "pure", "delta": 1e-20, **domain})
    histograms = [shared | kind | {"name": f"h{i}"} for i, kind in enumerate(kinds)]
    document = {
        "worker": {"name": "compiling", "data_dir": "var", "key_file": "noise.key"},
        "kafka": {"bootstrap": "localhost:9092"},
        "events": events,
        "privacy": {"unit": unit},
        "histogram": histograms,
    }
    return settings_of(document, Path())


if __name__ == "__main__":
    if _SECOND in sys.argv[1:]:
        with _fast_compiler():
            _compile_share()
    else:
        print("Compiling the loops that count (once) ...", flush=True)
        print(f"... in {compile_kernels():.1f} s")
