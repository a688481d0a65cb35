"""A stream of which only the newest ticks are in memory, and nothing in the history yet."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests import ROOT
from tests.dashboard.store.making import life
from tests.dashboard.store.test_api import client, in_a_hurry

__all__ = ("in_a_hurry",)

SCHEMA = json.loads((ROOT / "docs" / "history.schema.json").read_text())
STREAM = "histogram=products&key=s1"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["history", "epochs"])
def test_a_stream_that_is_only_in_memory_is_not_unknown(tmp_path: Path, name: str) -> None:
    async def ask() -> dict[str, Any]:
        async with client(tmp_path / "empty.duckdb", memory=5) as (http, _):
            for address, status in (
                (f"{name}?histogram=products&key=s9", 404),
                (f"{name}?{STREAM}&format=csv", 404),
            ):
                assert (await http.get(f"/api/{address}")).status == status
            answer = await http.get(f"/api/{name}?{STREAM}&item=tea")
            assert answer.status == 200
            found: dict[str, Any] = await answer.json()
            return found

    found = asyncio.run(ask())
    held = life()[-5:]
    assert found["complete"] is False
    assert found["entries" if name == "history" else "epochs"] == []
    assert (found["kept"]["first"], found["kept"]["last"]) == (held[0]["end"], held[-1]["end"])
    Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]}).validate(found)
