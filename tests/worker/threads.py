"""One worker process with eight owner partitions and constant thread switching."""

import json
import random
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

from tests import ROOT
from tests.worker.harness import HORIZON, Site, now_ms, sale, until
from workers.mechanisms.registry import MECHANISMS
from workers.pipeline.growth.owners import owner_of

OWNERS = 8
EXAMPLES = ROOT / "examples" / "mechanisms"
LABELS = ["tea", "cup", "pot", "spoon", "kettle", "sugar", "milk", "lemon"]
# Ticks of the attack: with a key for every owner, 64 releases of each histogram.
TICKS = 8
MAX_COUNT = 8
# Ticks of an epoch of `audited_run`, which ends within it.
EPOCH = 32
# a's count in a tick, and the two gaps to b's: in base 256 the second differs in the first digit as
# well as the second.
A_COUNT = 400
GAPS = (255, 256)


def one_key_an_owner(prefix: str) -> list[str]:
    found: dict[int, str] = {}
    number = 0
    while len(found) < OWNERS:
        name = f"{prefix}{number}"
        found.setdefault(owner_of(name, OWNERS), name)
        number += 1
    return [found[owner] for owner in range(OWNERS)]


# Counts with a gap in each tick for the first key set; for the second, in the first tick alone, and
# the sums keep it.
BY_TICK = one_key_an_owner("t")
RUNNING = one_key_an_owner("r")


def picking() -> list[dict[str, object]]:
    """Return histograms that pick one label with noise of a scale above 1.43: up to that scale a
    gap of 256 alone has no weight.
    """
    base: dict[str, object] = {
        "tick": "1s",
        "horizon": HORIZON,
        "delta": 1e-6,
        "max_items": 2,
        "max_count": MAX_COUNT,
    }
    of_two: dict[str, object] = {"domain": ["a", "b"]}
    two: dict[str, object] = {"k": 1, "kbar": 2}
    answers: dict[str, object] = {"labels": 8, "queries": 8, "every": 1}
    made: list[tuple[str, str, list[str], float, dict[str, object]]] = [
        ("gumbel", "known_gumbel", BY_TICK, 4.0, of_two | {"k": 1}),
        ("limit", "limit_dom", BY_TICK, 4.0, two),
        (
            "cells",
            "meta",
            BY_TICK,
            16.0,
            of_two | {"algorithm": "known_gumbel", "k": 1},
        ),
        ("sparse", "sparse_gumb", RUNNING, 8.0, of_two | {"top_k": 1, "switches": 1}),
        ("pay", "pay_what_you_get", RUNNING, 12.0, two | answers),
    ]
    return [
        base | {"name": name, "mechanism": mechanism, "rho": rho, "keys": keys} | more
        for name, mechanism, keys, rho, more in made
    ]


def attack(bootstrap: str, directory: Path) -> dict[str, tuple[int, int]]:
    """Return by histogram how many snapshots named `a`, and how many `b`, which has a chance below
    1e-25 per snapshot.
    """
    site = Site(bootstrap, directory, picking(), partitions=1, owners=OWNERS)
    base = int(time.time()) * 1000 - 1000 * TICKS
    for tick in range(TICKS):
        at = base + 1000 * tick
        for key in BY_TICK:
            events = _events(key, at, A_COUNT, A_COUNT - GAPS[tick % 2])
            site.produce(0, events, flush=False)
        for i, key in enumerate(RUNNING):
            gap = 0 if tick else GAPS[i % 2]
            site.produce(0, _events(key, at, A_COUNT, A_COUNT - gap), flush=False)
    site.produce(0, [])
    with site.running(runner=switching("1e-6", OWNERS)) as worker:
        site.published_or_ended(worker, base + 1000 * TICKS)
    site.assert_clean()
    found: Counter[tuple[str, str]] = Counter()
    for body in site.snapshots():
        if base <= body["start"] < base + 1000 * TICKS:
            found.update((body["histogram"], label) for label in _labels(body))
    names = [str(histogram["name"]) for histogram in picking()]
    return {name: (found[name, "a"], found[name, "b"]) for name in names}


def audited_run(bootstrap: str, directory: Path, seed: int) -> int:
    """Run every mechanism under random switch intervals, and kill the worker halfway; return the
    number of audited snapshots.
    """
    keys = one_key_an_owner("k")
    weights = [3.0**-i for i in range(len(LABELS))]
    histograms = []
    for name in (*MECHANISMS, "misra_gries_pure"):
        [histogram] = tomllib.loads((EXAMPLES / f"{name}.toml").read_text())[
            "histogram"
        ]
        histograms.append(histogram | {"tick": "1s", "horizon": EPOCH, "keys": keys})
    site = Site(bootstrap, directory, histograms, partitions=2, owners=OWNERS)
    rng = random.Random(seed)
    ticks = rng.randint(EPOCH + 2, EPOCH + 8)
    base = int(time.time()) * 1000 - 1000 * ticks

    def send(some: range) -> None:
        for tick, key in product(some, keys):
            events = []
            for i in range(rng.choice([0, 3, 10, 40])):
                items = rng.choices(LABELS, weights, k=2)
                events.append(sale(items, base + 1000 * tick + 10 * i, key))
            site.produce(rng.randrange(2), events, flush=False)
        site.produce(0, [])

    runner = switching(f"random:{seed}", OWNERS)
    send(range(ticks // 2))
    with site.worker(runner=runner) as worker:
        until(
            lambda: min(site.published_to().values()) > 0,
            "every histogram has published",
        )
        # One event counts in all of them: the joint guarantee is logged before anything is
        # published.
        said = worker.output()
        assert "WARNING" in said and "all histograms together: epsilon = " in said
        assert "is above 5" in said
        worker.kill()
    send(range(ticks // 2, ticks))
    with site.running(runner=runner) as worker:
        # The killed worker may have published up to now; the next tick is the second one's.
        site.published_or_ended(worker, now_ms() + 1000)
    # This audit also writes exact counts; it compares the same.
    site.assert_clean("--exact", str(directory / "exact.jsonl"))
    snapshots = site.snapshots()
    assert {body["mechanism"] for body in snapshots} == set(MECHANISMS)
    assert {body["key"] for body in snapshots} == set(keys)
    return len(snapshots)


def switching(interval: str, together: int) -> tuple[str, ...]:
    """Return how the harness starts a worker under this switch interval; see `switching`."""
    return "-m", "tests.worker.switching", interval, str(together)


def _events(key: str, time_ms: int, a: int, b: int) -> Iterator[dict[str, Any]]:
    """Return events with these counts of a and b, in the order that needs the fewest events."""
    while a or b:
        items = {
            label: min(left, MAX_COUNT) for label, left in (("a", a), ("b", b)) if left
        }
        a = a - items.get("a", 0)
        b = b - items.get("b", 0)
        yield {"key": key, "items": items, "ts": time_ms}


def _labels(body: dict[str, Any]) -> list[str]:
    return (
        [str(label) for label, _ in body["items"]]
        if "items" in body
        else body.get("labels", [])
    )


def report(found: dict[str, tuple[int, int]]) -> str:
    return json.dumps({name: {"a": a, "b": b} for name, (a, b) in found.items()})
