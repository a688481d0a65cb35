"""A minimal worker: two stages of plain counts over the real hand-over, run by the tests as a
process.

Events are labels. Stage 1 adds up and commits {label: count} to `<name>.contributions`; stage 2
adds those up and publishes all its totals to `<name>.totals`. The last totals must be exact after
any kill, freeze or hand-over.

Run as `python -m tests.kafka.counting '<options as JSON>'`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

from tests.kafka.harness import Keeper
from workers.kafka.clients import Connection
from workers.kafka.handover import Handover
from workers.kafka.offsets import End
from workers.kafka.records import Batch, Outgoing
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.kafka.transport import BatchSchema, create_app, run_app
from workers.runtime.sizes import Change

# Stage 1 commits when this many records are pending, so that a test has many transactions.
COMMIT_RECORDS = 500
# How long stage 1 waits before each transaction while the file `brake` exists.
BRAKED_S = 4.0


class Contribute(Keeper):
    """Stage 1: counts of the records since the last commit."""

    owners = 2
    contributions = ""
    brake = Path()
    by_clock = False

    def restore(self) -> None:
        super().restore()
        self.pending: Counter[str] = Counter()
        self.counted_to = 0

    def process(self, batch: Batch) -> None:
        for index in range(len(batch)):
            self.pending[(batch.records.value(index) or b"").decode()] += 1
            self.counted_to = int(batch.records.offsets[index]) + 1
            if self.pending.total() >= COMMIT_RECORDS:
                self.commit()
        self.counted_to = batch.end

    def wants_end(self, now_ms: int) -> bool:
        return self.by_clock and bool(self.pending) and not self.ends

    def reached(self, end: End) -> None:
        self.commit()

    def idle(self) -> None:
        if not self.by_clock:
            self.commit()

    def commit(self) -> None:
        if not self.pending:
            return
        parts: list[dict[str, int]] = [{} for _ in range(self.owners)]
        for label, count in self.pending.items():
            parts[zlib.crc32(label.encode()) % self.owners][label] = count
        messages = [
            Outgoing(self.contributions, owner, None, json.dumps(part).encode())
            for owner, part in enumerate(parts)
        ]
        until = time.monotonic() + BRAKED_S
        while self.brake.exists() and time.monotonic() < until:
            time.sleep(0.02)
        self.transact(messages, [(b"offset", str(self.counted_to).encode())], self.counted_to)
        self.pending.clear()


class Release(Keeper):
    totals = ""

    def restore(self) -> None:
        super().restore()
        stored_counts = self.store.items(b"=")
        self.counts = Counter({key[1:].decode(): int(value) for key, value in stored_counts})

    def process(self, batch: Batch) -> None:
        changes: list[Change] = [(b"offset", str(batch.end).encode())]
        for index in range(len(batch)):
            part = json.loads(batch.records.value(index) or b"{}")
            self.counts.update(part)
            changes += [(b"=" + label.encode(), str(self.counts[label]).encode()) for label in part]
        totals = json.dumps(self.counts).encode()
        message = Outgoing(self.totals, self.partition, b"totals", totals)
        self.transact([message], changes, batch.end)


def main(options: dict[str, Any]) -> int:
    logging.basicConfig(
        level="INFO", stream=sys.stdout, format="%(created).3f %(levelname)s %(name)s %(message)s"
    )
    name, connection = options["name"], Connection(options["bootstrap"], options["client"])
    events, contributions = options["events"], f"{name}.contributions"

    def shard(kind: type[Shard], stage: str, partition: int) -> Shard:
        path = Path(options["data_dir"]) / f"{stage}-{partition}"
        store = Store(path, Changelog(f"{name}.{stage}-state", partition))
        made = kind(Assignment(connection, f"{name}-{stage}-{partition}", partition, store))
        if isinstance(made, Contribute):
            made.contributions, made.owners = contributions, options.get("owners", 2)
            made.brake, made.by_clock = Path(options["brake"]), options.get("by_clock", False)
        if isinstance(made, Release):
            made.totals = f"{name}.totals"
        return made

    handover = Handover(
        {
            events: lambda partition: shard(Contribute, "contribute", partition),
            contributions: lambda partition: shard(Release, "release", partition),
        },
        fenced_grace_s=options.get("fenced_grace_s", 30.0),
    )
    soon: dict[str, Any] = {"broker_session_timeout": 6.0, "broker_heartbeat_interval": 1.5}
    app = create_app(name, connection, handover, data_dir=options["data_dir"], **soon)

    async def pass_on(stream: Any) -> None:
        async for batch in stream:
            await handover.feed(batch)

    for topic in (events, contributions):
        app.agent(app.topic(topic, schema=BatchSchema()), name=topic)(pass_on)
    return run_app(app)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
