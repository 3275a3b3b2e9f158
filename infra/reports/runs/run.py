"""A run: its record, what was asked for it, what it was made of and cost; lists of runs.

Its files are in `<state>/runs/<stack>/<job id>/` of jobs that were pulled here, and `.shared/`
beside them of those that others pulled. A team sees each other's in the stack's bucket of run
configs, under `records/<cluster>-<job id>/<file>`: publish(...), bring(...).
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from cost.chat.unit_costs import run_cost
from cost.report.layout import picked, small_usd_text
from cost.resources.estimate import Estimate
from cost.run_record import RunRecord, load_run_records
from cost.runs.forecast import recipe_of, with_settings
from cost.runs.ledger import ActualEntry, Entry, LineError, VersionError, actuals, decode, encode
from infra import files
from infra.clients.errors import JobsError
from infra.clients.objects import Place, StorageError
from infra.clients.slurm import Carrier
from infra.jobs import history
from infra.jobs.history import Submission
from infra.jobs.records import LOSS_CURVE, losses, read_object
from infra.render.delivery import git
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec

SHARED: Final = ".shared"
"""Hidden, so that what others ran counts for no price or speed here."""
RECIPE: Final = "recipe.json"
ACTUAL: Final = "actual.json"
ACCOUNTING: Final = "accounting"
_SPEEDS: Final = {
    "train": "train_tokens_per_s",
    "load": "operating_output_tokens_per_s",
}
_ANY_SPEED: Final = "output_tokens_per_s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job that left a run record."""

    name: str
    """Job id; of a run that others pulled `ID@CLUSTER`, as ids start again on a new cluster."""
    folder: Path
    record: RunRecord
    recipe: Mapping[str, Any] | None
    """The recipe with every setting in it; None for a run that kept none."""
    submission: Submission | None
    usd: Decimal | None
    """US dollars of its own nodes; None when not known."""
    usd_from: str | None
    """Where the dollars come from."""
    losses: tuple[tuple[int, float], ...]
    """(train step from 1, loss)."""

    @property
    def stack(self) -> str:
        """The stack that it ran on, for a command to type."""
        return self.record.stack or "STACK"

    @property
    def settings(self) -> Mapping[str, Any]:
        """Dotted key -> value of the recipe; empty without one."""
        return flat(self.recipe or {})

    @property
    def method(self) -> str | None:
        """How it trained, such as lora; None for a job that does not train."""
        found = self.settings.get("train.method")
        return None if found is None else str(found)

    @property
    def tokens_per_s(self) -> Decimal | None:
        """The speed that its kind is known by; None when it measured none."""
        return self.record.metrics.get(_SPEEDS.get(self.record.kind, _ANY_SPEED))

    @property
    def reproduces(self) -> str | None:
        """The run that it was submitted to repeat."""
        return None if self.submission is None else self.submission.reproduces


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys; an empty mapping is a value."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def read_runs(
    state: Path,
    stack: str,
    *,
    rates: Estimate | None,
    entries: Sequence[Entry],
    say: Callable[[str], object],
) -> tuple[Run, ...]:
    """Every run that is known here, oldest first; `say` gets a line for each damaged record.

    `entries`: the ledger's, for what runs cost; `rates`: for those that it has no end of.
    """
    root = state / "runs" / stack
    ended = actuals(entries)
    found: dict[tuple[str, object], Run] = {}
    for folder, is_shared in ((root, False), (root / SHARED, True)):
        records, problems = load_run_records(folder)
        for problem in problems:
            say(f"damaged run record, left out: {problem}")
        for record in records:
            if is_shared and not Path(record.path).parent.name.startswith(f"{record.job_id}-"):
                say(f"damaged run record, left out: {record.path}: job_id: is not of its folder")
                continue
            run = _run(record, is_shared, ended, rates)
            # The same run pulled by us and by others is one run, and ours.
            found.setdefault((record.job_id, record.started_at), run)
    return tuple(sorted(found.values(), key=lambda run: (run.record.started_at, run.name)))


def find_run(runs: Sequence[Run], name: str, stack: str) -> Run:
    """The run of this name; refused with the names there are."""
    named = [run for run in runs if run.name == name]
    if len(named) == 1:
        return named[0]
    same_id = [run.name for run in runs if run.record.job_id == name]
    if same_id:
        raise JobsError(f"run {name!r}: there are several: {', '.join(same_id)}; name one of these")
    have = ", ".join(run.name for run in runs[-12:]) or "none"
    raise JobsError(
        f"run {name!r}: not here (newest: {have}); bring it with soperator pull {name} -s {stack}, "
        f"or those of others with soperator runs list --shared -s {stack}"
    )


def _run(
    record: RunRecord,
    is_shared: bool,
    ended: Mapping[tuple[str, str], ActualEntry],
    rates: Estimate | None,
) -> Run:
    folder = Path(record.path).parent
    submission = history.read_submission(folder / history.SUBMISSION)
    actual = _shared_actual(folder) if is_shared else None
    if actual is None and submission is not None:
        actual = ended.get((submission.cluster, record.job_id))
    usd, usd_from = _cost(record, actual, rates)
    recipe = read_object(folder / RECIPE)
    return Run(
        name=folder.name.replace("-", "@") if is_shared else record.job_id,
        folder=folder,
        record=record,
        recipe=recipe or None,
        submission=submission,
        usd=usd,
        usd_from=usd_from,
        losses=losses(folder),
    )


