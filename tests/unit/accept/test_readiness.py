"""What nodes are made of: nvidia-smi's outputs, InfiniBand ports, and what is missing or broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from workloads.accept.gates import Check, Expected, ProgramError, gates_for
from workloads.accept.readiness import (
    NodeFacts,
    Port,
    ask_node,
    declared_gpus,
    judge,
    parse_nvlinks,
    parse_xml,
    read_ports,
)

RECORDED = Path(__file__).parent / "recorded"
H100 = gates_for("gpu-h100-sxm", 8).hardware.expected


def _xml(name: str = "smi_2xh100.xml") -> str:
    return (RECORDED / name).read_text()


def _node(name: str = "worker-0") -> NodeFacts:
    return NodeFacts(
        name=name,
        gpus=parse_xml(_xml()),
        nvlinks={"GPU0-GPU1": 18},
        ports=tuple(
            Port(device=f"mlx5_{index}", state="ACTIVE", gbit_per_s=400, link_layer="InfiniBand")
            for index in range(8)
        ),
        versions={"torch": "2.15.0", "cuda": "13.2"},
        errors=(),
    )


def _failed(checks: list[Check]) -> dict[str, str | None]:
    return {check.id: check.reason for check in checks if check.outcome != "PASS"}


def test_a_sound_node_passes_every_question() -> None:
    checks = judge([_node()], H100, 2)
    assert _failed(checks) == {}
    assert {check.id.partition(".")[2] for check in checks} == {
        *("software", "gpus", "model", "driver", "ecc", "pcie", "heat", "nvlink", "infiniband")
    }


@pytest.mark.feature("S001-03")
def test_the_xml_of_a_recent_driver_is_read() -> None:
    first, second = parse_xml(_xml())
    assert (first.model, first.driver, first.cuda) == (
        "NVIDIA H100 80GB HBM3",
        "550.163.01",
        "12.4",
    )
    assert first.memory_gib == pytest.approx(79.65, abs=0.01)
    assert (first.pcie_gen, first.pcie_width, first.ecc, first.uncorrected) == (5, 16, True, 0)
    assert (second.index, first.pending_remap, first.throttled) == (1, False, ())


def test_the_xml_of_an_older_driver_says_less() -> None:
    (gpu,) = parse_xml(_xml("smi_a100_mig.xml"))
    assert (gpu.model, gpu.ecc, gpu.pcie_gen) == ("NVIDIA A100-SXM4-40GB", True, 4)
    # Counters that are N/A are not known, and not zero.
    assert (gpu.uncorrected, gpu.pending_remap) == (None, None)


@pytest.mark.parametrize("text", ["<nope", "<other/>", "", "<!ENTITY x><nvidia_smi_log/>"])
def test_what_is_no_output_of_nvidia_smi_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="nvidia-smi -q -x"):
        parse_xml(text)


@pytest.mark.feature("S001-90")
def test_the_matrix_has_18_links_between_all_gpus_or_none() -> None:
    nvlinks = parse_nvlinks((RECORDED / "topo_8xh100.txt").read_text())
    assert set(nvlinks.values()) == {18}
    assert len(nvlinks) == 28
    assert list(nvlinks)[-1] == "GPU6-GPU7"
    assert set(parse_nvlinks((RECORDED / "topo_8xh100_pcie.txt").read_text()).values()) == {0}


@pytest.mark.feature("S001-90")
def test_a_matrix_that_was_cut_short_is_refused() -> None:
    text = (RECORDED / "topo_8xh100.txt").read_text()
    with pytest.raises(ProgramError, match="no cell for"):
        parse_nvlinks(text.partition("GPU5\tNV18\tNV18")[0])
    with pytest.raises(ProgramError, match="no column GPU0"):
        parse_nvlinks("No devices were found\n")


@pytest.mark.parametrize(
    ("edit", "check", "reason"),
    [
        (lambda t: t.replace("ecc>Enabled", "ecc>Disabled"), "ecc", "GPU 0: ECC is off"),
        (
            lambda t: t.replace("<dram_uncorrectable>0", "<dram_uncorrectable>3"),
            "ecc",
            "GPU 0: 3 uncorrected errors: drain the node",
        ),
        (lambda t: t.replace("pending>No", "pending>Yes"), "ecc", "rows wait to be remapped"),
        (
            lambda t: t.replace("<max_link_gen>5", "<max_link_gen>4"),
            "pcie",
            "GPU 0: PCIe 4, expected 5",
        ),
        (
            lambda t: t.replace("<current_link_width>16x", "<current_link_width>8x"),
            "pcie",
            "8 lanes, expected 16",
        ),
        (lambda t: t.replace("550.163.01", "535.183.01"), "driver", "535.183.01 is older than 550"),
        (lambda t: t.replace("NVIDIA H100 80GB HBM3", "NVIDIA L40S"), "model", "got NVIDIA L40S"),
        (lambda t: t.replace("81559 MiB", "40000 MiB"), "model", "39.06 GiB, expected 79"),
        (
            lambda t: t.replace("hw_thermal_slowdown>Not Active", "hw_thermal_slowdown>Active"),
            "heat",
            "GPU 0: hw_thermal_slowdown",
        ),
    ],
)
def test_one_thing_that_is_wrong_fails_its_own_question(
    edit: Callable[[str], str], check: str, reason: str
) -> None:
    node = replace(_node(), gpus=parse_xml(edit(_xml())))
    failed = _failed(judge([node], H100, 2))
    assert list(failed) == [f"readiness.{check}"]
    assert reason in str(failed[f"readiness.{check}"])


@pytest.mark.parametrize(
    ("element", "name", "check"),
    [
        ("product_name", "model", "model"),
        ("total", "its memory", "model"),
        ("driver_version", "driver", "driver"),
        ("current_ecc", "whether ECC is on", "ecc"),
        ("dram_uncorrectable", "uncorrected ECC errors", "ecc"),
        ("max_link_gen", "PCIe generation", "pcie"),
        ("current_link_width", "PCIe lanes", "pcie"),
        ("clocks_event_reason_hw_slowdown", "what slows it down", "heat"),
    ],
)
def test_what_the_driver_does_not_say_is_not_run_and_says_so(
    element: str, name: str, check: str
) -> None:
    """It was `ECC is off` and `PCIe None, expected 5`; heat and errors passed."""
    text = re.sub(f"<{element}>[^<]*<", f"<{element}>N/A<", _xml())
    if check == "heat":
        text = re.sub(r"(_slowdown>)(Not )?Active<", r"\1N/A<", text)
    if name == "uncorrected ECC errors":
        text = re.sub(r"(_uncorrectable[a-z_]*>)\d+<", r"\1N/A<", text)
    node = replace(_node(), gpus=parse_xml(text))
    (found,) = (each for each in judge([node], H100, 2) if each.outcome != "PASS")
    assert (found.id, found.outcome) == (f"readiness.{check}", "NOT_RUN")
    assert f"GPU 0: the driver does not say: {name}" in str(found.reason)


def test_a_gpu_without_ecc_has_no_errors_to_count_where_none_is_expected() -> None:
    text = re.sub(r"<(current_ecc|[a-z_]*_uncorrectable[a-z_]*)>[^<]*<", r"<\1>N/A<", _xml())
    checks = judge([replace(_node(), gpus=parse_xml(text))], replace(H100, ecc=False), 2)
    assert _failed(checks) == {}


@pytest.mark.feature("S000-03", "S001-04")
def test_a_missing_gpu_and_a_thin_link_are_counted() -> None:
    node = replace(_node(), nvlinks={"GPU0-GPU1": 17})
    failed = _failed(judge([node], H100, 8))
    assert failed["readiness.gpus"] == "2 of 8 GPUs"
    assert "GPU0-GPU1 has 17" in str(failed["readiness.nvlink"])


def test_a_node_without_gpus_fails_and_what_nobody_could_ask_is_not_run() -> None:
    node = replace(_node(), gpus=(), nvlinks={}, errors=("nvidia-smi is not on PATH",))
    checks = {check.id: check for check in judge([node], H100, 8)}
    assert checks["readiness.gpus"].outcome == "FAIL"
    assert checks["readiness.gpus"].reason == "0 of 8 GPUs: nvidia-smi is not on PATH"
    assert checks["readiness.ecc"].outcome == "NOT_RUN"


@pytest.mark.feature("S001-04")
def test_a_port_that_is_down_or_slow_fails_where_infiniband_is_expected() -> None:
    node = _node()
    down = replace(node.ports[0], state="DOWN")
    failed = _failed(judge([replace(node, ports=(down, *node.ports[1:]))], H100, 2))
    assert "7 of 8 InfiniBand ports are up" in str(failed["readiness.infiniband"])


@pytest.mark.feature("S000-03", "S001-04")
def test_what_no_gates_expect_is_not_run_and_what_is_not_to_be_had_is_no_question() -> None:
    """A platform of a user's own file passed model, driver, ECC, PCIe and InfiniBand unseen."""
    asked = {"model", "driver", "ecc", "pcie", "nvlink", "infiniband"}
    unknown = {check.id: check for check in judge([_node()], Expected(), 2)}
    assert {name for name, check in unknown.items() if check.outcome == "NOT_RUN"} == {
        f"readiness.{name}" for name in asked
    }
    assert "give expected.nvlinks in a file" in str(unknown["readiness.nvlink"].reason)
    broken = parse_xml(_xml().replace("<dram_uncorrectable>0", "<dram_uncorrectable>3"))
    found = {each.id: each for each in judge([replace(_node(), gpus=broken)], Expected(), 2)}
    assert found["readiness.ecc"].outcome == "FAIL", "an error is one whatever was expected"
    some = replace(H100, infiniband_gbit_per_s=None)
    assert list(_failed(judge([_node()], some, 2))) == ["readiness.infiniband"]
    none = replace(H100, infiniband_ports=0, nvlinks=0)
    for node in (_node(), replace(_node(), ports=(), nvlinks={})):
        checks = judge([node], none, 2)
        assert _failed(checks) == {}
        assert not {"readiness.nvlink", "readiness.infiniband"} & {check.id for check in checks}


