"""Where a partition's time begins, and which events are too old, in both ways to stage 1."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events.reading import columns, reader
from tests.neighbours.driver import Clock
from tests.pipeline.pipeline import KEY
from workers.mechanisms.config.histogram import Lane
from workers.pipeline import watermark
from workers.pipeline.intake import Intake
from workers.pipeline.rekey_markers import NO_TIME
from workers.pipeline.watermark import BACKLOG_TICKS_MAX, Watermark

NOW_MS = 1_795_296_236_000
DAY_MS = 86_400_000
# Ticks of a second: the oldest first tick is 115 days before the clock.
LANE = Lane(1_000, 0, 1, 1)
OLDEST_MS = NOW_MS - BACKLOG_TICKS_MAX * LANE.tick_ms
YEARS_AGO_MS = NOW_MS - 25 * 365 * DAY_MS


def test_a_first_event_of_years_ago_moves_nothing_and_the_next_one_begins() -> None:
    """It stopped the worker at every start; before that, ten million empty ticks were published."""
    intake = Intake([LANE], 0, KEY, max_behind_ms=7 * DAY_MS)
    assert intake.add(columns([("k", ["a"], YEARS_AGO_MS)]), NOW_MS).tolist() == [0]
    assert (intake.watermark, intake.first, intake.empty) == (None, None, True)
    dated = ("a", YEARS_AGO_MS), ("b", NOW_MS - 50), ("c", YEARS_AGO_MS)
    events = columns([("k", [label], time) for label, time in dated])
    assert intake.add(events, NOW_MS).tolist() == [0, 2]
    assert (intake.watermark, intake.first) == (NOW_MS - 50, NOW_MS - 50)
    [(_, message)] = intake.take_messages(source=0, sequences=[0], offset=4)
    assert [part.labels for part in message.sections] == [b"b"]


def test_the_first_tick_is_at_most_ten_million_ticks_back() -> None:
    """Within `max_behind` of that time an event counts, late; a millisecond earlier it does not."""
    for behind_ms, refused in ((7 * DAY_MS, []), (7 * DAY_MS + 1, [0])):
        intake = Intake([LANE], 0, KEY, max_behind_ms=7 * DAY_MS)
        events = columns([("k", ["a"], OLDEST_MS - behind_ms)])
        assert intake.add(events, NOW_MS).tolist() == refused
        assert intake.first == intake.watermark == (None if refused else OLDEST_MS)
    unbounded = Intake([LANE], 0, KEY)
    assert not len(unbounded.add(columns([("k", ["a"], YEARS_AGO_MS)]), NOW_MS))
    assert unbounded.first == unbounded.watermark == OLDEST_MS


def test_replayed_years_are_kept_where_ticks_are_wide_or_begin_later() -> None:
    """Few ticks need publishing then; and a file has no clock."""
    wide = Lane(3_600_000, 0, 1, 1)
    later = Lane(1_000, NOW_MS - DAY_MS, 1, 1)
    by_clock = [([wide], NOW_MS), ([later], NOW_MS), ([wide, later], NOW_MS)]
    for lanes, read_ms in (*by_clock, ([LANE], None)):
        intake = Intake(lanes, 0, KEY, max_behind_ms=7 * DAY_MS)
        years = [("k", ["a"], YEARS_AGO_MS + year * 365 * DAY_MS) for year in range(25)]
        assert not len(intake.add(columns(years), read_ms))
        assert intake.first == YEARS_AGO_MS
    narrowest = Intake([wide, LANE], 0, KEY, max_behind_ms=7 * DAY_MS)
    assert narrowest.add(columns([("k", ["a"], YEARS_AGO_MS)]), NOW_MS).tolist() == [0]


def test_the_clock_moves_the_watermark_that_events_must_not_be_too_far_behind() -> None:
    """Old events loaded during a run would count in today's tick, epochs later."""
    intake = Intake([LANE], 0, KEY, max_behind_ms=DAY_MS)
    intake.read_to_end(NOW_MS)
    events = columns([("k", ["a"], NOW_MS - DAY_MS - 1), ("k", ["b"], NOW_MS - DAY_MS)])
    assert intake.add(events, NOW_MS).tolist() == [0]
    assert (intake.watermark, intake.first) == (NOW_MS, NOW_MS)


TIMES = st.lists(st.integers(0, 120), min_size=1, max_size=40)
CUTS = st.lists(st.integers(0, 40), max_size=5)


