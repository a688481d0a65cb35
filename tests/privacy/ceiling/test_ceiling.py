"""Ceilings without Kafka: brute-force windows, an independent accountant, and refusals."""

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st

from tests import ROOT
from tests.privacy.ceiling.oracle import epsilon_of
from tests.privacy.spending.test_spent import life, settings, state
from workers.agents.ceiling_guard import describe_charges, topics_overlap
from workers.cli import execute
from workers.mechanisms.accounting import PrivacyCost
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.running.base import UnkBaseConfig
from workers.privacy.ceiling import (
    Ceiling,
    FullestWindow,
    charges_of,
    check_ceiling,
    merge,
    most_epochs,
)
from workers.privacy.total import EVER, Charge, compose, epsilon_at, sample_of
from workers.runtime.errors import SettingsError
from workers.settings.settings import PrivacySettings, Settings, TopicNames

pytestmark = pytest.mark.slow

COST = PrivacyCost(0.01, 0.9, 1e-6, failures=(("discovery", 5e-7), ("sampling", 1e-12)))


def charge(number: int, ticks: int = 0, **changes: Any) -> Charge:
    """Return a charge with epochs of `ticks` ms, or one endless epoch."""
    named = {
        "worker": "w",
        "histogram": f"h{number}",
        "identity": b"%d" % number,
        "unit": "user",
    }
    return Charge(COST, ticks or None, **(named | {"key_field": "key"} | changes))


# ---- windows -------------------------------------------------------------------------------------


@st.composite
def charged(draw: st.DrawFn) -> list[Charge]:
    """Return up to three generations with epochs of a few ms, at any offset."""
    found = []
    for number in range(draw(st.integers(1, 3))):
        ticks = draw(st.integers(0, 7))
        first = draw(st.integers(1, 4)) if ticks else 1
        last = first + (draw(st.integers(0, 6)) if ticks else 0)
        start = draw(st.integers(0, 9))
        made = charge(number, ticks, start_ms=start, first=first, last=last)
        if not ticks and draw(st.booleans()):
            began = draw(st.integers(-9, 20))
            ended = began + draw(st.integers(1, 20))
            made = replace(made, began_ms=began, ended_ms=ended)
        found.append(made)
    return found


PERIOD = st.none() | st.integers(2, 20)
UNIT = st.sampled_from(["user", "event"])


@given(charged(), PERIOD, UNIT, st.floats(0.1, 3.0))
@limits(max_examples=60)
def test_a_ceiling_holds_exactly_where_no_window_of_all_there_are_holds_more(
    charges: list[Charge], period: int | None, unit: str, most: float
) -> None:
    """Every ms is tried as a window's beginning, and every epoch as a window."""
    charges = [replace(one, unit=unit) for one in charges]
    ceiling = Ceiling(unit, most, 1e-4, period)
    for one in charges:
        for epoch in range(one.first, one.last + 1):
            begin, end = one.span(epoch)
            spans = [[c.span(e) for e in range(c.first, c.last + 1)] for c in charges]
            windows = list(chain(*spans))
            if period is not None:
                windows = [(t, t + period) for t in range(-30, 80)]
            sums = []
            for a, b in ((a, b) for a, b in windows if a < end and begin < b):
                counts = [sum(x < b and a < y for x, y in each) for each in spans]
                parts = [
                    replace(COST, times=1 if unit == "event" else n)
                    for n in counts
                    if n
                ]
                sums.append(epsilon_at(parts, 1e-4))
            largest = max(math.inf if epsilon is None else epsilon for epsilon in sums)
            held = ceiling.fullest(charges, begin, end)
            assert ceiling.holds(held.epsilon) is (largest <= most)
            if not ceiling.holds(held.epsilon):
                assert held.epsilon == (None if math.isinf(largest) else largest)


GRID = st.tuples(st.integers(0, 30), st.integers(1, 12), st.integers(1, 5))


