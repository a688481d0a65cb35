"""For every mechanism the settings, neighbouring streams and number of runs with which it is attacked.

The neighbours are those that the proofs call the worst (`tests/contract/test_price.py` has what they cost): the event moves counts that
are shown whatever the noise, or ties that picks decide, or values at a threshold; or it brings labels that nobody else has ("new").
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.utility_cases import config, own_settings
from tests.attacks.bounds import Statistic, counter_ratio
from tests.attacks.runs import Counts, NoiseOf
from workers.arrays.types import Floats
from workers.mechanisms.config.buckets import Buckets
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.registry import MECHANISMS, build
from workers.mechanisms.running.on_counters import OnCounters

Events = Mapping[int, Counts]
"""Tick -> what the event (or the user) contributes in it."""

TICKS = 4
EPSILON = 2.0
DELTA = 1e-2
MANY = 100_000
FEW = 20_000
PICKS = 10_000


def own_noise(mechanism: Mechanism, stream: Any) -> Any:
    return mechanism.noise(stream)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One attack.

    Attributes:
        name: mechanism, settings and neighbours.
        config: settings, and with them the claim.
        stream: counts of every tick without the event.
        events: what the event adds.
        runs: of each world, both for choosing and for measuring.
        unit: "event" or "user".
        make: builds the mechanism; a planted flaw builds another one.
        noise_of: its noise; a planted flaw has another one.
    """

    name: str
    config: HistogramConfig
    stream: Sequence[Counts]
    events: Events
    runs: int
    unit: str = "event"
    make: Callable[[Any, str], Mechanism] = build
    noise_of: NoiseOf = own_noise
    labels: tuple[bytes, ...] = field(init=False)

    def __post_init__(self) -> None:
        found = {
            label for tick in (*self.stream, *self.events.values()) for label in tick
        }
        found |= {label.encode() for label in self.config.declared}
        object.__setattr__(self, "labels", tuple(sorted(found)))

    @property
    def worlds(self) -> tuple[Sequence[Counts], Sequence[Counts]]:
        """The streams without and with the event."""
        more = []
        for t, tick in enumerate(self.stream, 1):
            event = self.events.get(t, {})
            both = {**tick, **event}
            more.append(
                {label: tick.get(label, 0) + event.get(label, 0) for label in both}
            )
        return self.stream, more

    @property
    def alike(self) -> Mapping[bytes, bytes]:
        """Every label, and the first one with the same counts in both worlds."""
        first: dict[tuple[int, ...], bytes] = {}
        ticks = [tick for world in self.worlds for tick in world]
        return {
            label: first.setdefault(tuple(tick.get(label, 0) for tick in ticks), label)
            for label in self.labels
        }

    @property
    def new(self) -> list[int]:
        """Columns of labels that only the event brought, over an unknown domain."""
        known = {label for tick in self.stream for label in tick}
        places = [
            place
            for place, label in enumerate(self.labels)
            if label not in known and not self.config.declared
        ]
        return [
            t * len(self.labels) + place
            for t in range(len(self.stream))
            for place in places
        ]

    def ratios(self, mechanism: Mechanism) -> list[Statistic]:
        """Return the likelihood ratio where a counter's law gives it."""
        if not isinstance(mechanism, OnCounters):
            return []
        moved: Floats = np.zeros((len(self.stream), len(self.labels)))
        for t, event in self.events.items():
            for label, count in event.items():
                moved[t - 1 :, self.labels.index(label)] += count
        moved.reshape(-1)[self.new] = 0
        return [counter_ratio(mechanism._counter, moved, self.new)]


def steady(counts: Mapping[str, int], ticks: int = TICKS) -> list[Counts]:
    """Return the same counts in every tick."""
    return [{label.encode(): n for label, n in counts.items()} for _ in range(ticks)]


def at(tick: int, **counts: int) -> Events:
    return {tick: {label.encode(): n for label, n in counts.items()}}


