"""How long PodsStarted waits: for pods as long as they need, for a cause until it has lasted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.clients.errors import KubeError, UnreachableError
from infra.providers.engine.provider import ProviderError
from infra.providers.soperator.pods import PATIENCE_S, SETTLE_S, PodsStartedProvider
from tests.unit.pods.test_blocked import Cluster, Object, made, pod

URN = "urn:pulumi:local::p::soperator:kube:PodsStarted::local-pods-started"
READY = [{"type": "Ready", "status": "True"}]
INPUTS = {
    "cluster": "soperator",
    "namespace": "soperator",
    "made_of": "abc",
    "kubeconfig": "text",
    "pods": ["login-0"],
    "node_labels": [{"a": "b"}],
}
KEYS = {"secret": {"secretName": "keys", "items": [{"key": "a"}]}}
BLOCKED = pod(spec={"volumes": [{"name": "v", **KEYS}]})
STARTED = pod(phase="Running", conditions=READY)


class Time:
    """A clock that the provider's own pauses move."""

    def __init__(self) -> None:
        self.now = 0.0

    def pause(self, seconds: float) -> bool:
        self.now += seconds
        return False


class Story(Cluster):
    """A cluster that is another one as time goes on."""

    def __init__(self, time: Time, at: Callable[[float], list[Object]]) -> None:
        super().__init__()
        self.time = time
        self._at = at

    def list(self, api_version: str, kind: str, namespace: str | None = None) -> list[Object]:
        self.objects = tuple(self._at(self.time.now))
        return super().list(api_version, kind, namespace)

    def close(self) -> None:
        """Closes nothing."""


def wait(
    at: Callable[[float], list[Object]], *, again: bool = False, **inputs: Any
) -> tuple[float, list[str]]:
    """Seconds that a create, or an update, took on this cluster, and what it told."""
    time, lines = Time(), []
    story = Story(time, at)
    provider = PodsStartedProvider(clock=lambda: time.now, connect=lambda _text: story)
    provider.cancelled.wait = time.pause  # pyright: ignore
    provider.engine.info = lambda _urn, line: lines.append(line)  # pyright: ignore
    try:
        if again:
            provider.update(URN, "id", INPUTS, {**INPUTS, **inputs})
        else:
            provider.create(URN, {**INPUTS, **inputs})
    finally:
        wait.took = time.now  # pyright: ignore
    return time.now, lines


def test_pods_that_run_are_waited_for_no_longer() -> None:
    assert wait(lambda _now: [STARTED]) == (0.0, [])


def test_pods_are_asked_for_often_at_first_and_seldom_later() -> None:
    looks: list[float] = []

    def at(now: float) -> list[Object]:
        looks.append(now)
        return [STARTED] if now >= 600 else [pod(spec={"nodeName": ""})]

    wait(at)
    each = sorted(set(looks))
    assert each[:4] == [0, 0.5, 1, 1.5]
    assert len([one for one in each if one > 60]) == 270


def test_a_pod_on_its_way_is_waited_for_and_told_once() -> None:
    coming = pod(spec={"nodeName": ""})
    took, lines = wait(lambda now: [STARTED] if now >= 600 else [coming])
    assert took == 600
    assert lines == ["login-0: waits for a node"]


def test_a_cause_that_lasts_ends_the_wait_with_its_line() -> None:
    with pytest.raises(ProviderError) as raised:
        wait(lambda _now: [BLOCKED])
    assert str(raised.value) == (
        'pod soperator/login-0 cannot start: secret "keys" does not exist; if the stack makes it: '
        "pulumi refresh, pulumi up; if not: kubectl -n soperator create secret generic keys "
        "--from-file=KEY=FILE, then run the command again"
    )
    assert PATIENCE_S <= wait.took <= PATIENCE_S + 5  # pyright: ignore


