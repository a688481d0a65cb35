"""One-shot releases: brute force without noise, their noise, price, and use over ticks."""

import math
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.mechanisms import epoch
from tests.mechanisms.epoch import SETTINGS, start
from workers.arrays.tag_index import Tags
from workers.mechanisms.ledger import Contributions
from workers.mechanisms.mechanism import Items, Release, State
from workers.mechanisms.noise.discrete_laplace import DiscreteLaplace
from workers.mechanisms.one_shot import algorithms
from workers.mechanisms.one_shot.algorithms import KNOWN, LIMITED, PICKING, Cell, Name, OneShotNoise
from workers.mechanisms.one_shot.one_shot import OneShot
from workers.mechanisms.registry import MECHANISMS
from workers.runtime.errors import HorizonExceeded

KEY = epoch.KEY
STREAM = KEY.stream(bytes(16))
NAMES = get_args(Name)
COMMON = {**SETTINGS, "horizon": 64, "max_items": 2, "epsilon": 1.0, "delta": 1e-6}
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


def part(counts: dict[bytes, int]) -> Contributions:
    """Return the counts of the stream key "k"."""
    return epoch.part({"k": counts}, ["k"])[0]


def own_settings(name: str, domain: object) -> dict[str, Any]:
    """Return k = 2, kbar = 3 and the domain where they apply."""
    values = {"k": (2, PICKING), "kbar": (3, LIMITED), "domain": (domain, KNOWN)}
    return {field: value for field, (value, names) in values.items() if name in names}


def parameters(name: str, **changes: int) -> algorithms.Parameters:
    values: dict[str, Any] = {"max_items": 2, "max_count": 1} | own_settings(name, 6) | changes
    return algorithms.Parameters(**values)


def shown(state: State, release: Release | Items, key: int = 0) -> dict[bytes, int]:
    if isinstance(release, Items):
        named = zip(release.keys.tolist(), release.labels, release.counts.tolist(), strict=True)
        return {label: count for k, label, count in named if k == key}
    rows = [row for row in release.rows.tolist() if state.ledger.keys[row] == key]
    at = {row: i for i, row in enumerate(release.rows.tolist())}
    return {state.ledger.label(row): int(release.counts[at[row]]) for row in rows}


@settings(max_examples=60, deadline=None)
@given(name=st.sampled_from(NAMES), counts=st.lists(st.integers(0, 2000), min_size=6, max_size=6))
def test_without_noise_a_release_is_what_its_definition_says(name: Name, counts: list[int]) -> None:
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
        assert m is not None and rows.tolist() == sorted(i for i in order[:3] if h[i] > bar + m)
    else:
        assert m is not None and rows.tolist() == [i for i in range(len(h)) if h[i] > m]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("max_items", "max_count"), [(1, 1), (3, 1), (2, 4)])
