"""Committed records of a histogram topic, with confluent-kafka.

What a worker could not commit is never seen: `isolation.level` is read_committed, and stays so. No consumer group is joined and no
offset is committed, so Read on the topic is all that a reader needs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

RECORDS_AT_ONCE = 500
WAIT_S = 0.5
WAIT_FIRST_S = 10.0


class Record(NamedTuple):
    """One record; `value` is None for a tombstone."""

    partition: int
    offset: int
    value: bytes | None


class Topic:
    """A topic that is read from wherever one likes.

    Args:
        bootstrap: "host:port".
        topic: name.
        client: a file of further librdkafka properties, one `name=value` a line.

    Raises:
        SystemExit: there is no such topic, or no broker answers.
    """

    def __init__(self, bootstrap: str, topic: str, client: Path | None = None) -> None:
        self.name = topic
        self._consumer = Consumer(
            {
                **_properties(client),
                "bootstrap.servers": bootstrap,
                "group.id": "unused",  # the library wants a name; nothing here joins it
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        try:
            found = self._consumer.list_topics(topic, timeout=WAIT_FIRST_S).topics[
                topic
            ]
            if found.error is not None or not found.partitions:
                raise SystemExit(
                    f"{topic}: {found.error.str() if found.error else 'no partitions'}"
                )
            #: (first offset, end) of each partition, as of now.
            self.bounds = {
                partition: self._consumer.get_watermark_offsets(
                    TopicPartition(topic, partition), timeout=WAIT_FIRST_S
                )
                for partition in sorted(found.partitions)
            }
        except KafkaException as error:
            raise SystemExit(f"{bootstrap}: {error.args[0].str()}") from None

    def batches(
        self, start: Mapping[int, int] | None, *, until_end: bool = False
    ) -> Iterator[list[Record]]:
        """Yields records as they come, and an empty list where none came for a while.

        Args:
            start: offset to begin at in each partition; None: only what comes from now on.
            until_end: end once every partition was read to its end.
        """
        at = dict.fromkeys(self.bounds, OFFSET_END) if start is None else start
        self._consumer.assign(
            [
                TopicPartition(self.name, partition, offset)
                for partition, offset in at.items()
            ]
        )
        unread = set(self.bounds)
        try:
            while unread or not until_end:
                batch = []
                for message in self._consumer.consume(RECORDS_AT_ONCE, WAIT_S):
                    error = message.error()
                    if error is None:
                        batch.append(
                            Record(
                                message.partition() or 0,
                                message.offset() or 0,
                                message.value(),
                            )
                        )
                    elif error.code() == KafkaError._PARTITION_EOF:
                        unread.discard(message.partition() or 0)
                    elif error.fatal() or not error.retriable():
                        raise KafkaException(error)
                yield batch
        finally:
            self._consumer.close()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What every reader is told."""
    parser.add_argument(
        "--bootstrap",
        default="localhost:9092",
        help="the broker (default: %(default)s)",
    )
    parser.add_argument(
        "--topic", required=True, help="a histogram's topic, <worker.name>.<histogram>"
    )
    parser.add_argument(
        "--client",
        type=Path,
        metavar="FILE",
        help="librdkafka properties, one name=value a line",
    )
    parser.add_argument(
        "--until-end",
        action="store_true",
        help="stop at the end instead of waiting for more",
    )


def _properties(file: Path | None) -> dict[str, str]:
    lines = (
        [] if file is None else [line.strip() for line in file.read_text().splitlines()]
    )
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name.strip(): value.strip() for name, _, value in pairs}
