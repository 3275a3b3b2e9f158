"""The resource `soperator:kube:Teardown`: nothing while the stack lives, the clean-up at its end.

It stands between the node groups and the releases, so that its delete runs when the releases have
gone and the nodes still live (docs/adr/0022). An API server that is gone has nothing left.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any, Final

from infra.kube.client import KubeClient
from infra.kube.errors import KubeError, UnreachableError
from infra.kube.kubeconfig import KubeconfigError, read_kubeconfig
from infra.nebius.api import Api, UnfinishedError
from infra.nebius.errors import ApiError, explain
from infra.nebius.schema import Schema
from infra.nebius.sdk import EndpointError, cache_dir
from infra.plugins.provider import UNKNOWN, Diff, Failure, Provider, ProviderError, compare
from infra.teardown.disks import Disks
from infra.teardown.objects import Cleaner, Limits

Values = dict[str, Any]
TYPE: Final = "soperator:kube:Teardown"
_TEXTS: Final = ("cluster_id", "project_id", "kubeconfig")
_TRIES_S: Final = (1.0, 2.0, 4.0)
"""An API server that does not answer is asked again before it counts as gone."""


class TeardownProvider(Provider):
    """Acts in its delete only."""

    def __init__(self, limits: Limits | None = None, tries_s: tuple[float, ...] = _TRIES_S) -> None:
        super().__init__()
        self._limits = limits
        self._tries_s = tries_s

    def check(self, type_: str, old: Values, new: Values) -> tuple[Values, list[Failure]]:
        """Refuses what the delete could not work with."""
        known = (*_TEXTS, "namespaces")
        failures = [
            (key, f"unknown; has {', '.join(known)}") for key in sorted(new.keys() - set(known))
        ]
        for key in _TEXTS:
            value = new.get(key)
            if value is not UNKNOWN and (not isinstance(value, str) or not value):
                failures.append((key, "is required"))
        namespaces = new.get("namespaces")
        if namespaces is not UNKNOWN and not isinstance(namespaces, list):
            failures.append(("namespaces", "must be a list of names"))
        return new, failures

    def diff(self, type_: str, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another cluster is another clean-up; the rest changes in place."""
        changes = compare(old_inputs, new)
        replaces = tuple(path for path in changes if path in ("cluster_id", "project_id"))
        return Diff(detailed=changes, replaces=replaces, delete_before_replace=True)

    def create(self, type_: str, urn: str, inputs: Values, preview: bool) -> tuple[str, Values]:
        """Remembers what to clean."""
        if preview:
            return "", dict(inputs)
        return hashlib.sha256(inputs["cluster_id"].encode()).hexdigest()[:16], dict(inputs)

    def update(
        self,
        type_: str,
        urn: str,
        id: str,
        old_state: Values,
        old_inputs: Values,
        new: Values,
        preview: bool,
    ) -> Values:
        """Remembers the new access."""
        return dict(new)

    def delete(self, type_: str, id: str, state: Values) -> None:
        """Cleans the cluster and its disks, and verifies both."""
        cluster, namespaces = state["cluster_id"], state["namespaces"]
        disks = Disks(self._api, state["project_id"])
        try:
            client = self._client(state["kubeconfig"])
            if client is None:
                self._tell_gone(cluster, disks, namespaces)
                return
            self._clean(client, cluster, disks, namespaces)
        except UnreachableError:
            self._tell_gone(cluster, disks, namespaces)
        except (KubeError, KubeconfigError) as error:
            raise ProviderError(f"clean up {cluster}: {error}; run the command again") from error
        except UnfinishedError as error:
            raise ProviderError(f"clean up {cluster}: {error}") from error
        except EndpointError as error:
            raise ProviderError(str(error)) from error
        except ApiError as error:
            what = f"clean up disks of {cluster}"
            raise ProviderError(explain(error, what, target=self._api.target)) from error

    def _clean(self, client: KubeClient, cluster: str, disks: Disks, namespaces: list[str]) -> None:
        cleaner = Cleaner(
            client, namespaces, cancelled=self.cancelled, say=self._say, limits=self._limits
        )
        claimed = cleaner.disks()  # before the claims go, which are the way to them
        removed = cleaner.clean()
        if left := cleaner.left():
            raise ProviderError(
                f"clean up {cluster}: still there: {', '.join(left)}; run the command again, or "
                "remove them with kubectl"
            )
        orphaned = disks.remove(claimed)
        told = f"{removed} objects and {len(claimed)} disks of {cluster} are gone, verified by id"
        more = f"; the driver had left {', '.join(orphaned)}" if orphaned else ""
        self._say(f"{told}{more}")

    def _tell_gone(self, cluster: str, disks: Disks, namespaces: list[str]) -> None:
        """Says what cannot be known without the API server."""
        self._say(f"the Kubernetes API of {cluster} does not answer: nothing is removed from it")
        if found := disks.unused(namespaces):
            self._say(
                "disks of claims that nothing uses, of this or of another cluster of the project: "
                f"{', '.join(found)}; look at their labels, then: nebius compute disk delete ID"
            )

    def _client(self, kubeconfig: str) -> KubeClient | None:
        """A connection to an API server that answers, or None."""
        client = KubeClient(read_kubeconfig(kubeconfig))
        for pause_s in (*self._tries_s, None):
            try:
                client.version()
            except UnreachableError:
                if pause_s is None or self.cancelled.wait(pause_s):
                    return None
            else:
                return client
        return None

    def _say(self, line: str) -> None:
        # Not at a resource: the engine names none to a delete.
        self.engine.info("", line)

    @cached_property
    def _api(self) -> Api:
        return Api(Schema(cache_dir()), self.cancelled)
