"""Feed a target mutated inputs and collect findings.

An input that reaches an outcome for the first time becomes a seed. Inputs depend on the seed of the
run and the target only, so a run can be repeated.
"""

import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TypeVar

from tests.events.comparison import Differs
from tests.fuzz.mutations import Mutator
from workers.runtime.errors import QuietcountError

T = TypeVar("T")

#: Processor time, of the whole process, after which an input is interrupted.
SECONDS_MAX = 1.0
#: The same before any input counts: kernels are compiled at their first call.
COMPILING_S = 120.0
#: How often the peak of memory is read.
WINDOW = 200
#: Different findings after which a target ends.
FINDINGS_MAX = 10
SHOWN_BYTES = 600
#: Outcomes whose first inputs become seeds.
KEPT_MAX = 2_000


class Hung(BaseException):
    """The input took too long. Not an Exception, so that no target catches it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is fuzzed: `run` returns the outcome of an input, in a word or two.

    `documented` are the exceptions that it may raise; `memory_bytes` bounds the growth of the process, at its
    peak, over its size after the seeds were read; `keeps`: new outcomes become seeds. `run_many`, if any,
    runs `batch` inputs in less time; where it raises or takes too long, `run` judges each of them.
    """

    name: str
    run: Callable[[bytes], str]
    seeds: Sequence[bytes]
    tokens: Sequence[bytes] = ()
    documented: tuple[type[Exception], ...] = ()
    memory_bytes: int = 64 << 20
    max_bytes: int = 20_000
    keeps: bool = True
    close: Callable[[], None] = lambda: None
    run_many: Callable[[Sequence[bytes]], Sequence[str]] | None = None
    batch: int = 1

    def with_seeds(self, more: Iterable[bytes]) -> "Target":
        return replace(self, seeds=[*self.seeds, *more])


@dataclass(frozen=True, slots=True)
class Finding:
    what: str
    data: bytes
    number: int


@dataclass(slots=True)
class Result:
    target: Target
    seed: int
    inputs: int = 0
    seconds: float = 0.0
    grown_bytes: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: dict[str, Finding] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        rate = self.inputs / max(self.seconds, 1e-9)
        grown = self.grown_bytes >> 20
        most = self.target.memory_bytes >> 20
        yield (
            f"{self.target.name}: {self.inputs:,} inputs, {rate:,.0f} a second, "
            f"grown by {grown} MiB of {most}, {len(self.outcomes)} outcomes"
        )
        for outcome, number in self.outcomes.most_common(12):
            yield f"    {number:9,}  {outcome}"
        if (
            more := self.outcomes.total()
            - sum(n for _, n in self.outcomes.most_common(12))
        ) > 0:
            yield f"    {more:9,}  {len(self.outcomes) - 12} others"
        for outcome, found in self.findings.items():
            shown = found.data.hex()[: 2 * SHOWN_BYTES]
            cut = (
                ""
                if len(found.data) <= SHOWN_BYTES
                else f"... ({len(found.data):,} bytes)"
            )
            yield f"  FOUND at input {found.number:,}: {found.what}"
            yield f"    {shown}{cut}"
            alone = f"--hex '{shown}'"
            whole = cut or outcome == "together"
            again = f"--seed {self.seed} --inputs {found.number}" if whole else alone
            yield f"    python -m tests.fuzz --only {self.target.name} {again}"


def fuzz(
    target: Target, inputs: int, seed: int, until: Callable[[], bool] = lambda: False
) -> Result:
    """Run a target's seeds and then mutated inputs, `inputs` in total."""
    with limited():
        for data in target.seeds:
            with suppress(Exception, Hung):
                _timed(partial(target.run, data), COMPILING_S)
    result = Result(target, seed)
    rng = random.Random(f"{seed} {target.name}")
    seeds = list(target.seeds)
    mutator = Mutator(rng, target.tokens, target.max_bytes)
    known: set[str] = set()
    warmed = min(inputs, len(seeds))
    began = time.monotonic()
    memory = Memory()
    window = list[bytes]()
    with limited():
        while (
            result.inputs < inputs
            and len(result.findings) < FINDINGS_MAX
            and not until()
        ):
            fresh = result.inputs >= warmed
            if fresh:
                some = [
                    mutator.mutated(seeds)
                    for _ in range(min(target.batch, inputs - result.inputs))
                ]
            else:
                some = list(
                    target.seeds[
                        result.inputs : min(warmed, result.inputs + target.batch)
                    ]
                )
            for data, (outcome, found) in zip(some, _many(target, some), strict=True):
                result.inputs += 1
                result.outcomes[outcome] += 1
                if found is not None:
                    result.findings.setdefault(
                        outcome, Finding(found, data, result.inputs)
                    )
                elif outcome not in known and target.keeps and len(known) < KEPT_MAX:
                    known.add(outcome)
                    if fresh:
                        seeds.append(data)
            window += some
            if result.inputs == warmed:
                memory.begin()
                window.clear()
            elif result.inputs > warmed and len(window) >= WINDOW:
                _look(result, memory, window)
                window.clear()
        if window and result.inputs > warmed:
            _look(result, memory, window)
    result.seconds = time.monotonic() - began
    return result


