"""Privacy loss of one person: against independent accountants, and never understated."""

import math
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import ROOT
from tests.privacy.plan.test_figures import planned
from tests.privacy.plan.test_figures import said as plan_as_text
from tests.privacy.plan.test_noise import config
from workers.mechanisms.accounting import PrivacyCost, delta_of, epsilon_of, rho_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.order_statistics.mechanisms import BoundedMaxConfig
from workers.mechanisms.registry import build
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.privacy.total import (
    DAY_MS,
    EVENTS,
    Charge,
    charge_of,
    compose,
    conversion_delta,
    group_failure,
    group_loss,
    loss_caption,
    loss_table,
    sample_of,
    spans_of,
    stated_cost,
    total_of,
    warnings_of,
)
from workers.settings.settings import load

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples" / "mechanisms"
# Integer orders, as the guarantee has them; dp_accounting stops at the given ones.
ORDERS = [*range(2, 200), *(int(200 * 1.01**i) for i in range(1000))]


def unk(epsilon: float, delta: float, times: int = 1) -> PrivacyCost:
    """Return unk_base's price: half of delta for discovery, a millionth of it for the samplers."""
    rho = rho_of(epsilon, delta * (0.5 - 1e-6))
    failures = (("numerical", delta * 1e-6), ("discovery", delta / 2))
    return PrivacyCost(rho, epsilon, delta, failures=failures, times=times)


PURE = PrivacyCost(0.5, 1.0, 1e-9, failures=(("numerical", 1e-9),), pure=True)


@pytest.mark.parametrize("epochs", [1, 30, 365])
@pytest.mark.parametrize("events", EVENTS)
def test_epsilon_is_that_of_an_independent_accountant(events: int, epochs: int) -> None:
    """dp_accounting's Renyi accountant at k times the shift: ours is between it and 1e-8 above."""
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    for epsilon, delta in ((0.1, 1e-9), (1.0, 1e-9), (1.0, 1e-6)):
        rho = rho_of(epsilon, delta)
        part = PrivacyCost(rho, epsilon, delta, times=epochs)
        ours, grown = group_loss([part], events)
        sigma = 1 / (events * math.sqrt(2 * rho))
        event = SelfComposedDpEvent(GaussianDpEvent(sigma), epochs)
        theirs = RdpAccountant(orders=ORDERS).compose(event).get_epsilon(delta)
        assert ours is not None and grown == delta
        if events == epochs == 1:
            theirs = epsilon  # the same budget, stated to nine digits
        assert theirs * (1 - 1e-9) <= ours <= theirs * (1 + 1e-6)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6)])
def test_epsilon_is_the_exact_one_or_not_far_above(
    epsilon: float, delta: float
) -> None:
    """The privacy loss distribution is exact for Gaussian noise, within its stated error."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    rho = rho_of(epsilon, delta)
    for events, epochs in ((1, 1), (2, 1), (5, 1), (2, 30)):
        cost = PrivacyCost(rho, epsilon, delta, times=epochs)
        ours, _ = group_loss([cost], events)
        sigma = 1 / (events * math.sqrt(2 * rho * epochs))
        exact = from_gaussian_mechanism(
            sigma, value_discretization_interval=1e-4, pessimistic_estimate=False
        )
        least = exact.get_epsilon_for_delta(delta)
        assert ours is not None and least <= ours <= 1.25 * least
        # Half or double the events are detected.
        for wrong in (max(1, events // 2), events * 2):
            other, _ = group_loss([cost], wrong)
            assert wrong == events or (
                other is not None and not least <= other <= 1.25 * least
            )


@given(
    probability=st.floats(1e-14, 1e-2),
    rho=st.floats(1e-6, 1.0),
    events=st.integers(1, 50),
)
def test_failures_grow_as_those_of_a_normal_threshold_or_faster(
    probability: float, rho: float, events: int
) -> None:
    """For one Gaussian number and its threshold, the growth of p with k events is known exactly."""
    from scipy.stats import norm

    quantile = norm.isf(probability)
    shift = math.sqrt(2 * rho)
    found = group_failure(probability, rho, events)
    exact = norm.sf(quantile - (events - 1) * shift)
    assert found >= min(1.0, exact) * (1 - 1e-9)
    assert found >= min(1.0, events * probability) * (1 - 1e-12)
    # It is also at most group privacy of (epsilon, delta) at the epsilon of this delta.
    epsilon = rho + 2 * math.sqrt(rho * -math.log(probability))
    grown = sum(math.exp(min(i * epsilon, 700)) for i in range(events))
    assert found <= min(1.0, grown * probability) * (1 + 1e-6) or found == 1


def test_the_chance_of_failure_grows_by_far_more_than_the_events() -> None:
    """Documents why "ten events are protected ten times less" was wrong."""
    one = group_loss([unk(1.0, 1e-9)], 1)
    ten = group_loss([unk(1.0, 1e-9)], 10)
    assert one == (1.0, 1e-9)
    assert ten[0] is not None and 10 < ten[0] < 13
    assert 1_000 < ten[1] / one[1] < 1e5


def test_one_event_in_one_epoch_is_the_total_of_the_plan() -> None:
    """The first cell equals the plan's known total to the last digit."""
    one = unk(1.0, 1e-9)
    other = unk(0.3, 1e-12)
    for parts in ([one], [one, other], [PURE], [PURE, one]):
        found = compose(parts)
        assert group_loss(parts, 1) == (found.epsilon, found.delta)
    with pytest.raises(ValueError, match="events = 0"):
        group_loss([PURE], 0)


