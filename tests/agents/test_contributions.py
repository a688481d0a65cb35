"""A commit's messages say exactly what was counted, whatever the sizes, and none is longer than a message may be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.agents.contributions import decode, encode
from workers.errors import StateRefused
from workers.mechanisms.config import Lane
from workers.mechanisms.noise.keyed import NoiseKey

KEY = NoiseKey(bytes(32))
LANE = Lane(1000, 0, 3, 1)
TALLY = st.dictionaries(
    st.text(max_size=8), st.dictionaries(st.text(max_size=40), st.integers(0, 2**62), max_size=30), max_size=12
)


def encoded(tallies: list[dict[str, dict[str, int]]], max_bytes: int) -> list[bytes]:
    sections = [(LANE, tick, tally) for tick, tally in enumerate(tallies, 1)]
    return encode(sections, source=3, sequence=70, offset=12, watermark=5, first=None, max_bytes=max_bytes)


@settings(deadline=None)
@given(st.lists(TALLY, max_size=4), st.sampled_from([400, 900, 5_000, 900_000]))
def test_what_is_decoded_is_what_was_counted(tallies: list[dict[str, dict[str, int]]], max_bytes: int) -> None:
    """One lost or doubled row is an event that counts other than once."""
    messages = encoded(tallies, max_bytes)
    got: dict[tuple[int, str, str], int] = {}
    seen_keys: set[tuple[int, str]] = set()
    for number, value in enumerate(messages):
        assert len(value) <= max_bytes
        message = decode(value)
        assert (message.sequence, message.page, message.pages) == (70 + number, number + 1, len(messages))
        for section in message.sections:
            part = section.contributions(KEY)
            seen_keys |= {(section.tick, key) for key in part.keys}
            for key, label, n in zip(part.key_of_row.tolist(), part.labels, part.counts.tolist(), strict=True):
                at = (section.tick, part.keys[key], label.decode())
                assert at not in got
                got[at] = n
    expected = {
        (t, k, i): n for t, tally in enumerate(tallies, 1) for k, items in tally.items() for i, n in items.items() if n
    }
    assert got == expected
    assert seen_keys == {(t, k) for t, tally in enumerate(tallies, 1) for k in tally}


@given(TALLY)
def test_tags_are_those_of_the_stream_key_and_label(tally: dict[str, dict[str, int]]) -> None:
    """A row's tag is its identity and its noise: another row's tag would merge two items."""
    for value in encoded([tally], 900_000):
        for section in decode(value).sections:
            part = section.contributions(KEY)
            for row, label in enumerate(part.labels):
                assert (part.tags[row] == KEY.tags(part.keys[part.key_of_row[row]], [label])[0]).all()


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"\x99\x01", encode([], source=0, sequence=0, offset=0, watermark=0, first=0)[0][:-1]]
)
def test_what_is_no_message_is_refused(value: bytes) -> None:
    """Skipping what cannot be read would lose events silently."""
    with pytest.raises(StateRefused, match="contributions topic"):
        decode(value)
