"""What the pre-flight check says of a project that holds the stack, and of one that does not."""

from __future__ import annotations

import re
import socket
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from infra.operate.preflight import ask as questions
from infra.operate.preflight.ask import QUESTIONS, ask, doubts, in_short, refusal
from infra.operate.preflight.supply import Cloud, Finding, Outcome, ask_quotas, not_checked
from infra.providers.soperator.teardown import CLAIM_LABEL
from stacks.machines import machines
from stacks.rules.quotas import quota_use
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, ReservationSpec
from tests.unit.nebius_api.conftest import Served
from tests.unit.preflight.conftest import PROJECT, Account

GOLDEN = Path(__file__).parents[2] / "golden"
OURS = {"managed-by": "soperator-stack", "stack": "h100-prod", "project": PROJECT}
GPUS = "compute.instance.gpu.h100"


def found(spec: StackSpec, check: str) -> list[Finding]:
    """The answers to one question."""
    return [one for one in ask(spec, project=PROJECT) if one.check.startswith(check)]


def with_worker(spec: StackSpec, **changes) -> StackSpec:
    (worker,) = spec.nodes.workers
    return replace(spec, nodes=replace(spec.nodes, workers=(replace(worker, **changes),)))


def test_an_empty_project_with_room_passes_all_that_an_emulator_can_tell(served, h100):
    findings = ask(h100, project=PROJECT)
    silent = {one.check for one in findings if one.outcome is Outcome.NOT_CHECKED}
    assert silent == {"token expiry", "charts"}
    assert [str(one) for one in findings if one.outcome is Outcome.FAIL] == []
    assert refusal(findings) is None
    assert in_short(findings).endswith("not checked: token expiry, charts")


def test_a_quota_that_is_too_small_is_certain_and_comes_as_a_table(served, account, h100):
    """Seed 002: the filesystem quota of 5 TiB was found after half of the cluster stood."""
    project = h100.nebius.project_id
    account.limit(project, "compute.filesystem.size.network-ssd", 5 << 40)
    account.make(
        "compute.v1.FilesystemService", project, "other", {"type": 1, "size_gibibytes": 4096}
    )
    (finding,) = found(h100, "quotas")
    assert finding.certain
    head, row = finding.seen.splitlines()[1:]
    assert head.split() == ["QUOTA", "NEEDS", "OWN", "USED", "LIMIT", "MISSING"]
    name, needs, _, own, _, used, _, limit, _, missing, _ = row.split()
    assert (name, own, used, limit) == (
        "compute.filesystem.size.network-ssd",
        "0",
        "4096",
        "5120",
    )
    assert int(missing) == 4096 + int(needs) - 5120
    assert finding.fix is not None
    assert "soperator cost --stack h100-prod --alternatives" in finding.fix
    assert "quotas: too small" in str(refusal([finding]))


def test_what_the_stack_has_already_is_not_counted_twice(served, account, h100):
    project = h100.nebius.project_id
    spec = {"type": 1, "size_gibibytes": h100.storage.jail.size_gib}
    account.make("compute.v1.FilesystemService", project, "h100-prod-jail", spec, OURS)
    needs = quota_use(h100, at_max=False)["compute.filesystem.count"]
    account.limit(project, "compute.filesystem.count", needs)
    (finding,) = found(h100, "quotas")
    assert finding.outcome is Outcome.PASS, finding.seen
    account.make("compute.v1.FilesystemService", project, "strange", spec)
    (finding,) = found(h100, "quotas")
    assert finding.certain


