"""Rules across fields: check(spec) -> every problem of a stack, errors first.

Owns the order of the rules, which are in rules/; hardware facts are in catalog.py. Raises nothing.
"""

from __future__ import annotations

from stacks.errors import Findings, Level, Problem, SpareNodes
from stacks.rules.access import check_access
from stacks.rules.amounts import check_amounts
from stacks.rules.chat import check_chat
from stacks.rules.cluster import check_cluster
from stacks.rules.job_schedule import check_schedules
from stacks.rules.jobs import check_jobs
from stacks.rules.lifetime import check_lifetime
from stacks.rules.nfs import check_nfs
from stacks.rules.nodes import check_nodes
from stacks.rules.quotas import check_quotas
from stacks.rules.runs import check_runs
from stacks.rules.searches import check_searches
from stacks.rules.soperator import check_soperator
from stacks.rules.storage import check_storage
from stacks.rules.teams import check_teams
from stacks.rules.verbatim import check_verbatim
from stacks.rules.versions import check_versions
from stacks.spec import StackSpec

__all__ = ["Level", "Problem", "SpareNodes", "check"]


def check(spec: StackSpec) -> tuple[Problem, ...]:
    """Every problem of the stack, errors before warnings, each group in the order of the file."""
    findings = Findings(spec.name)
    check_access(spec, findings)
    check_cluster(spec, findings)
    check_versions(spec, findings)
    check_storage(spec, findings)
    check_nodes(spec, findings)
    check_amounts(spec, findings)
    check_nfs(spec, findings)
    check_quotas(spec, findings)
    check_soperator(spec, findings)
    check_jobs(spec, findings)
    check_schedules(spec, findings)
    check_searches(spec, findings)
    check_teams(spec, findings)
    check_verbatim(spec, findings)
    check_chat(spec, findings)
    check_runs(spec, findings)
    check_lifetime(spec, findings)
    return tuple(sorted(findings.problems, key=lambda problem: problem.level is Level.WARNING))
