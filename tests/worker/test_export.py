"""Exports of a worker that runs hold exactly what its topics do."""

import random
from pathlib import Path

import pytest

from tests.commands.export.outputs import KINDS, expected, exported
from tests.consumers.scene import joined
from tests.worker.harness import Site, known, now_ms, sale, unk
from workers.cli import execute
from workers.commands.key import new_signing_key
from workers.pipeline.signing_key import read_signing_key

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
    new_signing_key(tmp_path / "signing.key")
    signed = {"signing_key_file": "signing.key"}
    histograms = [unk("items", horizon=4), large]
    site = Site(cluster, tmp_path, histograms, partitions=2, worker=signed)
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
    verify_exports(site, capsys)


def verify_exports(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Save the signatures; with them alone exports are verified, and a lost file is found."""
    public = read_signing_key(site.directory / "signing.key").public
    saved = site.directory / "signatures.jsonl"
    save = ["verify", "-c", str(site.config), "--save", str(saved), "--key"]
    assert execute([*save, "0" * 64]) == 1
    assert "with a key that is not trusted" in capsys.readouterr().out
    assert not saved.exists()
    save.append(public)
    assert execute(save) == 0
    assert "clean" in capsys.readouterr().out
    assert len(saved.read_bytes().splitlines()) == sum(
        1 for _ in site.read(site.settings.signatures_topic or "")
    )
    assert execute(save) == 2
    assert f"--save {saved}: File exists; give the name" in capsys.readouterr().err
    for kind in ("csv", "parquet"):
        copy = site.directory / kind
        verify = ["verify", "--key", public, "--signatures", str(saved), str(copy)]
        assert execute(verify) == 0
        said = capsys.readouterr().out
        assert "items: " in said and "large: " in said and "clean" in said
        for table in ("items", "ticks"):
            file, *_ = sorted((copy / table).glob(f"*.{kind}*"))
            content = file.read_bytes()
            file.unlink()
            assert execute(verify) == 1
            assert "verify: fault: " in capsys.readouterr().out
            file.write_bytes(content)
