"""A network between one worker and each broker, that can be cut.

Each broker has a second listener, whose advertised address is a forwarder's here. While a broker is
cut off, bytes wait on their way, as where packets are lost: nothing fails before a timeout.
"""

import asyncio
import threading
from collections.abc import Iterable
from contextlib import suppress
from typing import Self

# A port for each broker, from its own one: 12792 for 27920.
PROPERTIES = """\
listeners=PLAINTEXT://127.0.0.1:{port},CUT://127.0.0.1:1{port!s:.4},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},CUT://127.0.0.3:1{port!s:.4}
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,CUT:PLAINTEXT
"""
_BEHIND = "127.0.0.1"
_BEFORE = "127.0.0.3"


class Network:
    """Forwarders to brokers that were started with `PROPERTIES`, in a thread of their own."""

    def __init__(self, brokers: Iterable[int]) -> None:
        """`brokers` are their own ports."""
        self._ports = [int(f"1{str(port)[:4]}") for port in brokers]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._passes = [asyncio.Event() for _ in self._ports]
        self._pumps: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{_BEFORE}:{port}" for port in self._ports)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def cut(self, broker: int) -> None:
        self._loop.call_soon_threadsafe(self._passes[broker].clear)

    def mend(self, broker: int) -> None:
        self._loop.call_soon_threadsafe(self._passes[broker].set)

    async def _listen(self) -> None:
        for port, passes in zip(self._ports, self._passes, strict=True):
            passes.set()

            async def forward(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                port: int = port,
                passes: asyncio.Event = passes,
            ) -> None:
                try:
                    behind, ahead = await asyncio.open_connection(_BEHIND, port)
                except OSError:  # the broker is down
                    writer.close()
                    return
                for pump in (
                    _pump(reader, ahead, passes),
                    _pump(behind, writer, passes),
                ):
                    self._pumps.add(task := self._loop.create_task(pump))
                    task.add_done_callback(self._pumps.discard)

            await asyncio.start_server(forward, _BEFORE, port)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passes: asyncio.Event
) -> None:
    with suppress(OSError):
        while taken := await reader.read(1 << 16):
            await passes.wait()
            writer.write(taken)
            await writer.drain()
    writer.close()
