"""Everything mechanisms share between threads is complete when constructed, and frozen."""

import functools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import pytest

from tests import ROOT
from tests.contract import soak as module_soak
from tests.contract.racing import (
    SMALLEST_INTERVAL_S,
    Picture,
    alone,
    caches,
    cold,
    modules,
    race,
    stream_of,
    switching,
)
from tests.contract.soak import Soak
from tests.contract.stage import KEY
from tests.contract.variants import ONE_OF_EACH, VARIANTS, Variant, built
from tests.events.reading import ANY, event_reader, events_of
from tests.mechanisms.noise.tables import random_words
from workers.events.reading import SourceReader
from workers.kafka.records import Records
from workers.mechanisms.config.histogram import Lane
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.noise import normal, selection
from workers.mechanisms.noise.keyed import CHUNK_ROWS, NoiseKey
from workers.mechanisms.running.base import KnownBase
from workers.pipeline.contributions import decode
from workers.pipeline.intake import Intake
from workers.settings.settings import EventsSettings

pytestmark = pytest.mark.slow

# More than cores here; tables that grow at their first use were seen in each of six races of three.
OWNERS = 3
SEEDS = tuple(range(1, OWNERS + 1))
OTHERS = (OWNERS + 1,)
PICKING = [
    variant
    for variant in ONE_OF_EACH
    if variant.mechanism
    in ("known_gumbel", "limit_dom", "pay_what_you_get", "sparse_gumb")
    or variant.options.get("algorithm") in ("known_gumbel", "limit_dom")
]


class LazyPowers:
    """The old `selection._Powers` that corrupted picks: check, then append."""

    def __init__(self, scale: Fraction) -> None:
        self._scale = scale
        self.largest_gap = math.ceil(179 * scale)
        self._tables: list[tuple[int, ...]] = []

    def weight(self, gap: int) -> int:
        if gap > self.largest_gap:
            return 0
        value = 1 << 336
        digit = 0
        while gap:
            if digit == len(self._tables):
                self._tables.append(selection._table(self._scale, digit, 256))
            value = (value * self._tables[digit][gap & 255]) >> 336
            gap >>= 8
            digit += 1
        return (value + (1 << 79)) >> 80


class LazyKnownBase(KnownBase):
    def sd(self, t: int) -> float:
        held = self.__dict__.setdefault("_sds", np.full(64, np.nan))
        if np.isnan(held[t]):
            held[t] = super().sd(t)
        return float(held[t])


@contextmanager
def lazy_powers() -> Iterator[None]:
    with patch.object(selection, "_powers", functools.lru_cache(64)(LazyPowers)):
        yield


def lazy_known_base(variant: Variant) -> Mechanism:
    """Return the mechanism whose planted array was empty when the constructor returned."""
    made = variant.build()
    object.__setattr__(made, "__class__", LazyKnownBase)
    made.sd(1)
    return made


@functools.cache
def expected_of(variant: Variant) -> Sequence[str]:
    """Return the result of each of them alone, without any planted defect."""
    return alone(built(variant), SEEDS)


def changeable(mechanism: Mechanism) -> list[str]:
    """Return where a raced mechanism or cache could change, and where further steps changed it."""
    before = Picture.of(mechanism)
    race(mechanism, OTHERS)
    after = Picture.of(mechanism)
    return sorted({*before.changeable, *after.changeable, *before.changed(after)})


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_owner_partitions_that_step_it_together_find_what_each_finds_alone(
    variant: Variant,
) -> None:
    """Partitions share a mechanism: one's release must not depend on the others.

    A race is a matter of timing; immutable state has none on any machine.
    """
    expected = expected_of(variant)
    mechanism = cold(variant)
    assert race(mechanism, SEEDS) == expected
    assert len(set(expected)) == OWNERS
    assert changeable(mechanism) == []