PRICE = st.tuples(st.floats(0.01, 3.0), st.sampled_from([1e-12, 1e-9, 1e-6, 1e-3]))


@given(parts=st.lists(PRICE, min_size=1, max_size=3), times=st.integers(1, 400))
def test_more_is_never_less(parts: list[tuple[float, float]], times: int) -> None:
    """More events or epochs: neither figure falls. Another histogram adds its delta to the total,
    where epsilon alone can be slightly less: (1, 1e-12) and (0.125, 1e-12) cost a person with two
    events 2.0386 at 4.0e-12, the first alone 2.0493 at 2.5e-12.
    """

    def figures(
        events: int, epochs: int, some: list[tuple[float, float]]
    ) -> tuple[float, float]:
        epsilon, delta = group_loss([unk(*one, times=epochs) for one in some], events)
        return math.inf if epsilon is None else epsilon, delta

    grid = [figures(events, 1, parts) for events in EVENTS]
    assert grid == sorted(grid) and [d for _, d in grid] == sorted(d for _, d in grid)
    assert figures(2, times, parts) <= figures(2, times + 1, parts)
    assert figures(2, times, parts)[1] <= figures(2, times + 1, parts)[1]
    assert figures(2, times, parts[:1])[1] <= figures(2, times, parts)[1] * (1 + 1e-9)


def test_pure_epsilon_is_multiplied_or_composed_whichever_is_less() -> None:
    """k times epsilon needs no delta; the samplers' part grows with e^epsilon."""
    epsilon, delta = group_loss([PURE], 5)
    exact = 5e-9 * (1 + math.exp(5)) / (1 + math.e)
    assert epsilon == 5.0
    assert exact <= delta <= exact * (1 + 1e-6)


def test_nothing_is_promised_once_delta_reaches_one() -> None:
    assert group_loss([unk(1.0, 1e-9)], 50) == (None, 1.0)
    assert group_loss([unk(1.0, 0.5, times=3)], 1) == (None, 1.0)
    assert group_loss([unk(1.0, 0.4)] * 3, 1)[0] is None


BOUNDED: dict[str, object] = {
    "epsilon": 20.0,
    "delta": 1e-6,
    "domain": ("a", "b"),
    "c_max": 100,
}


MADE = [
    config(UnkBaseConfig, epsilon=1.0, delta=1e-9),
    config(KnownBaseConfig, epsilon=0.3, delta=1e-5, domain=("a",)),
    config(UnkBaseConfig, epsilon=1.0, delta=0.5),
    config(UnkBaseConfig, rho=0.01, epsilon=None, delta=1e-9),
    config(BoundedMaxConfig, **BOUNDED),
    config(BoundedMaxConfig, **BOUNDED, accounting="pure"),
]
MADE += chain.from_iterable(
    load(path).histograms for path in sorted(EXAMPLES.glob("*.toml"))
)


@pytest.mark.parametrize(
    "made", MADE, ids=lambda made: f"{made.mechanism} {made.delta}"
)
def test_what_a_snapshot_says_is_enough_for_the_page(made: HistogramConfig) -> None:
    """The page knows only snapshots; its figures are the plan's, or slightly above.

    A mechanism that splits its delta differently would be understated on the page.
    """
    cost = charge_of(made, build(made)).cost
    seen = stated_cost(made.mechanism, cost.rho, cost.epsilon, cost.delta)
    assert seen.gaussian is cost.gaussian
    failures, least = (sum(part for _, part in one.failures) for one in (seen, cost))
    assert failures >= least * (1 - 1e-9)
    for events in EVENTS:
        (ours, delta) = group_loss([cost], events)
        (theirs, other) = group_loss([seen], events)
        assert theirs is None or (ours is not None and ours * (1 - 1e-6) <= theirs)
        assert other >= delta * (1 - 1e-6)
        if (
            made.mechanism in ("unk_base", "known_base")
            and ours is not None
            and theirs is not None
        ):
            assert theirs == pytest.approx(ours, rel=1e-3)
            assert other == pytest.approx(delta, rel=1e-2)


