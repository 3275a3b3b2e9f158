"""Parts of a bundle that this machine has: versions, stack file, findings, state, logs.

Owns which files and commands. Nothing here needs the cloud but doctor and preview, which say so.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from infra.cli.context import DEFAULT_STACK
from infra.local.state import CHECKOUT, State
from infra.support.part import NotRunError, Part, output_of
from stacks.load import STACKS_DIR

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
        return output_of(command, root=CHECKOUT, environ=environ, timeout_s=timeout_s)

    def own(*words: str) -> str:
        return ran(sys.executable, "-m", "infra.cli.main", *words)

    def stack_says(*words: str) -> str:
        return succeeded(ran("pulumi", "stack", *words, "--stack", stack, *_PLAIN))

    parts = [
        _part(
            "versions.txt", "programs and packages", lambda: versions() + ran("pulumi", "version")
        ),
        _part("revision.txt", "commit of the checkout", lambda: ran("git", "log", "-1", "--stat")),
        _part("changes.txt", "files changed since", lambda: ran("git", "status", "--short")),
        _part("stack.yaml", "stack file without secrets", lambda: stack_file(stack)),
        _part("doctor.txt", "tools, rules, project", lambda: own("doctor", "--stack", stack)),
        _part("cost.txt", "bill", lambda: own("cost", "--stack", stack)),
        _part("outputs.json", "outputs", lambda: stack_says("output", "--json")),
        _part("resources.json", "resources by URN and id", lambda: resources(stack_says("export"))),
        _part("history.txt", "updates of the stack", lambda: stack_says("history")),
        _part("runs.txt", "newest submissions and records", lambda: runs(state.runs(stack))),
        _part("demo_logs.txt", "ends of the demo's output", lambda: tails(state.root / "demo")),
    ]
    if stack == DEFAULT_STACK:
        parts += [
            _part("local.txt", "parts of the embedded cloud", lambda: own("local", "status")),
            _part("local_logs.txt", "ends of its logs", lambda: tails(state.local)),
        ]
    if preview:
        parts.append(
            Part(
                name="preview.txt",
                says="what `pulumi up` would do",
                gather=lambda: ran(
                    "pulumi", "preview", "--stack", stack, *_PLAIN, timeout_s=_PREVIEW_S
                ),
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


def _part(name: str, says: str, gather: Any) -> Part:
    return Part(name=name, says=says, gather=gather)
