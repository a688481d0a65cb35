"""Windows state the error between two snapshots, cost nothing and change no other field."""

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.pipeline.pipeline import histogram_of, unk
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.config.sums import parse_sum
from workers.mechanisms.registry import MECHANISMS, build
from workers.pipeline.snapshots import Windows, join_pages

pytestmark = pytest.mark.slow

# As many items as differences: a sample variance of n = 20,000 has relative sd sqrt(2/n) = 0.01;
# five of them are 5 % (6e-7), which half and double the variance miss by far. Noise is far above
# one count, so rounding does not show.
ITEMS = 20_000
TICKS = 19
COMMON: dict[str, Any] = {"name": "h", "tick_ms": 10, "horizon": 32, "keys": ("k",)}
COMMON |= {"max_items": 2, "epsilon": 0.5, "delta": 1e-6}
DOMAIN = tuple(f"i{number}" for number in range(ITEMS))
SUM = parse_sum({"field": "price", "from": 50, "to": 100, "step": 0.5})


def known(**changes: Any) -> HistogramConfig:
    return MECHANISMS["known_base"](**COMMON | {"domain": DOMAIN} | changes)


def snapshots(config: HistogramConfig) -> dict[int, dict[str, Any]]:
    histogram = histogram_of(config)
    histogram.start_at(1)
    found: dict[int, dict[str, Any]] = {}
    for _ in range(TICKS):
        pages = [json.loads(snapshot.value) for snapshot in histogram.step([])]
        found[pages[0]["tick"]] = join_pages(pages)
    return found


def numbers_at(
    bodies: Mapping[int, Mapping[str, Any]], tick: int, error: str
) -> np.ndarray[Any, Any]:
    """Return the counts of a tick, or the sums, of which `error` states the error."""
    if not tick:
        return np.zeros(ITEMS)
    by_label = dict(bodies[tick]["items"])
    if error == "sum_sd":
        by_label = dict(
            zip(by_label, (row[0] for row in bodies[tick]["sums"]), strict=True)
        )
    return np.array([by_label[label] for label in DOMAIN])


@pytest.mark.parametrize(
    "config",
    [
        known(windows=(10, 40, 110)),
        known(windows=(10, 40, 110), counter="tree"),
        known(windows=(40,), counter="sqrt"),
        known(windows=(10, 40), sum=SUM),
        MECHANISMS["meta"](
            **COMMON
            | {"domain": DOMAIN, "algorithm": "known_gauss", "windows": (10, 40, 110)}
        ),
    ],
    ids=lambda config: (
        f"{config.mechanism} {config.counter}{' sum' if config.sum else ''}"
    ),
)
def test_two_snapshots_differ_by_noise_of_the_stated_sd(
    config: HistogramConfig,
) -> None:
    """Counts and sums: subtract the snapshot `ticks` before, or nothing at the epoch's start."""
    bodies = snapshots(config)
    assert sorted(bodies) == list(range(1, TICKS + 1))
    for tick, body in bodies.items():
        assert [window["ms"] for window in body["windows"]] == list(config.windows)
        ticks = [min(ms // 10, tick) for ms in config.windows]
        assert [window["ticks"] for window in body["windows"]] == ticks
        if tick not in (1, 4, 8, 13, 16, 19):
            continue
        for window, name in product(body["windows"], ("sd", "sum_sd")):
            if name not in window:
                assert name == "sum_sd" and config.sum is None
                continue
            then = numbers_at(bodies, tick - window["ticks"], name)
            found = (numbers_at(bodies, tick, name) - then).var()
            for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
                near = abs(found / (window[name] ** 2 * factor) - 1) < 0.05
                assert bool(near) is accepted, (tick, window)


def test_windows_are_all_that_they_add_to_a_snapshot() -> None:
    """Same id, noise and counts: windows can be added to a running histogram, and removed."""
    few = {"domain": DOMAIN[:9]}
    plain = snapshots(known(**few))
    windowed = snapshots(known(**few, windows=(20, 40)))
    assert len(windowed) == TICKS and not any(
        "windows" in body for body in plain.values()
    )
    for tick, body in windowed.items():
        assert list(body)[list(body).index("windows") - 1] == "threshold"
        assert {
            name: value for name, value in body.items() if name != "windows"
        } == plain[tick]


def test_the_fields_are_those_of_the_reference() -> None:
    config = known(domain=("a", "b"), windows=(300_000,), tick_ms=10_000)
    made = Windows(config, build(config))
    sd = build(config).difference_sd(31, 1)  # type: ignore[attr-defined]  # known_base has it
    assert made.at(31) == {
        "windows": [{"ms": 300_000, "ticks": 30, "sd": round(sd, 4)}]
    }
    sd = round(build(config).sd(7), 4)
    assert made.at(7) == {"windows": [{"ms": 300_000, "ticks": 7, "sd": sd}]}
    assert Windows(known(domain=("a", "b")), build(config)).at(7) == {}
    totals = unk(horizon=32, windows=(300_000,), tick_ms=10_000, total_share=0.1)
    stated: Any = Windows(totals, build(totals)).at(31)["windows"]
    [window] = stated
    counter = build(totals).of_totals  # type: ignore[attr-defined]  # unk_base has it
    assert (
        window["all_items_sd"]
        == round(counter.difference_sd(31, 1), 4)
        > 2 * window["sd"]
    )
