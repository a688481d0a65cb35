"""Many viewers of one dashboard: `python -m bench.dashboard [--viewers 300] [--seconds 60] [--ticks 150] [--full-disk]`, on a real broker.

Every second each of 4 histograms x 10 stream keys gets a snapshot of 100 items. Of the viewers nine in ten watch one stream, as the page
does, and one in ten everything. Further ones never read what they are sent. Lag is the time from handing a snapshot to the producer to
its last byte at a viewer, so it has Kafka's share in it. With many `--ticks` on the topics before it starts, the history is still being
read meanwhile; with `--full-disk` its file cannot grow, and can again at the end.

Ends with 1 if a viewer that reads was behind by more than 2 s, or if the
server's memory grew by more than 16 MiB after the first 15 s (its history is full from the start).
"""

import argparse
import asyncio
import json
import os
import platform
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlsplit
from urllib.request import urlopen

import orjson
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # a re-export

from tests import ROOT
from tests.broker import LASTING, broker
from workers.dashboard.hub import TICKS
from workers.kafka.clients import Connection

HISTOGRAMS = ("h1", "h2", "h3", "h4")
KEYS = tuple(f"key {i}" for i in range(10))
ITEMS = 100
STALLED = 20
HISTORY_S = 600.0
WARM_S = 15.0
LAG_S = 2.0
GROWTH_MIB = 16.0
EVENT = re.compile(rb"^data: .*?\"end\":(\d+)", re.MULTILINE)


class Seen(NamedTuple):
    """What one viewer saw: the lag of each snapshot, s."""

    lags: list[float]


