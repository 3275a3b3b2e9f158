"""What a change of a deployed stack does: declared values by config key, storage that is lost, what
is refused before anything is made, and the pause switch in the text of a stack file.

Both sides of a change are declared_values(spec), so that the old one may come from an output of a
deployment. What a change drains is cost/diff/rollout.py's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from hashlib import sha256
from typing import Final, cast

from stacks.compatibility import SOPERATOR as RELEASES
from stacks.compatibility import numbers, release_of
from stacks.errors import Problem, UserError
from stacks.files import is_map, parse_yaml
from stacks.load import PROJECT
from stacks.rules import Findings
from stacks.spec import StackSpec
from stacks.spec.nodes import NodeUserSpec

_NAMES: Final = ("name", "sku", "scenario", "job", "mount_path", "path", "key")
"""What an entry of a list is called by, first of these that it has."""
_COUNTS: Final = ("min_nodes", "max_nodes")
_MARKS: Final = re.compile(r"[.\[\]]")
_DEPTH: Final = {".": 0, "[": 1, "]": -1}
_LEFT_OUT: Final = frozenset({"name", "login", "code_path", "python_env_path", "bill_heading"})
_FREE: Final = frozenset({"ssh_public_keys", "content"})
"""Texts of any record that cost neither money nor data; keys of the nodes are kept as a digest."""


def declared_values(spec: StackSpec) -> Mapping[str, str]:
    """Every declared value that can cost money or data, by its config key, as a user writes both.

    `nodes.workers[worker].nodes` is "5": entries of a list go by their name, and by their place
    where none of their keys names them. Secrets and key lines are not among them.
    """
    found: dict[str, str] = {}
    for name in _names(StackSpec):
        if name not in _LEFT_OUT:
            _collect(name, getattr(spec, name), found)
    return found


def parents_of(key: str) -> Iterator[str]:
    """The key itself and every key that it is inside of, innermost last; names may hold dots."""
    depth = 0
    for mark in _MARKS.finditer(key):
        index, letter = mark.start(), mark[0]
        if letter != "]" and depth == 0 and index:
            yield key[:index]
        depth += _DEPTH[letter]
    yield key


def _collect(key: str, value: object, found: dict[str, str], own_name: str | None = None) -> None:
    """Adds the leaves under the key; `own_name` is the field that the key has in brackets."""
    if value is None:
        return
    if names := _names(type(value)):
        for name in names:
            if name == own_name:
                continue
            if name in _FREE:
                if isinstance(value, NodeUserSpec):
                    # In the user data of every node: other keys are other nodes.
                    lines = "\n".join(value.ssh_public_keys)
                    found[f"{key}.{name}"] = sha256(lines.encode()).hexdigest()[:8]
                continue
            written = _written(value, name) if name in _COUNTS else name
            if written is not None:
                _collect(f"{key}.{written}", getattr(value, name), found)
    elif isinstance(value, Mapping):
        for name, item in cast("Mapping[str, object]", value).items():
            _collect(f"{key}.{name}", item, found)
    elif isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        if items and _names(type(items[0])):
            for place, item in enumerate(items):
                name = name_key(type(item))
                called = place if name is None else getattr(item, name)
                _collect(f"{key}[{called}]", item, found, name)
        elif items:
            found[key] = ", ".join(map(str, items))
    else:
        found[key] = str(value).lower() if isinstance(value, bool) else str(value)


def _written(record: object, name: str) -> str | None:
    """The field's key in the file; None where another stands for it: `nodes: N` sets both ends."""
    if getattr(record, "min_nodes", None) != getattr(record, "max_nodes", None):
        return name
    return "nodes" if name == "max_nodes" else None


@cache
def _names(cls: type) -> tuple[str, ...]:
    """Fields of a dataclass; none of any other type."""
    return tuple(field.name for field in fields(cls)) if is_dataclass(cls) else ()


@cache
def name_key(cls: type) -> str | None:
    """The field that an entry of a list is called by; None where it goes by its place."""
    names = _names(cls)
    return next((name for name in _NAMES if name in names), None)


