"""The suite as one process: seed 001's modes and options, storage, and GPUs that are not there."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workloads.accept import storage
from workloads.accept.benchmark import MODES, main
from workloads.accept.storage import measure_place
from workloads.common.exit_codes import ExitCode
from workloads.common.places import filesystem_of
from workloads.common.record import utc_now
from workloads.recipes.accept import STAGES, StorageConfig

ROOT = Path(__file__).resolve().parents[3]
SMALL = StorageConfig(file_mb=1, block_kib=256, random_reads=10, small_files=5)
_LIGHT = [
    "accept.storage.file_mb=1",
    "accept.soak_s=0",
    (
        'accept.training={"name": "tiny", "vocabulary": 64, "width": 16, "layers": 1, "heads": 2, '
        '"sequence": 8, "batch": 1, "steps": 2, "warmup": 0}'
    ),
]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank, job or place of whoever runs the tests."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "SLURM_JOB_ID", "SOPERATOR_PLATFORM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SOPERATOR_PRESET", raising=False)
    for place in ("DATA", "MODEL", "CHKPT", "RESULTS", "SCRATCH"):
        monkeypatch.delenv(f"SOPERATOR_PLACE_{place}", raising=False)


def _run(mode: str, output: Path, *words: str) -> tuple[ExitCode, dict[str, Any]]:
    sets = [word for each in _LIGHT for word in ("--set", each)]
    code = main(["--mode", mode, "--output", str(output), *sets, *words])
    return code, json.loads(output.read_text())


@pytest.mark.feature("S001-13", "S001-62", "S001-64")
def test_the_modes_are_those_of_seed_001_and_full_is_everything() -> None:
    assert list(MODES) == ["health", "single", "distributed", "full"]
    assert MODES["full"] == STAGES
    # What one node does by itself needs no other ranks.
    alone = {"compute", "storage", "soak"}
    assert set(MODES["distributed"]) == set(STAGES) - alone


@pytest.mark.feature("S001-16", "S001-63", "S001-80", "S001-97")
def test_health_writes_a_dated_result_to_the_given_file(tmp_path: Path) -> None:
    output = tmp_path / "results" / "benchmark.json"
    before = utc_now()
    code, result = _run("health", output)
    assert code is ExitCode.OK
    assert '\n  "outcome": "PASS",\n' in output.read_text(), "one line a value, for people"
    assert result["outcome"] == "PASS"
    assert before[:2] == "20"
    assert before <= result["started_at"] <= result["finished_at"] <= utc_now()
    assert [(node["role"], node["ranks"]) for node in result["nodes"]] == [("master", [0])]
    page = (Path(__file__).parents[3] / "docs" / "acceptance.md").read_text()
    assert "`python -m json.tool FILE` shows the result" in page


@pytest.mark.feature("S001-56", "S001-62", "S001-63")
def test_distributed_without_torchrun_is_not_run_and_never_0(tmp_path: Path) -> None:
    code, result = _run("distributed", tmp_path / "benchmark.json")
    assert code is ExitCode.NOT_RUN
    missing = {check["id"] for check in result["checks"] if check["outcome"] == "NOT_RUN"}
    assert missing == {"connectivity.pairs", "collectives.all_reduce"}
    (point,) = result["measurements"]["training"]["points"]
    # Counted: two steps of one sequence of eight tokens on one rank.
    assert (point["ranks"], point["batch"], point["sequence"], point["tokens"]) == (1, 1, 8, 16)
    assert point["tokens_per_s"] == pytest.approx(16 / point["seconds"])


@pytest.mark.feature("S001-63")
def test_gpus_that_should_be_there_and_are_not_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PRESET", "8gpu-128vcpu-1600gb")
    monkeypatch.setenv("PATH", str(tmp_path))  # no nvidia-smi
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ("--config", "accept_gpu", "--platform", "gpu-h100-sxm")
    code, result = _run("single", tmp_path / "r.json", *words)
    assert code is ExitCode.FAILED
    outcomes = {check["id"]: check["outcome"] for check in result["checks"]}
    assert outcomes["readiness.gpus"] == "FAIL"
    assert outcomes["compute.all"] == "NOT_RUN"


@pytest.mark.feature("S001-14")
def test_a_recipe_of_something_else_and_unknown_hardware_are_refused(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    assert main(["--mode", "health", "--config", "bfcl_smollm2"]) is ExitCode.BAD_CONFIG
    words = ["--config", "accept_gpu", "--platform", "gpu-b200-sxm", "--output", str(output)]
    assert main(["--mode", "health", *words]) is ExitCode.BAD_CONFIG
    assert not output.exists()


@pytest.mark.feature("S001-64")
def test_as_a_script_it_hides_no_module_behind_its_neighbours() -> None:
    script = ROOT / "workloads" / "accept" / "benchmark.py"
    done = subprocess.run(
        # Without site-packages, which may name the checkout, and without PYTHONPATH.
        [sys.executable, "-ES", script, "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--mode {health,single,distributed,full}" in done.stdout


def _measure(folder: Path, index: int = 0, num_nodes: int = 1) -> dict[str, Any]:
    nodes = [f"worker-{each}" for each in range(num_nodes)]
    waits: list[None] = []
    at = {"run": "1", "nodes": nodes, "together": lambda: waits.append(None)}
    found = measure_place("data", folder, SMALL, index=index, **at)
    assert found is not None
    times = len(waits)
    assert measure_place("data", folder, SMALL, index=None, **at) is None
    assert len(waits) == 2 * times > 0, "a rank that measures nothing waits as often"
    return found


def test_a_place_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    found = _measure(tmp_path)
    assert found["wrong_blocks"] == 0
    assert min(found[name] for name in found if name.endswith("_per_s")) > 0
    assert len([name for name in found if name.endswith("_per_s")]) == 6
    assert found["filesystem"] == filesystem_of(tmp_path)
    assert found["filesystem"] != "unknown"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


@pytest.mark.parametrize("offset", [0, 16, 100_003, 256 * 1024 - 1])
def test_blocks_of_another_content_are_counted(
    offset: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the stamp, right behind it, anywhere and at the end: only the stamp was looked at."""
    write = storage._write

    def damage_the_last_block(path: Path, index: int, block: int, blocks: int):
        found = write(path, index, block, blocks)
        with path.open("r+b") as file:
            file.seek((blocks - 1) * block + offset)
            was = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([was[0] ^ 1]))
        return found

    monkeypatch.setattr(storage, "_write", damage_the_last_block)
    found = _measure(tmp_path)
    assert found["wrong_blocks"] == 1
    (check,) = storage.judge([found], {})
    assert (check.outcome, check.nodes) == ("FAIL", ("worker-0",))
    assert "worker-0: 1 wrong blocks" in str(check.reason)


