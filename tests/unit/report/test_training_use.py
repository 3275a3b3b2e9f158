"""The report says how well a training used its GPUs; what was not measured is NOT RUN."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from infra.reports.page import page
from infra.reports.page.training import Report, Row, collect, gpu_use, summary
from stacks.load import load_stack
from tests.unit.report.reports import record, write_record

METRICS = {
    "train_tokens_per_s": 4000.0,
    "train_tokens_per_s_per_gpu": 500.0,
    "train_time_s": 90.0,
    "median_train_step_s": 1.25,
    "p99_train_step_s": 2.5,
    "peak_gpu_memory_gib": 61.0,
    "planned_gpu_memory_gib": 60.0,
    "checkpoint_stall_s": 2.0,
    "data_wait_time_percent": 0.5,
}
HARDWARE = {
    "platform": "gpu-h100-sxm",
    "preset": "8gpu-128vcpu-1600gb",
    "device": "NVIDIA H100 80GB HBM3",
    "num_nodes": 2,
    "num_gpus_declared": 16,
}


def sample(node: str, at_s: float, busy: float, used_mib: float, words: int) -> str:
    return (
        f"gpu,{node},0,{busy},{used_mib},80000,600.0,700.0\n"
        f"ib,{node},mlx5_0/1,{words},{words}\nend,{node},{at_s}\n"
    )


def trained(state: Path, job_id: str = "2", **metrics: float) -> Path:
    values = record("train", job_id, hardware=HARDWARE, metrics={**METRICS, **metrics})
    return write_record(state, values)


def rows(state: Path) -> dict[str, Row]:
    found = collect(load_stack("local"), state)
    assert found.lineage.training is not None
    assert found.gpus is not None
    return {row.name: row for row in summary(found.lineage.training, found.gpus, found.records)}


@pytest.fixture
def state(tmp_path: Path, public_key_file: Path) -> Path:
    return tmp_path


@pytest.mark.feature("S002-67", "S002-71")
def test_two_nodes_are_one_curve_and_a_cut_line_is_left_out(state: Path) -> None:
    folder = trained(state)
    (folder / "gpu_worker-0.csv").write_text(
        sample("worker-0", 100.0, 90, 60000, 0)
        + sample("worker-0", 110.0, 80, 64000, 250_000_000)
        + "gpu,worker-0,0,8"
    )
    (folder / "gpu_worker-1.csv").write_text(
        sample("worker-1", 101.0, 100, 50000, 0)
        + sample("worker-1", 111.0, 100, 50000, 250_000_000)
    )
    use = gpu_use(folder)
    assert [each.utilization_percent for each in use.moments] == [95.0, 90.0]
    assert use.mean_percent == 92.5
    assert use.each.memory_percent == 62.5, "of worker-1, whose GPU used least"
    # 250,000,000 words of 4 bytes in 10 s.
    assert use.rates_gb_per_s == pytest.approx((0.1, 0.1))


@pytest.mark.feature("S002-47", "S002-48", "S002-68", "S002-70", "S002-71")
def test_the_gates_pass_and_fail_by_their_figures(state: Path) -> None:
    folder = trained(state)
    for node in ("worker-0", "worker-1"):
        (folder / f"gpu_{node}.csv").write_text(
            sample(node, 100.0, 90, 40000, 0) + sample(node, 110.0, 80, 40000, 0)
        )
    found = rows(state)
    assert (found["GPU utilisation"].value, found["GPU utilisation"].verdict) == ("85.0 %", "PASS")
    assert found["GPU utilisation"].note == (
        "of the least busy GPU, worker-0 GPU 0; mean of all 85.0 %; gate above 80 %"
    )
    (folder / "gpu_worker-1.csv").write_text(
        sample("worker-1", 100.0, 90, 40000, 0) + sample("worker-1", 110.0, 60, 40000, 0)
    )
    idle = rows(state)["GPU utilisation"]
    assert (idle.value, idle.verdict) == ("75.0 %", "FAIL"), "the mean is 80 and above no gate"
    memory = found["GPU memory"]
    assert (memory.value, memory.verdict) == ("50.0 %", "FAIL")
    assert "61 GiB of tensors on rank 0, 60 GiB planned" in memory.note
    assert found["Training time"].value == "1 min 30 s"
    assert found["Step"].value == "1.25 s, 2.50 s at the 99th percentile"
    assert found["Storage: checkpoint"].value == "2 s"


def test_a_part_of_the_nodes_or_of_a_file_passes_no_gate(state: Path) -> None:
    folder = trained(state)
    (folder / "gpu_worker-0.csv").write_text(sample("worker-0", 100.0, 99, 70000, 0))
    for name in ("GPU utilisation", "GPU memory"):
        row = rows(state)[name]
        assert row.verdict == "NOT RUN"
        assert row.note.endswith("; only 1 of 2 nodes told")
    torn = "gpu,worker-1,0,9gpu,worker-1,0,99,70000,80000,600.0,700.0\n"
    (folder / "gpu_worker-1.csv").write_text(sample("worker-1", 100.0, 99, 70000, 0) + torn)
    row = rows(state)["GPU utilisation"]
    assert (row.value, row.verdict) == ("99.0 %", "NOT RUN")
    assert "gpu_worker-1.csv: worker-1: check_gpu_util.sh printed" in row.note


@pytest.mark.feature("S002-49", "S002-69")
def test_throughput_is_held_against_the_fastest_run_of_its_kind(state: Path) -> None:
    trained(state, "2")
    first = rows(state)["Throughput"]
    assert first.verdict == "NOT RUN"
    assert first.value == "4,000 tokens/s, 500 a rank"
    trained(state, "3", train_tokens_per_s=3900.0)
    assert rows(state)["Throughput"].verdict == "PASS", "97.5 % of job 2"
    trained(state, "4", train_tokens_per_s=3000.0)
    slow = rows(state)["Throughput"]
    assert slow.verdict == "FAIL"
    assert "75 % of the fastest other run on such nodes, job 2; gate 95 %" in slow.note


def test_a_run_on_other_nodes_is_no_yardstick(state: Path) -> None:
    trained(state, "2")
    fewer = {**HARDWARE, "num_nodes": 1}
    write_record(state, record("train", "3", hardware=fewer, metrics=METRICS))
    assert rows(state)["Throughput"].verdict == "NOT RUN"


def test_without_gpus_nothing_is_claimed(state: Path) -> None:
    trained(state)
    found = rows(state)
    for name in ("GPU utilisation", "GPU memory", "InfiniBand", "All-reduce of the cluster"):
        assert (found[name].verdict, found[name].value) == ("NOT RUN", "-"), name


def test_lines_of_another_script_are_told_and_not_shown(state: Path) -> None:
    folder = trained(state)
    (folder / "gpu_worker-0.csv").write_text("gpu,worker-0,0,busy\nend,worker-0,1.0\n")
    assert "check_gpu_util.sh printed" in rows(state)["GPU utilisation"].note


@pytest.mark.feature("S002-91")
def test_the_page_has_graphs_of_utilisation_loss_and_throughput(state: Path) -> None:
    folder = trained(state)
    (folder / "gpu_worker-0.csv").write_text(
        "".join(sample("worker-0", 100.0 + 10 * each, 85, 60000, 0) for each in range(6))
    )
    lines = [json.dumps({"step": step, "loss": 2.0 - step / 10}) for step in range(5)]
    (folder / "loss_curve.jsonl").write_text("\n".join(lines))
    report: Report = collect(load_stack("local"), state)
    html = page.render(report)
    assert "GPU utilisation over 1 minutes, 85.0 percent in the mean</desc>" in html
    assert "Loss from 2.000 to 1.600 over 5 steps</desc>" in html
    assert "Throughput of every training run" in html
    assert '<td class="n">4,000</td><td class="bars">' in html
