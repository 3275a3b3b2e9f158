"""Progress lines on stderr, flushed one by one: a reader of the job's log sees them at once."""

from __future__ import annotations

import os
import sys
import time


def log(message: str, *, every_rank: bool = False) -> None:
    """Print one line with the UTC time; ranks above 0 are silent unless `every_rank`."""
    rank = int(os.environ.get("RANK", "0"))
    if rank and not every_rank:
        return
    prefix = f"[rank {rank}] " if every_rank and int(os.environ.get("WORLD_SIZE", "1")) > 1 else ""
    stamp = time.strftime("%H:%M:%S", time.gmtime())
    # One write a line: print() without a buffer sends the line end after the text of another rank.
    sys.stderr.write(f"{stamp} {prefix}{message}\n")
    sys.stderr.flush()
