"""The table of DP-SQLP, section 5.1, beside `quietcount replay` of the same workload: keys, three norms, time, memory.

Source: Zhang, Doroshenko, Kairouz, Steinke, Thakurta, Ma, Cohen, Apte, Spacek, "Differentially Private Stream Processing at Scale"
(PVLDB 17(12), 2024), Table 1. Epsilon 6, delta 1e-9, 10 M users, 1 M keys, T micro-batches (ticks), at most C records of a user.

    keys     how many are in the last histogram
    norms    of (last histogram - exact counts) over all keys, 0 for those not in it; exact counts are of all records, before any bound

What is the same and what is not is in docs/performance.md. The records are made from a fixed seed (`users_table.write`); each run
makes a new key, and so new noise: figures differ a little from run to run.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from bench import replay, users_table
from tests import ROOT
from workers.commands.key import new_key
from workers.replay.backtest.recommend import recommend
from workers.replay.backtest.results import by_histogram, read

EPSILON = 6.0
DELTA = 1e-9
C = 32
END_SHARE = 0.6
# What `replay --report` chooses from.
CANDIDATES = (16, 24, 32, 48, 64)


@dataclass(frozen=True, slots=True)
class Figures:
    """One row: the released histogram against the exact counts.

    Attributes:
        keys: how many are released.
        largest, l1, l2: norms of the error over all keys.
        wall_s, cpu_s, peak_mb: of the whole replay; None where they are not known.
    """

    keys: int
    largest: int
    l1: int
    l2: float
    wall_s: float | None = None
    cpu_s: float | None = None
    peak_mb: int | None = None


# As printed, by the number of micro-batches; of its machines nothing is said that compares with one
# process.
PUBLISHED = {
    100: Figures(28_338, 1_391, 17_741_225, 50_039),
    1_000: Figures(22_280, 1_563, 19_395_721, 58_237),
}
# Promised for C = 32 with `end_share`: at least this many keys, at most this l1 error.
TARGETS = {100: (75_000, 8_500_000), 1_000: (73_000, 8_600_000)}


def settings(ticks: int, pairs: int, end_share: float | None) -> str:
    """The settings of one row: those of `users_table`, at DP-SQLP's budget."""
    text = users_table.SETTINGS.format(ticks=ticks, pairs=pairs)
    text = text.replace("epsilon = 1.0", f"epsilon = {EPSILON}").replace(
        "delta = 1e-9", f"delta = {DELTA}"
    )
    return text if end_share is None else f"{text}end_share = {end_share}\n"


