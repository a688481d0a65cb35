"""The report of a backtest: one page that needs nothing else, safe whatever labels hold, that says what it contains, always the same."""

from __future__ import annotations

import itertools
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests import ROOT
from tests.replay.backtest import backtests
from tests.replay.backtest.backtests import an_input, events, text_of
from tests.replay.site import Patch, Printed, run_replay, settings_of
from workers.cli import execute
from workers.replay.backtest import results
from workers.replay.backtest.results import BoardRow, Results, RunRow, Series
from workers.replay.report.charts import EXACT_DATA, Chart, _width, drawable
from workers.replay.report.report import write_report

if TYPE_CHECKING:
    from matplotlib.figure import Figure


pytestmark = pytest.mark.slow

PLAN = ROOT / "examples" / "mechanisms" / "unk_base.toml"
HOSTILE = (
    "</td><script>alert(1)</script>",
    'a" onload="alert(2)',
    "$x^2$ \\frac",
    "\u202eabc\u202c",
    "\u05de\u05d5\u05e6\u05e8",
    "tea \U0001f375\U0001f389",
    "line\nbreak\x00",
    "x" * 1024,
    "<!-- --> <![CDATA[ ]]>",
)
TICKS = np.arange(1, 33, dtype=np.int64)
NOWHERE = np.zeros(1, dtype=np.int64)


def a_run(
    number: int, epsilon: float, seed: int, mechanism: str = "unk_base"
) -> RunRow:
    of: dict[str, Any] = {
        "histogram": "products",
        "mechanism": mechanism,
        "tick_ms": 60_000,
    }
    of["varied"] = {"products.epsilon": f"{epsilon}", "products.mechanism": mechanism}
    return backtests.a_run(
        number, epsilon, seed, settings='{"horizon":32}', rho=0.01, **of
    )


def series_of(run: RunRow, recall: float) -> list[Series]:
    found = []

    of = (run.run, run.seed, "products", "")

    def put(metric: str, value: float, size: int = 0) -> None:
        found.append(Series(*of, metric, 0, size, NOWHERE, np.array([value])))

    errors = {"sd": 9.0, "error_rms": 9.2, "error_worst": 20.0, "error_mean": 7.0}
    series = {
        name: value / run.epsilon * np.sqrt(TICKS) for name, value in errors.items()
    }
    for metric, values in (series | {"coverage": np.full(len(TICKS), 0.951)}).items():
        found.append(Series(*of, metric, 0, 0, TICKS, values))
        put(metric, float(values.mean()))
    figures = {"recall_unbounded": recall, "recall": recall, "lost": 0.1}
    for metric, value in (figures | {"error_unbounded_mean": 8 / run.epsilon}).items():
        put(metric, value)
    for size, share in ((1, 0.2), (10, 0.7), (100, 1.0)):
        put("passed", 10, size)
        put("found", share, size)
        if share > 0.5:
            put("delay_median", 100 / size, size)
    return found


def made(*, complete: bool = True, labels: tuple[str, ...] = HOSTILE) -> Results:
    """Four runs of two seeds; the second is as good as the best at half its epsilon."""
    score = {1: 0.60, 2: 0.95, 3: 0.96, 4: 0.94}
    runs = []
    for seed in (0, 1):
        runs += [
            a_run(n, epsilon, seed) for n, epsilon in ((1, 0.25), (2, 0.5), (3, 1.0))
        ]
        runs.append(a_run(4, 1.0, seed, "known_base"))
    boards = []
    for run, key, tick in itertools.product(runs, ("s1", "s2"), (8, 16, 24, 32)):
        of = run.run, run.seed, "products", key, tick, 60_000 * tick
        for rank, label in enumerate(labels, 1):
            released = 98 if rank < 4 else None
            counts = 100 - rank, 120 - rank, rank < 4, released
            boards.append(BoardRow(*of, rank, label, *counts, 5.0, 40))
    found = an_input(
        complete=complete,
        counts={"not JSON": 150, "<b>": 1},
        first=[(0, 3 * n, "not JSON") for n in range(1, 101)],
        left_out=["products.mechanism=sparse_gumb: <top_k> is missing"],
    )
    series = [one for run in runs for one in series_of(run, score[run.run])]
    return Results(found, runs, series, boards)


def text_in(directory: Path) -> str:
    return (directory / "report.html").read_text(encoding="utf-8")


def report(directory: Path, found: Results) -> str:
    directory.mkdir(exist_ok=True)
    results.write(directory, found)
    write_report(directory)
    return text_in(directory)


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def made_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report")
    report(path, made())
    return path


