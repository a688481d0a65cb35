"""No event is released under two generations, even to readers of uncommitted records."""

import json
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.kafka.harness import commits, read
from tests.worker.harness import Site, known, now_ms, sale, until
from workers.agents.topics import check_topics
from workers.agents.worker import Factory
from workers.kafka.offsets import LogEnd
from workers.kafka.reading import read_partition
from workers.kafka.records import Batch, Records

pytestmark = pytest.mark.waits


class Died(Exception): ...


def contribute_up_to_now(factory: Factory) -> None:
    """Close every tick by the clock, as stage 1 does at the end of its log."""
    shard = factory.contribute_shard(next(iter(factory.sources)))
    shard.open()
    shard.reached(LogEnd(now_ms(), shard.offset or 0))
    assert commits(shard) == 1
    shard.close()


def die_before_the_commit(
    factory: Factory, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Release all complete ticks, and leave the transaction open with the snapshots in the log."""
    shard = factory.release_shard(0)
    # one for all shards
    assert (
        shard.merge.gil_lock
        is factory.contribute_shard(next(iter(factory.sources)))._gil_lock
    )
    shard.open()

    insist = shard.transactions._call_until_done

    def die(name: str, call: Callable[[float], object]) -> None:
        if name == "commit":
            call.__self__.flush(60)  # type: ignore[attr-defined]  # the producer's method
            raise Died
        insist(name, call)

    monkeypatch.setattr(shard.transactions, "_call_until_done", die)
    start = shard.offset or 0
    records = list(
        read_partition(site.connection, f"{site.name}.contributions", 0, since=start)
    )
    values = [record.value() for record in records]
    offsets = [record.offset() or 0 for record in records]
    batch = Batch(start, offsets[-1] + 1, Records.of(values, offsets=offsets))
    with pytest.raises(Died):
        shard.feed(batch)
    shard.close()


def ends(site: Site, topic: str, isolation: str) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for message in read(site.connection, topic, 0, isolation):
        body = json.loads(message.value() or b"{}")
        found[body["id"]].add(body["end"])
    return found


def published_after(site: Site, topic: str, time_ms: int) -> bool:
    return any(
        max(times) > time_ms for times in ends(site, topic, "read_committed").values()
    )


def test_a_tick_of_an_aborted_transaction_is_not_published_by_a_new_generation(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same tick under other noise is a second measurement of all its events."""
    histograms = [known("items", keys=["k"]), known(keys=["k"])]
    site = Site(bootstrap, tmp_path, histograms, partitions=1, owners=1)
    at = now_ms()
    site.produce(0, [sale("a", at)])
    site.run_until(at)
    topics = [f"{site.name}.items", f"{site.name}.known"]
    time.sleep(3)  # ticks that nobody has worked on
    before = [ends(site, topic, "read_uncommitted") for topic in topics]
    found = check_topics(site.settings, site.connection)
    factory = Factory(site.settings, site.connection, found, site.key, None)
    contribute_up_to_now(factory)
    die_before_the_commit(factory, site, monkeypatch)
    raised: dict[str, Any] = site.document["histogram"][0]
    raised["generation"] = 2
    site.rewrite()
    began = now_ms()
    with site.running():
        for topic in topics:
            until(partial(published_after, site, topic, began), topic)
    for topic, then, generations in zip(topics, before, (2, 1), strict=True):
        seen = ends(site, topic, "read_uncommitted")
        [old] = then
        assert seen[old] - then[old], "the planted transaction is in the log"
        assert len(seen) == generations
        [*new] = [times for name, times in seen.items() if name != old]
        assert not any(times & seen[old] for times in new), (
            "a tick that both generations published"
        )
    assert site.audit().returncode == 0
