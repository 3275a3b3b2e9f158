"""Private keys and the kubeconfig are secrets wherever they go."""

from __future__ import annotations

import pytest

from tests import SHIPPED
from tests.components.conftest import Deploy
from tests.components.recorder import plain
from tests.components.texts import open_texts

pytestmark = pytest.mark.parametrize("stack", SHIPPED)
# What the recorder answers, and what the program makes of it.
PRIVATE = ("PRIVATE", "certificate-authority-data")


def test_no_private_key_and_no_kubeconfig_is_ever_sent_open(deployed: Deploy, stack: str) -> None:
    """Sent open once, it lies in the state in plain text for good."""
    recorder = deployed(stack)
    sent = [each.sent for each in recorder.registered] + recorder.component_outputs
    for word in PRIVATE:
        assert word in str(sent), f"{word} is not used, so this test would prove nothing"
        leaks = [text for text in open_texts(sent) if word in text]
        assert leaks == []


@pytest.mark.feature("S003-68")
def test_the_kubeconfig_is_an_output_and_no_private_key_is(deployed: Deploy, stack: str) -> None:
    outputs = plain(deployed(stack).outputs)
    for name in ("login_ip", "ssh_command", "login_host_key", "users", "mounts", "places", "jobs"):
        assert outputs[name], name
    assert "certificate-authority-data" in outputs["kubeconfig"]
    assert "PRIVATE" not in str(outputs)