def test_the_price_is_an_accountants(name: Name, max_items: int, max_count: int) -> None:
    """Every changed count and pick as its own event in dp_accounting: at most 1 % below budget."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    rho, p = 0.02, parameters(name, max_items=max_items, max_count=max_count)
    algorithm = algorithms.make_algorithm(name, p, rho, 1e-6)
    either = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountant = RdpAccountant(orders=[2, 5, 20], neighboring_relation=either)
    changed = min(max_items, p.k) if name in PICKING else max_items
    event: dp_accounting.DpEvent
    if isinstance(algorithm.table, DiscreteLaplace):
        event = dp_accounting.LaplaceDpEvent(float(algorithm.table.scale) / max_count)
    else:
        event = dp_accounting.GaussianDpEvent(math.sqrt(algorithm.table.sigma_squared) / max_count)
    accountant.compose(event, changed)
    exact = np.array(accountant._rdp) / np.array([2, 5, 20])
    if isinstance(algorithm, algorithms.Picking):
        exact += p.k * float(Fraction(max_count) / algorithm.scale) ** 2 / 8
    assert (exact <= algorithm.rho * (1 + 1e-9)).all()
    assert 0.99 * rho < algorithm.rho <= rho
    # Laplace costs less at high orders than its zCDP says.
    if name not in algorithms.LAPLACE:
        assert exact.max() == pytest.approx(algorithm.rho, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in UNKNOWN if n != "limit_dom"])
def test_what_one_event_alone_brought_is_shown_at_most_as_often_as_delta_allows(name: Name) -> None:
    """2 % delta, 20,000 places, one item of Dinf: within 6 sd (0.1 %); half the threshold fails."""
    algorithm = algorithms.make_algorithm(
        name, parameters(name, max_items=1, max_count=3), 0.05, 0.02
    )
    assert isinstance(algorithm, algorithms.Noisy) and algorithm.threshold is not None
    tags = KEY.tags("k", [b"%d" % i for i in range(20_000)])
    keys = np.arange(20_000, dtype=np.int32)
    key_tags = KEY.tags("q", [b"%d" % i for i in range(20_000)])
    cell = Cell(tags, keys, np.full(20_000, 3, dtype=np.int64), key_tags)
    noise = OneShotNoise(STREAM, algorithm.table)
    share = len(algorithm.release(cell, noise, (0, 1))[0]) / 20_000
    assert 0.01 < share <= 0.02 + 6 * math.sqrt(0.02 / 20_000)
    # Planted in what is frozen.
    object.__setattr__(algorithm, "threshold", algorithm.threshold // 2)
    assert len(algorithm.release(cell, noise, (0, 2))[0]) / 20_000 > 0.03


@pytest.mark.parametrize("name", ["known_gauss", "positive_gauss", "positive_laplace"])
def test_noise_has_the_stated_sd_and_neither_half_nor_double_of_it(name: Name) -> None:
    """20,000 items: an sd's sd is at most 1.2 % (Laplace), so 10 % is 8 of them."""
    algorithm = algorithms.make_algorithm(name, parameters(name), 0.05, 1e-6)
    h = np.full(20_000, 10**6, dtype=np.int64)
    tags = KEY.tags("k", [b"%d" % i for i in range(20_000)])
    cell = Cell(tags, np.zeros(20_000, np.int32), h, KEY.tags("k", [b"\xff"]))
    _, noisy = algorithm.release(cell, OneShotNoise(STREAM, algorithm.table), (0, 1))
    assert len(noisy) == 20_000
    assert (noisy - h).std() == pytest.approx(algorithm.sd, rel=0.1)
    assert abs(float((noisy - h).mean())) < 6 * algorithm.sd / math.sqrt(20_000)


def test_every_use_of_noise_has_cells_of_its_own() -> None:
    """Equal words would be shared noise: uses, levels, blocks and picks must all differ."""
    seen = set()
    noise = OneShotNoise(STREAM, None)
    tag = KEY.tags("k", [b"\xff"])[0]
    for use in (0x10, 0x11, 0x12, 0x13):
        for place in ((0, 1), (0, 2), (1, 1), (3, 2)):
            seen |= set(noise.picks(use, place, tag, 5))
    assert len(seen) == 4 * 4 * 5
    word = STREAM.words(tag.reshape(1, 2), ((0x12 << 56) | (3 << 40) | 4, 2))[0].tolist()
    assert noise.picks(0x12, (3, 2), tag, 5)[4] == tuple(word)


@pytest.mark.parametrize("name", NAMES)
def test_a_tick_shows_its_own_contributions_alone_and_repeats_byte_for_byte(name: str) -> None:
    """Parallel composition requires it: no trace of the past, or of contribution order."""
    mechanism = one_shot(name)
    tick: dict[bytes, int] = {b"a": 900, b"b": 500, b"c": 40, b"d": 1}
    noise, keys = mechanism.noise(STREAM), ("k", "l")
    ones = dict.fromkeys(reversed(tick), 1)
    rest = {x: n - 1 for x, n in tick.items() if n > 1}
    split = [epoch.part({"l": ones, "k": ones}, keys), epoch.part({"k": rest, "l": rest}, keys)]
    once, later = start(mechanism, keys), start(mechanism, keys)
    _, first = mechanism.step(once, 5, [epoch.part({"k": tick, "l": tick}, keys)], noise)
    before = {b"a": 7, b"z": 10**6}
    mechanism.step(later, 4, [epoch.part({"k": before, "l": before}, keys)], noise)
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
    assert one_shot(name, epsilon=None, rho=0.03).guarantee.rho == pytest.approx(0.03, rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_errors_stay_within_the_theorem(name: str) -> None:
    """400 ticks: no count off by over 6 sd, no missed item over the bar and 20 scales."""
    mechanism = one_shot(name, horizon=400)
    state, noise = start(mechanism, ["k"]), mechanism.noise(STREAM)
    tick = {b"a": 5000, b"b": 4000, b"c": 3, b"d": 2}
    for t in range(1, 401):
        state, release = mechanism.step(state, t, [epoch.part({"k": tick}, ["k"])], noise)
        found = shown(state, release)
        assert found.keys() >= {b"a", b"b"}
        assert all(abs(n - tick[label]) < 6 * mechanism.sd(t) for label, n in found.items())


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