@pytest.mark.parametrize("variant", PICKING, ids=str)
def test_tables_that_grow_at_their_first_use_are_seen(variant: Variant) -> None:
    expected = expected_of(variant)
    with lazy_powers():
        assert alone(cold(variant), SEEDS) == expected  # one thread alone never sees it
        assert any(race(cold(variant), SEEDS) != expected for _ in range(10))


def test_a_lazy_cache_is_seen_although_no_race_happened() -> None:
    """Negative controls: the old tables, and an array filled during use."""
    picking = next(
        variant for variant in VARIANTS if variant.mechanism == "known_gumbel"
    )
    with lazy_powers():
        mechanism = cold(picking)
        race(mechanism, [1])
        before = Picture.of(mechanism)
        assert any("LazyPowers" in where for where in before.changeable)
        assert any("_tables: list" in where for where in before.changeable)
    counting = next(
        variant for variant in VARIANTS if variant.mechanism == "known_base"
    )
    lazy = lazy_known_base(counting)
    race(lazy, SEEDS[:2])
    found = changeable(lazy)
    assert "known_base._sds: ndarray" in found
    # Its contents changed as well.
    lazy = lazy_known_base(counting)
    before = Picture.of(lazy)
    race(lazy, [1])
    assert before.changed(Picture.of(lazy)) == ["known_base._sds"]


def test_what_caches_keep_is_looked_at() -> None:
    """Without caches, or with empty ones, the mutability test would check nothing."""
    names = {cache.__name__ for cache in caches()}
    assert {"_powers", "integer_gaussian", "discrete_laplace", "geometric"} <= names
    assert {"make_counter", "quantile_up"} <= names
    mechanism = cold(VARIANTS[0])
    empty = len(Picture.of(mechanism)._content)
    race(mechanism, [1])
    selection._powers(Fraction(3))
    assert len(Picture.of(mechanism)._content) > empty


def test_no_module_holds_what_threads_could_change() -> None:
    held = (list, dict, set, bytearray, np.ndarray, tuple, frozenset, MappingProxyType)
    roots = {
        f"{module.__name__}.{name}": value
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, held) and not name.startswith("__")
    }
    assert len(roots) > 20
    # Skip annotations such as Annotated[...]: their arguments are not the product's.
    assert Picture(roots).changeable == []
    assert Picture({"planted": {}}).changeable == ["planted: dict"]


def test_no_code_that_threads_run_makes_a_cache_but_by_the_one_decorator_that_checks_it() -> (
    None
):
    """`memoized` refuses mutable values; functools' caches take anything."""
    makes_a_cache = re.compile(
        r"^ *@.*\b(?:lru_cache|cached_property|cache)\b.*", re.MULTILINE
    )
    found = []
    for module in modules():
        path = Path(str(module.__file__))
        if path.name != "frozen.py":
            found += makes_a_cache.findall(path.read_text())
    assert found == []
    assert makes_a_cache.findall("class A:\n    @functools.lru_cache(maxsize=None)\n")


def test_records_that_threads_let_msgspec_validate_are_ready() -> None:
    """Decoders are made at import; `convert` prepares a record where it is called."""
    readers = (
        *ROOT.glob("workers/client/**/*.py"),
        *ROOT.glob("workers/dashboard/**/*.py"),
    )
    paths = {*(Path(str(module.__file__)) for module in modules()), *readers}
    validates = re.compile(r"msgspec\.convert\(|\.decode\([^)]*\btype=")
    using = {path: text for path in paths if validates.search(text := path.read_text())}
    assert sorted(path.name for path in using) == [
        "changes.py",
        "checked.py",
        "files.py",
    ]
    assert all("ready(" in text for text in using.values())


def hammered(work: Callable[[int], object]) -> None:
    expected = [work(seed) for seed in SEEDS]
    with switching(1e-6), ThreadPoolExecutor(OWNERS) as pool:
        assert list(pool.map(work, SEEDS * 4)) == expected * 4


