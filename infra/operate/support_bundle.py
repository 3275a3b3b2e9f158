"""A support bundle: parts, redacted, in one tar of mode 0600 with a list of what is in it.

Two nets, as each has holes: values that are known to be secret, in each form in which tools print
them, and what looks like a secret wherever it stands. Uploads nothing: who sends it has read the
list first. Each part is gathered by itself: one that cannot be had costs no other.
All of it reads only. Secrets and ConfigMaps of Kubernetes are not read.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import io
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from infra.clients.kube import KubeClient, Object
from infra.clients.kube_rules import holds
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell
from infra.files import write
from infra.render.charts import LOGS, MONITORING
from infra.state import CHECKOUT, DEFAULT_STACK, State
from stacks.load import STACKS_DIR
from stacks.spec import StackSpec


class NotRunError(Exception):
    """This part could not be gathered; the reason in one line."""


@dataclass(frozen=True, slots=True)
class Part:
    """What to gather, and under which name."""

    name: str
    """Path in the bundle."""
    says: str
    """What it is, for the list."""
    gather: Callable[[], str]
    """Its text; NotRunError where it cannot be had."""
    limit_s: float = 120.0
    """Seconds; a filesystem or a machine that hangs does not hold the other parts."""


def gather(part: Part) -> str:
    """The part; NotRunError whatever goes wrong with it: the others are worth more then."""
    answer: Future[str] = Future()

    def work() -> None:
        try:
            answer.set_result(part.gather())
        except Exception as error:
            answer.set_exception(error)

    # What hangs in a read cannot be ended; as a daemon it does not keep the program.
    thread = threading.Thread(target=work, name=part.name, daemon=True)
    thread.start()
    thread.join(part.limit_s)
    if not answer.done():
        raise NotRunError(f"no end within {part.limit_s:g} s")
    try:
        return answer.result()
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise NotRunError(lines[0]) from error


def output_of(command: Sequence[str], *, environ: Mapping[str, str], timeout_s: float) -> str:
    """What a command prints, with its exit status; a status of failure is news too."""
    try:
        done = subprocess.run(
            list(command),
            cwd=CHECKOUT,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise NotRunError(f"{command[0]}: not on PATH; run `make setup`") from error
    except subprocess.TimeoutExpired as error:
        raise NotRunError(f"no end within {timeout_s:g} s") from error
    return f"{done.stdout}\nexit status {done.returncode}\n"


_QUICK_S: Final = 60.0
_PREVIEW_S: Final = 180.0
_PLAIN: Final = ("--non-interactive", "--color=never")
_OK: Final = "\nexit status 0\n"
_TAIL_BYTES: Final = 64 * 1024
_NUM_LOGS: Final = 20
_NUM_RUNS: Final = 5
_HIDDEN_LINE: Final = re.compile(r"^\s*(?:encryptionsalt|encryptedkey|secretsprovider|-? *secure):")


def parts_here(
    stack: str, state: State, environ: Mapping[str, str], *, preview: bool
) -> list[Part]:
    """What can be had without the cluster."""

    def ran(*command: str, timeout_s: float = _QUICK_S) -> str:
        return output_of(command, environ=environ, timeout_s=timeout_s)

    def own(*words: str) -> str:
        return ran(sys.executable, "-m", "infra.cli.main", *words)

    def stack_says(*words: str) -> str:
        return succeeded(ran("pulumi", "stack", *words, "--stack", stack, *_PLAIN))

    parts = [
        Part(
            "versions.txt", "programs and packages", lambda: versions() + ran("pulumi", "version")
        ),
        Part("revision.txt", "commit of the checkout", lambda: ran("git", "log", "-1", "--stat")),
        Part("changes.txt", "files changed since", lambda: ran("git", "status", "--short")),
        Part("stack.yaml", "stack file without secrets", lambda: stack_file(stack)),
        Part("doctor.txt", "tools, rules, project", lambda: own("doctor", "--stack", stack)),
        Part("cost.txt", "bill", lambda: own("cost", "--stack", stack)),
        Part("outputs.json", "outputs", lambda: stack_says("output", "--json")),
        Part("resources.json", "resources by URN and id", lambda: resources(stack_says("export"))),
        Part("history.txt", "updates of the stack", lambda: stack_says("history")),
        Part("runs.txt", "newest submissions and records", lambda: runs(state.runs(stack))),
        Part("demo_logs.txt", "ends of the demo's output", lambda: tails(state.root / "demo")),
    ]
    if stack == DEFAULT_STACK:
        parts += [
            Part("local.txt", "parts of the embedded cloud", lambda: own("local", "status")),
            Part("local_logs.txt", "ends of its logs", lambda: tails(state.local)),
        ]
    if preview:
        parts.append(
            Part(
                "preview.txt",
                "what `pulumi up` would do",
                lambda: ran("pulumi", "preview", "--stack", stack, *_PLAIN, timeout_s=_PREVIEW_S),
                limit_s=_PREVIEW_S + _QUICK_S,
            )
        )
    return parts


def versions() -> str:
    """Python, machine, and every package of this environment."""
    packages = sorted({f"{each.name} {each.version}" for each in distributions()})
    lines = [f"python {platform.python_version()}", f"machine {platform.platform()}", *packages]
    return "\n".join(lines) + "\n"


def stack_file(stack: str) -> str:
    """The stack file without what the engine encrypted, and what encrypts it."""
    path = STACKS_DIR / f"Pulumi.{stack}.yaml"
    if not path.is_file():
        raise NotRunError(f"stacks/{path.name}: there is no such file")
    lines = path.read_text(encoding="utf-8").splitlines()
    return "".join(f"{line}\n" for line in lines if not _HIDDEN_LINE.match(line))


def succeeded(text: str) -> str:
    """What the engine said; a stack that it does not have is no part."""
    said = text.removesuffix(_OK)
    if said == text:
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        raise NotRunError(next((line for line in lines if line.startswith("error:")), lines[0]))
    return said


def resources(text: str) -> str:
    """What the state holds, by name: inputs and outputs stay here, secrets are among them."""
    deployment = json.loads(text[text.index("{") : text.rindex("}") + 1])["deployment"]
    found = [
        {name: each[name] for name in ("urn", "id", "created", "modified") if name in each}
        for each in deployment.get("resources", [])
    ]
    pending = [each.get("type") for each in deployment.get("pending_operations", [])]
    return json.dumps({"resources": found, "pending_operations": pending}, indent=1) + "\n"


def runs(folder: Path) -> str:
    """Submissions and run records of the newest jobs, and the end of the ledger."""
    if not folder.is_dir():
        return "nothing was submitted from this checkout\n"
    found = sorted(folder.glob("*/*.json"), key=lambda path: path.stat().st_mtime)
    names = {"submission.json", "run_record.json"}
    newest = [path for path in found if path.name in names][-2 * _NUM_RUNS :]
    return _joined([*newest, *folder.glob("ledger.jsonl")], folder)


def tails(folder: Path) -> str:
    """The ends of the newest logs below a folder."""
    logs = [
        path
        for path in folder.rglob("*")
        if path.suffix in {".log", ".out", ".txt"} and path.is_file() and not path.is_symlink()
    ]
    if not logs:
        return "there are no logs\n"
    newest = sorted(logs, key=lambda path: path.stat().st_mtime)[-_NUM_LOGS:]
    return _joined(newest, folder)


def _joined(paths: list[Path], folder: Path) -> str:
    return "".join(f"==> {path.relative_to(folder)} <==\n{_tail(path)}\n" for path in paths)


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        start = max(0, path.stat().st_size - _TAIL_BYTES)
        file.seek(start)
        text = file.read().decode(errors="replace")
    # Of a line without its begin nobody can say whether it was called a secret.
    return text.partition("\n")[2] if start else text


_NUM_JOB_LOGS: Final = 5
_NUM_LINES: Final = 200
_FIELDS: Final = (
    "JobID,JobName,User,Partition,State,ExitCode,Submit,Start,End,AllocTRES,MaxRSS,NodeList"
)
_COMMANDS: Final = {
    "slurm/nodes.txt": ("nodes with their states", "sinfo -N -l; sinfo -R; scontrol show nodes"),
    "slurm/queue.txt": ("queue", "squeue --all --long; squeue --start; sprio --long"),
    "slurm/jobs.txt": ("details of known jobs", "scontrol show jobs"),
    "slurm/accounting.txt": (
        "jobs of the last day",
        f"sacct --allusers --duplicates --starttime=now-1days --parsable2 --format={_FIELDS}",
    ),
    "slurm/config.txt": ("configuration", "scontrol show config; scontrol show partitions"),
    "slurm/disks.txt": ("filesystems", "df -h; df -i; findmnt --list"),
}


Opens = Callable[[], tuple[StackOutputs, Shell]]
"""Opens the connection at the first part that needs it, and remembers that it could not."""


def parts_of_cluster(opens: Opens) -> list[Part]:
    """What Slurm and the login node say."""

    def ask(command: str) -> Callable[[], str]:
        def answer() -> str:
            _, shell = opens()
            # Every command runs, whatever became of the one before it.
            result = shell.run(f"( {command} ) 2>&1")
            return f"{result.stdout}{result.stderr}\nexit status {result.exit_code}\n"

        return answer

    def logs() -> str:
        outputs, shell = opens()
        folder = shlex.quote(outputs.places["logs"])
        # Without the links that trainings have beside their logs.
        newest = f"find {folder} -maxdepth 1 -name '*.log' -type f -print0 | xargs -0r ls -1t"
        ends = f'head -n {_NUM_JOB_LOGS} | while read -r f; do tail -v -n {_NUM_LINES} "$f"; done'
        result = shell.run(f"{newest} | {ends}")
        return result.stdout or f"{outputs.places['logs']}: no log of a job\n"

    parts = [Part(name, says, ask(command)) for name, (says, command) in _COMMANDS.items()]
    return [*parts, Part("slurm/logs.txt", "ends of the newest logs", logs)]


def once(make: Callable[[], tuple[StackOutputs, Shell]]) -> Opens:
    """A connection that is made once; when that fails, every part has the same reason."""
    made: Future[tuple[StackOutputs, Shell]] = Future()
    making = threading.Lock()

    def opens() -> tuple[StackOutputs, Shell]:
        with making:  # a part that was left is still at it in its thread
            if not made.done():
                try:
                    made.set_result(make())
                except Exception as error:
                    made.set_exception(error)
        return made.result()

    return opens


_KEPT: Final = (
    "name",
    "namespace",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "labels",
)
_SLURM: Final = "slurm.nebius.ai"
_STATUS: Final = (
    ("kube/nodes.jsonl", "nodes", "v1", "Node"),
    ("kube/claims.jsonl", "claims of disks", "v1", "PersistentVolumeClaim"),
    ("kube/clusters.jsonl", "Slurm clusters", f"{_SLURM}/v1", "SlurmCluster"),
    ("kube/nodesets.jsonl", "nodesets", f"{_SLURM}/v1alpha1", "NodeSet"),
    ("kube/checks.jsonl", "active checks", f"{_SLURM}/v1alpha1", "ActiveCheck"),
)


def parts_of_kube(spec: Callable[[], StackSpec], client: Callable[[], KubeClient]) -> list[Part]:
    """What the API server says of the objects of this stack; an invalid stack file costs two."""

    def ours(kind: str) -> list[Object]:
        names = {spec().cluster.namespace, MONITORING, LOGS}
        return [
            each
            for each in client().list("v1", kind)
            if (name := each["metadata"].get("namespace", "")) in names or name.endswith("-system")
        ]

    def events() -> str:
        found = sorted(_event(each) for each in ours("Event"))
        return "".join(f"{' | '.join(row)}\n" for row in found)

    def statuses(version: str, kind: str) -> Callable[[], str]:
        return lambda: _statuses(client().list(version, kind))

    return [
        Part("kube/version.txt", "version of the API", lambda: client().version()),
        Part("kube/events.txt", "events of our namespaces", events),
        Part("kube/pods.jsonl", "pods and why they wait", lambda: _statuses(ours("Pod"))),
        *(Part(name, says, statuses(*kind)) for name, says, *kind in _STATUS),
    ]


def _event(each: Object) -> tuple[str, ...]:
    about = each.get("involvedObject") or {}
    when = each.get("lastTimestamp") or each.get("eventTime") or ""
    what = f"{about.get('kind', '')}/{about.get('namespace', '')}/{about.get('name', '')}"
    message = " ".join(str(each.get("message", "")).split())
    return (when, str(each.get("type", "")), what, str(each.get("reason", "")), message)


def _statuses(objects: Iterable[Object]) -> str:
    """A line of JSON of each: what it says of itself and, of a pod, the node that it is on.

    What is not Ready comes last: of a part that is too long, the end is kept.
    """
    found: list[str] = []
    for each in sorted(objects, key=_is_unready):
        kept = {name: each["metadata"][name] for name in _KEPT if name in each["metadata"]}
        said: Object = {"metadata": kept, "status": each.get("status")}
        if node := (each.get("spec") or {}).get("nodeName"):
            said["nodeName"] = node
        found.append(f"{json.dumps(said)}\n")
    return "".join(found)


def _is_unready(each: Object) -> bool:
    """Whether it does not say that it is Ready; a pod that succeeded does not, and is well."""
    ended_well = (each.get("status") or {}).get("phase") == "Succeeded"
    return not holds(each, "Ready") and not ended_well


_WORDS: Final = (
    *("TOKEN", "PASSPHRASE", "PASSWORD", "SECRET", "API_KEY", "ACCESS_KEY", "KEY_FILE"),
    *("CREDENTIAL", "WEBHOOK"),
)
_FILES_OF: Final = ("_FILE", "_PATH")
_LONGEST_BYTES: Final = 64 * 1024


def known(state: State, environ: Mapping[str, str]) -> set[str]:
    """Every secret value that this machine holds for its stacks."""
    found = set(_environment(environ))
    files = [state.passphrase]
    files += [path for path in (state.root / "ssh").glob("*") if "PRIVATE KEY" in _read(path)]
    cloud = state.root / "cloud"
    # What the engine keeps there has its secrets encrypted: its lines are names and ids.
    files += [
        path
        for path in cloud.rglob("*")
        if path.is_file() and path.relative_to(cloud).parts[1:2] != ("pulumi",)
    ]
    for path in files:
        found |= set(_secrets_of(_read(path)))
    return {each for each in found if each.strip()}


def _environment(environ: Mapping[str, str]) -> Iterator[str]:
    for name, value in environ.items():
        if "PUBLIC" in name.upper() or not _is_secret(name, _WORDS):
            continue
        if name.upper().endswith(_FILES_OF) or value.startswith("/"):
            yield from _secrets_of(_read(Path(value)))
        if not name.upper().endswith(_FILES_OF):
            yield value


def _read(path: Path) -> str:
    try:
        # A FIFO, as programs that keep secrets make, is waited for by none, and /dev/zero is long.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as file:
            return (file.read(_LONGEST_BYTES) or b"").decode(errors="replace")
    except OSError:
        return ""


def _secrets_of(text: str) -> Iterator[str]:
    """Secret values of a JSON file; any other whole, and the values of its lines `NAME=value`."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, dict | list):
        yield from _named(found)
    else:
        yield text
        for line in text.splitlines():
            name, equals, value = line.removeprefix("export ").partition("=")
            if equals and _is_secret(name):
                yield value.strip().strip("'\"")


