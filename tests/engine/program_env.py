"""The real program under the real engine, offline: one environment with its own state folder."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from infra.local import offline
from infra.state import CHECKOUT, Cache, State

_OWNED = ("PULUMI_", "NEBIUS_", "SOPERATOR_")
"""Variables of the caller that would choose another backend, cloud or state; the cache stays."""


@dataclass(frozen=True)
class Answer:
    """What `pulumi preview --json` said."""

    status: int
    text: str

    @cached_property
    def document(self) -> dict[str, Any]:
        """The engine's JSON."""
        return json.loads(self.text)

    def messages(self, severity: str) -> list[str]:
        """Every line that the program reported at one severity, without the engine's prefix."""
        return [
            line
            for each in self.document["diagnostics"]
            if each["severity"] == severity
            for line in each["message"].strip("\n").removeprefix(f"{severity}: ").splitlines()
        ]

    def graph(self) -> list[dict[str, str]]:
        """Type, name and parent of every resource; without ids, inputs and versions."""
        states = sorted(
            (step["newState"] for step in self.document["steps"]), key=lambda state: state["urn"]
        )
        return [
            {
                "type": state["type"],
                "name": state["urn"].rpartition("::")[2],
                "parent": _short(state.get("parent", "")),
            }
            for state in states
        ]


class Program:
    """Pulumi in the checkout, in the environment that `soperator env --offline` prints."""

    def __init__(self, root: Path, **environ: str) -> None:
        self.root = root
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_OWNED)}
        ours = {
            **kept,
            "SOPERATOR_STATE": str(root),
            "SOPERATOR_CACHE": str(Cache.from_environ().root),
            "PYTHONPATH": str(CHECKOUT),
            **environ,
        }
        line = f'eval "$({sys.executable} -m infra.cli.main env --offline)"; env -0'
        done = subprocess.run(
            ["bash", "-euc", line], cwd=CHECKOUT, env=ours, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        self.environ = dict(each.split("=", 1) for each in done.stdout.split("\0") if each)

    def preview(self, stack: str, *options: str, **environ: str) -> Answer:
        """`pulumi preview --json` of one stack."""
        done = self("preview", "--stack", stack, "--json", *options, **environ)
        return Answer(done.returncode, done.stdout)

    def __call__(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["pulumi", "--non-interactive", "--color=never", *arguments],
            cwd=CHECKOUT,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            check=False,
        )


@contextmanager
def running_program(root: Path, **environ: str) -> Iterator[Program]:
    """The program with its emulator, for the length of a module; both get the variables."""
    try:
        yield Program(root, **environ)
    finally:
        offline.stop(State(root))


def _short(urn: str) -> str:
    """Own type and name of a URN, without those above it."""
    chain, _, name = urn.rpartition("::")
    return f"{re.split('[$]|::', chain)[-1]} {name}".strip()
