"""Impossible times are rejects that name the likely unit, and old times move nothing."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.events.reading import (
    ANY,
    FIELDS,
    columns,
    event_reader,
    events_of,
    reader,
)
from tests.pipeline.pipeline import KEY, unk
from workers.events.reading import SourceReader
from workers.kafka.records import Records
from workers.pipeline.contributions import Section, decode
from workers.pipeline.intake import Intake

NOW_MS = 1_795_296_236_471
DAY_MS = 86_400_000


def reasons(value: object, unit: str = "ms") -> list[str]:
    by = SourceReader(event_reader(replace(FIELDS, timestamp_unit=unit)), ANY)
    record = json.dumps({"key": "k", "items": ["a"], "ts": value}).encode()
    [reading] = by.read(Records.of([record]), NOW_MS + 300_000)
    return [reject.reason for reject in reading.rejects]


@pytest.mark.parametrize(
    ("value", "unit", "reason"),
    [
        (NOW_MS // 1000, "ms", ["dated before 2000: seconds instead of ms?"]),
        (NOW_MS * 1000, "ms", ["dated too far ahead: microseconds instead of ms?"]),
        (NOW_MS * 1000, "s", ["field 'ts' is not a time in s: microseconds?"]),
        (NOW_MS // 1000, "us", ["dated before 2000: seconds instead of us?"]),
        (NOW_MS, "us", ["dated before 2000: milliseconds instead of us?"]),
        (NOW_MS, "ns", ["dated before 2000: milliseconds instead of ns?"]),
        (0, "ms", ["dated before 2000"]),
        (946_684_799_999, "ms", ["dated before 2000"]),
        (946_684_800_000, "ms", []),
        (NOW_MS, "ms", []),
        (NOW_MS + 300_001, "ms", ["dated too far ahead"]),
    ],
)
def test_a_time_in_another_unit_is_a_reject_that_names_the_unit(
    value: int, unit: str, reason: list[str]
) -> None:
    """Seconds in a field of milliseconds once counted in the tick of today."""
    assert reasons(value, unit) == reason


def test_a_record_without_a_time_says_so() -> None:
    """Kafka has -1 where a producer gave none; that is not a wrong unit."""
    fields = replace(FIELDS, timestamp=None)
    record = json.dumps({"key": "k", "items": ["a"]}).encode()
    [reading] = SourceReader(event_reader(fields), ANY).read(
        Records.of([record], times=[-1])
    )
    assert [reject.reason for reject in reading.rejects] == ["record without a time"]


def test_seconds_read_as_milliseconds_begin_no_epoch_of_1970() -> None:
    """As the first event, with ticks of six hours, one had 166,092 snapshots published."""
    intake = Intake([unk(tick_ms=21_600_000, horizon=4).lane], 0, KEY)
    record = json.dumps({"key": "k", "items": ["a"], "ts": NOW_MS // 1000}).encode()
    found, _ = events_of(
        SourceReader(event_reader(FIELDS), ANY).read(Records.of([record]))
    )
    intake.add(found, NOW_MS)
    assert (intake.watermark, intake.first, intake.empty) == (None, None, True)


def counted(
    times: list[int], cuts: list[int], most: int | None
) -> tuple[list[int], int | None, int | None, list[Section]]:
    """Return the events too far behind, the first time, the watermark, and the sections by tick.

    Batches decide which tick opens first, and so the order of ticks in a message; the merge takes
    sections by lane and tick.
    """
    intake = Intake([unk(tick_ms=10).lane], 3, KEY, max_behind_ms=most)
    by = reader()
    rejected: list[int] = []
    bounds = sorted({0, len(times), *(cut % (len(times) + 1) for cut in cuts)})
    for start, stop in pairwise(bounds):
        events = columns(
            [("k", [f"i{at % 3}"], times[at]) for at in range(start, stop)], by
        )
        rejected += (start + intake.add(events)).tolist()
    said = intake.take_messages(source=0, sequences=[0], offset=0)
    sections = [
        section for _, message in said for section in decode(message.encoded()).sections
    ]
    by_tick = sorted(sections, key=lambda section: section.tick)
    return rejected, intake.first, intake.watermark, by_tick


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 120), min_size=1, max_size=40),
    st.lists(st.integers(0, 40), max_size=5),
    st.integers(0, 60),
)
@example([0, 20, 0, 7], [32], 10)  # tick 2 opens after tick 3
def test_what_is_too_far_behind_does_not_depend_on_where_batches_end(
    times: list[int], cuts: list[int], most: int
) -> None:
    """A worker, its restart and a replay divide a partition into different batches."""
    whole = counted(times, [], most)
    assert counted(times, cuts, most) == whole
    # The rule, event by event.
    mark: int | None = None
    expected = []
    for place, time in enumerate(times):
        moved = time if mark is None else max(mark, time - 3)
        if max(time, moved) - time > most:
            expected.append(place)
        else:
            mark = moved
    assert whole[0] == expected


def test_an_event_counts_up_to_max_behind_and_no_further() -> None:
    """The bound itself counts in the open tick; without a bound all events count."""
    late = [1_000, 1_000 - DAY_MS % 997]
    behind = late[0] - 3 - late[1]
    assert counted(late, [], behind + 3)[0] == []
    assert counted(late, [], behind - 1)[0] == [1]
    assert counted(late, [], None)[0] == []
    assert counted([late[1], late[0]], [], 0)[0] == []


@pytest.mark.slow
def test_only_the_numbers_of_a_small_set_of_reasons_are_made() -> None:
    """A reason becomes a metric label: content must not create new ones."""
    rng = np.random.default_rng(3)
    values = rng.integers(0, 1 << 62, 300).tolist()
    assert len({reason for value in values for reason in reasons(value)}) <= 4
