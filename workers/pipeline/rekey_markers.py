"""Markers that re-keyed events carry about their origin, and how stage 1 uses them.

    record   key: the user; value, time and headers unchanged. If needed, our header comes first:
             8 bytes, the time it counts at if later than its own (big endian, -1: its own); then
             1 and the record's original key, or 0. Keys are sent only where a record key is a
             stream key: each costs as much as sending a record
    mark     no value; key: {"origin", "of", "sequence", "watermark"} as JSON

Every re-keying commit ends with a mark in each partition: all earlier events of this origin are
there, and no later one counts before `watermark`. So a source partition's watermark is the minimum
over its origins, however their records interleave. Marks of an origin are numbered: if one is
missing or repeated, so are events, and processing stops. Origins that join later begin at the
watermark of the mark of origin 0 that tells of them. Reasons: decisions/0014 and 0031.

An origin is a partition of the events topics, numbered among all of them; source partitions are
those of the topic to which it sends events by user. A record is *late* if the origin's watermark
was already past its own time when it was sent on.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec
import numpy as np

from workers.arrays.compiled import checked_kernel
from workers.arrays.texts import readonly_contiguous
from workers.arrays.types import Bytes, Longs
from workers.events.reading import Reject
from workers.kafka.records import Records, varint
from workers.pipeline.growth.owners import PARTITIONS_MAX
from workers.pipeline.ledger_blocks import UNDECODABLE
from workers.pipeline.watermark import least_of
from workers.runtime.errors import StateRefused

HEADER = "quietcount"
#: In place of a time: the event counts at its own time.
NO_TIME = -1
# Flag after the 8 bytes of a time: the record key follows.
HAS_KEY = 1
_NAME = HEADER.encode()
_NO_KEY = b"\0"
_KEY = bytes((HAS_KEY,))


class Mark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Re-keying progress of origin `origin` of `of`; `sequence` from 0, `watermark` in Unix ms.

    The watermark is None until the origin has read its first event or reached the end of its log;
    until then no source partition closes a tick. After the first mark, only marks of origin 0
    announce more origins.
    """

    origin: Annotated[int, msgspec.Meta(ge=0)]
    of: Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
    sequence: int
    watermark: int | None


_DECODER = msgspec.json.Decoder(Mark)


class Origin(msgspec.Struct, array_like=True):
    """The number of one origin's next mark, and the watermark, if any, in its last one."""

    sequence: int = 0
    watermark: int | None = None


class Origins:
    """Progress of all origins at one source partition. Sensitive."""

    def __init__(self, number: int | None) -> None:
        """Begin with `number` origins, whose marks must be numbered from 0.

        None is for replay, which may begin anywhere in the topic: the first mark taken tells how
        many there are, and each origin's first mark may have any number.
        """
        self._strict = number is not None
        self.all = [Origin() for _ in range(number or 0)]

    @property
    def watermark(self) -> int | None:
        """Time up to which ticks may be closed; None while an origin has no watermark."""
        return least_of([origin.watermark for origin in self.all])

    def take(
        self, records: Records, part: range, rejects: Sequence[Reject], where: object
    ) -> list[Reject]:
        """Take the marks in rows `part` of a batch; return the `rejects` that are not marks.

        The reader of events rejects a mark, as it has no value. `where` is the partition, for
        messages. Raise StateRefused if a mark is missing, repeated or foreign.
        """
        marks: set[int] = set()
        without = np.flatnonzero(records.values[part.start : part.stop, 0] < 0)
        for row in (part.start + without).tolist():
            try:
                mark = _DECODER.decode(records.key(row) or b"")
            except UNDECODABLE:
                continue
            if mark.origin >= mark.of:
                continue
            marks.add(row)
            self._take(mark, f"{where}: offset {records.offsets[row]}")
        return [reject for reject in rejects if reject.index not in marks]

    def _take(self, mark: Mark, where: str) -> None:
        """Note a mark, read at `where`; StateRefused unless it follows its origin's last one."""
        if not self.all:
            self.all = [Origin() for _ in range(mark.of)]
        # If it tells of more origins than are known, these have joined. Only origin 0 may say so,
        # and from which watermark on; in replay, any mark may be the first to tell.
        if mark.origin == 0 or not self._strict:
            begin = mark.watermark if mark.origin == 0 else None
            self.all += [Origin(0, begin) for _ in range(len(self.all), mark.of)]
        if mark.origin >= len(self.all):
            raise StateRefused(
                f"{where}: a mark of partition {mark.origin} of the events, of which {len(self.all)} are known: "
                "a topic of this worker was deleted or cut. Restore it, or continue under a new worker.name "
                "(a new epoch, charged again)"
            )
        origin = self.all[mark.origin]
        if mark.sequence != origin.sequence and (self._strict or origin.sequence > 0):
            raise StateRefused(
                f"{where}: mark {mark.sequence} of partition {mark.origin} of the events, where {origin.sequence} follows: "
                "events were lost or sent on twice, since a topic of this worker was deleted or cut. Restore it, or continue "
                "under a new worker.name (a new epoch, charged again)"
            )
        self.all[mark.origin] = Origin(mark.sequence + 1, mark.watermark)


