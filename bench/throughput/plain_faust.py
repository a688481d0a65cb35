"""The same sums in Faust as its manual shows them: an agent that counts every item in a table. A process of its own.

`python -m bench.plain_faust BOOTSTRAP TOPIC PARTITIONS EVENTS` prints events a second, from the first event to the last.
"""

import os
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterable
from typing import Any

import faust
import uvloop


def main(bootstrap: str, topic: str, partitions: int, number: int) -> None:
    """Count `number` events, print the rate, and end the process."""
    uvloop.install()
    app = faust.App(
        f"plain-{uuid.uuid4().hex[:8]}",
        broker=f"kafka://{bootstrap}",
        store="memory://",  # its faster one; the changelog is written either way
        topic_partitions=partitions,
        datadir=tempfile.mkdtemp(),
        web_enabled=False,
        topic_disable_leader=True,
        producer_linger=0.02,
        stream_wait_empty=False,
        consumer_auto_offset_reset="earliest",
    )
    counts: Any = app.Table("counts", default=int, partitions=partitions)

    @app.agent(app.topic(topic, value_serializer="json"))
    async def count(stream: AsyncIterable[dict[str, Any]]) -> None:
        begun = 0.0
        seen = 0
        async for event in stream:
            if not seen:
                begun = time.perf_counter()
            for item in event["items"]:
                counts[event["key"] + "|" + item] += 1
            seen += 1
            # Faust writes to the terminal by itself, so the figure is named
            if seen == number:
                print(f"rate={number / (time.perf_counter() - begun):.1f}", flush=True)
                os._exit(0)

    faust.Worker(
        app, loglevel="error", quiet=True, redirect_stdouts=False
    ).execute_from_commandline()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
