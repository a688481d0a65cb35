"""The total of what was spent: for one event, or for one user.

One event. Its time, as the worker took it (late events count in the tick that was open), is the
same for all histograms, so it lies in one tick, and one epoch, of each generation that published at
that time. It has one stream key, and one owner partition. So the total is the largest, over stream
keys and times, of what the generations that counted it cost together; generations of one histogram
meet in time only where the width or the start of their ticks changed. Where histograms take the
stream key from different fields it has one of each, and all of them count. A running generation
goes on, so its time has no end. All these totals are converted at one delta, the largest sum that
any of them needs, so that the epsilon stated holds for every event.

One user may come in every epoch, with every key: every epoch of every generation adds up.

A generation that protected another unit has no figure for this one: many events are more than one,
and of a user whose one event goes other pairs begin to count, so a promise to users is none to
events at the same price. Then no total is stated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

from msgspec import structs

from workers.pipeline.histogram import owner_of
from workers.privacy.ceiling.charges import key_field
from workers.privacy.plan.model import Span
from workers.privacy.spending.model import Counted, Total
from workers.privacy.spending.state import Entry
from workers.privacy.total import Together, delta_together, spans_of, together
from workers.settings.settings import Settings

# Of more combinations of what one event can count in, everything counts.
_CHOICES_MAX = 4_096


def total_of(entries: Sequence[Entry], settings: Settings, owners: int) -> tuple[Total | None, tuple[Counted, ...]]:
    """Return the total for the unit of the settings, and what no such total can include.

    Args:
        entries: of the state.
        settings: their unit, and the stream keys of running histograms.
        owners: owner partitions.

    Returns:
        None if nothing was published or something protected another unit; and the latter.
    """
    unit = settings.privacy.unit
    published = [entry for entry in entries if entry.pieces]
    outside = tuple(_counted(entry) for entry in published if entry.life.unit != unit)
    if outside or not published:
        return None, outside
    if unit == "user":
        return _total(unit, published, together([entry.part for entry in published]), None), ()
    groups = dict(_sets(published, settings, owners))
    delta = max(delta_together([entry.part for entry in _of(published, group)]) for group in groups)
    found = {group: together([entry.part for entry in _of(published, group)], delta) for group in groups}

    def size(group: frozenset[int]) -> tuple[float, float, list[int]]:
        # Without an epsilon nothing is promised, which counts as the largest.
        epsilon = found[group].epsilon
        return math.inf if epsilon is None else epsilon, found[group].rho, sorted(group)

    worst = max(groups, key=size)
    # No key is named if the same running histograms serve every one.
    served = {_keys(entry, settings) for entry in published if entry.status == "running"}
    key = groups[worst] if len(served) > 1 else None
    return _total(unit, _of(published, worst), found[worst], key), ()


def person_of(entries: Sequence[Entry], settings: Settings, owners: int) -> tuple[Span, ...]:
    """Return what one person loses by what still runs, or by all that ran if nothing does."""
    published = [entry for entry in entries if entry.pieces]
    if not published or any(entry.life.unit != settings.privacy.unit for entry in published):
        return ()
    running = [entry for entry in published if entry.status != "ended"] or published
    if settings.privacy.unit == "user":
        return spans_of([entry.charge for entry in running])
    groups = {tuple(sorted(group)) for group, _ in _sets(running, settings, owners)}
    return spans_of(*([entry.charge for entry in _of(running, group)] for group in sorted(groups)))


def total_of_all(found: Mapping[str, tuple[Sequence[Entry], Settings, int]]) -> tuple[Total | None, tuple[str, ...]]:
    """Return the total of several workers on the same events, and whose promise is to another unit.

    Args:
        found: by worker, what `total_of` takes.
    """
    unit = next(iter(found.values()))[1].privacy.unit
    published = {worker: [e for e in entries if e.pieces] for worker, (entries, _, _) in found.items()}
    outside = tuple(worker for worker, entries in published.items() if any(e.life.unit != unit for e in entries))
    published = {worker: entries for worker, entries in published.items() if entries}
    if outside or not published:
        return None, outside
    choices: list[list[tuple[str, Entry]]] = []
    if unit == "event":
        sets = {
            worker: [_of(entries, group) for group, _ in _sets(entries, found[worker][1], found[worker][2])]
            for worker, entries in published.items()
        }
        if math.prod(map(len, sets.values())) <= _CHOICES_MAX:
            for choice in product(*sets.values()):
                choices.append([(w, e) for w, group in zip(sets, choice, strict=True) for e in group])
    if not choices:  # of users; or too many to try, so all that there is
        choices.append([(worker, entry) for worker, entries in published.items() for entry in entries])
    delta = max(delta_together([entry.part for _, entry in choice]) for choice in choices)
    sums = [together([entry.part for _, entry in choice], delta) for choice in choices]
    worst = max(range(len(sums)), key=lambda i: (math.inf if (e := sums[i].epsilon) is None else e, sums[i].rho))
    parts = tuple(structs.replace(_counted(entry), worker=worker) for worker, entry in choices[worst])
    return structs.replace(_total(unit, (), sums[worst], None), parts=parts), ()


def _of(entries: Sequence[Entry], group: Iterable[int]) -> list[Entry]:
    return [entries[i] for i in sorted(group)]


def _sets(entries: Sequence[Entry], settings: Settings, owners: int) -> Iterator[tuple[frozenset[int], str | None]]:
    """Yield every set of generations that counts one event, with its key, None if not declared."""
    if len({key_field(entry.life) for entry in entries}) > 1:
        # It has a stream key, and an owner partition, for each field.
        yield from ((group, None) for group in _at_one_time(entries, range(len(entries)), None))
        return
    declared = [_keys(entry, settings) for entry in entries]
    names = sorted({key for keys in declared if keys is not None for key in keys})
    seen: set[tuple[int, frozenset[int]]] = set()
    for key in (None, *names):
        serving = frozenset(i for i, keys in enumerate(declared) if keys is None or key in keys)
        for owner in range(owners) if key is None else (owner_of(key, owners),):
            if (owner, serving) not in seen:
                seen.add((owner, serving))
                for group in _at_one_time(entries, serving, owner):
                    yield group, key


def _keys(entry: Entry, settings: Settings) -> frozenset[str] | None:
    """Return the stream keys that a generation served; None if they may be any."""
    # The state does not keep the keys of older generations.
    for config in settings.histograms:
        if (config.name, config.generation) == (entry.name, entry.life.generation):
            return None if config.keys == "public" else frozenset(config.keys)
    return None


def _at_one_time(entries: Sequence[Entry], serving: Iterable[int], owner: int | None) -> Iterator[frozenset[int]]:
    """Yield the sets of generations that published at one time, in one owner partition or any."""
    spans = [
        (entries[i].grid.start(piece.first), math.inf if piece.running else entries[i].grid.end(piece.last), i)
        for i in serving
        for piece in entries[i].pieces
        if owner is None or piece.owner == owner
    ]
    # The largest sets begin where a generation begins.
    for begin, _, _ in spans:
        yield frozenset(i for first, end, i in spans if first <= begin < end)


def _counted(entry: Entry) -> Counted:
    return Counted(histogram=entry.name, generation=entry.life.generation, epochs=entry.charged_epochs)


def _total(unit: str, entries: Sequence[Entry], found: Together, key: str | None) -> Total:
    return Total(
        unit=unit, epsilon=found.epsilon, delta=found.delta, rho=found.rho, deltas=found.deltas,
        epsilon_of_the_sum=found.epsilon_of_the_sum, parts=tuple(map(_counted, entries)), key=key,
    )  # fmt: skip
