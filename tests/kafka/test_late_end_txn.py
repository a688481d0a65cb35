"""Late EndTxn requests on a real broker behind a proxy: every transaction stays atomic."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException

from tests.kafka import late_end_txn
from tests.kafka.harness import (
    abort,
    aborts,
    before_commit,
    create_topic,
    open_transaction,
)
from tests.kafka.proxy import Api, Fate, Proxy, Request, proxied_broker
from tests.kafka.test_shard import Cluster, say
from workers.kafka import transaction
from workers.kafka.clients import Connection
from workers.runtime.errors import Fenced, KafkaAway

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def proxy(own_kafka: None) -> Iterator[Proxy]:
    quick = "transaction.abort.timed.out.transaction.cleanup.interval.ms=200\n"
    with proxied_broker(quick) as made:
        yield made


@pytest.fixture
def cluster(proxy: Proxy, tmp_path: Path) -> Iterator[Cluster]:
    """Separate topics per test; the proxy passes everything again at the end."""
    made = Cluster(f"127.0.0.1:{proxy.port}", tmp_path)
    yield made
    made.close()
    proxy.rule = lambda _: Fate.PASS
    proxy.held.clear()


Rule = Callable[[Request], Fate]


def first(key: int, fate: Fate) -> Rule:
    """Return a rule for the first request of a kind of every transactional id."""
    return lambda request: (
        fate if request.key == key and request.number == 1 else Fate.PASS
    )


class GivenUp(Exception): ...


def test_a_late_commit_does_not_commit_the_next_transaction(
    cluster: Cluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka sent EndTxn twice; the first arrives in the next transaction, then aborted."""
    shard = cluster.shard()
    proxy.rule = HELD
    cluster.transact(shard, b"one", 1)
    assert [request.commits for request in proxy.held] == [True], "nothing was held"
    errors: list[int] = []

    def arrive() -> None:
        errors.extend(error for _, error in proxy.release(cluster.name))
        abort()

    def give_up() -> None:
        raise GivenUp

    # Held requests arrive during the next transaction, which is aborted and given up.
    before_commit(shard.transactions, arrive)
    monkeypatch.setattr(shard, "note_abort", give_up)
    with pytest.raises((GivenUp, Fenced)):
        cluster.transact(shard, b"two", 2)
    assert cluster.published() == [b"one"]
    assert errors == [KafkaError.INVALID_PRODUCER_EPOCH]
    assert [m.value() for m in cluster.messages(cluster.state)] == [b"1"]
    assert cluster.published("read_uncommitted") == [b"one", b"two"], (
        "the next one was not open"
    )


def test_a_late_abort_does_not_abort_the_next_transaction(
    cluster: Cluster, proxy: Proxy
) -> None:
    """An abort arrives during the retry, whose rest must not commit without its beginning."""
    shard = cluster.shard()
    proxy.rule = HELD
    errors: list[int] = []

    def arrive() -> None:
        errors.extend(error for _, error in proxy.release(cluster.name))

    def abort_then_arrive() -> None:
        before_commit(shard.transactions, arrive)
        abort()

    before_commit(shard.transactions, abort_then_arrive)
    cluster.transact(shard, b"one", 1)
    assert errors == [KafkaError.INVALID_PRODUCER_EPOCH]
    cluster.transact(shard, b"two", 2)
    assert cluster.published() == [b"one", b"two"]
    assert [m.value() for m in cluster.messages(cluster.state)] == [b"1", b"2"]
    assert aborts(shard) == 1


def slow(request: Request) -> Fate:
    if request.key == Api.END_TXN:
        time.sleep(0.7)
    return Fate.PASS


LOST = first(Api.END_TXN, Fate.LOSE)
HELD = first(Api.END_TXN, Fate.HOLD)
QUICK = dict.fromkeys(
    ("retry.backoff.ms", "retry.backoff.max.ms", "reconnect.backoff.ms"), "1"
)


