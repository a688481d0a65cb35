"""A reject: the original record, the reason, and the data needed to send it back.

It is a record of the rejects topic with the key and value of the original; headers say the reason
and where the original lies, and repeat its own headers with the prefix `OWN`.
"""

from collections.abc import Sequence
from typing import NamedTuple

from workers.kafka.records import Outgoing
from workers.runtime.sizes import MESSAGE_BYTES, VALUE_BYTES

# A reject omits a longer record key, and headers of more bytes in total.
REJECT_KEY_BYTES_MAX = VALUE_BYTES // 10
REJECT_HEADERS_BYTES_MAX = 16_384
# Prefix of the names of the record's own headers.
OWN = "header."
TRUNCATED = "truncated"
# In place of a reason: the record names the rejects of its partition that were sent back.
RETRIED = "retried"
# Header of a record that was sent back: topic, partition and offset at which it was rejected.
RETRY = "retry"

Headers = Sequence[tuple[str, bytes | None]]


class Rejected(NamedTuple):
    """A stored reject, at its record's position; if `truncated`, parts are missing. Sensitive."""

    reason: str
    topic: str
    partition: int
    offset: int
    time_ms: int
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
    """Return the reject of a record, without those parts that are too long to send.

    `topic` is that of the rejects. `source` is the original's topic, partition and offset, `key`,
    `value`, `time_ms` and `further` (its own headers) are the original's, too.

    Bound: the key has at most 90,000 bytes; topic, partition, offset and time 420 with header
    names; the record's own headers (None: left out) 16,384 with names. A reason quotes
    one field name of at most 1,000 characters, 10 bytes each when escaped. The value takes the
    rest, at most 900,000 bytes.
    """
    origin, partition, offset = source
    headers: list[tuple[str, bytes | None]] = [
        ("reason", reason.encode()),
        ("topic", origin.encode()),
        ("partition", str(partition).encode()),
        ("offset", str(offset).encode()),
        ("timestamp", str(time_ms).encode()),
    ]
    originals = [(OWN + name, content) for name, content in further or ()]
    size = sum(len(name.encode()) + len(content or b"") for name, content in originals)
    is_whole = further is not None and size <= REJECT_HEADERS_BYTES_MAX
    if is_whole:
        headers += originals
    if key is not None and len(key) > REJECT_KEY_BYTES_MAX:
        key = None
        is_whole = False
    # The value gets the room that everything else leaves.
    message = Outgoing(topic, None, key, b"", headers)
    room = min(
        VALUE_BYTES, MESSAGE_BYTES - message.nbytes - len(TRUNCATED) - len(b"true")
    )
    if value is not None and len(value) > room:
        value = value[:room]
        is_whole = False
    if not is_whole:
        headers.append((TRUNCATED, b"true"))
    return message._replace(value=value)


def read_reject(
    headers: Headers, key: bytes | None, value: bytes | None
) -> Rejected | None:
    """Return the reject in a record of the rejects topic; None if it is not one."""
    # The record's own headers are prefixed, so no name occurs twice.
    by_name = {name: content for name, content in headers if content is not None}
    try:
        return Rejected(
            by_name["reason"].decode(),
            by_name["topic"].decode(),
            int(by_name["partition"]),
            int(by_name["offset"]),
            int(by_name["timestamp"]),
            key,
            value,
            [
                (name[len(OWN) :], content)
                for name, content in headers
                if name.startswith(OWN)
            ],
            TRUNCATED in by_name,
        )
    except (KeyError, ValueError):  # undecodable text is a ValueError
        return None
