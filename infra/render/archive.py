"""What one release of code holds, and the hash that names it: workloads/, rendered jobs/, configs/.

Owns the list of files and `code_hash`, the one identity of code that `pulumi up`, `submit` and run
records share. Does not send anything: infra/components and infra/jobs/sync.py do.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from infra.render.sbatch import render_sbatch
from infra.render.schedule import schedule_files
from infra.render.search import render_search
from stacks.decode import nearest
from stacks.spec import StackSpec

RECIPE_ENDINGS: Final = (".json", ".yaml", ".yml")
_EXECUTABLE_PREFIX = "jobs/"


def code_files(root: Path, spec: StackSpec) -> dict[str, bytes]:
    """Relative path -> content of everything that one release holds; `root` is the checkout."""
    files = {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted((root / "workloads").rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".pyc"
    }
    if not files:
        raise FileNotFoundError(f"{root / 'workloads'}: no files; run this in a checkout")
    for job in spec.jobs:
        files[f"jobs/{job.name}"] = render_sbatch(spec, job).encode()
    for search in spec.searches:
        files[f"jobs/{search.name}"] = render_search(spec, search).encode()
    files |= {path: text.encode() for path, text in schedule_files(spec).items()}
    files["configs/stack.json"] = stack_config(spec)
    return dict(sorted(files.items()))


def recipe_file(root: Path, recipe: str) -> Path | None:
    """The file of a recipe in the checkout; None where there is none."""
    folder = root / "workloads" / "recipes"
    candidates = (folder / f"{recipe}{ending}" for ending in RECIPE_ENDINGS)
    return next((path for path in candidates if path.is_file()), None)


def recipe_problems(root: Path, spec: StackSpec) -> list[str]:
    """A line for each job whose recipe or module is no file of the checkout."""
    folder = root / "workloads" / "recipes"
    have = tuple(sorted(path.stem for path in folder.iterdir() if path.suffix in RECIPE_ENDINGS))
    problems: list[str] = []
    for index, job in enumerate(spec.jobs):
        path = f"{spec.name}.jobs[{index}]"
        if recipe_file(root, job.recipe) is None:
            problems.append(
                f"{path}.recipe: '{job.recipe}' is no file in workloads/recipes"
                f"{nearest(job.recipe, have)}"
            )
        if not _runs(root, job.module):
            problems.append(
                f"{path}.module: '{job.module}' is nothing in workloads/ that `python -m` runs"
                f"{nearest(job.module, _modules(root))}"
            )
    return problems


def _runs(root: Path, module: str) -> bool:
    path = root.joinpath(*module.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def _modules(root: Path) -> tuple[str, ...]:
    mains = sorted((root / "workloads").glob("*/__main__.py"))
    return tuple(f"workloads.{path.parent.name}" for path in mains)


def hash_files(files: Mapping[str, bytes]) -> str:
    """16 hex digits that change with any path or byte of the files, and with nothing else."""
    digest = hashlib.sha256()
    for path, content in sorted(files.items()):
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(f"{len(path)}:{path}:{len(content)}:".encode())
        digest.update(content)
    return digest.hexdigest()[:16]


def pack(files: Mapping[str, bytes]) -> bytes:
    """The files as a gzipped tar without owners and dates: equal files give equal bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path, content in sorted(files.items()):
            member = tarfile.TarInfo(path)
            member.size = len(content)
            is_program = path.startswith(_EXECUTABLE_PREFIX) or path.endswith(".sh")
            member.mode = 0o755 if is_program else 0o644
            archive.addfile(member, io.BytesIO(content))
    return gzip.compress(raw.getvalue(), mtime=0)


def stack_config(spec: StackSpec) -> bytes:
    """The declared places and jobs, for whoever looks around on the login node."""
    config = {
        "stack": spec.name,
        "places": dict(spec.storage.places),
        "python_env_path": spec.python_env_path,
        "jobs": {
            job.name: {"module": job.module, "recipe": job.recipe, "args": list(job.args)}
            for job in spec.jobs
        },
    }
    return (json.dumps(config, indent=2, sort_keys=True) + "\n").encode()
