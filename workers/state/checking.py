"""What a worker's state says against its settings, before anything of it starts.

Each owner refuses the same when it takes its partition over. But stage 1 of another partition could
have committed by then, without what a histogram that left the settings would have to count.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import KafkaException

from workers.agents.merge import Merge, ReleaseProgress
from workers.errors import QuietcountError, SettingsError, describe
from workers.histogram.life import left_out, refusal_of_left_out
from workers.kafka.clients import Connection
from workers.mechanisms.noise.keyed import NoiseKey
from workers.settings import Settings, read_key
from workers.state.reading import read_states

logger = logging.getLogger(__name__)


def key_of(settings: Settings, connection: Connection) -> NoiseKey:
    """Return the worker's key.

    Raises:
        SettingsError: there is none, or it cannot be used; where the file is missing and the
            cluster holds state, the message says which key that was made with.
    """
    path = settings.worker.key_file
    try:
        return NoiseKey(read_key(path))
    except SettingsError:
        if path.exists() or connection.embedded is not None:
            raise
        wanted = _fingerprints(_known(settings, connection))
        if not wanted:
            raise
        raise SettingsError(
            f"{path}: no such key file, and the state of worker {settings.worker.name!r} was made with the key of fingerprint "
            f"{' or '.join(wanted)}: bring that file, a new key cannot go on (what a file has is shown by: quietcount key fingerprint FILE)"
        ) from None


def check_states(
    settings: Settings, connection: Connection, key: NoiseKey, merge_of: Callable[[int], Merge]
) -> None:
    """Refuse to start where these settings cannot go on from the state.

    Args:
        settings: of the worker.
        connection: to the cluster.
        key: the worker's.
        merge_of: returns the histograms of an owner partition, before any tick.

    Raises:
        SettingsError: the state was made with another key.
        StateRefused: it belongs to other settings.
    """
    try:
        states = read_states(connection, settings.worker.name) or []
    except KafkaException as error:
        # Nothing is let through: each owner checks its own when it takes its partition over.
        logger.info("the state could not be looked at before the start: %s", describe(error))
        return
    own, path = key.fingerprint.hex(), settings.worker.key_file
    for wanted in _fingerprints(states):
        if wanted != own:
            raise SettingsError(
                f"{path}: the key file holds another key (fingerprint {own}) than the one this state was made with "
                f"(fingerprint {wanted}): restore the old key file"
            )
    for owner, progress in enumerate(states):
        if progress is None:
            continue
        merge = merge_of(owner)
        # Of other numbers of partitions both stages speak, and stage 1 knows whose they are.
        if (len(progress.watermarks), progress.owners) == (len(merge.watermarks), merge.owners):
            merge.check(progress)


def announcements(settings: Settings, connection: Connection) -> list[str]:
    """Return what a start would refuse of the state, of what can be said without the key; nothing
    where the state may not be read.
    """
    names = [config.name for config in settings.histograms]
    gone = {name: None for state in _known(settings, connection) if state for name in left_out(state.histograms, names)}
    return [refusal_of_left_out(name) for name in gone]


def _known(settings: Settings, connection: Connection) -> Sequence[ReleaseProgress | None]:
    """Return the states, none where they cannot be read: that is said by whoever needs them."""
    try:
        return read_states(connection, settings.worker.name) or []
    except (QuietcountError, KafkaException) as error:
        logger.debug("the state cannot be looked at: %s", describe(error))
        return []


def _fingerprints(states: Iterable[ReleaseProgress | None]) -> list[str]:
    return list(dict.fromkeys(state.key for state in states if state is not None))
