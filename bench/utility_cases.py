"""For every mechanism the kind of input that its theorem is about, and the settings it is run with.

Noise does not depend on the data, so for counts any stream will do; what is hidden or not chosen depends on where counts lie, so there
counts lie around the threshold, or close below the largest; a sketch gets the input that it undercounts most.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from bench.utility_run import Counts
from workers.mechanisms.about import Data
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS
from workers.settings.settings import load

EXAMPLES = Path(__file__).parent.parent / "examples" / "mechanisms"
Stream = Callable[[int], Iterator[Counts]]
# One tick is all of a release, and the bounds on counts are exact quantiles: how often they are
# passed takes many seeds to tell.
QUICK = (
    "known_gauss",
    "known_gumbel",
    "positive_gauss",
    "positive_laplace",
    "unk_gauss",
    "limit_dom_laplace",
    "limit_dom",
    "pay_what_you_get",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row, or several with the same settings.

    Attributes:
        name: mechanism and what is special about it.
        input: in words.
        config: settings.
        stream: from a seed, the counts of each tick.
        data: what the input keeps to.
        times: the number of seeds, as a multiple of the usual one.
    """

    name: str
    input: str
    config: HistogramConfig
    stream: Stream
    data: Data
    times: int = 1


def config(mechanism: str, **values: Any) -> HistogramConfig:
    """Settings of a mechanism: epsilon = 1, delta = 1e-6, one item an event unless said."""
    usual: dict[str, Any] = {
        "name": "h",
        "tick_ms": 1_000,
        "max_items": 1,
        "delta": 1e-6,
        "keys": "public",
    }
    if "rho" not in values:
        usual["epsilon"] = 1.0
    return MECHANISMS[mechanism](**(usual | values))


def own_settings(mechanism: str) -> dict[str, Any]:
    """Return the settings that only this mechanism has, as in its example."""
    [example] = load(EXAMPLES / f"{mechanism}.toml").histograms
    shared = {field.name for field in structs.fields(HistogramConfig)}
    return {
        field.name: getattr(example, field.name)
        for field in structs.fields(type(example))
        if field.name not in shared
    }


def labels(number: int) -> tuple[str, ...]:
    """Return a domain of `number` labels."""
    return tuple(f"p{i:04}" for i in range(number))


def zipf(ticks: int, number: int, events: int, power: float = 1.0) -> Stream:
    """Yield `events` events a tick with one item each; label i has a weight of i^-power."""

    def stream(seed: int) -> Iterator[Counts]:
        rng = np.random.default_rng(seed)
        weights = np.arange(1, number + 1) ** -power
        names = [label.encode() for label in labels(number)]
        for counts in rng.multinomial(events, weights / weights.sum(), size=ticks):
            yield {names[i]: int(counts[i]) for i in np.flatnonzero(counts).tolist()}

    return stream


def spread(ticks: int, number: int, most: int) -> Stream:
    """Yield all labels at each tick, with evenly spaced counts from 1 to `most`, shuffled."""

    def stream(seed: int) -> Iterator[Counts]:
        rng = np.random.default_rng(seed)
        levels = np.linspace(1, most, number).astype(np.int64)
        names = [label.encode() for label in labels(number)]
        for _ in range(ticks):
            yield dict(zip(names, rng.permutation(levels).tolist(), strict=True))

    return stream


def level(ticks: int, number: int, top: int, gap: int, first: int) -> Stream:
    """What the exponential mechanism errs on: `first` labels have `top`, all others `gap` less, or up to twice that."""

    def stream(seed: int) -> Iterator[Counts]:
        names = [label.encode() for label in labels(number)]
        rng = np.random.default_rng(seed)
        for _ in range(ticks):
            counts = top - rng.integers(gap, 2 * gap + 1, size=number)
            counts[rng.permutation(number)[:first]] = top
            yield dict(zip(names, counts.tolist(), strict=True))

    return stream


def staircase(ticks: int, number: int, most: int) -> Stream:
    """Label i ends at about most * i / number, a little in each tick: at any time some lie around every threshold."""

    def stream(seed: int) -> Iterator[Counts]:
        names = [label.encode() for label in labels(number)]
        ends = np.linspace(1, most, number)
        before = np.zeros(number, dtype=np.int64)
        for t in range(1, ticks + 1):
            now = np.ceil(ends * t / ticks).astype(np.int64)
            added = now - before
            yield {names[i]: int(added[i]) for i in np.flatnonzero(added).tolist()}
            before = now

    return stream


