"""A rolling upgrade: two workers of an older version, replaced one by one under load.

    git worktree add --detach /tmp/older main~40
    python -m tests.kafka.upgrade /tmp/older unk_gauss doubling

The older version creates the topics and begins. Then each of its workers gets SIGTERM, and one of
this version takes its place, with its data directory. Counts must be exact, and audit clean.
Versions whose noise differs give a mechanism different ids, and refuse each other's state.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests import ROOT
from tests.broker import broker
from tests.kafka.loaded import LoadedSite
from tests.worker.harness import PATIENCE_S, Worker, until


class Older(Worker):
    """A worker of another source tree."""

    def __init__(self, tree: Path, config: Path, log: Path) -> None:
        self.log = log
        with log.open("ab") as output:
            self.process = subprocess.Popen(
                of_tree(tree, "run", config),
                cwd=tree,
                env=environment(tree),
                stdout=output,
                stderr=output,
            )

    def __enter__(self) -> Self:
        return self


def histogram(name: str) -> dict[str, object]:
    """Return the histogram of an example, with ticks of a second and the labels of `LoadedSite`."""
    example = ROOT / "examples" / "mechanisms" / f"{name}.toml"
    [found] = tomllib.loads(example.read_text())["histogram"]
    found |= {"keys": ["k"], "tick": "1s"}
    if "domain" in found:
        found["domain"] = [f"i{i}" for i in range(len(found["domain"]))]
    return dict(found)


def of_tree(tree: Path, command: str, config: Path, *further: str) -> list[str]:
    return [sys.executable, "-m", "workers.cli", command, "-c", str(config), *further]


def environment(tree: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONPYCACHEPREFIX": str(tree / ".pycache"),
    }


def upgrade(site: LoadedSite, tree: Path, seconds: float) -> list[str]:
    """Replace both workers while events arrive; return the logs."""
    made = of_tree(tree, "topics", site.config, "--create")
    subprocess.run(
        made, cwd=tree, env=environment(tree), check=True, stdout=subprocess.DEVNULL
    )
    section = site.document["worker"]
    configs = {}
    for data in ("one", "two"):
        changed = section | {"data_dir": data}
        configs[data] = site.write(site.document | {"worker": changed}, f"{data}.toml")
    with ExitStack() as stack, ThreadPoolExecutor(1) as thread:
        older = {
            data: stack.enter_context(
                Older(tree, config, site.directory / f"older-{data}.log")
            )
            for data, config in configs.items()
        }
        for worker in older.values():
            worker.at_work()
        at = site.load(seconds)
        site.wait_published(at)
        logs = []
        newer = []
        for data, worker in older.items():
            load = thread.submit(site.load, 3 * seconds)
            time.sleep(seconds)
            assert worker.stop() == 0, worker.output()
            logs.append(worker.output())
            newer.append(stack.enter_context(site.worker(data)))
            newer[-1].at_work()
            at = load.result(PATIENCE_S)
            site.wait_published(at)
        for one in newer:
            assert one.stop() == 0, one.output()
            logs.append(one.output())
    return logs


def main() -> None:
    parser = argparse.ArgumentParser(
        description="replace workers of an older version under load"
    )
    parser.add_argument("tree", type=Path)
    parser.add_argument(
        "mechanisms", nargs="+", help="of examples/mechanisms, such as unk_base"
    )
    parser.add_argument("--seconds", type=float, default=5.0, help="of each step")
    options = parser.parse_args()
    with broker() as bootstrap, tempfile.TemporaryDirectory() as directory:
        histograms = [histogram(name) for name in options.mechanisms]
        site = LoadedSite(bootstrap, Path(directory) / "site", histograms, create=False)
        site.create_events()
        until(
            lambda: site.topic in site.admin.list_topics(timeout=60).topics, "the topic"
        )
        logs = upgrade(site, options.tree.absolute(), options.seconds)
        print("\n\n".join(logs))
        site.assert_exact()
        print(f"{site.sent.total():,} events, all counted once; audit agrees")


if __name__ == "__main__":
    main()
