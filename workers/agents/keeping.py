"""Delete contributions that are no longer needed, where `worker.keep_contributions` says so.

Contributions are the sums that stage 1 sends to an owner partition, a partition of their topic.
A *checkpoint* is a copy of all that an owner partition has stored, with its progress, made in one
transaction under a prefix of its own in the same state topic. There are at most two. Where a new
one is due it takes the place of the older one. Once that is committed, the contributions before the
older one that is left are deleted, all of which came to be before the newer one, a whole
`keep_contributions` ago.

    the worker   needs none of them: an owner reads on from the offset in its progress, which only
                 grows, so every later owner, standby or generation reads on at or after the one in
                 a checkpoint. What another owner handed over before it is in the state
    `audit`      computes everything from the older checkpoint on

Where histograms have epochs, a checkpoint is due after the beginning of an epoch of the longest
ones, so only contributions to past epochs are deleted. If the broker refuses, nothing is lost: the
records stay, and the worker tries again later.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicPartition

from workers.agents.progress import PROGRESS, read_progress
from workers.kafka.clients import Connection, text_of
from workers.kafka.store import Store
from workers.mechanisms.config.ticks import TickGrid
from workers.pipeline.ledger_blocks import read_paged
from workers.pipeline.merge import ReleaseProgress
from workers.privacy.ceiling import grid_of
from workers.runtime.errors import QuietcountError
from workers.runtime.sizes import Change
from workers.settings.times import when

logger = logging.getLogger(__name__)

# Prefixes of the two checkpoints. No histogram has such a name, so no other stored key begins so.
_SLOTS = (b"=0/", b"=1/")
# Longest wait for the broker, in which nothing is published; then the next attempt.
_ANSWER_S = 5.0
_AGAIN_S = 600.0


class Checkpoint(NamedTuple):
    """A copy of the state, its progress, and the time up to which it has published, ms."""

    slot: bytes
    progress: ReleaseProgress
    published_ms: int

    def items(self, store: Store, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the pairs that were stored under a prefix, as `Store.items` does."""
        for key, value in store.items(self.slot + prefix):
            yield key.removeprefix(self.slot), value


def checkpoints(store: Store) -> list[Checkpoint]:
    """Return the checkpoints in a stored state, at most two, the older one first."""
    found = []
    # All keys of a checkpoint begin with its slot.
    for slot in _SLOTS:
        value = read_paged(slot + PROGRESS, store.get)
        if value is None:
            continue
        progress = read_progress(value)
        published_ms = _published_ms(progress)
        # Always true: no checkpoint is made before something is published.
        if published_ms is not None:
            found.append(Checkpoint(slot, progress, published_ms))
    return sorted(found, key=attrgetter("published_ms"))


class Keeping:
    """The checkpoints of one owner partition, and what is deleted behind them."""

    def __init__(
        self, connection: Connection, log: TopicPartition, keep_ms: int
    ) -> None:
        """`log` is the partition of the contributions, which are kept for `keep_ms`."""
        self._connection = connection
        self._log = log
        self._keep_ms = keep_ms
        # At most two, the older one first.
        self._checkpoints: list[Checkpoint] = []
        # All records before this offset are deleted.
        self._deleted = 0
        # After a failure, no further attempt is made before this time of the monotonic clock.
        self._retry_s = 0.0

    def restore(self, store: Store) -> None:
        """Learn the checkpoints that are stored, also one just made."""
        self._checkpoints = checkpoints(store)

    def is_due(self, progress: ReleaseProgress) -> bool:
        """Return whether to make a checkpoint of a state with this progress.

        The first is due once something is published, each later one `keep_ms` of published time
        after the last. If histograms have epochs, the beginnings of the longest ones are compared
        instead, since only contributions to past epochs may be deleted.
        """
        published_ms = _published_ms(progress)
        if published_ms is None or not self._checkpoints:
            return published_ms is not None
        last_ms = self._checkpoints[-1].published_ms
        grids = _longest(
            [grid_of(name, life) for name, life in progress.histograms.items()]
        )
        # Epochs of the same length may begin at different times.
        for grid in grids:
            last_begin_ms = _epoch_begin(grid, last_ms)
            if _epoch_begin(grid, published_ms) < last_begin_ms + self._keep_ms:
                return False
        return bool(grids) or published_ms >= last_ms + self._keep_ms

    def changes(self, store: Store) -> list[Change]:
        """Return what to store for a checkpoint of `store`, in place of the older of two."""
        kept = {one.slot for one in self._checkpoints[-1:]}
        slot = next(slot for slot in _SLOTS if slot not in kept)
        # All of the state but the checkpoints, less what the slot holds already.
        copied = {
            slot + key: value
            for key, value in store.items()
            if not key.startswith(_SLOTS)
        }
        changes: list[Change] = []
        for key, value in store.items(slot):
            if key not in copied:
                changes.append((key, None))
            elif copied[key] == value:
                del copied[key]
        changes += copied.items()
        return changes

    def delete(self, committed: int) -> None:
        """Delete the contributions before the older of two checkpoints.

        `committed` is the offset at which the next owner would read on: nothing from there on is
        ever deleted.
        """
        if len(self._checkpoints) < 2 or time.monotonic() < self._retry_s:
            return
        before = min(self._checkpoints[0].progress.offset, committed)
        if before <= self._deleted:
            return
        topic = self._log.topic
        partition = self._log.partition
        try:
            self._ask(TopicPartition(topic, partition, before))
        except (KafkaException, QuietcountError, TimeoutError) as error:
            self._retry_s = time.monotonic() + _AGAIN_S
            why = text_of(error) or f"no answer within {_ANSWER_S:g} s"
            logger.warning(
                "%s[%d]: contributions before offset %d cannot be deleted, and stay: %s",
                topic,
                partition,
                before,
                why,
            )
            return
        self._deleted = before
        logger.info(
            "%s[%d]: contributions before offset %d are deleted; an audit begins at %s",
            topic,
            partition,
            before,
            when(self._checkpoints[0].published_ms),
        )

    def _ask(self, end: TopicPartition) -> None:
        """Ask the broker to delete all records before the offset in `end`.

        Raise KafkaException if it refuses, TimeoutError if it does not answer.
        """
        with self._connection.admin() as admin:
            [answer] = admin.delete_records([end], request_timeout=_ANSWER_S).values()
            # Do not rely on the client's timeout alone: no tick is published while this waits.
            answer.result(timeout=_ANSWER_S)


def _published_ms(progress: ReleaseProgress) -> int | None:
    """Return the time up to which all histograms that have begun have published; None: none has."""
    # What is published ends where the next tick starts.
    ends = [
        grid_of(name, life).start(life.next)
        for name, life in progress.histograms.items()
        if life.next is not None
    ]
    return min(ends, default=None)


def _longest(grids: Sequence[TickGrid]) -> list[TickGrid]:
    """Return the grids with the longest epochs, of those whose epochs end."""
    lengths = {grid: grid.horizon * grid.tick_ms for grid in grids if grid.horizon}
    most = max(lengths.values(), default=0)
    return [grid for grid, length in lengths.items() if length == most]


def _epoch_begin(grid: TickGrid, time_ms: int) -> int:
    """Return when the epoch at `time_ms` begins; before all epochs, when the first one begins."""
    tick = max(1, grid.tick_at(time_ms))
    tick_in_epoch = grid.split(tick)[1]
    return grid.start(tick - tick_in_epoch + 1)
