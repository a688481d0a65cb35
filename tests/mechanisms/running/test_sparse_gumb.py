"""SparseGumb: noiseless output, stops and picks by enumeration, cost, and repeatability."""

import math
from collections import Counter as Tally
from fractions import Fraction

import numpy as np
import pytest

from tests.mechanisms.small import (
    KEY,
    SMALL,
    STREAM,
    counted,
    show,
    start,
)
from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Longs, Tags
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.running.sparse_gumb import (
    SparseGumb,
    SparseGumbConfig,
    SparseNoise,
    SparseState,
)

pytestmark = pytest.mark.slow

LABELS = [b"a", b"b", b"c", b"d"]


def made(**changes: object) -> SparseGumb:
    values = SMALL | {
        "max_items": 4,
        "epsilon": None,
        "rho": 1.0,
        "domain": tuple("abcd"),
    }
    values |= {"top_k": 1, "switches": 2, "eta": 3} | changes
    return SparseGumb(SparseGumbConfig(**values))


def noise_of(mechanism: SparseGumb, stream: NoiseStream = STREAM) -> SparseNoise:
    noise = mechanism.noise(stream)
    assert isinstance(noise, SparseNoise)
    return noise


class Silent(SparseNoise):
    """Noise source silent on counts and tests; picks stay random, so counts are far apart."""

    def chosen(self, t: int, tags: Tags, rows: Rows) -> Longs:
        return np.zeros(len(rows), dtype=np.int64)

    def test(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)

    def threshold(self, key_tag: Tags, used: int) -> int:
        return 0


def test_without_noise_it_switches_above_eta_s_times_and_then_goes_on_counting() -> (
    None
):
    mechanism = made()
    n = 10**6
    state = start(mechanism, ["k"])
    silent = Silent(mechanism, STREAM)
    assert show(mechanism, state, 1, silent, {b"a": n}) == {b"a": n}
    assert show(mechanism, state, 2, silent, {b"b": n + 3}) == {b"a": n}
    assert state.used[0] == 0
    assert show(mechanism, state, 3, silent, {b"b": n}) == {b"b": 2 * n + 3}
    assert show(mechanism, state, 4, silent, {b"c": 5 * n}) == {b"c": 5 * n}
    for t in range(5, 10):
        assert show(mechanism, state, t, silent, {b"d": 9 * n, b"c": 1}) == {
            b"c": 5 * n + t - 4
        }
    assert state.used[0] == 2


def test_counts_are_those_of_counters_that_ran_from_tick_1() -> None:
    """Also for an item chosen late: running sum plus that tick's noise, for every counter."""
    for counter in ("lifted", "tree", "sqrt"):
        mechanism = made(counter=counter, top_k=2, rho=5.0, max_items=1)
        state = start(mechanism, ["k"])
        noise = noise_of(mechanism)
        total = Tally[bytes]()
        for t in range(1, 8):
            adds = {LABELS[t % 4]: 1000 * t, b"a": 5}
            total.update(adds)
            for label, n in show(mechanism, state, t, noise, adds).items():
                z = mechanism._counter.draw(STREAM, t, KEY.tags("k", [label]))
                assert n == total[label] + int(z[0])


def test_stream_keys_are_independent_of_each_other() -> None:
    """Another key's items change neither choice nor switches; each key has its own random words."""
    mechanism = made(rho=4.0, eta=0)
    both = start(mechanism, ["k", "l"])
    alone = start(mechanism, ["k"])
    for t in range(1, 20):
        adds = [counted({LABELS[t % 4]: 9})]
        mechanism.step(alone, t, adds, noise_of(mechanism))
        mechanism.step(both, t, adds, noise_of(mechanism))
        both.ledger._counts[4:8] += 37 * t * np.arange(4)
        assert (alone.chosen[0], alone.used[0]) == (both.chosen[0], both.used[0])


# 20,000 stream keys (tags at random): the chi-squared test below has a false-alarm rate of 1e-4 and
# must see 10 % planted.
KEYS = 20_000


def geometric_tail(scale: Fraction, least: int) -> float:
    return 1.0 if least < 0 else math.exp(-(least + 1) / float(scale))


