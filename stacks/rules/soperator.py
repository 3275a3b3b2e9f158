"""Rules of what Soperator installs: CUDA, checks, notifier, alerts, jail files, users,
small nodes.
"""

from __future__ import annotations

import re
from typing import Final

from stacks.catalog import slurmd_amounts, slurmdbd_amounts
from stacks.compatibility import release_of
from stacks.machines import IN_JAIL, checks_know, paths_of_one_node, shared_mounts
from stacks.rules import Findings
from stacks.rules.cluster import check_public_keys
from stacks.rules.naming import is_under, path_problem
from stacks.spec import StackSpec
from stacks.spec.cluster import (
    DEPLOYER,
    HOME,
    AlertsSpec,
    ChecksProfile,
    JailFileSpec,
    Observability,
)

_USER_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
# Users that `up` makes, of the jail's image (Ubuntu's base-passwd, and packages in it), and of
# Soperator's checks.
_TAKEN_USERS: Final = (
    "root", DEPLOYER, "nobody", "ubuntu", "sshd", "munge", "slurm", "soperatorchecks", "nebius",
    "daemon", "bin", "sys", "sync", "games", "man", "lp", "mail", "news", "uucp", "proxy",
    "www-data", "backup", "list", "irc", "gnats", "_apt", "messagebus", "systemd-network",
    "systemd-resolve", "systemd-timesync",
)  # fmt: skip
_MODE: Final = re.compile(r"0?[0-7]{3}")
_VERSION: Final = re.compile(r"[0-9]+(\.[0-9]+)*")
# Written by the operator itself, which would undo ours every minute.
_OPERATORS_FOLDERS: Final = ("/etc/slurm", "/opt/slurm_scripts", "/run", "/proc", "/sys", "/dev")
_CONFIG_MAP_BYTES: Final = 1024 * 1024
_GPU_PROFILES: Final = (ChecksProfile.QUICK, ChecksProfile.FULL)


def check_soperator(spec: StackSpec, findings: Findings) -> None:
    """Every setting of Soperator on its own and against the nodes."""
    _check_cuda(spec, findings)
    _check_checks(spec, findings)
    if spec.soperator.slack_notifier and spec.soperator.observability is Observability.OFF:
        findings.add("soperator.notifier", "soperator.slack_notifier")
    _check_alerts(spec, findings)
    files, at = spec.soperator.jail_files, "soperator.jail_files"
    for index, file in enumerate(files):
        _check_file(spec, file, f"{at}[{index}]", findings)
    findings.unique("soperator.file-twice", at, files, key="path")
    size = sum(len(file.content.encode()) for file in files)
    if size > _CONFIG_MAP_BYTES:
        findings.add("soperator.file-size", at, size=size, most=_CONFIG_MAP_BYTES)
    _check_home(spec, findings)
    users = spec.soperator.users
    _check_is_out_of_home(spec, DEPLOYER, "code_path", findings)
    findings.unique("soperator.user-twice", "soperator.users", users, key="name")
    for index, user in enumerate(users):
        path = f"soperator.users[{index}]"
        if not _USER_NAME.fullmatch(user.name) or user.name in _TAKEN_USERS:
            findings.add("soperator.user-name", f"{path}.name", known=_TAKEN_USERS)
        _check_is_out_of_home(spec, user.name, f"{path}.name", findings)
        check_public_keys(user.ssh_public_keys, path, findings, rule="soperator.user-key")
    _check_room(spec, findings)


def _check_cuda(spec: StackSpec, findings: Findings) -> None:
    version, path = spec.soperator.cuda_version, "soperator.cuda_version"
    release = release_of(spec.cluster.soperator_version)
    drivers = re.match(r"cuda(\d+)", spec.cluster.drivers_preset)
    if version not in release.cuda if release.cuda else not _VERSION.fullmatch(version):
        known = release.cuda or "versions such as 12.9.0"
        findings.add("soperator.cuda-version", path, release=release, known=known)
    elif drivers is not None and int(version.partition(".")[0]) > int(drivers[1]):
        findings.add("soperator.cuda-drivers", path)


