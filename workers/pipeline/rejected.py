"""A reject: the record as it came, with the reason, and with what it takes to send it back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from workers.kafka.records import Outgoing
from workers.runtime.sizes import MESSAGE_BYTES, VALUE_BYTES

# A record key longer than this is left out of a reject, and so are headers of more bytes together.
REJECT_KEY_BYTES_MAX = VALUE_BYTES // 10
REJECT_HEADERS_BYTES_MAX = 16_384
# Before the names of the record's own headers.
OWN = "header."
TRUNCATED = "truncated"
# Of a record that says which rejects of its partition were sent back, in the place of a reason.
RETRIED = "retried"
# Of a record that was sent back: topic, partition and offset at which it was rejected.
RETRY = "retry"

Headers = Sequence[tuple[str, bytes | None]]


class Rejected(NamedTuple):
    """A reject, as it is in the rejects topic. Sensitive.

    Attributes:
        reason: why it was no event.
        topic, partition, offset: where it was.
        time_ms: its time; None in a reject of an earlier version.
        key, value: as they came.
        headers: its own.
        truncated: whether something of it was left out, so that it cannot be sent back.
    """

    reason: str
    topic: str
    partition: int
    offset: int
    time_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    truncated: bool

    def __repr__(self) -> str:
        return f"Rejected({self.reason}, {self.topic}[{self.partition}]@{self.offset})"


def rejected(
    topic: str,
    key: bytes | None,
    value: bytes | None,
    *,
    reason: str,
    source: tuple[str, int, int],
    time_ms: int,
    further: Headers | None = (),
) -> Outgoing:
    """Return the reject of a record: as it came, but for what is too long to be sent on.

    Bound: the key has at most 90,000 bytes; topic, partition, offset and time together 420, with
    the names of the headers; the record's own headers 16,384, their names included. A reason quotes
    one name of a field, which has at most 1,000 characters, 10 bytes each when they are escaped.
    The value takes what is left, and at most 900,000.

    Args:
        topic: of the rejects.
        key: the record's.
        value: the record's.
        reason: why it is no event.
        source: its topic, partition and offset.
        time_ms: its time.
        further: its headers; None: they are too long, or are left out.
    """
    origin, partition, offset = source
    headers: list[tuple[str, bytes | None]] = [
        ("reason", reason.encode()),
        ("topic", origin.encode()),
        ("partition", str(partition).encode()),
        ("offset", str(offset).encode()),
        ("timestamp", str(time_ms).encode()),
    ]
    whole = True
    if (
        further is None
        or sum(len(OWN) + len(name.encode()) + len(content or b"") for name, content in further)
        > REJECT_HEADERS_BYTES_MAX
    ):
        whole = False
    else:
        headers += [(OWN + name, content) for name, content in further]
    if key is not None and len(key) > REJECT_KEY_BYTES_MAX:
        key, whole = None, False
    message = Outgoing(topic, None, key, b"", headers)
    room = min(VALUE_BYTES, MESSAGE_BYTES - message.nbytes - len(TRUNCATED) - len(b"true"))
    if value is not None and len(value) > room:
        value, whole = value[:room], False
    if not whole:
        headers.append((TRUNCATED, b"true"))
    return message._replace(value=value)


def read_reject(headers: Headers, key: bytes | None, value: bytes | None) -> Rejected | None:
    """Return the reject that a record of the rejects topic is; None where it is none."""
    # A header of the record's own has another name, so none is there twice.
    found = {name: content for name, content in headers if content is not None}
    try:
        return Rejected(
            found["reason"].decode(),
            found["topic"].decode(),
            int(found["partition"]),
            int(found["offset"]),
            int(found["timestamp"]) if "timestamp" in found else None,
            key,
            value,
            [
                (name.removeprefix(OWN), content)
                for name, content in headers
                if name.startswith(OWN)
            ],
            TRUNCATED in found,
        )
    except (KeyError, ValueError):  # not decodable is a ValueError
        return None