def _named(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _named(each, str(key))
    elif isinstance(value, list):
        for each in value:
            yield from _named(each, name)
    elif isinstance(value, str) and _is_secret(name):
        yield value


def _is_secret(name: str, words: Sequence[str] = (*_WORDS, "KEY")) -> bool:
    return any(word in name.upper() for word in words)


MARK: Final = "[REDACTED]"
_SHORTEST: Final = 6
"""Shorter values are words: taking them out would take the text apart."""
_QUOTE: Final = r"(?:\\{0,8}[\"'])?"
"""A quote or none, also as it stands in JSON within JSON."""
_NAME: Final = (
    r"(?:pass(?:word|wd|phrase)|pwd|secret|token(?!s|iz)|api[-_]?key|private[-_]?key"
    r"|access[-_]?key|client[-_]?key[-_]?data|webhook|credential|ciphertext|encryptionsalt"
    r"|authorization|storagepass|secure"
    rf"|tokens(?={_QUOTE}[ \t]*[:=](?![ \t]*{_QUOTE}[\d.,_]+[kKMGT%]?(?:[\s/,;)}}\]\"']|\Z))))"
)
"""Words that the name of a secret has; counts of text tokens are none."""
_NAMED_WORD: Final = rf"[\w.-]{{0,80}}{_NAME}[\w.-]{{0,80}}"
_SHAPES: Final = tuple(
    re.compile(pattern, re.DOTALL)
    for pattern in (
        # PEM and OpenSSH keys, also cut off in the middle, also with \n written out.
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
        # "-----BEGIN" in base64, on one line or on many.
        r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]{20,}(?:\n[ \t]*[A-Za-z0-9+/=]+[ \t]*(?=\n|\Z))*",
        r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}",
        # JSON web tokens, tokens of Nebius, Hugging Face, GitHub, GitLab, OpenAI, Slack, AWS's ids.
        r"\beyJ[\w-]{8,}\.[\w-]{8,}\.?[\w-]*",
        r"\bne1[\w-]{30,}(?:\.[\w-]+)*",
        r"\bhf_[A-Za-z0-9]{20,}",
        r"\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}",
        r"\bglpat-[\w.-]{16,}",
        r"\bsk-[\w-]{20,}",
        r"\bx(?:ox[abeoprs]|app)-[\w-]{10,}",
        r"https://hooks\.slack\.com/[^\s\"'<>]+",
        r"https://(?:\w{1,20}\.)?discord(?:app)?\.com/api/webhooks/[^\s\"'<>]+",
        r"\bAIza[\w-]{30,}",
        r"\b(?:AKIA|ASIA|NAKI)[A-Z0-9]{12,}",
        # What Pulumi encrypts: useless without the passphrase, and nobody's business.
        r"\bv1:[A-Za-z0-9+/=]{8,}(?::[A-Za-z0-9+/=]+)+",
    )
)
# A key whose begin is cut off is looked for from its end: forwards, each line of letters would
# start one, and a log of such lines would take hours.
_KEY_END: Final = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_BACKWARDS: Final = re.compile(
    r"(?:[ \t]*(?:\n|n\\)(?:r\\)?[ \t\r]*(?:[A-Za-z0-9+/=](?!\\))+)*"
)
_LONGEST_KEY: Final = 20_000
"""Characters; RSA of 16384 bits has 12,700."""
_VALUE: Final = (
    r"(?!\[REDACTED\])(?:"
    r"(?P<escape>\\{1,8})[\"'][^\n]{0,4096}?(?<!\\)(?P=escape)[\"']"
    r"|\"(?:[^\"\\\n]|\\.){0,4096}\""
    r"|'(?:[^'\\\n]|\\.|''){0,4096}'"
    r"|\[[^\]\n]{0,4096}\]?"
    r"|[\"']?(?:[^\s{\[|>,;\"']|[|>](?![-+\d]{0,2}[ \t]*(?:[\n#]|\Z)))"
    r"[^\n,;}\]]*(?:[,;}\]]+(?=[^\s,;}\]\"'])[^\n,;}\]]*)*)"
)
"""In quotes, a list, or to the end of the line; a comma before more letters is part of it."""
_WORD: Final = r"(?!\[REDACTED\])(?:\"[^\"\n]{0,4096}\"|'[^'\n]{0,4096}'|\S+)"
# Each starts at the border of a word and has an end: a log of megabytes is read in one go.
# What is in `kept` stays: the name of what went.
_CALLED: Final = tuple(
    re.compile(rf"(?im){pattern}")
    for pattern in (
        # user:password of an address, a password alone, a token alone.
        (
            r"(?<=://)[^\s/:@\"']{0,256}:[^\s\"']{1,256}(?=@)"
            r"|(?<=://)(?!\[REDACTED\]@)[^\s/:@\"']{8,256}(?=@)"
        ),
        r"(?P<kept>\b(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}",
        # `password: |`, `>-`, `[` or nothing, and the value on the lines below, further in.
        (
            r"(?P<kept>^(?P<indent>[ \t]{0,200})(?:-[ \t]+)?"
            rf"[\"']?{_NAMED_WORD}[\"']?[ \t]*:[ \t]*"
            r"(?:[|>][-+\d]{0,2}|\[)?[ \t]*(?:#[^\n]*)?\n(?:[ \t]*\n){0,3}"
            r"(?P=indent)(?:[ \t]+(?=\S)|(?=-[ \t])))"
            r"\S[^\n]*(?:\n(?:[ \t]*\n){0,3}(?P=indent)(?:[ \t]+\S|-[ \t])[^\n]*)*"
        ),
        # `password: x`, `TOKEN=x`, `"secret": "x"`.
        rf"(?P<kept>(?<![\w.-]){_NAMED_WORD}{_QUOTE}[ \t]*[:=][=>]?[ \t]*){_VALUE}",
        # {"name": "DB_PASSWORD", "value": "x"}, on one line or on two.
        (
            rf"(?P<kept>\b(?:name|key){_QUOTE}[ \t]*[:=][ \t]*{_QUOTE}{_NAMED_WORD}{_QUOTE}[ \t]*,?"
            rf"\s{{0,200}}{_QUOTE}value{_QUOTE}[ \t]*[:=][ \t]*){_VALUE}"
        ),
        # `--token x`, also as a list of words.
        (
            rf"(?P<kept>(?<![\w-])--?[\w-]{{0,40}}{_NAME}[\w-]{{0,40}}"
            rf"(?:{_QUOTE}[ \t]*,\s{{0,200}}|{_QUOTE}\n[ \t]*-[ \t]+|[ \t]+)){_WORD}"
        ),
        # `ENV HF_TOKEN x` of an image, `setenv`; a .netrc.
        (
            rf"(?P<kept>\b(?:env|arg|setenv)[ \t]+\w{{0,80}}{_NAME}\w{{0,80}}[ \t]+)"
            r"(?!\[REDACTED\])\S[^\n]*"
        ),
        rf"(?P<kept>\b(?:machine|login|account|default)[ \t]+\S{{1,256}}\s+password[ \t]+){_WORD}",
        rf"(?P<kept>^[ \t]*password[ \t]+){_WORD}(?=[ \t]*$)",
        # Names that are secret as a whole only: `auth` stands in AuthType, `key` is any key.
        (
            r"(?P<kept>(?<![\w.-])(?:_?auth"
            r"|(?!\w{0,80}(?:public|host|primary|foreign|sort)_key)\w{1,80}_key)"
            rf"{_QUOTE}[ \t]*[:=][ \t]*){_VALUE}"
        ),
        r"(?P<kept>\bcookie[\"']?[ \t]*:[ \t]*)(?!\[REDACTED\])[^\n]+",
        # Signed addresses of S3, Google and Azure.
        r"(?P<kept>[?&](?:x-(?:amz|goog)-)?sig(?:nature)?=)(?!\[REDACTED\])[^\s&\"'<>]+",
        # Command lines whose word has no name.
        (
            r"(?P<kept>\bcurl\b[^\n|;]{0,200}?[ \t](?:-u|--user|--proxy-user)[ \t=]{0,9}"
            rf"[\"']?[^\s:\"']{{0,99}}:){_WORD}"
        ),
        (
            r"(?P<kept>\b(?:mysql|mariadb)(?:-?(?:dump|admin))?[ \t](?:[^\n|;]{0,200}?[ \t])?-p)"
            r"(?!\[REDACTED\])[^\s-]\S*"
        ),
        rf"(?P<kept>\bsshpass[ \t]+-p[ \t]*){_WORD}",
        rf"(?P<kept>\b(?:wandb|hf[ \t]+auth|huggingface-cli)[ \t]+login[ \t]+)(?!-){_WORD}",
    )
)
_EMAIL: Final = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[A-Za-z]{2,24}\b")


