"""Protobuf schemas: from the text or descriptor that a registry keeps to a message type of upb."""

from __future__ import annotations

import base64
import binascii
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError

from workers.events.formats.wire import REFUSED, zigzag
from workers.events.schemas import Schema

_MAIN = "quietcount/event.proto"
_PROTOC_S = 30.0


class ProtobufSchema:
    """A schema's file with all that it imports, in a pool of its own."""

    def __init__(self, schema: Schema) -> None:
        """Compile it.

        Raises:
            ValueError: it is no schema; the message shows nothing of it.
        """
        found = _compiled(schema)
        self._pool = descriptor_pool.DescriptorPool()
        try:
            for file in found:
                self._pool.Add(file)
        except TypeError:
            raise ValueError("no Protobuf schema") from None
        self._file = found[-1]

    def message(self, indexes: Sequence[int]) -> Any:
        """Return the descriptor of a message by its place in the file, and in the messages around.

        Raises:
            ValueError: there is none.
        """
        name, types = self._file.package, self._file.message_type
        for index in indexes:
            if not 0 <= index < len(types):
                raise ValueError("no such message in the schema")
            name = f"{name}.{types[index].name}" if name else types[index].name
            types = types[index].nested_type
        try:
            return self._pool.FindMessageTypeByName(name)
        except (KeyError, TypeError):
            raise ValueError("no such message in the schema") from None


def indexes_of(message: bytes) -> list[int]:
    """Return the places that the bytes behind a schema id say: a number of them, then each.

    Raises:
        ValueError: they say none.
    """
    data = np.frombuffer(message, dtype=np.uint8)
    number, at = zigzag(data, 0, len(data))
    if number == 0 and at == len(message):
        return [0]
    found = []
    while at != REFUSED and at < len(message):
        index, at = zigzag(data, at, len(data))
        found.append(index)
    if at == REFUSED or len(found) != number:
        raise ValueError("no message indexes")
    return found


def _descriptor(text: str) -> descriptor_pb2.FileDescriptorProto | None:
    """Return the file that a text is in base64, as producers in Python register it; else None."""
    try:
        made = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return made if text.strip() else None


def _compiled(schema: Schema) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the schema's file behind all that it imports."""
    texts: dict[str, str] = {}
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    main = _MAIN
    for name, text in [*((each.name, each.text) for each in schema.references), (_MAIN, schema.text)]:
        file = _descriptor(text)
        if file is None:
            texts[name] = text
            continue
        if name == _MAIN:
            main = name = file.name or _MAIN
        file.name = name
        files[name] = file
    if not texts and all(name in files for file in files.values() for name in file.dependency):
        return list(files.values())
    return _by_protoc(texts, list(files.values()), main)


def _by_protoc(
    texts: Mapping[str, str], files: Sequence[descriptor_pb2.FileDescriptorProto], main: str
) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return the file `main` behind all that it imports; texts are compiled.

    protoc runs in a process of its own: no text makes it crash this one, or take its time.
    """
    with tempfile.TemporaryDirectory(prefix="quietcount-protoc-") as made:
        place = pathlib.Path(made)
        (place / "texts").mkdir()
        for name, text in texts.items():
            path = pathlib.PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or "\0" in name:
                raise ValueError("no Protobuf schema: a reference's name")
            (place / "texts" / path).parent.mkdir(parents=True, exist_ok=True)
            (place / "texts" / path).write_text(text, encoding="utf-8", errors="replace")
        command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={place / 'texts'}", *_shipped()]
        if files:
            (place / "known").write_bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())
            command.append(f"--descriptor_set_in={place / 'known'}")
        command += ["--include_imports", f"--descriptor_set_out={place / 'out'}", main]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PROTOC_S)
            found = descriptor_pb2.FileDescriptorSet.FromString((place / "out").read_bytes())
        except (subprocess.SubprocessError, OSError, DecodeError, ValueError):
            raise ValueError("no Protobuf schema") from None
    return list(found.file)


def _shipped() -> list[str]:
    """Return the places of files that registries do not keep: Google's own types."""
    places = []
    for package, inner in (("grpc_tools", "_proto"), ("google.type", "../..")):
        try:
            spec = find_spec(package)
        except ModuleNotFoundError:
            spec = None
        for place in (spec.submodule_search_locations or []) if spec is not None else []:
            places.append(f"--proto_path={pathlib.Path(place, inner).resolve()}")
    return places