def _check_checks(spec: StackSpec, findings: Findings) -> None:
    profile = spec.soperator.checks
    if profile not in _GPU_PROFILES:
        return
    workers = spec.nodes.workers
    if not any(checks_know(worker) for worker in workers):
        findings.add("soperator.checks-platform", "soperator.checks")
    counts = sorted({worker.gpus for worker in workers} - {0})
    if len(counts) > 1:
        findings.add("soperator.checks-mixed", "soperator.checks", counts=counts)


def _check_file(spec: StackSpec, file: JailFileSpec, path: str, findings: Findings) -> None:
    findings.add_text("soperator.file-form", f"{path}.path", path_problem(file.path))
    if not _MODE.fullmatch(file.mode):
        findings.add("soperator.file-mode", f"{path}.mode")
    owned = next((each for each in _OPERATORS_FOLDERS if is_under(file.path, each)), None)
    if owned is not None:
        findings.add("soperator.file-owned", f"{path}.path", owned=owned)
        return
    has_sssd = spec.soperator.sssd is not None
    mounts = [
        *shared_mounts(spec).values(),
        *paths_of_one_node(spec),
        *(mount.path for mount in IN_JAIL if has_sssd or not mount.of_sssd),
    ]
    hidden = next((mount for mount in mounts if is_under(file.path, mount)), None)
    if hidden is not None:
        findings.add("soperator.file-hidden", f"{path}.path", hidden=hidden)


def _check_home(spec: StackSpec, findings: Findings) -> None:
    """The NFS server of `/home` against what else is mounted there."""
    if spec.soperator.nfs_home is None:
        return
    findings.add("soperator.home-lost", "soperator.nfs_home", home=HOME)
    for index, submount in enumerate(spec.storage.submounts):
        if is_under(submount.mount_path, HOME) or is_under(HOME, submount.mount_path):
            path = f"storage.submounts[{index}].mount_path"
            findings.add("soperator.home-twice", path, home=HOME)


def _check_is_out_of_home(spec: StackSpec, name: str, path: str, findings: Findings) -> None:
    home = f"{HOME}/{name}"
    where = {"code_path": spec.code_path, "python_env_path": spec.python_env_path}
    where |= {f"storage.places.{key}": value for key, value in spec.storage.places.items()}
    for key in (key for key, value in where.items() if is_under(value, home)):
        findings.add("soperator.user-home", path, home=home, key=key, there=where[key], homes=HOME)


def _check_room(spec: StackSpec, findings: Findings) -> None:
    """Whether the recipe's arithmetic leaves the daemons anything."""
    sssd = spec.soperator.sssd is not None
    for index, worker in enumerate(spec.nodes.workers):
        preset = worker.hardware
        if preset is None:
            continue
        left = slurmd_amounts(preset, worker.boot_disk.size_gib, sssd=sssd)
        if not left.is_positive:
            findings.add("nodes.worker-room", f"nodes.workers[{index}].preset", left=left)
    group = spec.nodes.accounting
    if group is None or (preset := group.hardware) is None:
        return
    left = slurmdbd_amounts(preset, group.boot_disk.size_gib)
    if not left.is_positive:
        findings.add("nodes.accounting-room", "nodes.accounting.preset", left=left)


_DAY_MINUTES: Final = 24 * 60
_LIMITS: Final = {
    "min_gpu_utilization_percent": (1, 100),
    # What an ended job sent last is seen for five minutes more.
    "stalled_step_minutes": (6, _DAY_MINUTES),
    "checkpoint_minutes": (6, 7 * _DAY_MINUTES),
    "drained_minutes": (1, _DAY_MINUTES),
}
"""Least and most of each limit; metrics are kept for a week."""


def _check_alerts(spec: StackSpec, findings: Findings) -> None:
    """Every limit in its range, and only where metrics are."""
    alerts = spec.soperator.alerts
    if alerts is None:
        return
    if spec.soperator.observability is Observability.OFF:
        findings.add("soperator.alerts-unseen", "soperator.alerts")
    for name, (least, most) in _LIMITS.items():
        path = f"soperator.alerts.{name}"
        if not least <= getattr(alerts, name) <= most:
            findings.add("soperator.alert-limit", path, least=least, most=most)


assert {*_LIMITS} == {*AlertsSpec.__slots__}, "every limit has a range"
