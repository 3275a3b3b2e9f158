"""What runs on the login node at `up`, and what the stack's outputs say of it.

Readiness, places, live release, jail files, host keys, users and Slurm accounts. Each script
compares with what is there, so a lost state file or a second run changes nothing. What this program
made is marked (users in a list in root's home, accounts by their organization, QOS by their
description); whatever has no mark is left alone.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from infra.render.delivery import install_lines, refuse_lines
from infra.render.names import shell_file
from infra.render.sbatch import is_of_one_node
from infra.render.values.pods import preset_of
from stacks.catalog import GIB, slurmd_amounts
from stacks.machines import MEMORY, shared_mounts
from stacks.spec import StackSpec
from stacks.spec.cluster import DEPLOYER, HOME, JailFileSpec, UserSpec
from stacks.spec.slurm import AccountSpec, QosSpec
from stacks.spec.storage import FilesystemSpec, SubmountSpec

_READY_TIMEOUT_S: Final = 3600
# Nodes at work are ready too: an update must not wait for running jobs.
_READY_STATES: Final = "idle|mixed|allocated|completing|planned|reserved"


def minimum_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Slurm node names that must be idle: each nodeset's declared minimum, from ordinal 0."""
    return tuple(
        f"{worker.name}-{ordinal}"
        for worker in spec.nodes.workers
        for ordinal in range(worker.min_nodes)
    )


def awaited_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Those of them that must be idle before a deployment counts as ready.

    A set that is made with fewer nodes than it has gets the rest as capacity comes.
    """
    first = {
        worker.name: worker.min_nodes if worker.created_nodes is None else worker.created_nodes
        for worker in spec.nodes.workers
    }
    return tuple(
        name
        for name in minimum_nodes(spec)
        if int(name.rpartition("-")[2]) < first[name.rpartition("-")[0]]
    )


def ready_script(spec: StackSpec, *, timeout_s: int = _READY_TIMEOUT_S) -> str:
    """Waits until `sinfo` shows every awaited node idle or at work; prints the nodes.

    A node of an elastic set that sleeps is woken, once: Slurm does not by itself for a minimum that
    grew, nor where a person powered it down. A new cluster's nodes sleep until they register.
    """
    nodes = awaited_nodes(spec)
    if not nodes:
        return f"set -e\nscontrol ping{_save_lines(spec)}"
    return f"""
set -eu
deadline=$(( $(date +%s) + {timeout_s} ))
woken=
while :; do
  missing=
  states=$(sinfo --noheader --Node --partition=hidden --format='%N %T' 2>&1 | sort -u) || true
  for node in {shlex.join(nodes)}; do
    echo "$states" | grep -qE "^$node ({_READY_STATES})$" || missing="$missing $node"
  done{_wake_lines(spec, nodes)}
  [ -n "$missing" ] || break
  if [ "$(date +%s)" -ge "$deadline" ]; then
    echo "not idle after {timeout_s} s:$missing; sinfo says:" >&2
    echo "$states" >&2
    sinfo --list-reasons >&2 || true
    echo "soperator doctor --stack {spec.name} names pods that cannot start" >&2
    exit 1
  fi
  sleep 0.3
