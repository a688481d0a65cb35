"""What a settings file points at: domain files, the client's secrets, the key file; and what each is refused for."""

import os
from pathlib import Path

import pytest

from tests.settings.test_settings import changed, loaded, refusal
from workers.mechanisms.running.base import KnownBaseConfig
from workers.runtime.errors import SettingsError
from workers.settings.files import client_values, read_domain, read_file, read_key
from workers.settings.settings import load, registry_values

# Domain files


def with_domain(directory: Path, content: bytes) -> str:
    """The text of a settings file over a known domain, whose file is written beside it."""
    (directory / "products.txt").write_bytes(content)
    return changed('"unk_base"', '"known_base"\ndomain_file = "products.txt"')


def test_a_domain_is_read_line_by_line_and_in_order(tmp_path: Path) -> None:
    """Only line ends and blank lines are left out: a space or a U+2028 inside a label is part of it.

    A label may have 1,024 bytes.
    """
    text = with_domain(
        tmp_path, f"\ufeffp2\r\n\n  \np1 \na\u2028b\n{'x' * 1024}".encode()
    )
    [histogram] = loaded(tmp_path, text).histograms
    assert isinstance(histogram, KnownBaseConfig)
    assert histogram.domain == ("p2", "p1 ", "a\u2028b", "x" * 1024)


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (b"a\n\nb\na\n", ["line 4", '"a"', "line 1", "only once"]),
        (b"ok\n" + b"x" * 1025, ["line 2", "1,025 bytes", "1,024"]),
        (b"ok\n\xff\n", ["line 2", "not UTF-8"]),
        (b"\n \n", ["no label"]),
    ],
)
def test_bad_domain_files_are_refused_by_line(
    tmp_path: Path, content: bytes, parts: list[str]
) -> None:
    """A domain has thousands of lines: the message must say which."""
    message = refusal(tmp_path, with_domain(tmp_path, content))
    for part in ["histogram 'products': domain_file", "products.txt", *parts]:
        assert part in message


# [kafka.client]


def with_client(lines: str) -> str:
    bootstrap = 'bootstrap = "localhost:9092"'
    return changed(bootstrap, f"{bootstrap}\n[kafka.client]\n{lines}")


def test_client_names_are_read_with_and_without_quotes(tmp_path: Path) -> None:
    lines = 'security.protocol = "SSL"\n"linger.ms" = 5\nsocket.keepalive.enable = true\nssl.ca.location = "ca.pem"'
    assert loaded(tmp_path, with_client(lines)).kafka.client == {
        "security.protocol": "SSL",
        "linger.ms": "5",
        "socket.keepalive.enable": "true",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
    }


