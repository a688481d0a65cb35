"""Run one mechanism: stream keys, exact counts in, transcripts out, restarts through its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from tests.bounding import bound
from workers.arrays.tag_index import Tags
from workers.arrays.texts import Texts
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Answers, Items, Mechanism, Release, State
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline import ledger_blocks
from workers.pipeline.histogram import KEY_LABEL

KEY = NoiseKey(b"c" * 32)
KEYS = ("s1", "s2")

Histogram = Mapping[str, int]
"""Label -> count."""
Tick = Mapping[str, Histogram]
"""Stream key -> what was contributed to it."""
Shown = Release | Items | Answers


def bounded(items: Mapping[str, int], max_items: int, max_count: int) -> Histogram:
    return {label: n for label, n in bound(dict(items), max_items, max_count).items() if n}


def with_events(stream: Sequence[Tick], events: Sequence[tuple[int, Histogram]]) -> list[Tick]:
    """Return the stream with events added to the first stream key, each at its tick (from 1)."""
    more = [{key: Counter(histogram) for key, histogram in tick.items()} for tick in stream]
    for tick, items in events:
        more[tick - 1].setdefault(KEYS[0], Counter()).update(items)
    return [dict(tick) for tick in more]


def columns(
    tick: Tick, keys: Sequence[str], parts: int = 1
) -> list[tuple[Contributions, NDArray[np.int32]]]:
    """Return a tick's contributions as `parts` read-only messages, each with part of the items."""
    found = []
    places = {name: place for place, name in enumerate(keys)}
    for part in range(parts):
        names = tuple(tick)
        rows = [
            (i, label, n) for i, name in enumerate(names) for label, n in tick[name].items() if n
        ]
        rows = rows[part::parts]
        labels = [label.encode() for _, label, _ in rows]
        tags = [_tag(names[i], label) for i, label, _ in rows]
        arrays = (
            np.array([i for i, _, _ in rows], dtype=np.int32),
            np.concatenate(tags) if tags else np.empty((0, 2), dtype=np.uint64),
            np.array([n for _, _, n in rows], dtype=np.int64),
            np.array([places[name] for name in names], dtype=np.int32),
        )
        for array in arrays:
            array.flags.writeable = False
        found.append(
            (Contributions(names, arrays[0], arrays[1], Texts.of(labels), arrays[2]), arrays[3])
        )
    return found


@cache
def _tag(name: str, label: str) -> Tags:
    return KEY.tags(name, [label.encode()])


class Run:
    """One epoch of a mechanism.

    Args:
        seed: of the mechanism id, and so of all noise.
        keys: the stream keys, all present from the beginning.
    """

    def __init__(self, mechanism: Mechanism, seed: int = 0, keys: Sequence[str] = KEYS) -> None:
        self.mechanism, self.keys = mechanism, keys
        self._stream = KEY.stream(seed.to_bytes(16, "big"))
        self.noise = mechanism.noise(self._stream)
        self.state: State = mechanism.init()
        self.stored: dict[str, bytes] = {}
        for index, name in enumerate(keys):
            self.state.key_tags = np.concatenate((self.state.key_tags, KEY.tags(name, [KEY_LABEL])))
            mechanism.meet_key(self.state, index, self.tags(name), mechanism.domain())

    def tags(self, name: str) -> Tags:
        return KEY.tags(name, list(self.mechanism.domain()))

    def step(self, t: int, tick: Tick, parts: int = 1) -> Shown:
        self.state, shown = self.mechanism.step(
            self.state, t, columns(tick, self.keys, parts) if tick else [], self.noise
        )
        return shown

    def transcript(
        self, stream: Sequence[Tick], *, restarts: Sequence[int] = (), parts: int = 1
    ) -> list[object]:
        """Return every tick's output by label, reloaded from blocks after `restarts`."""
        found = []
        for t, tick in enumerate(stream, 1):
            found.append(self.named(self.step(t, tick, parts)))
            if t in restarts:
                self.restart()
        return found

    def named(self, shown: Shown) -> object:
        """Return a release by stream key and label, independent of row numbers."""
        if isinstance(shown, Answers):
            return {key: dict(answer) for key, answer in shown.of_key.items()}, shown.sd
        if isinstance(shown, Items):
            keys, labels = shown.keys.tolist(), list(shown.labels)
        else:
            keys = self.state.ledger.keys[shown.rows].tolist()
            labels = [self.state.ledger.label(row) for row in shown.rows.tolist()]
        counts = dict(zip(zip(keys, labels, strict=True), shown.counts.tolist(), strict=True))
        return counts, shown.sd, shown.threshold

    def store(self) -> dict[str, bytes]:
        self.stored |= dict([*ledger_blocks.changes(self.state.ledger), *self.state.changed()])
        self.state.ledger.clean()
        return self.stored

    def restart(self) -> None:
        self.load(self.store())

    def load(self, blocks: Mapping[str, bytes]) -> None:
        fresh = self.mechanism.init()
        fresh.ledger = ledger_blocks.load(
            (name, block) for name, block in sorted(blocks.items()) if name[0] in "LCS"
        )
        fresh.key_tags = self.state.key_tags
        for name, block in sorted(blocks.items()):
            if name[0] not in "LCS":
                fresh.restore(name, block)
        self.state, self.noise = fresh, self.mechanism.noise(self._stream)
