"""Jobs of the demo: found again, submitted, followed to their end, pulled; one or a chain.

With them what says how far a long step is, and what a killed demo left running; and the pulumi CLI
on a stack: output to a file, short progress, and locks of dead runs removed. The demo has one
server at most: one that a killed run left is used again where it serves what is wanted, and ended
where it does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path

from infra import files
from infra.cli import output
from infra.clients import pulumi, slurm
from infra.clients.errors import JobsError
from infra.clients.slurm import Job
from infra.jobs import follow, recipes, transfer
from infra.jobs.history import Submission, Submitted, find_equivalent, submit_pipeline
from infra.jobs.records import read_object
from infra.jobs.server import job_settings, wait_until_up
from infra.jobs.submit import Submitter
from infra.local import engine
from infra.local.engine import PROJECT
from infra.local.process import MARK
from infra.local.slurm.pod import marker
from infra.state import CHECKOUT
from stacks.errors import UserError
from stacks.schedule import in_order as jobs_in_order
from stacks.spec import StackSpec
from stacks.spec.slurm import LOAD_MODULE, SERVE_MODULE, TRAIN_MODULE, JobSpec

_LAST_LINES = 15
_WAIT_S = 0.5
_PROGRESS_EVERY = 10
_CHANGE = re.compile(r"^ +[-+~]+ *(\d+ \w+)$", re.MULTILINE)


def run(
    arguments: Sequence[str],
    *,
    stack: str,
    environ: Mapping[str, str],
    log: Path,
    say: Callable[[str], None],
) -> str:
    """Runs `pulumi <arguments> --stack S`; its whole output goes to `log`.

    Returns what it did in words, such as `resources: 52 created`.
    """
    release_lock(stack, environ=environ, say=say)
    log.parent.mkdir(parents=True, exist_ok=True)
    command = ["pulumi", *arguments, "--stack", stack, "--yes", "--non-interactive"]
    done = 0
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(
            [*command, "--color=never"],
            cwd=CHECKOUT,
            env=dict(environ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            file.write(line)
            if line.strip():
                output.at(f"pulumi {arguments[0]}: {' '.join(line.split())}")
            if line.rstrip().endswith((" created", " updated", " deleted", "s)")):
                done += 1
                if done % _PROGRESS_EVERY == 0:
                    say(f"pulumi {arguments[0]}: {done} resources")
        code = process.wait()
    if code != 0:
        raise UserError(_failure(arguments[0], code, log))
    return changes(log.read_text(encoding="utf-8"))


def changes(printed: str) -> str:
    """The counts at the end of what pulumi printed; where it changed nothing, that."""
    found = _CHANGE.findall(printed.rpartition("\nResources:\n")[2])
    return f"resources: {', '.join(found)}" if found else "nothing to change"


def release_lock(stack: str, *, environ: Mapping[str, str], say: Callable[[str], None]) -> None:
    """Waits for a pulumi that works on the stack, and removes the lock of one that was killed."""
    backend = Path(environ["PULUMI_BACKEND_URL"].removeprefix("file://"))
    told = False
    while True:
        if engine.clear_dead(backend, stack):
            say("a killed run left the stack locked; unlocked")
            # What it was about to create is found or made anew by its plugin; the engine would warn
            # of it at every run. Of the stack's own resource alone, this asks no cloud. It fails,
            # rightly, where the killed run had made nothing at all.
            target = f"urn:pulumi:{stack}::{PROJECT}::pulumi:pulumi:Stack::{PROJECT}-{stack}"
            forget = ["refresh", "--clear-pending-creates", "--target", target]
            options = ["--yes", "--skip-preview", "--non-interactive", "--stack", stack]
            pulumi.run([*forget, *options], environ=environ)
        pids = engine.holders(backend, stack)
        if not pids:
            return
        if not told:
            say(f"pulumi (pid {pids[0]}) of an earlier run still works on {stack}; waiting for it")
            told = True
        time.sleep(_WAIT_S)


def _failure(verb: str, code: int, log: Path) -> str:
    lines = [line.rstrip() for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    errors = [line.strip() for line in lines if "error:" in line] or lines[-_LAST_LINES:]
    shown = "\n".join(dict.fromkeys(errors[-_LAST_LINES:]))
    return f"pulumi {verb} ended with {code}; its whole output is in {log}\n{shown}"


_LINE_EVERY_S = 5.0
_KEPT_BYTES = 20_000


class Tail:
    """The end of one job's log, as it grows."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name, self._say = name, say
        self._text = b""
        self._shown_at = 0.0

    def add(self, chunk: bytes) -> None:
        """Takes more of the log; shows its last whole line, but no JSON, which is for programs."""
        self._text = (self._text + chunk)[-_KEPT_BYTES:]
        whole = self._text.rpartition(b"\n")[0].decode(errors="replace").splitlines()
        lines = [line for line in whole if line.strip() and line[0] not in " {}[]"]
        if lines and time.monotonic() - self._shown_at >= _LINE_EVERY_S:
            self._shown_at = time.monotonic()
            self._say(f"{self._name}: {lines[-1]}")


