"""Compile Protobuf schemas of a registry, in a process that a bad text may crash or stall.

A schema's imports are its references and the files that registries know without storing them:
Google's and Confluent's own (`protos`). If another one is missing, the rest is still read where its
meaning on the wire is certain:

- Custom options are removed: they say nothing about the wire.
- Types that are defined nowhere become stubs. Fields of such types are dropped, and so look like
  fields that the schema does not know: readers skip those, whatever their wire type.
- A missing file may define a type nearer to where its name is used than the file that does define
  it. So fields of types of another package are dropped, too, except for well-known types.
- The other members of a dropped field's oneof stay, but cannot be wanted: the dropped one may come
  later and clear them.

A *stub* is an empty message, or an enum with one value, in the place of such a type. Files are the
descriptors that protoc, Google's compiler, makes of texts.
"""

import base64
import binascii
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from itertools import chain
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2
from google.protobuf.message import DecodeError

from workers.events.formats.fitting import Unreadable
from workers.events.schemas import Schema

File: TypeAlias = descriptor_pb2.FileDescriptorProto

_MAIN = "quietcount/event.proto"
# The time of all runs of protoc for one schema, and the most runs that find stubs: each names the
# types that are missing once those before it are there.
_PROTOC_S = 30.0
_ROUNDS = 5
_STUB = "quietcount/missing/{}.proto"

# What protoc says.
_NOT_FOUND = re.compile(r"^(.+): File not found\.$", re.MULTILINE)
_UNDEFINED = (
    re.compile(r'"\.?([\w.]+)" is not defined\.'),
    re.compile(r'is resolved to "\.?([\w.]+)", which is not defined'),
)
_NO_ENUM = re.compile(r'"\.?([\w.]+)" is not an enum type\.')
_TYPE_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*", re.ASCII)


@dataclass(frozen=True)
class Compiled:
    """The main file of a schema, preceded by its imports.

    Attributes:
        missing: imports that nothing provides.
        unread: full name of the message, and name, of each field that cannot be wanted.
    """

    files: Sequence[File] = field(repr=False)
    missing: Sequence[str] = ()
    unread: frozenset[tuple[str, str]] = frozenset()


def compile_schema(schema: Schema) -> Compiled:
    """Compile a schema; raise ValueError, without its content, if it cannot be used.

    Raises Unreadable if, even with stubs, it needs imports that nothing provides.
    """
    texts: dict[str, str] = {}
    files: dict[str, File] = {}
    main = _MAIN
    # Each file is registered as text or as a compiled descriptor. A descriptor has its own name.
    references = [(each.name, each.text) for each in schema.references]
    for name, text in [*references, (_MAIN, schema.text)]:
        file = _descriptor(text)
        if file is None:
            texts[name] = text
            continue
        if name == _MAIN:
            main = name = file.name or _MAIN
        file.name = name
        files[name] = file
    if main.startswith(("-", "@")):
        raise ValueError("no Protobuf schema: protoc would read its name as an option")
    # All files are compiled.
    if not texts and all(
        name in files for file in files.values() for name in file.dependency
    ):
        return Compiled(list(files.values()))
    deadline = time.monotonic() + _PROTOC_S
    compiled, errors = _run_protoc(texts, list(files.values()), main, deadline)
    if compiled:
        return Compiled(compiled)
    missing = sorted(set(_NOT_FOUND.findall(errors)))
    if not missing:
        raise ValueError("no Protobuf schema")
    texts = {name: without_custom_options(text) for name, text in texts.items()}
    # By the full name of a type that is defined nowhere: message, or enum once protoc says so.
    stubs: dict[str, str] = {}
    # The errors of each run name types that are defined nowhere: stubs for the next run.
    for _ in range(_ROUNDS):
        given = texts | _stub_files(missing, stubs)
        compiled, errors = _run_protoc(given, list(files.values()), main, deadline)
        if compiled:
            files_of_registry = {*texts, *files, main}
            return _certain_part(compiled, missing, stubs, files_of_registry)
        undefined = [name for form in _UNDEFINED for name in form.findall(errors)]
        more = {name: "message" for name in undefined if name not in stubs}
        more |= {
            name: "enum"
            for name in _NO_ENUM.findall(errors)
            if stubs.get(name) == "message"
        }
        if not more:
            break
        stubs |= more
    raise Unreadable(missing)


def _descriptor(text: str) -> File | None:
    """Parse a file in base64, as Python producers register it; None for any other text.

    Also None for an empty text, which would otherwise be a file without types.
    """
    try:
        file = base64.b64decode(text.strip(), validate=True)
        made = File.FromString(file)
    except (binascii.Error, ValueError, DecodeError):
        return None
    return made if text.strip() else None


