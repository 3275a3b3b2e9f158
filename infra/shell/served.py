"""Pages that run beside a user's work: Jupyter in a session, TensorBoard on the login node.

Owns their command lines, whether they are installed, and how their port is found. Opens no tunnel.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from infra.jobs.errors import JobsError
from infra.jobs.outputs import StackOutputs
from infra.jobs.slurm import Shell
from infra.render.job_mounts import place_word
from infra.shell.ask import Ask
from infra.shell.guard import ENDED, Guard
from stacks.spec import StackSpec

_MARK: Final = "soperator-endpoint"
_FREE_PORT: Final = 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
_INSTALL: Final = "workloads/monitoring/install_tools.sh"
_LAST_LINES: Final = 5
_OPEN_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.5
JUPYTER_READY: Final = "is running at"
TENSORBOARD_READY: Final = "Press CTRL+C to quit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where something listens, as the login node reaches it."""

    host: str
    port: int


def check_installed(shell: Shell, spec: StackSpec, outputs: StackOutputs, module: str) -> None:
    """Refuses where the cluster lacks a package, with the command that brings it."""
    python = _python(spec)
    found = f"import importlib.util as u, sys; sys.exit(u.find_spec('{module}') is None)"
    if shell.run(f"test -x {python} && {python} -c {shlex.quote(found)}").ok:
        return
    script = f"{outputs.code_path}/current/{_INSTALL}"
    raise JobsError(
        f"{module} is not in {tools_path(spec)} of the cluster: soperator ssh -s {spec.name} "
        f"'bash {script} {spec.python_env_path}'"
    )


def tools_path(spec: StackSpec) -> str:
    """The environment of Jupyter and TensorBoard, beside that of the jobs and on top of it."""
    return f"{spec.python_env_path}-tools"


def environment(spec: StackSpec, outputs: StackOutputs) -> str:
    """Shell words that give a session the code, the Python and the places that a job has."""
    exports = {
        "SOPERATOR_STACK": shlex.quote(spec.name),
        **{
            f"SOPERATOR_PLACE_{place.upper()}": place_word(path)
            for place, path in sorted(spec.storage.places.items())
        },
    }
    values = " ".join(f"{name}={word}" for name, word in exports.items())
    # The release of now: the link leads elsewhere after the next `pulumi up`.
    return (
        f"cd $(readlink -f {shlex.quote(f'{outputs.code_path}/current')}) && "
        f"export {values} PYTHONPATH=$PWD PATH={shlex.quote(f'{spec.python_env_path}/bin')}:$PATH"
    )


def jupyter(asked: Ask, spec: StackSpec, outputs: StackOutputs) -> str:
    """The command that starts Jupyter Lab in the session; its token is the guard's secret."""
    python = _python(spec)
    # It listens on the node's address: the login node reaches no loopback of another machine.
    script = (
        # In the home folder: what is saved in a release is gone with it.
        f"{environment(spec, outputs)} && export JUPYTER_TOKEN=$SOPERATOR_SECRET && cd && "
        f"port=$({python} -c {shlex.quote(_FREE_PORT)}) && "
        f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" "$port" && '
        f"exec {python} -m jupyterlab --no-browser --allow-root --ip=0.0.0.0 "
        '--port="$port" --ServerApp.port_retries=0 --ServerApp.allow_remote_access=True'
    )
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


def end(asked: Ask) -> str:
    """The command that ends the session, and before it an srun of the guard's `start`."""
    # An srun that has not asked yet would get its node after the scancel, and hold it.
    return f"kill -- -$! 2>/dev/null; scancel --name={asked.name}"


def held(asked: Ask) -> str:
    """The command that holds the session for others to enter, and tells its node."""
    script = f'echo {_MARK} "${{SLURMD_NODENAME:-$(hostname)}}" 22 && exec sleep infinity'
    return asked.srun("bash", "-c", script, options=["--unbuffered"])


def tensorboard(spec: StackSpec, folder: str, hours: float) -> str:
    """The command that shows the event files of a folder on the login node's own loopback."""
    python = _python(spec)
    # --foreground: else `timeout` takes a process group of its own, which the guard's end misses.
    return (
        f"port=$({python} -c {shlex.quote(_FREE_PORT)}); echo {_MARK} 127.0.0.1 $port; "
        f"timeout --foreground {round(hours * 3600)} {python} -m tensorboard.main "
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
        if words[:1] == [_MARK] and len(words) == 3 and words[2].isdecimal():
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


def wait_until_open(shell: Shell, there: Endpoint, *, patience_s: float = _OPEN_S) -> None:
    """Returns once the login node can connect: a server says that it runs before it listens."""
    # The session said the name: it is no text of ours to a shell.
    script = 'exec 3<>"/dev/tcp/$1/$2"'
    probe = shlex.join(["timeout", "5", "bash", "-c", script, "probe", there.host, str(there.port)])
    give_up_at = time.monotonic() + patience_s
    while not shell.run(probe).ok:
        if time.monotonic() >= give_up_at:
            raise JobsError(
                f"{there.host}:{there.port}: runs, but the login node cannot connect to it for "
                f"{patience_s:g} s: does a firewall or network policy stand between nodes?"
            )
        time.sleep(_LOOK_EVERY_S)


def wait_for_end(guard: Guard) -> None:
    """Returns when what the guard holds has ended, or its connection is lost."""
    for line in guard.lines():
        if line.split()[:1] == [ENDED]:
            return


def _python(spec: StackSpec) -> str:
    return shlex.quote(f"{tools_path(spec)}/bin/python")
