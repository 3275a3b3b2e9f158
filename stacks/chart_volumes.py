"""Disks that the Soperator charts claim from the cloud, beside the declared filesystems.

infra/render writes the claim, cost/ prices it: one rule for both.
"""

from __future__ import annotations

from typing import Final

from stacks.spec import StackSpec

DATABASE_GIB: Final = 30
"""Claim of the accounting database (nebius/soperator helm/slurm-cluster/values.yaml at 4.1.7)."""


def database_volume_gib(spec: StackSpec) -> int:
    """GiB that the accounting database claims from the default storage class; 0 without a claim."""
    if not spec.slurm.accounting or spec.nodes.accounting is None:
        return 0
    return 0 if spec.storage.accounting is not None else DATABASE_GIB
