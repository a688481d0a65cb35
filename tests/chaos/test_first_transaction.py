"""The first transaction of an owner partition is aborted: nothing of its ticks is in the state."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.worker.harness import Site, known, now_ms, sale, until
from tests.worker.test_generation import Died, ends, published_after
from workers.agents.topics import check_topics
from workers.agents.worker import Factory
from workers.kafka.offsets import LogEnd
from workers.kafka.reading import read_partition
from workers.kafka.records import Batch, Records

pytestmark = pytest.mark.waits


def batch(values: list[bytes | None], offsets: list[int]) -> Batch:
    return Batch(0, offsets[-1] + 1, Records.of(values, offsets=offsets))


def publish_and_die(
    factory: Factory, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leave the transaction with the first snapshots open, as a killed worker does."""
    shard = factory.release_shard(0)
    shard.open()
    shard.offset = 0
    insist = shard.transactions._call_until_done
    commit = shard._commit
    publishing = False

    def publish(messages: Any) -> None:
        nonlocal publishing
        publishing = bool(messages)
        commit(messages)

    def die(name: str, call: Callable[[float], object]) -> None:
        if publishing and name == "commit":
            call.__self__.flush(60)  # type: ignore[attr-defined]  # the producer's method
            raise Died
        insist(name, call)

    monkeypatch.setattr(shard, "_commit", publish)
    monkeypatch.setattr(shard.transactions, "_call_until_done", die)
    records = list(
        read_partition(site.connection, site.settings.contributions_topic, 0)
    )
    read = batch(
        [one.value() for one in records], [one.offset() or 0 for one in records]
    )
    with pytest.raises(Died):
        shard.feed(read)
    shard.close()


def test_ticks_of_an_aborted_first_transaction_are_not_published_by_a_new_generation(
    bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by `python -m tests.chaos`: readers of uncommitted records saw ticks with two noises."""
    site = Site(
        bootstrap, tmp_path, [known("items", keys=["k"])], partitions=1, owners=1
    )
    event = sale("a", now_ms() - 5_000)
    topic = f"{site.name}.items"
    site.produce(0, [event])
    found = check_topics(site.settings, site.connection)
    factory = Factory(site.settings, site.connection, found, site.key, None)
    source = factory.contribute_shard(next(iter(factory.sources)))
    source.open()
    source.offset = 0
    source.feed(batch([json.dumps(event).encode()], [0]))
    source.reached(LogEnd(now_ms(), 1))
    source.close()
    publish_and_die(factory, site, monkeypatch)
    assert not site.snapshots()
    [aborted] = ends(site, topic, "read_uncommitted").values()
    assert len(aborted) > 3
    site.document["histogram"][0]["generation"] = 2
    site.rewrite()
    began = now_ms()
    with site.running():
        until(partial(published_after, site, topic, began), topic)
    first, second = ends(site, topic, "read_uncommitted").values()
    assert not first & second, "ticks that both generations published"
    assert site.audit().returncode == 0
