"""Declared users on real daemons: they log in, submit under their own name, and lose it again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from infra.clients import slurm
from infra.clients.ssh import Result
from infra.local.slurm import pod
from infra.render.login import teams_script, users_script
from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import UserSpec
from stacks.spec.slurm import AccountSpec
from tests.local.slurm_stand import Stand, running_stand

pytestmark = pytest.mark.local

RED = AccountSpec(name="red", users=("ann",))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A private key for each person."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ann", "bob", "carol"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(argv, check=True)
    return {name: folder / name for name in ("ann", "bob", "carol")}


@pytest.fixture(scope="module")
def spec(keys: dict[str, Path]) -> StackSpec:
    """The local stack with two users, of whom one is in a team."""
    local = load_stack("local", environ={KEY_FILE_VARIABLE: f"{keys['ann']}.pub"})
    users = tuple(user(name, keys[name]) for name in ("ann", "bob"))
    soperator = replace(local.soperator, users=users)
    return replace(local, soperator=soperator, slurm=replace(local.slurm, accounts=(RED,)))


def user(name: str, *private_keys: Path) -> UserSpec:
    public = tuple(key.with_suffix(".pub").read_text().strip() for key in private_keys)
    return UserSpec(name=name, ssh_public_keys=public)


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory, spec: StackSpec) -> Iterator[Stand]:
    with running_stand(tmp_path_factory.mktemp("users")) as made:
        made.apply(made.values(spec))
        made.wait_idle("worker-[0-1]")
        yield made


def set_up(stand: Stand, spec: StackSpec) -> None:
    """What the program runs over the door at an `up`."""
    for script in (users_script(spec), teams_script(spec)):
        done = stand.ssh(script)
        assert done.returncode == 0, done.stderr


def ssh(stand: Stand, name: str, key: Path, command: str) -> subprocess.CompletedProcess[str]:
    """A command of a user on the login node."""
    argv = ["ssh", "-F", "/dev/null", "-i", str(key), "-p", str(stand.ssh_port)]
    argv += ["-o", f"UserKnownHostsFile={stand.key.parent / 'known_hosts'}", "-o", "BatchMode=yes"]
    argv += ["-o", "StrictHostKeyChecking=yes", "-o", "IdentitiesOnly=yes"]
    argv += [f"{name}@127.0.0.1", command]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture(scope="module")
def declared(stand: Stand, spec: StackSpec) -> None:
    """Both users and the team are there, until a test takes them away."""
    set_up(stand, spec)


@pytest.mark.usefixtures("declared")
@pytest.mark.feature("S000-71", "S004-29")
def test_a_declared_user_logs_in_and_submits_under_the_own_name_and_account(
    stand: Stand, keys: dict[str, Path]
) -> None:
    submit = "cd && sbatch --parsable --account=red --wrap 'id -un; pwd; hostname'"
    submitted = ssh(stand, "ann", keys["ann"], submit)
    assert submitted.returncode == 0, submitted.stderr
    job = submitted.stdout.strip()
    stand.wait(lambda: stand.ssh(f"squeue -h -j {job}").stdout.strip() == "", f"end of {job}")
    said = ssh(stand, "ann", keys["ann"], f"cat slurm-{job}.out").stdout.split()
    # With pack_serial_at_end a job of one CPU takes the last node.
    assert said == ["ann", "/home/ann", "worker-1"]
    wanted = f"sacct -X -n -P -j {job} -o user,account,state"
    stand.wait(lambda: stand.ssh(wanted).stdout.strip() == "ann|red|COMPLETED", "her job's record")


@pytest.mark.usefixtures("declared")
@pytest.mark.feature("S001-32", "S002-44")
def test_own_jobs_are_those_of_who_asks(stand: Stand, keys: dict[str, Path]) -> None:
    """Those that wait, which the queue has, and those that ended, which accounting has."""
    words = "sbatch --parsable --wrap true"
    hers = {
        ssh(stand, "ann", keys["ann"], f"cd && {words} --account=red {each}").stdout.strip()
        for each in ("--hold", "--wait")
    }
    others = {stand.ssh(f"{words} {each}").stdout.strip() for each in ("--hold", "--wait")}

    class Ann:
        def run(self, command: str, *, stdin: bytes = b"") -> Result:
            assert not stdin
            done = ssh(stand, "ann", keys["ann"], command)
            return Result(
                command=command,
                exit_code=done.returncode,
                stdout=done.stdout,
                stderr=done.stderr,
            )

    def seen(*, mine: bool) -> set[str]:
        return {job.id for job in slurm.recent(Ann(), days=1, mine=mine)}

    stand.wait(lambda: hers | others <= seen(mine=False), "the jobs of both in the list of all")
    mine = seen(mine=True)
    assert hers <= mine
    assert not others & mine
    assert stand.ssh(f"scancel {' '.join(hers | others)}").returncode == 0


@pytest.mark.usefixtures("declared")
def test_a_user_without_an_account_may_enter_and_not_submit(
    stand: Stand, keys: dict[str, Path]
) -> None:
    assert ssh(stand, "bob", keys["bob"], "id -un").stdout.strip() == "bob"
    refused = ssh(stand, "bob", keys["bob"], "sbatch --account=red --wrap true")
    assert refused.returncode != 0
    assert "Invalid account" in refused.stderr


@pytest.mark.usefixtures("declared")
def test_nobody_enters_with_a_key_of_another_or_reads_secrets_of_the_cluster(
    stand: Stand, keys: dict[str, Path]
) -> None:
    assert "Permission denied" in ssh(stand, "ann", keys["bob"], "true").stderr
    # The keys that the cluster declares are root's, and a user's key is no key of root's.
    assert "Permission denied" in ssh(stand, "ann", stand.key, "true").stderr
    assert "Permission denied" in ssh(stand, "root", keys["ann"], "true").stderr
    # Whoever may write her keys could let others in: sshd takes none of them, as on the cloud.
    stand.ssh("chmod go+w ~ann/.ssh/authorized_keys")
    assert "Permission denied" in ssh(stand, "ann", keys["ann"], "true").stderr
    stand.ssh("chmod go-w ~ann/.ssh/authorized_keys")
    secrets = ("munge/key", "ssh/host_key_0", "slurmdbd.conf", "database-password")
    for secret in (*(f"/run/soperator/{each}" for each in secrets), "/etc/shadow"):
        read = ssh(stand, "ann", keys["ann"], f"cat {secret}")
        assert (read.returncode, read.stdout) == (1, ""), secret


def test_a_changed_key_counts_at_once_and_a_removed_user_loses_access(
    stand: Stand, spec: StackSpec, keys: dict[str, Path]
) -> None:
    set_up(stand, spec)
    assert ssh(stand, "ann", keys["ann"], "touch kept").returncode == 0
    turned = replace(spec.soperator, users=(user("ann", keys["carol"]),))
    set_up(stand, replace(spec, soperator=turned))
    assert ssh(stand, "ann", keys["carol"], "id -un").stdout.strip() == "ann"
    assert "Permission denied" in ssh(stand, "ann", keys["ann"], "true").stderr
    assert "Permission denied" in ssh(stand, "bob", keys["bob"], "true").stderr
    none = replace(spec.soperator, users=())
    slurm = replace(spec.slurm, accounts=(replace(RED, users=()),))
    set_up(stand, replace(spec, soperator=none, slurm=slurm))
    assert "Permission denied" in ssh(stand, "ann", keys["carol"], "true").stderr
    assert stand.ssh("id ann").returncode != 0
    assert stand.ssh("sacctmgr -n -P list user format=user").stdout.split() == ["deployer", "root"]
    # Work is not deleted with its owner.
    assert "kept" in stand.ssh("ls /home/ann").stdout.split()


def test_users_of_the_jail_are_no_users_of_this_machine(
    stand: Stand, spec: StackSpec, keys: dict[str, Path]
) -> None:
    before = Path("/etc/passwd").read_bytes()
    set_up(stand, spec)
    assert stand.ssh("id -u ann").returncode == 0
    assert Path("/etc/passwd").read_bytes() == before


# A package that brings a user of its own renames a new passwd over the old one, and with the old
# name go the mounts of other namespaces on it. The machine's own /etc is not touched here.
_MACHINE = """
cp -a /etc {folder}/etc
mount --bind {folder}/etc /etc
mkdir -p {folder}/pods/login-0/root {shared}
echo 127.0.0.1 worker-7 > {shared}/hosts
"$@" &
until [ -e {shared}/ready ]; do kill -0 $!; sleep 0.05; done
for name in passwd group shadow gshadow hosts profile; do
    cp -p /etc/$name /etc/$name+ && mv /etc/$name+ /etc/$name
