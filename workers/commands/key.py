"""`quietcount key new`: create a root key."""

import os
import secrets
from pathlib import Path

from workers.runtime.errors import SettingsError
from workers.settings.files import KEY_BYTES


def new_key(path: Path) -> str:
    """Write 32 random bytes to a new file that only its owner can access; return a message."""
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
