"""Ended workers, on a real broker; the long version is `python -m tests.chaos`."""

from pathlib import Path

import pytest

from tests.chaos.rounds import BRIEFLY, Cluster, cluster
from tests.chaos.schedule import (
    KINDS,
    RANDOM,
    Act,
    Round,
    Segment,
    Start,
    Trouble,
    read,
    rounds_of,
    starts_of,
    write,
)
from tests.chaos.segment import Result
from tests.chaos.steps import BROKER, START_STEPS, STEPS
from tests.chaos.worker import Workers
from tests.kafka.late_end_txn import FATES, Faults
from tests.kafka.proxy import Api, Fate, proxied_broker

pytestmark = pytest.mark.waits

# Every fifth commit is requested twice, and most duplicates arrive again in the middle of a later
# transaction.
LATE = {
    Api.END_TXN: {Fate.HOLD: 0.2, Fate.LOSE: 0.04},
    Api.PRODUCE: FATES[Api.PRODUCE],
    Api.ADD_PARTITIONS: FATES[Api.ADD_PARTITIONS],
}
# The shortest that brokers allow by default.
SESSION_S = 6.0


def run(bootstrap: str, directory: Path, *segments: Segment) -> list[Result]:
    with Workers() as workers:
        results = Cluster(bootstrap, workers, directory).run(Round([*segments]))
    for result in results:
        assert not result.wrong, result.wrong
    return results


def test_workers_ended_at_named_steps_count_every_event_once(
    bootstrap: str, tmp_path: Path
) -> None:
    """Double counts break the guarantee; a republished tick with other data reveals data.

    Of two topics: mixed-up numbers would count twice, or resume at another's position.
    """
    acts = [
        Act("kill", "re-key: records, no mark", 3),
        Act("term", "users: block made"),
        Act("kill", "commit: committed, copy not written", 5),
        Act("kill", "commit: produced", 3, "-release-"),
        Act("kill", "ceiling: reserved, others not read"),
        Act("kill", "generation: raised"),
        Act("kill", "generation: committed"),
    ]
    starts = [Start([act]) for act in acts]
    starts[2].acts.insert(0, Act("stop", after_s=0.5))
    starts[2].copy = "swapped"
    starts[3].copy = "truncated"
    starts[5].raises = True
    given = Segment(number=0, seed=7, starts=starts, topics=(1, 3), session_s=SESSION_S)
    given.unit = "user"
    given.rekey = True
    given.ceiling = True
    given.horizon = 12
    given.patience_s = 90.0
    growing = [
        Act("kill", after_s=2.0),
        Act("term", after_s=3.0),
        Act("kill", "growth: committed"),
        Act("kill", "growth: new partition restored"),
    ]
    grown = Segment(number=1, seed=11, starts=[Start([act]) for act in growing])
    grown.session_s = SESSION_S
    grown.starts[2].grows = True
    result, joined = run(bootstrap, tmp_path, given, grown)
    assert any(end.step.startswith("growth") for end in joined.ends), joined.ends
    reached = {(end.kind, end.step) for end in result.ends}
    # Either worker may be the first with the new generation.
    assert reached >= {(act.kind, act.step) for act in acts[:5]}, reached
    assert any(step.startswith("generation") for _, step in reached), reached


def test_on_a_wrong_clock_every_event_counts_once_or_is_rejected(
    bootstrap: str, tmp_path: Path
) -> None:
    """A wrong clock moves events to other ticks; it must not count one twice, or lose one unseen."""
    segments = []
    for number, clock in enumerate(("+1h", "-1y")):
        starts = [
            Start([Act("kill", after_s=5.0)], clock=clock),
            Start([Act("kill", after_s=3.0)]),
        ]
        segments.append(
            Segment(number=number, seed=9, starts=starts, session_s=SESSION_S)
        )
    results = run(bootstrap, tmp_path, *segments)
    assert any(result.rejected for result in results), (
        "no worker read events on a wrong clock"
    )


