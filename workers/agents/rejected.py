"""A reject: the record as it came, with the reason."""

from __future__ import annotations

from workers.kafka.records import Outgoing
from workers.mechanisms.sizes import MESSAGE_BYTES, VALUE_BYTES

# A record key longer than this is left out of a reject.
REJECT_KEY_BYTES_MAX = VALUE_BYTES // 10


def rejected(
    topic: str, key: bytes | None, value: bytes | None, *, reason: str, source: tuple[str, int, int]
) -> Outgoing:
    """Return the reject of a record: as it came, but for what is too long to be sent on.

    Bound: the key has at most 90,000 bytes; topic, partition and offset together 400, with the
    names of the headers. A reason quotes one name of a field, which has at most 1,000 characters,
    10 bytes each when they are escaped. The value takes what is left, and at most 900,000.

    Args:
        topic: of the rejects.
        key: the record's.
        value: the record's.
        reason: why it is no event.
        source: its topic, partition and offset.
    """
    origin, partition, offset = source
    headers = [
        ("reason", reason.encode()),
        ("topic", origin.encode()),
        ("partition", str(partition).encode()),
        ("offset", str(offset).encode()),
    ]
    if key is not None and len(key) > REJECT_KEY_BYTES_MAX:
        key = None
    message = Outgoing(topic, None, key, b"", headers)
    room = min(VALUE_BYTES, MESSAGE_BYTES - message.nbytes - len("truncated") - len(b"true"))
    if value is not None and len(value) > room:
        value = value[:room]
        headers.append(("truncated", b"true"))
    return message._replace(value=value)
