"""Whether the live API offers what is declared, and where it differs from stacks/catalog.py.

Asks for platforms and presets, Kubernetes versions and the drivers in the images of node groups.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import Owner
from infra.render.node_group import node_group_spec, roles
from stacks.catalog import PLATFORMS, Preset
from stacks.machines import machines
from stacks.spec import StackSpec

PLATFORM_CHECK: Final = "platforms"
DRIFT_CHECK: Final = "catalog"
VERSION_CHECK: Final = "kubernetes version"
DRIVER_CHECK: Final = "drivers"


def ask_platforms(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Whether every platform and preset exists where the project is."""
    live = {
        one.metadata.name: {preset.name: preset for preset in one.spec.presets}
        for one in cloud.list("compute.v1.PlatformService", spec.nebius.project_id)
    }
    if not live:
        return [not_checked(PLATFORM_CHECK, "the API lists none")]
    findings = []
    for path, machine in machines(spec):
        if machine.platform not in live:
            has = ", ".join(sorted(live))
            seen = f"{path}: the project has no platform {machine.platform!r}"
            findings.append(failed(PLATFORM_CHECK, seen, f"choose of: {has}", certain=True))
        elif machine.preset not in live[machine.platform]:
            has = ", ".join(live[machine.platform])
            seen = f"{path}: {machine.platform} has no preset {machine.preset!r}"
            findings.append(failed(PLATFORM_CHECK, seen, f"choose of: {has}", certain=True))
    if not findings:
        findings.append(passed(PLATFORM_CHECK, "every declared platform and preset is offered"))
    return [*findings, _drift(spec, live)]


def _drift(spec: StackSpec, live: Mapping[str, Mapping[str, Any]]) -> Finding:
    """What the stack uses and the API describes in other words than our catalog."""
    used = {(machine.platform, machine.preset) for _, machine in machines(spec)}
    lines = []
    for platform, preset in sorted(used):
        known = PLATFORMS.get(platform)
        mine = known.presets.get(preset) if known is not None else None
        theirs = live.get(platform, {}).get(preset)
        if theirs is not None and mine is not None:
            lines += [f"{platform} {preset}: {line}" for line in _differences(mine, theirs)]
        elif theirs is not None:
            lines.append(f"{platform} {preset}: not in the catalog")
    if lines:
        fix = "correct stacks/catalog.py: memory and CPUs of Slurm's nodes are computed from it"
        return failed(DRIFT_CHECK, "; ".join(lines), fix)
    new = sorted(live.keys() - PLATFORMS.keys())
    more = f"; the API also has {', '.join(new)}" if new else ""
    return passed(DRIFT_CHECK, f"agrees with the API on all that is used{more}")


def _differences(mine: Preset, theirs: Any) -> Iterator[str]:
    own = theirs.resources
    pairs = (
        ("vCPUs", mine.vcpus, own.vcpu_count),
        ("GiB of memory", mine.memory_gib, own.memory_gibibytes),
        ("GPUs", mine.gpus, own.gpu_count),
        ("GPU cluster", mine.allows_gpu_cluster, theirs.allow_gpu_clustering),
    )
    for what, ours, live in pairs:
        if ours != live:
            yield f"{what}: {ours} in the catalog, {live} in the API"


def ask_versions(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Whether the control plane can have the declared Kubernetes version."""
    wanted = spec.cluster.kubernetes_version
    known = {
        one.version: one
        for one in cloud.get("mk8s.v1.ClusterService", "ListControlPlaneVersions").items
    }
    has = ", ".join(sorted(known))
    fix = f"set cluster.kubernetes_version to one of: {has}"
    if not known:
        return [not_checked(VERSION_CHECK, "the API lists none")]
    if wanted not in known:
        return [failed(VERSION_CHECK, f"{wanted} is not offered", fix, certain=True)]
    if known[wanted].deprecated or known[wanted].restricted:
        word = "deprecated" if known[wanted].deprecated else "restricted"
        return [failed(VERSION_CHECK, f"{wanted} is {word}", fix)]
    return [passed(VERSION_CHECK, f"{wanted} is offered")]


def ask_drivers(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """Whether an image has the declared drivers for each GPU platform and Kubernetes version."""
    wanted: dict[tuple[str, str], set[str]] = defaultdict(set)
    for role in roles(spec):
        # No id changes an image.
        ids: Mapping[str, str] = defaultdict(str)
        rendered = node_group_spec(spec, role, subnet_id="", filesystem_ids=ids)
        template = rendered["template"]
        drivers = template.get("gpu_settings", {}).get("drivers_preset")
        if drivers:
            wanted[template["os"], drivers].add(role.group.platform)
    if not wanted:
        return [passed(DRIVER_CHECK, "no node image brings GPU drivers")]
    version = spec.cluster.kubernetes_version
    matrix = cloud.get(
        "mk8s.v1.NodeGroupService", "GetCompatibilityMatrix", cluster_kubernetes_version=version
    )
    items = [one for each in matrix.versions for one in each.items]
    if not items:
        return [not_checked(DRIVER_CHECK, f"the API lists no image for Kubernetes {version}")]
    offered = {
        (item.os, item.drivers_preset, platform)
        for item in items
        for platform in item.compatible_platforms
    }
    findings = []
    for (os, drivers), platforms in wanted.items():
        for platform in sorted(platforms):
            if (os, drivers, platform) not in offered:
                has = sorted(f"{d} on {o}" for o, d, p in offered if p == platform)
                seen = f"no image of Kubernetes {version} has {drivers} on {os} for {platform}"
                fix = f"choose of: {', '.join(has) or 'none: another platform or version'}"
                findings.append(failed(DRIVER_CHECK, seen, fix, certain=True))
    if findings:
        return findings
    names = ", ".join(sorted({drivers for _, drivers in wanted}))
    return [passed(DRIVER_CHECK, f"{names} is offered for Kubernetes {version}")]
