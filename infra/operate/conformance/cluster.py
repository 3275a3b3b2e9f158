"""A real API server that takes what is sent, and the real Soperator operator with its webhooks.

Owns the order (namespaces first) and what counts as refused. Whoever calls starts the server; the
operator runs while a block does. Its environment and switches are those of the Deployment that its
chart renders, but for ports and leader election.

Jobs are marked complete, sets and the database ready, so that the operator goes on. No pod runs:
whether they could is asked of the same objects by infra/operate/conformance/come_up.py.
"""

from __future__ import annotations

import base64
import copy
import os
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from infra.clients.errors import AbsentError, KubeError
from infra.clients.kube import Access, KubeClient
from infra.clients.kube_rules import Object, holds, kubernetes_time, name_of
from infra.operate.conformance.sources import NotRunError
from infra.render.names import kube_object
from infra.render.nodes import kubeconfig as render

_EXISTS: Final = 409
_WEBHOOKS: Final = "WebhookConfiguration"
# Order of an installation: what others need comes first, the rest stays as it came.
_FIRST: Final = ("Namespace", "PriorityClass", "StorageClass", "Secret", "ConfigMap")


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server and the certificate of 127.0.0.1 that its authority signed."""

    access: Access
    certificate: Path
    key: Path


@dataclass(slots=True, kw_only=True)
class Accepted:
    """What became of the objects that were sent so far."""

    count: int = 0
    refused: list[str] = field(default_factory=list[str])
    """Object and the API server's own words."""
    unknown: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    """API version and kind of objects without a definition here, and how many there were."""


class Cluster:
    """One API server with the definitions of upstream."""

    def __init__(self, server: ApiServer) -> None:
        self.server = server
        self.client = KubeClient(server.access)

    def accept(
        self, objects: Sequence[Object], namespace: str, before: Accepted | None = None
    ) -> Accepted:
        """Makes all of them under strict validation, told after those of `before`; `namespace` is
        the release's.

        As Helm does: its namespace and no other, a create, and an apply of what is there already.
        Webhooks are left out: nobody answers them before their operator runs.
        """
        self.need_namespace(namespace)
        result = before or Accepted()
        for each in sorted(objects, key=lambda one: (*_FIRST, one["kind"]).index(one["kind"])):
            if not each["kind"].endswith(_WEBHOOKS):
                self._accept(each, namespace, result)
        return result

    def _accept(self, one: Object, namespace: str, result: Accepted) -> None:
        try:
            if self.client.is_namespaced(one):
                one = {**one, "metadata": {"namespace": namespace, **one["metadata"]}}
        except AbsentError:
            result.unknown[one["apiVersion"], one["kind"]] += 1
            return
        try:
            try:
                self.client.create(one)
            except KubeError as error:
                if error.status != _EXISTS:
                    raise
                self.client.apply(one)
        except KubeError as error:
            result.refused.append(str(error))
        else:
            result.count += 1

    def need_namespace(self, name: str) -> None:
        """Makes the namespace where it is missing."""
        made = kube_object("v1", "Namespace", name)
        if self.client.get(made) is None:
            self.client.apply(made)


_WEBHOOK_PORT: Final = 9443
"""Of controller-runtime, which the operator gives no other."""
_HOST: Final = "127.0.0.1"
_START_S: Final = 60.0
_END_S: Final = 10.0
_POLL_S: Final = 0.2
_NOT_HERE: Final = ("--leader-elect", "--metrics-bind-address", "--health-probe-bind-address")


class OperatorError(Exception):
    """An operator of upstream did not start, has ended, or does not come to its end; why."""


@dataclass(frozen=True, slots=True)
class Running:
    """A controller of upstream as a process."""

    log: Path
    process: subprocess.Popen[bytes]

    def check(self) -> None:
        """OperatorError where it has ended: nothing comes of it any more."""
        if (code := self.process.poll()) is not None:
            raise OperatorError(f"the operator ended with code {code}: {last_word(self.log)}")


def kubeconfig(access: Access) -> str:
    """What client-go reads, for the administrator of the API server."""
    assert access.ca_pem is not None
    user = {"token": access.static_token}
    return render(name="it", endpoint=access.server, ca_certificate=access.ca_pem, user=user)