@pytest.mark.parametrize(
    ("rule", "sent", "client"),
    [(LOST, 2, {}), (HELD, 2, {}), (slow, 1, {}), (HELD, 2, QUICK)],
)
def test_a_commit_that_may_have_been_sent_twice_is_followed_by_a_new_epoch(
    cluster: Cluster,
    proxy: Proxy,
    rule: Rule,
    sent: int,
    client: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A lost request, a lost answer and a slow request cannot be told apart.

    Operators cannot hide a second request: an EndTxn counts as sent once if it was answered well
    within librdkafka's retry backoff, which the worker sets.
    """
    assert transaction._SENT_ONCE_S < 0.8 * transaction._RETRY_BACKOFF_MS / 1000
    cluster.connection = Connection(cluster.connection.bootstrap, client)
    shard = cluster.shard()
    before = shard.transactions._producer
    proxy.rule = rule
    with caplog.at_level(logging.WARNING):
        cluster.transact(shard, b"one", 1)
    assert proxy.seen[Api.END_TXN, cluster.name] == sent
    assert shard.transactions._producer is not before
    assert "continuing with a new producer epoch" in caplog.text
    cluster.transact(shard, b"two", 2)
    assert cluster.published() == [b"one", b"two"]


def test_a_commit_answered_at_once_costs_nothing_more(
    cluster: Cluster, proxy: Proxy
) -> None:
    """Normal operation uses one epoch for any number of transactions."""
    shard = cluster.shard()
    quick = 0
    for number in range(1, 31):
        before = shard.transactions._producer
        started = time.monotonic()
        shard.transact(say(cluster, b"x"), [(b"offset", b"%d" % number)], number)
        if time.monotonic() - started < transaction._SENT_ONCE_S:
            quick += 1
            assert shard.transactions._producer is before, "a new epoch for nothing"
    assert quick, "no transaction was quick enough to tell"


def test_a_transaction_that_the_broker_ended_meanwhile_is_no_newer_owner(
    cluster: Cluster, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka #3297: EndTxn for a closed transaction is fatal, which looks like fencing."""
    shard = cluster.shard()
    sent: list[Request] = []

    def note(request: Request) -> Fate:
        if request.key == Api.END_TXN:
            sent.append(request)
        return Fate.PASS

    proxy.rule = note
    cluster.transact(shard, b"one", 1)
    # what follows is in the same epoch
    monkeypatch.setattr(transaction, "_SENT_ONCE_S", 60.0)
    before_commit(shard.transactions, lambda: proxy.deliver(sent[0].other()))
    with pytest.raises(
        KafkaAway, match="the producer cannot continue: INVALID_TXN_STATE"
    ):
        cluster.transact(shard, b"two", 2)
    shard.close()
    assert cluster.published() == [b"one"]
    heir = cluster.shard(path="heir")
    assert heir.offset == 1


def test_a_late_take_over_of_our_own_fences_us_and_loses_nothing(
    cluster: Cluster, proxy: Proxy
) -> None:
    """librdkafka #3928: InitProducerId was sent twice; the first arrives during later work."""
    proxy.rule = first(Api.INIT_PRODUCER_ID, Fate.HOLD)
    shard = cluster.shard()
    cluster.transact(shard, b"one", 1)
    assert cluster.published() == [b"one"]  # and the coordinator is done with it
    assert proxy.release(cluster.name)
    with pytest.raises(Fenced):
        cluster.transact(shard, b"two", 2)
    shard.close()
    heir = cluster.shard(path="heir")
    cluster.transact(heir, b"two", 2)
    assert cluster.published() == [b"one", b"two"]


@pytest.mark.parametrize("key", [Api.PRODUCE, Api.ADD_PARTITIONS])
def test_other_late_requests_leave_no_transaction_hanging(
    cluster: Cluster, proxy: Proxy, key: int
) -> None:
    """KAFKA-18957: a record after the end of its transaction would hide everything after it.

    After a late Produce the broker sometimes refuses the next record of that epoch as out of order.
    """
    proxy.rule = first(key, Fate.HOLD)
    shard = cluster.shard()
    cluster.transact(shard, b"one", 1)
    assert proxy.release(cluster.name)
    assert cluster.published() == [b"one"]
    try:
        cluster.transact(shard, b"two", 2)
    except KafkaAway:
        shard.close()
        shard = cluster.shard(path="heir")
        cluster.transact(shard, b"two", 2)
    assert cluster.published() == [b"one", b"two"]


def test_a_transaction_without_owner_in_the_state_stops_a_take_over(
    cluster: Cluster,
) -> None:
    """It hides later commits: an owner that resumed from the visible records would repeat them."""
    hanging = open_transaction(cluster.connection, cluster.state, b"offset", b"999")
    with pytest.raises(KafkaAway, match="a transaction is open and has no owner"):
        cluster.shard()
    hanging.abort_transaction(60)
    shard = cluster.shard()
    assert shard.offset == 0


def test_a_transaction_that_ended_before_librdkafka_says_why_is_an_outage(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`produce` fails with "Erroneous state" first; the worker must go on, not exit with 70."""
    shard = cluster.shard()

    def erroneous(*_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE, "Erroneous state"))

    monkeypatch.setattr(shard.transactions, "_produce", erroneous)
    with pytest.raises(KafkaAway, match="the transaction has ended"):
        cluster.transact(shard, b"one", 1)
    shard.close()
    heir = cluster.shard(path="heir")
    cluster.transact(heir, b"one", 1)
    assert cluster.published() == [b"one"]


def test_producers_whose_transactions_the_broker_has_ended_can_be_dropped(
    cluster: Cluster,
) -> None:
    """librdkafka freed its error twice and ended the process."""
    partitions = 40
    bootstrap = cluster.connection.bootstrap
    out = f"{cluster.name}.many"
    state = f"{cluster.name}.many-state"
    for topic in (out, state):
        create_topic(cluster.connection, topic, partitions)
    arguments = bootstrap, out, str(partitions), state, "12"
    command = [sys.executable, "-m", "tests.kafka.dropping", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert int(done.stdout) >= partitions


def test_no_transaction_is_torn_by_requests_that_arrive_late(
    proxy: Proxy, tmp_path: Path
) -> None:
    """A seed decides the fate of every librdkafka request; see `late_end_txn`."""
    transactions = int(os.environ.get("QUIETCOUNT_LATE_TRANSACTIONS", "300"))
    report = late_end_txn.run(proxy, tmp_path, transactions, seed=1)
    assert report.wrong == []
    late = {kind for kind in report.delivered if kind.startswith(("commit", "abort"))}
    assert late <= {
        f"{kind}: INVALID_PRODUCER_EPOCH" for kind in ("commit", "abort")
    }, late
    assert any(kind.startswith("commit") for kind in late), "no commit was late"
    assert report.aborted > 0
