"""two_level and two_level_k: the printed algorithms, unshared noise, cost and error."""

from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.mechanisms.order_statistics.unknown_max import (
    KEY,
    Run,
    assert_as_printed,
    assert_converts,
    assert_variance,
    make,
    rows_of,
    worst_error,
)
from workers.mechanisms.counters.counter import make_counter
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.order_statistics.engine import MaxNoise

BOTH = pytest.mark.parametrize("accounting", ["zcdp", "pure"])
SEVERAL = [
    ("max", "min"),
    ("quantile:0.5", "top_k:3", "argmax"),
    ("histogram", "top_k_select:2"),
    ("max",),
]


@BOTH
@pytest.mark.parametrize("query", ["max", "argmax", "min"])
def test_one_query_is_the_printed_algorithm(query: str, accounting: str) -> None:
    """001 Algorithms 6 and 7 on the same noise: segments restart the partition at noisy sums."""
    mechanism = make("two_level", 3, query=query, accounting=accounting, epsilon=25.0, horizon=500)
    assert assert_as_printed(mechanism, rows_of(500, 3, seed=1, ones=2, most=30), silent=False) >= 8


@BOTH
@pytest.mark.parametrize("queries", SEVERAL)
def test_several_queries_are_the_printed_algorithm(
    queries: tuple[str, ...], accounting: str
) -> None:
    """001 Algorithms 11 and 12: one tau and mu for all; threshold updates have their own noise."""
    mechanism = make(
        "two_level_k", 4, queries=queries, accounting=accounting, epsilon=25.0, horizon=500
    )
    assert assert_as_printed(mechanism, rows_of(500, 4, seed=1, ones=2, most=60), silent=False) >= 8


@pytest.mark.parametrize("queries", SEVERAL[:3])
def test_with_narrow_steps_partitions_of_several_queries_close_often_and_as_printed(
    queries: tuple[str, ...],
) -> None:
    """A large budget: small noise, many closes in a segment, thresholds that rise one by one."""
    mechanism = make("two_level_k", 4, queries=queries, rho=5.0, horizon=600, max_items=4)
    assert assert_as_printed(mechanism, rows_of(600, 4, seed=4, ones=3, most=5), silent=False) >= 20


class Spy(NoiseStream, shared=False):
    """Noise source that records the requested AES blocks."""

    def __init__(self) -> None:
        super().__init__(b"a" * 32)
        self.seen: set[tuple[int, int]] = set()

    def chunk(self, tags: NDArray[np.uint64], *cells: tuple[int, int]) -> NDArray[np.uint64]:
        blocks = np.concatenate([tags ^ np.array(cell, dtype=np.uint64) for cell in cells])
        self.seen |= {(int(high), int(low)) for high, low in blocks.tolist()}
        return super().chunk(tags, *cells)


@BOTH
def test_no_two_uses_share_a_noise_word(accounting: str) -> None:
    """A word used twice could be subtracted out. Equal tags everywhere are the worst case."""
    mechanism = make("two_level_k", 4, accounting=accounting, epsilon=20.0)
    tag = KEY.tags("s0", [b"x"])
    drawn: dict[str, set[tuple[int, int]]] = {}

    def note(name: str, draw: str, *arguments: object) -> None:
        spy = Spy()
        getattr(MaxNoise(mechanism, spy), draw)(*arguments)
        drawn[name] = spy.seen

    for t in (1, 300):
        note(f"outer mu {t}", "outer_mu", 0, tag, t)
        note(f"inner mu {t}", "inner_mu", 0, tag, t)
    for segment in (1, 2, 3):
        note(f"outer tau {segment}", "outer_tau", tag, segment)
        note(f"G {segment}", "outer_columns", tag, segment)
        for interval in (1, 2):
            note(f"inner tau {segment} {interval}", "inner_tau", tag, segment, interval)
            note(f"u {segment} {interval}", "updates", tag, segment, interval, 2)
        # Intervals of one counter share nodes by design; other segments' counters share none.
        note(f"N {segment}", "inner_columns", tag, segment, 3)
    assert all(drawn.values())
    assert not [pair for pair in combinations(drawn, 2) if drawn[pair[0]] & drawn[pair[1]]]


def test_updates_have_the_noise_that_was_paid_for() -> None:
    """k Dinf^2 / (2 rho) with two tenths of rho: one event moves all k values."""
    mechanism = make("two_level_k", 40, rho=0.5, queries=("histogram",), max_count=3)
    noise, tags = (
        Run(mechanism).noise,
        np.random.default_rng(3).integers(0, 2**63, size=(2000, 2), dtype=np.uint64),
    )
    drawn = np.concatenate([noise.updates(tag[None], 1, 1, 40) for tag in tags])
    assert_variance(drawn, 40 * 9 / (2 * 0.5 * 2 / 10))


