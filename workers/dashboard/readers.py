"""Who reads the dashboard, and which histograms they may see.

A reader is known by a token, or by a header that the company's proxy sets after a login. A file
(`--readers`) names them:

    [[reader]]
    name = "sales"
    token_file = "sales.token"
    histograms = ["products"]

    [proxy]
    header = "X-Forwarded-User"
    addresses = ["10.1.2.3", "10.2.0.0/16"]

With [proxy], a reader without a token is one whose name the header holds; the reader "*" is anybody
else whom the proxy lets in. The header counts only in requests from the proxy's addresses.
"""

import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any

from aiohttp import hdrs, web

from workers.client.config import read_token
from workers.mechanisms.config.checked import display
from workers.runtime.errors import SettingsError
from workers.settings.settings import from_file

ANYBODY_ELSE = "*"
_NAME_CHARS = 100
Network = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Reader:
    """Who may see some histograms, by their names in the settings file; None: all."""

    name: str
    histograms: frozenset[str] | None = None

    def may_see(self, settings_name: str) -> bool:
        return self.histograms is None or settings_name in self.histograms


#: Who reads where no token is needed.
EVERYBODY = Reader("-")


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy that logs people in, and the header in which it names them."""

    header: str
    networks: tuple[Network, ...]

    def name_in(self, request: web.Request) -> str | None:
        """Return the name that the proxy gives; None for requests from elsewhere."""
        values = request.headers.getall(self.header, [])
        # Of two headers, a client may have sent one itself.
        if len(values) != 1 or not values[0] or request.remote is None:
            return None
        try:
            # Without the zone of a link-local IPv6 address, as in fe80::1%eth0.
            address = ip_address(request.remote.partition("%")[0])
        except ValueError:
            return None
        known = any(address in network for network in self.networks)
        return values[0] if known else None


class Readers:
    """All readers, by the digest of their token or by the name that the proxy gives."""

    def __init__(
        self,
        by_token: Mapping[str, Reader],
        by_name: Mapping[str, Reader] | None = None,
        proxy: Proxy | None = None,
    ) -> None:
        # Of one length, as a comparison in constant time needs (`identify`).
        self._by_digest = {
            hashlib.sha256(token.encode()).digest(): reader
            for token, reader in by_token.items()
        }
        self._by_name = dict(by_name or {})
        self._proxy = proxy

    def identify(self, request: web.Request) -> Reader | None:
        """Return who asks, by token or else by the proxy's header; None if they are nobody here."""
        scheme, _, token = request.headers.get(hdrs.AUTHORIZATION, "").partition(" ")
        # aiohttp has bytes that are no UTF-8 as lone surrogates.
        digest = hashlib.sha256(
            token.strip().encode("utf-8", "surrogateescape")
        ).digest()
        by_token = None
        # All are compared, in constant time: how long it takes says nothing of a token.
        for known, reader in self._by_digest.items():
            if hmac.compare_digest(known, digest) and scheme.lower() == "bearer":
                by_token = reader
        if by_token is not None or self._proxy is None:
            return by_token
        name = self._proxy.name_in(request)
        if name is None:
            return None
        by_name = self._by_name.get(name)
        # Under their own name, which goes into the log.
        if by_name is None and ANYBODY_ELSE in self._by_name:
            return Reader(name, self._by_name[ANYBODY_ELSE].histograms)
        return by_name


def load_readers(path: Path, histograms: Collection[str]) -> Readers:
    """Return the readers of a file; `histograms` are the names in the settings file.

    Raise SettingsError, with the file's name, for anything that is not as it must be.
    """

    def read(document: Mapping[str, Any], base: Path) -> Readers:
        """Return the readers of a parsed file; paths in it are relative to `base`."""
        _refuse_others(document, ("reader", "proxy"), "")
        sections = document.get("reader")
        if not isinstance(sections, list) or not sections:
            raise SettingsError("reader is missing: one or more sections [[reader]]")
        proxy = _proxy(document["proxy"]) if "proxy" in document else None
        by_token: dict[str, Reader] = {}
        by_name: dict[str, Reader] = {}
        names = set()
        for number, section in enumerate(sections, 1):
            where = f"reader {number}: "
            if not isinstance(section, dict):
                raise SettingsError(f"{where}a section [[reader]]")
            _refuse_others(section, ("name", "token_file", "histograms"), where)
            reader = _reader(section, where, histograms)
            if reader.name in names:
                raise SettingsError(f"{where}a second reader {display(reader.name)}")
            names.add(reader.name)
            token_file = section.get("token_file")
            if token_file is None:
                if proxy is None:
                    raise SettingsError(f"{where}token_file is missing, or [proxy]")
                by_name[reader.name] = reader
                continue
            if not isinstance(token_file, str) or not token_file:
                raise SettingsError(f"{where}token_file: the path of a file")
            token = read_token(base / token_file)
            if token in by_token:
                other = display(by_token[token].name)
                raise SettingsError(f"{where}has the token of reader {other}")
            by_token[token] = reader
        return Readers(by_token, by_name, proxy)

    return from_file(path, read)


def _refuse_others(
    section: Mapping[str, Any], names: Collection[str], where: str
) -> None:
    """Raise SettingsError if a section has a name that is not in `names`."""
    for name in section:
        if name not in names:
            raise SettingsError(f"{where}{name}: unknown; one of {', '.join(names)}")


def _reader(
    section: Mapping[str, Any], where: str, histograms: Collection[str]
) -> Reader:
    """Return the reader of a section [[reader]], checked; `where` begins messages.

    `histograms` are the names in the settings file. The token is for the caller.
    """
    name = section.get("name")
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_CHARS:
        raise SettingsError(f"{where}name: a text of 1 to {_NAME_CHARS} characters")
    if name == ANYBODY_ELSE and "token_file" in section:
        raise SettingsError(f'{where}name = "*": only without token_file')
    if "histograms" not in section:
        return Reader(name)
    listed = section["histograms"]
    if not isinstance(listed, list) or not listed:
        raise SettingsError(f"{where}histograms: a list of names; left out: all")
    for histogram in listed:
        if histogram not in histograms:
            known = ", ".join(sorted(histograms))
            raise SettingsError(
                f"{where}histograms holds {display(histogram)}: one of {known}"
            )
    return Reader(name, frozenset(listed))


def _proxy(section: object) -> Proxy:
    """Return the proxy of the section [proxy], checked."""
    if not isinstance(section, dict):
        raise SettingsError("proxy: a section [proxy]")
    _refuse_others(section, ("header", "addresses"), "proxy.")
    header = section.get("header")
    is_word = isinstance(header, str) and header.replace("-", "").isalnum()
    if not is_word or not str(header).isascii():
        raise SettingsError(
            "proxy.header: the name of a header, such as X-Forwarded-User"
        )
    addresses = section.get("addresses")
    if not isinstance(addresses, list) or not addresses:
        raise SettingsError(
            'proxy.addresses: a list such as ["10.1.2.3", "10.2.0.0/16"]'
        )
    networks = []
    for address in addresses:
        try:
            # "" is refused. `ip_network` itself would take a number for an address.
            networks.append(ip_network(address if isinstance(address, str) else ""))
        except ValueError:
            raise SettingsError(
                f"proxy.addresses holds {display(address)}: an IP address or network"
            ) from None
    return Proxy(str(header), tuple(networks))


def single(token: str) -> Readers:
    """Return readers of whom there is one: who has this token, and may see everything."""
    return Readers({token: Reader("token")})
