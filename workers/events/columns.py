"""Events as columns of codes, and cached digests of (stream key, label) pairs.

A code is the number of a text in a `Vocabulary`. A pair, uint64, has the code of a stream key in
its upper 32 bits and that of a label in its lower ones: pair & NO_LABEL. Every process has codes of
its own, but the digest of a pair's texts is the same in all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from workers.arrays.blake2b import State, digests, start
from workers.arrays.compiled import kernel
from workers.arrays.tallies import KEY_BITS, NO_LABEL, pair_slot
from workers.arrays.texts import Texts, readonly_contiguous
from workers.arrays.types import Bools, Bytes, Codes, Longs, Words
from workers.events.log_values import AMOUNT_MAX
from workers.events.vocabulary import Vocabulary
from workers.runtime.frozen import read_only

# Pairs need no secret hash here: those that collide only overwrite each other in the cache.
_NO_SECRET = np.uint64(0)
# What the amount is of a label that an event has more than once.
ADDED_UP, LAST, FIRST = range(3)
# Up to this many labels of an event are compared pairwise, more are looked up by their code.
PAIRWISE_MAX = 16


@kernel
def look_up_digests(
    pairs: Words, cached_pairs: Words, cached_digests: Words, out: Words, missed: Longs
) -> int:
    """Look up the digests of pairs (m,) in a cache; return how many are missing in it.

    A pair can be in one slot only. `cached_pairs` (slots,) has the complement of the pair in each
    slot, or 0 if the slot is free: 0 is a pair itself, but none is all ones. `cached_digests`,
    uint64 (slots, 2), has their digests. Writes to `out`, uint64 (m, 2), the digests found, and to
    `missed` (m,) the rows of the others, ascending.
    """
    mask = np.uint64(len(cached_pairs) - 1)
    n = 0
    for row in range(len(pairs)):
        slot = pair_slot(pairs[row], _NO_SECRET, mask)
        if cached_pairs[slot] == ~pairs[row]:
            out[row, 0] = cached_digests[slot, 0]
            out[row, 1] = cached_digests[slot, 1]
        else:
            missed[n] = row
            n += 1
    return n


@kernel
def store_digests(
    pairs: Words,
    missed: Longs,
    made: Words,
    cached_pairs: Words,
    cached_digests: Words,
    out: Words,
) -> None:
    """Write digests that `look_up_digests` missed to its cache, and to `out`.

    `made`, uint64 (k, 2), are those of the pairs in the rows `missed` (k,) of `pairs` and `out`.
    A slot's former pair is lost. The cache has complements of pairs, so that 0 means free.
    """
    mask = np.uint64(len(cached_pairs) - 1)
    for i in range(len(missed)):
        row = missed[i]
        slot = pair_slot(pairs[row], _NO_SECRET, mask)
        cached_pairs[slot] = ~pairs[row]
        cached_digests[slot, 0] = out[row, 0] = made[i, 0]
        cached_digests[slot, 1] = out[row, 1] = made[i, 1]


# Slots of the cache, 24 bytes each: in most streams, few pairs cover most events.
SLOTS = 1 << 19
CACHED_KEYS = 10_000

Pairs = Words
_USER_STATE = start(b"", person=b"qc-user", digest_size=16)


def user_digests(data: Bytes, places: Longs) -> Words:
    """Return the BLAKE2b digest (16 bytes, no key) of each user, uint64 (n, 2).

    User i is data[places[i, 0]:places[i, 1]].
    """
    out = np.empty((len(places), 2), dtype=np.uint64)
    starts = readonly_contiguous(places[:, 0])
    stops = readonly_contiguous(places[:, 1])
    digests(*_USER_STATE, readonly_contiguous(data), starts, stops, out)
    return out


def pair_state(key: str) -> State:
    """Return the hash state after a stream key; digests of its pairs have 8 bytes."""
    name = key.encode()
    return start(len(name).to_bytes(4) + name, person=b"qc-pair", digest_size=8)


def pairs_of(keys: Codes, labels: Codes) -> Pairs:
    """Pack codes, int32 (m,) each, into pairs as `arrays.tallies` expects them."""
    return keys.astype(np.uint64) << KEY_BITS | labels.astype(np.uint64)


def _keys_of(pairs: Pairs) -> Codes:
    return (pairs >> KEY_BITS).astype(np.int32)


class PairDigests:
    """BLAKE2b digests of pairs, one hash state per key. Not thread-safe; its repr is secret."""

    def __init__(
        self,
        state_of: Callable[[str], State],
        key_names: Vocabulary,
        label_names: Vocabulary,
    ) -> None:
        """`state_of` returns the hash state after a stream key, as `pair_state` does."""
        self.names = key_names, label_names
        self._state_of = state_of
        # By code of the stream key.
        self._states: dict[int, State] = {}
        # See `look_up_digests`.
        self._cached_pairs = np.zeros(SLOTS, dtype=np.uint64)
        self._cached_digests = np.empty((SLOTS, 2), dtype=np.uint64)

    def __repr__(self) -> str:
        return "PairDigests(<secret>)"

    def of(self, pairs: Pairs, texts: Texts | None = None) -> Words:
        """Return the digests of pairs (m,), uint64 (m, 2).

        `texts` are their labels, if the caller has them: then pairs are grouped by key.
        """
        out = np.empty((len(pairs), 2), dtype=np.uint64)
        missed = np.empty(len(pairs), dtype=np.int64)
        n_missed = look_up_digests(
            pairs, self._cached_pairs, self._cached_digests, out, missed
        )
        missed = missed[:n_missed]
        if not n_missed:
            return out
        if texts is not None and 2 * n_missed > len(pairs):
            # Mostly misses: computing all digests is faster than selecting the misses.
            missed = np.arange(len(pairs))
            keys = _keys_of(pairs)
        else:
            keys = _keys_of(pairs[missed])
            if texts is None:
                order = np.argsort(keys, kind="stable")
                missed = missed[order]
                keys = keys[order]
            _, label_names = self.names
            texts = label_names.texts((pairs[missed] & NO_LABEL).astype(np.int64))
        made = np.empty((len(missed), 2), dtype=np.uint64)
        self._make(keys, texts, made)
        store_digests(
            pairs, missed, made, self._cached_pairs, self._cached_digests, out
        )
        return out

    def _make(self, keys: Codes, texts: Texts, out: Words) -> None:
        """Write the digest of every key (n,) with its text to `out`, uint64 (n, 2).

        Equal keys are neighbours: each such group continues from the hash state after its key.
        """
        starts = np.zeros_like(texts.ends)
        starts[1:] = texts.ends[:-1]
        starts = readonly_contiguous(starts)
        # No code is -1: the first key always begins a group.
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        for begin, stop in zip(
            begins.tolist(), [*begins[1:].tolist(), len(keys)], strict=True
        ):
            state = self._state(int(keys[begin]))
            digests(
                *state,
                texts.text,
                starts[begin:stop],
                texts.ends[begin:stop],
                out[begin:stop],
            )

    def _state(self, key: int) -> State:
        """Return the hash state after a stream key, by its code."""
        found = self._states.get(key)
        if found is None:
            if len(self._states) >= CACHED_KEYS:
                self._states = {}
            key_names, _ = self.names
            found = self._states[key] = self._state_of(key_names.name(key))
        return found


class ViewDigests:
    """The `PairDigests` of several views; views with the same vocabularies share one.

    A pair's digest depends on its texts alone, so what one view has cached serves the others.
    """

    def __init__(self, state_of: Callable[[str], State]) -> None:
        self._state_of = state_of
        self._of: dict[str, PairDigests] = {}

    def of(
        self, view: str, key_names: Vocabulary, label_names: Vocabulary
    ) -> PairDigests:
        """Return a view's digests: new ones for new vocabularies, unless another view has them."""
        names = key_names, label_names
        found = self._of.get(view)
        if found is None or found.names != names:
            shared = (other for other in self._of.values() if other.names == names)
            found = self._of[view] = next(shared, None) or PairDigests(
                self._state_of, *names
            )
        return found


