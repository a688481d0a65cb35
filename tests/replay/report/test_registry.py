"""`plan --registry` prints an entry that the registry of deployments accepts, with the plan's own figures."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests import ROOT
from workers.cli import execute
from workers.privacy.plan.make import make_plan
from workers.settings.settings import load

HERE = Path(__file__).parent
EXAMPLES = sorted(
    path
    for path in (ROOT / "examples").rglob("*.toml")
    if "[[histogram]]" in path.read_text()
)


def entry_of(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, Any]:
    assert execute(["plan", "-c", str(path), "--registry"]) == 0
    text = capsys.readouterr().out
    return text, yaml.safe_load(text)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: str(path.stem))
def test_the_registrys_schema_accepts_the_entry_of_every_example(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, entry = entry_of(path, capsys)
    schema = yaml.safe_load((HERE / "deployments-schema.yaml").read_text())
    validator = jsonschema.Draft7Validator(
        schema, format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )
    assert [error.message for error in validator.iter_errors(entry)] == []
    total = make_plan(load(path)).total
    promised = entry["deployment"]["privacy_loss"]["privacy_parameters"]
    if total.delta < 1:
        assert promised == {
            "epsilon": total.epsilon,
            "delta": total.delta,
            "rho": total.rho,
        }
    else:
        assert promised == {}
    # The registry's scripts/check.py refuses other forms of long text.
    styles = {getattr(token, "style", None) for token in yaml.scan(text)}
    assert styles <= {None, "|", "'", '"'}
    assert entry["url_slug"] == slug_of(entry["deployment"]["basic"])


def slug_of(basic: Mapping[str, Any]) -> str:
    """Return the address that the registry's scripts/update_slug.py computes."""
    curators: Sequence[str] = basic["data_curators"]
    parts = (basic["name"], "-".join(curators), basic["publication_date"].split("-")[0])
    return "_".join(re.sub(r"\W+", "_", part.lower()) for part in parts).replace(
        "_", "-"
    )


def test_a_wrong_field_is_refused_by_the_schema(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, entry = entry_of(ROOT / "examples" / "users.toml", capsys)
    entry["deployment"]["dp_variant"]["surprise"] = "a"
    schema = yaml.safe_load((HERE / "deployments-schema.yaml").read_text())
    with pytest.raises(jsonschema.ValidationError, match="surprise"):
        jsonschema.validate(entry, schema)


def test_users_and_public_keys_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    _, entry = entry_of(ROOT / "examples" / "users.toml", capsys)
    loss = entry["deployment"]["privacy_loss"]
    assert loss["privacy_unit"] == "User-epoch-level"
    assert "(field customer)" in loss["privacy_unit_details"]
    assert "at most 20 counts" in loss["privacy_unit_details"]


@pytest.mark.slow
def test_the_plans_page_has_the_same_facts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = ROOT / "examples" / "windows.toml"
    _, entry = entry_of(path, capsys)
    assert execute(["plan", "-c", str(path), "--report", str(tmp_path)]) == 0
    page = (tmp_path / "plan.html").read_text()
    assert "For a registry of deployments" in page
    assert entry["deployment"]["dp_variant"]["data_domain"] in page


def test_json_and_registry_exclude_each_other(
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = ROOT / "examples" / "windows.toml"
    assert execute(["plan", "-c", str(path), "--registry", "--json"]) == 2
    assert "--json and --registry exclude each other" in capsys.readouterr().err
