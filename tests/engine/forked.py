"""A module of ours that another process runs which has its imports already.

Python imports this file at its start where PYTHONWARNINGS names the class below, so that programs
which the engine starts by themselves can be served too. `python -m infra...` then hands its
arguments, environment and open files to the fork server (fork_server.py), and is here for as long
as the process that runs for it: signals reach it, and each ends with the other.
"""

import os
import sys

SERVER = "TESTS_FORK_SERVER"
"""Variable with the path of the server's socket."""
VARIABLES = (SERVER, "PYTHONWARNINGS")
_MODULES = ("infra.cli.main", "infra.local.nebius_api", "infra.local.plugins.", "infra.providers.")


class Forked(Warning):
    """Nothing warns of it."""


def variables(path: str) -> dict[str, str]:
    """Environment of programs that the server at this socket is to run."""
    return {SERVER: path, "PYTHONWARNINGS": "default::tests.engine.forked.Forked"}


def _hand_over(path: str, module: str, arguments: list[str]) -> None:
    import json
    import select
    import signal
    import socket

    parent = os.getppid()
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        server.connect(path)
    except OSError:  # it ended with its tests
        return
    files = [os.memfd_create("what-to-run"), 0, 1, 2]
    what = [module, arguments, dict(os.environ), os.getcwd()]  # noqa: PTH109 (needs no import)
    os.write(files[0], json.dumps(what).encode())
    socket.send_fds(server, [b"run"], files)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: server.send(b"%d" % number))
    while os.getppid() == parent:
        if select.select([server], [], [], 0.5)[0]:
            os._exit(int(server.recv(16) or 1))
    os._exit(1)


_words = sys.orig_argv
if SERVER in os.environ and "-m" in _words:
    _place = _words.index("-m") + 1
    # An emulator of whoever asks (`--anywhere`) outlives the command that starts it.
    if _words[_place].startswith(_MODULES) and "--anywhere" not in _words:
        _hand_over(os.environ[SERVER], _words[_place], _words[_place + 1 :])
