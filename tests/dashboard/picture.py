"""The README's picture of the demo's page.

    python -m tests.dashboard.picture docs/dashboard.png

runs `quietcount demo`, waits until the window that is shown is full, and takes the picture.
"""

import argparse
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.dashboard.browser import Window, browser

#: The window of a minute is full then, and the line shows that it slides.
FULL_S = 130
START_S = 60


def address(output: Path) -> str:
    """Return where the demo says that its page is."""
    for _ in range(10 * START_S):
        if found := re.search(r"Dashboard: (\S+)", output.read_text()):
            return found[1]
        time.sleep(0.1)
    raise TimeoutError(output.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the demo's page.")
    parser.add_argument("file", type=Path)
    file: Path = parser.parse_args().file.resolve()
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "output"
        command = [sys.executable, "-m", "workers.cli", "demo", "--port", "0"]
        with output.open("wb") as written:
            process = subprocess.Popen(
                command, stdout=written, stderr=subprocess.STDOUT
            )
        try:
            with browser() as opened, Window(opened, width=1280, height=860) as window:
                url = f"{address(output)}?histogram=destinations.1m&key=JFK"
                page = window.open(url)
                page.wait_for_timeout(1_000 * FULL_S)
                page.wait_for_selector("#chart .line")
                # Not while rows change places.
                page.wait_for_function("document.getAnimations().length === 0")
                page.screenshot(path=str(file))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(START_S)


if __name__ == "__main__":
    main()
