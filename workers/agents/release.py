"""The release shard: one owner partition of the contributions topic. Merges, adds noise, publishes.

A tick is committed here: one Kafka transaction (`Shard.transact`) with its snapshots, the ledger blocks and stream keys that changed,
the mechanisms' state and the progress record. Its input was durable before, in the contributions topic; so when the worker dies at any
moment the next owner releases the same ticks with the same bytes, or finds them released.
"""

from __future__ import annotations

import msgspec

from workers.agents.merge import Merge, Progress
from workers.errors import StateRefused
from workers.kafka.clients import Connection
from workers.kafka.shard import Batch, Outgoing, Shard
from workers.tables.store import Store

PROGRESS = b"progress"


class Release(Shard):
    """Stage 2 of one owner partition; see the module."""

    def __init__(
        self,
        connection: Connection,
        transactional_id: str,
        partition: int,
        state_topic: str,
        store: Store,
        *,
        merge: Merge,
    ) -> None:
        """
        Args:
            connection: to the cluster.
            transactional_id: of this owner partition.
            partition: the owner partition.
            state_topic: the changelog of ledger, mechanisms and progress.
            store: local copy of the state partition.
            merge: the histograms, fresh.
        """
        super().__init__(connection, transactional_id, partition, state_topic, store)
        self.merge = merge
        self.ticks_released = 0

    def open(self) -> None:
        if self.partition >= self.merge.owners:
            raise StateRefused(
                f"the contributions topic got more partitions than the {self.merge.owners} that it had: "
                "a changed partition count needs a new worker name (a new stream, charged anew)"
            )
        super().open()

    def restore(self) -> None:
        value = self.store.get(PROGRESS)
        if value is not None:
            progress = read_progress(value)
            self.merge.restore(progress, self.store.items)
            self.offset = progress.offset

    def process(self, batch: Batch) -> None:
        for value, offset in zip(batch.values, batch.offsets, strict=True):
            if value is None:
                raise StateRefused(
                    f"contributions offset {offset}: a message without a value: something else writes to this topic"
                )
            self.merge.receive(value, offset)
        self.merge.reached(batch.end)
        self._release()

    def idle(self) -> None:
        if self.offset is not None:
            self._release()

    def _release(self) -> None:
        while (released := self.merge.release()).ticks:
            messages = [
                Outgoing(snapshot.topic, None, snapshot.key.encode(), snapshot.value, (), snapshot.end_ms)
                for snapshot in released.snapshots
            ]
            changes = self.merge.changes()
            progress = self.merge.progress()
            changes.append((PROGRESS, msgspec.json.encode(progress)))
            self.transact(messages, changes, progress.offset)
            self.ticks_released += released.ticks


def read_progress(value: bytes) -> Progress:
    """The stored progress record.

    Raises:
        StateRefused: it is none of this version's.
    """
    try:
        return msgspec.json.decode(value, type=Progress)
    except msgspec.DecodeError as error:
        raise StateRefused(
            f"the stored progress cannot be read ({error}): was it written by another version?"
        ) from error
