"""Gates are data: each limit has a source with a day, and the row that counts is the right one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from stacks.catalog import PLATFORMS
from stacks.load import load_stack
from workloads.accept import gates as module
from workloads.accept.gates import gates_for
from workloads.common.exit_codes import ConfigError

GB_8 = 8 * 10**9


def _all_classes() -> tuple[module.HardwareClass, ...]:
    return module._read(module.FILE).classes


def test_every_limit_has_a_source_with_an_address_and_a_day() -> None:
    sources = module._read(module.FILE).sources
    for source in sources.values():
        assert source.url
        assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", source.date)
    used = {row.source for each in _all_classes() for row in each.gates}
    assert used == set(sources), "a source that no row names says nothing"


def test_the_platforms_of_gates_are_those_of_the_catalog() -> None:
    named = {name for each in _all_classes() for name in each.platforms} - {"cpu"}
    assert named <= set(PLATFORMS)
    for each in _all_classes():
        for name in named & set(each.platforms):
            counts = {preset.gpus for preset in PLATFORMS[name].presets.values()}
            assert set(each.gpus_per_node) <= counts


@pytest.mark.parametrize("name", ["l40s-dev", "h100-prod", "h200-elastic"])
def test_the_workers_of_the_shipped_stacks_have_gates(name: str, tmp_path: Path) -> None:
    key = tmp_path / "id.pub"
    key.write_text(
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0GfEGxMyQ8y0nh8JBLrWuOXbWhFJ5d0T0l9nYkzv5k a\n"
    )
    spec = load_stack(name, environ={"SOPERATOR_SSH_PUBLIC_KEY_FILE": str(key)})
    for worker in spec.nodes.workers:
        gpus = PLATFORMS[worker.platform].presets[worker.preset].gpus
        found = gates_for(worker.platform, gpus)
        assert worker.platform in found.hardware.platforms
        assert found.limit("compute.gemm") is not None


def test_a_share_of_a_wire_is_its_bits_over_eight() -> None:
    limit = gates_for("gpu-h100-sxm", 8).limit("collectives.send_recv", scope="cluster", bytes=GB_8)
    assert limit is not None
    assert limit.at_least == pytest.approx(400 / 8 * 0.9)  # 50 GB/s is what 400 Gbit/s carry
    assert limit.note == "90% of 1 x 400 Gbit/s / 8"


@pytest.mark.feature("S001-14", "S001-48")
@pytest.mark.parametrize(
    ("conditions", "at_least"),
    [
        ({"scope": "node", "nodes": 1, "algorithm": "nvls", "bytes": GB_8}, 450),
        ({"scope": "node", "nodes": 1, "algorithm": "ring", "bytes": GB_8}, 350),
        ({"scope": "cluster", "nodes": 2, "algorithm": "nvls", "bytes": GB_8}, 360),
        ({"scope": "cluster", "nodes": 2, "algorithm": "ring", "bytes": GB_8}, 300),
        ({"scope": "cluster", "nodes": 4, "algorithm": "nvls", "bytes": GB_8}, 300),
        # Nobody said how NCCL went: the lower limit, which a ring must keep too.
        ({"scope": "node", "nodes": 1, "bytes": GB_8}, 350),
    ],
)
def test_all_reduce_on_h100_has_the_limit_of_its_nodes_and_its_way(
    conditions: dict[str, object], at_least: float
) -> None:
    limit = gates_for("gpu-h100-sxm", 8).limit("collectives.all_reduce", **conditions)
    assert limit is not None
    assert limit.at_least == at_least


@pytest.mark.feature("S001-49")
def test_tokens_have_a_limit_for_the_model_that_it_was_measured_with() -> None:
    gates = gates_for("gpu-h100-sxm", 8)
    check = "training.tokens_per_s_per_gpu"
    assert gates.limit(check, scope="node", nodes=1, model="decoder-163m") is not None
    assert gates.limit(check, scope="node", nodes=1, model="decoder-7b") is None


@pytest.mark.feature("S001-49")
def test_every_number_that_nobody_published_is_derived_in_the_docs() -> None:
    page = (Path(__file__).parents[3] / "docs" / "acceptance.md").read_text()
    told = {
        (cells[0].partition(",")[0], cells[1])
        for line in page.splitlines()
        if len(cells := [each.strip() for each in line.strip("|").split("|")]) == 3
        and cells[1].startswith(("at least ", "at most "))
    }
    used: set[tuple[str, str]] = set()
    for hardware in _all_classes():
        gates = module.Gates(hardware=hardware, sources=module._read(module.FILE).sources)
        for row in hardware.gates:
            if row.source in ("derived", "project"):
                limit = gates._limit(row)
                number = limit.at_most if limit.at_least is None else limit.at_least
                word = "at most" if limit.at_least is None else "at least"
                used.add((row.check, f"{word} {number:.10g} {limit.unit}".rstrip()))
    assert told == used


def test_no_limit_of_two_nodes_fails_a_pair_that_was_published_as_sound() -> None:
    """H100: 391.45 by nccl-tests; its way was not stated, so either limit must let it pass."""
    for way in ("nvls", "ring"):
        limit = gates_for("gpu-h100-sxm", 8).limit(
            "collectives.all_reduce", scope="cluster", nodes=2, algorithm=way, bytes=GB_8
        )
        assert limit is not None
        assert limit.holds(391.45)


def test_a_small_message_has_no_limit() -> None:
    gates = gates_for("gpu-h100-sxm", 8)
    assert gates.limit("collectives.all_reduce", scope="node", nodes=1, bytes=10**6) is None


@pytest.mark.parametrize(("platform", "gpus"), [("gpu-l40s-d", 2), ("gpu-h100-sxm", 1)])
def test_without_nvlink_and_infiniband_nothing_between_gpus_has_a_limit(
    platform: str, gpus: int
) -> None:
    found = gates_for(platform, gpus)
    checks = {row.check.partition(".")[0] for row in found.hardware.gates}
    assert not checks & {"collectives", "connectivity"}
    assert found.hardware.expected.infiniband_ports == 0


@pytest.mark.feature("S001-14")
def test_own_limits_win_and_need_a_source(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "schema_version: 1\n"
        "sources: {contract: {what: ours, url: 'https://example.org', date: '2026-11-01'}}\n"
        "classes: [{name: ours, gates: [{check: compute.gemm, at_least: 720, unit: TFLOP/s, "
        "source: contract}]}]\n"
    )
    limit = gates_for("gpu-h100-sxm", 8, own).limit("compute.gemm")
    assert limit is not None
    assert (limit.at_least, limit.date) == (720, "2026-11-01")
    own_without = tmp_path / "without.yaml"
    own_without.write_text(own.read_text().replace("source: contract", "source: hearsay"))
    with pytest.raises(ConfigError, match="sources: hearsay missing"):
        gates_for("gpu-h100-sxm", 8, own_without)


_OWN = """
schema_version: 1
sources: {}
classes:
  - {name: 8x B200, platforms: [gpu-b200-sxm], gpus_per_node: [8], certifies: B200 by contract,
     expected: {model: B200, memory_gib: 179, ecc: true, driver: "570"},
     gates: [{check: compute.gemm, at_least: 1500, unit: TFLOP/s, source: project}]}
  - {name: newer, platforms: [gpu-h100-sxm], expected: {driver: "580", nvlinks: 0},
     gates: [{check: compute.gemm, at_least: 720, unit: TFLOP/s, source: project}]}
