"""MetaAlgo: running counts as sums of one-shot releases of the tree's complete cells.

    Symbol      Here
    r           `radix`; r* = argmin (r - 1) L_r^2
    L_r         digits of the horizon in base r; an event lies in one cell of each level
    cell        (level j, block q): ticks q r^j + 1 .. (q + 1) r^j
    h_cell      the histogram of the cell's own contributions

    release(t) = sum, over the cells named by t's base-r digits, of the one-shot release of h_cell

The cells of t are complete by t, so the state holds one open histogram a level and the sums of the
released ones, not the stream as 000 says. A cell that is never named (the last block of its parent)
is not released. Each cell's algorithm gets rho / L_r and delta_discovery / L_r. An item hidden in a
cell counts as 0 there, so over an unknown domain counts are too low by the hidden amounts: at most
one threshold per such cell for an item that some cells show.

The cost of `known_gauss`, `unk_gauss`, `positive_gauss`, `positive_laplace` and `limit_dom_laplace`
grows with D0, that of `known_gumbel` and `limit_dom` with k. A user's item may be split into at
most Dinf parts, in as many cells of a level: as with `OneShot` these cost no more rho than one of
Dinf; discovery and samplers are charged for each (`Parameters.releases`). Of the sketches `pmg` and
`pure` epsilons add up, and so do the deltas of `pmg` (`one_shot.sketches`).

    open[j]     int64 (n,)   exact counts of the open cell of level j, less those of open cells of
                             lower levels; j = 1..L-1 (sensitive)
    sums[j]     int64 (n,)   sum of the noisy counts of the released cells of level j named by the
                             current digits; j = 0..L-1
    has[j]      bool  (n,)   whether one of those cells showed the item

Blocks of rows "mo<level>/<block>" and "mn<level>/<block>" are stored when changed: a version byte,
the number of rows (uint16), then the counts little-endian and, for noisy ones, the flags; no rows
where all are 0.

Source: Cardoso, Rogers ("000" above), Alg. 7 and Theorem 3; its sqrt(L_r) tau and delta / L_r a
cell are the same split.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from workers.arrays.tag_index import Rows
from workers.arrays.types import Longs
from workers.mechanisms.about import About, Bound, Data, Figure, RowBytes
from workers.mechanisms.bounds import normal_bound, subset_bound
from workers.mechanisms.budget import Budgeted, split
from workers.mechanisms.config.histogram import Domain, HistogramConfig
from workers.mechanisms.counters.tree import Tree, best_radix
from workers.mechanisms.curves import DigitCurve, blocks_figure
from workers.mechanisms.ledger import Parts, with_capacity
from workers.mechanisms.mechanism import (
    Mechanism,
    Noise,
    Release,
    State,
    body_of,
    expect_type,
    unknown_block,
)
from workers.mechanisms.noise.keyed import NoiseStream
from workers.mechanisms.one_shot.algorithms import (
    IN_EPSILON,
    KNOWN,
    LIMITED,
    PER_ITEM,
    PICKING,
    SKETCHES,
    Algorithm,
    Cell,
    Name,
    Noisy,
    OneShotNoise,
    Picking,
    Sketched,
    figures_of,
    make_algorithm,
)
from workers.mechanisms.one_shot.bounds import (
    SOURCES,
    choice_error,
    sketch_error,
    sum_error,
)
from workers.mechanisms.one_shot.one_shot import Count, ReleasingConfig, domain_hash
from workers.mechanisms.one_shot.sketches import Size, price_sketch, sketch_complaints
from workers.runtime.errors import StateRefused

BLOCK_ROWS = 4096
# 2: includes the number of rows, so that truncated blocks are detected.
_VERSION = 2
_COUNT = np.dtype("<i8")


class MetaConfig(ReleasingConfig, frozen=True, kw_only=True, tag="meta"):
    """Settings of MetaAlgo: the one-shot `algorithm` of cells, and what it needs."""

    about = About(
        order_in_tables=50,
        family="running",
        text_in_plan="running counts as sums of one-shot releases",
        noise_is_on="a count that all its blocks show",
        threshold_rule="block",
        counters="tree",
        needs_end=True,
        may_be_pure=True,
        subtracts_with='algorithm = "known_gauss"',
        pays="pays only with known_gumbel or limit_dom and events of many items",
    )
    decides_domain = "algorithm"

    algorithm: Name
    counter: Literal["tree"] = "tree"
    domain: Domain | None = None
    k: Count | None = None
    kbar: Count | None = None
    size: Size | None = None

    @classmethod
    def lists_labels(cls, values: Mapping[str, object]) -> bool:
        return values.get("algorithm") in KNOWN

    @classmethod
    def compared_settings(cls, other: HistogramConfig) -> Iterator[dict[str, Any]]:
        yield {"algorithm": "known_gauss" if other.declared else "positive_gauss"}

    @property
    def pure(self) -> bool:
        return self.algorithm == "pure"

    @property
    def has_quantiles(self) -> bool:
        return self.algorithm == "known_gauss"

    @property
    def subtracts(self) -> bool:
        return self.has_quantiles

    @property
    def protects_users(self) -> bool:
        return self.algorithm in PER_ITEM

    @property
    def threshold_is_count(self) -> bool:
        return self.algorithm not in LIMITED

    def complaints(self) -> Iterator[str]:
        """Yield which settings the algorithm needs and lacks (None), or has and does not take."""
        yield from super().complaints()
        for field, value, algorithms in (
            (self.domain_from, self.domain, KNOWN),
            ("k", self.k, PICKING),
            ("kbar", self.kbar, LIMITED),
            ("size", self.size, SKETCHES),
        ):
            needed = self.algorithm in algorithms
            if needed and value is None:
                yield f'{field} is missing: algorithm = "{self.algorithm}" needs it'
            if not needed and value is not None:
                yield f'{field} is set: algorithm = "{self.algorithm}" has none'
        yield from self._parameter_complaints(self.algorithm)
        yield from sketch_complaints(self, "algorithm", self.algorithm)


# In the names of stored blocks: counts of open cells, and noisy sums of released ones.
_OPEN = "o"
_NOISY = "n"
_BLOCK_NAME = re.compile("m([on])([0-9a-f]{2})/([0-9a-f]{8})")


class MetaState(State):
    """Counts of open and released cells, as in the module's table. Sensitive."""

    def __init__(self, levels: int) -> None:
        """Begin without rows; `levels` is L_r."""
        super().__init__()
        # open, sums and has of the module, each (levels, capacity): a column for a row of the
        # ledger.
        self._open = np.zeros((levels, 0), dtype=np.int64)
        self._sums = np.zeros((levels, 0), dtype=np.int64)
        self._has = np.zeros((levels, 0), dtype=np.bool_)
        # Blocks to store: _OPEN or _NOISY, level, number of the block of rows.
        self._changed: set[tuple[str, int, int]] = set()

    @property
    def nbytes(self) -> int:
        return self._open.nbytes + self._sums.nbytes + self._has.nbytes

    def grow(self) -> None:
        """Make room for the rows that the ledger has got."""
        n = self.ledger.n
        self._open = with_capacity(self._open, n, axis=1)
        self._sums = with_capacity(self._sums, n, axis=1)
        self._has = with_capacity(self._has, n, axis=1)

    def add_open(self, level: int, counts: Longs) -> None:
        """Add exact counts to the open cell of a level."""
        rows = np.flatnonzero(counts)
        self._open[level][rows] += counts[rows]
        self._mark(_OPEN, level, rows)

    def close(self, level: int) -> Longs:
        """Return the exact counts of a complete cell; the next cell starts empty."""
        n = self.ledger.n
        counts: Longs = self._open[level][:n].copy()
        self._open[level][:n] = 0
        self._mark(_OPEN, level, np.flatnonzero(counts))
        return counts

    def add_noisy(self, level: int, rows: Rows, counts: Longs) -> None:
        """Add released counts of rows to the noisy sums of a level."""
        n = self.ledger.n
        # For all rows, a slice takes a third of the time (measured).
        shown = slice(n) if len(rows) == n else rows
        self._sums[level][shown] += counts
        self._has[level][shown] = True
        self._mark(_NOISY, level, rows)

    def clear_noisy(self, level: int) -> None:
        """Clear a level's noisy sums: this digit of the tick is 0 now, so it names no cell."""
        self._mark(_NOISY, level, np.flatnonzero(self._has[level]))
        self._sums[level][:] = 0
        self._has[level][:] = False

    def shown(self) -> tuple[Rows, Longs]:
        """Return the rows that any cell of the current tick shows, and their sums over levels."""
        n = self.ledger.n
        has = np.zeros(n, dtype=np.bool_)
        total = np.zeros(n, dtype=np.int64)
        for sums, flags in zip(self._sums, self._has, strict=True):
            if flags[:n].any():
                has |= flags[:n]
                total += sums[:n]
        rows = np.flatnonzero(has)
        return rows, total[rows]

    def changed(self) -> Sequence[tuple[str, bytes]]:
        """Return the blocks changed since the last call: see the module."""
        blocks = []
        for kind, level, block in sorted(self._changed):
            rows = slice(
                block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, self.ledger.n)
            )
            counts = (self._open if kind == _OPEN else self._sums)[level][rows]
            flags = (
                self._has[level][rows]
                if kind == _NOISY
                else np.zeros(0, dtype=np.bool_)
            )
            # A block of zeros is stored without rows.
            if not counts.any() and not flags.any():
                counts = counts[:0]
                flags = flags[:0]
            body = counts.astype(_COUNT).tobytes() + flags.tobytes()
            text = bytes((_VERSION,)) + len(counts).to_bytes(2, "little") + body
            blocks.append((f"m{kind}{level:02x}/{block:08x}", text))
        self._changed = set()
        return blocks

    def restore(self, name: str, block: bytes) -> None:
        """Read a stored block (see the module) into its rows; raise StateRefused if it is damaged.

        The ledger must be complete.
        """
        match = _BLOCK_NAME.fullmatch(name)
        if match is None:
            raise unknown_block(name)
        level = int(match[2], 16)
        start = int(match[3], 16) * BLOCK_ROWS
        noisy = match[1] == _NOISY
        self.grow()
        body = body_of(name, block, _VERSION)
        rows = int.from_bytes(body[:2], "little")
        # Noisy counts have a flag of one byte each.
        is_whole = len(body) == 2 + rows * (_COUNT.itemsize + noisy)
        if not is_whole or level >= len(self._sums) or start + rows > self.ledger.n:
            raise StateRefused(f"stored state: block {name!r} is cut short")
        counts = np.frombuffer(body, dtype=_COUNT, count=rows, offset=2)
        (self._sums if noisy else self._open)[level][start : start + rows] = counts
        if noisy:
            self._has[level][start : start + rows] = np.frombuffer(
                body, dtype=np.bool_, offset=2 + rows * _COUNT.itemsize
            )

    def _mark(self, kind: str, level: int, rows: Rows) -> None:
        """Note the blocks of these rows as changed."""
        # np.unique takes ten times as long (measured).
        blocks = np.zeros(-(-self.ledger.n // BLOCK_ROWS), dtype=np.bool_)
        blocks[rows // BLOCK_ROWS] = True
        self._changed.update(
            (kind, level, block) for block in np.flatnonzero(blocks).tolist()
        )


class Meta(Budgeted):
    """Running counts as sums of releases of cells: see the module. Guarantee: as `Budgeted`."""

    configs = (MetaConfig,)
    config: MetaConfig

    def __init__(self, config: MetaConfig, unit: str = "event") -> None:
        """Make the tree, and the algorithm of a cell that the budget pays for."""
        # Skip `Budgeted`: sketches, which have a `size`, price their budget differently.
        Mechanism.__init__(self, config, unit)
        self._known = config.algorithm in KNOWN
        # Where epsilons add up, a cell's noise grows with L and not with its root.
        power = 3 if config.algorithm in IN_EPSILON else 2
        self.radix = config.radix or best_radix(config.ticks, power=power)
        self._tree = Tree(config.ticks, self.radix)
        self.levels = self._tree.levels
        self.algorithm: Algorithm
        if config.size is not None:
            self.algorithm, self._cost = price_sketch(
                config, config.algorithm, config.size, self.levels
            )
        else:
            self.algorithm = self._within_budget(config)
        # Of a single cell: an item is shown once one cell shows it.
        self._threshold = self.algorithm.threshold

    def _within_budget(self, config: MetaConfig) -> Noisy | Picking:
        """Return the algorithm that an L-th of the budget pays for, and set the cost.

        An event lies in one cell of each of L levels. Shares are rounded down, the cost up.
        """
        self._cost = split(config, discovers=not self._known)
        algorithm = make_algorithm(
            config.algorithm,
            replace(config.parameters(), releases=self.ticks_of_item()),
            math.nextafter(self._cost.rho / self.levels, 0.0),
            self.delta_discovery / self.levels * (1 - 1e-12),
        )
        spent = math.nextafter(self.levels * algorithm.rho, math.inf)
        tv = math.nextafter(self.levels * algorithm.tv, math.inf)
        self._set_cost(spent, tv)
        return algorithm

    def _parameters(self) -> Mapping[str, object]:
        """Return what the mechanism's id depends on, beside what all mechanisms have."""
        return {
            "horizon": self.config.ticks,
            **({"accounting": "pure"} if self._cost.pure else {}),
            "discovery": {"delta": repr(self.delta_discovery)},
            "radix": self.radix,
            "levels": self.levels,
            "algorithm": self.algorithm.public(),
            "domain": domain_hash(self.config.algorithm, self._domain),
        }

    def blocks(self) -> DigitCurve:
        return DigitCurve(self.radix, [self.sd(1) ** 2] * self.levels)

    def row_bytes(self) -> RowBytes:
        note = f"an open and a released count for each of {self.levels} levels"
        return RowBytes(state=(8 + 8 + 1) * self.levels, note=note)

    def figures(self, last: int, worst: int) -> Iterator[Figure]:
        yield blocks_figure(self.blocks(), worst)
        yield from figures_of(self.algorithm)

    def bounds(self, beta: float, data: Data) -> tuple[Bound, ...]:
        """Bound the error of every sum of cells, with probability 1 - beta, by kind of algorithm.

        An item that a cell does not show counts as 0 in that cell. The bounds are union bounds over
        `values`, the sums of an epoch; each adds up to `used` cells. `lost` is what sketches leave
        out.
        """
        config = self.config
        name = config.algorithm
        p = config.parameters()
        algorithm = self.algorithm
        releases = self._ticks(data)
        # How many labels a release can show: k or kbar, where the algorithm limits it.
        labels = data.items
        where = ""
        if name in PICKING + LIMITED:
            labels = p.k if name in PICKING else p.kbar
            where = " in a block"
        lost = 0.0
        # p.domain is the number of declared labels, 0 if there are none.
        values = (p.domain or min(labels, data.items)) * releases
        assumes = f"at most {labels:,} labels occur{where}"
        used = self.blocks().used_blocks(releases)
        if name == "known_gauss":
            assumes = ""
            error = normal_bound(used * algorithm.sd**2, values, beta)
        elif isinstance(algorithm, Sketched):
            assumes += f" and {data.weight:,} counts in an epoch"
            lost = data.weight / (algorithm.size + 1)
            error = sketch_error(algorithm, used, values, beta)
        elif isinstance(algorithm, Picking):
            # Half of beta for the choice of labels, half for their noise.
            error = used * choice_error(p, algorithm, releases, beta / 2)
            error += subset_bound(algorithm.sd**2, used, values, beta / 2)
        else:
            # In `LIMITED`, an item's noise and that of the bar that it has to pass.
            copies = 2 if name in LIMITED else 1
            error = sum_error(algorithm, used, copies, values, beta)
        text = f"error of every count, over {releases:,} ticks"
        # The last source also covers items that a cell hides.
        source = "Cardoso, Rogers: Theorems 2 and 3; " + SOURCES[name][-1]
        return (Bound("counts", text, assumes, beta, lost + error, source),)

    def cells(self, t: int) -> int:
        """Return the number of noisy histograms added at t."""
        self._check(t)
        return self._tree.cells(t)

    def sd(self, t: int) -> float:
        """Return the sd of an item shown by every cell of t; other items have less."""
        return self.algorithm.sd * math.sqrt(self.cells(t))

    def difference_sd(self, t: int, since: int) -> float:
        """Return the sd of the change for an item shown by every cell of both ticks.

        `since` is before t; 0 is the beginning of the epoch, which has no cells and needs no check.
        """
        for tick in (t, since or t):
            self._check(tick)
        # Noise of cells that both sums have cancels.
        apart = self._tree.cells_at(t) ^ self._tree.cells_at(since)
        return self.algorithm.sd * math.sqrt(len(apart))

    def init(self) -> MetaState:
        return MetaState(self.levels)

    def noise(self, stream: NoiseStream) -> Noise:
        return OneShotNoise(stream, self.algorithm.table)

    def step(
        self, state: State, t: int, contributions: Parts, noise: Noise
    ) -> tuple[State, Release]:
        """Release the cell that tick t completes, and show the sums over the cells of t."""
        self._check(t)
        state = expect_type(MetaState, state)
        drawn = expect_type(OneShotNoise, noise)
        ledger = state.ledger
        counts_before = ledger.counts.copy()
        state.merge(contributions, add_rows=not self._known)
        state.grow()
        # What this tick counted.
        counts = ledger.counts.copy()
        counts[: len(counts_before)] -= counts_before
        # The tick is a cell of level 0, complete at once. While the cell above is complete at t as
        # well, close it, with all that is counted below it. Then `counts` is the histogram of the
        # highest complete cell, number block - 1 of its level. It is added to the open cell above.
        level = 0
        block = t
        while block % self.radix == 0:
            state.add_open(level + 1, counts)
            counts = state.close(level + 1)
            state.clear_noisy(level)
            level = level + 1
            block = block // self.radix
        if level + 1 < self.levels:
            state.add_open(level + 1, counts)
        if self._known:
            # All rows: which of them have events must not matter.
            cell = Cell(ledger.tags, ledger.keys, counts, state.key_tags)
            present = None
        else:
            present = np.flatnonzero(counts)
            tags = ledger.tags.take(present, axis=0)
            cell = Cell(tags, ledger.keys[present], counts[present], state.key_tags)
        rows, noisy = self.algorithm.release(cell, drawn, (level, block - 1))
        state.add_noisy(level, rows if present is None else present[rows], noisy)
        found, sums = state.shown()
        return state, Release(found, sums, self.sd(t), self.algorithm.threshold)
