"""`quietcount` with a profile: `python -m bench.throughput.sampled OUT run -c settings.toml`.

Every 5 ms a thread notes where every other thread is (its innermost line of this project), and gives that line the time
of the processor that the thread has used since the last look. So threads at work side by side are all seen, and what a
compiled loop uses is found at the line that called it. `table` prints what OUT holds.
"""

import json
import re
import sys
import time
from collections import Counter
from pathlib import Path
from threading import Event, Thread, enumerate
from types import FrameType

_APART_S = 0.005
_WRITTEN_APART_S = 1.0
_PROJECT = f"{Path(__file__).resolve().parents[2]}/"


class Sampler(Thread):
    """Adds up what each thread used, by where it was."""

    def __init__(self, out: Path) -> None:
        super().__init__(daemon=True, name="sampler")
        self._out = out
        self._ended = Event()
        self._used: Counter[tuple[str, str]] = Counter()

    def run(self) -> None:
        last: dict[int, int] = {}
        written_s = time.monotonic()
        while not self._ended.wait(_APART_S):
            frames = sys._current_frames()
            for thread in enumerate():
                frame = frames.get(thread.ident or 0)
                if thread is self or thread.ident is None or frame is None:
                    continue
                try:
                    now = time.clock_gettime_ns(
                        time.pthread_getcpuclockid(thread.ident)
                    )
                except OSError:  # it has ended
                    continue
                self._used[kind(thread.name), place(frame)] += now - last.get(
                    thread.ident, 0
                )
                last[thread.ident] = now
            if time.monotonic() > written_s + _WRITTEN_APART_S:
                self._write()
                written_s = time.monotonic()

    def end(self) -> None:
        """Stop, and write what was found."""
        self._ended.set()
        self.join()
        self._write()

    def _write(self) -> None:
        threads = [[*spot, spent / 1e9] for spot, spent in self._used.most_common()]
        # What librdkafka's own threads use is in this alone.
        self._out.write_text(
            json.dumps({"process_s": time.process_time(), "threads": threads})
        )


def kind(name: str) -> str:
    """Return what a thread is for, by its name: a stage, the event loop, or others."""
    if found := re.search(r"(contribute|release)", name):
        return found[1]
    return "event loop" if name == "MainThread" else "others"


def place(frame: FrameType) -> str:
    """Return the innermost line of this project in a stack, or else its innermost line.

    What a kernel uses counts for the line that calls it.
    """
    line: FrameType | None = frame
    while line is not None:
        file = line.f_code.co_filename
        is_ours = file.startswith(_PROJECT) and "/site-packages/" not in file
        if is_ours and not file.endswith("/arrays/compiled.py"):
            name = file.removeprefix(_PROJECT)
            return f"{name}:{line.f_lineno} {line.f_code.co_name}"
        line = line.f_back
    return f"{Path(frame.f_code.co_filename).name} {frame.f_code.co_name}"


def table(out: Path, events: int, most: int) -> None:
    """Print where the time went, microseconds an event, the largest first."""
    found = json.loads(out.read_text())
    seen = sum(spent for _, _, spent in found["threads"])
    print(
        f"    {found['process_s'] / events * 1e6:.3f} us of CPU an event in all, start-up "
        "included; of these"
    )
    print(
        f"    {(found['process_s'] - seen) / events * 1e6:8.3f}  librdkafka's threads and the "
        "sampler"
    )
    stages: Counter[str] = Counter()
    for stage, _, spent in found["threads"]:
        stages[stage] += spent
    for stage, spent in stages.most_common():
        print(f"    {spent / events * 1e6:8.3f}  {stage}")
    print("    by line:")
    for stage, at, spent in found["threads"][:most]:
        print(f"    {spent / events * 1e6:8.3f}  {stage:11} {at}", flush=True)


def main() -> None:
    """Run the command under the sampler."""
    from workers.cli import execute

    sampler = Sampler(Path(sys.argv[1]))
    sampler.start()
    try:
        code = execute(sys.argv[2:])
    finally:
        sampler.end()
    sys.exit(code)


if __name__ == "__main__":
    main()
