"""Rules of Slurm accounts and qualities of service."""

from __future__ import annotations

import re
from typing import Final

from stacks.errors import Findings
from stacks.rules.naming import check_unique
from stacks.schedule import slurm_seconds
from stacks.spec import StackSpec
from stacks.spec.slurm import AccountSpec, QosSpec

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_ROOT: Final = "root"
_NORMAL: Final = "normal"
"""The QOS that Slurm makes itself."""


def check_teams(spec: StackSpec, findings: Findings) -> None:
    """Qualities of service first, then the accounts that name them."""
    slurm = spec.slurm
    if (slurm.accounts or slurm.qos) and not slurm.accounting:
        findings.error(
            "slurm.accounts" if slurm.accounts else "slurm.qos",
            "declared, but slurm.accounting is false, so nothing keeps them; set it to true",
            rule="teams.accounting",
        )
    for key, names in (
        ("slurm.qos", [qos.name for qos in slurm.qos]),
        ("slurm.accounts", [account.name for account in slurm.accounts]),
    ):
        check_unique(names, key, findings, key="name", rule="teams.name-twice")
    for index, qos in enumerate(slurm.qos):
        _check_qos(spec, qos, f"slurm.qos[{index}]", findings)
    for index, account in enumerate(slurm.accounts):
        _check_account(spec, account, f"slurm.accounts[{index}]", findings)


def _check_qos(spec: StackSpec, qos: QosSpec, path: str, findings: Findings) -> None:
    _check_name(qos.name, f"{path}.name", findings, taken=_NORMAL)
    if qos.max_wall is not None and not slurm_seconds(qos.max_wall):
        findings.error(
            f"{path}.max_wall",
            f"'{qos.max_wall}' is no Slurm time; write '02:00:00' or '1-00:00:00'",
            rule="teams.wall",
        )
    if not any(qos.name in account.qos for account in spec.slurm.accounts):
        findings.warn(
            f"{path}.name",
            f"'{qos.name}' is named by no account, so no job can have it",
            rule="teams.qos-unused",
        )


def _check_account(spec: StackSpec, account: AccountSpec, path: str, findings: Findings) -> None:
    _check_name(account.name, f"{path}.name", findings, taken=_ROOT)
    known = [qos.name for qos in spec.slurm.qos]
    for name in account.qos:
        if name not in known and name != _NORMAL:
            findings.error(
                f"{path}.qos",
                f"'{name}' is not a QOS (has: {', '.join([*known, _NORMAL])})",
                rule="teams.qos-unknown",
            )
    check_unique(account.users, f"{path}.users", findings, rule="teams.user-twice")
    users = [user.name for user in spec.soperator.users]
    for name in account.users:
        if name == _ROOT:
            findings.error(
                f"{path}.users", "root belongs to every account; leave it out", rule="teams.root"
            )
        elif name not in users:
            findings.warn(
                f"{path}.users",
                f"'{name}' is none of soperator.users, so only a user of that name who is in the "
                "jail already can use the account",
                rule="teams.user-unknown",
            )


def _check_name(name: str, path: str, findings: Findings, *, taken: str) -> None:
    if not _NAME.fullmatch(name) or name == taken:
        findings.error(
            path,
            f"'{name}' is not a name; use lower-case letters, digits, - and _ from a letter on, at "
            f"most 40, and not '{taken}'",
            rule="teams.name",
        )
