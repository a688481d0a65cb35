"""docs/python.md and its notebook run as they are written, and an epoch is what `replay` publishes."""

import json
import re
from typing import Any

import matplotlib as mpl
import pytest

from tests import ROOT
from workers.replay.ticks import Epoch


def test_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    [block] = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len([line for line in block.splitlines() if line]) <= 10
    names: dict[str, Any] = {}
    exec(block, names)  # noqa: S102 - our own page
    printed = capsys.readouterr().out
    assert "rho" in printed and "threshold" in printed
    epoch = names["epoch"]
    # Six standard deviations: exceeded once in 5e8 values.
    for label, true in (("tea", 64 * 20), ("cup", 64 * 10)):
        assert abs(epoch.counts[label] - true) < 6 * epoch.mechanism.sd(64)


def test_the_notebook_runs() -> None:
    mpl.use("Agg")
    path = ROOT / "examples" / "python" / "unk_base.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # noqa: S102 - our own notebook
    assert names["epoch"].t == names["HORIZON"]
    assert "tea" in names["epoch"].counts
    names["plt"].close("all")


def test_equal_seeds_have_equal_noise_and_others_do_not() -> None:
    def run(seed: int) -> dict[str, int]:
        epoch = Epoch.of(
            "known_base",
            domain=("a", "b"),
            horizon=4,
            max_items=1,
            epsilon=0.1,
            delta=1e-6,
            seed=seed,
        )
        epoch.step({"a": 5})
        return epoch.step({"b": 3})

    assert run(1) == run(1) != run(2)


def test_an_answer_is_there_instead_of_counts() -> None:
    epoch = Epoch.of(
        "doubling",
        domain=("a", "b"),
        horizon=4,
        max_items=1,
        epsilon=1.0,
        delta=1e-6,
    )
    assert epoch.step({"a": 5}) == {} and epoch.answer["query"] == "max"


def test_a_setting_that_is_not_allowed_is_named_with_its_range() -> None:
    with pytest.raises(ValueError, match=r"max_items = 0: a whole number from 1"):
        Epoch.of("unk_base", horizon=4, max_items=0, epsilon=1.0, delta=1e-6)
