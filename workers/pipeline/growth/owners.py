"""Owner partitions: which one has a stream key, how they grow, and what moves then.

Stage 1's source partition 0 decides when there are more owners: where epochs of all histograms
begin. From then on its messages, and soon those of all sources, say so (`Owners`). An owner that
reaches that tick drops the stream keys that are another's from then on, and sends them in the
contributions topic (`HandedOver`); the other one begins with them (`HandOvers`). The keys of an
epoch never move within it (decisions/0034).

An owner partition is one of the contributions topic: its owner counts and publishes the stream keys
that a hash assigns to it. With `split` = n, the items of a stream key are spread over n owners, a
part each. A global tick is numbered from the start of the histogram's grid, not of an epoch.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from workers.arrays.types import Codes, Tags
from workers.runtime.errors import StateRefused

#: More than any cluster has; what is read back must not take all memory.
PARTITIONS_MAX = 1_000_000
#: Every growth of the owners at least doubles their number.
GROWN_MAX = PARTITIONS_MAX.bit_length()
_Number = Annotated[int, msgspec.Meta(ge=1, le=PARTITIONS_MAX)]
#: (number, ms): the number of owner partitions in ticks that end after this time.
Grown = Annotated[tuple[tuple[_Number, int], ...], msgspec.Meta(max_length=GROWN_MAX)]


class Owners(msgspec.Struct, frozen=True, array_like=True):
    """How many owner partitions there are: `first` in the beginning, and how they have grown.

    `grown` has pairs (number, ms): how many there are in ticks that end after this time. Every
    number is a multiple of the one before, so each new owner takes over from a single other one.
    """

    first: _Number
    grown: Grown = ()

    def __post_init__(self) -> None:
        """Raise ValueError unless each growth is later than the one before, to a multiple of it."""
        times = [from_ms for _, from_ms in self.grown]
        if any(later <= earlier for earlier, later in pairwise(times)) or any(
            number <= before or number % before
            for before, number in pairwise(self.numbers)
        ):
            raise ValueError(
                f"owners = {self.numbers}: each a multiple of the one before, and later"
            )

    @property
    def numbers(self) -> tuple[int, ...]:
        """All numbers of owners, in the order in which they came to hold."""
        return self.first, *(number for number, _ in self.grown)

    @property
    def number(self) -> int:
        """The newest number, which may not hold yet."""
        return self.numbers[-1]

    def number_before(self, owner: int) -> int:
        """Return the number of owners just before the growth that added `owner`."""
        # An owner's number is below that of the owners from its growth on.
        return max(number for number in self.numbers if number <= owner)

    def at(self, end_ms: int) -> int:
        """Return the number of owners in a tick that ends at this time."""
        # Numbers only grow, so the newest one that holds is the largest.
        return max(
            [number for number, from_ms in self.grown if end_ms > from_ms],
            default=self.first,
        )


def owner_of(key: str, owners: int) -> int:
    """Return the owner partition of a stream key. Part of the stored format: never change it."""
    return zlib.crc32(key.encode()) % owners


def part_owner(owner: int, part: int, owners: int) -> int:
    """Return the owner partition of a part, from 0, of a stream key whose first one is `owner`.

    So an owner has at most one part of a key. Part of the stored format: never change it.
    """
    return (owner + part) % owners


def parts_of(tags: Tags, split: int) -> Codes:
    """Return the part, from 0, of each item by its tag (n, 2). Never change it: see `owner_of`.

    The tag is a hash with a secret key, so nobody can load one part with chosen labels. Its lowest
    32 bits, as a fraction of 2^32, times `split`; others decide its place in an owner's `TagIndex`.
    """
    low = tags[:, 1] & np.uint64((1 << 32) - 1)
    return (low * np.uint64(split) >> np.uint64(32)).astype(np.int32)


class HandedOver(msgspec.Struct, frozen=True, array_like=True):
    """Stream keys of a (histogram, generation) that move to another owner before a global `tick`.

    `keys` has each of them, with the global tick from which it has been served. Sensitive.
    """

    histogram: str
    generation: int
    tick: int
    keys: list[tuple[str, int]]

    def __repr__(self) -> str:
        return (
            f"HandedOver({self.histogram!r}, tick {self.tick}, {len(self.keys)} keys)"
        )


@dataclass(slots=True)
class _Pages:
    """The pages of a hand-over read so far, up to page `number`; the first lies at `offset`.

    `tick` and `keys` are as in `HandedOver`.
    """

    offset: int
    number: int
    tick: int
    keys: list[tuple[str, int]]
    is_whole: bool


class HandOvers:
    """What other owners handed over to this one, until a histogram has begun with it.

    It arrives in pages, messages of the contributions topic.
    """

    def __init__(self) -> None:
        # By histogram and generation.
        self._pages: dict[tuple[str, int], _Pages] = {}

    def __len__(self) -> int:
        return len(self._pages)

    def take(self, handed: HandedOver, page: int, pages: int, offset: int) -> None:
        """Keep page number `page` of `pages`, whose message lies at `offset`.

        Raise StateRefused if it does not follow the page before.
        """
        name = handed.histogram, handed.generation
        read = self._pages.get(name)
        if read is None:
            read = _Pages(offset, 0, handed.tick, [], is_whole=False)
            self._pages[name] = read
        if page != read.number + 1 or handed.tick != read.tick:
            raise StateRefused(
                f"contributions offset {offset}: page {page} of what was handed over for histogram "
                f"{handed.histogram!r} follows page {read.number}"
            )
        read.number += 1
        read.keys += handed.keys
        read.is_whole = page == pages

    def whole(self, histogram: str, generation: int) -> HandedOver | None:
        """Return what was handed over to a (histogram, generation), if all pages are here."""
        read = self._pages.get((histogram, generation))
        if read is None or not read.is_whole:
            return None
        return HandedOver(histogram, generation, read.tick, read.keys)

    def drop(self, begun: Callable[[str], int]) -> None:
        """Forget what was for generations that have begun; `begun` returns a histogram's newest.

        Later ones stay: they may be those of a worker with newer settings.
        """
        self._pages = {
            (histogram, generation): pages
            for (histogram, generation), pages in self._pages.items()
            if generation > begun(histogram)
        }

    def first_offset(self, default: int) -> int:
        """Return where reading must resume to see all of it again; `default` if nothing is kept."""
        return min((pages.offset for pages in self._pages.values()), default=default)
