"""The script of users, run in a shell with stand-ins for the commands of a login node."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.members import teams_script, users_script
from stacks.slurm_spec import AccountSpec
from stacks.soperator_spec import UserSpec
from stacks.spec import StackSpec

KEY = "ssh-ed25519 AAAA ann@laptop"
COMMANDS = {
    # Homes are folders under $ROOT; a user exists while it has one in $ROOT/passwd.
    "id": '[ -e "$ROOT/passwd/$1" ]',
    "getent": 'echo "$2:x:1000:1000::$ROOT/home/$2:/bin/bash"',
    "soperator-createuser": 'echo "$@" >> "$ROOT/calls"; touch "$ROOT/passwd/$1"; '
    'mkdir -p "$ROOT/home/$1/.ssh"; echo internal > "$ROOT/home/$1/.ssh/authorized_keys"',
    "userdel": 'echo userdel "$@" >> "$ROOT/calls"; rm "$ROOT/passwd/$2"',
    "chown": "exit 0",
}


class Node:
    """A login node as the script sees it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bin").mkdir()
        (root / "passwd").mkdir()
        for name, body in COMMANDS.items():
            command = root / "bin" / name
            command.write_text(f"#!/bin/sh\n{body}\n")
            command.chmod(0o755)

    def run(self, script: str) -> str:
        """Output of the script; it must end well."""
        environment = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "HOME": str(self.root),
            "ROOT": str(self.root),
        }
        answer = subprocess.run(
            ["/bin/sh", "-c", script], env=environment, capture_output=True, text=True, check=False
        )
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def keys(self, user: str) -> list[str]:
        return (self.root / "home" / user / ".ssh" / "authorized_keys").read_text().splitlines()


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def script(spec: StackSpec, *users: UserSpec) -> str:
    return users_script(replace(spec, soperator=replace(spec.soperator, users=users)))


def user(name: str, *keys: str) -> UserSpec:
    return UserSpec(name=name, ssh_public_keys=keys or (KEY,))


OURS = ["# soperator-stack begin", KEY, "# soperator-stack end"]


def test_a_user_is_made_once_and_keeps_the_key_of_the_cluster(spec: StackSpec, node: Node) -> None:
    """Soperator's own key in that file lets the user from node to node."""
    assert node.run(script(spec, user("ann"))) == "users: 1 declared"
    node.run(script(spec, user("ann")))
    assert node.calls == ["ann --without-external-ssh"]
    assert node.keys("ann") == ["internal", *OURS]


def test_a_changed_key_replaces_the_old_one(spec: StackSpec, node: Node) -> None:
    node.run(script(spec, user("ann", "ssh-ed25519 OLD a", "ssh-ed25519 OTHER a")))
    node.run(script(spec, user("ann")))
    assert node.keys("ann") == ["internal", *OURS]


def test_a_user_that_is_no_longer_declared_loses_entry_and_keeps_its_files(
    spec: StackSpec, node: Node
) -> None:
    node.run(script(spec, user("ann"), user("bob")))
    node.run(script(spec, user("bob")))
    assert node.calls[-1] == "userdel --force ann"
    assert node.keys("ann") == ["internal"]
    assert (node.root / ".soperator-stack-users").read_text() == "bob\n"
    node.run(script(spec))
    assert node.calls[-1] == "userdel --force bob"


def test_users_that_others_made_are_left_alone(spec: StackSpec, node: Node) -> None:
    (node.root / "passwd" / "carl").touch()
    assert node.run(script(spec)) == "users: 0 declared"
    assert node.calls == []


def test_a_name_that_contains_another_is_another_user(spec: StackSpec, node: Node) -> None:
    node.run(script(spec, user("ann"), user("anna")))
    node.run(script(spec, user("anna")))
    assert node.calls[-1] == "userdel --force ann"
    assert (node.root / ".soperator-stack-users").read_text() == "anna\n"


def test_names_and_limits_reach_the_shell_quoted(spec: StackSpec) -> None:
    """The rules refuse such a name; a script must not trust them."""
    account = AccountSpec(name="a;reboot", users=("b c",))
    text = teams_script(replace(spec, slurm=replace(spec.slurm, accounts=(account,))))
    assert "set_up add user 'b c' account='a;reboot'" in text
    assert subprocess.run(["/bin/sh", "-n", "-c", text], check=False).returncode == 0