STORAGE_KEYS: Final = (
    "storage.jail", "storage.controller_spool", "storage.accounting", "storage.submounts",
    "storage.backup", "storage.config_bucket_gib", "storage.registry_gib",
    "storage.purge_on_destroy", "nfs", "nebius.project_id"
)  # fmt: skip
"""Config keys that lost_storage() looks at."""
_FIXED: Final = {
    "storage.jail": "/",
    "storage.controller_spool": "the state of Slurm's controller",
    "storage.accounting": "the accounting database",
}
_PROJECT: Final = "nebius.project_id"
_SIZE: Final = ".size_gib"
_PASSWORDS: Final = (
    "Its passwords go with the state, and no copy opens without them; keep them first: "
    "pulumi stack output backup_password --show-secrets"
)
_SUBMOUNT: Final = "storage.submounts["
_BACKUP: Final = "storage.backup"
_NFS: Final = "nfs.data_disks"
_OBJECTS: Final = {
    _BACKUP: ("storage.backup.size_gib", "the bucket of the jail's backups"),
    "storage.config_bucket_gib": ("storage.config_bucket_gib", "the bucket of run configs"),
    "storage.registry_gib": ("storage.registry_gib", "the registry of container images"),
}
"""Declaration -> a value that it has while it is there, and what it makes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostStorage:
    """One filesystem, bucket, registry or array that a change takes out of the stack."""

    key: str
    """Config key whose change does it."""
    change: str
    """What happens to the value, such as `network-ssd -> network-hdd`."""
    what: str
    """What it is and what it holds, with its size where it has one."""
    is_replaced: bool
    """Whether an empty one takes its place."""
    is_kept: bool
    """Whether it stays in the project with its data."""

    def __str__(self) -> str:
        what = f"{self.key}: {self.change}: {self.what}"
        if self.key == f"{_NFS}.count":
            return f"{what} lies on one array, which no other count can mount; take the count back"
        if self.is_kept and self.key.endswith(".type"):
            return f"{what} cannot change its type, so `up` will refuse it; take the type back"
        if self.is_kept:
            paid = (
                f"{what} stays in its project and is paid for: soperator cluster orphans --stack "
                "STACK"
            )
            return paid if self.key != _BACKUP else f"{paid}. {_PASSWORDS}"
        fate = "replaced by an empty one" if self.is_replaced else "deleted"
        return f"DATA LOSS: {what} is {fate}; ALL DATA ON IT IS LOST. Copy it away first."


def lost_storage(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[LostStorage, ...]:
    """What the change takes out, filesystems first, in the order of the old declaration.

    A filesystem, bucket or registry leaves the stack when its declaration goes, and is made anew
    when its type (immutable in nebius.compute.v1.FilesystemSpec) or its project changes, and so it
    is with the data disks of an NFS server. A new size is an update in place. Data is deleted where
    the deployment has storage.purge_on_destroy, else kept: docs/storage.md.
    """
    found: list[LostStorage] = []
    for key, there, what, watched in _with_data(before):
        adopted = after.get(f"{key}.existing_id")
        changed = next((each for each in watched if before.get(each) != after.get(each)), None)
        if there not in after and adopted is None:
            cause, change = key, "removed"
        elif there not in after:
            cause, change = f"{key}.existing_id", f"now {adopted}"
        elif changed is not None:
            cause, change = changed, f"{before.get(changed)} -> {after.get(changed)}"
        else:
            continue
        found.append(
            LostStorage(
                key=cause,
                change=change,
                what=what,
                is_replaced=cause != key,
                is_kept=before.get("storage.purge_on_destroy") == "false",
            )
        )
    return tuple(found)


def _with_data(before: Mapping[str, str]) -> Iterator[tuple[str, str, str, tuple[str, ...]]]:
    """Key of each declaration that holds data, a value that it has while it is there, what it
    makes, and the keys whose change makes it anew; a filesystem with an existing id is not made.
    """
    for there, size_gib in before.items():
        key = there.removesuffix(_SIZE)
        if key != there and (key in _FIXED or key.startswith(_SUBMOUNT)):
            mount = _FIXED.get(key) or before.get(f"{key}.mount_path", key)
            what = f"the filesystem at {mount} ({size_gib} GiB)"
            yield key, there, what, (f"{key}.type", _PROJECT)
    if (there := f"{_NFS}{_SIZE}") in before:
        count, mount = before.get(f"{_NFS}.count"), before.get("nfs.mount_path")
        what = f"the data of the NFS server at {mount} ({count} x {before[there]} GiB)"
        yield "nfs", there, what, (f"{_NFS}.type", f"{_NFS}.count", _PROJECT)
    for key, (there, what) in _OBJECTS.items():
        if there in before:
            yield key, there, what, (_PROJECT,)


KUBERNETES_KEY: Final = "cluster.kubernetes_version"
SOPERATOR_KEY: Final = "cluster.soperator_version"
NODE_KEYS: Final = (
    "cluster", "nodes", "storage.memory", "nebius.network_id", "nebius.subnet_id",
    "nebius.discover_network", "soperator.cuda_version"
)  # fmt: skip
"""Config keys, and what is inside of them, that a deployment must remember."""
_STAGES: Final = {"system": 0, "controller": 1, "login": 1, "accounting": 1, "nfs": 1}
_WORKERS: Final = 2
_FILESYSTEMS: Final = (*_FIXED, _SUBMOUNT)


def stage_of(role: str | None) -> int:
    """Place of a role in a staged roll-out, None for workers: operators, Slurm's head, workers."""
    return _WORKERS if role is None else _STAGES[role]


def refused(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Problem, ...]:
    """Every refusal and doubt of a change; a value that one side lacks is none.

    A version that cannot follow the deployed one, and a filesystem that would shrink.
    """
    findings = Findings(name)
    _check_kubernetes(before, after, findings)
    _check_soperator(before, after, findings)
    for key, was, now in shrunk(before, after):
        findings.add("change.filesystem-shrinks", key, now=now, was=was)
    return tuple(findings.problems)


