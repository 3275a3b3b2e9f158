"""Runs the declared acceptance job, over Slurm or by torchrun over SSH; reads its results as one.

`quick` is one submission, `full` one for each stage. All stages are on the nodes of the first: a
certificate is of one set of nodes. Owns this side's copy of acceptance.json, schema version 1
(workloads/accept/acceptance.schema.json publishes it): refuses another schema and results of
different clusters; a stage without a result is NOT RUN.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import IO, Annotated, Any, Final

from infra.clients.errors import JobsError, UnknownJobError
from infra.clients.pulumi import StackOutputs
from infra.clients.slurm import FORGOTTEN, Job
from infra.clients.ssh import Connection
from infra.clients.ssh_key import fingerprint
from infra.jobs import follow
from infra.jobs.history import Submission
from infra.jobs.transfer import pull
from infra.render.names import shell_file
from stacks.errors import UserError
from stacks.files import is_list, is_map, read_bytes
from stacks.spec import StackSpec
from stacks.spec.decode import Decoder, any_text, described, one_of
from stacks.spec.slurm import ACCEPT_MODULE, JobSpec


class AcceptError(JobsError):
    """A result, certificate or comparison that cannot be used; says what to do."""


SCHEMA: Final = "soperator-acceptance"
SCHEMA_VERSION: Final = 1
FILE_NAME: Final = "acceptance.json"
_PUBLISHED: Final = "workloads/accept/acceptance.schema.json"
STAGES: Final = (
    "readiness", "connectivity", "collectives", "compute", "storage", "training", "soak"
)  # fmt: skip
OUTCOMES: Final = ("PASS", "FAIL", "NOT_RUN")
_SAME: Final = ("class", "platform", "preset", "num_nodes", "world_size", "backend")
"""What results of one cluster share."""


def _object(value: object) -> tuple[object, str | None]:
    return value, None if is_map(value) else f"expected a mapping, got {described(value)}"


def _number(value: object) -> tuple[object, str | None]:
    is_flag = isinstance(value, bool)
    if isinstance(value, int | float) and not is_flag and abs(value) <= sys.float_info.max:
        return float(value), None
    return None, f"expected a number, got {described(value)}"


Text = Annotated[str, any_text]
Object = Annotated[Mapping[str, Any], _object]
"""What a job told of itself, in words of its own."""


class Profile(StrEnum):
    """How long an acceptance takes."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One answered question."""

    id: Text
    outcome: Annotated[str, one_of(*OUTCOMES)]
    subject: Text
    nodes: tuple[Text, ...] = ()
    measured: Annotated[float, _number] | None = None
    unit: Text = ""
    limit: Object | None = None
    context: Object = field(default_factory=dict[str, Any])
    reason: Text | None

    @property
    def stage(self) -> str:
        """The stage that asked."""
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One acceptance, of one job or of several."""

    profile: Text
    stages: tuple[Text, ...]
    started_at: Text
    finished_at: Text
    hardware: Object
    versions: Object
    nodes: tuple[Object, ...]
    runs: tuple[Object, ...]
    evidence: tuple[Object, ...] = ()
    """Where each result came from: its SHA-256; cluster, job and submission, or none of them where
    it was given as a file (`attested`)."""
    checks: tuple[Check, ...]
    measurements: Object

    @property
    def certifies(self) -> str:
        """What passing means; of some stages it is only what they ask."""
        left_out = [stage for stage in STAGES if stage not in self.stages]
        if not left_out:
            return str(self.hardware["certifies"])
        return f"only {', '.join(self.stages)}, and no cluster: {', '.join(left_out)} left out."

    @property
    def outcome(self) -> str:
        """FAIL if one check failed, else NOT_RUN if one is missing, else PASS."""
        found = {check.outcome for check in self.checks}
        if "FAIL" in found:
            return "FAIL"
        asked = {check.stage for check in self.checks}
        if "NOT_RUN" in found or set(self.stages) - asked or not found:
            return "NOT_RUN"
        return "PASS"


def read(path: Path) -> Result:
    """The result in a file, attested by whoever gives it; every problem is told with its path."""
    try:
        text = read_bytes(path)
        values = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise AcceptError(f"{path}: cannot be read as a result: {error}") from error
    found = {"job_id": None, "cluster": None, "submission": None, "attested": True}
    sha256 = hashlib.sha256(text).hexdigest()
    return replace(parse(values, str(path)), evidence=({**found, "sha256": sha256},))


@contextmanager
def given(files: Sequence[Path]) -> Iterator[None]:
    """Refuses, by its name, what is found to be wrong in a file of others while it is used."""
    try:
        yield
    except (UserError, OSError):
        raise
    except Exception as error:
        if not files:
            raise
        names, wrong = ", ".join(map(str, files)), f"{type(error).__name__}: {error}"
        raise AcceptError(f"{names}: not in the form of {_PUBLISHED}: {wrong[:200]}") from error


def parse(values: object, name: str) -> Result:
    """The result in plain values; `name` starts every message."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise AcceptError(
            f"{name}: no result of `python -m workloads.accept` (schema is not {SCHEMA!r}); give "
            f"its {FILE_NAME}"
        )
    if values.get("schema_version") != SCHEMA_VERSION:
        raise AcceptError(
            f"{name}: schema_version {values.get('schema_version')!r}, this reads "
            f"{SCHEMA_VERSION}; run the acceptance again, or use the version that wrote it"
        )
    decoder = Decoder(is_json=True)
    checks = values.get("checks")
    for index, check in enumerate(checks if is_list(checks) else ()):
        if is_map(check):
            left_out = [key for key in ("measured", "limit", "reason") if key not in check]
            left_out += [key for key in ("nodes", "unit", "context") if check.get(key) is None]
            decoder.problems += [f"checks[{index}].{key}: missing" for key in left_out]
    run = decoder.value(Object, values.get("run"), "run")
    found = decoder.record(Result, {**values, "runs": [run or {}], "evidence": ()}, "")
    if found is None or decoder.problems:
        raise AcceptError("\n".join(f"{name}: {problem}" for problem in decoder.problems))
    return found


