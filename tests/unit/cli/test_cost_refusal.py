"""`soperator cost` prints no bill of a stack that its checks refuse, and lists the stacks once."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from infra.cli.main import app
from stacks.load import STACKS_DIR, stack_names


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> None:
    """l40s-dev with two mistakes that only the checks find."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("2gpu-64vcpu-384gb\n        nodes: 4", "8gpu-128vcpu-1600gb\n        nodes: 4"),
        ("mount_path: /mnt/chkpt,", "mount_path: /mnt/data,"),
    ):
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "Pulumi.l40s-dev.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    # Not the function: a module that is imported meanwhile would keep another one for ever.
    monkeypatch.setattr("stacks.load.load_stack.__defaults__", (folder,))


def cost(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["cost", *arguments])


@pytest.mark.usefixtures("broken")
def test_a_stack_that_its_checks_refuse_gets_all_problems_and_no_bill() -> None:
    result = cost("--stack", "l40s-dev")
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert any("nodes.workers[0].preset: '8gpu-128vcpu-1600gb' is not a preset" in x for x in lines)
    assert any("/mnt/data" in x for x in lines)


@pytest.mark.parametrize("name", ["nosuch", "l40s"])
@pytest.mark.usefixtures("public_key_file")
def test_a_stack_that_does_not_exist_is_answered_with_one_list(name: str) -> None:
    result = cost("--stack", name)
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.count(", ".join(stack_names())) == 1


def test_a_fresh_checkout_needs_no_key_to_be_priced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`soperator cost` as the first command: the key that `soperator env` would make is made."""
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", raising=False)
    done = cost("--stack", "l40s-dev")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "state" / "ssh" / "id_ed25519.pub").is_file()


def test_a_key_of_ones_own_is_never_made_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", str(tmp_path / "mine.pub"))
    refused = cost("--stack", "l40s-dev")
    assert refused.exit_code != 0
    assert f"cannot read the SSH public key {tmp_path / 'mine.pub'}" in refused.output
    assert not (tmp_path / "state" / "ssh").exists()