@pytest.mark.slow
@given(
    TIMES,
    CUTS,
    CUTS,
    st.integers(0, 60),
    st.sampled_from([0, 3]),
    st.sampled_from([None, 60, 200]),
)
def test_events_sent_on_by_user_are_refused_as_if_they_were_not(
    times: list[int],
    cuts: list[int],
    other: list[int],
    most: int,
    grace: int,
    read_ms: int | None,
) -> None:
    """The origin decides and tells with the event; batch cuts of either stage do not matter."""
    plain = Intake([Lane(10, 0, 1, 1)], grace, KEY, max_behind_ms=most)
    wanted = plain.add(
        columns([("k", ["a"], time) for time in times]), read_ms
    ).tolist()

    def bounds(at: list[int]) -> list[int]:
        return sorted({0, len(times), *(cut % (len(times) + 1) for cut in at)})

    origin = Watermark([Lane(10, 0, 1, 1)], grace, most)
    said = np.full(len(times), NO_TIME)
    for start, stop in pairwise(bounds(cuts)):
        dated = np.array(times[start:stop], dtype=np.int64)
        counts = origin.advance_by(dated, read_ms)
        late = counts > dated  # as `RekeyShard` says it
        said[start:stop][late] = counts[late]
    intake = Intake([Lane(10, 0, 1, 1)], grace, KEY, max_behind_ms=most)
    by = reader()
    found = []
    for start, stop in pairwise(bounds(other)):
        events = columns([("k", ["a"], time) for time in times[start:stop]], by)
        found += (start + intake.add(events, read_ms, said[start:stop])).tolist()
    assert found == wanted
    assert origin.watermark == plain.watermark
    assert intake.rows == plain.rows


def by_the_clock(lane: Lane = LANE, grace_ms: int = 0) -> Intake:
    """Return an intake of which only the clock closes ticks, as it begins without a state."""
    intake = Intake([lane], grace_ms, KEY, max_behind_ms=7 * DAY_MS, by_clock=True)
    clock = Clock()
    clock.now_ms = NOW_MS
    with patch.object(watermark, "time", clock):
        intake.restore(None, None)
    return intake


def test_by_the_clock_no_record_moves_the_watermark_nor_begins_anything() -> None:
    start_ms = NOW_MS - DAY_MS
    lane = Lane(1_000, start_ms, 1, 1)
    intake = by_the_clock(lane)
    assert intake.first == intake.watermark == start_ms
    dated = ("a", NOW_MS), ("b", NOW_MS + 60_000), ("c", start_ms + 5)
    assert not len(intake.add(columns([("k", [x], at) for x, at in dated]), NOW_MS))
    assert intake.watermark == start_ms
    intake.read_to_end(NOW_MS)
    assert intake.watermark == NOW_MS
    assert not len(intake.add(columns([("k", ["d"], NOW_MS - 5_000)]), NOW_MS))
    [(_, message)] = intake.take_messages(source=0, sequences=[0], offset=4)
    ticks = {bytes(part.labels): part.tick for part in message.sections}
    tick = DAY_MS // 1_000
    assert ticks == {b"c": 1, b"a": tick + 1, b"d": tick + 1, b"b": tick + 61}


def test_by_the_clock_a_closed_tick_is_committed_at_once_also_in_a_backlog() -> None:
    intake = by_the_clock(Lane(1_000, NOW_MS - DAY_MS, 1, 1))
    intake.note_commit()
    assert not intake.commit_due()
    for later_ms in (1_000, 2_000):
        intake.read_to_end(NOW_MS - DAY_MS + later_ms)
        assert intake.commit_due()
        intake.note_commit()
        assert not intake.commit_due()


def test_by_the_clock_a_record_is_ahead_of_the_open_tick_or_of_the_opening() -> None:
    start_ms = NOW_MS - DAY_MS
    intake = by_the_clock(Lane(1_000, start_ms, 1, 1), grace_ms=300)
    for mark_ms, latest_ms in ((start_ms, NOW_MS), (NOW_MS, NOW_MS + 1_300)):
        intake.advance_to(mark_ms)
        for read_ms in (NOW_MS, NOW_MS + 50_000):
            assert intake.latest_ms(NOW_MS, read_ms) == latest_ms
    assert Intake([LANE], 0, KEY).latest_ms(NOW_MS, NOW_MS + 7) == NOW_MS + 7
