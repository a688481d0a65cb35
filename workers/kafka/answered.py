"""Single records outside of transactions, such as alerts; the caller waits until Kafka has each."""

from typing import Any

from confluent_kafka import Producer

from workers.kafka.clients import Connection


class AnsweredProducer:
    """Writes single records, and tells of each whether Kafka has it.

    Its client is made for the first one. Without an answer a record fails after `answer_s`;
    `options` are further ones of librdkafka.
    """

    def __init__(
        self, connection: Connection, answer_s: float, **options: object
    ) -> None:
        """Configure without connecting; for the arguments see the class."""
        self._connection = connection
        self._options = {"message.timeout.ms": int(1000 * answer_s), **options}
        self._producer: Producer | None = None

    def produce(
        self, topic: str, value: bytes, wait_s: float, **key_and_partition: Any
    ) -> str | None:
        """Write a record, and wait for at most `wait_s`; return None, or why Kafka may lack it.

        `key_and_partition` are its `key` and `partition`, if any. Raise KafkaException or
        BufferError if it cannot even be sent.
        """
        answers: list[str | None] = []

        def note(error: Any, _message: Any) -> None:
            answers.append(None if error is None else error.str())

        if self._producer is None:
            self._producer = self._connection.producer(None, **self._options)
        self._producer.produce(topic, value, on_delivery=note, **key_and_partition)
        self._producer.flush(wait_s)
        return answers[-1] if answers else "no answer"
