"""The stream keys of a histogram as key-value pairs: 1,024 to a block, with the tick from which
each is served, as JSON.

    keys/<block>          the block's first keys: all of them, unless a message cannot hold them
    keys/<block>.<part>   the keys that go on where the part before ends (1, 2, ...)

Bound: a key has at most 1,024 bytes, which JSON makes 6,144 characters; with its tick and brackets
it is below 6,200 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from workers.mechanisms.sizes import VALUE_BYTES, cuts

KEYS_TO_A_BLOCK = 1024
PREFIX = "keys/"
_Pairs = list[tuple[str, int]]


def changes(keys: Sequence[str], since: Sequence[int], stored: int) -> Iterator[tuple[str, bytes]]:
    """Yield the parts that hold keys beyond the first `stored`, as (name, value)."""
    if stored >= len(keys):
        return
    for block in range(stored // KEYS_TO_A_BLOCK, -(-len(keys) // KEYS_TO_A_BLOCK)):
        first = block * KEYS_TO_A_BLOCK
        rows = slice(first, first + KEYS_TO_A_BLOCK)
        pairs = [msgspec.json.encode(pair) for pair in zip(keys[rows], since[rows], strict=True)]
        for part, (start, stop) in enumerate(cuts([len(pair) + 1 for pair in pairs], VALUE_BYTES - 1)):
            if first + stop > stored:
                name = f"{PREFIX}{block:08x}" + (f".{part:02x}" if part else "")
                yield name, b"[" + b",".join(pairs[start:stop]) + b"]"


def decode(value: bytes) -> _Pairs:
    """Return the keys of a part, each with its first tick."""
    return msgspec.json.decode(value, type=_Pairs)
