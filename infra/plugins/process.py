"""The end of a plugin process: it never outlives the engine that started it."""

from __future__ import annotations

import os
import threading
import time


def exit_with_parent() -> None:
    """Watches, in the background, for the death of this process's parent, even by SIGKILL.

    Call it first: a parent that died before cannot be told from any other.
    Not prctl(PR_SET_PDEATHSIG): that fires when the parent's *thread* ends, and the engine is a Go
    program whose threads come and go.
    """
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)
