"""What is delivered to the cluster: code and jobs, schedules, the jobs' environment.

The archive's hash `code_hash` is the one identity of code that `pulumi up`, `submit` and run
records share; the environment's name is what its lock file holds, so a second run finds it made.

A recurring job of scrontab keeps one id for ever, so its log and results would be written over each
time: it only submits, and every run is a job of its own. The lines stand in a scrontab between
two marks, with whatever a person wrote left as it is.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import json
import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from infra.render.names import shell_file
from infra.render.sbatch import own_place, render_sbatch, render_search
from infra.render.templates import shell
from stacks.errors import UserError, nearest
from stacks.schedule import pipeline
from stacks.spec import StackSpec
from stacks.spec.cluster import DEPLOYER
from stacks.spec.slurm import RECIPE_ENDINGS, JobSpec

FOLDER: Final = "schedules"
"""Folder of a release with what is below; a release without one schedules nothing."""
SCRONTAB: Final = "scrontab"
MARKS: Final = {
    "folder": FOLDER,
    "begin": "# soperator-stack begin: pulumi up writes these lines, do not edit",
    "end": "# soperator-stack end",
}
"""Of the lines of a scrontab that are ours."""


def placeholders(spec: StackSpec) -> frozenset[str]:
    """Names of the jobs by which Slurm's queue holds the next time of every schedule."""
    return frozenset(_placeholder(job) for job in spec.jobs if job.schedule is not None)


def _placeholder(job: JobSpec) -> str:
    return f"schedule-{job.name}"


def schedule_files(spec: StackSpec) -> dict[str, str]:
    """Path in the release -> text; nothing where no job is scheduled."""
    scheduled = [job for job in spec.jobs if job.schedule is not None]
    if not scheduled:
        return {}
    files = {f"{FOLDER}/{job.name}": schedule_script(spec, job) for job in scheduled}
    # Our lines of the deployer's scrontab, between their marks.
    logs = own_place(spec.storage.places["logs"], DEPLOYER)
    own = {"jobs": scheduled, "placeholder": _placeholder, "logs": logs}
    return {**files, f"{FOLDER}/{SCRONTAB}": shell("scrontab.j2", spec=spec, **own, **MARKS) + "\n"}


def schedule_script(spec: StackSpec, job: JobSpec) -> str:
    """Submits the job with all that it needs, unless its last run is not over."""
    return shell("schedule.sh.j2", spec=spec, job=job, jobs=pipeline(spec, job.name)) + "\n"


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


def git(root: Path, *words: str) -> str | None:
    """What git prints in the checkout; None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


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


PYTHON: Final = "3.11"
"""The Python that requirements-workloads.lock is resolved for (Makefile: LOCK)."""
BOOTSTRAP_LOCK: Final = "bootstrap.lock"
WORKLOADS_LOCK: Final = "requirements-workloads.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSource:
    """Where packages come from; without any value: the index that the login node is set up for."""

    index: str | None = None
    """Address of a package index, or of a mirror, in the place of the default one."""
    extra_index: str | None = None
    """Address of one more index, such as PyTorch's for one CUDA version."""
    wheelhouse: str | None = None
    """Folder of wheels on the cluster; nothing is downloaded then."""

    def __post_init__(self) -> None:
        for option, address in (("--index", self.index), ("--extra-index", self.extra_index)):
            if address is None:
                continue
            # A view of a feed has an @ in its path.
            if "@" in address.partition("//")[2].partition("/")[0]:
                raise UserError(
                    f"{option}: an address with a password in it is seen by everybody in the list "
                    "of processes; put it into ~/.netrc of the login node"
                )
            with contextlib.suppress(ValueError):  # brackets that are not closed, a port of letters
                parts = urlsplit(address)
                if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                    continue
            came = "" if "@" in address else f" {address}"  # a password with a slash stands there
            raise UserError(f"{option}{came}: write https://HOST/PATH")
        if self.wheelhouse is not None:
            if not self.wheelhouse.startswith("/"):
                raise UserError(
                    f"--wheelhouse {self.wheelhouse}: give an absolute path on the cluster; "
                    "`soperator data push -s STACK` brings a folder there"
                )
            if self.index or self.extra_index:
                raise UserError(
                    "--wheelhouse: with it no index is asked; leave --index and --extra-index out"
                )

    def pip_options(self) -> str:
        """Options of pip, which installs uv."""
        return self._options("--index-url", "--extra-index-url")

    def uv_options(self) -> str:
        """Options of uv, which installs the rest."""
        options = self._options("--default-index", "--index")
        # Every file is pinned by its hash, so it does not matter which index has it.
        return f"{options} --index-strategy unsafe-best-match" if self.extra_index else options

    def _options(self, index: str, extra_index: str) -> str:
        if self.wheelhouse is not None:
            return f"--no-index --find-links {shlex.quote(self.wheelhouse)}"
        pairs = ((index, self.index), (extra_index, self.extra_index))
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in pairs if value)


