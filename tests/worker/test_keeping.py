"""Old contributions are deleted behind a checkpoint: the same bytes, and an audit of what is left."""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from tests.replay.site import assert_equal_so_far, published, replayed
from tests.worker.harness import Site, known, now_ms, sale, succeed, unk, until
from tests.worker.test_sliding import WINDOWS, is_after
from workers.agents.keeping import Checkpoint, checkpoints
from workers.agents.progress import read_states
from workers.kafka.reading import bounds_of, reader
from workers.kafka.store import Changelog, Store

pytestmark = pytest.mark.waits

LASTS_MS = 5_000
KEPT_MS = 2_000


def begins(site: Site, owners: int) -> list[int]:
    """Return the first offset of every partition of the contributions."""
    topic = site.settings.contributions_topic
    with reader(site.connection) as consumer:
        return [bounds_of(consumer, topic, owner)[0] for owner in range(owners)]


def kept(site: Site, owner: int) -> list[Checkpoint]:
    store = Store(None, Changelog(site.settings.release_state_topic, owner))
    store.load(site.connection)
    return checkpoints(store)


def delete(site: Site, owner: int, before: int) -> None:
    log = TopicPartition(site.settings.contributions_topic, owner, before)
    for answer in site.admin.delete_records([log]).values():
        answer.result()


def sell(site: Site, seed: int, begin_ms: int) -> None:
    """Send events of the `LASTS_MS` from a time on to all source partitions."""
    rng = random.Random(seed)
    for partition in range(site.partitions):
        events = [
            sale(
                rng.choices("abcdef", [20, 15, 10, 5, 2, 1], k=2),
                at,
                key=rng.choice("kl"),
            )
            for at in sorted(begin_ms + rng.randrange(LASTS_MS) for _ in range(400))
        ]
        site.produce(partition, events)


def work(site: Site, runs: int) -> None:
    """Sell for LASTS_MS and publish it, again and again; at last another machine takes over."""
    for run in range(runs):
        begin_ms = now_ms() + 1_000
        sell(site, run, begin_ms)
        until(partial(is_after, begin_ms + LASTS_MS), "the events are over")
        with site.worker("elsewhere" if run == runs - 1 else "data") as worker:
            site.wait_published(begin_ms + LASTS_MS)
            assert worker.stop() == 0


BOARDS = {
    "never": [unk(**WINDOWS, total_share=0.2)],
    "epochs": [unk(horizon="4s"), known(horizon="2s")],
}


@pytest.mark.parametrize("boards", BOARDS)
def test_restart_and_takeover_after_a_deletion_publish_the_same_bytes(
    bootstrap: str, tmp_path: Path, boards: str
) -> None:
    worker: dict[str, Any] = {"keep_contributions": f"{KEPT_MS}ms"}
    site = Site(
        bootstrap, tmp_path, BOARDS[boards], partitions=2, owners=2, worker=worker
    )
    work(site, 3)
    begun = begins(site, 2)
    wanted, _ = replayed(site)
    found = published(site)
    last = max(end for _, _, end, _ in wanted)
    assert_equal_so_far({at: v for at, v in found.items() if at[2] <= last}, wanted)
    states = read_states(site.connection, site.name)
    assert states is not None
    for owner, begin in enumerate(begun):
        older, newer = kept(site, owner)
        state = states[owner]
        assert state is not None
        assert 0 < begin == older.progress.offset <= newer.progress.offset
        assert newer.progress.offset <= state.offset
        assert newer.published_ms - older.published_ms >= KEPT_MS - 1_000
        if boards == "epochs":
            # Each was made in an epoch of its own.
            assert newer.published_ms // 4_000 > older.published_ms // 4_000
    said = succeed("audit", "-c", str(site.config))
    assert "audit: begins at " in said and "earlier snapshots were not compared" in said
    assert "clean" in said
    check_planted(site)


def check_planted(site: Site) -> None:
    """A forged count after the checkpoint, and a deletion before one, are found."""
    bodies = site.snapshots()
    shown = (body for body in bodies if body["items"])
    latest = max(shown, key=lambda body: int(body["end"]))
    site.check_forged(latest)
    # An event of the near future waits, so that a deletion to the end is before the state.
    site.produce(0, [sale("a", now_ms() + 200_000)])
    site.run_until(now_ms())
    states = read_states(site.connection, site.name)
    assert states is not None
    for owner, state in enumerate(states):
        assert state is not None
        if state.offset < state.position:
            delete(site, owner, state.position)
            break
    else:
        raise AssertionError("nothing waits")
    refused = site.run_to_end()
    assert refused.returncode == 2
    assert "retention removed records that were never counted" in refused.stderr
    audit = site.audit()
    assert audit.returncode == 2 and "cannot be computed again" in audit.stderr
