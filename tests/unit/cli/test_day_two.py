"""`cluster destroy` hands over to the engine; `cluster drain` refuses what it cannot mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli.main import app

RUNNER = CliRunner()
GONE = {
    "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
    "users": [{"name": "u", "user": {"token": "t"}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
    "current-context": "x",
}


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """A stand-in for pulumi that shows a state and writes down how it was called; that file."""
    (tmp_path / "state.json").write_text("{}")
    calls = tmp_path / "calls"
    script = tmp_path / "pulumi"
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = stack ]; then cat {tmp_path}/state.json; exit 0; fi\n'
        f'echo "$@ unreachable=$PULUMI_K8S_DELETE_UNREACHABLE" >> {calls}\n'
        "exit 3\n"
    )
    script.chmod(0o755)
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    found = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    monkeypatch.setattr("infra.cli.context.environ", lambda: found)
    monkeypatch.setattr("infra.cli.cluster.cloud._exists", lambda _id: False)
    return calls


def state(engine: Path, kubeconfig: object, *more: dict[str, str]) -> None:
    inputs = {"cluster_id": "mk8scluster-1", "kubeconfig": json.dumps(kubeconfig)}
    resources = [{"type": "soperator:kube:Teardown", "inputs": inputs}, *more]
    (engine.parent / "state.json").write_text(json.dumps({"deployment": {"resources": resources}}))


@pytest.mark.parametrize("state", ["{}", '{"deployment": {"resources": null}}'])
def test_a_destroy_without_a_cluster_is_the_engines_own_with_its_status(engine: Path, state: str):
    (engine.parent / "state.json").write_text(state)
    result = RUNNER.invoke(app, ["cluster", "destroy", "--stack", "local", "--yes"])
    assert result.exit_code == 3
    assert engine.read_text() == "destroy --stack local --yes unreachable=\n"


def test_releases_of_a_cluster_that_is_gone_are_refreshed_out_of_the_state_first(engine: Path):
    """The official plugin deletes none of them, whatever the variable says."""
    release = {"type": "kubernetes:helm.sh/v3:Release", "urn": "urn:of:kruise"}
    secret = {"type": "kubernetes:core/v1:Secret", "urn": "urn:of:key"}
    state(engine, GONE, release, secret)
    script = engine.parent / "pulumi"
    script.write_text(script.read_text().replace("exit 3", "exit 0"))
    result = RUNNER.invoke(app, ["cluster", "destroy", "--stack", "local", "--yes"])
    assert result.exit_code == 0
    assert engine.read_text().splitlines() == [
        "refresh --stack local --yes --target=urn:of:kruise unreachable=true",
        "destroy --stack local --yes unreachable=true",
    ]


def test_a_cluster_that_is_gone_is_told_and_dropped_in_this_run_only(engine: Path):
    state(engine, GONE)
    result = RUNNER.invoke(app, ["cluster", "destroy", "--stack", "local", "--yes"])
    assert engine.read_text() == "destroy --stack local --yes unreachable=true\n"
    assert "local: cluster mk8scluster-1 is gone: what runs in it is dropped" in result.stderr


def test_a_destroy_that_nobody_can_confirm_is_refused_before_the_engine_is_asked(engine: Path):
    result = RUNNER.invoke(app, ["cluster", "destroy", "--stack", "local"])
    assert result.exit_code == 1
    assert result.stderr == (
        "soperator: cluster destroy: nobody to ask; read `pulumi destroy --preview-only --stack "
        "local` and give --yes\n"
    )
    assert not engine.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["worker-0"], "give --reason TEXT to drain, or --undo"),
        (["worker-0", "--undo", "--reason", "x"], "--undo excludes --reason and --wait"),
        (["worker-0", "--undo", "--wait"], "--undo excludes --reason and --wait"),
    ],
)
def test_a_drain_that_says_two_things_or_nothing_is_refused(arguments: list[str], words: str):
    result = RUNNER.invoke(app, ["cluster", "drain", *arguments])
    assert result.exit_code == 1
    assert words in result.stderr
