"""Events as columns of codes, and cached digests of (stream key, label) pairs."""

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

_ANY = np.uint64(0)
# What the amount is of a label that an event has more than once.
ADDED_UP, LAST, FIRST = range(3)
# Up to this many labels of an event are compared pairwise, more are looked up by their code.
PAIRWISE_MAX = 16


@kernel
def look_up_digests(
    pairs: Words, cached: Words, values: Words, out: Words, missed: Longs
) -> int:
    """Look up pairs, uint64 (m,), in a direct-mapped cache; return the number of misses.

    `cached` (slots,) has the complement of a pair, or 0 (no pair is all ones), and `values` its
    digest. Writes the digests of hits to `out`, uint64 (m, 2), and the rows of misses to `missed`,
    ascending.
    """
    mask = np.uint64(len(cached) - 1)
    n = 0
    for row in range(len(pairs)):
        place = pair_slot(pairs[row], _ANY, mask)
        if cached[place] == ~pairs[row]:
            out[row, 0] = values[place, 0]
            out[row, 1] = values[place, 1]
        else:
            missed[n] = row
            n += 1
    return n


@kernel
def store_digests(
    pairs: Words, rows: Longs, of_rows: Words, cached: Words, values: Words, out: Words
) -> None:
    """Cache the values, uint64 (k, 2), of pairs and copy them to `out`; see `look_up_digests`."""
    mask = np.uint64(len(cached) - 1)
    for i in range(len(rows)):
        row = rows[i]
        place = pair_slot(pairs[row], _ANY, mask)
        cached[place] = ~pairs[row]
        values[place, 0] = out[row, 0] = of_rows[i, 0]
        values[place, 1] = out[row, 1] = of_rows[i, 1]


# Cached pairs, 24 bytes each: in most streams, few pairs cover most events.
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


def _keys(pairs: Pairs) -> Codes:
    return (pairs >> KEY_BITS).astype(np.int32)


class PairDigests:
    """BLAKE2b digests of pairs, one hash state per key. Not thread-safe; its repr is secret."""

    def __init__(
        self,
        state_of: Callable[[str], State],
        key_names: Vocabulary,
        label_names: Vocabulary,
    ) -> None:
        self.names = key_names, label_names
        self._state_of = state_of
        self._states: dict[int, State] = {}
        self._cached = np.zeros(SLOTS, dtype=np.uint64)
        self._values = np.empty((SLOTS, 2), dtype=np.uint64)

    def __repr__(self) -> str:
        return "PairDigests(<secret>)"

    def of(self, pairs: Pairs, texts: Texts | None = None) -> Words:
        """Return the digests of pairs (m,), uint64 (m, 2).

        `texts` are their labels, if the caller has them: then pairs are grouped by key.
        """
        out = np.empty((len(pairs), 2), dtype=np.uint64)
        missed = np.empty(len(pairs), dtype=np.int64)
        missed = missed[
            : look_up_digests(pairs, self._cached, self._values, out, missed)
        ]
        if not len(missed):
            return out
        if texts is not None and 2 * len(missed) > len(pairs):
            # Mostly misses: computing all digests is faster than selecting the misses.
            missed = np.arange(len(pairs))
            keys = _keys(pairs)
        else:
            keys = _keys(pairs[missed])
            if texts is None:
                order = np.argsort(keys, kind="stable")
                missed = missed[order]
                keys = keys[order]
            texts = self.names[1].texts((pairs[missed] & NO_LABEL).astype(np.int64))
        made = np.empty((len(missed), 2), dtype=np.uint64)
        self._make(keys, texts, made)
        store_digests(pairs, missed, made, self._cached, self._values, out)
        return out

    def _make(self, keys: Codes, texts: Texts, out: Words) -> None:
        """Compute the digests of pairs, grouped by key, with one call for each key."""
        starts = np.zeros_like(texts.ends)
        starts[1:] = texts.ends[:-1]
        starts = readonly_contiguous(starts)
        begins = np.flatnonzero(np.diff(keys, prepend=-1))
        for first, stop in zip(
            begins.tolist(), [*begins[1:].tolist(), len(keys)], strict=True
        ):
            state = self._state(int(keys[first]))
            digests(
                *state,
                texts.text,
                starts[first:stop],
                texts.ends[first:stop],
                out[first:stop],
            )

    def _state(self, code: int) -> State:
        found = self._states.get(code)
        if found is None:
            if len(self._states) >= CACHED_KEYS:
                self._states = {}
            found = self._states[code] = self._state_of(self.names[0].name(code))
        return found


class ViewDigests:
    """The `PairDigests` of several views; views with the same vocabularies share one."""

    def __init__(self, state_of: Callable[[str], State]) -> None:
        self._state_of = state_of
        self._of: dict[str, PairDigests] = {}

    def of(
        self, view: str, key_names: Vocabulary, label_names: Vocabulary
    ) -> PairDigests:
        """Return a view's digests; drop the old ones when its vocabularies are replaced."""
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
        number = np.diff(self.ends, prepend=0)[events]
        rows = rows_of(self.ends[events] - number, number)
        amounts = self.amounts[rows] if len(self.amounts) else self.amounts
        included = None if self.included is None else self.included[events]
        ends = np.cumsum(number)
        keys = self.keys[events]
        labels = self.labels[rows]
        return replace(
            self,
            keys=keys,
            ends=ends,
            labels=labels,
            amounts=amounts,
            included=included,
        )


