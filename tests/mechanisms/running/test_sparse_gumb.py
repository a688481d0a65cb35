"""SparseGumb: noiseless output, stops and picks by enumeration, cost, and repeatability."""

import itertools
import math
from collections import Counter as Tally
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.mechanisms.small import (
    KEY,
    SMALL,
    STREAM,
    assert_variance,
    counted,
    labelled,
)
from workers.arrays.tag_index import Rows
from workers.arrays.texts import Texts
from workers.arrays.types import Longs, Tags
from workers.mechanisms.mechanism import Release
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.noise.selection import gumbel_top_k
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


def begun(mechanism: SparseGumb, name: str = "k") -> SparseState:
    state = mechanism.init()
    assert isinstance(state, SparseState)
    state.key_tags = KEY.tags(name, [b"\xff"])
    mechanism.prepare_key(
        state, 0, KEY.tags("k", mechanism.domain()), mechanism.domain()
    )
    return state


def noise_of(mechanism: SparseGumb, stream: NoiseStream = STREAM) -> SparseNoise:
    noise = mechanism.noise(stream)
    assert isinstance(noise, SparseNoise)
    return noise


class Silent(SparseNoise):
    """Noise source silent on counts and tests; picks stay random, so counts are far apart."""

    def __init__(self, mechanism: SparseGumb) -> None:
        tables = mechanism._test_table, mechanism._threshold_table
        super().__init__(STREAM, mechanism._counter, *tables)

    def chosen(self, t: int, tags: Tags, rows: Rows) -> Longs:
        return np.zeros(len(rows), dtype=np.int64)

    def test(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)

    def threshold(self, key_tag: Tags, used: int) -> int:
        return 0


def show(
    mechanism: SparseGumb,
    state: SparseState,
    t: int,
    noise: SparseNoise,
    adds: dict[bytes, int],
) -> dict[bytes, int]:
    parts = [counted(adds)] if adds else []
    _, release = mechanism.step(state, t, parts, noise)
    assert isinstance(release, Release)
    assert (np.diff(release.rows) > 0).all()
    return labelled(state, release)


def test_without_noise_it_switches_above_eta_s_times_and_then_goes_on_counting() -> (
    None
):
    mechanism = made()
    n = 10**6
    state = begun(mechanism)
    silent = Silent(mechanism)
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
        state = begun(mechanism)
        noise = noise_of(mechanism)
        total = Tally[bytes]()
        for t in range(1, 8):
            adds = {LABELS[t % 4]: 1000 * t, b"a": 5}
            total.update(adds)
            for label, n in show(mechanism, state, t, noise, adds).items():
                z = mechanism._counter.draw(STREAM, t, KEY.tags("k", [label]))
                assert n == total[label] + int(z[0])


TICKS = st.dictionaries(st.sampled_from(LABELS), st.integers(1, 60), min_size=1)


@settings(max_examples=25, deadline=None)
@given(st.lists(TICKS, min_size=2, max_size=14), st.integers(1, 3), st.integers(1, 3))
def test_it_never_uses_more_than_s_switches_and_a_crash_anywhere_changes_nothing(
    ticks: list[dict[bytes, int]], switches: int, top_k: int
) -> None:
    """Blocks are written only when changed; a restored state releases the same."""
    mechanism = made(switches=switches, top_k=top_k, eta=0, rho=4.0)
    state = begun(mechanism)
    crashed = begun(mechanism)
    stored: dict[str, bytes] = {}
    before: tuple[object, ...] = ()
    for t, adds in enumerate(ticks, 1):
        both = (
            show(mechanism, one, t, noise_of(mechanism), adds)
            for one in (state, crashed)
        )
        assert next(both) == next(both)
        assert state.used[0] <= switches
        assert len(state.chosen[0]) == len(set(state.chosen[0])) == top_k
        blocks = crashed.changed()
        assert bool(blocks) is ((state.chosen[0], state.used[0]) != before)
        before = (state.chosen[0], state.used[0])
        stored.update(blocks)
        restored = SparseState()
        restored.ledger = crashed.ledger
        restored.key_tags = crashed.key_tags
        for name, block in stored.items():
            restored.restore(name, block)
        assert (restored.chosen, restored.used) == (state.chosen, state.used)
        crashed = restored


def test_stream_keys_are_independent_of_each_other() -> None:
    """Another key's items change neither choice nor switches; each key has its own random words."""
    mechanism = made(rho=4.0, eta=0)
    both = begun(mechanism, "k")
    both.key_tags = np.concatenate((both.key_tags, KEY.tags("l", [b"\xff"])))
    mechanism.prepare_key(
        both, 1, KEY.tags("l", mechanism.domain()), mechanism.domain()
    )
    alone = begun(mechanism, "k")
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

    noise = Exact(
        STREAM, mechanism._counter, mechanism._test_table, mechanism._threshold_table
    )
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


