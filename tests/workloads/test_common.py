"""Places, exit codes, run records, atomic folders."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import signal
import threading
import tracemalloc
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from workloads.common import atomic, record
from workloads.common.dist import environment_rank
from workloads.common.exit_codes import (
    ConfigError,
    DataError,
    ExitCode,
    NonFiniteLossError,
    NotRunError,
    PreemptedError,
    exit_code_of,
    reason_of,
)
from workloads.common.hardware import peak_bf16_flops
from workloads.common.places import Places
from workloads.common.record import RunRecord, job_id
from workloads.common.tool_calls import ToolCall, parse_calls, render
from workloads.job import Job, run_job


def test_a_place_without_its_variable_says_what_to_export() -> None:
    with pytest.raises(ConfigError, match=r"SOPERATOR_PLACE_DATA is not set.*storage.places.data"):
        Places({}).path("data")


def test_a_relative_place_is_refused() -> None:
    with pytest.raises(ConfigError, match="not an absolute path"):
        Places({"SOPERATOR_PLACE_DATA": "x"}).path("data")


def test_a_template_expands_to_its_place() -> None:
    places = Places({"SOPERATOR_PLACE_CHKPT": "/mnt/chkpt"})
    assert places.expand("{place:chkpt}/latest", at="x") == Path("/mnt/chkpt/latest")
    with pytest.raises(ConfigError, match=r"evaluate\.adapter: 'a/b' is neither"):
        places.expand("a/b", at="evaluate.adapter")
    with pytest.raises(ConfigError, match="place 'disk' is unknown"):
        places.expand("{place:disk}/x", at="x")


def test_a_model_is_found_by_its_full_or_last_name(tmp_path: Path) -> None:
    (tmp_path / "Qwen3-14B").mkdir()
    (tmp_path / "Qwen3-14B" / "config.json").write_text("{}")
    places = Places({"SOPERATOR_PLACE_MODEL": str(tmp_path)})
    assert places.model_dir("Qwen/Qwen3-14B") == tmp_path / "Qwen3-14B"
    with pytest.raises(DataError, match=f"model 'x' was not found.*{tmp_path}/x"):
        places.model_dir("x")


def test_exit_codes_are_distinct_and_only_success_is_zero() -> None:
    codes = [int(code) for code in ExitCode]
    assert len(set(codes)) == len(codes)
    assert [code for code in ExitCode if code == 0] == [ExitCode.OK]


@pytest.mark.feature("S001-38", "S001-41")
def test_each_failure_has_its_own_exit_code() -> None:
    """A published trainer caught RuntimeError and returned None: OOM and NCCL errors exited 0."""
    import torch
    import torch.distributed as dist

    cases: list[tuple[BaseException, ExitCode]] = [
        (torch.OutOfMemoryError("CUDA out of memory"), ExitCode.OUT_OF_MEMORY),
        (MemoryError(), ExitCode.OUT_OF_MEMORY),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate"),
            ExitCode.OUT_OF_MEMORY,
        ),
        (dist.DistBackendError("NCCL error"), ExitCode.DISTRIBUTED),
        (RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed"), ExitCode.DISTRIBUTED),
        (PreemptedError("x"), ExitCode.PREEMPTED),
        (DataError("x"), ExitCode.BAD_DATA),
        (ConfigError("x"), ExitCode.BAD_CONFIG),
        (NonFiniteLossError("x"), ExitCode.NON_FINITE),
        (RuntimeError("shapes differ"), ExitCode.FAILED),
        (OSError(errno.ENOSPC, "No space left on device", "/mnt/x"), ExitCode.NOT_SAVED),
        (OSError(errno.ENOENT, "No such file", "/mnt/x"), ExitCode.FAILED),
    ]
    assert [exit_code_of(error) for error, _ in cases] == [code for _, code in cases]


def test_a_full_filesystem_says_so_with_its_path_and_what_to_do() -> None:
    text = reason_of(OSError(errno.ENOSPC, "No space left on device", "/mnt/results/4"))
    assert text.startswith("no space left: ")
    assert "/mnt/results/4" in text
    assert "soperator status --filesystems" in text


@pytest.mark.parametrize("library", ["torch", "torch elsewhere", "safetensors"])
def test_a_library_on_a_full_filesystem_is_told_as_that(library: str, tmp_path: Path) -> None:
    """torch says "[enforce fail at inline_container.cc:671] unexpected pos 704 vs 598"."""
    import torch
    from safetensors import SafetensorError

    error: Exception = SafetensorError("I/O error: No space left on device (os error 28)")
    if library != "safetensors":
        file = io.BufferedWriter(io.FileIO("/dev/full", "w"))
        with pytest.raises(RuntimeError, match=r"inline_container.*unexpected pos") as caught:
            torch.save({"weight": torch.zeros(2**16)}, file)
        with contextlib.suppress(OSError):
            file.close()
        error = caught.value
    if library == "torch elsewhere":  # an error of another process comes without its context
        error.__context__ = error.__cause__ = None
    assert exit_code_of(error) == ExitCode.NOT_SAVED
    assert reason_of(error).startswith("no space left: ")
    assert "full" in reason_of(error) or "No space left on device" in reason_of(error)
    folder = tmp_path / "final"
    with pytest.raises(OSError, match=rf"'{folder}'") as named, atomic.new_directory(folder):
        raise error
    assert exit_code_of(named.value) == ExitCode.NOT_SAVED
    assert not list(tmp_path.iterdir())


def test_a_job_on_a_full_filesystem_ends_with_a_line_and_the_path(
    recipe_file: Path,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def keep(job: Job) -> None:
        def full(_: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as broken:
            broken.setattr(os, "fsync", full)
            job.keep("config", "config.json", "{}")

    assert run_job("serve", keep, ["--recipe", str(recipe_file)]) == ExitCode.NOT_SAVED
    told = capsys.readouterr().err
    assert f"no space left: [Errno 28] No space left on device: '{places}/results/" in told
    assert "config.json'; free space there" in told
    assert "Traceback" not in told


@pytest.mark.feature("S001-38")
def test_a_job_that_did_not_run_or_whose_record_is_not_written_is_no_success(
    recipe_file: Path,
    places: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    words = ["--recipe", str(recipe_file)]
    assert run_job("serve", lambda job: None, words) == ExitCode.OK
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["outcome"] == "PASS"

    def cannot(_: Job) -> None:
        raise NotRunError("what it needs is not installed")

    assert run_job("serve", cannot, words) == ExitCode.NOT_RUN != 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["outcome"] == "NOT_RUN"
    monkeypatch.setattr(RunRecord, "finish", full)
    assert run_job("serve", lambda job: None, words) == ExitCode.NOT_SAVED
    assert "the run record is not written: " in capsys.readouterr().err


@pytest.mark.feature("S001-41")
def test_a_real_cpu_allocation_failure_counts_as_out_of_memory() -> None:
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert exit_code_of(caught.value) == ExitCode.OUT_OF_MEMORY


def test_half_of_the_rank_variables_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that expanded its rank on the login node hung; half a set must not pass as rank 0."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(ConfigError, match="RANK set but not LOCAL_RANK, WORLD_SIZE"):
        environment_rank()


def test_the_record_has_exactly_the_fields_of_schema_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    record = RunRecord(kind="train", recipe="r").to_json()
    assert list(record) == [
        *("schema_version", "kind", "job_id", "job", "stack", "code_hash", "git_revision"),
        *("started_at", "finished_at", "outcome", "exit_code", "reason", "hardware", "versions"),
        *("environment", "engine", "model", "recipe", "data_hash", "world_size", "metrics"),
        "artifacts",
    ]
    assert record["schema_version"] == 1
    assert record["job_id"] == "12"


@pytest.mark.feature("S003-34")
def test_the_record_has_the_variables_that_won_and_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOPERATOR_DECLARED", "NCCL_DEBUG OMP_PROC_BIND HF_TOKEN NOT_SET")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker0,lo")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    monkeypatch.setenv("HF_TOKEN", "hf_0")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("OTHER", "1")
    assert RunRecord(kind="train", recipe="r").to_json()["environment"] == {
        "NCCL_DEBUG": "INFO",
        "NCCL_IB_DISABLE": "1",
        "NCCL_SOCKET_IFNAME": "^docker0,lo",
        "OMP_PROC_BIND": "close",
    }


@pytest.mark.feature("S001-05")
def test_the_record_has_the_versions_of_cuda_and_nccl_that_ran(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 001 lists CUDA 12.1 and NCCL 2.20.5 beside PyTorch 2.3.0."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "12.1")
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 20, 5))
    found = record.package_versions()
    assert (found["cuda"], found["nccl"]) == ("12.1", "2.20.5")
    assert found["torch"] == metadata.version("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert not record.package_versions().keys() & {"cuda", "nccl"}


def test_a_log_folder_that_takes_no_file_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy of the results for jq is the least of what a job leaves."""
    monkeypatch.setenv("SOPERATOR_PLACE_LOGS", str(tmp_path / "gone"))
    monkeypatch.setenv("SOPERATOR_JOB", "evaluate")
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    RunRecord(kind="evaluate", recipe="r").finish(tmp_path / "12")
    out, err = capsys.readouterr()
    assert json.loads((tmp_path / "12" / "run_record.json").read_text()) == json.loads(out)
    assert f"{tmp_path}/gone/evaluate_12.out: No such file or directory" in err