def test_delta_of_is_the_conversion_read_the_other_way() -> None:
    """The result must not exceed the delta that rho was converted with."""
    for epsilon in (1e-3, 0.1, 1.0, 20.0):
        for delta in (1e-12, 1e-9, 1e-3, 0.5):
            rho = rho_of(epsilon, delta)
            assert delta * (1 - 1e-5) <= delta_of(rho, epsilon) <= delta * (1 + 1e-9)
    assert delta_of(0.0, 1.0) == 0.0 == delta_of(1.0, math.inf)


def test_a_span_counts_epochs_that_it_touches_in_full() -> None:
    part = unk(0.1, 1e-9)
    day = Charge(part, DAY_MS)
    week = Charge(part, 7 * DAY_MS)
    assert [day.epochs(days) for days in (None, 1, 30, 365)] == [1, 1, 30, 365]
    assert [week.epochs(days) for days in (None, 1, 30, 365)] == [1, 1, 5, 53]
    assert [Charge(part, None).epochs(days) for days in (None, 1, 365)] == [1, 1, 1]
    spans = spans_of([day, week])
    assert [(span.days, span.epochs) for span in spans] == [
        (None, 1),
        (1, 1),
        (30, 30),
        (365, 365),
    ]
    losses = spans[2].losses
    epsilon, delta = group_loss([unk(0.1, 1e-9, 30), unk(0.1, 1e-9, 5)], 2)
    assert (losses[1].events, losses[1].epsilon, losses[1].delta) == (2, epsilon, delta)
    headings, rows = loss_table(spans, "event")
    assert headings == [
        "events",
        "an epoch",
        "30 days: 30 epochs",
        "a year: 365 epochs",
    ]
    assert [row[0] for row in rows] == ["1", "2", "5", "10", "50", "1 a week"]
    assert loss_table(spans_of([Charge(part, None)]), "user")[0] == [
        "user ids",
        "an epoch",
    ]


def test_one_event_a_week_is_in_few_epochs_or_several_times_in_a_long_one() -> None:
    part = unk(0.1, 1e-9)
    for charge, in_epoch, epochs in (
        (Charge(part, DAY_MS), 1, [1, 1, 5, 53]),
        (Charge(part, 7 * DAY_MS), 1, [1, 1, 5, 53]),
        (Charge(part, 30 * DAY_MS), 5, [1, 1, 1, 13]),
    ):
        expected = [group_loss([unk(0.1, 1e-9, n)], in_epoch) for n in epochs]
        found = [span.weekly for span in spans_of([charge])]
        assert [one and (one.epsilon, one.delta) for one in found] == expected
    assert [span.weekly for span in spans_of([Charge(part, None)])] == [None] * 4


def test_events_of_several_keys_lose_no_more_than_the_table_says() -> None:
    """Other keys of the same person may have a larger delta though a smaller epsilon."""
    a = unk(1.0, 1e-12)
    b = unk(0.9, 1e-6)
    both = unk(0.1, 1e-9)
    of_a_key, of_b_key = (
        [Charge(cost, None) for cost in (one, both)] for one in (a, b)
    )
    table = spans_of(of_a_key, of_b_key)[0].losses
    for k, loss in zip(EVENTS, table, strict=True):
        for of_a in range(k + 1):
            # The cost of a mixture from its parts: shifts and failures of each mechanism by the
            # events it counts.
            counted = [
                (part, n) for part, n in ((a, of_a), (b, k - of_a), (both, k)) if n
            ]
            rho = sum(part.rho * n**2 for part, n in counted)
            failures = sum(
                group_failure(part.delta / 2, part.rho, n) for part, n in counted
            )
            if loss.epsilon is None:
                continue
            assert delta_of(rho, loss.epsilon) + failures <= loss.delta * (1 + 1e-4), (
                k,
                of_a,
            )
    alone = spans_of(of_a_key)[0].losses
    assert alone[1].delta < table[1].delta / 100
    own = config(UnkBaseConfig, epsilon=1.0, delta=1e-12, keys=("s1",))
    other = config(UnkBaseConfig, epsilon=0.9, delta=1e-6, keys=("s2",), name="other")
    total = total_of([charge_of(own, build(own)), charge_of(other, build(other))])
    # Converted at one delta, which holds for both keys, "s2" loses more.
    assert (total.key, total.epsilon, total.delta) == ("s2", 0.9, 1e-6)
    assert (total.person[0].losses[0].epsilon, total.person[0].losses[0].delta) == (
        1.0,
        1e-6,
    )


