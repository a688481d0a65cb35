"""Several readers of one dashboard: each sees the histograms that the file of readers says."""

import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer

from tests.dashboard.feeding import (
    public_budget,
    reader_settings,
    snapshot,
    unopened,
)
from tests.dashboard.test_api import Client
from tests.dashboard.test_hub import on_a_loop
from tests.kafka.secure import write_certificates
from workers.dashboard.api import application
from workers.dashboard.hub import Hub
from workers.dashboard.readers import load_readers
from workers.dashboard.server import Tls
from workers.runtime.errors import SettingsError

SALES = "sales-token-of-the-test"
OPS = "ops-token-of-the-test"
NAMES = ("products", "regions.1h")
FILE = """
[[reader]]
name = "sales"
token_file = "sales.token"
histograms = ["products"]
[[reader]]
name = "ops"
token_file = "ops.token"
"""
PROXY = """
[[reader]]
name = "ann@shop"
histograms = ["regions"]
[[reader]]
name = "*"
histograms = ["products"]
[proxy]
header = "X-Forwarded-User"
addresses = ["127.0.0.0/8"]
"""


def written(directory: Path, text: str) -> Path:
    (directory / "sales.token").write_text(SALES)
    (directory / "ops.token").write_text(f"{OPS}\n")
    path = directory / "readers.toml"
    path.write_text(text)
    return path


@asynccontextmanager
async def client(directory: Path, text: str = FILE) -> AsyncIterator[Client]:
    hub = Hub()
    hub.publish([snapshot(1, histogram=name) for name in NAMES])
    hub.budget = public_budget()
    readers = load_readers(written(directory, text), {"products", "regions"})
    settings = reader_settings(*NAMES)
    app = application(hub, unopened(), settings, host="0.0.0.0", readers=readers)
    async with TestClient(TestServer(app)) as found:
        yield found


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


@on_a_loop
async def test_a_reader_sees_its_histograms_and_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Others are as unknown as those that there are not, at every address."""
    caplog.set_level(logging.INFO)
    async with client(tmp_path) as http:
        for token, seen in ((SALES, ["products"]), (OPS, list(NAMES))):
            answer = await http.get("/api/histograms", headers=bearer(token))
            found = await answer.json()
            assert [one["histogram"] for one in found["histograms"]] == seen
            names = [n.split(".")[0] for n in seen]
            assert found["together"]["histograms"] == names
            told = [one["histogram"] for one in found["budget"]["histograms"]]
            assert told == names
        for path in ("snapshots", "history", "epochs", "stream"):
            for name, status in (("regions.1h", 404), ("nothing", 404)):
                address = f"/api/{path}?histogram={name}&key=s1"
                answer = await http.get(address, headers=bearer(SALES))
                error = (await answer.json())["error"]
                assert answer.status == status
                assert error == f"no such histogram: '{name}'; one of products"
        window = "/api/snapshots?histogram=regions.1h&key=s1&window=1h"
        assert (await http.get(window, headers=bearer(SALES))).status == 404
        stream = await http.get("/api/stream", headers=bearer(SALES))
        begin = await stream.content.readuntil(b"event: snapshot")
        begin += await stream.content.readuntil(b"\n\n")
        assert b'"products"' in begin and b"regions" not in begin
        stream.close()
        for wrong in ({}, bearer("guess"), {"X-Forwarded-User": "ops"}):
            answer = await http.get("/api/histograms", headers=wrong)
            assert answer.status == 401
        lines = [one for one in caplog.messages if one.startswith("access: ")]
        assert lines[-1].startswith("access: - GET /api/histograms, histogram -: 401, ")
        assert any("access: sales GET /api/history" in one for one in lines)
        assert SALES not in caplog.text


@on_a_loop
async def test_a_proxy_names_the_reader_and_nobody_else_does(tmp_path: Path) -> None:
    async with client(tmp_path, PROXY) as http:
        for name, seen in (("ann@shop", "regions.1h"), ("bob@shop", "products")):
            headers = {"X-Forwarded-User": name}
            answer = await http.get("/api/histograms", headers=headers)
            listed = (await answer.json())["histograms"]
            assert [one["histogram"] for one in listed] == [seen]
        twice = [("X-Forwarded-User", "ann@shop"), ("X-Forwarded-User", "bob@shop")]
        assert (await http.get("/api/histograms", headers=twice)).status == 401
        assert (await http.get("/api/histograms")).status == 401
    elsewhere = PROXY.replace("127.0.0.0/8", "10.1.2.3")
    async with client(tmp_path, elsewhere) as http:
        headers = {"X-Forwarded-User": "ann@shop"}
        assert (await http.get("/api/histograms", headers=headers)).status == 401


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"sales.token"', '"ops.token"', "reader 2: has the token of reader"),
        ('"products"', '"prices"', "histograms holds 'prices': one of products"),
        ('name = "ops"', 'name = "sales"', "reader 2: a second reader"),
        ('token_file = "ops.token"', "", "token_file is missing, or [proxy]"),
        ('name = "ops"', "", "reader 2: name: a text"),
        ('name = "ops"', 'nme = "ops"', "reader 2: nme: unknown; one of name"),
        ('histograms = ["products"]', "histograms = []", "a list of names"),
    ],
)
def test_a_wrong_file_of_readers_is_refused(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    path = written(tmp_path, FILE.replace(old, new, 1))
    with pytest.raises(SettingsError) as caught:
        load_readers(path, {"products", "regions"})
    assert said.replace("'", '"') in str(caught.value).replace("'", '"')


def test_a_wrong_proxy_is_refused(tmp_path: Path) -> None:
    for old, new, said in (
        ('"127.0.0.0/8"', '"proxy.example"', "an IP address or network"),
        ('"X-Forwarded-User"', '"X Forwarded"', "proxy.header: the name of a header"),
        ('addresses = ["127.0.0.0/8"]', "", "proxy.addresses: a list"),
    ):
        path = written(tmp_path, PROXY.replace(old, new))
        with pytest.raises(SettingsError, match=said):
            load_readers(path, {"products", "regions"})


@on_a_loop
async def test_tls_takes_a_new_certificate_without_a_restart(
    tmp_path: Path,
) -> None:
    """A pair that does not fit leaves the old one, and the next that does is used."""
    pairs = []
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        pairs.append(write_certificates(tmp_path / name))
    authorities = [one[0] for one in pairs]
    stores = [one[2] for one in pairs]
    certificate = tmp_path / "tls.pem"
    key = tmp_path / "tls.key"

    def put(of_chain: int, of_key: int) -> None:
        certificate.write_bytes(stores[of_chain].read_bytes())
        key.write_bytes(stores[of_key].read_bytes())

    put(0, 0)
    tls = Tls(certificate, key)
    app = application(Hub(), unopened(), reader_settings("products"))
    server = TestServer(app, scheme="https")
    await server.start_server(ssl=tls.context)
    async with TestClient(server) as http:
        for of_chain, of_key, trusted in ((0, 0, 0), (1, 0, 0), (1, 1, 1)):
            put(of_chain, of_key)
            tls.renew()
            context = ssl.create_default_context(cafile=str(authorities[trusted]))
            context.check_hostname = False
            close = {"Connection": "close"}
            answer = await http.get("/healthz", ssl=context, headers=close)
            assert answer.status == 200
    with pytest.raises(SettingsError, match="not a certificate and its key"):
        Tls(authorities[0], key)
