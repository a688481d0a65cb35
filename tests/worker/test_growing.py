"""Events topics that get more partitions, on a real broker; the long form is `growing.py`."""

from pathlib import Path

import pytest

from tests.forked import QUICKER
from tests.worker.growing import SOON, grow, growing, wait_joined
from tests.worker.harness import Site, now_ms, quietcount, sale, succeed, unk

pytestmark = pytest.mark.waits


@pytest.fixture(autouse=True)
def quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(QUICKER, f"workers.agents.topics.INTERVAL_S=0.5 {SOON}")


def test_origins_of_two_topics_join_and_all_users_stay_where_they_are(
    bootstrap: str, tmp_path: Path
) -> None:
    """Numbers of earlier origins stay, though the first topic gets one more."""
    growing(bootstrap, tmp_path, steps=[(1, 1), (2, 1)], kills=0, seed=8, rekey=True)


def test_stream_keys_move_to_new_owners_under_load_though_workers_are_killed(
    bootstrap: str, tmp_path: Path
) -> None:
    """A tick that both owners publish, or neither, would be a wrong series of a stream key."""
    growing(bootstrap, tmp_path, steps=[(2,)], kills=2, seed=9, owners=(2, 4))


def test_a_first_start_counts_partitions_that_came_after_the_workers_topics(
    bootstrap: str, tmp_path: Path
) -> None:
    """It began its run again for ever: its state topic had no partition for the new ones."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=1, owners=1)
    grow(site, site.topic, 2)
    at = now_ms()
    site.produce(0, [sale("a", at)])
    site.produce(1, [sale("b", at)])
    with site.running():
        site.wait_published(at)
    assert site.counted() == {"a": 1, "b": 1}
    site.assert_clean()


def test_topics_adds_partitions_that_the_next_start_lets_join(
    bootstrap: str, tmp_path: Path
) -> None:
    """Where a worker may not alter topics, an operator does."""
    site = Site(bootstrap, tmp_path, [unk()], partitions=1, owners=1)
    site.run_once("a")
    grow(site, site.topic, 2)
    asked = quietcount("topics", "-c", str(site.config))
    assert asked.returncode == 0, asked.stderr
    assert f"{site.name}.contribute-state lacks partitions" in asked.stderr
    succeed("topics", "-c", str(site.config), "--create")
    assert (
        len(site.admin.list_topics().topics[f"{site.name}.contribute-state"].partitions)
        == 2
    )
    site.produce(1, [sale("b", now_ms())])
    with site.running() as worker:
        wait_joined([worker], 2)
        at = now_ms()
        site.produce(1, [sale("c", at)])
        site.wait_published(at)
    assert site.counted() == {"a": 1, "b": 1, "c": 1}
    site.assert_clean()