def test_the_record_is_one_line_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    RunRecord(kind="train", recipe="r", reason="two\nlines").finish(tmp_path / "12")
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == json.loads((tmp_path / "12" / "run_record.json").read_text())


def test_a_peak_that_is_not_in_the_table_is_unknown() -> None:
    assert peak_bf16_flops("cpu") is None
    assert peak_bf16_flops("NVIDIA H200") == 989.4e12
    assert peak_bf16_flops("NVIDIA H100 PCIe") is None


def test_a_killed_writer_leaves_no_folder(tmp_path: Path) -> None:
    target = tmp_path / "result"
    child = os.fork()
    if child == 0:
        with atomic.new_directory(target) as partial:
            (partial / "half").write_text("x")
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    assert not target.exists()


def test_an_error_leaves_the_earlier_folder(tmp_path: Path) -> None:
    target = tmp_path / "result"
    with atomic.new_directory(target) as partial:
        (partial / "a").write_text("1")

    def write_and_stop() -> None:
        with atomic.new_directory(target, replace=True) as partial:
            (partial / "a").write_text("2")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_and_stop()
    assert (target / "a").read_text() == "1"
    assert [path.name for path in tmp_path.iterdir()] == ["result"]


def test_others_may_read_a_folder_that_is_made_for_them(tmp_path: Path) -> None:
    """Safetensors writes 0600, and a job of another user evaluates."""
    with atomic.new_directory(tmp_path / "final", readable=True) as partial:
        (partial / "more").mkdir(0o700)
        for path in (partial / "a", partial / "more" / "b"):
            path.touch(0o600)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "final").rglob("*")}
    assert modes == {"a": 0o644, "more": 0o755, "b": 0o644}


