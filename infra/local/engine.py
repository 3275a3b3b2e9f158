"""The Pulumi engine on this machine: which one runs, its plugins, its secrets and its stacks.

Owns PATH, PULUMI_HOME/plugins, the passphrase, the user's SSH key and the file backend. Official
engines and plugins win wherever they are found; installing them is the business of infra/setup.
SOPERATOR_PLUGINS names a folder of official programs that somebody built; they win over all.

`pulumi cancel` is no help with locks: it takes the lock of a living engine too, and it needs the
stack, while an engine killed in `pulumi stack init` leaves a lock and no stack.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Final

from infra import files
from infra.clients.passphrase import PUBLIC, SALT, opens
from infra.clients.ssh_key import make_key_pair, public_half
from infra.local.process import LocalError
from infra.state import CHECKOUT, PULUMI_VERSION, Cache, State
from stacks.files import read_text

_ATTRIBUTES = ".attrs"  # a file beside each of the backend's own


def holders(backend: Path, stack: str) -> list[int]:
    """Process ids of the living engines that have the stack locked."""
    return [pid for pid in _locks(backend, stack).values() if _is_pulumi(pid)]


def clear_dead(backend: Path, stack: str) -> bool:
    """Removes the locks of engines that are no more; whether there was one."""
    dead = [path for path, pid in _locks(backend, stack).items() if not _is_pulumi(pid)]
    for path in dead:
        path.unlink(missing_ok=True)
        path.with_name(path.name + _ATTRIBUTES).unlink(missing_ok=True)
    if dead:
        _drop_cut_attributes(backend, stack)
    return bool(dead)


def _drop_cut_attributes(backend: Path, stack: str) -> None:
    """Removes attributes of the state that the kill cut: with them the engine reads it no more.

    It truncates and rewrites them before each write of the state (gocloud.dev v0.37.0,
    blob/fileblob/attrs.go, setAttrs), and does without where the file is absent.
    """
    for path in (backend / ".pulumi" / "stacks").glob(f"**/{stack}.json*{_ATTRIBUTES}"):
        try:
            json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            path.unlink()


def _locks(backend: Path, stack: str) -> dict[Path, int]:
    """Lock files of the stack, each with the process id in it."""
    pids: dict[Path, int] = {}
    for path in (backend / ".pulumi" / "locks").glob(f"**/{stack}/*.json"):
        try:
            pids[path] = int(json.loads(path.read_text(encoding="utf-8"))["pid"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError):
            pids[path] = 0  # no engine's: it renames a whole file to this name
    return pids


def _is_pulumi(pid: int) -> bool:
    # Its name, which everybody may read, not its program: the engine may be another user's.
    try:
        return pid > 0 and Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except OSError:
        return False


PROJECT: Final = "soperator-stack"
STAND_INS: Final = {"command": "pulumi-command", "kubernetes": "pulumi-kubernetes"}
"""Plugin -> Python package whose version the engine asks for."""
PLUGINS_SETTING: Final = "SOPERATOR_PLUGINS"
LANGUAGE_HOST: Final = "pulumi-language-python"
_LANGUAGE_FILES: Final = (LANGUAGE_HOST, f"{LANGUAGE_HOST}-exec")
"""The official host runs a program through the script that is built and shipped with it."""
_KEY_COMMENT: Final = "soperator-local"
_LOOPBACK: Final = ("127.0.0.1", "localhost")
_VERSION = re.compile(r"^v?(\d+)\.(\d+)\.")


def search_path(path: str, cache: Cache, home: Path) -> str:
    """PATH with this checkout's Python first and, where PATH has no engine, the cache's next.

    Of PULUMI_HOME `home` it is that engine beside an official language host, where one was placed.
    """
    own = [str(CHECKOUT / ".venv" / "bin")]
    placed = str(home / "engine")
    tools = [str(cache.pulumi.parent), str(cache.kube_apiserver.parent)]
    known = (*own, *tools, placed)
    rest = [part for part in path.split(os.pathsep) if part and part not in known]
    found = shutil.which("pulumi", path=os.pathsep.join(rest))
    if cache.pulumi.exists() and (found is None or not is_usable(Path(found))):
        own.append(placed if Path(placed, LANGUAGE_HOST).exists() else tools[0])
    # Debian keeps daemons in sbin, which is not on every user's PATH.
    last = [*(p for p in ("/usr/sbin", "/sbin") if p not in rest), tools[1]]
    return os.pathsep.join(own + rest + last)


def is_usable(pulumi: Path) -> bool:
    """Whether this engine is at least the one that we build, and has a Python language host."""
    host = pulumi.resolve().with_name(LANGUAGE_HOST)
    if not (host.exists() or shutil.which(LANGUAGE_HOST)):
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
        return PUBLIC


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
        files.write(state.passphrase, PUBLIC + "\n", mode=0o600)


def token(state: State) -> str:
    """The embedded cloud's token; before there is one, another that opens nothing."""
    try:
        return state.token.read_text()
    except FileNotFoundError:
        return secrets.token_urlsafe()


def make_token(state: State) -> None:
    """Write the token's file unless there is one."""
    if state.token.exists():
        return
    fresh = state.token.with_name(f".token.{os.getpid()}")
    files.write(fresh, secrets.token_urlsafe(), mode=0o600)
    with contextlib.suppress(FileExistsError):  # of two commands at once the first one's stays
        os.link(fresh, state.token)
    fresh.unlink()


