"""Spent budget read from stored state, without Kafka: epochs, generations, keys and users."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from rich.console import Console

from tests import ROOT
from tests.costs import delta_of
from tests.pipeline.pipeline import KEY, Partition, contribute, unk
from tests.replay.site import settings_of
from workers.commands.budget import show
from workers.mechanisms.accounting import Cost, compose, epsilon_of
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build
from workers.pipeline.histogram import Histogram, HistogramProgress, owner_of
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.privacy import spending
from workers.privacy import spending as module
from workers.privacy.plan.model import Record
from workers.privacy.spending import Budget, budget_of, entries_of
from workers.settings.settings import (
    EventsSettings,
    KafkaSettings,
    PrivacySettings,
    Settings,
    WorkerSettings,
    load,
)

Lived = tuple[
    HistogramConfig, int, int
]  # a generation, the first global tick it published, the next that it would


def settings(*configs: HistogramConfig, unit: str = "event") -> Settings:
    return Settings(
        worker=WorkerSettings(name="w", data_dir=Path("data"), key_file=Path("key")),
        kafka=KafkaSettings(bootstrap="localhost:9092"),
        events=EventsSettings(topic="t", key="key", items="items", user="who"),
        privacy=PrivacySettings(unit=unit),  # type: ignore[arg-type]  # checked by the record itself
        histograms=configs,
    )


@cache
def _fresh(config: HistogramConfig, unit: str) -> bytes:
    one = Histogram(
        config,
        build(config, unit),
        worker="w",
        topic=f"w.{config.name}",
        stream="test",
        events={},
        key=KEY,
        owner=(0, 1),
    )
    return msgspec.json.encode(one.life)


def life(lived: Lived, unit: str = "event") -> HistogramProgress:
    config, first, following = lived
    found = msgspec.json.decode(_fresh(config, unit), type=HistogramProgress)
    found.first, found.next = first, following
    return found


def state(
    running: Sequence[Lived], retired: Sequence[Lived] = (), unit: str = "event"
) -> ReleaseProgress:
    empty = msgspec.json.encode(Merge([], key=KEY, sources=1, owners=1).progress())
    progress = msgspec.json.decode(empty, type=ReleaseProgress)
    progress.histograms = {one[0].name: life(one, unit) for one in running}
    progress.retired = [(one[0].name, life(one, unit)) for one in retired]
    return progress


def text_of(budget: Budget) -> str:
    out = io.StringIO()
    show(budget, Console(file=out, highlight=False), "w.release-state")
    assert max(map(len, out.getvalue().splitlines())) <= 100
    return out.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


# ---- what is stored, and what is stated of it ----------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda path: path.stem
)
def test_every_mechanism_is_priced_and_split_into_epochs_from_its_stored_state(path: Path) -> None:
    """The command builds no mechanism, so the state must hold all it needs."""
    given = load(path)
    for config in given.histograms:
        mechanism = build(config, given.privacy.unit)
        ticks = config.horizon_ticks or 10
        own = msgspec.structs.replace(given, histograms=(config,))
        found = budget_of(own, [state([(config, 3, ticks + 2)], unit=given.privacy.unit)])
        [[one]] = [histogram.generations for histogram in found.histograms]
        promise = mechanism.guarantee
        assert (one.mechanism, one.horizon, one.epochs_begun) == (
            config.mechanism,
            config.horizon_ticks,
            2,
        )
        assert (one.unit, one.rho, one.epsilon, one.delta) == (
            promise.unit,
            promise.rho,
            promise.epsilon,
            promise.delta,
        )
        assert {share.name: share.delta for share in one.deltas} == dict(mechanism.cost().deltas)
        assert [(e.epoch, e.first_tick, e.last_tick) for e in one.epochs] == [
            (1, 3, ticks),
            (2, 1, 1),
        ]
        assert ("left unused in an epoch are charged" in words(text_of(found))) == (
            config.mechanism == "pay_what_you_get"
        )


def test_a_new_generation_keeps_the_price_of_the_old_one_in_the_state() -> None:
    """Published releases cannot be undone; a settings change must not make them cheaper."""
    old, new = unk(epsilon=30.0), unk(epsilon=1.0, generation=2)
    events = [("k1", ["a"], 10 * i + 1) for i in range(20)]
    [messages] = contribute([events], [old], owners=1, step=1)
    partition = Partition([old], 1)
    ids = {json.loads(s.value)["id"] for s in partition.run(messages[:6])}
    partition.configs = [new]
    position = partition.restart()
    partition.receive(messages[position:], position)
    ids |= {json.loads(s.value)["id"] for s in partition.release_all()}
    stored = msgspec.json.decode(partition.store[b"progress"], type=ReleaseProgress)
    found = budget_of(settings(new), [stored])
    [histogram] = found.histograms
    assert [(g.generation, g.status, g.epsilon) for g in histogram.generations] == [
        (1, "ended", 30.0),
        (2, "running", 1.0),
    ]
    assert {one for g in histogram.generations for e in g.epochs for one in e.ids} == ids
    assert found.total is not None and found.total.epsilon == 30.0


def test_many_epochs_are_all_charged_and_the_newest_listed() -> None:
    """A year of one-minute epochs must neither fill the terminal nor drop out of the sum."""
    config = unk(horizon=1, max_items_per_user=2, epsilon=0.1, delta=1e-12)
    found = budget_of(settings(config, unit="user"), [state([(config, 11, 5_011)], unit="user")])
    [one] = found.histograms[0].generations
    assert (one.epochs_begun, len(one.epochs), one.epochs[-1].epoch) == (
        5_000,
        module.EPOCHS_LISTED,
        5_010,
    )
    assert one.charged is not None and one.charged.epochs == 5_000
    assert one.charged.rho == pytest.approx(5_000 * one.rho, rel=1e-12)
    text = text_of(found)
    assert "5,010" in text and "..." in text and len(text.splitlines()) < 45


# ---- one event -----------------------------------------------------------------------------------

CONFIGS = [
    unk(
        name=name,
        tick_ms=tick,
        horizon=4,
        epsilon=epsilon,
        delta=delta,
        keys=keys,
        generation=generation,
    )
    for name, tick, epsilon, delta, keys, generation in [
        ("a", 10, 1.0, 1e-6, ("k1", "k2"), 3),
        ("b", 15, 0.5, 1e-7, ("k2",), 2),
        ("c", 10, 2.0, 1e-9, ("k1",), 1),
        ("d", 20, 0.7, 1e-5, "public", 1),
    ]
]
OLDER = [
    unk(name=name, tick_ms=tick, horizon=4, epsilon=epsilon, delta=delta, generation=generation)
    for name, tick, epsilon, delta, generation in [
        ("a", 10, 3.0, 1e-6, 1),
        ("a", 30, 0.2, 1e-6, 2),
        ("b", 40, 1.5, 1e-4, 1),
        ("gone", 10, 0.9, 1e-8, 1),
    ]
]
SPAN = st.tuples(st.integers(1, 6), st.integers(0, 4))


@limits(deadline=None, max_examples=80)
@given(st.lists(st.tuples(*[SPAN] * 8), min_size=1, max_size=2))
def test_the_total_of_an_event_is_the_largest_over_all_times_and_keys(
    owners: list[tuple[tuple[int, int], ...]],
) -> None:
    """Too small a total breaks the promise; an unattainable one discourages users for nothing."""
    states = []
    for spans in owners:
        lived = [
            (c, first, first + n) for c, (first, n) in zip([*CONFIGS, *OLDER], spans, strict=True)
        ]
        states.append(state(lived[:4], lived[4:]))
    found = budget_of(settings(*CONFIGS), states).total
    sums: dict[
        frozenset[tuple[str, int]], tuple[Cost, float, float]
    ] = {}  # cost, delta, sum of epsilons
    for time in range(0, 400, 5):
        for key in (
            "k1",
            "k2",
            "k3",
            "k4",
            "k5",
            "k6",
        ):  # the last four are undeclared, and lie in both partitions
            own = states[owner_of(key, len(states))]
            running = [
                (True, c, own.histograms[c.name])
                for c in CONFIGS
                if c.keys == "public" or key in c.keys
            ]
            ended = [(False, c, stored) for c, (_, stored) in zip(OLDER, own.retired, strict=True)]
            hit = [
                (c, one)
                for going, c, one in running + ended
                if _counts(one, going, c.tick_ms, time)
            ]
            who = frozenset((c.name, c.generation) for c, _ in hit)
            if hit and who not in sums:
                cost = compose(Cost(one.rho, tuple((one.deltas or {}).items())) for _, one in hit)
                sums[who] = cost, sum(c.delta for c, _ in hit), sum(c.epsilon or 0 for c, _ in hit)
    if not sums:
        assert found is None
        return
    assert found is not None and found.epsilon is not None
    delta = max(one for _, one, _ in sums.values())
    assert found.delta == pytest.approx(delta, rel=1e-12)
    largest = max(
        min(summed, epsilon_of(cost.rho, delta - cost.delta)) for cost, _, summed in sums.values()
    )
    assert found.epsilon == pytest.approx(largest, rel=1e-3)
    # The stated cost suffices for every event, by the accountant's other direction.
    for cost, _, summed in sums.values():
        assert summed <= found.epsilon * (1 + 1e-9) or delta_of(cost.rho, found.epsilon) <= (
            delta - cost.delta
        ) * (1 + 1e-6)


def _counts(one: HistogramProgress, running: bool, tick_ms: int, time: int) -> bool:
    assert one.first is not None and one.next is not None
    published = one.next > one.first
    return (
        published
        and time // tick_ms + 1 >= one.first
        and (running or time // tick_ms + 1 < one.next)
    )


def test_generations_with_the_same_ticks_never_add_up_for_an_event_and_changed_ticks_do_where_they_meet() -> (
    None
):
    """An event has one tick; only where a wider tick reaches back may it have two."""
    old = unk(epsilon=1.0, delta=1e-6)
    same, wider = (
        unk(epsilon=1.0, delta=1e-6, generation=2),
        unk(epsilon=1.0, delta=1e-6, generation=2, tick_ms=30),
    )
    found = budget_of(settings(same), [state([(same, 5, 9)], [(old, 1, 5)])]).total
    assert found is not None and (found.epsilon, found.delta, len(found.parts)) == (1.0, 1e-6, 1)
    found = budget_of(settings(wider), [state([(wider, 2, 9)], [(old, 1, 5)])]).total
    assert found is not None and (found.delta, len(found.parts)) == (2e-6, 2)
    assert found.epsilon is not None and 1.0 < found.epsilon < 2.0


def test_the_key_that_pays_most_is_named_and_what_has_not_begun_is_left_out() -> None:
    a, b, later = (
        unk(name=n, epsilon=1.0, delta=1e-6, keys=k)
        for n, k in (("a", ("k1", "k2")), ("b", ("k2",)), ("z", ("k1",)))
    )
    found = budget_of(settings(a, b, later), [state([(a, 1, 5), (b, 1, 5), (later, 1, 1)])])
    assert found.total is not None and found.total.key == "k2" and found.not_begun == ("z",)
    text = words(text_of(found))
    assert "stream key 'k2', which pays most" in text and "not begun, so not included: z" in text
    alone = budget_of(settings(a), [state([(a, 1, 5)])])
    assert alone.total is not None and alone.total.key is None and alone.total.epsilon == 1.0


def test_settings_that_differ_between_workers_under_one_generation_are_both_charged() -> None:
    """It must not happen; if it did, the state would reveal it, and both prices must show."""
    a, b = unk(epsilon=1.0, max_items_per_user=2), unk(epsilon=2.0, max_items_per_user=2)
    states = [state([(a, 1, 5)], unit="user"), state([(b, 1, 5)], unit="user")]
    found = budget_of(settings(a, unit="user"), states)
    assert [g.epsilon for g in found.histograms[0].generations] == [1.0, 2.0]
    assert found.total is not None and len(found.total.parts) == 2


# ---- one user ------------------------------------------------------------------------------------


def test_epochs_generations_and_histograms_add_up_for_a_user() -> None:
    """Owners share the epochs: a user's pairs are bounded over all keys together."""
    a = unk(name="a", max_items_per_user=3, epsilon=1.0, delta=1e-6, generation=2)
    old = unk(name="a", max_items_per_user=2, epsilon=0.5, delta=1e-7)
    b = unk(
        name="b",
        max_items_per_user=5,
        epsilon=2.0,
        delta=1e-9,
        horizon="unbounded",
        start="2026-01-01T00:00:00Z",
    )
    states = [
        state(
            [(a, 30, 49), (b, 7, 99)], [(old, 5, 30)], unit="user"
        ),  # a: epochs 4 to 6; the old one: 1 to 4
        state(
            [(a, 33, 58), (b, 9, 90)], [(old, 9, 33)], unit="user"
        ),  # a: epochs 5 to 8; the old one: 2 to 4
    ]
    found = budget_of(settings(a, b, unit="user"), states).total
    assert found is not None and found.epsilon is not None
    assert {(p.histogram, p.generation): p.epochs for p in found.parts} == {
        ("a", 1): 4,
        ("a", 2): 5,
        ("b", 1): 1,
    }
    cost = compose(
        [build(old, "user").cost()] * 4 + [build(a, "user").cost()] * 5 + [build(b, "user").cost()]
    )
    delta = 4 * 1e-7 + 5 * 1e-6 + 1e-9
    assert found.delta == pytest.approx(delta, rel=1e-12)
    assert found.rho == pytest.approx(cost.rho, rel=1e-12)
    assert found.epsilon == pytest.approx(epsilon_of(cost.rho, delta - cost.delta), rel=1e-6)
    assert found.epsilon_of_the_sum == pytest.approx(4 * 0.5 + 5 * 1.0 + 2.0)


