"""Run one mechanism over a stream; `worst` is a near-worst-case stream and event per variant."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from tests.bounding import bound
from tests.contract.variants import DOMAIN, OTHERS, TICKS, Variant
from tests.mechanisms.stored import read_back, store
from workers.arrays.texts import Texts
from workers.arrays.types import Codes, Tags
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import (
    Answers,
    Items,
    Mechanism,
    Release,
    State,
    WindowReleases,
)
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.histogram import KEY_LABEL
from workers.runtime.frozen import read_only

KEY = NoiseKey(b"c" * 32)
# In a stream of unique users, a label's count is how many of its users have an event in the tick:
# always the first ones. Behind this mark they are others, whom no other event of the stream has.
PROTECTED = "@"
KEYS = ("s1", "s2")
NAME = KEYS[0]

Histogram = Mapping[str, int]
"""Label -> count."""
Tick = Mapping[str, Histogram]
"""Stream key -> what was contributed to it."""
Shown = Release | WindowReleases | Items | Answers


def bounded(items: Mapping[str, int], max_items: int, max_count: int) -> Histogram:
    return {
        label: n for label, n in bound(dict(items), max_items, max_count).items() if n
    }


def with_events(
    stream: Sequence[Tick], events: Sequence[tuple[int, Histogram]]
) -> list[Tick]:
    """Return the stream with events added to the first stream key, each at its tick (from 1)."""
    more = [
        {key: Counter(histogram) for key, histogram in tick.items()} for tick in stream
    ]
    for tick, items in events:
        more[tick - 1].setdefault(KEYS[0], Counter()).update(items)
    return [dict(tick) for tick in more]


def random_stream(seed: int, counts: Sequence[int]) -> list[Tick]:
    """Return ticks of random labels with some of these counts; some empty ticks, late labels."""
    rng = random.Random(seed)
    found = list[Tick]()
    for t in range(TICKS):
        labels = [*DOMAIN, *OTHERS[: t // 4]]
        tick = dict[str, Histogram]()
        for key in KEYS:
            chosen = rng.sample(labels, rng.choice([0, 2, 5]))
            tick[key] = {label: rng.choice(counts) for label in chosen}
        found.append(tick)
    return found


def steps_of(label: str, most: int) -> int:
    """Return the steps of every number beside a label: both ends of the range, and inside it."""
    return {"a": most, "b": 0, "c": most}.get(label, most // 3)


#: A tick as a key of caches: variants, seeds and neighbours share most ticks.
Frozen = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]


@cache
def users_columns(
    tick: Frozen, keys: Sequence[str], parts: int = 1
) -> Sequence[tuple[Contributions, Codes]]:
    """Return a tick's users as `parts` messages, each with some users of each item."""
    names = tuple(name for name, _ in tick)
    items = [(i, label) for i, (_, counts) in enumerate(tick) for label, _ in counts]
    numbers = [n for _, counts in tick for _, n in counts]
    labels = Texts.of([label.removesuffix(PROTECTED).encode() for _, label in items])
    tags = np.concatenate(
        [
            np.empty((0, 2), dtype=np.uint64),
            *(_tag(names[i], label.removesuffix(PROTECTED)) for i, label in items),
        ]
    )
    first = [label.endswith(PROTECTED) << 32 for _, label in items]
    keys_of = np.array([i for i, _ in items], dtype=np.int32)
    item_of_row = np.repeat(np.arange(len(items)), numbers)
    place = np.arange(len(item_of_row)) - np.repeat(
        np.cumsum(numbers, dtype=np.int64) - numbers, numbers
    )
    user = place + np.repeat(np.array(first, dtype=np.int64), numbers)
    users = np.zeros((len(user), 2), dtype=np.uint64)
    users[:, 1] = user.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    index = np.array([keys.index(name) for name in names], dtype=np.int32)
    found = []
    for part in range(parts):
        own = item_of_row[part::parts]
        made = Contributions(
            names,
            read_only(keys_of[own]),
            read_only(tags[own]),
            labels.take(own),
            read_only(np.ones(len(own), dtype=np.int64)),
            users=read_only(users[part::parts].copy()),
        )
        found.append((made, read_only(index)))
    return found


