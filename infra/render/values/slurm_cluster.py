"""Values of helm-slurm-cluster (controller, login, accounting, REST, partitions) and its checks.

The chart writes `healthCheckConfig` itself and once more where it is given, which strict parsers
refuse: it is never given here. Every check of helm-soperator-activechecks that runs gets its
`dependsOn` here, whatever that chart says: a check whose dependency is disabled waits for ever.
Names of 4.1.7: helm/soperator-activechecks of that tag, read 2026-11-21. Pure.
"""

from __future__ import annotations

from typing import Any, Final

from infra.render import names
from infra.render.login import minimum_nodes
from infra.render.values.pods import (
    NFS,
    claim,
    nfs_volume,
    preset_of,
    quantities,
    virtiofs_guards,
)
from infra.render.values.storage import LOCAL_VOLUME_SIZE, home_on_login, home_source
from stacks.catalog import (
    MARIADB,
    MUNGE,
    REST,
    SCONFIG_CONTROLLER,
    SSSD,
    slurmdbd_amounts,
    system_amounts,
)
from stacks.machines import checks_know
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile, Maintenance, SssdSpec
from stacks.spec.nodes import NodeGroupSpec
from stacks.spec.slurm import SshServiceType

_ALLOCATION_ANNOTATION: Final = "nebius.com/load-balancer-allocation-id"
_BALANCER_ANNOTATION: Final = "nebius.com/load-balancer-type"
_LOCAL_CLASS: Final = "slurm-local-pv"
_SYSTEM: Final = "system"
# What slurm.conf needs beside the chart's own lines for accounts to bind: a job of nobody's account
# or over a limit is refused.
_ENFORCE: Final = "AccountingStorageEnforce=associations,limits,qos"
_FAIR_SHARE_WEIGHT: Final = 10_000
_QOS_WEIGHT: Final = 10_000


def slurm_cluster_values(
    spec: StackSpec, *, allocation_id: Any, ssh_public_keys: Any, nfs_address: Any = None
) -> dict[str, Any]:
    """One SlurmCluster on the stack's nodes; `allocation_id` is the login service's address."""
    claims = [
        names.JAIL,
        names.CONTROLLER_SPOOL,
        *(names.submount_tag(submount.name) for submount in spec.storage.submounts),
    ]
    values: dict[str, Any] = {
        "clusterName": spec.cluster.slurm_cluster_name,
        "cudaVersion": spec.soperator.cuda_version,
        "maintenance": maintenance(spec),
        "useDefaultAppArmorProfile": spec.soperator.apparmor,
        "k8sNodeFilters": [_node_filter(role) for role in _roles(spec)],
        "slurmConfig": _slurm_config(spec),
        # NodeName lines are rendered in structured mode only.
        "partitionConfiguration": {"configType": "structured", "partitions": _partitions(spec)},
        # A source named exactly `jail` is mandatory.
        "volumeSources": [
            *({"name": name, **claim(name)} for name in claims),
            *home_source(spec),
            *([{"name": NFS, **nfs_volume(nfs_address)}] if spec.nfs is not None else []),
        ],
        "secrets": {"sshdKeysName": names.LOGIN_HOST_KEYS},
        "populateJail": {"k8sNodeFilterName": _SYSTEM},
        "sConfigController": {
            "node": {"k8sNodeFilterName": _SYSTEM, "size": 2},
            "container": {"resources": quantities(SCONFIG_CONTROLLER)},
        },
        "slurmNodes": {
            "accounting": _accounting(spec),
            "controller": _controller(spec),
            "login": _login(spec, allocation_id, ssh_public_keys),
            # Without resources, as the chart 4.1.7 passes none on: the exporter has no guarantee.
            "exporter": {"enabled": spec.slurm.accounting, "k8sNodeFilterName": _SYSTEM},
            # REST needs accounting; soperatorchecks and reconfigure need REST.
            "rest": {
                "enabled": spec.slurm.accounting,
                "size": 2,
                "k8sNodeFilterName": _SYSTEM,
                "rest": {"resources": quantities(REST)},
            },
        },
    }
    lines = [
        *([_ENFORCE] if spec.slurm.accounts else []),
        *_kept_awake(spec),
        *spec.slurm.config_lines,
    ]
    if lines:
        values["customSlurmConfig"] = "\n".join(lines) + "\n"
    if spec.soperator.sssd is not None:
        values["slurmNodes"]["sssd"] = {
            "enabled": True,
            "resources": quantities(SSSD),
            **sssd_references(spec.soperator.sssd),
        }
    return values


