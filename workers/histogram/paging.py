"""One value of the store in as many pages as it needs, none longer than a message may be.

    <name>          the value; or, where that is too long, {"pages": n}
    <name>.<page>   slices of it, from 0 on, written in the same transaction and before <name>

A value that became shorter leaves pages behind that nobody reads, until it grows over them again.
"""

from __future__ import annotations

from collections.abc import Callable

from workers.errors import StateRefused
from workers.mechanisms.sizes import VALUE_BYTES

_HEAD = b'{"pages":'


def pages(name: bytes, value: bytes, max_bytes: int = VALUE_BYTES) -> list[tuple[bytes, bytes | None]]:
    """Return a value, which is a JSON object, as (name, value) pairs to write in this order."""
    if len(value) <= max_bytes:
        return [(name, value)]
    slices = [value[at : at + max_bytes] for at in range(0, len(value), max_bytes)]
    return [*((_page(name, i), part) for i, part in enumerate(slices)), (name, _HEAD + b"%d}" % len(slices))]


def joined(name: bytes, get: Callable[[bytes], bytes | None]) -> bytes | None:
    """Return the value that `pages` cut; None where there is none.

    Raises:
        StateRefused: a page is missing.
    """
    head = get(name)
    if head is None or not head.startswith(_HEAD):
        return head
    parts = [get(_page(name, i)) for i in range(int(head[len(_HEAD) : -1]))]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts):
        raise StateRefused(f"stored state: a page of {name.decode()} is missing")
    return b"".join(found)


def _page(name: bytes, number: int) -> bytes:
    return name + b".%04x" % number