def test_disks_that_workers_have_for_themselves_are_not_counted_twice(served, account, h200):
    project = h200.nebius.project_id
    (worker,) = h200.nodes.workers
    (disk,) = worker.local_disks
    quota = f"compute.disk.size.{disk.type}"
    needs = quota_use(h200, at_max=False)[quota]
    assert needs == worker.min_nodes * disk.size_gib
    account.limit(project, quota, needs << 30)
    ours = {**OURS, "stack": "h200-elastic"}
    control = {"control_plane": {"version": "1.33", "subnet_id": "vpcsubnet-e00pdefault"}}
    cluster = account.make("mk8s.v1.ClusterService", project, "h200-elastic-kube", control, ours)
    template = {
        "metadata": {"labels": {"slurm.nebius.ai/nodeset-name": worker.name}},
        "resources": {"platform": worker.platform, "preset": worker.preset},
        "boot_disk": {"size_gibibytes": 256, "type": "NETWORK_SSD"},
    }
    group = {"version": "1.33", "fixed_node_count": worker.min_nodes, "template": template}
    account.make("mk8s.v1.NodeGroupService", cluster, "h200-elastic-worker", group)
    label = {CLAIM_LABEL: h200.cluster.namespace}
    spec = {"type": disk.type.upper().replace("-", "_"), "size_gibibytes": disk.size_gib}
    for index in range(worker.min_nodes):
        account.make("compute.v1.DiskService", project, f"pvc-{index}", spec, label)
    (finding,) = found(h200, "quotas")
    assert finding.outcome is Outcome.PASS, finding.seen
    # A disk of another cluster's claim is not ours: one more node finds its place taken.
    account.limit(project, quota, (needs + disk.size_gib) << 30)
    grown = with_worker(h200, min_nodes=worker.min_nodes + 1, max_nodes=worker.min_nodes + 1)
    (finding,) = found(grown, "quotas")
    assert finding.outcome is Outcome.PASS, finding.seen
    account.make("compute.v1.DiskService", project, "pvc-other", spec, label)
    (finding,) = found(grown, "quotas")
    assert finding.seen.split()[-2:] == [str(disk.size_gib), "GiB"]


def test_sixteen_gpus_must_fit_unless_they_are_reserved(served, account, h100):
    account.limit(h100.nebius.project_id, GPUS, 15)
    (finding,) = found(h100, "quotas")
    assert f"  {GPUS}" in finding.seen
    reserved = with_worker(h100, billing=Billing.RESERVED)
    (finding,) = found(reserved, "quotas")
    assert finding.outcome is Outcome.PASS


def test_a_limit_that_only_autoscaling_passes_warns_and_refuses_nothing(served, account, h100):
    grown = with_worker(h100, max_nodes=9)
    findings = found(grown, "quotas")
    assert [one.outcome for one in findings] == [Outcome.PASS, Outcome.FAIL]
    assert "at max_nodes" in findings[1].seen
    assert refusal(findings) is None


def test_the_live_platform_says_which_quota_its_gpus_count_in(served, account, h100):
    project = h100.nebius.project_id
    platform = account.resource("computeplatform", "gpu-h100-sxm")
    for one in served.emulator.store.of_kind("computeplatform"):
        if one.metadata.name == "gpu-h100-sxm":
            one.spec.gpu_count_quota_type = "compute.instance.gpu.h200"
    assert platform.spec.gpu_count_quota_type == "compute.instance.gpu.h200"
    account.limit(project, "compute.instance.gpu.h200", 8)
    (finding,) = found(h100, "quotas")
    assert "compute.instance.gpu.h200" in finding.seen
    assert finding.certain


def test_a_quota_without_a_limit_is_named_and_refuses_nothing(served, h100):
    store = served.emulator.store
    for one in list(store.of_kind("quotaallowance")):
        store.drop(one.metadata.id)
    (finding,) = found(h100, "quotas")
    assert finding.outcome is Outcome.NOT_CHECKED
    assert GPUS in finding.seen


def test_a_lack_of_machines_warns_with_what_there_is(served, account, h100):
    for one in served.emulator.store.of_kind("resourceadvice"):
        one.status.on_demand.available = 1
    (finding,) = found(h100, "capacity")
    assert finding.outcome is Outcome.FAIL
    assert not finding.certain
    assert "2 more nodes wanted, 1 to be had now, level MEDIUM" in finding.seen
    assert doubts([finding]) == [str(finding)]


def test_stale_advice_counts_as_none(served, h100):
    for one in served.emulator.store.of_kind("resourceadvice"):
        one.status.on_demand.data_state = 2
    (finding,) = found(h100, "capacity")
    assert finding.outcome is Outcome.NOT_CHECKED
    assert "DATA_STATE_STALE" in finding.seen