def test_a_generation_that_protected_events_leaves_no_total_for_users(tmp_path: Path) -> None:
    """A user has any number of events, so one event's price is no bound for a user."""
    new = unk(max_items_per_user=2, generation=2)
    progress = state([(new, 5, 9)], unit="user")
    progress.retired = [("h", life((unk(), 1, 5)))]
    found = budget_of(settings(new, unit="user"), [progress])
    assert found.total is None
    assert [(one.histogram, one.generation) for one in found.not_in_total] == [("h", 1)]
    assert "no total can be stated for one user: h generation 1 protected another unit" in words(
        text_of(found)
    )


def test_when_delta_reaches_one_nothing_is_promised() -> None:
    """An epsilon beside a delta of one would look like protection."""
    config = unk(horizon=1, max_items_per_user=2, epsilon=1.0, delta=0.1)
    found = budget_of(settings(config, unit="user"), [state([(config, 1, 20)], unit="user")])
    assert found.total is not None and found.total.epsilon is None and found.total.delta == 1.0
    assert "nothing is promised" in text_of(found)


# ---- nothing spent, documentation ----------------------------------------------------------------


def test_nothing_spent_is_said_and_is_no_promise(tmp_path: Path) -> None:
    """No topic, an empty state and a state without a tick differ; none is a total of zero."""
    own = settings_of(tmp_path)
    for states, kind in ((None, "missing"), ([None, None], "empty"), ([state([])], "there")):
        found = budget_of(own, states)
        assert (found.state, found.total, found.not_begun) == (kind, None, ("items",))
        assert ("never run" if kind == "missing" else "nothing is spent") in text_of(found)
    config = unk()
    unborn = budget_of(settings(config), [state([(config, 4, 4)])])
    assert unborn.total is None and unborn.histograms[0].generations[0].charged is None
    assert [e.epochs for e in entries_of([state([(config, 4, 4)])], settings(config))] == [range(0)]


def test_every_field_of_the_json_is_documented() -> None:
    """Scripts read the JSON, so every name needs an explanation."""
    documented = (ROOT / "docs" / "budget.md").read_text(encoding="utf-8")
    for record in vars(spending).values():
        if isinstance(record, type) and issubclass(record, Record):
            for name in record.__struct_fields__:
                assert f"`{name}`" in documented, f"{record.__name__}.{name}"