def overtaking(ticks: int, number: int, step: int) -> Stream:
    """Every tenth of the time another label leads: what a continual top k has to follow."""

    def stream(seed: int) -> Iterator[Counts]:
        rng = np.random.default_rng(seed)
        names = [label.encode() for label in labels(number)]
        leaders = rng.permutation(number)
        for t in range(ticks):
            counts = rng.poisson(1.0, size=number)
            counts[leaders[t * 10 // ticks]] += step
            yield {names[i]: int(counts[i]) for i in np.flatnonzero(counts).tolist()}

    return stream


def rows(ticks: int, columns: int, value: int) -> Stream:
    """Paper 001: a row of 0s and 1s a tick, two 1s at most: the first column in `value` of the ticks, and one of the others."""

    def stream(seed: int) -> Iterator[Counts]:
        rng = np.random.default_rng(seed)
        names = [label.encode() for label in labels(columns)]
        first = np.zeros(ticks, dtype=bool)
        first[rng.permutation(ticks)[:value]] = True
        weights = 1 / np.arange(2, columns + 1)
        second = rng.choice(
            np.arange(1, columns), size=ticks, p=weights / weights.sum()
        )
        for leads, other in zip(first.tolist(), second.tolist(), strict=True):
            yield {names[0]: 1, names[other]: 1} if leads else {names[other]: 1}

    return stream


def round_robin(ticks: int, size: int, events: int, heavy: int) -> Stream:
    """size + 1 labels in turn, which a sketch of `size` counters forgets over and over, and one label with `heavy` a tick."""

    def stream(seed: int) -> Iterator[Counts]:
        names = [label.encode() for label in labels(size + 2)]
        for t in range(ticks):
            first = t * events
            counts = Counter(
                names[1 + i % (size + 1)] for i in range(first, first + events)
            )
            counts[names[0]] = heavy
            yield dict(counts)

    return stream


def cases(ticks: int = 1_024) -> list[Case]:
    """Every mechanism; with so many ticks in an epoch, fewer where a tick is slow."""
    few = max(8, ticks // 16)
    found: list[Case] = []

    def add(
        mechanism: str,
        variant: str,
        words: str,
        stream: Stream,
        data: Data | None = None,
        **values: Any,
    ) -> None:
        name = f"{mechanism} {variant}".strip()
        made = config(mechanism, **({"horizon": ticks} | values))
        times = 10 if mechanism in QUICK else 1
        found.append(
            Case(
                name=name,
                input=words,
                config=made,
                stream=stream,
                data=data or Data(),
                times=times,
            )
        )

    words = f"Zipf, 50 events a tick, 40 labels, T = {ticks:,}"
    for counter in ("lifted", "tree", "sqrt"):
        add(
            "known_base",
            counter,
            words,
            zipf(ticks, 40, 50),
            domain=labels(40),
            counter=counter,
        )
    climb = f"200 labels that end at 2 to 400, T = {ticks:,}"
    for variant, further in (
        ("lifted", {}),
        ("tree", {"counter": "tree"}),
        ("constant", {"threshold": "constant"}),
        ("every 16", {"threshold": "every", "every": 16}),
    ):
        add(
            "unk_base",
            variant,
            climb,
            staircase(ticks, 200, 400),
            Data(items=200),
            **further,
        )
    lead = f"another label leads every tenth of T = {ticks:,}, 20 labels"
    for accounting in ("tight", "paper"):
        add(
            "sparse_gumb",
            accounting,
            lead,
            overtaking(ticks, 20, 40),
            domain=labels(20),
            top_k=2,
            switches=12,
            accounting=accounting,
            max_items=20,
            epsilon=4.0,
        )

    blocks = f"12 labels, counts from 1 to 60 a tick, T = {few}"
    twelve = spread(few, 12, 60)
    add(
        "meta",
        "known_gauss",
        blocks,
        twelve,
        horizon=few,
        algorithm="known_gauss",
        domain=labels(12),
    )
    add(
        "meta",
        "known_gumbel",
        "4 of 12 labels, T = " + str(few),
        spread(few, 4, 60),
        horizon=few,
        algorithm="known_gumbel",
        domain=labels(12),
        k=4,
    )
    for algorithm in ("positive_gauss", "positive_laplace"):
        add(
            "meta",
            algorithm,
            blocks,
            twelve,
            Data(items=12),
            horizon=few,
            algorithm=algorithm,
        )
    for algorithm in ("unk_gauss", "limit_dom_laplace"):
        add(
            "meta",
            algorithm,
            blocks,
            twelve,
            Data(items=12),
            horizon=few,
            algorithm=algorithm,
            kbar=12,
        )
    add(
        "meta",
        "limit_dom",
        blocks,
        twelve,
        Data(items=12),
        horizon=few,
        algorithm="limit_dom",
        k=12,
        kbar=12,
    )

    many = "60 labels, counts from 1 to {} a tick, " + f"{few} ticks"
    most = 120
    sixty = spread(few, 60, most)
    add("known_gauss", "", many.format(most), sixty, horizon=few, domain=labels(60))
    add(
        "known_gumbel",
        "",
        f"all but 3 of 60 labels 25 to 50 below the largest, {few} ticks",
        level(few, 60, 200, 25, 3),
        horizon=few,
        domain=labels(60),
        k=3,
    )
    for mechanism in ("positive_gauss", "positive_laplace"):
        add(mechanism, "", many.format(most), sixty, Data(items=60), horizon=few)
    for mechanism in ("unk_gauss", "limit_dom_laplace"):
        add(mechanism, "", many.format(most), sixty, horizon=few, kbar=59)
    private: dict[str, Any] = {"kbar": "private", "kbar_max": 59}
    for variant, kbar in (("", {"kbar": 59}), ("private", private)):
        add(
            "limit_dom",
            variant,
            many.format(600),
            spread(few, 60, 600),
            horizon=few,
            k=59,
            rho=1.0,
            **kbar,
        )
        add(
            "pay_what_you_get",
            variant,
            f"60 labels, 1 to 900 in all, {few} ticks",
            staircase(few, 60, 900),
            horizon=few,
            k=40,
            labels=100,
            queries=8,
            every=max(1, few // 8),
            **kbar,
        )

    long = 16 * ticks
    columns = 6
    value = 8 * ticks
    rows_in_words = f"rows of 0s and 1s, 6 columns, largest sum {value:,}, T = {long:,}, epsilon = 20"
    own: dict[str, Any] = {
        "domain": labels(columns),
        "horizon": long,
        "max_items": 2,
        "epsilon": 20.0,
    }
    stream = rows(long, columns, value)
    reach = Data(value=value)
    for accounting in ("zcdp", "pure"):
        own["accounting"] = accounting
        add("bounded_max", accounting, rows_in_words, stream, reach, **own, c_max=value)
        add("doubling", accounting, rows_in_words, stream, reach, **own)
        add("two_level", accounting, rows_in_words, stream, reach, **own)
        add(
            "two_level_k",
            accounting,
            rows_in_words,
            stream,
            reach,
            **own,
            queries=("max", "quantile:0.5", "top_k:3"),
        )

    events = 40
    size = 15
    data = Data(items=size + 2, weight=few * (events + 60))
    robin = f"{size + 1} labels in turn and one heavy one, k = {size}, T = {few}"
    for release in ("pmg", "merge"):
        add(
            "misra_gries",
            release,
            robin,
            round_robin(few, size, events, 60),
            data,
            horizon=few,
            size=size,
            release=release,
        )
    add(
        "misra_gries",
        "pure",
        robin,
        round_robin(few, size, events, 60),
        data,
        horizon=few,
        size=size,
        release="pure",
        domain=labels(size + 2),
    )
    data = Data(items=size + 2, weight=events + 60)
    for release in ("pmg", "gshm", "pure"):
        listed = {"domain": labels(size + 2)} if release == "pure" else {}
        add(
            "misra_gries_tick",
            release,
            robin,
            round_robin(few, size, events, 60),
            data,
            horizon=few,
            size=size,
            release=release,
            **listed,
        )
    # A mechanism without a case of its own: all its counts, of running ticks.
    named = {case.config.mechanism for case in found}
    for mechanism in sorted(MECHANISMS.keys() - named):
        own = own_settings(mechanism)
        if "domain" in own:
            own["domain"] = labels(40)
        add(mechanism, "", words, zipf(ticks, 40, 50), Data(items=40), **own)
    return found
