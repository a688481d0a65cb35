"""Every encoder's longest content fits a broker with default limits, and is read back whole."""

import ast
import os
from collections.abc import Iterator, Sequence
from heapq import nlargest
from pathlib import Path

import pytest
from confluent_kafka import KafkaException

from tests import ROOT
from tests.contract.long_messages import (
    MESSAGES,
    SENT_ON,
    STATES,
    TICK,
    longest,
    table,
)
from tests.kafka.harness import create_topic, read, settled, unique
from workers.agents import rekey
from workers.kafka.clients import Connection
from workers.kafka.reading import end_of
from workers.kafka.records import Outgoing
from workers.kafka.shard import Assignment, Shard
from workers.kafka.store import Changelog, Store
from workers.pipeline import contributions, ledger_blocks, snapshots, users
from workers.pipeline.ledger_blocks import joined_pages, read_paged, split_pages
from workers.runtime.errors import MessageTooLong, StateRefused
from workers.runtime.sizes import (
    BATCH_BYTES,
    MESSAGE_BYTES,
    TOPIC_BYTES,
    VALUE_BYTES,
    split_by_size,
)

pytestmark = pytest.mark.slow

WORKERS = ROOT / "workers"
# Where messages for producers are made. `demo` has its own events, of a few hundred bytes each.
# `agents/rekey.py` forwards records unchanged and rejects those above its own bound.
MADE_IN = {"agents/contribute.py", "agents/rekey.py", "agents/release.py"}
MADE_IN |= {"pipeline/rejected.py", "commands/rejects.py", "kafka/transaction.py"}
# It writes what its callers made: the two below.
MADE_IN |= {"kafka/answered.py"}
# An alert names one item.
MADE_IN |= {"dashboard/telling.py"}
# What is left of the budget names generations only, which settings have made.
MADE_IN |= {"agents/public_budget.py"}


class Sender(Shard): ...


@pytest.fixture(scope="module")
def sender(
    bootstrap: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Sender]:
    """Return a real shard; topics have the default limit, `<state>-narrow` the worker's minimum."""
    connection = Connection(bootstrap)
    state = unique("sizes")
    create_topic(connection, state)
    create_topic(connection, f"{state}-narrow", max_message_bytes=str(BATCH_BYTES))
    store = Store(tmp_path_factory.mktemp("sizes"), Changelog(state, 0))
    made = Sender(Assignment(connection, state, 0, store))
    made.open()
    yield made
    made.close()


@pytest.fixture(scope="module", params=MESSAGES)
def made(request: pytest.FixtureRequest) -> tuple[str, list[Outgoing]]:
    """Yield a kind and its messages, built once for its tests and freed before the next kind."""
    return request.param, MESSAGES[request.param]()


def check_fits(kind: str, messages: list[Outgoing]) -> None:
    assert max(message.nbytes for message in messages) <= MESSAGE_BYTES
    if kind != SENT_ON:
        assert max(len(message.value or b"") for message in messages) <= VALUE_BYTES


def test_the_longest_content_fits_a_message(made: tuple[str, list[Outgoing]]) -> None:
    """One message above the bound stops publication permanently."""
    check_fits(*made)


def test_a_real_broker_takes_the_longest_content_and_gives_it_back(
    sender: Sender, made: tuple[str, list[Outgoing]]
) -> None:
    """Sent as the worker sends it, to a topic with the minimum limit the worker requires."""
    topic = f"{sender.store.changelog.topic}-narrow"
    kind, content = made
    # Of answers there are more, that differ in nothing but their page.
    content = nlargest(64, content, key=lambda one: one.nbytes)
    messages = [
        one._replace(topic=topic, partition=0, timestamp_ms=None) for one in content
    ]
    before = end_of(sender.connection, topic, 0)
    sender.transact(messages, [(b"kind", kind.encode())], 0)
    settled(sender.connection, topic)
    found = read(sender.connection, topic, since=before)
    assert [(m.key(), m.value()) for m in found] == [(m.key, m.value) for m in messages]


def test_batches_of_incompressible_messages_fit_as_well(sender: Sender) -> None:
    """Kafka limits batches: two messages that fit alone must not travel together."""
    topic = f"{sender.store.changelog.topic}-narrow"
    sizes = [
        MESSAGE_BYTES,
        1,
        900_000,
        99_000,
        99_900,
        100_000,
        990_000,
        10,
        500_000,
        499_000,
        499_900,
        500_000,
        *[9_973] * 300,
    ]
    before = end_of(sender.connection, topic, 0)
    messages = [Outgoing(topic, 0, None, os.urandom(size)) for size in sizes]
    sender.transact(messages, [(b"batches", b"")], 0)
    settled(sender.connection, topic)
    assert [
        len(m.value() or b"") for m in read(sender.connection, topic, since=before)
    ] == sizes


