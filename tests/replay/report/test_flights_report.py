"""The flights example end to end: the report's figures against pandas on the raw file."""

from __future__ import annotations

import itertools
import json
import re
import shutil
from html import unescape
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests import ROOT
from tests.replay.backtest.test_backtesting_docs import run
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
EVENTS = 55_000


@pytest.fixture
def flights(tmp_path: Path) -> Path:
    """A directory with the example's events until March, its settings over a declared domain, and a key."""
    path = tmp_path / "flights"
    shutil.copytree(EXAMPLE, path)
    made = path / "flights.jsonl"
    run(["python", str(EXAMPLE / "make_events.py"), str(made)], EVENTS)
    settings = (EXAMPLE / "settings.toml").read_text(encoding="utf-8")
    of_known = 'mechanism = "known_base"\ndomain_file = "airports.txt"'
    known = settings.replace('mechanism = "unk_base"', of_known)
    (path / "known.toml").write_text(known, encoding="utf-8")
    new_key(path / "noise.key")
    return path


def test_report_figures_match_pandas_on_the_raw_file(
    flights: Path, tmp_path: Path
) -> None:
    import pandas as pd

    out = tmp_path / "out"
    snapshots = tmp_path / "snapshots.jsonl"
    source = ("--input", flights / "flights.jsonl", "--snapshots", snapshots)
    options = ("-c", flights / "known.toml", *source, "--report", out, "--seeds", 1)
    assert execute(["replay", *map(str, options)]) == 0
    events = pd.read_json(flights / "flights.jsonl", lines=True, dtype=False)
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
    assert len(ticks) > 55 and ticks[-1] == len(exact)
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
