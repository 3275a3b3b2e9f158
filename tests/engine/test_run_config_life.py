"""Run configs under the real engine: an unchanged `up` uploads nothing; nothing is ever lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.jobs import recipes
from infra.state import Cache
from tests.conftest import PUBLIC_KEY
from tests.engine.nebius_project import (
    CHECKOUT,
    Emulator,
    Project,
    pulumi_binary,
    running_emulator,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
_PROGRAM = """
import json
from dataclasses import replace
from pathlib import Path

import pulumi

from infra.components.buckets import Buckets
from infra.components.buckets import RunConfigs
from stacks.load import load_stack

folder = Path(__file__).parent
declared = json.loads((folder / "declared.json").read_text())
spec = load_stack("h100-prod")
jobs = tuple(replace(spec.jobs[0], name=recipe, recipe=recipe) for recipe in declared["recipes"])
nebius = replace(spec.nebius, project_id="project-e00p")
storage = replace(spec.storage, purge_on_destroy=declared.get("purge", False))
spec = replace(spec, name="test", jobs=jobs, storage=storage, nebius=nebius)
configs = RunConfigs(spec, Buckets(spec).configs, folder)
pulumi.export("keys", configs.keys)
pulumi.export("store", configs.store)
"""
DESTROY = ("destroy", "--yes", "--skip-preview")


class Storage:
    """The objects of the emulated cloud, by bucket id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def inodes(self) -> dict[str, int]:
        """Key -> inode: another one was written anew."""
        found = sorted(self._folder.glob("storagebucket-*/*"))
        return {path.name.replace("%2F", "/"): path.stat().st_ino for path in found}

    def buckets(self) -> list[set[str]]:
        """Keys of each bucket that ever held one; nothing tells which was first."""
        return [
            {each.name for each in folder.iterdir()}
            for folder in self._folder.glob("storagebucket-*")
        ]

    def remove(self, key: str) -> None:
        (path,) = self._folder.glob(f"storagebucket-*/{key.replace('/', '%2F')}")
        path.unlink()


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    folder = tmp_path / "objects"
    command = [sys.executable, "-m", "infra.local.object_storage", "--state", str(folder)]
    command += ["--cloud", str(tmp_path / "emulator")]
    # Else it would read the whole SDK for its descriptors.
    environ = {**os.environ, "SOPERATOR_CACHE": str(Cache.from_environ().root)}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT, env=environ)
    assert server.stdout is not None
    ready = server.stdout.readline()
    monkeypatch.setenv("SOPERATOR_LOCAL_OBJECT_STORAGE", ready.strip().rpartition("//")[2])
    yield Storage(folder)
    server.terminate()
    server.wait(60)
    server.stdout.close()


@pytest.fixture
def emulator(tmp_path: Path, storage: Storage) -> Iterator[Emulator]:
    with running_emulator(tmp_path / "emulator") as emulator:
        yield emulator


@pytest.fixture
def project(tmp_path: Path, emulator: Emulator) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    project = Project(folder, emulator.port)
    key = folder / "key.pub"
    key.write_text(PUBLIC_KEY + "\n")
    project.environ["SOPERATOR_SSH_PUBLIC_KEY_FILE"] = str(key)
    (folder / "__main__.py").write_text(_PROGRAM)
    return project


def declare(project: Project, *recipes: str, **settings: Any) -> None:
    (project.folder / "declared.json").write_text(json.dumps({"recipes": recipes, **settings}))


def write(project: Project, recipe: str, text: str) -> None:
    path = project.folder / "workloads" / "recipes" / f"{recipe}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.mark.feature("S000-73", "S002-66")
def test_a_config_is_uploaded_once_and_every_content_that_it_had_stays(
    project: Project, storage: Storage
) -> None:
    write(project, "lora", '{"lora_rank": 8}')
    write(project, "full", "{}")
    declare(project, "lora", "full")
    project.up()
    first, keys = storage.inodes(), project.outputs()["keys"]
    assert set(first) == set(keys.values())
    assert len(first) == 3
    assert "emulated-secret" not in project.state()

    project.up("--expect-no-changes")
    project.run("refresh", "--yes", "--skip-preview", "--expect-no-changes")
    assert storage.inodes() == first

    write(project, "lora", '{"lora_rank": 16}')
    project.up()
    second, changed = storage.inodes(), project.outputs()["keys"]
    assert changed["recipes/lora.json"] != keys["recipes/lora.json"]
    assert second == {**first, changed["recipes/lora.json"]: second[changed["recipes/lora.json"]]}

    write(project, "lora", '{"lora_rank": 8}')
    project.up()
    assert storage.inodes() == second, "the first content is there already"

    declare(project, "lora")
    project.up()
    assert second.items() <= storage.inodes().items()
    project.run(*DESTROY)
    assert second.items() <= storage.inodes().items()


def test_what_was_deleted_by_hand_is_seen_by_a_refresh_and_comes_back(
    project: Project, storage: Storage
) -> None:
    write(project, "lora", "{}")
    declare(project, "lora")
    project.up()
    key = project.outputs()["keys"]["recipes/lora.json"]
    storage.remove(key)
    project.run("refresh", "--yes", "--skip-preview")
    project.up()
    assert key in storage.inodes()

    # What a submission stores is opened by an output that shows nothing unasked.
    shown = project.run("stack", "output", "store")
    assert "emulated-secret" not in shown
    store = project.outputs()["store"]
    kept = recipes.keep(store, "lora", b"{}")
    assert kept.partition("/")[2] in storage.inodes()


def test_a_new_bucket_after_a_purge_has_every_config_again(
    project: Project, storage: Storage
) -> None:
    write(project, "lora", "{}")
    declare(project, "lora", purge=True)
    project.up()
    project.run(*DESTROY)
    (before,) = storage.buckets()
    project.up()
    assert storage.buckets() == [before, before]
