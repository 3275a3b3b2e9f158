"""A declared job made ready here: recipe with settings, forecast, plan, config, data that it reads.

And whether a server takes a load test. Settings are checked by the workload, which knows them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from cost.run_record import RunRecord
from cost.runs.forecast import Forecast, RecipeError, UnknownRun, declared_settings, recipe_of
from cost.runs.runs import run_lines
from cost.runs.searches import SearchCost
from cost.size.plan import Plan, make_plan, saving
from cost.size.shape import LayersError, SizeError
from infra.clients import slurm
from infra.clients.errors import JobsError
from infra.clients.objects import Place, StorageError
from infra.jobs.ledger import JobLedger
from infra.render.delivery import recipe_file
from infra.render.sbatch import RELEASE_VARIABLE
from stacks.schedule import why_ended
from stacks.spec import StackSpec
from stacks.spec.slurm import TRAIN_MODULE, JobSpec

if TYPE_CHECKING:
    from infra.clients.pulumi import StackOutputs


def refuse_wrong(
    root: Path,
    job: JobSpec,
    sets: Sequence[str] = (),
    trials: Sequence[Sequence[str]] | None = None,
) -> None:
    """Refuses what the job would refuse once it holds its nodes; `root` is the checkout.

    `trials`: of a search, each with all of its settings together; every wrong one is told.
    """
    wrong = _problems(root, job, sets, trials)
    if wrong:
        told = wrong if trials is not None else wrong[-1:]
        lines = "\n".join(f"{job.name}: {line}" for line in told)
        raise JobsError(f"{lines}; nothing was submitted")


def search_problems(root: Path, spec: StackSpec) -> list[str]:
    """A line for each declared trial that its job would refuse once it holds its nodes."""
    jobs = {job.name: job for job in spec.jobs}
    problems: list[str] = []
    for index, search in enumerate(spec.searches):
        wrong = _problems(root, jobs[search.job], (), search.settings)
        problems += [f"{spec.name}.searches[{index}]: {line}" for line in wrong]
    return problems


def _problems(
    root: Path, job: JobSpec, sets: Sequence[str], trials: Sequence[Sequence[str]] | None
) -> list[str]:
    """What the workload's own code says, in a process of its own: it is not imported here."""
    settings = [f"--set={each}" for each in (*declared_settings(job), *sets)]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "workloads.recipes", job.recipe, *settings),
            *(["--trials"] if trials is not None else []),
        ],
        cwd=root,
        input=json.dumps(trials),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    return done.stderr.strip().splitlines() or [f"exit {done.returncode}, no message"]


def _read(root: Path, job: JobSpec, sets: Sequence[str] = ()) -> Mapping[str, Any]:
    """The job's recipe in the checkout `root`; RecipeError where it cannot be read."""
    path = recipe_file(root, job.recipe)
    files = {} if path is None else {path.relative_to(root).as_posix(): path.read_bytes()}
    return recipe_of(job, files, sets)


def notice_problems(root: Path, spec: StackSpec, records: Sequence[RunRecord]) -> list[str]:
    """A line for each declared training that a preemptible node would take before it has saved."""
    problems: list[str] = []
    for job in spec.jobs:
        if job.module != TRAIN_MODULE:
            continue
        try:
            recipe = _read(root, job)
            found = saving(spec, job, make_plan(spec, job, recipe), recipe, records)
        except (RecipeError, SizeError):
            continue  # told at a submission: such a run has no plan
        if found is not None and found.refusal is not None:
            problems.append(f"{spec.name}.jobs: {found.refusal}")
    return problems


DEFAULT_CONTEXT_TOKENS: Final = 8192
"""Of a serve recipe without serve.limits.context_tokens: workloads/recipes/serve.py."""
DEFAULT_SPREAD: Final = 4
"""Longest drawn length over the mean where a recipe names none: workloads/recipes/load.py."""


def load_fit_problems(root: Path, spec: StackSpec) -> list[str]:
    """A line for each load test whose longest chat no server of the stack takes."""
    servers: dict[str, int] = {}
    for job, recipe in _recipes(root, spec):
        if job.is_server:
            found = _section(_section(recipe, "serve"), "limits").get("context_tokens")
            servers[job.name] = found if isinstance(found, int) else DEFAULT_CONTEXT_TOKENS
    if not servers:
        return []
    widest = max(servers, key=lambda name: servers[name])
    problems: list[str] = []
    for job, recipe in _recipes(root, spec):
        if not job.is_load_test:
            continue
        prompt, output = _longest_chat(recipe, spec)
        if prompt + output > servers[widest]:
            problems.append(
                f"{spec.name}: jobs.{job.name}.recipe: '{job.recipe}' asks for chats of up to "
                f"{prompt} + {output} tokens, but job '{widest}' takes {servers[widest]} in all; "
                "raise serve.limits.context_tokens of its recipe, or lower the lengths of the load "
                "test (without them: chat.context_tokens and chat.output_tokens)"
            )
    return problems