@given(st.lists(GRID, min_size=1, max_size=3))
@limits(max_examples=25)
def test_accepted_settings_never_stop_by_themselves(
    grids: list[tuple[int, int, int]],
) -> None:
    """The arithmetic bound on what an epoch can touch equals what a long run shows."""
    price = {"max_items_per_user": 1, "epsilon": 0.3, "delta": 1e-9}
    configs = []
    for i, (start, width, ticks) in enumerate(grids):
        begin = f"1970-01-01T00:00:00.{start:03d}Z" if start else None
        configs.append(
            daily(f"h{i}", tick_ms=width, horizon=ticks, start=begin, **price)
        )
    given_ = with_ceiling(settings(*configs, unit="user"), 1000.0, 0.4)
    asked = check_ceiling(given_)
    assert asked is not None
    exactly = Ceiling("user", asked, 0.4, None)
    charges = [
        replace(one, first=1, last=400 // (width * ticks) + 2)
        for (_, width, ticks), config in zip(grids, configs, strict=True)
        for one in charges_of("w", state([(config, 1, 2)], unit="user"))
    ]
    for one in charges:
        for epoch in range(1, 300 // (one.epoch_ms or 1)):
            assert exactly.holds(exactly.fullest(charges, *one.span(epoch)).epsilon)


@given(st.integers(1, 40), st.integers(1, 20))
def test_a_window_touches_one_epoch_more_than_fit_into_it(
    window: int, epoch: int
) -> None:
    touched = (len({(t + i) // epoch for i in range(window)}) for t in range(epoch))
    assert most_epochs(window, epoch) == max(touched)


def with_ceiling(
    given_: Settings, epsilon: float, delta: float, **further: Any
) -> Settings:
    unit = given_.privacy.unit
    privacy = PrivacySettings(
        unit=unit, max_epsilon=epsilon, max_delta=delta, **further
    )
    return msgspec.structs.replace(given_, privacy=privacy)


# ---- sums ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [1, 3, 31])
@pytest.mark.parametrize("delta", [1e-8, 1e-5])
def test_a_sum_is_that_of_an_independent_accountant_and_never_below(
    times: int, delta: float
) -> None:
    """zCDP adds up, failures add up, and the remaining delta converts."""
    one = PrivacyCost(0.0, 50.0, 0.4, failures=(("discovery", 1e-11),), times=times)
    parts = [replace(one, rho=rho) for rho in (0.004, 0.02, 0.7)]
    expected = epsilon_of(times * 0.724, delta - 3 * times * 1e-11)
    found = epsilon_at(parts, delta)
    assert found is not None and expected * (1 - 1e-4) <= found <= expected * (1 + 1e-8)


def test_at_the_sum_of_the_deltas_it_is_the_total_that_plan_and_budget_state() -> None:
    for pure in (False, True):
        parts = [replace(COST, times=3), replace(COST, rho=0.2, pure=pure)]
        found = compose(parts)
        assert epsilon_at(parts, found.delta) == found.epsilon
        # With less delta than the parts were priced at, rho is converted at that smaller delta.
        less = epsilon_at(parts, 2.5e-6)
        assert less is not None and found.epsilon is not None and less > found.epsilon
        assert epsilon_at(parts, 1e-6) is None  # discovery alone has more


def test_an_event_pays_for_one_stream_key_of_each_field_and_a_user_for_all() -> None:
    """Histograms that take the key from different fields count one event under two keys at once."""
    one, two = (charge(i, keys=frozenset({key})) for i, key in enumerate(("s1", "s2")))
    city = charge(2, keys=frozenset({"berlin"}), key_field="city")
    any_key = charge(3)

    def epsilon(unit: str, *charges: Charge) -> float | None:
        given_ = [replace(each, unit=unit) for each in charges]
        return Ceiling(unit, 1.0, 1e-4, None).epsilon_of(given_, [1] * len(given_))

    def times(n: int) -> float | None:
        return epsilon_at([replace(COST, times=n)], 1e-4)

    assert epsilon("event", one, two) == times(1)
    assert epsilon("event", one, two, any_key) == times(2)
    assert epsilon("event", one, city) == times(2)
    assert epsilon("event", one, two, city, any_key) == times(3)
    assert epsilon("user", one, two, city, any_key) == times(4)
    # A promise to events implies nothing for users.
    mixed = [one, replace(two, unit="event")]
    assert Ceiling("user", 9.0, 0.4, None).epsilon_of(mixed, [1, 1]) is None
    # With more fields and keys than can be enumerated, all count.
    many = [
        charge(i, keys=frozenset({f"k{i}"}), key_field=f"f{i % 10}") for i in range(20)
    ]
    assert epsilon("event", *many) == times(20)


def test_every_window_holds_the_samples_on_which_bounds_were_chosen() -> None:
    """A sampled event may lie before a histogram began, and have a key that it does not serve."""
    cost = replace(COST, gaussian=True, sample_rho=0.002)
    sampled = replace(charge(0, 10, unit="event", first=5, last=6), cost=cost)
    beside = charge(1, 10, unit="event", first=1, last=1)
    ceiling = Ceiling("event", 9.0, 1e-4, 10)
    alone = epsilon_at([sample_of(cost)], 1e-4)
    for keys in (None, frozenset({"s1"})):
        charges = [replace(sampled, keys=keys), replace(beside, keys=frozenset({"s2"}))]
        # No epoch, that of `beside`, both at once.
        assert ceiling.epsilon_of(charges, (0, 0)) == alone
        before = epsilon_at([COST, sample_of(cost)], 1e-4)
        assert ceiling.epsilon_of(charges, (0, 1)) == before
        together = epsilon_at([cost, COST], 1e-4) if keys is None else before
        assert ceiling.epsilon_of(charges, (1, 1)) == together
        found = ceiling.fullest(charges, 0, 10, locate=True)
        assert (found.counts, found.epsilon) == ((0, 1), before)
    held = FullestWindow(0, 10, before, (0, 1))
    said = describe_charges(charges, held, "event")
    assert (
        said == "h0 generation 1 of worker w (its sample), h1 generation 1 of worker w"
    )
    # It promised users nothing, in no window.
    assert Ceiling("user", 9.0, 1e-4, 10).epsilon_of(charges, (0, 0)) is None


# ---- what is charged -----------------------------------------------------------------------------


def daily(name: str = "h", **changes: Any) -> HistogramConfig:
    values: dict[str, Any] = {
        "tick_ms": 10,
        "horizon": 10,
        "max_items": 1,
        "epsilon": 1.0,
    }
    return UnkBaseConfig(
        **(values | {"name": name, "delta": 1e-6, "keys": "public"} | changes)
    )


@pytest.mark.parametrize("unit", ["event", "user"])
def test_a_generation_without_epochs_is_charged_for_its_ticks_once_it_ended(
    unit: str,
) -> None:
    """Its last tick may be one of another owner, up to `until`; a running one has no end."""
    bound: dict[str, Any] = {"max_items_per_user": 1} if unit == "user" else {}
    never = daily(horizon="unbounded", start=datetime(1970, 1, 1, tzinfo=UTC), **bound)
    spans = []
    for until in (None, 95, 309):
        ended = state([], [(never, 5, 12)])
        if until is not None:
            ended.retired[0][1].until = until
        [one] = charges_of("w", ended)
        spans.append(one.span(1))
    # Ticks 5 to 11 of 10 ms; not known up to when other owners published: without an end.
    assert spans == [(-EVER, EVER), (40, 110), (40, 309)]
    [running] = charges_of("w", state([(never, 5, 12)]))
    assert running.span(1) == (-EVER, EVER)
    [merged] = merge([one, replace(one, began_ms=10, ended_ms=400)])
    assert merged.span(1) == (10, 400)
    [merged] = merge([one, running])
    assert merged.span(1) == (-EVER, EVER)
    # A period that begins before its end touches it, a later one does not.
    ceiling = Ceiling(one.unit, 9.0, 1e-4, 50)
    later = replace(one, identity=b"other", began_ms=309, ended_ms=EVER)
    for begin, counts in ((357, (1, 1)), (358, (0, 1))):
        held = ceiling.fullest([one, later], begin, begin + 50, locate=True)
        assert held.counts == counts


def test_charged_is_what_was_published_reserved_or_may_have_been_published() -> None:
    """An epoch counts from its first tick or reservation; all up to a generation's end count."""
    config = daily()

    def epochs(
        progress: Any, beginning: dict[str, int] | None = None
    ) -> list[tuple[int, int]]:
        return [
            (one.first, one.last)
            for one in charges_of("w", progress, beginning=beginning)
        ]

    assert epochs(state([(config, 5, 5)])) == []
    assert epochs(state([(config, 5, 11)])) == [(1, 1)]
    assert epochs(state([(config, 5, 12)])) == [(1, 2)]
    assert epochs(state([(config, 5, 12)]), {"h": 4}) == [(1, 4)]
    reserved = state([(config, 5, 5)])
    reserved.histograms["h"].reserved = 1
    assert epochs(reserved) == [(1, 1)]
    ended = state([], [(config, 5, 12)])
    assert epochs(ended) == [(1, 2)]
    ended.retired[0][1].until = 309
    assert epochs(ended) == [(1, 3)]
    ended.retired[0][1].until = 310
    assert epochs(ended) == [(1, 4)]
    never = state([], [(config, 5, 5)])
    never.retired[0][1].until = 310
    assert epochs(never) == []
    first, second, third = (
        charges_of("w", state([lived]))
        for lived in ((config, 5, 12), (config, 31, 35), (daily(max_items=2), 5, 12))
    )
    assert [(one.first, one.last) for one in merge([*first, *second])] == [(1, 4)]
    assert len(merge([*first, *third])) == 2
    assert charge(0).span(1) == (-EVER, EVER)


def test_without_a_ceiling_the_stored_state_is_what_it_was() -> None:
    """Other versions read the state, and a missing field must not look like a stated one."""
    assert b"reserved" not in msgspec.json.encode(life((daily(), 1, 5)))
    assert b"until" not in msgspec.json.encode(life((daily(), 1, 5)))


@pytest.mark.parametrize(
    ("counted", "events", "there", "same"),
    [
        ({"orders"}, "orders", (), True),
        ({"orders"}, "visits", (), False),
        ({"a", "b"}, ("b", "c"), (), True),
        ({"^orders-.*"}, "orders-eu", (), True),
        ({"orders-eu"}, "^orders-.*", (), True),
        ({"^orders-.*"}, "^.*-eu", ("orders-us", "visits-eu"), False),
        ({"^orders-.*"}, "^.*-eu", ("orders-eu",), True),
        ({"^orders-.*"}, "^.*", ("visits",), False),
    ],
)
def test_workers_count_the_same_events_where_a_topic_is_in_both(
    counted: set[str], events: Any, there: tuple[str, ...], same: bool
) -> None:
    """Only the parts that name a topic are compared: two workers never split its partitions."""
    assert topics_overlap(counted, TopicNames.of(events), there) is same


# ---- settings ------------------------------------------------------------------------------------


BOTH = {"max_epsilon": 1.0, "max_delta": 1e-9}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"max_epsilon": 1.0},
            "privacy.max_delta is missing: a ceiling is both, and max_epsilon is",
        ),
        ({"max_delta": 1e-9}, "privacy.max_epsilon is missing"),
        (
            {"max_epsilon": 0.0, "max_delta": 1e-9},
            "privacy.max_epsilon = 0.0: a number above 0",
        ),
        (
            {"max_epsilon": 1.0, "max_delta": 1.0},
            "privacy.max_delta = 1.0: a number from",
        ),
        (
            BOTH | {"period": "month"},
            'privacy.period = "month": "epoch", or a duration',
        ),
        (BOTH | {"period": "9ms"}, 'privacy.period = "9ms"'),
        (
            {"period": "30d"},
            'privacy.period = "30d": only with max_epsilon and max_delta',
        ),
        ({"uncounted_workers": ("a",)}, "privacy.uncounted_workers"),
    ],
)
def test_a_ceiling_that_means_nothing_is_refused(
    values: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=r"privacy\.") as caught:
        PrivacySettings(**values)
    assert said in str(caught.value)


def test_settings_that_exceed_their_ceiling_are_refused_with_epsilons_that_fit() -> (
    None
):
    """The named epsilon fits and a tenth more does not, so it is not needlessly small."""
    two = settings(daily("a"), daily("b", epsilon=2.0))
    with pytest.raises(SettingsError) as caught:
        check_ceiling(with_ceiling(two, 1.5, 1e-5))
    said = str(caught.value)
    assert "max_epsilon = 1.5 with max_delta = 1e-05 in an epoch" in said
    assert "for one event a, b come to epsilon" in said
    found = re.findall(r"(\w+): epsilon = ([0-9.]+)", said)
    assert {name for name, _ in found} == {"a", "b"}

    def holds(factor: float) -> bool:
        fitted = settings(
            *(daily(name, epsilon=float(e) * factor) for name, e in found)
        )
        try:
            return check_ceiling(with_ceiling(fitted, 1.5, 1e-5)) is not None
        except SettingsError:
            return False

    assert holds(1.0) and not holds(1.1)


def test_where_the_deltas_alone_are_too_much_a_delta_is_named() -> None:
    """31 daily epochs have 31 times the chance of showing something that must stay hidden."""
    month = settings(daily("a", max_items_per_user=1, tick_ms=8_640_000), unit="user")
    with pytest.raises(SettingsError) as caught:
        check_ceiling(with_ceiling(month, 20.0, 1e-6, period="30d"))
    said = str(caught.value)
    assert (
        "a (31 epochs) come to a delta of 1.55e-05 before anything is converted" in said
    )
    assert "with delta = 3.2e-08 in each, would fit" in said


def test_a_budget_of_which_delta_alone_is_more_than_enough_gets_advice_too() -> None:
    """What fits is an epsilon of 0 at that delta, which no settings have."""
    wide = settings(daily("a", delta=0.05))
    with pytest.raises(SettingsError, match="with delta = 0.029 in each, would fit"):
        check_ceiling(with_ceiling(wide, 0.001, 0.03))


def test_an_epoch_without_end_touches_every_epoch_of_the_others() -> None:
    endless = daily(
        "a", max_items_per_user=1, horizon="unbounded", start="2026-01-01T00:00:00Z"
    )

    def check(**budget: Any) -> None:
        both = [
            msgspec.structs.replace(one, **budget)
            for one in (endless, daily("b", max_items_per_user=1))
        ]
        check_ceiling(with_ceiling(settings(*both, unit="user"), 20.0, 1e-3))

    said = r"b \(epochs without end\) come to .* epsilon = (\S+) in each, with delta = (\S+) in each"
    with pytest.raises(SettingsError, match=said) as caught:
        check()
    found = re.search(said, str(caught.value))
    assert found is not None
    epsilon, delta = map(float, found.groups())
    check(epsilon=epsilon, delta=delta)
    with pytest.raises(SettingsError):
        check(epsilon=1.01 * epsilon, delta=delta)


@pytest.mark.parametrize("name", ["unk_base", "known_gauss", "pay_what_you_get"])
def test_commands_refuse_settings_above_their_ceiling(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and exit 2, before contacting a broker or reading a key or record."""
    text = ROOT / f"examples/mechanisms/{name}.toml"
    section = "[privacy]\nmax_epsilon = 0.001\nmax_delta = 1e-12\n"
    changed = text.read_text()
    assert "[privacy]" not in changed
    config = tmp_path / "settings.toml"
    config.write_text(changed.replace("[[histogram]]", section + "\n[[histogram]]", 1))
    for file in text.parent.iterdir():
        if file.suffix != ".toml":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    for command in ("plan", "topics", "check"):
        assert execute([command, "-c", str(config)]) == 2
        out, err = capsys.readouterr()
        [line] = err.splitlines()
        assert "these settings exceed it by themselves" in line and not out
        assert "would fit" in line and len(line) < 1_000
    config.write_text(
        config.read_text().replace("0.001", "49.0").replace("1e-12", "0.1")
    )
    assert execute(["plan", "-c", str(config)]) == 0
    out, _ = capsys.readouterr()
    assert "ceiling: epsilon 49 at delta 0.1 for one event in an epoch" in out
    assert "come to at most epsilon" in out