def test_the_page_needs_no_network_and_runs_no_script_but_its_own(
    made_report: Path,
) -> None:
    text = text_in(made_report)
    page = Page(text)
    foreign = {"link", "iframe", "object", "embed", "img", "image", "base", "form"}
    assert not {tag for tag, _ in page.elements} & foreign
    [script] = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    [policy] = re.findall(r'"Content-Security-Policy" content="([^"]*)"', text)
    allowed = b64encode(sha256(script.encode()).digest()).decode()
    assert (
        "default-src 'none'" in policy and f"script-src 'sha256-{allowed}';" in policy
    )
    assert policy.count("script-src") == 1 and "fetch" not in script
    for tag, attributes in page.elements:
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            if name in ("href", "xlink:href", "src"):
                assert (value or "").startswith("#"), (tag, value)
    assert "@import" not in text
    assert all(place.startswith("#") for place in re.findall(r"url\(([^)]*)\)", text))
    identities = [
        attributes["id"] for _, attributes in page.elements if "id" in attributes
    ]
    # Of several pictures one would take the other's letters.
    assert len(identities) == len(set(identities))
    used = {(a.get("xlink:href") or "")[1:] for tag, a in page.elements if tag == "use"}
    assert used and used <= set(identities)


def test_labels_stay_text_and_show_what_is_invisible(made_report: Path) -> None:
    page = Page(text_in(made_report))
    for label in (*HOSTILE[:3], "\u05de\u05d5\u05e6\u05e8", "\U0001f375"):
        assert label in page.text
    assert "\\u202eabc\\u202c" in page.text and "\u202e" not in page.text
    assert "line\\u000abreak\\u0000" in page.text and "\x00" not in page.text
    assert "x" * 1024 not in page.text and "(1,024 letters)" in page.text


def test_page_and_every_picture_say_that_they_hold_exact_data(
    made_report: Path,
) -> None:
    text = text_in(made_report)
    assert f'<div class="contains" role="note">{EXACT_DATA}</div>' in text
    # on each printed page
    assert "@media print" in text and ".contains { position: fixed" in text
    names = {path.stem for path in (made_report / "plots").iterdir()}
    # front, recall, error, discovery, coverage, and a board of each key
    assert len(names) == 7
    for name in names:
        svg = (made_report / "plots" / f"{name}.svg").read_text(encoding="utf-8")
        # beside the letters that it is drawn with
        assert f"<!-- {EXACT_DATA} -->" in svg
        assert (
            EXACT_DATA.encode() in (made_report / "plots" / f"{name}.png").read_bytes()
        )
        assert f'id="{name}"' in text


