"""Other figures of a plan: totals, memory, formulas, counters, mechanisms, wording, `end_share`."""

import io
import math
import random
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from msgspec import structs
from rich.console import Console

from bench.printed import Printed, error_bounds, printed_of
from tests.costs import summed
from tests.privacy.plan.test_noise import LABELS, START, config
from tests.privacy.test_identity_of_fields import OWN
from workers.arrays.texts import Texts
from workers.mechanisms.accounting import epsilon_of
from workers.mechanisms.config.histogram import HistogramConfig, names_of
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.misra_gries.misra_gries import MisraGriesConfig
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.privacy.model import Bucket, EndChoice, HistogramPlan, Plan
from workers.privacy.plan.alternatives import end_choices
from workers.privacy.plan.make import memory_of, plan_of
from workers.privacy.plan.text import line, show
from workers.privacy.total import Charge, charge_of, total_of

pytestmark = pytest.mark.slow


@cache
def planned(own: HistogramConfig) -> HistogramPlan:
    return plan_of(own, build(own), "topic", "event")


def said(own: HistogramConfig, plan: HistogramPlan) -> str:
    text = io.StringIO()
    whole = Plan(worker="w", histograms=(plan,), total=total_of(built(own)))
    show(whole, Console(width=100, file=text))
    return text.getvalue()


def built(*configs: HistogramConfig) -> list[Charge]:
    return [charge_of(own, build(own)) for own in configs]


def test_two_histograms_cost_what_they_cost_composed_and_converted_once() -> None:
    """The figures of docs/guarantee.md: 1.41 at 2e-9, where the sum of the parts says 2."""
    one = config(UnkBaseConfig, epsilon=1.0, delta=1e-9)
    found = total_of(built(one, structs.replace(one, name="other")))
    rho, failures = summed(build(one).cost() for _ in range(2))
    assert found.epsilon == pytest.approx(
        epsilon_of(rho, found.delta - failures, gaussian=True), rel=1e-8
    )
    assert found.epsilon == pytest.approx(1.41, abs=0.005)
    assert found.delta == pytest.approx(2e-9)
    assert found.epsilon_of_the_sum == 2.0
    assert (found.key, found.histograms) == (None, ("h", "other"))


def test_composition_adds_up_by_name_and_rounds_up() -> None:
    """Ten times a float tenth exceeds one in exact arithmetic; the report must not be less."""
    one = config(UnkBaseConfig, epsilon=None, rho=0.1, delta=1e-9)
    found = total_of(built(*(structs.replace(one, name=f"h{i}") for i in range(10))))
    assert Fraction(found.rho) >= 10 * Fraction(build(one).cost().rho)
    costs = dict(build(one).cost().failures)
    assert {share.name for share in found.deltas} == costs.keys()
    assert all(
        Fraction(share.delta) >= 10 * Fraction(costs[share.name])
        for share in found.deltas
    )


def test_deltas_that_add_up_to_one_or_more_are_stated_as_one() -> None:
    """Nothing converts at a delta of 1 or more; then only the sum of the epsilons can be stated."""
    own = config(UnkBaseConfig, epsilon=1.0, delta=0.5)
    found = total_of(
        built(*(structs.replace(own, name=name) for name in ("a", "b", "c")))
    )
    assert (found.epsilon, found.delta) == (3.0, 1.0)


def test_one_histogram_costs_its_own_guarantee() -> None:
    """Rounding twice must not raise one histogram's total above its snapshots' figure."""
    for accounting in ("zcdp", "pure"):
        own = config(MECHANISMS["two_level"], domain=LABELS, accounting=accounting)
        found = total_of(built(own))
        promise = build(own).guarantee
        assert (found.epsilon, found.delta) == (promise.epsilon, promise.delta)


def test_histograms_of_different_stream_keys_do_not_add_up() -> None:
    own = config(UnkBaseConfig, keys=("s1",))
    apart = total_of(
        built(own, structs.replace(own, name="b", keys=("s2",), epsilon=1.0))
    )
    assert (apart.epsilon, apart.histograms, apart.key) == (2.0, ("h",), "s1")
    shared = total_of(built(own, structs.replace(own, name="b", keys=("s2", "s1"))))
    assert (
        shared.epsilon > 2.0 and shared.histograms == ("h", "b") and shared.key == "s1"
    )
    public = total_of(
        built(own, structs.replace(own, name="b", keys="public", epsilon=1.0))
    )
    assert public.histograms == ("h", "b")


