"""What a restore is made of: the copy that is meant, the way into it, and what is said before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cli.cluster.cloud import explain
from infra.clients.errors import UnreachableError
from infra.operate import restore
from infra.operate.restore import JailSnapshot
from infra.render import backup as render
from infra.render import backup as restoring
from stacks.errors import UserError
from stacks.load import load_stack
from stacks.spec.storage import BackupSpec

NAMESPACE = "soperator"
AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
BACKEND = render.schedule_spec(
    BackupSpec(keep_daily=7, size_gib=1), bucket="b", endpoint="https://s3:443", repository="new"
)["backend"]


def copy(id_: str, **changed: Any) -> JailSnapshot:
    return replace(JailSnapshot(id=id_, at=AT, repository="s3:https://s3:443/b/new"), **changed)


class Cluster:
    """Answers of the API server by kind."""

    def __init__(self, **by_kind: list[dict[str, Any]]) -> None:
        self._by_kind = by_kind

    def list(self, version: str, kind: str, namespace: str | None = None) -> list[dict[str, Any]]:
        return self._by_kind.get(kind, [])

    def get(self, target: Mapping[str, Any]) -> dict[str, Any] | None:
        found = self._by_kind.get(target["kind"], [])
        name = target["metadata"]["name"]
        return next((each for each in found if each["metadata"]["name"] == name), None)


def cluster(maintenance: str = "none", **by_kind: list[dict[str, Any]]) -> Any:
    secret = {"metadata": {"name": render.SECRET}, "data": {"backup-password": "eA=="}}
    slurm = {"metadata": {"name": "soperator"}, "spec": {"maintenance": maintenance}}
    return Cluster(Secret=[secret], SlurmCluster=[slurm], **by_kind)


def plan(client: Any, snapshot: JailSnapshot | None = None, **options: Any) -> restore.Plan:
    given = {"path": None, "into_jail": False, "while_running": False, **options}
    return restore.make_plan(client, NAMESPACE, snapshot or copy("ab" * 32), BACKEND, **given)


def test_snapshots_are_listed_newest_first() -> None:
    items = [
        {"spec": {"id": id_, "date": date, "repository": "s3:x/y"}}
        for id_, date in (("a", "2026-11-19T00:00:00Z"), ("b", "2026-11-20T00:00:00Z"))
    ]
    found = restore.list_snapshots(cluster(Snapshot=items), NAMESPACE)
    assert [each.id for each in found] == ["b", "a"]
    assert restore.choose(found, "latest").id == "b"


def test_digits_that_mean_several_copies_or_none_at_all_are_refused() -> None:
    found = [copy("abcdef12" + "0" * 56), copy("abcdef12" + "1" * 56)]
    assert restore.choose(found, "abcdef120").id == found[0].id
    with pytest.raises(UserError, match="means several snapshots"):
        restore.choose(found, "abcdef12")
    with pytest.raises(UserError, match="is no snapshot"):
        restore.choose(found, "yesterday")
    with pytest.raises(UserError, match="lists no copy"):
        restore.choose([], "latest")


def test_a_copy_that_a_new_cluster_does_not_list_is_asked_of_the_repository() -> None:
    chosen = restore.choose([], "abcdef12")
    assert (chosen.id, chosen.at) == ("abcdef12", None)
    assert plan(cluster(), chosen).backend == BACKEND


def test_a_cluster_without_a_schedule_names_the_key_that_makes_it() -> None:
    with pytest.raises(UserError, match=r"declare storage\.backup"):
        restore.schedule_spec(cluster(), NAMESPACE)["backend"]


def test_the_jail_is_written_over_when_nothing_runs_or_when_asked() -> None:
    assert plan(cluster("downscale"), into_jail=True).target == "/"
    assert plan(cluster(), into_jail=True, while_running=True).target == "/"
    with pytest.raises(UserError, match="--while-running"):
        plan(cluster(), into_jail=True)


def test_beside_is_a_folder_of_its_own_and_asks_nothing_of_the_cluster() -> None:
    found = plan(cluster())
    assert found.target == f"/mnt/restored/{found.name}"
    assert found.name.startswith("jail-abababab-")


def test_every_problem_is_told_at_once() -> None:
    old = copy("ab" * 32, repository="s3:https://s3:443/b/old")
    with pytest.raises(UserError) as told:
        plan(cluster(), old, path="home/*", into_jail=True)
    lines = str(told.value).splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "--path home/*",
        "--into-jail",
        (
            "no secret jail-backup has key backup-password-old nor secret jail-backup-old has key "
            "backup-password"
        ),
    ]


@pytest.mark.parametrize("path", ["/", "home", "/home/../etc", "/home//x", "/home/*", "/a[b]"])
def test_a_path_that_restic_would_take_otherwise_is_refused(path: str) -> None:
    assert restoring.path_problem(path)


def test_a_path_is_looked_for_below_the_jail_as_k8up_does() -> None:
    assert restoring.path_problem("/home/user/my file.txt") == ""
    made = restoring.restore("n", NAMESPACE, backend=BACKEND, snapshot="x", path="/home/user")
    assert made["spec"]["restoreFilter"] == "/home/user"
    assert made["spec"]["restoreMethod"] == {"folder": {"claimName": "jail-pvc"}}
    whole = restoring.restore("n", NAMESPACE, backend=BACKEND, snapshot="x")
    assert "restoreFilter" not in whole["spec"]


def test_an_earlier_repository_is_opened_with_its_own_password() -> None:
    found, _ = restoring.backends_of(BACKEND, "s3:https://s3:443/b/old")
    assert found["s3"] == {**BACKEND["s3"], "bucket": "b/old"}
    assert found["repoPasswordSecretRef"] == {"name": "jail-backup", "key": "backup-password-old"}
    assert restoring.backends_of(BACKEND, "s3:https://s3:443/b/new") == [BACKEND]


def test_a_copy_from_before_a_lost_state_is_opened_with_what_the_cluster_kept() -> None:
    old = copy("ab" * 32, repository="s3:https://s3:443/b/old")
    with pytest.raises(UserError, match="nor secret jail-backup-old has key backup-password"):
        plan(cluster(), old)
    kept = {"metadata": {"name": "jail-backup-old"}, "data": {"backup-password": "eA=="}}
    client = cluster()
    client.list("v1", "Secret").append(kept)
    reference = plan(client, old).backend["repoPasswordSecretRef"]
    assert reference == {"name": "jail-backup-old", "key": "backup-password"}


def test_time_is_the_longest_copy_that_ended_well() -> None:
    def job(seconds: int, reason: str) -> dict[str, Any]:
        done = {
            "type": "Completed",
            "reason": reason,
            "lastTransitionTime": f"2026-11-20T03:00:{seconds:02}Z",
        }
        head = {"creationTimestamp": "2026-11-20T03:00:00Z"}
        return {"metadata": head, "status": {"conditions": [done]}}

    jobs = [job(10, "Succeeded"), job(40, "Succeeded"), job(59, "Failed")]
    assert restore.longest_backup_s(cluster(Backup=jobs), NAMESPACE) == 40
    assert restore.longest_backup_s(cluster(), NAMESPACE) is None


@pytest.mark.parametrize(("kind", "job"), [("Backup", "backup-now-0"), ("Restore", "restore-now")])
def test_what_failed_names_the_job_that_k8up_made_for_it(kind: str, job: str) -> None:
    """k8up 4.8.7: the job of a backup has a number, one for each node and its claims."""
    ended = {"type": "Completed", "status": "True", "reason": "Failed", "message": "1 failed"}

    class Failing(Cluster):
        def wait_for(self, target: Mapping[str, Any], *_: Any, **__: Any) -> dict[str, Any]:
            return {**target, "status": {"conditions": [ended]}}

    target = {"kind": kind, "metadata": {"name": "now", "namespace": NAMESPACE}}
    why = restore.await_end(Failing(), target, tell=print)  # type: ignore[arg-type]
    assert why == f"now: 1 failed; its log: kubectl -n soperator logs job/{job}"


def test_a_copy_now_is_what_the_schedule_would_make_and_as_root() -> None:
    """Without the schedule's security context restic could not read the files of every user."""
    schedule = render.schedule_spec(
        BackupSpec(keep_daily=7, size_gib=1), bucket="b", endpoint="https://s3:443", repository="r"
    )
    made = render.backup("now-1", NAMESPACE, schedule)
    assert (made["kind"], made["metadata"]["name"]) == ("Backup", "now-1")
    assert made["spec"]["podSecurityContext"] == {"runAsUser": 0}
    assert made["spec"]["backend"] == schedule["backend"]
    assert made["spec"]["tags"] == schedule["backup"]["tags"]
    assert not {"schedule", "concurrentRunsAllowed"} & made["spec"].keys()


def test_size_time_and_price_are_said_before(public_key_file: Path) -> None:
    spec = load_stack("h100-prod")
    text = "\n".join(explain(spec, plan(cluster(), path="/home/x"), 125.0))
    assert "/home/x of snapshot abababab (made 2026-11-20 03:00 UTC)" in text
    assert f"at most {spec.storage.jail.size_gib} GiB" in text
    assert "took 125 s" in text
    assert "0.00 USD more for storage" in text
    over = "\n".join(explain(spec, plan(cluster("downscale"), into_jail=True), None))
    assert "written over, newer ones too" in over
    assert "remembers no copy that ended" in over


def test_who_lost_the_cluster_is_told_that_the_copy_goes_on() -> None:
    def silent(*_: Any, **__: Any) -> None:
        raise UnreachableError("https://kube: no answer: timed out")

    client: Any = SimpleNamespace(wait_for=silent)
    target = {"kind": "Restore", "metadata": {"name": "jail-1", "namespace": NAMESPACE}}
    told = (
        r"no answer: timed out; jail-1 goes on in the cluster: .* restores\.k8up\.io jail-1 shows"
    )
    with pytest.raises(UserError, match=told):
        restore.await_end(client, target, tell=print)
