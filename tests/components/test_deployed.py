"""The outputs of the last deployment, read while the engine writes its state file."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pulumi
import pytest

from infra.components import stack


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the engine answers in turn: outputs or an error."""
    answers: list[Any] = []

    def invoke(_token: str, _inputs: dict[str, str]) -> SimpleNamespace:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(value={"outputs": answer})

    monkeypatch.setattr(pulumi.runtime, "invoke", invoke)
    # The recorder of other tests leaves settings without an organization.
    monkeypatch.setattr(pulumi, "get_organization", lambda: "organization")
    monkeypatch.setattr(stack, "_AGAIN_S", (0.0, 0.0))
    return answers


def test_a_state_that_is_half_written_is_read_again(answers: list[Any]) -> None:
    """Seen on a busy machine: `failed to load checkpoint: EOF` ended the first `up`."""
    answers += [Exception("failed to load checkpoint: EOF"), {"login_ip": "127.0.0.1"}]
    assert stack.deployed_outputs() == {"login_ip": "127.0.0.1"}


def test_a_state_that_stays_unreadable_is_told(answers: list[Any]) -> None:
    answers += [Exception("failed to load checkpoint: EOF")] * 3
    with pytest.raises(Exception, match="EOF"):
        stack.deployed_outputs()


def test_any_other_failure_is_told_at_once(answers: list[Any]) -> None:
    answers += [Exception("no access"), {}]
    with pytest.raises(Exception, match="no access"):
        stack.deployed_outputs()
    assert answers == [{}]