def cost_text(run: Run) -> str | None:
    """US dollars of the run, with a mark where they are an estimate."""
    if run.usd is None:
        return None
    return small_usd_text(run.usd) if run.usd_from == ACCOUNTING else f"~{small_usd_text(run.usd)}"


def _cost(
    record: RunRecord, actual: ActualEntry | None, rates: Estimate | None
) -> tuple[Decimal | None, str | None]:
    """What accounting says, else the record's hours at the price of the nodes that it names."""
    if actual is not None and actual.nodes_usd is not None:
        return actual.nodes_usd, ACCOUNTING
    if rates is None or record.hardware is None:
        return None, None
    usd = run_cost(rates, record).nodes_usd
    return usd, None if usd is None else "its record's time, whole nodes"


def _shared_actual(folder: Path) -> ActualEntry | None:
    """The line of another ledger that came with the record; a damaged one is as good as none."""
    try:
        entry = decode((folder / ACTUAL).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, LineError, VersionError):
        return None
    return entry if isinstance(entry, ActualEntry) else None


HEADERS: Final = (
    *("RUN", "JOB", "OUTCOME", "MODEL", "METHOD", "TOKENS/S", "USD", "CODE", "REVISION"),
    *("STARTED (UTC)", "REPEATS"),
)
_SHORT: Final = 10
"""Digits of a commit that people tell apart."""


def select(
    runs: Sequence[Run],
    *,
    jobs: Sequence[str] = (),
    kinds: Sequence[str] = (),
    outcomes: Sequence[str] = (),
    model: str | None = None,
    since: datetime | None = None,
    last: int | None = None,
) -> tuple[Run, ...]:
    """The runs that fit, oldest first, or so many of the `last`; None and nothing: any.

    `model`: a part of its name, in any case.
    """
    found = tuple(
        run
        for run in runs
        if (not jobs or run.record.job in jobs)
        and (not kinds or run.record.kind in kinds)
        and (not outcomes or run.record.outcome in outcomes)
        and (model is None or model.casefold() in (run.record.model or "").casefold())
        and (since is None or run.record.started_at >= since)
    )
    return found if last is None else found[-last:]


def rows(runs: Sequence[Run]) -> list[tuple[object, ...]]:
    """A line for each run, under HEADERS."""
    return [
        (
            run.name,
            run.record.job,
            run.record.outcome,
            run.record.model,
            run.method or run.record.kind,
            None if run.tokens_per_s is None else f"{run.tokens_per_s:,.1f}",
            cost_text(run),
            run.record.code_hash,
            None if run.record.git_revision is None else run.record.git_revision[:_SHORT],
            f"{run.record.started_at:%Y-%m-%d %H:%M}",
            run.reproduces,
        )
        for run in runs
    ]


def notes(runs: Sequence[Run]) -> tuple[str, ...]:
    """What the marks in the rows mean."""
    guessed = [run for run in runs if run.usd is not None and run.usd_from != ACCOUNTING]
    if not guessed:
        return ()
    stack = guessed[0].stack
    note = (
        f"~: an estimate, whole nodes for the time of its record; `soperator pull ID -s {stack}` "
        f"and `soperator cost spend --stack {stack}` ask Slurm's accounting, after which the "
        "figure is what it held"
    )
    return (note,)


_PLAIN: Final = """
run=name record.job record.job_id record.kind record.outcome record.reason record.model
record.recipe method tokens_per_s usd usd_from record.code_hash record.git_revision
record.data_hash record.started_at record.duration_s record.hardware.num_nodes
record.hardware.preset record.hardware.device record.world_size reproduces
"""


