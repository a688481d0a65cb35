"""Refusals of changed settings name the changed settings, not derived values."""

from functools import cache
from pathlib import Path

import msgspec
import pytest

from tests import ROOT
from workers.mechanisms.noise.keyed import NoiseKey
from workers.pipeline.factory import histograms, mechanisms
from workers.pipeline.histogram import Histogram, HistogramProgress
from workers.runtime.errors import StateRefused
from workers.settings.settings import load

EXAMPLES = ROOT / "examples" / "mechanisms"


@cache
def histogram(path: Path) -> Histogram:
    """Return a settings file's histogram, before its first tick."""
    settings = load(path)
    [found] = histograms(
        Histogram,
        settings,
        mechanisms(settings),
        key=NoiseKey(bytes(32)),
        stream="test",
        owner=0,
        owners=1,
    )
    return found


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem
)
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epsilon = 4.0", "epsilon = 3.0", "epsilon = 4.0 became 3.0"),
        ("max_items = 2", "max_items = 3", "max_items = 2 became 3"),
        ("horizon = 64", "horizon = 60", "horizon = 64 became 60"),
        ("delta = 1e-6", "delta = 1e-7", "delta = 1e-06 became 1e-07"),
    ],
)
def test_a_change_is_said_in_the_words_of_the_settings(
    tmp_path: Path, path: Path, old: str, new: str, said: str
) -> None:
    """A budget becomes variances, thresholds and scales, which no user wrote."""
    before = histogram(path)
    text = path.read_text()
    if old not in text:
        assert path.stem == "misra_gries_pure" and old.startswith("delta"), (
            "every example has it"
        )
        return
    (tmp_path / "changed.toml").write_text(text.replace(old, new))
    stored = msgspec.json.decode(
        msgspec.json.encode(before.life), type=HistogramProgress
    )
    why = r"another mechanism \((.*)\): change the settings back, or set generation = 2"
    with pytest.raises(StateRefused, match=why) as caught:
        histogram(tmp_path / "changed.toml").check(stored)
    assert f"({said})" in str(caught.value)
    before.check(stored)
