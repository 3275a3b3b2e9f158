"""Passwords rotate and keep the earlier ones; ends of credentials stay until they are near."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from infra.providers.engine.provider import Dispatch, Secret
from infra.providers.soperator import keys
from infra.providers.soperator.keys import EXPIRY, PASSWORD, ExpiryProvider, PasswordProvider

URN = "urn:pulumi:local::soperator-stack::x::y"


@pytest.fixture
def provider() -> Dispatch:
    return Dispatch({PASSWORD: PasswordProvider(), EXPIRY: ExpiryProvider()})


def plain(state: dict) -> dict:
    """The state as the engine hands it back."""
    return {key: each.value if isinstance(each, Secret) else each for key, each in state.items()}


def test_a_password_is_secret_long_and_never_the_same(provider: Dispatch) -> None:
    _, one = provider.of(PASSWORD).create(URN, {"version": 1})
    _, other = provider.of(PASSWORD).create(URN, {"version": 1})
    assert isinstance(one["password"], Secret)
    assert len(one["password"].value) >= 43, "256 bits in base 64"
    assert one["password"].value != other["password"].value
    assert one["fingerprint"] not in one["password"].value


def test_a_higher_version_makes_the_next_one_and_keeps_the_earlier(provider: Dispatch) -> None:
    """A repository that the earlier one opened is still there."""
    id_, state = provider.of(PASSWORD).create(URN, {"version": 1})
    first = plain(state)
    state = provider.of(PASSWORD).update(URN, id_, first, {"version": 2})
    assert isinstance(state["earlier"], Secret)
    second = plain(state)
    assert second["password"] != first["password"]
    assert second["earlier"] == {first["fingerprint"]: first["password"]}
    third = plain(provider.of(PASSWORD).update(URN, id_, second, {"version": 3}))
    assert set(third["earlier"]) == {first["fingerprint"], second["fingerprint"]}


def test_a_preview_makes_no_password(provider: Dispatch) -> None:
    state = provider.of(PASSWORD).preview(URN, "", {}, {"version": 1})
    assert isinstance(state["password"], Secret)


def test_a_version_never_goes_back(provider: Dispatch) -> None:
    _, failures = provider.of(PASSWORD).check({"version": 3}, {"version": 2})
    assert failures == [("version", "2, but it was 3: raise it to rotate again")]


def test_an_end_stays_as_it_was_chosen(provider: Dispatch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new one at each `up` would replace the key each time."""
    start = datetime(2026, 11, 21, tzinfo=UTC)
    monkeypatch.setattr(keys, "now", lambda: start)
    inputs = {"days": 100, "version": 1}
    at, state = provider.of(EXPIRY).create(URN, inputs)
    assert at == state["at"] == "2027-03-01T00:00:00Z"
    monkeypatch.setattr(keys, "now", lambda: start + timedelta(days=74))
    assert provider.of(EXPIRY).diff(at, inputs, state, inputs).replaces == ()
    monkeypatch.setattr(keys, "now", lambda: start + timedelta(days=76))
    assert provider.of(EXPIRY).diff(at, inputs, state, inputs).replaces == ("days",)


def test_another_version_chooses_another_end(provider: Dispatch) -> None:
    inputs = {"days": 100, "version": 1}
    at, state = provider.of(EXPIRY).create(URN, inputs)
    found = provider.of(EXPIRY).diff(at, inputs, state, {"days": 100, "version": 2})
    assert found.replaces == ("version",)


@pytest.mark.parametrize("inputs", [{"days": 0, "version": 1}, {"days": 1}, {"day": 1}])
def test_an_end_without_whole_numbers_is_refused(provider: Dispatch, inputs: dict) -> None:
    assert provider.of(EXPIRY).check({}, inputs)[1]
