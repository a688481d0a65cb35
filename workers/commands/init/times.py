"""Find the event time field, its unit, and how far events are out of order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workers.commands.init import names
from workers.commands.init.fields import NEARLY_ALL, Field, percent
from workers.events.times import PLAUSIBLE_MS, time_ms
from workers.mechanisms.config.durations import format_duration

# Times are valid from 2000 on, and at most as far ahead of the clock as events may be.
OLDEST_MS, _ = PLAUSIBLE_MS
MAX_AHEAD_MS = 300_000
# Share of a number's values in order at which it may be a time without its name saying so.
_ASCENDING = 0.9
_NEAR_MS = 86_400_000
_UNITS = ("s", "ms", "us", "ns")
# `grace` is rounded up to one of these. More would delay every snapshot for the sake of few events.
_GRACES_MS = (0, 1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 900_000, 3_600_000)
# Share of the events that should come within it.
_IN_TIME = 0.99


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TimeCandidate:
    """Candidate for the event time.

    `unit` is as in the settings: "iso", or what a number counts, such as "ms". `score` is
    a relative likelihood, whose weights are judgements. `times` are ms since 1970, by the record's
    place; `ascending` is the share of them that are not before the previous one in their partition.
    """

    field: Field
    unit: str
    times: dict[int, int]
    ascending: float
    score: float

    @property
    def reason(self) -> str:
        """Why the field may be the time of events, in words."""
        what = "ISO 8601 text"
        if self.unit != "iso":
            written = ", written as text," if self.field.text else ""
            what = f"a number{written} that is a time between 2000 and now if read in {self.unit}"
        order = "always in order"
        if self.ascending < 1:
            order = f"in order in {percent(self.ascending)} of them"
        share = len(self.times) / self.field.total
        others = "" if share == 1 else "; the others are rejected"
        return f"{what}, in {percent(share)} of the events, {order}{others}"


def times_of(
    fields: Sequence[Field],
    partitions: Sequence[int],
    logged: Sequence[int],
    now_ms: int,
) -> list[TimeCandidate]:
    """Return candidates, likeliest first; `logged` has Kafka's timestamps by record, in ms."""
    found = [_time(field, partitions, logged, now_ms) for field in fields]
    likely = [time for time in found if time is not None and time.score > 0]
    return sorted(likely, key=lambda time: (-time.score, str(time.field.path)))


def _time(
    field: Field, partitions: Sequence[int], logged: Sequence[int], now_ms: int
) -> TimeCandidate | None:
    """Return a field as a candidate for the event time; None if its values are no times.

    `partitions` and `logged` have the partition of each record, and Kafka's timestamp, ms, which a
    time of the event should be near.
    """
    if not (field.everywhere and (field.text or field.numeric)):
        return None
    latest = now_ms + MAX_AHEAD_MS
    # The first unit in which nearly all values are plausible times. In no other one could they be:
    # units differ by a factor of 1,000.
    for unit in ("iso", *_UNITS) if field.text else _UNITS:
        times = _read(field.column, unit, latest)
        if times is not None:
            break
    else:
        return None
    ascending = share_in_order(times, partitions)
    named = field.name_has(names.TIME)
    if not named and unit != "iso" and ascending < _ASCENDING:
        return None  # a number that happens to be in that range
    apart = sorted(abs(event_ms - logged[place]) for place, event_ms in times.items())
    score = 3.0 * named - 4.0 * field.name_has(names.OTHER_TIME) + 2.0 * (unit == "iso")
    score += 2.0 * (ascending >= _ASCENDING) - 0.1 * len(field.path.steps)
    # Most events are logged within a day of their time.
    score += apart[len(apart) // 2] <= _NEAR_MS
    return TimeCandidate(
        field=field, unit=unit, times=times, ascending=ascending, score=score
    )


def _read(
    column: Mapping[int, object], unit: str, latest: int
) -> dict[int, int] | None:
    """Return the values of a column that are times, in ms, by place; None unless nearly all are.

    `latest` is the latest plausible time.
    """
    needed = NEARLY_ALL * len(column)
    # How many values can still turn out to be times: with too few, the rest is not read.
    possible = len(column)
    times = {}
    for place, value in column.items():
        event_ms = time_ms(value, unit)
        if event_ms is not None and OLDEST_MS <= event_ms <= latest:
            times[place] = event_ms
            continue
        possible -= 1
        if possible < needed:
            return None
    return times


def share_in_order(times: dict[int, int], partitions: Sequence[int]) -> float:
    """Return the share of times, by record, that are not before the previous one in the partition.

    `partitions` has the partition of each record.
    """
    before: dict[int, int] = {}
    good = 0
    for place in sorted(times):
        good += times[place] >= before.get(partitions[place], 0)
        before[partitions[place]] = times[place]
    return good / len(times) if times else 1.0


def grace_of(times: dict[int, int], partitions: Sequence[int]) -> tuple[str, str]:
    """Return how long a tick should stay open for late events, and why.

    `times` and `partitions` have the time, ms, and the partition of records, by place.
    """
    newest: dict[int, int] = {}
    # How much each event is older than the newest before it in its partition, ms.
    late = []
    for place in sorted(times):
        partition = partitions[place]
        newest[partition] = max(newest.get(partition, 0), times[place])
        late.append(newest[partition] - times[place])
    late.sort()
    why = "how long a tick stays open for late events; in the sample"
    if not late or late[-1] == 0:
        return "0s", f"{why} none was late"
    wanted = late[min(len(late) - 1, int(_IN_TIME * len(late)))]
    grace = next((grace for grace in _GRACES_MS if grace >= wanted), _GRACES_MS[-1])
    beyond = sum(late_ms > grace for late_ms in late) / len(late)
    rest = f"{percent(beyond)} were later still" if beyond else "none was later"
    some = percent(sum(map(bool, late)) / len(late))
    return format_duration(grace), f"{why} {some} were late, {rest}"
