"""The consumer group of a worker, as its coordinator describes it."""

from __future__ import annotations

import logging
import time

from confluent_kafka import KafkaError, KafkaException

from workers.errors import SettingsError, describe
from workers.kafka.clients import Connection, forbidden

logger = logging.getLogger(__name__)

# How long a cluster may take to make the topic of all groups, at the first start of any.
_ANSWER_S = 30.0
# Never over before we have let the client go: where librdkafka's own patience ends while it looks
# for a coordinator, it ends the process ("Assertion `eonce->refcnt > 0' failed", 2.16.1).
_NEVER_S = 3_600.0
_AGAIN_S = 0.2
#: A coordinator that is still being found, or is loading.
_SOON = (
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
)


def members_of(connection: Connection, group: str) -> int:
    """Return how many members a consumer group has, once it has a coordinator; 0 where there is
    none.

    Raises:
        SettingsError: this principal may not ask.
        KafkaException: nobody answers.
    """
    deadline = time.monotonic() + _ANSWER_S
    with connection.admin() as admin:
        while True:
            try:
                [asked] = admin.describe_consumer_groups([group], request_timeout=_NEVER_S).values()
                return len(asked.result(timeout=_ANSWER_S).members)
            except TimeoutError:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return 0
                if (reason := forbidden(error)) is not None:
                    raise SettingsError(f"the consumer group {group}: {reason}") from None
                if error.args[0].code() not in _SOON or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_S)


def await_coordinator(connection: Connection, group: str) -> None:
    """Wait until a group can be joined.

    The first one of a cluster waits for the topic of all groups to be made, and what Faust's
    consumer would say of that meanwhile are errors that are none.
    """
    try:
        members_of(connection, group)
    except (SettingsError, KafkaException) as error:
        # The consumer meets the same, and that is said.
        logger.debug("the coordinator of %s did not answer: %s", group, describe(error))
