"""The README's tutorial runs as written, and every link resolves."""

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
from textwrap import dedent
from typing import Any, cast

import pytest

from tests import ROOT
from tests.admin import admin_of, delete_topics
from workers.kafka.clients import Connection
from workers.mechanisms.config.checked import Checked, rules
from workers.mechanisms.running.base import KnownBaseConfig, UnkBaseConfig
from workers.settings import settings as sections
from workers.settings.alerts import AlertSettings

pytestmark = pytest.mark.waits

README = ROOT / "README.md"
ORDERS = ROOT / "examples" / "orders"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PATIENCE_S = 900
BLOCK = re.compile(r"^```(sh|toml|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def name(bootstrap: str) -> Iterator[str]:
    name = f"readme{uuid.uuid4().hex[:10]}"
    yield name
    delete_topics(admin_of(Connection(bootstrap)), name)


def commands_of(text: str) -> str:
    return "".join(block[2] for block in BLOCK.finditer(text) if block[1] == "sh")


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
    bash = ["bash", "-eo", "pipefail", str(script)]
    place: Any = {"cwd": directory, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        bash,
        start_new_session=True,
        **place,
        stdin=subprocess.DEVNULL,
        stdout=pipe,
        stderr=pipe,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=PATIENCE_S)
    finally:
        # Whatever went wrong half way, no worker stays behind.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def test_tutorial_of_the_readme_runs_as_written(
    bootstrap: str, name: str, tmp_path: Path
) -> None:
    """A stranger who copies it line by line must see private counts, a clean audit and a clean end of the worker."""

    def named(text: str) -> str:
        return text.replace("localhost:9092", bootstrap).replace("orders", name)

    copy = tmp_path / "examples" / name
    copy.mkdir(parents=True)
    for file in ORDERS.iterdir():
        (copy / named(file.name)).write_text(named(file.read_text()))
    done = shell(tmp_path, commands_of(named(README.read_text())))
    log = (tmp_path / "run.log").read_text()
    # `wait %1`: also the worker ended with 0.
    assert done.returncode == 0, done.stdout + done.stderr + log

    def shown(pattern: str) -> int:
        return len(re.findall(f"^{pattern}$", done.stdout, re.MULTILINE))

    assert shown(r"(?:s1|s2) tick \d+: .*, sd [\d.]+, new items from \d+") == 8
    assert "'tea'" in done.stdout and "samovar" not in done.stdout
    assert shown(r"audit: products: [\d,]+ snapshots of .* byte for byte")
    assert shown(r"audit: .* no gap and none twice: clean")
    assert "replay: 30,000 events, 0 rejected" in done.stderr
    backtest = [
        json.loads(line)
        for line in (tmp_path / "backtest.jsonl").read_text().splitlines()
    ]
    assert any(
        label == "tea" for snapshot in backtest for label, _ in snapshot["items"]
    )


def test_settings_that_the_readme_shows_are_those_of_the_example() -> None:
    """A reader compares what is shown with what is copied."""
    shown = re.findall(r"(?:^    .*\n|^\n(?=    ))+", README.read_text(), re.MULTILINE)
    [excerpt] = [dedent(block).strip() for block in shown if "[[histogram]]" in block]
    assert excerpt in (ORDERS / "orders.toml").read_text()


def test_totals_in_the_guarantee_are_what_its_code_gives(tmp_path: Path) -> None:
    """The one place that says how budgets of several histograms add up must add them up."""
    settings = (ORDERS / "orders.toml").read_text()
    head, histogram = settings.split("[[histogram]]")
    second = histogram.replace('name = "products"', 'name = "again"')
    (tmp_path / "orders.toml").write_text(
        f"{head}[[histogram]]{histogram}[[histogram]]{second}"
    )
    guarantee = (ROOT / "docs" / "guarantee.md").read_text()
    [(_, code)] = BLOCK.findall(guarantee)
    command = [sys.executable, "-c", code + "print(round(epsilon, 2), delta)"]
    done = subprocess.check_output(
        command, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    epsilon, delta = done.replace("e-0", "e-").split()
    assert f"epsilon = {epsilon} at delta = {delta}" in " ".join(guarantee.split())


def test_every_setting_is_documented_and_no_other() -> None:
    """The page is the only list of settings: one that is missing is never found, one too many is refused."""
    text = (ROOT / "docs" / "settings.md").read_text()
    heading = r"^## `\[+(\w+)\]+`.*?\n(.*?)(?=^## )"
    texts = dict(re.findall(heading, text, re.MULTILINE | re.DOTALL))
    for section, records in (
        ("worker", [sections.WorkerSettings]),
        ("kafka", [sections.KafkaSettings]),
        ("events", [sections.EventsSettings]),
        ("privacy", [sections.PrivacySettings]),
        ("dashboard", [sections.DashboardSettings]),
        ("alert", [AlertSettings]),
        ("histogram", [KnownBaseConfig, UnkBaseConfig]),
    ):
        # Tables of parts, such as those of a sum, are in subsections.
        table, _, _ = texts[section].partition("\n### ")
        rows = re.findall(r"^\| (`\w+`(?:, `\w+`)?) \|", table, re.MULTILINE)
        named = {name for row in rows for name in re.findall(r"\w+", row)}
        known = {
            rule.name
            for record in records
            for rule in rules(cast(type[Checked], record))
        }
        assert named == known | (
            {"mechanism", "domain_file"} if section == "histogram" else set()
        )


@pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT))
)
def test_links_and_named_files_exist(document: Path) -> None:
    """A reader who follows a link, or opens a module that is named, must find it."""
    text = document.read_text()
    for link in LINK.findall(text):
        if "://" not in link:
            assert (document.parent / link.split("#")[0]).exists(), link
    for file in re.findall(r"`((?:workers|tests|bench|docs)/[\w./-]+)`", text):
        assert (ROOT / file).exists(), file
