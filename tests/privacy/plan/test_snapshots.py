"""Guarantee, sd and threshold in `plan` equal those of real snapshots; see test_command.py."""

import json
import random
from typing import Any

import msgspec
import pytest

from tests import ROOT
from tests.pipeline.pipeline import Event, Partition, contribute
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.registry import MECHANISMS
from workers.privacy.plan.make import make_plan
from workers.privacy.plan.noise import chosen_ticks
from workers.settings.settings import load

LABELS = ["tea", "cup", "pot", "spoon", "kettle", "sugar", "milk", "lemon"]
TICKS = 64


def events(ticks: int) -> list[Event]:
    rng = random.Random(7)
    weights = [2.0**-i for i in range(len(LABELS))]
    return [
        (rng.choice(["s1", "s2"]), rng.choices(LABELS, weights, k=2), 10 * tick + order)
        for tick in range(ticks)
        for order in range(5)
    ]


def snapshots(config: HistogramConfig, ticks: int) -> list[dict[str, object]]:
    """Return a configuration's published snapshots, on ticks of 10 ms from an epoch's beginning."""
    [messages] = contribute([events(ticks)], [config], owners=1, step=40)
    found = [json.loads(one.value) for one in Partition([config], 1).run(messages)]
    return [body for body in found if body["epoch"] == 1]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*MECHANISMS, "misra_gries_pure", "misra_gries_pamg"])
def test_a_snapshot_carries_the_guarantee_sd_and_threshold_of_the_plan(
    name: str,
) -> None:
    """Users decide by the plan; every tick it lists is compared."""
    settings = load(ROOT / "examples" / "mechanisms" / f"{name}.toml")
    [config] = settings.histograms
    [planned] = make_plan(settings).histograms
    assert planned.mechanism == name.removesuffix("_pure").removesuffix("_pamg")
    listed = {tick.tick: tick for tick in planned.noise.ticks}
    compared = set()
    own = msgspec.structs.replace(config, tick_ms=10, start=None, keys="public")
    for body in snapshots(own, TICKS):
        tick = body["tick"]
        assert isinstance(tick, int)
        assert body["guarantee"] == msgspec.to_builtins(planned.guarantee)
        if tick in listed:
            assert (body["sd"], body["threshold"]) == (
                listed[tick].sd,
                listed[tick].threshold,
            )
            compared.add(tick)
    assert compared == set(listed) >= {1, 16, 48, TICKS}


def test_ticks_of_every_schedule_and_horizon_lie_in_it() -> None:
    [config] = load(ROOT / "examples" / "mechanisms" / "unk_base.toml").histograms
    for last in (1, 2, 3, 64, 1000, 2**30):
        every = max(1, last // 3)
        own = msgspec.structs.replace(
            config, horizon=last, threshold="every", every=every
        )
        ticks = chosen_ticks(own, last, last)
        assert ticks[0] == 1 and ticks[-1] == last
        assert len(ticks) <= 16
        assert ticks == sorted(set(ticks))


@pytest.mark.parametrize("name", ["known_base", "unk_base", "sparse_gumb"])
def test_what_the_plan_says_of_windows_is_what_snapshots_say(name: str) -> None:
    """At ticks preceded by a whole window; `apart` is the wrong figure."""
    settings = load(ROOT / "examples" / "mechanisms" / f"{name}.toml")
    [config] = settings.histograms
    config = msgspec.structs.replace(
        config,
        tick_ms=10,
        start=None,
        horizon=TICKS,
        windows=(10, 200, 640),
        keys="public",
    )
    [planned] = make_plan(
        msgspec.structs.replace(settings, histograms=(config,))
    ).histograms
    bodies: dict[object, dict[str, Any]] = {
        body["tick"]: body for body in snapshots(config, TICKS)
    }
    assert [(row.ms, row.ticks) for row in planned.noise.windows] == [
        (10, 1),
        (200, 20),
        (640, 64),
    ]
    for number, row in enumerate(planned.noise.windows):
        sds = [
            bodies[tick]["windows"][number]["sd"]
            for tick in range(row.ticks, TICKS + 1)
        ]
        assert len(sds) == row.ticks_computed
        figures = (row.least_sd, row.most_sd, row.last_sd)
        assert [round(sd, 4) for sd in figures] == [min(sds), max(sds), sds[-1]]
        assert row.rms_sd == pytest.approx(
            (sum(sd * sd for sd in sds) / len(sds)) ** 0.5, rel=1e-4
        )
        apart = [
            bodies[t]["sd"] ** 2
            + (bodies[t - row.ticks]["sd"] ** 2 if t > row.ticks else 0)
            for t in range(row.ticks, TICKS + 1)
        ]
        assert row.apart_sd == pytest.approx((sum(apart) / len(apart)) ** 0.5, rel=1e-4)
    assert not make_plan(settings).histograms[0].noise.windows
