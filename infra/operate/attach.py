"""What an ordinary user finds of a Slurm cluster that others run: discover(connection) -> Found.

One round trip and no root. Reads the formats that Slurm 22.05 to 26.05 share; whatever is missing
for a first job is refused in one line with what to ask the administrators for.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Final

from infra.clients.errors import JobsError
from infra.clients.slurm import Shell
from infra.render.names import shell_file
from stacks.errors import visible

LEAST_PYTHON: Final = (3, 10)
_SCRIPT: Final = Path(__file__).with_name("discover.sh")
_NODE_FIELDS: Final = 8
_PARTS: Final = frozenset(
    re.findall(r"^part ([a-z-]+)$", _SCRIPT.read_text(encoding="utf-8"), re.MULTILINE)
)
_WHO: Final = ("user", "home", "host", "login shell")
_SAID_CHARACTERS: Final = 160
_ROOM_BYTES: Final = 20 << 30
"""A home with less is left for a folder with more: checkpoints of a small model fill it."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ksh", "mksh", "zsh"})
_OF_ONE_NODE: Final = frozenset({"tmpfs", "ramfs", "overlayfs", "overlay"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundNodeset:
    """Equal nodes in the same partitions."""

    nodes: tuple[str, ...]
    partitions: tuple[str, ...]
    cpus: int
    memory_mib: int
    """0: Slurm does not count memory."""
    gpus: int = 0
    gpu_type: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundPartition:
    """One partition that the user sees, and who may use it."""

    name: str
    default: bool
    max_time: str
    accounts: frozenset[str] | None = None
    """Accounts that it takes; None takes all."""
    refused_accounts: frozenset[str] = frozenset()
    qos: tuple[str, ...] | None = None
    """QOS that it takes; None takes all."""
    is_up: bool = True
    whole_nodes: bool = False
    """Whether it gives whole nodes, whatever a job asks for."""

    def takes(self, account: str | None) -> bool:
        """Whether jobs of the account may run there."""
        if account is None:
            return self.accounts is None
        return account not in self.refused_accounts and account in (self.accounts or {account})


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """One account of the user, with what it allows."""

    account: str
    partition: str | None = None
    qos: tuple[str, ...] = ()
    default_qos: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnFolder:
    """One folder of the user's own on the login node."""

    path: str
    filesystem: str
    free_bytes: int
    problem: str | None = None
    """Why it takes no file; None: it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """All that was found; `quota` is as the cluster prints it."""

    user: str
    home: str
    host: str
    version: str
    nodesets: tuple[FoundNodeset, ...]
    partitions: tuple[FoundPartition, ...]
    python: str
    python_version: str
    has_accounting: bool
    enforces: frozenset[str] = frozenset()
    """What Slurm enforces of its accounting: `associations`, `limits`, `qos` and so on."""
    associations: tuple[Association, ...] = ()
    default_account: str | None = None
    folders: tuple[OwnFolder, ...] = ()
    quota: tuple[str, ...] = ()
    hides_jobs: bool = False
    """Whether users see their own jobs alone."""


def discover(shell: Shell, at: str) -> Found:
    """What is there; JobsError where no job of this user could run. `at` names the login node."""
    nonce = secrets.token_hex(8)
    # Whatever the user's login shell is, bash reads the script.
    result = shell.run("exec bash -s", stdin=script(nonce).encode())
    noise, mark, _ = result.stdout.partition(f"@{nonce} ")
    parts = parts_of(result.stdout, nonce)
    if not parts.keys() >= _PARTS or len(parts["who"]) != len(_WHO):
        said = visible(" ".join(f"{result.stdout} {result.stderr}".split()))[:_SAID_CHARACTERS]
        raise JobsError(
            f"{at}: ran something else than what was asked, and said {said!r}: the key is bound to "
            "a command of its own, or the account has no shell; ask the administrators for a login "
            "that runs commands"
        )
    if mark and (said := _first(noise.strip().splitlines())):
        raise JobsError(
            f"{at}: a startup file there prints {said!r} to every command, which spoils each "
            "answer; write into ~/.bashrc, below what sets PATH and above what prints: "
            "[[ $- == *i* ]] || return; or ask the administrators to print to terminals alone"
        )
    return read(parts, at)


def script(nonce: str) -> str:
    """What finds it out, in bash: it prints parts between marks of the nonce."""
    return f"nonce={nonce}\n{shell_file('roots')}\n{_SCRIPT.read_text(encoding='utf-8')}"


def parts_of(output: str, nonce: str) -> dict[str, tuple[str, ...]]:
    """Printable lines by the part that they are of; what stands before the first is nobody's."""
    parts: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in output.splitlines():
        found = re.fullmatch(rf"@{nonce} ([a-z-]+)", line)
        if found is not None:
            lines = parts.setdefault(found[1], [])
        elif line.strip():
            lines.append(visible(line))
    return {name: tuple(found) for name, found in parts.items()}


def read(parts: Mapping[str, Sequence[str]], at: str) -> Found:
    """The parts as facts, or a refusal."""
    user, home, host, login_shell = parts["who"]
    if PurePosixPath(login_shell).name not in _SHELLS:
        raise JobsError(
            f"{at}: the login shell of {user} is {login_shell}, and commands here are of sh; "
            "change it to bash (chsh -s /bin/bash), or ask the administrators to"
        )
    _refuse_no_slurm(parts, at)
    version = next(filter(None, map(slurm_version, parts["version"])), None)
    if version is None:
        raise JobsError(f"{at}: sinfo --version said {_first(parts['version'])!r}, no version")
    nodes = [line for line in parts["nodes"] if line.count("|") >= _NODE_FIELDS - 1]
    if not nodes:
        raise JobsError(
            f"{at}: Slurm shows {user} no node ({_first(parts['nodes']) or 'sinfo lists none'}); "
            "ask the administrators whether Slurm is up, and for a partition that you may use"
        )
    config = dict(_pair(line) for line in parts["config"] if "=" in line)
    partitions = partitions_of(nodes, parts["partitions"])
    if config.get("SelectType") == "select/linear":  # it knows nodes alone
        partitions = tuple(replace(each, whole_nodes=True) for each in partitions)
    enforces = _words(config.get("AccountingStorageEnforce", "none"))
    associations = associations_of(parts["associations"])
    if enforces & {"associations", "all", "limits", "qos"} and not associations:
        raise JobsError(
            f"{at}: Slurm takes jobs of members of an account alone, and {user} is of none; ask "
            f"the administrators to add you to one: sacctmgr add user {user} account=NAME"
        )
    python, python_version = _python(parts["python"], at)
    folders = tuple(_folder(line) for line in parts["folders"])
    if not any(each.problem is None for each in folders):
        seen = (
            "; ".join(f"{each.path}: {each.problem}" for each in folders) or f"{home} is not there"
        )
        raise JobsError(
            f"{at}: no folder of {user} takes a file ({seen}); ask the administrators for a home "
            "or a project folder with a quota over 0 that all nodes see"
        )
    default = [each.strip() for each in parts["default-account"]]
    known = {each.account for each in associations}
    return Found(
        user=user,
        home=home,
        host=host,
        version=version,
        nodesets=nodesets_of(nodes),
        partitions=partitions,
        python=python,
        python_version=python_version,
        has_accounting=bool(parts["sacct"]) and parts["sacct"][-1] == "yes",
        enforces=enforces,
        associations=associations,
        default_account=next((each for each in default if each in known), None),
        folders=folders,
        quota=tuple(parts["quota"]) if any("blocks" in each for each in parts["quota"]) else (),
        hides_jobs="jobs" in _words(config.get("PrivateData", "")),
    )


def _refuse_no_slurm(parts: Mapping[str, Sequence[str]], at: str) -> None:
    missing = ", ".join(parts["programs"])
    if not missing:
        return
    if folder := _first(parts["login-programs"]):
        raise JobsError(
            f"{at}: Slurm's programs are on PATH in login shells alone; write into ~/.bashrc "
            f"there, before anything ends it: export PATH={shlex.quote(folder)}:$PATH"
        )
    raise JobsError(
        f"{at}: {missing} are not on PATH, so this is no login node of a Slurm cluster; give "
        "another one, or ask the administrators where Slurm's commands are"
    )


def _python(lines: Sequence[str], at: str) -> tuple[str, str]:
    """Path and version of the first Python that is new enough."""
    found = [line.rsplit(" ", 1) for line in lines if line.startswith("/") and " " in line]
    for path, version in found:
        if tuple(int(each) for each in re.findall(r"\d{1,9}", version)[:2]) >= LEAST_PYTHON:
            return path, version
    have = ", ".join(f"{path} is {version}" for path, version in found) or "there is no python3"
    least = ".".join(map(str, LEAST_PYTHON))
    raise JobsError(
        f"{at}: no Python {least} or later on PATH ({have}); ask the administrators for one on all "
        "nodes, or put one of your own (uv, conda) on PATH in ~/.bashrc"
    )


def slurm_version(line: str) -> str | None:
    """`25.11.1` of `slurm 25.11.1`, `slurm-wlm 22.05.8` or a pre-release."""
    found = re.fullmatch(r"slurm\S* (\d+\.\d+\S*)", line.strip())
    return None if found is None else found[1]


def nodesets_of(lines: Sequence[str]) -> tuple[FoundNodeset, ...]:
    """Equal nodes together, of `sinfo --Node --format=%N|%R|%P|%c|%m|%l|%T|%G`."""
    found: dict[str, tuple[str, str, str, list[str]]] = {}
    for line in lines:
        node, partition, _, cpus, memory, _, _, gres = line.split("|", _NODE_FIELDS - 1)
        found.setdefault(node, (cpus, memory, gres, []))[-1].append(partition)
    groups: dict[FoundNodeset, list[str]] = {}
    for node, (cpus, memory, gres, partitions) in found.items():
        gpus, kind = gpus_of(gres)
        like = FoundNodeset(
            nodes=(),
            partitions=tuple(dict.fromkeys(partitions)),
            cpus=_number(cpus),
            # Without memory in slurm.conf every node has 1 MiB.
            memory_mib=_number(memory) if _number(memory) > 1 else 0,
            gpus=gpus,
            gpu_type=kind,
        )
        groups.setdefault(like, []).append(node)
    return tuple(
        replace(like, nodes=tuple(sorted(nodes, key=_by_number))) for like, nodes in groups.items()
    )


def gpus_of(gres: str) -> tuple[int, str | None]:
    """Number and first type of `gpu:h100:8(S:0-1),gpu:a100:2,shard:4`; parts of GPUs count not."""
    count, kind = 0, None
    for each in re.sub(r"\([^()]*\)", "", gres).split(","):
        found = re.fullmatch(r"gpu(?::([^:()]+))??(?::(\d{1,18}))?", each.strip())
        if found is not None:
            count += int(found[2] or 1)
            kind = kind or found[1]
    return count, kind


def partitions_of(nodes: Sequence[str], shown: Sequence[str]) -> tuple[FoundPartition, ...]:
    """Partitions of the lines of sinfo, with what scontrol says of who may use them."""
    said = {
        fields["PartitionName"]: fields
        for line in shown
        for fields in [dict(_pair(word) for word in line.split() if "=" in word)]
        if "PartitionName" in fields
    }
    found: dict[str, FoundPartition] = {}
    for line in nodes:
        _, name, starred, _, _, limit, _, _ = line.split("|", _NODE_FIELDS - 1)
        fields = said.get(name, {})
        found[name] = FoundPartition(
            name=name,
            default=starred.endswith("*"),
            max_time="UNLIMITED" if limit.lower() in ("infinite", "unlimited", "n/a") else limit,
            accounts=_set_or_all(fields.get("AllowAccounts", "ALL")),
            refused_accounts=_set_or_all(fields.get("DenyAccounts", "ALL")) or frozenset(),
            qos=None
            if _set_or_all(fields.get("AllowQos", "ALL")) is None
            else tuple(fields["AllowQos"].split(",")),
            is_up=fields.get("State", "UP") == "UP",
            whole_nodes=fields.get("OverSubscribe") == "EXCLUSIVE"
            or fields.get("Exclusive") in ("NODE", "TOPO"),  # so says 26.05
        )
    return tuple(found.values())


def associations_of(lines: Sequence[str]) -> tuple[Association, ...]:
    """Lines of `sacctmgr show associations`; what it says instead of them is none."""
    rows = [line.split("|") for line in lines]
    return tuple(
        Association(
            account=row[0],
            partition=row[1] or None,
            qos=tuple(each for each in row[2].split(",") if each),
            default_qos=row[3] or None,
        )
        for row in rows
        if len(row) == 4 and row[0]
    )


def _folder(line: str) -> OwnFolder:
    path, kind, free, problem = [*line.rsplit("|", 3), ""][:4]
    return OwnFolder(
        path=path, filesystem=kind, free_bytes=_number(free), problem=problem.strip() or None
    )


def roomy_folder(found: Found) -> OwnFolder:
    """Where the stack's folder goes by default: the home, or what has the room it lacks."""
    able = [each for each in found.folders if each.problem is None]
    shared = [each for each in able if each.filesystem not in _OF_ONE_NODE] or able
    home = shared[0]
    most = max(shared, key=lambda each: each.free_bytes)
    return home if home.free_bytes >= min(_ROOM_BYTES, most.free_bytes) else most


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """What a job names so that Slurm takes it."""

    partition: str
    account: str | None
    qos: str | None


def choose(
    found: Found, at: str, *, partition: str | None = None, account: str | None = None
) -> Charge:
    """A partition that takes jobs of an account of the user; JobsError where none does.

    The default account and partition first; nothing is named that Slurm would take by itself.
    """
    own = dict.fromkeys([found.default_account, *(each.account for each in found.associations)])
    accounts = [account] if account is not None else [each for each in own if each] or [None]
    if account is not None and found.associations and account not in own:
        have = ", ".join(each for each in own if each)
        raise JobsError(f"--account {account}: {found.user} is not in it (is in: {have})")
    names = [each.name for each in found.partitions]
    if partition is not None and partition not in names:
        raise JobsError(f"--partition {partition}: is none of {at} (has: {', '.join(names)})")
    queues = sorted(found.partitions, key=lambda each: not each.default)
    for queue in queues:
        if not queue.is_up or partition not in (None, queue.name):
            continue
        for each in accounts:
            rows = [row for row in found.associations if row.account == each]
            rows = [row for row in rows if row.partition in (None, queue.name)]
            if not queue.takes(each) or (found.associations and not rows):
                continue
            qos = _qos(queue, rows)
            if qos is _NO_QOS:
                continue
            return Charge(
                partition=queue.name,
                account=None if account is None and each == found.default_account else each,
                qos=qos,
            )
    wanted = names if partition is None else [partition]
    raise JobsError(
        f"{at}: no partition takes jobs of {found.user} ({', '.join(wanted)}; accounts: "
        f"{', '.join(filter(None, accounts)) or 'none'}); ask the administrators which account and "
        "QOS may use which partition"
    )


_NO_QOS: Final = ""


def _qos(queue: FoundPartition, rows: Sequence[Association]) -> str | None:
    """The QOS to name; None: none need be; _NO_QOS: the partition takes none of the user's."""
    if queue.qos is None or not rows:
        return None
    allowed = [each for row in rows for each in row.qos]
    if rows[0].default_qos in queue.qos or (rows[0].default_qos is None and "normal" in queue.qos):
        return None
    return next((each for each in queue.qos if each in allowed), _NO_QOS)


def compress(names: Sequence[str]) -> str:
    """The names as Slurm writes a list of them, such as `gpu[01-03,7],login`."""
    parts: list[str] = []
    ordered = sorted(dict.fromkeys(names), key=_by_number)
    for (prefix, width), group in groupby(ordered, key=_shape):
        numbers = [name[len(prefix) :] for name in group]
        if width == 0:
            parts += [prefix] * len(numbers)
        elif len(numbers) == 1:
            parts.append(f"{prefix}{numbers[0]}")
        else:
            parts.append(f"{prefix}[{','.join(_ranges(numbers))}]")
    return ",".join(parts)


def _ranges(numbers: Sequence[str]) -> Iterator[str]:
    for _, group in groupby(enumerate(numbers), lambda each: int(each[1]) - each[0]):
        run = [number for _, number in group]
        yield run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}"


def _shape(name: str) -> tuple[str, int]:
    """What is before the number at the end, and how many digits that has: 0 where there is none."""
    found = re.search(r"\d{1,18}$", name, re.ASCII)
    return (name, 0) if found is None else (name[: found.start()], len(found[0]))


def _by_number(name: str) -> tuple[str, int, int]:
    prefix, width = _shape(name)
    return prefix, width, int(name[len(prefix) :]) if width else 0


def _pair(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name.strip(), value.strip()


def _words(text: str) -> frozenset[str]:
    return frozenset(each for each in text.split(",") if each and each not in ("none", "(null)"))


def _set_or_all(text: str) -> frozenset[str] | None:
    return None if text.upper() in ("ALL", "(NULL)", "") else frozenset(text.split(","))


def _number(text: str) -> int:
    found = re.match(r"\s*(\d{1,18})", text)
    return int(found[1]) if found else 0


def _first(lines: Sequence[str]) -> str:
    return visible(lines[0].strip())[:_SAID_CHARACTERS] if lines else ""
