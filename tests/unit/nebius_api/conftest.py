"""An emulator in a thread of the test process, and the official SDK connected to it."""

import asyncio
import threading

import pytest

from infra.local.nebius_api.__main__ import Emulator, Server
from infra.providers.nebius.sdk import make_sdk

PROJECT = "project-e00p"
TENANT = "tenant-e00t"


class Served:
    """A served emulator, with what tests look at."""

    def __init__(self, folder, latency_s, **options):
        self.emulator = Emulator(
            folder,
            latency_s=latency_s,
            token="local-token",
            **options,
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server, self.port = self._run(Server(self.emulator).start(0))

    def _run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.port}"

    def calls(self, method):
        """Calls of a method so far, such as `FilesystemService/Create`."""
        return [call for call in self.emulator.calls if call["method"].endswith(method)]

    def plant(self, method, code, **fault):
        """Plants one fault and forgets the calls so far."""
        self.emulator.faults.plant([{"method": method, "code": code, **fault}])
        self.emulator.calls.clear()

    def stop(self):
        self._run(self._server.stop(None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self.emulator.store.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    served = Served(tmp_path_factory.mktemp("emulator"), latency_s=0.05)
    yield served
    served.stop()


@pytest.fixture(scope="module")
def sdk(served):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOPERATOR_NEBIUS_ENDPOINT", served.endpoint)
        patch.setenv("NEBIUS_IAM_TOKEN", "local-token")
        sdk = make_sdk()
        yield sdk
        sdk.sync_close()
