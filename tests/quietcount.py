"""Run `quietcount` in this process, and what it printed: see the fixture of this name."""

import shlex
from typing import NamedTuple

import pytest

from workers.cli import execute


class Printed(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def line(self) -> str:
        """The only line on stderr."""
        [line] = self.err.splitlines()
        return line

    @property
    def words(self) -> str:
        """What it printed, however lines were broken."""
        return " ".join(self.out.split())


class Quietcount:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, command: str, *more: object, code: int | None = 0) -> Printed:
        """Run a command line, check its exit code unless that is None, return what it printed."""
        self._capsys.readouterr()
        ended = execute([*shlex.split(command), *map(str, more)])
        assert code in (None, ended)
        return Printed(ended, *self._capsys.readouterr())
