"""Messages of a commit hold exactly what was counted, at any size, within the message limit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.events.reading import rows
from tests.pipeline.pipeline import rows_of
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.contributions import decode, messages
from workers.runtime.errors import StateRefused

pytestmark = pytest.mark.slow

KEY = NoiseKey(bytes(32))
LANE = Lane(1000, 0, 3, 1)
TALLY = st.dictionaries(
    st.text(max_size=8),
    st.dictionaries(st.text(max_size=40), st.integers(0, 2**62), max_size=30),
    max_size=12,
)


def encoded(tallies: list[dict[str, dict[str, int]]], max_bytes: int) -> list[bytes]:
    counted = [rows(LANE, tick, tally, KEY) for tick, tally in enumerate(tallies, 1)]
    found = messages(
        counted,
        source=3,
        sequence=70,
        offset=12,
        watermark=5,
        first=None,
        key=KEY.fingerprint,
        max_bytes=max_bytes,
    )
    return [message.encoded() for message in found]


@settings(deadline=None)
@given(st.lists(TALLY, max_size=4), st.sampled_from([1_700, 2_500, 5_000, 900_000]))
def test_what_is_decoded_is_what_was_counted(
    tallies: list[dict[str, dict[str, int]]], max_bytes: int
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
    expected = {
        (t, k, i): n
        for t, tally in enumerate(tallies, 1)
        for k, items in tally.items()
        for i, n in items.items()
        if n
    }
    assert got == expected
    assert seen_keys == {(t, k) for t, tally in enumerate(tallies, 1) for k in tally}


@given(TALLY)
def test_tags_are_those_of_the_stream_key_and_label(tally: dict[str, dict[str, int]]) -> None:
    """A tag is a row's identity and noise: a wrong tag would merge two items."""
    for value in encoded([tally], 900_000):
        for section in decode(value).sections:
            part = section.contributions()
            for row, label in enumerate(part.labels):
                assert (
                    part.tags[row] == KEY.tags(part.keys[part.key_of_row[row]], [label])[0]
                ).all()


@pytest.mark.parametrize("value", [b"", b"{}", b"\x99\x01", encoded([], 900_000)[0][:-1]])
def test_what_is_no_message_is_refused(value: bytes) -> None:
    """Skipping an unreadable message would lose events silently."""
    with pytest.raises(StateRefused, match="contributions topic"):
        decode(value)
