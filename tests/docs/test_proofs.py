"""Every row of docs/proofs.md has a status, a record to read, and a check that is there."""

import re

import pytest

from tests import ROOT

PROOFS = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PROOFS.splitlines()
    if line.startswith("| ") and not line.startswith("| claim")
]
RECORD = re.compile(r"\]\((decisions/[\w-]+\.md)\), ([^\[]+)$")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:40])
def test_a_claim_has_a_status_a_proof_and_a_check(row: list[str]) -> None:
    claim, status, proof, check = row
    assert claim
    assert re.match(r"published|derived here|computed", status)
    for path in re.findall(r"\]\(([\w/-]+\.md)", proof):
        assert (ROOT / "docs" / path).exists()
    for file, sections in RECORD.findall(proof):
        headings = re.findall(
            r"^## (.*)$", (ROOT / "docs" / file).read_text(), re.MULTILINE
        )
        for section in re.split(r", | and | to ", sections):
            assert any(
                heading == section or heading.startswith(f"{section} ")
                for heading in headings
            ), f"{file} has no section {section}"
    checks = re.findall(r"`(tests/[\w/]+\.py)`", check)
    assert checks
    for path in checks:
        assert "def test_" in (ROOT / path).read_text(encoding="utf-8")


def test_all_records_with_proofs_are_listed() -> None:
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        if "**Statement.**" in path.read_text(encoding="utf-8"):
            assert f"decisions/{path.name}" in PROOFS, f"{path.name} is not listed"