"""


@pytest.mark.feature("S001-14")
def test_own_classes_speak_of_their_hardware_and_what_they_expect_wins(tmp_path: Path) -> None:
    """`expected`, `certifies`, `platforms` and `gpus_per_node` of an own file changed nothing."""
    own = tmp_path / "own.yaml"
    own.write_text(_OWN)
    found = gates_for("gpu-b200-sxm", 8, own).hardware
    assert (found.name, found.certifies) == ("8x B200", "B200 by contract")
    assert found.expected == module.Expected(model="B200", memory_gib=179, ecc=True, driver="570")
    assert [row.at_least for row in found.gates] == [1500]
    ours, mixed = gates_for("gpu-h100-sxm", 8).hardware, gates_for("gpu-h100-sxm", 8, own).hardware
    assert mixed.expected == replace(ours.expected, driver="580", nvlinks=0)
    assert (mixed.name, mixed.certifies) == (ours.name, ours.certifies)
    assert [row.at_least for row in mixed.gates if row not in ours.gates] == [720]
    for platform, gpus in (("gpu-b200-sxm", 4), ("gpu-h200-sxm", 8), ("gpu-h100-sxm", 0)):
        with pytest.raises(
            ConfigError, match="with 8 GPUs, gpu-h100-sxm with any number of GPUs"
        ) as no:
            gates_for(platform, gpus, own)
        assert f"gpus_per_node of {own}" in str(no.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("check: compute.gem,", "nothing measures compute.gem; allowed: collectives.all_gather, "),
        ("check: storage.data,", "nothing measures storage.data; allowed: "),
        ("check: compute.gemm, scope: nodes,", "expected one of node, cluster"),
        ("check: compute.gemm, algorithm: tree,", "expected one of nvls, ring"),
        ("check: compute.gemm, least: 3,", "unknown key"),
    ],
)
def test_a_limit_that_nothing_would_be_held_against_is_refused(
    wrong: str, said: str, tmp_path: Path
) -> None:
    """A slip in its name, and the cluster passed as if there were no limit."""
    own = tmp_path / "own.yaml"
    own.write_text(_OWN.replace("check: compute.gemm,", wrong))
    with pytest.raises(ConfigError, match=said):
        gates_for("gpu-h100-sxm", 8, own)


def test_hardware_without_gates_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="no gates for platform 'gpu-b200-sxm' with 8 GPUs"):
        gates_for("gpu-b200-sxm", 8)


@pytest.mark.feature("S001-48")
@pytest.mark.parametrize("algorithm", [None, "ring", "nvls"])
def test_the_rule_of_seed_001_is_a_file_that_a_user_can_name(algorithm: str | None) -> None:
    """Seed 001: all-reduce of 1 GB over two nodes at 350 GB/s; it measured 434.99."""
    way = {"scope": "cluster", "nodes": 2, "algorithm": algorithm, "bytes": 10**9}
    named = module.FILE.with_name("gates_h100_benchmark.yaml")
    limit = gates_for("gpu-h100-sxm", 8, named).limit("collectives.all_reduce", **way)
    assert limit is not None
    assert (limit.at_least, limit.date) == (350, "2025-12-15")
    assert not limit.holds(320)
    assert limit.holds(434.99)
    ours = gates_for("gpu-h100-sxm", 8).limit("collectives.all_reduce", **way)
    assert ours is None or ours.at_least != 350, "our own stays as it is"


def test_a_row_gives_one_limit_alone(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(
        "schema_version: 1\nsources: {}\n"
        "classes: [{name: x, gates: "
        "[{check: soak.drift, at_least: 1, at_most: 2, source: project}]}]\n"
    )
    with pytest.raises(ConfigError, match="give exactly one of at_least, at_most and wire"):
        gates_for("gpu-h100-sxm", 8, own)
