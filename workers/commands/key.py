"""`quietcount key`: make the root key, and keys that sign; never overwrite one."""

import os
import secrets
from pathlib import Path

from workers.pipeline.signing_key import SEED_BYTES, SigningKey, read_signing_key
from workers.runtime.errors import SettingsError
from workers.settings.files import KEY_BYTES


def new_key(path: Path) -> str:
    """Write 32 random bytes to a new file; return a message."""
    _write(path, secrets.token_bytes(KEY_BYTES))
    return (
        f"{path}: a new key of {KEY_BYTES} bytes, mode 0600.\n"
        "Next: name it in the settings file, as key_file under [worker] (relative to that file), and give every worker\n"
        "of that name the same key. Keep a copy that only you can read: without the key the worker cannot continue\n"
        "from its state, and whoever has it can remove the noise from every snapshot."
    )


def new_signing_key(path: Path) -> str:
    """Write a new key that signs ticks to a new file; return a message."""
    key = SigningKey(secrets.token_bytes(SEED_BYTES))
    _write(path, key.content)
    return (
        f"{path}: a new signing key, mode 0600.\n"
        f"Its public key: {key.public}\n"
        "Next: name the file in the settings file, as signing_key_file under [worker], for every worker of that name;\n"
        "`quietcount topics --create` makes the topic of signatures. Publish the public key where readers trust it,\n"
        "such as your web site: `quietcount verify` needs it. Keep a copy of the file that only you can read."
    )


def rotate_signing_key(old: Path, new: Path) -> str:
    """Write a new signing key, signed by the old one, to a new file; return a message."""
    key = read_signing_key(old).followed_by(secrets.token_bytes(SEED_BYTES))
    _write(new, key.content)
    return (
        f"{new}: a new signing key, signed by the key in {old}, mode 0600.\n"
        f"Its public key: {key.public}\n"
        "Next: name it as signing_key_file under [worker] in place of the old one, and restart every worker of that\n"
        "name. Their next records prove that it follows from the old key, so readers who have that need no other."
    )


def _write(path: Path, content: bytes) -> None:
    """Write a new file that only its owner can access, and make it durable."""
    try:
        descriptor = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
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
            file.write(content)
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
