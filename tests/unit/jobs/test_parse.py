"""What Slurm prints becomes what Slurm meant. Fixtures are output of Debian's Slurm 22.05.8."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.ssh import Result

FIXTURES = Path(__file__).parent / "fixtures"
LINES = (FIXTURES / "scontrol_22.05.txt").read_text(encoding="utf-8").splitlines()
JOBS = {job.id: job for job in map(slurm.scontrol_job, LINES)}


@pytest.mark.feature("S001-94", "S002-45")
def test_a_failed_job_has_its_exit_code_and_its_times() -> None:
    job = JOBS["1"]
    assert (job.name, job.state, job.exit_code, job.status) == ("probe", "FAILED", 3, 3)
    assert (job.elapsed, job.ended, job.where) == ("00:00:01", "2026-11-21T05:44:39", "worker-0")


@pytest.mark.feature("S001-94")
def test_a_job_that_was_cancelled_before_its_start_ran_for_no_time() -> None:
    """Slurm prints RunTime=20778-05:44:40 for it: the days since 1970."""
    assert (JOBS["2"].state, JOBS["2"].elapsed, JOBS["2"].started) == ("CANCELLED", None, None)


def test_a_cancelled_job_never_counts_as_success_though_its_exit_code_is_0() -> None:
    assert (JOBS["2"].exit_code, JOBS["2"].status) == (0, 1)


@pytest.mark.feature("S001-94")
def test_a_signal_reads_as_a_shell_would_say_it() -> None:
    assert JOBS["4"].status == 128 + 9


@pytest.mark.parametrize(
    ("accounted", "shown"), [("9:0", 137), ("0:9", 137), ("11:0", 139), ("3:0", 3), ("75:0", 75)]
)
def test_sacct_and_scontrol_say_one_number_of_a_killed_program(accounted: str, shown: int) -> None:
    """The list said 9, as sacct takes 128 off what is over it, and the job's own page 137."""
    (job,) = slurm.sacct(f"18|serve|FAILED|{accounted}|00:31|N|N|N|worker-0\n")
    assert (job.exit_code, job.status) == (shown, shown)


@pytest.mark.feature("S001-94")
def test_a_name_with_spaces_and_bars_survives() -> None:
    assert JOBS["4"].name == "a|b c"


@pytest.mark.feature("S001-94", "S002-45")
def test_a_running_job_has_no_exit_code_and_no_end_but_a_limit() -> None:
    job = JOBS["5"]
    assert (job.finished, job.exit_code, job.ended) == (False, None, None)
    assert (job.started, job.limit_at) == ("2026-11-21T05:44:40", "2026-11-21T06:44:40")
    assert job.where == "worker-[0-1]"


@pytest.mark.feature("S001-94")
def test_a_waiting_job_says_why() -> None:
    assert (JOBS["6"].where, JOBS["6"].started) == ("JobHeldUser", None)


@pytest.mark.feature("S000-61", "S002-44", "S003-80")
def test_squeue_gives_every_job_of_the_queue() -> None:
    jobs = {job.id: job for job in slurm.squeue((FIXTURES / "squeue_22.05.txt").read_text())}
    assert set(jobs) == {"1", "2", "3", "4", "5", "6"}
    assert (jobs["4"].name, jobs["4"].state) == ("a|b c", "FAILED")
    assert (jobs["6"].where, jobs["6"].started) == ("JobHeldUser", None)


@pytest.mark.feature("S000-61")
def test_squeue_is_asked_for_what_is_read_from_it() -> None:
    """Letters of squeue(1), --format."""
    row = {"A": "7", "j": "train", "T": "RUNNING", "M": "0:05", "V": "2026-11-21T05:00:00"}
    row |= {"S": "2026-11-21T05:01:00", "E": "afterok:6(unfulfilled)", "R": "worker-0"}
    (job,) = slurm.squeue(re.sub("%(.)", lambda letter: row[letter[1]], slurm.SQUEUE_FORMAT))
    assert (job.id, job.name, job.state, job.elapsed) == ("7", "train", "RUNNING", "0:05")
    assert (job.submitted, job.started) == (row["V"], row["S"])
    assert (job.needs, job.where) == (("6",), "worker-0")


def test_the_reason_of_an_end_is_no_place() -> None:
    """All that a cluster without accounting tells: the column WHERE named the reason."""
    times = "2026-11-21T21:56:57|2026-11-21T21:56:58"
    (failed,) = slurm.squeue(f"24|short|FAILED|0:05|{times}|(null)|(NonZeroExitCode)\n")
    (waiting,) = slurm.squeue(f"25|short|PENDING|0:00|{times}|(null)|(Resources)\n")
    assert (failed.where, waiting.where) == (None, "Resources")


