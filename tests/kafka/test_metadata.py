"""The consumer's look-ups of leaders: limited in time, and ended whenever that is asked."""

import asyncio
from types import SimpleNamespace

import pytest

from workers.kafka.transport import _limit_metadata


@pytest.mark.parametrize("steps", range(8))
def test_a_look_up_ends_when_it_is_cancelled_just_as_its_answer_comes(
    steps: int,
) -> None:
    """The cancellation was lost, and a worker that stopped beside a broker's end hung: exit 70."""

    async def look_up() -> None:
        answered = asyncio.Event()

        async def update() -> bool:
            await answered.wait()
            answered.clear()
            return True

        async def for_ever() -> None:
            while True:
                await client._metadata_update()

        client = SimpleNamespace(_metadata_update=update)
        _limit_metadata(client)
        task = asyncio.create_task(for_ever())
        for _ in range(4):
            await asyncio.sleep(0)
        answered.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert task.cancelled()

    asyncio.run(look_up())
