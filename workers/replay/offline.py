"""Replay: the worker's core over a file of events, without Kafka. For the operator: it reads exact data.

One source partition, one owner partition, time from the data alone: ticks close as the events' time passes them, and the end of the
input closes the last one. The noise comes from mechanism ids of its own ("replay"), so a backtest never draws production's noise; the
same input, settings and key give the same bytes on every machine.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO

import msgspec

from workers.agents.board import declared_keys, histograms, lanes, mechanisms
from workers.agents.events import EventReader
from workers.agents.intake import Intake
from workers.agents.merge import Merge
from workers.agents.snapshots import Snapshot
from workers.errors import SettingsError
from workers.mechanisms.noise import NoiseKey
from workers.settings import RECORD_KEY, EventsSettings, Settings

LINES_AT_A_TIME = 10_000
STREAM = "replay"


@dataclass(slots=True)
class Summary:
    """What a replay saw and did."""

    events: int = 0
    rejects: Counter[str] = field(default_factory=Counter)
    first_rejects: list[tuple[int, str]] = field(default_factory=list)
    snapshots: int = 0
    seconds: float = 0.0


def line_events(events: EventsSettings) -> EventsSettings:
    """How events read from lines: the time in `events.timestamp`, else in `ts`; a record key in `key`."""
    return msgspec.structs.replace(
        events, timestamp=events.timestamp or "ts", key="key" if events.key == RECORD_KEY else events.key
    )


def replay(
    settings: Settings,
    key: NoiseKey,
    lines: Iterator[bytes],
    write: Callable[[Snapshot], object],
    progress: Callable[[Summary], None] = lambda summary: None,
    stream: str = STREAM,
) -> Summary:
    """Runs every histogram over a file of events.

    Args:
        settings: of the worker; nothing of `[kafka]` is used.
        key: the operator's root key.
        lines: one JSON event each.
        write: takes each snapshot, in order of tick, then of histogram.
        progress: told how far it is, now and then.
        stream: goes into the mechanism ids.

    Returns:
        What was read and written. Broken lines are counted, with the first hundred line numbers.
    """
    begun = time.perf_counter()
    reader = EventReader(line_events(settings.events), declared_keys(settings))
    intake = Intake(lanes(settings), settings.events.grace_ms)
    merge = Merge(
        histograms(settings, mechanisms(settings), key=key, stream=stream, owner=0, owners=1),
        key=key,
        sources=1,
        owners=1,
    )
    summary = Summary()
    sequences, offset, at, latest = [0], 0, 0, None

    def commit() -> None:
        nonlocal offset
        for _, message in intake.commit(source=0, sequences=sequences, offset=at):
            merge.receive(message, offset)
            offset += 1
        merge.reached(offset)

    def release() -> None:
        while (released := merge.release()).ticks:
            merge.changes()
            for snapshot in released.snapshots:
                write(snapshot)
            summary.snapshots += len(released.snapshots)

    while batch := list(islice(lines, LINES_AT_A_TIME)):
        values = [line.rstrip(b"\r\n") for line in batch]
        events, rejects = reader.read(values, [None] * len(values), [0] * len(values), latest_ms=None)
        for reject in rejects:
            if values[reject.index]:  # an empty line is no event and no error
                summary.rejects[reject.reason] += 1
                if len(summary.first_rejects) < 100:
                    summary.first_rejects.append((at + reject.index + 1, reject.reason))
        intake.add(events)
        if len(events.times):
            latest = max(int(events.times.max()), latest or 0)
        at += len(values)
        summary.events += len(events.times)
        if intake.closes():
            commit()
            release()
        summary.seconds = time.perf_counter() - begun
        progress(summary)
    if latest is not None:
        intake.watermark = max(latest, intake.watermark or 0)
        commit()
        merge.end_of_input()
        release()
    summary.seconds = time.perf_counter() - begun
    return summary


def open_lines(source: str) -> IO[bytes]:
    """The file to read; "-" is standard input.

    Raises:
        SettingsError: it cannot be read.
    """
    if source == "-":
        import sys

        return sys.stdin.buffer
    path = Path(source)
    if path.suffix == ".parquet":
        raise SettingsError(f"--input {source}: Parquet is not read yet, see docs/limits.md; give JSON lines")
    try:
        return path.open("rb")
    except OSError as error:
        raise SettingsError(f"--input {source}: {error.strerror}") from error