def _names(result: Result) -> list[str]:
    return sorted(str(node["name"]) for node in result.nodes)


def merge(results: Sequence[Result], missing: Mapping[str, str]) -> Result:
    """Results of one cluster as one; `missing` says of each stage without a result why."""
    if not results:
        raise AcceptError(
            "no stage left a result: " + "; ".join(f"{key}: {why}" for key, why in missing.items())
        )
    first = results[0]
    nodes = _names(first)
    for other in results[1:]:
        differ = [
            f"{key} {other.hardware.get(key)!r}, not {first.hardware.get(key)!r}"
            for key in _SAME
            if other.hardware.get(key) != first.hardware.get(key)
        ]
        if _names(other) != nodes:
            differ.append(f"nodes {', '.join(_names(other))}, not {', '.join(nodes)}")
        if differ:
            raise AcceptError(f"the results are of different clusters: {', '.join(differ)}")
    gaps = tuple(
        Check(id=f"{stage}.all", outcome="NOT_RUN", subject="all nodes", reason=why)
        for stage, why in missing.items()
    )
    found = {stage for result in results for stage in result.stages} | set(missing)
    measurements: dict[str, Any] = {}
    for result in results:
        measurements |= result.measurements
    order = {stage: index for index, stage in enumerate(STAGES)}
    checks = [check for result in results for check in result.checks] + list(gaps)
    return Result(
        profile=first.profile,
        stages=tuple(stage for stage in STAGES if stage in found),
        started_at=min(result.started_at for result in results),
        finished_at=max(result.finished_at for result in results),
        runs=tuple(run for result in results for run in result.runs),
        hardware=first.hardware,
        versions=first.versions,
        nodes=first.nodes,
        checks=tuple(sorted(checks, key=lambda check: order.get(check.stage, len(order)))),
        measurements=measurements,
        evidence=tuple(each for result in results for each in result.evidence),
    )


