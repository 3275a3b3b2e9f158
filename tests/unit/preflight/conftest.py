"""Stacks over an emulator in a thread."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.providers.nebius import sdk
from infra.providers.nebius.api import Api
from infra.providers.nebius.schema import Schema
from infra.state import Cache
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.unit.nebius_api.conftest import Served

PROJECT = "soperator-stack"


class Account:
    """What another user of the project, or an earlier `up`, would do."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.schema = Schema(Cache.from_environ().root)
        self._api = Api(self.schema, threading.Event())

    def make(self, service: str, parent_id: str, name: str, spec=None, labels=None) -> str:
        """The id of a new resource."""
        found = self.schema.services[f"nebius.{service}"]
        metadata = {"parent_id": parent_id, "name": name, "labels": labels or {}}
        request = self._api.request(found, "Create", metadata=metadata, spec=spec or {})
        operation = self._api.call(found, "Create", request)
        return self._api.wait(found, operation).resource_id

    def remove(self, service: str, id_: str) -> None:
        """Deletes one."""
        found = self.schema.services[f"nebius.{service}"]
        request = self._api.request(found, "Delete", id=id_)
        self._api.wait(found, self._api.call(found, "Delete", request))

    def resource(self, kind: str, name: str):
        """A resource of the emulator's own store, to be changed in place."""
        store = self.served.emulator.store
        return next(one for one in store.of_kind(kind) if one.metadata.name == name)

    def limit(self, project_id: str, quota: str, amount: int) -> None:
        """Sets the limit of one quota."""
        store = self.served.emulator.store
        allowance = store.find("quotaallowance", parent_id=project_id, name=quota)
        allowance.spec.limit = amount


@pytest.fixture
def served(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Served]:
    """An emulator; with the options that a test hands over as its parameter."""
    served = Served(tmp_path / "emulator", latency_s=0.0, **getattr(request, "param", {}))
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    sdk.shared_sdk.cache_clear()
    yield served
    if sdk.shared_sdk.cache_info().currsize:
        sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
    served.stop()


@pytest.fixture
def account(served: Served) -> Account:
    return Account(served)


@pytest.fixture
def h100(public_key_file: Path) -> StackSpec:
    """2 nodes of 8 H100 on fabric-6, reserved by nobody."""
    return load_stack("h100-prod")


@pytest.fixture
def h200(public_key_file: Path) -> StackSpec:
    """4 nodes with a disk of 186 GiB each for themselves."""
    return load_stack("h200-elastic")


@pytest.fixture
def httpserver_of() -> Iterator[Callable[[int], str]]:
    """Starts a registry that answers everything with one status; its address."""
    servers = []

    def start(status: int) -> str:
        class Registry(BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Registry)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
