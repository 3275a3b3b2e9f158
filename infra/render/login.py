"""What runs on the login node at `up`, and what the stack's outputs say of it.

Readiness, places, live release, jail files, host keys, users and Slurm accounts. Each script
compares with what is there, so a lost state file or a second run changes nothing. What this program
made is marked (users in a list in root's home, accounts by their organization, QOS by their
description); whatever has no mark is left alone.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from infra.render.charts import preset_of
from infra.render.delivery import MARKS, SCRONTAB
from infra.render.names import shell_file
from infra.render.nodes import first_nodes
from infra.render.sbatch import is_of_one_node
from infra.render.templates import shell
from stacks.catalog import GIB, slurmd_amounts
from stacks.machines import MEMORY, shared_mounts
from stacks.spec import StackSpec
from stacks.spec.cluster import DEPLOYER, HOME, JailFileSpec, UserSpec
from stacks.spec.nodes import WorkerSpec
from stacks.spec.storage import FilesystemSpec, SubmountSpec


def awaited_nodes(spec: StackSpec) -> tuple[str, ...]:
    """Slurm node names that must be idle before a deployment counts as ready.

    A set that is made with fewer nodes than its minimum gets the rest as capacity comes.
    """
    return tuple(name for worker in spec.nodes.workers for name in _awaited(worker))


def _awaited(worker: WorkerSpec) -> list[str]:
    made = worker.min_nodes if worker.created_nodes is None else worker.created_nodes
    return first_nodes(worker, min(made, worker.min_nodes))


WAKES_AFTER_LOOKS: Final = 15
"""Of 0.3 s and more: one second is what a slurmd takes from its start to its registration."""


def ready_script(spec: StackSpec, *, timeout_s: int = 3600) -> str:
    """Waits until `sinfo` shows every awaited node idle or at work; prints the nodes.

    A node of an elastic set that sleeps is woken, once: Slurm does not by itself for a minimum that
    grew, nor where a person powered it down. A new cluster's nodes sleep until they register.
    """
    return shell(
        "ready.sh.j2",
        spec=spec,
        timeout_s=timeout_s,
        nodes=awaited_nodes(spec),
        sleepers=[n for each in spec.nodes.workers if each.is_elastic for n in _awaited(each)],
        wakes_after_looks=WAKES_AFTER_LOOKS,
    )


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
    return shell(
        "activate.sh.j2",
        code_path=code_path,
        release=release,
        scrontab=SCRONTAB,
        deployer=DEPLOYER,
        **MARKS,
    )


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
    return {
        worker.name: {
            "platform": worker.platform,
            "preset": worker.preset,
            "min_nodes": worker.min_nodes,
            "max_nodes": worker.max_nodes,
            "nodes": first_nodes(worker, worker.min_nodes),
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
    first: dict[str, str] = {}
    for account in spec.slurm.accounts:
        for user in (DEPLOYER, *account.users):
            first.setdefault(user, account.name)
    return shell(
        "teams.sh.j2",
        slurm=spec.slurm,
        first=first,
        deployer=DEPLOYER,
        mark=MARK,
        members=lambda account: ("root", DEPLOYER, *account.users),
    )


def _keep(user: UserSpec) -> str:
    keys = "\n".join(user.ssh_public_keys)
    return f"keep {shlex.quote(user.name)} <<'KEYS'\n{keys}\nKEYS"


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
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()
        elif path.is_file() and path.relative_to(folder).as_posix() not in files:
            path.unlink()
    return os.path.relpath(folder, root) + "/"
