"""One thread at a time does short work, nobody waits for all of another's, and ticks of a backlog share transactions."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.kafka.harness import offline
from tests.pipeline.pipeline import Event, Partition, contribute, unk
from workers.agents.release import ReleaseShard
from workers.kafka.records import Batch, Outgoing, Records
from workers.mechanisms.config.histogram import EPOCH
from workers.pipeline.watermark import Watermark, commit_gap_s, is_behind
from workers.runtime import gil_lock as module
from workers.runtime.gil_lock import SHORT_ROWS, GilLock

TICK_MS = 1000


def test_short_work_is_done_by_one_thread_at_a_time() -> None:
    gil_lock = GilLock()
    seen = threading.Lock()
    inside = most = 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(200):
            with gil_lock.for_rows(SHORT_ROWS):
                with seen:
                    inside += 1
                    most = max(most, inside)
                with seen:
                    inside -= 1

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work) for _ in range(4)]:
            done.result()
    assert (inside, most) == (0, 1)


def test_long_work_waits_for_nobody_and_an_error_gives_the_turn_back() -> None:
    gil_lock = GilLock()
    with gil_lock.for_rows(1), gil_lock.for_rows(SHORT_ROWS + 1), gil_lock.for_pieces():
        pass
    with pytest.raises(ZeroDivisionError), gil_lock.for_rows(1):
        _ = 1 // 0
    with gil_lock.for_pieces() as turn:
        turn.begin_piece(1)
        turn.begin_piece(SHORT_ROWS + 1)
        with gil_lock.for_rows(1):
            pass
        turn.begin_piece(1)
    with gil_lock.for_rows(1):
        pass


def test_whoever_has_a_long_turn_lets_others_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    gil_lock = GilLock()
    came = threading.Event()
    waits = threading.Event()

    def other() -> None:
        waits.set()
        with gil_lock.for_rows(1):
            came.set()

    thread = threading.Thread(target=other)
    with gil_lock.for_pieces() as turn:
        for piece in range(10_000):
            turn.begin_piece(1)
            if piece == 0:
                thread.start()
                waits.wait()
            if came.is_set():
                break
        assert came.is_set()
    thread.join()


class Released(ReleaseShard):
    """A release shard whose transactions are noted, and sent nowhere."""

    def transact(
        self, messages: Sequence[Outgoing], *_: object, **_named: object
    ) -> None:
        self.sent = [
            *getattr(self, "sent", []),
            [message.timestamp_ms for message in messages],
        ]


@pytest.mark.waits
def test_only_ticks_of_a_backlog_share_a_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    config = unk(tick_ms=TICK_MS, start=EPOCH)
    events: list[Event] = [("k", ["a"], tick * TICK_MS) for tick in range(1, 9)]
    [messages] = contribute(
        [events], [config], owners=1, step=1, further_ms=10 * TICK_MS
    )
    merge = Partition([config], 1)
    merge.restart()
    shard = Released(offline(0), contributions="c", merge=merge.merge)
    shard.offset = 0

    def feed(first: int, last: int) -> None:
        records = Records.of(messages[first:last], offsets=range(first, last))
        shard.feed(Batch(first, last, records))

    feed(0, 3)
    assert len(shard.sent) == 1  # the first does not wait
    now_s += 0.4
    feed(3, 5)
    feed(5, 6)
    shard.idle()
    assert len(shard.sent) == 1  # soon after it, others do
    now_s += 0.1
    shard.idle()
    assert len(shard.sent) == 2
    assert len(set(shard.sent[1])) == 3  # ticks
    now_s += TICK_MS / 1000
    feed(6, 7)
    assert len(shard.sent) == 3
    assert len(set(shard.sent[2])) == 1
    # Where nothing is behind the clock a tick does not wait, however soon after another it is complete.
    marked = merge.merge.complete_ms or 0
    monkeypatch.setattr(time, "time_ns", lambda: (marked + TICK_MS) * 1_000_000)
    now_s += 0.1
    feed(7, 8)
    assert len(shard.sent) == 4
    assert len(set(shard.sent[3])) == 1


def test_narrow_ticks_wait_for_half_of_one_at_most() -> None:
    lanes = [unk(tick_ms=tick_ms).lane for tick_ms in (60_000, 100, 5_000)]
    assert commit_gap_s(lanes) == 0.05
    assert commit_gap_s(lanes[:1]) == commit_gap_s([]) == 0.5


def test_only_a_closing_commit_delays_the_next_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    clock = Watermark([unk(tick_ms=10 * TICK_MS).lane], 0, None)
    due = []
    for at_s in (1.0, 9.9, 10.0, 10.1, 20.0, 30.0, 30.4):
        now_s = at_s
        clock.advance_to(int(at_s * 1000))
        due.append(clock.commit_due())
        clock.note_commit()
    assert due == [True, False, True, False, True, True, False]
    # A backlog: the next tick closes soon after the last one, and waits.
    clock.advance_to(45_000)
    assert not clock.commit_due() and clock.has_closed_tick()
    now_s += 0.2
    assert clock.commit_due()
    # Live events: whichever closes, it is committed at once.
    monkeypatch.setattr(time, "time_ns", lambda: 61_000 * 1_000_000)
    for mark_ms, closes in (
        (50_500, True),
        (50_900, False),
        (60_000, True),
        (60_900, False),
    ):
        clock.advance_to(mark_ms)
        assert clock.commit_due() is closes
        clock.note_commit()


def test_a_backlog_begins_ten_seconds_behind_grace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 100_000 * 1_000_000)
    assert is_behind(None, 0)
    assert is_behind(89_999, 0) and not is_behind(90_000, 0)
    assert is_behind(84_999, 5_000) and not is_behind(85_000, 5_000)
