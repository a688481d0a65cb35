"""Durations of a histogram's settings, as its numbers of ticks."""

from contextlib import suppress
from typing import Any

from workers.mechanisms.config.checked import display
from workers.mechanisms.config.durations import (
    ALLOWED,
    format_duration,
    parse_duration,
)

# Settings that count ticks, and the words that they accept beside numbers and durations.
_IN_TICKS = (
    ("horizon", ("unbounded", "never")),
    ("every", ()),
    ("hop", ()),
    ("user_period", ()),
)


def count_ticks(values: dict[str, Any], where: str) -> None:
    """Replace durations in a histogram's `values` by numbers of ticks.

    Raises ValueError, prefixed by `where`, for a text that is neither a duration nor an allowed
    word, and for part of a tick. Later checks report other errors, a wrong `tick` too.
    """
    tick_ms = 0
    with suppress(ValueError):
        tick_ms = parse_duration(values.get("tick"))
    if tick_ms == 0:
        return
    for name, words in _IN_TICKS:
        value = values.get(name)
        try:
            duration_ms = parse_duration(value)
        except ValueError:
            if isinstance(value, str) and value not in words:
                allowed = ", ".join(["a whole number of ticks", *map(display, words)])
                raise ValueError(
                    f"{where}{name} = {display(value)}: {allowed}, or a duration: {ALLOWED}"
                ) from None
            continue
        ticks, rest = divmod(duration_ms, tick_ms)
        if rest or not ticks:
            # Of the whole ticks below and above; none is no duration.
            near = [format_duration(n * tick_ms) for n in (ticks, ticks + 1) if n]
            nearest = " and ".join(f'"{duration}"' for duration in near)
            raise ValueError(
                f"{where}{name} = {display(value)}: no whole number of ticks of {format_duration(tick_ms)}; nearest: {nearest}"
            )
        values[name] = ticks