def _run_protoc(
    texts: Mapping[str, str], files: Sequence[File], main: str, deadline_s: float
) -> tuple[list[File], str]:
    """Compile `main`, preceded by its imports; return the files, or nothing and protoc's errors."""
    with tempfile.TemporaryDirectory(prefix="quietcount-protoc-") as made:
        folder = pathlib.Path(made)
        command = [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={folder / 'texts'}",
        ]
        command += _bundled_paths()
        try:
            (folder / "texts").mkdir()
            for name, text in texts.items():
                _write_text(folder / "texts", name, text)
            if files:
                known = descriptor_pb2.FileDescriptorSet(file=files)
                (folder / "known").write_bytes(known.SerializeToString())
                command.append(f"--descriptor_set_in={folder / 'known'}")
            command += [
                "--include_imports",
                f"--descriptor_set_out={folder / 'out'}",
                main,
            ]
            left_s = max(0.0, deadline_s - time.monotonic())
            done = subprocess.run(
                command, check=False, capture_output=True, timeout=left_s
            )
            if done.returncode:
                return [], done.stderr.decode(errors="replace")
            found = descriptor_pb2.FileDescriptorSet.FromString(
                (folder / "out").read_bytes()
            )
        except (subprocess.SubprocessError, OSError, DecodeError, ValueError):
            # A name may be too long for a file, or be that of a folder.
            raise ValueError("no Protobuf schema") from None
    return list(found.file), ""


def _write_text(folder: pathlib.Path, name: str, text: str) -> None:
    """Write a .proto file, unless its name, which a producer chose, leaves the folder."""
    path = pathlib.PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ValueError("no Protobuf schema: a reference's name")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    (folder / path).write_text(text, encoding="utf-8", errors="replace")


def _bundled_paths() -> list[str]:
    """Return protoc options for files that registries do not store: Google's and Confluent's."""
    places = [pathlib.Path(__file__).with_name("protos")]
    # grpc_tools has google/protobuf in its folder _proto. The folder that has google/type, if that
    # is installed, is two levels above it.
    for package, inner in (("grpc_tools", "_proto"), ("google.type", "../..")):
        spec = find_spec(package)
        folders = None if spec is None else spec.submodule_search_locations
        places += [pathlib.Path(folder, inner).resolve() for folder in folders or ()]
    return [f"--proto_path={place}" for place in places]


