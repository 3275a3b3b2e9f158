"""Stand-in for pulumi-kubernetes 4.34: any kind by server-side apply, and Helm releases.

tests/conformance/plugins.tsv has where it differs from the official plugin, and what that means.

Owns the connection and the choice between object and release. Speaks the official SDK's tokens
(`kubernetes:<group>/<version>:<Kind>`, `kubernetes:helm.sh/v3:Release`). A preview asks the API
server with dry runs where it can be reached. Started by the engine; used only where the official
plugin is not found. No charts are pulled: see infra/local/kube/values.py.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from infra.clients.errors import UnreachableError
from infra.clients.kube import KubeClient, read_kubeconfig
from infra.local.plugins.kubernetes_objects import Objects, Releases
from infra.providers.engine.provider import UNKNOWN, Provider, ProviderError
from infra.providers.engine.serve import serve

VERSION: Final = "4.34.2"
"""The official plugin's version whose contract this follows."""
_RELEASE: Final = "kubernetes:helm.sh/v3:Release"
_COMPONENTS: Final = ("kubernetes:yaml", "kubernetes:helm.sh/v4", "kubernetes:kustomize")
_DELETE_UNREACHABLE: Final = "PULUMI_K8S_DELETE_UNREACHABLE"
"""The official plugin's own variable, with its meaning."""
_GONE: Final = (
    "If the cluster was deleted, you can remove this resource from Pulumi state by rerunning the "
    f'operation with the {_DELETE_UNREACHABLE} environment variable set to "true"'
)

Values = dict[str, Any]


class Kubernetes(Provider):
    """Kubernetes objects and Helm releases of one cluster."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()
        self._variables: Values = {}
        self._client: KubeClient | None = None
        self._lock = threading.Lock()

    def configure(self, variables: Values) -> None:
        self._variables = variables

    def of(self, type_: str) -> Provider:
        if type_.startswith(_COMPONENTS):
            raise ProviderError(
                f"{type_}: the stand-in serves plain resources and helm.v3.Release only; "
                "install the official kubernetes plugin for components"
            )
        return Releases(self) if type_ == _RELEASE else Objects(self, type_)

    @contextmanager
    def forgetting(self, refused: str) -> Iterator[None]:
        """Refuses a cluster that does not answer, unless objects go from the state with it."""
        try:
            yield
        except UnreachableError as error:
            is_forgotten = os.environ.get(_DELETE_UNREACHABLE) == "true"
            if "deleteUnreachable" in self._variables:
                is_forgotten = self.option("deleteUnreachable")
            if not is_forgotten:
                raise ProviderError(f"{refused} {_GONE}") from error

    def client(self) -> KubeClient:
        """The connection to the configured cluster."""
        kubeconfig = self._variables.get("kubeconfig")
        if not isinstance(kubeconfig, str) or not kubeconfig.strip():
            raise ProviderError(
                "kubernetes provider: kubeconfig: is required; give the provider a kubeconfig "
                "(this stand-in never takes the one of the user)"
            )
        with self._lock:
            if self._client is None:
                access = read_kubeconfig(kubeconfig)
                if self._variables.get("namespace"):
                    access.namespace = self._variables["namespace"]
                self._client = KubeClient(access)
            return self._client

    def preview_client(self, urn: str) -> KubeClient | None:
        """The connection for a dry run; None, with one note, where there is no cluster yet."""
        if self._variables.get("kubeconfig") is UNKNOWN:
            return None  # the cluster is made by this very update: nothing to ask, nothing to say
        try:
            client = self.client()
            client.version()
        except UnreachableError as error:
            self.say_once(urn, f"{error}; this preview is not checked by the API server")
            return None
        return client

    def say_once(self, urn: str, line: str) -> None:
        """Shows one line at a resource, the first time it comes."""
        with self._lock:
            if line in self._said:
                return
            self._said.add(line)
        self.engine.info(urn, line)

    @property
    def namespace(self) -> str:
        """The namespace of objects that name none."""
        configured = self._variables.get("namespace")
        return configured if isinstance(configured, str) and configured else "default"

    def option(self, name: str) -> bool:
        """A switch of the provider's configuration."""
        return self._variables.get(name) in (True, "true")


def main() -> None:
    """Serve the engine that started this process."""
    serve(Kubernetes(), "kubernetes", VERSION)


if __name__ == "__main__":
    main()