def sssd_references(sssd: SssdSpec) -> dict[str, str]:
    """Names of what the sidecar reads, in the keys that both charts have for them."""
    found = {"sssdConfSecretRefName": sssd.config_secret}
    if sssd.ca_config_map is not None:
        found["sssdLdapCAConfigMapRefName"] = sssd.ca_config_map
    return found


def maintenance(spec: StackSpec) -> str:
    """Mode of the SlurmCluster: a paused stack has no pods of Slurm, whatever else is declared."""
    if spec.nodes.paused and not spec.soperator.maintenance.startswith(Maintenance.DOWNSCALE):
        return Maintenance.DOWNSCALE.value
    return spec.soperator.maintenance.value


def is_stopped(spec: StackSpec) -> bool:
    """Whether no pod of Slurm runs: nobody can enter, and no check can run."""
    return maintenance(spec).startswith(Maintenance.DOWNSCALE)


def _roles(spec: StackSpec) -> list[str]:
    roles = [_SYSTEM, "controller", "login"]
    return roles if spec.nodes.accounting is None else [*roles, "accounting"]


def _node_filter(role: str) -> dict[str, Any]:
    chosen: dict[str, Any] = {"name": role, "nodeSelector": {names.NODESET_LABEL: role}}
    if role != _SYSTEM:
        taint = {"key": names.NODESET_LABEL, "value": role, "effect": "NoSchedule"}
        chosen["tolerations"] = [{**taint, "operator": "Equal"}]
    return chosen


def _slurm_config(spec: StackSpec) -> dict[str, Any]:
    config: dict[str, Any] = {}
    if not any(worker.has_fabric for worker in spec.nodes.workers):
        # topology/tree makes GPU workers wait for labels that only InfiniBand nodes get.
        config |= {"topologyPlugin": "", "topologyParam": ""}
    if any(worker.min_nodes < worker.max_nodes for worker in spec.nodes.workers):
        # Without it nodes never go: the chart's default is thirty years.
        config["suspendTime"] = spec.slurm.suspend_after_s
    return config


def _kept_awake(spec: StackSpec) -> list[str]:
    """Keeps the least nodes of an elastic set awake: their machines are there and paid anyway.

    The operator excepts the nodes of fixed sets alone. Of two lines Slurm takes the later one,
    which is this, so it names those too ("specified more than once, latest value used").
    """
    if not any(0 < worker.min_nodes < worker.max_nodes for worker in spec.nodes.workers):
        return []
    return [f"SuspendExcNodes={','.join(minimum_nodes(spec))}"]


def _partitions(spec: StackSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": partition.name,
            "config": partition.config,
            **(
                {"nodeSetRefs": list(partition.nodesets)} if partition.nodesets else {"isAll": True}
            ),
        }
        for partition in spec.slurm.partitions
    ]


def _controller(spec: StackSpec) -> dict[str, Any]:
    return {
        "k8sNodeFilterName": "controller",
        "slurmctld": {"resources": _system_resources(spec, spec.nodes.controller)},
        "munge": {"resources": quantities(MUNGE)},
        "customInitContainers": virtiofs_guards(spec, submounts=False),
        "volumes": {
            "spool": {
                "volumeSourceName": names.CONTROLLER_SPOOL,
                # The chart's default template must be switched off by name.
                "volumeClaimTemplateSpec": None,
            }
        },
    }


