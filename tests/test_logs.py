"""The worker's log says each thing once, and says nothing of Faust's inner life."""

import logging
from collections.abc import Iterator

import pytest

from workers.logs import log_to_stderr


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """pytest's own handlers come back."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_line_is_not_repeated_at_once_and_what_ends_the_worker_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """A broker that is away would fill the disk with one sentence; the reason to stop looks as in every other command."""
    log_to_stderr(debug=False)
    for _ in range(3):
        logging.getLogger("librdkafka").warning("the broker is away")
    logging.getLogger("workers.kafka.transport").info("[^--Consumer]: Starting...")
    logging.getLogger("workers.kafka.handover").critical("state\nrefused")
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(" WARNING ")[-1] for line in lines] == ["the broker is away", "quietcount: state refused"]
