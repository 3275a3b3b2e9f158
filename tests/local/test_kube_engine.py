"""The kubernetes stand-in behind the real Pulumi engine, against a real API server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from infra.clients.kube import KubeClient
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = [pytest.mark.local, pytest.mark.engine]

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os
import pulumi
import pulumi_kubernetes as k8s

from infra.components.base import Kubernetes

settings = json.loads(os.environ["SETTINGS"])
provider = Kubernetes("cluster", os.environ["CLUSTER"])
opts = pulumi.ResourceOptions(provider=provider)
namespace = k8s.core.v1.Namespace("slurm", metadata={"name": "slurm"}, opts=opts)
inside = pulumi.ResourceOptions(provider=provider, depends_on=[namespace])
k8s.core.v1.Secret(
    "key",
    metadata={"name": "key", "namespace": "slurm"},
    string_data={"token": settings.get("token", "planted-secret")},
    opts=inside,
)
k8s.core.v1.ConfigMap(
    "note", metadata={"name": "note", "namespace": "slurm"}, data={"a": "1"}, opts=inside
)
release = k8s.helm.v3.Release(
    "nodesets",
    name="nodesets",
    namespace="slurm",
    chart="oci://cr.eu-north1.nebius.cloud/soperator/helm-nodesets",
    version="4.1.7",
    values=settings["nodesets"],
    opts=inside,
)
k8s.helm.v3.Release(
    "soperator",
    name="soperator",
    namespace="slurm",
    chart="oci://cr.eu-north1.nebius.cloud/soperator/helm-soperator",
    version="4.1.7",
    opts=inside,
)
pulumi.export("revision", release.status.revision)
pulumi.export("status", release.status.status)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with running_cluster(tmp_path_factory.mktemp("kube")) as config:
        yield config


def engine_binary() -> str:
    cache = Path(os.environ.get("SOPERATOR_CACHE", "~/.cache/soperator-stack")).expanduser()
    built = [*sorted(cache.glob("bin/pulumi-v*/pulumi")), cache / "build/pulumi-cli/pulumi"]
    for candidate in (shutil.which("pulumi"), *map(str, built)):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    pytest.skip("needs the Pulumi CLI (`make setup`)")


def core(kind, metadata):
    """The key of an object of the core group."""
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata}


def nodeset(**changes):
    """One nodeset in the chart's values."""
    worker = {
        "name": "worker",
        "replicas": 2,
        "munge": {"resources": {"cpu": "500m", "memory": "1Gi"}},
        "slurmd": {
            "resources": {"cpu": "4", "memory": "8Gi"},
            "volumes": {
                "spool": {"emptyDir": {}},
                "jail": {"persistentVolumeClaim": {"claimName": "jail-pvc"}},
            },
        },
    }
    return {**worker, **changes}


class Stack:
    """One program in a folder, with its own backend and home."""

    def __init__(self, folder: Path, cluster_config: str) -> None:
        self.folder = folder
        self.settings: dict = {"nodesets": {"nodesets": [nodeset()]}}
        (folder / "Pulumi.yaml").write_text("name: kube\nruntime: python\n")
        (folder / "__main__.py").write_text(PROGRAM)
        for name in ("home", "backend", "bin"):
            (folder / name).mkdir()
        for launcher in (ROOT / "infra/local/plugins/bin").iterdir():
            (folder / "bin" / launcher.name).symlink_to(launcher)
        python = ROOT / ".venv/bin"
        path = f"{folder}/bin:{python}:{Path(engine_binary()).parent}:{os.environ['PATH']}"
        self.environ = {
            "HOME": os.environ.get("HOME", "/root"),
            "PATH": path,
            "PYTHONPATH": str(ROOT),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{folder}/backend",
            "PULUMI_CONFIG_PASSPHRASE": "test",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "CLUSTER": cluster_config,
        }
        self.run("stack", "init", "dev")

    def run(self, *arguments: str, check: bool = True) -> str:
        """Output of one engine command, whatever stream it used."""
        environ = {**self.environ, "SETTINGS": json.dumps(self.settings)}
        done = subprocess.run(
            [engine_binary(), *arguments, "--non-interactive"],
            cwd=self.folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
        )
        output = done.stdout + done.stderr
        assert (done.returncode == 0) == check, output
        return output

    def up(self, check: bool = True) -> str:
        return self.run("up", "--yes", "--skip-preview", "--stack", "dev", check=check)


