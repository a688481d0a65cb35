"""Times of events: a number since 1970 in a unit, or ISO 8601, as ms; and why a value is none."""

import re
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_FLOOR, Context, Decimal
from types import MappingProxyType
from typing import TypeGuard

from workers.events.numbers import number_in
from workers.settings.times import TIME_MAX_MS

ISO = "iso"
PER_SECOND = MappingProxyType(
    {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
)
UNIT_WORDS = MappingProxyType(
    {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
)
#: 2000 to 2100; times outside suggest a wrong unit.
PLAUSIBLE_MS = (946_684_800_000, 4_102_444_800_000)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLI = Decimal("0.001")
_EXACT = Context(prec=40)

# The extended and the basic format, and what databases and languages write instead of its zone:
# "+00" (Postgres), " UTC" (BigQuery), " +0100" (Ruby). Behind an offset, a zone in brackets (Java,
# RFC 9557) adds nothing.
_CLOCK = (
    r"(\d{4})(?P<dash>-?)(\d\d)(?P=dash)(\d\d)[Tt ]"
    r"(\d\d)(?P<colon>:?)(\d\d)(?:(?P=colon)(\d\d)(?:[.,](?P<fraction>\d+))?)?"
)
_ZONE = r" ?(?:[Zz]|UTC|GMT|(?P<sign>[+-])(?P<hours>\d\d)(?::?(?P<minutes>\d\d))?)"
_ISO = re.compile(rf"{_CLOCK}(?:{_ZONE}(?:\[[A-Za-z][\w+\-/.=]*\])*)?", re.ASCII)
# Times that are not read, with what a reject says about them.
_REFUSED = (
    (re.compile(r"\d{4}-\d\d-\d\d", re.ASCII), "a date without a time of day"),
    (re.compile(rf"{_CLOCK} ?[AaPp]\.?[Mm].*", re.ASCII), "a time with AM or PM"),
    (
        re.compile(rf"{_CLOCK} ?\[?[A-Za-z].*", re.ASCII),
        "a time zone by name, not by its offset",
    ),
    (
        re.compile(
            r".{0,16}?\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec).*",
            re.IGNORECASE,
        ),
        "a date with the name of a month",
    ),
)


def time_ms(value: object, unit: str) -> int | None:
    """Return a time in ms since 1970, rounded down; None if it is not a valid event time."""
    number = number_in(value) if isinstance(value, str) else value
    found = _iso(value) if unit == ISO else _since_1970(number, unit)
    return None if found is None or not 0 <= found <= TIME_MAX_MS else found


def _is_number(value: object) -> TypeGuard[int | float | Decimal]:
    """Return whether a value is a number; booleans, ints in Python, are none."""
    return isinstance(value, int | float | Decimal) and not isinstance(value, bool)


def _since_1970(value: object, unit: str) -> int | None:
    """Convert a number in a unit to ms, rounded down, as exactly as the number is written.

    Returns None if it is no number, negative, or too large for any time.
    """
    if not _is_number(value) or value < 0:
        return None
    if isinstance(value, int):
        return value * 1000 // PER_SECOND[unit]
    if not value <= TIME_MAX_MS * PER_SECOND["ns"]:
        return None  # infinite, NaN, or far beyond
    if unit != "s":
        # Its fraction is less than a ms.
        return int(value) * 1000 // PER_SECOND[unit]
    if isinstance(value, Decimal):
        return int(value.quantize(_MILLI, ROUND_FLOOR, _EXACT).scaleb(3, _EXACT))
    # A float, as binary formats hold it, may lie just below the ms that was written: round to the
    # microsecond first.
    return round(value * 1e6) // 1000


def _iso(value: object) -> int | None:
    """Parse an ISO 8601 time to ms since 1970; UTC if it has no zone."""
    parts = _ISO.fullmatch(value) if isinstance(value, str) else None
    if parts is None:
        return None
    # Groups 2 and 6 are the separators of the date and of the time of day.
    year, month, day, hour, minute, second = (
        int(parts[n] or 0) for n in (1, 3, 4, 5, 7, 8)
    )
    fraction = parts["fraction"] or ""
    hours = int(parts["hours"] or 0)
    minutes = int(parts["minutes"] or 0)
    if hours > 23 or minutes > 59:
        return None
    offset = timedelta(hours=hours, minutes=minutes) * (
        -1 if parts["sign"] == "-" else 1
    )
    # 24:00 is the end of the day, and a leap second is counted as the one after it.
    ends_day = (hour, minute, second) == (24, 0, 0) and not fraction.strip("0")
    leaps = second == 60
    try:
        moment = datetime(
            year,
            month,
            day,
            0 if ends_day else hour,
            minute,
            59 if leaps else second,
            tzinfo=timezone(offset),
        )
    except ValueError:
        return None
    since_s = (moment - _EPOCH) // timedelta(seconds=1)
    # A leap second is the last one of a day in UTC.
    if leaps and since_s % 86_400 != 86_399:
        return None
    since_s += 86_400 * ends_day + leaps
    return since_s * 1000 + int(fraction[:3].ljust(3, "0"))


def why_no_time(value: object, unit: str) -> str:
    """Return what a value that is no time in `unit` seems to be, such as ": seconds?".

    It is the end of a reject reason: one of a fixed set, "" if there is no guess.
    """
    number = number_in(value) if isinstance(value, str) else value
    # The units in which it would be a time of this century.
    likely = [
        word
        for other, word in UNIT_WORDS.items()
        if other != unit and _plausible(value, other)
    ]
    if unit == ISO and _is_number(number):
        what = "a number as text" if isinstance(value, str) else "a number"
        return f": {what}" + (f", {likely[0]}?" if likely else "")
    if likely:
        return f": {likely[0]}?"
    if not isinstance(value, str):
        return ""
    if unit == ISO:
        return _why_not_iso(value)
    if time_ms(value, ISO) is not None:
        return ": ISO 8601?"
    return ": a text that holds no number" if number is None else ""


def _why_not_iso(text: str) -> str:
    """Return why a text is no ISO time that is read, as the end of a reject reason."""
    if _ISO.fullmatch(text):
        return ": no such date, time or offset"
    return next((f": {why}" for form, why in _REFUSED if form.fullmatch(text)), "")


def _plausible(value: object, unit: str) -> bool:
    """Return whether a value, read in a unit, is a time between 2000 and 2100."""
    found = time_ms(value, unit)
    return found is not None and PLAUSIBLE_MS[0] <= found < PLAUSIBLE_MS[1]
