"""Harness for tests of the whole worker: a site on a real broker, its processes and its topics.

    site = Site(bootstrap, tmp_path, histograms=[...])   settings file, key, topics
    with site.worker() as worker: ...                    a `quietcount run` process
    site.produce(partition, events), site.snapshots(), site.contributed(), site.audit()

Nothing here measures time; `until` polls with a deadline generous enough for a busy machine.
"""

import contextlib
import json
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self, TypeVar, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import NewTopic, OffsetSpec  # type: ignore[attr-defined]  # re-exports

from tests import ROOT
from tests.admin import admin_of, delete_topics
from tests.forked import QUIETCOUNT, Started, launch, run
from tests.pipeline.pipeline import Contributed, contents
from workers.commands.key import new_key
from workers.commands.topics import show_topics
from workers.kafka.clients import Connection
from workers.kafka.reading import bounds_of, read_spans, reader
from workers.mechanisms.config.durations import parse_duration
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import decode
from workers.pipeline.rejected import OWN
from workers.pipeline.signing_key import read_signing_key
from workers.settings.settings import Settings, load

PATIENCE_S = 300.0
# Default horizon; the horizons that `Site` uses instead where an epoch of the default one begins or
# ends within CALM_TICKS.
HORIZON = 65_536
OTHER_HORIZONS = (61_001, 54_001, 47_017)
CALM_TICKS = 4_096

T = TypeVar("T")
Toml = Mapping[str, object]


def until(ask: Callable[[], T], what: str, patience_s: float = PATIENCE_S) -> T:
    """Poll until the result is truthy, and return it; retry if a reader gives up."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            if answer := ask():
                return answer
            last = ""
        except KafkaException as exc:
            last = f" ({exc})"
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {patience_s:g} s: {what}{last}")
        time.sleep(0.25)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def sale(
    items: object, at: int, key: object = "k", **more: object
) -> dict[str, object]:
    return {"key": key, "items": items, "ts": at} | more


def unk(name: str = "items", **changes: object) -> dict[str, object]:
    """Return an unk_base histogram with so little noise that items show."""
    made: dict[str, object] = {
        "name": name,
        "mechanism": "unk_base",
        "keys": "public",
        "tick": "1s",
        "horizon": HORIZON,
        "max_items": 2,
        "epsilon": 20.0,
        "delta": 1e-6,
    }
    return made | changes


def known(name: str = "known", **changes: object) -> dict[str, object]:
    return unk(name, mechanism="known_base", domain=["a", "b", "c"]) | changes


class Worker:
    """A `quietcount run` process; killed at the end of its `with` block if still running."""

    process: subprocess.Popen[bytes] | Started

    def __init__(
        self,
        config: Path,
        log: Path,
        runner: Sequence[str] | None = None,
        options: Sequence[str] = ("run",),
    ) -> None:
        self.log = log
        arguments = [*options, "-c", str(config)]
        with log.open("ab") as output:
            if runner is None:
                self.process = launch(arguments, output, output)
            else:
                command = [sys.executable, *runner, *arguments]
                self.process = subprocess.Popen(
                    command, cwd=ROOT, stdout=output, stderr=output
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self.running():
            self.signal(signal.SIGABRT)  # prints where every thread is
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        self.kill()
        if kind is not None:
            print(f"--- {self.log.name}\n{self.output()}", file=sys.stderr)

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def at_work(self) -> None:
        """Wait until the worker has taken partitions over, or has ended."""
        until(
            lambda: "took over" in self.output() or not self.running(), "it is at work"
        )

    def stop(self) -> int:
        """Send SIGTERM once the worker can handle it; return the exit status."""
        self.at_work()
        self.signal(signal.SIGTERM)
        return self.ended()

    def ended(self) -> int:
        """Wait until the process exits by itself; return the exit status."""
        return self.process.wait(PATIENCE_S)


#: A transaction without an owner ends after 300 s.
_HANGING_S = 420.0


#: Their names, by Kafka's address, until their topics are deleted.
_SITES: dict[str, set[str]] = {}


def forget_sites(bootstrap: str) -> None:
    """Delete the topics of this process's sites on a Kafka."""
    if names := _SITES.pop(bootstrap, None):
        delete_topics(admin_of(Connection(bootstrap)), *names)


