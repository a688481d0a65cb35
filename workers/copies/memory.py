"""What a copy is, and one that ends with the process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec

from workers.changes import Change


class Meta(msgspec.Struct, frozen=True):
    """What a copy says of itself, written with every batch."""

    topic: str
    partition: int
    topic_id: str | None
    offset: int
    written_s: float


class Copy(Protocol):
    """Where the keys and values are; whatever goes wrong with it is `CopyFailed`."""

    def get(self, key: bytes) -> bytes | None: ...
    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]: ...
    def write(self, changes: Iterable[Change], meta: Meta | None) -> None: ...
    def meta(self) -> Meta | None: ...
    def wiped(self) -> Copy: ...
    def close(self) -> None: ...


class Memory:
    """A copy that ends with the process: for tests, replay and the embedded cluster."""

    def __init__(self) -> None:
        self._data: dict[bytes, bytes] = {}
        self._meta: Meta | None = None

    def get(self, key: bytes) -> bytes | None:
        return self._data.get(key)

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(item for item in self._data.items() if item[0].startswith(prefix)))

    def write(self, changes: Iterable[Change], meta: Meta | None) -> None:
        for key, value in changes:
            if value is None:
                self._data.pop(key, None)
            else:
                self._data[key] = value
        self._meta = meta

    def meta(self) -> Meta | None:
        return self._meta

    def wiped(self) -> Copy:
        return Memory()

    def close(self) -> None:
        pass
