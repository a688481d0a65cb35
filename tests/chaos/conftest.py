from collections.abc import Iterator

import pytest

from tests.chaos.worker import Workers


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as starting:
        yield starting
