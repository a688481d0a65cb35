"""`neighbours = "record"` in a whole worker: fixed times, ticks that only the clock closes, a kill."""

import time
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Self

import pytest
from confluent_kafka import TopicPartition

from tests.worker.harness import Bare, Site, known, now_ms, sale, until
from workers.kafka.clients import Connection

pytestmark = pytest.mark.slow

AFTER_MS = 1_500


class Watcher:
    """Notes when each snapshot of a topic could be read first, also before it was committed."""

    def __init__(self, connection: Connection, topic: str) -> None:
        self.seen_ms: dict[int, int] = {}
        self._ended = Event()
        self._consumer = connection.consumer(
            **{"isolation.level": "read_uncommitted", "fetch.wait.max.ms": 10}
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self._thread = Thread(target=self._read)

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen_ms.setdefault(message.timestamp()[1], now_ms())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()


def test_no_tick_is_seen_before_its_time_and_no_record_closes_one(
    bootstrap: str, tmp_path: Path
) -> None:
    start = datetime.fromtimestamp(now_ms() // 1000 - 5, UTC).replace(microsecond=0)
    histogram = known(keys=["k"], start=Bare(start.isoformat()))
    site = Site(
        bootstrap,
        tmp_path,
        [histogram],
        partitions=2,
        owners=1,
        privacy={"neighbours": "record", "deliver_after": f"{AFTER_MS}ms"},
    )
    site.create_topics()
    [topic] = site.settings.output_topics
    with Watcher(site.connection, topic) as watcher:
        with site.worker() as worker:
            # No record is there yet: publishing begins with `start` all the same.
            until(lambda: len(watcher.seen_ms) >= 7, "ticks without records")
            begun = now_ms()
            # Ahead of the clock: it closes nothing, and counts in its own tick.
            site.produce(0, [sale("a", begun + 4_000), sale("b", begun)])
            until(lambda: max(watcher.seen_ms) > begun + 2_000, "later ticks")
            worker.kill()
        time.sleep(1)
        with site.running():
            until(lambda: max(watcher.seen_ms) > begun + 6_000, "all ticks")
    ends = sorted(watcher.seen_ms)
    assert ends[0] == site.settings.histograms[0].start_ms + 1_000
    assert [b - a for a, b in pairwise(ends)] == [1_000] * (len(ends) - 1)
    early = {end: at for end, at in watcher.seen_ms.items() if at < end + AFTER_MS}
    assert not early
    ticks = {what.label: what.tick for what in site.contributed()}
    start_ms = site.settings.histograms[0].start_ms
    assert ticks["a"] == (begun + 4_000 - start_ms) // 1_000 + 1
    assert ticks["b"] in range((begun - start_ms) // 1_000 + 1, ticks["a"])
    site.assert_clean()
