"""Memory and disk cost of a row, from the sizes of columns, caches and stored blocks.

A row is an item of a stream key that has occurred (known domain: every label of every key). Labels
have the mean size of the declared ones, else 16 bytes. Columns grow by half and noise caches double
when full, so for n rows they hold between n and 2 n. On disk (RocksDB, and again in the changelog
topic): tag, key index, length and text of the label, and count and first tick shown, in at most 8
and 4 bytes.
"""

import numpy as np

from workers.mechanisms.about import SketchBytes
from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Mechanism
from workers.privacy.model import Memory, Size

LABEL_BYTES = 16
SIZES = (1_000, 100_000, 1_000_000)
# Slots of 4 bytes; their number doubles at a load of three quarters.
_INDEX = 5
_INDEX_MOST = 11
_END = 4  # end offset of a label in the text
_COUNT = 8
_DISK_FIXED = 16 + 4 + 2  # tag, key index, length of the label
_DISK_COUNT = 8
_DISK_SHOWN = 4


def memory_of(mechanism: Mechanism, config: HistogramConfig) -> Memory:
    """Return the bytes that a histogram takes per row, in memory and on disk."""
    domain = mechanism.domain()
    label = round(sum(map(len, domain)) / len(domain)) if domain else LABEL_BYTES
    keys = 1 if config.keys == "public" else len(config.keys)
    if (sketches := mechanism.sketch_bytes(label)) is not None:
        return _sketches(sketches, label, keys)
    empty = Ledger()
    arrays = (empty.tags, empty.keys, empty.counts, empty.shown)
    columns = sum(
        int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays
    )
    columns += _END + label + (_COUNT if config.sum is not None else 0)
    extra = mechanism.row_bytes()
    fixed = columns + extra.noise + extra.state
    per_key = keys * extra.per_key
    passing = mechanism.about.family == "tick" and not domain
    disk = (
        _DISK_FIXED
        + label
        + _DISK_COUNT * (1 + (config.sum is not None))
        + (0 if domain else _DISK_SHOWN)
        + extra.state
    )
    row = "an item of a stream key that has occurred in the epoch"
    if domain:
        row = "a label of the domain, of each stream key"
    elif passing:
        row = "an item of a tick: nothing is kept from tick to tick"
        disk = 0
    sizes = tuple(
        Size(
            rows=n,
            memory_least=n * (fixed + _INDEX) + per_key,
            memory_most=n * (2 * fixed + _INDEX_MOST) + per_key,
            disk=0 if passing else n * disk + per_key,
        )
        for n in ((len(domain) * keys,) if domain else SIZES)
    )
    return Memory(
        row=row,
        label_bytes=label,
        columns_per_row=columns,
        index_per_row=_INDEX,
        noise_per_row=extra.noise,
        state_per_row=extra.state,
        disk_per_row=disk,
        rows_most=len(domain) or None,
        per_key=extra.per_key,
        sizes=sizes,
        note=extra.note,
    )


def _sketches(found: SketchBytes, label: int, keys: int) -> Memory:
    sketches = Size(
        rows=found.counters * keys,
        memory_least=found.key_least * keys,
        memory_most=found.key_most * keys,
        disk=found.key_on_disk * keys,
    )
    return Memory(
        row="a counter of a sketch",
        label_bytes=label,
        columns_per_row=found.counter,
        index_per_row=0,
        noise_per_row=0,
        state_per_row=found.shown,
        disk_per_row=found.counter_on_disk,
        rows_most=found.counters,
        per_key=found.key_most,
        sizes=(sketches,),
        note=found.note,
    )
