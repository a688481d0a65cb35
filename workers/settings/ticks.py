"""Durations where a histogram's settings count ticks: `horizon = "1d"` is so many of its ticks."""

from __future__ import annotations

from typing import Any

from workers.durations import ALLOWED, format_duration, parse_duration
from workers.mechanisms.checked import display

#: Settings of a histogram that count ticks.
COUNTED_IN_TICKS = ("horizon", "every")


def count_ticks(values: dict[str, Any], where: str) -> None:
    """Put numbers of ticks in place of durations, in a histogram's `values`.

    What is no duration is left as it is, and so is all beside a tick that is none: whoever checks
    those settings says so.

    Raises:
        ValueError: a duration is no whole number of ticks; the message begins with `where`.
    """
    try:
        tick_ms = parse_duration(values.get("tick"))
    except ValueError:
        return
    if tick_ms == 0:
        return
    for name in COUNTED_IN_TICKS:
        value = values.get(name)
        try:
            duration_ms = parse_duration(value)
        except ValueError:
            if isinstance(value, str) and value != "unbounded":
                words = 'a whole number of ticks, "unbounded"' if name == "horizon" else "a whole number of ticks"
                raise ValueError(f"{where}{name} = {display(value)}: {words}, or a duration: {ALLOWED}") from None
            continue
        if duration_ms < tick_ms or duration_ms % tick_ms:
            below = duration_ms // tick_ms
            nearest = " and ".join(f'"{format_duration(n * tick_ms)}"' for n in (below, below + 1) if n)
            raise ValueError(
                f"{where}{name} = {display(value)}: no whole number of ticks of {format_duration(tick_ms)}; nearest: {nearest}"
            )
        values[name] = duration_ms // tick_ms