def stopping_law(mechanism: SparseGumb, gaps: list[list[int]]) -> list[float]:
    """Return P(first stop at tick i) and P(never): gaps are (count outside - least inside - eta)
    of each item and tick, Z summed over.
    """
    b1 = mechanism._threshold_scale
    b2 = mechanism._test_scale
    law = np.zeros(len(gaps) + 1)
    for z in range(int(40 * b1)):
        weight = math.exp(-z / float(b1)) * -math.expm1(-1 / float(b1))
        going = 1.0
        for i, tick in enumerate(gaps):
            below = math.prod(1 - geometric_tail(b2, z - gap) for gap in tick)
            law[i] += weight * going * (1 - below)
            going *= below
        law[-1] += weight * going
    return [float(p) for p in law]


def pvalue(observed: list[int], law: list[float]) -> float:
    from scipy import stats

    expected = np.array(law) / sum(law) * sum(observed)
    assert expected.min() > 20
    return float(stats.chisquare(observed, expected).pvalue)


def test_stopping_times_agree_with_exact_enumeration() -> None:
    """AboveThreshold end to end: 20,000 equal stream keys; moving ten per cent is detected."""
    mechanism = made(rho=8.0, switches=1, eta=4)
    d = 4
    ticks = 5
    rows = np.array([50, 47, 45, 30]) + np.outer(np.arange(1, ticks + 1), [0, 1, 2, 0])
    random = np.random.default_rng(5)
    state = SparseState()
    state.key_tags = random.integers(0, 2**64, size=(KEYS, 2), dtype=np.uint64)
    tags = random.integers(0, 2**64, size=(KEYS * d, 2), dtype=np.uint64)
    keys = np.repeat(np.arange(KEYS, dtype=np.int32), d)
    state.ledger.append(tags, keys, Texts.of([b""] * (KEYS * d)))
    for key in range(KEYS):
        state.choose(key, [0], 0)

    class Exact(SparseNoise):
        def chosen(self, t: int, tags: Tags, rows: Rows) -> Longs:
            return np.zeros(len(rows), dtype=np.int64)

    noise = Exact(mechanism, STREAM)
    stopped = np.full(KEYS, ticks)
    for i in range(ticks):
        state.ledger._counts[: KEYS * d] = np.tile(rows[i], KEYS)
        mechanism.step(state, i + 2, [], noise)
        used = np.array([state.used[key] for key in range(KEYS)])
        stopped[(used == 1) & (stopped == ticks)] = i
    observed = np.bincount(stopped, minlength=ticks + 1).tolist()
    law = stopping_law(
        mechanism, [[int(row[j] - row[0] - 4) for j in (1, 2, 3)] for row in rows]
    )
    assert sum(law) == pytest.approx(1, abs=1e-9)
    assert pvalue(observed, law) > 1e-4
    planted = [p * (1.1 if i == 4 else 1.0) for i, p in enumerate(law)]
    assert pvalue(observed, planted) < 1e-4


@pytest.mark.parametrize(
    "changes", [{}, {"top_k": 3, "switches": 7}, {"max_count": 4}, {"max_items": 1}]
)
@pytest.mark.parametrize(
    ("accounting", "extra"), [("tight", Fraction(1, 8)), ("paper", Fraction(2))]
)
def test_rho_is_kappa_over_tau_squared_and_nearly_all_of_what_was_given(
    changes: dict[str, int], accounting: str, extra: Fraction
) -> None:
    """The three parts from the scales in use; an event's item count plays no part."""
    mechanism = made(accounting=accounting, rho=0.3, **changes)
    k = changes.get("top_k", 1)
    s = changes.get("switches", 2)
    dinf = changes.get("max_count", 1)
    tau_squared = float((k + extra) * dinf**2 / Fraction(0.3))
    counts = k * (s + 1) * dinf**2 * mechanism._counter.rho_item
    picks = k * (s + 1) * (dinf / float(mechanism._pick_scale)) ** 2 / 8
    assert counts == pytest.approx(k * dinf**2 / (2 * tau_squared), rel=1e-3)
    assert picks == pytest.approx(k * dinf**2 / (2 * tau_squared), rel=1e-3)
    assert 0.3 * 0.999 <= mechanism.cost().rho <= 0.3
    rest = mechanism.cost().rho - counts - picks
    assert rest == pytest.approx(float(extra) * dinf**2 / tau_squared, rel=0.03)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 4}, "top_k = 4"),
        ({"top_k": 0}, "top_k = 0"),
        ({"switches": 0}, "switches = 0"),
        ({"eta": -1}, "eta = -1"),
        ({"accounting": "loose"}, 'accounting = "loose"'),
        ({"domain": ("a", "a")}, "more than once"),
        ({"delta": 1e-40}, "delta = 1e-40"),
        ({"rho": 1e-12}, "rho|sigma_squared|scale"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        made(**changes)
