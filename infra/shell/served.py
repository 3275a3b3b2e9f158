"""Pages that run beside a user's work: Jupyter in a session, TensorBoard on the login node.

Owns their command lines, whether they are installed, and how their port is found. Opens no tunnel.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell
from infra.shell.ask import Ask
from infra.shell.guard import ENDED, Guard
from stacks.spec import StackSpec

_MARK: Final = "soperator-endpoint"
_FREE_PORT: Final = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
_ABSENT_EXIT: Final = 69
_NO_FOLDER_EXIT: Final = 66
_LAST_LINES: Final = 5
JUPYTER_READY: Final = "is running at"
TENSORBOARD_READY: Final = "Press CTRL+C to quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where something listens, as the login node reaches it."""

    host: str
    port: int


def check_installed(shell: Shell, spec: StackSpec, module: str, package: str) -> None:
    """Refuses where the cluster's Python environment lacks a package."""
    python = _python(spec)
    result = shell.run(
        f"test -x {python} || exit {_NO_FOLDER_EXIT}; "
        f"{python} -c 'import importlib.util as u, sys; "
        f'sys.exit({_ABSENT_EXIT} if u.find_spec("{module}") is None else 0)\''
    )
    if result.ok:
        return
    if result.exit_code == _NO_FOLDER_EXIT:
        raise JobsError(
            f"{spec.python_env_path}: no Python environment on the cluster yet; docs/jobs.md says "
            "how it is made"
        )
    if result.exit_code == _ABSENT_EXIT:
        raise JobsError(
            f"{package} is not in {spec.python_env_path} of the cluster: "
            f"soperator ssh -s {spec.name} '{spec.python_env_path}/bin/pip install {package}'"
        )
    raise JobsError(f"{spec.python_env_path}: {result.stderr.strip() or 'python does not start'}")


def environment(spec: StackSpec, outputs: StackOutputs) -> str:
    """Shell words that give a session the code, the Python and the places that a job has."""
    exports = {
        "SOPERATOR_STACK": spec.name,
        **{
            f"SOPERATOR_PLACE_{place.upper()}": path
            for place, path in sorted(spec.storage.places.items())
        },
    }
    values = " ".join(f"{name}={shlex.quote(value)}" for name, value in exports.items())
    # The release of now: the link leads elsewhere after the next `pulumi up`.
    return (
        f"cd $(readlink -f {shlex.quote(f'{outputs.code_path}/current')}) && "
        f"export {values} PYTHONPATH=$PWD PATH={shlex.quote(f'{spec.python_env_path}/bin')}:$PATH"
    )


def jupyter(asked: Ask, spec: StackSpec, outputs: StackOutputs) -> str:
    """The command that starts Jupyter Lab in the session; its token is the guard's secret."""
    # It listens on the node's address: the login node reaches no loopback of another machine.
    script = (
        # In the home folder: what is saved in a release is gone with it.
        f"{environment(spec, outputs)} && export JUPYTER_TOKEN=$SOPERATOR_SECRET && cd && "
        f"port=$(python -c {shlex.quote(_FREE_PORT)}) && "
        f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" "$port" && '
        "exec python -m jupyterlab --no-browser --allow-root --ip=0.0.0.0 "
        '--port="$port" --ServerApp.port_retries=0 --ServerApp.allow_remote_access=True'
    )
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


def held(asked: Ask) -> str:
    """The command that holds the session for others to enter, and tells its node."""
    script = f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" 22 && exec sleep infinity'
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


def tensorboard(spec: StackSpec, folder: str, hours: float) -> str:
    """The command that shows the event files of a folder on the login node's own loopback."""
    python = _python(spec)
    return (
        f"port=$({python} -c {shlex.quote(_FREE_PORT)}); echo {_MARK} 127.0.0.1 $port; "
        f"timeout {round(hours * 3600)} {python} -m tensorboard.main "
        f"--logdir {shlex.quote(folder)} --host 127.0.0.1 --port $port"
    )


def check_folder(shell: Shell, folder: str, job_id: str | None) -> None:
    """Refuses a folder of events that no job wrote."""
    if shell.run(f"test -d {shlex.quote(folder)}").ok:
        return
    which = "no job has" if job_id is None else f"job {job_id} has not"
    raise JobsError(
        f"{folder}: {which} written TensorBoard events there; a training job does, from its first "
        "step (soperator status lists jobs)"
    )


def wait_for(guard: Guard, ready: str | None, *, say: Callable[[str], None]) -> Endpoint:
    """Where it listens, once it says `ready`; what it prints before is told.

    An end before that is an error with its last lines.
    """
    found: Endpoint | None = None
    last: list[str] = []
    for line in guard.lines():
        words = line.split()
        if words[:1] == [_MARK] and len(words) == 3:
            found = Endpoint(host=words[1], port=int(words[2]))
            if ready is None:
                return found
        elif words[:1] == [ENDED]:
            break
        elif line:
            last = [*last, line][-_LAST_LINES:]
            if ready is not None and ready in line and found is not None:
                return found
            say(line)
    raise JobsError(f"it ended before it was up: {'; '.join(last) or 'it printed nothing'}")


def wait_for_end(guard: Guard) -> None:
    """Returns when what the guard holds has ended, or its connection is lost."""
    for line in guard.lines():
        if line.split()[:1] == [ENDED]:
            return


def _python(spec: StackSpec) -> str:
    return shlex.quote(f"{spec.python_env_path}/bin/python")