done{_save_lines(spec)}
echo "{len(nodes)} nodes ready: {shlex.join(nodes)}"
""".strip()


def _save_lines(spec: StackSpec) -> str:
    """Makes slurmctld write its whole state.

    With accounting Slurm 25.11 writes assoc_usage every five minutes, and one that is killed before
    the first time never starts again: "No Assoc usage file to recover" (assoc_mgr.c, 25.11.3).
    """
    return "\nscontrol reconfigure" if spec.slurm.accounting else ""


def _wake_lines(spec: StackSpec, nodes: tuple[str, ...]) -> str:
    elastic = {each.name for each in spec.nodes.workers if each.min_nodes < each.max_nodes}
    sleepers = [name for name in nodes if name.rpartition("-")[0] in elastic]
    if not sleepers:
        return ""
    # One that is powered down is `idle~` to Slurm 25.11; 22.05 does not list it at all.
    return f"""
  for node in $missing; do
    case " {shlex.join(sleepers)} " in *" $node "*) ;; *) continue ;; esac
    case "$woken " in *" $node "*) continue ;; esac
    shown=$(echo "$states" | sed -n "s/^$node //p")
    case $shown in "" | *"~") ;; *) continue ;; esac
    if scontrol update nodename="$node" state=power_up >/dev/null 2>&1; then
      woken="$woken $node"
    fi
  done""".rstrip()


def places_script(spec: StackSpec) -> str:
    """Makes shared places root's with a folder for every user, and the folders of code and Python.

    A user's folder is the user's alone (0700); there is one on each shared mount too, which
    acceptance measures by. Prints one line of the places into which others could write, and fails,
    when all were looked at, where one or what leads to it is somebody else's. Nothing that is
    there is followed or written to; folders of users that are no more become root's.
    """
    shared = {path for path in spec.storage.places.values() if not is_of_one_node(spec, path)}
    shared |= {path for path in shared_mounts(spec).values() if path != HOME}
    names = [each.name for each in members(spec)]
    # An outer one first: it is root's before anything is made below it.
    made = [shlex.join(["place", path, *names]) for path in sorted(shared)]
    # Last: those that lie in a place are looked at when that is root's.
    ours = (spec.code_path, f"{spec.code_path}/releases", str(Path(spec.python_env_path).parent))
    made += [f"roots {shlex.quote(path)} || failed=1" for path in ours]
    return "\n".join([shell_file("roots"), shell_file("places"), *made, "finish"])


def members(spec: StackSpec) -> tuple[UserSpec, ...]:
    """Who submits jobs: the deployer, with the keys that open the login node, and all declared."""
    deployer = UserSpec(name=DEPLOYER, ssh_public_keys=spec.login.ssh_public_keys)
    return (deployer, *spec.soperator.users)


def activate_script(code_path: str, release: str) -> str:
    """Makes `releases/<release>`, wholly delivered by now, the live code in one step.

    With it go its schedules: whoever makes a release live gets what it declares.
    """
    return f"""
set -eu
cd {shlex.quote(code_path)}
test -d releases/{release}/workloads
{refuse_lines(release)}
touch releases/{release}.whole
ln -sfn releases/{release} .current.{release}
mv -T .current.{release} current
for name in workloads jobs configs; do ln -sfn current/$name $name; done
{install_lines()}
""".strip()


def mounts(spec: StackSpec) -> dict[str, str]:
    """Mount path in the jail -> what stands behind it."""
    found = {"/": f"filesystem jail, {_size(spec.storage.jail)}"}
    for submount in spec.storage.submounts:
        found[submount.mount_path] = f"filesystem {submount.name}, {_size(submount)}"
    if spec.soperator.nfs_home is not None:
        found[HOME] = f"NFS in the cluster, {spec.soperator.nfs_home.size_gib} GiB"
    if spec.nfs is not None:
        disks = spec.nfs.data_disks
        found[spec.nfs.mount_path] = f"NFS server, {disks.total_gib} GiB"
    found[MEMORY] = memory_text(spec)
    if spec.storage.memory is not None:
        found[spec.storage.memory.mount_path] = f"tmpfs, {spec.storage.memory.size_gib} GiB a node"
    return found


def memory_text(spec: StackSpec) -> str:
    """Soperator's own tmpfs: limited by what slurmd asks for, which the preset decides."""
    sssd = spec.soperator.sssd is not None
    asked = (
        slurmd_amounts(preset_of(worker), worker.boot_disk.size_gib, sssd=sssd).memory_mib // GIB
        for worker in spec.nodes.workers
    )
    return f"tmpfs, at most {' or '.join(map(str, sorted({*asked})))} GiB a node"


def _size(filesystem: FilesystemSpec | SubmountSpec) -> str:
    if filesystem.existing_id is not None:
        return f"existing {filesystem.existing_id}"
    return f"{filesystem.size_gib} GiB"


