"""Values of helm-soperator-activechecks: which checks run, when, and after which others. Pure.

Every check that runs gets its `dependsOn` here, whatever the chart says: a check whose dependency
is disabled waits for ever. Owns no thresholds: they are in Soperator's health checker.
Names of 4.1.7: helm/soperator-activechecks of that tag, read 2026-11-21.
"""

from __future__ import annotations

from typing import Any, Final

from infra.render.values.pods import preset_of
from stacks.machines import checks_know
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile

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
