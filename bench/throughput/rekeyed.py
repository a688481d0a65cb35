"""What sending events on by user costs: the same events, keyed by user already, with and without that stage.

Whole runs, from when the partitions are taken over to the last tick; time of the processor from the beginning of the process.
"""

from argparse import Namespace
from pathlib import Path

from bench.throughput.events import Shape
from bench.throughput.process import Watch
from bench.throughput.producing import fill
from bench.throughput.worker import (
    contributed,
    expected,
    forget,
    ready_ms,
    site,
    wait_released,
)
from tests.forked import QUIETCOUNT

PARTITIONS = 4
#: Title, and what is more in `[privacy]`.
CASES: tuple[tuple[str, dict[str, object]], ...] = (
    ("without", {}),
    ("with", {"rekey": True}),
)


def rekeyed(bootstrap: str, directory: Path, given: Namespace) -> None:
    """Print the table.

    Raises:
        RuntimeError: an event was lost or counted twice.
    """
    shape = Shape(domain=given.domain[0], users=given.users)
    right = expected(shape, PARTITIONS, given.events)
    print(
        f"\n{given.events:,} events of {given.users:,} users sent on by user, {PARTITIONS} partitions",
        flush=True,
    )
    print(f"{'':8} {'whole/s':>9} {'CPU us':>7} {'peak MB':>8}", flush=True)
    for number, (title, privacy) in enumerate(CASES):
        place = site(
            bootstrap, directory / f"rekey-{number}", shape, PARTITIONS, given.owners
        )
        last_ms = fill(
            bootstrap, place.topic, PARTITIONS, given.events, shape, given.events_a_tick
        )
        place.set("privacy", **privacy)
        place.create_topics()
        out = directory / "profile.json"
        runner = (
            ("-m", "bench.throughput.sampled", str(out))
            if given.profile
            else QUIETCOUNT
        )
        with place.worker(runner=runner) as worker, Watch(worker.process.pid) as watch:
            end_ms = wait_released(place, worker, last_ms)
            worker.stop()
        if contributed(place) != right:
            raise RuntimeError(
                f"{title}: the contributions add up to {contributed(place):,}, not to {right:,}"
            )
        seconds = (end_ms - ready_ms(worker)) / 1000
        print(
            f"{title:8} {given.events / seconds:9,.0f} "
            f"{watch.used_between(0.0, end_ms) / given.events * 1e6:7.2f}"
            f" {watch.peak / 1e6:8,.0f}",
            flush=True,
        )
        forget(place)