NO_AMOUNTS: Longs = read_only(np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class EventColumns:
    """The labels of one view for the events of a batch, in order. Sensitive: the repr shows none.

    Attributes:
        keys, ends: int32 and int64 (n,), code in `key_names` and end of the labels of each event.
        labels: int32 (m,), concatenated codes: distinct in an event, in order of first occurrence.
        amounts: int64 (m,), count of the label in its event, at most AMOUNT_MAX; (0,) if all are 1.
        included: bool (n,), events that the view includes, or None for all; labels of the rest are
            ignored.
    """

    keys: Codes
    key_names: Vocabulary
    ends: Longs
    labels: Codes
    amounts: Longs
    label_names: Vocabulary
    included: Bools | None = None

    def __repr__(self) -> str:
        return f"EventColumns({len(self.ends)} events)"

    def select(self, events: Longs) -> EventColumns:
        """Return the columns of the events of these indices, in their order."""
        counts = np.diff(self.ends, prepend=0)[events]
        rows = rows_of(self.ends[events] - counts, counts)
        return replace(
            self,
            keys=self.keys[events],
            ends=np.cumsum(counts),
            labels=self.labels[rows],
            amounts=self.amounts[rows] if len(self.amounts) else self.amounts,
            included=None if self.included is None else self.included[events],
        )


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch, in order. Sensitive: the repr shows none.

    Attributes:
        index: int64 (n,), the index in the batch of each event's record.
        times: int64 (n,), ms since 1970.
        users: uint64 (n, 2), the digest of each event's user; None if users are not read.
        views: by name, what each view reads of these events.
    """

    index: Longs
    times: Longs
    users: Words | None
    views: Mapping[str, EventColumns]

    def __len__(self) -> int:
        return len(self.times)

    def __repr__(self) -> str:
        return f"Events({len(self)})"

    @property
    def in_any_view(self) -> Bools:
        """Whether at least one view includes each event, bool (n,)."""
        found = np.zeros(len(self), dtype=np.bool_)
        for columns in self.views.values():
            if columns.included is None:
                return np.ones(len(self), dtype=np.bool_)
            found |= columns.included
        return found

    def select(self, events: Longs) -> Events:
        """Return the events of these indices, in their order."""
        users = None if self.users is None else self.users[events]
        views = {name: columns.select(events) for name, columns in self.views.items()}
        return Events(self.index[events], self.times[events], users, views)


class Names:
    """The vocabulary of stream keys or of a field's labels, replaced when it is full.

    The texts `initial` have the first codes in every one of them.
    """

    def __init__(self, initial: Collection[str] = ()) -> None:
        self._initial = tuple(initial)
        self.vocabulary = Vocabulary(self._initial)

    def begin(self) -> None:
        """Begin a batch: only here is a full vocabulary replaced, so a batch's codes are of one."""
        if self.vocabulary.full:
            self.vocabulary = Vocabulary(self._initial)


@kernel
def distinct_labels(
    starts: Longs,
    counts: Longs,
    labels: Codes,
    amounts: Longs,
    amount_max: int,
    repeated: int,
    row_of: Longs,
    ends: Longs,
    included: Bools,
    out_labels: Codes,
    out_amounts: Longs,
) -> tuple[bool, bool]:
    """Write each event's distinct labels in order of first occurrence, with their amounts.

    Returns whether any amount is not 1, and whether all events are included.

    Args:
        starts, counts: (n,): event i has labels[starts[i] : starts[i] + counts[i]]; a negative
            count: the view does not include the event.
        amounts: (m,), or (0,): all 1.
        amount_max: limit per label and event.
        repeated: what a repeated label's amount is: ADDED_UP, its LAST one or its FIRST.
        row_of: (codes of labels,), scratch: the row in `out_labels` of a label that the event has
            already, else -1; all -1 before and after the call.
        ends, included: (n,), written; ends are those in `out_labels`.
        out_labels: (m,), written.
        out_amounts: (m,), written only if any of them is not 1.
    """
    used = 0
    uneven = False
    all_included = True
    weighted = len(amounts) > 0
    for i in range(len(starts)):
        begin = used
        included[i] = counts[i] >= 0
        all_included &= counts[i] >= 0

        # A single label repeats nothing: most events of most topics.
        if counts[i] <= 1 and not weighted:
            if counts[i] == 1:
                out_labels[used] = labels[starts[i]]
                if uneven:
                    out_amounts[used] = 1
                used += 1
            ends[i] = used
            continue

        # A few labels are compared with each other; of many, the row of each code is noted, so
        # that a hostile event costs no more than its length.
        short = counts[i] <= PAIRWISE_MAX
        for k in range(starts[i], starts[i] + counts[i]):
            label = labels[k]
            amount = min(int(amounts[k]), amount_max) if weighted else 1
            row = -1
            if short:
                for j in range(begin, used):
                    if out_labels[j] == label:
                        row = j
                        break
            else:
                row = int(row_of[label])

            # Amounts are written only from the first on that is not 1: most batches have none.
            if not uneven and (row >= 0 or amount != 1):
                uneven = True
                for j in range(used):
                    out_amounts[j] = 1

            if row >= 0:
                # Limited again at each sum, which therefore never overflows.
                if repeated == ADDED_UP:
                    out_amounts[row] = min(out_amounts[row] + amount, amount_max)
                elif repeated == LAST:
                    out_amounts[row] = amount
                continue
            if not short:
                row_of[label] = used
            out_labels[used] = label
            if uneven:
                out_amounts[used] = amount
            used += 1

        # Only what this event has set is cleared: the scratch has a row for each code there is.
        if not short:
            for j in range(begin, used):
                row_of[out_labels[j]] = -1
        ends[i] = used
    return uneven, all_included


@kernel
def one_label_each(starts: Longs, counts: Longs) -> bool:
    """Return whether every event i has exactly one label, the i-th: then labels need no copy.

    `starts` and `counts` (n,) are the place of each event's labels, as in `distinct_labels`.
    """
    i = 0
    while i < len(starts) and counts[i] == 1 and starts[i] == i:
        i += 1
    return bool(i == len(starts))


class LabelEncoder:
    """Converts the labels of one field to columns. Encoders may share the vocabulary `labels`."""

    def __init__(self, labels: Names) -> None:
        self.labels = labels
        # Scratch of `distinct_labels`, all -1.
        self._row_of = np.empty(0, dtype=np.int64)
        # 1, 2, 3 ...: the ends of the labels where every event has one.
        self._one_each = np.empty(0, dtype=np.int64)

    def columns(
        self,
        keys: Codes,
        key_names: Vocabulary,
        starts: Longs,
        counts: Longs,
        labels: Codes,
        amounts: Longs,
        *,
        repeated: int = ADDED_UP,
    ) -> EventColumns:
        """Return columns in which every label of an event occurs once.

        Event i has labels[starts[i] : starts[i] + counts[i]], disjoint between events; counts[i] is
        negative if the view excludes it. `amounts` (0,) means all 1; a label that an event repeats
        has the amount that `repeated` says: ADDED_UP, the LAST one or the FIRST.
        """
        names = self.labels.vocabulary
        n = len(starts)
        starts = readonly_contiguous(starts)
        counts = readonly_contiguous(counts)
        if len(labels) == n and not len(amounts) and one_label_each(starts, counts):
            # One label per event, the common case: use the labels as they are.
            if n > len(self._one_each):
                self._one_each = np.arange(1, 2 * n + 1)
            return EventColumns(
                keys=keys,
                key_names=key_names,
                ends=self._one_each[:n],
                labels=labels,
                amounts=NO_AMOUNTS,
                label_names=names,
            )
        if len(self._row_of) < len(names):
            self._row_of = np.full(2 * len(names), -1, dtype=np.int64)
        ends = np.empty(n, dtype=np.int64)
        included = np.empty(n, dtype=np.bool_)
        distinct = np.empty(len(labels), dtype=np.int32)
        sums = np.empty(len(labels), dtype=np.int64)
        uneven, all_included = distinct_labels(
            starts,
            counts,
            readonly_contiguous(labels),
            readonly_contiguous(amounts),
            AMOUNT_MAX,
            repeated,
            self._row_of,
            ends,
            included,
            distinct,
            sums,
        )
        m = int(ends[-1]) if n else 0
        return EventColumns(
            keys=keys,
            key_names=key_names,
            ends=ends,
            labels=distinct[:m],
            amounts=sums[:m] if uneven else NO_AMOUNTS,
            label_names=names,
            included=None if all_included else included,
        )


def rows_of(starts: Longs, counts: Longs) -> Longs:
    """Return the concatenated indices starts[i] .. starts[i] + counts[i] - 1 of all i."""
    ends = np.cumsum(counts)
    # How far each index lies from its place in the result.
    shifts = np.repeat(starts - (ends - counts), counts)
    rows: Longs = np.arange(len(shifts)) + shifts
    return rows