def _accounting(spec: StackSpec) -> dict[str, Any]:
    group = spec.nodes.accounting
    if not spec.slurm.accounting or group is None:
        return {"enabled": False, "k8sNodeFilterName": _SYSTEM}
    left = slurmdbd_amounts(preset_of(group), group.boot_disk.size_gib)
    values: dict[str, Any] = {
        "enabled": True,
        "k8sNodeFilterName": "accounting",
        "slurmdbd": {"resources": quantities(left)},
        "munge": {"resources": quantities(MUNGE)},
        "customInitContainers": virtiofs_guards(spec, submounts=False),
        "mariadbOperator": {
            "enabled": True,
            "resources": quantities(MARIADB),
            "storage": {
                "ephemeral": False,
                # The storage chart's volume offers ReadWriteMany alone, nothing provisions another,
                # and a claim binds only to a volume with all its modes (nebius/soperator 4.1.7,
                # helm/slurm-cluster-storage/templates/accounting-pv.yaml; Kubernetes,
                # FindMatchingVolume).
                "volumeClaimTemplate": {
                    "accessModes": ["ReadWriteMany"],
                    "resources": {"requests": {"storage": LOCAL_VOLUME_SIZE}},
                    "storageClassName": _LOCAL_CLASS,
                },
            },
        },
    }
    if spec.slurm.accounts:
        values["slurmConfig"] = {
            "priorityWeightFairshare": _FAIR_SHARE_WEIGHT,
            "priorityWeightQOS": _QOS_WEIGHT,
        }
    return values


def _login(spec: StackSpec, allocation_id: Any, ssh_public_keys: Any) -> dict[str, Any]:
    login = spec.login
    service: dict[str, Any]
    if login.service is SshServiceType.NODE_PORT:
        service = {"sshdServiceType": "NodePort", "sshdServiceNodePort": login.ssh_port}
    else:
        service = {
            "sshdServiceType": "LoadBalancer",
            "sshdServiceAnnotations": {_ALLOCATION_ANNOTATION: allocation_id},
        }
        if not login.public_ip:
            service["sshdServiceAnnotations"][_BALANCER_ANNOTATION] = "internal"
        if login.allowed_cidrs:
            service["sshdServiceLoadBalancerSourceRanges"] = list(login.allowed_cidrs)
    return {
        "k8sNodeFilterName": "login",
        "size": spec.nodes.login.min_nodes,
        **service,
        "sshRootPublicKeys": ssh_public_keys,
        "sshd": {"resources": _system_resources(spec, spec.nodes.login)},
        "munge": {"resources": quantities(MUNGE)},
        "customInitContainers": virtiofs_guards(spec, submounts=True),
        "volumes": {
            "jailSubMounts": [
                *(
                    {
                        "name": submount.name,
                        "mountPath": submount.mount_path,
                        "volumeSourceName": names.submount_tag(submount.name),
                    }
                    for submount in spec.storage.submounts
                ),
                *home_on_login(spec),
                *_nfs_on_login(spec),
            ]
        },
    }


def _nfs_on_login(spec: StackSpec) -> list[dict[str, Any]]:
    if spec.nfs is None:
        return []
    return [{"name": NFS, "mountPath": spec.nfs.mount_path, "volumeSourceName": NFS}]


def _system_resources(spec: StackSpec, group: NodeGroupSpec) -> dict[str, str]:
    sssd = spec.soperator.sssd is not None
    return quantities(system_amounts(preset_of(group), group.boot_disk.size_gib, sssd=sssd))


TIMEOUT_S: Final = 7200
"""The release ends when every check that runs after creation has: what the recipe allows."""

_USER: Final = "create-user-soperatorchecks"
_SRUN: Final = "wait-for-soperatorchecks-srun-ready"
_TOPOLOGY: Final = "wait-for-topology"
_JAIL_STATE: Final = "manage-jail-state"
_HEALTHY: Final = "ensure-healthy-nodes"
_SSH: Final = "ssh-check"
# Minutes on an exclusive node each.
_QUICK_GPU: Final = (
    "cuda-samples",
    "all-reduce-perf-nccl-without-ib",
    "mem-perf",
    "dcgmi-diag-r2",
)
_QUICK_FABRIC: Final = ("all-reduce-perf-nccl-with-ib", "ib-gpu-perf")
# Up to two hours on an exclusive node each, or started by another check.
_LONG_GPU: Final = ("all-reduce-perf-nccl-in-docker", "gpu-fryer", "dcgmi-diag-r3")
_ON_DEMAND: Final = "extensive-check"
_PREPULL: Final = "prepull-container-image"


