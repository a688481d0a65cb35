"""One-shot releases: brute force without noise, their noise, price, and use over ticks."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms.small import KEY, SMALL, STREAM, start
from workers.arrays.types import Tags
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    SKETCHES,
    Cell,
    Name,
    OneShotNoise,
)
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.errors import HorizonExceeded

NAMES = tuple(name for name in get_args(Name) if name not in SKETCHES)
COMMON = SMALL | {"max_items": 2}


class Silent(OneShotNoise):
    """Noise source without noise on counts and thresholds; picks as drawn."""

    def items(self, place: algorithms.Place, tags: Tags) -> NDArray[np.int64]:
        return np.zeros(len(tags), dtype=np.int64)

    def threshold(self, place: algorithms.Place, key_tag: NDArray[np.uint64]) -> int:
        return 0


def one_shot(name: str, **changes: object) -> OneShot:
    values = own_settings(name, ("a", "b", "c", "d")) | COMMON | changes
    return OneShot(MECHANISMS[name](**values))  # type: ignore[arg-type]  # checked by the record itself


def own_settings(name: str, domain: object) -> dict[str, Any]:
    values = {"k": (2, PICKING), "kbar": (3, LIMITED), "domain": (domain, KNOWN)}
    return {field: value for field, (value, names) in values.items() if name in names}


def parameters(name: str, **changes: int) -> algorithms.Parameters:
    values: dict[str, Any] = (
        {"max_items": 2, "max_count": 1} | own_settings(name, 6) | changes
    )
    return algorithms.Parameters(**values)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    counts=st.lists(st.integers(0, 2000), min_size=6, max_size=6),
)
def test_without_noise_a_release_is_what_its_definition_says(
    name: Name, counts: list[int]
) -> None:
    """Brute force over dictionaries; picks of a tiny scale are the largest, down to the bar."""
    algorithm = algorithms.make_algorithm(
        name, parameters(name), 1e6 if name in PICKING else 0.5, 1e-6
    )
    labels = [b"%d" % i for i in range(6)]
    present = [i for i in range(6) if counts[i] or name in KNOWN]
    h = np.array([counts[i] for i in present], dtype=np.int64)
    tags = KEY.tags("k", [labels[i] for i in present])
    cell = Cell(tags, np.zeros(len(h), np.int32), h, KEY.tags("k", [b"\xff"]))
    rows, noisy = algorithm.release(cell, Silent(STREAM, algorithm.table), (0, 1))
    assert noisy.tolist() == h[rows].tolist()
    order = sorted(range(len(h)), key=lambda i: (-h[i], *cell.tags[i].tolist()))
    bar = int(h[order[3]]) if len(h) > 3 else 0
    if isinstance(algorithm, algorithms.Picking):
        candidates = order[:3] if name == "limit_dom" else order
        most = [int(h[i]) for i in candidates if name in KNOWN or h[i] > bar + 1]
        assert sorted(noisy.tolist(), reverse=True) == most[:2]
        return
    m = algorithm.threshold
    if name == "known_gauss":
        assert rows.tolist() == list(range(len(h)))
    elif name in LIMITED:
        assert m is not None and rows.tolist() == sorted(
            i for i in order[:3] if h[i] > bar + m
        )
    else:
        assert m is not None and rows.tolist() == [i for i in range(len(h)) if h[i] > m]


def test_ticks_outside_the_epoch_and_impossible_settings_are_refused() -> None:
    mechanism = one_shot("unk_gauss")
    for t in (0, 65):
        with pytest.raises(HorizonExceeded):
            mechanism.step(start(mechanism, ["k"]), t, [], mechanism.noise(STREAM))
    impossible: list[tuple[str, dict[str, object], str]] = [
        ("limit_dom", {"k": 4}, "k = 4: at most kbar = 3"),
        ("limit_dom", {"kbar_max": 9}, 'kbar_max = 9: only with kbar = "private"'),
        ("known_gumbel", {"k": 5}, "k = 5: at most the 4 labels"),
        ("known_gauss", {"domain": ("a", "a")}, 'domain holds "a" more than once'),
    ]
    for name, changes, message in impossible:
        with pytest.raises(ValueError, match=message):
            one_shot(name, **changes)
