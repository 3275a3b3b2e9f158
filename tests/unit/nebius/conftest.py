"""The provider over an emulator in a thread."""

import pytest

from infra.providers.nebius import sdk
from infra.providers.nebius.provider import NebiusProvider
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.state import Cache
from tests.unit.nebius_api.conftest import Served


@pytest.fixture(scope="session")
def schema():
    return Schema(Cache.from_environ().root)


@pytest.fixture
def kind(schema):
    """The type behind a token such as `compute/v1:Filesystem`."""
    return lambda token: ResourceType.of_token(schema, f"nebius:{token}")


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("emulator"), latency_s=0.02)
    yield served
    served.stop()


@pytest.fixture
def provider(served, monkeypatch):
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    sdk.shared_sdk.cache_clear()
    provider = NebiusProvider()
    yield provider
    if sdk.shared_sdk.cache_info().currsize:
        sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
