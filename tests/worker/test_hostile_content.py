"""A worker with little memory reads the worst known content and counts all honest events.

The limit is on its data segment (Linux), so an oversized allocation fails at once.
"""

import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.worker.harness import (
    Site,
    command,
    known,
    now_ms,
    produce,
    sale,
    unk,
    until,
)

ONLY_LINUX = "RLIMIT_DATA counts all private memory on Linux only"
pytestmark = [
    pytest.mark.waits,
    pytest.mark.skipif(sys.platform != "linux", reason=ONLY_LINUX),
]

LIMIT = 1 << 30
HONEST = 300
EDGES = {"from": 0, "to": 999, "count": 999}


def hostile(**fields: bytes) -> bytes:
    """Return a record with the stream key "hostile" and these fields verbatim."""
    given = {
        "key": b'"hostile"',
        "items": b'["x"]',
        "price": b"1",
        "ts": b"%d" % now_ms(),
    }
    given |= fields
    members = [b'"%s":%s' % (name.encode(), value) for name, value in given.items()]
    return b"{" + b",".join(members) + b"}"


def listed(one: bytes, number: int) -> bytes:
    return b"[" + b",".join([one] * number) + b"]"


def one_batch_of(
    values: list[bytes | None],
) -> tuple[list[bytes | None], dict[str, object]]:
    """Return values, and producer options that send them as one record batch."""
    together: dict[str, object] = {
        "batch.size": 120_000_000,
        "message.max.bytes": 120_000_000,
    }
    return values, together | {"batch.num.messages": 1_000_000, "linger.ms": 2_000}


def many_long() -> tuple[list[bytes | None], dict[str, object]]:
    """Return a gigabyte of ordinary producers' records that zstd makes small."""
    return [hostile(other=b'"' + b"a" * 990_000 + b'"')] * 1_000, {}


ATTACKS: dict[str, Callable[[], tuple[list[bytes | None], dict[str, object]]]] = {
    "a long list alone in its batch": lambda: (
        [hostile(items=listed(b"1", 490_000))],
        {},
    ),
    "one exponent among many numbers": lambda: (
        [hostile(price=b"[1e1," + listed(b"7", 240_000)[1:])],
        {},
    ),
    "escaped labels": lambda: ([hostile(items=listed(rb'"\n"', 190_000))] * 20, {}),
    "one batch that expands to 80 MB": lambda: one_batch_of(
        [hostile(other=b'"' + b"a" * 990_000 + b'"')] * 80
    ),
    "many null records in few batches": lambda: one_batch_of([None] * 300_000),
    "long records that compress well": many_long,
    "a list of lists": lambda: ([hostile(items=listed(b"[]", 300_000))] * 5, {}),
}


def honest(begin: int) -> Iterator[dict[str, object]]:
    for i in range(begin, begin + HONEST):
        items = [f"item{i % 7}", f"item{i % 11}"]
        yield sale(items, now_ms(), "s1", price=i % 5)


def test_beside_the_worst_content_honest_events_all_count(
    bootstrap: str, tmp_path: Path
) -> None:
    """Content must neither stop nor silence a worker with 1 GiB, nor affect other events."""
    prices = known("prices", max_items=1, items="price", buckets=EDGES)
    del prices["domain"]
    site = Site(bootstrap, tmp_path, [unk(), prices], partitions=2)
    expected: Counter[str] = Counter()
    sent = 0
    for make in ATTACKS.values():
        values, options = make()
        for partition in range(site.partitions):
            events = list(honest(sent))
            sent += HONEST
            expected.update(
                str(item)
                for event in events
                for item in dict.fromkeys(event["items"])  # type: ignore[call-overload]
            )
            expected.update(
                f"[{event['price']},{event['price'] + 1})"  # type: ignore[operator]
                for event in events
            )
            site.produce(partition, events)
        options |= {
            "compression.type": "zstd",
            "linger.ms": options.get("linger.ms", 50),
        }
        producer = site.connection.producer(None, **options)
        for value in values:
            produce(producer, site.topic, value, None, 1)
        assert producer.flush(300) == 0
    with site.running() as worker:
        resource.prlimit(worker.process.pid, resource.RLIMIT_DATA, (LIMIT, LIMIT))
        worker.at_work()
        last = list(honest(0))[:1]
        expected.update({"item0": 1, "[0,1)": 1})
        for partition in range(site.partitions):
            site.produce(partition, last if partition else [{**last[0], "key": "s2"}])

        def counted() -> Counter[str]:
            assert worker.running(), worker.output()
            found: Counter[str] = Counter()
            for one, n in site.contributed().items():
                if one.key == "s1":
                    found[one.label] += n
            return found

        until(
            lambda: counted().total() >= expected.total(),
            "all honest events are counted",
        )
        assert counted() == expected
    site.assert_clean()
    reasons = Counter(site.reasons())
    assert reasons["no value"] == 300_000
    config = str(site.config)
    new = ["--output", str(tmp_path / "new.toml")]
    init = [
        "init",
        "--bootstrap",
        bootstrap,
        "--topic",
        site.topic,
        "--keys",
        "public",
        *new,
    ]
    out = ["--snapshots", str(tmp_path / "snapshots.jsonl")]
    replay = ["replay", "-c", config, "--topic", *out]
    for arguments in (["check", "-c", config], replay, init, ["rejects", "-c", config]):
        done = subprocess.run(
            command(*arguments),
            check=False,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_DATA, (2 * LIMIT, 2 * LIMIT)
            ),
        )
        assert done.returncode == 0, f"{arguments[0]}: {done.stdout}{done.stderr}"