@dataclass(frozen=True, slots=True)
class Events:
    """The valid events of a batch, in order; see `reading.Reading`. Sensitive.

    `users`, uint64 (n, 2), has the digest of each event's user; None if users are not read.
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
        users = None if self.users is None else self.users[events]
        views = {name: columns.select(events) for name, columns in self.views.items()}
        return Events(self.index[events], self.times[events], users, views)


class Names:
    """The growing vocabulary of stream keys or a field's labels; `first` keeps the first codes."""

    def __init__(self, first: Collection[str] = ()) -> None:
        self._first = tuple(first)
        self.vocabulary = Vocabulary(self._first)

    def begin(self) -> None:
        """Begin a batch; all its codes are from one vocabulary."""
        if self.vocabulary.full:
            self.vocabulary = Vocabulary(self._first)


@kernel
def distinct_labels(
    first: Longs,
    number: Longs,
    labels: Codes,
    amounts: Longs,
    amount_max: int,
    repeated: int,
    met: Longs,
    ends: Longs,
    included: Bools,
    out_labels: Codes,
    out_amounts: Longs,
) -> tuple[bool, bool]:
    """Write each event's distinct labels in order of first occurrence, with their amounts.

    Returns whether any amount is not 1, and whether all events are included.

    Args:
        first, number: (n,): event i has labels[first[i] : first[i] + number[i]]; < 0: not included.
        amounts: (m,), or (0,): all 1.
        amount_max: limit per label and event.
        repeated: what a repeated label's amount is: ADDED_UP, its LAST one or its FIRST.
        met: (labels' codes,), scratch, -1 before and after.
        ends, included: (n,), written; ends are those in `out_labels`.
        out_amounts: written only if any of them is not 1.
    """
    used = 0
    uneven = False
    all_included = True
    weighted = len(amounts) > 0
    for i in range(len(first)):
        begin = used
        included[i] = number[i] >= 0
        all_included &= number[i] >= 0

        # A single label repeats nothing: most events of most topics.
        if number[i] <= 1 and not weighted:
            if number[i] == 1:
                out_labels[used] = labels[first[i]]
                if uneven:
                    out_amounts[used] = 1
                used += 1
            ends[i] = used
            continue

        # A few labels are compared with each other; of many, the row of each code is noted, so
        # that a hostile event costs no more than its length.
        short = number[i] <= PAIRWISE_MAX
        for k in range(first[i], first[i] + number[i]):
            label = labels[k]
            amount = min(int(amounts[k]), amount_max) if weighted else 1
            row = -1
            if short:
                for j in range(begin, used):
                    if out_labels[j] == label:
                        row = j
                        break
            else:
                row = int(met[label])

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
                met[label] = used
            out_labels[used] = label
            if uneven:
                out_amounts[used] = amount
            used += 1

        # Only what this event has set is cleared: the scratch has a row for each code there is.
        if not short:
            for j in range(begin, used):
                met[out_labels[j]] = -1
        ends[i] = used
    return uneven, all_included


@kernel
def one_label_each(first: Longs, number: Longs) -> bool:
    """Return whether every event i has exactly one label, the i-th; see `distinct_labels`."""
    i = 0
    while i < len(first) and number[i] == 1 and first[i] == i:
        i += 1
    return bool(i == len(first))


class LabelEncoder:
    """Converts the labels of one field to columns. Encoders may share `labels`."""

    def __init__(self, labels: Names) -> None:
        self.labels = labels
        self._met = np.empty(0, dtype=np.int64)
        self._upto = np.empty(0, dtype=np.int64)

    def columns(
        self,
        keys: Codes,
        key_names: Vocabulary,
        first: Longs,
        number: Longs,
        labels: Codes,
        amounts: Longs,
        *,
        repeated: int = ADDED_UP,
    ) -> EventColumns:
        """Return columns in which every label of an event occurs once.

        Event i has labels[first[i] : first[i] + number[i]], disjoint between events; number[i] < 0
        if the view excludes it. `amounts` (0,) means all 1; `repeated` is as in `distinct_labels`.
        """
        names = self.labels.vocabulary
        n = len(first)
        first = readonly_contiguous(first)
        number = readonly_contiguous(number)
        if len(labels) == n and not len(amounts) and one_label_each(first, number):
            # One label per event, the common case: use the labels as they are.
            if n > len(self._upto):
                self._upto = np.arange(1, 2 * n + 1)
            return EventColumns(
                keys, key_names, self._upto[:n], labels, NO_AMOUNTS, names, None
            )
        if len(self._met) < len(names):
            self._met = np.full(2 * len(names), -1, dtype=np.int64)
        ends = np.empty(n, dtype=np.int64)
        included = np.empty(n, dtype=np.bool_)
        distinct = np.empty(len(labels), dtype=np.int32)
        sums = np.empty(len(labels), dtype=np.int64)
        uneven, all_included = distinct_labels(
            first,
            number,
            readonly_contiguous(labels),
            readonly_contiguous(amounts),
            AMOUNT_MAX,
            repeated,
            self._met,
            ends,
            included,
            distinct,
            sums,
        )
        m = int(ends[-1]) if n else 0
        amounts = sums[:m] if uneven else NO_AMOUNTS
        return EventColumns(
            keys,
            key_names,
            ends,
            distinct[:m],
            amounts,
            names,
            None if all_included else included,
        )


def rows_of(first: Longs, number: Longs) -> Longs:
    """Return the concatenated indices first[i] .. first[i] + number[i] - 1 of all i."""
    ends = np.cumsum(number)
    before = np.repeat(first - (ends - number), number)
    rows: Longs = np.arange(len(before)) + before
    return rows
