"""What a number of a stack may be, where it is not simply one or more: `size_gib: SizeGib`.

A number without any of these is a size or a count of something that must exist: over 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Final

CLUSTER_NODES_MOST: Final = 5_000
"""https://kubernetes.io/docs/setup/best-practices/cluster-large, read 2026-11-21: no more nodes."""
_SIZE_GIB_MOST: Final = 4 << 20
"""4 PiB in one piece are bytes or MiB in the place of GiB."""
_WAIT_S_MOST: Final = 366 * 24 * 3_600
"""A longer wait is for ever, which 0 says; a duration of the API ends at 315,576,000,000."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends are allowed; without `most` load.py's own end of every number holds."""

    least: int = 1
    most: int | None = None

    def __str__(self) -> str:
        return f"{self.least} or more" if self.most is None else f"{self.least} to {self.most:,}"


Nodes = Annotated[int, Bounds(1, CLUSTER_NODES_MOST)]
"""What is made one by one needs an end before anything counts it."""
NodesOrZero = Annotated[int, Bounds(0, CLUSTER_NODES_MOST)]
Pieces = Annotated[int, Bounds(1, 1_000)]
"""As Nodes, of disks that one machine has."""
SizeGib = Annotated[int, Bounds(1, _SIZE_GIB_MOST)]
SizeGibOrZero = Annotated[int, Bounds(0, _SIZE_GIB_MOST)]
Days = Annotated[int, Bounds(1, 3_650)]
"""Ten years are no end of a key or of daily copies."""
WaitSeconds = Annotated[int, Bounds(0, _WAIT_S_MOST)]
CountOrZero = Annotated[int, Bounds(0)]
AmountOrZero = Annotated[Decimal, Bounds(0)]
Share = Annotated[Decimal, Bounds(0, 1)]
FileText = Annotated[str, Bounds(1, 1 << 20)]
"""Lines and tabs are allowed, in as many characters as a ConfigMap holds; other text is a line."""