def make_ssh_key(state: State) -> None:
    """Make the key of the `local` stack's user unless there is one."""
    if state.ssh_public_key.exists():
        return
    if state.ssh_key.exists():  # its public half was deleted: the key itself is worth keeping
        public = public_half(state.ssh_key.read_bytes(), _KEY_COMMENT)
    else:
        public, private = make_key_pair(_KEY_COMMENT)
        files.write(state.ssh_key, private, mode=0o600)
    # The public key last: its presence says that both are whole.
    files.write(state.ssh_public_key, f"{public}\n", mode=0o600)


def link_plugins(home: Path) -> list[str]:
    """Put stand-ins into PULUMI_HOME/plugins where no official plugin is; returns their names.

    Not on PATH: there a plugin would win over an official one and warn at every run.
    """
    given = _given_plugins()
    _place_language_host(home, given)
    stand_ins = []
    for name, package in STAND_INS.items():
        program = f"pulumi-resource-{name}"
        folder = home / "plugins" / f"resource-{name}-v{metadata.version(package)}"
        link = folder / program
        official = Path.home() / ".pulumi" / "plugins" / folder.name / program
        target = CHECKOUT / "infra" / "local" / "plugins" / "bin" / program
        if given is not None and (given / program).is_file():
            target = given / program
        elif link.exists() and not link.is_symlink():
            continue
        elif shutil.which(program) is not None:
            link.unlink(missing_ok=True)
            continue
        elif official.exists():
            target = official
        else:
            stand_ins.append(name)
        if link.is_symlink() and link.readlink() == target:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{program}.{os.getpid()}"
        fresh.symlink_to(target)
        fresh.replace(link)
    return stand_ins


def describe_plugins() -> list[str]:
    """What comes out of SOPERATOR_PLUGINS and what that folder lacks, a line each."""
    given = _given_plugins()
    if given is None:
        return []
    programs = [*_LANGUAGE_FILES, *(f"pulumi-resource-{name}" for name in STAND_INS)]
    lacks = f"not in {given}; the one that would be used without {PLUGINS_SETTING} is used"
    missing = [program for program in programs if not (given / program).is_file()]
    return [
        f"plugins: {program}: {lacks if program in missing else f'official, from {given}'}"
        for program in sorted(programs, key=missing.__contains__)
    ]


def _given_plugins() -> Path | None:
    """The folder that SOPERATOR_PLUGINS names."""
    text = os.environ.get(PLUGINS_SETTING)
    if not text:
        return None
    if not Path(text).is_dir():
        raise LocalError(
            f"{PLUGINS_SETTING}: '{text}' is no folder; give one that holds official programs "
            f"({LANGUAGE_HOST}, pulumi-resource-command, pulumi-resource-kubernetes), or unset it"
        )
    return Path(text).resolve()


def _place_language_host(home: Path, given: Path | None) -> None:
    """The engine takes a language host without a warning only from beside its own program."""
    folder, engine = home / "engine", Cache.from_environ().pulumi
    programs = [] if given is None else [*(given / name for name in _LANGUAGE_FILES), engine]
    if not programs or not all(program.is_file() for program in programs):
        if folder.exists():
            shutil.rmtree(folder)
        return
    folder.mkdir(parents=True, exist_ok=True)
    for source in programs:
        target = folder / source.name
        there, here = source.stat(), target.stat() if target.exists() else None
        if here is None or (there.st_size, there.st_mtime_ns) != (here.st_size, here.st_mtime_ns):
            _put(source, target)


def _put(source: Path, target: Path) -> None:
    """A file of its own, never a symbolic link: the engine asks where its program really lies."""
    fresh = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        os.link(source.resolve(), fresh)
    except OSError:  # another filesystem
        shutil.copy2(source, fresh)
    fresh.replace(target)


def init_stacks(backend: Path, environ: Mapping[str, str]) -> list[str]:
    """Make every stack of stacks/ known to the file backend; its file is not touched.

    Returns a line for each that it left out: one bad file keeps nobody from another stack.
    """
    backend.mkdir(parents=True, exist_ok=True)
    left_out: list[str] = []
    for file in sorted((CHECKOUT / "stacks").glob("Pulumi.*.yaml")):
        stack = file.name.removeprefix("Pulumi.").removesuffix(".yaml")
        if (backend / ".pulumi" / "stacks" / PROJECT / f"{stack}.json").exists():
            continue
        try:
            salt = SALT.search(read_text(file))
        except (OSError, UnicodeDecodeError) as error:
            left_out.append(f"{file.name}: cannot be read, so no preview of this stack: {error}")
            continue
        if salt is None:
            left_out.append(
                f"{file.name}: encryptionsalt is missing, so no preview of this stack yet; "
                f"`pulumi stack init {stack}` in this environment writes one into the file"
            )
        # Else of `soperator init`, which has a backend and a passphrase of its own.
        elif opens(PUBLIC, salt.group(1)):
            clear_dead(backend, stack)
            if refused := _init(stack, environ):
                left_out.append(f"{file.name}: no preview of this stack: {refused}")
    return left_out


def _init(stack: str, environ: Mapping[str, str]) -> str:
    """What the engine says against the stack; empty where it took it."""
    program = shutil.which("pulumi", path=environ.get("PATH"))
    if program is None:
        raise LocalError("pulumi: not installed; run `make setup`")
    done = subprocess.run(
        [program, "-C", CHECKOUT, "stack", "init", stack, "--no-select", "--non-interactive"],
        env=dict(environ),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return ""
    return " ".join((done.stderr.strip() or done.stdout).split())
