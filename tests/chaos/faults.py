"""Faults of disks, clocks and brokers."""

import errno
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import ElectionType

from tests.broker import Brokers, OwnBroker
from tests.chaos.network import Network
from tests.chaos.schedule import Trouble
from tests.chaos.steps import patch
from workers.kafka.clients import Connection
from workers.kafka.records import Outgoing
from workers.kafka.store import Disk
from workers.kafka.transaction import Transactions


def shift_clock(ms: int, from_s: float, told: Callable[[], object]) -> None:
    """Shift `time.time` and `time.time_ns` of this process; libfaketime is not needed for it.

    The product reads no other wall clock. Records that have no time are dated here, as librdkafka
    would by that clock: brokers refuse those of a clock more than an hour ahead.
    """
    began_s = time.monotonic() + from_s
    jumped = threading.Event()

    def shift_ns() -> int:
        if time.monotonic() < began_s:
            return 0
        if not jumped.is_set():
            jumped.set()
            told()
        return ms * 1_000_000

    now = time.time
    now_ns = time.time_ns
    time.time = lambda: now() + shift_ns() / 1e9
    time.time_ns = lambda: now_ns() + shift_ns()

    def produce(original: Any) -> Any:
        def call(self: Transactions, producer: Any, message: Outgoing) -> None:
            if message.timestamp_ms is None:
                message = message._replace(timestamp_ms=time.time_ns() // 1_000_000)
            original(self, producer, message)

        return call

    patch(Transactions, "_produce", produce)


def fail_disk(
    kind: str, from_s: float, to_s: float, told: Callable[[], object]
) -> None:
    """Make the local copies of this process fail for a while, as RocksDB reports it."""
    began_s = time.monotonic()
    number = errno.ENOSPC if kind == "full" else errno.EIO
    named = (
        ("items", "get")
        if kind == "failing to read"
        else ("__init__", "write", "check_exists")
    )

    def failing(original: Any) -> Any:
        def call(self: Disk, *args: Any, **kwargs: Any) -> Any:
            if from_s <= time.monotonic() - began_s < to_s:
                told()
                self.path = getattr(self, "path", None) or args[0]
                with self._failing("be used"):
                    raise OSError(number, os.strerror(number))
            return original(self, *args, **kwargs)

        return call

    for name in named:
        patch(Disk, name, failing)


def spoil_copy(
    kind: str, own: Path, other: Path, kept: Path, rng: random.Random
) -> None:
    """Change `data_dir` of a worker that is down; `kept` is an older copy, made here at first."""
    if not own.exists():
        return
    if not kept.exists():
        shutil.copytree(own, kept)
    if kind == "truncated":
        for file in [path for path in own.rglob("*") if path.is_file()]:
            if rng.random() < 0.5 and (size := file.stat().st_size):
                os.truncate(file, rng.randrange(size))
        return
    shutil.rmtree(own)
    source = {"rolled back": kept, "swapped": other}.get(kind)
    if source is not None and source.exists():
        # The other worker writes meanwhile: files that vanish are left out.
        shutil.copytree(source, own, copy_function=_copy, dirs_exist_ok=True)


def _copy(source: str, target: str) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        return


def make_trouble(brokers: Brokers, network: Network | None, trouble: Trouble) -> None:
    """Cause a fault of one or more brokers and mend it; return when it is mended."""
    one = brokers[trouble.broker]
    kind = trouble.kind
    if kind == "restarted in turn":
        for each in brokers:
            each.stop()
            each.start()
            time.sleep(3)
    elif kind == "leaders moved":
        one.stop()
        one.start()
        time.sleep(5)
    elif kind == "cut off":
        assert network is not None, "only three brokers have one"
        network.cut(trouble.broker)
        time.sleep(trouble.for_s)
        network.mend(trouble.broker)
    else:
        more = (
            [brokers[(trouble.broker + 1) % len(brokers)]]
            if kind == "two killed"
            else []
        )
        hit = Brokers([one, *more])
        frozen = kind == "frozen"
        hit.each(OwnBroker.freeze if frozen else OwnBroker.kill)
        time.sleep(trouble.for_s)
        hit.each(OwnBroker.thaw if frozen else OwnBroker.start)
    if kind in ("restarted in turn", "leaders moved"):
        # Back to the preferred ones, on a running cluster.
        with Connection(brokers.bootstrap).admin() as admin:
            admin.elect_leaders(ElectionType.PREFERRED, None).result(60)