done
touch {shared}/go
wait $!
"""
_POD = """
touch ready
until [ -e go ]; do sleep 0.05; done
id -u jailed && echo written >> /etc/passwd && tail -n 1 /etc/hosts
touch /etc/own 2>/dev/null || echo read-only
"""


def test_users_stay_where_this_machine_gets_a_user_of_its_own(tmp_path: Path) -> None:
    """`apt-get install` of a daemon beside a running cluster, which left it without users."""
    shared, passwd = tmp_path / "shared", tmp_path / "jail/etc/passwd"
    passwd.parent.mkdir(parents=True)
    passwd.write_text(f"{Path('/etc/passwd').read_text()}jailed:x:4242:4242::/:/bin/sh\n")
    argv = ("sh", "-euc", f"cd {pod.STATE_PATH}\n{_POD}")
    login = pod.PodSpec(name="login-0", argv=argv, jail=tmp_path / "jail")
    script = tmp_path / "login-0.sh"
    script.write_text(pod.render_script(login, tmp_path))
    machine = _MACHINE.format(folder=tmp_path, shared=shared)
    own = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", machine, "machine"]
    done = subprocess.run(
        [*own, *pod.argv(script)], capture_output=True, text=True, check=False, timeout=60
    )
    seen = ["4242", "127.0.0.1 worker-7", "read-only"]
    assert (done.stdout.splitlines(), done.stderr) == (seen, "")
    assert passwd.read_text().endswith("written\n")
