"""One worker over several events topics."""

from pathlib import Path

import pytest

from tests.worker.harness import Site, now_ms, sale, unk, until
from tests.worker.test_refusals import assert_refused
from workers.pipeline.growth.sources import SOURCES as SET

pytestmark = pytest.mark.slow


@pytest.fixture
def site(cluster: str, tmp_path: Path) -> Site:
    return Site(cluster, tmp_path, [unk()], topics=(1, 2), owners=1)


def test_rejects_name_topic_and_partition_and_the_set_is_stored_with_each_state(
    site: Site,
) -> None:
    """Operators look for the record there; the next start must know what the numbers mean."""
    at = now_ms()
    for source in range(3):
        site.produce(source, [b"broken", sale(f"from-{source}", at)])
    with site.running() as worker:
        site.wait_published(at)
        until(lambda: len(site.rejects()) == 3, "all rejects")
    log = worker.output()
    eu, us = site.topics
    places = [(h["topic"], h["partition"], h["offset"]) for _, h in site.rejects()]
    assert places == [(eu, "0", "0"), (us, "0", "0"), (us, "1", "0")]
    assert f"{us}[1]: records rejected: not JSON" in log
    assert f"source partitions 1 to 2 are those of topic {us}" in log
    assert site.counted() == {"from-0": 1, "from-1": 1, "from-2": 1}
    state = site.read(f"{site.name}.contribute-state")
    keys = [(message.partition() or 0, message.key()) for message in state]
    # Once for each source partition.
    assert sorted(where for where, key in keys if key == SET) == [0, 1, 2]
    site.assert_clean()


def test_another_set_of_topics_is_refused(site: Site) -> None:
    """The same numbers would mean other partitions: offsets would be used in another topic."""
    eu, us = site.topics
    site.run_once(sources=range(site.partitions))
    site.create_topic(f"{site.topic}-9", 1)
    site.set("events", topic=[eu, us, f"{site.topic}-9"])
    made = f"the state was made with {eu}, {us}: another set of topics"
    assert_refused(site.run_to_end(), f"are {eu}, {us}, {site.topic}-9; {made}")
    site.set("events", topic=[us, f"{site.topic}-9"])  # as many, but the other numbers
    site.document["histogram"][0]["generation"] = (
        2  # what is counted is part of the mechanism too
    )
    assert_refused(
        site.run_to_end(), f"the state was made with {eu}, {us}", "new worker name"
    )
    site.set("events", topic=us)
    assert_refused(site.run_to_end(), f"are {us}; {made}", "new worker name")
    del site.document["histogram"][0]["generation"]
    site.set("events", topic=[us, eu])  # the order means nothing
    site.run_once(sources=range(site.partitions))
    site.delete_topic(us)
    assert_refused(site.run_to_end(), f"events.topic = '{us}': no such topic")
    site.create_topic(us, 2)  # its offsets mean other events now
    for source in (1, 2):
        site.produce(source, [sale("b", 1)] * 10)
    made_anew = f"the events topic {us} was deleted and created again"
    assert_refused(site.run_to_end(), made_anew, "new worker name")
