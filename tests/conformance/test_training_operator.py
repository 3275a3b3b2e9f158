"""Kubeflow's training operator takes the PyTorchJob of a training and makes its pods and services.

Its webhook is asked by hand: the API server would look for it behind a Service, and nothing routes
here. No kubelet runs the pods; what each rank is told is read from them.
"""

from __future__ import annotations

import json
import shutil
import ssl
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.clients.kube import KubeClient
from infra.clients.kube_rules import name_of
from infra.local.kube import api_server
from infra.operate.conformance.cluster import (
    ApiServer,
    Running,
    last_word,
    running,
    serve_certificates,
)
from infra.operate.conformance.sources import NotRunError
from infra.render.kube_job import pytorch_job, training_pods
from stacks.load import load_stack
from tests.ports import free_ports

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]
_SPACE = "kubeflow"
_HOOK = "validator.training-operator.kubeflow.org"
# pkg/cert/cert.go of v1.9.0: no option names another.
_CERTIFICATES = Path("/tmp/k8s-webhook-server/serving-certs")
_WAIT_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """The operator as it runs, and the API server that it watches."""

    client: KubeClient
    child: Running
    hook: str

    def until(self, what: str, look: Callable[[], Any]) -> Any:
        """What `look` finds, once it finds something."""
        deadline = time.monotonic() + _WAIT_S
        while not (found := look()):
            self.child.check()
            assert time.monotonic() < deadline, f"{what}: {last_word(self.child.log)}"
            time.sleep(0.5)
        return found

    def allows(self, one: dict[str, Any]) -> bool:
        """What its webhook says of an object that is to be made."""
        request = {
            "uid": "1",
            "kind": {"group": "kubeflow.org", "version": "v1", "kind": "PyTorchJob"},
            "resource": {"group": "kubeflow.org", "version": "v1", "resource": "pytorchjobs"},
            "operation": "CREATE",
            "object": one,
        }
        review = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": request,
        }
        asked = urllib.request.Request(
            self.hook, json.dumps(review).encode(), {"Content-Type": "application/json"}
        )
        unverified = ssl._create_unverified_context()
        with urllib.request.urlopen(asked, context=unverified, timeout=10) as answer:
            return json.load(answer)["response"]["allowed"]


@pytest.fixture(scope="module")
def operator(sources, tmp_path_factory) -> Iterator[Operator]:
    folder = tmp_path_factory.mktemp("training")
    program, checkout = sources.program("training-operator"), sources.checkout("training-operator")
    if _CERTIFICATES.exists():
        raise NotRunError(f"{_CERTIFICATES} is of another run; remove it where none goes on")
    api, hook, metrics, health = free_ports(4)
    try:
        with api_server.running(folder, api) as config:
            client = KubeClient(config.access())
            base = checkout / "manifests" / "base"
            for file in sorted((base / "crds").glob("kubeflow.org_*.yaml")):
                client.apply(yaml.safe_load(file.read_text()))
            client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": _SPACE}})
            secret = {"name": "training-operator-webhook-cert", "namespace": _SPACE}
            client.apply({"apiVersion": "v1", "kind": "Secret", "metadata": secret})
            server = ApiServer(
                access=config.access(), certificate=config.certificate, key=config.key
            )
            # Its rotator looks for them in one folder and its webhook in the other.
            for place in (_CERTIFICATES, folder / "run" / "k8s-webhook-server" / "serving-certs"):
                serve_certificates(server, place)
            argv = [
                str(program),
                "--enable-scheme=pytorchjob",
                f"--webhook-server-port={hook}",
                f"--metrics-bind-address=127.0.0.1:{metrics}",
                f"--health-probe-bind-address=127.0.0.1:{health}",
            ]
            env = {"MY_POD_NAMESPACE": _SPACE}
            with running(argv, server=server, folder=folder / "run", env=env) as child:
                path = "validate-kubeflow-org-v1-pytorchjob"
                yield Operator(client=client, child=child, hook=f"https://127.0.0.1:{hook}/{path}")
    finally:
        shutil.rmtree(_CERTIFICATES.parent, ignore_errors=True)


@pytest.mark.feature("S004-37")
def test_every_rank_is_told_what_the_script_asks(
    operator: Operator, public_key_file: Path, record_property
) -> None:
    spec = load_stack("h100-prod")
    declared = next(job for job in spec.jobs if job.name == "finetune")
    image = "registry.example/soperator-jobs:sha-1"
    pods = training_pods(spec, declared, image=image, operator=True)
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": pods.namespace}}
    operator.client.apply(space)
    policy, job = pytorch_job(pods)
    for each in (policy, job):
        operator.client.apply(each)

    def made(kind: str) -> list[dict[str, Any]]:
        found = operator.client.list("v1", kind, pods.namespace)
        return sorted(found, key=name_of) if len(found) == pods.nodes else []

    found = operator.until("a pod a node", lambda: made("Pod"))
    assert [name_of(each) for each in found] == ["finetune-master-0", "finetune-worker-0"]
    services = {name_of(each) for each in operator.until("services", lambda: made("Service"))}
    for rank, pod in enumerate(found):
        (container,) = pod["spec"]["containers"]
        told = {each["name"]: each.get("value") for each in container["env"]}
        assert told["RANK"] == str(rank)
        assert told["WORLD_SIZE"] == str(pods.nodes), "of pods: our script starts a rank a GPU"
        assert told["MASTER_ADDR"] in services
        assert told["MASTER_PORT"].isdigit()
        assert 'NODE_RANK="$RANK"' in container["command"][-1]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == "8"
        assert pod["metadata"]["labels"]["app.kubernetes.io/name"] == pods.name, "its policy's"
    assert operator.allows(job)
    broken = json.loads(json.dumps(job))
    template = broken["spec"]["pytorchReplicaSpecs"]["Master"]["template"]
    template["spec"]["containers"][0]["name"] = "main"
    assert not operator.allows(broken), "it gives rank and address to `pytorch` alone"
    record_property("pods of the training operator", len(found))