def test_a_declared_capacity_block_must_exist_and_fit(served, h100):
    key = h100.nebius.project_id.removeprefix("project-")

    def reserved(id_: str) -> StackSpec:
        ids = ReservationSpec(ids=(id_,))
        return with_worker(h100, billing=Billing.RESERVED, reservation=ids)

    (good,) = found(reserved(f"capacityblockgroup-{key}fabric-6"), "capacity")
    assert good.outcome is Outcome.PASS
    (other,) = found(reserved(f"capacityblockgroup-{key}fabric-7"), "capacity")
    assert other.certain
    assert "is for gpu-h200-sxm" in other.seen
    (absent,) = found(reserved("capacityblockgroup-e00none"), "capacity")
    assert "does not exist" in absent.seen


def test_a_platform_or_preset_that_the_api_lost_is_certain(served, account, h100):
    store = served.emulator.store
    for one in list(store.of_kind("computeplatform")):
        if one.metadata.name == "gpu-h100-sxm":
            store.drop(one.metadata.id)
    finding = found(h100, "platforms")[0]
    assert finding.certain
    assert finding.seen == "nodes.workers[0]: the project has no platform 'gpu-h100-sxm'"
    assert "gpu-h200-sxm" in str(finding.fix)
    (drift,) = found(h100, "catalog")
    assert re.search(r"agrees with the API on (\d) of (?!\1)\d presets that are used", drift.seen)


def test_a_catalog_of_which_the_api_lists_nothing_that_is_used_is_not_checked(
    served, account, h100
):
    store = served.emulator.store
    used = {machine.platform for _, machine in machines(h100)}
    for one in list(store.of_kind("computeplatform")):
        if one.metadata.name in used:
            store.drop(one.metadata.id)
    (finding,) = found(h100, "catalog")
    assert finding.outcome is Outcome.NOT_CHECKED
    assert finding.seen == "the API lists none of what is used"


def test_a_preset_that_grew_is_told_as_drift_of_the_catalog(served, account, h100):
    for one in served.emulator.store.of_kind("computeplatform"):
        for preset in one.spec.presets:
            if preset.name == "8gpu-128vcpu-1600gb":
                preset.resources.memory_gibibytes = 1760
    (finding,) = found(h100, "catalog")
    assert "GiB of memory: 1600 in the catalog, 1760 in the API" in finding.seen
    assert not finding.certain


def test_a_kubernetes_version_that_is_not_offered_is_certain(served, h100):
    cluster = replace(h100.cluster, kubernetes_version="1.30")
    (finding,) = found(replace(h100, cluster=cluster), "kubernetes version")
    assert finding.certain
    assert "one of: 1.31, 1.32, 1.33" in str(finding.fix)


def test_drivers_that_no_image_has_are_certain(served, h100):
    cluster = replace(h100.cluster, drivers_preset="cuda11")
    (finding,) = found(replace(h100, cluster=cluster), "drivers")
    assert finding.certain
    assert "has cuda11 on ubuntu24.04 for gpu-h100-sxm" in finding.seen
    assert "cuda13.0 on ubuntu24.04" in str(finding.fix)


def test_a_name_that_a_stranger_has_is_certain_and_our_own_is_not(served, account, h100):
    project = h100.nebius.project_id
    id_ = account.make("vpc.v1.NetworkService", project, "h100-prod-network")
    if h100.nebius.network_id is None:
        (finding,) = found(h100, "names")
        assert finding.certain
        assert id_ in finding.seen
    account.remove("vpc.v1.NetworkService", id_)
    account.make("vpc.v1.NetworkService", project, "h100-prod-network", labels=OURS)
    (finding,) = found(h100, "names")
    assert finding.outcome is Outcome.PASS


def test_a_token_that_is_not_accepted_is_certain(served, h100, monkeypatch):
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "wrong")
    findings = ask(h100, project=PROJECT)
    assert [one.check for one in findings if one.certain] == ["credentials"]
    others = {one.outcome for one in findings if one.check != "credentials"}
    assert others == {Outcome.NOT_CHECKED}


def test_a_project_of_another_region_or_none_is_certain(served, h100):
    nebius = replace(h100.nebius, region="eu-west1")
    (finding,) = found(replace(h100, nebius=nebius), "permissions")
    assert finding.certain
    assert "the project is in eu-north1" in finding.seen
    nebius = replace(h100.nebius, project_id="project-e00gone")
    (finding,) = found(replace(h100, nebius=nebius), "permissions")
    assert "project-e00gone cannot be read" in finding.seen


