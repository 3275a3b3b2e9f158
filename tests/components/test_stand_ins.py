"""The stand-ins of the plugins take all that the program sends; the rest they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import json_format, struct_pb2

from infra.local.plugins.command import CommandProvider
from infra.local.plugins.kubernetes import Kubernetes
from infra.providers.engine.provider import reveal, unmarshal
from stacks.load import KEY_FILE_VARIABLE, load_stack
from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import Registered
from tests.conftest import PUBLIC_KEY

PLUGINS = {"command": CommandProvider(), "kubernetes": Kubernetes()}
SETTINGS = "pulumi:providers:kubernetes"


OTHERS = Path(__file__).parents[1] / "conformance"


@pytest.mark.parametrize("stack", [*SHIPPED, "all-keys", "other-keys", "paused"])
def test_a_stack_sends_nothing_that_a_stand_in_refuses(
    deployed: Deploy, stack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = tmp_path / "key.pub"
    key.write_text(f"{PUBLIC_KEY}\n")
    monkeypatch.setenv(KEY_FILE_VARIABLE, str(key))
    recorder = deployed(stack if stack in SHIPPED else load_stack(stack, OTHERS))
    sent = [each for each in recorder.registered if each.type.split(":")[0] in PLUGINS]
    assert sent
    assert [problem for each in sent for problem in _problems(each)] == []
    settings = [each.inputs for each in recorder.registered if each.type == SETTINGS]
    assert settings
    for each in settings:
        Kubernetes().configure(each)


def _problems(sent: Registered) -> list[tuple[str, ...]]:
    wire = json_format.ParseDict(sent.sent, struct_pb2.Struct())
    provider = PLUGINS[sent.type.split(":")[0]].of(sent.type)
    _, problems = provider.check({}, reveal(unmarshal(wire)))
    return [(sent.name, *each) for each in problems]