@pytest.mark.parametrize("kind", ["two_level", "two_level_k"])
def test_the_cost_in_zcdp_adds_up_from_the_noise_that_is_public(kind: str) -> None:
    """mechanisms.md 5: both tests, D / (2 s_D^2), D rho_H and k / (2 s_U^2), once each; from
    published scales.
    """
    mechanism = make(kind, 5, epsilon=1.5, max_items=2)
    public, rho = mechanism.public(), Fraction(0)
    outer, inner = public["segments"], public["partition"]
    assert isinstance(outer, dict) and isinstance(inner, dict)
    for level in (outer, inner):
        test = level["above_threshold"]
        rho += (1 / Fraction(test["tau_scale"]) + 2 / Fraction(test["mu_scale"])) ** 2 / 8
    rho += 2 / (2 * Fraction(outer["column"]))
    for segment in (1, 4):
        counter = make_counter(
            "haar", mechanism.intervals(segment).capacity, float(Fraction(inner["sums"]) / 2)
        )
        assert 0.998 < counter.rho_item * 2 / float(Fraction(inner["sums"])) <= 1
    rho += Fraction(inner["sums"])
    if kind == "two_level_k":
        rho += 2 / (2 * Fraction(inner["update"]))
    assert mechanism.cost().rho == pytest.approx(float(rho), rel=1e-12)
    assert_converts(mechanism, 1e-6)


def test_pure_epsilon_is_as_printed_with_half_of_it_for_each_level() -> None:
    """eps = 1 of 2: 4, 8, 2 D outside; inside 4, 8 for one query, or 6, 12, 3 k, with H at eps/2
    or eps/3.
    """
    for kind, tau, mu, share in (("two_level", 4, 8, 2), ("two_level_k", 6, 12, 3)):
        mechanism = make(kind, 5, epsilon=2.0, accounting="pure", max_items=2)
        assert mechanism.segments is not None and mechanism.inner is not None
        assert mechanism.segments.above.tau_scale == 4 and mechanism.segments.above.mu_scale == 8
        assert mechanism.segments.public()["column"] == "4"
        assert mechanism.inner.above.tau_scale == tau and mechanism.inner.above.mu_scale == mu
        assert mechanism.inner.sums == Fraction(1, share)
        assert mechanism.inner.public()["update"] == (None if kind == "two_level" else "6")
        assert mechanism.guarantee.epsilon == 2.0


@BOTH
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("two_level", {}),
        ("two_level", {"query": "min"}),
        ("two_level_k", {"queries": ("max", "quantile:0.5", "top_k:2")}),
    ],
)
def test_the_error_stays_within_what_is_promised(
    kind: str, changes: dict[str, object], accounting: str
) -> None:
    """001 Lemmas 15 and 32, 0/1 rows, beta = 0.05: over 2 of 6 runs fail with probability 0.002."""
    mechanism = make(kind, 4, accounting=accounting, epsilon=16.0, horizon=1000, **changes)
    worst = [worst_error(mechanism, rows_of(1000, 4, seed=seed, ones=3), seed) for seed in range(6)]
    assert sum(one > 1 for one in worst) <= 2


@BOTH
def test_the_named_column_falls_short_by_no_more_than_is_promised(accounting: str) -> None:
    """SUMSELECT (001 section 3.2): largest sum minus the named label's, at every tick of 6 runs."""
    mechanism, missed = (
        make("two_level", 4, query="argmax", accounting=accounting, epsilon=16.0, horizon=600),
        0,
    )
    assert mechanism.error(1) > make(
        "two_level", 4, accounting=accounting, epsilon=16.0, horizon=600
    ).error(1)
    for seed in range(6):
        run, sums, worst = Run(mechanism, seed=seed), np.zeros(4, dtype=np.int64), 0.0
        for t, row in enumerate(rows_of(600, 4, seed=seed, ones=2), 1):
            sums += row
            answer = run.step(t, [row])[0]
            named = (
                sums[int(str(answer["value"])[1:])] if answer["value"] is not None else 0
            )  # all of it falls short
            worst = max(worst, float(sums.max() - named) / float(str(answer["error"])))
        missed += worst > 1
    assert missed <= 2


def test_zcdp_promises_less_error_than_the_printed_algorithm_at_the_same_epsilon() -> None:
    for kind in ("two_level", "two_level_k"):
        tight, printed = (
            make(kind, 20, accounting=a, epsilon=1.0, max_items=4) for a in ("zcdp", "pure")
        )
        assert all(tight.error(j) < printed.error(j) / 3 for j in (1, 2, 3))


def test_more_labels_asked_for_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="only 4 labels"):
        make("two_level_k", 4, queries=("top_k:5",))
    with pytest.raises(ValueError, match="only once"):
        make("two_level_k", 4, queries=("max", "max"))
