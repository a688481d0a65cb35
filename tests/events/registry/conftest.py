"""A real registry that keeps its schemas in the session's Kafka, so that it can be killed and started again."""

from collections.abc import Iterator

import pytest

from tests.registry_server import RegistryServer, registry_server


@pytest.fixture(scope="package")
def registry(
    shared_kafka: str, registry_program: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RegistryServer]:
    with registry_server(tmp_path_factory.mktemp("registry"), shared_kafka) as server:
        yield server
