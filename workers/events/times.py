"""Which times an event may have, and the unit that explains a time outside of them.

Seconds read as milliseconds are a day of January 1970, microseconds the year 58,000. The reasons
are from a fixed set and never show the time.
"""

from __future__ import annotations

from workers.events.project import PER_SECOND, PLAUSIBLE_MS, UNIT_WORDS

#: Events dated earlier, before 2000-01-01, are rejected.
EARLIEST_MS = PLAUSIBLE_MS[0]
EARLY = "dated before 2000"
AHEAD = "dated too far ahead"
BEHIND = "dated too far behind"
NO_RECORD_TIME = "record without a time"

# Kafka has -1 for no time; `rekey` sends such a record on with 1, since 0 means the present.
_NO_RECORD_TIME_MAX = 1


def early(time_ms: int, unit: str, *, of_record: bool) -> str:
    """Return why an event dated before EARLIEST_MS is rejected.

    Args:
        time_ms: its time as it was read.
        unit: the unit that it was read in.
        of_record: whether it is the record's own time.
    """
    return NO_RECORD_TIME if of_record and time_ms <= _NO_RECORD_TIME_MAX else with_unit(EARLY, time_ms, unit)


def with_unit(reason: str, time_ms: int, unit: str) -> str:
    """Return a reason with the unit that makes the time plausible, if there is one."""
    for other, per_second in PER_SECOND.items():
        read = time_ms * PER_SECOND.get(unit, 0) // per_second
        if other != unit and PLAUSIBLE_MS[0] <= read < PLAUSIBLE_MS[1]:
            return f"{reason}: {UNIT_WORDS[other]} instead of {unit}?"
    return reason