def test_a_user_pays_for_all_histograms_whatever_their_stream_keys() -> None:
    """A user may appear under every key; a total per key would be too small."""
    own = config(UnkBaseConfig, max_items_per_user=5)
    other = structs.replace(own, name="b", keys=("s2",))
    found = total_of([charge_of(one, build(one, "user")) for one in (own, other)])
    assert (found.unit, found.histograms, found.key) == ("user", ("h", "b"), None)
    assert found.epsilon > 2.0


@pytest.mark.parametrize("rows", [1_024, 5_000, 100_000])
def test_real_columns_stay_within_the_memory_stated(rows: int) -> None:
    """Operators size machines by it: rows are really appended, in batches of any size."""
    own = config(UnkBaseConfig, keys="public")
    stated = memory_of(build(own), own)
    rng = random.Random(rows)
    columns = Ledger()
    key = NoiseKey(bytes(32))
    text = b"%016d"
    while columns.n < rows:
        n = min(rng.randint(1, rows), rows - columns.n)
        labels = [text % (columns.n + i) for i in range(n)]
        tags = key.tags("s1", labels)
        columns.append(tags, np.zeros(n, dtype=np.int32), Texts.of(labels))
    least = rows * (stated.columns_per_row + stated.index_per_row)
    most = rows * (2 * stated.columns_per_row + 11)
    assert least <= columns.nbytes <= most
    noise = build(own).noise(key.stream(bytes(16)))
    noise.at(1, columns.tags)
    assert 0 < stated.noise_per_row == getattr(noise, "bytes_per_row", None)


def test_memory_follows_what_is_declared_and_what_is_bounded() -> None:
    """A declared domain has its rows at once, per key; a sketch's bound ignores the item count."""
    known = config(KnownBaseConfig, domain=LABELS, keys=("s1", "s2", "s3"))
    assert [size.rows for size in memory_of(build(known), known).sizes] == [12]
    assert memory_of(build(known), known).label_bytes == 4
    sqrt = config(KnownBaseConfig, domain=LABELS, counter="sqrt")
    assert memory_of(build(sqrt), sqrt).noise_per_row == 4 * 64
    sketch = config(MisraGriesConfig, size=50)
    mechanism = build(sketch)
    assert memory_of(mechanism, sketch).rows_most == getattr(
        mechanism, "counters_max", None
    )


def papers(own: HistogramConfig) -> dict[str, Printed]:
    """Return what the papers state otherwise, by name."""
    plan = planned(own)
    conversion = sum(part.delta for part in plan.deltas if part.name == "conversion")
    return {row.name: row for row in printed_of(build(own), plan.noise, conversion)}


def test_our_figures_stand_on_the_better_side_of_the_printed_ones() -> None:
    """Conversion, `lifted` and exact quantiles only gain; a better printed figure means an error."""
    for own in (
        config(KnownBaseConfig, domain=LABELS),
        config(UnkBaseConfig, max_count=3),
        config(MECHANISMS["positive_gauss"]),
        config(MECHANISMS["positive_laplace"]),
        config(MECHANISMS["unk_gauss"], kbar=10),
        config(MECHANISMS["limit_dom_laplace"], kbar=10),
        config(MECHANISMS["limit_dom"], k=3, kbar=10),
        config(MECHANISMS["meta"], algorithm="unk_gauss", kbar=10),
        config(MECHANISMS["sparse_gumb"], domain=LABELS, top_k=2, switches=3),
        config(MECHANISMS["two_level"], domain=LABELS),
    ):
        rows = papers(own)
        assert rows["epsilon_for_this_rho"].ours < rows["epsilon_for_this_rho"].printed
        assert (
            rows.pop("rho_for_this_epsilon").ours > planned(own).guarantee.rho * 0.999
        )
        assert len(rows) >= 2
        for row in rows.values():
            # An integer threshold may be rounded up by one.
            assert row.ours <= row.printed + 1, row


