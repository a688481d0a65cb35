"""One worker name on a real broker: its workers, their faults, and the checks at the end."""

import random
import re
import shutil
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import msgspec

from tests.admin import delete_topics
from tests.chaos.checks import compare, one_tick_once, uncommitted_agree
from tests.chaos.faults import spoil_copy
from tests.chaos.oracle import GRACE_MS, KEYS, LABELS, Oracle, Totals, without_ticks
from tests.chaos.schedule import CLOCKS_MS, RANDOM, Act, Segment, Start
from tests.chaos.steps import BROKER
from tests.chaos.worker import Plan, Planned, Workers
from tests.worker.growing import grow
from tests.worker.harness import Site, assert_contiguous, known, now_ms, unk, until
from workers.agents.topics import inspect_topics

# Beyond the session's timeout, so that the group has given the partitions to others.
_STOPPED_S = 2.0
# After a pause of its process, Faust reports it, and librdkafka that newer producers fenced its own;
# on a wrong clock events are rejected.
_UNEXPECTED = re.compile(
    r"Traceback|(CRITICAL| ERROR) (?!.*(keepalive is not responding|rdkafka#|records are rejected))"
)
_DATED = re.compile("the broker refuses a record: .*is this machine's clock")
#: Longer than the timeout of a transaction.
OWNERS = 2
SLOTS = ("one", "two")
#: Partitions that the first events topic gets.
MORE = 2
LAST_MS = 2_000
#: The longest ticks of segments without a wrong clock.
TICKS_MS = 2_000


class End(msgspec.Struct, omit_defaults=True):
    """An act that was carried out, and how long each partition of that worker waited for a commit."""

    kind: str
    step: str
    recovered_s: list[float] = []
    #: Those of partitions whose next owners were ended as well.
    disturbed_s: list[float] = []


class Result(msgspec.Struct, omit_defaults=True):
    segment: int
    session_s: float
    ends: list[End] = []
    events: int = 0
    ticks: int = 0
    snapshots: int = 0
    #: Records that only readers of uncommitted records see.
    aborted: int = 0
    #: On a wrong clock: events too far from it.
    rejected: int = 0
    seconds: float = 0.0
    #: Longest time between two commits of any partition.
    stalled_s: float = 0.0
    spoilt: list[str] = []
    #: What was wrong; empty if nothing.
    wrong: str = ""


def site_of(bootstrap: str, directory: Path, segment: Segment) -> Site:
    by_user = {"max_items_per_user": 5} if segment.unit == "user" else {}
    more: dict[str, Any] = dict(by_user)
    if segment.horizon:
        more["horizon"] = segment.horizon
    if segment.clock.endswith("y"):
        more["tick"] = "7d"  # of one second there would be 31 million to publish
    second = {} if "tick" in more else {"tick": "2s"}
    histograms = (
        unk("unknown", **more),
        known(
            "known",
            keys=KEYS,
            max_items=3,
            max_count=2,
            domain=LABELS[:30],
            split=OWNERS,
            **(more | second),
        ),
    )
    privacy: dict[str, Any] = {"unit": segment.unit, "rekey": segment.rekey}
    if segment.ceiling:
        privacy |= {"max_epsilon": 1000.0, "max_delta": 0.5}
    events = {"grace": f"{GRACE_MS}ms"} | (
        {"user": "who"} if segment.unit == "user" else {}
    )
    kinds: dict[str, Any] = {
        "privacy": privacy,
        "events": events,
        "topics": segment.topics,
    }
    if segment.rekey:
        kinds["worker"] = {"user_partitions": 3}
    return Site(bootstrap, directory, histograms, owners=OWNERS, **kinds)


@dataclass
class Slot:
    """A place for one worker process after another, with one `data_dir`."""

    name: str
    start: Start
    worker: Planned | None = None
    at_s: float = 0.0
    #: When its next act became due; None while it is stopped.
    armed_s: float = 0.0
    thaw_s: float | None = None
    left: list[Act] = field(default_factory=list)
    lines: int = 0
    ended: bool = False

    def vacate(self, now_s: float) -> None:
        """Note that its worker ended: the next one begins after a while."""
        self.ended = True
        self.left = []
        self.at_s = 0.0
        self.armed_s = now_s + self.start.wait_s

    @property
    def over(self) -> bool:
        return self.ended or not (self.left or self.thaw_s)


