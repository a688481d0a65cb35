"""What makes a worker unready or dead, and what must not."""

from pathlib import Path

import pytest

from tests.agents.monitor.scene import NOW_MS, NOW_S, Scene
from workers.agents.monitor import BEHIND_S, COMMIT_MARGIN_S, LOOP_S, SHARD_S
from workers.kafka.handover import KAFKA_AWAY
from workers.kafka.offsets import Lag, ReadPosition

COMMIT_INTERVAL_S = 5.0
TICK_S = 10.0


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_worker_that_does_its_share_is_alive_and_ready(scene: Scene) -> None:
    assert scene.health.liveness_reasons(NOW_S) == []
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == []


def test_a_worker_without_partitions_is_ready_once_it_was_told_so(scene: Scene) -> None:
    scene.handover.shards = {}
    scene.handover.lags = {}
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == []
    scene.handover.assigned = False
    assert "assigned" in scene.health.readiness_reasons(NOW_S, NOW_MS)[0]


def test_a_worker_that_waits_for_kafka_is_alive_and_says_for_how_long_it_has(
    scene: Scene,
) -> None:
    outage = scene.handover.metrics.outage
    outage.begin("no broker answers")
    for status in (None, KAFKA_AWAY):
        scene.handover.exit_status = status
        [reason] = scene.health.readiness_reasons(NOW_S, NOW_MS)
        assert reason.startswith("Kafka has been away for 0 s: no broker answers")
        assert scene.health.liveness_reasons(NOW_S) == []
    scene.handover.exit_status = 2
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == ["stopping"]
    scene.handover.exit_status = None
    outage.end()
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == []


def test_a_loop_that_stands_still_is_dead_and_a_long_restore_is_not(
    scene: Scene,
) -> None:
    assert "event loop" in scene.health.liveness_reasons(NOW_S + LOOP_S + 1)[0]
    scene.handover.assigned = False
    assert scene.health.liveness_reasons(NOW_S) == []


def test_a_thread_that_is_stuck_is_dead_and_one_that_goes_on_is_not(
    scene: Scene,
) -> None:
    shard = scene.release
    shard.busy_since_s = NOW_S - SHARD_S - 1
    assert "orders-release-0" in scene.health.liveness_reasons(NOW_S)[0]
    shard.report_progress()
    assert shard.busy_since_s < NOW_S, (
        "the monotonic clock of this machine, not the test's"
    )
    shard.busy_since_s = NOW_S - SHARD_S + 1
    assert scene.health.liveness_reasons(NOW_S) == []
    shard.busy_since_s = None
    shard.report_progress()
    assert shard.busy_since_s is None


def test_a_shard_that_has_not_caught_up_makes_the_worker_unready(scene: Scene) -> None:
    tp = ("events", 1)
    scene.handover.lags[tp] = lag = Lag()
    assert "events[1]: not read yet" in scene.health.readiness_reasons(NOW_S, NOW_MS)[0]
    lag.sample(NOW_S, 100, ReadPosition(100, 100, 100))
    lag.sample(NOW_S + 1, 100, ReadPosition(100, 100, 200))
    scene.handover.beat_s = NOW_S
    assert scene.health.readiness_reasons(NOW_S + 2, NOW_MS) == []
    assert (
        "events[1]: 31 s behind"
        in scene.health.readiness_reasons(NOW_S + 2 + BEHIND_S, NOW_MS)[0]
    )


def test_a_stage_one_that_does_not_commit_makes_the_worker_unready(
    scene: Scene,
) -> None:
    shard = scene.contribute[1]
    at_rest = TICK_S + COMMIT_INTERVAL_S + COMMIT_MARGIN_S
    shard.last_commit_s = NOW_S - at_rest + 1
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == []
    shard.offset = 101
    assert "events[1]: no commit" in scene.health.readiness_reasons(NOW_S, NOW_MS)[0], (
        "it has read more"
    )
    shard.offset = 100
    shard.last_commit_s = NOW_S - at_rest - 1
    assert "events[1]: no commit" in scene.health.readiness_reasons(NOW_S, NOW_MS)[0]
    # Events dated ahead have closed the ticks of the next hour.
    shard._intake.watermark = NOW_MS + 3_600_000
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == []


def test_a_fenced_partition_and_a_stop_make_the_worker_unready(scene: Scene) -> None:
    scene.contribute[0].closed = True
    assert "events[0]: taken over" in scene.health.readiness_reasons(NOW_S, NOW_MS)[0]
    scene.handover.exit_status = 75
    assert scene.health.readiness_reasons(NOW_S, NOW_MS) == ["stopping"]


def test_a_worker_that_rejects_nearly_all_is_not_ready_and_says_why(
    scene: Scene,
) -> None:
    scene.handover.metrics.rejecting.note(
        "events", NOW_S, 200, {"missing field 'shop'": 200}
    )
    [reason] = scene.health.readiness_reasons(NOW_S, NOW_MS)
    assert reason.startswith("events: nearly all records are rejected")
    assert "missing field 'shop'" in reason
    scene.handover.metrics.rejecting.note("others", NOW_S, 200, {"not JSON": 200})
    assert len(scene.health.readiness_reasons(NOW_S, NOW_MS)) == 1, (
        "nothing of that topic is read here"
    )
