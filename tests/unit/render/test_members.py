"""The script of users, run in a shell with stand-ins for the commands of a login node.

As root the members of these tests are another user of the machine, with real files of their own.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.login import teams_script, users_script
from stacks.spec import StackSpec
from stacks.spec.cluster import UserSpec
from stacks.spec.slurm import AccountSpec, QosSpec

KEY = "ssh-ed25519 AAAA ann@laptop"
IS_ROOT = os.geteuid() == 0
as_root = pytest.mark.skipif(not IS_ROOT, reason="only root can act as another user")
MEMBER = 65534 if IS_ROOT else os.getuid()
COMMANDS = {
    # Homes are folders under $ROOT; a user exists while it has one in $ROOT/passwd.
    "id": f'case $1 in -*) echo {MEMBER} ;; *) [ -e "$ROOT/passwd/$1" ] ;; esac',
    "getent": 'echo "$2:x:1000:1000::$ROOT/home/$2:/bin/bash"',
    "soperator-createuser": 'echo "$@" >> "$ROOT/calls"; touch "$ROOT/passwd/$1"; '
    'mkdir -p "$ROOT/home/$1/.ssh"; echo internal >> "$ROOT/home/$1/.ssh/authorized_keys"; '
    f'chown -R {MEMBER} "$ROOT/home/$1"',
    "userdel": 'echo userdel "$@" >> "$ROOT/calls"; rm "$ROOT/passwd/$2"',
}
if not IS_ROOT:
    COMMANDS["setpriv"] = 'while [ "${1#--}" != "$1" ]; do shift; done; exec "$@"'


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

    def run(self, script: str, *, refused: bool = False) -> str:
        """Output of the script, or what it said where it must be refused."""
        environment = {
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "HOME": str(self.root),
            "ROOT": str(self.root),
        }
        argv = ["/bin/sh", "-c", script.replace("/home/", f"{self.root}/home/")]
        answer = subprocess.run(
            argv, env=environment, capture_output=True, text=True, check=False, timeout=100
        )
        assert answer.returncode == (1 if refused else 0), answer.stderr
        return (answer.stderr if refused else answer.stdout).strip()

    def as_member(self, user: str, command: str) -> None:
        """What the member does in the own home."""
        home = self.root / "home" / user
        subprocess.run(
            ["/bin/sh", "-euc", command], cwd=home, check=True, user=MEMBER, group=MEMBER
        )

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls"
        return path.read_text().splitlines() if path.exists() else []

    def keys(self, user: str) -> list[str]:
        return (self.root / "home" / user / ".ssh" / "authorized_keys").read_text().splitlines()


@pytest.fixture
def node() -> Iterator[Node]:
    # Not pytest's own folder: another user may not look into it.
    root = Path(tempfile.mkdtemp(prefix="members-"))
    root.chmod(0o755)
    yield Node(root)
    shutil.rmtree(root)


def script(spec: StackSpec, *users: UserSpec) -> str:
    return users_script(replace(spec, soperator=replace(spec.soperator, users=users)))


def user(name: str, *keys: str) -> UserSpec:
    return UserSpec(name=name, ssh_public_keys=keys or (KEY,))


OURS = ["# soperator-stack begin", KEY, "# soperator-stack end"]


def test_a_user_is_made_once_and_keeps_the_key_of_the_cluster(spec: StackSpec, node: Node) -> None:
    """Soperator's own key in that file lets the user from node to node."""
    assert node.run(script(spec, user("ann"))) == "users: 2 declared"
    node.run(script(spec, user("ann")))
    apart = "--without-external-ssh --without-sudo --without-docker"
    assert node.calls == [f"deployer {apart}", f"ann {apart}"]
    assert node.keys("ann") == ["internal", *OURS]


@pytest.mark.feature("S002-24")
def test_a_changed_key_replaces_the_old_ones(spec: StackSpec, node: Node) -> None:
    old = "ssh-ed25519 OLD a", "ssh-ed25519 OTHER a"
    node.run(script(spec, user("ann", *old)))
    assert node.keys("ann") == ["internal", OURS[0], *old, OURS[-1]]
    node.run(script(spec, user("ann")))
    assert node.keys("ann") == ["internal", *OURS]


@pytest.mark.feature("S004-31")
def test_a_user_that_is_no_longer_declared_loses_entry_and_keeps_its_files(
    spec: StackSpec, node: Node
) -> None:
    node.run(script(spec, user("ann"), user("bob")))
    node.run(script(spec, user("bob")))
    assert node.calls[-1] == "userdel --force ann"
    assert node.keys("ann") == ["internal"]
    assert (node.root / ".soperator-stack-users").read_text() == "deployer\nbob\n"
    node.run(script(spec))
    assert node.calls[-1] == "userdel --force bob"


def test_users_that_others_made_are_left_alone(spec: StackSpec, node: Node) -> None:
    (node.root / "passwd" / "carl").touch()
    node.run(script(spec))
    before = node.calls
    assert node.run(script(spec)) == "users: 1 declared"
    assert node.calls == before


