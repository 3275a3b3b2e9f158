"""Tokens that end in the middle, and clocks that differ: a new token, or one line with the fix."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from infra.providers.nebius import api, sdk
from infra.providers.nebius.provider import NebiusProvider
from tests.engine.cloud_content import Content
from tests.engine.small_cloud import PROJECT, Deployment, SmallCloud, failing
from tests.nightly import at_night

EXCHANGE = "TokenExchangeService/Exchange"
HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_FIRST_POLL_S", 0.0)


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCloud]:
    cloud = SmallCloud(tmp_path_factory.mktemp("emulator"))
    yield cloud
    cloud.stop()


@pytest.fixture
def with_token(cloud: SmallCloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[NebiusProvider]:
    """A provider with the token of the environment, over an empty cloud."""
    cloud.empty()
    monkeypatch.setenv("SOPERATOR_NEBIUS_ENDPOINT", cloud.endpoint)
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "local-token")
    sdk.shared_sdk.cache_clear()
    yield NebiusProvider()
    sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()


@pytest.fixture
def undisturbed(cloud: SmallCloud, with_token: NebiusProvider) -> Content:
    """What an undisturbed run makes."""
    assert failing(Deployment(with_token).up) == ""
    found = deepcopy(cloud.content())
    cloud.empty()
    return found


@pytest.fixture
def with_key(
    cloud: SmallCloud,
    undisturbed: Content,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> NebiusProvider:
    """A provider with the key of a service account, and its clock right."""
    del undisturbed
    monkeypatch.delenv("NEBIUS_IAM_TOKEN")
    monkeypatch.setenv("SOPERATOR_NEBIUS_KEY_FILE", str(_register(cloud, tmp_path)))
    sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
    return NebiusProvider()


def _register(cloud: SmallCloud, folder: Path) -> Path:
    """Credentials of a new service account whose public key the cloud knows from its start."""
    key = rsa.generate_private_key(65537, 2048)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    message, account_id = cloud.emulator.schema.message, "serviceaccount-e00deployer"
    account: Any = message("nebius.iam.v1.ServiceAccount")()
    registered: Any = message("nebius.iam.v1.AuthPublicKey")()
    account.metadata.id, account.metadata.parent_id = account_id, PROJECT
    registered.metadata.id, registered.metadata.parent_id = "publickey-e00deployer", PROJECT
    registered.spec.account.service_account.id = account_id
    registered.spec.data = public.decode()
    for resource in (account, registered):
        cloud.emulator.store.put(resource)
        cloud.seed[resource.metadata.id] = resource
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    subject = {"type": "JWT", "alg": "RS256", "private-key": private.decode()}
    subject |= {"kid": registered.metadata.id, "iss": account_id, "sub": account_id}
    file = folder / "credentials.json"
    file.write_text(json.dumps({"subject-credentials": subject}))
    file.chmod(0o600)
    return file


def _exchanges(cloud: SmallCloud) -> int:
    return sum(call["method"].endswith(EXCHANGE) for call in cloud.emulator.calls)


def _end_all(tokens: dict[str, str]) -> None:
    """Ends every token that was made from a key."""
    for token in [one for one in tokens if one != "local-token"]:
        del tokens[token]


def _when_called(cloud: SmallCloud, method: str, work: Callable[[], object]) -> None:
    """Does `work` right before the emulator answers its next call of a method."""
    faults: Any = cloud.emulator.faults
    take = faults.take

    def first(name: str, *arguments: Any) -> Any:
        if method in name and faults.take is first:
            faults.take = take
            work()
        return take(name, *arguments)

    faults.take = first


@pytest.mark.feature("S003-56")
@pytest.mark.parametrize("method", ["NodeGroupService.Create", at_night("OperationService.Get")])
def test_a_token_that_ends_in_the_middle_is_fetched_anew(
    cloud: SmallCloud, undisturbed: Content, with_key: NebiusProvider, method: str
) -> None:
    deployment = Deployment(with_key)
    before = _exchanges(cloud)
    tokens = cloud.emulator.store.tokens
    _when_called(cloud, method, lambda: _end_all(tokens))
    assert failing(deployment.up) == ""
    assert _exchanges(cloud) == before + 2
    assert cloud.content() == undisturbed


def test_a_key_that_was_revoked_in_the_middle_is_one_line_with_the_fix(
    cloud: SmallCloud, undisturbed: Content, with_key: NebiusProvider
) -> None:
    deployment = Deployment(with_key)
    key = cloud.emulator.store.resources["publickey-e00deployer"]

    def revoke() -> None:
        _end_all(cloud.emulator.store.tokens)
        cloud.emulator.store.drop(key.metadata.id)

    _when_called(cloud, "NodeGroupService.Create", revoke)
    told = failing(deployment.up)
    assert told.startswith("create NodeGroup 'nodes': the token is not accepted")
    assert "\n" not in told
    cloud.emulator.store.put(key)
    sdk.shared_sdk().sync_close()
    sdk.shared_sdk.cache_clear()
    deployment.provider = NebiusProvider()
    assert failing(deployment.up) == ""
    assert cloud.content() == undisturbed


@pytest.mark.feature("S002-19")
@pytest.mark.parametrize("method", ["NodeGroupService.Create", at_night("OperationService.Get")])
def test_a_given_token_that_ends_is_one_line_and_the_next_token_goes_on(
    cloud: SmallCloud,
    undisturbed: Content,
    with_token: NebiusProvider,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    deployment = Deployment(with_token)
    tokens = cloud.emulator.store.tokens
    subject = tokens["local-token"]
    _when_called(cloud, method, lambda: tokens.pop("local-token"))
    told = failing(deployment.up)
    assert "the token is not accepted" in told
    assert "set NEBIUS_IAM_TOKEN to a fresh one: nebius iam get-access-token" in told
    tokens |= {"fresh": subject, "local-token": subject}
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", "fresh")
    sdk.shared_sdk.cache_clear()
    deployment.provider = NebiusProvider()
    assert failing(deployment.up) == ""
    assert cloud.content() == undisturbed


@pytest.fixture
def skew(cloud: SmallCloud, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the cloud's clock some hours before or after this machine's."""

    def set_clock(hours: float) -> None:
        right = time.time() - len(cloud.emulator.calls)
        monkeypatch.setattr(cloud, "started_at", right + hours * HOUR_S)

    return set_clock


