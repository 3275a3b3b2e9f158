"""The program's releases and objects under the real engine, on official plugins and on stand-ins.

Small charts from a repository on loopback stand for Soperator's, whose pods need a whole cluster.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.clients.kube import KubeClient
from infra.local import engine
from infra.local.kube import api_server
from infra.local.kube.api_server import ApiServerConfig
from infra.state import CHECKOUT, Cache
from tests.conformance.kubernetes_cases import RELEASE
from tests.conformance.recorded import OFFICIAL, SIDES, program_of
from tests.conformance.tiny_charts import VERSION, served_charts
from tests.engine.nebius_project import path_with_plugins
from tests.local.kube_server import kubeconfig, running_cluster

pytestmark = [pytest.mark.engine, pytest.mark.local]
PROGRAM = """
import json, os
from pathlib import Path

import pulumi
import pulumi_kubernetes as kubernetes

from infra.components.base import Kubernetes
from infra.components.releases import make_releases
from infra.render.charts import Chart

declared = json.loads(Path("declared.json").read_text())
provider = Kubernetes("kube", pulumi.Output.secret(os.environ["CLUSTER"]))
mine = pulumi.ResourceOptions(provider=provider)
namespace = kubernetes.core.v1.Namespace("place", metadata={"name": "place"}, opts=mine)
inside = pulumi.ResourceOptions(provider=provider, depends_on=[namespace])
kubernetes.core.v1.Secret(
    "key",
    metadata={"name": "key", "namespace": "place"},
    string_data={"token": pulumi.Output.secret(declared["token"])},
    opts=inside,
)
stack = pulumi.ComponentResource("tests:index:Stack", "stack")
make_releases(
    stack,
    [
        Chart(
            release="tiny",
            chart="tiny",
            version="VERSION",
            namespace="place",
            repository=declared["charts"],
            creates_namespace=False,
            timeout_s=30,
            values={"text": declared["text"]},
        )
    ],
    provider,
    needs=[namespace],
)
""".replace("VERSION", VERSION)
TOKEN = "planted-token"
NOTE = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "tiny-note", "namespace": "place"},
}


class Project:
    """A project folder with a backend and PULUMI_HOME of its own."""

    def __init__(self, folder: Path, config: ApiServerConfig, charts: str) -> None:
        self.folder = folder
        self.declared = {"token": TOKEN, "charts": charts, "text": "one"}
        self.environ = {
            "HOME": str(folder),
            "PATH": path_with_plugins(folder / "home"),
            "PYTHONPATH": str(CHECKOUT),
            "SOPERATOR_CACHE": str(Cache.from_environ().root),
            "PULUMI_HOME": str(folder / "home"),
            "PULUMI_BACKEND_URL": f"file://{folder}",
            "PULUMI_CONFIG_PASSPHRASE": "tests",
            "PULUMI_SKIP_UPDATE_CHECK": "true",
            "CLUSTER": kubeconfig(config),
            **engine.proxy_exceptions({}),
        }
        (folder / "Pulumi.yaml").write_text(
            f"name: tiny\nruntime: {{name: python, options: {{virtualenv: {CHECKOUT}/.venv}}}}\n"
        )
        (folder / "__main__.py").write_text(PROGRAM)
        self.run("stack", "init", "test")

    def run(self, *arguments: str, fails: bool = False) -> str:
        (self.folder / "declared.json").write_text(json.dumps(self.declared))
        program = shutil.which("pulumi", path=self.environ["PATH"])
        assert program is not None
        done = subprocess.run(
            [program, *arguments, "--non-interactive", "--color=never"],
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        output = done.stdout + done.stderr
        assert (done.returncode != 0) is fails, output
        return output

    def up(self) -> str:
        return self.run("up", "--yes", "--skip-preview", "--stack", "test")


@pytest.fixture(params=SIDES)
def project(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[tuple[Project, ApiServerConfig, bool]]:
    official = request.param == OFFICIAL
    if official:
        for name in ("command", "kubernetes"):
            program_of(name, official=True)
    else:
        monkeypatch.delenv(engine.PLUGINS_SETTING, raising=False)
    with (
        running_cluster(tmp_path_factory.mktemp("kube")) as config,
        served_charts(tmp_path_factory.mktemp("charts")) as charts,
    ):
        yield Project(tmp_path_factory.mktemp("project"), config, charts), config, official


def test_releases_and_objects_live_and_end_as_the_program_says(
    project: tuple[Project, ApiServerConfig, bool],
) -> None:
    """One story, because each step needs the one before it."""
    made, config, official = project
    client = KubeClient(config.access())
    made.up()
    assert "6 unchanged" in made.up(), "a second up changes nothing"
    assert "6 unchanged" in made.run("refresh", "--yes", "--skip-preview", "--stack", "test")
    state = (made.folder / ".pulumi" / "stacks" / "tiny" / "test.json").read_text()
    assert TOKEN not in state
    if official:  # stand-ins render no chart but Soperator's
        note = client.get(NOTE)
        assert note is not None
        assert note["data"] == {"text": "one"}

    for path in (made.folder / ".pulumi").rglob("test.json*"):
        path.unlink()
    made.run("stack", "init", "test")
    made.declared["text"] = "two"
    again = made.up()
    assert "release tiny: an earlier run of this stack installed it" in again
    if official:
        note = client.get(NOTE)
        assert note is not None
        assert note["data"] == {"text": "two"}

    options = ["--yes", "--skip-preview", "--stack", "test"]
    resources = json.loads(made.run("stack", "export"))["deployment"]["resources"]
    (release,) = [each["urn"] for each in resources if each["type"] == RELEASE]
    api_server.stop(config)
    made.environ["PULUMI_K8S_DELETE_UNREACHABLE"] = "true"
    try:
        refused = made.run("destroy", *options, fails=True)
        assert "can't delete Helm Release with unreachable cluster" in refused
        # As infra/providers/soperator/teardown.py does.
        made.run("refresh", *options, f"--target={release}")
        made.run("destroy", *options)
    finally:
        api_server.start(config)
    assert "resources" not in json.loads(made.run("stack", "export"))["deployment"]
