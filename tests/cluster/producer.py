"""What the worker calls of confluent_kafka, on the simulated broker.

`SimulatedProducer` behaves as librdkafka's transactional producer does in the eyes of
`Transactions`: calls with a timeout whose outcome stays unknown and that go on meanwhile, delivery
reports from `poll`, one request a partition in flight, fatal and abortable errors. Simpler than
librdkafka: it asks for no metadata, and a batch is sent at once.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException

from tests.cluster.broker import OK, Attempt, Partition, Record, Reply
from tests.cluster.loop import Actor, current
from tests.cluster.network import BACKOFF_S, Call, Link, Network

_FENCED = KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED
_LATER = KafkaError.CONCURRENT_TRANSACTIONS, KafkaError.NOT_COORDINATOR
_NO_PARTITION = -1


class SimulatedMessage:
    def __init__(
        self, where: Partition, record: Record, error: KafkaError | None = None
    ) -> None:
        self._where = where
        self._record = record
        self._error = error

    def topic(self) -> str:
        return self._where[0]

    def partition(self) -> int:
        return self._where[1]

    def offset(self) -> int:
        return self._record.offset

    def key(self) -> bytes | None:
        return self._record.key

    def value(self) -> bytes | None:
        return self._record.value

    def headers(self) -> list[tuple[str, bytes | None]]:
        return list(self._record.headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._record.time_ms

    def error(self) -> KafkaError | None:
        return self._error


def partition_of(key: bytes | None, partitions: int) -> int:
    return sum(key or b"") % partitions


Report = Callable[[KafkaError | None, SimulatedMessage], object]
Queued = tuple[Record, Report | None]


class SimulatedProducer:
    def __init__(self, network: Network, name: str) -> None:
        self._network = network
        self._loop = network.loop
        self._name = name
        self._broker = network.broker
        self._actor: Actor = current()
        self._coordinator = Link(network)
        self._leader = Link(network)
        self._pid = self._epoch = -1
        self._asked = False
        self._error: KafkaError | None = None
        self._reports: list[
            tuple[Report | None, KafkaError | None, SimulatedMessage]
        ] = []
        self._next: dict[Partition, int] = {}
        self._attempt = Attempt(name, 0, 0)
        self._attempts = 0
        self._began()

    def _began(self) -> None:
        self._queued: dict[Partition, list[Queued]] = {}
        self._flying: dict[Partition, list[Queued]] = {}
        self._calls: dict[Partition, Call] = {}
        self._added: set[Partition] = set()
        self._adding = self._pumping = self._aborting = False
        self._end: bool | None = None
        self._ended = False

    def __len__(self) -> int:
        pending = (*self._queued.values(), *self._flying.values())
        return sum(map(len, pending)) + len(self._reports)

    # ---- called by the worker -----------------------------------------------------------------

    def list_topics(self, timeout: float) -> None:
        self._actor.park(self._network.delay_s())
        if self._loop.rng.random() < self._network.rates.unread:
            self._actor.park(timeout)
            raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no broker answers"))

    def init_transactions(self, timeout: float) -> None:
        def step() -> bool:
            if not self._asked:
                self._asked = True
                self._ask()
            return self._pid >= 0

        self._until(timeout, step)

    def begin_transaction(self) -> None:
        self._raise()
        self._began()
        self._attempts += 1
        self._attempt = Attempt(
            self._actor.name, self._actor.state_offset, self._attempts
        )

    def produce(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        partition: int = _NO_PARTITION,
        on_delivery: Report | None = None,
        callback: Report | None = None,
        timestamp: int | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        if partition == _NO_PARTITION:
            partition = partition_of(key, self._broker.partitions(topic))
        at = self._loop.now_ms if timestamp is None else timestamp
        self._attempt.messages += 1
        record = Record(0, key, value, headers or (), at, attempt=self._attempt)
        self._queued.setdefault((topic, partition), []).append(
            (record, on_delivery or callback)
        )
        self._pump_later()

    def poll(self, timeout: float) -> None:
        if not self._serve_reports() and timeout:
            self._actor.park(timeout)
            self._serve_reports()

    def flush(self, timeout: float) -> int:
        def delivered() -> bool:
            self._serve_reports()
            return not len(self)

        self._until(timeout, delivered)
        return 0

    def commit_transaction(self, timeout: float) -> None:
        self._attempt.commits = True
        self._until(timeout, lambda: self._finish(committed=True))

    def abort_transaction(self, timeout: float) -> None:
        if self._error is not None and not self._error.fatal():
            self._error = None
        if self._end is True:
            # A commit of unknown outcome: its answer no longer counts.
            self._end = None
            self._ended = False
        self._aborting = True
        # What is in flight is waited for, as in librdkafka: it would arrive after the abort.
        self.purge(in_flight=False)
        self._until(timeout, lambda: self._finish(committed=False))

    def purge(self, in_flight: bool = True) -> None:
        """Drop what waits; with what is in flight, the worker drops the producer too."""
        self._drop(self._queued, KafkaError._PURGE_QUEUE)
        if in_flight:
            for where in self._flying:
                self._calls[where].done = True  # not repeated
            self._drop(self._flying, KafkaError._PURGE_INFLIGHT)
            self.close()

    def close(self) -> None:
        self._coordinator.close()
        self._leader.close()

    # ---- inside -------------------------------------------------------------------------------

    def _drop(self, pending: dict[Partition, list[Queued]], code: int) -> None:
        for where, messages in pending.items():
            for record, report in messages:
                self._reports.append(
                    (report, KafkaError(code), SimulatedMessage(where, record))
                )
        pending.clear()

    def _raise(self) -> None:
        if self._error is not None:
            raise KafkaException(self._error)

    def _until(self, timeout: float, step: Callable[[], bool]) -> None:
        deadline_s = self._loop.now_s + timeout
        while True:
            self._raise()
            if step():
                return
            left_s = deadline_s - self._loop.now_s
            if left_s <= 0:
                raise KafkaException(
                    KafkaError(KafkaError._TIMED_OUT, "timed out", retriable=True)
                )
            self._actor.park(left_s)

    def _serve_reports(self) -> bool:
        reports = self._reports
        self._reports = []
        for report, error, message in reports:
            if report is not None:
                report(error, message)
        return bool(reports)

    def _finish(self, *, committed: bool) -> bool:
        """Send EndTxn once all is delivered; return whether it was answered."""
        self._serve_reports()
        if self._queued or self._flying:
            self._pump()
            return False
        if not self._added and not self._adding:
            return True
        if self._end is None:
            self._end = committed
            self._send_end(committed)
        return self._ended

    def _set_error(self, error: KafkaError) -> None:
        if self._error is None or not self._error.fatal():
            self._error = error
        self._actor.wake()

    def _fail(self, code: int) -> None:
        code = KafkaError._FENCED if code in _FENCED else code
        self._set_error(KafkaError(code, "fatal", fatal=True))

    def _abort(self, code: int) -> None:
        if not self._aborting:
            self._set_error(KafkaError(code, "to be aborted", txn_requires_abort=True))

    def _coordinate(
        self, what: str, serve: Callable[[], Reply], done: Callable[[], None]
    ) -> None:
        """Ask the coordinator until it answers; `done` unless that is an error."""

        def answered(reply: Reply) -> None:
            if reply[0] in _LATER:
                wait_s = self._loop.rng.uniform(0.02, 0.3)
                self._loop.after(wait_s, lambda: self._coordinate(what, serve, done))
            elif reply[0] != OK:
                self._fail(reply[0])
            else:
                self._answer = reply
                done()
                self._actor.wake()

        self._call = Call(what, self._name, serve, answered, True)
        self._coordinator.send(self._call)

    def _ask(self) -> None:
        def done() -> None:
            _, self._pid, self._epoch = self._answer

        name = self._name
        self._coordinate(
            "InitProducerId", lambda: self._broker.init_producer_id(name), done
        )

    def _send_end(self, committed: bool) -> None:
        mine = (self._name, self._pid, self._epoch)
        attempt = self._attempt
        refused = committed and self._loop.rng.random() < self._network.rates.refuses

        def done() -> None:
            if self._attempt is attempt and self._end is committed:
                self._ended = True

        def give_up() -> None:
            if self._attempt is attempt and self._end is committed and not self._ended:
                self._call.done = (
                    True  # not repeated; whether it was carried out is unknown
                )
                self._abort(KafkaError.REQUEST_TIMED_OUT)

        what = f"EndTxn {'commit' if committed else 'abort'} {self._epoch}/{attempt.number}"
        end = self._broker.end_transaction
        self._coordinate(what, lambda: end(*mine, committed), done)
        if refused:
            self._loop.after(self._loop.rng.choice((0.0, 0.002, 0.5)), give_up)

    def _pump_later(self) -> None:
        if not self._pumping:
            self._pumping = True
            self._loop.after(0.005, self._pump)

    def _pump(self) -> None:
        self._pumping = False
        if self._error is not None or self._actor.dead or self._leader.closed:
            return
        new = [where for where in self._queued if where not in self._added]
        if new and not self._adding:
            self._adding = True
            self._add(new)
        for where in [one for one in self._queued if one in self._added]:
            if where not in self._flying:
                self._flying[where] = self._queued.pop(where)
                self._send(where)

    def _add(self, new: list[Partition]) -> None:
        mine = (self._name, self._pid, self._epoch)
        attempt = self._attempt

        def done() -> None:
            if self._attempt is attempt:
                self._adding = False
                self._added.update(new)
                self._pump()

        add = self._broker.add_partitions
        self._coordinate(
            f"AddPartitionsToTxn of {len(new)}", lambda: add(*mine, new), done
        )

    def _send(self, where: Partition) -> None:
        log = self._broker.logs[where]
        sent = self._flying[where]
        attempt = self._attempt
        first = self._next.get(where, 0)
        self._next[where] = first + len(sent)
        mine = (self._name, self._pid, self._epoch)
        records = [record for record, _ in sent]

        def answered(reply: Reply) -> None:
            code, offset, _ = reply
            if self._attempt is not attempt or self._flying.get(where) is not sent:
                return  # purged
            # the transaction before is ending
            if code == KafkaError.NOT_ENOUGH_REPLICAS:
                again = self._calls[where] = replace(
                    self._calls[where], copies=0, done=False
                )
                self._loop.after(
                    self._loop.rng.uniform(*BACKOFF_S), lambda: self._leader.send(again)
                )
                return
            if code == OK and self._loop.rng.random() < self._network.rates.refuses / 4:
                code = KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            del self._flying[where]
            error = None if code == OK else KafkaError(code)
            for i, (record, report) in enumerate(sent):
                record.offset = offset + i
                self._reports.append((report, error, SimulatedMessage(where, record)))
            if code in (*_FENCED, KafkaError.OUT_OF_ORDER_SEQUENCE_NUMBER):
                self._fail(code)
            elif code != OK:
                self._abort(code)
            self._pump()
            self._actor.wake()

        def serve() -> Reply:
            return self._broker.produce(*mine, log, first, records)

        what = f"Produce {where[0]}[{where[1]}] {first}+{len(sent)} of {self._epoch}/{attempt.number}"
        self._calls[where] = Call(what, self._name, serve, answered, False)
        self._leader.send(self._calls[where])
