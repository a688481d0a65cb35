"""What is read of a file is read in a thread, while what was read before it is counted."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def ahead(pieces: Iterator[T]) -> Generator[T]:
    """Yield what an iterator yields, which makes the next one in a thread meanwhile.

    Args:
        pieces: which nothing else uses; it must not wait for somebody who may never come, like the
            writer of a pipe: whoever stops early waits until the next one is made. What it gives
            must not be changed by it later.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="read-ahead") as reader:
        coming = reader.submit(next, pieces, None)
        while (piece := coming.result()) is not None:
            coming = reader.submit(next, pieces, None)
            yield piece