def test_state_of_the_longest_content_is_read_back_by_a_new_owner(
    sender: Sender, bootstrap: str, tmp_path: Path
) -> None:
    kinds = ("ledger: longest labels", "stream keys", "progress of stage 2")
    changes = [
        (one.key or b"", one.value) for kind in kinds for one in MESSAGES[kind]()
    ]
    sender.transact([], changes, 0)
    settled(sender.connection, sender.store.changelog.topic)
    store = Store(tmp_path / "copy", Changelog(sender.store.changelog.topic, 0))
    store.load(Connection(bootstrap))
    assert {key: store.get(key) for key, _ in changes} == dict(changes)
    store.close()


def test_a_block_of_1_024_of_the_longest_labels_is_refused_by_the_broker(
    sender: Sender,
) -> None:
    """Control: the broker's limit is real, and such a block exceeds it."""
    columns = table(map(longest, range(1_024)))
    size = (
        columns.tags.nbytes
        + columns.keys.nbytes
        + len(columns.label_column(0, 1_024).text)
    )
    assert size > TOPIC_BYTES
    producer = sender.connection.producer(None, **{"message.max.bytes": 4_000_000})
    errors: list[object] = []
    producer.produce(
        sender.store.changelog.topic,
        os.urandom(size),
        b"L",
        0,
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(60)
    assert "MSG_SIZE_TOO_LARGE" in str(errors)


def test_a_message_that_is_too_long_is_named_before_anything_is_sent(
    sender: Sender,
) -> None:
    """The last line of defence names the topic; nothing of the transaction was sent."""
    topic = f"{sender.store.changelog.topic}-narrow"
    before = end_of(sender.connection, topic, 0)
    too_long = Outgoing(topic, 0, b"k", bytes(MESSAGE_BYTES))
    said = f"{topic}: a message of 990,001 bytes, at most 990,000"
    with pytest.raises(MessageTooLong, match=said):
        sender.transact([Outgoing(topic, 0, None, b"short"), too_long], [], 0)
    with pytest.raises(
        MessageTooLong, match=f"{sender.store.changelog.topic}: a message"
    ):
        sender.transact([], [(b"k", bytes(MESSAGE_BYTES))], 0)
    assert end_of(sender.connection, topic, 0) == before


def uncut(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    return [(0, len(sizes))]


def in_halves(sizes: Sequence[int], room: int) -> list[tuple[int, int]]:
    return split_by_size(sizes, 2 * room)


@pytest.mark.parametrize(
    ("module", "name", "planted", "kind"),
    [
        (ledger_blocks, "split_by_size", uncut, "ledger: longest labels"),
        (ledger_blocks, "split_by_size", uncut, "stream keys"),
        (snapshots, "split_by_size", uncut, "snapshots of rows"),
        (snapshots, "split_by_size", in_halves, "snapshots of items"),
        (snapshots, "split_by_size", uncut, "answers to all queries"),
        (snapshots, "split_by_size", uncut, "labels for a budget"),
        (rekey, "OURS_BYTES_MAX", 0, SENT_ON),
        (contributions, "_ROW_BYTES", 18, "contributions: shortest rows"),
        (contributions, "_SECTION_BYTES", 0, "contributions: most sections"),
        (
            ledger_blocks.split_pages,
            "__defaults__",
            (1 << 30,),
            "state: OrderStatisticState",
        ),
        (users, "BLOCK_ROWS", 1 << 30, "users' pairs"),
        (ledger_blocks.split_pages, "__defaults__", (1 << 30,), "progress of stage 2"),
    ],
)
def test_an_encoder_that_does_not_cut_by_bytes_is_found(
    monkeypatch: pytest.MonkeyPatch,
    module: object,
    name: str,
    planted: object,
    kind: str,
) -> None:
    """Control: with the planted defect the bound fails."""
    monkeypatch.setattr(module, name, planted)
    with pytest.raises(AssertionError):
        check_fits(kind, MESSAGES[kind]())


def test_whatever_is_sent_is_among_the_kinds_above() -> None:
    """New message kinds and mechanisms with their own state must be added here first."""
    calls = set[str]()
    states = set[str]()
    for path in WORKERS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                if ast.unparse(node.func).rpartition(".")[2] in ("Outgoing", "produce"):
                    calls.add(path.relative_to(WORKERS).as_posix())
            elif isinstance(node, ast.ClassDef):
                methods = {
                    one.name for one in node.body if isinstance(one, ast.FunctionDef)
                }
                states |= {node.name} if "changed" in methods else set()
    assert {file for file in calls if not file.startswith("commands/demo/")} == MADE_IN
    # The base class, and parts of SlidingState and of UniqueState.
    assert states - {"State", "Hops", "Pairs"} == set(STATES)


def test_a_list_is_cut_where_the_next_element_does_not_fit() -> None:
    """Greedy parts depend on nothing behind them, so earlier parts are not rewritten."""
    assert split_by_size([], 5) == []
    assert split_by_size([5, 5, 1, 4, 1], 5) == [(0, 1), (1, 2), (2, 4), (4, 5)]
    assert split_by_size([3] * 4, 6)[:1] == split_by_size([3] * 2, 6)


def test_the_limits_lie_in_their_order() -> None:
    """A batch adds at most 121 bytes to a message; a topic accepts at least a batch."""
    assert VALUE_BYTES < MESSAGE_BYTES < BATCH_BYTES - 121 < BATCH_BYTES < TOPIC_BYTES
    assert issubclass(MessageTooLong, Exception) and not issubclass(
        MessageTooLong, KafkaException
    )


# ---- state over several blocks, parts or pages is restored whole, or refused ----


@pytest.mark.parametrize("kind", STATES)
def test_state_of_a_mechanism_is_restored_from_its_pages(kind: str) -> None:
    """40,000 columns take 1.28 MB: a lost page would give other thresholds under the same noise."""
    blocks = STATES[kind]().changed()
    pages = dict[bytes, bytes]()
    for name, block in blocks:
        for key, value in split_pages(name.encode(), block or b"", 9_000):
            pages[key] = value or b""
    assert len(pages) > len(blocks)
    assert dict(joined_pages(pages)) == dict(blocks)
    lost = next(name for name in pages if b"." in name)
    head, _, _ = lost.partition(b".")
    for gone, said in ((lost, "a page of m.* is missing"), (head, "m.* is missing")):
        with pytest.raises(StateRefused, match=said):
            dict(joined_pages({key: pages[key] for key in pages if key != gone}))


@pytest.mark.parametrize(
    "commits", [(1, 100, 170, 171, 1_024, 1_025, 2_500), (2_500,), (1_000, 1_500)]
)
def test_stream_keys_are_stored_by_parts_and_none_is_left_behind(
    commits: tuple[int, ...],
) -> None:
    """171 keys of control characters exceeded a block; key order is noise and count order."""
    keys = [longest(i) for i in range(commits[-1])]
    since = list(range(TICK, TICK + commits[-1]))
    store = dict[str, bytes]()
    stored = 0
    for n in commits:
        store.update(ledger_blocks.key_changes(keys[:n], since[:n], stored))
        stored = n
        found = [
            pair
            for _, value in sorted(store.items())
            for pair in ledger_blocks.decode(value)
        ]
        assert found == list(zip(keys[:n], since[:n], strict=True))
    assert store == dict(ledger_blocks.key_changes(keys, since, 0))
    assert not list(ledger_blocks.key_changes(keys, since, len(keys)))


def test_short_keys_are_stored_in_one_block() -> None:
    stored = dict(ledger_blocks.key_changes(["s1", "s2"], [4, 7], 0))
    assert stored == {"keys/00000000": b'[["s1",4],["s2",7]]'}


def test_a_long_value_is_joined_from_its_pages_or_refused() -> None:
    """Half a progress record must not pass, nor stale pages of a longer one."""
    long = b'{"a":"' + b"x" * 95 + b'"}'
    short = b'{"a":1}'
    store = dict[bytes, bytes | None]()
    for value in (long, short, long[:40] + b"}", long):
        store.update(split_pages(b"progress", value, 40))
        assert read_paged(b"progress", store.get) == value
    assert split_pages(b"progress", long, 40)[-1] == (b"progress", b'{"pages":3}')
    del store[b"progress.0001"]
    with pytest.raises(StateRefused, match="a page of progress is missing"):
        read_paged(b"progress", store.get)
    assert read_paged(b"other", store.get) is None