@contextmanager
def running(
    argv: Sequence[str], *, server: ApiServer, folder: Path, env: Mapping[str, str]
) -> Iterator[Running]:
    """A controller of upstream against the API server; ends with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "kubeconfig"
    config.write_text(kubeconfig(server.access))
    config.chmod(0o600)
    log = folder / "log"
    whole = {**env, "KUBECONFIG": str(config), "HOME": str(folder), "TMPDIR": str(folder)}
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(argv, env=whole, stdout=output, stderr=output, cwd=folder)
        except OSError as error:  # such as a program of another architecture
            raise NotRunError(f"program {argv[0]} cannot be run: {error.strerror}") from error
    try:
        yield Running(log, child)
    finally:
        child.terminate()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


@contextmanager
def soperator(
    program: Path, rendered: Sequence[Object], *, cluster: Cluster, folder: Path
) -> Iterator[Path]:
    """The operator and its webhooks, as the rendered release `soperator` has them."""
    if _answers(_WEBHOOK_PORT):
        raise NotRunError(f"port {_WEBHOOK_PORT} of {_HOST} is in use, and the operator needs it")
    serve_certificates(cluster.server, folder / "k8s-webhook-server" / "serving-certs")
    (deployment,) = [each for each in rendered if each["kind"] == "Deployment"]
    containers = deployment["spec"]["template"]["spec"]["containers"]
    # Another one beside it guards its metrics.
    (container,) = [each for each in containers if each["name"] == "manager"]
    kept = [each for each in container["args"] if each.partition("=")[0] not in _NOT_HERE]
    argv = [
        str(program),
        *kept,
        "--leader-elect=false",
        "--metrics-bind-address=0",
        "--health-probe-bind-address=0",
        "--operator-namespace=soperator-system",
        "--log-format=plain",
    ]
    env = {each["name"]: each.get("value", "") for each in container["env"]}
    path = {"PATH": os.environ.get("PATH", "")}
    with running(argv, server=cluster.server, folder=folder, env={**path, **env}) as child:
        deadline = time.monotonic() + _START_S
        while not _answers(_WEBHOOK_PORT):
            child.check()
            if time.monotonic() > deadline:
                told = last_word(child.log)
                raise OperatorError(f"the operator does not answer within {_START_S:g} s: {told}")
            time.sleep(_POLL_S)
        for each in rendered:
            if each["kind"].endswith(_WEBHOOKS):
                cluster.client.apply(_here(each, cluster.server.access))
        yield child.log


def serve_certificates(server: ApiServer, folder: Path) -> None:
    """What a webhook server of controller-runtime serves with, in the folder where it looks."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tls.crt").write_bytes(server.certificate.read_bytes())
    (folder / "tls.key").write_bytes(server.key.read_bytes())
    (folder / "tls.key").chmod(0o600)


def _here(configuration: Object, access: Access) -> Object:
    """The webhooks at the loopback address instead of at a Service, which nothing routes here."""
    assert access.ca_pem is not None
    bundle = base64.b64encode(access.ca_pem.encode()).decode()
    moved = copy.deepcopy(configuration)
    for each in moved["webhooks"]:
        url = f"https://{_HOST}:{_WEBHOOK_PORT}{each['clientConfig']['service']['path']}"
        each["clientConfig"] = {"url": url, "caBundle": bundle}
    return moved


def last_word(log: Path) -> str:
    """The last line of a controller's log that tells of an error, else its last."""
    lines = log.read_text(errors="replace").splitlines() or ["(empty)"]
    errors = [line for line in lines if "ERROR" in line]
    return " ".join((errors or lines)[-1].split())[:600]


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


