"""Events a second of one `quietcount run` process that works off a backlog: transactions, ledger, snapshots, everything on.

Timed by the records the worker itself writes: from its first commit of stage 1 (what that held is not counted) to the
transaction with which the last owner released the tick of the last event.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.events import ITEMS_AN_EVENT, TICK_S
from tests.worker.harness import Site, unk, until
from workers.agents import contribute
from workers.agents.merge import ReleaseProgress
from workers.agents.release import PROGRESS

HISTOGRAM = unk("products", tick=f"{TICK_S}s", horizon=8_640, max_items=ITEMS_AN_EVENT, epsilon=1.0, delta=1e-9)


@dataclass(frozen=True, slots=True)
class Run:
    """What a run took."""

    events: int
    seconds: float
    since_start_s: float
    snapshots: int
    snapshot_bytes: int
    commits: int

    @property
    def rate(self) -> float:
        return self.events / self.seconds


def site(bootstrap: str, directory: Path, partitions: int, owners: int) -> Site:
    """A worker's site with the settings that are measured."""
    return Site(
        bootstrap, directory, [HISTOGRAM], partitions=partitions, owners=owners, worker={"commit_interval": "5s"}
    )


def run(place: Site, number: int, last_ms: int) -> Run:
    """Starts a worker on the backlog and waits until its last tick is published."""
    settings = place.settings
    output = settings.output_topic(settings.histograms[0])
    begun_ms = time.time() * 1000
    with place.worker() as worker:

        def done() -> bool:
            if not worker.running():
                raise RuntimeError(f"the worker ended:\n{worker.output()}")
            time.sleep(1.0)
            return all(end > last_ms for end in place.published_to().values())

        until(done, "the backlog is published", 900)
        worker.stop()
    first_ms, counted, commits = _first_commit(place)
    end_ms = max(
        _released(place, owner, last_ms) for owner in range(settings.worker.owner_partitions or place.partitions)
    )
    values = [len(message.value() or b"") for message in place.read(output)]
    return Run(
        number - counted, (end_ms - first_ms) / 1000, (end_ms - begun_ms) / 1000, len(values), sum(values), commits
    )


def _first_commit(place: Site) -> tuple[int, int, int]:
    """When stage 1 first committed, how many events that covered, and how many commits there were."""
    commits = []
    for message in place.read(place.settings.contribute_state_topic):
        if message.key() == contribute.PROGRESS:
            progress = msgspec.json.decode(message.value() or b"", type=contribute.ContributeProgress)
            commits.append((message.timestamp()[1], progress.offset))
    first_ms, counted = min(commits)
    return first_ms, counted, len(commits)


def _released(place: Site, owner: int, last_ms: int) -> int:
    """When an owner released the tick that holds `last_ms`."""
    settings = place.settings
    lane = settings.histograms[0].lane
    for message in place.read(settings.release_state_topic):
        if message.partition() == owner and message.key() == PROGRESS:
            progress = msgspec.json.decode(message.value() or b"", type=ReleaseProgress)
            reached = progress.histograms[settings.histograms[0].name].next
            if reached is not None and lane.start_ms + (reached - 1) * lane.tick_ms > last_ms:
                return message.timestamp()[1]
    raise RuntimeError(f"owner {owner} did not release the last tick")
