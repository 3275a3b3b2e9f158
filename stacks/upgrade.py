"""Which changes of a deployed stack are refused before anything is made: refused(before, after).

Both sides are values of declared.py. A version that cannot follow the deployed one, and a
filesystem that would shrink; what a change drains is cost/diff/rollout.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from stacks.compatibility import SOPERATOR as RELEASES
from stacks.compatibility import SoperatorRelease, numbers, release_of
from stacks.problem import Findings, Problem

KUBERNETES: Final = "cluster.kubernetes_version"
SOPERATOR: Final = "cluster.soperator_version"
KEYS: Final = (
    "cluster",
    "nodes",
    "storage.memory",
    "nebius.network_id",
    "nebius.subnet_id",
    "nebius.discover_network",
    "soperator.cuda_version",
)
"""Config keys, and what is inside of them, that a deployment must remember."""
_SIZE: Final = ".size_gib"
_STAGES: Final = {"system": 0, "controller": 1, "login": 1, "accounting": 1, "nfs": 1}
_WORKERS: Final = 2
_FILESYSTEMS: Final = (
    "storage.jail",
    "storage.controller_spool",
    "storage.accounting",
    "storage.submounts[",
)


def stage_of(role: str | None) -> int:
    """Place of a role in a staged roll-out, None for workers: operators, Slurm's head, workers."""
    return _WORKERS if role is None else _STAGES[role]


def refused(name: str, before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Problem, ...]:
    """Every refusal and doubt of a change; a value that one side lacks is none."""
    findings = Findings(name)
    _check_kubernetes(before, after, findings)
    _check_soperator(before, after, findings)
    for key, was, now in shrunk(before, after):
        findings.error(
            key,
            f"{now} GiB, but it was deployed with {was} GiB, and no filesystem shrinks; declare "
            f"{was} or more, or copy the data to a new one",
        )
    return tuple(findings.problems)


def shrunk(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[tuple[str, int, int]]:
    """Key, GiB before and GiB after of each filesystem that would become smaller."""
    for key, was in before.items():
        if not key.startswith(_FILESYSTEMS) or not key.endswith(_SIZE) or key not in after:
            continue
        # Another type is another filesystem, of any size: changes.py says what that loses.
        kind = key.removesuffix(_SIZE) + ".type"
        if before.get(kind) == after.get(kind) and int(after[key]) < int(was):
            yield key, int(was), int(after[key])


def _check_kubernetes(
    before: Mapping[str, str], after: Mapping[str, str], findings: Findings
) -> None:
    was, now = before.get(KUBERNETES), after.get(KUBERNETES)
    if was is None or now is None or was == now:
        return
    (major, minor), wanted = numbers(was)[:2], numbers(now)[:2]
    if wanted < (major, minor):
        findings.error(
            KUBERNETES,
            f"'{now}', but the control plane is at {was} and never goes back; declare {was} or "
            f"{major}.{minor + 1}, or make a new stack and move the filesystems: docs/day-two.md",
        )
    elif wanted != (major, minor + 1):
        findings.error(
            KUBERNETES,
            f"'{now}', but the control plane is at {was} and takes one minor version at a time "
            f"(kubernetes.io, version skew policy); go to {major}.{minor + 1} first",
        )


def _check_soperator(
    before: Mapping[str, str], after: Mapping[str, str], findings: Findings
) -> None:
    was, now = before.get(SOPERATOR), after.get(SOPERATOR)
    if was is None or now is None or was == now:
        return
    old, new = release_of(was), release_of(now)
    if numbers(now) < numbers(was):
        _check_way_back(old, new, was, now, findings)
    elif skipped := _between(numbers(was)[:2], numbers(now)[:2]):
        findings.warn(
            SOPERATOR,
            f"'{now}' skips {', '.join(skipped)} after the deployed {was}, a way that nobody has "
            "published; go line by line",
        )
    if before.get(KUBERNETES) not in (None, after.get(KUBERNETES)):
        findings.warn(
            SOPERATOR,
            f"'{now}' comes together with Kubernetes {after.get(KUBERNETES)}; change one at a "
            "time, so that a failure has one cause and a way back",
        )


def _check_way_back(
    old: SoperatorRelease, new: SoperatorRelease, was: str, now: str, findings: Findings
) -> None:
    if old.slurm and new.slurm and numbers(new.slurm) < numbers(old.slurm):
        findings.error(
            SOPERATOR,
            f"'{now}' brings Slurm {new.slurm}, which cannot read what the deployed {was} with "
            f"Slurm {old.slurm} wrote (state of slurmctld, accounting database); keep {was}, or "
            "make a new stack: docs/day-two.md",
        )
        return
    slurm = (
        f"Slurm is {old.slurm} in both"
        if old.slurm and old.slurm == new.slurm
        else "no source says which Slurm it has, and an older one reads no newer state"
    )
    findings.warn(
        SOPERATOR,
        f"'{now}' is older than the deployed {was}: a way back with the custom resources of {now}, "
        f"which drops what only {was} knows of; {slurm}",
    )


def _between(old: tuple[int, ...], new: tuple[int, ...]) -> list[str]:
    """Lines of Soperator that lie between the two."""
    lines = {row.line for row in RELEASES.values() if old < row.line < new}
    return [".".join(map(str, line)) for line in sorted(lines)]
