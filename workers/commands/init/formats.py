"""In which format the values of a topic are, and their records as plain objects.

A format is a decoder: a function of a value's bytes that returns what a record holds, or raises a
ValueError. JSON is looked for first; a value that begins with a zero byte and four of a schema's id
is framed as serializers with a Schema Registry do it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from workers.commands.init.schemas import Decoder, Schemas, is_framed
from workers.events.json_objects import JsonDecoder
from workers.events.schemas import Access
from workers.events.tree import build
from workers.runtime.errors import SettingsError

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


def decoded(values: Sequence[bytes | None], access: Access | None = None) -> Decoded:
    """Return what the values of a sample hold.

    Args:
        values: of the records.
        access: to the registry that knows their schemas; None: there is none.

    Raises:
        NothingToCount: they are in no format that is known, or hold no objects.
        SettingsError: the registry does not answer.
    """
    there = [value for value in values if value is not None]
    if not there:
        raise NothingToCount("all sampled records are without a value: there is nothing in them to count")
    framed = sum(map(is_framed, there)) >= _MOST * len(there)
    if framed and access is None:
        raise NothingToCount(
            "the values are framed for a Schema Registry (a zero byte and a schema id): name it with --schema-registry URL"
        )
    json = _json()
    decode = Schemas(access, json).decode if framed and access is not None else lambda value: ("json", json(value))
    found: dict[str, dict[int, object]] = {}
    for place, value in enumerate(values):
        if value is None or len(value) > VALUE_BYTES_MAX:
            continue
        try:
            name, record = decode(value)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.setdefault(name, {})[place] = record
    name, objects = max(found.items(), key=lambda one: len(one[1]), default=("json", {}))
    if len(objects) < _MOST * len(there) or not objects:
        what = f"records that a schema of the registry describes ({name})" if framed else "JSON objects"
        raise NothingToCount(f"{len(objects):,} of {len(there):,} sampled values are {what}: too few to guess from")
    return Decoded(name, objects)


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
