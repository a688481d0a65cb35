"""Windows state the error between two snapshots, cost nothing and change no other field."""

from collections.abc import Mapping
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from msgspec.json import decode

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
COMMON: dict[str, Any] = {
    "name": "h",
    "tick_ms": 10,
    "horizon": 32,
    "keys": ("k",),
    "max_items": 2,
    "epsilon": 0.5,
    "delta": 1e-6,
}
DOMAIN = tuple(f"i{number}" for number in range(ITEMS))
SUM = parse_sum({"field": "price", "from": 50, "to": 100, "step": 0.5})


def known(**changes: Any) -> HistogramConfig:
    return MECHANISMS["known_base"](**COMMON | {"domain": DOMAIN} | changes)


def snapshots(
    config: HistogramConfig, first: int, until: int
) -> dict[tuple[int, int], dict[str, Any]]:
    """Return the snapshots of global ticks `first` to `until`, by epoch and tick."""
    histogram = histogram_of(config)
    histogram.start_at(first)
    found: dict[tuple[int, int], dict[str, Any]] = {}
    for _ in range(first, until + 1):
        pages = [decode(snapshot.value) for snapshot in histogram.step([])]
        found[pages[0]["epoch"], pages[0]["tick"]] = join_pages(pages)
    return found


def test_windows_are_all_that_they_add_to_a_snapshot() -> None:
    """Same id, noise and counts: windows can be added to a running histogram, and removed."""
    few = {"domain": DOMAIN[:9]}
    plain = snapshots(known(**few), 1, TICKS)
    windowed = snapshots(known(**few, windows=(20, 40)), 1, TICKS)
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


HORIZON = 16
SHORT: dict[str, Any] = {"horizon": HORIZON, "domain": DOMAIN}


@pytest.mark.parametrize(
    "config",
    [
        known(**SHORT, windows=(10, 40, 110, 160)),
        known(**SHORT, windows=(40, 110), counter="tree"),
        known(**SHORT, windows=(40, 110), counter="sqrt"),
        known(**SHORT, windows=(40, 110), sum=SUM),
        MECHANISMS["known_laplace"](
            **COMMON | SHORT | {"max_items": 1, "windows": (40, 110)}
        ),
        MECHANISMS["meta"](
            **COMMON | SHORT | {"algorithm": "known_gauss", "windows": (40, 110)}
        ),
    ],
    ids=lambda config: (
        f"{config.mechanism} {config.counter}{' sum' if config.sum else ''}"
    ),
)
def test_two_snapshots_differ_by_noise_of_the_stated_sd(
    config: HistogramConfig,
) -> None:
    """Counts and sums, less those of `ticks` before; over the end of an epoch with the noise of both.

    Laplace noise has heavier tails, and a variance of its own: 0.1 for it.
    """
    bodies = snapshots(config, 1, HORIZON + 12)
    tolerance = 0.1 if config.mechanism == "known_laplace" else 0.05
    apart = 0

    @cache
    def counts_at(epoch: int, tick: int, error: str) -> np.ndarray[Any, Any]:
        return counts_of(bodies[epoch, tick], error)

    for epoch, tick in product((1, 2), (1, 2, 3, 7, 10, 11, 12)):
        body = bodies[epoch, tick]
        if epoch == 2:
            assert body["previous_id"] == bodies[1, 1]["id"] != body["id"]
        else:
            assert "previous_id" not in body
        assert [window["ms"] for window in body["windows"]] == list(config.windows)
        for window, name in product(body["windows"], ("sd", "sum_sd")):
            if name not in window:
                assert name == "sum_sd" and config.sum is None
                continue
            # Before the first epoch there is nothing to subtract.
            most = tick if epoch == 1 else HORIZON
            assert window["ticks"] == min(window["ms"] // 10, most)
            since = tick - window["ticks"]
            found = counts_at(epoch, tick, name)
            own = found.var()
            if since < 0:
                found = found + counts_at(1, HORIZON, name)
                found = found - counts_at(1, HORIZON + since, name)
            elif since > 0:
                found = found - counts_at(epoch, since, name)
            for factor, accepted in ((1.0, True), (0.5, False), (2.0, False)):
                near = abs(found.var() / (window[name] ** 2 * factor) - 1) < tolerance
                assert bool(near) is accepted, (epoch, tick, window)
            # The error of the epoch's count alone is too small by far.
            apart += since < 0 and own / window[name] ** 2 < 1 - 4 * tolerance
    assert apart > 3


def counts_of(body: Mapping[str, Any], error: str) -> np.ndarray[Any, Any]:
    labels = [label for label, _ in body["items"]]
    numbers = [count for _, count in body["items"]]
    if error == "sum_sd":
        numbers = [row[0] for row in body["sums"]]
    by_label = dict(zip(labels, numbers, strict=True))
    return np.array([by_label[label] for label in DOMAIN], dtype=np.float64)


def test_a_window_reaches_back_only_to_what_the_epoch_before_published() -> None:
    """The first tick is 12 of 16: one tick after it is the last one with a change."""
    config = known(**SHORT | {"domain": DOMAIN[:3]}, windows=(10, 50, 60, 160))
    bodies = snapshots(config, 12, 3 * HORIZON)
    of_tick = [window["ticks"] for window in bodies[2, 1]["windows"]]
    assert of_tick == [1, 5, 1, 1]
    assert [window["ticks"] for window in bodies[2, 2]["windows"]] == [1, 5, 6, 2]
    assert [window["ticks"] for window in bodies[3, 1]["windows"]] == [1, 5, 6, 16]
    for (epoch, tick), body in bodies.items():
        for window in body["windows"]:
            if window["ticks"] > tick:
                assert (epoch - 1, HORIZON + tick - window["ticks"]) in bodies
