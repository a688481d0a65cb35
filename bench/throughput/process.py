"""What a running process uses, as Linux tells it: time of the processor, and memory."""

import os
import time
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_APART_S = 0.1


def cpu_s(pid: int) -> float:
    """Return seconds of the processor that a process has used."""
    # The name is in brackets and may hold spaces; user and system time are fields 14 and 15.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def memory(pid: int, of: str = "VmRSS") -> int:
    """Return bytes of resident memory of a process, now or at most (`VmHWM`)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(of)).split()[1]) << 10


@dataclass
class Watch:
    """Notes a process's time of the processor ten times a second, in a thread, while it runs."""

    pid: int
    times_ms: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    peak: int = 0

    def __post_init__(self) -> None:
        self._stop = Event()
        self._thread = Thread(target=self._note, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()

    def _note(self) -> None:
        while not self._stop.is_set():
            try:
                used = cpu_s(self.pid)
                self.peak = memory(self.pid, "VmHWM")
            except (OSError, StopIteration):  # it has ended
                return
            self.times_ms.append(time.time() * 1000)
            self.used_s.append(used)
            self._stop.wait(_APART_S)

    def used_between(self, first_ms: float, last_ms: float) -> float:
        """Return seconds of the processor between two times, to a tenth of a second."""
        return self._used(last_ms) - self._used(first_ms)

    def _used(self, at_ms: float) -> float:
        return self.used_s[min(bisect_left(self.times_ms, at_ms), len(self.used_s) - 1)]
