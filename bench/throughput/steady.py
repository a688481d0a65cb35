"""Events at a steady rate, in a process of its own: `python -m bench.throughput.steady BOOTSTRAP TOPIC PARTITIONS RATE SECONDS DOMAIN`.

A batch for each partition goes out every 20 ms, with the events of those 20 ms. It prints when it was late, and by how much
at most: then it was not the worker that was too slow.
"""

import sys
import time

import numpy as np

from bench.throughput.events import Events, Shape
from bench.throughput.producing import Sender, batches

SLICE_MS = 20
#: What is drawn before, and sent again and again with other times.
_SLICES = 100


def main(
    bootstrap: str, topic: str, partitions: int, rate: int, seconds: int, domain: int
) -> None:
    """Send for this many seconds."""
    events = Events(Shape(domain=domain), partitions)
    number = rate * SLICE_MS // 1000
    drawn = [events.draw(number) for _ in range(_SLICES)]
    within = np.arange(number) * SLICE_MS // number
    batches(drawn[0], within, partitions)  # compiles
    late_ms = 0.0
    with Sender(bootstrap, topic) as sender:
        begun_ms = time.time_ns() // 1_000_000
        for i in range(seconds * 1000 // SLICE_MS):
            end_ms = begun_ms + (i + 1) * SLICE_MS
            sender_waits_s = end_ms / 1000 - time.time()
            if sender_waits_s > 0:
                time.sleep(sender_waits_s)
            late_ms = max(late_ms, -sender_waits_s * 1000)
            sender.send(
                batches(drawn[i % _SLICES], end_ms - SLICE_MS + within, partitions)
            )
    print(f"late={max(0.0, late_ms):.0f}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
