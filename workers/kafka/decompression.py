"""Decompress record batches within bounds: into a fixed buffer, or piece by piece.

A megabyte may expand to gigabytes, and the size that a header states may be false, so no memory is
allocated by it: `decompress_into` stops at the end of its buffer, and `Stream` decompresses pieces.
`packed` is a batch's compressed records, `codec` their compression as record batches number it.

    codec    most output per byte      memory of a stream, beside its input
    gzip     1,032 bytes               a piece of 1 MiB
    zstd     32,768                    a piece, and the frame's window: at most 128 MiB
    lz4      255                       a block, at most 4 MiB
    snappy   22                        a block, which may be the whole batch
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from gzip import GzipFile
from io import BytesIO
from itertools import chain
from types import MappingProxyType

import cramjam
import zstandard
from aiokafka.errors import CorruptRecordException

# Decompressed bytes, of at most the third column each.
Pieces = Iterator[bytes | memoryview]

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NAMES = ("none", "gzip", "snappy", "lz4", "zstd")
_PIECE = 1 << 20

# The window of the highest level, 22; also the library's own limit.
_ZSTD_WINDOW_MAX = 1 << 27
_LZ4_MAGIC = (0x184D2204).to_bytes(4, "little")
# Bits of the flags of an lz4 frame, and (PLAIN: not compressed) of the size of a block.
_LZ4_INDEPENDENT = 32
_LZ4_BLOCK_CHECKSUM = 16
_LZ4_SIZE = 8
_LZ4_CHECKSUM = 4
_LZ4_DICTIONARY = 1
_LZ4_PLAIN = 1 << 31
# A three-byte element copies at most 64 bytes.
_SNAPPY_RATIO_MAX = 22
# Java's framing of snappy: this and two version numbers, then blocks, each after its length.
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_HEADER_BYTES = 16
# Five bytes of 7 bits hold a varint of 32 bits.
_VARINT_BITS = 35


def decompress_into(codec: int, packed: memoryview, buffer: memoryview) -> int | None:
    """Decompress records into `buffer`; return their size, None if too long or damaged."""
    try:
        if codec == NONE:
            buffer[: len(packed)] = packed
            return len(packed)
        if codec == SNAPPY:
            size = 0
            for block in _snappy_blocks(packed):
                size += int(cramjam.snappy.decompress_raw_into(block, buffer[size:]))
            return size
        return int(_INTO[codec](packed, buffer))
    # Too long for a slice: ValueError; unknown codec: KeyError.
    except (
        cramjam.DecompressionError,
        CorruptRecordException,
        KeyError,
        OSError,
        ValueError,
    ):
        return None


class Stream:
    """A batch's records, decompressed while they are read; `position` bytes have been.

    Methods raise CorruptRecordException if the batch is damaged or truncated.
    """

    def __init__(self, codec: int, packed: memoryview) -> None:
        """Begin to read `packed`; nothing is decompressed yet."""
        self.position = 0
        self._pieces = _pieces(codec, packed)
        # What has not been read of the present piece.
        self._rest = memoryview(b"")

    def read_into(self, buffer: memoryview) -> int:
        """Fill `buffer` up to its end or the stream's; return the number of bytes."""
        filled = 0
        while filled < len(buffer) and (part := self._next(len(buffer) - filled)):
            buffer[filled : filled + len(part)] = part
            filled += len(part)
        return filled

    def has_more(self) -> bool:
        """Return whether bytes are left; decompresses the next piece to find out."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._rest = memoryview(piece)
        return True

    def unread(self, data: memoryview) -> None:
        """Put back `data`, which was read last; it is read again next."""
        # The rest of the present piece follows it.
        self._pieces = chain([self._rest], self._pieces)
        self._rest = data
        self.position -= len(data)

    def read(self, length: int) -> bytes:
        """Return exactly the next `length` bytes."""
        buffer = bytearray(length)
        if self.read_into(memoryview(buffer)) < length:
            raise CorruptRecordException("a record batch ends within a record")
        return bytes(buffer)

    def skip(self, length: int) -> None:
        """Skip `length` bytes (none if negative), without holding all of them in memory."""
        while length > 0:
            part = self._next(length)
            if not part:
                raise CorruptRecordException("a record batch ends within a record")
            length -= len(part)

    def read_varint(self) -> int:
        """Read a zigzag varint of at most 32 bits."""
        bits = 0
        for shift in range(0, _VARINT_BITS, 7):
            [byte] = self.read(1)
            bits |= (byte & 127) << shift
            if byte < 128:
                # Zigzag: 0, 1, 2, 3 stand for 0, -1, 1, -2.
                return bits >> 1 ^ -(bits & 1)
        raise CorruptRecordException(
            "a record batch holds a number of more than 32 bits"
        )

    def _next(self, max_bytes: int) -> memoryview:
        """Read what is left of a piece, up to `max_bytes`; return no bytes at the stream's end."""
        self.has_more()
        part = self._rest[:max_bytes]
        self._rest = self._rest[max_bytes:]
        self.position += len(part)
        return part