@pytest.fixture
def stack(cluster, tmp_path):
    made = Stack(tmp_path, kubeconfig(cluster))
    yield made
    made.settings = {"nodesets": {"nodesets": []}}
    made.run("destroy", "--yes", "--skip-preview", "--stack", "dev")


@pytest.mark.feature("S003-14", "S004-32")
def test_an_update_a_second_one_drift_and_the_end(stack, cluster):
    """One story, because each step needs the one before it."""
    client = KubeClient(cluster.access())
    worker = {
        "apiVersion": "slurm.nebius.ai/v1alpha1",
        "kind": "NodeSet",
        "metadata": {"name": "worker", "namespace": "slurm"},
    }

    preview = stack.run("preview", "--stack", "dev")
    assert "7 to create" in preview
    assert client.get(worker) is None

    first = stack.up()
    assert "chart helm-nodesets rendered to 2 objects" in first
    assert "chart helm-soperator is recorded only" in first
    assert client.get(worker)["spec"]["replicas"] == 2
    exported = stack.run("stack", "export", "--stack", "dev")
    assert "planted-secret" not in exported
    assert json.loads(stack.run("stack", "output", "--json", "--stack", "dev")) == {
        "revision": 1,
        "status": "deployed",
    }

    second = stack.up()
    assert "7 unchanged" in second
    assert "updated" not in second

    stack.settings["nodesets"]["nodesets"][0]["replicas"] = 3
    changed = stack.run("preview", "--diff", "--stack", "dev")
    assert "replicas: 2 => 3" in " ".join(changed.split())
    stack.up()
    assert client.get(worker)["spec"]["replicas"] == 3

    refreshed = stack.run("refresh", "--yes", "--skip-preview", "--stack", "dev")
    assert "7 unchanged" in refreshed
    secret = core("Secret", {"name": "key", "namespace": "slurm"})
    client.apply({**secret, "stringData": {"token": "changed by hand"}})
    assert client.delete(worker)
    drifted = stack.run("refresh", "--yes", "--skip-preview", "--stack", "dev")
    assert "2 updated" in drifted
    assert "changed by hand" not in drifted
    stack.up()
    assert client.get(worker)["spec"]["replicas"] == 3
    assert client.get(secret)["data"]["token"] == "cGxhbnRlZC1zZWNyZXQ="

    stack.run("destroy", "--yes", "--skip-preview", "--stack", "dev")
    assert client.get(worker) is None
    assert client.get(core("Namespace", {"name": "slurm"})) is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"nodesets": [nodeset(replica=3)]}, "nodesets[0].replica: unknown value; did you mean"),
        (
            {"nodesets": [nodeset(gpu={"enabled": "yes"})]},
            "slurmd.resources.gpu: is required when gpu.enabled",
        ),
        (
            {"nodesets": [nodeset(replicas="two")]},
            "NodeSet slurm/worker: ",
        ),
    ],
)
def test_a_wrong_value_is_refused_in_the_preview(stack, values, message):
    stack.settings["nodesets"] = values
    assert message in stack.run("preview", "--stack", "dev", check=False)


def test_a_field_that_the_kind_does_not_have_is_refused_in_the_preview(stack):
    spool = {"volumeClaimTemplateSpec": {"accessModes": ["ReadWriteOnce"]}}
    planted = nodeset()
    planted["slurmd"] = {**planted["slurmd"]}
    planted["slurmd"]["volumes"] = {**planted["slurmd"]["volumes"], "spool": spool}
    stack.settings["nodesets"] = {"nodesets": [planted]}
    refused = stack.run("preview", "--stack", "dev", check=False)
    assert ".spec.slurmd.volumes.spool.volumeClaimTemplateSpec: field not declared" in refused
