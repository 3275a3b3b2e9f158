"""A Pulumi project whose program makes components of a shipped stack, changed by a test."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.conftest import PUBLIC_KEY
from tests.engine.nebius_project import Emulator, Project


def component_project(folder: Path, emulator: Emulator, program: str) -> Project:
    """A project in the new `folder` that runs `program`; it reads `declared.json` beside it."""
    folder.mkdir()
    project = Project(folder, emulator.port)
    key = folder / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    project.environ["SOPERATOR_SSH_PUBLIC_KEY_FILE"] = str(key)
    (folder / "__main__.py").write_text(program)
    return project


def declare(project: Project, changes: Mapping[str, Any]) -> None:
    """What the program finds in `declared.json` from now on."""
    (project.folder / "declared.json").write_text(json.dumps(dict(changes)))


def lose_the_state(project: Project) -> None:
    """As after the loss of the disk or bucket that held it."""
    for path in (project.folder / ".pulumi").rglob("test.json*"):
        path.unlink()
    project.run("stack", "init", "test")


def ids_in(emulator: Emulator, *kinds: str) -> set[str]:
    """Ids that the cloud has of the kinds whose ids begin so."""
    with sqlite3.connect(f"file:{emulator.folder / 'nebius.sqlite'}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT id FROM resources")
        return {row[0] for row in rows if row[0].startswith(kinds)}
