"""[schema_registry]: what it takes, what it refuses in one line, and that it shows no secret."""

from pathlib import Path
from typing import Any

import pytest

from workers.runtime.errors import SettingsError
from workers.settings.settings import SchemaRegistrySettings, _section, registry_values

URL = "https://registry.example:8081/apis/ccompat/v7"


def read(base: Path, **values: Any) -> SchemaRegistrySettings:
    return _section(
        SchemaRegistrySettings, registry_values(values, base), "schema_registry."
    )


def test_secrets_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("pass:word\n")
    (tmp_path / "ca.pem").write_text("-")
    monkeypatch.setenv("REGISTRY_TOKEN", "abc")
    password = {"file": "password"}
    made = read(
        tmp_path, url=URL, user="me", password=password, ca="ca.pem", timeout="2s"
    )
    login = {"timeout": 2.0, "basic.auth.user.info": "me:pass:word"}
    assert made.client() == login | {"ssl.ca.location": str(tmp_path / "ca.pem")}
    token = read(tmp_path, url=URL, token={"env": "REGISTRY_TOKEN"}, unknown_wait="1m")
    assert token.client()["bearer.auth.token"] == "abc"
    assert token.unknown_wait_ms == 60_000
    shown = repr(made) + repr(token) + str(made.__rich_repr__())
    assert "pass" not in shown and "abc" not in shown


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "schema_registry.url is missing: "),
        (
            {"url": "registry:8081"},
            'schema_registry.url = "registry:8081": "http://host:port"',
        ),
        (
            {"url": "http://me:secret@registry"},
            "schema_registry.url: must name no user: use user",
        ),
        (
            {"password": "secret"},
            "schema_registry.password: a secret must not be written here",
        ),
        (
            {"token": {"env": "NONE"}},
            "schema_registry.token: the environment variable NONE is",
        ),
        ({"token": {"file": "nowhere"}}, "schema_registry.token: .*no such file"),
        ({"ca": "nowhere.pem"}, "schema_registry.ca: .*no such file"),
        ({"ca": 5}, "schema_registry.ca = 5: a file name in quotes"),
        ({"user": "me"}, "schema_registry.user and password: give both or neither"),
        (
            {"timeout": "1ms"},
            "schema_registry.timeout = .*: a duration from 100ms to 5m",
        ),
        (
            {"unknown_wait": 5},
            "schema_registry.unknown_wait = 5: a duration from 0ms to 10m",
        ),
        ({"tokens": 1}, 'schema_registry.tokens: unknown name; did you mean "token"'),
    ],
)
def test_bad_values_are_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    given = values if "url" in values or not values else {"url": URL, **values}
    with pytest.raises((SettingsError, ValueError), match=f"^{message}") as caught:
        read(tmp_path, **given)
    assert "\n" not in str(caught.value)
    assert "secret@" not in str(caught.value)