# n = 20,000: for geometric noise (kurtosis 9) a sample variance has relative sd sqrt(8/n) = 0.02,
# five of them are 10 %.
@pytest.mark.parametrize("accounting", ["tight", "paper"])
def test_noise_of_tests_and_thresholds_has_the_scale_of_the_cost_and_not_half_or_double(
    accounting: str,
) -> None:
    """b_2 = 4 sqrt(s) tau, b_1 = 2 sqrt(s) tau; two-sided Laplace has twice the variance."""
    mechanism = made(accounting=accounting, switches=9, top_k=3, rho=0.5)
    kappa, sides = (3 + 1 / 8, 1) if accounting == "tight" else (5.0, 2)
    tau_1 = math.sqrt(9 * kappa / 0.5)
    tags = np.random.default_rng(7).integers(0, 2**64, size=(KEYS, 2), dtype=np.uint64)
    noise = noise_of(mechanism)
    thresholds = np.array([noise.threshold(tags[i : i + 1], 3) for i in range(KEYS)])
    for drawn, scale in ((noise.test(5, tags), 4 * tau_1), (thresholds, 2 * tau_1)):
        assert bool(drawn.min() >= 0) is (sides == 1)
        assert_variance(drawn.var(), sides * scale**2, 0.1)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_the_stopping_times_loss_lies_in_the_stated_interval(
    data: st.DataObject,
) -> None:
    """The sharper test cost needs it: any outside counts, any items one higher from a tick on."""
    mechanism = made(rho=4.0, switches=1)
    ticks = data.draw(st.integers(1, 4))
    items = data.draw(st.integers(1, 3))
    gaps = [
        [data.draw(st.integers(-12, 12)) for _ in range(items)] for _ in range(ticks)
    ]
    begin = data.draw(st.integers(0, ticks - 1))
    moved = [data.draw(st.integers(0, 1)) for _ in range(items)]
    more = (np.array(gaps) + (np.arange(ticks) >= begin)[:, None] * moved).tolist()
    e1 = 1 / float(mechanism._threshold_scale)
    e2 = 1 / float(mechanism._test_scale)
    law = stopping_law(mechanism, gaps)
    other = stopping_law(mechanism, more)
    found = [math.log(q / p) for p, q in zip(law, other, strict=True) if p > 1e-9]
    assert max(found) <= e2 + 1e-6
    assert min(found) >= -(e1 + e2) - 1e-6


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


def test_an_item_that_wins_by_a_wide_margin_is_shown_at_its_count() -> None:
    """Utility: the default eta never switches needlessly; a far leader is taken in one tick."""
    wrong = 0
    for run in range(40):
        mechanism = made(eta=None, rho=1.0, switches=3)
        stream = KEY.stream(run.to_bytes(16, "big"))
        state = begun(mechanism)
        noise = noise_of(mechanism, stream)
        show(mechanism, state, 1, noise, {b"a": 500})
        for t in range(2, 30):
            show(mechanism, state, t, noise, {b"a": 1, b"b": 1})
        wrong += state.used[0] > 0
        margin = 500 + 3 * mechanism.eta(30)
        shown = show(mechanism, state, 30, noise, {b"c": margin})
        wrong += list(shown) != [b"c"] or abs(
            shown.get(b"c", 0) - margin
        ) > 6 * mechanism.sd(30)
    assert wrong <= 2


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


def test_first_picks_agree_with_exact_enumeration_of_peeling() -> None:
    """Ordered pairs of four items by exp(count / b), b = tau_2 / 2; 10 % more is detected."""
    mechanism = made(top_k=2, rho=0.5)
    counts = np.array([6, 5, 3, 0])
    noise = noise_of(mechanism)
    b = float(mechanism._pick_scale)
    tags = np.random.default_rng(6).integers(0, 2**64, size=(KEYS, 2), dtype=np.uint64)
    tally: Tally[tuple[int, ...]] = Tally()
    for i in range(KEYS):
        words = noise.picks(tags[i : i + 1], 0, 2)
        tally[
            tuple(gumbel_top_k(counts, mechanism._pick_scale, 2, words).tolist())
        ] += 1
    pairs = list(itertools.permutations(range(4), 2))

    def law(scale: float) -> list[float]:
        w = np.exp(counts / scale)
        return [float(w[i] / w.sum() * w[j] / (w.sum() - w[i])) for i, j in pairs]

    observed = [tally[pair] for pair in pairs]
    assert pvalue(observed, law(b)) > 1e-4
    planted = [p * (1.1 if i < 3 else 1.0) for i, p in enumerate(law(b))]
    assert pvalue(observed, planted) < 1e-4


def test_an_independent_accountant_agrees_for_the_counts_and_bounds_the_rest() -> None:
    """Gaussian parts as events, bounded picks and tests as zCDP: below epsilon, within 1 %."""
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    mechanism = made(rho=None, epsilon=1.0, top_k=2, switches=3)
    delta = 1e-6 - sum(d for _, d in mechanism.cost().failures)
    b = float(mechanism._pick_scale)
    b1 = float(mechanism._threshold_scale)
    b2 = float(mechanism._test_scale)
    ranges = 8 / b**2 / 8 + 3 * (1 / b1 + 2 / b2) ** 2 / 8

    def epsilon(scale: float) -> float:
        accountant = RdpAccountant(orders=[float(a) for a in range(2, 500)])
        multiplier = scale / math.sqrt(2 * mechanism._counter.rho_item)
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier), 8)
        accountant.compose(dp_accounting.GaussianDpEvent(scale / math.sqrt(2 * ranges)))
        return float(accountant.get_epsilon(delta))

    assert epsilon(1.0) <= 1.0 < epsilon(0.99)