Batches = Mapping[tuple[str, ...], tuple[str, ...]]
"""What is submitted, in order: the stages of each -> its settings."""


def accept_job(spec: StackSpec) -> JobSpec:
    """The stack's acceptance; refused with the line to declare where there is none."""
    for job in spec.jobs:
        if job.is_acceptance:
            return job
    raise AcceptError(
        f"{spec.name}: jobs: no acceptance; declare one, such as {{name: accept, module: "
        f"{ACCEPT_MODULE}, recipe: accept_gpu, nodes: 2, gpus_per_node: 8}}, and run "
        f"`pulumi up --stack {spec.name}`"
    )


def chosen_stages(text: str | None) -> tuple[str, ...]:
    """The stages in `readiness,training`, in their own order; None is all."""
    if text is None:
        return STAGES
    asked = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [each for each in asked if each not in STAGES]
    if unknown or not asked:
        raise AcceptError(
            f"--stages {text}: {', '.join(unknown) or 'nothing'} is no stage (has: "
            f"{', '.join(STAGES)})"
        )
    return tuple(stage for stage in STAGES if stage in asked)


def batches(
    profile: Profile, stages: Sequence[str], sets: Sequence[str], mounts: Sequence[str] = ()
) -> Batches:
    """What is submitted; the given settings come last, so they win.

    `mounts` are the stack's shared ones, of which a recipe knows the named places only.
    """
    groups = [tuple(stages)] if profile is Profile.QUICK else [(stage,) for stage in stages]
    found: dict[tuple[str, ...], tuple[str, ...]] = {}
    for group in groups:
        names = ", ".join(f'"{stage}"' for stage in group)
        own = [f"accept.profile={profile}", f"accept.stages=[{names}]"]
        if mounts and "storage" in group:
            own.append(f"accept.storage.mounts={json.dumps(list(mounts))}")
        found[group] = (*own, *sets)
    return found


def collect(
    connection: Connection,
    outputs: StackOutputs,
    wanted: Batches,
    submit: Callable[[tuple[str, ...], tuple[str, ...]], Submission],
    *,
    state: Path,
    write: Callable[[bytes], None],
    say: Callable[[str], None],
    on_look: Callable[[Job], None] = lambda _job: None,
) -> Result:
    """The results of all batches as one, once each has ended; followed in their order.

    `submit` gets a batch's settings and the nodes that it must have: none for the first, whose
    nodes all others get.
    """
    found: list[Result] = []
    missing: dict[str, str] = {}
    nodes: tuple[str, ...] = ()
    waiting = list(wanted.items())
    while waiting:
        now, waiting = (waiting, []) if nodes else (waiting[:1], waiting[1:])
        submitted: list[tuple[tuple[str, ...], Submission]] = []
        for stages, sets in now:
            try:
                submitted.append((stages, submit(sets, nodes)))
            except JobsError as error:
                if not found:
                    raise
                missing |= dict.fromkeys(stages, f"not submitted: {error}")
        for stages, submission in submitted:
            say(f"{', '.join(stages)}: job {submission.job_id}")
            try:
                ended = follow.follow(
                    connection,
                    submission.log_path,
                    submission.job_id,
                    write=write,
                    on_state=lambda job: say(follow.state_line(job)),
                    on_look=on_look,
                )
            except UnknownJobError:
                # Without accounting Slurm forgets it minutes after its end; its result stays.
                ended = Job(id=submission.job_id, name=submission.job, state=FORGOTTEN)
            result = None
            try:
                folder = pull(connection, outputs, submission.job, submission.job_id, state=state)
                path = folder / FILE_NAME
                result = measured(read(path), submission) if path.exists() else None
            except (JobsError, AcceptError) as error:
                # What the other jobs measured is not lost with what one of them left.
                say(f"job {submission.job_id}: {error}")
            if result is not None:
                found.append(result)
                nodes = nodes or tuple(str(node["name"]) for node in result.nodes)
            missing |= gaps(stages, result, ended, outputs.stack)
    return merge(found, missing)


