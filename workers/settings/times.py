"""Times of options and messages, as whole milliseconds since 1970."""

from datetime import UTC, datetime, timedelta

from workers.runtime.errors import SettingsError

TIME_MAX_MS = 2**53


def parse_time(name: str, text: str) -> int:
    """Return a time given in RFC 3339, as a day or in ms; without a zone: UTC."""
    try:
        if text.isdecimal():
            if int(text) > TIME_MAX_MS:
                raise ValueError
            return int(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{name} {text}: a time such as 2026-11-21T08:00:00Z, a day such as 2026-11-21, or ms since 1970"
        ) from None
    return round(
        (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000
    )


def when(time_ms: int) -> str:
    """Format ms since 1970 as a UTC time with milliseconds."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    except OverflowError:  # beyond the year 9999
        return f"{time_ms} ms since 1970"
    return moment.isoformat(timespec="milliseconds")