@dataclass(slots=True)
class Remark:
    """What came of a stage, in a few words."""

    text: str = ""


@dataclass(slots=True)
class Progress:
    """Prints one line per event, with the seconds since the start; remembers the stages."""

    started_s: float = field(default_factory=time.monotonic)
    stages: list[tuple[str, float, str]] = field(default_factory=list)
    """Name, seconds, remark of every stage that ended."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started_s

    def say(self, text: str) -> None:
        """One line, at once."""
        output.note(f"[{self.elapsed_s:6.1f} s] {text}")
        output.at(text)

    def note(self, name: str, seconds: float, remark: str) -> None:
        """Remembers a stage whose time is known from elsewhere."""
        self.stages.append((name, seconds, remark))

    @contextmanager
    def stage(self, name: str, *, tells_itself: bool = False) -> Iterator[Remark]:
        """Times the block; a stage that is left by an error is not among the stages.

        `tells_itself`: a command of ours runs in it, which is never silent.
        """
        self.say(name)
        started, remark = time.monotonic(), Remark()
        with nullcontext() if tells_itself else output.never_silent(name, self.say):
            yield remark
        self.note(name, time.monotonic() - started, remark.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One job of the demo, ended and pulled."""

    job: Job
    reused: bool
    """Whether an earlier run submitted it."""
    folder: Path


@dataclass(frozen=True, kw_only=True)
class Runner(Submitter):
    """Jobs of one stack, over one connection."""

    spec: StackSpec
    files: Mapping[str, bytes]
    """The code that the cluster runs, path -> content: recipes are read from it."""

    def start(self, job: JobSpec, sets: tuple[str, ...], after: str | None = None) -> Submission:
        """Submits the job, in `alone`."""
        # Nobody declares how many tokens a job reads that does not train: no forecast, no line.
        log = self.log if job.module == TRAIN_MODULE else lambda _line: None
        request = recipes.prepare(replace(self.books(), log=log), job, self.files, sets)
        made = replace(self, log=log).submit(replace(request, after=after)).submission
        waits = f", after job {after}" if after else ""
        self.log(f"{job.name}: submitted as job {made.job_id}{waits}")
        return made

    def finish(self, submission: Submission, *, reused: bool) -> Step:
        """Follows the job to its end and pulls what it left; a failed job is an error."""
        job = self.follow(submission)
        if not job.succeeded:
            raise UserError(self.failure(submission, job))
        return Step(job=job, reused=reused, folder=self.pull(submission))

    def follow(self, submission: Submission) -> Job:
        """The job at its end; a line of its log is shown now and then."""
        job = slurm.find(self.connection, submission.job_id)
        if job.finished:
            return job
        return follow.follow(
            self.connection,
            submission.log_path,
            submission.job_id,
            write=Tail(submission.job, self.log).add,
            on_state=lambda job: self.log(follow.state_line(job)),
        )

    def pull(self, submission: Submission) -> Path:
        """The folder on this machine with what the job left."""
        return transfer.pull(
            self.connection, self.outputs, submission.job, submission.job_id, state=self.state
        )

    def failure(self, submission: Submission, job: Job) -> str:
        """How the job ended, and its last words where it had any."""
        ended = f"{submission.job} (job {job.id}) ended {job.state} with {job.status}"
        try:
            folder = self.pull(submission)
            lines = (folder / "job.log").read_text(errors="replace").splitlines()
        except (JobsError, FileNotFoundError):
            return f"{ended} before it wrote a log; {job.where or 'Slurm gives no reason'}"
        shown = [line for line in lines if not line.startswith('{"schema')][-_LAST_LINES:]
        return "\n".join([f"{ended}; its log is {folder / 'job.log'}, its last lines:", *shown])