def measure(
    directory: Path,
    exact: NDArray[np.int64],
    ticks: int,
    pairs: int,
    end_share: float | None,
) -> Figures:
    """Replay the directory's events.parquet; hold its last snapshot against the exact counts."""
    (directory / "settings.toml").write_text(settings(ticks, pairs, end_share))
    if not (directory / "noise.key").exists():
        new_key(directory / "noise.key")
    command = [
        sys.executable,
        "-c",
        replay.CHILD,
        "replay",
        "-c",
        str(directory / "settings.toml"),
    ]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    with (
        (directory / "stderr").open("wb") as said,
        subprocess.Popen(
            [
                *command,
                "--input",
                str(directory / "events.parquet"),
                "--snapshots",
                "-",
            ],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=said,
        ) as process,
    ):
        assert process.stdout is not None
        last, peak_mb = _last(process.stdout, ticks)
    if process.returncode != 0:
        raise RuntimeError(
            f"replay ended with {process.returncode}:\n{(directory / 'stderr').read_text()[-2000:]}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    released = np.zeros(len(exact), dtype=np.int64)
    for label, count in last.items():
        released[int(label[1:])] = count
    error = released - exact
    return Figures(
        keys=len(last),
        largest=int(np.abs(error).max()),
        l1=int(np.abs(error).sum()),
        l2=float(np.sqrt(np.square(error.astype(np.float64)).sum())),
        wall_s=time.perf_counter() - begun,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        peak_mb=peak_mb,
    )


def _last(lines: Iterable[bytes], ticks: int) -> tuple[dict[str, int], int]:
    """Read all snapshots; return the counts of the last tick, of all its pages, and the most memory of the process in MB."""
    found: dict[str, int] = {}
    pages = expected = peak_mb = 0
    mark = b'"tick":%d,' % ticks
    for line in lines:
        if line.startswith(b"VmHWM"):
            peak_mb = int(line.split()[1]) >> 10
        elif mark in line[:2000]:
            snapshot = orjson.loads(line)
            pages += 1
            expected = snapshot.get("pages", 1)
            found |= dict(snapshot["items"])
    if not pages or pages != expected:
        raise RuntimeError(f"the last tick, {ticks}, has {pages} pages")
    return found, peak_mb


def recommended(directory: Path, ticks: int) -> int | None:
    """Return the C that `replay --report` recommends of `CANDIDATES`; None where it finds none of use."""
    (directory / "settings.toml").write_text(settings(ticks, C, END_SHARE))
    if not (directory / "noise.key").exists():
        new_key(directory / "noise.key")
    report = directory / "report"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "workers.cli",
            "replay",
            "-c",
            str(directory / "settings.toml"),
            "--input",
            str(directory / "events.parquet"),
            "--report",
            str(report),
            "--force",
            "--seeds",
            "1",
            "--top",
            "1000",
            "--vary",
            "max_items_per_user=" + ",".join(map(str, CANDIDATES)),
        ],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [of] = by_histogram(read(report)).values()
    number = recommend(of).chosen
    return next(
        (int(one.settings["max_items_per_user"]) for one in of if one.number == number),
        None,
    )


def table(horizons: tuple[int, ...], share: float) -> bool:
    """Print the table, a part for each horizon; return whether what is promised of C = 32 was found."""
    users = int(users_table.USERS * share)
    print(
        f"\nDP-SQLP, section 5.1: {users:,} users, {users_table.ITEMS:,} keys, epsilon "
        f"{EPSILON:g}, delta {DELTA:g}"
    )
    print(
        f"{'':44} {'keys':>8} {'l_inf':>7} {'l1':>12} {'l2':>9} {'s':>7} {'CPU s':>7} {'MB':>7}"
    )
    kept = True
    for ticks in horizons:
        with tempfile.TemporaryDirectory() as name:
            directory = Path(name)
            exact = users_table.write(directory / "events.parquet", ticks, users)
            if share == 1 and ticks in PUBLISHED:
                _row(f"T = {ticks:,}, DP-SQLP as printed, C = {C}", PUBLISHED[ticks])
            best = recommended(directory, ticks)
            for pairs, end_share in dict.fromkeys(
                ((C, None), (C, END_SHARE), (best or C, END_SHARE))
            ):
                found = measure(directory, exact, ticks, pairs, end_share)
                chosen = ", recommended" if pairs == best and end_share else ""
                _row(
                    f"T = {ticks:,}, C = {pairs}, end_share {end_share or 'none'}{chosen}",
                    found,
                )
                if (
                    share == 1
                    and ticks in TARGETS
                    and (pairs, end_share) == (C, END_SHARE)
                ):
                    keys, l1 = TARGETS[ticks]
                    met = found.keys >= keys and found.l1 <= l1
                    print(
                        f"  at least {keys:,} keys and at most l1 {l1:,}: {'met' if met else 'NOT met'}",
                        flush=True,
                    )
                    kept = kept and met
    return kept


def _row(title: str, found: Figures) -> None:
    times = (
        ""
        if found.wall_s is None
        else f" {found.wall_s:7.1f} {found.cpu_s:7.1f} {found.peak_mb:7,}"
    )
    print(
        f"{title:44} {found.keys:8,} {found.largest:7,} {found.l1:12,} {found.l2:9,.0f}{times}",
        flush=True,
    )
