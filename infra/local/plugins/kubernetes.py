"""Stand-in for pulumi-kubernetes 4.34: the program's kinds by server-side apply, Helm releases.

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
from infra.local.plugins import OFFICIAL
from infra.local.plugins.kubernetes_objects import Objects, Releases
from infra.providers.engine.provider import UNKNOWN, Provider, ProviderError
from infra.providers.engine.serve import serve

VERSION: Final = "4.34.2"
"""The official plugin's version whose contract this follows."""
_RELEASE: Final = "kubernetes:helm.sh/v3:Release"
_CONTENT: Final = {
    "kubernetes:core/v1:Namespace": "",
    "kubernetes:core/v1:ConfigMap": "data",
    "kubernetes:core/v1:Secret": "stringData",
}
"""The kinds beside custom resources, and what they hold."""
_BUILT_IN: Final = ("helm.sh", "k8s.io")
"""Ends of groups that no chart of the program defines."""
_OPTIONS: Final = (
    *("enableConfigMapMutable", "enableSecretMutable", "upsertExistingObjects"),
    "enablePatchForce",
)
"""The program sets all: objects are changed in place and taken over with the fields of others."""
_ELSEWHERE: Final = ("cluster", "context", "namespace")
"""It sets none of these, which choose another place than kubeconfig and object name."""
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
        problems = [f"{name}: must be true" for name in _OPTIONS if not self._option(name)]
        problems += [f"{name}: is not served" for name in _ELSEWHERE if name in variables]
        if problems:
            raise ProviderError(f"kubernetes provider: {'; '.join(problems)}; {OFFICIAL}")

    def of(self, type_: str) -> Provider:
        if type_ == _RELEASE:
            return Releases(self)
        group = type_.split(":")[1].partition("/")[0]
        is_custom = "." in group and not group.endswith(_BUILT_IN)
        if not is_custom and type_ not in _CONTENT:
            raise ProviderError(
                f"{type_}: the stand-in serves Namespace, ConfigMap, Secret, custom resources and "
                f"helm.v3.Release only; {OFFICIAL}"
            )
        return Objects(self, _CONTENT.get(type_, "spec"))

    @contextmanager
    def forgetting(self, refused: str) -> Iterator[None]:
        """Refuses a cluster that does not answer, unless objects go from the state with it."""
        try:
            yield
        except UnreachableError as error:
            is_forgotten = os.environ.get(_DELETE_UNREACHABLE) == "true"
            if "deleteUnreachable" in self._variables:
                is_forgotten = self._option("deleteUnreachable")
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
                self._client = KubeClient(read_kubeconfig(kubeconfig))
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

    def _option(self, name: str) -> bool:
        """A switch of the provider's configuration."""
        return self._variables.get(name) in (True, "true")


def main() -> None:
    """Serve the engine that started this process."""
    serve(Kubernetes(), "kubernetes", VERSION)


if __name__ == "__main__":
    main()