def test_a_place_that_is_not_shared_fails_unless_it_is_each_nodes_own(tmp_path: Path) -> None:
    rows = []
    for index in (0, 1):
        (tmp_path / str(index)).mkdir()
        rows.append(_measure(tmp_path / str(index), index, 2))
    (check,) = storage.judge(rows, {})
    assert check.outcome == "FAIL"
    assert "the neighbour's file is not there" in str(check.reason)
    (check,) = storage.judge(rows, {}, ("data",))
    assert check.outcome == "PASS"


def test_each_submount_is_measured_once_also_where_no_place_lies_on_it() -> None:
    """/home of `local` was no place, and was never measured."""
    places = {"data": Path("/mnt/data"), "results": Path("/mnt/chkpt/results")}
    found = storage.targets(places, ("/home", "/mnt/chkpt", "/mnt/data", "/mnt/data/deep"))
    rest = {"home": Path("/home"), "mnt_data_deep": Path("/mnt/data/deep")}
    assert found == {**places, **rest}
    assert storage.targets(places, ()) == places
    taken = storage.targets(places, ("/mnt/a-b", "/mnt/a/b", "/data", "/scratch"))
    assert taken == {
        **places,
        "mnt_a_b": Path("/mnt/a-b"),
        "mount_mnt_a_b": Path("/mnt/a/b"),
        "mount_data": Path("/data"),
        # A place of that name may be each node's own; a mount of all nodes is judged as shared.
        "mount_scratch": Path("/scratch"),
    }
    schema = json.loads(Path(storage.__file__).with_name("acceptance.schema.json").read_text())
    pattern = schema["properties"]["checks"]["items"]["properties"]["id"]["pattern"]
    assert all(re.fullmatch(pattern, f"storage.{name}") for name in {**found, **taken})
    with pytest.raises(ValueError, match="mounts: 'home' is not absolute"):
        StorageConfig(mounts=("home",))


def test_a_full_or_missing_place_is_not_run_with_the_reason(tmp_path: Path) -> None:
    huge = StorageConfig(file_mb=10**9)
    said = storage.trouble("data", tmp_path, huge, 2)
    assert said is not None
    assert "lower accept.storage.file_mb" in said
    said = storage.trouble("data", tmp_path / "none", SMALL, 2)
    assert said is not None
    assert "No such file or directory" in said
    (check,) = storage.judge([], {"data": said})
    assert (check.id, check.outcome) == ("storage.data", "NOT_RUN")


def test_a_place_of_each_nodes_own_holds_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gigabyte of eight nodes is eight in a shared place, and one in a node's own."""
    one_gb = StorageConfig(file_mb=1000)
    free = SimpleNamespace(free=3 * 10**9)
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _path: free)
    assert storage.trouble("scratch", tmp_path, one_gb, 8) is None
    assert "take 8.0" in str(storage.trouble("data", tmp_path, one_gb, 8))
