"""The key that signs ticks, its file, and how the next key follows from it.

Ed25519: the same content always has the same signature, so a tick that is released again has the
same bytes. A new key's file holds the old key's signature of it, so a worker needs only the file to
prove to readers that the new key follows from the old one.
"""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from workers.runtime.errors import SettingsError
from workers.runtime.frozen import Frozen
from workers.settings.files import read_private

SEED_BYTES = 32
_FILE_BYTES_MAX = 1 << 16
_NEXT_KEY = b"quietcount next key\0"

#: A public key, and its signature of the public key that follows.
Rotation = tuple[str, str]


class _File(msgspec.Struct, forbid_unknown_fields=True):
    """The content of a signing key's file; `secret` in hexadecimal digits."""

    secret: str
    rotations: tuple[Rotation, ...]


_DECODER = msgspec.json.Decoder(_File)


class SigningKey(Frozen):
    """An Ed25519 key, with how it follows from older ones, the oldest first."""

    def __init__(self, seed: bytes, rotations: tuple[Rotation, ...] = ()) -> None:
        """`seed` is the secret; `rotations` has each older key, with its signature of the next."""
        self.__seed = bytes(seed)
        private = Ed25519PrivateKey.from_private_bytes(seed)
        self.public = private.public_key().public_bytes_raw().hex()
        self.rotations = rotations

    def __repr__(self) -> str:
        return f"SigningKey({self.public})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a SigningKey is not pickled: it stays in its file")

    @property
    def content(self) -> bytes:
        """Return the secret content of the key's file."""
        return msgspec.json.encode(_File(self.__seed.hex(), self.rotations)) + b"\n"

    def signer(self) -> Callable[[bytes], str]:
        """Return a function that signs a message, for one thread; signatures are hexadecimal."""
        private = Ed25519PrivateKey.from_private_bytes(self.__seed)
        return lambda message: private.sign(message).hex()

    def followed_by(self, seed: bytes) -> "SigningKey":
        """Return the key with this seed, which this one signs as the next."""
        public = SigningKey(seed).public
        signature = self.signer()(_NEXT_KEY + public.encode())
        return SigningKey(seed, (*self.rotations, (self.public, signature)))


def read_signing_key(path: Path) -> SigningKey:
    """Return the key in a file that only its owner may read."""
    content = read_private(path, _FILE_BYTES_MAX, "quietcount key signing")
    try:
        file = _DECODER.decode(content)
        return SigningKey(bytes.fromhex(file.secret), file.rotations)
    except (msgspec.DecodeError, ValueError, UnicodeError):
        raise SettingsError(
            f"{path}: not a signing key; `quietcount key signing FILE` makes one"
        ) from None


def follows(key: str, trusted: Collection[str], rotations: Sequence[Rotation]) -> bool:
    """Return whether a key is trusted, or follows from a trusted one: each key signed the next.

    `rotations` are (key, its signature of the next one), the oldest first; the last one signed
    `key`.
    """
    # From `key` back, until a trusted one is met.
    for old, signature in reversed(rotations):
        if key in trusted:
            return True
        if not verifies(old, signature, _NEXT_KEY + key.encode()):
            return False
        key = old
    return key in trusted


def verifies(key: str, signature: str, message: bytes) -> bool:
    """Return whether a signature is the key's, of just this message; both are hexadecimal."""
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key))
        raw = bytes.fromhex(signature)
        public.verify(raw, message)
    except (InvalidSignature, ValueError):
        return False
    # Digits have one form: capitals would be other bytes of the same signature.
    return raw.hex() == signature
