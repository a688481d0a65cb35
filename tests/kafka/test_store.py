"""A local changelog copy may lag, but is never ahead, and never of another changelog."""

import os
import shutil
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.admin import admin_of
from tests.kafka.harness import await_all, create_topic, unique, wait_until
from workers.kafka import reading
from workers.kafka import store as module
from workers.kafka.clients import Connection
from workers.kafka.store import Changelog, Disk, Store
from workers.kafka.topics import current_id
from workers.runtime.errors import CopyFailed, StateRefused
from workers.runtime.sizes import Change

LOG = Changelog("state", 0)


def written(
    path: Path | None, *changes: Change, at: int = 5, log: Changelog = LOG
) -> Store:
    store = Store(path, log).open()
    store.write(changes, at)
    return store


@pytest.fixture(params=["memory", "disk"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "copy"


def test_it_holds_what_was_written(path: Path | None) -> None:
    before = (b"b", b"2"), (b"a\xff", b"1"), (b"a", b""), (b"c", b"3")
    store = written(path, *before, (b"c", None), (b"b", b"4"), at=6)
    assert list(store.items()) == [(b"a", b""), (b"a\xff", b"1"), (b"b", b"4")]
    assert list(store.items(b"a")) == list(store.items())[:2]
    assert [store.get(b"a"), store.get(b"c")] == [b"", None]
    assert list(store.items(b"c")) == []
    assert store.offset == 6
    store.wipe()
    assert list(store.items()) == []
    # it starts from nothing: a lower position is allowed again
    store.write([(b"a", b"1")], 1)
    store.close()


def test_a_position_never_decreases(path: Path | None) -> None:
    """A decreasing position would apply old records over newer ones."""
    store = written(path, (b"a", b"1"))
    with pytest.raises(ValueError, match="offset = 4"):
        store.write([(b"a", b"2")], 4)
    assert store.get(b"a") == b"1"


@pytest.mark.parametrize(
    "other",
    [Changelog("other", 0), Changelog("state", 1), Changelog("state", 0, "new-id")],
)
def test_a_copy_of_another_changelog_is_discarded(
    tmp_path: Path, other: Changelog
) -> None:
    """A re-created topic or a reused directory must not lend its state to another changelog."""
    written(
        tmp_path / "copy", (b"a", b"1"), log=Changelog("state", 0, "old-id")
    ).close()
    again = Store(tmp_path / "copy", other).open()
    assert (list(again.items()), again.offset) == ([], None)


@pytest.mark.parametrize("victim", ["CURRENT", "MANIFEST-*"])
def test_a_damaged_copy_is_discarded(tmp_path: Path, victim: str) -> None:
    """The changelog has everything: a broken disk must not keep the worker from starting."""
    written(tmp_path / "copy", (b"a", b"1")).close()
    for file in (tmp_path / "copy").glob(victim):
        file.write_bytes(b"garbage")
    again = Store(tmp_path / "copy", LOG).open()
    assert (list(again.items()), again.offset) == ([], None)
    again.write([(b"a", b"2")], 6)


@pytest.mark.slow
def test_a_copy_whose_files_lost_their_ends_is_refused_or_is_what_it_says(
    tmp_path: Path,
) -> None:
    """A list of files that had lost an entry hid what was flushed, and the log after it was read.

    Sources of a worker were gone then, while its progress was there.
    """
    path = tmp_path / "copy"
    killed = tmp_path / "killed"
    cut = tmp_path / "cut"
    states: dict[int | None, list[tuple[bytes, bytes]]] = {None: []}
    for at in range(1, 4):
        store = Store(path, LOG).open()
        store.write([(b"%d" % at, b"x"), (b"newest", b"%d" % at)], at)
        states[at] = list(store.items())
        if at > 1:
            # as a killed process leaves it
            shutil.copytree(path, killed, dirs_exist_ok=True)
        store.close()
        if at == 2:
            shutil.rmtree(path)
            killed.rename(path)
    older = set[int | None]()
    for files in (path, killed):
        for file in (file for file in files.iterdir() if file.name[0] in "0CM"):
            size = file.stat().st_size
            for length in range(
                0, size, 8 if file.name[0] == "M" else max(1, size // 4)
            ):
                shutil.copytree(files, cut)
                os.truncate(cut / file.name, length)
                with suppress(CopyFailed):
                    copy = Disk(cut)
                    meta = copy.header()
                    found = list(copy.items(b""))
                    copy.close()
                    assert found == states[None if meta is None else meta.offset], (
                        file.name
                    )
                    older.add(None if meta is None else meta.offset)
                shutil.rmtree(cut)
    assert {1, 2} & older, "some are read"


def test_an_unreadable_copy_is_reported_and_removed_when_it_is_closed(
    tmp_path: Path,
) -> None:
    """Truncated state would be published as complete; kept files would repeat the failure."""
    changes = [(bytes([i]), bytes(range(256)) * 20) for i in range(200)]
    store = written(tmp_path / "copy", *changes)
    store.close()
    store.open().close()  # what the log of RocksDB had is in a file of its tables then
    [table] = (tmp_path / "copy").glob("*.sst")
    content = bytearray(table.read_bytes())
    for i in range(len(content) // 3, 2 * len(content) // 3):
        content[i] ^= 0xFF
    table.write_bytes(content)
    again = Store(tmp_path / "copy", LOG).open()
    assert again.offset == 5, "what says how far it is, is whole"
    with pytest.raises(CopyFailed, match="copy cannot be read: Corruption"):
        list(again.items())
    again.close()
    assert not (tmp_path / "copy").exists()


def test_a_copy_in_use_is_left_alone(tmp_path: Path) -> None:
    """A frozen owner on the same machine holds the lock: its files must not be removed."""
    frozen = written(tmp_path / "copy", (b"a", b"1"))
    heir = Store(tmp_path / "copy", LOG).open()
    assert heir.offset is None
    heir.write([(b"a", b"2")], 7)
    assert (frozen.get(b"a"), heir.get(b"a")) == (b"1", b"2")


class Log:
    def __init__(self, bootstrap: str) -> None:
        self.connection = Connection(bootstrap)
        self.name = unique("changelog")
        self.changelog = Changelog(self.name, 0)
        create_topic(
            self.connection,
            self.name,
            1,
            segment_ms="200",
            max_compaction_lag_ms="500",
            delete_retention_ms="0",
            cleanup_policy="compact",
            min_cleanable_dirty_ratio="0.001",
        )
        self.producer = self.connection.producer(None, **{"linger.ms": 5})

    def append(self, *changes: Change) -> None:
        for key, value in changes:
            self.producer.produce(self.name, value, key, 0)
        assert self.producer.flush(120) == 0

    def store(self, path: Path | None) -> Store:
        return Store(path, self.changelog)


@pytest.fixture
def log(bootstrap: str) -> Log:
    return Log(bootstrap)


def test_loading_applies_every_record_in_order(log: Log, tmp_path: Path) -> None:
    """Covers more records than one read returns, repeated keys and tombstones."""
    count = 2 * reading.CHUNK_RECORDS + 7
    log.append(*((b"%d" % (i % 500), b"%d" % i) for i in range(count)), (b"3", None))
    store = log.store(tmp_path / "copy")
    assert store.load(log.connection) == count + 1
    expected = {b"%d" % (i % 500): b"%d" % i for i in range(count)}
    del expected[b"3"]
    assert dict(store.items()) == expected
    assert store.offset == count + 1


def test_loading_again_reads_only_what_is_new(log: Log, tmp_path: Path) -> None:
    """A restart costs seconds however long the changelog is."""
    log.append((b"a", b"1"), (b"b", b"1"))
    store = log.store(tmp_path / "copy")
    store.load(log.connection)
    store.close()
    log.append((b"a", None))
    again = log.store(tmp_path / "copy")
    assert again.load(log.connection) == 1
    assert list(again.items()) == [(b"b", b"1")]
    assert again.load(log.connection) == 0


def test_compaction_does_not_change_what_is_loaded(log: Log) -> None:
    """Compaction leaves gaps in the offsets and drops tombstones; the state is the same."""
    for value in range(30):
        log.append((b"a", b"%d" % value), (b"gone", b"%d" % value))
        time.sleep(0.02)
    log.append((b"gone", None), (b"b", b"1"))
    deadline = time.monotonic() + 300
    full = log.store(None).load(log.connection)
    while full >= 62 and time.monotonic() < deadline:
        time.sleep(0.5)
        log.append((b"b", b"1"))  # the active segment is never compacted: roll it
        full = log.store(None).load(log.connection)
    assert full < 62, "the broker did not compact: nothing is proved"
    store = log.store(None)
    store.load(log.connection)
    assert dict(store.items()) == {b"a": b"29", b"b": b"1"}


def test_a_copy_ahead_of_its_log_is_read_again(log: Log, tmp_path: Path) -> None:
    """The log was truncated or re-created under the same name, so the copy is wrong."""
    log.append((b"a", b"1"))
    store = written(tmp_path / "copy", (b"never", b"1"), at=1000, log=log.changelog)
    assert store.load(log.connection) == 1
    assert (list(store.items()), store.offset) == ([(b"a", b"1")], 1)


def test_a_copy_that_may_have_missed_tombstones_is_read_again(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction forgets deletions after a day: an older copy would keep deleted keys."""
    log.append((b"a", b"1"))
    store = written(
        tmp_path / "copy", (b"deleted since", b"1"), at=0, log=log.changelog
    )
    monkeypatch.setattr(module, "_TRUSTED_S", -1)
    store.load(log.connection)
    assert list(store.items()) == [(b"a", b"1")]
    # Nothing new in the log: an old copy is as good as a young one.
    assert store.load(log.connection) == 0


def test_a_changelog_recreated_meanwhile_is_refused(
    bootstrap: str, path: Path | None
) -> None:
    """The topic id is in the mechanism id: reused, it gives other data the same noise."""
    connection = Connection(bootstrap)
    name = unique("state")
    create_topic(connection, name, cleanup_policy="compact")
    store = Store(path, Changelog(name, 0, current_id(connection, name)))
    store.load(connection)
    store.close()
    admin = admin_of(connection)
    await_all(admin.delete_topics([name]))
    wait_until(
        lambda: name not in admin.list_topics(timeout=60).topics, "the topic is gone"
    )
    create_topic(connection, name, cleanup_policy="compact")
    with pytest.raises(
        StateRefused, match="deleted and created again while this worker ran"
    ):
        store.load(connection)
    store.close()
    Store(path, Changelog(name, 0, current_id(connection, name))).load(connection)
