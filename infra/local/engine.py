"""The Pulumi engine on this machine: which one runs, its plugins, its secrets and its stacks.

Owns PATH, PULUMI_HOME/plugins, the passphrase, the user's SSH key and the file backend. Official
engines and plugins win wherever they are found; installing them is the business of infra/setup.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from infra import whole_file
from infra.local.errors import LocalError
from infra.local.state import CHECKOUT, PULUMI_VERSION, Cache, State
from infra.passphrase import opens
from infra.ssh_key import make_key_pair, public_half

PROJECT: Final = "soperator-stack"
PASSPHRASE: Final = "soperator-offline"  # noqa: S105
"""Opens the salts of the shipped stack files. It protects nothing that matters: for a real cloud
run `pulumi stack change-secrets-provider passphrase` with one of your own."""
STAND_INS: Final = {"command": "pulumi-command", "kubernetes": "pulumi-kubernetes"}
"""Plugin -> Python package whose version the engine asks for."""
_KEY_COMMENT: Final = "soperator-local"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_SALT = re.compile(r"^encryptionsalt: (\S+)$", re.MULTILINE)
_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.")


def search_path(path: str, cache: Cache) -> str:
    """PATH with this checkout's Python first and, where PATH has no engine, the cache's next."""
    own = [str(CHECKOUT / ".venv" / "bin")]
    tools = [str(cache.pulumi.parent), str(cache.kube_apiserver.parent)]
    rest = [part for part in path.split(os.pathsep) if part and part not in own + tools]
    found = shutil.which("pulumi", path=os.pathsep.join(rest))
    if cache.pulumi.exists() and (found is None or not is_usable(Path(found))):
        own.append(tools[0])
    # Debian keeps daemons in sbin, which is not on every user's PATH.
    last = [*(p for p in ("/usr/sbin", "/sbin") if p not in rest), tools[1]]
    return os.pathsep.join(own + rest + last)


def is_usable(pulumi: Path) -> bool:
    """Whether this engine is at least the one that we build, and has a Python language host."""
    host = "pulumi-language-python"
    if not (pulumi.resolve().with_name(host).exists() or shutil.which(host)):
        return False
    try:
        done = subprocess.run(
            [pulumi, "version"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "true"},
        )
    except OSError:
        return False
    found, needed = _VERSION.match(done.stdout.strip()), _VERSION.match(PULUMI_VERSION)
    if found is None or needed is None:
        return False
    return tuple(map(int, found.groups())) >= tuple(map(int, needed.groups()))


def passphrase(state: State) -> str:
    """What opens the file backend's secrets: the file's text, or what would be written there."""
    try:
        return state.passphrase.read_text().strip()
    except FileNotFoundError:
        return PASSPHRASE


def proxy_exceptions(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that keep loopback off the user's proxies: gRPC would send even that to them."""
    given = environ.get("no_proxy") or environ.get("NO_PROXY") or ""
    hosts = [host.strip() for host in given.split(",") if host.strip()]
    value = ",".join([*hosts, *(host for host in _LOOPBACK if host not in hosts)])
    return {"no_proxy": value, "NO_PROXY": value}


def make_folders(state: State) -> None:
    """Make the folders that hold keys and state, closed to others.

    One that the user made for the state as a whole stays as it is.
    """
    state.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (state.pulumi, state.pulumi_home, state.offline, state.ssh_key.parent):
        folder.mkdir(exist_ok=True, mode=0o700)
        folder.chmod(0o700)


def make_passphrase(state: State) -> None:
    """Write the passphrase file unless there is one."""
    if not state.passphrase.exists():
        whole_file.write(state.passphrase, PASSPHRASE + "\n", mode=0o600)


def make_ssh_key(state: State) -> None:
    """Make the key of the `local` stack's user unless there is one."""
    if state.ssh_public_key.exists():
        return
    if state.ssh_key.exists():  # its public half was deleted: the key itself is worth keeping
        public = public_half(state.ssh_key.read_bytes(), _KEY_COMMENT)
    else:
        public, private = make_key_pair(_KEY_COMMENT)
        whole_file.write(state.ssh_key, private, mode=0o600)
    # The public key last: its presence says that both are whole.
    whole_file.write(state.ssh_public_key, f"{public}\n", mode=0o600)


def link_plugins(home: Path) -> list[str]:
    """Put stand-ins into PULUMI_HOME/plugins where no official plugin is; returns their names.

    Not on PATH: there a plugin would win over an official one and warn at every run.
    """
    stand_ins = []
    for name, package in STAND_INS.items():
        program = f"pulumi-resource-{name}"
        version = metadata.version(package)
        folder = home / "plugins" / f"resource-{name}-v{version}"
        link = folder / program
        official = Path.home() / ".pulumi" / "plugins" / folder.name / program
        if link.exists() and not link.is_symlink():
            continue
        if shutil.which(program) is not None:
            link.unlink(missing_ok=True)
            continue
        stand_in = CHECKOUT / "infra" / "local" / "plugins" / "bin" / program
        target = official if official.exists() else stand_in
        if target is stand_in:
            stand_ins.append(name)
        if link.is_symlink() and link.readlink() == target:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{program}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)
    return stand_ins


def init_stacks(backend: Path, environ: Mapping[str, str]) -> None:
    """Make every stack of stacks/ known to the file backend; its file is not touched."""
    backend.mkdir(parents=True, exist_ok=True)
    for file in sorted((CHECKOUT / "stacks").glob("Pulumi.*.yaml")):
        stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
        if (backend / ".pulumi" / "stacks" / PROJECT / f"{stack}.json").exists():
            continue
        salt = _SALT.search(file.read_text())
        if salt is None:
            raise LocalError(
                f"{file.name}: encryptionsalt is missing, and the engine would write one into the "
                "file; take it from git, or run `pulumi stack init` yourself"
            )
        if not opens(PASSPHRASE, salt.group(1)):
            continue  # of `soperator init`, which has a backend and a passphrase of its own
        _pulumi(["stack", "init", stack, "--no-select", "--non-interactive"], environ)


def _pulumi(arguments: list[str], environ: Mapping[str, str]) -> None:
    program = shutil.which("pulumi", path=environ.get("PATH"))
    if program is None:
        raise LocalError("pulumi: not installed; run `make setup`")
    done = subprocess.run(
        [program, "-C", CHECKOUT, *arguments],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LocalError(f"pulumi {' '.join(arguments)}: {done.stderr.strip() or done.stdout}")
