"""One worker for all tests of the examples."""

from collections.abc import Iterator

import pytest

from tests.consumers.scene import Scene, published


@pytest.fixture(scope="package")
def scene(
    shared_kafka: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scene]:
    yield from published(shared_kafka, tmp_path_factory.mktemp("published"))
