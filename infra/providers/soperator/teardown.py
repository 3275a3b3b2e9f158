"""The resource `soperator:kube:Teardown`: nothing while the stack lives, the clean-up at its end.

It stands between the node groups and the releases, so that its delete runs when the releases have
gone and the nodes still live (docs/adr/0011). An API server that is gone has nothing left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import urllib3

from infra.clients.errors import AbsentError, KubeError, UnreachableError, WaitTimeoutError
from infra.clients.kube import Access, KubeClient, KubeconfigError, Object, read_kubeconfig
from infra.clients.kube_rules import describe
from infra.providers.engine.provider import LIST, TEXT, Diff, Provider, ProviderError, Values
from infra.providers.nebius.adoption import children
from infra.providers.nebius.api import Api, ApiError, UnfinishedError, explain
from infra.providers.nebius.provider import remove
from infra.providers.nebius.resource_type import ResourceType
from infra.providers.nebius.schema import Schema
from infra.render.names import kube_object
from infra.state import CHECKOUT

PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Between attempts: half a minute, as long as a control plane restarts."""
TYPE: Final = "soperator:kube:Teardown"
_TRIES_S: Final = (1.0, 2.0, 4.0)
"""An API server that does not answer is asked again before it counts as gone."""


CONTROLLER_LEASE: Final = kube_object(
    "coordination.k8s.io/v1", "Lease", "kube-controller-manager", "kube-system"
)
"""There where a kube-controller-manager runs."""


class TeardownProvider(Provider):
    """Acts in its delete only."""

    rules: ClassVar = {
        **dict.fromkeys(("cluster_id", "project_id", "kubeconfig"), TEXT),
        "namespaces": LIST,
    }
    identity = ("cluster_id", "project_id")
    in_place = True

    def diff(self, id: str, old_inputs: Values, old_state: Values, new: Values) -> Diff:
        """Another cluster is another clean-up; the rest changes in place."""
        found = super().diff(id, old_inputs, old_state, new)
        return replace(found, delete_before_replace=True)

    def create(self, urn: str, inputs: Values) -> tuple[str, Values]:
        """Remembers what to clean."""
        return hashlib.sha256(inputs["cluster_id"].encode()).hexdigest()[:16], dict(inputs)

    def delete(self, id: str, state: Values) -> None:
        """Cleans the cluster and its disks, and verifies both."""
        cluster, namespaces = state["cluster_id"], state["namespaces"]
        disks = Disks(self._api, state["project_id"])
        try:
            client = self._client(state["kubeconfig"])
            if client is None:
                self._tell_gone(cluster, disks, namespaces)
            else:
                # One that falls silent meanwhile is not gone: what is left would be paid on.
                self._clean(client, cluster, disks, namespaces)
        except KubeError as error:
            raise ProviderError(f"clean up {cluster}: {error}; run the command again") from error
        except UnfinishedError as error:
            raise ProviderError(f"clean up {cluster}: {error}") from error
        except ApiError as error:
            what = f"clean up disks of {cluster}"
            raise ProviderError(explain(error, what, target=self._api.target)) from error

    def _clean(self, client: KubeClient, cluster: str, disks: Disks, namespaces: list[str]) -> None:
        cleaner = Cleaner(client, namespaces, cancelled=self.cancelled, say=self._say)
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
        """A connection to an API server that answers; None where none does."""
        client = KubeClient(read_kubeconfig(kubeconfig))
        for pause_s in (*_TRIES_S, None):
            try:
                client.version()
                return client
            except UnreachableError:
                if pause_s is not None and self.cancelled.wait(pause_s):
                    raise  # an interruption says nothing of the API server
        return None

    def _say(self, line: str) -> None:
        # Not at a resource: the engine names none to a delete.
        self.engine.info("", line)

    @cached_property
    def _api(self) -> Api:
        return Api(Schema.shared(), self.cancelled)


CSI_DRIVER: Final = "compute.csi.nebius.com"
"""Driver whose volumes are Nebius disks (storage classes `compute-csi-*` of mk8s)."""
_WEBHOOKS: Final = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")
_GONE_S: Final = 300.0
"""Longest wait for one object; a load balancer takes minutes (the recipe waits five)."""
_HELD_S: Final = 60.0
"""After this a finalizer counts as orphaned: its controller went with the releases."""


