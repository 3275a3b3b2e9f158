"""Every resource hangs under the component that makes it, and nothing under the bare stack."""

from __future__ import annotations

import pytest

from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import OUTPUTS, Recorder, Registered

pytestmark = pytest.mark.parametrize("stack", SHIPPED)
STACK = "soperator:infra:Stack"
OWNER = {
    "nebius:vpc/v1:Network": "Network",
    "nebius:vpc/v1:Subnet": "Network",
    "nebius:vpc/v1:Allocation": "Network",
    "nebius:compute/v1:Filesystem": "Filesystems",
    "nebius:storage/v1:Bucket": "Buckets",
    "nebius:mk8s/v1:Cluster": "KubeCluster",
    "nebius:mk8s/v1:NodeGroup": "NodeGroups",
    "nebius:compute/v1:GpuCluster": "NodeGroups",
    "nebius:applications/v1alpha1:K8sRelease": "NvidiaOperators",
    "soperator:storage:Object": "RunConfigs",
    "soperator:ssh:KeyPair": "Stack",
    "soperator:kube:Teardown": "Stack",
    "soperator:cloud:StateId": "Stack",
    "soperator:cloud:StateGuard": "Stack",
    "pulumi:providers:kubernetes": "Stack",
    "kubernetes:core/v1:Namespace": "SlurmCluster",
    "soperator:kube:PodsStarted": "SlurmCluster",
    "nebius:iam/v1:ServiceAccount": "Backups",
    "nebius:iam/v1:Group": "Backups",
    "nebius:iam/v1:GroupMembership": "Backups",
    "nebius:iam/v1:AccessPermit": "Backups",
    "nebius:iam/v2:AccessKey": "Backups",
    "soperator:random:Password": "Backups",
    "soperator:time:Expiry": "Backups",
    "kubernetes:core/v1:Secret": "SlurmCluster",
    "command:remote:Command": "Login",
    "command:remote:CopyToRemote": "Login",
}
BACKUPS = {
    "k8up",
    "k8up-custom-resources",
    *(
        f"{stack}-{name}"
        for stack in SHIPPED
        for name in (
            "jail-backup",
            "jail-backup-kept",
            "jail-backup-pods",
            "jail-backup-schedule",
        )
    ),
}
"""Of types that other components have too."""
SLURM_RELEASES = {"slurm-cluster-storage", "slurm-cluster", "nodesets", "soperator-activechecks"}


def custom(recorder: Recorder) -> list[Registered]:
    return [each for each in recorder.registered if each.custom and each.type != OUTPUTS]


def test_every_resource_is_under_its_component_under_the_stack(
    deployed: Deploy, stack: str
) -> None:
    """The chain is in the URN: moving a resource later would replace it."""
    recorder = deployed(stack)
    for each in custom(recorder):
        owner = "Backups" if each.name in BACKUPS else OWNER.get(each.type)
        if "-config-" in each.name:
            owner = "RunConfigs"
        if owner is None:
            of_jail = each.name.endswith(("-jail-files", "-jailed-config"))
            is_inside = each.name in SLURM_RELEASES or of_jail
            owner = "SlurmCluster" if is_inside else "Soperator"
        above = STACK if owner == "Stack" else f"{STACK}$soperator:infra:{owner}"
        assert each.urn.split("::")[2] == f"{above}${each.type}", each.name


def test_only_the_stack_itself_is_at_the_top(deployed: Deploy, stack: str) -> None:
    top = [
        each.type
        for each in deployed(stack).registered
        if each.parent.split("::")[2:3] == ["pulumi:pulumi:Stack"]
    ]
    assert top == [STACK, OUTPUTS]


def test_no_two_resources_share_a_urn(deployed: Deploy, stack: str) -> None:
    urns = [each.urn for each in deployed(stack).registered]
    assert len(urns) == len(set(urns))


def test_names_in_the_api_are_the_names_in_the_state(deployed: Deploy, stack: str) -> None:
    """Whoever reads a preview finds the same name in the cloud's console."""
    for each in deployed(stack).registered:
        if each.type.startswith("nebius:"):
            assert each.inputs["metadata"]["name"] == each.name
            assert each.name.startswith(f"{stack}-")


def test_everything_in_the_cluster_goes_through_its_own_provider(
    deployed: Deploy, stack: str
) -> None:
    """A default provider would take the user's current kubectl context."""
    recorder = deployed(stack)
    provider = recorder.one("pulumi:providers:kubernetes").urn
    inside = [each for each in recorder.registered if each.type.startswith("kubernetes:")]
    assert inside
    for each in inside:
        assert each.provider.startswith(f"{provider}::"), each.name