def snapshot(histogram: str, key: str, tick: int, end_ms: int) -> bytes:
    """A snapshot like the worker's; its end is the time at which it was made."""
    items = [[f"product {i:03}", 1_000_000 // (i + 1) + tick] for i in range(ITEMS)]
    return orjson.dumps(
        {
            "histogram": histogram,
            "key": key,
            "epoch": 1,
            "tick": tick,
            "start": end_ms - 1_000,
            "end": end_ms,
            "items": items,
            "sd": 17.25,
            "threshold": 121.0,
            "guarantee": {"unit": "event", "rho": 0.021, "epsilon": 1.0, "delta": 1e-9},
            "mechanism": "unk_base",
            "id": "0123456789abcdef" * 2,
            "page": 1,
            "pages": 1,
        }
    )


class Source:
    """The worker's part: publishes a tick of all streams."""

    def __init__(self, connection: Connection, prefix: str) -> None:
        self.prefix = prefix
        self.tick = 0
        self._producer = connection.producer(None, **{"linger.ms": 5})

    def publish(self, end_ms: int) -> None:
        self.tick += 1
        for histogram in HISTOGRAMS:
            for key in KEYS:
                value = snapshot(histogram, key, self.tick, end_ms)
                self._producer.produce(
                    f"{self.prefix}.{histogram}", value, key, timestamp=end_ms
                )
        self._producer.poll(0)

    def flush(self) -> None:
        self._producer.flush(30)


@contextmanager
def server(config: Path) -> Iterator[tuple[int, str]]:
    """A dashboard process that has read its history: (pid, address)."""
    command = [
        sys.executable,
        "-m",
        "workers.cli",
        "dashboard",
        "-c",
        str(config),
        "--port",
        "0",
    ]
    with (config.parent / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        begun = time.monotonic()
        deadline = time.monotonic() + 60
        while "Kafka: live" not in (config.parent / "log").read_text():
            if time.monotonic() > deadline:
                raise RuntimeError((config.parent / "log").read_text())
            time.sleep(0.2)
        print(f"the newest ticks are shown after {time.monotonic() - begun:.1f} s")
        yield process.pid, url
    finally:
        process.terminate()
        process.wait(30)


async def watch(host: str, port: int, path: str, begun: float, until: float) -> Seen:
    """Reads a stream to the end of the run; what was published before it began was not late."""
    reader, writer = await asyncio.open_connection(host, port, limit=1 << 20)
    # 1.0, so that the answer comes without chunk lengths in between.
    writer.write(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n".encode())
    lags = []
    try:
        async with asyncio.timeout(max(0.1, until - time.time())):
            while True:
                try:
                    block = await reader.readuntil(b"\n\n")
                except asyncio.IncompleteReadError as error:
                    raise RuntimeError(
                        f"the server ended a stream: {error.partial[:200]!r}"
                    ) from None
                found = EVENT.search(block)
                if found is not None and b"event: snapshot" in block:
                    end = int(found[1]) / 1000
                    if end >= begun:
                        lags.append(time.time() - end)
    except TimeoutError:
        pass
    writer.close()
    return Seen(lags)


def stall(host: str, port: int) -> socket.socket:
    """A viewer that asks for everything and reads nothing."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    opened.connect((host, port))
    opened.sendall(b"GET /api/stream HTTP/1.0\r\nHost: localhost\r\n\r\n")
    return opened


def history_state(url: str) -> dict[str, object]:
    """The state of the history, as /api/histograms has it."""
    with urlopen(url + "api/histograms") as answer:
        found: dict[str, object] = json.load(answer)["history"]
    return found


def await_history(url: str) -> None:
    """Wait until the history has read everything, and print how long that took."""
    begun = time.monotonic()
    while (state := history_state(url)) != {"state": "live"}:
        if time.monotonic() - begun > HISTORY_S:
            raise RuntimeError(f"the history is not read: {state}")
        time.sleep(0.5)
    print(f"the history has all after {time.monotonic() - begun:.0f} s more")


def processor_s(pid: int) -> float:
    """Processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def run(
    source: Source, pid: int, url: str, viewers: int, seconds: float
) -> tuple[list[Seen], list[float]]:
    """Publishes and watches; returns what each viewer saw, and the server's memory once a second."""
    address = urlsplit(url)
    host = address.hostname or ""
    port = address.port or 0
    stalled = [stall(host, port) for _ in range(STALLED)]
    begun = time.time()
    until = begun + seconds
    watching = []
    for i in range(viewers):
        histogram = HISTOGRAMS[i % len(HISTOGRAMS)]
        key = KEYS[i // len(HISTOGRAMS) % len(KEYS)]
        path = (
            "/api/stream"
            if i % 10 == 9
            else f"/api/stream?histogram={histogram}&key={quote(key)}&top=1000"
        )
        watching.append(asyncio.create_task(watch(host, port, path, begun, until)))
    memory = []
    while time.time() < until - 2:
        source.publish(time.time_ns() // 1_000_000)
        memory.append(resident_mib(pid))
        await asyncio.sleep(1)
    seen = await asyncio.gather(*watching)
    for one in stalled:
        one.close()
    return seen, memory


def main() -> int:
    """Read the arguments, run, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--viewers", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--ticks", type=int, default=TICKS + 30)
    parser.add_argument("--full-disk", action="store_true")
    given = parser.parse_args()
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores, {platform.machine()}"
    )
    with (
        broker(LASTING) as bootstrap,
        tempfile.TemporaryDirectory() as directory,
        (connection := Connection(bootstrap)).admin() as admin,
    ):
        source = Source(connection, f"bench{uuid.uuid4().hex[:8]}")
        topics = [f"{source.prefix}.{histogram}" for histogram in HISTOGRAMS]
        for future in admin.create_topics(
            [NewTopic(topic, 2, 1) for topic in topics]
        ).values():
            future.result()
        try:
            now = time.time_ns() // 1_000_000
            for tick in range(given.ticks):
                source.publish(now - (given.ticks - tick) * 1_000)
                if tick % 100 == 99:
                    source.flush()
            source.flush()
            config = Path(directory) / "dashboard.toml"
            sections = "".join(
                f'[[histogram]]\nname = "{histogram}"\n' for histogram in HISTOGRAMS
            )
            config.write_text(
                f'[worker]\nname = "{source.prefix}"\n[kafka]\nbootstrap = {json.dumps(bootstrap)}\n{sections}'
            )
            with server(config) as (pid, url):
                if given.full_disk:
                    resource.prlimit(
                        pid, resource.RLIMIT_FSIZE, (4_096, resource.RLIM_INFINITY)
                    )
                print(f"history at the beginning: {history_state(url)}")
                began_s = processor_s(pid)
                seen, memory = asyncio.run(
                    run(source, pid, url, given.viewers, given.seconds)
                )
                print(f"history at the end: {history_state(url)}")
                spent_s = processor_s(pid) - began_s
                print(f"processor time of the server: {spent_s:.1f} s")
                anything = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                resource.prlimit(pid, resource.RLIMIT_FSIZE, anything)
                await_history(url)
        finally:
            for future in admin.delete_topics(topics).values():
                future.result()
    return report(seen, memory)


def report(seen: list[Seen], memory: list[float]) -> int:
    """Prints what was measured; returns the exit code."""
    lags = sorted(lag for one in seen for lag in one.lags)
    fewest = min(len(one.lags) for one in seen)
    print(
        f"{len(seen)} viewers that read and {STALLED} that do not; {len(lags):,} snapshots "
        f"received, at least {fewest} by each"
    )
    print(
        f"lag: median {statistics.median(lags):.3f} s, 99 % {lags[int(0.99 * len(lags))]:.3f} s, "
        f"worst {lags[-1]:.3f} s (goal: 2 s)"
    )
    every = max(1, len(memory) // 12)
    print(
        "memory of the server, MiB: "
        + " ".join(f"{value:.0f}" for value in memory[::every])
    )
    warm = memory[int(WARM_S) :] or memory[-1:]
    growth = max(warm[-5:]) - min(warm[:5])
    print(
        f"growth after {WARM_S:.0f} s: {growth:.1f} MiB (goal: under {GROWTH_MIB:.0f})"
    )
    return int(lags[-1] > LAG_S or growth > GROWTH_MIB)


if __name__ == "__main__":
    sys.exit(main())