@pytest.mark.usefixtures("own_kafka")
def test_a_worker_cut_off_from_a_broker_and_moved_leaders_lose_nothing(
    tmp_path: Path,
) -> None:
    trouble = [Trouble("cut off", 1, 5.0, 6.0), Trouble("leaders moved", 2, 11.0, 0.0)]
    starts = [Start([Act("kill", after_s=12.0)]), Start([Act("stop", after_s=8.0)])]
    given = Segment(
        number=0, seed=10, starts=starts, session_s=SESSION_S, ahead_ms=15_000
    )
    with cluster(3, tmp_path) as running:
        [result] = running.run(Round([given], trouble))
    assert not result.wrong, result.wrong
    assert len(result.ends) == 2


@pytest.mark.usefixtures("own_kafka")
def test_no_tick_is_torn_where_the_network_delivers_commits_late(
    tmp_path: Path,
) -> None:
    """A proxy breaks connections and holds requests: audit is clean, sums are exact."""
    with proxied_broker() as proxy:
        proxy.rule = faults = Faults(proxy, 3, LATE)
        given = Segment(number=0, seed=8, starts=[], backlog=10_000, ahead_ms=20_000)
        [result] = run(f"127.0.0.1:{proxy.port}", tmp_path, given)
    assert result.snapshots > 300
    late = {kind for kind in faults.delivered if kind.startswith("commit")}
    assert late == {"commit: INVALID_PRODUCER_EPOCH"}, faults.delivered


def test_a_broker_killed_while_workers_start_ends_none_of_them(tmp_path: Path) -> None:
    """A client that its broker left in the middle of a call once ended a start with 2."""
    killed = (
        "start: end of state asked",
        "start: consumer made",
        "take-over: end of state asked",
    )
    starts = [Start([Act(BROKER, step), Act("term", after_s=8.0)]) for step in killed]
    given = Segment(
        number=0, seed=12, starts=starts, session_s=SESSION_S, patience_s=60.0
    )
    given.ahead_ms = 60_000
    with cluster(1, tmp_path, living=BRIEFLY) as running:
        [result] = running.run(Round([given], away_s=[0.0, 17.0, 2.0]))
    assert not result.wrong, result.wrong
    assert {end.step for end in result.ends if end.kind == BROKER} == {*killed}


def test_starts_are_drawn_so_that_the_broker_is_killed_at_every_step() -> None:
    drawn = list(starts_of(7, 60, 2))
    assert drawn == list(starts_of(7, 60, 2)) != list(starts_of(8, 60, 2))
    acts = [
        act
        for each in drawn
        for one in each.segments
        for start in one.starts
        for act in start.acts
    ]
    kills = [act.step for act in acts if act.kind == BROKER]
    assert len(kills) == 60 == sum(len(each.away_s) for each in drawn)
    assert set(kills) == {*START_STEPS}


def test_a_schedule_is_the_same_for_the_same_seed_and_is_read_as_written(
    tmp_path: Path,
) -> None:
    drawn = list(rounds_of(7, 1_000, 1, 4))
    assert drawn == list(rounds_of(7, 1_000, 1, 4)) != list(rounds_of(8, 1_000, 1, 4))
    path = tmp_path / "schedule"
    path.write_text("\n".join(["seed 7", *write(drawn), '{"segment":1}']))
    assert list(read(path)) == drawn
    acts = [
        act
        for each in drawn
        for one in each.segments
        for start in one.starts
        for act in start.acts
    ]
    assert len(acts) == 1_000
    assert {act.step for act in acts} == {*STEPS, RANDOM}
    assert {act.kind for act in acts if act.step == RANDOM} == {*KINDS}
    for one in [one for each in drawn for one in each.segments]:
        assert all(start.acts[-1].kind != "stop" for start in one.starts[:-1]), (
            "never begun"
        )
    assert 150 < sum(act.step == RANDOM for act in acts) < 300