def test_a_cause_that_goes_in_time_ends_nothing() -> None:
    secret = made("Secret", "keys", data={"a": "eA=="})

    def at(now: float) -> list[Object]:
        if now < PATIENCE_S - 6:
            return [BLOCKED]
        return [BLOCKED, secret] if now < 300 else [STARTED, secret]

    took, lines = wait(at)
    assert took == 300
    assert 'secret "keys" does not exist' in lines[0]
    assert "this run ends if that is still so after 60 s" in lines[0]


def test_two_causes_after_each_other_end_nothing_unless_one_lasts() -> None:
    """A first start goes through several; each has its own time."""
    later = pod(spec={"volumes": [{"name": "v", "configMap": {"name": "c"}}]})

    def at(now: float) -> list[Object]:
        return [BLOCKED] if now < 40 else [later] if now < 80 else [STARTED]

    assert wait(at)[0] == 80


def test_an_image_that_cannot_be_had_lasts_whatever_is_said_of_it() -> None:
    def at(now: float) -> list[Object]:
        reason = ("ErrImagePull", "ImagePullBackOff")[int(now / 10) % 2]
        waiting = {"waiting": {"reason": reason, "message": f"{reason}: not found"}}
        return [pod(containerStatuses=[{"name": "sshd", "image": "i", "state": waiting}])]

    with pytest.raises(ProviderError, match="image i cannot be pulled"):
        wait(at)
    assert wait.took <= PATIENCE_S + 5  # pyright: ignore


def test_a_worker_that_cannot_start_holds_the_run_up_though_login_runs() -> None:
    worker = {**BLOCKED, "metadata": {**BLOCKED["metadata"], "name": "worker-0"}}
    with pytest.raises(ProviderError, match="pod soperator/worker-0 cannot start"):
        wait(lambda _now: [STARTED, worker])


def test_a_worker_whose_node_comes_late_is_judged_too() -> None:
    """Controller and login answer long before."""
    coming = pod("worker-0", spec={"nodeName": ""})
    worker = {**BLOCKED, "metadata": {**BLOCKED["metadata"], "name": "worker-0"}}
    with pytest.raises(ProviderError, match="pod soperator/worker-0 cannot start"):
        wait(
            lambda now: [STARTED, worker if now >= 300 else coming],
            pods=["login-0", "worker-0"],
        )
    assert 300 < wait.took <= 300 + PATIENCE_S + 10  # pyright: ignore


def test_a_worker_that_may_sleep_is_waited_for_while_it_is_there() -> None:
    """The next command waits an hour for the minimum of an elastic set, and sees no pod."""
    coming = pod("worker-0", spec={"nodeName": ""})
    worker = {**BLOCKED, "metadata": {**BLOCKED["metadata"], "name": "worker-0"}}
    with pytest.raises(ProviderError, match="pod soperator/worker-0 cannot start"):
        wait(lambda now: [STARTED, worker if now >= 300 else coming], may_sleep=["worker-0"])
    assert 300 < wait.took <= 300 + PATIENCE_S + 10  # pyright: ignore
    going = {**worker, "metadata": {**worker["metadata"], "deletionTimestamp": "2026-11-22"}}
    for there in ([], [going], [pod("worker-0", phase="Running", conditions=READY)]):
        assert wait(lambda _now, there=there: [STARTED, *there], may_sleep=["worker-0"])[0] == 0


def test_pods_that_never_come_end_the_wait_after_an_hour() -> None:
    with pytest.raises(ProviderError, match="waited 3600 s for login-0; login-0: not made yet"):
        wait(lambda _now: [])


def elsewhere(name: str, **body: Any) -> Object:
    """A pod of a prerequisite, in a namespace of its own."""
    found = pod(name, **body)
    del found["metadata"]["ownerReferences"]
    found["metadata"]["namespace"] = "kruise-system"
    return found


