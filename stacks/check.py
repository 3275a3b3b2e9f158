"""Rules across fields: check(spec) -> every problem of a stack, errors first.

Owns the order of the rules, which are in rules/; hardware facts are in catalog.py. Raises nothing.
"""

from __future__ import annotations

from typing import Final

from stacks.errors import Level, Problem
from stacks.rules import Findings
from stacks.rules.cluster import (
    check_access,
    check_cluster,
    check_lifetime,
    check_teams,
    check_versions,
)
from stacks.rules.jobs import check_chat, check_jobs, check_runs, check_schedules, check_searches
from stacks.rules.nodes import check_nodes
from stacks.rules.quotas import check_amounts, check_quotas
from stacks.rules.slurm_conf import check_verbatim
from stacks.rules.soperator import check_soperator
from stacks.rules.storage import check_nfs, check_storage
from stacks.spec import StackSpec

_SUBJECTS: Final = (
    check_access, check_cluster, check_versions, check_storage, check_nodes, check_amounts,
    check_nfs, check_quotas, check_soperator, check_jobs, check_schedules, check_searches,
    check_teams, check_verbatim, check_chat, check_runs, check_lifetime
)  # fmt: skip


_OF_JOBS: Final = (
    check_storage, check_jobs, check_schedules, check_searches, check_chat, check_runs
)  # fmt: skip
"""What a stack of an attached cluster declares; the rest of it load.py made up."""


def check(spec: StackSpec) -> tuple[Problem, ...]:
    """Every problem of the stack, errors before warnings, each group in the order of the file."""
    findings = Findings(spec.name, spec)
    for check_subject in _SUBJECTS if spec.attached is None else _OF_JOBS:
        check_subject(spec, findings)
    return tuple(sorted(findings.problems, key=lambda problem: problem.level is Level.WARNING))
