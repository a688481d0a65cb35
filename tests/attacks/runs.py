"""Many independent runs of one mechanism at once, and what an observer sees of each.

Stream keys share no noise and no budget, so every stream key is a run, and one `step` makes a tick of all of them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Floats, Longs, Tags
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import (
    Answers,
    Items,
    Mechanism,
    Noise,
    Release,
    State,
    WindowReleases,
)
from workers.mechanisms.noise.keyed import NoiseKey, NoiseStream
from workers.pipeline.histogram import KEY_LABEL

Counts = Mapping[bytes, int]
NoiseOf = Callable[[Mechanism, NoiseStream], Noise]

KEY = NoiseKey(b"a" * 32)
AT_ONCE = 10_000


@dataclass(frozen=True, slots=True)
class Published:
    """What n runs published.

    Attributes:
        counts: (n, columns) noisy counts, a column for each tick and label (or number of an answer); NaN where none was shown.
        texts: (n, ticks) a number for everything else in an answer.
    """

    counts: Floats
    texts: Longs

    def __len__(self) -> int:
        return len(self.counts)

    def tick(self, t: int) -> "Published":
        """Return what was published at one tick."""
        ticks = self.texts.shape[1]
        width = self.counts.shape[1] // ticks
        return Published(
            self.counts[:, (t - 1) * width : t * width], self.texts[:, t - 1 : t]
        )


class Runs:
    """Runs of one mechanism; texts get a number, the same where labels are alike."""

    def __init__(
        self, mechanism: Mechanism, alike: Mapping[bytes, bytes], noise_of: NoiseOf
    ) -> None:
        """`alike` maps every label to the first with the same counts in all worlds."""
        self.mechanism = mechanism
        self.labels = tuple(alike)
        self._noise_of = noise_of
        self._alike = {label.decode(): first.decode() for label, first in alike.items()}
        self._places = {label: place for place, label in enumerate(self.labels)}
        self._texts: dict[tuple[object, ...], int] = {}

    def publish(self, stream: Sequence[Counts], runs: int, seed: int) -> Published:
        """Return what so many runs over a stream publish; different seeds share no noise."""
        starts = range(0, runs, AT_ONCE)
        parts = [
            self._some(stream, min(AT_ONCE, runs - start), (seed << 32) + start)
            for start in starts
        ]
        return Published(
            np.concatenate([part.counts for part in parts]),
            np.concatenate([part.texts for part in parts]),
        )

    def _some(self, stream: Sequence[Counts], runs: int, seed: int) -> Published:
        tags = tags_of(self.labels, runs)
        labels = self.mechanism.domain()
        noise = self._noise_of(self.mechanism, KEY.stream(seed.to_bytes(16, "big")))
        state = self.mechanism.init()
        state.key_tags = np.ascontiguousarray(tags[:, -1])
        declared = np.ascontiguousarray(
            tags[:, [self._places[label] for label in labels]]
        )
        if labels and type(self.mechanism).prepare_key is Mechanism.prepare_key:
            # It only appends rows: all runs at once take a twentieth of the time.
            rows = np.repeat(np.arange(runs, dtype=np.int32), len(labels))
            state.ledger.append(
                declared.reshape(-1, 2), rows, Texts.of(list(labels) * runs)
            )
        else:
            for run in range(runs):
                self.mechanism.prepare_key(state, run, declared[run], labels)
        columns: list[Floats] = []
        texts = np.zeros((runs, len(stream)), dtype=np.int64)
        for t, counts in enumerate(stream, 1):
            parts = [self._contributions(counts, tags)] if counts else []
            state, shown = self.mechanism.step(state, t, parts, noise)
            assert not isinstance(shown, WindowReleases), "of an epoch"
            if isinstance(shown, Answers):
                columns.append(self._read_answers(shown, texts[:, t - 1]))
            else:
                columns.append(self._read_counts(state, shown, tags))
        return Published(np.concatenate(columns, axis=1), texts)

    def _contributions(self, counts: Counts, tags: Tags) -> tuple[Contributions, Codes]:
        runs = len(tags)
        own = np.ascontiguousarray(tags[:, [self._places[label] for label in counts]])
        names = tuple(map(str, range(runs)))
        key_of_row = np.repeat(np.arange(runs, dtype=np.int32), len(counts))
        texts = Texts.of(list(counts) * runs)
        numbers = np.tile(np.array(list(counts.values()), dtype=np.int64), runs)
        rows = Contributions(names, key_of_row, own.reshape(-1, 2), texts, numbers)
        return rows, np.arange(runs, dtype=np.int32)

    def _read_counts(self, state: State, shown: Release | Items, tags: Tags) -> Floats:
        counts = np.full((len(tags), len(self.labels)), math.nan)
        if isinstance(shown, Items):
            places = np.array(
                [self._places[label] for label in shown.labels], dtype=np.int64
            )
            counts[shown.keys, places] = shown.counts
            return counts
        upper = tags[:, :-1, 0].reshape(-1)  # distinct, as good as surely
        order = np.argsort(upper)
        found = state.ledger.tags[shown.rows, 0]
        counts.reshape(-1)[order[np.searchsorted(upper, found, sorter=order)]] = (
            shown.counts
        )
        return counts

    def _read_answers(self, shown: Answers, texts: Longs) -> Floats:
        found = []
        for run in range(len(texts)):
            numbers: list[float] = []
            text: list[object] = []
            for field, value in shown.of_key[run].items():
                if field in ("value", "answers", "labels"):
                    self._split(value, numbers, text)
                elif not field.endswith("_left"):  # a function of earlier answers
                    text.append(value)
            texts[run] = self._texts.setdefault(tuple(text), len(self._texts))
            found.append(numbers)
        return np.array(found, dtype=np.float64)

    def _split(self, value: object, numbers: list[float], texts: list[object]) -> None:
        if isinstance(value, int):
            numbers.append(value)
        elif isinstance(value, Mapping):
            self._split(list(value.values()), numbers, texts)
        elif isinstance(value, list):
            texts.append(len(value))
            for one in value:
                self._split(one, numbers, texts)
        else:
            texts.append(self._alike.get(str(value), value))


@lru_cache(8)
def tags_of(labels: tuple[bytes, ...], runs: int) -> Tags:
    """Return the tags of every run's items, and last of its stream key: (runs, labels + 1, 2)."""
    each = [KEY.tags(str(run), [*labels, KEY_LABEL]) for run in range(runs)]
    return np.stack(each)
