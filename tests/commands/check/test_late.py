"""`check` says how many events come after their tick has closed."""

import json
from pathlib import Path

import pytest

from workers.cli import execute

SETTINGS = """\
[worker]
name = "orders"
data_dir = "var"
key_file = "noise.key"
[kafka]
bootstrap = "127.0.0.1:1"
[events]
topic = "orders"
key = "shop"
items = "product"
timestamp = "ts"
grace = "{grace}"
[[histogram]]
name = "products"
mechanism = "unk_base"
tick = "10s"
horizon = 64
max_items = 2
epsilon = 1.0
delta = 1e-9
keys = ["s1"]
[[histogram]]
name = "days"
mechanism = "unk_base"
tick = "1d"
horizon = 64
max_items = 2
epsilon = 1.0
delta = 1e-9
keys = ["s1"]
"""
BEGIN_MS = 1_700_000_000_000 // 86_400_000 * 86_400_000
#: In ticks of ten seconds: the third, fourth and fifth come when the second tick is open.
TIMES_S = [2, 15, 3, 9, 4, 14, 16]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    lines = [
        {"shop": "s1", "product": "tea", "ts": BEGIN_MS + 1_000 * at} for at in TIMES_S
    ]
    (tmp_path / "events.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )
    return tmp_path / "orders.toml"


@pytest.mark.parametrize(("grace", "late"), [("0s", 3), ("5s", 3), ("6s", 0)])
def test_events_whose_tick_was_closed_are_counted_for_each_histogram(
    config: Path, capsys: pytest.CaptureFixture[str], grace: str, late: int
) -> None:
    """Those that come out of order within an open tick are not called late."""
    config.write_text(SETTINGS.format(grace=grace))
    events = config.with_name("events.jsonl")
    assert execute(["check", "-c", str(config), "--input", str(events)]) == 0
    said = capsys.readouterr().out
    assert said.count("looks at 7 of 7 events") == 2
    line = f"{late} events of these (42.9 %) come after their tick has closed"
    assert (line in said) == (late > 0), said
    assert said.count("after their tick has closed") == (late > 0), (
        "a day is open for longer"
    )