def _recipes(root: Path, spec: StackSpec) -> Iterator[tuple[JobSpec, Mapping[str, Any]]]:
    """Servers and load tests with their recipes; one that cannot be read is told elsewhere."""
    for job in spec.jobs:
        if job.is_server or job.is_load_test:
            with contextlib.suppress(RecipeError):
                yield job, _read(root, job)


def serve_settings(root: Path, job: JobSpec, sets: Sequence[str]) -> Mapping[str, Any]:
    """The section `serve` of a server's recipe, with the settings of stack and command line."""
    try:
        return _section(_read(root, job, sets), "serve")
    except RecipeError as error:
        raise JobsError(f"{job.name}: {error}") from error


def _longest_chat(recipe: Mapping[str, Any], spec: StackSpec) -> tuple[int, int]:
    load, chat = _section(recipe, "load"), spec.chat
    if _section(load, "prompts").get("rows"):
        prompt = 0  # rows have their own lengths, known where the job runs
    else:
        prompt = _longest(_section(load, "prompt_tokens"), chat.context_tokens)
    answer = max(1, round(chat.output_tokens / chat.turns))
    return prompt, _longest(_section(load, "output_tokens"), answer)


def _longest(lengths: Mapping[str, Any], mean: int) -> int:
    mean = lengths.get("mean") or mean
    most = lengths.get("most") or DEFAULT_SPREAD * mean
    return min(mean, most) if lengths.get("distribution", "fixed") == "fixed" else most


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def plan_lines(plan: Plan) -> tuple[str, ...]:
    """What a person reads of the plan at a submission."""
    chosen = plan.chosen
    most = f"at most {chosen.largest_micro_batch} rows a micro batch"
    layers = plan.shape.layers
    again = (
        f"activations of {plan.training.recomputed_layers(layers)} of {layers} layers recomputed"
    )
    lines = [
        f"plan: {chosen.sharding.label} of {plan.shape.name}, {again}: {chosen.reason}; {most}"
    ]
    if not chosen.fits:
        lines.append(
            f"plan: {plan.job} does not fit by this plan; lower train.micro_batch_size or "
            f"train.sequence_length, or see: soperator cost size {plan.shape.name} "
            f"--method {plan.training.method} --seq {plan.training.sequence_length}"
        )
    return tuple(lines)


_HASH_DIGITS: Final = 16


def config_text(recipe: Mapping[str, Any]) -> bytes:
    """The recipe with its settings as one JSON file, the same for the same values."""
    return (json.dumps(recipe, indent=2, sort_keys=True) + "\n").encode()


