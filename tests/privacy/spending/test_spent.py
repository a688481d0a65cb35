"""Spent budget read from stored state, without Kafka: epochs, generations, keys and users."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as limits
from hypothesis import strategies as st
from msgspec import UNSET
from rich.console import Console

from tests import ROOT
from tests.costs import summed
from tests.pipeline.pipeline import KEY, Partition, contribute, unk
from tests.replay.site import settings_of
from workers.commands.budget import show, show_all
from workers.mechanisms.accounting import Guarantee, epsilon_of, gaussian_delta
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import build
from workers.pipeline.growth.owners import owner_of
from workers.pipeline.histogram import Histogram, HistogramProgress
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.privacy import spending
from workers.privacy.ceiling import charges_of, merge
from workers.privacy.model import Record
from workers.privacy.spending import AllBudgets, Budget, budget_of, entries_of
from workers.privacy.total import charge_of, compose, sample_of, spans_of
from workers.settings.settings import (
    EventsSettings,
    KafkaSettings,
    PrivacySettings,
    Settings,
    WorkerSettings,
    load,
)

# A generation, the first global tick it published, the next that it would.
Lived = tuple[HistogramConfig, int, int]


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
    topic = f"w.{config.name}"
    built = build(config, unit)
    rest: dict[str, Any] = {
        "worker": "w",
        "stream": "test",
        "events": {},
        "owner": (0, 1),
    }
    one = Histogram(config, built, topic=topic, key=KEY, **rest)
    return msgspec.json.encode(one.life)


def life(lived: Lived, unit: str = "event") -> HistogramProgress:
    config, first, following = lived
    found = msgspec.json.decode(_fresh(config, unit), type=HistogramProgress)
    found.first = first
    found.next = following
    return found


def state(
    running: Sequence[Lived], retired: Sequence[Lived] = (), unit: str = "event"
) -> ReleaseProgress:
    empty = msgspec.json.encode(Merge([], key=KEY, sources=1, owners=1).progress())
    progress = msgspec.json.decode(empty, type=ReleaseProgress)
    progress.histograms = {one[0].name: life(one, unit) for one in running}
    progress.retired = [(one[0].name, life(one, unit)) for one in retired]
    return progress


def text_of(found: Budget | AllBudgets) -> str:
    out = io.StringIO()
    console = Console(file=out, highlight=False)
    if isinstance(found, AllBudgets):
        show_all(found, console, [one.worker for one in found.workers])
    else:
        show(found, console, "w.release-state")
    assert max(map(len, out.getvalue().splitlines())) <= 100
    return out.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


# ---- what is stored, and what is stated of it ----------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").rglob("*.toml")), ids=lambda path: path.stem
)
def test_every_mechanism_is_priced_and_split_into_epochs_from_its_stored_state(
    path: Path,
) -> None:
    """The command builds no mechanism, so the state must hold all it needs."""
    given = load(path)
    for config in given.histograms:
        mechanism = build(config, given.privacy.unit)
        ticks = config.horizon_ticks or 10
        own = msgspec.structs.replace(given, histograms=(config,))
        found = budget_of(
            own, [state([(config, 3, ticks + 2)], unit=given.privacy.unit)]
        )
        [[one]] = [histogram.generations for histogram in found.histograms]
        assert (one.mechanism, one.horizon) == (config.mechanism, config.horizon_ticks)
        assert one.epochs_begun == (2 if config.horizon_ticks else 1)
        stated = Guarantee(
            unit=one.unit, rho=one.rho, epsilon=one.epsilon, delta=one.delta
        )
        promised = replace(mechanism.guarantee, period=UNSET, overlap=UNSET)
        assert stated == promised
        assert {share.name: share.delta for share in one.deltas} == dict(
            mechanism.cost().failures
        )
        epochs = [
            (epoch.epoch, epoch.first_tick, epoch.last_tick) for epoch in one.epochs
        ]
        without_epochs = [(1, 3, ticks + 1)]
        assert epochs == (
            [(1, 3, ticks), (2, 1, 1)] if config.horizon_ticks else without_epochs
        )
        lost = "left unused in an epoch are charged" in words(text_of(found))
        assert lost == (config.mechanism == "pay_what_you_get")


def test_a_new_generation_keeps_the_price_of_the_old_one_in_the_state() -> None:
    """Published releases cannot be undone; a settings change must not make them cheaper."""
    old = unk(epsilon=30.0)
    new = unk(epsilon=1.0, generation=2)
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
    generations = [
        (one.generation, one.status, one.epsilon) for one in histogram.generations
    ]
    assert generations == [(1, "ended", 30.0), (2, "running", 1.0)]
    assert {
        one for g in histogram.generations for e in g.epochs for one in e.ids
    } == ids
    assert found.total is not None and found.total.epsilon == 30.0


def test_the_sample_of_a_generation_is_charged_beside_every_other() -> None:
    """An event of the old generation's time may be in the sample that chose the new one's bounds."""
    old = unk(epsilon=1.0)
    new = unk(epsilon=0.5, generation=2, bounds_rho=1e-3)
    given = settings(new)
    found = budget_of(given, [state([(new, 101, 151)], [(old, 1, 101)])])
    costs = [build(config).cost() for config in (old, new)]
    assert costs[1].sample_rho == 1e-3
    assert found.total is not None
    expected = compose([costs[0], sample_of(costs[1])], found.total.delta)
    assert found.total.epsilon == expected.epsilon
    assert expected.rho > costs[0].rho
    assert [part.epochs for part in found.total.parts] == [1, 0]
    said = words(text_of(found))
    assert "h generation 2 (the sample for its bounds)" in said
    # Of what runs, the table counts a person's sampled events once, in all epochs together.
    charge = replace(charge_of(new, build(new)), worker="w")
    assert found.person == spans_of([charge])


def test_many_epochs_are_all_charged_and_the_newest_listed() -> None:
    """A year of one-minute epochs must neither fill the terminal nor drop out of the sum."""
    config = unk(horizon=1, max_items_per_user=2, epsilon=0.1, delta=1e-12)
    found = budget_of(
        settings(config, unit="user"), [state([(config, 11, 5_011)], unit="user")]
    )
    [one] = found.histograms[0].generations
    assert (one.epochs_begun, one.epochs[-1].epoch) == (5_000, 5_010)
    assert len(one.epochs) == spending.EPOCHS_LISTED
    assert one.charged is not None and one.charged.epochs == 5_000
    assert one.charged.rho == pytest.approx(5_000 * one.rho, rel=1e-12)
    text = text_of(found)
    assert "5,010" in text and "..." in text and len(text.splitlines()) < 45


# ---- one event -----------------------------------------------------------------------------------


def generation(
    name: str,
    tick_ms: int,
    epsilon: float,
    delta: float,
    number: int,
    keys: Any = "public",
) -> HistogramConfig:
    price: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "keys": keys}
    return unk(name=name, tick_ms=tick_ms, horizon=4, generation=number, **price)


CONFIGS = [
    generation("a", 10, 1.0, 1e-6, 3, ("k1", "k2")),
    generation("b", 15, 0.5, 1e-7, 2, ("k2",)),
    generation("c", 10, 2.0, 1e-9, 1, ("k1",)),
    generation("d", 20, 0.7, 1e-5, 1),
]
OLDER = [
    generation("a", 10, 3.0, 1e-6, 1),
    generation("a", 30, 0.2, 1e-6, 2),
    generation("b", 40, 1.5, 1e-4, 1),
    generation("gone", 10, 0.9, 1e-8, 1),
]
SPAN = st.tuples(st.integers(1, 6), st.integers(0, 4))


@pytest.mark.slow
@limits(deadline=None, max_examples=80)
@given(st.lists(st.tuples(*[SPAN] * 8), min_size=1, max_size=2))
def test_the_total_of_an_event_is_the_largest_of_all_times_and_keys(
    owners: list[tuple[tuple[int, int], ...]],
) -> None:
    """Too small a total breaks the promise; an unattainable one discourages users for nothing."""
    states = []
    for spans in owners:
        lived = [
            (c, first, first + n)
            for c, (first, n) in zip([*CONFIGS, *OLDER], spans, strict=True)
        ]
        states.append(state(lived[:4], lived[4:]))
        states[-1].owners = len(owners)
    found = budget_of(settings(*CONFIGS), states).total
    # Rho, failures, delta and the sum of the epsilons.
    sums: dict[frozenset[tuple[str, int]], tuple[float, float, float, float]] = {}
    # Keys k3 to k6 are undeclared, and lie in both partitions: one of each is enough.
    keys = {owner_of(key, len(states)): key for key in ("k3", "k4", "k5", "k6")}
    for time, key in product(range(0, 400, 5), ("k1", "k2", *keys.values())):
        own = states[owner_of(key, len(states))]
        serving = [c for c in CONFIGS if c.keys == "public" or key in c.keys]
        lives = [(True, c, own.histograms[c.name]) for c in serving]
        lives += [
            (False, c, life) for c, (_, life) in zip(OLDER, own.retired, strict=True)
        ]
        hit = [
            (c, one) for going, c, one in lives if _counts(one, going, c.tick_ms, time)
        ]
        who = frozenset((c.name, c.generation) for c, _ in hit)
        if hit and who not in sums:
            failures = sum(failure for _, one in hit for failure in one.deltas.values())
            rho = sum(one.rho for _, one in hit)
            delta = sum(c.delta for c, _ in hit)
            sums[who] = rho, failures, delta, sum(c.epsilon or 0 for c, _ in hit)
    if not sums:
        assert found is None
        return
    assert found is not None and found.epsilon is not None
    delta = max(one for _, _, one, _ in sums.values())
    assert found.delta == pytest.approx(delta, rel=1e-12)
    largest = max(
        min(added, epsilon_of(rho, delta - failures, gaussian=True))
        for rho, failures, _, added in sums.values()
    )
    assert found.epsilon == pytest.approx(largest, rel=1e-3)
    # The stated cost suffices for every event, by the accountant's other direction.
    for rho, failures, _, added in sums.values():
        enough = gaussian_delta(rho, found.epsilon) <= (delta - failures) * (1 + 1e-6)
        assert enough or added <= found.epsilon * (1 + 1e-9)


def _counts(one: HistogramProgress, running: bool, tick_ms: int, time: int) -> bool:
    assert one.first is not None and one.next is not None
    tick = time // tick_ms + 1
    return one.next > one.first and tick >= one.first and (running or tick < one.next)


def test_generations_of_one_event_add_up_only_where_a_changed_tick_reaches_back() -> (
    None
):
    """An event has one tick of every width."""
    old, same = (unk(epsilon=1.0, delta=1e-6, generation=number) for number in (1, 2))
    wider = unk(epsilon=1.0, delta=1e-6, generation=2, tick_ms=30)
    found = budget_of(settings(same), [state([(same, 5, 9)], [(old, 1, 5)])]).total
    assert found is not None and (found.epsilon, found.delta, len(found.parts)) == (
        1.0,
        1e-6,
        1,
    )
    found = budget_of(settings(wider), [state([(wider, 2, 9)], [(old, 1, 5)])]).total
    assert found is not None and (found.delta, len(found.parts)) == (2e-6, 2)
    assert found.epsilon is not None and 1.0 < found.epsilon < 2.0


@pytest.mark.parametrize("split", [1, 2])
def test_an_event_of_a_split_key_pays_for_what_counts_it_in_any_of_its_partitions(
    split: int,
) -> None:
    """Each begins a new generation by itself. A key that is not split lies in one of them."""
    old, new = (unk(epsilon=1.0, delta=1e-6, generation=n, split=split) for n in (1, 2))
    states = [state([(new, begin, 9)], [(old, 1, begin)]) for begin in (5, 8)]
    found = budget_of(settings(new), states).total
    assert found is not None and len(found.parts) == split


def test_the_key_that_pays_most_is_named_and_what_has_not_begun_is_left_out() -> None:
    a, b, later = (
        unk(name=n, epsilon=1.0, delta=1e-6, keys=k)
        for n, k in (("a", ("k1", "k2")), ("b", ("k2",)), ("z", ("k1",)))
    )
    found = budget_of(
        settings(a, b, later), [state([(a, 1, 5), (b, 1, 5), (later, 1, 1)])]
    )
    assert (
        found.total is not None
        and found.total.key == "k2"
        and found.not_begun == ("z",)
    )
    text = words(text_of(found))
    assert (
        "stream key 'k2', which pays most" in text
        and "not begun, so not included: z" in text
    )
    alone = budget_of(settings(a), [state([(a, 1, 5)])])
    assert (
        alone.total is not None
        and alone.total.key is None
        and alone.total.epsilon == 1.0
    )


@pytest.mark.parametrize("still_running", [False, True])
def test_a_retired_generation_may_have_served_every_key_whatever_the_settings_give_it(
    still_running: bool,
) -> None:
    """The settings have its number, but the keys that it served are not stored."""
    first, second = (
        generation(n, 10, 1.0, 1e-6, 1, (k,)) for n, k in (("a", "k1"), ("b", "k2"))
    )
    states = [state([(second, 1, 3)], [(first, 1, 3)])]
    if still_running:  # in another owner partition
        states.append(state([(second, 1, 3), (first, 1, 3)]))
    given = settings(first, second)
    found = budget_of(given, states).total
    assert found is not None and [part.histogram for part in found.parts] == ["a", "b"]
    charges = merge(chain.from_iterable(charges_of("w", one, given) for one in states))
    served = {charge.histogram: charge.keys for charge in charges}
    assert served == {"a": None, "b": frozenset({"k2"})}


def test_what_was_published_where_no_declared_key_lies_is_charged_all_the_same() -> (
    None
):
    """The other owner, which has the key, may not have begun: `budget` ended with a traceback."""
    key = next(f"k{i}" for i in range(9) if owner_of(f"k{i}", 2) == 1)
    config = unk(epsilon=1.0, delta=1e-6, keys=(key,))
    first = state([(config, 1, 5)])
    first.owners = 2
    found = budget_of(settings(config), [first, None])
    assert found.total is not None and found.total.epsilon == 1.0
    assert found.person[0].losses[0].epsilon == 1.0


def test_settings_that_differ_between_workers_under_one_generation_are_both_charged() -> (
    None
):
    """It must not happen; if it did, the state would reveal it, and both prices must show."""
    a = unk(epsilon=1.0, max_items_per_user=2)
    b = unk(epsilon=2.0, max_items_per_user=2)
    states = [state([(a, 1, 5)], unit="user"), state([(b, 1, 5)], unit="user")]
    found = budget_of(settings(a, unit="user"), states)
    assert [g.epsilon for g in found.histograms[0].generations] == [1.0, 2.0]
    assert found.total is not None and len(found.total.parts) == 2


# ---- one user ------------------------------------------------------------------------------------


def test_epochs_generations_and_histograms_add_up_for_a_user() -> None:
    """Owners share the epochs: a user's pairs are bounded over all keys together."""
    a = unk(name="a", max_items_per_user=3, epsilon=1.0, delta=1e-6, generation=2)
    old = unk(name="a", max_items_per_user=2, epsilon=0.5, delta=1e-7)
    endless: dict[str, Any] = {"horizon": "unbounded", "start": "2026-01-01T00:00:00Z"}
    b = unk(name="b", max_items_per_user=5, epsilon=2.0, delta=1e-9, **endless)
    states = [
        # a: epochs 4 to 6; the old one: 1 to 4
        state([(a, 30, 49), (b, 7, 99)], [(old, 5, 30)], unit="user"),
        # a: epochs 5 to 8; the old one: 2 to 4
        state([(a, 33, 58), (b, 9, 90)], [(old, 9, 33)], unit="user"),
    ]
    found = budget_of(settings(a, b, unit="user"), states).total
    assert found is not None and found.epsilon is not None
    epochs = {(part.histogram, part.generation): part.epochs for part in found.parts}
    assert epochs == {("a", 1): 4, ("a", 2): 5, ("b", 1): 1}
    rho, failures = summed(
        build(one, "user").cost() for one in (*[old] * 4, *[a] * 5, b)
    )
    delta = 4 * 1e-7 + 5 * 1e-6 + 1e-9
    assert found.delta == pytest.approx(delta, rel=1e-12)
    assert found.rho == pytest.approx(rho, rel=1e-12)
    assert found.epsilon == pytest.approx(
        epsilon_of(rho, delta - failures, gaussian=True), rel=1e-6
    )
    assert found.epsilon_of_the_sum == pytest.approx(4 * 0.5 + 5 * 1.0 + 2.0)


