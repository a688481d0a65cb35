"""What the tests of the examples share: a real worker's snapshots on a real broker, with secrets planted wherever one can be."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Message
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests import ROOT
from tests.admin import delete_topics
from tests.worker.harness import PATIENCE_S, Bare, Site, known, unk, until
from workers.pipeline import snapshots

EXAMPLES = ROOT / "examples" / "consumers"
LABELS = [
    "tea",
    "cup",
    "pot",
    "spoon",
    "kettle",
    "sugar",
    "milk",
    "lemon",
    "jar",
    "tray",
    "\x1b[31mred\u202e",
    "filter",
]
SECONDS = 40
# Of the histogram "items".
EPOCH_TICKS = 16
PLANTED = "Planted"

Document = dict[str, Any]
Place = tuple[str, str, str, int]


@dataclass
class Scene:
    """A worker that published and exited: its `site`, and the `records` of each histogram's topic."""

    site: Site
    records: dict[str, list[Message]]

    def topic(self, histogram: str) -> str:
        return f"{self.site.name}.{histogram}"

    def options(self, topic: str, *further: str) -> tuple[str, ...]:
        return "--bootstrap", self.site.connection.bootstrap, "--topic", topic, *further

    def agent(self, directory: Path, topic: str, level: str) -> Program:
        options = ("worker", "--without-web", "-l", level)
        return Program(
            directory,
            "agent.py",
            *options,
            BOOTSTRAP=self.site.connection.bootstrap,
            TOPIC=topic,
            GROUP=f"{topic}-agent",
        )

    def whole(self, histogram: str) -> dict[Place, Document]:
        """The snapshots of a histogram, pages joined; in the order of each stream key."""
        return joined(
            [json.loads(record.value() or b"") for record in self.records[histogram]]
        )

    def new_topic(self, partitions: int = 1) -> Copy:
        name = f"{self.site.name}-{uuid.uuid4().hex[:8]}"
        for future in self.site.admin.create_topics(
            [NewTopic(name, partitions, 1)]
        ).values():
            future.result()
        until(
            lambda: name in self.site.admin.list_topics(timeout=60).topics,
            "the topic appears",
        )
        return Copy(self.site, name, partitions)


class Copy:
    """A topic with a worker's records, byte for byte, and whatever a test wants between them."""

    def __init__(self, site: Site, name: str, partitions: int) -> None:
        self.name = name
        self._site = site
        self._partitions = partitions
        self._producer = site.connection.producer(None)

    def send(self, records: Iterable[Message]) -> None:
        for record in records:
            place = sum(record.key() or b"") % self._partitions
            content = (record.value(), record.key())
            at = record.timestamp()[1]
            self._producer.produce(self.name, *content, place, timestamp=at)
        assert self._producer.flush(120) == 0

    def forge(self, document: Document, *, commit: bool) -> None:
        """A snapshot of the test's own, in a transaction that is committed or not."""
        producer = self._site.connection.producer(f"forger-{uuid.uuid4().hex}")
        producer.init_transactions(120)
        producer.begin_transaction()
        key = str(document["key"]).encode()
        producer.produce(
            self.name, json.dumps(document).encode(), key, sum(key) % self._partitions
        )
        assert producer.flush(120) == 0
        if commit:
            producer.commit_transaction(120)
        else:
            producer.abort_transaction(120)


class Program:
    """An example that runs by itself; what it prints can be watched."""

    def __init__(
        self, directory: Path, example: str, *arguments: str, **environment: str
    ) -> None:
        self._log = directory / f"{example}-{uuid.uuid4().hex[:8]}.log"
        command = [sys.executable, str(EXAMPLES / example), *arguments]
        with self._log.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                cwd=directory,
                env={**os.environ, **environment},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.wait()

    def output(self) -> str:
        return self._log.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        def found() -> bool:
            return self.output().count(text) >= times

        until(
            lambda: found() or self.process.poll() is not None, f"{text!r} is printed"
        )
        assert found(), self.output()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(PATIENCE_S)


def run(
    example: str, *arguments: str, directory: Path | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    return subprocess.run(
        command,
        cwd=directory,
        timeout=PATIENCE_S,
        check=False,
        capture_output=True,
        text=True,
    )


def joined(documents: Sequence[Document]) -> dict[Place, Document]:
    """Whole snapshots by place; the first of several with the same place counts."""
    pages: dict[Place, dict[tuple[int, int], Document]] = {}
    for document in documents:
        place = (
            document["histogram"],
            document["key"],
            document["id"],
            document["tick"],
        )
        number = document.get("part", 1), document["page"]
        pages.setdefault(place, {}).setdefault(number, document)
    found = {}
    for place, records in pages.items():
        first = records[1, 1]
        of_tick = [record for _, record in sorted(records.items())]
        pages_by_part = {part: records[part, 1]["pages"] for part, _ in records}
        assert len(records) == sum(pages_by_part.values())
        assert len(pages_by_part) == first.get("parts", 1)
        if "items" in first:
            items = [item for record in of_tick for item in record["items"]]
            found[place] = first | {
                "items": sorted(items, key=lambda item: (-item[1], item[0]))
            }
        else:
            found[place] = first | snapshots.join_pages(of_tick)
    return found


def published(bootstrap: str, directory: Path) -> Iterator[Scene]:
    """Runs a worker over forty seconds of events: several epochs, a snapshot of several pages, answers to queries."""
    (directory / "large.txt").write_text(
        "\n".join(f"{i:05d}" + "x" * 995 for i in range(1_000))
    )
    names = [label for label in LABELS if label.isprintable()]
    base = int(time.time()) // 10 * 10_000 - SECONDS * 1_000
    start = Bare(
        datetime.fromtimestamp(base // 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    )
    # What is planted twice would be shown with a chance of 2e-5 with a delta of 1e-6, of 5e-9 with this one.
    items = unk(
        "items",
        keys=["s1", "s2"],
        delta=1e-10,
        horizon=EPOCH_TICKS,
        start=start,
        windows=["1s", "5s"],
    )
    large = known("large", tick="10s", keys=["s1"], domain_file="large.txt")
    del large["domain"]
    parts = unk("parts", tick="2s", keys=["s1", "s2"], delta=1e-10, split=2)
    answers = known(
        "answers",
        tick="10s",
        horizon=64,
        domain=names,
        keys=["s1"],
        mechanism="two_level_k",
        queries=["max", "top_k_select:2"],
    )
    site = Site(
        bootstrap, directory, [items, large, parts, answers], partitions=2, owners=2
    )
    rng = random.Random(7)
    weights = [2.0**-i for i in range(len(LABELS))]
    for partition in range(2):
        events: list[object] = [
            {
                "key": key,
                "items": rng.choices(LABELS, weights, k=2),
                "ts": base + second + i,
            }
            for second, i, key in product(
                range(0, 1_000 * SECONDS, 1_000), range(30), ("s1", "s2")
            )
        ]
        events[10:10] = [
            {
                "key": "s1",
                "items": ["PlantedRare"],
                "ts": base + 5,
                "customer": "PlantedUser",
            },
            {"key": "PlantedKey", "items": ["tea"], "ts": base + 5},
            b'{"PlantedBroken',
        ]
        site.produce(partition, events, key=b"PlantedRecordKey")
    with site.worker() as worker:
        site.wait_published(base + (SECONDS - 1) * 1_000)
        assert worker.stop() == 0
    names = ["items", "large", "parts", "answers"]
    yield Scene(site, {name: list(site.read(f"{site.name}.{name}")) for name in names})
    delete_topics(site.admin, site.name)
