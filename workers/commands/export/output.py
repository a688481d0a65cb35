"""State of an export: the selection, and the next offset of every partition.

It is committed with the rows that it covers: a run that is killed anywhere leaves each row once.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from workers.client.tables import Tables
from workers.runtime.errors import SettingsError
from workers.runtime.printing import printable

_LOCK = ".lock"


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Content of an output; `histograms` is empty for all of the settings.

    Its ticks end after `since_ms`, and up to `until_ms`; None: no bound.
    """

    worker: str
    format: str
    histograms: tuple[str, ...]
    since_ms: int | None
    until_ms: int | None


class Progress(msgspec.Struct, frozen=True):
    """A topic, and the next offset of each of its partitions.

    `topic_id` tells it from one that was made anew with its name; the embedded cluster has none.
    """

    topic_id: str | None
    next: dict[int, int]


class State(msgspec.Struct, frozen=True):
    """What an output covers: the selection, and how far each topic was exported."""

    selection: Selection
    topics: dict[str, Progress]


class Output(Protocol):
    """Where an export writes: files, or Iceberg tables."""

    def load(self) -> State | None:
        """Return the state of the last commit, None before the first."""

    def commit(self, rows: Tables, state: State) -> None:
        """Add rows and their state in one step: a crash keeps both or neither."""


@contextmanager
def locked(directory: Path, marker: str) -> Iterator[None]:
    """Lock a directory, made if missing, for the block: no other export writes there meanwhile.

    It must be empty, or have the file `marker`, which every export of this format has.
    """
    try:
        str(directory.absolute()).encode()
    except UnicodeEncodeError:
        raise SettingsError(
            f"--output {printable(str(directory))}: the path is not UTF-8; give another directory"
        ) from None
    directory.mkdir(parents=True, exist_ok=True)
    names = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    if names and marker not in names:
        raise SettingsError(
            f"--output {directory}: not empty, and no export of this format; give another directory"
        )
    with (directory / _LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SettingsError(
                f"--output {directory}: another export writes there now"
            ) from None
        yield
