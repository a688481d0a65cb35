"""A fetch is never fully expanded in memory: every bound in bytes, with the same records."""

import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from itertools import chain
from typing import Any
from unittest.mock import patch

import cramjam
import numpy as np
import pytest
import zstandard
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kafka.bombs import CODECS, PACK, batch, columns, raw_snappy, record
from workers.kafka import decoding
from workers.kafka.decoding import PART_BYTES, PART_RECORDS
from workers.kafka.records import Batch
from workers.runtime.sizes import MESSAGE_BYTES

pytestmark = pytest.mark.slow

MB = 1_000_000
# One part, the next one built while the first still exists, and the codec's own buffers.
BOUND = 2 * PART_BYTES + (8 << 20)
MOST = 1 << 30


def large_records(number: int, length: int) -> Iterator[bytes]:
    return chain.from_iterable(record(i, b"", longer=length) for i in range(number))


def in_one(codec: str) -> tuple[bytes, int, int]:
    """Return a record batch that expands to 150 MB, its record count, and their bytes."""
    return batch(codec, large_records(150, 990_000), 150), 150, 150 * 990_000


def in_many(codec: str) -> tuple[bytes, int, int]:
    """Return the same as 150 batches, as an ordinary producer sends with compression on."""
    made = b"".join(
        batch(codec, record(0, b"", longer=990_000), 1, base) for base in range(150)
    )
    return made, 150, 150 * 990_000


def one_record(codec: str) -> tuple[bytes, int, int]:
    made = batch(codec, record(0, b"x", b"key", [(b"h", b"v")], longer=200 * MB), 1)
    return made, 1, MB + 1


@cache
def empty_records() -> bytes:
    return b"".join(chain.from_iterable(record(i, None) for i in range(MB)))


def nulls(codec: str) -> tuple[bytes, int, int]:
    return batch(codec, [empty_records()], MB), MB, 0


SHAPES: tuple[Callable[[str], tuple[bytes, int, int]], ...] = (
    in_one,
    in_many,
    one_record,
    nulls,
)


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    parts_of(batch("zstd", record(0, b"", longer=40 * MB), 1))


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Trace allocations in the block; yield a function for their peak in bytes."""
    peak = 0
    tracemalloc.start()
    try:
        yield lambda: peak
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()


def parts_of(raw: bytes, longest: int = MESSAGE_BYTES, **options: bool) -> list[Batch]:
    return list(columns(raw, **options).take(0, MOST).parts(longest))


def seen(raw: bytes) -> tuple[int, int, int]:
    """Take all parts, as a shard does; return the records, their bytes, and the largest part's."""
    fetched = columns(raw).take(0, MOST)
    at = fetched.start
    number = 0
    sizes = [0]
    for part in fetched.parts(MB):
        assert part.start == at and len(part) <= PART_RECORDS
        at = part.end
        number += len(part)
        sizes.append(int(np.diff(part.records.values).sum()))
        del part
    assert at == fetched.end
    return number, sum(sizes), max(sizes)


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_no_content_makes_a_fetch_larger_than_its_parts(shape: Any, codec: str) -> None:
    """One fetch of 3,000 such records took 9 GB and killed the worker after every restart."""
    raw, number, size = shape(codec)
    # A snappy block is decompressed at once, but here it has only 32 KiB.
    with traced() as peak:
        *found, largest = seen(raw)
    assert found == [number, size]
    assert largest <= PART_BYTES
    assert peak() <= BOUND, f"{peak():,} bytes for {len(raw):,}"


def test_snappy_without_frames_takes_memory_in_proportion_to_what_was_fetched() -> None:
    """librdkafka sends a batch as one block, which cannot be decompressed in pieces."""
    raw = batch("snappy", (), 150, packed=raw_snappy(large_records(150, 990_000)))
    with traced() as peak:
        assert seen(raw)[:2] == (150, 150 * 990_000)
    assert peak() <= BOUND + 22 * len(raw)


