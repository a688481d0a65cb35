"""Memory and disk cost of a row, from the sizes of columns, caches and stored blocks.

A row is an item of a stream key that has occurred (known domain: every label of every key). Labels
have the mean size of the declared ones, else 16 bytes. Columns grow by half and noise caches double
when full, so for n rows they hold between n and 2 n. On disk (RocksDB, and again in the changelog
topic): tag, key index, length and text of the label, and count and first tick shown, in at most 8
and 4 bytes. Sketches publish Python objects, with sizes as in CPython 3.11.
"""

from typing import NamedTuple

import numpy as np

from workers.mechanisms.config.histogram import HistogramConfig
from workers.mechanisms.counters.base import Counter
from workers.mechanisms.ledger import Ledger
from workers.mechanisms.mechanism import Mechanism
from workers.mechanisms.misra_gries.misra_gries import MisraGries
from workers.mechanisms.noise.keyed import NoiseKey
from workers.mechanisms.order_statistics.engine import OrderStatistics
from workers.mechanisms.running.meta import Meta
from workers.privacy.plan.model import Memory, Size
from workers.privacy.plan.noise import KINDS

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
_BYTES_OBJECT = 33
_DICT_ENTRY = 100  # of a dict at its lowest load: index, hash, two pointers
_DECLARED = 40  # tag of a declared label, in both orders, and its position
_INT_OBJECT = 32
_BLOCKS_KEPT = (
    2 * 256 * 36
)  # two runs of comparisons' noise, 256 ticks each, as Python integers


class _Extra(NamedTuple):
    """Bytes beyond a mechanism's columns: `noise` and `state` per row, and `per_key`."""

    noise: int = 0
    state: int = 0
    per_key: int = 0
    note: str = ""


def memory_of(mechanism: Mechanism, config: HistogramConfig) -> Memory:
    """Return the bytes that a histogram takes per row, in memory and on disk."""
    domain = mechanism.domain()
    label = round(sum(map(len, domain)) / len(domain)) if domain else LABEL_BYTES
    keys = 1 if config.keys == "public" else len(config.keys)
    if isinstance(mechanism, MisraGries):
        return _sketches(mechanism, label, keys)
    empty = Ledger()
    arrays = (empty.tags, empty.keys, empty.counts, empty.shown)
    columns = sum(
        int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays
    )
    columns += _END + label + (_COUNT if config.sum is not None else 0)
    extra = _extra(mechanism, config)
    fixed = columns + extra.noise + extra.state
    per_key = keys * extra.per_key
    passing = KINDS[mechanism.kind].family == "tick" and not domain
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


def _extra(mechanism: Mechanism, config: HistogramConfig) -> _Extra:
    if isinstance(mechanism, Meta):
        note = f"an open and a released count for each of {mechanism.levels} levels"
        return _Extra(state=(_COUNT + _COUNT + 1) * mechanism.levels, note=note)
    if isinstance(mechanism, OrderStatistics):
        kept = _COUNT * (mechanism.queries.k + 3 * len(mechanism.domain()))
        note = "the further state is written only when an answer is made anew"
        return _Extra(per_key=kept + _BLOCKS_KEPT, note=note)
    note = (
        "at the end of the epoch; it grows with every tick"
        if config.counter == "sqrt"
        else ""
    )
    if mechanism.kind == "sparse_gumb":
        return _Extra(
            noise=_COUNT * (config.horizon_ticks or 0) if note else 0, note=note
        )
    return _Extra(noise=cache_bytes(mechanism), note=note)


def cache_bytes(noise: Mechanism | Counter) -> int:
    """Return the bytes a row of a counter's cached noise; 0 without a counter."""
    stream = NoiseKey(bytes(32)).stream(bytes(16))
    cache = noise.columns(stream) if isinstance(noise, Counter) else noise.noise(stream)
    return int(getattr(cache, "bytes_per_row", 0))


def _sketches(mechanism: MisraGries, label: int, keys: int) -> Memory:
    levels = mechanism.tree.levels
    size = mechanism.config.size
    radix = mechanism.tree.radix
    counter = 16 + _COUNT + 8 + label  # tag, count, and end offset of the label
    shown = _DICT_ENTRY + _BYTES_OBJECT + label + _INT_OBJECT
    counters = mechanism.counters_max
    released = (radix - 1) * size * levels
    on_disk = 16 + _COUNT + 2 + label
    declared = len(mechanism.domain())  # with release = "pure"
    most = counters * counter + released * shown + declared * _DECLARED
    disk = on_disk * counters + (_COUNT + 2 + label) * released + 16 * declared
    least = keys * declared * _DECLARED
    sketches = Size(
        rows=counters * keys,
        memory_least=least,
        memory_most=keys * most,
        disk=keys * disk,
    )
    note = f"at most {counters:,} counters and {released:,} released counts a stream key, whatever the number of items"
    if declared:
        note += f"; and the tags of {declared:,} labels"
    return Memory(
        row="a counter of a sketch",
        label_bytes=label,
        columns_per_row=counter,
        index_per_row=0,
        noise_per_row=0,
        state_per_row=shown,
        disk_per_row=on_disk,
        rows_most=counters,
        per_key=most,
        sizes=(sketches,),
        note=note,
    )