def test_void_is_written_where_next_to_nothing_is_promised() -> None:
    """A figure such as epsilon 40 would read like protection."""
    spans = spans_of([Charge(unk(1.0, 1e-9), DAY_MS)])
    _, rows = loss_table(spans, "event")
    assert rows[0][1] == "1, 1e-09" and rows[-2][-1] == "void"
    for span in spans:
        for loss in span.losses:
            far = loss.epsilon is None or loss.epsilon > 20 or loss.delta >= 0.01
            assert loss.void == far


def test_a_plan_warns_of_weak_promises_first_and_of_their_sum() -> None:
    """Epsilon 20 and delta 0.5 used to run without a warning."""
    one = config(UnkBaseConfig, epsilon=20.0, delta=0.5)
    plan = planned(one)
    said = plan_as_text(one, plan)
    assert said.index("WARNING: h: epsilon = 20 is above 5") < said.index("── h")
    assert "WARNING: h: delta = 0.5 is above 1e-05" in said and len(plan.warnings) == 2
    assert "what one person loses" in said
    # Neither is weak alone, but both together are.
    fine = config(UnkBaseConfig, epsilon=4.0, delta=1e-6)
    assert not list(warnings_of([(fine, build(fine))]))
    three = [(fine, build(fine))] * 3
    assert [text.split(":")[0] for text in warnings_of(three)] == [
        "all histograms together"
    ]
    half = config(UnkBaseConfig, epsilon=1.0, delta=0.5)
    *_, last = warnings_of([(half, build(half))] * 2)
    assert last.endswith(
        "together: delta is 1 or more: nothing is promised to any event"
    )


def test_events_of_a_person_in_a_sample_count_together_in_all_epochs() -> None:
    """Not once in each epoch, which understated 30 daily events 30 times over."""
    whole = replace(unk(0.1, 1e-9), gaussian=True)
    once = whole.rho / 4
    charge = Charge(replace(whole, sample_rho=once), DAY_MS)
    left = conversion_delta([whole])

    def stated(k: int, epochs: int) -> float:
        rho = epochs * k**2 * (whole.rho - once) + (k * epochs) ** 2 * once
        return epsilon_of(rho, left, gaussian=True)

    epoch, _, month, _ = spans_of([charge])
    assert epoch.losses == spans_of([Charge(whole, DAY_MS)])[0].losses
    for loss in month.losses[:3]:
        assert loss.epsilon == pytest.approx(stated(loss.events, 30), rel=1e-9)
        least, _ = group_loss([replace(whole, times=30)], loss.events)
        assert least is not None and loss.epsilon is not None
        assert loss.epsilon > least
    # Events of other stream keys are in the sample too, from one event in one epoch on.
    other = Charge(whole, DAY_MS, histogram="other", keys=frozenset({"s2"}))
    mine = replace(charge, histogram="mine", keys=frozenset({"s1"}))
    apart = spans_of([other])[2].losses[1].epsilon
    both = spans_of([other], [mine])[2].losses[1].epsilon
    assert apart is not None and both is not None
    assert both > 1.2 * apart
    total = total_of([other, mine])
    assert total.epsilon == compose([whole, sample_of(mine.cost)], total.delta).epsilon
    # Without epochs all events count together anyway.
    never = Charge(charge.cost, None, charged_once=True)
    assert spans_of([never]) == spans_of([replace(never, cost=whole)])


def test_without_epochs_all_events_of_a_person_count_together() -> None:
    """Not once for each of the epochs beside it, which would understate a year 365 times."""
    cost = unk(0.01, 1e-9)
    never = Charge(cost, None, charged_once=True)
    [ever] = spans_of([never])
    assert (ever.without_epochs, ever.days, ever.epochs) == ("all", None, 1)
    for loss in ever.losses:
        assert (loss.epsilon, loss.delta) == group_loss([cost], loss.events)
    headings, _ = loss_table([ever], "event")
    assert headings == ["events", "ever"]
    assert "this many events in all, ever" in loss_caption([ever], "event")
    daily = Charge(cost, DAY_MS)
    once, *_, year = spans_of([daily, never])
    assert (year.without_epochs, year.epochs) == ("some", 365)
    assert once.losses[0].epsilon == compose([cost, cost]).epsilon
    rho = 365 * cost.rho + 365**2 * cost.rho
    exact = epsilon_of(rho, conversion_delta([cost, cost]))
    assert year.losses[0].epsilon == exact
    assert year.losses[0].delta >= group_loss([cost], 365)[1]
    assert "all count together" in loss_caption([year], "event")
    # Events of one group's stream keys alone are as many, and in the histogram without epochs.
    *_, apart = spans_of([daily], [never])
    least, _ = group_loss([cost], 365)
    assert least is not None and apart.losses[0].epsilon is not None
    assert apart.losses[0].epsilon >= least