def test_one_stream_of_noise_gives_each_thread_the_words_that_it_gives_alone() -> None:
    stream = KEY.stream(bytes(16))

    def words(seed: int) -> bytes:
        tags = random_words(CHUNK_ROWS + seed, seed)
        return b"".join(stream.words(tags, (seed, cell)).tobytes() for cell in range(3))

    hammered(words)


def test_threads_that_meet_at_the_first_use_of_normal_numbers_read_the_same_table() -> (
    None
):
    """The races of mechanisms begin with it."""
    expected = normal.table().tobytes()
    cast(Any, normal.table).cache_clear()
    with switching(1e-6), ThreadPoolExecutor(OWNERS) as pool:
        assert set(pool.map(lambda _: normal.table().tobytes(), SEEDS)) == {expected}


def test_one_reader_and_one_codec_serve_all_source_partitions() -> None:
    events = EventsSettings(topic="t", key="shop", items="products", timestamp="ts")
    reader = event_reader(events, None)
    lane = Lane(1000, 0, 2, 3)

    def read(seed: int) -> object:
        rng = random.Random(seed)
        event = b'{"shop": "s%d", "products": ["p%d", "q"], "ts": %d}'
        values = list[bytes]()
        for i in range(400):
            numbers = rng.randrange(9), rng.randrange(99), i
            values.append(event % numbers if rng.random() < 0.9 else b"{}")
        events, rejects = events_of(
            SourceReader(reader, ANY, earliest_ms=0).read(Records.of(values))
        )
        intake = Intake([lane], 0, NoiseKey(bytes(32)))
        intake.add(events)
        committed = intake.take_messages(source=seed, sequences=[0], offset=seed)
        messages = [message.encoded() for _, message in committed]
        sections = [decode(message).sections for message in messages]
        keys = events.views[""].keys.tolist()
        labels = events.views[""].labels.tolist()
        return keys, labels, events.times.tolist(), rejects, messages, sections

    hammered(read)


def test_a_mechanism_that_is_not_frozen_is_not_built() -> None:
    """`build` refuses unsafe mechanisms, so their authors need not think of threads."""
    variant = VARIANTS[0]

    class Loose:
        kind = "loose"

        @classmethod
        def make(cls, *_: Any) -> Any:
            return cls()

    from workers.mechanisms import registry

    made_from: Any = MappingProxyType(
        {**registry._MADE_FROM, type(variant.build().config): Loose}
    )
    with (
        patch.object(registry, "_MADE_FROM", made_from),
        pytest.raises(TypeError, match="a Loose can change"),
    ):
        variant.build()


def test_a_short_soak_finds_no_difference() -> None:
    """The long one is `python -m tests.contract.soak --minutes 60`."""
    soak = Soak(seed=5)
    for _ in range(6):
        soak.round()
    assert soak.differences == []
    assert soak.rounds == 6 and soak.threads >= 12


def test_a_soak_sees_the_planted_defect() -> None:
    """A clean soak means something only if a difference would be detected."""
    soak = Soak(seed=5, variants=[v for v in VARIANTS if v.mechanism == "known_gumbel"])
    soak.round()
    # Long intervals show it seldom.
    shortest = patch.object(module_soak, "INTERVALS_S", (SMALLEST_INTERVAL_S,) * 2)
    with lazy_powers(), shortest:
        while not soak.differences and soak.rounds < 50:
            soak.round()
    assert soak.differences
    assert "known_gumbel" in soak.differences[0] and "seed" in soak.differences[0]


def test_streams_of_the_race_have_gaps_beyond_the_first_table() -> None:
    """Weights of gaps from 256 on were wrong; without such gaps the race would not show it."""
    gaps = {
        max(histogram.values()) - count
        for seed in SEEDS
        for tick in stream_of(seed)
        for histogram in tick.values()
        for count in histogram.values()
    }
    assert any(256 <= gap < 512 for gap in gaps)
