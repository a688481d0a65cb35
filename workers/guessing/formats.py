"""In which format the values of a topic are, and their records as plain objects.

A format is a decoder: a function of a value's bytes that returns what a record holds, or raises a
ValueError. JSON is looked for first; a value that begins with a zero byte and four of a schema's id
is framed as serializers with a Schema Registry do it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from workers.errors import SettingsError
from workers.events.json_objects import JsonDecoder
from workers.events.tree import build

Decoder = Callable[[bytes], object]
MAGIC, FRAME_BYTES = 0, 5
# Longer values are rejects with the settings that are written.
VALUE_BYTES_MAX = 1_000_000
# Lists and objects in each other, as the worker's reader allows.
_NESTED_MAX = 512
_MOST = 0.5


class NothingToCount(SettingsError):
    """The topic holds nothing that settings could be guessed from."""


@dataclass(frozen=True, slots=True, repr=False)
class Decoded:
    """The records of a sample as objects.

    Attributes:
        format: as the setting names it.
        objects: of each value that is an object, by its place in the sample.
    """

    format: str
    objects: dict[int, object]


def decoded(values: Sequence[bytes | None]) -> Decoded:
    """Return what the values of a sample hold.

    Raises:
        NothingToCount: they are in no format that is known, or hold no objects.
    """
    there = [value for value in values if value is not None]
    if not there:
        raise NothingToCount("all sampled records are without a value: there is nothing in them to count")
    decode = _json()
    found: dict[int, object] = {}
    for place, value in enumerate(values):
        if value is None or len(value) > VALUE_BYTES_MAX:
            continue
        try:
            record = decode(value)
        except ValueError:
            continue
        if isinstance(record, dict):
            found[place] = record
    if found and len(found) >= _MOST * len(there):
        return Decoded("json", found)
    framed = sum(is_framed(value) for value in there)
    if framed >= _MOST * len(there):
        raise NothingToCount(
            "the values are framed for a Schema Registry (a zero byte and a schema id): only JSON can be read so far"
        )
    raise NothingToCount(
        f"{len(found):,} of {len(there):,} sampled values are JSON objects: too few to guess from, and no other format is known"
    )


def is_framed(value: bytes) -> bool:
    """Return whether a value begins as serializers with a Schema Registry write it."""
    return len(value) >= FRAME_BYTES and value[0] == MAGIC


def _json() -> Decoder:
    decode = JsonDecoder(build([])).decode

    def decode_flat(value: bytes) -> object:
        if value.count(b"[") + value.count(b"{") > _NESTED_MAX and _depth(value) > _NESTED_MAX:
            raise ValueError
        return decode(value)

    return decode_flat


def _depth(value: bytes) -> int:
    """Return at least as many lists and objects as are in each other: brackets in texts count."""
    depth = deepest = 0
    for byte in value:
        if byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    return deepest
