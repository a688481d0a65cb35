"""One-shot releases: brute force without noise, their noise, price, and use over ticks."""

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms.small import KEY, SMALL, STREAM, part, start
from workers.arrays.types import Tags
from workers.mechanisms.mechanism import Items, Release, State
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import (
    KNOWN,
    LIMITED,
    PICKING,
    Cell,
    Name,
    OneShotNoise,
)
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.errors import HorizonExceeded

NAMES = get_args(Name)
COMMON = SMALL | {"max_items": 2}
UNKNOWN = [name for name in NAMES if name not in KNOWN]


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


def shown(state: State, release: Release | Items, key: int = 0) -> dict[bytes, int]:
    if isinstance(release, Items):
        named = zip(
            release.keys.tolist(), release.labels, release.counts.tolist(), strict=True
        )
        return {label: count for k, label, count in named if k == key}
    rows = [row for row in release.rows.tolist() if state.ledger.keys[row] == key]
    at = {row: i for i, row in enumerate(release.rows.tolist())}
    return {state.ledger.label(row): int(release.counts[at[row]]) for row in rows}


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


@pytest.mark.parametrize("name", NAMES)
def test_a_tick_shows_its_own_contributions_alone_and_repeats_byte_for_byte(
    name: str,
) -> None:
    """Parallel composition requires it: no trace of the past, or of contribution order."""
    mechanism = one_shot(name)
    tick: dict[bytes, int] = {b"a": 900, b"b": 500, b"c": 40, b"d": 1}
    noise = mechanism.noise(STREAM)
    keys = ("k", "l")
    ones = dict.fromkeys(reversed(tick), 1)
    rest = {x: n - 1 for x, n in tick.items() if n > 1}
    split = [part({"l": ones, "k": ones}, keys), part({"k": rest, "l": rest}, keys)]
    once = start(mechanism, keys)
    later = start(mechanism, keys)
    _, first = mechanism.step(once, 5, [part({"k": tick, "l": tick}, keys)], noise)
    before = {b"a": 7, b"z": 10**6}
    mechanism.step(later, 4, [part({"k": before, "l": before}, keys)], noise)
    _, again = mechanism.step(later, 5, split, mechanism.noise(STREAM))
    for key in (0, 1):
        assert shown(once, first, key) == shown(later, again, key)
    if isinstance(first, Items) and isinstance(again, Items):
        assert list(first.labels) == list(again.labels)
    _, other = mechanism.step(later, 6, split, noise)
    assert shown(later, other) != shown(once, first)


@pytest.mark.parametrize("name", NAMES)
def test_the_promise_is_the_budget_and_the_cost_is_within_it(name: str) -> None:
    """(epsilon, delta) as configured, rho below; discovery is charged for unknown domains."""
    mechanism = one_shot(name)
    cost = mechanism.cost()
    assert (mechanism.guarantee.epsilon, mechanism.guarantee.delta) == (1.0, 1e-6)
    assert mechanism.guarantee.rho == cost.rho == mechanism.algorithm.rho
    assert ("discovery" in dict(cost.failures)) is (name not in KNOWN)
    assert sum(part for _, part in cost.failures) < cost.delta == 1e-6
    assert mechanism.public() != one_shot(name, max_count=2).public()
    assert one_shot(name, epsilon=None, rho=0.03).guarantee.rho == pytest.approx(
        0.03, rel=1e-3
    )


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


@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_the_theorem(name: str) -> None:
    """400 ticks: no count off by over 6 sd, no missed item over the bar and 20 scales."""
    mechanism = one_shot(name, horizon=400)
    state = start(mechanism, ["k"])
    noise = mechanism.noise(STREAM)
    tick = {b"a": 5000, b"b": 4000, b"c": 3, b"d": 2}
    for t in range(1, 401):
        state, release = mechanism.step(state, t, [part({"k": tick}, ["k"])], noise)
        found = shown(state, release)
        assert found.keys() >= {b"a", b"b"}
        assert all(
            abs(n - tick[label]) < 6 * mechanism.sd(t) for label, n in found.items()
        )
