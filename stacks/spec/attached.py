"""A Slurm cluster that others run: what `soperator attach` found of it, and what its user adds.

A stack with `attached` has no infrastructure: load.py derives nodes, partitions and places from
what is here. Nothing here is a price but `node_prices`: nodes without one are unpriced.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from stacks.spec.decode import AmountOrZero, CountOrZero, Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedNodesetSpec:
    """Equal nodes in the same partitions."""

    name: str
    """Name by which prices and the bill know them."""
    nodes: str
    """Their names as Slurm writes them, such as `gpu[01-16]`."""
    count: Nodes
    """How many they are."""
    cpus: int
    """CPUs of a node, as Slurm counts them."""
    memory_mib: CountOrZero = 0
    """MiB of a node that Slurm gives to jobs; 0: Slurm does not count memory there."""
    gpus: CountOrZero = 0
    """GPUs of a node."""
    gpu_type: str | None = None
    """Type of the GPUs as the cluster's GRES calls it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedPartitionSpec:
    """One partition that the user may see."""

    name: str
    """Name of the partition."""
    nodesets: tuple[str, ...]
    """Nodesets that it has."""
    default: bool = False
    """Whether Slurm takes it where a job names none."""
    max_time: str = "UNLIMITED"
    """Longest time of a job, as Slurm writes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedSpec:
    """What `soperator attach` found; it writes these lines anew, so edits belong elsewhere."""

    host: str
    """Name or address of the login node."""
    user: str
    """Whom it is entered as, and whose jobs they are."""
    host_key: str
    """Public key of the login node, which every connection is held against."""
    identity: str
    """Private key file on this machine that opens the login node."""
    folder: str
    """Folder of the user there, below which everything of the stack lies."""
    python: str
    """Python of the login node, 3.10 or later; jobs that need no packages run with it."""
    slurm: str
    """Version of Slurm."""
    nodesets: tuple[AttachedNodesetSpec, ...]
    """The nodes."""
    partitions: tuple[AttachedPartitionSpec, ...]
    """The partitions."""
    port: int = 22
    """Port of its SSH server."""
    accounting: bool = True
    """Whether Slurm keeps the history of jobs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePriceSpec:
    """What a node of one attached nodeset costs: as a preset, or by a contract."""

    nodeset: str
    """Name of the nodeset."""
    platform: str | None = None
    """Nebius platform that the nodes are: the price book has its price."""
    preset: str | None = None
    """Preset of that platform, with as many GPUs as a node has."""
    usd_per_node_hour: AmountOrZero | None = None
    """US dollars for one node for an hour."""
    usd_per_gpu_hour: AmountOrZero | None = None
    """US dollars for one GPU, with its share of the node, for an hour."""
    source: str | None = None
    """Contract or offer that says so; needed with US dollars."""
    date: date | None = None
    """YYYY-MM-DD of the contract or offer; needed with US dollars."""

    @property
    def usd(self) -> Decimal | None:
        """US dollars of the contract, for a node or a GPU; None where a preset is declared."""
        per_node = self.usd_per_node_hour
        return self.usd_per_gpu_hour if per_node is None else per_node


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeSpec:
    """Which account and QOS of Slurm the stack's jobs and sessions are submitted with."""

    account: str | None = None
    """Account; without it Slurm takes the user's default one."""
    qos: str | None = None
    """QOS; without it Slurm takes that of the account or the partition."""

    @property
    def options(self) -> tuple[str, ...]:
        """Options of sbatch and srun."""
        asked = (("--account", self.account), ("--qos", self.qos))
        return tuple(f"{name}={value}" for name, value in asked if value is not None)