@pytest.mark.parametrize(("before", "after"), [at_night(-25, -25), at_night(25, 25), (0, 25)])
def test_another_clock_of_the_cloud_changes_nothing(
    cloud: SmallCloud,
    undisturbed: Content,
    with_token: NebiusProvider,
    skew: Callable[[float], None],
    before: float,
    after: float,
) -> None:
    """More than a day: by then the cloud has forgotten the keys that make a repetition safe."""
    deployment = Deployment(with_token)
    skew(before)
    cloud.plant(code="INTERNAL", when="after", method="NodeGroupService.Create")
    assert failing(deployment.up) != ""
    skew(after)
    assert failing(deployment.up) == ""
    assert cloud.content() == undisturbed


@pytest.mark.parametrize("hours", [at_night(-2), 2])
def test_a_key_under_a_wrong_clock_is_refused_with_the_clock_as_a_cause(
    cloud: SmallCloud,
    undisturbed: Content,
    with_key: NebiusProvider,
    skew: Callable[[float], None],
    hours: float,
) -> None:
    deployment = Deployment(with_key)
    skew(hours)
    told = failing(deployment.up)
    assert "the token is not accepted" in told
    assert "this machine's clock" in told
    assert cloud.content() == {}
    skew(0)
    assert failing(deployment.up) == ""
    assert cloud.content() == undisturbed