def test_a_name_that_contains_another_is_another_user(spec: StackSpec, node: Node) -> None:
    node.run(script(spec, user("ann"), user("anna")))
    node.run(script(spec, user("anna")))
    assert node.calls[-1] == "userdel --force ann"
    assert (node.root / ".soperator-stack-users").read_text() == "deployer\nanna\n"


@as_root
def test_a_link_in_a_home_leads_root_nowhere(spec: StackSpec, node: Node) -> None:
    """With ~/.ssh linked to root's, the member's keys would open root's account."""
    node.run(script(spec, user("ann"), user("bob")))
    ours = node.root / "root-ssh"
    ours.mkdir(mode=0o700)
    (ours / "authorized_keys").write_text("the deployer's key\n")
    node.as_member("ann", f"rm -r .ssh; ln -s {ours} .ssh")
    said = node.run(script(spec, user("ann"), user("bob", "ssh-ed25519 NEW b")), refused=True)
    assert "soperator.users: ann: ~/.ssh/authorized_keys cannot be written" in said
    assert [each.name for each in ours.iterdir()] == ["authorized_keys"]
    assert (ours / "authorized_keys").read_text() == "the deployer's key\n"
    assert (ours.stat().st_uid, (ours / "authorized_keys").stat().st_uid) == (0, 0)
    # Whoever comes after the users, code and places, does not wait for this one.
    first = script(spec, user("ann"), user("bob", "ssh-ed25519 NEW b"))
    assert node.run(f"keys=later\n{first}") == "users: 3 declared"
    # A member who refuses keeps nobody else out, and does not stay.
    assert "ssh-ed25519 NEW b" in node.keys("bob")
    node.run(script(spec, user("bob")))
    assert node.calls[-1] == "userdel --force ann"
    assert (ours / "authorized_keys").read_text() == "the deployer's key\n"


@as_root
@pytest.mark.parametrize("name", ["authorized_keys", "authorized_keys.new"])
def test_a_file_of_keys_that_is_a_link_leaves_its_target(
    spec: StackSpec, node: Node, name: str
) -> None:
    node.run(script(spec, user("ann")))
    target = node.root / "of-root"
    target.write_text("of root\n")
    node.as_member("ann", f"echo '* * * * * root id' > .ssh/authorized_keys; rm -f .ssh/{name}")
    node.as_member("ann", f"ln -s {target} .ssh/{name}")
    node.run(script(spec, user("ann")))
    assert (target.read_text(), target.stat().st_uid) == ("of root\n", 0)
    assert node.keys("ann")[-3:] == OURS
    assert not (node.root / "home/ann/.ssh/authorized_keys").is_symlink()


@as_root
@pytest.mark.parametrize("name", ["authorized_keys", "authorized_keys.new"])
def test_a_pipe_in_a_home_stops_nobody(spec: StackSpec, node: Node, name: str) -> None:
    node.run(script(spec, user("ann")))
    node.as_member("ann", f"rm -f .ssh/{name}; mkfifo .ssh/{name}")
    node.run(script(spec, user("ann")))
    assert node.keys("ann")[-3:] == OURS


@as_root
def test_what_an_earlier_user_left_is_no_way_for_the_program_that_makes_users(
    spec: StackSpec, node: Node
) -> None:
    """soperator-createuser works in ~/.ssh as root and follows links."""
    node.run(script(spec, user("ann")))
    target = node.root / "of-root"
    target.mkdir()
    node.as_member("ann", f"rm -r .ssh; ln -s {target} .ssh")
    node.run(script(spec))
    node.run(script(spec, user("ann")))
    assert (list(target.iterdir()), target.stat().st_uid) == ([], 0)
    assert node.keys("ann") == ["internal", *OURS]


@as_root
def test_a_process_that_outlives_its_user_changes_no_home_while_root_makes_it_anew(
    spec: StackSpec, node: Node
) -> None:
    node.run(script(spec, user("ann")))
    node.run(script(spec))
    target = node.root / "of-root"
    target.mkdir()
    command = node.root / "bin" / "soperator-createuser"
    race = f"setpriv --reuid={MEMBER} --clear-groups ln -s {target} $ROOT/home/$1/.ssh"
    command.write_text(f"#!/bin/sh\n{race}\n{COMMANDS['soperator-createuser']}\n")
    node.run(script(spec, user("ann")))
    assert (list(target.iterdir()), target.stat().st_uid) == ([], 0)
    home = node.root / "home" / "ann"
    assert home.stat().st_uid == MEMBER, "it is the user's again"
    command.write_text(f"#!/bin/sh\n{COMMANDS['soperator-createuser']}\nexit 1\n")
    node.run(script(spec))
    node.run(script(spec, user("ann")), refused=True)
    assert home.stat().st_uid == MEMBER, "also where making it failed"


