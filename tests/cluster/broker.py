"""A simulated Kafka: logs with transactions, and the transaction coordinator.

What matters to `workers/kafka/transaction.py` is as in Apache Kafka with EndTxn v1: a coordinator
that compares epochs only, markers that follow its answer, sequence numbers with five remembered
batches, the last stable offset, and (`verifies`) the leader's question to the coordinator before
the first record of a transaction (`transaction.partition.verification.enable`).
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from confluent_kafka import KafkaError

from tests.cluster.loop import Loop

OK = 0
Partition = tuple[str, int]
Headers = Sequence[tuple[str, bytes | None]]
#: An error code (0: none), and what it answers with: pid and epoch, or an offset.
Reply = tuple[int, int, int]
_REMEMBERED = 5


@dataclass(slots=True, eq=False)
class Attempt:
    """One client's transaction: what it should write, and the state it continues."""

    owner: str
    based_on: int
    number: int
    messages: int = 0
    commits: bool = False
    committed: int = 0


@dataclass(slots=True, eq=False)
class Record:
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    time_ms: int
    pid: int = -1
    epoch: int = -1
    attempt: Attempt | None = None
    #: None while its transaction is open.
    committed: bool | None = None
    control: bool = False


@dataclass(slots=True)
class ProducerState:
    epoch: int
    last: int = -1
    batches: deque[tuple[int, int]] = field(
        default_factory=lambda: deque(maxlen=_REMEMBERED)
    )


class Log:
    def __init__(self, where: Partition) -> None:
        self.where = where
        self.records: list[Record] = []
        self.producers: dict[int, ProducerState] = {}
        #: First offsets of open transactions, by producer id.
        self.open: dict[int, int] = {}

    def __str__(self) -> str:
        return f"{self.where[0]}[{self.where[1]}]"

    @property
    def end(self) -> int:
        return len(self.records)

    @property
    def stable(self) -> int:
        return min(self.open.values(), default=self.end)

    def append(self, record: Record) -> None:
        record.offset = self.end
        self.records.append(record)

    def data(self, start: int, stop: int, *, uncommitted: bool = False) -> list[Record]:
        part = self.records[start:stop]
        return [
            one for one in part if not one.control and (uncommitted or one.committed)
        ]


@dataclass(slots=True)
class Transaction:
    pid: int
    epoch: int = -1
    state: str = "empty"
    partitions: set[Partition] = field(default_factory=set)
    began_s: float = 0.0
    unwritten: set[Partition] = field(default_factory=set)

    @property
    def ending(self) -> bool:
        return self.state.startswith("prepare")


class Watcher:
    """Sees every append and marker."""

    def appended(self, log: Log, records: Sequence[Record]) -> None: ...

    def marked(self, log: Log, records: Sequence[Record], committed: bool) -> None: ...


def id_of(topic: str, times_made: int = 1) -> str:
    return f"id-of-{topic}" + "'" * (times_made - 1)


