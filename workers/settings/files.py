"""Files and secrets that the settings name. Messages never show a key, secret or client value.

Paths in a settings file are relative to its directory, `base`. `where` and `name` are how a message
begins or refers to a setting. A secret is written as the place where it is: { file = "..." } or
{ env = "NAME" }.
"""

import os
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workers.mechanisms.config.buckets import parse_buckets
from workers.mechanisms.config.checked import display
from workers.mechanisms.config.histogram import LABEL_BYTES_MAX
from workers.runtime.errors import SettingsError

KEY_BYTES = 32

CLIENT_ALLOWED = (
    'a string, a whole number, true or false, { file = "..." } or { env = "NAME" }'
)
# Librdkafka's options that the worker sets itself, and why: changing one could break exactly-once.
CLIENT_RESERVED = MappingProxyType(
    {
        "bootstrap.servers": "use bootstrap in [kafka]",
        "group.id": "the worker sets it from worker.name",
        "group.instance.id": "workers are distinguished by their transactional ids",
        "acks": "the worker's producers are transactional",
        "transaction.timeout.ms": "the worker sets it above its longest commit",
        "enable.partition.eof": "the worker reads its state to the end",
        "transactional.id": "the worker sets it from worker.name",
        "isolation.level": "the worker reads committed records only",
        "enable.idempotence": "the worker's producers are transactional",
        "enable.auto.commit": "the worker keeps its own offsets",
        "enable.auto.offset.store": "the worker keeps its own offsets",
        "auto.offset.reset": "the worker keeps its own offsets",
        "allow.auto.create.topics": "quietcount topics --create creates topics",
    }
)
CLIENT_SECRETS = (
    "sasl.password",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.client.credentials.client.secret",
    "ssl.key.pem",
    "ssl.key.password",
    "ssl.keystore.password",
)


#: Of a settings file, a certificate or a schema; of a list of labels or files; of a secret.
FILE_BYTES_MAX = 16 << 20
LIST_BYTES_MAX = 1 << 30
SECRET_BYTES_MAX = 1 << 20


class NotReadable(Exception):
    """Why a file cannot be used: it is missing, not a regular file, or too long."""


def read_bounded(path: str | Path, most: int, *, may_be_pipe: bool = False) -> bytes:
    """Return a file's content of at most `most` bytes, else raise NotReadable.

    Unless it `may_be_pipe`, only a regular file is read: a named pipe may never have a writer, and
    a device never ends.
    """
    # Non-blocking: opening a named pipe would otherwise wait for a writer.
    flags = 0 if may_be_pipe else os.O_NONBLOCK
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(descriptor)
            # Reading a directory fails with the system's own message.
            is_file = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
            if not may_be_pipe and not is_file:
                raise NotReadable("not a regular file")
            pieces: list[bytes] = []
            # A pipe has no size, and a file may grow: what was read is counted.
            is_too_long = status.st_size > most
            size = 0
            while not is_too_long and (piece := file.read(1 << 20)):
                pieces.append(piece)
                size += len(piece)
                is_too_long = size > most
    except OSError as error:
        raise NotReadable(error.strerror or type(error).__name__) from error
    except ValueError:
        raise NotReadable("not a file name") from None
    if is_too_long:
        raise NotReadable(f"longer than {most:,} bytes, the most that is read")
    return b"".join(pieces)


def read_file(
    path: Path, most: int = FILE_BYTES_MAX, *, may_be_pipe: bool = False
) -> bytes:
    """Return a file's content, at most `most` bytes, else raise SettingsError with its path.

    `may_be_pipe`: the command line names it, perhaps as a pipe; else only a regular file is read.
    """
    try:
        return read_bounded(path, most, may_be_pipe=may_be_pipe)
    except NotReadable as error:
        if isinstance(error.__cause__, FileNotFoundError):
            raise SettingsError(f"{path}: no such file") from None
        raise SettingsError(f"{path}: {error}") from None


def check_client_file(name: str, value: str) -> None:
    """Refuse a file of [kafka.client] that a library would read endlessly; it may be missing."""
    try:
        status = os.stat(value)
    except (OSError, ValueError):
        return  # the library says so
    if stat.S_ISDIR(status.st_mode):
        return
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError(
            f"kafka.client.{name} = {display(value)}: not a regular file"
        )
    if status.st_size > FILE_BYTES_MAX:
        raise SettingsError(
            f"kafka.client.{name} = {display(value)}: longer than {FILE_BYTES_MAX:,} bytes, the most that is read"
        )


@contextmanager
def atomic_replacement(path: Path) -> Iterator[Path]:
    """Yield a path beside `path`; the file there replaces `path` when the block ends without error.

    A reader of `path` sees the old file or the new one, never half of it.
    """
    part = path.with_name(path.name + ".part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    with atomic_replacement(path) as part:
        part.write_bytes(content)


def read_key(path: str | Path) -> bytes:
    """Return the root key: 32 bytes from a regular file that only its owner may read."""
    key = read_private(path, KEY_BYTES, "quietcount key new")
    if len(key) != KEY_BYTES:
        raise SettingsError(
            f"{path}: {len(key):,} bytes: a key file has exactly {KEY_BYTES}; `quietcount key new FILE` makes one"
        )
    return key


def read_private(path: str | Path, most: int, made_by: str) -> bytes:
    """Return the content of a key file that only its owner may read, or raise SettingsError.

    If the file is longer than `most` bytes, return one byte more than that, for the caller to
    refuse. `made_by` is the command that makes such a file, for messages.
    """
    try:
        # Non-blocking: opening a named pipe would otherwise wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: no such key file; `{made_by} {path}` makes one"
        ) from None
    except OSError as error:
        raise SettingsError(
            f"{path}: the key file cannot be read: {error.strerror}"
        ) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SettingsError(
                f"{path}: not a regular file; `{made_by} FILE` makes a key file"
            )
        if status.st_mode & 0o077:
            raise SettingsError(
                f"{path}: mode {stat.S_IMODE(status.st_mode):04o} lets others read the key: run `chmod 600 {path}`"
            )
        return os.read(descriptor, most + 1)
    finally:
        os.close(descriptor)


