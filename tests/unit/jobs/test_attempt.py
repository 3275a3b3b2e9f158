"""The submission of a command that was killed before the job's number came back."""

from __future__ import annotations

import errno
import fcntl
import os
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients.errors import JobsError
from infra.jobs import submit_once
from infra.jobs.submit_once import Attempt
from tests.unit.cost.run_stacks import at, forecast_entry
from tests.unit.jobs.login_node import planned
from tests.unit.jobs.test_submit import OUTPUTS, Recorded

OFF = "Slurm accounting storage is disabled\n"


@pytest.fixture
def begun() -> Attempt:
    return Attempt(submission=planned(), entries=(forecast_entry("", "15", at(8)),))


def test_an_attempt_is_read_as_it_was_written(tmp_path: Path, begun: Attempt) -> None:
    submit_once.begin(tmp_path, begun)
    assert submit_once.left(tmp_path, "local") == (begun,)
    assert submit_once.left(tmp_path, "other") == ()
    submit_once.end(tmp_path, begun.submission)
    assert submit_once.left(tmp_path, "local") == ()
    submit_once.end(tmp_path, begun.submission)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"submission": {}, "entries": []}', '{"schema_version": 7}']
)
def test_a_damaged_attempt_is_none(tmp_path: Path, begun: Attempt, text: str) -> None:
    submit_once.begin(tmp_path, begun)
    (path,) = tmp_path.glob("runs/local/.attempts/*.json")
    path.write_text(text)
    assert submit_once.left(tmp_path, "local") == ()


def test_an_attempt_that_cannot_be_written_stops_the_submission(
    tmp_path: Path, begun: Attempt
) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(JobsError, match=r"nothing was submitted: make room there"):
        submit_once.begin(tmp_path, begun)


def found(stdout: str, begun: Attempt, known: tuple[str, ...] = ()) -> str | None:
    shell = Recorded(stdout=stdout, stderr=OFF, exit_code=1)
    return submit_once.find(shell, OUTPUTS, begun, known)


def test_the_job_is_the_one_with_its_comment_as_the_queue_or_accounting_has_it(
    begun: Attempt,
) -> None:
    other = begun.mark.replace("00aa", "00ab")
    assert found(f"11|{other}\n12|{begun.mark}\n--\n", begun) == "12"
    assert found(f"12_[1-3]|{begun.mark}\n--\n", begun) == "12"
    assert found(f"--\n12_1|2026-11-21T08:00:01|{begun.mark}\n", begun) == "12"
    assert found(f"11|{other}\n10|(null)\n--\n", begun) is None


@pytest.mark.parametrize(
    ("rows", "known", "number"),
    [
        ("12|2026-11-21T08:00:03|", (), "12"),
        ("12_1|2026-11-21T08:00:03|\n12_2|2026-11-21T08:00:03|", (), "12"),
        ("12|2026-11-21T08:00:03|", ("12",), None),
        ("12|2026-11-21T07:30:00|", (), None),
        ("12|2026-11-21T08:00:03|\n13|2026-11-21T08:00:09|", (), None),
        ("12|2026-11-21T08:00:03|another word", (), None),
        ("9|2026-11-21T08:00:03|", (), None),
        ("12|Unknown|", (), None),
    ],
    ids=["alone", "an array", "known", "older", "two", "commented", "queued", "without a time"],
)
def test_without_comments_in_accounting_one_job_of_that_name_and_time_is_it(
    rows: str, known: tuple[str, ...], number: str | None, begun: Attempt
) -> None:
    assert found(f"9|(null)\n--\n{rows}\n", begun, known) == number


def test_a_controller_that_does_not_answer_says_nothing_of_the_job(begun: Attempt) -> None:
    shell = Recorded(stdout="", stderr="Unable to contact slurm controller\n", exit_code=1)
    with pytest.raises(JobsError, match="Unable to contact"):
        submit_once.find(shell, OUTPUTS, begun, ())


def test_a_mark_is_part_of_the_path_that_its_attempt_is_written_to(
    tmp_path: Path, begun: Attempt
) -> None:
    """Two of the same inputs, in two stacks or one after the other, never meet."""
    second = replace(begun.submission, mark=f"{begun.mark[:-1]}d")
    submit_once.begin(tmp_path, begun)
    submit_once.begin(tmp_path, replace(begun, submission=second))
    assert len(submit_once.left(tmp_path, "local")) == 2


def test_a_lock_that_an_sbatch_still_holds_leaves_open_whether_a_job_came(
    begun: Attempt,
) -> None:
    """The attempt was forgotten while its sbatch hung, and its job came after that."""
    shell = Recorded(
        stdout="--\n", stderr="flock: not found\nanother submission holds it\n", exit_code=74
    )
    said = "finetune: flock: not found; another submission holds it; whether a job came of"
    with pytest.raises(JobsError, match=said):
        submit_once.find(shell, OUTPUTS, begun, ())


def test_a_comment_of_somebody_else_is_not_taken_for_the_end_of_the_queue(begun: Attempt) -> None:
    assert found(f"11|old --\n12|{begun.mark}\n--\n", begun) == "12"


def test_a_state_folder_without_locks_is_refused_in_a_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network folder without a lock daemon ended submit in a traceback."""

    def no_locks(_descriptor: int, _operation: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    said = r"\.submit\.lock: No locks available; nothing was submitted: set SOPERATOR_STATE"
    with (
        pytest.raises(JobsError, match=said),
        submit_once.alone(tmp_path, Recorded(), OUTPUTS, print),
    ):
        pytest.fail("it went on without the lock")
