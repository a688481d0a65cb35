"""The thread that fetches waits for records of the shards that have room, until another one has."""

from __future__ import annotations

import asyncio
from threading import Thread
from types import SimpleNamespace
from typing import Any

from workers.kafka.fetch import ConsumerThread

#: Far longer than a test may take: whoever waits that long was not woken.
NEVER_S = 600.0


def waits(freed_before: int | None, *, records: bool = False, frees: int = 0) -> bool:
    """Let it wait, and a shard finish batches meanwhile in another thread; return whether it went on."""

    async def wait() -> bool:
        thread: Any = ConsumerThread.__new__(ConsumerThread)
        thread.consumer = SimpleNamespace(freed_before=freed_before, handover=SimpleNamespace(freed=7))
        thread.thread_loop, thread._room = asyncio.get_running_loop(), None
        waiter = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(thread._wait(waiter, NEVER_S))
        await asyncio.sleep(0.01)
        for _ in range(frees):
            freeing = Thread(target=thread.on_freed)
            freeing.start()
            freeing.join()
        if records:
            waiter.set_result(None)
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        waiting.cancel()
        return bool(done)

    return asyncio.run(wait())


def test_it_waits_while_nothing_happens() -> None:
    """The control: else the others would show nothing."""
    assert not waits(7)
    assert not waits(None)


def test_records_end_the_wait() -> None:
    assert waits(7, records=True)
    assert waits(None, records=True)


def test_a_shard_that_is_done_with_a_batch_ends_it() -> None:
    """Else its partition would stand still for as long as the others have no records."""
    assert waits(7, frees=1)
    assert waits(7, frees=3)


def test_a_batch_that_was_done_just_before_it_waits_ends_it_too() -> None:
    assert waits(6)


def test_where_all_have_room_nothing_has_to_wake_it() -> None:
    assert not waits(None, frees=1)