class Redactor:
    """Knows what is secret here; counts what it took out."""

    def __init__(self, known: Iterable[str] = (), *, emails: bool = False) -> None:
        """`emails`: whether addresses of people are taken out too."""
        forms = {form for secret in known for form in _forms(secret)}
        # The longest first: a secret may hold another.
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._emails = emails
        self.num_redacted = 0

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._taken(self._known, text)
        for shape in _SHAPES:
            text = self._taken(shape, text)
        text = self._without_ends(text)
        for called in _CALLED:
            text = self._taken(called, text)
        return self._taken(_EMAIL, text) if self._emails else text

    def _taken(self, pattern: re.Pattern[str], text: str) -> str:
        """The text without what matches, but for its group `kept`."""
        replacement = rf"\g<kept>{MARK}" if "kept" in pattern.groupindex else MARK
        text, count = pattern.subn(replacement, text)
        self.num_redacted += count
        return text

    def _without_ends(self, text: str) -> str:
        """The text without keys whose begin is not in it."""
        pieces: list[str] = []
        last = 0
        for end in _KEY_END.finditer(text):
            before = text[max(last, end.start() - _LONGEST_KEY) : end.start()][::-1]
            found = _KEY_BACKWARDS.match(before)
            length = 0 if found is None else found.end()
            pieces += [text[last : end.start() - length], MARK]
            last = end.end()
            self.num_redacted += 1
        return "".join([*pieces, text[last:]])


