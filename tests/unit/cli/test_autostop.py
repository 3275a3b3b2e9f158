"""`cluster autostop`: says what is due; pauses by stack file and engine only when told to."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import infra.operate.idle
import stacks.load
from infra.cli import context
from infra.cli.cluster import pause
from infra.cli.main import app
from infra.clients.errors import JobsError, KubeError
from infra.clients.ssh import Result as SshResult
from infra.operate.idle import Activity, Verdict
from infra.render import names
from stacks.load import STACKS_DIR, load_stack

LIFETIME = "  soperator-stack:lifetime: {idle_hours: 8}\n"
PREVIEW = "preview --expect-no-changes --non-interactive --stack l40s-dev"
CHANGES = "preview --json --non-interactive --stack l40s-dev"
UP = "up --yes --non-interactive --stack l40s-dev"
PARTITIONS = (
    "PartitionName=main AllowGroups=ALL Default=YES State=UP TotalCPUs=16\n"
    "PartitionName=night AllowGroups=ALL Default=NO State=DOWN TotalCPUs=16\n"
)
"""As Slurm 25.11 prints them, shortened."""
HOLD, RELEASE = (f"scontrol update PartitionName=main State={it}" for it in ("DRAIN", "UP"))
DUE = Verdict(is_due=True, reason="no job since yesterday")


def silence(monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    """Makes the stack's outputs unreadable."""

    def silent(name: str) -> None:
        raise JobsError(why)

    monkeypatch.setattr(context, "read", silent)


class Outputs:
    """Of a stack, whoever asks."""

    login_host_key = "key"

    def as_owner_of(self, _identity: Path) -> Outputs:
        return self


class Login:
    """A login node of two partitions; writes the changes of them beside the engine's calls."""

    refused = "nothing"

    def __init__(self, called: Path) -> None:
        self.called = called

    def __enter__(self) -> Login:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def run(self, command: str, *, stdin: bytes = b"") -> SshResult:
        if command.startswith("scontrol update"):
            with self.called.open("a", encoding="utf-8") as file:
                file.write(f"{command}\n")
        failed = int(self.refused in command)
        said = "Access denied\n" if failed else ""
        return SshResult(command=command, exit_code=failed, stdout=PARTITIONS, stderr=said)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """A stack file with a lifetime, and an engine that only writes down how it was called."""
    found = tmp_path / "stacks"
    found.mkdir()
    text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8")
    text = text.replace("config:\n", f"config:\n{LIFETIME}", 1)
    (found / "Pulumi.l40s-dev.yaml").write_text(text, encoding="utf-8")
    engine = tmp_path / "bin" / "pulumi"
    engine.parent.mkdir()
    engine.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/called\n'
        f'case "$1 $2" in "preview --json") cat {tmp_path}/preview.json; exit 0 ;; esac\n'
        f'[ "$1" != stack ] || {{ cat {tmp_path}/export.json; exit 0; }}\n'
        "case $1 in preview) exit ${PREVIEW_STATUS:-0} ;; *) exit ${ENGINE_STATUS:-0} ;; esac\n"
    )
    engine.chmod(0o755)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(context, "environ", lambda: dict(os.environ))
    monkeypatch.setattr(context, "read", lambda name: Outputs())
    monkeypatch.setattr(context, "connect", lambda outputs, identity: Login(tmp_path / "called"))
    nothing = SimpleNamespace(list=lambda version, kind: [], close=lambda: None)
    monkeypatch.setattr(context, "kube_client", lambda name: nothing)
    monkeypatch.setattr(stacks.load, "STACKS_DIR", found)
    monkeypatch.setattr(
        stacks.load,
        "load_stack",
        lambda name, environ=None: load_stack(name, found, environ=environ),
    )
    return found


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["cluster", "autostop", "--stack", "l40s-dev", *words])


def judged(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict) -> None:
    """The verdicts, one after the other; the last one stays."""
    left = list(verdicts)
    monkeypatch.setattr(
        pause,
        "_verdict",
        lambda spec, outputs, shell, end_jobs: left.pop(0) if len(left) > 1 else left[0],
    )


def called(folder: Path) -> list[str]:
    return (folder.parent / "called").read_text().splitlines()


