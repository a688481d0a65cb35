"""Events topics by a regular expression, on a real broker."""

from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, quietcount, sale, unk, until
from tests.worker.test_refusals import assert_refused
from workers.agents import topics as module
from workers.agents.topics import RunningTopics, check_topics, watch_topics
from workers.cli import execute
from workers.kafka.topics import partition_counts
from workers.runtime.metrics import Metrics

pytestmark = pytest.mark.waits


def test_a_regular_expression_means_what_it_matched_at_first(
    bootstrap: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A later topic would shift the numbers, and nobody may assume that it is counted."""
    site = Site(bootstrap, tmp_path, [unk()], topics=(1, 2), owners=1, create=False)
    # its own topics, and everything that begins like them
    site.set("events", topic=f"^{site.name}.*")
    refused = quietcount("topics", "-c", str(site.config))
    assert refused.returncode == 2
    assert f"events.topic = '^{site.name}.*': matches no topic on" in refused.stderr
    site.create_events()
    site.create_topics()
    site.run_once(sources=range(site.partitions))
    assert site.counted() == {"a": 3}
    shown = partition_counts(site.connection)
    # Kafka's own topics are no events.
    assert site.topic + "-0" in shown and "__transaction_state" not in shown
    early = f"{site.topic}-05"
    late = f"{site.topic}-late"
    monkeypatch.setattr(module, "INTERVAL_S", 0.2)
    metrics = Metrics()
    unread = metrics.registry.get_sample_value
    topics = check_topics(site.settings, site.connection)
    assert topics.events == tuple(site.topics) and topics.unread == ()
    running = RunningTopics(site.settings, topics, metrics)
    with watch_topics(site.connection, running):
        assert unread("quietcount_unread_topics") == 0
        site.create_topic(early, 2)  # between the two of the first start
        until(lambda: unread("quietcount_unread_topics") == 1, "it is noticed")
    site.create_topic(late, 1)
    site.produce(0, [sale("never", now_ms())], topic=late)
    with site.running() as worker:
        at = now_ms()
        site.produce(2, [sale("b", at)])
        site.wait_published(at)
    for name in (early, late):
        assert worker.output().count(f"topic {name} matches events.topic") == 1
    assert site.counted() == {"a": 3, "b": 1}
    site.assert_clean()
    capsys.readouterr()
    assert execute(["topics", "-c", str(site.config)]) == 0
    said = capsys.readouterr()
    assert f"{late} matches events.topic too, but is not counted" in said.err
    assert all(name in said.out for name in site.topics) and late not in said.out
    site.delete_topic(next(iter(site.topics)))
    assert_refused(
        site.run_to_end(), f"events.topic = '{next(iter(site.topics))}': no such topic"
    )
