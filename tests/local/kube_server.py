"""A real API server for one test module, in a folder of its own, on free loopback ports.

Of the reconciler it has what ends deleted namespaces: no controller-manager runs beside it.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clients.errors import KubeError
from infra.clients.kube import KubeClient
from infra.local.kube import api_server
from infra.local.kube.api_server import ApiServerConfig, install_crds
from infra.local.process import LocalError
from infra.local.reconcile.__main__ import end_namespaces
from infra.operate.conformance.cluster import kubeconfig as of_access
from tests.ports import free_ports


def config_in(folder: Path) -> ApiServerConfig:
    """A configuration with three free ports; skips where the programs are missing."""
    if shutil.which("etcd") is None:
        pytest.skip("needs the Debian package etcd-server (`make setup`)")
    try:
        api_server.find_api_server()
    except LocalError as error:
        pytest.skip(str(error))
    (api,) = free_ports(1)
    return ApiServerConfig(
        folder=folder / "kube",
        run_dir=folder / "run",
        api_port=api,
        token="a-token-of-this-test",
    )


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[ApiServerConfig]:
    """A ready API server that knows the Soperator kinds."""
    config = config_in(folder)
    over = threading.Event()

    def end(client: KubeClient) -> None:
        while not over.wait(0.1):
            with contextlib.suppress(KubeError):
                end_namespaces(client)

    try:
        api_server.start(config)
        client = KubeClient(config.access())
        install_crds(client)
        keeper = threading.Thread(target=end, args=(client,))
        keeper.start()
        try:
            yield config
        finally:
            over.set()
            keeper.join()
    finally:
        api_server.stop(config)


def kubeconfig(config: ApiServerConfig) -> str:
    """The administrator's kubeconfig as JSON."""
    return of_access(config.access())
