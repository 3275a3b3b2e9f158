"""`soperator cluster accept-hosts` refuses what it was given before it reaches for a host."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from infra.cli.main import app


def test_everything_that_is_wrong_is_said_before_any_host_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("infra.reports.acceptance.run.run", lambda *_, **__: pytest.fail("asked"))
    done = CliRunner().invoke(app, ["cluster", "accept-hosts", "a", "a", "--folder", "accept"])
    assert done.exit_code == 1
    assert "HOST: a a: a host is named twice; name each once" in done.stderr
    assert "--folder: 'accept' is not absolute; start it with /" in done.stderr


def test_a_port_that_is_none_is_refused() -> None:
    done = CliRunner().invoke(app, ["cluster", "accept-hosts", "a", "--port", "70000"])
    assert (done.exit_code, "65535" in done.stderr) == (2, True)
