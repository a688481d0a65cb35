"""Exports of a worker that runs hold exactly what its topics do."""

import random
from pathlib import Path

import pytest

from tests.commands.export.outputs import KINDS, expected, exported
from tests.consumers.scene import joined
from tests.worker.harness import Site, known, now_ms, sale, unk
from workers.cli import execute

pytestmark = pytest.mark.slow


def test_exports_of_a_running_worker_are_exact_twice_with_a_restart_between(
    cluster: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The worker is killed, epochs end, and the snapshots of a histogram have pages."""
    (tmp_path / "large.txt").write_text(
        "\n".join(f"{i:04d}" + "x" * 1_000 for i in range(1_000))
    )
    large = known("large", tick="2s", keys=["k"], domain_file="large.txt")
    del large["domain"]
    site = Site(cluster, tmp_path, [unk("items", horizon=4), large], partitions=2)
    rng = random.Random(1)
    rows = dict.fromkeys(KINDS, 0)

    def export() -> None:
        for kind in KINDS:
            place = ("--output", str(tmp_path / kind), "--format", kind)
            assert execute(["export", "-c", str(site.config), *place]) == 0
            *_, said = capsys.readouterr().out.splitlines()
            if said != "nothing new":
                rows[kind] += int(said.split()[0].replace(",", ""))

    for _ in range(2):
        with site.worker() as worker:
            at = now_ms()
            for partition in range(2):
                events = [
                    sale([rng.choice("abc")], at, rng.choice("kl")) for _ in range(40)
                ]
                site.produce(partition, events)
            # In the next epoch.
            site.wait_published(at + 4_000)
            export()
            worker.kill()
    export()
    documents = list(joined(site.snapshots()).values())
    assert {one["pages"] for one in documents} == {1, 2}
    assert len({one["id"] for one in documents}) > 2
    for kind in KINDS:
        found = exported(tmp_path / kind, kind)
        assert found == expected(documents)
        assert rows[kind] == len(found.items)
