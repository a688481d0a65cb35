"""`quietcount plan`: text that fits a terminal, documented JSON, and one-line refusals."""

import json
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests import ROOT
from workers.cli import execute
from workers.privacy import model
from workers.privacy.model import Bucket, Plan, Record
from workers.privacy.plan.text import ROWS, band, show

Printed = pytest.CaptureFixture[str]

EXAMPLE = ROOT / "examples" / "mechanisms" / "unk_base.toml"


def planned(path: Path, capsys: Printed) -> tuple[str, Plan]:
    """Return a plan as text, which people read in terminals and paste into tickets, and as JSON.

    `test_windows_are_a_table_of_their_own` holds the printed text against this text.
    """
    assert execute(["plan", "-c", str(path), "--json"]) == 0
    plan = msgspec.json.decode(capsys.readouterr().out, type=Plan)
    show(plan, Console(width=100))
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    return text, plan


def test_windows_are_a_table_of_their_own(tmp_path: Path, capsys: Printed) -> None:
    """Users choose a window by the changes visible in it."""
    path = tmp_path / "windows.toml"
    text = EXAMPLE.read_text()
    path.write_text(text.replace("horizon =", 'windows = ["1m", "5m"]\nhorizon =', 1))
    out, plan = planned(path, capsys)
    assert execute(["plan", "-c", str(path)]) == 0
    assert capsys.readouterr().out == out
    lines = [line.split() for line in out.splitlines()]
    start = lines.index(
        ["window", "ticks", "least", "most", "rms", "last", "tick", "apart"]
    )
    shown = zip(
        lines[start + 1 : start + 3], plan.histograms[0].noise.windows, strict=True
    )
    for line, row in shown:
        sds = (row.least_sd, row.most_sd, row.rms_sd, row.last_sd, row.apart_sd)
        assert line == [
            f"{row.ms // 60_000}m",
            str(row.ticks),
            *(f"{sd:.4g}" for sd in sds),
        ]


def test_json_has_numbers_and_every_field_of_it_is_documented(capsys: Printed) -> None:
    """Scripts read it: quoted numbers and undocumented names are traps."""
    assert execute(["plan", "-c", str(EXAMPLE), "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    documented = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    for record in vars(model).values():
        if isinstance(record, type) and issubclass(record, Record):
            for field in record.__struct_fields__:
                assert f"`{field}`" in documented, f"{record.__name__}.{field}"
    [one] = body["histograms"]
    rho = one["guarantee"].pop("rho")
    assert one["guarantee"] == {"unit": "event", "epsilon": 4.0, "delta": 1e-6}
    figures = [
        tick[name] for tick in one["noise"]["ticks"] for name in ("sd", "threshold")
    ]
    assert all(isinstance(figure, float) for figure in [rho, *figures])
    assert body["total"]["epsilon"] == 4.0


def test_nothing_but_the_settings_is_needed(tmp_path: Path, capsys: Printed) -> None:
    """It runs before a key, directory or cluster exists, and leaves no files."""
    path = tmp_path / "orders.toml"
    path.write_text(EXAMPLE.read_text().replace("localhost:9092", "nowhere.invalid:1"))
    assert execute(["plan", "-c", str(path)]) == 0
    assert capsys.readouterr().err == ""
    assert [p.name for p in tmp_path.iterdir()] == ["orders.toml"]


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("epsilon = 4.0", "epsilon = -1", ["epsilon = -1", "above 0"]),
        ("delta = 1e-6", "delta = 0.6", ["delta = 0.6"]),
        ("epsilon = 4.0", "rho = 1e-20", ["'unk_base'", "sigma_squared"]),
        ('mechanism = "unk_base"', 'mechanism = "unk"', ["mechanism", "unk_base"]),
    ],
)
def test_settings_that_cannot_be_met_are_one_line_and_2(
    old: str, new: str, parts: list[str], tmp_path: Path, capsys: Printed
) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        EXAMPLE.read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )
    for more in ([], ["--json"]):
        assert execute(["plan", "-c", str(path), *more]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        [line] = captured.err.splitlines()
        for part in parts:
            assert part in line


@pytest.mark.slow
@pytest.mark.parametrize(
    "horizon", ["1073741824", '"unbounded"\nstart = 2026-11-21T00:00:00Z']
)
def test_any_horizon_has_a_plan(horizon: str, tmp_path: Path, capsys: Printed) -> None:
    """Iterating 2^30 ticks would take hours."""
    path = tmp_path / "long.toml"
    text = EXAMPLE.read_text().replace("horizon = 64", f"horizon = {horizon}")
    path.write_text(text.replace('threshold = "constant"', "").replace("1e-6", "1e-9"))
    assert execute(["plan", "-c", str(path)]) == 0
    assert "guarantee" in capsys.readouterr().out


def test_the_plot_shows_the_band_and_falls_back_to_plain_characters() -> None:
    """A terminal without blocks must not break the command; more noise must plot higher."""
    buckets = [
        Bucket(first=i, last=i, least=float(i), most=float(i)) for i in range(1, 41)
    ]
    for unicode in (True, False):
        lines = band(buckets, unicode=unicode)
        assert len(lines) == ROWS + 1
        heights = [
            sum(line[12 + i : 13 + i].strip() != "" for line in lines[:ROWS])
            for i in range(40)
        ]
        assert heights == sorted(heights) and heights[-1] == ROWS and heights[0] <= 1
    assert "".join(band(buckets, unicode=False)).isascii()
    shaded = band([Bucket(first=1, last=9, least=1.0, most=4.0)] * 40, unicode=True)
    assert "░" in shaded[0] and "█" in shaded[ROWS - 1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    sorted((ROOT / "examples").rglob("*.toml")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_text_and_json_of_an_example_state_the_same_guarantee(
    path: Path, capsys: Printed
) -> None:
    """To the last digit; test_snapshots.py holds it against what is published."""
    text, plan = planned(path, capsys)
    for one in plan.histograms:
        promise = one.guarantee
        spent = sum(share.delta for share in one.deltas)
        assert spent == pytest.approx(promise.delta, rel=1e-12)
        assert f"{one.name}: {one.mechanism}" in text
        figures = f"epsilon {promise.epsilon!r}, delta {promise.delta!r}"
        assert f"{figures}, rho {promise.rho!r}" in text
        for sentence in one.advice:
            assert sentence.split()[0] in text