def test_the_words_of_the_page_itself_hold_nothing_invisible(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    drawn(made(labels=("tea", "pot")), tmp_path, monkeypatch)
    assert "\\u00" not in Page(text_in(tmp_path)).text


def test_labels_without_a_letter_are_seen(tmp_path: Path, monkeypatch: Patch) -> None:
    drawn(made(labels=("", " ")), tmp_path, monkeypatch)
    text = text_in(tmp_path)
    assert re.search(
        r"<bdi>&quot;&quot;</bdi>.*<bdi>&quot; &quot;</bdi>", text, re.DOTALL
    )
    assert drawable("") == drawable(" \n") == '""'


@pytest.mark.parametrize("letter", "iaW@")
def test_a_label_in_a_picture_is_no_wider_than_its_room(letter: str) -> None:
    assert drawable("nnnn", 4) == "nnnn" and drawable("nnnnn", 4) == "nn…"
    cut = drawable(letter * 500, 18)
    width, wider = (sum(map(_width, text)) for text in (cut, cut + letter))
    assert cut.endswith("…") and width <= 18 * _width("n") < wider


def drawn(found: Results, directory: Path, monkeypatch: Patch) -> dict[str, Figure]:
    """The pictures of a report, by name, not drawn: that is most of a report's time."""
    figures = undrawn(monkeypatch)
    report(directory, found)
    return figures


def undrawn(monkeypatch: Patch) -> dict[str, Figure]:
    figures: dict[str, Figure] = {}

    def kept(
        figure: Figure, of: str, kind: str, title: str, caption: str, *_: str
    ) -> Chart:
        figures[kind] = figure
        return Chart(f"{of}-{kind}", title, caption, b"<svg/>", b"")

    monkeypatch.setattr("workers.replay.report.charts.finish", kept)
    return figures


def test_a_single_tick_is_seen(tmp_path: Path, monkeypatch: Patch) -> None:
    found = made()
    found.series = [
        replace(one, ticks=one.ticks[:1], values=one.values[:1]) for one in found.series
    ]
    (cell, *_) = drawn(found, tmp_path, monkeypatch)["error_over_ticks"].axes
    assert [np.asarray(line.get_xdata()).tolist() for line in cell.lines] == [
        [0.75, 1.25]
    ] * 3


def test_seeds_that_agree_have_a_picture(tmp_path: Path, monkeypatch: Patch) -> None:
    """The mean of three times 0.7 was below 0.7: an error bar of negative length ended it all."""
    found = made()
    choices = ((1, 0.25), (2, 0.5))
    found.runs = [
        a_run(n, epsilon, seed) for n, epsilon in choices for seed in range(3)
    ]
    found.series = [one for run in found.runs for one in series_of(run, 0.7)]
    assert "recall_against_epsilon" in drawn(found, tmp_path, monkeypatch)
    assert "The picture" not in text_in(tmp_path)


PICTURES = (
    "pareto_front",
    "recall_against_epsilon",
    "error_over_ticks",
    "discovery",
    "coverage",
)


@pytest.mark.parametrize("names", [PICTURES[-1:], PICTURES])
def test_failed_pictures_cost_only_themselves(
    names: Sequence[str], tmp_path: Path, monkeypatch: Patch
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("an axis <b>\nof</b> nothing")

    for name in names:
        monkeypatch.setattr(f"workers.replay.report.charts_backtest.{name}", fails)
    undrawn(monkeypatch)
    results.write(tmp_path, made())
    lines = write_report(tmp_path)
    assert len(lines) == len(names)
    for line in lines:
        assert line.startswith('products: The picture "')
        assert line.endswith("missing: ValueError: an axis <b> of</b> nothing")
    page = text_in(tmp_path)
    assert "is missing: ValueError: an axis &lt;b&gt; of&lt;/b&gt; nothing" in page
    assert 'href="#h1-pictures"' in page
    drawn_now = {
        path.stem.removeprefix("products-")
        for path in (tmp_path / "plots").glob("*.png")
    }
    assert drawn_now == {*PICTURES, "board_1", "board_2"} - {*names}


def test_failed_pictures_end_no_replay(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    fails = Mock(side_effect=ValueError("no limits"))
    monkeypatch.setattr("workers.replay.report.charts_backtest.coverage", fails)
    undrawn(monkeypatch)
    settings_of(tmp_path)
    (tmp_path / "in.jsonl").write_bytes(text_of(events(300)))
    assert run_replay(tmp_path, "--report", tmp_path / "r", "--seeds", 1) == 0
    told = capsys.readouterr().err
    missing = 'The picture "do the error bars hold?" is missing: ValueError: no limits'
    assert f"replay: items: {missing}" in told
    assert (
        "replay: results and report in" in told
        and results.read(tmp_path / "r").results.num_rows
    )


def test_a_failed_board_leaves_other_boards(tmp_path: Path, monkeypatch: Patch) -> None:
    fails_once = Mock(side_effect=[RuntimeError("no room"), *[None] * 9])
    monkeypatch.setattr("workers.replay.report.charts_backtest._draw", fails_once)
    undrawn(monkeypatch)
    results.write(tmp_path, made())
    (line,) = write_report(tmp_path)
    assert "exact and published, stream key s1" in line and line.endswith(
        "RuntimeError: no room"
    )
    boards = [path.name for path in (tmp_path / "plots").glob("*board*.png")]
    assert boards == ["products-board_2.png"]


def test_plans_survive_failed_pictures(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    fails = Mock(side_effect=ValueError("no limits"))
    monkeypatch.setattr("workers.replay.report.plan._ends", fails)
    undrawn(monkeypatch)
    assert execute(["plan", "-c", str(PLAN), "--report", str(tmp_path / "out")]) == 0
    assert "epsilon" in capsys.readouterr().out
    page = Page((tmp_path / "out" / "plan.html").read_text(encoding="utf-8"))
    assert (
        'The picture "the end of an epoch" is missing: ValueError: no limits'
        in page.text
    )


def test_no_share_below_zero_and_one_text_for_like_runs(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """Where nothing is shown all runs lie on one another, on the line of 0 %."""
    found = made()
    nothing = np.zeros(1)
    for place, one in enumerate(found.series):
        if one.metric.startswith("recall"):
            found.series[place] = replace(one, values=nothing)
    for place, run in enumerate(found.runs):
        epsilon = 1.0 if run.run < 4 else 2.0
        found.runs[place] = replace(run, epsilon=epsilon, mechanism="unk_base")
    figures = drawn(found, tmp_path, monkeypatch)
    for name in ("pareto_front", "recall_against_epsilon"):
        (cell,) = figures[name].axes
        figures[name].canvas.draw()  # places the ticks
        low, high = cell.get_ylim()
        assert -0.05 * high <= low <= 0 < high
        labels = [label.get_text() for label in cell.get_yticklabels()]
        assert not any(text.startswith(("-", "\N{MINUS SIGN}")) for text in labels)
    assert [text.get_text() for text in figures["pareto_front"].axes[0].texts] == [
        "1 and 2 more"
    ]


def test_the_recommendation_comes_first_and_the_table_marks_it(
    made_report: Path,
) -> None:
    text = text_in(made_report)
    assert text.index("Take run 2 ") < text.index("<h2>") < text.index("<svg")
    table = text[text.index("<h3>Runs</h3>") : text.index("<svg")]
    rows = re.findall(r'<tr(?: class="([^"]*)")?><td class="n">(\d)</td>', table)
    assert rows == [("front", "3"), ("chosen front", "2"), ("", "4"), ("front", "1")]
    # e^0.5
    assert "at most 1.65 times as likely" in text and "What one person loses" in text


def test_the_contents_lead_to_what_is_there(made_report: Path, tmp_path: Path) -> None:
    few = Results(made().input, made().runs, [], [])
    whole = text_in(made_report)
    for text in (whole, report(tmp_path / "few", few)):
        page = Page(text)
        there = {
            attributes["id"] for _, attributes in page.elements if attributes.get("id")
        }
        links = [
            (of["href"] or "")[1:]
            for tag, of in page.elements
            if tag == "a" and "href" in of
        ]
        assert "h1-runs" in links and set(links) <= there
        assert text.index('id="summary"') < text.index("<nav") < text.index("<h2>")


def test_rejects_and_left_out_combinations_are_listed(made_report: Path) -> None:
    page = Page(text_in(made_report))
    assert (
        "Rejected lines151" in page.text
        and "not JSON150" in page.text
        and "<b>1" in page.text
    )
    assert "The first 100" in page.text
    assert "300not JSON" in page.text and "303not JSON" not in page.text
    assert "products.mechanism=sparse_gumb: <top_k> is missing" in page.text
    assert "Stopped before the end" not in page.text


def test_a_partial_result_says_so(tmp_path: Path, monkeypatch: Patch) -> None:
    drawn(made(complete=False), tmp_path, monkeypatch)
    assert "Stopped before the end" in text_in(tmp_path)


def test_reports_are_reproducible_and_replace_old_pictures(
    tmp_path: Path, made_report: Path
) -> None:
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "products-old.svg").write_text("old")
    report(tmp_path, made())
    for path in [*(made_report / "plots").iterdir(), made_report / "report.html"]:
        assert (
            tmp_path / path.relative_to(made_report)
        ).read_bytes() == path.read_bytes()
    assert not (tmp_path / "plots" / "products-old.svg").exists()


def test_one_run_without_boards_or_delays_has_a_report(tmp_path: Path) -> None:
    found = made()
    run = replace(found.runs[0], varied={})
    errors = ("error_mean", "error_unbounded_mean")
    kept = [
        one
        for one in found.series
        if (one.run, one.seed) == (1, 0) and one.metric in errors
    ]
    text = report(tmp_path, Results(found.input, [run], kept, []))
    assert "One choice of settings, 1 seed each" in text
    assert "<svg" not in text


def test_a_run_stopped_before_its_first_tick_has_a_report(tmp_path: Path) -> None:
    found = made(complete=False)
    text = report(tmp_path / "out", Results(found.input, found.runs, [], []))
    assert "Nothing was measured" in text and "<svg" not in text
    assert "Stopped before the end" in report(
        tmp_path / "none", Results(found.input, [], [], [])
    )


def test_a_plan_is_drawn_from_the_settings_alone(
    tmp_path: Path, capsys: Printed
) -> None:
    out = tmp_path / "out"
    assert execute(["plan", "-c", str(PLAN), "--report", str(out)]) == 0
    printed = capsys.readouterr().out
    page = Page((out / "plan.html").read_text(encoding="utf-8"))
    assert "Computed from the settings alone: no data" in page.text
    assert "exact data" not in page.text
    assert all(
        line.rstrip() in page.text for line in printed.splitlines() if line.isascii()
    )
    pictures = sorted(path.name for path in (out / "plots").glob("*.svg"))
    names = ("counters", "end", "mechanisms", "noise")
    assert pictures == [f"unk_base-{name}.svg" for name in names]
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert execute(["plan", "-c", str(PLAN), "--report", str(out)]) == 2
    assert "--force" in capsys.readouterr().err
    assert execute(["plan", "-c", str(PLAN), "--report", str(out), "--force"]) == 0
    assert {
        path: path.read_bytes() for path in out.rglob("*") if path.is_file()
    } == before


@pytest.mark.parametrize(
    "mechanism",
    [
        "known_base",
        "misra_gries",
        "known_gumbel",
        "pay_what_you_get",
        "two_level",
        "bounded_max",
    ],
)
def test_every_kind_of_mechanism_has_a_page_of_its_plan(
    mechanism: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    figures = undrawn(monkeypatch)
    config = str(PLAN.with_stem(mechanism))
    out = str(tmp_path / "out")
    assert execute(["plan", "-c", config, "--report", out]) == 0
    page = (tmp_path / "out" / "plan.html").read_text(encoding="utf-8")
    assert figures and "The picture" not in page
    for figure in figures.values():
        figure.draw_without_rendering()