class Site:
    """A worker name with its own events topic, settings file, key and data directories."""

    def __init__(
        self,
        bootstrap: str,
        directory: Path,
        histograms: Iterable[Toml],
        *,
        partitions: int = 4,
        topics: Sequence[int] = (),
        owners: int = 2,
        worker: Toml | None = None,
        events: Toml | None = None,
        privacy: Toml | None = None,
        create: bool = True,
    ) -> None:
        """`topics`: partitions by events topic; source partitions are numbered across all."""
        self.directory = directory
        self.connection = Connection(bootstrap)
        self.name = f"t{uuid.uuid4().hex[:12]}"
        _SITES.setdefault(bootstrap, set()).add(self.name)
        self._made_ms = now_ms()
        self.topic = f"{self.name}-events"
        several = {f"{self.topic}-{i}": n for i, n in enumerate(topics)}
        self.topics = several or {self.topic: partitions}
        self.places = [(topic, i) for topic, n in self.topics.items() for i in range(n)]
        named = list(self.topics) if topics else self.topic
        self.admin = admin_of(self.connection)
        self._workers = 0
        self._open = contextlib.ExitStack()
        self._consumer: Consumer | None = None
        self._next: dict[str, dict[int, int]] = {}
        self._ends: dict[str, dict[tuple[bytes | None, int], int]] = {}
        #: Of `produce`, and for records that it cannot make. Where a broker is killed, only an
        #: idempotent one keeps records in order, and each once.
        self.producer: Producer = self.connection.producer(
            None,
            **{
                "linger.ms": 50,
                "queue.buffering.max.messages": 2_000_000,
                "enable.idempotence": True,
            },
        )
        self.document: dict[str, Any] = {
            "worker": {"name": self.name, "data_dir": "data", "key_file": "key"}
            | {
                "commit_interval": "500ms",
                "owner_partitions": owners,
                **(worker or {}),
            },
            "kafka": {"bootstrap": bootstrap},
            "events": {
                "topic": named,
                "key": "key",
                "items": "items",
                "timestamp": "ts",
            }
            | {**(events or {})},
            "privacy": {"unit": "event", **(privacy or {})},
            "histogram": [dict(histogram) for histogram in histograms],
        }
        directory.mkdir(parents=True, exist_ok=True)
        new_key(directory / "key")
        self.config = self.write(self.document)
        if create:
            self.create_events()
            self.create_topics()

    def write(self, document: Mapping[str, Any], name: str = "settings.toml") -> Path:
        path = self.directory / name
        calm = [one | {"horizon": self._horizon(one)} for one in document["histogram"]]
        path.write_text(toml({**document, "histogram": calm}))
        return path

    def _horizon(self, histogram: Toml) -> object:
        """Replace the default horizon if one of its epochs, counted from 1970, would begin or end
        while a test runs.
        """
        if histogram["horizon"] != HORIZON or "start" in histogram:
            return histogram["horizon"]
        tick = self._made_ms // parse_duration(str(histogram["tick"]))

        def calm(horizon: int) -> int:
            return min(tick % horizon, horizon - tick % horizon)

        return HORIZON if calm(HORIZON) > CALM_TICKS else max(OTHER_HORIZONS, key=calm)

    @property
    def settings(self) -> Settings:
        return load(self.config)

    @property
    def partitions(self) -> int:
        return len(self.places)

    @property
    def key(self) -> NoiseKey:
        return NoiseKey((self.directory / "key").read_bytes())

    def create_events(self) -> None:
        for topic, partitions in self.topics.items():
            self.create_topic(topic, partitions)

    def create_topic(self, topic: str, partitions: int) -> None:
        for future in self.admin.create_topics(
            [NewTopic(topic, partitions, 1)]
        ).values():
            future.result()

        def visible() -> bool:
            found = self.admin.list_topics(timeout=60).topics.get(topic)
            return found is not None and len(found.partitions) == partitions

        until(visible, f"{topic} appears")

    def delete_topic(self, topic: str) -> None:
        for future in self.admin.delete_topics([topic]).values():
            future.result()
        until(
            lambda: topic not in self.admin.list_topics(timeout=60).topics,
            f"{topic} is gone",
        )

    def rewrite(self, **sections: object) -> None:
        """Write the settings file again, with other sections where given."""
        self.document |= sections
        self.config = self.write(self.document)

    def set(self, section: str, **changes: object) -> None:
        self.rewrite(**{section: self.document[section] | changes})

    def create_topics(self) -> None:
        """Run `quietcount topics --create` in this process, which is faster."""
        assert show_topics(self.settings, create=True) == 0

    def worker(self, data: str = "data", runner: Sequence[str] | None = None) -> Worker:
        """Start a worker process; concurrent workers need different `data` directories.

        `runner` is the code that a new Python process runs as `quietcount`; None forks a process
        that has already imported it.
        """
        section = self.document["worker"] | {"data_dir": data}
        config = self.write(self.document | {"worker": section}, f"{data}.toml")
        self._workers += 1
        return Worker(config, self.directory / f"worker-{self._workers}.log", runner)

    @contextlib.contextmanager
    def running(
        self, data: str = "data", runner: Sequence[str] | None = None
    ) -> Iterator[Worker]:
        """Run a worker while the `with` block lasts, and stop it with status 0."""
        with self.worker(data, runner) as worker:
            yield worker
            assert worker.stop() == 0, worker.output()[-3000:]

    def run_until(self, time_ms: int) -> None:
        """Run a worker until it has published up to a time, and stop it."""
        with self.running():
            self.wait_published(time_ms)

    def run_once(self, label: str = "a", sources: Iterable[int] = (0,)) -> None:
        """Send one current event to each of some source partitions, and run until it is published."""
        at = now_ms()
        for source in sources:
            self.produce(source, [sale(label, at)])
        self.run_until(at)

    def burst(self, number: int, make: Callable[[int], object]) -> int:
        """Send `number` events to every partition; return the time when all are there."""
        for partition in range(self.partitions):
            self.produce(partition, map(make, range(number)))
        return now_ms()

    def run_to_end(self) -> subprocess.CompletedProcess[str]:
        return quietcount("run", "-c", str(self.write(self.document)))

    def audit(self, *further: str) -> subprocess.CompletedProcess[str]:
        return quietcount("audit", "-c", str(self.config), *further)

    def assert_clean(self, *further: str) -> None:
        """Assert that audit finds nothing, and no page or tick is missing or repeated."""
        succeed("audit", "-c", str(self.config), *further)
        assert_contiguous(self.snapshots())

    def check_forged(self, snapshot: Mapping[str, Any]) -> None:
        """Publish a snapshot again with one more of its first item; assert that audit finds it."""
        (label, count), *others = snapshot["items"]
        forged = {**snapshot, "items": [[label, count + 1], *others]}
        settings = self.settings
        topics = dict(
            pair for one in settings.histograms for pair in settings.outputs(one)
        )
        value = json.dumps(forged, separators=(",", ":")).encode()
        topic = topics[snapshot["histogram"]]
        self.produce(0, [value], key=snapshot["key"].encode(), topic=topic)
        done = self.audit()
        assert done.returncode == 1
        assert "does not follow from the contributions" in done.stdout

    def verify(self, key: str, *copies: str) -> str:
        """Assert that `verify` finds nothing, with the public key of a signing key's file."""
        public = read_signing_key(self.directory / key).public
        return succeed("verify", "-c", str(self.config), "--key", public, *copies)

    def await_audit(self) -> None:
        """Assert that audit finds nothing, once no transaction without an owner hides records.

        A late AddPartitionsToTxn opens one, which ends by its timeout.
        """

        def audited() -> bool:
            audit = self.audit()
            if "a transaction is open and has no owner" in audit.stderr:
                return False
            assert audit.returncode == 0, audit.stdout + audit.stderr
            return True

        until(audited, "audit sees every record", _HANGING_S)

    def produce(
        self,
        partition: int,
        events: Iterable[object],
        *,
        key: bytes | None = None,
        flush: bool = True,
        topic: str | None = None,
    ) -> None:
        """Send events (objects become JSON, bytes are unchanged) to one partition."""
        place = self.places[partition] if topic is None else (topic, partition)
        for event in events:
            as_is = event is None or isinstance(event, bytes)
            value = cast(bytes | None, event) if as_is else json.dumps(event).encode()
            produce(self.producer, place[0], value, key, place[1])
        if flush:
            assert self.producer.flush(PATIENCE_S) == 0

    def read(
        self, topic: str, since: Mapping[int, int] = MappingProxyType({})
    ) -> list[Message]:
        """Return the committed records from offsets by partition, or from the beginning.

        A consumer costs the broker 10 ms, so a site has one, from the first list of ends with news.
        """
        partitions = self.admin.list_topics(topic, timeout=60).topics[topic].partitions
        newest = cast(Any, OffsetSpec).latest()
        asked = {TopicPartition(topic, at): newest for at in sorted(partitions)}
        ends = self.admin.list_offsets(
            asked, isolation_level=IsolationLevel.READ_COMMITTED
        )
        new = [
            where.partition
            for where, end in ends.items()
            if end.result().offset > since.get(where.partition, 0)
        ]
        messages = list[Message]()
        if not new:
            return messages
        consumer = self._consumer or self._open.enter_context(reader(self.connection))
        self._consumer = consumer
        for partition in new:
            low, high = bounds_of(consumer, topic, partition)
            span = max(low, since.get(partition, 0)), high
            for taken in read_spans(consumer, {(topic, partition): span}):
                messages += taken.messages
        consumer.assign([])  # or it would go on to fetch
        return messages

    def snapshots(self) -> list[dict[str, Any]]:
        return [
            json.loads(one.value() or b"")
            for topic in self.settings.output_topics
            for one in self.read(topic)
        ]

    def published_to(self) -> dict[str, int]:
        """Return by series the least end over stream keys and their parts, in ms; 0 without snapshots."""
        settings = self.settings
        reached = {}
        of_series = [
            (histogram, name, topic)
            for histogram in settings.histograms
            for name, topic in settings.outputs(histogram)
        ]
        for histogram, name, topic in of_series:
            ends = self._ends.setdefault(topic, {})
            # Callers poll four times a second, so earlier records are not read again.
            since = self._next.setdefault(topic, {})
            for message in self.read(topic, since):
                since[message.partition() or 0] = (message.offset() or 0) + 1
                end = message.timestamp()[1]  # a snapshot's is its end
                part = 1
                if histogram.split > 1:
                    part = json.loads(message.value() or b"")["part"]
                place = message.key(), part
                ends[place] = max(ends.get(place, 0), end)
            reached[name] = min(ends.values(), default=0)
        return reached

    def wait_published(self, time_ms: int, patience_s: float = PATIENCE_S) -> None:
        """Wait for a snapshot of a tick after `time_ms`, for every key and histogram."""
        what = f"snapshots up to {time_ms}"
        until(lambda: min(self.published_to().values()) > time_ms, what, patience_s)

    def published_or_ended(self, worker: Worker, time_ms: int) -> None:
        """Wait for snapshots up to a time, or for the end of the worker."""
        ends = self.published_to
        until(
            lambda: not worker.running() or min(ends().values()) >= time_ms,
            "all is published",
        )

    def contributed(self) -> Counter[Contributed]:
        values = (
            message.value() for message in self.read(self.settings.contributions_topic)
        )
        return contents(decode(value or b"") for value in values)

    def counted(self) -> Counter[str]:
        """Return the contributed counts by label, over all lanes, ticks and stream keys."""
        total: Counter[str] = Counter()
        for what, count in self.contributed().items():
            total[what.label] += count
        return total

    def reasons(self) -> list[str]:
        return [headers["reason"] for _, headers in self.rejects()]

    def rejects(self) -> list[tuple[bytes | None, dict[str, str]]]:
        """Return (value, headers but the record's own) of all rejects, by place of the original."""
        found = []
        for message in self.read(self.settings.rejects_topic):
            named = cast(list[tuple[str, bytes]], message.headers())
            own = [
                (name, bytes(value))
                for name, value in named
                if not name.startswith(OWN)
            ]
            headers = {name: value.decode() for name, value in own}
            if "reason" in headers:
                found.append((message.value(), headers))

        def place(reject: tuple[bytes | None, dict[str, str]]) -> tuple[str, int, int]:
            return (
                reject[1]["topic"],
                int(reject[1]["partition"]),
                int(reject[1]["offset"]),
            )

        return sorted(found, key=place)