def active_checks_values(spec: StackSpec) -> dict[str, Any]:
    """The checks of the declared profile on this stack's hardware."""
    values: dict[str, Any] = {
        "slurmClusterRefName": spec.cluster.slurm_cluster_name,
        # The check of the jail's state installs this CUDA: another than the jail's would undo it.
        "cudaVersion": spec.soperator.cuda_version,
        "checks": _checks(spec),
    }
    gpus = [count for worker in spec.nodes.workers if (count := preset_of(worker).gpus)]
    if gpus:
        # The chart asks for 8: on smaller nodes each GPU check would wait for its deadline.
        values["slurmJob"] = {"gpusPerNode": str(min(gpus))}
    return values


def _checks(spec: StackSpec) -> dict[str, Any]:
    fabric = any(worker.has_fabric for worker in spec.nodes.workers)
    profile = spec.soperator.checks
    gpu_checks = _gpu_checks(spec, fabric)
    # Without a fabric topology.conf stays empty, and the check that waits for it never ends.
    topology = [_TOPOLOGY] if fabric else []
    state = [_JAIL_STATE] if profile is ChecksProfile.FULL else []
    checks: dict[str, Any] = {
        _USER: _run([]),
        "create-user-nebius": _run([_USER]),
        _JAIL_STATE: {"runAfterCreation": bool(state), "dependsOn": [_USER]},
        _TOPOLOGY: _run([]) if fabric else {"enabled": False},
        _SRUN: _run([_USER, *topology]),
        _SSH: _ssh_check(spec),
        # It is told to wait for the checks that run, and for none that does not.
        _HEALTHY: _run([_SRUN, *state, *gpu_checks]),
    }
    once = profile is ChecksProfile.QUICK
    for name in (*_QUICK_GPU, *_QUICK_FABRIC, *_LONG_GPU):
        checks[name] = _gpu_check(once) if name in gpu_checks else {"enabled": False}
    checks[_PREPULL] = _run([_SRUN]) if gpu_checks else {"enabled": False}
    # Other checks ask for it; it takes its nodes by a reservation of its own.
    checks[_ON_DEMAND] = (
        {"runAfterCreation": False, "dependsOn": [_SRUN]}
        if gpu_checks and profile is ChecksProfile.FULL
        else {"enabled": False}
    )
    return checks


def _gpu_checks(spec: StackSpec, fabric: bool) -> tuple[str, ...]:
    """GPU checks that run: none on hardware that the health checker does not know."""
    profile = spec.soperator.checks
    if profile not in (ChecksProfile.QUICK, ChecksProfile.FULL):
        return ()
    if not any(checks_know(worker) for worker in spec.nodes.workers):
        return ()
    chosen = (*_QUICK_GPU, *_QUICK_FABRIC) if fabric else _QUICK_GPU
    return (*chosen, *_LONG_GPU) if profile is ChecksProfile.FULL else chosen


def _run(after: list[str]) -> dict[str, Any]:
    return {"runAfterCreation": True, "dependsOn": after}


def _gpu_check(once: bool) -> dict[str, Any]:
    check = _run([_SRUN, _PREPULL])
    # Its schedule takes whole nodes from the users several times a day.
    return {**check, "suspend": True} if once else check


def _ssh_check(spec: StackSpec) -> dict[str, Any]:
    count = {"name": "NUM_OF_LOGIN_NODES", "value": str(spec.nodes.login.min_nodes)}
    return {**_run([_USER]), "k8sJobSpec": {"jobContainer": {"env": [count]}}}