def address(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Where `keep` puts it, as `bucket/key`; nothing is asked of the store."""
    digest = hashlib.sha256(content).hexdigest()[:_HASH_DIGITS]
    return f"{store['bucket']}/runs/{recipe}/{digest}.json"


def keep(store: Mapping[str, str], recipe: str, content: bytes) -> str:
    """Uploads unless it is there; returns `bucket/key`. `store`: the output run_config_store."""
    kept = address(store, recipe, content)
    place = Place(key=kept.partition("/")[2], **store)
    try:
        if place.read() != content:
            place.write(content)
    except StorageError as error:
        raise JobsError(
            f"the run's config was not stored: {error}; nothing was submitted: run `pulumi up`, "
            "which renews the key, or submit again"
        ) from error
    return kept


_IMAGE_DATA: Final = "/opt/soperator/data"
_PLACE: Final = "{place:data}"


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


RUN_CONFIG_VARIABLE: Final = "SOPERATOR_RUN_CONFIG"
PLAN_VARIABLE: Final = "SOPERATOR_PLAN"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """A declared job with its settings, accepted here."""

    job: JobSpec
    run: Forecast | UnknownRun
    plan: Plan | None
    """None: it does not train, or cannot be planned."""
    recipe: Mapping[str, Any]
    """With the settings in it; empty: it cannot be read here."""

    @property
    def config(self) -> bytes | None:
        """What the run is configured by; None: its recipe cannot be read here."""
        return config_text(self.recipe) if self.recipe else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One sbatch as it is to be made: of a job, or of a search's array."""

    name: str
    sets: tuple[str, ...]
    run: Forecast | UnknownRun
    """Of all tasks together."""
    tasks: Mapping[int | None, PreparedJob]
    """By number; the one of a job that is no array has None."""
    array: str | None = None
    needs: tuple[str, ...] = ()
    """Jobs whose results it reads."""
    search: SearchCost | None = None
    """What the trials of a search cost; None for a single job."""
    after: str | None = None
    """Ids of the jobs whose success it waits for, as Slurm takes them: `11` or `11:12`."""
    nodes: Sequence[str] = ()
    """What it must run on; none: what Slurm chooses."""
    reproduces: str | None = None
    """The run that it repeats."""


def prepare(
    ledger: JobLedger, job: JobSpec, code: Mapping[str, bytes], sets: Sequence[str] = ()
) -> Request:
    """The job with its forecast and plan, both logged; `code`: the checkout's files by path.

    Refuses a job of a stack that has ended, one that no memory holds, as its trainer would, and on
    preemptible nodes one that could not save in time.
    """
    over = why_ended(ledger.spec, datetime.now(UTC))
    if over is not None:
        raise JobsError(f"{over}; nothing was submitted")
    run = ledger.forecast(job, sets)
    for line in run_lines(run):
        ledger.log(line)
    recipe: Mapping[str, Any] = {}
    plan = None
    try:
        recipe = recipe_of(job, code, sets)
        if job.module == TRAIN_MODULE:
            plan = make_plan(ledger.spec, job, recipe, forecast=run)
    except LayersError as error:
        raise JobsError(f"{error}; nothing was submitted") from error
    except (SizeError, RecipeError) as error:
        # The job itself refuses a wrong recipe, with the key that is wrong.
        for line in str(error).splitlines() if job.module == TRAIN_MODULE else ():
            ledger.log(f"no plan: {line}")
    if plan is not None:
        lines = plan_lines(plan)
        for line in lines:
            ledger.log(line)
        # A recipe that names its strategy is tried all the same.
        if not plan.chosen.fits and recipe.get("train", {}).get("strategy", "auto") == "auto":
            told = lines[-1].removeprefix("plan: ")
            raise JobsError(f"{told}: {plan.chosen.reason}; nothing was submitted")
        save = saving(ledger.spec, job, plan, recipe, ledger.records)
        if save is not None and save.refusal is not None:
            raise JobsError(f"{save.refusal}; nothing was submitted")
        if save is not None:
            ledger.log(str(save))
    made = PreparedJob(job=job, run=run, plan=plan, recipe=recipe)
    return Request(name=job.name, sets=tuple(sets), run=run, tasks={None: made}, needs=job.after)


def plan_name(content: bytes) -> str:
    """Another plan has another name, so no waiting job loses its own."""
    return f"{hashlib.sha256(content).hexdigest()[:16]}.json"


def sbatch(
    request: Request,
    outputs: StackOutputs,
    code_hash: str,
    git_revision: str | None,
    store: Mapping[str, str] | None,
    log: Callable[[str], object] | None,
    **options: Any,
) -> str:
    """The command that submits it, with its variables; None for `log` stores no config.

    `options`: others of `slurm.sbatch_command`.
    """
    found = [f"{RELEASE_VARIABLE}={code_hash}"]
    found += [f"SOPERATOR_GIT_REVISION={git_revision}"] if git_revision else []
    for number, each in request.tasks.items():
        suffix = "" if number is None else f"_{number}"
        if store is not None and each.config is not None:
            put = address if log is None else keep
            kept = put(store, each.job.recipe, each.config)
            if log is not None and number is None:
                log(f"config: {kept}")
            found.append(f"{RUN_CONFIG_VARIABLE}{suffix}={kept}")
        if each.plan is not None:
            path = f"{outputs.own_path}/plans/{plan_name(each.plan.to_bytes())}"
            found.append(f"{PLAN_VARIABLE}{suffix}={path}")
    return slurm.sbatch_command(
        f"jobs/{request.name}",
        job_args(request.sets),
        after=request.after,
        nodes=request.nodes,
        array=request.array,
        export=found,
        **options,
    )


def job_args(sets: Sequence[str]) -> list[str]:
    """`--set key=value` for each setting; a setting without `=` is refused."""
    wrong = [each for each in sets if "=" not in each or each.startswith("=")]
    if wrong:
        raise JobsError(
            f"--set {' '.join(wrong)}: not key=value; write for example --set train.max_steps=8"
        )
    return [word for each in sets for word in ("--set", each)]
