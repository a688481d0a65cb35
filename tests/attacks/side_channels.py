"""What times and sizes tell of one event, from ticks of the worker's own shards.

Ticks alternate at random between two worlds, with the event and without. What is measured of each
is what an observer of the histogram topic, or of the dashboard, could see beside the counts:

    time        processor time of both stages from the close of a tick to the transaction with its
                snapshots. Kafka's own time comes on top, and hides some of it
    bytes       of the snapshots
    answer      time and bytes of the dashboard's answer with that snapshot

The best threshold of half of the ticks bounds epsilon on the other half, by Clopper-Pearson. Sizes
are a function of what is released, and may not tell more than the claim. Times are not covered by
it (docs/guarantee.md): what they tell is printed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import orjson
from aiohttp.test_utils import TestClient, TestServer

from tests.attacks.bounds import Worlds, measure
from tests.attacks.runs import Published
from tests.cluster.connection import records_of
from tests.cluster.offline import worker_document
from tests.contract.variants import START, VARIANTS
from tests.dashboard.feeding import reader_settings, unopened
from tests.neighbours.driver import CLOCK, Log, Sent, ShardRun, replaced
from tests.neighbours.scenes import NAME, START_MS, TICK_MS, Scene
from workers.arrays.types import Bools, Floats
from workers.client.messages import Pages
from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.kafka.offsets import LogEnd
from workers.kafka.records import Batch, Records
from workers.runtime.metrics import CONTRIBUTE, RELEASE

EPSILON = 1.0
DELTA = 1e-9
TICKS = 2_000
#: Items of an epoch are forgotten at its end, so that a tick costs the same at any time of the run.
HORIZON = 32
MANY = 900
#: Ten events each, in every tick: enough that they are shown from the tenth on.
CROWD = [f"item{place}" for place in range(50)] * 10
Items = Callable[[int], Sequence[str]]


def _known(_tick: int) -> Sequence[str]:
    return ["item0"]


def _new(tick: int) -> Sequence[str]:
    return [f"new{tick}"]


def _none(_tick: int) -> Sequence[str]:
    return []


def _many(tick: int) -> Sequence[str]:
    return [f"new{tick} {place:0980}" for place in range(MANY)]


@dataclass(frozen=True, slots=True)
class Sides:
    """One row: the items of an event in two worlds, beside a crowd of other events or alone.

    `fresh` events of the crowd have a new item in every tick. `steps`: from one world to the other,
    over neighbours.
    """

    name: str
    with_it: Items
    without: Items = _none
    crowd: bool = True
    fresh: int = 0
    steps: int = 1
    max_items: int = 1
    ticks: int = TICKS


SIDES = (
    Sides("known item", _known),
    Sides("new item", _new),
    Sides("new item among 50", _new, fresh=50),
    Sides("known or new item", _known, _new, steps=2),
    Sides("known item, alone", _known, crowd=False),
    Sides("new item, alone", _new, crowd=False),
    Sides(f"{MANY} new items", _many, max_items=MANY, ticks=1_000),
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of every tick: (ticks, 4), columns as in `NAMES`, and which world it was."""

    columns: Floats
    world: Bools
    messages: frozenset[int]  # numbers of snapshots in a tick, in either world

    def bound(self, column: int, seed: int = 3) -> float:
        """Return the epsilon that one column proves."""
        halves = np.random.default_rng(seed).permutation(len(self.world)) % 2 == 0
        fitted = self._worlds(column, halves)
        fresh = self._worlds(column, ~halves)
        ways = [lambda runs: runs.counts[:, 0], lambda runs: -runs.counts[:, 0]]
        return measure(ways, fitted, fresh, EPSILON, DELTA).epsilon

    def medians(self, column: int) -> tuple[float, float]:
        one = self.columns[:, column]
        return float(np.median(one[~self.world])), float(np.median(one[self.world]))

    def _worlds(self, column: int, rows: Bools) -> Worlds:
        both = [
            self.columns[rows & (self.world == world), column]
            for world in (False, True)
        ]
        n = min(map(len, both))
        none = np.zeros((n, 1), dtype=np.int64)
        return Published(both[0][:n, None], none), Published(both[1][:n, None], none)


NAMES = ("time, us", "bytes", "answer, us", "answer bytes")


class _Timed(ShardRun):
    """A shard whose transactions note when they were handed over."""

    at_ns = 0

    def transact(self, *given: Any) -> int:
        self.at_ns = time.thread_time_ns()
        return super().transact(*given)


