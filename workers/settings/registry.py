"""[schema_registry]: where schemas are kept, and how to get to them.

    registry_values(table, base)   the section with its secrets read, for `SchemaRegistrySettings`
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from workers.errors import SettingsError
from workers.mechanisms.checked import display
from workers.mechanisms.config import Duration
from workers.settings.files import read_file, secret
from workers.settings.sections import Section

_SECRETS = ("password", "token", "key_password")
_FILES = ("ca", "certificate", "key", "reader_schema")
_SECRET = '{ file = "..." } or { env = "NAME" }'


def _says(allowed: str, pattern: str | None = None) -> Meta:
    return Meta(description=allowed, pattern=pattern)


class SchemaRegistrySettings(Section, frozen=True, kw_only=True):
    """[schema_registry]. Holds secrets: the repr shows only where the registry is."""

    url: Annotated[
        str,
        _says(
            '"http://host:port" or "https://...", without a user in it; or several separated by commas',
            pattern=r"^https?://[^\s,@/]+(/[^\s,@]*)?(, ?https?://[^\s,@/]+(/[^\s,@]*)?)*\Z",
        ),
    ]
    user: Annotated[
        Annotated[str, Meta(pattern=r"^[^:]+\Z")] | None, _says("the name to log in with, without a colon")
    ] = None
    password: Annotated[str | None, _says(_SECRET)] = None
    token: Annotated[str | None, _says(_SECRET)] = None
    ca: Annotated[Path | None, _says("a file with the certificates to trust, in PEM")] = None
    certificate: Annotated[Path | None, _says("a file with this client's certificate, in PEM")] = None
    key: Annotated[Path | None, _says("a file with the certificate's key, in PEM")] = None
    key_password: Annotated[str | None, _says(_SECRET)] = None
    timeout_ms: Annotated[
        Duration, Meta(ge=100, le=300_000, description="a duration from 100ms to 5m")
    ] = msgspec.field(name="timeout", default=10_000)
    unknown_wait_ms: Annotated[
        Duration, Meta(ge=0, le=600_000, description="a duration from 0ms to 10m")
    ] = msgspec.field(name="unknown_wait", default=30_000)
    reader_schema: Annotated[Path | None, _says("a file with an Avro schema")] = None

    def where(self) -> str:
        return "schema_registry."

    def complaints(self) -> Iterator[str]:
        if (self.user is None) != (self.password is None):
            yield "user and password: give both or neither"
        if self.token is not None and self.user is not None:
            yield "token: give a token, or user and password, not both"
        if (self.certificate is None) != (self.key is None):
            yield "certificate and key: give both or neither"
        if self.key_password is not None and self.key is None:
            yield "key_password: only with key"

    def client(self) -> dict[str, Any]:
        """Return the options of confluent-kafka's client but for the URL."""
        options: dict[str, Any] = {"timeout": self.timeout_ms / 1000}
        if self.user is not None:
            options["basic.auth.user.info"] = f"{self.user}:{self.password}"
        if self.token is not None:
            # The client asks for a cluster, which is Confluent Cloud's; others do not look at it.
            options |= {
                "bearer.auth.credentials.source": "STATIC_TOKEN",
                "bearer.auth.token": self.token,
                "bearer.auth.logical.cluster": "",
            }
        names = {"ca": "ssl.ca.location", "certificate": "ssl.certificate.location", "key": "ssl.key.location"}
        options |= {option: str(getattr(self, name)) for name, option in names.items() if getattr(self, name) is not None}
        return options | ({} if self.key_password is None else {"ssl.key.password": self.key_password})

    def __repr__(self) -> str:
        return f"SchemaRegistrySettings(url={self.url!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("url", self.url)]


def registry_values(table: Mapping[str, Any], base: Path) -> dict[str, Any]:
    """Return the section's values with secrets in place of where they are, and whole file names.

    Args:
        table: the section as the file has it.
        base: the directory that file names in it are relative to.

    Raises:
        SettingsError: a secret that is written out or is not there, a file that cannot be read.
    """
    values = dict(table)
    if "@" in str(values.get("url", "")):
        # Its value is not shown: it may hold a password.
        raise SettingsError("schema_registry.url: must name no user: use user and password")
    for name in _SECRETS:
        source = values.get(name)
        if source is None:
            continue
        if not isinstance(source, dict) or set(source) not in ({"file"}, {"env"}):
            raise SettingsError(f"schema_registry.{name}: a secret must not be written here: use {_SECRET}")
        values[name] = secret(source, f"schema_registry.{name}", base)
    for name in _FILES:
        place = values.get(name)
        if place is None:
            continue
        if not isinstance(place, str) or not place:
            raise SettingsError(f"schema_registry.{name} = {display(place)}: a file name in quotes")
        try:
            read_file(base / place)
        except SettingsError as error:
            raise SettingsError(f"schema_registry.{name}: {error}") from None
        values[name] = base / place
    return values
