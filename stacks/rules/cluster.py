"""Rules of identity, entry and the mk8s cluster: Nebius ids, names, the network and the SSH door,
code paths, which versions of Soperator, Kubernetes, drivers and systems go together, who works
under which Slurm account and quality of service, and when the stack ends.

The facts of versions are in compatibility.yaml; what a deployed stack may become is changes.py's.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from typing import Final

from stacks.catalog import ALLOWED_CIDRS_MAX, PLATFORMS, REGIONS
from stacks.compatibility import KUBERNETES, SOPERATOR, SYSTEMS, numbers, release_of
from stacks.machines import paths_of_one_node, shared_mounts
from stacks.rules import Findings
from stacks.rules.naming import (
    cidr_problem,
    is_under,
    name_problem,
    path_problem,
    word_problem,
)
from stacks.schedule import parse_end, slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.cluster import ChecksProfile, GpuDrivers
from stacks.spec.slurm import AccountSpec, SshServiceType

# Kubernetes' default range of node ports.
_NODE_PORTS: Final = range(30000, 32768)
_SSH_PORT: Final = 22
# The release of active checks of Soperator 4.1.7 puts objects into this namespace whatever its own,
# and mounts files of a cluster of this name (templates/run-extensive-check-on-reservations.yaml).
_SOPERATOR_NAME: Final = "soperator"
_TAKEN_NAMESPACES: Final = re.compile(r"default|kube-.*|.*-system")
_KEY_TYPES: Final = (
    "ssh-ed25519", "ssh-rsa", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com", "sk-ecdsa-sha2-nistp256@openssh.com"
)  # fmt: skip
_COMPANY: Final = re.compile(r"[a-z][a-z0-9-]{0,30}[a-z0-9]")
# Filesystems and groups are called <stack>-<role>; Nebius names hold 63 characters.
STACK_NAME_MAX: Final = 32


def check_access(spec: StackSpec, findings: Findings) -> None:
    """Names, ids, versions, SSH door and the paths of code and Python."""
    findings.add_text("name.stack", "name", name_problem(spec.name, longest=STACK_NAME_MAX))
    nebius = spec.nebius
    ids = (
        ("tenant_id", nebius.tenant_id, "tenant-"),
        ("project_id", nebius.project_id, "project-"),
        ("network_id", nebius.network_id, "vpcnetwork-"),
        ("subnet_id", nebius.subnet_id, "vpcsubnet-"),
    )
    for key, value, prefix in ids:
        if value is not None and not re.fullmatch(f"{prefix}[a-z0-9-]+", value):
            findings.add("nebius.id-prefix", f"nebius.{key}", prefix=prefix)
    if nebius.region not in REGIONS:
        findings.add("nebius.region", "nebius.region", known=REGIONS)
    if nebius.subnet_id is not None and nebius.network_id is None:
        findings.add("nebius.subnet-network", "nebius.subnet_id")
    _check_names(spec, findings)
    _check_login(spec, findings)
    own = paths_of_one_node(spec)
    for key, path in (("code_path", spec.code_path), ("python_env_path", spec.python_env_path)):
        findings.add_text("code.path-form", key, path_problem(path))
        lies_on = [text for mount, text in own.items() if is_under(path, mount)]
        if lies_on:
            findings.add("code.on-one-node", key, lies_on=lies_on)
    if not any(is_under(spec.code_path, mount) for mount in (*own, *shared_mounts(spec).values())):
        findings.add("code.on-jail", "code_path")


def _check_names(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    if not re.fullmatch(r"1\.[0-9]{2}", cluster.kubernetes_version):
        findings.add("cluster.kubernetes-version", "cluster.kubernetes_version")
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?", cluster.soperator_version):
        findings.add("cluster.soperator-version", "cluster.soperator_version")
    # nebius.mk8s.v1.ControlPlaneSpec.etcd_cluster_size accepts 0 (default), 1 and 3.
    if cluster.etcd_size not in (1, 3):
        findings.add("cluster.etcd-size", "cluster.etcd_size")
    for key, value in (
        ("slurm_cluster_name", cluster.slurm_cluster_name),
        ("namespace", cluster.namespace),
    ):
        if findings.add_text("cluster.name", f"cluster.{key}", name_problem(value, longest=63)):
            continue
        if value != _SOPERATOR_NAME and spec.soperator.checks is not ChecksProfile.OFF:
            findings.add("cluster.soperator-name", f"cluster.{key}")
    if _TAKEN_NAMESPACES.fullmatch(cluster.namespace):
        findings.add("cluster.namespace-taken", "cluster.namespace")


def _check_login(spec: StackSpec, findings: Findings) -> None:
    login = spec.login
    if login.service is SshServiceType.NODE_PORT and login.ssh_port not in _NODE_PORTS:
        first, last = _NODE_PORTS[0], _NODE_PORTS[-1]
        findings.add("login.node-port", "login.ssh_port", first=first, last=last)
    if login.service is SshServiceType.LOAD_BALANCER and login.ssh_port != _SSH_PORT:
        findings.add("login.load-balancer-port", "login.ssh_port", port=_SSH_PORT)
    if login.allowed_cidrs and login.service is SshServiceType.NODE_PORT:
        findings.add("login.cidrs-unused", "login.allowed_cidrs")
    findings.unique("login.cidr-twice", "login.allowed_cidrs", login.allowed_cidrs)
    for index, cidr in enumerate(login.allowed_cidrs):
        findings.add_text("login.cidr-form", f"login.allowed_cidrs[{index}]", cidr_problem(cidr))
    check_public_keys(login.ssh_public_keys, "login", findings, rule="login.key-form")


def check_public_keys(lines: Sequence[str], path: str, findings: Findings, *, rule: str) -> None:
    """The `ssh_public_keys` of whoever `path` names: at least one, and each a whole key."""
    path = f"{path}.ssh_public_keys"
    if not lines:
        advice = "add 'file:~/.ssh/id_ed25519.pub' or a key line"
        findings.add_text(rule, path, f"no key, so nobody could enter; {advice}")
    for index, line in enumerate(lines):
        findings.add_text(rule, f"{path}[{index}]", public_key_problem(line))


def public_key_problem(line: str) -> str | None:
    """Why the line is not an OpenSSH public key, or None."""
    if "PRIVATE KEY" in line:
        return "this is a private key; give the .pub file, and treat the private key as exposed"
    parts = line.split()
    kind = parts[0] if parts else ""
    if kind not in _KEY_TYPES or len(parts) < 2:
        return f"'{line[:24]}' is not an OpenSSH public key (starts with: {', '.join(_KEY_TYPES)})"
    try:
        blob = base64.b64decode(parts[1], validate=True)
    except (binascii.Error, ValueError):
        return f"the {kind} key is not base64; copy the whole line of the .pub file"
    length = int.from_bytes(blob[:4], "big")
    if blob[4 : 4 + length] != kind.encode() or len(blob) <= 4 + length:
        return f"the {kind} key is cut off; copy the whole line of the .pub file"
    return None


def check_cluster(spec: StackSpec, findings: Findings) -> None:
    """One way to a network, who may reach the Kubernetes API, one architecture."""
    nebius, company = spec.nebius, spec.nebius.company_name
    if company is not None and not _COMPANY.fullmatch(company):
        findings.add("nebius.company-name", "nebius.company_name")
    given = [key for key in ("network_id", "subnet_id") if getattr(nebius, key) is not None]
    if nebius.discover_network and given:
        findings.add("nebius.network-choice", "nebius.discover_network", given=" and ".join(given))
    _check_endpoint(spec, findings)
    # Workers and the login node run the programs of one jail.
    groups = [("nodes.login", spec.nodes.login)]
    groups += [(f"nodes.workers[{index}]", each) for index, each in enumerate(spec.nodes.workers)]
    known = [
        (path, PLATFORMS[group.platform]) for path, group in groups if group.platform in PLATFORMS
    ]
    for path, platform in known[1:]:
        of, first = known[0]
        if platform.architecture != first.architecture:
            place = f"{path}.platform"
            findings.add("nodes.architecture", place, platform=platform, first=first, of=of)


def _check_endpoint(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    path = "cluster.allowed_cidrs"
    if not cluster.public_endpoint:
        findings.add("cluster.private-endpoint", "cluster.public_endpoint")
        if cluster.allowed_cidrs:
            findings.add("cluster.cidrs-unused", path)
    if (count := len(cluster.allowed_cidrs)) > ALLOWED_CIDRS_MAX:
        findings.add("cluster.cidrs-most", path, count=count, most=ALLOWED_CIDRS_MAX)
    findings.unique("cluster.cidr-twice", path, cluster.allowed_cidrs)
    for index, cidr in enumerate(cluster.allowed_cidrs):
        findings.add_text("cluster.cidr-form", f"{path}[{index}]", cidr_problem(cidr))


def check_versions(spec: StackSpec, findings: Findings) -> None:
    """Versions that are known, that this program can deploy, and that go together."""
    _check_soperator(spec, findings)
    refused = findings.add_text("cluster.os-form", "cluster.os", word_problem(spec.cluster.os))
    if not refused and spec.cluster.os not in SYSTEMS:
        findings.add("cluster.os-unknown", "cluster.os", known=SYSTEMS)
    _check_kubernetes(spec, findings)


def _check_soperator(spec: StackSpec, findings: Findings) -> None:
    version = spec.cluster.soperator_version
    path = "cluster.soperator_version"
    row = release_of(version)
    known = SOPERATOR.get(version)
    if known is not None and known.refused is not None:
        findings.add("cluster.soperator-refused", path, known=known)
        return
    if known is None:
        findings.add("cluster.soperator-unknown", path, known=SOPERATOR, row=row)
    kubernetes = spec.cluster.kubernetes_version
    if row.kubernetes_min and numbers(kubernetes) < numbers(row.kubernetes_min):
        findings.add("cluster.kubernetes-least", "cluster.kubernetes_version", row=row)


def _check_kubernetes(spec: StackSpec, findings: Findings) -> None:
    cluster = spec.cluster
    row = KUBERNETES.get(cluster.kubernetes_version)
    if row is None:
        findings.add("cluster.kubernetes-unknown", "cluster.kubernetes_version", known=KUBERNETES)
        return
    if cluster.gpu_drivers is GpuDrivers.OPERATORS:
        return
    platforms, path = {each.platform for each in spec.nodes.workers}, "cluster.drivers_preset"
    for platform in sorted(platforms & row.drivers.keys()):
        known = row.drivers[platform]
        if cluster.drivers_preset not in known:
            findings.add("cluster.drivers", path, platform=platform, known=known)


_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_ROOT: Final = "root"
_NORMAL: Final = "normal"
"""The QOS that Slurm makes itself."""


def check_teams(spec: StackSpec, findings: Findings) -> None:
    """Qualities of service first, then the accounts that name them."""
    slurm = spec.slurm
    if (slurm.accounts or slurm.qos) and not slurm.accounting:
        findings.add("teams.accounting", "slurm.accounts" if slurm.accounts else "slurm.qos")
    findings.unique("teams.name-twice", "slurm.qos", slurm.qos, key="name")
    findings.unique("teams.name-twice", "slurm.accounts", slurm.accounts, key="name")
    for index, qos in enumerate(slurm.qos):
        path = f"slurm.qos[{index}]"
        _check_name(qos.name, f"{path}.name", findings, taken=_NORMAL)
        if qos.max_wall is not None and not slurm_seconds(qos.max_wall):
            findings.add("teams.wall", f"{path}.max_wall")
        if not any(qos.name in account.qos for account in spec.slurm.accounts):
            findings.add("teams.qos-unused", f"{path}.name")
    for index, account in enumerate(slurm.accounts):
        _check_account(spec, account, f"slurm.accounts[{index}]", findings)


def _check_account(spec: StackSpec, account: AccountSpec, path: str, findings: Findings) -> None:
    _check_name(account.name, f"{path}.name", findings, taken=_ROOT)
    known = [qos.name for qos in spec.slurm.qos]
    for name in account.qos:
        if name not in known and name != _NORMAL:
            findings.unknown("teams.qos-unknown", f"{path}.qos", name, [*known, _NORMAL])
    findings.unique("teams.user-twice", f"{path}.users", account.users)
    users = [user.name for user in spec.soperator.users]
    for name in account.users:
        if name == _ROOT:
            findings.add("teams.root", f"{path}.users")
        elif name not in users:
            findings.add("teams.user-unknown", f"{path}.users", name=name)


def _check_name(name: str, path: str, findings: Findings, *, taken: str) -> None:
    if not _NAME.fullmatch(name) or name == taken:
        findings.add("teams.name", path, taken=taken)


_MOST_HOURS: Final = 30 * 24
"""An idle month is not told from a forgotten stack."""


def check_lifetime(spec: StackSpec, findings: Findings) -> None:
    """What is declared has an effect, and something can see it."""
    lifetime = spec.lifetime
    if lifetime is None:
        return
    if lifetime.until is None and lifetime.idle_hours is None:
        findings.add("lifetime.empty", "lifetime")
    if lifetime.until is not None and parse_end(lifetime.until) is None:
        findings.add("lifetime.until", "lifetime.until")
    if lifetime.idle_hours is None:
        return
    if lifetime.idle_hours > _MOST_HOURS:
        findings.add("lifetime.idle-hours", "lifetime.idle_hours", most=_MOST_HOURS)
    if not spec.slurm.accounting:
        findings.add("lifetime.idle-unseen", "lifetime.idle_hours")
    for index, job in enumerate(spec.jobs):
        if job.schedule is not None:
            findings.add("lifetime.idle-schedule", f"jobs[{index}].schedule")
