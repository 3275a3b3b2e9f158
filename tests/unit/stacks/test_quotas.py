"""A stack over a declared quota is refused before the cloud leaves its nodes waiting for ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.local.nebius_api.states import gpu_quota as emulated
from stacks.catalog import PLATFORMS
from stacks.check import check
from stacks.errors import Level, Problem
from stacks.load import StackError, load_config, load_stack
from stacks.rules.quotas import gpu_quota, quota_use
from stacks.spec.cost import QuotaSpec


def found(name: str, *quotas: tuple[str, int]) -> list[Problem]:
    spec = load_stack(name)
    declared = tuple(QuotaSpec(name=name, limit=limit) for name, limit in quotas)
    problems = check(replace(spec, quotas=declared))
    return [problem for problem in problems if ".quotas" in problem.path]


def test_two_eight_gpu_nodes_need_sixteen_gpus(public_key_file: Path):
    assert found("h100-prod", ("compute.instance.gpu.h100", 16)) == []
    (problem,) = found("h100-prod", ("compute.instance.gpu.h100", 15))
    assert problem.level is Level.ERROR
    assert problem.path == "h100-prod.quotas[0].limit"
    assert "needs 16 of compute.instance.gpu.h100, but the limit is 15" in problem.message
    assert "soperator cost --stack h100-prod --alternatives" in problem.message


@pytest.mark.feature("S000-68")
def test_what_only_autoscaling_would_pass_is_a_warning(public_key_file: Path):
    """l40s-dev has 5 workers, 2 controllers, 1 login, 1 accounting and 3 to 9 system nodes."""
    (problem,) = found("l40s-dev", ("compute.instance.count", 17))
    assert problem.level is Level.WARNING
    assert "needs 18" in problem.message
    assert found("l40s-dev", ("compute.instance.count", 18)) == []


def test_filesystems_count_in_gib_and_an_existing_one_is_not_ours(public_key_file: Path):
    spec = load_stack("l40s-dev")
    kind = "compute.filesystem.size.network-ssd"
    assert quota_use(spec, at_max=True)[kind] == 256 + 128 + 256 + 3 * 1024 + 256
    first, *rest = spec.storage.submounts
    known = replace(first, size_gib=None, existing_id="computefilesystem-e00x")
    storage = replace(spec.storage, submounts=(known, *rest))
    assert quota_use(replace(spec, storage=storage), at_max=True)[kind] == 3968 - 1024


def test_a_quota_that_we_do_not_count_is_refused_with_the_nearest_name(public_key_file: Path):
    (problem,) = found("local", ("compute.instance.gpus.h100", 8))
    assert "did you mean 'compute.instance.gpu.h100'?" in problem.message


def test_one_quota_is_given_once(public_key_file: Path):
    problems = found("local", ("compute.disk.count", 90), ("compute.disk.count", 80))
    assert [problem.path for problem in problems] == ["local.quotas[1].name"]


def test_a_limit_of_zero_is_a_limit_and_a_negative_one_is_refused():
    with pytest.raises(StackError) as caught:
        load_config({"soperator-stack:quotas": [{"name": "compute.disk.count", "limit": -1}]}, "s")
    assert "s.quotas[0].limit: expected a whole number of 0 or more" in str(caught.value)


def test_the_emulator_and_the_rule_call_a_gpu_quota_the_same():
    for platform in PLATFORMS:
        assert gpu_quota(platform) == emulated(platform)
