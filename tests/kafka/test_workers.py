"""A worker's consumer group, and a log that retention cut, on a real broker."""

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from tests.kafka.harness import await_all
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
