"""A Faust agent that says when another item leads, if by more than the noise explains.

    TOPIC=orders.products python examples/consumers/agent.py worker --without-web

BOOTSTRAP names the broker (localhost:9092), GROUP the consumer group (board-agent). Two counts of one snapshot have independent noise of
the same sd, so their difference has sd * sqrt(2): a lead of less than twice that is no lead. Faust reads records as it finds them unless
it is told otherwise; `Committed` tells it. Offsets are Faust's own: after a restart a snapshot may come again, with the same bytes, and one
whose pages were half read is passed over; the next tick holds what it held.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from typing import Any

import faust
from faust.transport import drivers
from faust.transport.drivers.aiokafka import AIOKafkaConsumerThread, Consumer, Transport
from snapshots import NotASnapshot, Pages, Series, Snapshot, Step, printable


class CommittedThread(AIOKafkaConsumerThread):
    """Sees no record of an open or aborted transaction."""

    def _create_worker_consumer(self, transport: Any) -> Any:
        consumer = super()._create_worker_consumer(transport)
        consumer._isolation_level = (
            "read_committed"  # made, but not started yet; Faust has no setting for it
        )
        return consumer


class CommittedConsumer(Consumer):
    """Faust's consumer on such a thread."""

    def _new_consumer_thread(self) -> CommittedThread:
        return CommittedThread(self, loop=self.loop, beacon=self.beacon)


class Committed(Transport):
    """`committed://host:port`, as a broker's address."""

    Consumer = CommittedConsumer


drivers.TRANSPORTS.aliases["committed"] = f"{__name__}:Committed"

app = faust.App(
    os.environ.get("GROUP", "board-agent"),
    broker=f"committed://{os.environ.get('BOOTSTRAP', 'localhost:9092')}",
    store="memory://",
    topic_allow_declare=False,
    topic_disable_leader=True,
)
histograms = app.topic(os.environ["TOPIC"], value_serializer="raw")
leaders: dict[tuple[str, str], str] = {}


def leader(snapshot: Snapshot) -> str | None:
    """The item that leads for certain, as far as two standard deviations are certain."""
    if snapshot.items is None or len(snapshot.items) < 2 or snapshot.sd is None:
        return None
    (first, most), (_, next_most) = snapshot.items[:2]
    return first if most - next_most > 2 * 2**0.5 * snapshot.sd else None


def say(snapshot: Snapshot, what: str) -> None:
    """Prints; a Faust worker turns its own sys.stdout into lines of the log."""
    print(
        f"{snapshot.histogram} / {printable(snapshot.key)}: {what}",
        file=sys.__stdout__,
        flush=True,
    )


@app.agent(histograms)
async def watch(stream: faust.StreamT[bytes]) -> None:
    """Follows all partitions that this process was given."""
    pages: defaultdict[int, Pages] = defaultdict(Pages)
    series = Series()
    async for event in stream.events():
        try:
            snapshot = pages[event.message.partition].receive(event.value)
            if snapshot is None:
                continue
            step, _ = series.follow(snapshot)
        except NotASnapshot as error:
            app.logger.error("%s", error)
            continue
        place = (snapshot.histogram, snapshot.key)
        if step is Step.NEW_SERIES:
            leaders.pop(place, None)
            say(snapshot, f"series {snapshot.id} begins")
        ahead = leader(snapshot)
        if step is not Step.AGAIN and ahead is not None and ahead != leaders.get(place):
            leaders[place] = ahead
            say(snapshot, f"{printable(ahead)} leads at tick {snapshot.tick}")


if __name__ == "__main__":
    app.main()
