"""Reading ahead changes nothing but who waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from workers.replay.source import ahead


def test_the_next_piece_is_made_by_another_thread_while_one_is_looked_at() -> None:
    made: list[int] = []
    begun, may = threading.Event(), threading.Event()

    def pieces() -> Iterator[threading.Thread]:
        for i in range(3):
            if i == 1:
                begun.set()
                assert may.wait(60)
            made.append(i)
            yield threading.current_thread()

    found = ahead(pieces())
    first = next(found)
    assert begun.wait(60)  # the second is on its way, though nobody asked for it
    assert made == [0]
    may.set()
    assert [first, *found] == [first] * 3
    assert made == [0, 1, 2]
    assert first is not threading.current_thread()


def test_what_goes_wrong_is_raised_where_the_piece_would_have_come() -> None:
    def pieces() -> Iterator[int]:
        yield 1
        raise OSError("gone")

    found = ahead(pieces())
    assert next(found) == 1
    with pytest.raises(OSError, match="gone"):
        next(found)


def test_who_stops_early_leaves_no_thread_behind() -> None:
    threads = set(threading.enumerate())
    found = ahead(iter(range(1, 1_000)))
    assert next(found) == 1
    found.close()
    assert set(threading.enumerate()) == threads
