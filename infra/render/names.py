"""Names and labels that tie the cloud, Kubernetes and Slurm together: one place, so they agree.

The labels and mount tags are those of the Soperator charts 4.1.7 and of the official recipe; a
wrong one leaves pods without a node or volumes without a disk. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any, Final

from stacks.spec import StackSpec
from stacks.spec.storage import FilesystemSpec, SubmountSpec

NODESET_LABEL: Final = "slurm.nebius.ai/nodeset"
NODESET_NAME_LABEL: Final = "slurm.nebius.ai/nodeset-name"
JAIL_LABEL: Final = "slurm.nebius.ai/jail"
WORKLOAD_LABEL: Final = "slurm.nebius.ai/workload"
GPU_NODE_LABEL: Final = "nebius.com/gpu"
GPU_RESOURCE: Final = "nvidia.com/gpu"
NO_BALANCER_LABEL: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
CLUSTER_REF: Final = "slurm.nebius.ai/parental-cluster-ref"

JAIL: Final = "jail"
CONTROLLER_SPOOL: Final = "controller-spool"
ACCOUNTING: Final = "accounting"

LOGIN_HOST_KEYS: Final = "login-host-keys"
"""Secret with the host key of the login node."""


def submount_tag(name: str) -> str:
    """Virtiofs mount tag, and volume name, of the submount `name`."""
    return f"jail-submount-{name}"


def filesystems(spec: StackSpec) -> Iterator[tuple[str, FilesystemSpec | SubmountSpec]]:
    """Mount tag and declaration of every filesystem of the stack."""
    yield JAIL, spec.storage.jail
    yield CONTROLLER_SPOOL, spec.storage.controller_spool
    if spec.storage.accounting is not None:
        yield ACCOUNTING, spec.storage.accounting
    for submount in spec.storage.submounts:
        yield submount_tag(submount.name), submount


def is_jailed(tag: str) -> bool:
    """Whether nodes that show the jail need the filesystem: the jail itself and its submounts."""
    return tag == JAIL or tag.startswith("jail-submount-")


def kube_object(
    api_version: str, kind: str, name: str, namespace: str | None = None, /, **body: Any
) -> dict[str, Any]:
    """A Kubernetes object; `metadata` in the body is merged into its own."""
    place = {"name": name} if namespace is None else {"name": name, "namespace": namespace}
    metadata = {**place, **body.pop("metadata", {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}


def shell_file(name: str, beside: str = __file__) -> str:
    """A shell file beside another without the comment at its head, which is for its readers."""
    text = Path(beside).with_name(f"{name}.sh").read_text(encoding="utf-8")
    return "\n".join(dropwhile(lambda line: line.startswith("# "), text.splitlines()))
