"""Check the stored state against the settings before the start.

Every owner checks again when it takes over its partition, but by then stage 1 of another partition
could have committed without the contributions to a histogram that was removed from the settings.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from confluent_kafka import KafkaError, KafkaException

from workers.agents.progress import read_states
from workers.kafka.clients import Connection, forbidden, unreachable
from workers.kafka.reading import bounds_of, reader
from workers.kafka.topics import describe as describe_topics
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.histogram import removal_refusals
from workers.pipeline.merge import Merge, ReleaseProgress
from workers.runtime.errors import QuietcountError, SettingsError, describe
from workers.settings.files import read_key
from workers.settings.settings import Settings

logger = logging.getLogger(__name__)

# Longest wait for the broker: enough for a cluster to create the topic of all groups.
_ANSWER_S = 30.0
# Must not expire before we release the client: if librdkafka's own timeout expires while it looks
# for a coordinator, it ends the process ("Assertion `eonce->refcnt > 0' failed", 2.16.1).
_NEVER_S = 3_600.0
_AGAIN_S = 0.2


def group_size(connection: Connection, group: str) -> int:
    """Return a group's size, 0 if unknown; SettingsError if denied, KafkaException if no answer."""
    deadline = time.monotonic() + _ANSWER_S
    with connection.admin() as admin:
        while True:
            try:
                [answer] = admin.describe_consumer_groups(
                    [group], request_timeout=_NEVER_S
                ).values()
                return len(answer.result(timeout=_ANSWER_S).members)
            except TimeoutError:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from None
            except KafkaException as error:
                if error.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                    return 0
                if (reason := forbidden(error)) is not None:
                    raise SettingsError(
                        f"the consumer group {group}: {reason}"
                    ) from None
                # The group's coordinator may be missing while a cluster starts: try again.
                if not unreachable(error) or time.monotonic() > deadline:
                    raise
            time.sleep(_AGAIN_S)


def await_coordinator(connection: Connection, group: str) -> None:
    """Wait until a group can be joined, so that Faust's consumer logs no harmless errors."""
    try:
        group_size(connection, group)
    except (QuietcountError, KafkaException) as error:
        # The consumer meets the same error and reports it.
        logger.debug("the coordinator of %s did not answer: %s", group, describe(error))


def load_key(settings: Settings, connection: Connection) -> NoiseKey:
    """Return the key. For a missing file, the SettingsError has the state's key fingerprint."""
    path = settings.worker.key_file
    try:
        return NoiseKey(read_key(path))
    except SettingsError:
        if path.exists() or connection.embedded is not None:
            raise
        wanted = _fingerprints(_readable_states(settings, connection))
        if not wanted:
            raise
        raise SettingsError(
            f"{path}: no such key file, and the state of worker {settings.worker.name!r} was made with the key of fingerprint "
            f"{' or '.join(wanted)}: restore that file; a new key cannot continue the stream "
            "(quietcount key fingerprint FILE shows the fingerprint of a file)"
        ) from None


def check_states(
    settings: Settings,
    connection: Connection,
    key: NoiseKey,
    merge_of: Callable[[int], Merge],
) -> None:
    """Raise SettingsError for another key, StateRefused for settings that cannot use the state.

    `merge_of` returns an owner partition's merge, which checks its stored record.
    """
    try:
        states = read_states(connection, settings.worker.name) or []
    except KafkaException as error:
        # Still safe: every owner checks its own state at take-over.
        logger.info(
            "the state could not be looked at before the start: %s", describe(error)
        )
        return
    own = key.fingerprint.hex()
    path = settings.worker.key_file
    for wanted in _fingerprints(states):
        if wanted != own:
            raise SettingsError(
                f"{path}: the key file holds another key (fingerprint {own}) than the one this state was made with "
                f"(fingerprint {wanted}): restore the old key file"
            )
    for owner, progress in enumerate(states):
        if progress is not None:
            merge = merge_of(owner)
            # Stage 1 refuses other partition counts, with a more specific message.
            fewer = len(progress.watermarks) < len(merge.watermarks)
            if not fewer and progress.owners == merge.owners:
                merge.check(progress)


def emptied_topics(settings: Settings, connection: Connection) -> list[str]:
    """Return the histogram topics that are empty although snapshots were published there."""
    # Topics to which snapshots were published, each once, in order.
    outputs: dict[str, None] = {}
    for state in _readable_states(settings, connection):
        for config in settings.histograms:
            life = None if state is None else state.histograms.get(config.name)
            # Its next tick is not its first.
            if life is not None and life.next not in (None, life.first):
                outputs |= dict.fromkeys(
                    topic for _series, topic in settings.outputs(config)
                )
    if not outputs:
        return []
    empty = []
    try:
        existing = describe_topics(connection, outputs)
        with reader(connection) as consumer:
            for topic, here in existing.items():
                numbers = range(here.partitions)
                # Partitions in which nothing was ever written end at offset 0.
                if not any(bounds_of(consumer, topic, number)[1] for number in numbers):
                    empty.append(topic)
    except (QuietcountError, KafkaException) as error:
        logger.debug("the histogram topics cannot be looked at: %s", describe(error))
    return empty


def start_refusals(settings: Settings, connection: Connection) -> list[str]:
    """Return the reasons to refuse a start that can be found without the key.

    These are histograms that have published and are missing from the settings. Empty if the state
    cannot be read.
    """
    names = [config.name for config in settings.histograms]
    states = [state for state in _readable_states(settings, connection) if state]
    found = [removal_refusals(state.histograms, names) for state in states]
    return list(dict.fromkeys(chain.from_iterable(found)))


def _readable_states(
    settings: Settings, connection: Connection
) -> Sequence[ReleaseProgress | None]:
    """Return every owner's progress; nothing if it cannot be read, which is only logged."""
    try:
        return read_states(connection, settings.worker.name) or []
    except (QuietcountError, KafkaException) as error:
        logger.debug("the state cannot be looked at: %s", describe(error))
        return []


def _fingerprints(states: Iterable[ReleaseProgress | None]) -> list[str]:
    """Return the distinct fingerprints of the noise keys that progress was made with."""
    return list(dict.fromkeys(state.key for state in states if state is not None))