CALL = ToolCall(name="f", arguments={"a": 1, "b": "it's"})


@pytest.mark.parametrize(
    "text",
    [
        render(CALL),
        '<tool_call>{"name": "f", "arguments": {"a": 1, "b": "it\'s"}}',
        '<functioncall> {"name": "f", "arguments": \'{"a": 1, "b": "it\\\'s"}\'} <|endoftext|>',
        '<functioncall> {"name": "f", "arguments": \'{"a": 1, "b": "it\'s"}\'}',
        '{"name": "f", "arguments": "{\\"a\\": 1, \\"b\\": \\"it\'s\\"}"}',
        '{"name": "f", "parameters": {"a": 1, "b": "it\'s"}} and so on }',
    ],
)
def test_a_call_is_read_in_every_form_that_models_write(text: str) -> None:
    """A published parser took the first { to the last } and read Glaive's own form as nothing."""
    assert parse_calls(text) == [CALL]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The answer is 4.", []),
        ("", []),
        ("<tool_call>\nnot json\n</tool_call>", None),
        ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>', None),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', None),
        ('<tool_call>{"name": "f"}</tool_call>', [ToolCall(name="f")]),
        (render(CALL) + "\n" + render(CALL), [CALL, CALL]),
    ],
)
def test_no_call_and_an_unreadable_call_are_told_apart(
    text: str, expected: list[ToolCall] | None
) -> None:
    assert parse_calls(text) == expected


