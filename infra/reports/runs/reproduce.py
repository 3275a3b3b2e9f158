"""What it takes to run a run again: its job, its settings, its code, its data; or why it cannot be.

Owns the refusals and the settings that turn a job's recipe into the run's. Submits nothing.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cost.runs.recipes import recipe_of, with_settings
from infra.clients.errors import JobsError
from infra.clients.slurm import Shell
from infra.reports.runs.run import Run
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec

_RESUME: Final = "resume"
_NEVER: Final = "never"
_GONE_EXIT: Final = 66


def job_of(run: Run, spec: StackSpec) -> JobSpec:
    """The declared job that the run was of; that of its search, for a trial."""
    searched = {search.name: search.job for search in spec.searches}
    wanted = searched.get(run.record.job or "", run.record.job)
    for job in spec.jobs:
        if job.name == wanted:
            return job
    have = ", ".join(sorted(job.name for job in spec.jobs)) or "none"
    raise JobsError(
        f"run {run.name}: {spec.name} declares no job {run.record.job!r} any more (has: {have}); "
        "declare it again and run pulumi up"
    )


def check_code(run: Run, code_hash: str, root: Path, state: Path) -> None:
    """Refuses unless the checkout `root` holds the very code of the run; says where that is.

    `state`: the state folder, which another checkout must be told to use.
    """
    if run.code_hash == code_hash:
        return
    if run.code_hash is None or run.git_revision is None:
        raise JobsError(
            f"run {run.name}: its record names no {'code' if run.code_hash is None else 'commit'}, "
            f"and this checkout's code is {code_hash}: it cannot be told what it ran; submit its "
            f"job anew: soperator submit {run.record.job} -s {run.stack}"
        )
    said = f"run {run.name}: its code is {run.code_hash}, this checkout's {code_hash}"
    if not _has_commit(root, run.git_revision):
        raise JobsError(
            f"{said}, and commit {run.git_revision} is not in this repository: git fetch origin "
            f"{run.git_revision}, or ask who submitted it; without it the run cannot be repeated"
        )
    if _git(root, "rev-parse", "HEAD") == run.git_revision:
        raise JobsError(
            f"{said} at the same commit {run.git_revision[:10]}: files or the stack were changed "
            "and not committed, then or now; git status and pulumi config tell the changes of now"
        )
    folder = shlex.quote(f"../run-{run.record.job_id}")
    raise JobsError(
        f"{said}: git worktree add {folder} {run.git_revision}; there make setup "
        f"and SOPERATOR_STATE={shlex.quote(str(state))} soperator runs reproduce "
        f"{run.name} -s {run.stack} --sync"
    )


def settings_of(run: Run, job: JobSpec, files: Mapping[str, bytes]) -> tuple[str, ...]:
    """`key=value` of every setting that the job's recipe in `files` has otherwise than the run.

    A run that trains begins anew: what it would resume from may be its own checkpoint.
    """
    if run.recipe is None:
        raise JobsError(
            f"run {run.name}: no recipe.json lies beside its record, so its settings are not "
            f"known: soperator pull {run.record.job_id} -s {run.stack}, or submit "
            f"{run.record.job} with --set"
        )
    base, target = recipe_of(job, files), json.loads(json.dumps(run.recipe))
    if isinstance(target.get("train"), dict):
        target["train"][_RESUME] = _NEVER
    sets = tuple(_changes(base, target, ""))
    if with_settings(base, sets) != target:
        raise JobsError(
            f"run {run.name}: the recipe {job.recipe!r} of this code has keys that the run's had "
            "not, and --set removes none: take the run's own code"
        )
    return sets


def check_data(run: Run, shell: Shell) -> str | None:
    """Refuses data that is gone or is other data now; a line where it cannot be told."""
    if run.data_file is None or run.data_hash is None:
        if run.record.kind != "train":
            return None
        return f"run {run.name} has no data hash in its record: its data is not checked"
    path = shlex.quote(run.data_file)
    result = shell.run(f"test -r {path} || exit {_GONE_EXIT}; sha256sum -- {path}")
    if result.exit_code == _GONE_EXIT:
        raise JobsError(
            f"run {run.name}: its data {run.data_file} is not on the cluster any more: bring it "
            f"with soperator data push -s {run.stack}, or make it again with the job that made it"
        )
    if not result.ok:
        raise JobsError(f"{run.data_file}: sha256sum: {result.stderr.strip() or 'no message'}")
    now = result.stdout.split()[0] if result.stdout.split() else ""
    if now != run.data_hash:
        raise JobsError(
            f"run {run.name}: {run.data_file} is other data now: SHA-256 {now[:16]}..., the run "
            f"read {run.data_hash[:16]}...; make the data of then again, or submit a run of its "
            f"own: soperator submit {run.record.job} -s {run.stack}"
        )
    return None


def _changes(base: Mapping[str, Any], target: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in target.items():
        before = base.get(key)
        if key in base and before == value:
            continue
        if isinstance(value, dict) and isinstance(before, dict) and value:
            yield from _changes(before, value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={_value(value)}"


def _value(value: Any) -> str:
    """The value as a setting is read: JSON, or text that is no JSON."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        json.loads(value)
    except ValueError:
        return value
    return json.dumps(value)


def _has_commit(root: Path, revision: str) -> bool:
    return _git(root, "cat-file", "-e", f"{revision}^{{commit}}") is not None


def _git(root: Path, *words: str) -> str | None:
    """What git prints; None where it fails or is not there."""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
