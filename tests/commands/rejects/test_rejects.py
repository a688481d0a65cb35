"""`quietcount rejects` on a real Kafka: what it lists, and that each reject is sent back once, as the record that it was."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Message

from tests import ROOT
from tests.quietcount import Quietcount
from tests.worker.harness import Site, command, known, unk, until
from workers.commands import rejects
from workers.commands.rejects import resent_offsets, retry_rejects
from workers.kafka.transaction import Transactions
from workers.pipeline.rejected import read_reject, rejected
from workers.runtime.errors import Fenced

NOW = time.time_ns() // 1_000_000


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    return cast(list[tuple[str, bytes | None]], message.headers() or [])


def reject(
    site: Site,
    partition: int,
    event: object,
    reason: str = "missing field 'key'",
    **changes: Any,
) -> None:
    value = event if isinstance(event, bytes) else json.dumps(event).encode()
    source = changes.pop("source", (site.topic, partition, changes.pop("offset", 0)))
    topic = site.settings.rejects_topic
    key = changes.pop("key", None)
    further: Any = {"time_ms": NOW, "further": ()} | changes
    made = rejected(topic, key, value, reason=reason, source=source, **further)
    headers = cast(Any, made.headers)
    site.producer.produce(made.topic, made.value, made.key, partition, headers=headers)
    site.producer.flush()


def by_retry(messages: Iterable[Message]) -> tuple[list[Message], list[Message]]:
    """Return the original records and those that were sent back."""
    found: tuple[list[Message], list[Message]] = [], []
    for message in messages:
        found["retry" in dict(headers_of(message))].append(message)
    return found


def record_of(message: Message) -> tuple[Any, ...]:
    return message.partition(), message.key(), message.value(), message.timestamp()


def good(i: int) -> dict[str, object]:
    return {"key": "k", "items": [f"p{i}"], "ts": NOW + i}


def labels_in(site: Site) -> list[str]:
    return [json.loads(m.value() or b"")["items"][0] for m in site.read(site.topic)]


def any_reason(_reason: str) -> bool:
    return True


def assert_counted(site: Site, number: int, at: int) -> None:
    """Run a worker until `number` counts are contributed; audit agrees, and no more follow."""
    with site.worker() as worker:
        until(lambda: site.contributed().total() == number, f"{number} counts")
        site.wait_published(at)
        assert worker.stop() == 0
    assert site.contributed().total() == number
    site.assert_clean()


@pytest.fixture
def site(bootstrap: str, tmp_path: Path) -> Site:
    return Site(bootstrap, tmp_path, [unk()], partitions=1)


def test_a_worker_with_other_settings_counts_what_it_rejected_before_once(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [known(keys=["other"])], partitions=2, owners=1)
    begin_ms = time.time_ns() // 1_000_000
    events = [{"key": "k", "items": ["a"], "ts": begin_ms + i} for i in range(120)]
    headers: Any = [("trace", b"\x00\xff"), ("empty", None), ("trace", b"2")]
    for partition in range(2):
        for i, event in enumerate(events):
            value = json.dumps(event).encode()
            site.producer.produce(
                site.topic, value, f"key-{i}", partition, headers=headers
            )
        site.produce(partition, [b"broken"])
    with site.worker() as worker:
        until(lambda: len(site.rejects()) == 242, "all is rejected")
        assert worker.stop() == 0
    site.document["histogram"] = [known(keys=["other", "k"])]
    site.config = site.write(site.document)
    for number in (240, 0):
        shown = quietcount(f"rejects -c {site.config} --retry").out
        assert (
            f"sent back: {number} records" in shown
            and "2 would not be accepted now" in shown
        )
    shown = quietcount(f"rejects -c {site.config}").out
    for words in (
        "242 rejects",
        "key not declared: 240",
        "240 sent back",
        "not JSON: 2",
    ):
        assert words in shown
    # The rejects topic is partitioned by the records' keys, so they come back in another order.
    both = [
        message for message in site.read(site.topic) if message.value() != b"broken"
    ]
    both.sort(key=lambda message: (message.partition(), message.key() or b""))
    originals, again = by_retry(both)
    assert len(originals) == len(again) == 240
    for before, after in zip(originals, again, strict=True):
        assert record_of(before) == record_of(after)
        told = f"{site.topic}/{before.partition()}/{before.offset()}".encode()
        assert headers_of(after) == [*headers_of(before), ("retry", told)]
    assert_counted(site, 240, begin_ms)


@pytest.mark.parametrize("key", ["key", "$key"])
def test_a_rekeyed_event_that_is_rejected_and_resent_counts_once(
    bootstrap: str, tmp_path: Path, key: str
) -> None:
    changes: Any = {
        "events": {"key": key, "user": "who"},
        "worker": {"user_partitions": 3},
    }
    changes["privacy"] = {"unit": "user", "rekey": True}
    histogram = known(keys=["other"], max_items_per_user=2)
    site = Site(bootstrap, tmp_path, [histogram], partitions=2, owners=1, **changes)
    begin_ms = time.time_ns() // 1_000_000
    for i in range(60):
        event = {
            "key": "k",
            "items": ["a", "b", "a"],
            "ts": begin_ms + i,
            "who": f"user-{i % 20}",
        }
        headers: Any = [("trace", b"\x00\xff")] if i % 2 else []
        site.producer.produce(
            site.topic, json.dumps(event).encode(), "k", i % 2, headers=headers
        )
        site.produce(i % 2, [{"items": ["a"], "ts": begin_ms}] if i < 4 else [])
    with site.worker() as worker:
        until(lambda: len(site.rejects()) == 64, "all is rejected")
        assert worker.stop() == 0
    site.document["histogram"] = [known(keys=["other", "k"], max_items_per_user=2)]
    site.config = site.write(site.document)
    outcomes = [
        retry_rejects(site.settings, site.connection, any_reason) for _ in range(2)
    ]
    assert [(one.sent, one.refused, one.foreign) for one in outcomes] == [
        (60, 4, 0),
        (0, 4, 0),
    ]
    by_user = [
        m for m in site.read(site.settings.by_user_topic) if m.value() is not None
    ]
    before, after = by_retry(by_user)
    originals = sorted((*record_of(m), *headers_of(m)) for m in before)
    assert originals == sorted((*record_of(m), *headers_of(m)[:-1]) for m in after)
    assert_counted(site, 40, begin_ms)  # two items of each of 20 users


def test_acceptable_rejects_are_resent_others_may_be_later(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=2)
    moved = {"shop": "k", "items": ["x"], "ts": NOW}
    missing = "missing field 'key'"
    for i in range(6):
        reject(site, i % 2, good(i) if i < 4 else moved, offset=i)
    reject(site, 0, good(9), reason="another reason", offset=9)
    first = retry_rejects(
        site.settings, site.connection, lambda reason: reason == missing
    )
    assert (first.sent, first.refused) == (4, 2)
    assert resent_offsets(site.connection, site.settings.rejects_topic, 0) == {0, 1}
    site.document["events"]["key"] = "shop"
    site.config = site.write(site.document)
    second = retry_rejects(site.settings, site.connection, any_reason)
    assert (second.sent, second.refused) == (2, 1)
    assert sorted(labels_in(site)) == ["p0", "p1", "p2", "p3", "x", "x"]
    shown = quietcount(f"rejects -c {site.config}").out
    for words in ("7 rejects", f"{missing}: 6", "6 sent back", "another reason: 1"):
        assert words in shown
    assert shown.count("sent back") == 1


def test_rejects_that_cannot_be_resent_are_counted_and_left(
    site: Site, quietcount: Quietcount
) -> None:
    long = json.dumps(good(0) | {"note": "x" * 950_000}).encode()
    reject(site, 0, long, reason="record too large")
    reject(site, 0, good(1), key=b"x" * 100_000)
    reject(site, 0, good(2), further=[("h", b"x" * 20_000)])
    reject(site, 0, good(3), source=("another-topic", 0, 0))
    reject(site, 0, good(4), source=(site.topic, 7, 0))
    outcome = retry_rejects(site.settings, site.connection, any_reason)
    assert (outcome.sent, outcome.cut, outcome.foreign) == (0, 3, 2)
    assert list(site.read(site.topic)) == []
    shown = quietcount(f"rejects -c {site.config} --retry").out
    for words in ("sent back: 0 records", "3 not whole", "2 of topics or partitions"):
        assert words in shown


@pytest.mark.parametrize("where", ["before", "between", "committing", "after"])
def test_a_run_that_is_killed_anywhere_and_started_again_sends_none_twice(
    site: Site, where: str
) -> None:
    for i in range(30):
        reject(site, 0, good(i), offset=i)
    killing = f"""
