"""Which owner partition a stream key belongs to."""

from __future__ import annotations

import zlib


def owner_of(key: str, owners: int) -> int:
    """Return the owner partition of a stream key; part of the stored format, never to change."""
    return zlib.crc32(key.encode()) % owners