def test_a_failed_rank_writes_the_record_that_a_stopped_rank_0_could_not(
    places: Path, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun stops the other ranks as soon as one has failed, rank 0 among them."""
    for name, value in {"RANK": "1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)

    def fail(job: Job) -> None:
        raise DataError("rows.jsonl: not found")

    code = run_job("train", fail, ["--recipe", str(recipe_file)])
    record = places / "results" / job_id() / "run_record.json"
    assert code is ExitCode.BAD_DATA
    assert json.loads(record.read_text())["reason"] == "rows.jsonl: not found"


CAUSE, EFFECT, DONE = ExitCode.OUT_OF_MEMORY, ExitCode.DISTRIBUTED, ExitCode.OK


@pytest.mark.parametrize(
    ("written", "own", "rank", "stands"),
    [
        (None, DONE, 0, True),
        (None, DONE, 1, False),
        (None, EFFECT, 1, True),
        # What follows from a failure does not hide it, whoever is first.
        (CAUSE, EFFECT, 0, False),
        (CAUSE, ExitCode.PREEMPTED, 0, False),
        (CAUSE, DONE, 0, False),
        (EFFECT, CAUSE, 1, True),
        (DONE, CAUSE, 1, True),
        (EFFECT, EFFECT, 1, False),
        (EFFECT, EFFECT, 0, True),
        (CAUSE, CAUSE, 1, False),
    ],
)
def test_the_record_that_stands_is_of_the_rank_that_failed_first(
    written: ExitCode | None, own: ExitCode, rank: int, stands: bool, tmp_path: Path
) -> None:
    record = RunRecord(kind="train", recipe="r", exit_code=own)
    if written is not None:
        RunRecord(kind="train", recipe="r", exit_code=written).finish(tmp_path)
        later = record.began_s + 5
        os.utime(tmp_path / "run_record.json", (later, later))
    assert record.stands(tmp_path, is_main=rank == 0) is stands


def test_the_cause_stands_when_the_ranks_end_at_the_same_moment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rank 0 had looked when there was no record yet, and wrote its lost peer over the cause."""
    codes = []
    for number in range(20):
        together = threading.Barrier(2)

        def finish(own: ExitCode, rank: int, folder: Path, together: Any = together) -> None:
            record = RunRecord(kind="train", recipe="r", exit_code=own)
            together.wait(10)
            record.finish(folder, is_main=rank == 0)

        folder = tmp_path / str(number)
        folder.mkdir()
        ends = [(EFFECT, 0, folder), (CAUSE, 1, folder)]
        ranks = [threading.Thread(target=finish, args=each) for each in ends]
        for each in ranks:
            each.start()
        for each in ranks:
            each.join(10)
        codes.append(json.loads((folder / "run_record.json").read_text())["exit_code"])
    assert codes == [CAUSE] * 20
    assert capsys.readouterr().out.count('"exit_code": 70') == 20


@pytest.mark.parametrize(("started", "stands"), [(-60, False), (-10, True), (None, True)])
def test_what_a_rank_met_before_a_slow_one_was_up_counts_and_the_start_before_does_not(
    started: int | None, stands: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 had read torch from a cold disk, and wrote its lost peer over what that one met."""
    record = RunRecord(kind="train", recipe="r", exit_code=EFFECT)
    if started is not None:
        monkeypatch.setenv("SOPERATOR_STARTED_S", str(record.began_s + started))
    RunRecord(kind="train", recipe="r", exit_code=CAUSE).finish(tmp_path)
    os.utime(tmp_path / "run_record.json", (record.began_s - 30,) * 2)
    assert record.stands(tmp_path, is_main=True) is stands


@pytest.mark.parametrize("text", ["", "{", '{"schema_version": 1}', "[]"])
def test_a_record_that_was_cut_short_is_none(text: str, tmp_path: Path) -> None:
    record = RunRecord(kind="train", recipe="r", exit_code=EFFECT)
    (tmp_path / "run_record.json").write_text(text)
    later = record.began_s + 5
    os.utime(tmp_path / "run_record.json", (later, later))
    assert record.stands(tmp_path, is_main=False)


def test_a_cause_that_no_rank_could_write_takes_the_place_of_its_effect_and_nothing_else(
    tmp_path: Path,
) -> None:
    told = RunRecord(
        kind="train", recipe="r", outcome="FAIL", exit_code=137, reason="killed", began_s=0
    )
    of_rank_0 = RunRecord(
        kind="train", recipe="own", outcome="FAIL", exit_code=EFFECT, metrics={"steps": 3}
    )
    for code, expected in ((EFFECT, "killed"), (CAUSE, "of rank 0")):
        of_rank_0.exit_code, of_rank_0.reason = code, "of rank 0"
        (tmp_path / "run_record.json").unlink(missing_ok=True)
        of_rank_0.finish(tmp_path)
        record.say_why(tmp_path, told)
        found = json.loads((tmp_path / "run_record.json").read_text())
        assert (found["reason"], found["recipe"], found["metrics"]) == (
            expected,
            "own",
            {"steps": 3},
        )


def test_a_marker_that_a_model_repeats_costs_no_copy_each() -> None:
    text = "<tool_call>" * 4096
    tracemalloc.start()
    try:
        assert parse_calls(text) is None
        assert tracemalloc.get_traced_memory()[1] < 40 * len(text)
    finally:
        tracemalloc.stop()