def measured(result: Result, submission: Submission) -> Result:
    """The result as what this job, which we submitted, left on its cluster."""
    found = {
        **result.evidence[0],
        "job_id": submission.job_id,
        "cluster": fingerprint(submission.cluster),
        "submission": submission.idempotency_key,
        "attested": False,
    }
    return replace(result, evidence=(found,))


def gaps(stages: Sequence[str], result: Result | None, ended: Job, stack: str) -> dict[str, str]:
    """Why stages have no check: their job ended before them."""
    asked = set() if result is None else {check.stage for check in result.checks}
    what = "left no result" if result is None else "ended before it"
    look = f"`soperator logs {ended.id} -s {stack}`"
    status = "" if ended.exit_code is None else f", exit {ended.status}"
    why = f"job {ended.id} {what}: {ended.state}{status}; see {look}"
    return {stage: why for stage in stages if stage not in asked}


DEFAULT_PORT: Final = 29500
"""What torchrun takes by default."""
_CONNECT_S: Final = 15
_END_S: Final = 60.0
"""Longest that the others are waited for when one host has ended badly."""
_KEPT_LINES: Final = 20
# Unpacked aside and renamed, so that it is whole also where hosts share the folder.
_DELIVER: Final = """
set -eu
{own_folder}
own_folder {folder}
mkdir -p {folder}/results {folder}/scratch
cd {folder}
if [ ! -d {code} ]; then
  part=$(mktemp -d code.XXXXXX)
  trap 'rm -rf "$part"' EXIT
  tar -xzm --no-same-owner -C "$part"
  mv -T "$part" {code} 2> /dev/null || true
fi
"""
# Standard input is open as long as somebody waits here; its end is the end of the ranks.
_RUN: Final = """
exec 3<&0
cd {folder}/{code}
{command} < /dev/null 3<&- &
ranks=$!
{{ cat <&3; kill -TERM $ranks; }} > /dev/null 2>&1 &
watch=$!
wait $ranks
status=$?
kill $watch 2> /dev/null
exit $status
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainHosts:
    """Where the ranks run, and what they run."""

    hosts: tuple[str, ...]
    """As `ssh` takes them; the first holds rank 0 and is connected to by the others."""
    python: str
    """With torch; on every host."""
    folder: str
    """For code, scratch files and results; on every host."""
    master_address: str
    """Of the first host, as the others reach it."""
    ssh: tuple[str, ...] = ("ssh",)
    run_id: str
    code: str
    """Name of the folder of this code, with its hash."""
    per_host: int
    port: int
    """Of the first host, where its ranks wait for the others."""
    arguments: tuple[str, ...]
    """Of `python -m workloads.accept`."""
    environment: Mapping[str, str]

    def argv(self, host: str, script: str) -> list[str]:
        """The command line that runs `script` on a host; it asks nobody anything."""
        options = ("BatchMode=yes", f"ConnectTimeout={_CONNECT_S}", "ServerAliveInterval=15")
        return [*self.ssh, *(word for each in options for word in ("-o", each)), "--", host, script]


def run(
    hosts: PlainHosts,
    archive: bytes,
    *,
    write: Callable[[bytes], None],
    say: Callable[[str], None],
) -> bytes:
    """The acceptance.json of a run over all hosts; output of the first goes to `write`."""
    _on_all(hosts, f"{shlex.quote(hosts.python)} -c 'import torch'", "torch")
    _on_all(hosts, delivery(hosts), "code", stdin=archive)
    say(f"{len(hosts.hosts)} hosts have {hosts.folder}/{hosts.code}; starting torchrun")
    said = _run_ranks(hosts, write)
    path = f"{hosts.folder}/results/{hosts.run_id}/{FILE_NAME}"
    done = _ask(hosts, hosts.hosts[0], f"cat {shlex.quote(path)}")
    if done.returncode == 0 and done.stdout:
        return done.stdout
    raise AcceptError(
        f"{hosts.hosts[0]}: no result at {path}: the ranks ended before they had one\n"
        + "\n".join(f"{host}: {line}" for host, lines in said.items() for line in lines)
    )


def delivery(hosts: PlainHosts) -> str:
    """What each host runs to have the code, in a folder that is its user's alone."""
    folder = shlex.quote(hosts.folder)
    text = _DELIVER.format(own_folder=shell_file("own_folder"), folder=folder, code=hosts.code)
    return f"bash -c {shlex.quote(text)}"