def run_chain(runner: Runner, settings: Mapping[str, tuple[str, ...]]) -> dict[str, Step]:
    """Every such job to its end, by name; the first failure ends it. Settings are by job."""
    jobs = in_order(runner.spec)

    def start(job: JobSpec, after: str | None) -> Submitted:
        made = runner.start(job, settings.get(job.name, ()), after)
        return Submitted(submission=made, is_equivalent=False)

    with runner.alone():
        found = find_equivalent(jobs, settings, runner)
        sent = submit_pipeline(jobs, found, runner, start)
    return {
        each.submission.job: runner.finish(each.submission, reused=each.is_equivalent)
        for each in sent
    }


def in_order(spec: StackSpec) -> tuple[JobSpec, ...]:
    """The jobs of the chain, each after those it needs; a circle is refused."""
    return jobs_in_order(spec.name, (job for job in spec.jobs if job.ends))


_WATCHED = ("/", "/home", "/mnt", "/opt", "/run", "/srv", "/var/spool")
"""Folders in which a stack that escaped its namespace would show: declared mounts and daemons."""
_OF_THE_SYSTEM = frozenset({"/run/mount"})
"""What mount(8) makes for itself at its first use on a machine, such as a fresh container."""


def remember(path: Path) -> None:
    """Writes down what the watched folders hold, unless an earlier run that was killed did."""
    if path.exists():
        return
    files.write(path, json.dumps(_listing()))


def find(state: Path, before: Path) -> list[str]:
    """What is left, one line each; empty when nothing is."""
    return [*_processes(state), *_mounts(state), *_files(state, before)]


def _processes(state: Path) -> list[str]:
    """Processes of the embedded cloud and of the emulator of previews, and what works in there."""
    marks = tuple(f"{state / part}/" for part in ("local", "offline"))
    ours = f"{MARK}={state.resolve()}/".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
            where = str((folder / "cwd").readlink())
            started_by_us = ours in (folder / "environ").read_bytes()
        except OSError:
            continue
        in_there = started_by_us or any(mark in f"{command} {where}/" for mark in marks)
        if int(folder.name) != os.getpid() and in_there:
            found.append(f"process {folder.name}: {command[:80].strip()}")
    return found


def _mounts(state: Path) -> list[str]:
    """Mounts of the state folder and roots of its pods, in the namespace of any process."""
    marks = (f"{state}/local/", marker(state / "local" / "slurm"))
    found: dict[str, str] = {}
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            if any(mark in line for mark in marks):
                found.setdefault(line.split()[4], f"mount {line.split()[4]} of {path.parent.name}")
    return sorted(found.values())