def test_the_papers_threshold_is_its_formula_computed_by_hand() -> None:
    """tau L_r sqrt(r - 1) PhiInv(1 - delta/T) + 1, T = 64: r = 3, L_r = 4; two items: delta/2."""
    from scipy.stats import norm

    own = config(UnkBaseConfig, epsilon=4.0)
    plan = planned(own)
    row = papers(own)["worst_threshold"]
    tau = math.sqrt(2 / (2 * plan.guarantee.rho))
    threshold = 1 + tau * 4 * math.sqrt(2) * norm.isf(1e-6 / 2 / 2 / 64)
    assert row.printed == pytest.approx(threshold, rel=1e-9)


def test_the_counter_in_use_comes_first_and_better_ones_are_named() -> None:
    """lifted after tree, sqrt only where it is possible; readers decide by the ratio."""
    plan = planned(config(KnownBaseConfig, domain=LABELS, counter="tree", horizon=1024))
    assert [row.chosen for row in plan.counters] == [True] + [False] * (
        len(plan.counters) - 1
    )
    ratios = {
        (row.counter, row.radix): row.times_worst
        for row in plan.counters
        if row.possible
    }
    assert ratios["lifted", None] == pytest.approx(3.54 / 8.49, rel=0.01)
    assert ratios["sqrt", None] == pytest.approx(3.27 / 8.49, rel=0.02)
    assert any('counter = "sqrt"' in sentence for sentence in plan.advice)
    unknown = {row.counter: row for row in planned(config(UnkBaseConfig)).counters}
    assert not unknown["sqrt"].possible and "declared" in unknown["sqrt"].reason
    endless = planned(
        config(KnownBaseConfig, domain=LABELS, horizon="unbounded", start=START)
    )
    assert (
        next(row for row in endless.counters if row.counter == "sqrt").worst_sd is None
    )


STATISTICS = ("bounded_max", "doubling", "two_level", "two_level_k")


@pytest.mark.parametrize("name", sorted(MECHANISMS))
def test_a_horizon_of_one_tick_can_be_planned(name: str) -> None:
    """There is no tick 2, so sparse_gumb never tests and has no distance to state."""
    own = config(MECHANISMS[name], horizon=1, epsilon=20.0, **OWN[name])
    plan = planned(own)
    assert plan.noise.ticks_looked_at == 1 and [
        row.tick for row in plan.noise.ticks
    ] == [1]
    assert "eta_first" not in {figure.name for figure in plan.error.figures}
    assert said(own, plan)


@pytest.mark.parametrize(
    "name", sorted(names_of(lambda about: not about.needs_epsilon))
)
def test_a_rho_that_delta_alone_covers_can_be_planned(name: str) -> None:
    """Epsilon is then 0: the papers' pure-epsilon algorithms promise no error, ours still do."""
    own = config(MECHANISMS[name], epsilon=None, rho=0.005, delta=0.3, **OWN[name])
    plan = planned(own)
    assert plan.guarantee.epsilon == 0
    for row in plan.error.theorems:
        assert math.isfinite(row.ours)
    for promise in error_bounds(own):
        assert (promise.printed is None) is (name in STATISTICS)
    assert "inf" not in said(own, plan).split()


def test_the_other_accounting_is_shown_whatever_the_counter() -> None:
    """The papers' own accounting has its own tree, so it takes no counter setting."""
    errors = []
    for counter in (
        {"counter": "lifted"},
        {"counter": "tree"},
        {"counter": "tree", "radix": 3},
    ):
        own = config(MECHANISMS["two_level"], epsilon=20.0, domain=LABELS, **counter)
        errors.append(papers(own)["error_in_segment_1"].printed)
    assert errors[0] == errors[1] == errors[2]


@pytest.mark.parametrize("horizon", [64, "unbounded"])
def test_every_mechanism_compares_itself_with_others_that_fit(
    horizon: int | str,
) -> None:
    """Every row is a figure or a reason; none is dropped because it could not be built."""
    for name, kind in MECHANISMS.items():
        if horizon == "unbounded" and kind.about.needs_end:
            continue
        values = OWN[name] | {"horizon": horizon, "start": START, "epsilon": 20.0}
        plan = planned(config(kind, **values))
        assert plan.mechanisms[0].chosen and plan.mechanisms[0].mechanism == name
        assert len(plan.mechanisms) >= 4
        for row in plan.mechanisms[1:]:
            assert not row.chosen and row.answers
            assert row.possible or row.reason
            uncounted = row.mechanism == "pay_what_you_get"
            assert not row.possible or row.error is not None or uncounted, row
        assert plan.advice or name == "pay_what_you_get"