def encode_header(late: int, key: bytes | None) -> bytes:
    """Encode the content of the header `HEADER`: time in 8 bytes, a flag, and the original key.

    The record counts at `late` if that is later than its own time; NO_TIME: at its own. A `key` of
    None: it had none, or it is not kept.
    """
    time = late.to_bytes(8, signed=True)
    return time + _NO_KEY if key is None else time + _KEY + key


def read_headers(headers: Any) -> tuple[int, bytes | None]:
    """Return the time and key that `encode_header` was given, from a Kafka client's headers.

    Return (NO_TIME, None) if the first header is not ours.
    """
    if not headers or headers[0][0] != HEADER or len(value := headers[0][1] or b"") < 9:
        return NO_TIME, None
    key = value[9:] if value[8] == HAS_KEY else None
    return int.from_bytes(value[:8], signed=True), key


@checked_kernel
def parse_markers(
    data: Bytes, values: Longs, name: Bytes, keys: Longs, late: Longs
) -> None:
    """Parse our header, which has `name`, where it is the first one of a record.

    In `data` follow a record's value: the number of headers; of each the length of its name, the
    name, the length of its content, and the content. Ours has 8 bytes of time (big endian), a flag,
    and the original key. Numbers and lengths are varints.

    Args:
        values: (n, 2), start and stop of each record's value in `data`; start -1: null.
        keys: (n, 2), written: start and stop of the original key; start -1: null, or not kept.
        late: (n,), written: the time in ms at which a late record counts; NO_TIME: at its own.

    Raises IndexError if headers extend beyond `data`.
    """
    for i in range(len(values)):
        keys[i, 0] = -1
        keys[i, 1] = -1
        late[i] = NO_TIME
        if values[i, 0] < 0:
            continue
        number, position = varint(data, values[i, 1])
        if number < 1:
            continue
        length, position = varint(data, position)
        if length != len(name):
            continue
        has_name = True
        for place in range(length):
            has_name &= data[position + place] == name[place]
        if not has_name:
            continue
        length, position = varint(data, position + length)
        # Not ours: it would have time and flag.
        if length < 9:
            continue
        time_ms = np.int64(0)
        for place in range(8):
            time_ms = time_ms << 8 | np.int64(data[position + place])
        late[i] = time_ms
        if data[position + 8] == HAS_KEY:
            keys[i, 0] = position + 9
            keys[i, 1] = position + length


def restore_originals(records: Records, *, user_is_key: bool) -> tuple[Records, Longs]:
    """Return re-keyed records with their original keys, and the times (n,) of late ones.

    A late record counts at that time; others have NO_TIME. With `user_is_key`, the user is the
    original key, so no key was replaced.
    """
    # Spans in the records' data: start and stop; -1 for null.
    keys = np.full((len(records), 2), -1)
    late = np.full(len(records), NO_TIME)
    # Only records as they were fetched have headers, after their values.
    if records.framed:
        values = readonly_contiguous(records.values)
        name = np.frombuffer(_NAME, dtype=np.uint8)
        parse_markers(records.data, values, name, keys, late)
    if not user_is_key:
        # A mark has no value. It keeps its key, which is its content.
        is_mark = records.values[:, :1] < 0
        records = replace(records, keys=np.where(is_mark, records.keys, keys))
    return records, late
