"""No event is released under two generations, even to readers of uncommitted records."""

import json
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.stages import Stages
from tests.kafka.harness import before_commit, read
from tests.worker.harness import Site, known, now_ms, sale, until

pytestmark = pytest.mark.slow


class Died(Exception): ...


def die() -> None:
    raise Died


def die_publishing(stages: Stages, monkeypatch: pytest.MonkeyPatch) -> None:
    """Release all complete ticks, and leave the transaction open with the snapshots in the log."""
    shard = stages.take_over(0)
    commit = shard._commit

    def publish(messages: Any) -> None:
        if messages:
            before_commit(shard.transactions, die)
        commit(messages)

    monkeypatch.setattr(shard, "_commit", publish)
    with pytest.raises(Died):
        stages.release(shard)


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


@pytest.mark.parametrize("first", [False, True])
def test_a_tick_of_an_aborted_transaction_is_not_published_by_a_new_generation(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """The same tick under other noise is a second measurement of all its events.

    Of an owner's `first` transaction nothing is in the state (found by `python -m tests.chaos`).
    """
    histograms = [known("items", keys=["k"]), known(keys=["k"])]
    site = Site(cluster, tmp_path, histograms, partitions=1, owners=1)
    stages = Stages(site)
    event = sale("a", now_ms())
    if not first:
        site.run_once()
    # Ticks that nobody has worked on.
    until(lambda: now_ms() > event["ts"] + 5_000, "ticks have passed")  # type: ignore[operator]
    stages.contribute(now_ms(), [event] if first else [])
    topics = [f"{site.name}.items", f"{site.name}.known"]
    before = [ends(site, topic, "read_uncommitted") for topic in topics]
    die_publishing(stages, monkeypatch)
    aborted = [ends(site, topic, "read_uncommitted") for topic in topics]
    raised: dict[str, Any] = site.document["histogram"][0]
    raised["generation"] = 2
    site.rewrite()
    began = now_ms()
    with site.running():
        for topic in topics:
            until(partial(published_after, site, topic, began), topic)
    for topic, then, now, generations in zip(
        topics, before, aborted, (2, 1), strict=True
    ):
        [(old, planted)] = now.items()
        assert planted - then[old], "the planted transaction is in the log"
        seen = ends(site, topic, "read_uncommitted")
        assert len(seen) == generations
        assert not any(times & planted for name, times in seen.items() if name != old)
    assert site.audit().returncode == 0