def cases() -> list[Case]:
    """Every mechanism of the registry."""
    found: list[Case] = []

    def add(
        mechanism: str,
        what: str,
        stream: Sequence[Counts],
        events: Events,
        runs: int,
        **values: Any,
    ) -> None:
        usual: dict[str, Any] = {"horizon": TICKS, "delta": DELTA}
        if "rho" not in values:
            usual["epsilon"] = EPSILON
        made = config(mechanism, **(usual | values))
        unit = "user" if "max_items_per_user" in values else "event"
        name = f"{mechanism} {what}".strip()
        found.append(
            Case(
                name=name,
                config=made,
                stream=stream,
                events=events,
                runs=runs,
                unit=unit,
            )
        )

    large = steady({"a": 900, "b": 800, "c": 700})
    two: dict[str, Any] = {"max_items": 2, "max_count": 20}
    known: dict[str, Any] = {"domain": ("a", "b", "c")}
    event = at(1, a=20, b=20)
    for counter in ("lifted", "tree", "sqrt"):
        add("known_base", counter, large, event, MANY, counter=counter, **known, **two)
    add(
        "known_base",
        "end_share",
        large,
        at(2, a=20, b=20),
        MANY,
        end_share=0.6,
        **known,
        **two,
    )
    # Of all buckets the first and the last cost what the proof says.
    buckets = Buckets(tuple(range(7)))
    eight = steady(dict.fromkeys(buckets.labels, 900))
    ranks: dict[str, Any] = {"for_": "quantiles", "buckets": buckets}
    ranks["domain"] = buckets.labels
    ranks |= {"max_items": 1, "max_count": 20}
    add("known_base", "ranks", eight, at(1, **{buckets.labels[0]: 20}), MANY, **ranks)
    user: dict[str, Any] = {"max_items": 1, "max_items_per_user": 2, "max_count": 20}
    parts: Events = {**at(1, a=20), **at(3, b=20)}
    add("known_base", "user", large, parts, MANY, **known, **user)
    # A threshold one lower multiplies the chance to be shown by more the less noise there is.
    few: dict[str, Any] = {"max_items": 1}
    new = at(1, x=1)
    add("unk_base", "", large, event, MANY, **two)
    add("unk_base", "new", large, new, MANY, **few)
    add("unk_base", "both", large, at(1, a=3, x=3, y=3), MANY, max_items=3, max_count=3)
    add("unk_base", "constant, new", large, new, MANY, threshold="constant", **few)
    add("unk_base", "every, new", large, new, MANY, threshold="every", every=2, **few)

    add("known_gauss", "", large[:1], event, MANY, **known, **two)
    # The more counts an event moves, the closer Laplace noise comes to its cost in zCDP.
    seven = steady(dict.fromkeys("abcdefg", 900), 1)
    six = at(1, **dict.fromkeys("abcdef", 20))
    for mechanism in ("positive_gauss", "positive_laplace"):
        add(mechanism, "", seven, six, MANY, max_items=6, max_count=20)
        add(mechanism, "new", large[:1], new, MANY, **few)
    for mechanism in ("unk_gauss", "limit_dom_laplace"):
        add(mechanism, "", seven, six, FEW, kbar=7, max_items=6, max_count=20)
        add(
            mechanism,
            "new",
            large[:1],
            at(1, x=1, y=1),
            MANY,
            kbar=5,
            max_items=2,
            epsilon=4.0,
        )
    # Picks tell most where an event moves half of what is picked from.
    ties = steady(dict.fromkeys("abcdefgh", 900), 1)
    half = at(1, a=20, b=20, c=20, d=20)
    four = two | {"max_items": 4}
    letters = {"domain": tuple("abcdefgh")}
    add("known_gumbel", "", ties, half, PICKS, k=2, **letters, **four)
    add("limit_dom", "", ties, half, PICKS, k=2, kbar=8, **four)
    add(
        "limit_dom",
        "private",
        ties,
        half,
        PICKS,
        k=2,
        kbar="private",
        kbar_max=8,
        **four,
    )
    add("limit_dom", "new", steady({"a": 3}, 1), new, FEW, k=3, kbar=4, **few)
    for what, kbar in (
        ("", {"kbar": 8}),
        ("private", {"kbar": "private", "kbar_max": 8}),
    ):
        pay: dict[str, Any] = {"k": 2, "labels": 6, "queries": 3} | kbar
        add("pay_what_you_get", what, [*ties, {}, {}, {}], half, PICKS, **pay, **four)

    blocks = [*steady(dict.fromkeys("abcd", 900), 1), {}, {}]
    for algorithm, own in (
        ("known_gauss", {"domain": tuple("abcd")}),
        ("known_gumbel", {"domain": tuple("abcd"), "k": 2}),
        ("positive_gauss", {}),
        ("positive_laplace", {}),
        ("unk_gauss", {"kbar": 4}),
        ("limit_dom_laplace", {"kbar": 4}),
        ("limit_dom", {"kbar": 4, "k": 2}),
    ):
        runs = MANY if "kbar" not in own and "k" not in own else PICKS
        add(
            "meta",
            algorithm,
            blocks,
            event,
            runs,
            algorithm=algorithm,
            radix=2,
            horizon=3,
            **own,
            **two,
        )

    sparse: dict[str, Any] = {
        "top_k": 1,
        "switches": 1,
        "max_items": 2,
        "max_count": 20,
    }
    level = [blocks[0], {b"b": 10}, {b"c": 20}, {}]
    for accounting in ("tight", "paper"):
        add(
            "sparse_gumb", accounting, level, event, FEW, domain=tuple("abcd"), eta=0,
            accounting=accounting, **sparse,
        )  # fmt: skip
    for release, m in (("pmg", 20), ("merge", 20), ("pure", 20)):
        size = 12 if release == "pmg" else 3
        held = {f"k{i:02}": 5_000 for i in range(size)}
        own = {"domain": (*held, "x")} if release == "pure" else {}
        moved = {b"x": m} if release == "merge" else {b"k00": m}
        add(
            "misra_gries", release, [*steady(held, 1), {}], {1: moved}, FEW, size=size, horizon=2,
            release=release, max_count=m, **own,
        )  # fmt: skip
    held = {f"k{i:02}": 900 for i in range(4)}
    full = steady(held, 1)
    many: dict[str, Any] = {"size": 4, "max_count": 20}
    add("misra_gries_tick", "pmg", full, {1: {b"k00": 20}}, FEW, **many)
    # A new label lowers all counters of a full sketch: what the noise of all together hides.
    add("misra_gries_tick", "lowered", full, new, FEW, size=4, **few)
    add("misra_gries_tick", "new", [{}], new, FEW, size=1, **few)
    add("misra_gries_tick", "gshm", full, new, FEW, size=4, release="gshm", **few)
    add("misra_gries_tick", "gshm, new", [{}], new, MANY, size=1, release="gshm", **few)
    # Stage 1 has added sets up: the event is in every counter.
    every: Events = {1: dict.fromkeys(full[0], 1)}
    sets: dict[str, Any] = {"size": 4, "release": "pamg", "max_items": 4}
    add("misra_gries_tick", "pamg", full, every, FEW, **sets)
    listed = {"domain": tuple(held), "release": "pure"}
    add("misra_gries_tick", "pure", full, {1: {b"k00": 20}}, FEW, **listed, **many)
    for accounting in ("zcdp", "pure"):
        of_one: dict[str, Any] = {
            "domain": ("a", "b"),
            "max_count": 20,
            "accounting": accounting,
        }
        for mechanism, further in (
            ("bounded_max", {"c_max": 1_000}),
            ("doubling", {}),
            ("two_level", {}),
            ("two_level_k", {"queries": ("histogram",)}),
        ):
            made = config(
                mechanism,
                epsilon=EPSILON,
                delta=DELTA,
                horizon=TICKS,
                **of_one,
                **further,
            )
            stream = _rising(build(made))
            add(mechanism, accounting, stream, at(1, a=20), PICKS, **of_one, **further)
    # A mechanism without a case of its own: an event that moves two large counts.
    named = {case.config.mechanism for case in found}
    for mechanism in sorted(MECHANISMS.keys() - named):
        own = own_settings(mechanism)
        if "domain" in own:
            own |= known
        add(mechanism, "", large, event, FEW, **own, **two)
    return found


def _rising(mechanism: Mechanism) -> list[Counts]:
    """Return a sum that lies at the first threshold in tick 1, and passes one in every later tick."""
    if not isinstance(mechanism, OrderStatistics):
        raise TypeError(f"mechanism = {mechanism!r}: has no thresholds")
    outer = mechanism.segments.threshold(1) if mechanism.segments else 0
    first = mechanism.intervals(1).step if mechanism.inner else outer
    return [
        {b"a": first},
        {b"a": 2 * first},
        *({b"a": 4 * (first + outer) << i} for i in (0, 2)),
    ]
