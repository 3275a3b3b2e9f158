"""The jobs of one acceptance: on the same nodes, and what one of them lost ends nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import cast

import pytest

from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.slurm import Job
from infra.clients.ssh import Connection
from infra.clients.ssh_key import fingerprint
from infra.jobs.history import Submission
from infra.reports.acceptance import run
from infra.reports.acceptance.certificate import proof_text
from infra.reports.acceptance.run import AcceptError, Profile, Result
from tests.unit.accept import acceptance
from tests.unit.jobs.test_submit import HASH, OUTPUTS
from workloads.recipes.accept import StageName

HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJTEQYBhvJUYyGCQSCbWuMPmDKqkmIvFY8oMJmvDbFWz"
WANTED = run.batches(Profile.FULL, ("readiness", "compute", "soak"), [])


class Cluster:
    """Jobs that end at once and leave the result of their stage; some leave none."""

    def __init__(
        self,
        folder: Path,
        *,
        lost: tuple[str, ...] = (),
        full: bool = False,
        forgotten: tuple[str, ...] = (),
    ) -> None:
        self.folder, self.lost, self.full, self.forgotten = folder, lost, full, forgotten
        self.asked: list[tuple[str, tuple[str, ...]]] = []
        self.events: list[str] = []

    def submit(self, sets: tuple[str, ...], nodes: tuple[str, ...]) -> Submission:
        (stage,) = next(stages for stages, own in WANTED.items() if own == sets)
        self.asked.append((stage, nodes))
        self.events.append(f"submit {stage}")
        if self.full and nodes:
            raise JobsError("the budget has no room")
        return Submission(
            stack="local",
            job="accept",
            job_id=stage,
            code_hash=HASH,
            sets=sets,
            after=None,
            log_path="",
            submitted_at="",
            cluster=HOST_KEY,
            idempotency_key=f"mark-{stage}",
        )

    def follow(self, _connection: object, _log: str, stage: str, **_: object) -> Job:
        self.events.append(f"end {stage}")
        if stage in self.forgotten:
            raise UnknownJobError(f"job {stage}: Slurm knows no such job")
        return Job(id=stage, name="accept", state="COMPLETED", exit_code=0)

    def pull(
        self, _connection: object, _outputs: object, _job: str, stage: str, **_: object
    ) -> Path:
        if stage in self.lost:
            raise JobsError(f"job {stage}: left nothing")
        made = acceptance.report(stages=[cast("StageName", stage)])
        return acceptance.write(self.folder / stage, made).parent


def _collect(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Result:
    monkeypatch.setattr(run.follow, "follow", cluster.follow)
    monkeypatch.setattr(run, "pull", cluster.pull)
    return run.collect(
        cast("Connection", None),
        OUTPUTS,
        WANTED,
        cluster.submit,
        state=cluster.folder,
        write=lambda _chunk: None,
        say=lambda _line: None,
    )


def test_all_stages_run_on_the_nodes_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(tmp_path)
    assert _collect(cluster, monkeypatch).outcome == "PASS"
    both = ("worker-0", "worker-1")
    assert cluster.asked == [("readiness", ()), ("compute", both), ("soak", both)]
    # The others wait in the queue together: nobody comes in between.
    assert cluster.events.index("submit soak") < cluster.events.index("end compute")


def test_the_result_says_which_job_of_which_cluster_measured_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _collect(Cluster(tmp_path), monkeypatch).evidence
    files = [tmp_path / stage / "acceptance.json" for stage in ("readiness", "compute", "soak")]
    assert [each["sha256"] for each in found] == [
        hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    ]
    assert [(each["job_id"], each["submission"], each["attested"]) for each in found] == [
        (stage, f"mark-{stage}", False) for stage in ("readiness", "compute", "soak")
    ]
    assert {each["cluster"] for each in found} == {fingerprint(HOST_KEY)}
    text = proof_text({"evidence": found})
    assert text == f"measured by job readiness, compute, soak of cluster {fingerprint(HOST_KEY)}"


def test_a_job_without_files_is_a_gap_and_not_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _collect(Cluster(tmp_path, lost=("readiness", "soak")), monkeypatch)
    gaps = {check.stage: check.reason for check in found.checks if check.outcome == "NOT_RUN"}
    assert set(gaps) == {"readiness", "soak"}
    assert (
        gaps["soak"]
        == "job soak left no result: COMPLETED, exit 0; see `soperator logs soak -s local`"
    )
    assert found.outcome == "NOT_RUN"
    with pytest.raises(AcceptError, match="no stage left a result"):
        _collect(Cluster(tmp_path, lost=("readiness", "compute", "soak")), monkeypatch)


def test_what_was_measured_outlives_a_later_refusal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _collect(Cluster(tmp_path, full=True), monkeypatch)
    gaps = {check.stage: check.reason for check in found.checks if check.outcome == "NOT_RUN"}
    assert gaps == dict.fromkeys(("compute", "soak"), "not submitted: the budget has no room")


def test_a_job_that_slurm_forgot_counts_by_what_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One ended while another was followed, on a cluster without accounting: all was lost."""
    forgotten = ("compute", "soak")
    assert _collect(Cluster(tmp_path, forgotten=forgotten), monkeypatch).outcome == "PASS"
    found = _collect(Cluster(tmp_path, forgotten=forgotten, lost=("soak",)), monkeypatch)
    (reason,) = (check.reason for check in found.checks if check.outcome == "NOT_RUN")
    assert reason is not None
    assert reason.startswith("job soak left no result: FORGOTTEN; see ")