def test_nodes_with_different_software_are_told_apart() -> None:
    other = replace(_node("worker-1"), versions={"torch": "2.14.0", "cuda": "13.2"})
    failed = _failed(judge([_node(), other], H100, 2))
    assert failed == {"readiness.software": "torch 2.14.0, worker-0 has 2.15.0"}
    node = _node()
    driver = node.gpus[0].driver
    newer = replace(
        _node("worker-1"), gpus=tuple(replace(gpu, driver="999.1") for gpu in node.gpus)
    )
    failed = _failed(judge([node, newer], H100, 2))
    assert failed == {"readiness.software": f"driver 999.1, worker-0 has {driver}"}
    failed = _failed(judge([node, replace(newer, gpus=())], H100, 2))
    assert "readiness.software" not in failed, "a node without a GPU fails for that alone"


@pytest.mark.feature("S001-04")
def test_ports_are_read_as_the_kernel_writes_them(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    assert read_ports(tmp_path) == (
        Port(device="mlx5_0", state="ACTIVE", gbit_per_s=400, link_layer="InfiniBand"),
    )
    assert read_ports(tmp_path / "none") == ()


def test_this_machine_answers_without_raising(tmp_path: Path) -> None:
    facts = ask_node(infiniband=tmp_path)
    assert facts.versions["python"]
    assert facts.gpus or facts.errors


@pytest.mark.parametrize(
    ("preset", "gpus"), [("8gpu-128vcpu-1600gb", 8), ("2gpu-64vcpu-384gb", 2), ("", 3)]
)
def test_the_preset_says_how_many_gpus_a_node_has(
    preset: str, gpus: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PRESET", preset)
    assert declared_gpus(3) == gpus