def _forms(secret: str) -> set[str]:
    """A secret as tools print it: bare, a line alone, in JSON, in an address, in base64."""
    found: set[str] = set()
    for each in {secret, secret.strip(), *secret.splitlines()}:
        bare = each.strip()
        if len(bare) < _SHORTEST or bare.startswith("-----"):
            continue
        data = os.fsencode(bare)
        found |= {bare, quote(data, safe=""), json.dumps(bare)[1:-1]}
        # Of another length before it, base64 shifts: what is in the middle stays the same.
        for offset in range(3):
            coded = base64.b64encode(b"\0" * offset + data).decode()
            start = (0, 2, 3)[offset]
            found.add(coded[start : len(coded) - 4] if len(coded) > 12 else coded.rstrip("="))
    return {form for form in found if len(form) >= _SHORTEST}


INDEX: Final = "INDEX.txt"
_LONGEST: Final = 2_000_000
"""Characters of one part that are kept, the last ones."""


def write_bundle(
    parts: Iterable[Part],
    path: Path,
    *,
    stack: str,
    redactor: Redactor,
    now: datetime,
    say: Callable[[str], None],
) -> tuple[str, bool]:
    """Gather, redact and write; the file appears whole or not at all.

    Returns its list, and whether every part is in it.
    """
    folder = path.name.removesuffix(".gz").removesuffix(".tar")
    lines = [
        f"Support bundle of stack {stack}, {now:%Y-%m-%d %H:%M:%S} UTC.",
        "Nothing was sent anywhere. Read it before you do: secrets are taken out by value and by",
        "shape, but names of your jobs, nodes and files are in it.",
        "",
    ]
    texts: dict[str, bytes] = {}
    is_whole = True
    for part in parts:
        say(part.name)
        about = f"{part.name}: {part.says}"
        try:
            data = texts[part.name] = redactor.text(_cut(gather(part))).encode(errors="replace")
        except NotRunError as error:
            is_whole = False
            lines.append(f"NOT RUN  {about}: {error}")
        else:
            digest = hashlib.sha256(data).hexdigest()
            lines.append(f"{len(data):>9} bytes  {about}  sha256 {digest}")
    index = redactor.text("\n".join(lines) + "\n")
    index += f"redacted: {redactor.num_redacted} places\n"
    texts = {INDEX: index.encode(errors="replace"), **texts}
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, data in texts.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(now.timestamp())
            archive.addfile(entry, io.BytesIO(data))
    if os.path.lexists(path):  # made by another meanwhile
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
    write(path, packed.getvalue(), mode=0o600)
    return index, is_whole


def _cut(text: str) -> str:
    if len(text) <= _LONGEST:
        return text
    # Of a line without its begin nobody can say whether it was called a secret.
    kept = text[-_LONGEST:].partition("\n")[2]
    return f"... {len(text) - len(kept)} characters before this are left out\n{kept}"
