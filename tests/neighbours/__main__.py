"""`python -m tests.neighbours --pairs 1000000 --seed N [--only SEED]`; exit 1 at a violation.

With `--records` only scenes with `neighbours = "record"`, in grids: records come and go.
"""

import argparse
import gc
import logging
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from typing import NamedTuple

from tests.neighbours.driver import replaced
from tests.neighbours.pairing import STREAMS, WORLDS, Figures, Search, shrunk
from tests.neighbours.pairs import RECORDS, STATES
from tests.neighbours.planted import LEAKS
from tests.neighbours.scenes import BY_NAME, Seed, make_scene
from workers.runtime.process import keep_freed_memory

SHOWN = 3
# Scenes of a variant and seed.
SCENES_MAX = 10**6
PROGRESS_S = 60
# Of one stream; where fewer users are in it there are fewer.
GRID_PAIRS = RECORDS * STATES ** (RECORDS - 1) * STATES * (STATES - 1) // 2


class Done(NamedTuple):
    """The figures of one scene, with its violations as text."""

    figures: dict[str, Figures]
    kinds: dict[str, int]
    violations: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.neighbours", description=__doc__
    )
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1, help="of all pairs")
    parser.add_argument(
        "--only", type=Seed.of, metavar="SEED", help="of one stream, as printed"
    )
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--planted", action="store_true", help="find planted leaks, and say how soon"
    )
    parser.add_argument(
        "--records", action="store_true", help="records more or less only, in grids"
    )
    parser.add_argument(
        "--variants",
        default="",
        metavar="TEXT",
        help="only variants of mechanisms with this in their names",
    )
    given = parser.parse_args()
    if not any(given.variants in name for name in BY_NAME):
        parser.error(f"--variants {given.variants}: in none of {', '.join(BY_NAME)}")
    grids: bool = given.records
    begun = time.perf_counter()
    first = given.seed * SCENES_MAX
    if given.planted:
        begin()
        return planted(first, min(given.pairs, 80_000), grids=grids)
    if given.only is not None:
        begin()
        print(*of_streams([given.only], grids=grids).violations, sep="\n")
        return 0
    figures = defaultdict[str, Figures](Figures)
    kinds = defaultdict[str, int](int)
    found = 0
    said_s = begun
    compare = partial(of_streams, grids=grids)
    seeds = scenes(first, given.pairs, grids=grids, part=given.variants)
    for done in compared(compare, seeds, given.jobs):
        for name, one in done.figures.items():
            figures[name].add(one)
        for name, number in done.kinds.items():
            kinds[name] += number
        for text in done.violations[: max(0, SHOWN - found)]:
            print(text, flush=True)
        found += len(done.violations)
        now_s = time.perf_counter()
        if now_s - said_s > PROGRESS_S:
            said_s = now_s
            pairs = sum(one.pairs for one in figures.values())
            print(
                f"{pairs:,} pairs, {found} violations, {now_s - begun:.0f} s",
                flush=True,
            )
        is_enough = sum(one.pairs for one in figures.values()) >= given.pairs
        if is_enough or now_s - begun > 60 * given.minutes:
            break
    report(figures, kinds, time.perf_counter() - begun)
    return 1 if found else 0


def report(figures: dict[str, Figures], kinds: dict[str, int], seconds: float) -> None:
    whole = Figures()
    print("mechanism           " + "".join(f"{name:>12}" for name in vars(whole)))
    for name, one in sorted(figures.items()):
        print(f"{name:20}" + "".join(f"{value:12,}" for value in vars(one).values()))
        whole.add(one)
    print(f"{'all':20}" + "".join(f"{value:12,}" for value in vars(whole).values()))
    print(f"{seconds:.0f} s, {whole.pairs / seconds:.0f} pairs a second; by change:")
    print(", ".join(f"{name} {n:,}" for name, n in sorted(kinds.items())))


def begin() -> None:
    logging.disable(logging.CRITICAL)
    keep_freed_memory()
    # Readers and shards know each other and hold megabytes, of which the collector knows nothing.
    gc.set_threshold(1_000, 5, 5)


def scenes(
    first: int, pairs: int, *, grids: bool, part: str = ""
) -> Iterator[list[Seed]]:
    """Yield the seeds of whole scenes, of all variants in turn, until they have this many pairs.

    Variants are those with `part` in their names.
    With `grids` of those where records come and go, and of enough of them for streams of one user.
    """
    number = -(-pairs // (STREAMS * WORLDS * (WORLDS - 1) // 2))
    seeds = every_scene(first, part)
    if grids:
        number = 4 * -(-pairs // (STREAMS * GRID_PAIRS))
        seeds = (seed for seed in seeds if make_scene(*seed[:2]).record)
    for seed in islice(seeds, number):
        yield [seed._replace(stream=stream) for stream in range(STREAMS)]


def every_scene(first: int, part: str = "") -> Iterator[Seed]:
    names = [name for name in BY_NAME if part in name]
    return (Seed(name, scene) for scene in count(first) for name in names)


def compared(
    compare: Callable[[list[Seed]], Done], seeds: Iterator[list[Seed]], jobs: int
) -> Iterator[Done]:
    if jobs == 1:
        begin()
        yield from map(compare, seeds)
        return
    with get_context("fork").Pool(jobs, begin) as pool:
        yield from pool.imap(compare, seeds)


def of_streams(seeds: list[Seed], *, grids: bool) -> Done:
    search = Search(grids=grids)
    gc.freeze()  # what there is: collecting what worlds leave is quick
    with replaced():
        violations = [str(shrunk(violation)) for violation in search.streams(seeds)]
    gc.unfreeze()
    gc.collect()
    return Done(dict(search.figures), dict(search.kinds), violations)


def planted(first: int, most: int, *, grids: bool) -> int:
    """Print after how many streams each planted leak is found; exit 1 if one is not.

    Of every scene that can show it one stream is compared, in a grid of two states: what finds a leak
    is another scene, sooner than more worlds of one.
    """
    missed = 0
    for name, leak in LEAKS.items():
        if (leak.records if grids else leak.content) is None:
            continue
        search = Search(grids=grids, states=2)
        found = None
        pairs = streams = 0
        with replaced(), leak.plant():
            for seed in every_scene(first):
                scene = make_scene(seed.variant, seed.scene)
                if not leak.shows(scene) or (grids and not scene.record):
                    continue
                found = next(search.streams([seed]), None)
                streams += 1
                pairs = sum(one.pairs for one in search.figures.values())
                if found is not None or pairs > most:
                    break
        after = (
            "NOT FOUND"
            if found is None
            else f"seed {found.seed}: {found.texts[0][:150]}"
        )
        print(f"{name:60}{streams:3} streams,{pairs:6} pairs, {after}", flush=True)
        missed += found is None
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