def seen(sides: Sides, seed: int = 2) -> Seen:
    """Run a row's ticks through both stages and the dashboard."""
    rng = np.random.default_rng(seed)
    world: Bools = rng.permutation(sides.ticks) % 2 == 0
    times = np.empty(sides.ticks)
    values = []
    crowd = [[item] for item in CROWD] if sides.crowd else []
    with replaced():
        # fed here
        scene = _scene(sides.max_items)
        no_log = cast(Log, None)
        first, second = (
            _Timed(scene, (stage, 0), no_log) for stage in (CONTRIBUTE, RELEASE)
        )
        contribute = first._opened()
        release = second._opened()
        sent = 0
        for tick in range(sides.ticks):
            start = START_MS + tick * TICK_MS
            items = (sides.with_it if world[tick] else sides.without)(tick)
            contents = [
                *crowd,
                *([f"other{tick} {n}"] for n in range(sides.fresh)),
                items,
            ]
            lines = [
                orjson.dumps({"key": "k", "items": one, "ts": start})
                for one in contents
            ]
            first.commits.clear()
            second.commits.clear()
            CLOCK.now_ms = start + 1
            begin = contribute.offset
            read = Records.of(
                lines, None, [start] * len(lines), range(begin, begin + len(lines))
            )
            contribute.feed(Batch(begin, begin + len(lines), read))
            CLOCK.now_ms = start + TICK_MS
            began = time.thread_time_ns()
            with contribute._work():
                contribute.reached(LogEnd(CLOCK.now_ms, contribute.offset))
            took = first.at_ns - began
            out = []
            for commit in first.commits:
                for message in commit.sent((CONTRIBUTIONS, 0)):
                    out.append(Sent(sent, 0, *message))
                    sent += 1
                sent += 1  # the transaction's marker
            before = release.offset
            batch = Batch(before, sent, records_of(out))
            began = time.thread_time_ns()
            release.feed(batch)
            times[tick] = (took + second.at_ns - began) / 1_000
            values.append([one.value or b"" for one in second.commits[-1].messages])
    answers = asyncio.run(
        _answered([value for of_tick in values for value in of_tick[:1]])
    )
    sizes = np.array([sum(map(len, of_tick)) for of_tick in values], dtype=np.float64)
    columns = np.column_stack([times, sizes, answers])
    return Seen(columns, world, frozenset(map(len, values)))


def _scene(max_items: int) -> Scene:
    histogram: dict[str, Any] = {
        "name": "h",
        "mechanism": "unk_base",
        "keys": ["k"],
        "tick": "1s",
    }
    histogram |= {
        "horizon": HORIZON,
        "max_items": max_items,
        "epsilon": EPSILON,
        "delta": DELTA,
    }
    document = worker_document(
        NAME,
        events={"topic": "events", "key": "key", "items": "items", "timestamp": "ts"},
        privacy={"unit": "event"},
        histogram=[histogram | {"start": START}],
    )
    document["worker"]["commit_interval"] = "1s"
    return Scene(document, VARIANTS[0], "list", 1, 1, 1, tight=False)


CONTRIBUTIONS = f"{NAME}.contributions"


async def _answered(values: Sequence[bytes]) -> Floats:
    """Return processor time, in us, and bytes of the dashboard's answer to each snapshot."""
    hub = Hub()
    pages = Pages()
    found = np.empty((len(values), 2))
    app = application(hub, unopened(), reader_settings("h", prefix=NAME))
    async with TestClient(TestServer(app)) as client:
        for place, value in enumerate(values):
            snapshot = pages.receive("h", value)
            if snapshot is not None:
                hub.publish([snapshot])
            began = time.thread_time_ns()
            answer = await client.get("/api/snapshots?histogram=h&key=k&limit=1")
            body = await answer.read()
            found[place] = (time.thread_time_ns() - began) / 1_000, len(body)
    return found


def table() -> bool:
    """Print what times and sizes tell; return whether no size tells more than the claim."""
    print(
        f"\nside channels: medians without and with, and epsilon at least (claim {EPSILON:g})"
    )
    print(f"{'event':20}" + "".join(f"{name:>26}" for name in NAMES))
    good = True
    for sides in SIDES:
        one = seen(sides)
        cells = ""
        for column in range(len(NAMES)):
            without, with_it = one.medians(column)
            cells += f"{without:10,.0f} {with_it:8,.0f} {one.bound(column):6.2f}"
        fits = len(one.messages) == 1
        fits &= all(one.bound(column) <= sides.steps * EPSILON for column in (1, 3))
        print(f"{sides.name:20}{cells}{'' if fits else '  DISPROVED'}", flush=True)
        good &= fits
    return good
