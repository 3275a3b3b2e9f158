"""Reader of what nccl-tests prints (all_reduce_perf and its kin). Pure.

Takes launchers' prefixes (`0: `, timestamps of pods) and both forms of the error column.
"""

from __future__ import annotations

import re
from typing import Final

from workloads.accept.bus import Transfer
from workloads.common.exit_codes import WorkloadError

PROGRAMS: Final = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "send_recv": "sendrecv_perf",
}
_PART_BYTES = 16
"""Of each rank: the programs round a message down to parts of this size (src/all_gather.cu)."""
_NUMBER = r"[\d.]+(?:e[+-]?\d+)?"
# size count type redop root | time algbw busbw #wrong, out of place, then in place. Collectives
# without a reduction print `none` for redop; versions before 2.11 have no column root.
_ROW = re.compile(
    r"(?:^|\s)(?P<size>\d+)\s+(?P<count>\d+)\s+(?P<type>[a-z]+\w*)\s+(?P<redop>[a-z]+)\s+"
    r"(?:(?P<root>-?\d+)\s+)?"
    rf"(?P<time>{_NUMBER})\s+(?P<algbw>{_NUMBER})\s+(?P<busbw>{_NUMBER})\s+(?P<wrong>N/A|{_NUMBER})\s+"
    rf"(?P<time2>{_NUMBER})\s+(?P<algbw2>{_NUMBER})\s+(?P<busbw2>{_NUMBER})\s+(?P<wrong2>N/A|{_NUMBER})\s*$"
)


_TABLE_HEAD: Final = "out-of-place"


class NcclTestsError(WorkloadError):
    """Output without a table, or one that was cut short."""


def aligned(num_bytes: int, ranks: int) -> int:
    """Return the least message of `num_bytes` or more that the programs do not round down."""
    part = _PART_BYTES * ranks
    return -(-num_bytes // part) * part


def parse(text: str, *, op: str, ranks: int) -> tuple[Transfer, ...]:
    """Return the rows, by size; of out-of-place and in-place the slower one counts."""
    rows = [
        _transfer(match, op, ranks) for line in text.splitlines() if (match := _ROW.search(line))
    ]
    if not rows:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), "no output")
        raise NcclTestsError(f"{PROGRAMS[op]}: no row of results; its last line: {last.strip()}")
    if len(tables := [line for line in text.splitlines() if _TABLE_HEAD in line]) > 1:
        raise NcclTestsError(
            f"{PROGRAMS[op]}: {len(tables)} tables of {ranks} ranks: each process measured alone, "
            "as without MPI; build nccl-tests with MPI=1"
        )
    if "Avg bus bandwidth" not in text:
        raise NcclTestsError(
            f"{PROGRAMS[op]}: {len(rows)} rows and no 'Avg bus bandwidth': it ended before the last"
        )
    return tuple(row for row in rows if row.bytes and row.time_s)


def _transfer(match: re.Match[str], op: str, ranks: int) -> Transfer:
    slower = "2" if float(match["time2"]) > float(match["time"]) else ""
    wrong = match[f"wrong{slower}"]
    return Transfer(
        op=op,
        ranks=ranks,
        bytes=int(match["size"]),
        time_s=float(match[f"time{slower}"]) / 1e6,
        algbw_gb_per_s=float(match[f"algbw{slower}"]),
        busbw_gb_per_s=float(match[f"busbw{slower}"]),
        wrong=None if wrong == "N/A" else int(float(wrong)),
        source="nccl-tests",
    )