def script(hosts: PlainHosts, number: int) -> str:
    """What the host of that number runs: its ranks, which end with their standard input."""
    places = {
        "SOPERATOR_JOB_ID": hosts.run_id,
        "SOPERATOR_PLACE_RESULTS": f"{hosts.folder}/results",
        "SOPERATOR_PLACE_SCRATCH": f"{hosts.folder}/scratch",
    }
    words = ["env", *(f"{name}={value}" for name, value in {**hosts.environment, **places}.items())]
    words += [hosts.python, "-m", "torch.distributed.run", f"--nnodes={len(hosts.hosts)}"]
    words += [f"--nproc-per-node={hosts.per_host}", f"--node-rank={number}"]
    words += [f"--master-addr={hosts.master_address}", f"--master-port={hosts.port}"]
    words += ["-m", "workloads.accept", *hosts.arguments]
    folder, command = shlex.quote(hosts.folder), shlex.join(words)
    return _RUN.format(folder=folder, code=hosts.code, command=command)


def _run_ranks(hosts: PlainHosts, write: Callable[[bytes], None]) -> dict[str, deque[str]]:
    """The last lines of each host, once all have ended; one that ends badly ends the others."""
    said = {host: deque[str](maxlen=_KEPT_LINES) for host in hosts.hosts}
    ended = threading.Event()
    processes: list[subprocess.Popen[bytes]] = []
    readers: list[threading.Thread] = []
    try:
        for number, host in enumerate(hosts.hosts):
            process = subprocess.Popen(
                hosts.argv(host, script(hosts, number)),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            processes.append(process)
            assert process.stdout is not None
            # Other hosts' lines are kept for a failure only.
            show = write if number == 0 else lambda _: None
            reader = threading.Thread(
                target=_read, args=(process, process.stdout, said[host], show, ended), daemon=True
            )
            reader.start()
            readers.append(reader)
        while any(process.poll() is None for process in processes):
            ended.wait()
            ended.clear()
            if any(process.poll() for process in processes):
                break
    finally:
        _end(processes)
    for reader in readers:
        reader.join(_CONNECT_S)
    return said


def _read(
    process: subprocess.Popen[bytes],
    output: IO[bytes],
    said: deque[str],
    write: Callable[[bytes], None],
    ended: threading.Event,
) -> None:
    for line in output:
        said.append(line.decode(errors="replace").rstrip())
        write(line)
    process.wait()
    ended.set()


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Close every host's standard input, which ends its ranks, and wait for that."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _on_all(hosts: PlainHosts, script: str, what: str, stdin: bytes = b"") -> None:
    """Run a script on every host; every host that refuses is told at once."""
    with ThreadPoolExecutor(len(hosts.hosts)) as pool:
        done = list(pool.map(lambda host: _ask(hosts, host, script, stdin), hosts.hosts))
    problems = [
        f"{host}: {what}: {_last_line(each)}"
        for host, each in zip(hosts.hosts, done, strict=True)
        if each.returncode
    ]
    if problems:
        raise AcceptError("\n".join(problems))


def _ask(
    hosts: PlainHosts, host: str, script: str, stdin: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(hosts.argv(host, script), input=stdin, capture_output=True, check=False)


def _last_line(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    said = lines[-1] if lines else f"exit status {done.returncode}"
    if done.returncode == 255:  # ssh's own
        return f"{said}; does `ssh {shlex.quote(str(done.args[-2]))} true` work without a question?"
    return said