@cache
def columns(
    tick: Frozen, keys: Sequence[str], parts: int = 1, steps: int | None = None
) -> Sequence[tuple[Contributions, Codes]]:
    """Return a tick's contributions as `parts` read-only messages, each with part of the items.

    With `steps`, R of a sum, they are those of its numbers.
    """
    names = tuple(name for name, _ in tick)
    every = [
        (i, label, n if steps is None else n * steps_of(label, steps))
        for i, (_, counts) in enumerate(tick)
        for label, n in counts
    ]
    found = []
    places = {name: place for place, name in enumerate(keys)}
    for part in range(parts):
        rows = [row for row in every if row[2]][part::parts]
        labels = Texts.of([label.encode() for _, label, _ in rows])
        tags = [_tag(names[i], label) for i, label, _ in rows]
        key_of_row = read_only(np.array([i for i, _, _ in rows], dtype=np.int32))
        all_tags = read_only(np.concatenate([np.empty((0, 2), dtype=np.uint64), *tags]))
        counts = read_only(np.array([n for _, _, n in rows], dtype=np.int64))
        index = read_only(np.array([places[name] for name in names], dtype=np.int32))
        made = Contributions(
            names, key_of_row, all_tags, labels, counts, steps is not None
        )
        found.append((made, index))
    return found


@cache
def _tag(name: str, label: str) -> Tags:
    return KEY.tags(name, [label.encode()])


@cache
def _key_tags(keys: Sequence[str]) -> Tags:
    return np.concatenate([KEY.tags(name, [KEY_LABEL]) for name in keys])


_domain_tags = cache(KEY.tags)


class Run:
    """One epoch of a mechanism with all stream keys; `seed` is of its id, so of all noise."""

    def __init__(
        self, mechanism: Mechanism, seed: int = 0, keys: Sequence[str] = KEYS
    ) -> None:
        self.mechanism = mechanism
        self.keys = tuple(keys)
        self._stream = KEY.stream(seed.to_bytes(16, "big"))
        self.noise = mechanism.noise(self._stream)
        self.state: State = mechanism.init()
        self.stored: dict[str, bytes] = {}
        self.state.key_tags = _key_tags(self.keys)
        domain = tuple(mechanism.domain())
        for index, name in enumerate(keys):
            tags = _domain_tags(name, domain)
            mechanism.prepare_key(self.state, index, tags, domain)

    def step(self, t: int, tick: Tick, parts: int = 1) -> Shown:
        config = self.mechanism.config
        frozen = tuple((name, tuple(items.items())) for name, items in tick.items())
        of_tick = users_columns if config.unique_users else columns
        contributions = [*of_tick(frozen, self.keys, parts)] if tick else []
        if tick and config.sum is not None:
            contributions += columns(frozen, self.keys, parts, config.sum.steps)
        ledger = self.state.ledger
        self.state, shown = self.mechanism.step(
            self.state, t, contributions, self.noise
        )
        if self.state.ledger is not ledger:
            self.stored = {}
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
        if isinstance(shown, WindowReleases):
            return [self.named(release) for release in shown.releases], shown.begins
        if isinstance(shown, Items):
            keys = shown.keys.tolist()
            labels = list(shown.labels)
        else:
            keys = self.state.ledger.keys[shown.rows].tolist()
            labels = [self.state.ledger.label(row) for row in shown.rows.tolist()]
        rows = list(zip(keys, labels, strict=True))
        counts = dict(zip(rows, shown.counts.tolist(), strict=True))
        found: list[object] = [counts, shown.sd, shown.threshold]
        if isinstance(shown, Release) and shown.sums is not None:
            found += [
                dict(zip(rows, shown.sums.values.tolist(), strict=True)),
                shown.sums.sd,
            ]
        if isinstance(shown, Release) and shown.totals is not None:
            found += [shown.totals.values.tolist(), shown.totals.sd]
        return tuple(found)

    def store(self) -> dict[str, bytes]:
        store(self.state, self.stored)
        return self.stored

    def restart(self) -> None:
        self.load(self.store())

    def load(self, blocks: Mapping[str, bytes]) -> None:
        self.state = read_back(self.mechanism, blocks, self.state.key_tags)
        self.noise = self.mechanism.noise(self._stream)