def test_secrets_come_from_files_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("swordfish \n", encoding="utf-8")
    monkeypatch.setenv("QUIETCOUNT_TEST_SECRET", "open sesame")
    lines = 'sasl.password = { file = "password" }\n"ssl.key.password" = { env = "QUIETCOUNT_TEST_SECRET" }'
    found = loaded(tmp_path, with_client(lines))
    assert found.kafka.client == {
        "sasl.password": "swordfish ",
        "ssl.key.password": "open sesame",
    }
    shown = repr(found) + str(list(found.kafka.__rich_repr__()))
    assert "swordfish" not in shown and "sesame" not in shown


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        (
            'sasl.password = "hunter2"',
            ["kafka.client.sasl.password", "{ file = ", "{ env = "],
        ),
        (
            'sasl.password = { env = "QC_ABSENT" }',
            ["sasl.password", "QC_ABSENT", "not set"],
        ),
        (
            'sasl.password = { file = "absent" }',
            ["sasl.password", "absent", "no such file"],
        ),
        (
            "sasl.password = { file = 5 }",
            ["kafka.client.sasl.password.file = 5", "in quotes"],
        ),
        ('group.id = "mine"', ["kafka.client.group.id", "worker.name"]),
        ('"isolation.level" = "x"', ["kafka.client.isolation.level", "cannot be set"]),
        ("linger.ms = 0.5", ["kafka.client.linger.ms", "a whole number"]),
    ],
)
def test_a_bad_client_setting_is_refused_without_showing_its_value(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    """Messages end up in logs, where a password must not be."""
    message = refusal(tmp_path, with_client(line))
    assert "hunter2" not in message
    for part in parts:
        assert part in message


# Key files


def key_file(directory: Path, size: int = 32, mode: int = 0o600) -> Path:
    path = directory / "noise.key"
    path.write_bytes(bytes(range(size)))
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_key_that_only_its_owner_can_read_is_read(tmp_path: Path, mode: int) -> None:
    assert read_key(key_file(tmp_path, mode=mode)) == bytes(range(32))


@pytest.mark.parametrize("bit", [0o040, 0o020, 0o010, 0o004, 0o002, 0o001])
def test_a_key_that_others_can_get_at_is_refused(tmp_path: Path, bit: int) -> None:
    """Anyone with the key can remove the noise from every snapshot."""
    path = key_file(tmp_path, mode=0o600 | bit)
    with pytest.raises(SettingsError, match=f"chmod 600 {path}"):
        read_key(path)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_key_of_another_size_is_refused(tmp_path: Path, size: int) -> None:
    with pytest.raises(
        SettingsError, match=rf"{size} bytes.*exactly 32.*quietcount key new"
    ):
        read_key(key_file(tmp_path, size=size))


def test_a_missing_key_says_how_to_make_one(tmp_path: Path) -> None:
    """This is the first thing that a new user meets."""
    path = tmp_path / "noise.key"
    with pytest.raises(SettingsError, match=f"quietcount key new {path}"):
        read_key(path)


def test_a_key_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    """A named pipe would block the start forever, and gives another key each time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe, 0o600)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_key(pipe)
    tmp_path.chmod(0o700)
    with pytest.raises(SettingsError, match="not a regular file"):
        read_key(tmp_path)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Return what no file of the settings may be, and what is said about it."""
    directory = tmp_path_factory.mktemp("endless")
    pipe = directory / "pipe"
    huge = directory / "huge"
    os.mkfifo(pipe)
    huge.touch()
    os.truncate(huge, 3 << 30)
    return {
        pipe: "not a regular file",
        Path("/dev/zero"): "not a regular file",
        directory: "Is a directory",
        huge: "longer than .* bytes, the most that is read",
    }


def test_a_file_of_the_settings_that_never_ends_is_refused_in_one_line(
    endless: dict[Path, str], tmp_path: Path
) -> None:
    """A pipe without a writer hangs, and a device takes all memory."""
    for path, word in endless.items():
        secret = {"file": str(path)}
        for ask in (
            lambda path=path: read_file(path),
            lambda path=path: read_domain(path),
            lambda secret=secret: client_values({"sasl.password": secret}, tmp_path),
            lambda secret=secret: registry_values({"password": secret}, tmp_path),
            lambda path=path: registry_values({"ca": str(path)}, tmp_path),
            lambda path=path: registry_values({"reader_schema": str(path)}, tmp_path),
        ):
            with pytest.raises(SettingsError, match=word) as refused:
                ask()
            assert "\n" not in str(refused.value)


def test_a_settings_file_may_be_a_pipe_but_never_without_end(
    endless: dict[Path, str], tmp_path: Path
) -> None:
    """A shell passes what a program prints as one: `-c <(...)`."""
    for path in (
        Path("/dev/zero"),
        tmp_path,
        *[path for path in endless if path.name == "huge"],
    ):
        with pytest.raises(SettingsError, match=r"longer than|Is a directory"):
            load(path)
    reading, writing = os.pipe()
    os.write(writing, b"[worker")
    os.close(writing)
    with pytest.raises(SettingsError, match="not TOML"):
        load(Path(f"/dev/fd/{reading}"))
    os.close(reading)
