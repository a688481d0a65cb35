"""The fetching thread waits for shards that have room, until another shard has room."""

import asyncio
import gc
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from aiokafka.errors import ConsumerStoppedError
from faust.transport.drivers import aiokafka as driver

from workers.kafka import transport
from workers.kafka.clients import Connection
from workers.kafka.handover import KAFKA_AWAY, Handover
from workers.kafka.transport import Consumer, ConsumerThread, create_app

# Far longer than a test may take: a thread that waits this long was not woken.
NEVER_S = 600.0


def waits(
    *,
    all_have_room: bool = False,
    freed: bool = False,
    records: bool = False,
    frees: int = 0,
) -> bool:
    """Wait while another thread finishes batches, `freed` before it; return whether it ended."""

    async def wait() -> bool:
        thread: Any = ConsumerThread.__new__(ConsumerThread)
        thread.consumer = SimpleNamespace(
            all_have_room=all_have_room, freed=asyncio.Event()
        )
        if freed:
            thread.consumer.freed.set()
        thread.thread_loop = asyncio.get_running_loop()
        thread._room = None
        waiter = asyncio.get_running_loop().create_future()
        waiting = asyncio.ensure_future(thread._wait(waiter, NEVER_S))
        await asyncio.sleep(0.01)
        for _ in range(frees):  # all before the loop runs again
            freeing = Thread(target=thread.on_freed)
            freeing.start()
            freeing.join()
        if records:
            waiter.set_result(None)
        done, _ = await asyncio.wait([waiting], timeout=1.0)
        waiting.cancel()
        return bool(done)

    return asyncio.run(wait())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ended", "what"),
    [
        (False, {}),  # control: otherwise the others would prove nothing
        (False, {"all_have_room": True}),
        (True, {"records": True}),
        (True, {"all_have_room": True, "records": True}),
        # Else its partition would stall for as long as the others have no records.
        (True, {"frees": 1}),
        (True, {"frees": 3}),
        (True, {"freed": True}),  # just before the wait
        (False, {"all_have_room": True, "frees": 1}),
    ],
)
def test_records_or_room_for_them_end_the_wait(
    ended: bool, what: dict[str, Any]
) -> None:
    assert waits(**what) is ended


def test_freed_room_wakes_the_consumer_and_its_thread() -> None:
    """Either wait may be active: one for room in any shard, the other for records."""

    async def told() -> tuple[bool, int]:
        handover = Handover({})
        app = create_app("t", Connection("localhost:1"), handover, Path("var"))
        consumer: Any = app.consumer
        woken: list[None] = []
        consumer.thread.on_freed = lambda: woken.append(None)
        handover.on_freed()
        return consumer.freed.is_set(), len(woken)

    assert asyncio.run(told()) == (True, 1)


@pytest.mark.parametrize("ended_by", [asyncio.CancelledError, OSError])
def test_a_consumer_that_cannot_leave_in_time_is_closed_and_says_nothing(
    ended_by: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelling the leave may cancel the closing too: that once ended with a traceback.

    A connection's error, kept by the client's task, comes out of `close` again: asyncio once
    logged that nobody had looked at it.
    """
    closed: list[bool] = []
    unseen: list[dict[str, Any]] = []

    async def hang(_: object) -> None:
        await asyncio.sleep(60)

    async def close() -> None:
        closed.append(True)
        raise ended_by

    async def stop() -> None:
        thread: Any = ConsumerThread.__new__(ConsumerThread)
        metrics = SimpleNamespace(outage=SimpleNamespace(is_active=True))
        thread.consumer = SimpleNamespace(handover=SimpleNamespace(metrics=metrics))
        thread._consumer = SimpleNamespace(_client=SimpleNamespace(close=close))
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: unseen.append(context))
        await thread.on_thread_stop()
        assert thread._consumer is None
        gc.collect()

    monkeypatch.setattr(driver.AIOKafkaConsumerThread, "on_thread_stop", hang)
    asyncio.run(stop())
    assert (closed, unseen) == ([True], [])


async def never() -> None:
    await asyncio.sleep(NEVER_S)


async def cancelled() -> None:
    """Be cancelled by a future of another thread, not by who waits."""
    answer = asyncio.get_running_loop().create_future()
    answer.set_exception(asyncio.CancelledError())
    await answer


@pytest.mark.parametrize("answer", [never, cancelled])
@pytest.mark.parametrize("what", ["tick", "getmany"])
def test_a_consumer_thread_that_does_not_answer_is_replaced(
    what: str, answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a worker stopped making progress, silently and for good."""
    monkeypatch.setattr(transport, "_ANSWER_S", 0.05)

    async def run() -> tuple[int | None, str]:
        handover: Any = Handover({})
        app = create_app("t", Connection("localhost:1"), handover, Path("var"))
        consumer: Any = app.consumer
        consumer._thread = SimpleNamespace(
            epoch=0,
            task_failure=lambda: None,
            group_error=lambda: None,
            read_positions=dict,
        )
        consumer.flow_active = True
        consumer._active_partitions = {("t", 0)}
        consumer._get_active_partitions = lambda: consumer._active_partitions
        handover.tick = answer
        handover.has_room = lambda _: True
        consumer._getmany = lambda *_: answer()
        if what == "tick":
            ticking = asyncio.ensure_future(Consumer._ticker(consumer))
            await asyncio.wait_for(handover.stopping.wait(), 5)
            ticking.cancel()
        else:
            assert [one async for one in consumer.getmany(1.0)] == []
        handover.dispose()
        return handover.exit_status, handover.metrics.outage.reason

    assert asyncio.run(run()) == (KAFKA_AWAY, "the consumer does not answer")


def test_a_task_of_the_consumer_that_returned_has_ended() -> None:
    """aiokafka's fetching returns without an error when one of its requests was cancelled."""

    async def returned() -> object:
        task = asyncio.ensure_future(asyncio.sleep(0))
        await task
        thread: Any = ConsumerThread.__new__(ConsumerThread)
        fetcher = SimpleNamespace(_fetch_task=task)
        thread._consumer = SimpleNamespace(
            _closed=False, _coordinator=None, _fetcher=fetcher
        )
        return thread.task_failure()

    assert isinstance(asyncio.run(returned()), ConsumerStoppedError)


def test_a_broker_that_gives_no_metadata_is_left_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Time doubles while none gives any, for slow networks; nobody asks for 90 s as aiokafka does."""
    monkeypatch.setattr(transport, "_METADATA_S", 0.2)
    answers_after_s = [NEVER_S, 0.25, NEVER_S, 0.0, 0.25]

    async def ask() -> list[bool]:
        async def update(*_: object) -> bool:
            await asyncio.sleep(answers_after_s.pop(0))
            return True

        client = SimpleNamespace(_metadata_update=update)
        transport._limit_metadata(client)
        return [await client._metadata_update("cluster", ["t"]) for _ in range(5)]

    # Within 0.2, 0.4, 0.2, 0.4 and 0.2 s.
    assert asyncio.run(ask()) == [False, True, False, True, False]
