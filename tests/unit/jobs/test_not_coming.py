"""Why the nodes of a waiting job do not come: from their pods, or how to see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.cli import context
from infra.cli.jobs import follow
from infra.cli.machine import doctor
from infra.clients.errors import KubeError, UnreachableError
from infra.clients.slurm import Job
from infra.jobs.nodes import NodeWatch, not_coming, waits_for_nodes
from stacks.load import load_stack
from stacks.spec import StackSpec
from tests.unit.pods.test_blocked import Cluster, made, mounting

LINE = (
    'pod soperator/worker-1 cannot start: secret "keys" has no key b; if the stack makes it: '
    "pulumi refresh, pulumi up; if not: kubectl -n soperator edit secret keys, then run the "
    "command again"
)
WAKING = Job(id="7", name="finetune", state="CONFIGURING", where="worker-[0-1]")


@pytest.fixture
def spec(public_key_file: object) -> StackSpec:
    return load_stack("local")


def broken(name: str = "worker-1") -> Cluster:
    """A pod of this name that wants a key which its Secret does not have."""
    pod = mounting(secret={"secretName": "keys", "items": [{"key": "b", "path": "b"}]})
    pod["metadata"]["name"] = name
    return Cluster(pod, made("Secret", "keys", data={"a": ""}))


def job(state: str, where: str | None) -> Job:
    return Job(id="7", name="finetune", state=state, where=where)


@pytest.mark.parametrize(
    ("the_job", "pod", "is_told"),
    [
        (WAKING, "worker-1", True),
        (WAKING, "worker-2", False),
        (job("PENDING", "Resources"), "worker-2", True),
        (job("PENDING", "ReqNodeNotAvail, UnavailableNodes:worker-1"), "worker-1", True),
        (
            job("PENDING", "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved"),
            "worker-1",
            True,
        ),
        (job("PENDING", "Resources"), "login-0", False),
        (job("PENDING", "Dependency"), "worker-1", False),
        (job("PENDING", "JobHeldUser"), "worker-1", False),
        (job("RUNNING", "worker-1"), "worker-1", False),
    ],
)
def test_a_pod_that_cannot_start_is_told_to_the_jobs_that_wait_for_it(
    spec: StackSpec, the_job: Job, pod: str, is_told: bool
) -> None:
    assert bool(not_coming(broken(pod), spec, [the_job])) is is_told
    assert waits_for_nodes(the_job) or not is_told


class Watched:
    """A watch whose clock is the test's; every look of `soperator logs` is a second later."""

    def __init__(self, spec: StackSpec, connect: Callable[[], Any]) -> None:
        self.now_s = 0.0
        self.said: list[str] = []
        self.watch = NodeWatch(spec, connect, self.said.append, clock=lambda: self.now_s)

    def look(self, the_job: Job, seconds: int) -> None:
        for _ in range(seconds):
            self.watch.look(the_job)
            self.now_s += 1


def test_a_follower_of_the_log_hears_it_once_and_within_two_minutes(spec: StackSpec) -> None:
    of = Watched(spec, broken)
    of.look(WAKING, 60)
    assert of.said == [], "what a start needs for a moment is no cause"
    of.look(WAKING, 59)
    assert of.said == [LINE]
    of.look(WAKING, 600)
    assert of.said == [LINE]


def test_what_was_mended_meanwhile_is_not_told(spec: StackSpec) -> None:
    now = [broken()]
    of = Watched(spec, lambda: now[0])
    of.look(WAKING, 50)
    now[0] = Cluster()
    of.look(WAKING, 20)
    now[0] = broken()
    of.look(WAKING, 50)
    assert of.said == []


def test_a_cluster_that_cannot_be_asked_is_told_once_with_the_command(spec: StackSpec) -> None:
    def connect() -> Cluster:
        raise KubeError("https://10.0.0.1: no answer")

    of = Watched(spec, connect)
    of.look(WAKING, 600)
    (line,) = of.said
    assert line == (
        "local: why nodes do not come cannot be read here: https://10.0.0.1: no answer; "
        "kubectl -n soperator get pods,events says it"
    )


def test_a_job_that_starts_at_once_asks_kubernetes_nothing(spec: StackSpec) -> None:
    def connect() -> Cluster:
        raise AssertionError("asked")

    of = Watched(spec, connect)
    of.look(WAKING, 9)
    of.look(job("RUNNING", "worker-[0-1]"), 100)
    assert of.said == []


def test_kubernetes_is_asked_also_from_a_shell_without_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`.venv/bin/soperator status`: the kubeconfig's credential is `soperator`, not on PATH."""
    for name in ("NEBIUS_IAM_TOKEN", "NEBIUS_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    config = {
        "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [
            {"name": "u", "user": {"exec": {"command": "soperator", "args": ["kube-token"]}}}
        ],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    monkeypatch.setattr("infra.clients.pulumi.read_kubeconfig", lambda *_, **__: json.dumps(config))
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1"):
        context.kube_client("local").version()


class Client(Cluster):
    """What the verbs connect to."""

    def close(self) -> None:
        """Nothing is open."""


def test_status_and_doctor_name_the_pod_and_its_cause(
    spec: StackSpec, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(context, "spec", lambda _stack: spec)
    monkeypatch.setattr(context, "kube_client", lambda _stack: Client(*broken().objects))
    follow._not_coming("local", (WAKING,), context.kube_client)
    assert LINE in capsys.readouterr().err
    follow._not_coming("local", (job("RUNNING", "worker-1"),), context.kube_client)
    assert capsys.readouterr().err == ""
    (found,) = doctor.pods("local")
    assert (found.check, found.outcome) == ("pod soperator/worker-1", "FAIL")
    assert found.seen == 'cannot start: secret "keys" has no key b'
    monkeypatch.setattr(context, "kube_client", lambda _stack: Client())
    assert [each.outcome for each in doctor.pods("local")] == ["PASS"]
