"""A TCP proxy before a real broker: it holds, repeats, swaps and loses librdkafka's requests by
rule.

with proxied_broker() as proxy:        a broker whose advertised address is the proxy's
    proxy.rule = lambda request: ...   called for each request before it is forwarded; it may sleep
    proxy.deliver(proxy.held[0])       a held request arrives now, on a connection of its own
"""

from __future__ import annotations

import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import Self

from tests.broker import fixed_port, own_broker


class Api(IntEnum):
    PRODUCE = 0
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS = 24
    END_TXN = 26


# First versions with the header and the strings of KIP-482.
_FLEXIBLE = {
    Api.PRODUCE: 9,
    Api.INIT_PRODUCER_ID: 2,
    Api.ADD_PARTITIONS: 3,
    Api.END_TXN: 3,
}
# Longest wait of a request that is to be swapped with the next one.
_SWAP_S = 0.05


class Fate(Enum):
    PASS = "goes on"
    HOLD = "does not arrive, unless it is delivered later; its connection is cut"
    LOSE = "arrives; its connection is cut before the answer"
    REPEAT = "arrives, and once more on a connection of its own"
    SWAP = "arrives after the request behind it"


@dataclass(frozen=True)
class Request:
    """A librdkafka request; `number` counts those of its kind and transactional id."""

    key: Api
    transactional_id: str
    number: int
    frame: bytes

    @property
    def commits(self) -> bool:
        return self.frame[-1] == 1

    def other(self) -> Request:
        """Return the opposite EndTxn: a commit for an abort, and vice versa."""
        return replace(self, frame=self.frame[:-1] + bytes([not self.commits]))


class Proxy:
    """Listen on `port` and forward to a broker on the same machine; `rule` is called in many
    threads.
    """

    def __init__(self, broker: int) -> None:
        self.port = fixed_port()
        self._broker = broker
        self.rule: Callable[[Request], Fate] = lambda _: Fate.PASS
        self.held: list[Request] = []
        # Number of requests by kind and transactional id.
        self.seen: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=100)

    def __enter__(self) -> Self:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()

    def deliver(self, request: Request) -> int:
        """Send a request on a connection of its own; return the last error code of the answer."""
        with socket.create_connection(("127.0.0.1", self._broker)) as late:
            late.sendall(request.frame)
            answer = next(frame for frame in _frames(late) if frame is not None)
            return int(struct.unpack(">h", answer[-2:])[0])

    def release(self, transactional_id: str) -> list[tuple[Request, int]]:
        """Deliver the held requests of a transactional id; return the answers' error codes."""
        with self._lock:
            ripe = [
                each for each in self.held if each.transactional_id == transactional_id
            ]
            self.held = [request for request in self.held if request not in ripe]
        return [(request, self.deliver(request)) for request in ripe]

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                broker = socket.create_connection(("127.0.0.1", self._broker))
            except OSError:  # it does not run
                client.close()
                continue
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Link(self, client, broker)

    def _request(self, frame: bytes) -> Request | None:
        """Parse a frame; None if it is not a transactional librdkafka request."""
        key, version, _, length = struct.unpack(">hhih", frame[4:14])
        at = 14 + max(length, 0)
        if frame[14:at] != b"rdkafka" or key not in _FLEXIBLE:
            return None
        if version >= _FLEXIBLE[key]:
            # Behind the header's tags, of which there are none.
            size = frame[at + 1] - 1
            at = at + 2
        else:
            size = struct.unpack(">h", frame[at : at + 2])[0]
            at = at + 2
        if size < 0:
            return None
        transactional_id = frame[at : at + size].decode()
        with self._lock:
            self.seen[key, transactional_id] += 1
            return Request(
                Api(key), transactional_id, self.seen[key, transactional_id], frame
            )

    def hold(self, request: Request) -> None:
        with self._lock:
            self.held.append(request)


class _Link:
    def __init__(
        self, proxy: Proxy, client: socket.socket, broker: socket.socket
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._broker = broker
        self._losing = False
        for run in (self._requests, self._answers):
            threading.Thread(
                target=self._until_closed, args=(run,), daemon=True
            ).start()

    def _until_closed(self, run: Callable[[], None]) -> None:
        with suppress(OSError):
            run()
        for each in (self._client, self._broker):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _requests(self) -> None:
        waiting: bytes | None = None  # for the frame behind it
        for frame in _frames(self._client):
            request = None if frame is None else self._proxy._request(frame)
            fate = Fate.PASS if request is None else self._proxy.rule(request)
            if request is not None and fate is Fate.HOLD:
                self._proxy.hold(request)
                return
            if fate is Fate.SWAP and waiting is None:
                waiting = frame
                continue
            self._losing |= fate is Fate.LOSE
            for each in (frame, waiting):
                if each is not None:
                    self._broker.sendall(each)
            waiting = None
            if request is not None and fate is Fate.REPEAT:
                self._proxy.deliver(request)

    def _answers(self) -> None:
        while (data := self._broker.recv(1 << 16)) and not self._losing:
            self._client.sendall(data)


def _frames(source: socket.socket) -> Iterator[bytes | None]:
    """Yield the frames of a connection until it ends; None when none came for `_SWAP_S`."""
    coming = select.poll()
    buffer = b""
    coming.register(source, select.POLLIN)
    while True:
        while len(buffer) < 4 or len(buffer) < 4 + struct.unpack(">i", buffer[:4])[0]:
            if not coming.poll(_SWAP_S * 1000):
                yield None
            elif data := source.recv(1 << 16):
                buffer += data
            else:
                return
        end = 4 + struct.unpack(">i", buffer[:4])[0]
        frame = buffer[:end]
        buffer = buffer[end:]
        yield frame


@contextmanager
def proxied_broker(further: str = "") -> Iterator[Proxy]:
    """Yield a proxy with its own broker; clients connect to `proxy.port`."""
    port = fixed_port()
    with Proxy(port) as proxy:
        advertised = f"advertised.listeners=PLAINTEXT://127.0.0.1:{proxy.port}\n"
        with own_broker(advertised + further, port=port):
            yield proxy