def test_sacct_says_who_cancelled_and_only_the_state_is_kept() -> None:
    line = "7|finetune|CANCELLED by 0|0:15|00:00:09|2026-11-21T05:00:00|2026-11-21T05:00:01|"
    (job,) = slurm.sacct(line + "2026-11-21T05:00:10|worker-[0-1]\n")
    assert (job.state, job.status, job.name) == ("CANCELLED", 128 + 15, "finetune")


def test_a_state_that_a_later_slurm_invents_ends_a_wait() -> None:
    assert slurm.Job(id="1", name="x", state="LAUNCH_FAILED").finished


@pytest.mark.parametrize(("output", "job_id"), [("12\n", "12"), ("12;cluster\n", "12")])
def test_sbatch_prints_an_id_with_or_without_its_cluster(output: str, job_id: str) -> None:
    assert slurm.submitted_id(output) == job_id


@pytest.mark.parametrize("output", ["", "Submitted batch job 12", "12 34"])
def test_anything_else_from_sbatch_is_quoted_back(output: str) -> None:
    with pytest.raises(JobsError, match="instead of a job id"):
        slurm.submitted_id(output)


@pytest.mark.parametrize("line", ["12", "1|a|RUNNING|0:01"])
def test_a_cut_line_is_an_error_and_not_half_a_job(line: str) -> None:
    with pytest.raises(JobsError, match="which is not"):
        slurm.squeue(line)
    with pytest.raises(JobsError, match="which is not"):
        slurm.sacct(line)


_WORD = st.text(st.characters(codec="ascii", exclude_characters="|\n\r\x0b\x0c\x1c\x1d\x1e"))


@given(name=_WORD, state=st.sampled_from(["RUNNING", "PENDING", "COMPLETED", "NODE_FAIL"]))
def test_no_job_name_moves_another_field(name: str, state: str) -> None:
    times = "2026-11-21T05:44:35|2026-11-21T05:44:38"
    (queued,) = slurm.squeue(f"5|{name}|{state}|0:07|{times}|(null)|worker-0\n")
    (accounted,) = slurm.sacct(f"5|{name}|{state}|0:0|00:00:07|{times}|Unknown|worker-0\n")
    for job in (queued, accounted):
        assert (job.name, job.state, job.where) == (name, state, "worker-0")


@given(code=st.integers(0, 255), signal=st.integers(0, 64))
def test_only_success_has_status_0(code: int, signal: int) -> None:
    for state in ("FAILED", "CANCELLED", "TIMEOUT", "OUT_OF_MEMORY", "NODE_FAIL"):
        job = slurm.Job(
            id="1", name="x", state=state, exit_code=slurm.exit_code(f"{code}:{signal}")
        )
        assert job.status != 0


class Hostile:
    """A login node that answers whatever is asked with this."""

    def __init__(self, answer: str) -> None:
        self.answer = answer

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        return Result(command=command, exit_code=0, stdout=self.answer, stderr="")


@pytest.mark.parametrize("id_", ["..", "../../../home/me", "12/..", ".ssh", "", "1" * 30])
def test_what_is_no_id_never_becomes_part_of_a_path(id_: str) -> None:
    """`pull 12` of a node that said JobId=.. deleted every run of every stack here."""
    end = "JobName=x JobState=COMPLETED ExitCode=0:0"
    for answer in (f"JobId={id_} {end}\n", f"{id_}|x|COMPLETED|0:0|1|a|b|c|d\n"):
        with pytest.raises(JobsError, match=f"Slurm printed '{id_}' for the id of a job"):
            slurm.find(Hostile(answer), "12")
    with pytest.raises(JobsError, match="for the id of a job"):
        slurm.recent(Hostile(f"{id_}|x|RUNNING|1|2|3||x\n--\n"), days=1)


USE = "1|{task}|u|a|p|RUNNING|2026-01-01T00:00:00|N/A|{cpus}|{gres}|{nodes}|{num}|1:00|None|j\n"
GOOD = {"task": "1", "cpus": "2", "gres": "gpu:1", "nodes": "n1", "num": "1"}


@pytest.mark.parametrize(
    "odd",
    [
        {"nodes": "n[1-999999999]"},
        {"nodes": ",".join(["n[1-65000]"] * 9)},
        {"nodes": f"n[{'0' * 99}1-9]"},
        {"task": f"1_[0-{'9' * 30}]"},
        {"cpus": "x"},
        {"gres": f"gpu:{'9' * 5000}"},
        {"num": "-1"},
    ],
)
def test_numbers_that_no_cluster_has_are_refused_before_memory_is_taken_for_them(
    odd: dict[str, str],
) -> None:
    assert slurm.queue(Hostile(USE.format(**GOOD)), "c")[0].gpus_per_node == 1
    with pytest.raises(JobsError, match="Slurm printed"):
        slurm.queue(Hostile(USE.format(**{**GOOD, **odd})), "c")
    assert slurm.queue(Hostile(USE.format(**{**GOOD, "task": "1_[0-3:0]"})), "c")