def test_order_statistics_are_worth_it_exactly_where_their_error_is_below_a_counters() -> (
    None
):
    """docs/mechanisms.md: only where values stay tiny against the horizon."""
    small = planned(config(MECHANISMS["two_level"], domain=LABELS))
    assert any("Not worth it" in sentence for sentence in small.advice)
    people = tuple(f"p{i}" for i in range(2000))
    own = config(BoundedMaxConfig, domain=people, c_max=5, horizon=2**30, max_items=1)
    mechanism = build(own)
    plan = planned(own)
    assert isinstance(mechanism, OrderStatistics)
    counts = next(row for row in plan.mechanisms if row.mechanism == "known_base")
    assert counts.error is not None
    worth = mechanism.error(1) < counts.error
    assert any(sentence.startswith("Worth it") for sentence in plan.advice) is worth


def test_a_pure_release_is_planned_with_its_own_delta_and_offered_where_there_is_a_list() -> (
    None
):
    """Nothing is converted or discovered; its tags count towards memory; and rho cannot buy it."""
    own = config(MisraGriesConfig, size=3, release="pure", domain=LABELS)
    plan = planned(own)
    assert [(part.name, part.delta) for part in plan.deltas] == [
        ("numerical", own.delta)
    ]
    assert plan.noise.law == "laplace" and plan.thresholds is None
    assert plan.memory.per_key >= 40 * len(LABELS) and "labels" in plan.memory.note
    rows = planned(config(KnownBaseConfig, domain=LABELS)).mechanisms
    offered = {str(row.assumed.get("release")): row for row in rows}
    assert offered["pure"].mechanism == "misra_gries"
    assert offered["pure"].possible
    assert offered["pure"].threshold is None
    rho = planned(
        config(KnownBaseConfig, domain=LABELS, epsilon=None, rho=0.1)
    ).mechanisms
    for row in (*rho, *planned(config(UnkBaseConfig)).mechanisms):
        assert row.assumed.get("release") != "pure"


def test_what_does_not_protect_users_is_not_offered_to_them() -> None:
    """A top k paid for k picks an event would cost a user many releases."""
    own = config(UnkBaseConfig, max_items_per_user=5)
    plan = plan_of(own, build(own, "user"), "topic", "user")
    assert (plan.guarantee.unit, plan.max_items) == ("user", 5)
    rows = {row.mechanism: row for row in plan.mechanisms}
    assert not rows["misra_gries"].possible and "user" in rows["misra_gries"].reason
    assert rows["misra_gries"].error is None
    assert rows["unk_base"].possible


# ---- the end of an epoch ----------------------------------------------------------------------------


def with_share(own: HistogramConfig, end_share: float | None) -> HistogramConfig:
    """Return a validated configuration, which `structs.replace` would not be."""
    values = {name: getattr(own, name) for name in own.__struct_fields__}
    return type(own)(**(values | {"end_share": end_share}))


def ends_of(own: HistogramConfig) -> tuple[EndChoice, ...]:
    return end_choices(own, build(own), "event")


@pytest.mark.parametrize(
    "own",
    [
        config(UnkBaseConfig, horizon=100),
        config(UnkBaseConfig, horizon=100, end_share=0.55, threshold="every", every=8),
        config(KnownBaseConfig, horizon=64, domain=LABELS, end_share=0.6),
        config(
            MECHANISMS["sparse_gumb"],
            horizon=9,
            domain=LABELS,
            top_k=2,
            switches=2,
            epsilon=20.0,
        ),
    ],
    ids=["unk_base", "every", "known_base", "sparse_gumb"],
)
def test_each_rows_figures_are_those_of_a_worker_with_that_share(
    own: HistogramConfig,
) -> None:
    rows = ends_of(own)
    assert [row.end_share for row in rows if row.chosen] == [own.end_share]
    assert [row.end_share or 0 for row in rows] == sorted(
        row.end_share or 0 for row in rows
    )
    last = own.horizon_ticks
    assert last is not None
    for row in rows:
        mechanism = build(with_share(own, row.end_share))
        sds = [mechanism.sd(t) for t in range(1, last + 1)]
        assert row.worst_sd == pytest.approx(max(sds), rel=1e-9)
        rms = math.sqrt(sum(sd * sd for sd in sds) / len(sds))
        assert row.rms_sd == pytest.approx(rms, rel=1e-9)
        assert row.last_sd == sds[-1]
        assert row.last_threshold == mechanism.threshold(last)
        assert row.offset == (
            0 if row.end_share is None else (1 << (last - 1).bit_length()) - last
        )
        assert max(run.most for run in row.curve) == pytest.approx(max(sds), rel=1e-9)


