"""Short record batches that expand to much, generated piece by piece."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache

import cramjam
import zstandard
from aiokafka import TopicPartition
from aiokafka.consumer.fetcher import READ_COMMITTED, PartitionRecords
from aiokafka.record.util import calc_crc32c, encode_varint

from workers.kafka.decoding import _HEADER, ColumnRecords, RecordSet

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
_PIECE = 1 << 20


@lru_cache(1 << 16)
def varint(number: int) -> bytes:
    found = bytearray()
    encode_varint(number, found.append)
    return bytes(found)


def text(content: bytes | None) -> bytes:
    return varint(-1) if content is None else varint(len(content)) + content


@cache
def header_bytes(headers: tuple[tuple[bytes, bytes | None], ...]) -> bytes:
    pairs = (text(name) + text(content) for name, content in headers)
    return varint(len(headers)) + b"".join(pairs)


def record(
    delta: int,
    value: bytes | None,
    key: bytes | None = None,
    headers: Sequence[tuple[bytes, bytes | None]] = (),
    *,
    longer: int = 0,
) -> Iterator[bytes]:
    behind = header_bytes(tuple(headers))
    before = b"\0" + varint(delta) + varint(delta) + text(key)
    before += varint(-1) if value is None else varint(len(value) + longer) + value
    yield varint(len(before) + longer + len(behind)) + before
    while longer:
        yield b"a" * min(longer, _PIECE)
        longer -= min(longer, _PIECE)
    yield behind


def _gzip(pieces: Iterable[bytes]) -> bytes:
    made = zlib.compressobj(1, wbits=31)
    return b"".join(map(made.compress, pieces)) + made.flush()


def _lz4(pieces: Iterable[bytes]) -> bytes:
    made = cramjam.lz4.Compressor(block_linked=False)
    for piece in pieces:
        made.compress(piece)
    return bytes(made.finish())


def _zstd(pieces: Iterable[bytes]) -> bytes:
    made = zstandard.ZstdCompressor().compressobj()
    return b"".join(map(made.compress, pieces)) + made.flush()


def xerial(pieces: Iterable[bytes], block: int = 32 << 10) -> bytes:
    found = [b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"]
    for piece in pieces:
        for at in range(0, len(piece), block):
            packed = bytes(cramjam.snappy.compress_raw(piece[at : at + block]))
            found += [len(packed).to_bytes(4), packed]
    return b"".join(found)


def raw_snappy(pieces: Iterable[bytes]) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"".join(pieces)))


PACK: dict[str, Callable[[Iterable[bytes]], bytes]] = {
    "none": b"".join,
    "gzip": _gzip,
    "snappy": xerial,
    "lz4": _lz4,
    "zstd": _zstd,
}


def batch(
    codec: str,
    pieces: Iterable[bytes],
    number: int,
    base: int = 0,
    *,
    packed: bytes | None = None,
) -> bytes:
    """Return a record batch whose header claims `number` records; `packed` replaces the pieces."""
    payload = PACK[codec](pieces) if packed is None else packed
    last = max(0, number - 1)
    fields = (
        base,
        0,
        0,
        2,
        0,
        CODECS.index(codec),
        last,
        1_000,
        2_000,
        -1,
        -1,
        -1,
        number,
    )
    made = bytearray(_HEADER.pack(*fields))
    made += payload
    made[8:12] = (len(made) - 12).to_bytes(4)
    made[17:21] = calc_crc32c(bytes(made[21:])).to_bytes(4)
    return bytes(made)


def response(
    raw: object, *, check_crcs: bool = True, start: int = 0
) -> PartitionRecords:
    """Return a response over a `RecordSet`, or aiokafka's own `MemoryRecords`."""
    place = TopicPartition("t", 0)
    return PartitionRecords(
        place, raw, None, start, None, None, check_crcs, READ_COMMITTED
    )


def columns(raw: bytes, *, check_crcs: bool = True, start: int = 0) -> ColumnRecords:
    return ColumnRecords.of(
        response(RecordSet(raw), check_crcs=check_crcs, start=start)
    )
