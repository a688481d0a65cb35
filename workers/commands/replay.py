"""`quietcount replay`: a file of events in, snapshots and an exact summary out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from workers.agents.snapshots import Snapshot
from workers.commands.progress import Progress
from workers.errors import SettingsError
from workers.mechanisms.noise import NoiseKey
from workers.replay.offline import Summary, open_lines, replay
from workers.settings import Settings, read_key

REJECTS_SHOWN = 10


def replay_file(settings: Settings, *, source: str, snapshots: str | None) -> int:
    """Runs the histograms over `source`; snapshots go to the file `snapshots`, one JSON object a line.

    Returns:
        The exit code: 0, also when lines were rejected.
    """
    if snapshots is not None and _same_file(source, snapshots):
        raise SettingsError(f"--snapshots {snapshots}: it is the input; another file")
    key = NoiseKey(read_key(settings.worker.key_file))
    with open_lines(source) as lines, _opened(snapshots) as write, Progress() as progress:
        summary = replay(settings, key, iter(lines), write, lambda summary: progress.update(_counts(summary)))
        for line in _report(summary):
            progress.print(line)
    return 0


def _same_file(source: str, snapshots: str) -> bool:
    try:
        return "-" not in (source, snapshots) and Path(source).samefile(snapshots)
    except OSError:
        return False


def _counts(summary: Summary) -> str:
    rejects = sum(summary.rejects.values())
    return f"{summary.events:,} events, {rejects:,} rejected, {summary.snapshots:,} snapshots, {summary.seconds:.1f} s"


def _report(summary: Summary) -> Iterator[str]:
    """What to say at the end."""
    yield f"replay: {_counts(summary)} (exact: for the operator only)"
    for reason, times in summary.rejects.most_common():
        yield f"  {times:,} lines rejected: {reason}"
    for number, reason in summary.first_rejects[:REJECTS_SHOWN]:
        yield f"  line {number:,}: {reason}"
    if sum(summary.rejects.values()) > REJECTS_SHOWN:
        yield "  ..."


@contextmanager
def _opened(name: str | None) -> Iterator[Callable[[Snapshot], object]]:
    """What takes each snapshot. A file appears under its name when it is complete, never half written."""
    if name is None:
        yield lambda snapshot: None
    elif name == "-":
        yield _writer(sys.stdout.buffer)
    else:
        path = Path(name)
        part = path.with_name(path.name + ".part")
        try:
            file = part.open("wb")
        except OSError as error:
            raise SettingsError(f"--snapshots {name}: {error.strerror}") from None
        try:
            with file:
                yield _writer(file)
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _writer(file: IO[bytes]) -> Callable[[Snapshot], object]:
    return lambda snapshot: file.write(snapshot.value + b"\n")
