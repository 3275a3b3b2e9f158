"""Charts that come only when the stack needs them, secrets, jail files, and what goes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from infra.render.charts import chart_values
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile, JailFileSpec, NfsHomeSpec, Observability
from stacks.spec.nodes import ImageDiskSpec
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Recorder, declare
from tests.components.test_releases import releases
from tests.components.texts import open_texts

OBSERVABILITY = {
    "victoria-metrics-operator-crds",
    "metrics",
    "vm-logs",
    "opentelemetry-collector-logs",
    "soperator-monitoring-dashboards",
}
WEBHOOK = "https://hooks.slack.com/services/T0/B0/SECRET"
Load = Callable[[str], StackSpec]


def changed(spec: StackSpec, **settings: Any) -> StackSpec:
    return replace(spec, soperator=replace(spec.soperator, **settings))


def names_of(recorder: Recorder) -> set[str]:
    return set(releases(recorder))


@pytest.mark.parametrize("stack", SHIPPED)
def test_checks_go_before_the_controller_that_takes_their_finalizers_off(
    deployed: Deploy, stack: str
) -> None:
    """A destroy runs against depends_on: the other way round the namespace would hang."""
    found = releases(deployed(stack))
    assert found["soperatorchecks"].urn in found["soperator-activechecks"].depends_on


def test_checks_that_are_off_are_not_installed(deployed: Deploy, load: Load) -> None:
    without = deployed(changed(load("h100-prod"), checks=ChecksProfile.OFF))
    assert "soperator-activechecks" not in names_of(without)
    assert "soperatorchecks" in names_of(without)


def test_a_release_of_checks_waits_as_long_as_its_checks_run(deployed: Deploy) -> None:
    assert releases(deployed("l40s-dev"))["soperator-activechecks"].inputs["timeout"] == 7200


@pytest.mark.feature("S002-65", "S003-42", "S003-66")
@pytest.mark.parametrize("level", [Observability.SMALL, Observability.FULL])
def test_observability_comes_with_classes_for_its_disks(
    deployed: Deploy, load: Load, level: Observability
) -> None:
    found = releases(deployed(changed(load("h100-prod"), observability=level)))
    assert found.keys() >= OBSERVABILITY | {"storageclasses", "soperator-dcgm-exporter"}
    assert found["storageclasses"].urn in found["metrics"].depends_on
    definitions = found["prometheus-operator-crds"]  # of the exporter's monitor, too
    assert definitions.urn in found["soperator-dcgm-exporter"].depends_on
    asked = [
        found["metrics"].inputs["values"]["vmsingle"]["spec"]["resources"]["limits"]["memory"],
        found["vm-logs"].inputs["values"]["server"]["resources"]["limits"]["memory"],
    ]
    assert asked == (["24Gi", "2Gi"] if level is Observability.FULL else ["2Gi", "1Gi"])


@pytest.mark.feature("S003-42", "S003-66")
def test_a_week_of_metrics_and_logs_is_kept_inside_the_cluster(
    deployed: Deploy, load: Load
) -> None:
    found = releases(deployed(changed(load("h100-prod"), observability=Observability.SMALL)))
    values = {name: found[name].inputs["values"] for name in OBSERVABILITY}
    metrics, logs = values["metrics"]["vmsingle"]["spec"], values["vm-logs"]["server"]
    assert metrics["retentionPeriod"] == logs["retentionPeriod"] == "7d"
    sent = values["opentelemetry-collector-logs"]["config"]["exporters"]
    (address,) = [each["logs_endpoint"] for each in sent.values()]
    assert address.startswith("http://vm-logs-victoria-logs-single-server.logs-system:9428/")
    grafana = values["metrics"]["grafana"]
    assert grafana["enabled"]
    who = grafana["grafana.ini"]["auth.anonymous"]
    assert (who["enabled"], who["org_role"]) == (True, "Viewer"), "whoever is on the login node"


def test_a_home_on_nfs_brings_driver_server_class_and_claim(deployed: Deploy, load: Load) -> None:
    spec = load("h100-prod")
    storage = replace(
        spec.storage,
        submounts=tuple(each for each in spec.storage.submounts if each.name != "home"),
    )
    spec = changed(replace(spec, storage=storage), nfs_home=NfsHomeSpec(size_gib=200))
    found = releases(deployed(spec))
    assert found["csi-driver-nfs"].urn in found["nfs-server"].depends_on
    assert found["storageclasses"].urn in found["nfs-server"].depends_on
    assert found["nfs-server"].urn in found["slurm-cluster"].depends_on
    assert found["nfs-server"].inputs["values"]["storage"]["size"] == "200Gi"
    cluster = found["slurm-cluster"].inputs["values"]
    (source,) = [each for each in cluster["volumeSources"] if each["name"] == "home-dir"]
    assert (source["createPVC"], source["storageClassName"]) == (True, "nfs")
    (nodeset,) = found["nodesets"].inputs["values"]["nodesets"]
    for mounts in (
        cluster["slurmNodes"]["login"]["volumes"]["jailSubMounts"],
        nodeset["slurmd"]["volumes"]["jailSubMounts"],
    ):
        assert [each["mountPath"] for each in mounts if each["name"] == "home-dir"] == ["/home"]


def test_the_nfs_server_runs_on_its_own_nodes_where_there_are_some(load: Load) -> None:
    spec = changed(load("h100-prod"), nfs_home=NfsHomeSpec(size_gib=200))
    shared = chart_values(spec, "nfs-server")
    own = chart_values(
        replace(spec, nodes=replace(spec.nodes, nfs=spec.nodes.system)), "nfs-server"
    )
    assert shared["nodeSelector"] == {"slurm.nebius.ai/nodeset": "system"}
    assert own["nodeSelector"] == {"slurm.nebius.ai/nodeset": "nfs"}
    assert (shared["tolerations"], len(own["tolerations"])) == ([], 1)
    # 8 vCPUs and 32 GiB: 7 - 0.1 - 0.05 and 26 - 0.5 - 0.128, floored.
    assert own["resources"]["requests"] == {"cpu": "6000m", "memory": "25Gi"}


@pytest.mark.feature("S002-14")
@pytest.mark.parametrize("stack", SHIPPED)
def test_no_shipped_stack_collects_anything(deployed: Deploy, stack: str) -> None:
    assert not names_of(deployed(stack)) & {*OBSERVABILITY, "soperator-dcgm-exporter"}


def test_workers_with_a_disk_for_images_get_its_configuration(deployed: Deploy, load: Load) -> None:
    spec = load("l40s-dev")
    first, *others = spec.nodes.workers
    own = replace(first, image_disk=ImageDiskSpec(size_gib=930))
    found = releases(deployed(replace(spec, nodes=replace(spec.nodes, workers=(own, *others)))))
    assert found["soperator-custom-configmaps"].urn in found["nodesets"].depends_on
    assert "storageclasses" in found


def test_the_apparmor_profile_comes_with_its_operator(deployed: Deploy, load: Load) -> None:
    found = releases(deployed(changed(load("h100-prod"), apparmor=True)))
    assert found["security-profiles-operator"].urn in found["slurm-cluster"].depends_on
    assert found["slurm-cluster"].inputs["values"]["useDefaultAppArmorProfile"] is True


def test_the_webhook_of_slack_is_a_secret_everywhere(load: Load, tmp_path: Path) -> None:
    import pulumi

    told = changed(load("h100-prod"), slack_notifier=True, observability=Observability.SMALL)
    recorder = declare(told, tmp_path, slack_webhook_url=lambda: pulumi.Output.secret(WEBHOOK))
    notifier = releases(recorder)["soperator-notifier"]
    assert notifier.inputs["values"]["slack"]["webhookUrl"] == WEBHOOK
    for each in recorder.registered:
        assert not [text for text in open_texts(each.sent) if WEBHOOK in text], each.name


def test_files_of_the_jail_are_a_config_map_and_a_jailed_config(
    deployed: Deploy, load: Load
) -> None:
    file = JailFileSpec(path="/etc/profile.d/nccl.sh", content="export NCCL_DEBUG=WARN\n")
    recorder = deployed(changed(load("h100-prod"), jail_files=(file,)))
    texts = recorder.one("kubernetes:core/v1:ConfigMap")
    config = recorder.one("kubernetes:slurm.nebius.ai/v1alpha1:JailedConfig")
    assert texts.inputs["data"] == {"file-0": "export NCCL_DEBUG=WARN\n"}
    assert config.inputs["spec"]["items"] == [
        {"key": "file-0", "path": "/etc/profile.d/nccl.sh", "mode": 0o644}
    ]
    assert releases(recorder)["slurm-cluster"].urn in texts.depends_on


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_stack_without_files_of_the_jail_makes_no_object_for_them(
    deployed: Deploy, load: Load, stack: str
) -> None:
    made = deployed(stack).of("kubernetes:slurm.nebius.ai/v1alpha1:JailedConfig")
    assert bool(made) == bool(load(stack).soperator.jail_files)


def test_a_paused_stack_runs_no_checks_and_enters_no_node(deployed: Deploy, load: Load) -> None:
    spec = load("h100-prod")
    recorder = deployed(replace(spec, nodes=replace(spec.nodes, paused=True)))
    found = releases(recorder)
    assert found["slurm-cluster"].inputs["values"]["maintenance"] == "downscale"
    assert "soperator-activechecks" not in found
    assert not recorder.of("command:remote:Command")