class Cleaner:
    """Removal from one cluster."""

    def __init__(
        self,
        client: KubeClient,
        namespaces: Sequence[str],
        *,
        cancelled: threading.Event,
        say: Callable[[str], None],
        gone_s: float = _GONE_S,
        held_s: float = _HELD_S,
    ) -> None:
        self._client = client
        self._namespaces = frozenset(namespaces)
        self._cancelled = cancelled
        self._say = say
        self._gone_s, self._held_s = gone_s, held_s

    def disks(self) -> list[str]:
        """Ids of the Nebius disks behind our claims that shall go with them."""
        specs = (volume["spec"] for volume in self._client.list("v1", "PersistentVolume"))
        return sorted(
            {
                spec["csi"]["volumeHandle"]
                for spec in specs
                if (spec.get("csi") or {}).get("driver") == CSI_DRIVER
                and (spec.get("claimRef") or {}).get("namespace") in self._namespaces
                and spec.get("persistentVolumeReclaimPolicy") == "Delete"
            }
        )

    def clean(self) -> int:
        """Removes everything in its order; how many objects went."""
        removed = 0
        for targets in self._found():
            for target in targets:
                self._client.delete(target)
            for target in targets:
                self._await_end(target)
                self._say(f"removed {describe(target)}")
            removed += len(targets)
        return removed

    def left(self) -> list[str]:
        """What is still there, a line each."""
        return [describe(target) for targets in self._found() for target in targets]

    def _found(self) -> Iterator[list[Object]]:
        """What has to go, in its order; each is looked for once those before it are gone."""
        for kind in _WEBHOOKS:
            hooks = self._client.list("admissionregistration.k8s.io/v1", kind)
            yield [one for one in hooks if self._calls_ours(one)]
        yield self._ours("policy/v1", "PodDisruptionBudget")
        services = self._ours("v1", "Service")
        yield [one for one in services if one["spec"].get("type") == "LoadBalancer"]
        yield self._ours("v1", "PersistentVolumeClaim")

    def _calls_ours(self, webhooks: Object) -> bool:
        services = (hook["clientConfig"].get("service") for hook in webhooks.get("webhooks", []))
        return any(one and one["namespace"] in self._namespaces for one in services)

    def _ours(self, api_version: str, kind: str) -> list[Object]:
        found = self._client.list(api_version, kind)
        return [one for one in found if one["metadata"].get("namespace") in self._namespaces]

    def _await_end(self, target: Object) -> None:
        """Waits for the end of an object; frees it from finalizers that nobody serves any more."""
        # Whether somebody takes Kubernetes' own finalizers off.
        held_s = self._held_s if self._client.get(CONTROLLER_LEASE) is not None else 0.0
        try:
            self._gone(target, held_s)
            return
        except WaitTimeoutError:
            live = self._client.get(target)
        if live is not None and live["kind"] == "PersistentVolumeClaim" and not self._is_used(live):
            self._free(live)
        self._gone(target, self._gone_s)

    def _gone(self, target: Object, timeout_s: float) -> None:
        self._client.wait_gone(target, timeout_s=timeout_s, cancelled=self._cancelled)

    def _is_used(self, claim: Object) -> bool:
        """Whether a pod still mounts the claim."""
        place = claim["metadata"]
        return any(
            (volume.get("persistentVolumeClaim") or {}).get("claimName") == place["name"]
            for pod in self._client.list("v1", "Pod", place["namespace"])
            for volume in pod["spec"].get("volumes") or []
        )

    def _free(self, live: Object) -> None:
        held = ", ".join(live["metadata"].get("finalizers", []))
        self._say(f"{describe(live)}: no pod uses it, taking {held} away")
        with contextlib.suppress(AbsentError):
            self._client.merge_patch(live, {"metadata": {"finalizers": None}})


_TOKEN: Final = "nebius:compute/v1:Disk"  # noqa: S105
CLAIM_LABEL: Final = "kubernetes.io/created-for/pvc/namespace"
"""On every disk that a CSI driver made for a claim (clean-up script of the official recipe)."""
_DRIVER_S: Final = (1.0, 2.0, 4.0, 8.0)
"""How long the driver has to delete the disk of a claim that has gone."""


