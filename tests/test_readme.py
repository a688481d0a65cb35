"""The documents are true where a machine can tell: the README's tutorial runs as it is written, and every link leads somewhere.

The tutorial is run literally but for two words: the test's broker stands in for `localhost:9092`, and a name of its own for `orders`,
because a broker that outlives the tests may have topics of that name.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.kafka.clients import Connection

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATIENCE_S = 300
BLOCK = re.compile(r"^```(sh|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The last name in backquotes before a block of a file is the file's.
NAME = re.compile(r"`([\w.-]+\.(?:toml|py))`")
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def name(bootstrap: str) -> Iterator[str]:
    """A worker name whose topics go away afterwards."""
    name = f"readme{uuid.uuid4().hex[:10]}"
    yield name
    admin = Connection(bootstrap).admin()
    topics = [topic for topic in admin.list_topics(timeout=10).topics if topic.split(".")[0] == name]
    for future in admin.delete_topics(topics).values() if topics else ():
        future.result()


def tutorial(text: str) -> tuple[dict[str, str], str]:
    """The files that a document shows, by name, and its shell commands in order."""
    files: dict[str, str] = {}
    commands = []
    for block in BLOCK.finditer(text):
        if block[1] == "sh":
            commands.append(block[2])
        else:
            files[NAME.findall(text[: block.start()])[-1]] = block[2]
    return files, "".join(commands)


def shell(directory: Path, commands: str) -> subprocess.CompletedProcess[str]:
    """Runs commands in bash, ending at the first that fails, with this checkout's `quietcount` and this Python's `python`."""
    bin_directory = directory / ".venv" / "bin"  # where the README says that they are
    bin_directory.mkdir(parents=True)
    for command, arguments in (("quietcount", "-m workers.cli "), ("python", "")):
        path = bin_directory / command
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments}"$@"\n')
        path.chmod(0o755)
    script = directory / "tutorial.sh"
    script.write_text(commands)
    process = subprocess.Popen(
        ["bash", "-eo", "pipefail", str(script)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # whatever went wrong half way, no worker stays behind
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_tutorial_of_the_readme_runs_as_it_is_written(bootstrap: str, name: str, tmp_path: Path) -> None:
    """A stranger who copies it line by line must see private counts, a clean audit and a clean end of the worker."""
    text = README.read_text().replace("localhost:9092", bootstrap).replace("orders", name)
    files, commands = tutorial(text)
    assert set(files) == {f"{name}.toml", "make_events.py", "read.py"}
    for file, content in files.items():
        (tmp_path / file).write_text(content)
    done = shell(tmp_path, commands)
    log = (tmp_path / "run.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log  # `wait %1`: also the worker ended with 0
    assert "error" not in log.lower(), log

    shown = re.findall(r"^(s1|s2) tick (\d+): (.*), sd [\d.]+, new items from \d+$", done.stdout, re.MULTILINE)
    assert len(shown) == 8
    assert {key for key, _, _ in shown} == {"s1", "s2"}
    assert "'tea'" in done.stdout
    assert "samovar" not in done.stdout
    assert re.search(r"^audit: products: [\d,]+ snapshots of .* byte for byte$", done.stdout, re.MULTILINE)
    assert re.search(r"^audit: .* no gap and none twice: clean$", done.stdout, re.MULTILINE)
    assert "replay: 30,000 events, 0 rejected" in done.stderr
    backtest = [json.loads(line) for line in (tmp_path / "backtest.jsonl").read_text().splitlines()]
    assert any(label == "tea" for snapshot in backtest for label, _ in snapshot["items"])


def test_totals_in_the_guarantee_are_what_its_code_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one place that says how budgets of several histograms add up must add them up."""
    settings = tutorial(README.read_text())[0]["orders.toml"]
    head, histogram = settings.split("[[histogram]]")
    second = histogram.replace('name = "products"', 'name = "again"')
    (tmp_path / "orders.toml").write_text(f"{head}[[histogram]]{histogram}[[histogram]]{second}")
    monkeypatch.chdir(tmp_path)
    guarantee = (ROOT / "docs" / "guarantee.md").read_text()
    [(_, code)] = BLOCK.findall(guarantee)
    variables: dict[str, object] = {}
    exec(code, variables)
    stated = re.search(r"gives epsilon = ([\d.]+) at delta = 2e-9", guarantee)
    assert stated is not None
    assert round(float(str(variables["epsilon"])), 2) == float(stated[1])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_and_named_files_exist(document: Path) -> None:
    """A reader who follows a link, or opens a module that is named, must find it."""
    text = document.read_text()
    for link in LINK.findall(text):
        if "://" not in link:
            assert (document.parent / link.split("#")[0]).exists(), link
    for file in re.findall(r"`((?:workers|tests|bench|docs)/[\w./-]+)`", text):
        assert (ROOT / file).exists(), file
