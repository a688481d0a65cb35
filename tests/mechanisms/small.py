"""Shared by the tests of mechanisms: a key, small settings, contributions, noise sources."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Longs, Tags, Words
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Mechanism, Release, State
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream

SMALL: dict[str, Any] = {
    "name": "h",
    "tick_ms": 1,
    "horizon": 64,
    "keys": "public",
    "max_items": 1,
    "epsilon": 1.0,
    "delta": 1e-6,
}
# A key and noise that no test depends on.
KEY = NoiseKey(b"k" * 32)
STREAM = KEY.stream(bytes(16))


class Silent:
    """Noise source that returns zeros; what remains depends on the counts alone."""

    def at(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)


def fail_at_second_draw(monkeypatch: pytest.MonkeyPatch, stream: NoiseStream) -> None:
    """Let a stream run out of memory when it draws words for the second time from now on."""
    draw_words = stream.chunk
    calls = 0

    def fail_later(tags: Tags, cells: Words) -> Words:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise MemoryError
        return draw_words(tags, cells)

    monkeypatch.setattr(stream, "chunk", fail_later)


def numbered(name: str, rows: int) -> Tags:
    """Return the tags of the items "0", "1", ... of a stream key."""
    return KEY.tags(name, [b"%d" % number for number in range(rows)])


def labelled(state: State, release: object) -> dict[bytes, int]:
    assert isinstance(release, Release)
    rows = release.rows.tolist()
    counts = release.counts.tolist()
    return {state.ledger.label(row): n for row, n in zip(rows, counts, strict=True)}


def show(
    mechanism: Mechanism, state: State, t: int, noise: Any, counts: Mapping[bytes, int]
) -> dict[bytes, int]:
    """Step a tick of the only stream key, "k"; return what it shows."""
    parts = [counted(counts)] if counts else []
    _, release = mechanism.step(state, t, parts, noise)
    return labelled(state, release)


def assert_variance(found: float, stated: float, tolerance: float = 0.05) -> None:
    """Assert that a sample variance is the stated one, and neither half nor double of it."""
    for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
        assert bool(abs(found / (stated * factor) - 1) < tolerance) is accepted


def part(
    of_key: Mapping[str, Mapping[bytes, int]], served: Sequence[str]
) -> tuple[Contributions, Codes]:
    """Return one message with counts by stream key, and its keys' places among those served."""
    names = tuple(of_key)
    labels = [list(counts) for counts in of_key.values()]
    tags = [KEY.tags(name, own) for name, own in zip(names, labels, strict=True)]
    counts = np.array(
        [n for own in of_key.values() for n in own.values()], dtype=np.int64
    )
    key_of_row = np.repeat(
        np.arange(len(names), dtype=np.int32), list(map(len, labels))
    )
    texts = Texts.of(label for own in labels for label in own)
    index = [served.index(name) if name in served else -1 for name in names]
    rows = Contributions(names, key_of_row, np.concatenate(tags), texts, counts)
    return rows, np.array(index, dtype=np.int32)


def counted(counts: Mapping[bytes, int]) -> tuple[Contributions, Codes]:
    """Return one message with the counts of the only stream key, "k"."""
    return part({"k": counts}, ["k"])


def start(mechanism: Mechanism, keys: Sequence[str]) -> Any:
    """Return the mechanism's state before the first tick, for these stream keys."""
    state = mechanism.init()
    labels = list(mechanism.domain())
    for index, key in enumerate(keys):
        state.key_tags = np.concatenate((state.key_tags, KEY.tags(key, [b"\xff"])))
        mechanism.prepare_key(state, index, KEY.tags(key, labels), labels)
    return state
