"""The page to be signed names everything that snapshots hold, under exactly these settings."""

import json
import random
import re
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT
from tests.docs.scenes import START_MS, Event, loaded, snapshots
from tests.replay.site import Patch
from workers.cli import execute
from workers.mechanisms.registry import build
from workers.privacy.plan.make import plan_of
from workers.privacy.published import Published, published_by
from workers.replay.report.promise import PAGE

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
TEXTS = {
    path.stem: path.read_text()
    for path in sorted((EXAMPLES / "mechanisms").glob("*.toml"))
}
TEXTS |= {path.stem: path.read_text() for path in sorted(EXAMPLES.glob("*.toml"))}


def without_epochs(text: str) -> str:
    return re.sub(
        r"^horizon = .*",
        'horizon = "never"\nwindows = ["10s", "1m"]',
        text,
        flags=re.MULTILINE,
    )


ORDERS = (EXAMPLES / "orders" / "orders.toml").read_text()
TEXTS |= {
    "orders": ORDERS,
    "windows": ORDERS + 'windows = ["5m", "1h"]\n',
    "parts": ORDERS + "split = 4\n",
    "never": without_epochs(ORDERS),
    "never, with sums": without_epochs(TEXTS["sums"]),
    "any key": ORDERS.replace('keys = ["s1", "s2"]', 'keys = "public"'),
}
#: Only one of the forms of an answer is in a snapshot.
EITHER = {
    "query",
    "value",
    "since",
    "error",
    "answers",
    "asked",
    "refused",
    "labels",
    "complete",
}


@cache
def events() -> list[Event]:
    draw = random.Random(5)
    return [
        {
            "shop": "s1",
            "service": "web",
            "customer": f"c{i}",
            "user": f"c{i}",
            "visitor": f"c{i}",
            "page": "home",
            "products": draw.choices(["tea", "cup", "pot"], k=2),
            "latency_ms": draw.randrange(1, 100),
            "paid": 5.0,
            "ts": START_MS + 30 * i,
        }
        for i in range(1_000)
    ]


def listed(text: str) -> list[Published]:
    settings = loaded(text)
    [config] = settings.histograms
    mechanism = build(config, settings.privacy.unit)
    plan = plan_of(
        config, mechanism, settings.output_topic(config), settings.privacy.unit
    )
    return [*published_by(config, plan)]


@pytest.mark.parametrize("name", TEXTS)
def test_every_field_of_a_real_snapshot_is_named(name: str) -> None:
    """Sums, totals, quantiles, windows and parts once left the worker without a word on the page."""
    fields = {field for published in listed(TEXTS[name]) for field in published.fields}
    found = {
        field for one in snapshots(TEXTS[name], events()) for field in json.loads(one)
    }
    assert found <= fields
    assert fields - found <= EITHER


def test_the_page_names_them_with_their_figures_and_says_that_times_are_not_covered(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    text = TEXTS["sums"] + 'windows = ["1m"]\n'
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.toml").write_text(text)
    assert execute(["plan", "-c", "sums.toml", "--report", "report"]) == 0
    page = " ".join((tmp_path / "report" / PAGE).read_text(encoding="utf-8").split())
    for published in listed(text):
        assert published.words.replace("'", "&#x27;").replace('"', "&quot;") in page, (
            published
        )
    for words in (
        "sum and mean of paid (numbers cut to -20 to 100)",
        "windows of 1m",
        "the threshold, ",
    ):
        assert words in page
    assert "The moment at which a snapshot appears. In tests, an event with 900" in page
