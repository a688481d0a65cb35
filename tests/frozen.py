"""What must stay the same to the byte while the code is moved and renamed, as SHA-256 of each part.

`python -m tests.frozen FILE` writes them, `python -m tests.frozen FILE --compare` names the parts that differ and exits
with 1. The parts: the snapshots that `replay` makes of made-up events with every example and a fixed key, `plan --json`
of every example, the answers of the dashboard's API over those snapshots, the names of all metrics, and the help texts
(whose English may change: `--compare` says which did).
"""

import argparse
import asyncio
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from tests import ROOT
from tests.dashboard.feeding import reader_settings, unopened
from workers.client.messages import Pages
from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.runtime.metrics import Metrics
from workers.settings.settings import load

EXAMPLES = sorted((ROOT / "examples").glob("*.toml")) + sorted(
    (ROOT / "examples").glob("*/*.toml")
)
OF_EVENTS = (
    "run",
    "topics",
    "check",
    "init",
    "rejects",
    "replay",
    "audit",
    "dashboard",
    "demo",
)
COMMANDS = ("", *OF_EVENTS, "key", "key new", "plan", "budget", "retire")
# A quarter past midnight of the day at which the examples' epochs begin.
BEGIN_MS = 1_795_305_600_000 + 900_000
EVENTS = 4_000
WORDS = (
    "tea",
    "cup",
    "pot",
    "spoon",
    "kettle",
    "sugar",
    "milk",
    "lemon",
    "PRG",
    "FRA",
    "LHR",
)


def events(path: Path) -> list[bytes]:
    """Return events that an example's settings count, the same each time."""
    settings = load(path)
    rng = random.Random(path.name)
    declared = (h.keys for h in settings.histograms if isinstance(h.keys, tuple))
    keys = [name for names in declared for name in names] or ["s1", "s2"]
    numbers = any(getattr(h, "buckets", None) is not None for h in settings.histograms)
    encoded = []
    for i in range(EVENTS):
        items = [rng.choice(WORDS) for _ in range(rng.randrange(1, 4))]
        event: dict[str, object] = {"ts": BEGIN_MS + i * 250}
        event[str(settings.events.key)] = rng.choice(keys)
        event[str(settings.events.items)] = (
            round(rng.uniform(0, 9_000), 2) if numbers else items
        )
        for of in (histogram.sum for histogram in settings.histograms):
            if of is not None:
                event[of.field] = round(rng.uniform(-50, 150), 3)
        if settings.events.user is not None:
            event[settings.events.user] = f"user{rng.randrange(500)}"
        encoded.append(json.dumps(event).encode())
    return encoded


def quietcount(*arguments: str) -> str:
    command = [sys.executable, "-m", "workers.cli", *arguments]
    wide = {"COLUMNS": "100"}
    printed: Any = {"capture_output": True, "text": True, "env": {**os.environ, **wide}}
    done = subprocess.run(command, check=False, **printed)
    if done.returncode:
        raise SystemExit(f"quietcount {' '.join(arguments)}: {done.stderr}")
    return str(done.stdout)


async def _answers(lines: list[bytes], name: str) -> list[tuple[str, bytes]]:
    hub = Hub()
    pages = Pages()
    histograms: dict[str, None] = {}
    for line in lines:
        document = json.loads(line)
        histograms[document["histogram"]] = None
        seen = pages.receive(document["histogram"], line)
        if seen is not None:
            hub.publish([seen])
    settings = reader_settings(*histograms, prefix=name, horizon=None)
    app = application(hub, unopened(), settings)
    found = []
    async with TestClient(TestServer(app)) as http:
        for path in (
            "/api/histograms",
            *(f"/api/snapshots?histogram={h}" for h in histograms),
        ):
            answer = await (await http.get(path)).json()
            answer.pop("now", None)
            answer.pop("history", None)
            found.append((path, json.dumps(answer).encode()))
    return found


def parts() -> Iterator[tuple[str, bytes]]:
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        for path in EXAMPLES:
            name = str(path.relative_to(ROOT))
            text = path.read_text()
            settings = folder / path.name
            settings.write_text(text)
            for beside in path.parent.glob("*.txt"):
                (folder / beside.name).write_bytes(beside.read_bytes())
            key = load(settings).worker.key_file
            key.parent.mkdir(exist_ok=True)
            key.write_bytes(bytes(range(32)))
            key.chmod(0o600)
            (folder / "events.jsonl").write_bytes(b"\n".join(events(path)))
            out = folder / "snapshots.jsonl"
            files = ("--input", str(folder / "events.jsonl"), "--snapshots", str(out))
            quietcount("replay", "-c", str(settings), *files)
            yield f"snapshots {name}", out.read_bytes()
            yield (
                f"plan {name}",
                quietcount("plan", "-c", str(settings), "--json").encode(),
            )
            for question, answer in asyncio.run(
                _answers(out.read_bytes().splitlines(), "orders")
            ):
                yield f"api {name} {question}", answer
            out.unlink()
    metrics = sorted(family.name for family in Metrics().registry.collect())
    yield "metrics", "\n".join(metrics).encode()
    for command in COMMANDS:
        yield (
            f"help {command}".rstrip(),
            quietcount(*command.split(), "--help").encode(),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--compare", action="store_true")
    given = parser.parse_args()
    found = {name: hashlib.sha256(content).hexdigest() for name, content in parts()}
    if not given.compare:
        given.file.write_text(json.dumps(found, indent=1) + "\n")
        print(f"{len(found)} parts")
        return 0
    known = json.loads(given.file.read_text())
    names = sorted(known.keys() | found.keys())
    differ = [name for name in names if known.get(name) != found.get(name)]
    for name in differ:
        print(f"differs: {name}")
    print(f"{len(known)} parts, {len(differ)} differ")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