import os, signal, sys
from workers.commands import rejects
from workers.kafka.transaction import Transactions
rejects.RECORDS_MAX = 10
where = {where!r}
runs = []
transact = Transactions.transact
insist = Transactions._call_until_done
def die(): os.kill(os.getpid(), signal.SIGKILL)
def watched(self, messages, changes):
    runs.append(1)
    if len(runs) == 2 and where == "before": die()
    found = transact(self, messages, changes)
    if len(runs) == 2 and where == "after": die()
    return found
def insisting(self, name, call):
    if len(runs) == 2 and name == "commit":
        call.__self__.flush(60)  # the producer's method
        if where == "between": die()
        if where == "committing":
            import threading, time
            threading.Timer(0.001, die).start()
    return insist(self, name, call)
Transactions.transact = watched
Transactions._call_until_done = insisting
from workers.cli import execute
sys.exit(execute(["rejects", "-c", sys.argv[1], "--retry"]))
"""
    run = [sys.executable, "-c", killing, str(site.config)]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode in (-signal.SIGKILL, 0), done.stderr
    sent = {"before": {10}, "between": {10}, "committing": {10, 20, 30}, "after": {20}}
    assert len(list(site.read(site.topic))) in sent[where]
    retry_rejects(site.settings, site.connection, any_reason)
    assert labels_in(site) == [f"p{i}" for i in range(30)]


def test_a_second_run_fences_the_first(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(20):
        reject(site, 0, good(i), offset=i)
    monkeypatch.setattr(rejects, "RECORDS_MAX", 5)
    run = Transactions.transact
    second_runs: list[subprocess.CompletedProcess[bytes]] = []

    def slow(self: Any, messages: Any, changes: Any) -> int:
        if not second_runs:
            retry = command("rejects", "-c", str(site.config), "--retry")
            second_runs.append(subprocess.run(retry, cwd=ROOT, check=False))
        return run(self, messages, changes)

    monkeypatch.setattr(Transactions, "transact", slow)
    with pytest.raises(Fenced):
        retry_rejects(site.settings, site.connection, any_reason)
    assert second_runs[0].returncode == 0
    assert len(list(site.read(site.topic))) == 20


def test_it_waits_for_records_hidden_by_another_transaction(
    site: Site,
) -> None:
    topic = site.settings.rejects_topic
    reject(site, 0, good(0))
    slow = site.connection.producer(f"{site.name}-contribute-0")
    slow.init_transactions(60)
    slow.begin_transaction()
    slow.produce(topic, b"{", partition=0)
    slow.flush(60)
    told = rejects.resent_listing(topic, 0, [0])
    site.producer.produce(topic, told.value, None, 0, headers=cast(Any, told.headers))
    site.producer.flush()
    timer = threading.Timer(2.0, slow.commit_transaction, (60,))
    timer.start()
    assert retry_rejects(site.settings, site.connection, any_reason).sent == 0
    timer.join()
    assert list(site.read(site.topic)) == []


def test_exit_code_2_without_a_rejects_topic(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(bootstrap, tmp_path, [unk()], partitions=1, create=False)
    line = quietcount(f"rejects -c {site.config}", code=2).line
    assert f"topic {site.name}.rejects does not exist" in line


def test_shown_rejects_take_one_line_and_are_safe_to_print(
    site: Site, quietcount: Quietcount
) -> None:
    assert "no rejects" in quietcount(f"rejects -c {site.config}").out
    reject(site, 0, b"\x1b[2J\xff\r\n" * 100, reason="not JSON", offset=17)
    reject(site, 0, good(1))
    shown = quietcount(f"rejects -c {site.config} --show 5 --reason JSON").out
    assert (
        "1 reject" in shown
        and "\\x1b[2J" in shown
        and f"{site.topic}[0] offset 17" in shown
    )
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert (
        "no rejects with a reason that holds 'nothing'"
        in quietcount(f"rejects -c {site.config} --reason nothing").out
    )


def test_a_reject_reads_back_as_what_was_rejected() -> None:
    own = [("reason", b"mine"), ("truncated", b"x"), ("h", None), ("h", b"\xff")]
    source = "t", 3, 7
    made = rejected(
        "r", b"key", b"value", reason="not JSON", source=source, time_ms=5, further=own
    )
    read = read_reject(made.headers, made.key, made.value)
    assert read is not None
    assert read == ("not JSON", "t", 3, 7, 5, b"key", b"value", own, False)
    assert read_reject([("reason", b"x")], None, None) is None
    damaged = [*made.headers[:2], ("partition", b"one"), *made.headers[3:]]
    assert read_reject(damaged, None, None) is None
    assert "value" not in repr(read)


def test_undeclared_record_keys_are_shown_with_their_quotes(
    bootstrap: str, tmp_path: Path, quietcount: Quietcount
) -> None:
    site = Site(
        bootstrap, tmp_path, [unk(keys=["s1"])], partitions=1, events={"key": "$key"}
    )
    quietcount(f"topics -c {site.config} --create")
    for key in (b'"s1"', b'"s1"', b"s\xff", None):
        reject(site, 0, good(0), "key not declared", key=key)
    said = quietcount(f"rejects -c {site.config} --show 4").words
    assert '2 undeclared record keys: "\\"s1\\"" (2), "s\\\\xff" (1)' in said
    assert "quotes are part of each key" in said
    for written in ('"\\"s1\\""', '"s\\\\xff"', "none"):
        assert f"record key: {written}" in said


def test_a_reject_that_is_not_json_is_shown_around_its_fault(
    site: Site, quietcount: Quietcount
) -> None:
    quietcount(f"topics -c {site.config} --create")
    filler = b'{"agent":"' + b"x" * 300
    reject(site, 0, filler + rb'\x22"}', "not JSON")
    reject(site, 0, filler + b'\xe9"}', "not JSON")
    said = quietcount(f"rejects -c {site.config} --show 2").out
    assert r"the fault: at byte 311: invalid \escape" in said and r'xx>>>\x22"}' in said
    assert (
        "the fault: at byte 311: 0xe9 is not UTF-8" in said and r'xx>>>\xe9"}' in said
    )
