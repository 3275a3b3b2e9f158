"""What `soperator cluster destroy` asks of the credential before it begins."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from infra.cli.main import app
from infra.providers.nebius import sdk
from tests.unit.nebius_api.conftest import Served


@pytest.mark.parametrize(("token", "says"), [("wrong", True), ("local-token", False)])
def test_a_destroy_with_a_refused_token_starts_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch, token: str, says: bool
):
    """The kube cluster would answer each deletion with one word."""
    monkeypatch.setenv("NEBIUS_IAM_TOKEN", token)
    sdk.shared_sdk.cache_clear()
    ran: list[str] = []
    monkeypatch.setattr(
        "infra.cli.cluster.cloud.tear_down", lambda stack, **_: ran.append(stack) or 0
    )
    result = CliRunner().invoke(app, ["cluster", "destroy", "--stack", "h100-prod", "--yes"])
    assert ("destroy: the API does not accept the token" in result.output) is says
    assert (ran, result.exit_code) == (([], 1) if says else (["h100-prod"], 0))
