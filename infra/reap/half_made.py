"""A stack whose `pulumi up` never came to its end: is_half_made(...), worker_groups(...). Pure.

Its nodes are paid for and no job can reach them. Pausing it by a whole `pulumi up` would make what
is missing; an `up` of the worker groups that are there makes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final

from infra.render import names

_GROUP: Final = "nebius:mk8s/v1:NodeGroup"


def is_half_made(preview: str) -> bool:
    """Whether `pulumi preview --json` only makes what is missing: what is there is as declared."""
    try:
        summary = json.loads(preview)["changeSummary"]
    except (ValueError, KeyError, TypeError):
        return False
    return bool(summary.get("create")) and set(summary) <= {"same", "create"}


def worker_groups(export: str, workers: Collection[str]) -> tuple[str, ...]:
    """URNs of the worker groups that `pulumi stack export` knows."""
    resources = json.loads(export)["deployment"].get("resources", ())
    return tuple(
        each["urn"]
        for each in resources
        if each["type"] == _GROUP
        and each["inputs"]["spec"]["template"]
        .get("metadata", {})
        .get("labels", {})
        .get(names.NODESET_NAME_LABEL)
        in workers
    )