def produce(producer: Producer, *record: Any) -> None:
    while True:
        try:
            producer.produce(*record)
            break
        except BufferError:
            producer.poll(0.1)
    producer.poll(0)


def assert_contiguous(snapshots: Iterable[Mapping[str, Any]]) -> None:
    """Assert that no page is missing or repeated, nor any tick of a part from its first to its last."""
    pages: dict[tuple[str, str, int, str, int], list[int]] = {}
    starts: dict[tuple[str, str, int], list[tuple[int, int]]] = {}
    for s in snapshots:
        of_key = s["histogram"], s["key"], s.get("part", 1)
        mine = pages.setdefault((*of_key, s["id"], s["tick"]), [])
        if not mine:
            starts.setdefault(of_key, []).append((s["start"], s["end"]))
        mine.append(s["page"])
        assert 1 <= s["page"] <= s["pages"]
    for place, numbers in pages.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), (
            f"{place}: pages {numbers}"
        )
    for of_key, ticks in starts.items():
        ticks.sort()
        for (_, end), (start, _) in pairwise(ticks):
            assert start == end, (
                f"{of_key}: a tick ends at {end}, the next begins at {start}"
            )


def command(*arguments: str) -> list[str]:
    return [sys.executable, *QUIETCOUNT, *arguments]


def quietcount(
    *arguments: str, patience_s: float = 2 * PATIENCE_S
) -> subprocess.CompletedProcess[str]:
    return run(arguments, patience_s)


def succeed(*arguments: str) -> str:
    done = quietcount(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def toml(document: Mapping[str, Any]) -> str:
    lines: list[str] = []
    for section, values in document.items():
        for one in values if isinstance(values, list) else [values]:
            lines.append(
                f"[[{section}]]" if isinstance(values, list) else f"[{section}]"
            )
            lines += [f"{name} = {toml_value(value)}" for name, value in one.items()]
    return "\n".join(lines) + "\n"


def toml_value(value: object) -> str:
    if isinstance(value, Bare):
        return value
    if isinstance(value, Mapping):
        pairs = [
            f"{json.dumps(name)} = {toml_value(inner)}" for name, inner in value.items()
        ]
        return "{ " + ", ".join(pairs) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value)


class Bare(str):
    """TOML value written without quotes, such as a date."""
