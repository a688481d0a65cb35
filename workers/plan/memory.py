"""What a row costs in memory and on disk, from the sizes of the columns, caches and blocks that are really kept.

    row      an item of a stream key that has occurred (known domain: every label of every stream key)
    L        bytes of a label: the mean of the declared ones, else 16
    n        rows

Columns grow by half, caches of noise double when they are full, so they hold between n and 2 n rows; see `_INDEX` for that of tags.
On disk (RocksDB, and once more in the changelog topic): the tag, the key's index, length and text of the label, and the count and the
first tick shown in the width they need, at most 8 and 4 bytes. What sketches show are Python objects: their sizes are as CPython 3.11 has them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workers.mechanisms.config import HistogramConfig
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.one_shot.mechanism import OneShot
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.running.meta import Meta
from workers.mechanisms.running.sparse_gumb import SparseGumb
from workers.plan.model import Memory, Size

LABEL_BYTES = 16
SIZES = (1_000, 100_000, 1_000_000)
# Slots of 4 bytes, filled up to three quarters, and then twice as many.
_INDEX, _INDEX_MOST = 5, 11
_END = 4  # where a label ends in the text
_COUNT = 8
_DISK_FIXED = 16 + 4 + 2  # tag, key index, length of the label
_DISK_COUNT, _DISK_SHOWN = 8, 4
_BYTES_OBJECT = 33
_DICT_ENTRY = 100  # of a dict at its emptiest: index, hash, two pointers
_DECLARED = 40  # tag of a declared label, in both orders, and its place
_INT_OBJECT = 32
_BLOCKS_KEPT = 2 * 256 * 36  # two runs of comparisons' noise, 256 ticks each, as Python integers


@dataclass(frozen=True, slots=True)
class _Extra:
    """What a mechanism keeps beside its columns.

    Attributes:
        noise: cache of noise, bytes a row.
        state: further state, bytes a row.
        state_disk: the same on disk.
        per_key: bytes for each stream key.
        rows_most: most rows of one stream key, None where the data decide.
        note: one sentence.
    """

    noise: int = 0
    state: int = 0
    state_disk: int = 0
    per_key: int = 0
    rows_most: int | None = None
    note: str = ""


def memory_of(mechanism: Mechanism, config: HistogramConfig) -> Memory:
    """Bytes for a row, and for some numbers of rows in one owner partition."""
    domain = mechanism.domain()
    label = round(sum(map(len, domain)) / len(domain)) if domain else LABEL_BYTES
    keys = 1 if config.keys == "public" else len(config.keys)
    if isinstance(mechanism, MisraGries):
        return _sketches(mechanism, label, keys)
    columns = _column_bytes() + label
    extra = _extra(mechanism, len(domain))
    fixed = columns + extra.noise + extra.state
    index = _INDEX
    disk = _DISK_FIXED + label + _DISK_COUNT + (0 if domain else _DISK_SHOWN) + extra.state_disk
    rows = (len(domain) * keys,) if domain else SIZES
    passing = isinstance(mechanism, OneShot) and not domain
    return Memory(
        row="a label of the domain, of each stream key"
        if domain
        else "an item of a tick: nothing is kept from tick to tick"
        if passing
        else "an item of a stream key that has occurred in the epoch",
        label_bytes=label,
        columns_per_row=columns,
        index_per_row=index,
        noise_per_row=extra.noise,
        state_per_row=extra.state,
        disk_per_row=0 if passing else disk,
        rows_most=len(domain) or extra.rows_most,
        per_key=extra.per_key,
        sizes=tuple(
            Size(
                rows=n,
                memory_least=n * (fixed + index) + keys * extra.per_key,
                memory_most=n * (2 * fixed + _INDEX_MOST) + keys * extra.per_key,
                disk=0 if passing else n * disk + keys * extra.per_key,
            )
            for n in rows
        ),
        note=extra.note,
    )


def _noise_per_row(mechanism: Mechanism) -> int:
    """Bytes that a counter's cache of noise takes for a row."""
    cache = mechanism.noise(NoiseKey(bytes(32)).stream(bytes(16)))
    found = getattr(cache, "bytes_per_row", 0)
    return found if isinstance(found, int) else 0


def _column_bytes() -> int:
    empty = Ledger()
    arrays = (empty.tags, empty.keys, empty.counts, empty.shown)
    return sum(int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays) + _END


def _extra(mechanism: Mechanism, domain: int) -> _Extra:
    if isinstance(mechanism, Meta):
        open_and_sums = (_COUNT + _COUNT + 1) * mechanism.levels
        return _Extra(
            state=open_and_sums,
            state_disk=open_and_sums,
            note=f"an open and a released count for each of {mechanism.levels} levels",
        )
    if isinstance(mechanism, OrderStatistics):
        kept = _COUNT * (mechanism.queries.k + 3 * domain)
        return _Extra(per_key=kept + _BLOCKS_KEPT, note="the further state is written only when an answer is made anew")
    if isinstance(mechanism, SparseGumb) and mechanism.config.counter == "sqrt":
        return _Extra(
            noise=_COUNT * (mechanism.config.horizon_ticks or 0),
            note="at the end of the epoch; it grows with every tick",
        )
    if mechanism.kind in ("known_base", "unk_base"):
        found = _noise_per_row(mechanism)
        grows = getattr(getattr(mechanism, "config", None), "counter", "") == "sqrt"
        return _Extra(noise=found, note="at the end of the epoch; it grows with every tick" if grows else "")
    return _Extra()


def _sketches(mechanism: MisraGries, label: int, keys: int) -> Memory:
    levels, size, radix = mechanism.tree.levels, mechanism.config.size, mechanism.tree.radix
    counter = 16 + _COUNT + 8 + label  # tag, count, and where the label ends
    shown = _DICT_ENTRY + _BYTES_OBJECT + label + _INT_OBJECT
    counters, released = mechanism.counters_max, (radix - 1) * size * levels
    disk = (16 + _COUNT + 2 + label) * counters + (_COUNT + 2 + label) * released
    declared = len(mechanism.domain())  # with release = "pure"
    most = counters * counter + released * shown + declared * _DECLARED
    return Memory(
        row="a counter of a sketch",
        label_bytes=label,
        columns_per_row=counter,
        index_per_row=0,
        noise_per_row=0,
        state_per_row=shown,
        disk_per_row=16 + _COUNT + 2 + label,
        rows_most=counters,
        per_key=most,
        sizes=(
            Size(
                rows=counters * keys,
                memory_least=keys * declared * _DECLARED,
                memory_most=keys * most,
                disk=keys * (disk + 16 * declared),
            ),
        ),
        note=f"at most {counters:,} counters and {released:,} released counts a stream key, whatever the number of items"
        + (f"; and the tags of {declared:,} labels" if declared else ""),
    )
