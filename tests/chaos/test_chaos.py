"""Ended workers, on a real broker; the long version is `python -m tests.chaos`."""

from pathlib import Path

import pytest

from tests.chaos.rounds import Cluster
from tests.chaos.schedule import (
    KINDS,
    RANDOM,
    Act,
    Round,
    Segment,
    Start,
    read,
    rounds_of,
    starts_of,
    write,
)
from tests.chaos.segment import Result
from tests.chaos.steps import BROKER, START_STEPS, STEPS
from tests.chaos.worker import Workers

pytestmark = pytest.mark.waits

# The shortest that brokers allow by default.
SESSION_S = 6.0


def run(
    bootstrap: str, workers: Workers, directory: Path, *segments: Segment
) -> list[Result]:
    results = Cluster(bootstrap, workers, directory).run(Round([*segments]))
    for result in results:
        assert not result.wrong, result.wrong
    return results


def test_workers_ended_at_named_steps_count_every_event_once(
    bootstrap: str, workers: Workers, tmp_path: Path
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
    # Where no state says how many partitions count, a topic that grows during two starts refuses one
    # of them (docs/decisions/0031): the first worker ends once there is some.
    growing = [
        Act("kill", "commit: copy written"),
        Act("term", after_s=3.0),
        Act("kill", "growth: committed"),
        Act("kill", "growth: new partition restored"),
    ]
    grown = Segment(number=1, seed=11, starts=[Start([act]) for act in growing])
    grown.session_s = SESSION_S
    grown.patience_s = 90.0
    grown.starts[2].grows = True
    result, joined = run(bootstrap, workers, tmp_path, given, grown)
    assert any(end.step.startswith("growth") for end in joined.ends), joined.ends
    reached = {(end.kind, end.step) for end in result.ends}
    # Either worker may be the first with the new generation.
    assert reached >= {(act.kind, act.step) for act in acts[:5]}, reached
    assert any(step.startswith("generation") for _, step in reached), reached


def test_on_a_wrong_clock_every_event_counts_once_or_is_rejected(
    bootstrap: str, workers: Workers, tmp_path: Path
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
    results = run(bootstrap, workers, tmp_path, *segments)
    assert any(result.rejected for result in results), (
        "no worker read events on a wrong clock"
    )


def acts_of(drawn: list[Round]) -> list[Act]:
    segments = [one for each in drawn for one in each.segments]
    return [act for one in segments for start in one.starts for act in start.acts]


def test_starts_are_drawn_so_that_the_broker_is_killed_at_every_step() -> None:
    drawn = list(starts_of(7, 60, 2))
    assert drawn == list(starts_of(7, 60, 2)) != list(starts_of(8, 60, 2))
    kills = [act.step for act in acts_of(drawn) if act.kind == BROKER]
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
    acts = acts_of(drawn)
    assert len(acts) == 1_000
    assert {act.step for act in acts} == {*STEPS, RANDOM}
    assert {act.kind for act in acts if act.step == RANDOM} == {*KINDS}
    for one in [one for each in drawn for one in each.segments]:
        assert all(start.acts[-1].kind != "stop" for start in one.starts[:-1]), (
            "never begun"
        )
    assert 150 < sum(act.step == RANDOM for act in acts) < 300
