"""A worker's consumer group, and a log that retention cut, on a real broker."""

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # re-exports
    ConfigResource,
    ResourceType,
)

from tests.kafka.harness import PATIENCE_S, await_all
from tests.worker.harness import Site, now_ms, sale, unk, until

pytestmark = pytest.mark.waits


@pytest.fixture
def site(bootstrap: str, tmp_path: Path) -> Site:
    return Site(bootstrap, tmp_path, [unk()])


def send(site: Site) -> int:
    at = now_ms()
    return site.burst(100, lambda _: sale("a", at))


def test_records_removed_before_they_were_counted_are_refused(site: Site) -> None:
    """Retention overtook the worker: publishing over the gap would be silently wrong."""
    site.run_until(send(site))
    send(site)
    places = [TopicPartition(*log) for log in site.places]
    with closing(site.connection.consumer()) as consumer:
        for place in places:
            _, place.offset = consumer.get_watermark_offsets(place)
    await_all(site.admin.delete_records(places))
    done = site.run_to_end()
    assert done.returncode == 2 and "retention removed records" in done.stderr
    assert "Traceback" not in done.stderr


def test_group_offsets_follow_for_lag_tools(site: Site) -> None:
    places = [TopicPartition(*log) for log in site.places]
    group = {"group.id": site.name}
    with site.running(), closing(site.connection.consumer(**group)) as consumer:
        site.wait_published(send(site))

        def lag() -> int:
            ends = (consumer.get_watermark_offsets(place)[1] for place in places)
            committed = (
                max(each.offset, 0) for each in consumer.committed(places, timeout=60)
            )
            return sum(ends) - sum(committed)

        until(lambda: lag() == 0, "no lag")


def test_two_workers_publish_all_windows_and_one_takes_over_from_the_other(
    bootstrap: str, tmp_path: Path
) -> None:
    """Each window has a topic of its own, with the settings of any histogram's."""
    windows = unk(horizon="never", windows=["2s", "10s", "1m"])
    site = Site(bootstrap, tmp_path, [windows, unk("other")], partitions=2, owners=2)
    with site.worker("one") as killed, site.worker("two") as other:
        site.wait_published(send(site))
        killed.kill()
        site.wait_published(send(site))
        assert other.stop() == 0
    site.await_audit()
    topics = site.settings.output_topics
    names = ("items.2s", "items.10s", "items.1m", "other")
    assert list(topics) == [f"{site.name}.{name}" for name in names]
    resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
    found = site.admin.describe_configs(resources).values()
    configs = [future.result(PATIENCE_S) for future in found]
    kept = {
        (config["retention.ms"].value, config["cleanup.policy"].value)
        for config in configs
    }
    assert kept == {("-1", "delete")}
    windowed = [body for body in site.snapshots() if "window" in body]
    assert {body["histogram"] for body in windowed} == set(names[:3])
    assert any(body["items"] for body in windowed)