def test_a_token_that_ends_before_the_up_does_is_told():
    short = questions._expiry(timedelta(minutes=12))
    assert short.outcome is Outcome.FAIL
    assert short.seen == "12 min left; a first `up` takes up to 45 min"
    assert questions._expiry(timedelta(hours=11)).outcome is Outcome.PASS


def test_an_api_that_is_down_stops_nobody(served, h100, monkeypatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", f"http://{nobody}")
    findings = ask(h100, project=PROJECT)
    assert {one.outcome for one in findings} == {Outcome.NOT_CHECKED}
    assert refusal(findings) is None
    assert any(one.seen == f"no answer from {nobody}" for one in findings)


def test_an_api_that_hangs_is_given_up_and_what_answered_counts(served, h100):
    served.plant("QuotaAllowance", "SLOW", seconds=30, times=9)
    findings = ask(h100, project=PROJECT, within_s=2.0)
    late = [one for one in findings if one.check == "quotas"]
    assert [one.outcome for one in late] == [Outcome.NOT_CHECKED]
    assert any(one.outcome is Outcome.PASS for one in findings)


def test_without_credentials_nothing_is_checked_and_the_way_out_is_named(h100, monkeypatch):
    monkeypatch.delenv("SOPERATOR_NEBIUS_ENDPOINT", raising=False)
    monkeypatch.delenv("NEBIUS_IAM_TOKEN", raising=False)
    monkeypatch.setattr("infra.providers.nebius.sdk.CLI_CONFIG", Path("/nowhere/config.yaml"))
    monkeypatch.setattr("infra.operate.preflight.ask.look_up", lambda *_: not_checked(""))
    findings = ask(h100, project=PROJECT)
    assert {one.outcome for one in findings} == {Outcome.NOT_CHECKED}
    assert any("NEBIUS_IAM_TOKEN" in one.seen for one in findings)


def test_every_question_is_answered(served, h100):
    asked = {one.check.split(" of ")[0] for one in ask(h100, project=PROJECT)}
    assert set(QUESTIONS) | {"catalog"} == asked


def test_the_charts_of_the_registry_are_those_that_the_stack_installs(h100):
    assert {"helm-soperator", "helm-slurm-cluster", "helm-nodesets"} <= set(
        questions.own_charts(h100)
    )
    assert not any("cert-manager" in one for one in questions.own_charts(h100))


def test_a_closed_registry_is_not_checked():
    finding = questions.look_up("http://127.0.0.1:9", "soperator", ["helm-nodesets"], "4.1.7")
    assert finding.outcome is Outcome.NOT_CHECKED
    assert "no answer from http://127.0.0.1:9" in finding.seen


@pytest.mark.parametrize(
    ("status", "outcome"), [(404, "FAIL"), (401, "NOT CHECKED"), (200, "PASS")]
)
def test_the_registry_says_whether_a_chart_is_there(httpserver_of, status, outcome):
    finding = questions.look_up(httpserver_of(status), "soperator", ["helm-nodesets"], "9.9.9")
    assert finding.outcome == outcome
    assert finding.certain is (status == 404)


def test_the_stack_is_the_owner_only_with_its_own_labels(served, account: Account, h100):
    id_ = account.make(
        "vpc.v1.NetworkService", h100.nebius.project_id, "h100-prod-network", labels=OURS
    )
    network = served.emulator.store.resources[id_]
    cloud = Cloud(within_s=5, project=PROJECT)
    assert cloud.owns(h100, network)
    assert not cloud.owns(replace(h100, name="l40s-dev"), network)
    assert not Cloud(within_s=5, project="another").owns(h100, network)


def test_reads_only(served: Served, h100):
    before = dict(served.emulator.store.resources)
    ask(h100, project=PROJECT)
    assert served.emulator.store.resources == before
    methods = {call["method"].partition("/")[2] for call in served.emulator.calls}
    assert all(name.startswith(("Get", "List")) for name in methods)


def test_one_question_can_be_asked_alone(served, h100):
    (finding,) = ask_quotas(Cloud(within_s=5, project=PROJECT), h100)
    assert finding.outcome is Outcome.PASS
