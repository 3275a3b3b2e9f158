"""The arithmetic of the recipe, against the figures that its own plan prints."""

from __future__ import annotations

import pytest

from infra.render.charts import preset_of, quantities, requests_and_limits
from stacks.catalog import (
    KRUISE_DAEMON,
    MUNGE,
    SSSD,
    Amounts,
    find_preset,
    node_capacity,
    slurmd_amounts,
    slurmdbd_amounts,
    system_amounts,
)
from stacks.spec.nodes import BootDiskSpec, NodeGroupSpec

BOOT_GIB = 512
# Preset, then vCPUs and GiB of the node, then vCPUs, GiB and ephemeral GiB of slurmd: what the
# recipe plans for a boot disk of 512 GiB (nebius-solutions-library 4.0.0-1, commit 7b687e5).
PUBLISHED = [
    ("cpu-d3", "8vcpu-32gb", 7, 26.8, "5.95", 24, 382),
    ("cpu-d3", "16vcpu-64gb", 15, 55.6, "13.95", 53, 382),
    ("gpu-h100-sxm", "8gpu-128vcpu-1600gb", 127, 1438, "125.95", 1436, 382),
    ("gpu-b200-sxm", "8gpu-160vcpu-1792gb", 159, 1610.8, "157.95", 1608, 382),
    ("gpu-b300-sxm", "8gpu-192vcpu-2768gb", 191, 2489.2, "189.95", 2487, 382),
]


def preset(platform: str, name: str):
    found = find_preset(platform, name)
    assert found is not None
    return found


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row[1])
def test_slurmd_asks_for_what_the_recipe_publishes(row) -> None:
    platform, name, node_cpus, node_gib, cpus, memory_gib, ephemeral_gib = row
    node = node_capacity(preset(platform, name), BOOT_GIB)
    assert (node.cpu_m, node.memory_mib) == (node_cpus * 1000, int(node_gib) * 1024)
    assert quantities(slurmd_amounts(preset(platform, name), BOOT_GIB)) == {
        "cpu": f"{round(float(cpus) * 1000)}m",
        "memory": f"{memory_gib}Gi",
        "ephemeralStorage": f"{ephemeral_gib}Gi",
    }


def test_controller_and_login_leave_room_for_munge_and_the_daemon_of_kruise() -> None:
    """floor(15 - 0.1 - 0.05) vCPUs, floor(55 - 0.5 - 0.128) GiB, 128 * 0.85 - 48 - 5 GiB."""
    found = system_amounts(preset("cpu-d3", "16vcpu-64gb"), 128)
    assert quantities(found) == {"cpu": "14000m", "memory": "54Gi", "ephemeralStorage": "55Gi"}


def test_a_sidecar_of_sssd_takes_its_part_of_workers_controller_and_login() -> None:
    """floor(15 - 0.1 - 0.2) - 0.05 vCPUs, floor(floor(55 - 0.5 - 0.5) - 0.128), 387 - 5 - 5."""
    chosen = preset("cpu-d3", "16vcpu-64gb")
    assert quantities(slurmd_amounts(chosen, BOOT_GIB, sssd=True)) == {
        "cpu": "13950m",
        "memory": "53Gi",
        "ephemeralStorage": "377Gi",
    }
    found = quantities(system_amounts(chosen, 128, sssd=True))
    assert found == {"cpu": "14000m", "memory": "53Gi", "ephemeralStorage": "50Gi"}


def test_every_published_preset_has_room_for_sssd_beside_slurmd() -> None:
    for platform, name, *_ in PUBLISHED:
        chosen = preset(platform, name)
        both = slurmd_amounts(chosen, BOOT_GIB, sssd=True)
        rest = node_capacity(chosen, BOOT_GIB).less(both, MUNGE, SSSD, KRUISE_DAEMON)
        assert rest.cpu_m >= 0
        assert rest.memory_mib >= 0
        assert rest.ephemeral_mib == 0


def test_slurmdbd_gets_what_munge_and_the_database_leave() -> None:
    """7 - 0.1 - 2 vCPUs, 26 - 0.5 - 12 GiB, 60 - 5 - 16 GiB."""
    found = slurmdbd_amounts(preset("cpu-d3", "8vcpu-32gb"), 128)
    assert quantities(found) == {"cpu": "4900m", "memory": "13824Mi", "ephemeralStorage": "39Gi"}
    assert found.is_positive


def test_a_preset_that_is_too_small_is_told_by_its_negative_rest() -> None:
    assert not slurmdbd_amounts(preset("cpu-d3", "4vcpu-16gb"), 128).is_positive
    assert not slurmd_amounts(preset("cpu-d3", "2vcpu-8gb"), 128).is_positive


@pytest.mark.parametrize("gpus", [1, 2])
def test_pods_of_a_worker_fit_its_node(gpus: int) -> None:
    vcpus, gib = {1: (16, 96), 2: (64, 384)}[gpus]
    chosen = preset("gpu-l40s-d", f"{gpus}gpu-{vcpus}vcpu-{gib}gb")
    rest = node_capacity(chosen, 558).less(slurmd_amounts(chosen, 558), MUNGE)
    assert rest.cpu_m >= 0
    assert rest.memory_mib >= 0
    assert rest.ephemeral_mib == 0


def test_only_memory_is_limited() -> None:
    """A limit on CPU throttles; a missing one on memory takes the node down."""
    found = requests_and_limits(Amounts(cpu_m=500, memory_mib=1536, ephemeral_mib=0))
    assert found == {
        "requests": {"cpu": "500m", "memory": "1536Mi"},
        "limits": {"memory": "1536Mi"},
    }


def test_an_unknown_preset_is_refused_with_where_presets_are_listed() -> None:
    group = NodeGroupSpec(
        platform="cpu-d3",
        preset="9gpu",
        boot_disk=BootDiskSpec(size_gib=64),
        min_nodes=1,
        max_nodes=1,
    )
    with pytest.raises(ValueError, match=r"cpu-d3 has no preset 9gpu; see stacks/catalog.py"):
        preset_of(group)