@pytest.mark.feature("S004-29")
def test_each_team_gets_its_share_its_limits_and_its_members(spec: StackSpec) -> None:
    """What a real slurmdbd makes of it is in tests/local/test_teams.py."""
    urgent = QosSpec(name="urgent", priority=100, max_wall="01:00:00", max_gpus_per_user=2)
    red = AccountSpec(name="red", users=("ann", "bob"), fair_share=3, qos=("normal", "urgent"))
    blue = AccountSpec(name="blue", users=("bob",), max_gpus=1, max_nodes=2, max_jobs=5)
    lines = teams_script(
        replace(spec, slurm=replace(spec.slurm, accounts=(red, blue), qos=(urgent,)))
    ).splitlines()
    for line in (
        (
            "set_up modify qos urgent set Priority=100 MaxWall=01:00:00 GrpTRES=gres/gpu=-1 "
            "MaxTRESPerUser=gres/gpu=2 MaxJobsPerUser=-1"
        ),
        (
            "set_up modify account red set Fairshare=3 GrpTRES=gres/gpu=-1,node=-1 GrpJobs=-1 "
            "QosLevel=normal,urgent"
        ),
        (
            "set_up modify account blue set Fairshare=1 GrpTRES=gres/gpu=1,node=2 GrpJobs=5 "
            "QosLevel=normal"
        ),
        *(
            f"has_user {team} {user} || set_up add user {user} account={team}"
            for team, users in (("red", "root deployer ann bob"), ("blue", "root deployer bob"))
            for user in users.split()
        ),
        *(f"set_up modify user {user} set DefaultAccount=red" for user in ("ann", "bob")),
        "finish 'red blue' urgent",
    ):
        assert line in lines, line


@pytest.mark.feature("S004-29", "S004-31")
def test_who_is_no_longer_declared_loses_the_account(spec: StackSpec, node: Node) -> None:
    """Whoever has an account of Slurm may submit to it; eve was taken out of the stack."""
    sacctmgr = node.root / "bin" / "sacctmgr"
    sacctmgr.write_text(
        "#!/bin/sh\n"
        'case "$*" in\n'
        '*"account=red format=user") printf "root\\ndeployer\\nann\\neve\\n" ;;\n'
        '*"user=eve format=account") printf "red\\nblue\\n" ;;\n'
        '*"list "*) ;;\n'
        '*) echo "$@" >> "$ROOT/calls" ;;\n'
        "esac\n"
    )
    sacctmgr.chmod(0o755)
    account = AccountSpec(name="red", users=("ann",))
    node.run(teams_script(replace(spec, slurm=replace(spec.slurm, accounts=(account,)))))
    calls = (node.root / "calls").read_text().splitlines()
    assert [call for call in calls if "delete" in call] == [
        "--immediate delete user name=eve account=red"
    ]


_SACCTMGR = """#!/bin/sh
echo "$*" >>"$LOG"
case "$*" in
*"where account=red format=user") printf 'ann\\ngone\\nmoved\\nroot\\n' ;;
*"where account=old format=user") echo gone ;;
*"where user=gone format=account") echo red ;;
*"where user=moved format=account") printf 'blue\\nred\\n' ;;
*"list user moved format=defaultaccount") echo red ;;
*"list account format=account,organization") echo "red|$MARK"; echo "old|$MARK"; echo "by|hand" ;;
*"list qos format=name,description") printf 'normal|Normal\\nold|%s\\n' $MARK ;;
esac
"""


@pytest.mark.feature("S004-29")
def test_who_leaves_a_team_leaves_slurm_or_goes_to_another_and_foreign_teams_stay(
    spec: StackSpec, tmp_path: Path
) -> None:
    program, log = tmp_path / "sacctmgr", tmp_path / "log"
    program.write_text(_SACCTMGR)
    program.chmod(0o755)
    red = AccountSpec(name="red", users=("ann",))
    text = teams_script(replace(spec, slurm=replace(spec.slurm, accounts=(red,))))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), "MARK": "soperator-stack"}
    done = subprocess.run(["/bin/sh", "-c", text], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "teams: 1 accounts, 0 QOS declared\n"
    changes = [
        line.removeprefix("--immediate ")
        for line in log.read_text().splitlines()
        if line.startswith(("--immediate delete", "--immediate modify user moved"))
    ]
    assert changes == [
        "delete user name=gone",
        "modify user moved set DefaultAccount=blue",
        "delete user name=moved account=red",
        "delete user name=gone account=old",
        "delete account name=old",
        "delete qos name=old",
    ]


def test_names_and_limits_reach_the_shell_quoted(spec: StackSpec) -> None:
    """The rules refuse such a name; a script must not trust them."""
    account = AccountSpec(name="a;reboot", users=("b c",))
    text = teams_script(replace(spec, slurm=replace(spec.slurm, accounts=(account,))))
    assert "set_up add user 'b c' account='a;reboot'" in text
    assert subprocess.run(["/bin/sh", "-n", "-c", text], check=False).returncode == 0