def version_of(lock: bytes) -> str:
    """12 hex digits that change with the lock file and the Python that it is for."""
    return hashlib.sha256(f"python {PYTHON}\n".encode() + lock).hexdigest()[:12]


def venv_script(spec: StackSpec, lock: bytes, source: PackageSource) -> str:
    """Makes `python_env_path` from the lock; stdin: a gzipped tar of it and of uv's own lock.

    Prints `same`, or `made SECONDS MEBIBYTES`; ends with 3 where nothing was tried.
    """
    values = {
        "users": "all" if spec.attached is None else "own",
        "final": spec.python_env_path,
        "version": version_of(lock),
        "python": PYTHON,
        "bootstrap": BOOTSTRAP_LOCK,
        "lock": WORKLOADS_LOCK,
        "code": spec.code_path,
    }
    given = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    # Functions: what is quoted in them stays one word.
    pip = f'with_pip_options() {{ "$@" {source.pip_options()}; }}'
    uv = f'with_uv_options() {{ "$@" {source.uv_options()}; }}'
    return "\n".join([*given, pip, uv, shell_file("roots"), shell_file("venv")])


_LOOPBACK: Final = "127.0.0.1:"
_HASH_DIGITS: Final = 16
# What an account needs that writes objects of one bucket and reads them back: README of the recipe,
# backups, files of 2026-07 to 09.
WRITER_ROLES: Final = ("storage.object-editor",)


def endpoint(domain_name: str) -> str:
    """Address of the S3 API of a bucket's status; the emulator's names its port and has no TLS."""
    if domain_name.startswith(_LOOPBACK):
        return f"http://{domain_name}"
    return f"https://{domain_name}:443"


def store(
    region: str, status: Mapping[str, Any], metadata: Mapping[str, Any], key: Mapping[str, Any]
) -> dict[str, str]:
    """What opens a bucket: its place and an access key, by the names of an S3 client."""
    return {
        "endpoint": endpoint(status["domain_name"]),
        "region": region,
        "bucket": metadata["name"],
        "access_key_id": key["aws_access_key_id"],
        "secret_access_key": key["secret"],
    }


def run_configs(root: Path, spec: StackSpec) -> dict[str, bytes]:
    """Path in the release -> content of what a run of this stack is configured by."""
    files = (recipe_file(root, recipe) for recipe in sorted({job.recipe for job in spec.jobs}))
    found = {f"recipes/{file.name}": file.read_bytes() for file in files if file is not None}
    return {"configs/stack.json": stack_config(spec), **found}


def config_keys(configs: Mapping[str, bytes]) -> dict[str, str]:
    """Path -> key of the object: another content has another key, and the old one stays."""
    keys: dict[str, str] = {}
    for path, content in configs.items():
        stem, dot, ending = path.rpartition(".")
        keys[path] = f"{stem}/{hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]}{dot}{ending}"
    return keys