def test_an_operator_that_does_not_run_is_named_when_its_pods_do_not_come() -> None:
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "not found"}}
    others = [
        elsewhere("manager-a", containerStatuses=[{"name": "m", "image": "i", "state": waiting}]),
        elsewhere("manager-b", spec={"nodeName": ""}),
        elsewhere("done", phase="Succeeded"),
        elsewhere("runs", phase="Running", conditions=READY),
    ]
    with pytest.raises(ProviderError) as raised:
        wait(lambda _now: others)
    assert str(raised.value) == (
        "pods of soperator: waited 3600 s for login-0; login-0: not made yet; "
        "pod kruise-system/manager-a cannot start: image i cannot be pulled: not found; "
        "check tag and registry in the stack file; a registry of your own needs a pull secret; "
        "then run the command again; kruise-system/manager-b: waits for a node"
    )
    _, lines = wait(lambda now: others if now < 330 else [STARTED, *others])
    assert lines[0] == "login-0: not made yet"
    assert "kruise-system/manager-a cannot start" in lines[1]
    assert len(lines) == 2


def test_an_interrupt_ends_the_wait() -> None:
    provider = PodsStartedProvider(connect=lambda _text: Story(Time(), lambda _now: []))
    provider.cancelled.set()
    with pytest.raises(ProviderError, match="interrupted while waiting"):
        provider.create(URN, INPUTS)


def test_an_api_server_that_is_away_for_a_moment_ends_nothing_and_for_long_is_told() -> None:
    def gone(now: float) -> list[Object]:
        if now < until:
            raise UnreachableError("https://k: no answer: refused")
        return [STARTED]

    until = PATIENCE_S / 2
    assert wait(gone) == (until, ["the API server does not answer"])
    until = PATIENCE_S * 2
    with pytest.raises(ProviderError, match="pods of soperator: https://k: no answer"):
        wait(gone)
    assert wait.took == PATIENCE_S  # pyright: ignore


def test_an_error_of_the_api_servers_own_is_waited_out_and_a_refusal_is_not() -> None:
    def answers(status: int) -> Callable[[float], list[Object]]:
        def look(now: float) -> list[Object]:
            if now < PATIENCE_S / 2:
                raise KubeError("etcdserver: leader changed", status=status)
            return [STARTED]

        return look

    for status in (429, 500, 503):
        assert wait(answers(status))[0] == PATIENCE_S / 2
    with pytest.raises(ProviderError, match="leader changed"):
        wait(answers(403))


def test_a_preview_asks_nobody() -> None:
    def connect(_text: str) -> Any:
        raise AssertionError

    assert PodsStartedProvider(connect=connect).preview(URN, "", {}, INPUTS) == INPUTS


def test_other_pods_are_waited_for_again_and_other_nodes_are_not() -> None:
    provider = PodsStartedProvider()
    more = {**INPUTS, "kubeconfig": "other", "node_labels": [{"a": "c"}]}
    assert provider.diff("id", INPUTS, INPUTS, more).detailed == {}
    others = {**INPUTS, "pods": ["login-1"]}
    assert provider.diff("id", INPUTS, INPUTS, others).detailed == {"pods[0]": "update"}
    anew = {**INPUTS, "made_of": "def"}
    assert provider.diff("id", INPUTS, INPUTS, anew).detailed == {"made_of": "update"}


def test_after_a_change_pods_of_before_are_not_taken_for_those_of_after() -> None:
    """The operator takes its time; then a pod ends, and its successor may not start."""
    ending = pod(phase="Running", conditions=READY)
    ending["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"

    def at(now: float) -> list[Object]:
        return [STARTED] if now < SETTLE_S / 2 else [ending] if now < 40 else [BLOCKED]

    with pytest.raises(ProviderError, match='secret "keys" does not exist'):
        wait(at, again=True)
    assert wait(lambda _now: [STARTED], again=True)[0] == SETTLE_S


def test_inputs_that_say_nothing_are_refused_by_name() -> None:
    _, failures = PodsStartedProvider().check({}, {"cluster": "", "pods": [], "x": 1})
    assert [path for path, _ in failures] == [
        "x",
        "cluster",
        "namespace",
        "made_of",
        "kubeconfig",
        "pods",
        "node_labels",
    ]
