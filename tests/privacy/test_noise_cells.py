"""No noise word serves two purposes, or twice where it must be fresh: every mechanism."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from types import FrameType

import numpy as np
import pytest

from tests.privacy.enumeration import KEY, replaced
from tests.privacy.test_identity_of_fields import DOMAIN, OWN, config
from workers.arrays.texts import Texts
from workers.arrays.types import Tags, Words
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running import sparse_gumb

TICKS = 64
KEYS = ("s", "r")
# A counter's noise is a function of its cell, and is read while the cell is part of a sum.
COUNTERS = ("base", "lifted", "tree", "sqrt", "laplace_tree")
# The same holds for a threshold's noise in every test of its run.
HELD = (*COUNTERS, "sparse_gumb.threshold")
START = datetime(2026, 1, 1, tzinfo=UTC)
SPARSE: dict[str, object] = {"eta": 0, "epsilon": 20.0}
BUSY: dict[str, object] = {
    "epsilon": 30.0,
    "max_count": 1,
    "max_items": 1,
    "queries": ("max", "min", "histogram"),
}
VARIANTS: dict[str, tuple[str, dict[str, object]]] = {
    **{name: (name, {}) for name in MECHANISMS},
    "known_base, tree": ("known_base", {"counter": "tree"}),
    "known_base, sqrt": ("known_base", {"counter": "sqrt"}),
    "unk_base, unbounded": ("unk_base", {"horizon": "unbounded", "start": START}),
    "sparse_gumb, sqrt": ("sparse_gumb", SPARSE | {"counter": "sqrt", "switches": 20}),
    "sparse_gumb, busy": ("sparse_gumb", SPARSE | {"switches": 30}),
    "two_level_k, busy": ("two_level_k", BUSY),
    "two_level, pure": ("two_level", {"accounting": "pure", "epsilon": 40.0}),
    "misra_gries, merge": ("misra_gries", {"release": "merge"}),
    "misra_gries, pure": ("misra_gries", {"release": "pure", "domain": DOMAIN}),
    "misra_gries_tick, gshm": (
        "misra_gries_tick",
        {"release": "gshm", "max_count": 1},
    ),
    "misra_gries_tick, pure": (
        "misra_gries_tick",
        {"release": "pure", "domain": DOMAIN},
    ),
    "meta, sketch": (
        "meta",
        {"algorithm": "pmg", "k": None, "kbar": None, "size": 8},
    ),
    "meta, known": (
        "meta",
        {"algorithm": "known_gumbel", "kbar": None, "domain": DOMAIN},
    ),
    "meta, noisy bar": ("meta", {"algorithm": "unk_gauss", "k": None}),
}


class Recorder(NoiseStream, shared=False):
    def __init__(self) -> None:
        super().__init__(bytes(32))
        self.tick = 0
        self.taken: dict[tuple[int, int], tuple[str, int]] = {}

    def chunk(self, tags: Tags, cells: Words) -> Words:
        use = " < ".join(callers(sys._getframe(1)))
        words: Words = (tags ^ cells[:, None]).reshape(-1, 2)
        for word in map(tuple, words.tolist()):
            before, tick = self.taken.setdefault(word, (use, self.tick))
            if before != use:
                raise AssertionError(f"one word for {before} and for {use}")
            if tick != self.tick and not use.startswith(HELD):
                raise AssertionError(
                    f"one word at ticks {tick} and {self.tick} for {use}"
                )
        return super().chunk(tags, cells)


def callers(frame: FrameType | None) -> Iterator[str]:
    """Return the function that asked for words, with its caller if it serves several."""
    while frame is not None:
        module = frame.f_code.co_filename.rsplit("/", 1)[-1][:-3]
        function = frame.f_code.co_name
        if module not in ("noise", "inversion", "above_threshold"):
            yield f"{module}.{function}"
            if not function.startswith("_") or module in COUNTERS:
                return
        frame = frame.f_back


def run(kind: str, changes: dict[str, object], ticks: int = TICKS) -> Recorder:
    mechanism = build(config(kind, **changes))
    recorder = Recorder()
    state = mechanism.init()
    noise = mechanism.noise(recorder)
    for i, key in enumerate(KEYS):
        state.key_tags = np.concatenate((state.key_tags, KEY.tags(key, [b"\xff"])))
        mechanism.prepare_key(
            state, i, KEY.tags(key, mechanism.domain()), mechanism.domain()
        )
    labels = [label.encode() for label in DOMAIN]
    counts = np.random.default_rng(1)
    tags = np.concatenate([KEY.tags(key, labels) for key in KEYS])
    keys = np.repeat(np.arange(2, dtype=np.int32), len(labels))
    for t in range(1, ticks + 1):
        recorder.tick = t
        numbers = counts.integers(1, 60, size=len(tags))
        part = Contributions(KEYS, keys, tags, Texts.of(labels * 2), numbers)
        state, _ = mechanism.step(
            state, t, [(part, np.arange(2, dtype=np.int32))], noise
        )
    return recorder


@pytest.mark.parametrize("name", VARIANTS)
def test_no_word_of_noise_is_used_for_two_things(name: str) -> None:
    """The difference of two values under the same noise is exact."""
    assert run(*VARIANTS[name]).taken


def test_all_mechanisms_are_here() -> None:
    assert set(MECHANISMS) == set(OWN) <= set(VARIANTS)


def test_a_word_used_for_two_things_is_seen() -> None:
    """Control: picks and thresholds on the same cells."""
    twice = replaced(sparse_gumb, PICK=sparse_gumb.THRESHOLD)
    with twice, pytest.raises(AssertionError, match="one word for"):
        run("sparse_gumb", {})


def test_a_test_that_does_not_draw_anew_is_seen() -> None:
    """Constant test noise would let a reader infer the count from the crossing."""
    drawn = sparse_gumb.SparseNoise.test
    still = replaced(
        sparse_gumb.SparseNoise, test=lambda noise, t, tags: drawn(noise, 1, tags)
    )
    with still, pytest.raises(AssertionError, match="at ticks 2 and 3"):
        run("sparse_gumb", {})