def test_a_generation_that_protected_events_leaves_no_total_for_users(
    tmp_path: Path,
) -> None:
    """A user has any number of events, so one event's price is no bound for a user."""
    new = unk(max_items_per_user=2, generation=2)
    progress = state([(new, 5, 9)], unit="user")
    progress.retired = [("h", life((unk(), 1, 5)))]
    found = budget_of(settings(new, unit="user"), [progress])
    assert found.total is None
    assert [(one.histogram, one.generation) for one in found.not_in_total] == [("h", 1)]
    said = "no total can be stated for one user: h generation 1 protected another unit"
    assert said in words(text_of(found))


def test_when_delta_reaches_one_nothing_is_promised() -> None:
    """An epsilon beside a delta of one would look like protection."""
    config = unk(horizon=1, max_items_per_user=2, epsilon=1.0, delta=0.1)
    found = budget_of(
        settings(config, unit="user"), [state([(config, 1, 20)], unit="user")]
    )
    assert (
        found.total is not None
        and found.total.epsilon is None
        and found.total.delta == 1.0
    )
    assert "nothing is promised" in text_of(found)


# ---- nothing spent, documentation ----------------------------------------------------------------


def test_nothing_spent_is_said_and_is_no_promise(tmp_path: Path) -> None:
    """No topic, an empty state and a state without a tick differ; none is a total of zero."""
    own = settings_of(tmp_path)
    for states, kind in (
        (None, "missing"),
        ([None, None], "empty"),
        ([state([])], "there"),
    ):
        found = budget_of(own, states)
        assert (found.state, found.total, found.not_begun) == (kind, None, ("items",))
        assert ("never run" if kind == "missing" else "nothing is spent") in text_of(
            found
        )
    config = unk()
    unborn = budget_of(settings(config), [state([(config, 4, 4)])])
    assert unborn.total is None and unborn.histograms[0].generations[0].charged is None
    assert [
        e.epochs for e in entries_of([state([(config, 4, 4)])], settings(config))
    ] == [range(0)]


def test_every_field_of_the_json_is_documented() -> None:
    """Scripts read the JSON, so every name needs an explanation."""
    documented = (ROOT / "docs" / "budget.md").read_text(encoding="utf-8")
    for record in vars(spending).values():
        if isinstance(record, type) and issubclass(record, Record):
            for name in record.__struct_fields__:
                assert f"`{name}`" in documented, f"{record.__name__}.{name}"


def test_a_declared_key_that_moved_is_charged_where_it_was_and_where_it_is() -> None:
    """Its histograms may have been published by either owner, at different times."""
    key = next(
        f"k{i}"
        for i in range(9)
        if (owner_of(f"k{i}", 1), owner_of(f"k{i}", 2)) == (0, 1)
    )
    one, two = (
        unk(name=n, epsilon=1.0, delta=1e-6, keys=(key,)) for n in ("one", "two")
    )
    old = state([(one, 1, 5)])
    new = state([(one, 9, 15), (two, 9, 15)])
    for each in (old, new):
        each.owners = 1
        each.grown = ((2, 80),)
    alone = budget_of(settings(one, two), [old, None]).total
    both = budget_of(settings(one, two), [old, new]).total
    assert alone is not None and both is not None
    assert (len(alone.parts), len(both.parts)) == (1, 2)