def _files(state: Path, before: Path) -> list[str]:
    try:
        known = json.loads(before.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = f"{before} does not say what was there before ({error})"
        return [f"perhaps files: {what}; remove it and look into {', '.join(_WATCHED)}"]
    return [
        f"file {Path(folder) / name}"
        for folder, names in _listing().items()
        for name in sorted(set(names) - set(known.get(folder, [])))
        if not Path(folder, name).is_relative_to(state)
        and str(Path(folder, name)) not in _OF_THE_SYSTEM
    ]


def _listing() -> dict[str, list[str]]:
    return {
        folder: sorted(path.name for path in Path(folder).iterdir())
        for folder in _WATCHED
        if Path(folder).is_dir()
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The jobs of a stack that the demo serves with."""

    tune: JobSpec
    """Its adapter is served."""
    server: JobSpec
    load: JobSpec


def roles(spec: StackSpec) -> Roles:
    """The first job of each kind; a stack without one is refused before anything is made."""
    modules = (TRAIN_MODULE, SERVE_MODULE, LOAD_MODULE)
    found = {module: [job for job in spec.jobs if job.module == module] for module in modules}
    missing = [module for module in modules if not found[module]]
    if missing:
        raise UserError(f"{spec.name}: jobs: the demo needs a job of {' and of '.join(missing)}")
    tune, server, load = (found[module][0] for module in modules)
    return Roles(tune=tune, server=server, load=load)


def serve_and_load(
    runner: Runner, tuned: Step, settings: Mapping[str, tuple[str, ...]]
) -> dict[str, Step]:
    """The ended server and the load test that it answered, by job name; settings are by job."""
    found = roles(runner.spec)
    server, load = found.server, found.load
    # Any free port: the declared one may be a server's that a person runs on this machine.
    own = (f"serve.adapter={_adapter(tuned)}", "serve.port=0")
    sets = (*own, *settings.get(server.name, ()))
    mark = _mark_of(server.name, runner.code_hash, sets)
    _end_another(runner, mark)
    load_settings = settings.get(load.name, ())
    with runner.alone():
        earlier = _earlier(runner, server, load, sets, load_settings)
        if earlier is None:
            files.write(_mark_file(runner.state), json.dumps(mark))
        serving = earlier[0] if earlier is not None else runner.start(server, sets)
    try:
        # One that has ended was measured.
        is_measured = earlier is not None and earlier[1].finished
        job = earlier[1] if earlier and is_measured else _wait_until_healthy(runner, serving)
        loaded = _load(runner, load, (*job_settings(runner.spec, job), *load_settings))
    except BaseException:
        # Ctrl-C too: a server takes its node for hours.
        with contextlib.suppress(JobsError):
            slurm.cancel(runner.connection, [serving.job_id])
        raise
    return {server.name: _end(runner, serving, reused=earlier is not None), load.name: loaded}


def _adapter(tuned: Step) -> str:
    """Where the cluster keeps the adapter that this very fine-tune wrote."""
    adapter = read_object(tuned.folder / "run_record.json").get("artifacts", {}).get("adapter_dir")
    if not adapter:
        raise UserError(
            f"{tuned.job.name} (job {tuned.job.id}): its record in {tuned.folder} names no "
            "adapter_dir; the demo serves a LoRA adapter, so set train.method=lora"
        )
    return str(adapter)


def _end_another(runner: Runner, mark: Mapping[str, object]) -> None:
    """Ends the demo's server of an earlier run that serves something else."""
    left = read_object(_mark_file(runner.state))
    if left in ({}, mark):
        return
    for each in runner.submissions():
        if _mark_of(each.job, each.code_hash, each.sets) == left:
            with contextlib.suppress(JobsError):
                if not slurm.find(runner.connection, each.job_id).finished:
                    runner.log(f"{each.job}: job {each.job_id} of an earlier run serves another")
                    slurm.cancel(runner.connection, [each.job_id])
                    runner.follow(each)
    _mark_file(runner.state).unlink(missing_ok=True)  # it has ended


def _earlier(
    runner: Runner,
    server: JobSpec,
    load: JobSpec,
    sets: tuple[str, ...],
    load_settings: tuple[str, ...],
) -> tuple[Submission, Job] | None:
    """A server of these settings that runs, or that ended after its load test was measured."""
    for each, job in runner.of(server.name, sets):
        if not job.finished:
            runner.log(f"{server.name}: job {each.job_id} of an earlier run is {job.state}")
            return each, job
        measured = runner.of(load.name, (*job_settings(runner.spec, job), *load_settings))
        if any(runner.is_done(loaded) for _, loaded in measured):
            runner.log(f"{server.name}: job {each.job_id} served this and was measured")
            return each, job
    return None


def _load(runner: Runner, load: JobSpec, sets: tuple[str, ...]) -> Step:
    """The load test at its end; one that an earlier run submitted counts."""
    with runner.alone():
        earlier = runner.find(load.name, sets)
        found = earlier or runner.start(load, sets)
    return runner.finish(found, reused=earlier is not None)


def _wait_until_healthy(runner: Runner, serving: Submission) -> Job:
    """The running server once it answers; one that ends before that is an error."""
    connection, number = runner.connection, serving.job_id
    address = wait_until_up(connection, runner.outputs, number, log=runner.log)
    job = slurm.find(connection, number)
    names = " and ".join(address.models)
    runner.log(f"{job.name}: job {number} serves {names} on {job.where}")
    return job


def _end(runner: Runner, serving: Submission, *, reused: bool) -> Step:
    """The server told to stop, at its end and pulled; one that ended badly is an error."""
    if not slurm.find(runner.connection, serving.job_id).finished:
        slurm.cancel(runner.connection, [serving.job_id])
    job = runner.follow(serving)
    folder = runner.pull(serving)
    outcome = read_object(folder / "run_record.json").get("outcome")
    # Slurm calls it cancelled, however well it ended: the record knows.
    if outcome != "PASS":
        raise UserError(f"its record says {outcome}: {runner.failure(serving, job)}")
    _mark_file(runner.state).unlink(missing_ok=True)  # it has ended
    return Step(job=job, reused=reused, folder=folder)


def _mark_file(state: Path) -> Path:
    """Job, code and settings of the demo's server, by which it is told among all submissions."""
    return state / "demo" / "server.json"


def _mark_of(job: str, code_hash: str, sets: Sequence[str]) -> dict[str, object]:
    return {"job": job, "code_hash": code_hash, "sets": [*sets]}