def read_domain(path: Path) -> list[str]:
    """Return the labels of a domain file: UTF-8, one per line, blank lines ignored."""
    line_of: dict[str, int] = {}
    content = read_file(path, LIST_BYTES_MAX).removeprefix(BOM_UTF8)
    for number, line in enumerate(content.split(b"\n"), start=1):
        line = line.removesuffix(b"\r")
        where = f"{path}: line {number}"
        if not line.strip():
            continue
        if len(line) > LABEL_BYTES_MAX:
            raise SettingsError(
                f"{where}: {len(line):,} bytes: a label has at most {LABEL_BYTES_MAX:,}"
            )
        try:
            label = line.decode()
        except UnicodeDecodeError:
            raise SettingsError(f"{where}: not UTF-8") from None
        if label in line_of:
            raise SettingsError(
                f"{where}: {display(label)} is already on line {line_of[label]}: each label may occur only once"
            )
        line_of[label] = number
    if not line_of:
        raise SettingsError(f"{path}: no labels in it; it needs one label per line")
    return list(line_of)


def resolve_domain(
    values: dict[str, Any], required: bool | None, where: str, base: Path
) -> None:
    """Replace `domain_file` and `buckets` in a histogram's `values` by what they declare.

    A domain is the list of a histogram's labels. `required`: whether the mechanism needs one; None:
    it takes none, and buckets are not labels. Raises ValueError, which begins with `where`, for a
    wrong file or wrong buckets, or if the domain is given twice or missing.
    """
    takes_domain = required is not None
    given = sum(name in values for name in ("domain", "domain_file", "buckets"))
    if takes_domain and (given > 1 or (required and not given)):
        raise ValueError(
            f"{where}give domain_file, a file with one label per line, or domain, a list, or buckets, for numbers: "
            "exactly one of them"
        )
    name = "buckets" if "buckets" in values else "domain_file"
    value = values.get(name)
    try:
        if name == "buckets":
            buckets = parse_buckets(value)
            values["buckets"] = buckets
            if takes_domain:
                values["domain"] = buckets.labels
        elif takes_domain and name in values:
            if not isinstance(value, str) or not value:
                raise ValueError("a file name in quotes")
            values["domain"] = read_domain(base / value)
            del values["domain_file"]
    except (ValueError, SettingsError) as error:
        raise ValueError(f"{where}{name} = {display(value)}: {error}") from None


def client_values(table: object, base: Path) -> dict[str, str]:
    """Flatten [kafka.client] to dotted names; SettingsError for reserved names, literal secrets."""
    if not isinstance(table, dict):
        raise SettingsError("kafka.client: must be a section, [kafka.client]")
    return dict(_client_options(table, "", base))


def _client_options(
    values: Mapping[str, Any], prefix: str, base: Path
) -> Iterator[tuple[str, str]]:
    """Yield the dotted names of a table and its subtables, with their values as text.

    TOML reads `ssl.ca.location = "x"` as tables in tables; `prefix` has the outer ones' names.
    Secrets are read; a file of `*.location` is found from `base`.
    """
    for key, value in values.items():
        name = prefix + key
        where = f"kafka.client.{name}"
        if name in CLIENT_RESERVED:
            raise SettingsError(f"{where}: cannot be set: {CLIENT_RESERVED[name]}")
        if isinstance(value, dict) and set(value) in ({"file"}, {"env"}):
            yield name, read_secret(value, where, base)
        elif isinstance(value, dict) and value:
            yield from _client_options(value, f"{name}.", base)
        elif name in CLIENT_SECRETS:
            raise SettingsError(
                f'{where}: a secret must not be written here: use {{ file = "..." }} or {{ env = "NAME" }}'
            )
        elif isinstance(value, bool):
            yield name, "true" if value else "false"
        elif isinstance(value, str) and name.endswith(".location") and value != "probe":
            # "probe" is no file: librdkafka looks for one itself.
            yield name, str(base / value)
        elif isinstance(value, str | int):
            yield name, str(value)
        else:
            raise SettingsError(f"{where}: {CLIENT_ALLOWED}")


def read_secret(source: Mapping[str, object], name: str, base: Path) -> str:
    """Return the secret behind `{file: ...}` or `{env: ...}`; SettingsError if it is unusable."""
    [(kind, location)] = source.items()
    if not isinstance(location, str) or not location:
        raise SettingsError(f"{name}.{kind} = {display(location)}: a name in quotes")
    if kind == "env":
        text = os.environ.get(location, "")
        if not text:
            raise SettingsError(
                f"{name}: the environment variable {location} is not set"
            )
        return text
    try:
        text = (
            read_file(base / location, SECRET_BYTES_MAX)
            .decode()
            .removesuffix("\n")
            .removesuffix("\r")
        )
    except SettingsError as error:
        raise SettingsError(f"{name}: {error}") from None
    except UnicodeDecodeError:
        raise SettingsError(
            f"{name}: {base / location}: the file is not UTF-8"
        ) from None
    if not text:
        raise SettingsError(f"{name}: {base / location}: the file is empty")
    return text
