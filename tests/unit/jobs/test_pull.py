"""What crosses the connection lands in the job's folder as files, and nowhere else."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import cast

import pytest

from infra.jobs import pull
from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.ssh import Connection, Result

OUTPUTS = StackOutputs(
    stack="demo",
    login_ip="127.0.0.1",
    ssh_port=22,
    login_host_key="",
    code_path="/code",
    code_hash="",
    places={"results": "/results", "logs": "/logs"},
    jobs={},
)


class Cluster:
    """A login node that answers with one archive."""

    def __init__(self, *members: tarfile.TarInfo) -> None:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
            for member in members:
                member.size = len(b"new\n") if member.isfile() else 0
                archive.addfile(member, io.BytesIO(b"new\n"))
        self.archive = buffer.getvalue()

    def run_bytes(self, command: str) -> tuple[Result, bytes]:
        return Result(command=command, exit_code=0, stdout="", stderr=""), self.archive


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def pulled(cluster: Cluster, state: Path) -> Path:
    return pull.pull(cast("Connection", cluster), OUTPUTS, "finetune", "7", state=state)


def test_results_and_log_become_files_of_the_job(tmp_path: Path) -> None:
    folder = pulled(
        Cluster(member("7", tarfile.DIRTYPE), member("7/a/loss.json"), member("finetune_7.out")),
        tmp_path,
    )
    assert folder == tmp_path / "runs" / "demo" / "7"
    assert (folder / "a" / "loss.json").read_text() == "new\n"
    assert (folder / "job.log").read_text() == "new\n"


def test_a_second_pull_replaces_the_first_but_for_the_submission(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo" / "7"
    folder.mkdir(parents=True)
    (folder / "submission.json").write_text("{}")
    (folder / "old").write_text("old")
    pulled(Cluster(member("7/new")), tmp_path)
    assert sorted(path.name for path in folder.iterdir()) == ["new", "submission.json"]


@pytest.mark.parametrize("name", ["../escaped", "/tmp/escaped", "7/../../escaped"])
def test_a_path_outside_the_folder_is_refused_and_the_older_pull_stays(
    tmp_path: Path, name: str
) -> None:
    kept = pulled(Cluster(member("7/kept")), tmp_path) / "kept"
    with pytest.raises(JobsError, match="outside the job's folder"):
        pulled(Cluster(member(name)), tmp_path)
    assert kept.is_file()
    assert not list(tmp_path.rglob("escaped"))


def test_links_stay_on_the_cluster(tmp_path: Path) -> None:
    folder = pulled(
        Cluster(member("7/link", tarfile.SYMTYPE, "/etc/passwd"), member("7/file")), tmp_path
    )
    assert [path.name for path in folder.iterdir()] == ["file"]
