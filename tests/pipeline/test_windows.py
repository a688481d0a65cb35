"""Windows state the error between two snapshots, cost nothing and change no other field."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from tests.pipeline.pipeline import Partition, contribute, histogram_of, unk
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline.snapshots import Windows

pytestmark = pytest.mark.slow

# As many items as differences: a sample variance of n = 20,000 has relative sd sqrt(2/n) = 0.01;
# five of them are 5 % (6e-7), which half and double the variance miss by far. Noise is far above
# one count, so rounding does not show.
ITEMS = 20_000
TICKS = 19
COMMON: dict[str, Any] = {"name": "h", "tick_ms": 10, "horizon": 32, "keys": ("k",)}
COMMON |= {"max_items": 2, "epsilon": 0.5, "delta": 1e-6}
DOMAIN = tuple(f"i{number}" for number in range(ITEMS))


def known(**changes: Any) -> HistogramConfig:
    return MECHANISMS["known_base"](**COMMON | {"domain": DOMAIN} | changes)


def snapshots(config: HistogramConfig) -> dict[int, dict[str, Any]]:
    histogram = histogram_of(config)
    histogram.start_at(1)
    found: dict[int, dict[str, Any]] = {}
    for _ in range(TICKS):
        pages = [json.loads(snapshot.value) for snapshot in histogram.step([])]
        items = [item for page in pages for item in page["items"]]
        found[pages[0]["tick"]] = pages[0] | {"items": items}
    return found


def counts_at(bodies: Mapping[int, Mapping[str, Any]], tick: int) -> np.ndarray[Any, Any]:
    if not tick:
        return np.zeros(ITEMS)
    by_label = dict(bodies[tick]["items"])
    return np.array([by_label[label] for label in DOMAIN])


@pytest.mark.parametrize(
    "config",
    [
        known(windows=(10, 40, 110)),
        known(windows=(10, 40, 110), counter="tree"),
        known(windows=(40,), counter="sqrt"),
        MECHANISMS["meta"](
            **COMMON | {"domain": DOMAIN, "algorithm": "known_gauss", "windows": (10, 40, 110)}
        ),
    ],
    ids=lambda config: f"{config.mechanism} {config.counter}",
)
def test_counts_of_two_snapshots_differ_by_noise_of_the_stated_sd(config: HistogramConfig) -> None:
    """Subtract the snapshot `ticks` before, or nothing at the epoch's start."""
    bodies = snapshots(config)
    assert sorted(bodies) == list(range(1, TICKS + 1))
    for tick, body in bodies.items():
        assert [window["ms"] for window in body["windows"]] == list(config.windows)
        ticks = [min(ms // 10, tick) for ms in config.windows]
        assert [window["ticks"] for window in body["windows"]] == ticks
        if tick not in (1, 4, 8, 13, 16, 19):
            continue
        for window in body["windows"]:
            found = (counts_at(bodies, tick) - counts_at(bodies, tick - window["ticks"])).var()
            for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
                near = abs(found / (window["sd"] ** 2 * factor) - 1) < 0.05
                assert bool(near) is accepted, (tick, window)


def test_windows_are_all_that_they_add_to_a_snapshot() -> None:
    """Same id, noise and counts: windows can be added to a running histogram, and removed."""
    few = {"domain": DOMAIN[:9]}
    plain, windowed = snapshots(known(**few)), snapshots(known(**few, windows=(20, 40)))
    assert len(windowed) == TICKS and not any("windows" in body for body in plain.values())
    for tick, body in windowed.items():
        assert list(body)[list(body).index("windows") - 1] == "threshold"
        assert {name: value for name, value in body.items() if name != "windows"} == plain[tick]


def test_stored_state_goes_on_with_other_windows() -> None:
    """They cost nothing, so there is no new charge and no new generation."""
    config = unk(horizon=32)
    events = [("k", {"a": 1}, 10 * tick) for tick in range(TICKS)]
    [messages] = contribute([events], [config], owners=1)
    partition = Partition([config], 1)
    partition.receive(messages[:2], 0)
    before = partition.release_all()
    partition.configs = [structs.replace(config, windows=(20,))]
    partition.go_on(messages)
    after = [json.loads(snapshot.value) for snapshot in partition.release_all()]
    assert before and after and after[0]["tick"] == json.loads(before[-1].value)["tick"] + 1
    assert all("windows" in body for body in after)
    [own] = {body["id"] for body in after if body["epoch"] == 1}
    assert own == json.loads(before[0].value)["id"]


def test_the_fields_are_those_of_the_reference() -> None:
    config = known(domain=("a", "b"), windows=(300_000,), tick_ms=10_000)
    made = Windows(config, build(config))
    sd = build(config).difference_sd(31, 1)  # type: ignore[attr-defined]  # known_base has it
    assert made.at(31) == {"windows": [{"ms": 300_000, "ticks": 30, "sd": round(sd, 4)}]}
    sd = round(build(config).sd(7), 4)
    assert made.at(7) == {"windows": [{"ms": 300_000, "ticks": 7, "sd": sd}]}
    assert Windows(known(domain=("a", "b")), build(config)).at(7) == {}
    totals = unk(horizon=32, windows=(300_000,), tick_ms=10_000, total_share=0.1)
    stated: Any = Windows(totals, build(totals)).at(31)["windows"]
    [window] = stated
    counter = build(totals).of_totals  # type: ignore[attr-defined]  # unk_base has it
    assert window["all_items_sd"] == round(counter.difference_sd(31, 1), 4) > 2 * window["sd"]
