"""Rules of how much one cluster holds: nodes in all, filesystems of a machine, the largest release.

Each set's own count is bounded where it is decoded (decode.py).
"""

from __future__ import annotations

from typing import Final

from stacks.decode import CLUSTER_NODES_MOST
from stacks.machines import node_groups
from stacks.problem import Findings
from stacks.spec import StackSpec

_PAIRS_MOST: Final = 39_000
"""Helm keeps values, gzipped and in base64, in one Secret of 1 MiB, beside chart and manifest
(helm.sh/docs/topics/advanced, storage backends; kubernetes.io/docs/concepts/configuration/secret;
read 2026-11-21). Each set lists each submount, which takes 26.6 bytes of it: 1,597,696 bytes of the
values of 300 sets with 200 submounts, 2026-11-21."""
_FILESYSTEMS_ADVISED: Final = 32
"""Devices of one PCI bus (PCI Local Bus Specification 3.0, 3.2.2.3.2); each filesystem is one."""


def check_amounts(spec: StackSpec, findings: Findings) -> None:
    """What is too much for one cluster although each part of it would do."""
    num_nodes = sum(spec.nodes.counts(group)[1] for _, _, group in node_groups(spec))
    if num_nodes > CLUSTER_NODES_MOST:
        findings.error(
            "nodes",
            f"{num_nodes:,} nodes in all groups at max_nodes, but Kubernetes holds "
            f"{CLUSTER_NODES_MOST:,}; lower max_nodes, or declare a second stack",
            rule="nodes.cluster-most",
        )
    num_sets, num_submounts = len(spec.nodes.workers), len(spec.storage.submounts)
    if num_sets * num_submounts > _PAIRS_MOST:
        findings.error(
            "nodes.workers",
            f"{num_sets} sets with {num_submounts} submounts each do not fit the release "
            f"'nodesets', which Helm keeps in 1 MiB (about {_PAIRS_MOST:,} in all); declare larger "
            "sets, or folders on fewer filesystems",
            rule="nodes.sets-and-submounts",
        )
    own = (spec.storage.jail, *spec.storage.submounts)
    if len(own) > _FILESYSTEMS_ADVISED:
        findings.warn(
            "storage.submounts",
            f"{len(own)} filesystems with the jail on every login and worker node; no source says "
            f"that a machine takes more than {_FILESYSTEMS_ADVISED}: declare folders on fewer "
            "filesystems, or ask Nebius support",
            rule="storage.submounts-many",
        )