def shrunk(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Key, GiB before and GiB after of each filesystem that would become smaller."""
    for key, was in before.items():
        if not key.startswith(_FILESYSTEMS) or not key.endswith(_SIZE) or key not in after:
            continue
        # Another type is another filesystem, of any size: lost_storage() says what that loses.
        kind = key.removesuffix(_SIZE) + ".type"
        if before.get(kind) == after.get(kind) and int(after[key]) < int(was):
            yield key, int(was), int(after[key])


def _check_kubernetes(
    before: Mapping[str, str], after: Mapping[str, str], findings: Findings
) -> None:
    was, now = before.get(KUBERNETES_KEY), after.get(KUBERNETES_KEY)
    if was is None or now is None or was == now:
        return
    (major, minor), wanted = numbers(was)[:2], numbers(now)[:2]
    step = f"{major}.{minor + 1}"
    if wanted < (major, minor):
        findings.add("change.kubernetes-back", KUBERNETES_KEY, now=now, was=was, step=step)
    elif wanted != (major, minor + 1):
        findings.add("change.kubernetes-step", KUBERNETES_KEY, now=now, was=was, step=step)


def _check_soperator(
    before: Mapping[str, str], after: Mapping[str, str], findings: Findings
) -> None:
    was, now = before.get(SOPERATOR_KEY), after.get(SOPERATOR_KEY)
    if was is None or now is None or was == now:
        return
    old, new = release_of(was), release_of(now)
    if numbers(now) < numbers(was):
        if old.slurm and new.slurm and numbers(new.slurm) < numbers(old.slurm):
            findings.add("change.slurm-back", SOPERATOR_KEY, now=now, new=new, was=was, old=old)
        else:
            slurm = (
                f"Slurm is {old.slurm} in both"
                if old.slurm and old.slurm == new.slurm
                else "no source says which Slurm it has, and an older one reads no newer state"
            )
            findings.add("change.soperator-back", SOPERATOR_KEY, now=now, was=was, slurm=slurm)
    elif skipped := sorted(
        {row.line for row in RELEASES.values() if numbers(was)[:2] < row.line < numbers(now)[:2]}
    ):
        lines = ", ".join(".".join(map(str, line)) for line in skipped)
        findings.add("change.soperator-skips", SOPERATOR_KEY, now=now, lines=lines, was=was)
    kubernetes = after.get(KUBERNETES_KEY)
    if before.get(KUBERNETES_KEY) not in (None, kubernetes):
        findings.add("change.two-at-once", SOPERATOR_KEY, now=now, kubernetes=kubernetes)


_KEY: Final = f"{PROJECT}:nodes"
_HEAD: Final = re.compile(rf"^(?P<indent> *){re.escape(_KEY)}:[ ]*(#.*)?$")
_LINE: Final = re.compile(r"^(?P<indent> *)paused:\s*(?P<value>\S+)(?P<rest>.*)$")


def _by_hand(*, paused: bool) -> str:
    value = str(paused).lower()
    return (
        f"write it by hand: `paused: {value}` under `{_KEY}:`, or pulumi config set --path "
        f"'{_KEY}.paused' {value}"
    )


def set_paused(text: str, *, paused: bool) -> str:
    """The text of a stack file with `nodes.paused` at the value; unchanged where it has it already.

    All other lines stay as they are, with their comments: a YAML writer would lose them.
    """
    nodes = _nodes(text, paused=paused)
    if bool(nodes.get("paused", False)) is paused:
        return text
    lines = text.splitlines(keepends=True)
    at = next((place for place, line in enumerate(lines) if _HEAD.match(line.rstrip("\n"))), None)
    if at is None:
        raise UserError(f"'{_KEY}' is not a block of its own lines; {_by_hand(paused=paused)}")
    first = next(line for line in lines[at + 1 :] if line.strip() and line.lstrip()[0] != "#")
    indent = len(first) - len(first.lstrip(" "))
    value = str(paused).lower()
    for place in range(at + 1, len(lines)):
        found = _LINE.match(lines[place].rstrip("\n"))
        if found is not None and len(found["indent"]) == indent:
            # What a pause wrote is taken out again: the file is as it was before it.
            is_own = not paused and not found["rest"].strip()
            lines[place] = "" if is_own else f"{found['indent']}paused: {value}{found['rest']}\n"
            break
    else:
        lines.insert(at + 1, f"{' ' * indent}paused: {value}\n")
    changed = "".join(lines)
    # The proof that nothing else moved, whatever shape the file had.
    others = {key: value for key, value in nodes.items() if key != "paused"}
    after = _nodes(changed, paused=paused)
    if bool(after.pop("paused", False)) is not paused or after != others:
        raise UserError(f"'{_KEY}' has a shape that is not edited here; {_by_hand(paused=paused)}")
    return changed


def _nodes(text: str, *, paused: bool) -> dict[str, object]:
    document = parse_yaml(text)
    config = document.get("config") if is_map(document) else None
    nodes = config.get(_KEY) if is_map(config) else None
    if not is_map(nodes):
        raise UserError(f"no mapping '{_KEY}' in the file; {_by_hand(paused=paused)}")
    return dict(nodes)
