"""Whether the project's quotas hold what the stack needs: need, use, limit, and what is missing.

mk8s accepts a node group over its quota and the nodes never come, so it is asked before. GPUs of
capacity blocks do not count. The names are those of stacks/rules/quotas.py; the live platform says
which quota its GPUs count in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from infra.preflight.cloud import Cloud
from infra.preflight.finding import Finding, failed, not_checked, passed
from infra.preflight.inventory import Owner, own_use
from stacks.catalog import PLATFORMS
from stacks.rules.quotas import gpu_quota, quota_use
from stacks.spec import StackSpec

CHECK: Final = "quotas"
_LIST: Final = "quotas.v1.QuotaAllowanceService"
_FIX: Final = (
    "ask for more in the console under Administration, Limits (docs.nebius.com/overview/limits), "
    "or see: soperator cost --stack {stack} --alternatives"
)
_GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall:
    """One quota that is too small; GiB, GPUs, vCPUs or a count."""

    quota: str
    needs: int
    """All that the stack needs."""
    own: int
    """What this stack has of it already."""
    used: int
    """What the project uses in all."""
    limit: int

    @property
    def missing(self) -> int:
        """How much the limit is too small."""
        return self.used - self.own + self.needs - self.limit


def ask_quotas(cloud: Cloud, spec: StackSpec, owner: Owner) -> list[Finding]:
    """A finding with the table of what is missing, or one that says how much was compared."""
    allowances = _allowances(cloud, spec)
    own = own_use(cloud, spec, owner)
    names = _live_names(cloud, spec)
    least = _renamed(quota_use(spec, at_max=False), names)
    most = _renamed(quota_use(spec, at_max=True), names)
    certain = _shortfalls(least, _renamed(own, names), allowances)
    later = _shortfalls(most, _renamed(own, names), allowances)
    fix = _FIX.format(stack=spec.name)
    if certain:
        return [failed(CHECK, f"too small for this stack:\n{table(certain)}", fix, certain=True)]
    unknown = sorted(name for name in least if name not in allowances and least[name])
    findings = [_compared(least, unknown)]
    if later:
        seen = f"at max_nodes the last nodes would never come:\n{table(later)}"
        findings.append(failed(CHECK, seen, fix))
    return findings


def _compared(least: Mapping[str, int], unknown: list[str]) -> Finding:
    wanted = [name for name, amount in least.items() if amount]
    if len(unknown) == len(wanted):
        return not_checked(CHECK, f"the API tells no limit of {', '.join(unknown)}")
    told = f"{len(wanted) - len(unknown)} of {len(wanted)} quotas compared, all hold"
    return passed(CHECK, told + (f"; no limit is told of {', '.join(unknown)}" if unknown else ""))


def table(shortfalls: list[Shortfall]) -> str:
    """The quotas that are too small, a row each."""
    head = ("QUOTA", "NEEDS", "OWN", "USED", "LIMIT", "MISSING")
    rows = [(one.quota, one.needs, one.own, one.used, one.limit, one.missing) for one in shortfalls]
    cells = [head, *(tuple(map(str, row[:1])) + _amounts(row[0], row[1:]) for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    lines = []
    for row in cells:
        left = row[0].ljust(widths[0])
        lines.append(
            "  ".join([left, *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        )
    return "\n".join(f"  {line}" for line in lines)


def _amounts(quota: str, amounts: tuple[int, ...]) -> tuple[str, ...]:
    unit = " GiB" if ".size." in quota else ""
    return tuple(f"{amount}{unit}" for amount in amounts)


def _allowances(cloud: Cloud, spec: StackSpec) -> dict[str, tuple[int, int]]:
    """Quota name -> (used, limit) of the stack's region; those without a limit are left out."""
    found = {}
    for allowance in cloud.list(_LIST, spec.nebius.project_id):
        own, status = allowance.spec, allowance.status
        if own.region not in ("", spec.nebius.region) or not own.HasField("limit"):
            continue
        name = allowance.metadata.name
        scale = _GIB if ".size." in name else 1
        found[name] = (-(-status.usage // scale), own.limit // scale)
    return found


def _live_names(cloud: Cloud, spec: StackSpec) -> Mapping[str, str]:
    """Our name of a GPU quota -> the name that the live platform gives."""
    live: dict[str, str] = {}
    for platform in cloud.list("compute.v1.PlatformService", spec.nebius.project_id):
        name: Any = platform.metadata.name
        known = PLATFORMS.get(name)
        if known is not None and known.gres_type and platform.spec.gpu_count_quota_type:
            live[gpu_quota(name)] = platform.spec.gpu_count_quota_type
    return live


def _renamed(amounts: Mapping[str, int], names: Mapping[str, str]) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for name, amount in amounts.items():
        found[names.get(name, name)] += amount
    return found


def _shortfalls(
    needs: Mapping[str, int], own: Mapping[str, int], allowances: Mapping[str, tuple[int, int]]
) -> list[Shortfall]:
    found = []
    for quota, amount in needs.items():
        if quota not in allowances:
            continue
        used, limit = allowances[quota]
        # What the stack holds can be missing from a usage that is counted late.
        had = min(own.get(quota, 0), used)
        one = Shortfall(quota=quota, needs=amount, own=had, used=used, limit=limit)
        if amount > had and one.missing > 0:
            found.append(one)
    return found