def is_paused(folder: Path) -> bool:
    return load_stack("l40s-dev", folder).nodes.paused


def test_without_act_it_only_says_what_is_due(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    done = run()
    assert done.exit_code == 0, done.output
    assert "l40s-dev: due: no job since yesterday" in done.output
    assert "--act pauses it" in done.output
    assert not is_paused(folder)
    assert not (folder.parent / "called").exists()


def test_told_to_act_it_pauses_the_file_and_runs_the_engine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    done = run("--act")
    assert done.exit_code == 0, done.output
    assert is_paused(folder)
    assert called(folder) == [PREVIEW, HOLD, UP]


def test_a_job_that_came_since_the_verdict_keeps_the_stack(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No job starts between the second look and the end of its nodes: the partitions are held."""
    judged(monkeypatch, DUE, Verdict(is_due=False, reason="1 jobs run or wait: 13 load"))
    done = run("--act")
    assert done.exit_code == 0
    assert "no longer due, so not paused: 1 jobs run or wait: 13 load" in done.output
    assert not is_paused(folder)
    assert called(folder) == [PREVIEW, HOLD, RELEASE]


class Nodes:
    """Two worker nodes, one of them cordoned by somebody; writes beside the engine's calls."""

    refused = "nothing"

    def __init__(self, called: Path) -> None:
        self.called = called

    def list(self, version: str, kind: str) -> list[dict[str, Any]]:
        labels = {names.NODESET_NAME_LABEL: "worker"}
        of_others = {"metadata": {"name": "system-a", "labels": {}}, "spec": {}}
        closed = {"metadata": {"name": "node-b", "labels": labels}, "spec": {"unschedulable": True}}
        return [{"metadata": {"name": "node-a", "labels": labels}, "spec": {}}, closed, of_others]

    def merge_patch(self, target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
        word = "cordon" if patch["spec"]["unschedulable"] else "uncordon"
        with self.called.open("a", encoding="utf-8") as file:
            file.write(f"{word} {target['metadata']['name']}\n")
        if word == self.refused:
            raise KubeError(f"{target['metadata']['name']}: no", status=503)
        return target

    def close(self) -> None:
        pass


def test_no_pod_starts_on_a_node_that_is_about_to_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Job that was applied while the engine worked started, and lost its nodes."""
    judged(monkeypatch, DUE)
    monkeypatch.setattr(context, "kube_client", lambda name: Nodes(folder.parent / "called"))
    assert run("--act").exit_code == 0
    assert called(folder) == [PREVIEW, HOLD, "cordon node-a", UP]


def test_nodes_that_stay_take_pods_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DUE)
    monkeypatch.setattr(context, "kube_client", lambda name: Nodes(folder.parent / "called"))
    monkeypatch.setenv("ENGINE_STATUS", "255")
    assert run("--act").exit_code == 255
    kept = [PREVIEW, HOLD, "cordon node-a", UP, "uncordon node-a", RELEASE]
    assert called(folder) == kept


def test_where_one_partition_cannot_be_held_all_take_jobs_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    monkeypatch.setattr(Login, "refused", "State=DRAIN")
    done = run("--act")
    assert done.exit_code == 1
    assert "PartitionName=main: exit 1: Access denied" in done.output
    assert not is_paused(folder)
    assert called(folder) == [PREVIEW, HOLD, RELEASE]


def test_where_one_node_cannot_be_cordoned_all_take_pods_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    monkeypatch.setattr(context, "kube_client", lambda name: Nodes(folder.parent / "called"))
    monkeypatch.setattr(Nodes, "refused", "cordon")
    done = run("--act")
    assert done.exit_code == 1
    assert "node-a: no" in done.output
    assert called(folder) == [PREVIEW, HOLD, "cordon node-a", "uncordon node-a", RELEASE]


def test_an_engine_that_fails_is_the_exit_code_and_the_next_run_tries_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    monkeypatch.setenv("ENGINE_STATUS", "255")
    assert run("--act").exit_code == 255
    assert not is_paused(folder)
    assert called(folder) == [PREVIEW, HOLD, UP, RELEASE]
    monkeypatch.setenv("ENGINE_STATUS", "0")
    assert run("--act").exit_code == 0
    assert is_paused(folder)


def test_partitions_take_jobs_again_also_where_nodes_cannot_be_let_take_pods(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine had taken the kube cluster's outputs: that error left the partitions in DRAIN."""
    judged(monkeypatch, DUE)
    monkeypatch.setenv("ENGINE_STATUS", "255")
    labels = {names.NODESET_NAME_LABEL: load_stack("l40s-dev", folder).nodes.workers[0].name}
    client = SimpleNamespace(
        list=lambda version, kind: [{"metadata": {"name": "node-0", "labels": labels}}],
        merge_patch=lambda target, patch: target,
        close=lambda: None,
    )
    left: list[Any] = [client]

    def kube_client(name: str) -> Any:
        if not left:
            raise JobsError(f"{name}: output kubeconfig is missing")
        return left.pop()

    monkeypatch.setattr(context, "kube_client", kube_client)
    done = run("--act")
    assert done.exit_code == 255
    assert "let them: kubectl uncordon node-0" in done.output
    assert called(folder) == [PREVIEW, HOLD, UP, RELEASE]


def test_a_checkout_that_is_not_deployed_pauses_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine would apply whatever else was edited there, or take back what others did."""
    judged(monkeypatch, DUE)
    monkeypatch.setenv("PREVIEW_STATUS", "255")
    done = run("--act")
    assert done.exit_code == 1
    assert "this checkout is not what is deployed" in done.output
    assert not is_paused(folder)
    assert called(folder) == [PREVIEW]


def test_what_is_not_due_is_left_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, Verdict(is_due=False, reason="1 jobs run or wait: 12 finetune"))
    done = run("--act")
    assert done.exit_code == 0
    assert "not due: 1 jobs run or wait" in done.output
    assert not is_paused(folder)


def test_a_paused_stack_is_asked_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DUE)
    run("--act")
    (folder.parent / "called").unlink()
    monkeypatch.setattr(pause, "_verdict", lambda *words, **options: pytest.fail("it was asked"))
    done = run("--act")
    assert "is paused already" in done.output
    assert called(folder) == [PREVIEW]


def test_a_file_that_says_paused_is_not_believed_while_the_engine_sees_changes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged(monkeypatch, DUE)
    run("--act")
    monkeypatch.setenv("PREVIEW_STATUS", "255")
    done = run("--act")
    assert done.exit_code == 1
    assert "that is not what is deployed" in done.output
    assert called(folder) == [PREVIEW, HOLD, UP, PREVIEW]


def test_a_second_run_leaves_the_first_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its failing engine would take back what the first one just did."""
    judged(monkeypatch, DUE)
    state = folder.parent / "state"
    state.mkdir()
    with (state / "reap-l40s-dev.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("--act")
    assert done.exit_code == 1
    assert "another autostop of it is at work" in done.output
    assert not (folder.parent / "called").exists()


def test_a_stack_without_a_lifetime_is_refused_with_what_to_declare(folder: Path) -> None:
    path = folder / "Pulumi.l40s-dev.yaml"
    path.write_text(path.read_text().replace(LIFETIME, ""))
    done = run()
    assert done.exit_code == 1
    assert "declare lifetime.idle_hours or lifetime.until" in done.output


def test_the_verdict_is_there_for_programs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judged(monkeypatch, DUE)
    assert json.loads(run("--format", "json").stdout) == {
        "stack": "l40s-dev",
        "is_due": True,
        "reason": "no job since yesterday",
        "acts": False,
    }


def test_work_that_only_kubernetes_knows_keeps_the_stack(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its Job runs on nodes that were drained in Slurm for it, where nothing ran for long."""
    since = datetime.now(UTC) - timedelta(days=1)
    seen = Activity(unfinished=(), idle_since=since)
    monkeypatch.setattr(infra.operate.idle, "activity", lambda *words, **options: seen)
    monkeypatch.setattr(context, "read", lambda name: Outputs())
    pods: list[dict[str, Any]] = []
    client = SimpleNamespace(
        list=lambda version, kind: pods if kind == "Pod" else [], close=lambda: None
    )
    monkeypatch.setattr(context, "kube_client", lambda name: client)
    assert "l40s-dev: due" in run().output
    asks = {"limits": {"nvidia.com/gpu": "1"}}
    pods.append(
        {
            "kind": "Pod",
            "metadata": {"name": "finetune-0", "namespace": "soperator"},
            "spec": {"containers": [{"resources": asks}]},
            "status": {"phase": "Running"},
        }
    )
    assert "not due: 1 jobs run or wait: Pod soperator/finetune-0" in run().output


def test_after_the_end_a_silent_stack_is_paused_only_when_told_that_jobs_may_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "nobody answers")
    assert run("--act", "--end-jobs").exit_code == 1, "it has no end"
    over(folder)
    kept = run("--act")
    assert kept.exit_code == 1
    assert "nobody answers" in kept.output
    assert not is_paused(folder)
    made(folder, same=50)
    assert run("--act", "--end-jobs").exit_code == 0
    assert called(folder) == [CHANGES, PREVIEW, UP]


def test_a_stack_that_was_never_made_to_its_end_loses_its_workers_and_nothing_is_made(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was refused as a checkout that is not deployed, and its GPUs were paid on for ever."""

    silence(monkeypatch, "outputs login_ip are missing")
    over(folder)
    made(folder, same=20, create=30)
    done = run("--act", "--end-jobs")
    assert done.exit_code == 0
    assert called(folder) == [
        CHANGES,
        "stack export --stack l40s-dev",
        "up --yes --non-interactive --target urn:worker --stack l40s-dev",
    ]
    assert (
        "its other machines are paid on: soperator cluster destroy --stack l40s-dev" in done.output
    )


def test_a_half_made_stack_without_workers_is_told_and_no_success(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "outputs login_ip are missing")
    over(folder)
    made(folder, "system", same=20, create=30)
    done = run("--act", "--end-jobs")
    assert (done.exit_code, is_paused(folder)) == (1, False)
    assert "has no workers; its other machines are paid on" in done.output


def test_edits_beside_what_is_missing_pause_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    silence(monkeypatch, "outputs login_ip are missing")
    monkeypatch.setenv("PREVIEW_STATUS", "1")
    over(folder)
    made(folder, same=20, create=30, update=1)
    assert run("--act", "--end-jobs").exit_code == 1
    assert called(folder) == [CHANGES, PREVIEW]


def made(folder: Path, nodeset: str = "worker", **summary: int) -> None:
    """What the engine says of the stack: counts of a preview, and one node group."""
    template = {"metadata": {"labels": {names.NODESET_NAME_LABEL: nodeset}}}
    group = {"urn": "urn:worker", "type": "nebius:mk8s/v1:NodeGroup"}
    resources = [
        {"urn": "urn:stack", "type": "pulumi:pulumi:Stack"},
        {**group, "inputs": {"spec": {"template": template}}},
    ]
    (folder.parent / "preview.json").write_text(json.dumps({"changeSummary": summary}))
    export = {"deployment": {"resources": resources}}
    (folder.parent / "export.json").write_text(json.dumps(export))


def test_jobs_save_and_end_before_the_engine_takes_their_nodes(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    over(folder)
    judged(monkeypatch, DUE)
    left = [("12",), ("12",), ()]
    monkeypatch.setattr(pause, "_seen", lambda *_: SimpleNamespace(job_ids=left.pop(0)))
    monkeypatch.setattr(infra.operate.idle.end_jobs, "__kwdefaults__", {"pause": lambda s: None})
    assert run("--act", "--end-jobs").exit_code == 0
    stays = "scontrol update JobId=12 Requeue=0"
    assert called(folder) == [PREVIEW, HOLD, stays, UP]


def over(folder: Path) -> None:
    path = folder / "Pulumi.l40s-dev.yaml"
    path.write_text(path.read_text().replace("{idle_hours: 8}", '{until: "2026-01-01T00:00Z"}'))


def test_a_sigterm_lets_jobs_in_again_and_the_file_says_running(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cron's machine that shuts down and a cancelled CI job send: all submissions were refused.

    The engine of the test hears nothing, as one that is not of the same group.
    """
    judged(monkeypatch, DUE)
    monkeypatch.setenv("ENGINE_STATUS", "1")
    monkeypatch.setattr(pause, "bring", lambda *_: os.kill(os.getpid(), signal.SIGTERM) or [])
    assert run("--act").exit_code == 130
    assert called(folder) == [PREVIEW, HOLD, RELEASE]
    assert not is_paused(folder)