@pytest.mark.parametrize(
    ("horizon", "named"),
    [(8, 0.7), (100, 0.6), (1000, 0.6), (1440, 0.5), (1 << 30, 0.5)],
)
def test_the_share_named_costs_other_ticks_at_most_a_third(
    horizon: int, named: float
) -> None:
    """The documented rule must be the applied one, and the next share must break it."""
    rows = ends_of(config(KnownBaseConfig, domain=LABELS, horizon=horizon))
    assert [row.end_share for row in rows if row.recommended] == [named]
    none = rows[0]
    for row in rows[1:]:
        assert row.end_share is not None
        assert (row.worst_sd <= none.worst_sd * 4 / 3 * (1 + 1e-9)) is (
            row.end_share <= named
        )


def test_a_share_in_use_is_not_argued_with() -> None:
    """The user chose it: the table shows alternatives, the sentences do not comment."""
    for end_share in (None, 0.3):
        own = config(KnownBaseConfig, domain=LABELS, horizon=100, end_share=end_share)
        plan = planned(own)
        assert plan.ends == ends_of(own)
        assert [row.end_share for row in plan.ends if row.chosen] == [end_share]
        advised = any("end_share = 0.6 " in sentence for sentence in plan.advice)
        assert advised is (end_share is None)
        assert "the end of an epoch" in said(own, plan)


def test_mechanisms_are_compared_with_the_share_in_use() -> None:
    """Otherwise the mechanism without the share would appear less noisy for free."""
    plan = planned(config(UnkBaseConfig, horizon=100, end_share=0.6))
    other = build(config(KnownBaseConfig, horizon=100, end_share=0.6, domain=LABELS))
    row = next(row for row in plan.mechanisms if row.mechanism == "known_base")
    assert row.worst_sd == pytest.approx(
        max(other.sd(t) for t in range(1, 101)), rel=1e-9
    )


@pytest.mark.parametrize(
    "own",
    [
        config(UnkBaseConfig, counter="tree"),
        config(UnkBaseConfig, horizon="unbounded", start=START),
        config(UnkBaseConfig, horizon=1),
        config(KnownBaseConfig, domain=LABELS, counter="sqrt"),
        config(MECHANISMS["meta"], algorithm="positive_gauss"),
        config(MECHANISMS["known_gauss"], domain=LABELS),
        config(MECHANISMS["two_level"], domain=LABELS, epsilon=20.0),
    ],
    ids=["tree", "unbounded", "one tick", "sqrt", "meta", "known_gauss", "two_level"],
)
def test_nothing_is_said_where_an_end_share_is_refused(own: HistogramConfig) -> None:
    """Figures of an impossible setting mislead; the setting is refused in one line."""
    assert ends_of(own) == ()
    if own.horizon != 1:
        said = r"end_share = 0\.6: only in known_base, unk_base, sparse_gumb"
        with pytest.raises(ValueError, match=said):
            with_share(own, 0.6)


def test_the_curve_of_a_row_is_one_line_in_any_terminal() -> None:
    """The last column is the last tick's, which the share is for."""
    runs = [Bucket(first=t, last=t, least=4.0, most=8.0) for t in range(1, 64)]
    runs.append(Bucket(first=64, last=64, least=1.0, most=1.0))
    assert line(runs, 8.0, unicode=True) == "█" * 32 + "▁"
    assert line(runs, 8.0, unicode=False) == "9" * 32 + "1"
    assert line(runs[-1:], 8.0, unicode=True) == "▁"