def _pieces(codec: int, packed: memoryview) -> Pieces:
    """Yield decompressed pieces; every codec's errors become CorruptRecordException."""
    if codec not in _STREAMS:
        raise CorruptRecordException(
            f"a record batch is compressed by codec {codec}, which no version of Kafka knows"
        )
    try:
        yield from _STREAMS[codec](packed)
    except (
        EOFError,
        OSError,
        zlib.error,
        zstandard.ZstdError,
        cramjam.DecompressionError,
    ) as error:
        raise CorruptRecordException(
            f"a record batch cannot be decompressed: {NAMES[codec]}: {error}"
        ) from error


def _plain(packed: memoryview) -> Pieces:
    yield packed


def _gzip(packed: memoryview) -> Pieces:
    with GzipFile(fileobj=BytesIO(packed)) as members:
        while piece := members.read(_PIECE):
            yield piece


def _zstd(packed: memoryview) -> Pieces:
    """Yield pieces of all frames; ZstdError for a frame that needs a larger window."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    with decompressor.stream_reader(packed, read_across_frames=True) as frames:
        while piece := frames.read(_PIECE):
            yield piece


def _lz4(packed: memoryview) -> Pieces:
    """Yield the decompressed blocks of all frames. Source: LZ4 Frame Format Description.

    frame    magic (4 bytes), flags (1), block size (1), perhaps content size (8), checksum (1),
             then blocks, size 0 (4), perhaps a checksum (4)
    block    size (4), bytes, perhaps a checksum (4)
    """
    position = 0
    while position < len(packed):
        if packed[position : position + 4] != _LZ4_MAGIC or len(packed) < position + 7:
            raise CorruptRecordException(
                "a record batch compressed with lz4 holds no frame"
            )
        flags = packed[position + 4]
        size_code = packed[position + 5] >> 4
        if (
            not flags & _LZ4_INDEPENDENT
            or flags & _LZ4_DICTIONARY
            or not 4 <= size_code <= 7
        ):
            raise CorruptRecordException(
                "a record batch compressed with lz4 uses linked blocks or a dictionary, which Kafka does not allow"
            )
        # 64 KiB to 4 MiB.
        block_bytes_max = 1 << 8 + 2 * size_code
        position += 15 if flags & _LZ4_SIZE else 7
        # A frame that is cut off has no bytes left here, and ends like one with size 0.
        while size := int.from_bytes(packed[position : position + 4], "little"):
            position += 4
            block = packed[position : position + (size & ~_LZ4_PLAIN)]
            position += len(block) + (4 if flags & _LZ4_BLOCK_CHECKSUM else 0)
            if size & _LZ4_PLAIN:
                yield block
            else:
                buffer = bytearray(block_bytes_max)
                yield memoryview(buffer)[
                    : int(cramjam.lz4.decompress_block_into(block, buffer))
                ]
        position += 8 if flags & _LZ4_CHECKSUM else 4


def _snappy(packed: memoryview) -> Pieces:
    """Yield decompressed blocks; refuse one that states more bytes than it can hold.

    The library needs a buffer for the whole block, of the size that the block states.
    """
    for block in _snappy_blocks(packed):
        size = cramjam.snappy.decompress_raw_len(block)
        if size > _SNAPPY_RATIO_MAX * len(block):
            raise CorruptRecordException(
                f"a record batch says that {len(block)} bytes of snappy are {size}"
            )
        buffer = bytearray(size)
        yield memoryview(buffer)[
            : int(cramjam.snappy.decompress_raw_into(block, buffer))
        ]


def _snappy_blocks(packed: memoryview) -> Iterator[memoryview]:
    """Yield the compressed blocks of Java's framing (`_XERIAL`); unframed data is one block.

    After the framing's header, each block is preceded by its length in 4 bytes.
    """
    if packed[: len(_XERIAL)] != _XERIAL:
        yield packed
        return
    stop = _XERIAL_HEADER_BYTES
    while stop < len(packed):
        start = stop + 4
        stop = start + int.from_bytes(packed[stop:start])
        if stop > len(packed):
            raise CorruptRecordException(
                "a record batch compressed with snappy is cut off"
            )
        yield packed[start:stop]


# Decompress a batch into a buffer, and as a stream, by codec.
_INTO: Mapping[int, Callable[[memoryview, memoryview], int]] = MappingProxyType(
    {
        GZIP: cramjam.gzip.decompress_into,
        LZ4: cramjam.lz4.decompress_into,
        ZSTD: cramjam.zstd.decompress_into,
    }
)
_STREAMS: Mapping[int, Callable[[memoryview], Pieces]] = MappingProxyType(
    {NONE: _plain, GZIP: _gzip, SNAPPY: _snappy, LZ4: _lz4, ZSTD: _zstd}
)