@pytest.mark.parametrize("kind", ["gzip", "lz4", "zstd"])
def test_half_a_gigabyte_passes_through_a_small_address_space(kind: str) -> None:
    """Memory of the codec libraries is bounded too: zstd may ask for a window of 128 MiB."""
    program = f"""
import resource, sys
from tests.kafka.bombs import batch
from tests.kafka.test_decoding_bounds import large_records, seen
raw = batch({kind!r}, large_records(500, 990_000), 500)
seen(batch({kind!r}, large_records(150, 990_000), 150))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (192 << 20),) * 2)
print(*seen(raw)[:2])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["500", str(500 * 990_000)], done.stderr[-2_000:]


@pytest.mark.parametrize("codec", CODECS)
def test_a_record_that_is_too_long_is_cut_and_keeps_what_a_reject_keeps(
    codec: str,
) -> None:
    """The record is never whole in memory, and its neighbours are unchanged."""
    pieces = chain(
        record(0, b"before"),
        record(1, b"x", b"key", [(b"h", b"v")], longer=40 * MB),
        record(2, b"y", b"k" * 100, longer=PART_BYTES),
        record(3, b"behind", None, [(b"h", None)]),
    )
    parts = parts_of(batch(codec, pieces, 4), MB)
    before, long, longer, behind = [row for part in parts for row in rows(part)]
    assert before == (0, 1_000, None, b"before", ())
    assert behind == (3, 1_003, None, b"behind", (("h", None),))
    if codec == "none":  # all of it is in the response, so nothing is gained
        assert len(long[3]) == 40 * MB + 1
        return
    assert long == (1, 1_001, b"key", b"x" + b"a" * MB, (("h", b"v"),))
    assert longer == (2, 1_002, b"k" * 100, b"y" + b"a" * MB, ())


@pytest.mark.parametrize("place", ["key", "headers"])
def test_a_record_that_is_too_long_elsewhere_is_too_long_for_every_reader(
    place: str,
) -> None:
    """Its short value could be an event whose user would be half a key."""
    long = b"k" * (PART_BYTES + 5)
    pieces = (
        record(0, b"{}", long)
        if place == "key"
        else record(0, b"{}", b"k", [(b"h", long)])
    )
    [part] = parts_of(batch("zstd", pieces, 1), MB)
    assert part.records.key(0) == (None if place == "key" else b"k")
    value = part.records.value(0) or b""
    assert len(value) == MB + 1
    assert value.rstrip(b"\0") == b"{}"
    assert part.records.headers(0, 1 << 20) == []


def test_the_operator_may_read_longer_records() -> None:
    """`events.max_bytes` goes up to 100 MB; a part then has room for one such record."""
    raw = batch("zstd", record(0, b"", longer=60 * MB), 1)
    [part] = parts_of(raw, 60 * MB)
    assert len(part.records.value(0) or b"") == 60 * MB
    [part] = parts_of(raw, 50 * MB)
    assert len(part.records.value(0) or b"") == 50 * MB + 1


def test_an_ordinary_fetch_is_one_part() -> None:
    """Every part takes turns at the GIL."""
    pieces = [piece for i in range(9_000) for piece in record(i, b"v" * 90)]
    some = b"".join(batch("lz4", pieces, 9_000, 9_000 * n) for n in range(8))
    records = columns(some)
    numbers = []
    while records.has_more():
        numbers.append([len(part) for part in records.take(0, PART_RECORDS).parts()])
    assert numbers == [[54_000], [18_000]]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("claimed", [-5, 2, 4, 1_000_000, (1 << 31) - 1])
def test_a_header_with_a_false_record_count_is_refused(
    codec: str, claimed: int
) -> None:
    """Nothing is allocated from the claimed count."""
    raw = batch(codec, chain.from_iterable(record(i, b"v") for i in range(3)), claimed)
    with traced() as peak, pytest.raises(CorruptRecordException):
        parts_of(raw)
    assert peak() < 8 << 20


@pytest.mark.parametrize("codec", CODECS[1:])
@pytest.mark.parametrize("claimed", [149, 151, (1 << 31) - 1])
def test_a_long_batch_with_a_false_record_count_is_refused(
    codec: str, claimed: int
) -> None:
    raw = batch(codec, large_records(150, 990_000), claimed)
    with pytest.raises(CorruptRecordException, match="offset 0 is malformed"):
        seen(raw)


def test_snappy_that_claims_gigabytes_is_refused_before_they_are_asked_for() -> None:
    """The claimed length is in the first bytes and cannot be trusted."""
    packed = (
        b"\xff\xff\xff\xff\x0f" + bytes(cramjam.snappy.compress_raw(b"a" * 100))[1:]
    )
    for made in (
        packed,
        b"\x82SNAPPY\0\0\0\0\1\0\0\0\1" + len(packed).to_bytes(4) + packed,
    ):
        with traced() as peak, pytest.raises(CorruptRecordException, match="snappy"):
            parts_of(batch("snappy", (), 1, packed=made))
        assert peak() <= BOUND


def test_zstd_that_lies_about_its_size_is_read_as_it_is() -> None:
    """The size in a frame's header is optional and does not decide."""
    content = b"".join(record(0, b"", longer=40 * MB))
    told = zstandard.ZstdCompressor(write_content_size=True).compress(content)
    assert zstandard.frame_content_size(told) == len(content)
    [part] = parts_of(batch("zstd", (), 1, packed=told), MB)
    assert len(part.records.value(0) or b"") == MB + 1
    lying = bytearray(told)
    at = told.index(len(content).to_bytes(4, "little"))
    lying[at : at + 4] = (1 << 31).to_bytes(4, "little")
    with pytest.raises(CorruptRecordException):
        parts_of(batch("zstd", (), 1, packed=bytes(lying)), MB)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_long_batch_that_is_cut_off_or_damaged_is_refused(codec: str) -> None:
    """A stream detects the damage on the way; records before it are whole."""
    packed = PACK[codec](large_records(100, 990_000))
    half = len(packed) // 2
    changed = packed[:half] + b"\x55" * 40 + packed[half + 40 :]
    for damaged in (packed[:half], packed[:-30], changed):
        raw = batch(codec, (), 100, packed=damaged)
        if codec in ("lz4", "snappy") and len(damaged) == len(packed):
            continue  # they have no checksum: another value may be as long
        with pytest.raises(CorruptRecordException):
            seen(raw)


