"""Messages of a commit hold exactly what was counted, at any size, within the message limit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrays.uncompiled import WAYS
from tests.events.reading import rows
from tests.pipeline.pipeline import rows_of
from workers.arrays.texts import readonly_contiguous, unpack_rows
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import decode, messages
from workers.runtime.errors import StateRefused

KEY = NoiseKey(bytes(32))
LANE = Lane(1000, 0, 3, 1)
COUNTS = st.dictionaries(st.text(max_size=40), st.integers(0, 2**62), max_size=30)
TALLY = st.dictionaries(st.text(max_size=8), COUNTS, max_size=12)


Counts = dict[str, dict[str, int]]  # by stream key and label


def encoded(tallies: list[Counts], max_bytes: int) -> list[bytes]:
    counted = [rows(LANE, tick, tally, KEY) for tick, tally in enumerate(tallies, 1)]
    key = KEY.fingerprint
    found = messages(
        counted,
        source=3,
        sequence=70,
        offset=12,
        watermark=5,
        first=None,
        key=key,
        max_bytes=max_bytes,
    )
    return [message.encoded() for message in found]


@pytest.mark.slow
@given(st.lists(TALLY, max_size=4), st.sampled_from([1_700, 2_500, 5_000, 900_000]))
def test_what_is_decoded_is_what_was_counted(
    tallies: list[Counts], max_bytes: int
) -> None:
    values = encoded(tallies, max_bytes)
    got: dict[tuple[int, str, str], int] = {}
    seen_keys: set[tuple[int, str]] = set()
    for number, value in enumerate(values):
        assert len(value) <= max_bytes
        message = decode(value)
        numbers = message.sequence, message.page, message.pages
        assert numbers == (70 + number, number + 1, len(values))
        for section in message.sections:
            seen_keys |= {(section.tick, key) for key in section.keys}
            for key, label, n in rows_of(section):
                assert (section.tick, key, label) not in got
                got[section.tick, key, label] = n
    ticks = list(enumerate(tallies, 1))
    items = [
        (t, key, *item)
        for t, tally in ticks
        for key in tally
        for item in tally[key].items()
    ]
    expected = {(t, key, label): n for t, key, label, n in items if n}
    assert got == expected
    assert seen_keys == {(t, key) for t, tally in ticks for key in tally}


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"\x99\x01", encoded([], 900_000)[0][:-1]]
)
def test_what_is_no_message_is_refused(value: bytes) -> None:
    """Skipping an unreadable message would lose events silently."""
    with pytest.raises(StateRefused, match="contributions topic"):
        decode(value)


@pytest.mark.parametrize(
    "keys", [[], [1], [2, 2], [4, -1], [2**62, 2**62, 2**62, 2**62, 3], [-3, 6]]
)
def test_keys_that_do_not_have_as_many_rows_are_refused(keys: list[int]) -> None:
    """Also where their sum would match but for its sign or 64-bit overflow."""
    ones = readonly_contiguous(np.ones(3, dtype=np.uint8))
    lengths = readonly_contiguous(np.ones(3, dtype="<u2"))
    of_keys = np.array(keys, dtype=np.int64)
    for way in WAYS:
        out = (np.empty(3, dtype=kind) for kind in (np.int64, np.int64, np.int32))
        assert not way(unpack_rows)(lengths, ones, 0, of_keys, *out)


def test_a_stream_key_that_is_not_utf8_is_refused() -> None:
    """What the decoder raises for text is not what it raises for structure."""
    [value] = encoded([{"shop": {"tea": 1}}], 900_000)
    with pytest.raises(StateRefused, match="contributions topic"):
        decode(value.replace(b"shop", b"\xffhop"))
