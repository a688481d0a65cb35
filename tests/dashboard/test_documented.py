"""docs/api.md: its examples run unchanged, and its figures are those of the code."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.dashboard.feeding import PATIENCE_S, embedded, message, reads
from workers.dashboard.api import ENTRIES_MAX, VIEWERS_MAX
from workers.dashboard.hub import MAX_BYTES, TICKS, TOPS
from workers.dashboard.store.files import ROWS_MAX
from workers.dashboard.store.store import ANSWER_S, WAITING
from workers.dashboard.ticks import READ_WAIT_S

DOCUMENT = (ROOT / "docs" / "api.md").read_text()
EXAMPLES = dict(
    re.findall(
        r"`(\w+\.py)`:\n\n```python\n(.*?)^```$", DOCUMENT, re.MULTILINE | re.DOTALL
    )
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with embedded("products") as topics:
        items = [("tea", 2_086), ("cup", 1_462), ("pot", 793), ("lid", 400)]
        keys = ("s1", "s2")
        topics.send(
            *(message(tick, items, key=key) for tick in range(1, 6) for key in keys)
        )
        with topics.served("products") as running:
            reads(running)
            yield running.url


GUARANTEE = "{'unit': 'event', 'rho': 0.021, 'epsilon': 1.0, 'delta': 1e-09}"
TOP = "['tea', 2086], ['cup', 1462], ['pot', 793]"
PRINTED = {
    "overview.py": ["orders live", f"products unk_base ['s1', 's2'] 5 {GUARANTEE}"],
    "follow.py": [f"{tick} [{TOP}] +- 34.5" for tick in range(1, 6)],
    "hours.py": ["1 5 2086 +- 34.5"],
    "listen.py": [f"{key} 5 [{TOP}, ['lid', 400]]" for key in ("s1", "s2")],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTED)
def test_every_example_of_the_page_runs(url: str, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(EXAMPLES[name].replace("http://127.0.0.1:8080/", url))
    how: dict[str, Any] = {"cwd": tmp_path, "capture_output": True, "text": True}
    done = subprocess.run(
        [sys.executable, name], check=False, timeout=PATIENCE_S, **how
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(PRINTED[name])


def test_no_example_is_left_out_and_figures_are_those_of_the_code() -> None:
    assert set(EXAMPLES) == set(PRINTED)
    assert DOCUMENT.count("```python") == len(EXAMPLES)
    for part in (
        f"The last {TICKS} ticks",
        f"at most {MAX_BYTES >> 20} MiB",
        f"{VIEWERS_MAX + 1:,}st viewer",
        "{}, {}, {} or {}".format(*TOPS),
        f"up to {ROWS_MAX:,} rows",
        f"beyond {WAITING} that wait",
        f"longer than {ANSWER_S:.0f} s",
        f"it waits up to {READ_WAIT_S:.0f} s",
        f"is awaited up to {READ_WAIT_S:.0f} s",
        f"1 to {ENTRIES_MAX:,}; default 1,000",
    ):
        assert part in DOCUMENT