def repeat(target: Target, data: bytes) -> Result:
    """Run a single input."""
    result = Result(target, 0, 1)
    with limited():
        outcome, found = _one(target, data)
    result.outcomes[outcome] += 1
    if found is not None:
        result.findings[outcome] = Finding(found, data, 1)
    return result


def _many(target: Target, some: Sequence[bytes]) -> Sequence[tuple[str, str | None]]:
    together: str | None = None
    if target.run_many is not None:
        try:
            return [
                (said, None)
                for said in _timed(partial(target.run_many, some), SECONDS_MAX)
            ]
        except Hung:
            pass
        except Exception as error:  # noqa: BLE001  # whatever it is, `run` says of which input
            together = f"only in a batch with those before it: {repr(error)[:500]}"
    found = [_one(target, data) for data in some]
    if together is not None and all(what is None for _, what in found):
        found[-1] = "together", together
    return found


def _one(target: Target, data: bytes) -> tuple[str, str | None]:
    """Return an input's outcome, and its finding if it is one."""
    try:
        try:
            return _timed(partial(target.run, data), SECONDS_MAX), None
        except Hung:  # again: a kernel may have been compiled
            return _timed(partial(target.run, data), SECONDS_MAX), None
    except target.documented as error:
        return f"{type(error).__name__}: {_words(error)}", None
    except Hung:
        return "hung", f"more than {SECONDS_MAX:g} s of processor time"
    except Exception as error:  # noqa: BLE001  # whatever it is, it is the finding
        frames = traceback.extract_tb(error.__traceback__)
        said = "differs" if isinstance(error, Differs) else type(error).__name__
        place = f"{said} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
        ways = [frame for frame in frames if "/workers/" in frame.filename][-3:]
        way = "".join(f", {Path(f.filename).name}:{f.lineno}" for f in reversed(ways))
        return place, f"{place}{way}: {str(error)[:500]}"


def _timed(run: Callable[[], T], seconds: float) -> T:
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return run()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _words(error: Exception) -> str:
    """Return an error's message without what it quotes: two such errors are one outcome."""
    text = str(error).split("\n")[0]
    kept = [word for word in text.split() if word.isalpha() and len(word) <= 20]
    return (
        " ".join(kept[:8])
        if isinstance(error, QuietcountError)
        else type(error).__name__
    )


def _look(result: Result, memory: "Memory", window: Sequence[bytes]) -> None:
    grown = memory.grown()
    result.grown_bytes = max(result.grown_bytes, grown)
    if grown <= result.target.memory_bytes:
        return
    # The largest of the window, run alone: what it leaves or takes at its peak.
    worst = window[-1]
    most = -1
    for data in window:
        memory.begin()
        _one(result.target, data)
        if (alone := memory.grown()) > most:
            worst = data
            most = alone
    what = f"the process grew by {grown >> 20} MiB, at most {result.target.memory_bytes >> 20}; this input alone by {most >> 20}"
    result.findings.setdefault("memory", Finding(what, worst, result.inputs))
    memory.begin()


@contextmanager
def limited() -> Iterator[None]:
    """Interrupt what takes too long; for the main thread, while it runs Python."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise Hung

    before = signal.signal(signal.SIGPROF, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Memory:
    """Peak of the process's resident memory; 0 where the system does not tell."""

    def __init__(self) -> None:
        self._status = Path("/proc/self/status")
        self._clear = Path("/proc/self/clear_refs")
        self._first = 0
        self.begin()

    def begin(self) -> None:
        self._reset()
        self._first = self._read("VmRSS:")

    def grown(self) -> int:
        """Return the growth of the peak since `begin`, and reset the peak."""
        peak = self._read("VmHWM:")
        self._reset()
        return max(0, peak - self._first)

    def _reset(self) -> None:
        try:
            self._clear.write_text("5")  # the peak becomes what is resident now
        except OSError:
            self._status = Path("/dev/null")

    def _read(self, name: str) -> int:
        for line in self._status.read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
        return 0