# Comments and strings that end with the text, not at their end mark, keep this linear.
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*|/\*(?:.*?\*/|.*))|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?|\w+|.""",
    re.DOTALL,
)
_WORD = re.compile(r"\w")
_OPENING = frozenset("[{(<")
_CLOSING = frozenset("]})>")


def without_custom_options(text: str) -> str:
    """Return a schema without the options in parentheses, which its imports define.

    `packed` is removed too, since protoc refuses it for the stubs of missing types.
    """
    tokens = [found[0] for found in _TOKEN.finditer(text) if found["space"] is None]
    output: list[str] = []
    pos = 0
    while pos < len(tokens):
        begins = not output or output[-1] in (";", "{", "}")
        if begins and tokens[pos : pos + 2] == ["option", "("]:
            pos = _end(tokens, pos, ";") + 1
        elif tokens[pos] == "[":
            end = _end(tokens, pos + 1, "]")
            entries = [
                each
                for each in _entries(tokens[pos + 1 : end])
                if not _is_needless(each)
            ]
            if entries:
                output.append("[")
                for place, entry in enumerate(entries):
                    output += [",", *entry] if place else entry
                output.append("]")
            pos = end + 1
        else:
            output.append(tokens[pos])
            pos += 1
    return _spaced(output)


def _end(tokens: Sequence[str], begin: int, mark: str) -> int:
    """Return the index of the next `mark` outside brackets, from `begin` on, or the end."""
    depth = 0
    index = begin
    while index < len(tokens) and (depth or tokens[index] != mark):
        depth += (tokens[index] in _OPENING) - (tokens[index] in _CLOSING)
        index += 1
    return index


def _entries(tokens: Sequence[str]) -> Iterator[list[str]]:
    """Yield the tokens of every option in a list separated by commas."""
    begin = 0
    while begin < len(tokens):
        end = _end(tokens, begin, ",")
        yield list(tokens[begin:end])
        begin = end + 1


def _is_needless(entry: Sequence[str]) -> bool:
    """Return whether an option is custom, or `packed`: readers accept both forms anyway."""
    name = entry[: entry.index("=")] if "=" in entry else entry
    return "(" in name or name[:1] == ["packed"]


def _spaced(tokens: Iterable[str]) -> str:
    """Join tokens, with a space only where two words would become one: `-inf`, `1.5`, `.a.B`."""
    parts: list[str] = []
    for token in tokens:
        if parts and _WORD.match(token) and _WORD.match(parts[-1][-1]):
            parts.append(" ")
        parts.append(token)
    return "".join(parts)


def _stub_files(missing: Sequence[str], stubs: Mapping[str, str]) -> dict[str, str]:
    """Return texts by file name: a file of stubs for each package, and the `missing` imports.

    These have no content, and import all stubs: nobody knows which of them defines a type.
    """
    packages: dict[str, list[str]] = {}
    for name in stubs:
        package, _, short = name.rpartition(".")
        # A type in another stub is written with that one.
        if _TYPE_NAME.fullmatch(name) and package not in stubs:
            packages.setdefault(package, []).append(_stub(name, short, stubs))
    files: dict[str, str] = {}
    for number, (package, types) in enumerate(packages.items()):
        named = f"package {package};" if package else ""
        files[_STUB.format(number)] = f'syntax = "proto2"; {named} {" ".join(types)}'
    imports = " ".join(f'import public "{name}";' for name in files)
    return files | dict.fromkeys(missing, f'syntax = "proto3"; {imports}')


def _stub(name: str, short: str, stubs: Mapping[str, str]) -> str:
    """Return the text of a stub for a type that is defined nowhere, with those nested in it.

    `name` is its full name, `short` the last part, and `stubs` says of each whether it is an enum.
    """
    if stubs[name] == "enum":
        # An enum must have a value. Values share their package's namespace: hence the long name.
        return f"enum {short} {{ QUIETCOUNT_{name.replace('.', '_')} = 0; }}"
    prefix = name + "."
    inner = [each for each in stubs if each.rpartition(".")[0] == name]
    nested = " ".join(_stub(each, each.removeprefix(prefix), stubs) for each in inner)
    # Extensions, since the schema may extend this type.
    return f"message {short} {{ extensions 1 to max; {nested} }}"


def _certain_part(
    files: Sequence[File],
    missing: Sequence[str],
    stubs: Mapping[str, str],
    of_registry: set[str],
) -> Compiled:
    """Return the compiled files without fields whose type a missing import may change.

    `missing` are the imports that nothing provides, `stubs` the types that are defined nowhere, and
    `of_registry` the names of the schema's own file and its references.
    """
    # Full names, with a dot before them as descriptors have them, by file.
    types = {
        file.name: {f".{name}" for name in _type_names(file.package, file)}
        for file in files
    }
    # Types of the bundled files; also stubs, which `_is_certain` excludes.
    known = {*chain(*(types[name] for name in types.keys() - of_registry))}
    unread: set[tuple[str, str]] = set()
    for file in files:
        if file.name in of_registry:
            scope = f".{file.package}." if file.package else "."
            certain = types[file.name] | known
            is_certain = partial(_is_certain, scope, certain, stubs)
            for message in file.message_type:
                unread.update(_prune(message, scope[1:] + message.name, is_certain))
    return Compiled(files, tuple(missing), frozenset(unread))


def _type_names(scope: str, holder: Any) -> Iterator[str]:
    """Yield the full names of the messages and enums in a file or message."""
    before = f"{scope}." if scope else ""
    for enum in holder.enum_type:
        yield before + enum.name
    for message in (
        holder.message_type if hasattr(holder, "message_type") else holder.nested_type
    ):
        yield before + message.name
        yield from _type_names(before + message.name, message)


def _is_certain(
    scope: str, certain: set[str], stubs: Mapping[str, str], kind: str
) -> bool:
    """Return whether a field's type would be the same with the missing imports (see the module).

    `kind` is the type's full name with a dot before it, "" for a number or text. A type is certain
    if it is in `certain` or in the field's own package, `scope` (with dots around it), where names
    are looked up first. A stub is not, since a missing import defines that type.
    """
    return kind[1:] not in stubs and (
        not kind or kind in certain or kind.startswith(scope)
    )


def _prune(
    message: Any, name: str, is_certain: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """Drop the fields of a message, of this full name, with types that are not certain.

    Yields full name of the message, and name, of each field that cannot be wanted: those, and the
    others in their oneofs.
    """
    # A map is a repeated field of messages that are nested here: these must be certain as well.
    entries = {f".{name}.{inner.name}": inner for inner in message.nested_type}
    dropped: list[int] = []
    cleared: set[int] = set()
    for index, member in enumerate(message.field):
        entry = entries.get(member.type_name)
        needed = [member]
        if entry is not None and entry.options.map_entry:
            needed += entry.field
        if all(is_certain(each.type_name) for each in needed):
            continue
        dropped.append(index)
        yield name, member.name
        if member.HasField("oneof_index"):
            cleared.add(member.oneof_index)
    # A record may have set a dropped member of a oneof after one that is kept, which it clears.
    for member in message.field:
        if member.HasField("oneof_index") and member.oneof_index in cleared:
            yield name, member.name
    _drop_fields(message, dropped)
    for inner in message.nested_type:
        # The entries of a dropped map stay complete: records name a message by its index among all
        # nested ones, and an entry without its value would be invalid.
        if not inner.options.map_entry:
            yield from _prune(inner, f"{name}.{inner.name}", is_certain)


def _drop_fields(message: Any, dropped: Sequence[int]) -> None:
    """Drop the fields of these ascending indexes, and the oneofs that have no field left."""
    for index in reversed(dropped):
        del message.field[index]
    members = [each for each in message.field if each.HasField("oneof_index")]
    left = sorted({member.oneof_index for member in members})
    for index in reversed(range(len(message.oneof_decl))):
        if index not in left:
            del message.oneof_decl[index]
    for member in members:
        member.oneof_index = left.index(member.oneof_index)
