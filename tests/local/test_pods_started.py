"""`up` ends with the reason where pods cannot start: real engine, real API server, real daemons."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.providers.soperator.blocked_pods import blocked, slurm_pods
from tests.conftest import PUBLIC_KEY
from tests.engine.nebius_project import Project, pulumi_binary
from tests.local.kube_server import kubeconfig
from tests.local.slurm_stand import CLUSTER, NAMESPACE, NODESETS, Stand, running_stand

pytestmark = [
    pytest.mark.local,
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
LIMIT_S = 240
"""Within it `up` has to end, whatever it waits for."""
PATIENCE_S = 10
PLUGIN = f"""#!{sys.executable}
from runpy import run_module
from infra.providers.soperator.pods import PodsStartedProvider

PodsStartedProvider.__init__.__kwdefaults__["patience_s"] = {PATIENCE_S}
run_module("infra.providers.soperator", run_name="__main__")
"""
"""The real plugin; that it is patient for a minute is tested with a clock, in tests/unit/pods."""
PROGRAM = """
import os

from infra.components.soperator import PodsStarted
from infra.render.charts import Chart
from stacks.load import load_stack

PodsStarted(
    load_stack("local"),
    [
        Chart(
            release="nodesets",
            chart="nodesets",
            version="1",
            namespace="soperator",
            values={"sshd": os.environ.get("SSHD", "")},
        )
    ],
    host_key="ssh-ed25519 A",
    kubeconfig=os.environ["CLUSTER"],
)
"""


@pytest.fixture
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with running_stand(tmp_path_factory.mktemp("stand")) as made:
        yield made
        made.delete()


@pytest.fixture
def project(tmp_path: Path, stand: Stand) -> Project:
    (folder := tmp_path / "project").mkdir()
    made = Project(folder, 1)
    (folder / "key.pub").write_text(PUBLIC_KEY + "\n")
    made.environ["SOPERATOR_SSH_PUBLIC_KEY_FILE"] = str(folder / "key.pub")
    # The engine takes it from the folder that Pulumi.yaml names.
    (plugin := folder / "impatient" / "pulumi-resource-soperator").parent.mkdir()
    plugin.write_text(PLUGIN)
    plugin.chmod(0o755)
    settings = folder / "Pulumi.yaml"
    text, count = re.subn(r"(name: soperator, path: )[^}]+", r"\1impatient", settings.read_text())
    assert count == 1
    settings.write_text(text)
    made.environ["CLUSTER"] = kubeconfig(stand.cloud.kube)
    (folder / "__main__.py").write_text(PROGRAM)
    return made


def wait_blocked(stand: Stand, *names: str) -> None:
    """Until each pod cannot start: one that is late by the whole patience would not be named."""

    def is_met() -> bool:
        pods = slurm_pods(stand.client, NAMESPACE, "soperator")
        return blocked(stand.client, NAMESPACE, pods).keys() >= set(names)

    stand.wait(is_met, f"cause of {', '.join(names)}")


def up(project: Project) -> subprocess.CompletedProcess[str]:
    argv = ["up", "--yes", "--skip-preview", "--stack=test", "--non-interactive"]
    return subprocess.run(
        [str(pulumi_binary()), *argv],
        cwd=project.folder,
        env={**os.environ, **project.environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def test_a_missing_key_ends_up_with_its_name_and_the_next_up_goes_on_once_it_is_there(
    stand: Stand, project: Project
) -> None:
    stand.apply(stand.values(), without_key="ssh_host_ecdsa_key")
    wait_blocked(stand, "login-0", "worker-0", "worker-1")
    stopped = up(project)
    assert stopped.returncode != 0
    assert (
        "pod soperator/login-0 (and worker-0, worker-1) cannot start: "
        'secret "login-host-keys" has no key ssh_host_ecdsa_key; if the stack makes it: '
        "pulumi refresh, pulumi up; if not: kubectl -n soperator edit secret login-host-keys, "
        "then run the command again"
    ) in stopped.stdout + stopped.stderr

    stand.apply(stand.values())
    mended = up(project)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "PodsStarted local-pods-started created" in mended.stdout
    assert stand.ssh("true").returncode == 0
    assert stand.is_ready("worker-0")
    again = up(project)
    assert "2 unchanged" in again.stdout, again.stdout + again.stderr

    values = stand.values()
    values[NODESETS]["nodesets"][0]["configMapRefSshd"] = "mistyped"
    stand.apply(values)
    wait_blocked(stand, "worker-0", "worker-1")
    project.environ["SSHD"] = "mistyped"
    changed = up(project)
    assert changed.returncode != 0
    assert (
        "pod soperator/worker-0 (and worker-1) cannot start: "
        'config map "mistyped" does not exist; if the stack makes it: pulumi refresh, pulumi up; '
        "if not: kubectl -n soperator create configmap mistyped --from-file=KEY=FILE, then run the "
        "command again"
    ) in changed.stdout + changed.stderr


def test_a_pod_that_the_api_server_refuses_ends_up_with_its_words(
    stand: Stand, project: Project
) -> None:
    values = stand.values()
    own = {"name": "own", "mountPath": "/opt/slurm_scripts/", "volumeSourceName": "slurm-scripts"}
    values[CLUSTER]["slurmNodes"]["login"]["volumes"]["customMounts"] = [own]
    stand.apply(values)
    stopped = up(project)
    assert stopped.returncode != 0
    assert (
        "pod soperator/login-0 cannot start: the API server refuses it: "
        'spec.containers[0].volumeMounts[12].mountPath: Invalid value: "/opt/slurm_scripts/": '
        "must be unique; the message names the field: correct it in the stack file"
    ) in stopped.stdout + stopped.stderr
