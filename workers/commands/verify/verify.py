"""`quietcount verify`: that a copy of the snapshots is what was signed; needs no secret.

A copy is the topics themselves, snapshots as JSON lines, or tables: an export, files of the page.
A fault, anything that was changed or is missing, is raised as `NotAsSigned`.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import orjson

from workers.client.config import load_reader_settings
from workers.client.verifying import NotAsSigned, SignedHistory
from workers.commands.options import Verify
from workers.commands.verify.records import Checked, Records
from workers.commands.verify.tables import TableCopy
from workers.commands.verify.topics import Keep, SignedTopics
from workers.runtime.errors import SettingsError
from workers.runtime.printing import ProgressLine, plural, printable
from workers.runtime.sizes import TOPIC_BYTES
from workers.settings.times import when

EXIT_FAULT = 1
_KEY = re.compile(r"[0-9a-f]{64}")
_LINES = (".jsonl", ".json")


def verify_copies(chosen: Verify) -> int:
    """Verify, print what was found, and return 0, or 1 after the first fault."""
    for key in chosen.keys:
        if not _KEY.fullmatch(key):
            raise SettingsError(
                f"--key {printable(key)}: 64 digits in 0-9 and a-f, as `quietcount key public` prints them"
            )
    history = SignedHistory(chosen.keys)
    try:
        with ProgressLine() as progress:
            checked = _verify(chosen, history, progress)
    except NotAsSigned as fault:
        print(f"verify: fault: {fault}")
        return EXIT_FAULT
    for name, of_series in sorted(checked.items()):
        _say(name, of_series)
    print(f"verify: {plural(history.records, 'signature')}, no gap and no fork: clean")
    return 0


def _verify(
    chosen: Verify, history: SignedHistory, progress: ProgressLine
) -> Mapping[str, Checked]:
    """Read the signatures, then the copy; return what was found, by series.

    Signatures come from a file or, with the settings file, from their topic.
    """
    checked: Mapping[str, Checked] = {}
    if chosen.signatures is not None:
        _read_signatures(chosen.signatures, history)
    else:
        assert chosen.config is not None, "the command line asks for one of them"
        topics = SignedTopics(load_reader_settings(chosen.config), progress)
        with _saving(chosen.save) as keep:
            if chosen.copies:
                topics.read_signatures(history, keep)
            else:
                # Without files the topics are the copy.
                checked = topics.verify(history, keep).checked
    if chosen.compare is not None:
        other = SignedHistory(chosen.keys)
        _read_signatures(chosen.compare, other)
        mine = "the topic" if chosen.signatures is None else str(chosen.signatures)
        history.compare(other, mine, str(chosen.compare))
    if chosen.copies:
        checked = _verify_files(chosen.copies, history)
    return checked


def _read_signatures(path: Path, history: SignedHistory) -> None:
    """Take the records in a file, one a line."""
    for where, line in _lines_of(path):
        history.add(line, where)
    history.finish()


def _lines_of(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield a file's lines and how messages call them; the file may be larger than memory."""
    try:
        with path.open("rb") as file:
            number = 0
            # A line longer than any record comes in pieces, none of which was signed.
            while line := file.readline(TOPIC_BYTES):
                number += 1
                yield f"{path}:{number}", line.removesuffix(b"\n").removesuffix(b"\r")
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from error


@contextmanager
def _saving(path: Path | None) -> Iterator[Keep]:
    """Yield what writes a record to a new file, in a line; after a fault there is no file.

    `path` None: it writes nothing.
    """
    if path is None:
        yield lambda value: None
        return
    try:
        file = path.open("xb")
    except OSError as error:
        raise SettingsError(
            f"--save {path}: {error.strerror}; give the name of a new file"
        ) from error
    try:
        with file:
            yield lambda value: file.write(value + b"\n")
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise SettingsError(f"--save {path}: {error.strerror}") from error
        raise


def _verify_files(
    paths: tuple[Path, ...], history: SignedHistory
) -> Mapping[str, Checked]:
    """Check files, all of JSON lines or all of tables; return what was found, by series."""
    of_lines = [path for path in paths if path.suffix in _LINES]
    if len(of_lines) < len(paths):
        if of_lines:
            raise SettingsError(
                f"{of_lines[0]}: JSON lines, beside tables: verify one after the other"
            )
        copy = TableCopy(paths)
        checked = copy.verify(history)
        is_whole = copy.is_whole
    else:
        records = Records(history)
        for path in of_lines:
            for where, line in _lines_of(path):
                records.take(_series_of(line, where), line, where)
        records.finish()
        checked = records.checked
        is_whole = False
    _require(history, checked, is_whole=is_whole)
    return checked


def _series_of(line: bytes, where: str) -> str:
    """Return which series a snapshot's JSON names; `where` is its place, for a message."""
    try:
        return str(orjson.loads(line)["histogram"])
    except (ValueError, KeyError, TypeError):
        raise NotAsSigned(f"{where}: not a snapshot") from None


def _require(
    history: SignedHistory, checked: Mapping[str, Checked], *, is_whole: bool
) -> None:
    """Raise `NotAsSigned` if a copy lacks a snapshot between the first and the last that it has.

    If it `is_whole`, with all stream keys, those are the first and last of the series; else those
    of each key that it has.
    """
    spans = {series: found.span for series, found in checked.items()}

    def is_within(place: tuple[str, str, int]) -> bool:
        """Return whether a signed (series, key, end of a tick) lies in what the copy spans."""
        series, key, end = place
        span = spans.get(series)
        if span is not None and not is_whole:
            span = checked[series].ends.get(key)
        return span is not None and span[0] <= end <= span[1]

    history.refuse_missing(filter(is_within, history.signed))


def _say(name: str, found: Checked) -> None:
    """Print what was found in one series."""
    if found.span is not None:
        first, last = found.span
        print(
            f"verify: {printable(name)}: {plural(found.snapshots, 'snapshot')} of {plural(len(found.ends), 'stream key')}, "
            f"of ticks that ended from {when(first)} to {when(last)}: as signed"
        )
    if found.early:
        print(
            f"verify: {printable(name)}: {plural(found.early, 'snapshot')} from before the first signature: nothing is "
            "known about them"
        )