class Disks:
    """Disks of one project."""

    def __init__(self, api: Api, project_id: str) -> None:
        self._api = api
        self._kind = ResourceType.of_token(api.schema, _TOKEN)
        self._project_id = project_id

    def remove(self, ids: Iterable[str]) -> list[str]:
        """Removes what the driver has left of these; the ids that were still there."""
        left = [id_ for id_ in ids if self._find(id_) is not None]
        for pause_s in _DRIVER_S if left else ():
            self._api.pause(pause_s)
            left = [id_ for id_ in left if self._find(id_) is not None]
        for id_ in left:
            remove(self._api, self._kind, id_)
        return left

    def unused(self, namespaces: Iterable[str]) -> list[str]:
        """Ids of the project's claimed disks that nothing uses, of whichever cluster."""
        ours = frozenset(namespaces)
        return [
            disk.metadata.id
            for disk in children(self._api, self._kind, self._project_id)
            if disk.metadata.labels.get(CLAIM_LABEL) in ours
            and not disk.status.read_write_attachment
        ]

    def _find(self, id_: str) -> Any | None:
        """The disk where it exists in our project."""
        found = self._api.find(self._kind.service, id=id_)
        return None if found is None or found.metadata.parent_id != self._project_id else found


UNREACHABLE: Final = "PULUMI_K8S_DELETE_UNREACHABLE"
_RELEASE: Final = "kubernetes:helm.sh/v3:Release"


def destroy(
    stack: str,
    *,
    environ: Mapping[str, str],
    options: Sequence[str],
    exists: Callable[[str], bool],
    say: Callable[[str], None],
    root: Path = CHECKOUT,
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> int:
    """Exit status of the engine; `root` holds Pulumi.yaml, `exists` asks for a cluster by id."""
    # The provider of the same module needs no client of SSH.
    from infra.clients.pulumi import run

    words = ["stack", "export", "--show-secrets", "--stack", stack, "--non-interactive"]
    export = run(words, root=root, environ=environ)
    # The engine's own destroy says better what is wrong with a stack that cannot be read. With the
    # secrets in the open the state is in memory only.
    state = json.loads(export.stdout) if export.returncode == 0 else {}
    resources = (state.get("deployment") or {}).get("resources") or []
    made = (each.get("inputs") or {} for each in resources if each.get("type") == TYPE)
    cluster = next(made, None)
    reason = None if cluster is None else gone(cluster, exists=exists, say=say, pauses_s=pauses_s)

    def pulumi(verb: str, *more: str, **switch: str) -> int:
        words = [verb, "--stack", stack, *options, *more]
        return run(words, root=root, environ={**environ, **switch}, quiet=False).returncode

    if reason is None:
        return pulumi("destroy")
    say(
        f"{reason}: what runs in it is dropped from the state and ends with the cluster "
        f"({UNREACHABLE}=true, in this run only)"
    )
    switch = {UNREACHABLE: "true"}
    releases = [each["urn"] for each in resources if each.get("type") == _RELEASE]
    if releases:
        status = pulumi("refresh", *(f"--target={urn}" for urn in releases), **switch)
        if status != 0:
            return status
    return pulumi("destroy", **switch)


_TIMEOUT: Final = urllib3.Timeout(connect=5.0, read=10.0)


def gone(
    inputs: Mapping[str, Any],
    *,
    exists: Callable[[str], bool],
    say: Callable[[str], None],
    pauses_s: tuple[float, ...] = PAUSES_S,
) -> str | None:
    """Why the API server counts as gone, in one line; None while it answers.

    `inputs` are the resource's in `pulumi stack export --show-secrets`; `exists` asks the cloud for
    the cluster: of one that is no longer there, nothing is waited for.
    """
    cluster_id = _plain(inputs.get("cluster_id"))
    try:
        access = read_kubeconfig(_plain(inputs.get("kubeconfig")))
    except KubeconfigError:
        # Nothing to ask; the engine will say what is wrong with it.
        return None
    for pause_s in (*pauses_s, None):
        if _answers(access):
            return None
        if not exists(cluster_id):
            return f"cluster {cluster_id} is gone"
        if pause_s is None:
            break
        time.sleep(pause_s)
        say(f"the Kubernetes API at {access.server} does not answer; asking again")
    return (
        f"the Kubernetes API at {access.server} has not answered for {sum(pauses_s):.0f} s, though "
        f"cluster {cluster_id} exists"
    )


def _answers(access: Access) -> bool:
    """Whether anything comes back; without a credential, which would need tools of its own."""
    with access.pool(timeout=_TIMEOUT) as http:
        try:
            http.request("GET", "/version", retries=False)
        except urllib3.exceptions.HTTPError:
            return False
        return True


def _plain(value: Any) -> str:
    """Text of an input; of a secret that was asked for in the open, its own."""
    if isinstance(value, Mapping):
        value = value.get("plaintext", "")
        return str(json.loads(value)) if value[:1] == '"' else str(value)
    return str(value or "")
