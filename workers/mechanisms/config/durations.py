"""Durations such as "10s" or "250ms", as whole milliseconds."""

import re
from types import MappingProxyType

MILLISECONDS = MappingProxyType(
    {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
)
ALLOWED = 'a whole number and a unit (ms, s, m, h or d) in quotes, such as "250ms", "10s", "5m", "1h" or "1d"'

_DURATION = re.compile(r"([0-9]{1,18})(ms|s|m|h|d)", re.ASCII)


def parse_duration(text: object) -> int:
    """Return milliseconds; raise ValueError, with the allowed form, for anything else."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(ALLOWED)
    return int(match[1]) * MILLISECONDS[match[2]]


def format_duration(duration_ms: int) -> str:
    """Return the shortest text that `parse_duration` reads as `duration_ms`."""
    if duration_ms < 0:
        raise ValueError(f"duration_ms = {duration_ms}: 0 or more")
    if duration_ms == 0:
        return "0s"
    units = reversed(MILLISECONDS)
    unit = next(unit for unit in units if duration_ms % MILLISECONDS[unit] == 0)
    return f"{duration_ms // MILLISECONDS[unit]}{unit}"


def length_of(milliseconds: int, *, up: bool = False) -> str:
    """Return a length of time in its two largest units, rounded down or `up`: "5 d 13 h"."""
    # How many of each unit, the largest first, without units of which there are none.
    parts = []
    rest = milliseconds
    for unit in reversed(MILLISECONDS):
        whole, rest = divmod(rest, MILLISECONDS[unit])
        if whole:
            parts.append((whole, unit))
    # Up to the next whole number of the second unit, which may carry over to the first.
    if up and len(parts) > 2:
        step = MILLISECONDS[parts[1][1]]
        return length_of((milliseconds // step + 1) * step)
    named = (f"{whole:,} {'min' if unit == 'm' else unit}" for whole, unit in parts[:2])
    return " ".join(named)
