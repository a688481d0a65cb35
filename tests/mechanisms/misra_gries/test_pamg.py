"""misra_gries with release = "pamg": what is merged and published of stage 1's sketches."""

import random
from collections import Counter
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.mechanisms.misra_gries.sets import algorithm_4
from tests.pipeline.pipeline import Event, Partition, contribute
from workers.arrays.types import Longs, Tags
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.releases import GshmLaw
from workers.mechanisms.one_shot.algorithms import OneShotNoise
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline.contributions import decode
from workers.privacy.total import compose

SIZE = 4


RUNNING = "misra_gries"
EACH_TICK = "misra_gries_tick"


def config(mechanism: str = RUNNING, **changes: object) -> HistogramConfig:
    values: dict[str, Any] = {
        "name": "h",
        "tick_ms": 100,
        "horizon": 4,
        "keys": "public",
        "max_items": 6,
        "epsilon": 40.0,
        "delta": 0.1,
        "size": SIZE,
        "release": "pamg",
    }
    kind: Any = MECHANISMS[mechanism]
    made: HistogramConfig = kind(**(values | changes))
    return made


def events_of(rng: random.Random, number: int) -> list[Event]:
    """Return events of four ticks in order, of frequent and of many rare labels."""
    labels = [*"aab", *"cdefghijklmnopqrstuvwxyz"]
    return [
        (
            rng.choice(["k1", "k2"]),
            rng.sample(labels, rng.choice([1, 2, 6])),
            i * 400 // number,
        )
        for i in range(number)
    ]


@pytest.mark.parametrize("mechanism", [RUNNING, EACH_TICK])
def test_the_sketches_of_all_partitions_are_merged_in_any_order(mechanism: str) -> None:
    """Without noise: their sum less its (k + 1)-th largest counter, for every tick and stream key."""
    rng = random.Random(1)
    # Of ticks by themselves, as running counts of one tick are too.
    own = config(mechanism, horizon=1)
    partitions = [events_of(rng, 120) for _ in range(3)]
    [messages] = contribute(partitions, [own], owners=1)
    shown: list[dict[tuple[str, int], dict[str, int]]] = []
    for order in (messages, by_source(messages, [2, 0, 1])):
        partition = Partition([own], sources=3)
        [histogram] = partition.merge.histograms
        silence(histogram.mechanism)
        snapshots = partition.run(order)
        values = [msgspec.json.decode(one.value) for one in snapshots]
        shown.append(
            {(v["key"], v["end"]): dict(v["items"]) for v in values if v["items"]}
        )
    assert shown[0] == shown[1]
    sets: dict[tuple[int, str, int], list[list[str]]] = {}
    for source, events in enumerate(partitions):
        for key, items, time in events:
            assert isinstance(items, list)
            distinct = list(dict.fromkeys(items))
            place = (time // 100 + 1) * 100, key, source
            sets.setdefault(place, []).append(distinct)
    assert len(shown[0]) > 4
    for (key, end), items in shown[0].items():
        total: Counter[str] = Counter()
        exact: Counter[str] = Counter()
        for source in range(3):
            own_sets = sets.get((end, key, source), [])
            total.update(algorithm_4(SIZE, own_sets))
            exact.update(label for labels in own_sets for label in labels)
        least = sorted(total.values(), reverse=True)[SIZE:][:1]
        taken = least[0] if least else 0
        assert items == {label: n - taken for label, n in total.items() if n > taken}
        for label, n in exact.items():
            assert 0 <= n - items.get(label, 0) <= exact.total() / (SIZE + 1)


def silence(mechanism: Mechanism) -> None:
    """Take noise and thresholds from a mechanism."""
    laws = [mechanism, getattr(mechanism, "algorithm", None)]
    for law in laws:
        for name in ("_threshold", "threshold"):
            if isinstance(getattr(law, name, None), int):
                object.__setattr__(law, name, 0)
    object.__setattr__(mechanism, "noise", lambda stream: SilentCells(stream, None))


class SilentCells(OneShotNoise):
    """No noise, of cells and of items."""

    def at(self, t: int, tags: Tags) -> Longs:
        return np.zeros(len(tags), dtype=np.int64)

    def items(self, address: tuple[int, int], tags: Tags) -> Longs:
        return self.at(0, tags)


def by_source(messages: list[bytes], sources: list[int]) -> list[bytes]:
    """Return messages in the order of their sources; those of each stay in order."""
    return sorted(messages, key=lambda one: sources.index(decode(one).source))


@pytest.mark.slow
def test_one_tick_costs_what_the_exact_condition_says_and_more_their_composition() -> (
    None
):
    """The figures of docs/decisions/0040-sets-in-stage-1.md."""
    values: dict[str, Any] = {"size": 1_000, "epsilon": 1.0, "delta": 1e-9}
    alone = build(config(EACH_TICK, **values))
    law = GshmLaw(1_000, 1.0, 1e-9 * (1 - 1e-6))
    assert alone.threshold(1) == law.threshold
    assert (alone.guarantee.epsilon, alone.guarantee.delta) == (1.0, 1e-9)
    day = build(config(horizon=24, **values))
    assert round(alone.sd(1)) == 174
    assert [round(day.sd(1)), round(day.sd(24))] == [263, 745]
    assert day.guarantee.epsilon == 1.0
    # Beside others, a single release is what it costs in GDP.
    both = compose([alone.cost(), day.cost()])
    assert both.epsilon is not None
    assert 1 < both.epsilon < 1.6


def test_settings_that_the_analysis_does_not_cover_are_refused() -> None:
    for mechanism, other in ((RUNNING, "merge"), (EACH_TICK, "gshm")):
        with pytest.raises(ValueError, match="max_count = 2: .*pamg"):
            config(mechanism, max_count=2)
        with pytest.raises(ValueError, match="domain"):
            config(mechanism, domain=("a",))
        assert config(mechanism).lane.sketch == SIZE
        assert config(mechanism, release=other).lane.sketch == 0