def job_commands(spec: StackSpec) -> dict[str, str]:
    """Name of a job or search -> the exact shell command that starts it."""
    names = (*(job.name for job in spec.jobs), *(search.name for search in spec.searches))
    return {name: f"soperator submit {name} --stack {spec.name}" for name in names}


def nodesets(spec: StackSpec) -> dict[str, dict[str, Any]]:
    """Nodeset name -> platform, preset and declared size."""
    names = minimum_nodes(spec)
    return {
        worker.name: {
            "platform": worker.platform,
            "preset": worker.preset,
            "min_nodes": worker.min_nodes,
            "max_nodes": worker.max_nodes,
            "nodes": [name for name in names if name.rsplit("-", 1)[0] == worker.name],
        }
        for worker in spec.nodes.workers
    }


def ssh_command(login_ip: str, ssh_port: int) -> str:
    """How a declared user enters; `soperator ssh` pins the host key as well."""
    port = "" if ssh_port == 22 else f" -p {ssh_port}"
    return f"ssh{port} root@{login_ip}"


# Login and worker pods mount all six names, none of them optional, and sshd_config names the three
# private ones (nebius/soperator 4.1.7, internal/render/common/volume.go RenderVolumeSshdKeys and
# internal/render/login/configmap.go). The operator makes keys only where the Secret is missing, and
# kubelet waits for ever for a key that a Secret lacks (pkg/volume/secret/secret.go, MakePayload:
# "references non-existent secret key").
FILES: Final = ("ssh_host_rsa_key", "ssh_host_ecdsa_key", "ssh_host_ed25519_key")
"""Files of private keys in sshd_config, in its order; each has a .pub beside it."""


def host_key_files(private_key: Any, public_key: Any) -> dict[str, Any]:
    """Content of every file: the one pair under all names, so that sshd offers its type alone.

    sshd goes by what is in a file, not by its name. A pair of another type would be offered too,
    and a client that takes it could not check it against the pinned key.
    """
    files: dict[str, Any] = {}
    for name in FILES:
        files |= {name: private_key, f"{name}.pub": public_key}
    return files


JAIL_FILES: Final = "jail-files"
"""Name of the ConfigMap and of the JailedConfig."""
JAILED_CONFIG_API: Final = "slurm.nebius.ai/v1alpha1"
JAILED_CONFIG: Final = "JailedConfig"


def jail_file_texts(files: Sequence[JailFileSpec]) -> dict[str, str]:
    """Data of the ConfigMap: one key for each file, since a path is no key."""
    return {_key(index): file.content for index, file in enumerate(files)}


def jailed_config(files: Sequence[JailFileSpec]) -> dict[str, Any]:
    """Specification of the JailedConfig; a changed file makes Slurm read nothing again."""
    return {
        "configMap": {"name": JAIL_FILES},
        "items": [
            {"key": _key(index), "path": file.path, "mode": int(file.mode, 8)}
            for index, file in enumerate(files)
        ],
    }


def _key(index: int) -> str:
    return f"file-{index}"


MARK: Final = "soperator-stack"
_NORMAL: Final = "normal"
_NO_LIMIT: Final = "-1"


def users_script(spec: StackSpec, *, keys_later: bool = False) -> str:
    """Makes declared users with their keys; one that is gone loses entry, and its files stay.

    `keys_later`: a user whose keys cannot be written, as their files are in the way, is told and
    fails nothing, as this runs once more without it.
    """
    users = members(spec)
    names = shlex.quote(" ".join(user.name for user in users))
    head = ["keys=later"] if keys_later else []
    return "\n".join([*head, shell_file("users"), *map(_keep, users), f"finish {names}"])


