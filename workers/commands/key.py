"""`quietcount key`: create a root key, or print its fingerprint."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import click

from workers.commands.options import PATH
from workers.runtime.errors import SettingsError


@click.group()
def key() -> None:
    """Create the key that all noise is derived from."""


@key.command("new")
@click.argument("file", type=PATH)
def key_new(file: Path) -> int:
    """Write a new key of 32 random bytes to FILE, readable only by you. Never overwrites a file."""
    click.echo(new_key(file))
    return 0


@key.command("fingerprint")
@click.argument("file", type=PATH)
def key_fingerprint(file: Path) -> int:
    """Print what tells the key in FILE from others, and from which no key can be computed.

    A worker that misses its key names the fingerprint of the one that it wants.
    """
    from workers.mechanisms.noise.keyed import NoiseKey
    from workers.settings.files import read_key

    click.echo(NoiseKey(read_key(file)).fingerprint.hex())
    return 0


def new_key(path: Path) -> str:
    """Write 32 random bytes to a new file that only its owner can access; return a message."""
    from workers.settings.files import KEY_BYTES  # imported late, so that `--help` is quick

    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise SettingsError(
            f"{path}: exists already, and a key is never overwritten: choose another name"
        ) from None
    except FileNotFoundError:
        raise SettingsError(
            f"{path}: no directory {path.parent}: `mkdir -m 700 {path.parent}`"
        ) from None
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o600)  # regardless of the umask
            file.write(secrets.token_bytes(KEY_BYTES))
            file.flush()
            os.fsync(descriptor)
        # Make the new name as durable as the file's bytes.
        descriptor = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise SettingsError(f"{path}: {error.strerror}: no key was written") from None
    return (
        f"{path}: a new key of {KEY_BYTES} bytes, mode 0600.\n"
        "Next: name it in the settings file, as key_file under [worker] (relative to that file), and give every worker\n"
        "of that name the same key. Keep a copy that only you can read: without the key the worker cannot continue\n"
        "from its state, and whoever has it can remove the noise from every snapshot."
    )
