"""Opens a lost connection again: `reopen(connection, patience_s=...)`."""

from __future__ import annotations

import time
from typing import Final

from infra.jobs.ssh import Connection, ConnectionLostError

PATIENCE_S: Final = 120.0
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 10.0


def reopen(connection: Connection, *, patience_s: float = PATIENCE_S) -> None:
    """Tries with longer and longer pauses; after `patience_s` the last refusal is raised."""
    give_up_at = time.monotonic() + patience_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            connection.reopen()
            return
        except ConnectionLostError:
            if time.monotonic() + pause_s >= give_up_at:
                raise
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
