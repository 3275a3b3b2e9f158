"""What a Kubernetes Job of the acceptance and of a training says to type, typed to kubectl itself.

Against a real API server that has Soperator's definitions. No controller makes the pods and no
kubelet runs them: a pod is made here as the Job's controller would, and its lines are served here
where the API server asks the kubelet for them.
"""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from infra.clients.kube import KubeClient
from infra.local.kube.api_server import ApiServerConfig
from infra.render.kube_job import Pods, how_to_run, service_and_job, to_yaml, training_pods
from infra.reports.acceptance import comparison
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = [pytest.mark.conformance, pytest.mark.timeout(300)]


_LOG = (*(f"rank {rank} is there" for rank in range(16)), '{"verdict": "PASS"}')
_NODE = "worker-machine"


class Kubelet(BaseHTTPRequestHandler):
    """Answers for the log of a container, as /containerLogs/NAMESPACE/POD/CONTAINER does."""

    def do_GET(self) -> None:
        asked = parse_qs(urlsplit(self.path).query)
        lines = _LOG[-int(*asked.get("tailLines", [0])) :]
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(f"{line}\n" for line in lines).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Be silent."""


@contextmanager
def kubelet(config: ApiServerConfig) -> Iterator[int]:
    """The port of the stand-in, under the API server's certificate, which that does not check."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.certificate, config.key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """A shell whose kubectl is the real one, and who may look at its server."""

    client: KubeClient
    environment: dict[str, str]

    def typed(self, line: str, *, seconds: float | None = None) -> subprocess.CompletedProcess[str]:
        """The line in a shell; one that watches is ended after `seconds`."""
        words = ["bash", "-c", line]
        if seconds is not None:
            words = ["timeout", str(seconds), *words]
        return subprocess.run(
            words, capture_output=True, text=True, check=False, env=self.environment, timeout=120
        )


@pytest.fixture(scope="module")
def stand(sources, tmp_path_factory) -> Iterator[Stand]:
    folder = tmp_path_factory.mktemp("kubectl")
    program = Path(sources.program("kubectl"))
    with running_cluster(folder) as config, kubelet(config) as port:
        file = folder / "kubeconfig"
        file.write_text(kubeconfig(config))
        client = KubeClient(config.access())
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": _NODE}}
        client.apply(node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        client.merge_patch(node, {"status": status}, subresource="status")
        yield Stand(
            client=client,
            environment={
                "PATH": f"{program.parent}:/usr/bin:/bin",
                "HOME": str(folder),
                "KUBECONFIG": str(file),
            },
        )


def pods_of(kind: str, spec: StackSpec) -> tuple[Pods, tuple[str, ...]]:
    image = "registry.example/soperator:sha-1"
    if kind == "acceptance":
        worker = spec.nodes.workers[0]
        pods = comparison.kube_pods(spec, worker, name="accept", image=image, nodes=2)
        return pods, (comparison.read_by(pods),)
    declared = next(job for job in spec.jobs if job.name == "finetune")
    return training_pods(spec, declared, image=image), ()


@pytest.mark.feature("S001-74", "S001-75", "S001-76", "S001-77")
@pytest.mark.parametrize("kind", ["acceptance", "training"])
def test_each_line_that_is_said_does_what_it_says(
    stand: Stand, kind: str, tmp_path: Path, public_key_file: Path
) -> None:
    spec = load_stack("h100-prod")
    pods, reads = pods_of(kind, spec)
    spaces = {pods.namespace, spec.cluster.namespace} - {"default"}
    for space in spaces:
        stand.client.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}})
    file = tmp_path / "objects of a job.yaml"
    objects = service_and_job(pods)
    file.write_text(to_yaml(objects))
    lines = how_to_run(spec, pods, *reads, file=str(file))
    free, bring, *follow = [line.strip() for line in lines if line.startswith("  kubectl")]
    *looked, delete, back = follow

    (nodeset,) = [free.split()[5]]
    stand.client.apply(nodeset_object(spec, nodeset))
    for line, replicas in ((free, 0), (back, 2)):
        done = stand.typed(line)
        assert done.returncode == 0, done.stderr
        assert f"nodeset.slurm.nebius.ai/{nodeset} patched" in done.stdout
        made = stand.client.get(nodeset_object(spec, nodeset))
        assert made is not None
        assert made["spec"]["replicas"] == replicas

    apply, _, watch = bring.partition(" && ")
    done = stand.typed(apply)
    assert done.returncode == 0, done.stderr
    assert [line.split()[-1] for line in done.stdout.splitlines()] == ["created"] * 3
    assert stand.typed(apply).returncode == 0, "a second time"
    made = stand.client.get(objects[-1])
    assert made is not None
    stand.client.apply(pod_of(made))
    assert f"{pods.name}-0-x " in stand.typed(watch, seconds=10).stdout

    log, *reads_of_result = looked
    (container,) = pod_of(made)["spec"]["containers"]
    prefix = f"[pod/{pods.name}-0-x/{container['name']}]"
    assert stand.typed(log, seconds=20).stdout.splitlines() == [f"{prefix} {each}" for each in _LOG]
    for line in reads_of_result:
        done = stand.typed(f"cd {shlex.quote(str(tmp_path))} && {line}", seconds=20)
        assert done.returncode == 0, done.stderr
        assert json.loads((tmp_path / "acceptance.json").read_text()) == {"verdict": "PASS"}

    done = stand.typed(delete)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("deleted") == 3
    assert [stand.client.get(each) for each in objects] == [None] * 3


def nodeset_object(spec: StackSpec, name: str) -> dict[str, Any]:
    """What Soperator's definition asks of a set of workers at least."""
    volume: dict[str, Any] = {}
    container = {"image": {"repository": "registry.example/slurm"}, "resources": {"cpu": "1"}}
    return {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": {"name": name, "namespace": spec.cluster.namespace},
        "spec": {
            "replicas": 1,
            "munge": container,
            "slurmd": {**container, "volumes": {"jail": volume, "spool": volume}},
        },
    }


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    """The first pod of an indexed Job, as its controller makes it."""
    meta = job["metadata"]
    template = job["spec"]["template"]
    labels = {
        **template["metadata"]["labels"],
        "batch.kubernetes.io/job-name": meta["name"],
        "batch.kubernetes.io/job-completion-index": "0",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{meta['name']}-0-x",
            "namespace": meta["namespace"],
            "labels": labels,
        },
        "spec": {**template["spec"], "nodeName": _NODE},
    }
