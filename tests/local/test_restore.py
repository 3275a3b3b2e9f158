"""A copy of the jail and the way back on real daemons: k8up's objects, restic, object storage."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from infra.local.slurm import pod as pods
from infra.operate import restore
from infra.operate.restore import JailSnapshot, copy_now
from infra.render import backup as render
from infra.state import Cache
from stacks.errors import UserError
from stacks.spec.storage import BackupSpec
from tests.local.slurm_stand import CLUSTER, NAMESPACE, Stand, running_stand
from tests.object_cloud import credentials, object_cloud

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(shutil.which("restic") is None, reason="no restic: run `make setup`"),
]
BUCKET = "copies"
BACKUP = BackupSpec(keep_daily=7, size_gib=1)


@dataclass
class Copies:
    """The stand with object storage and a schedule of backups."""

    stand: Stand
    port: int
    passwords: dict[str, str] = field(default_factory=lambda: {"first": "of the test"})
    made: int = 0

    def declare(self) -> None:
        """What the program declares for storage.backup, with the newest password."""
        client, endpoint = self.stand.client, f"http://127.0.0.1:{self.port}"
        *earlier, fingerprint = self.passwords
        key = credentials(BUCKET)
        data = render.secret_data(
            key_id=key["access_key_id"],
            secret=key["secret_access_key"],
            password=self.passwords[fingerprint],
            earlier={name: self.passwords[name] for name in earlier},
        )
        place = {"namespace": NAMESPACE}
        head = {"apiVersion": "v1", "kind": "Secret"}
        client.apply({**head, "metadata": {"name": render.SECRET, **place}, "stringData": data})
        schedule = render.schedule_spec(
            BACKUP, bucket=BUCKET, endpoint=endpoint, repository=fingerprint
        )
        for kind, name, spec in (
            (render.POD_CONFIG_KIND, render.POD_CONFIG, render.pod_config_spec()),
            (render.KIND, render.SCHEDULE, schedule),
        ):
            head = {"apiVersion": render.API_VERSION, "kind": kind}
            client.apply({**head, "metadata": {"name": name, **place}, "spec": spec})

    def backup(self) -> tuple[JailSnapshot, ...]:
        """A backup now, as `soperator cluster backup` makes it; what it made."""
        self.made += 1
        return copy_now(self.stand.client, NAMESPACE, f"now-{self.made}", tell=print)

    def prune(self) -> None:
        client, kind, part = self.stand.client, "Prune", "prune"
        head = {"apiVersion": render.API_VERSION}
        place = {"name": render.SCHEDULE, "namespace": NAMESPACE}
        schedule = client.get({**head, "kind": render.KIND, "metadata": place})
        assert schedule is not None
        own = {
            key: value
            for key, value in schedule["spec"][part].items()
            if key not in ("schedule", "concurrentRunsAllowed")
        }
        self.made += 1
        name = f"now-{self.made}"
        target = {
            **head,
            "kind": kind,
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"backend": schedule["spec"]["backend"], **own},
        }
        client.apply(target)
        self.stand.wait(lambda: completed(client.get(target)) is not None, f"the end of {name}")
        found = completed(client.get(target))
        assert found is not None
        assert found["reason"] == "Succeeded", found

    def restore(self, snapshot: JailSnapshot, **options: Any) -> str:
        """Restores, and returns where the copy landed."""
        given = {"path": None, "into_jail": False, "while_running": False, **options}
        client = self.stand.client
        backend = restore.schedule_spec(client, NAMESPACE)["backend"]
        plan = restore.make_plan(client, NAMESPACE, snapshot, backend, **given)
        restore.run(client, NAMESPACE, plan, tell=print)
        return plan.target

    def newest(self) -> JailSnapshot:
        return restore.choose(restore.list_snapshots(self.stand.client, NAMESPACE), "latest")


def completed(live: dict[str, Any] | None) -> dict[str, Any] | None:
    conditions = ((live or {}).get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == "Completed"), None)


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copies]:
    folder = tmp_path_factory.mktemp("copies")
    cloud = object_cloud(folder / "cloud")
    cloud.add_bucket(BUCKET)
    command = [sys.executable, "-m", "infra.local.object_storage", "--state", str(folder / "held")]
    command += ["--cloud", str(folder / "cloud")]
    # Else it would read the whole SDK for its descriptors.
    environ = {**os.environ, "SOPERATOR_CACHE": str(Cache.from_environ().root)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
    try:
        assert server.stdout is not None
        port = int(server.stdout.readline().rpartition(":")[2])
        with running_stand(tmp_path_factory.mktemp("stand")) as stand:
            stand.apply(stand.values())
            stand.wait_idle("worker-[0-1]")
            made = Copies(stand, port)
            made.declare()
            yield made
    finally:
        server.terminate()
        server.wait(60)
        cloud.store.close()


def text(copies: Copies, path: str) -> str:
    """What a user reads at a path of the jail."""
    return copies.stand.ssh(f"cat {path}").stdout


def write(copies: Copies, path: str, content: str) -> None:
    done = copies.stand.ssh(f"mkdir -p $(dirname {path}) && printf %s {content} > {path}")
    assert done.returncode == 0, done.stderr


def test_a_deleted_file_is_back_beside_and_then_at_its_place(copies: Copies) -> None:
    write(copies, "/root/thesis", "kept")
    write(copies, "/root/other", "old")
    copies.backup()
    copies.stand.ssh("rm /root/thesis")
    write(copies, "/root/other", "new")
    newest = copies.newest()
    beside = copies.restore(newest)
    assert text(copies, f"{beside}/root/thesis") == "kept"
    assert text(copies, f"{beside}/root/other") == "old"
    assert text(copies, "/root/thesis") == ""
    assert text(copies, "/root/other") == "new"
    assert copies.restore(newest, path="/root/thesis", into_jail=True, while_running=True) == "/"
    assert text(copies, "/root/thesis") == "kept"
    assert text(copies, "/root/other") == "new"


def test_a_copy_now_says_which_snapshot_it_made(copies: Copies) -> None:
    (made,) = copies.backup()
    assert made == copies.newest()
    (again,) = copies.backup()
    assert again.id != made.id


def test_a_path_alone_is_restored_without_the_rest(copies: Copies) -> None:
    write(copies, "/root/one/file", "one")
    write(copies, "/root/two/file", "two")
    copies.backup()
    beside = copies.restore(copies.newest(), path="/root/one")
    assert text(copies, f"{beside}/root/one/file") == "one"
    assert text(copies, f"{beside}/root/two/file") == ""


def test_the_jail_of_a_running_cluster_is_not_written_over_unless_asked(copies: Copies) -> None:
    copies.backup()
    told = "SlurmCluster soperator runs, and its files would change under it"
    with pytest.raises(UserError, match=told):
        copies.restore(copies.newest(), into_jail=True)


def test_the_jail_of_a_stopped_cluster_is_written_over_without_insisting(copies: Copies) -> None:
    stand = copies.stand
    write(copies, "/root/report", "right")
    copies.backup()
    write(copies, "/root/report", "spoilt")
    values = stand.values()
    values[CLUSTER]["maintenance"] = "downscale"
    stand.apply(values)
    stand.wait(lambda: not pods.processes(stand.cloud.runtime.folder), "the end of the pods")
    assert copies.restore(copies.newest(), into_jail=True) == "/"
    stand.apply(stand.values())
    stand.wait_idle("worker-[0-1]")
    assert text(copies, "/root/report") == "right"


def test_a_pruned_repository_lists_one_copy_a_day(copies: Copies) -> None:
    copies.backup()
    copies.backup()
    copies.prune()
    assert len(restore.list_snapshots(copies.stand.client, NAMESPACE)) == 1


def test_a_copy_of_an_earlier_password_is_restored_with_it(copies: Copies) -> None:
    """A rotated password has a repository of its own."""
    write(copies, "/root/before", "rotation")
    copies.backup()
    older = copies.newest()
    copies.passwords["second"] = "another of the test"
    copies.declare()
    copies.backup()
    assert copies.newest().repository.endswith("/second")
    assert older.repository.endswith("/first")
    beside = copies.restore(older, path="/root/before")
    assert text(copies, f"{beside}/root/before") == "rotation"


def test_a_copy_that_cannot_be_made_says_what_restic_said(copies: Copies) -> None:
    copies.passwords["third"] = "of the third"
    copies.declare()
    copies.backup()
    copies.passwords["third"] = "of nobody"
    copies.declare()
    with pytest.raises(UserError, match="restic ended with 1: Fatal: wrong password"):
        copies.backup()
    copies.passwords["third"] = "of the third"
    copies.declare()