class Broker:
    def __init__(
        self,
        loop: Loop,
        watcher: Watcher,
        *,
        verifies: bool,
        marker_s: Callable[[], float],
    ) -> None:
        self.loop = loop
        self._watcher = watcher
        self.verifies = verifies
        self._marker_s = marker_s
        self.logs: dict[Partition, Log] = {}
        self.transactions: dict[str, Transaction] = {}
        #: Settings of topics, and how often each was created.
        self.configs: dict[str, Mapping[str, str]] = {}
        self._made: Counter[str] = Counter()
        #: Members of the only consumer group.
        self.workers: list[object] = []
        #: Until when the coordinator is moving, and whether it says so or is silent.
        self.moving_until_s = 0.0
        self.silent = False
        self.timed_out = self.refused_late = 0

    def create(self, topic: str, partition: int) -> None:
        self.logs[topic, partition] = Log((topic, partition))

    def create_topic(
        self, topic: str, partitions: int, config: Mapping[str, str]
    ) -> None:
        self._made[topic] += 1
        self.configs[topic] = config
        for partition in range(partitions):
            self.create(topic, partition)

    def delete_topic(self, topic: str) -> None:
        for partition in range(self.partitions(topic)):
            del self.logs[topic, partition]

    def id_of(self, topic: str) -> str:
        """Return an id that no earlier topic of this name had."""
        return id_of(topic, self._made[topic])

    def partitions(self, topic: str) -> int:
        return sum(name == topic for name, _ in self.logs)

    @property
    def moving(self) -> bool:
        return self.loop.now_s < self.moving_until_s

    # ---- requests to the coordinator ----------------------------------------------------------

    def init_producer_id(self, name: str) -> Reply:
        found = self.transactions.get(name)
        if found is None:
            found = self.transactions[name] = Transaction(len(self.transactions) + 1)
        if found.ending:
            return KafkaError.CONCURRENT_TRANSACTIONS, 0, 0
        found.epoch += 1
        if found.state == "ongoing":
            self._end(found, committed=False)
            return KafkaError.CONCURRENT_TRANSACTIONS, 0, 0
        found.state = "empty"
        return OK, found.pid, found.epoch

    def _refusal(self, name: str, pid: int, epoch: int) -> int:
        found = self.transactions.get(name)
        if found is None or found.pid != pid:
            return KafkaError.INVALID_PRODUCER_ID_MAPPING
        return OK if found.epoch == epoch else KafkaError.INVALID_PRODUCER_EPOCH

    def add_partitions(
        self, name: str, pid: int, epoch: int, where: Sequence[Partition]
    ) -> Reply:
        if refused := self._refusal(name, pid, epoch):
            return refused, 0, 0
        found = self.transactions[name]
        if found.ending:
            return KafkaError.CONCURRENT_TRANSACTIONS, 0, 0
        if found.state != "ongoing":
            found.state = "ongoing"
            found.began_s = self.loop.now_s
            found.partitions = set()
        found.partitions.update(where)
        return OK, 0, 0

    def end_transaction(
        self, name: str, pid: int, epoch: int, committed: bool
    ) -> Reply:
        if refused := self._refusal(name, pid, epoch):
            return refused, 0, 0
        found = self.transactions[name]
        word = "commit" if committed else "abort"
        if found.state == "ongoing":
            self._end(found, committed)
            return OK, 0, 0
        if found.state == f"complete {word}":
            return OK, 0, 0
        if found.state == f"prepare {word}":
            return KafkaError.CONCURRENT_TRANSACTIONS, 0, 0
        return KafkaError.INVALID_TXN_STATE, 0, 0

    def _end(self, found: Transaction, committed: bool) -> None:
        word = "commit" if committed else "abort"
        found.state = f"prepare {word}"
        found.unwritten = set(found.partitions)
        for where in sorted(found.partitions):
            self._mark_later(found, where, found.epoch, committed)

    def _mark_later(
        self, found: Transaction, where: Partition, epoch: int, committed: bool
    ) -> None:
        def mark() -> None:
            if self.moving:
                self.loop.at(self.moving_until_s + self._marker_s(), mark)
                return
            self.mark(self.logs[where], found.pid, epoch, committed)
            found.unwritten.discard(where)
            if not found.unwritten and found.ending:
                found.state = found.state.replace("prepare", "complete")

        self.loop.after(self._marker_s(), mark)

    def time_out(self, limit_s: float) -> None:
        """Abort transactions open longer than `limit_s`, and fence their producers."""
        for name, found in self.transactions.items():
            old = self.loop.now_s - found.began_s >= limit_s
            if found.state == "ongoing" and old and not self.moving:
                self.timed_out += 1
                self.loop.note(f"broker: {name} timed out")
                found.epoch += 1
                self._end(found, committed=False)

    # ---- requests to the leaders --------------------------------------------------------------

    def mark(self, log: Log, pid: int, epoch: int, committed: bool) -> None:
        state = log.producers.setdefault(pid, ProducerState(epoch))
        if epoch < state.epoch:
            return
        if epoch > state.epoch:
            log.producers[pid] = ProducerState(epoch)
        first = log.open.pop(pid, None)
        span = [] if first is None else log.records[first:]
        ended = [one for one in span if one.pid == pid and one.committed is None]
        for record in ended:
            record.committed = committed
        log.append(
            Record(0, None, None, (), self.loop.now_ms, pid, epoch, control=True)
        )
        self.loop.note(
            f"{log}: {'commit' if committed else 'abort'} of {len(ended)} records"
        )
        self._watcher.marked(log, ended, committed)

    def produce(
        self,
        name: str,
        pid: int,
        epoch: int,
        log: Log,
        first: int,
        records: Sequence[Record],
    ) -> Reply:
        state = log.producers.get(pid)
        n = len(records)
        if state is not None and epoch < state.epoch:
            return KafkaError.INVALID_PRODUCER_EPOCH, 0, 0
        if state is not None and epoch == state.epoch:
            for known, offset in state.batches:
                if known == first:
                    return OK, offset, 0
        if self.verifies and pid not in log.open:
            found = self.transactions[name]
            if (found.pid, found.epoch) != (pid, epoch):
                self.refused_late += 1
                return KafkaError.INVALID_PRODUCER_EPOCH, 0, 0
            if found.ending:
                return KafkaError.NOT_ENOUGH_REPLICAS, 0, 0
            if found.state != "ongoing" or log.where not in found.partitions:
                self.refused_late += 1
                return KafkaError.INVALID_TXN_STATE, 0, 0
        if state is not None:
            expected = state.last + 1 if epoch == state.epoch else 0
            if first != expected:
                return KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER, 0, 0
        if state is None or epoch > state.epoch:
            state = log.producers[pid] = ProducerState(epoch)
        log.open.setdefault(pid, log.end)
        state.batches.append((first, log.end))
        state.last = first + n - 1
        start = log.end
        for record in records:
            log.append(replace(record, pid=pid, epoch=epoch))
        self._watcher.appended(log, log.records[start:])
        return OK, start, 0
