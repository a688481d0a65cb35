"""Strings of JSON with escapes, decoded.

What they say is not in the bytes of the batch, so it is written to `decoded`, uint8, a buffer that
lies behind them: places from len(data) on are in it. `filled` is how much of it is used; FULL where
it has no room. Whoever declines a record goes on with what was filled before it.
"""

from __future__ import annotations

from workers.kernels.compiled import kernel_part, part_reads_outside, reads_outside_in_place
from workers.kernels.reading.json_parts import BACKSLASH, QUOTE, REFUSED, SPACE, Bytes, Longs, character, escape, same
from workers.kernels.reading.log import FULL, OTHER, TEXT, put


@reads_outside_in_place
def encoded(decoded: Bytes, filled: int, point: int) -> int:
    """Write a character as UTF-8 and return how much is filled then."""
    if point < 0x80:
        decoded[filled] = point
        return filled + 1
    if point < 0x800:
        decoded[filled] = 0xC0 | point >> 6
    else:
        if point < 0x10000:
            decoded[filled] = 0xE0 | point >> 12
        else:
            decoded[filled] = 0xF0 | point >> 18
            filled += 1
            decoded[filled] = 0x80 | (point >> 12 & 0x3F)
        filled += 1
        decoded[filled] = 0x80 | (point >> 6 & 0x3F)
    decoded[filled + 1] = 0x80 | (point & 0x3F)
    return filled + 2


@part_reads_outside
def decoded_text(data: Bytes, at: int, stop: int, decoded: Bytes, filled: int) -> tuple[int, int]:
    """Decode the string at `at`, whose opening quote is there.

    Returns:
        its closing quote, or REFUSED; how much is filled then, or FULL.
    """
    at += 1
    # No character is longer than its escape.
    if filled + (stop - at) > len(decoded):
        return REFUSED, FULL
    while at < stop:
        byte = int(data[at])
        if byte == BACKSLASH:
            point, at = escape(data, at, stop)
            if at == REFUSED:
                return REFUSED, filled
            filled = encoded(decoded, filled, point)
            continue
        if byte == QUOTE:
            return at, filled
        length = 1 if byte < 0x80 else character(data, at, stop)
        if byte < SPACE or length == 0:
            return REFUSED, filled
        for _ in range(length):
            decoded[filled] = data[at]
            filled += 1
            at += 1
    return REFUSED, filled


@part_reads_outside
def put_decoded(
    data: Bytes, at: int, stop: int, decoded: Bytes, filled: int, log: Longs, used: int, slot: int
) -> tuple[int, int, int]:
    """Log the string at `at` as a text.

    Returns:
        where it ends, or REFUSED; how many rows are used now, or FULL; how much is filled then.
    """
    end, more = decoded_text(data, at, stop, decoded, filled)
    if more == FULL:
        return REFUSED, FULL, filled
    if end == REFUSED:
        return REFUSED, used, filled
    return end + 1, put(log, used, slot, TEXT, len(data) + filled, len(data) + more), more


@part_reads_outside
def same_beyond(data: Bytes, decoded: Bytes, start: int, begin: int, length: int) -> bool:
    """Return whether two texts are equal of which one or both are decoded."""
    behind, beyond = start - len(data), begin - len(data)
    if behind < 0:
        return same(data, start, start + length, decoded, beyond, beyond + length)
    if beyond < 0:
        return same(decoded, behind, behind + length, data, begin, begin + length)
    return same(decoded, behind, behind + length, decoded, beyond, beyond + length)


@reads_outside_in_place
def same_text(data: Bytes, decoded: Bytes, start: int, stop: int, begin: int, end: int) -> bool:
    """Return whether the texts from `start` to `stop` and from `begin` to `end` are equal."""
    if stop - start != end - begin:
        return False
    if max(start, begin) < len(data):
        return same(data, start, stop, data, begin, end)
    return same_beyond(data, decoded, start, begin, stop - start)


@kernel_part
def put_one(log: Longs, used: int, slot: int, kind: int, at: int, end: int) -> int:
    """Log the value of a kind that `json_log.one` says from `at` to `end`; see `put`."""
    if kind == OTHER:
        return put(log, used, slot, OTHER, -1, -1)
    quote = kind == TEXT
    return put(log, used, slot, kind, at + quote, end - quote)