_LOOK_S: Final = 0.5
_PATIENCE_S: Final = 4.0
_CLUSTER: Final = ("slurm.nebius.ai/v1", "SlurmCluster")
_NODESET: Final = ("slurm.nebius.ai/v1alpha1", "NodeSet")
_SETS: Final = (
    ("apps.kruise.io/v1beta1", "StatefulSet"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
)


def reconciled(client: KubeClient, namespace: str, *, timeout_s: float = 120.0) -> None:
    """Simulates until the SlurmCluster is available and each NodeSet has its set of pods."""
    began = poked = time.monotonic()
    while True:
        simulate(client, namespace)
        missing = _missing(client, namespace)
        if not missing:
            return
        now = time.monotonic()
        if now > began + timeout_s:
            raise OperatorError(f"after {timeout_s:g} s: {'; '.join(missing)}")
        if now > poked + _PATIENCE_S:
            poked = now
            # It waits longer after each refusal, up to minutes: makes it look again.
            annotations = {"conformance.soperator-stack/age-s": str(round(now - began))}
            for version, kind in (_CLUSTER, _NODESET):
                for item in client.list(version, kind, namespace):
                    client.merge_patch(item, {"metadata": {"annotations": annotations}})
        time.sleep(_LOOK_S)


def simulate(client: KubeClient, namespace: str) -> None:
    """One round of answers."""
    for job in client.list("batch/v1", "Job", namespace):
        if not (job.get("status") or {}).get("succeeded"):
            _complete(client, job)
    for version, kind in _SETS:
        for item in client.list(version, kind, namespace):
            _ready(client, item)
    for kind, answer in (("MariaDB", _bring_up), ("Grant", _say_ready)):
        items: Sequence[Object] = ()
        with suppress(AbsentError):
            items = client.list("k8s.mariadb.com/v1alpha1", kind, namespace)
        for item in items:
            answer(client, item)


def _missing(client: KubeClient, namespace: str) -> list[str]:
    found: list[str] = []
    sets = {name_of(each) for each in client.list(*_SETS[0], namespace)}
    for nodeset in client.list(*_NODESET, namespace):
        if name_of(nodeset) not in sets:
            found.append(f"NodeSet {name_of(nodeset)} has no StatefulSet")
    for cluster in client.list(*_CLUSTER, namespace):
        status = cluster.get("status") or {}
        # Either is said once everything was made, and is the end where there are to be no pods.
        is_stopped = str(cluster["spec"].get("maintenance", "")).startswith("downscale")
        ended = ("Available", "Not available") if is_stopped else ("Available",)
        if status.get("phase") not in ended:
            conditions = [
                f"{each['type']} is {each['status']}: {each.get('message', '')}"
                for each in status.get("conditions") or []
                if each["status"] != "True"
            ]
            found.append(f"SlurmCluster {name_of(cluster)}: {', '.join(conditions) or 'no status'}")
    return found


def _bring_up(client: KubeClient, database: Object) -> None:
    """The Secrets that its operator would generate, and its word that the database is ready."""
    for key in ("rootPasswordSecretKeyRef", "passwordSecretKeyRef"):
        reference = database["spec"].get(key) or {}
        if reference.get("generate"):
            namespace = database["metadata"]["namespace"]
            content = {reference["key"]: "generated"}
            secret = kube_object("v1", "Secret", reference["name"], namespace, stringData=content)
            if client.get(secret) is None:
                client.create(secret)
    _say_ready(client, database)


def _say_ready(client: KubeClient, item: Object) -> None:
    ready = {"type": "Ready", "status": "True", "reason": "Simulated", "message": "simulated"}
    if not holds(item, "Ready"):
        at = kubernetes_time()
        _status(client, item, {"conditions": [{**ready, "lastTransitionTime": at}]})


def _complete(client: KubeClient, job: Object) -> None:
    now = kubernetes_time()
    done = [{"type": "SuccessCriteriaMet", "status": "True", "lastTransitionTime": now}]
    # The API server takes the two steps of a Job's end in their order only.
    _status(client, job, {"active": 0, "ready": 0, "startTime": now, "conditions": done})
    done = [*done, {"type": "Complete", "status": "True", "lastTransitionTime": now}]
    ended = {"active": 0, "ready": 0, "succeeded": 1, "startTime": now, "completionTime": now}
    _status(client, job, {**ended, "conditions": done})


def _ready(client: KubeClient, item: Object) -> None:
    wanted = item["spec"].get("replicas", 1)
    names = ["replicas", "readyReplicas", "availableReplicas", "updatedReplicas"]
    if "kruise" in item["apiVersion"]:
        names += ["currentReplicas", "updatedReadyReplicas", "updatedAvailableReplicas"]
    status: dict[str, Any] = dict.fromkeys(names, wanted)
    status["observedGeneration"] = item["metadata"]["generation"]
    if item["kind"] == "Deployment":
        status["conditions"] = [{"type": "Available", "status": "True"}]
    live = item.get("status") or {}
    if any(live.get(key) != value for key, value in status.items() if key != "conditions"):
        _status(client, item, status)


def _status(client: KubeClient, item: Object, status: Object) -> None:
    try:
        client.merge_patch(item, {"status": status}, subresource="status")
    except KubeError as error:
        # Its operator took it away meanwhile, or has changed it.
        if error.status not in (404, 409, 422):
            raise