def plain(run: Run) -> dict[str, object]:
    """The run as plain values, units in the names."""
    return {
        **picked(run, _PLAIN, str),
        "tokens_per_s": None if run.tokens_per_s is None else float(run.tokens_per_s),
        "duration_s": int(run.record.duration_s),
        "metrics": {name: float(value) for name, value in run.record.metrics.items()},
        "settings": dict(run.settings),
    }


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
    own, commit = run.record.code_hash, run.record.git_revision
    if own == code_hash:
        return
    if own is None or commit is None:
        raise JobsError(
            f"run {run.name}: its record names no {'code' if own is None else 'commit'}, "
            f"and this checkout's code is {code_hash}: it cannot be told what it ran; submit its "
            f"job anew: soperator submit {run.record.job} -s {run.stack}"
        )
    said = f"run {run.name}: its code is {own}, this checkout's {code_hash}"
    if git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        raise JobsError(
            f"{said}, and commit {commit} is not in this repository: git fetch origin "
            f"{commit}, or ask who submitted it; without it the run cannot be repeated"
        )
    if git(root, "rev-parse", "HEAD") == commit:
        raise JobsError(
            f"{said} at the same commit {commit[:10]}: files or the stack were changed "
            "and not committed, then or now; git status and pulumi config tell the changes of now"
        )
    folder = shlex.quote(f"../run-{run.record.job_id}")
    raise JobsError(
        f"{said}: git worktree add {folder} {commit}; there make setup "
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


def check_data(run: Run, shell: Carrier) -> str | None:
    """Refuses data that is gone or is other data now; a line where it cannot be told."""
    file, digest = run.record.artifacts.get("data_file"), run.record.data_hash
    if file is None or digest is None:
        if run.record.kind != "train":
            return None
        return f"run {run.name} has no data hash in its record: its data is not checked"
    path = shlex.quote(file)
    result, _ = shell.run_bytes(f"test -r {path} || exit {_GONE_EXIT}; sha256sum -- {path}")
    if result.exit_code == _GONE_EXIT:
        raise JobsError(
            f"run {run.name}: its data {file} is not on the cluster any more: bring it "
            f"with soperator data push -s {run.stack}, or make it again with the job that made it"
        )
    if not result.ok:
        raise JobsError(f"{file}: sha256sum: {result.stderr.strip() or 'no message'}")
    now = result.stdout.split()[0] if result.stdout.split() else ""
    if now != digest:
        raise JobsError(
            f"run {run.name}: {file} is other data now: SHA-256 {now[:16]}..., the run "
            f"read {digest[:16]}...; make the data of then again, or submit a run of its "
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


PREFIX: Final = "records"
_RECORD: Final = "run_record.json"
_PUBLISHED: Final = (RECIPE, LOSS_CURVE, history.SUBMISSION, "load.json")
_BROUGHT: Final = (*_PUBLISHED, ACTUAL, _RECORD)
_TAGS: Final = ".tags.json"
"""File name -> tag of the object that it was brought from; a damaged file is as none."""
_MOST_BYTES: Final = 32 * 2**20
"""A loss curve of 200,000 steps; a larger file stays on the cluster."""
_CLUSTER_DIGITS: Final = 8
_NAME: Final = re.compile(rf"[0-9]+-[0-9a-f]{{{_CLUSTER_DIGITS}}}")
"""Whoever wrote the key: it stays in its folder, and is of `shared_name`."""


def shared_name(cluster: str, job_id: str) -> str:
    """Name of the run's folder; ids start again on a cluster with another host key."""
    return f"{job_id}-{hashlib.sha256(cluster.encode()).hexdigest()[:_CLUSTER_DIGITS]}"


def publish(
    store: Mapping[str, str],
    folder: Path,
    *,
    cluster: str,
    job_id: str,
    actual: ActualEntry | None,
) -> int:
    """Uploads the small files of a pulled run, its record last; the number of files written."""
    if not (folder / _RECORD).is_file():
        return 0
    contents = {
        name: (folder / name).read_bytes()
        for name in _PUBLISHED
        if (folder / name).is_file() and (folder / name).stat().st_size <= _MOST_BYTES
    }
    if actual is not None:
        contents[ACTUAL] = f"{encode(actual)}\n".encode()
    contents[_RECORD] = (folder / _RECORD).read_bytes()
    name, written = shared_name(cluster, job_id), 0
    try:
        for file, content in contents.items():
            place = Place(key=f"{PREFIX}/{name}/{file}", **store)
            if place.read() != content:
                place.write(content)
                written += 1
    except StorageError as error:
        raise JobsError(
            f"job {job_id}: its record is not in the bucket: {error}; pull it again after "
            "`pulumi up`, which renews the key"
        ) from error
    return written


def bring(store: Mapping[str, str], state: Path, stack: str) -> int:
    """Downloads what is not here yet of the runs in the bucket; the number of files that came.

    Only a whole run counts: its record is written last there, and here.
    """
    root = state / "runs" / stack / SHARED
    brought = 0
    try:
        listed = Place(key=f"{PREFIX}/", **store).below()
        for found in sorted(listed, key=lambda each: each.key.endswith(_RECORD)):
            parts = found.key.split("/")
            if len(parts) != 3 or not _NAME.fullmatch(parts[1]) or parts[2] not in _BROUGHT:
                continue
            if found.size_bytes > _MOST_BYTES:
                continue
            folder, name = root / parts[1], parts[2]
            # A record of equal length may be another one: the store's tag tells.
            tags = read_object(folder / _TAGS)
            here = (folder / name).read_bytes() if (folder / name).is_file() else None
            is_whole = here is not None and len(here) == found.size_bytes
            if is_whole and found.etag is not None and tags.get(name) == found.etag:
                continue
            content = Place(key=found.key, **store).read()
            if content is None:
                continue
            if content != here:
                files.write(folder / name, content)
                brought += 1
            files.write(folder / _TAGS, json.dumps({**tags, name: found.etag}))
    except StorageError as error:
        raise JobsError(
            f"{stack}: the runs of others were not brought: {error}; `pulumi up` renews the key"
        ) from error
    except OSError as error:
        raise JobsError(f"{root}: {error.strerror or error}; mend it and ask again") from error
    return brought
