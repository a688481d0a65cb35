"""The progress record of stage 2: read from an owner partition's state topic."""

from __future__ import annotations

import msgspec

from workers.agents.contributions import decode
from workers.agents.merge import ReleaseProgress
from workers.errors import StateRefused
from workers.kafka.clients import Connection
from workers.kafka.reading import read_partition

#: Key of the progress record in the state topics of all stages.
PROGRESS = b"progress"


def read_progress(value: bytes) -> ReleaseProgress:
    """Return the stored progress record.

    Raises:
        StateRefused: this version cannot read it.
    """
    try:
        return msgspec.json.decode(value, type=ReleaseProgress)
    except msgspec.DecodeError as error:
        raise StateRefused(
            f"the stored progress cannot be read ({error}): was it written by another version?"
        ) from error


def complete_ms(connection: Connection, contributions: str, partition: int, progress: ReleaseProgress) -> int | None:
    """Return the time up to which all contributions of an owner partition complete its ticks; None
    where a source partition has said nothing yet.
    """
    marks = list(progress.watermarks)
    for record in read_partition(connection, contributions, partition, since=progress.position):
        message = decode(record.value() or b"")
        if message.page == message.pages and 0 <= message.source < len(marks):
            marks[message.source] = message.watermark
    known = [mark for mark in marks if mark is not None]
    return min(known) if len(known) == len(marks) else None