def teams_script(spec: StackSpec) -> str:
    """Makes declared QOS, accounts and who belongs to them; removes marked ones that are gone."""
    slurm = spec.slurm
    # Slurm lets nobody without an account submit. An operator may end any job; nodes and partitions
    # are root's (scontrol of Slurm 22.05: "Invalid user id" for an operator).
    lines = [
        shell_file("teams"),
        f"has_user root {DEPLOYER} || set_up add user {DEPLOYER} account=root",
        f"set_up modify user {DEPLOYER} set AdminLevel=Operator",
    ]
    for qos in slurm.qos:
        lines += _qos(qos)
    for account in slurm.accounts:
        lines += _account(account)
    lines += _defaults(slurm.accounts)
    lines += [_leavers(account) for account in slurm.accounts]
    accounts = shlex.quote(" ".join(account.name for account in slurm.accounts))
    names = shlex.quote(" ".join(qos.name for qos in slurm.qos))
    lines.append(f"finish {accounts} {names}")
    return "\n".join(lines)


def _keep(user: UserSpec) -> str:
    keys = "\n".join(user.ssh_public_keys)
    return f"keep {shlex.quote(user.name)} <<'KEYS'\n{keys}\nKEYS"


def _qos(qos: QosSpec) -> list[str]:
    limits = {
        "Priority": str(qos.priority),
        "MaxWall": qos.max_wall or _NO_LIMIT,
        "GrpTRES": f"gres/gpu={_limit(qos.max_gpus)}",
        "MaxTRESPerUser": f"gres/gpu={_limit(qos.max_gpus_per_user)}",
        "MaxJobsPerUser": _limit(qos.max_jobs_per_user),
    }
    name = shlex.quote(qos.name)
    return [
        f"has_qos {name} || set_up add qos {name} description={MARK}",
        f"set_up modify qos {name} set {_settings(limits)}",
    ]


def _account(account: AccountSpec) -> list[str]:
    allowed = account.qos or (_NORMAL,)
    settings = {
        "Fairshare": str(account.fair_share),
        "GrpTRES": f"gres/gpu={_limit(account.max_gpus)},node={_limit(account.max_nodes)}",
        "GrpJobs": _limit(account.max_jobs),
        "QosLevel": ",".join(allowed),
    }
    name = shlex.quote(account.name)
    lines = [
        f"has_account {name} || set_up add account {name} organization={MARK} description={name}",
        f"set_up modify account {name} set {_settings(settings)}",
        # The default must be among the allowed ones, so it is set after them.
        f"set_up modify account {name} set DefaultQOS={shlex.quote(allowed[0])}",
    ]
    for user in ("root", DEPLOYER, *account.users):
        one = shlex.quote(user)
        lines.append(f"has_user {name} {one} || set_up add user {one} account={name}")
    return lines


def _defaults(accounts: Iterable[AccountSpec]) -> list[str]:
    """Each user's jobs go to the first account that names it, unless they say another."""
    first: dict[str, str] = {}
    for account in accounts:
        for user in (DEPLOYER, *account.users):
            first.setdefault(user, account.name)
    return [
        f"set_up modify user {shlex.quote(user)} set DefaultAccount={shlex.quote(name)}"
        for user, name in first.items()
    ]


def _leavers(account: AccountSpec) -> str:
    name = shlex.quote(account.name)
    members = shlex.quote(" ".join(("root", DEPLOYER, *account.users)))
    return (
        f"for user in $(say list associations where account={name} format=user | sort -u); do\n"
        f'  declared {members} "$user" || leave {name} "$user"\n'
        "done"
    )


def _settings(values: dict[str, str]) -> str:
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())


def _limit(count: int | None) -> str:
    return _NO_LIMIT if count is None else str(count)


def write_release(folder: Path, files: Mapping[str, bytes], root: Path) -> str:
    """Makes `folder` hold exactly `files`; returns its path from `root`, with a final slash.

    The path has no hash in it, so that only a change of content is a change of the archive; the
    final slash makes CopyToRemote copy the content and not the folder.
    """
    for path, content in files.items():
        target = folder / path
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
    for path in folder.rglob("*"):
        if path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            shutil.rmtree(path)
    return os.path.relpath(folder, root) + "/"