@pytest.mark.parametrize("bad", ["length", "key", "value", "offsets"])
def test_records_that_are_none_are_refused_in_a_stream_as_in_a_part(bad: str) -> None:
    """A length may point anywhere; decreasing offsets would count records twice."""
    first = b"".join(record(5, b"", longer=40 * MB))
    second = bytearray(b"".join(record(4 if bad == "offsets" else 6, b"value", b"key")))
    if bad == "length":
        second[:1] = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    elif bad == "key":
        second[4] = 200
    elif bad == "value":
        second[8] = 126
    for before in (first, b"".join(record(5, b"short"))):
        with pytest.raises(CorruptRecordException):
            parts_of(batch("zstd", [before, bytes(second)], 2))


def rows(part: Batch) -> list[tuple[Any, ...]]:
    r = part.records
    times = part.records.times.tolist()
    return [
        (offset, times[i], r.key(i), r.value(i), tuple(r.headers(i, 1 << 20) or ()))
        for i, offset in enumerate(r.offsets.tolist())
    ]


texts = st.none() | st.binary(max_size=30) | st.integers(0, 400).map(lambda n: b"z" * n)
names = st.text(max_size=3).map(str.encode)
headers = st.lists(st.tuples(names, st.none() | st.binary(max_size=5)), max_size=2)
contents = st.lists(st.tuples(texts, texts, headers), min_size=1, max_size=30)


@settings(max_examples=150, deadline=None)
@given(
    made=st.lists(
        st.tuples(st.sampled_from((*CODECS, "raw")), contents), min_size=1, max_size=5
    ),
    most=st.integers(1_000, 6_000),
    number=st.integers(1, 40),
    start=st.integers(0, 100),
    most_taken=st.integers(1, 100),
)
def test_parts_cut_anywhere_hold_the_records_that_aiokafka_reads(
    made: list[tuple[str, list[Any]]],
    most: int,
    number: int,
    start: int,
    most_taken: int,
) -> None:
    """Reading can resume at the end of any part: a shard may be given up between any two."""
    raw = b""
    wanted = []
    base = 0
    for codec, records in made:
        packed = None
        pieces = [piece for i, one in enumerate(records) for piece in record(i, *one)]
        if codec == "raw":
            codec = "snappy"
            packed = raw_snappy(pieces)
        one = batch(codec, pieces, len(records), base, packed=packed)
        stock = MemoryRecords(one).next_batch()
        # Headers are found after a value, where there is one.
        wanted += [
            (
                r.offset,
                r.timestamp,
                r.key,
                r.value,
                () if r.value is None else tuple(r.headers),
            )
            for r in stock
        ]
        raw = raw + one
        base = base + len(records)
    start = min(start, base)
    wanted = [row for row in wanted if row[0] >= start]
    with (
        patch.object(decoding, "PART_BYTES", most),
        patch.object(decoding, "PART_RECORDS", number),
        patch.object(decoding, "_BESIDE_BYTES", 1),
    ):
        found = []
        cuts = []
        at = start
        response = columns(raw, start=start)
        while response.has_more():
            fetched = response.take(at, most_taken)
            for part in fetched.parts(most - 1):
                assert part.start == at
                at = part.end
                cuts.append(at)
                assert len(part) <= number
                found += rows(part)
            assert at == fetched.end
        assert at == base
        assert found == wanted
        for cut in cuts:
            again = columns(raw, start=cut)
            later = [
                row
                for part in again.take(cut, MOST).parts(most - 1)
                for row in rows(part)
            ]
            assert later == [row for row in wanted if row[0] >= cut]
