"""One sbatch of a declared job, with its idempotency key, plan, run config and prepared data.

Refuses unknown names and stale code. Settings are checked by the workload, whose recipe knows them.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import Any, Final

from cost.runs.forecast import Forecast, UnknownRun
from cost.runs.recipes import recipe_of
from cost.size.plan import Plan, make_plan
from infra.clients import slurm
from infra.clients.errors import JobsError, NotSubmittedError, last_words
from infra.clients.objects import Place, StorageError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import Shell, dependency, refused, sbatch_command
from infra.render.sbatch import RELEASE_VARIABLE
from stacks.errors import visible
from stacks.spec import StackSpec
from stacks.spec.slurm import TRAIN_MODULE, JobSpec

_STALE_EXIT = 75
_NO_OWN_FOLDER_EXIT = 77
_MOST_BYTES = 128 * 1024 - 1
"""sshd gives the command to a shell as one argument: execve(2), MAX_ARG_STRLEN with its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One accepted job and what it was made of."""

    stack: str
    job: str
    job_id: str
    code_hash: str
    sets: tuple[str, ...]
    after: str | None
    """Ids that it was told to wait for, as Slurm takes them: `11` or `11:12`."""
    log_path: str
    submitted_at: str
    """UTC, ISO 8601."""
    cluster: str
    """Host key of the login node: job ids start again at 1 on a cluster that was made anew."""
    reproduces: str | None = None
    """The run that it repeats; None for a run of its own."""
    mark: str | None = None
    """Comment of the job in Slurm, by new_mark(); None: it was submitted without one."""


class AlreadyQueuedError(JobsError):
    """A job of equal inputs runs or waits, whoever submitted it: nothing was submitted."""

    def __init__(self, job: str, job_id: str, mark: str) -> None:
        super().__init__(f"{job}: job {job_id} of the same code and settings runs or waits")
        self.job_id = job_id
        self.mark = mark


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFiles:
    """What one task of an array gets for itself."""

    plan: bytes | None = None
    run_config: str | None = None


def submit(
    shell: Shell,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    sets: Sequence[str] = (),
    after: str | None = None,
    git_revision: str | None = None,
    plan: bytes | None = None,
    run_config: str | None = None,
    nodes: Sequence[str] = (),
    tasks: Mapping[int, TaskFiles] | None = None,
    array: str | None = None,
    reads: Sequence[tuple[str, ...]] = (),
    mark: str | None = None,
    once_from: int | None = None,
) -> Submission:
    """Submits `job` if the cluster runs exactly the code `code_hash`; one round trip.

    `run_config`: bucket and key of what it is configured by; `nodes`: what it must run on;
    `tasks`: the same by number of an array's task, and `array`: which of them; None: all.
    `reads`: groups of paths; one of each must be there, unless it waits for a job that may make it.
    `mark`: its comment; a job of equal inputs with the id `once_from` or a later one, which runs or
    waits, is raised instead.
    """
    check_job(outputs, job)
    own = TaskFiles(plan=plan, run_config=run_config)
    export = environment(outputs, code_hash, git_revision=git_revision, own=own, tasks=tasks)
    every = (own, *(tasks or {}).values())
    installed = dict.fromkeys(each.plan for each in every if each.plan is not None)
    install = ""
    if installed:
        install = f"{install_script(outputs.own_path, tuple(installed))} && "
    sbatch = sbatch_command(
        f"jobs/{job}",
        job_args(sets),
        after=after,
        export=export,
        nodes=nodes,
        array=array,
        comment=mark,
    )
    turn = "" if mark is None else turn_script(outputs.own_path, mark, once_from=once_from)
    needs = refuse_script(reads if after is None else (), outputs.places)
    command = f"{_enter(outputs, code_hash)}{needs}{turn}{install}exec {sbatch}"
    if len(command.encode()) > _MOST_BYTES:
        raise NotSubmittedError(
            f"{job}: {len(every) - 1} tasks make a command of {len(command.encode()):,} bytes, and "
            f"the login node takes {_MOST_BYTES:,}; nothing was submitted: declare two searches "
            "with fewer trials each"
        )
    result = shell.run(command, stdin=b"".join(installed))
    if result.exit_code == _STALE_EXIT:
        raise NotSubmittedError(
            f"{job}: the cluster has code {result.stdout.strip()} live, and {code_hash} of this "
            "checkout is not there in full; "
            f"run `pulumi up --stack {outputs.stack}`, or submit with --sync to send it now"
        )
    if result.exit_code == _NO_OWN_FOLDER_EXIT:
        raise NotSubmittedError(f"{job}: {last_words(result.stderr)}; nothing was submitted")
    if needs and result.exit_code == EXIT:
        raise NotSubmittedError(refusal(job, result.stdout.strip()))
    if mark is not None and result.exit_code == QUEUED_EXIT:
        number, _, comment = result.stdout.strip().partition("|")
        raise AlreadyQueuedError(job, number, comment)
    if mark is not None and result.exit_code == BUSY_EXIT:
        why = why_busy(result.stderr)
        raise NotSubmittedError(f"{job}: {why}; nothing was submitted: try again")
    if not result.ok:
        raise refused(f"{job}: sbatch", result)
    number = slurm.submitted_id(result.stdout)
    return Submission(
        stack=outputs.stack,
        job=job,
        job_id=number,
        code_hash=code_hash,
        sets=tuple(sets),
        after=after,
        log_path=outputs.log_path(job, number),
        submitted_at=datetime.now(UTC).isoformat(timespec="seconds"),
        cluster=outputs.login_host_key,
        mark=mark,
    )


IS_OWN: Final = """
is_own() { [ "$(stat -c %u -- "$1")" = "$(stat -c %u -- "${1%/*}")" ]; } 2> /dev/null
"""
"""Shell function: whether a file is its folder's owner's. Into the places everybody could write
once, so that what lies in one may be a neighbour's, by the name of a job that was to come."""


def _releases(outputs: StackOutputs, code_hash: str) -> list[str]:
    """Where the code may lie: what the user sent with --sync, and what `up` did."""
    paths = dict.fromkeys((outputs.own_path, outputs.code_path))
    return [f"{path}/releases/{code_hash}" for path in paths]


def _enter(outputs: StackOutputs, code_hash: str) -> str:
    """Shell words that enter the release; they exit where it, or the user's log folder, is missing.

    Slurm opens the log as the user before the job's first line, and would say nothing of a folder
    that is not there.
    """
    places = [outputs.places[name] for name in ("logs", "results")] if outputs.shared else []
    return (
        f"for code in {shlex.join(_releases(outputs, code_hash))}; do "
        '[ ! -e "$code.whole" ] || break; done; '
        f'[ -e "$code.whole" ] || {{ readlink {shlex.quote(f"{outputs.code_path}/current")} | '
        f"sed 's|.*/||'; cat > /dev/null; exit {_STALE_EXIT}; }}; "
        + (
            f"for own in {shlex.join(places)}; do "
            '[ -d "$own" ] && [ ! -L "$own" ] && [ -O "$own" ] || { '
            'stat -c "$own is a %F of %U, mode %a, and has to be a folder of $(id -un): root moves '
            'it away (mv -T $own $own.other), then pulumi up makes it" "$own" >&2 || '
            'echo "$own is not there: run pulumi up, or as root: '
            'install -d -m 700 -o $(id -un) $own" >&2; '
            f"cat > /dev/null; exit {_NO_OWN_FOLDER_EXIT}; }}; done; "
            if places
            else ""
        )
        + 'cd "$code" && '
    )


def environment(
    outputs: StackOutputs,
    code_hash: str,
    *,
    git_revision: str | None,
    own: TaskFiles,
    tasks: Mapping[int, TaskFiles] | None = None,
) -> list[str]:
    """Variables that a job is submitted with, NAME=VALUE each."""
    found = [f"{RELEASE_VARIABLE}={code_hash}"]
    found += [f"SOPERATOR_GIT_REVISION={git_revision}"] if git_revision else []
    files = {"": own, **{f"_{number}": each for number, each in (tasks or {}).items()}}
    for suffix, each in files.items():
        if each.run_config:
            found.append(f"{RUN_CONFIG_VARIABLE}{suffix}={each.run_config}")
        if each.plan is not None:
            path = path_on_cluster(outputs.own_path, each.plan)
            found.append(f"{PLAN_VARIABLE}{suffix}={path}")
    return found


def dry_run(
    shell: Shell,
    outputs: StackOutputs,
    job: str,
    *,
    code_hash: str,
    exported: Sequence[str],
    sets: Sequence[str] = (),
    after: str | None = None,
    array: str | None = None,
) -> str:
    """What would be submitted and when Slurm would start it; nothing is queued.

    `exported`: variables of `environment`. `after` is only shown: of a job that is not submitted
    yet it has no id. Code that `submit` refuses is said.
    """
    check_job(outputs, job)
    script = f"jobs/{job}"
    options = [] if after is None else dependency(after)
    options += [] if array is None else [f"--array={array}"]
    options.append(f"--export={','.join(['ALL', *exported])}")
    shown = shlex.join(["sbatch", "--parsable", *options, script, *job_args(sets)])
    asked = sbatch_command(script, job_args(sets), array=array, test_only=True)
    # Of code that is not there the live one is shown.
    folders = shlex.join(_releases(outputs, code_hash))
    result = shell.run(
        f"cd {shlex.quote(outputs.code_path)} && for code in {folders} $(readlink -f current); do "
        f'[ ! -e "$code.whole" ] || break; done; cd "$code" && pwd && cat {script} && {asked}'
    )
    if not result.ok:
        raise refused(f"{job}: sbatch --test-only", result)
    release, _, text = result.stdout.partition("\n")
    stale = ""
    if (deployed := release.rpartition("/")[2]) != code_hash:
        stale = (
            f"# The cluster has code {deployed}, this checkout is {code_hash}: the script below is "
            "the cluster's, and submit refuses without --sync or pulumi up.\n"
        )
    lines = f"# {shown}\n# {result.stderr.strip()}\n{stale}{text}".split("\n")
    return "\n".join(map(visible, lines))


def check_job(outputs: StackOutputs, job: str) -> None:
    """Refuses a job that the stack does not declare, with the nearest name."""
    if job in outputs.jobs:
        return
    near = get_close_matches(job, outputs.jobs, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    have = ", ".join(sorted(outputs.jobs))
    raise JobsError(f"{outputs.stack}: jobs: {job!r} is not declared{hint} (has: {have})")


def job_args(sets: Sequence[str]) -> list[str]:
    """`--set key=value` for each setting; a setting without `=` is refused."""
    wrong = [each for each in sets if "=" not in each or each.startswith("=")]
    if wrong:
        raise JobsError(
            f"--set {' '.join(wrong)}: not key=value; write for example --set train.max_steps=8"
        )
    return [word for each in sets for word in ("--set", each)]


PLAN_VARIABLE = "SOPERATOR_PLAN"
FOLDER = "plans"


def plan_of(
    spec: StackSpec,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    forecast: Forecast | UnknownRun | None = None,
) -> Plan | None:
    """The plan of a job; its recipe is among `files`, path -> content. None: it does not train."""
    if job.module != TRAIN_MODULE:
        return None
    return make_plan(spec, job, recipe_of(job, files, sets), forecast=forecast)


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """What a person reads of the plan at a submission."""
    chosen = plan.chosen
    most = f"at most {chosen.largest_micro_batch} rows a micro batch"
    lines = [f"plan: {chosen.sharding.label} of {plan.shape.name}: {chosen.reason}; {most}"]
    if not chosen.fits:
        lines.append(
            f"plan: {plan.job} does not fit by this plan; lower train.micro_batch_size or "
            f"train.sequence_length, or see: soperator cost size {plan.shape.name} "
            f"--method {plan.training.method} --seq {plan.training.sequence_length}"
        )
    return tuple(lines)


def refuse_unfit(plan: Plan, recipe: Mapping[str, Any]) -> None:
    """Refuses what the trainer refuses on its nodes: a plan that no memory holds.

    A recipe that names its strategy is tried all the same.
    """
    if plan.chosen.fits or recipe.get("train", {}).get("strategy", "auto") != "auto":
        return
    told = plan_lines(plan)[-1].removeprefix("plan: ")
    raise JobsError(f"{told}: {plan.chosen.reason}; nothing was submitted")


def path_on_cluster(code_path: str, content: bytes) -> str:
    """Where the file lies; another plan has another name, so no waiting job loses its own."""
    return f"{code_path}/{FOLDER}/{_name(content)}"


def install_script(code_path: str, contents: Sequence[bytes]) -> str:
    """Shell words that write standard input to these plans' paths, each whole or not at all."""
    folder = shlex.quote(f"{code_path}/{FOLDER}")
    # Short for each plan: a search has hundreds, and all of it is one argument of a shell.
    put = (
        f'put() {{ head -c "$1" > {folder}/"$2".$$ && [ "$(stat -c %s {folder}/"$2".$$)" = "$1" ] '
        f'&& mv -f {folder}/"$2".$$ {folder}/"$2" || {{ rm -f {folder}/"$2".$$; return 1; }}; }}'
    )
    each = "".join(f" && put {len(content)} {_name(content)}" for content in contents)
    return f"{put}; mkdir -p {folder}{each}"


def _name(content: bytes) -> str:
    return f"{hashlib.sha256(content).hexdigest()[:16]}.json"


RUN_CONFIG_VARIABLE: Final = "SOPERATOR_RUN_CONFIG"
_HASH_DIGITS: Final = 16


def config_text(recipe: Mapping[str, Any]) -> bytes:
    """The recipe with its settings as one JSON file, the same for the same values."""
    return (json.dumps(recipe, indent=2, sort_keys=True) + "\n").encode()


def address(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Where `keep` puts it, as `bucket/key`; nothing is asked of the store."""
    place = _place(store, recipe, content)
    return f"{place.bucket}/{place.key}"


def keep(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Uploads unless it is there; returns `bucket/key`. `store`: the output run_config_store."""
    place = _place(store, recipe, content)
    try:
        if place.read() != content:
            place.write(content)
    except StorageError as error:
        raise NotSubmittedError(
            f"the run's config was not stored: {error}; nothing was submitted: run `pulumi up`, "
            "which renews the key, or submit again"
        ) from error
    return f"{place.bucket}/{place.key}"


def _place(store: Mapping[str, str], recipe: str, content: bytes) -> Place:
    digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
    return Place(key=f"runs/{recipe}/{digest}.json", **store)


EXIT: Final = 66
"""sysexits EX_NOINPUT."""
_IMAGE_DATA = "/opt/soperator/data"
_PLACE = "{place:data}"


def prepared_data(
    job: JobSpec, recipe: Mapping[str, Any], outputs: StackOutputs
) -> tuple[str, ...]:
    """Paths of which one has to be there, first the one to bring it to; () where none is known.

    Other absolute paths, and what an image may hold, are not the login node's to see.
    """
    train, root = recipe.get("train"), outputs.places.get("data")
    if job.module != TRAIN_MODULE or job.container is not None or not isinstance(train, dict):
        return ()
    name = train.get("dataset")
    if not isinstance(name, str) or name in ("", "generated") or root is None:
        return ()
    if name.startswith(_PLACE):
        folders = [f"{root}/{name.removeprefix(_PLACE).lstrip('/')}"]
    elif name.startswith(("/", "{")):
        return ()
    else:
        names = dict.fromkeys((name, PurePosixPath(name).name))
        places = dict.fromkeys((root, outputs.before.places["data"], _IMAGE_DATA))
        folders = [f"{place}/{each}" for each in names for place in places]
    # What other tasks read has several names: of them only the folder is asked for.
    chats = train.get("task", "causal_lm") == "causal_lm"
    return tuple(f"{folder}/tokens_train.parquet" if chats else folder for folder in folders)


def refuse_script(reads: Sequence[tuple[str, ...]], places: Mapping[str, str]) -> str:
    """Shell words that print the first path of a group and end with EXIT where none of it is there.

    Bytes must be in it. A login node that does not have the place itself cannot tell. What is sent
    along is read to its end, so that the answer arrives.
    """
    return "".join(_refuse(paths, places["data"]) for paths in dict.fromkeys(reads) if paths)


def _refuse(paths: tuple[str, ...], root: str) -> str:
    tests = [f"[ -d {shlex.quote(root)} ]"]
    tests += [f"[ ! -s {shlex.quote(path)} ]" for path in paths]
    told = f"echo {shlex.quote(paths[0])}"
    return f"if {' && '.join(tests)}; then cat > /dev/null; {told}; exit {EXIT}; fi; "


def refusal(job: str, path: str) -> str:
    """The line for a job whose data is not there."""
    return (
        f"{job}: {path} is not on the cluster, or is empty; prepare it first (soperator submit "
        f"{job} --pipeline -s STACK submits what {job} needs), bring it with soperator data push "
        "-s STACK, or name the job that makes it with --after ID; nothing was submitted"
    )


_PREFIX: Final = "soperator"
_INPUT_DIGITS: Final = 16
_NONCE_BYTES: Final = 6
_LOCK: Final = ".submit.lock"
"""In the user's own folder of code, which all login nodes share."""
_WAIT_S: Final = 60
_DROP: Final = "cat > /dev/null"
"""What is on standard input is read before an end: else the sender takes it for a lost line."""
BUSY_EXIT: Final = 74
QUEUED_EXIT: Final = 76
"""What ends the shell where a job of equal inputs runs or waits: its id and comment are printed."""


def new_mark(
    job: str,
    code_hash: str,
    sets: Sequence[str],
    *,
    array: str | None = None,
    reproduces: str | None = None,
) -> str:
    """The comment of one sbatch of these inputs."""
    inputs = json.dumps([job, code_hash, list(sets), array, reproduces])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:_INPUT_DIGITS]
    return f"{_PREFIX}:{digest}:{secrets.token_hex(_NONCE_BYTES)}"


def lock_script(code_path: str) -> str:
    """Shell words that hold the login node's lock until the shell ends, or end it: BUSY_EXIT."""
    path = f"{code_path}/{_LOCK}"
    said = f"another submission holds {path}, or it cannot be locked"
    return (
        f"{{ mkdir -p -m 700 {shlex.quote(code_path)} && exec 9>>{shlex.quote(path)} && "
        f"flock -w {_WAIT_S} 9; }} || "
        f"{{ {_DROP}; echo {shlex.quote(said)} >&2; exit {BUSY_EXIT}; }}; "
    )


def why_busy(stderr: str) -> str:
    """What the shell said before BUSY_EXIT, in one line: its own words tell what is not there."""
    return "; ".join(line.strip() for line in stderr.splitlines() if line.strip())


def turn_script(code_path: str, mark: str, *, once_from: int | None) -> str:
    """Shell words before sbatch: hold the lock, and end at a job of equal inputs.

    `once_from`: least id of one that is a repeat; None: none is.
    """
    lock = lock_script(code_path)
    if once_from is None:
        return lock
    inputs = f"|{mark.rpartition(':')[0]}:"
    return (
        f"{lock}queued=$(squeue --all --me --noheader --format='%F|%k') || {{ {_DROP}; exit 1; }}; "
        f"same=$(printf '%s\\n' \"$queued\" | grep -F {shlex.quote(inputs)} | "
        f"while IFS='|' read -r id rest; do [ \"$id\" -lt {once_from} ] || "
        '{ echo "$id|$rest"; break; }; done); '
        f'if [ -n "$same" ]; then {_DROP}; echo "$same"; exit {QUEUED_EXIT}; fi; '
    )