# Counts per tick, and the event's tick: an interval closes before the event's segment ends, and
# most of a counter is used.
_RATES = {
    "bounded_max-tree": (100, 1),
    "bounded_max-quantile": (100, 7),
    "two_level-lifted": (15, 1),
    "two_level-tree": (40, 1),
    "two_level_k-lifted": (25, 1),
    "two_level_k-histogram": (25, 1),
    "two_level_k-tree": (100, 7),
}


def worst(variant: Variant) -> tuple[list[Tick], list[tuple[int, Histogram]]]:
    """Return a stream of TICKS ticks, and the neighbour's events (one, or those of one user)."""
    most = variant.max_count
    # If a tree begins before tick 1, no tick shows tick 1 apart from those before it.
    first = 2 if "end_share" in variant.options else 1
    if variant.options.get("horizon") == "never":
        first = 6
    if variant.unique_users:
        marked = [f"{label}{PROTECTED}" for label in DOMAIN[: variant.max_items]]
        # The first and the last tick of a period: in between the user is in every window.
        return _steady(), [(at, dict.fromkeys(marked, most)) for at in (5, 8)]
    if variant.unit == "user":
        items = enumerate(DOMAIN[: variant.max_items])
        return _steady(), [(first + 2 * i, {label: most}) for i, label in items]
    if variant.mechanism == "sparse_gumb":
        labels = DOMAIN[: variant.max_items]
        ever = -(-len(labels) // 3)
        stream = _each({label: 400 - 10 * i for i, label in enumerate(labels[:ever])})
        stream[4] = {NAME: dict.fromkeys(labels[ever : 2 * ever], 20_000)}
        stream[8] = {NAME: dict.fromkeys(labels[2 * ever :], 200_000)}
        return stream, [(first, dict.fromkeys(labels, most))]
    if "size" in variant.options:
        # A full sketch of large counters, then unknown items.
        order = sorted(
            DOMAIN, key=lambda label: KEY.tags(NAME, [label.encode()])[0].tolist()
        )
        stream = _each({label: 500 - 10 * i for i, label in enumerate(order[:4])})
        # "pure": all four exceed the subtracted fifth of their sum: one more of some lowers the
        # others.
        places = {
            "pure": slice(variant.max_items),
            "pmg": slice(4, 4 + variant.max_items),
            "pmg_laplace": slice(4, 4 + variant.max_items),
        }
        release = variant.options.get("release") or variant.options.get("algorithm")
        counted = order[places.get(str(release), slice(4, 5))]
        return stream, [(2, dict.fromkeys(counted, most))]
    if str(variant) in _RATES:
        rate, tick = _RATES[str(variant)]
        counts = {"a": rate, "b": rate // 2}
        if "quantile" in str(variant):
            counts = dict.fromkeys(DOMAIN, rate)
        return _each(counts), [(tick, {"a": most, "b": most})]
    second = "c" if variant.options.get("kbar") == "private" else "b"
    return _steady(), [(first, {"a": most, second: most})]


def fourfold(events: Sequence[tuple[int, Histogram]]) -> list[tuple[int, Histogram]]:
    """Return the same with four times of everything, beyond every bound."""
    return [
        (tick, {label: 4 * n for label, n in items.items()}) for tick, items in events
    ]


def _steady() -> list[Tick]:
    return _each({"a": 300, "b": 250, "c": 120, "d": 5, "e": 2}, {"a": 7, "x": 40})


def _each(*histograms: Histogram) -> list[Tick]:
    """Return the same tick every time: histograms by stream key."""
    return [dict(zip(KEYS, histograms, strict=False)) for _ in range(TICKS)]
