"""Every fault of the API at every call of a deployment's life: the next run heals it.

After the run that followed a fault, the cloud holds what an undisturbed run makes, by name and to
the field: nothing twice, nothing left over. The provider is driven as the engine drives it, so that
all timings take seconds; tests/engine/test_fault_kills.py shows the same under the real engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from infra.providers.nebius import api, sdk
from infra.providers.nebius.provider import NebiusProvider
from tests.engine.cloud_content import Content
from tests.engine.small_cloud import Deployment, SmallCloud, failing

OVER_QUOTA = {
    "code": "RESOURCE_EXHAUSTED",
    "error": "QuotaFailure",
    "retry": "NOTHING",
    "details": {
        "quota_failure": {
            "violations": [
                {"quota": "compute.disk.count", "limit": "1", "requested": "2", "message": "no"}
            ]
        }
    },
}
ATTEMPTS = len(api._BACK_OFF_S) + 1
HEALED_AT_ONCE = {
    "away for a moment": {"code": "UNAVAILABLE"},
    "away after the commit": {"code": "UNAVAILABLE", "when": "after"},
}
FATAL = {
    "away for long": {"code": "UNAVAILABLE", "times": ATTEMPTS},
    "every answer lost": {"code": "UNAVAILABLE", "when": "after", "times": ATTEMPTS},
    "broken before": {"code": "INTERNAL"},
    "broken after the commit": {"code": "INTERNAL", "when": "after"},
    "over quota": OVER_QUOTA,
    "token expired": {"code": "UNAUTHENTICATED"},
    "token expired after the commit": {"code": "UNAUTHENTICATED", "when": "after"},
}
LATE = {
    "failed late": {"code": "INTERNAL", "when": "operation"},
    "over quota late": {**OVER_QUOTA, "when": "operation"},
}
GROWN_GIB = 128


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCloud]:
    cloud = SmallCloud(tmp_path_factory.mktemp("emulator"))
    yield cloud
    cloud.stop()


@pytest.fixture(scope="module")
def provider(cloud: SmallCloud) -> Iterator[NebiusProvider]:
    """A provider that waits for nothing between two attempts and two polls, nor out an outage."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOPERATOR_NEBIUS_ENDPOINT", cloud.endpoint)
        patch.setenv("NEBIUS_IAM_TOKEN", "local-token")
        patch.setattr(api, "_FIRST_POLL_S", 0.0)
        patch.setattr(api, "_AWAY_S", -1.0)
        patch.setattr(api, "_AWAY_S", 0.0)
        sdk.shared_sdk.cache_clear()
        made = NebiusProvider()
        schema, pauses = made._api.schema, (0.0,) * (ATTEMPTS - 1)
        patch.setattr(made, "_api", api.Api(schema, made.cancelled, back_off_s=pauses))
        yield made
        sdk.shared_sdk().sync_close()
        sdk.shared_sdk.cache_clear()


class Life:
    """A deployment in its three phases, undisturbed: what each leaves, and how often it calls."""

    def __init__(self, cloud: SmallCloud, provider: NebiusProvider) -> None:
        self.cloud, self.provider = cloud, provider
        self.contents: dict[str, Content] = {}
        self.calls: dict[str, int] = {}
        self.answers: dict[str, int] = {}
        self.mutations: dict[str, int] = {}
        deployment = self.begin("up")
        for phase in PHASES:
            before = len(cloud.emulator.calls)
            assert self.run(phase, deployment) == ""
            calls = list(cloud.emulator.calls)[before:]
            made = [call["method"].rpartition("/")[2] for call in calls]
            self.calls[phase] = len(made)
            self.answers[phase] = sum(call["code"] == "OK" for call in calls)
            self.mutations[phase] = sum(m in ("Create", "Update", "Delete") for m in made)
            self.contents[phase] = deepcopy(cloud.content())

    def moments(self, phase: str, fault: dict[str, Any]) -> range:
        """Numbers of the calls that the fault can meet: an answer that is lost must be one."""
        return range((self.answers if fault.get("when") == "after" else self.calls)[phase])

    def begin(self, phase: str) -> Deployment:
        """An empty cloud, brought to where the phase begins."""
        self.cloud.empty()
        deployment = Deployment(self.provider)
        if phase != "up":
            assert self.run("up", deployment) == ""
        return deployment

    def run(self, phase: str, deployment: Deployment) -> str:
        """Runs one phase; what it was refused with."""
        if phase == "destroy":
            return failing(deployment.destroy)
        return failing(deployment.up, **({"size_gib": GROWN_GIB} if phase == "change" else {}))


PHASES = ("up", "change", "destroy")


@pytest.fixture(scope="module")
def life(cloud: SmallCloud, provider: NebiusProvider) -> Life:
    return Life(cloud, provider)


def test_an_undisturbed_life_polls_grows_and_leaves_nothing(life: Life) -> None:
    """What the others compare with: it must not be empty by mistake."""
    assert len(life.contents["up"]) == 3
    assert life.contents["change"] != life.contents["up"]
    assert life.contents["destroy"] == {}
    assert life.mutations == {"up": 3, "change": 1, "destroy": 3}
    assert life.calls["up"] >= 3 * life.mutations["up"]


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", HEALED_AT_ONCE)
def test_a_moment_without_an_answer_is_not_noticed(life: Life, phase: str, fault: str) -> None:
    for moment in life.moments(phase, HEALED_AT_ONCE[fault]):
        deployment = life.begin(phase)
        life.cloud.plant(**HEALED_AT_ONCE[fault], skip=moment)
        assert life.run(phase, deployment) == "", moment
        _check(life, phase, moment)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", FATAL)
def test_the_run_after_a_refused_call_heals_it(life: Life, phase: str, fault: str) -> None:
    for moment in life.moments(phase, FATAL[fault]):
        deployment = life.begin(phase)
        life.cloud.plant(**FATAL[fault], skip=moment)
        told = life.run(phase, deployment)
        assert told, moment
        assert "\n" not in told
        assert life.run(phase, deployment) == "", (moment, told)
        _check(life, phase, moment)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("fault", LATE)
def test_the_run_after_an_operation_that_failed_late_heals_it(
    life: Life, phase: str, fault: str
) -> None:
    for moment in range(life.mutations[phase]):
        deployment = life.begin(phase)
        life.cloud.plant(**{**LATE[fault], "method": r"\.(Create|Update|Delete)$"}, skip=moment)
        assert life.run(phase, deployment), moment
        assert life.run(phase, deployment) == "", moment
        _check(life, phase, moment)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("phase", PHASES)
def test_an_answer_that_takes_longer_than_a_call_may_is_asked_for_again(
    life: Life, monkeypatch: pytest.MonkeyPatch, phase: str, when: str
) -> None:
    """The slow call may be the one that changes the cloud: what it made is taken over."""
    monkeypatch.setattr(life.provider._api, "call_s", 1.0)
    deployment = life.begin(phase)
    change = r"\.(Create|Update|Delete)$"
    life.cloud.plant(code="SLOW", seconds=60, when=when, method=change)
    assert life.run(phase, deployment) == ""
    life.cloud.plant()
    _check(life, phase, 0)


def _check(life: Life, phase: str, moment: int) -> None:
    faults: list[dict[str, Any]] = life.cloud.emulator.faults.pending()
    assert faults == [], f"the fault at call {moment} never came"
    assert life.cloud.content() == life.contents[phase], moment
    assert life.cloud.unfinished() == [], moment