@dataclass
class Ended:
    at_s: float
    act: Act
    worker: Planned
    who: str


class Running:
    """A segment at work."""

    def __init__(
        self,
        bootstraps: dict[str, str],
        directory: Path,
        segment: Segment,
        workers: Workers,
        calm: threading.Event,
        broker: Path | None = None,
    ) -> None:
        """`bootstraps` by slot; that of "" is everyone else's. `calm`: brokers have no trouble.

        `broker` is the file with the number of the only broker's process.
        """
        self.segment = segment
        self._workers = workers
        self._bootstraps = bootstraps
        self._calm = calm
        self._broker = broker
        self.site = site_of(bootstraps[""], directory, segment)
        lanes = list(
            dict.fromkeys(histogram.lane for histogram in self.site.settings.histograms)
        )
        self.oracle = Oracle(segment, lanes)
        self._rng = random.Random(segment.seed)
        self._queue = list(segment.starts)
        self._slots = [Slot(name, Start([])) for name in SLOTS]
        self._processes: list[Planned] = []
        self._ends: list[Ended] = []
        self._spoilt: list[str] = []

    @property
    def kills_broker(self) -> bool:
        """Return whether a worker of this segment may yet kill the broker."""
        left = [act for start in self._queue for act in start.acts]
        return any(
            act.kind == BROKER
            for act in chain(left, *(slot.left for slot in self._slots))
        )

    def run(self) -> Result:
        began_s = time.monotonic()
        site = self.site
        begun_ms = now_ms()
        for partition, event in self.oracle.backlog(begun_ms - GRACE_MS):
            site.produce(partition, [event], flush=False)
        site.produce(0, [])
        try:
            for slot in self._slots:
                self._begin(slot)
            last = self._load(began_s)
            for slot in self._slots:
                self._finish(slot)
            if self.segment.clock:
                self._await_accounted()
            else:
                self._close_ticks(last)
                self._await_published(last)
            self._stop()
        finally:
            for process in self._processes:
                process.signal(signal.SIGCONT)
                process.kill()
        return self._check(time.monotonic() - began_s)

    def _load(self, began_s: float) -> int:
        """Send events until all acts and troubles are over; return the time of the last one."""
        segment = self.segment
        sent = 0
        last = now_ms()
        while self._queue or not (
            self._calm.is_set()
            and all(slot.over for slot in self._slots)
            and self._all_read()
        ):
            due = int((time.monotonic() - began_s) * segment.rate)
            for _ in range(due - sent):
                last = now_ms() + segment.ahead_ms
                partition, event = self.oracle.event(last - self._rng.randrange(2_000))
                self.site.produce(partition, [event], flush=False)
            sent = max(sent, due)
            self.site.producer.poll(0)
            for slot in self._slots:
                self._look(slot)
            time.sleep(0.03)
        self.site.produce(0, [])
        return last

    def _begin(self, slot: Slot) -> None:
        slot.start = start = self._queue.pop(0) if self._queue else Start([])
        if start.raises:
            self._raise_generation(slot)
        if start.grows:
            topic, partitions = next(iter(self.site.topics.items()))
            grow(self.site, topic, partitions + MORE)
            self.oracle.grow(MORE)
        directory = self.site.directory
        if start.copy:
            own, other = (
                directory / name for name in (slot.name, self._other(slot).name)
            )
            spoil_copy(
                start.copy, own, other, directory / f"{slot.name}.old", self._rng
            )
            self._spoilt.append(f"data_dir {start.copy}")
        number = len(self._processes) + 1
        document = self.site.document
        document = document | {
            "worker": document["worker"] | {"data_dir": slot.name},
            "kafka": {"bootstrap": self._bootstraps[slot.name]},
        }
        acts = [
            (act.kind, act.step, act.nth, act.of)
            for act in start.acts
            if act.step != RANDOM
        ]
        journal = directory / f"worker-{number}.journal"
        plan = Plan(str(journal), acts, self.segment.session_s)
        plan.clock_ms = CLOCKS_MS.get(start.clock, 0)
        plan.disk = start.disk
        plan.broker = "" if self._broker is None else str(self._broker)
        config = self.site.write(document, f"{slot.name}.toml")
        log = journal.with_suffix(".log")
        slot.worker = None
        slot.left = list(start.acts)
        slot.lines = 0
        slot.ended = False
        slot.worker = self._workers.start(config, log, plan)
        slot.armed_s = time.monotonic()
        slot.thaw_s = None
        self._processes.append(slot.worker)
        self._spoilt += [f"disk {start.disk}"] * bool(start.disk)
        self._spoilt += [f"clock {start.clock}"] * bool(start.clock)

    def _other(self, slot: Slot) -> Slot:
        return self._slots[1 - self._slots.index(slot)]

    def _raise_generation(self, slot: Slot) -> None:
        """End the other worker too: with the old generation it would be refused."""
        other = self._other(slot)
        if other.worker is not None and not other.ended:
            if other.left:
                self._queue.append(Start(other.left))
            self._act(other, Act("kill"))
        for histogram in self.site.document["histogram"]:
            histogram["generation"] = 2
        self.site.rewrite()

    def _look(self, slot: Slot) -> None:
        """Go on with a slot: note what its worker did to itself, act at random moments, restart."""
        worker = slot.worker
        now_s = time.monotonic()
        assert worker is not None
        if slot.ended:
            if now_s >= slot.armed_s:
                self._begin(slot)
            return
        code = worker.process.poll()  # before its last lines are read
        for at_s, what, who in lines_of(worker, slot.lines):
            slot.lines += 1
            kind, _, step = what.partition(" ")
            hit = [
                i
                for i, act in enumerate(slot.left)
                if (act.kind, act.step) == (kind, step)
            ]
            if hit:
                # It may be quicker than an act at a random moment that was to be before it.
                slot.left = slot.left[hit[0] :]
                self._note(slot, slot.left[0], at_s, who)
            elif (
                what == "open"
                and slot.left
                and slot.left[0].step == RANDOM
                and not slot.at_s
            ):
                slot.at_s = at_s
        if slot.ended:
            return
        if slot.thaw_s is not None:
            if now_s >= slot.thaw_s:
                worker.signal(signal.SIGCONT)
                slot.thaw_s = None
                slot.armed_s = now_s
                slot.at_s = now_s
            return
        if (code := worker.process.poll()) is not None:
            if (
                slot.start.clock.startswith("+")
                and code == 2
                and _DATED.search(worker.output())
            ):
                self._queue.append(Start(slot.left))
                self._spoilt.append("clock refused by the broker")
                slot.vacate(now_s)
                return
            raise AssertionError(
                f"a worker ended by itself with {code}:\n{worker.output()[-3000:]}"
            )
        if slot.left:
            act = slot.left[0]
            if act.step == RANDOM:
                if slot.at_s and now_s >= slot.at_s + act.after_s:
                    self._act(slot, act)
            elif now_s >= slot.armed_s + self.segment.patience_s:
                self._act(slot, Act("kill"))

    def _act(self, slot: Slot, act: Act) -> None:
        """Carry out an act from outside."""
        assert slot.worker is not None
        if act.kind == "stop":
            slot.worker.signal(signal.SIGSTOP)
        elif act.kind == "kill":
            slot.worker.kill()
        else:
            slot.worker.signal(signal.SIGTERM)
        self._note(slot, act, time.monotonic(), "")

    def _note(self, slot: Slot, act: Act, at_s: float, who: str) -> None:
        assert slot.worker is not None
        self._ends.append(Ended(at_s, act, slot.worker, who))
        slot.left = slot.left[1:]
        if act.kind == "stop":
            slot.thaw_s = at_s + self.segment.session_s + _STOPPED_S
            return
        if act.kind == BROKER:
            # The next act is at a moment after this one, whether Kafka is back by then or not.
            slot.armed_s = at_s
            slot.at_s = at_s
            return
        code = slot.worker.ended()
        wanted = (-signal.SIGKILL,) if act.kind == "kill" else (0,)
        if code not in wanted:
            raise AssertionError(
                f"exit status {code} after {act}:\n{slot.worker.output()[-3000:]}"
            )
        slot.vacate(time.monotonic())

    def _all_read(self) -> bool:
        """Return whether all partitions of the events topics have joined; start workers for it."""
        if not self.segment.grows:
            return True
        for slot in self._slots:
            self._finish(slot)
        return len(
            inspect_topics(self.site.settings, self.site.connection).origins
        ) == len(self.site.places)

    def _finish(self, slot: Slot) -> None:
        """Give the slot a worker that nothing happens to."""
        if slot.ended:
            self._begin(slot)

    def _close_ticks(self, last_ms: int) -> None:
        """Send an event to every source partition that closes all ticks before the clock would."""
        oracle = self.oracle
        later = last_ms + LAST_MS + GRACE_MS + 2 * TICKS_MS
        still = set(range(self.site.partitions))
        while still:
            partition, event = oracle.event(later)
            if partition in still:
                still.remove(partition)
                self.site.produce(partition, [event])
            else:
                oracle.sent.pop()

    def _await_published(self, last_ms: int) -> None:
        def published() -> bool:
            for slot in self._slots:
                if slot.worker is not None and not slot.worker.running():
                    log = slot.worker.output()[-3000:]
                    raise AssertionError(f"a worker ended by itself at the end:\n{log}")
            return min(self.site.published_to().values()) > last_ms + LAST_MS

        until(published, "everything is published", 180.0)

    def _await_accounted(self) -> None:
        """Wait until every event is counted or rejected: some ticks would close in an hour."""
        wanted = self.oracle.by_label().total()
        until(
            lambda: self._accounted().total() >= wanted,
            "every event is counted or rejected",
        )

    def _accounted(self) -> Counter[Totals]:
        """Return counts whatever their tick, with those of rejected events."""
        values = [value for value, _ in self.site.rejects() if value is not None]
        rejected = [msgspec.json.decode(value) for value in values]
        return without_ticks(self.site.contributed()) + self.oracle.by_label(rejected)

    def _stop(self) -> None:
        ended = [slot.worker.stop() for slot in self._slots if slot.worker is not None]
        assert ended == [0, 0], f"exit statuses {ended}"

    def _check(self, seconds: float) -> Result:
        site = self.site
        segment = self.segment
        if twice := self.oracle.read_back(site):
            print(f"segment {segment.number}: {twice} events were produced twice")
        if segment.clock:
            compare(self._accounted(), self.oracle.by_label())
        else:
            compare(site.contributed(), self.oracle.expected(site))
        snapshots = site.snapshots()
        if not segment.raises:
            assert_contiguous(snapshots)
        ticks = one_tick_once(snapshots)
        aborted = uncommitted_agree(site, OWNERS) - len(snapshots)
        site.await_audit()
        for process in self._processes:
            said = [
                line
                for line in process.output().splitlines()
                if _UNEXPECTED.search(line)
            ]
            assert not said, f"{process.log}: {said[:3]}"
        return Result(
            segment.number,
            segment.session_s,
            list(self._recoveries()),
            len(self.oracle.sent),
            ticks,
            len(snapshots),
            aborted,
            len(site.rejects()),
            round(seconds, 1),
            round(self._stalled(), 1),
            self._spoilt,
        )

    def _commits(self) -> dict[str, list[float]]:
        """Return the times of commits by transactional id."""
        commits: dict[str, list[float]] = defaultdict(list)
        for process in self._processes:
            for at_s, what, who in lines_of(process):
                if what == "commit":
                    commits[who].append(at_s)
        return commits

    def _stalled(self) -> float:
        found = map(sorted, self._commits().values())
        return max(
            (after - at for each in found for at, after in pairwise(each)), default=0.0
        )

    def _recoveries(self) -> Iterator[End]:
        """Yield every act with the time from it to the next commit of each partition held then."""
        commits = self._commits()
        held = {process: list(lines_of(process)) for process in self._processes}
        for ended in self._ends:
            mine = {ended.who} & commits.keys()
            for at_s, what, who in held[ended.worker]:
                if at_s <= ended.at_s and what == "open":
                    mine.add(who)
                elif at_s <= ended.at_s and what == "close":
                    mine.discard(who)
            end = End(ended.act.kind, ended.act.step)
            for who in sorted(mine):
                after = [at_s for at_s in commits[who] if at_s > ended.at_s]
                if after:
                    others = any(
                        ended.at_s < one.at_s < min(after) for one in self._ends
                    )
                    waits = end.disturbed_s if others else end.recovered_s
                    waits.append(round(min(after) - ended.at_s, 3))
            yield end

    def forget(self) -> None:
        """Delete what the segment leaves behind."""
        delete_topics(self.site.admin, self.site.name)
        shutil.rmtree(self.site.directory)


def lines_of(worker: Planned, since: int = 0) -> Iterator[tuple[float, str, str]]:
    if not worker.journal.exists():
        return
    *lines, _ = worker.journal.read_text().split("\n")
    for line in lines[since:]:
        at_s, what, who = line.split("\t")
        yield float(at_s), what, who
