"""Drop many producers whose transactions the broker has ended: librdkafka may end the process.

python -m tests.kafka.dropping BOOTSTRAP TOPIC PARTITIONS STATE_TOPIC SECONDS
"""

import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from workers.kafka import transaction
from workers.kafka.clients import Connection
from workers.kafka.transaction import Transactions
from workers.runtime.errors import KafkaAway

TIMEOUT_MS = 1_000


class Nobody:
    def check_open(self) -> None: ...

    def report_progress(self) -> None: ...

    def note_wait(self, waits: Mapping[str, str]) -> bool:
        return False

    def note_abort(self) -> None: ...

    def confirm(self) -> None: ...


class Slow:
    """Records so far apart that the broker ends their transaction."""

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition

    def messages(self) -> Iterator[tuple[bytes, bytes, int, int, None]]:
        for number in range(70):
            if number == 20:
                time.sleep(1.8 * TIMEOUT_MS / 1000)
            yield b"value", b"key", self.partition, 1, None


def main(bootstrap: str, topic: str, partitions: str, state: str, seconds: str) -> int:
    """Drop the producers in turn, in many threads; print their errors."""
    logging.disable(logging.CRITICAL)
    transaction.TRANSACTION_TIMEOUT_MS = TIMEOUT_MS
    connection = Connection(bootstrap, {"socket.timeout.ms": str(TIMEOUT_MS)})
    failed = Counter[str]()
    until = time.monotonic() + float(seconds)

    def drop(partition: int) -> None:
        while time.monotonic() < until:
            name = f"{topic}-{partition}"
            log = (state, partition)
            transactions = Transactions(connection, name, log, Nobody())
            transactions.take_over()
            try:
                transactions.transact(
                    [], [(b"key", b"value")] * 10, [Slow(topic, partition)]
                )
            except KafkaAway as error:
                failed[type(error).__name__] += 1
            transactions.close()

    with ThreadPoolExecutor(int(partitions)) as pool:
        list(pool.map(drop, range(int(partitions))))
    print(failed["KafkaAway"])
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
