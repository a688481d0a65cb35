"""Print the test files near a change: `python -m tests.near [BASE]`, for `make near`.

Near are the tests of a changed room, and those that import a changed module directly. The change is
what differs from BASE, by default the last commit, with new files.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests import ROOT
from tests.system import git, provide


def changed(base: str) -> list[Path]:
    """Return the Python files that differ from a commit, relative to the checkout."""
    of_git = (
        ["diff", "--name-only", base],
        ["ls-files", "--others", "--exclude-standard"],
    )
    texts = (
        subprocess.check_output(["git", *words], cwd=ROOT, text=True)
        for words in of_git
    )
    lines = (line for text in texts for line in text.splitlines())
    return sorted({Path(line) for line in lines if line.endswith(".py")})


def near(files: Iterable[Path], texts: dict[Path, str]) -> Iterator[Path]:
    """Yield the test files near changed files; `texts` maps relative paths to contents."""
    files = list(files)
    rooms = {
        file.parts[1]
        for file in files
        if file.parts[0] == "workers" and len(file.parts) > 2
    }
    imports = [imported(file) for file in files]
    for path, text in texts.items():
        of_room = len(path.parts) > 2 and path.parts[1] in rooms
        if path in files or of_room or any(each.search(text) for each in imports):
            yield path


def imported(file: Path) -> re.Pattern[str]:
    """Return what finds an import of a module in the text of another."""
    module = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
    package, _, name = module.rpartition(".")
    return re.compile(
        rf"^\s*(from {re.escape(module)} import|import {re.escape(module)}\b"
        rf"|from {re.escape(package)} import [^\n]*\b{re.escape(name)}\b)",
        re.MULTILINE,
    )


def main() -> int:
    refusal = provide(git)
    if refusal is None and not (ROOT / ".git").exists():
        refusal = "This is no git checkout: what was changed is not known."
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return 1
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    tests = {path.relative_to(ROOT): path.read_text() for path in paths}
    files = near(changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD"), tests)
    for file in files:
        print(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
