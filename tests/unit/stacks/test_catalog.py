"""The tables agree with themselves: a preset's name says its size."""

from __future__ import annotations

import re

import pytest

from stacks.catalog import FABRICS, PLATFORMS, Platform, find_preset


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=list(PLATFORMS))
def test_the_name_of_a_preset_says_its_size_and_topology(platform: Platform):
    for name, preset in platform.presets.items():
        match = re.fullmatch(r"(?:(\d+)gpu-)?(\d+)vcpu-(\d+)gb", name)
        assert match is not None, name
        assert (preset.gpus, preset.vcpus, preset.memory_gib) == (
            int(match[1] or 0),
            int(match[2]),
            int(match[3]),
        )
        cores = preset.sockets * preset.cores_per_socket
        assert cores * preset.threads_per_core == preset.vcpus, name


@pytest.mark.parametrize("platform", PLATFORMS.values(), ids=list(PLATFORMS))
def test_gpu_platforms_and_only_they_have_a_gres_type(platform: Platform):
    has_gpus = platform.name.startswith("gpu-")
    assert (platform.gres_type is not None) == has_gpus
    assert all((preset.gpus > 0) == has_gpus for preset in platform.presets.values())


@pytest.mark.feature("S000-69")
def test_only_eight_gpu_presets_join_a_gpu_cluster():
    """L40S has no InfiniBand, and 1-GPU SXM virtual machines get none."""
    for platform in PLATFORMS.values():
        for preset in platform.presets.values():
            assert preset.allows_gpu_cluster == (preset.gpus == 8)


@pytest.mark.feature("S002-13")
def test_every_fabric_belongs_to_a_platform_that_its_region_offers():
    for fabric in FABRICS.values():
        platform = PLATFORMS[fabric.platform]
        assert fabric.region in platform.regions
        assert any(preset.allows_gpu_cluster for preset in platform.presets.values())


@pytest.mark.feature("S000-69")
def test_the_workers_of_seed_000_are_in_the_catalog():
    preset = find_preset("gpu-l40s-d", "2gpu-64vcpu-384gb")
    assert preset is not None
    assert (preset.gpus, preset.vcpus, preset.memory_gib) == (2, 64, 384)
    assert PLATFORMS["gpu-l40s-d"].gpu_memory_gb == PLATFORMS["gpu-l40s-a"].gpu_memory_gb == 48
    assert not preset.allows_gpu_cluster, "no InfiniBand"


@pytest.mark.feature("S001-02", "S001-03")
def test_an_h100_of_seed_001_has_80_gb():
    preset = find_preset("gpu-h100-sxm", "8gpu-128vcpu-1600gb")
    assert preset is not None
    assert preset.gpus == 8
    assert PLATFORMS["gpu-h100-sxm"].gpu_memory_gb == 80
    assert PLATFORMS["gpu-h100-sxm"].gres_type == "nvidia_h100_80gb_hbm3"


def test_an_unknown_platform_has_no_presets():
    assert find_preset("gpu-tpu", "8gpu") is None
