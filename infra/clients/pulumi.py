"""The pulumi CLI, and what a deployed stack says about itself through it: its outputs.

Owns the shape that every job command works from; of an attached cluster its stack file says the
same. Decides no environment: the caller gives it.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from infra.clients.errors import JobsError, StackPausedError
from infra.clients.ssh import ROOT, Endpoint, public_line
from infra.render.sbatch import in_memory, own_code, own_place
from infra.state import CHECKOUT
from stacks.spec import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class StackOutputs:
    """What the job commands need of a stack's outputs; secrets are not among them."""

    stack: str
    login_ip: str
    ssh_port: int
    login_host_key: str
    code_path: str
    code_hash: str
    places: Mapping[str, str]
    """Name -> path: of the stack, as declared; after `as_user` that user's folders in them."""
    jobs: Mapping[str, str]
    """Job name -> the exact shell command that starts it."""
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Mount path -> what the stack declares behind it."""
    keeps_run_configs: bool = False
    """Whether the stack has a bucket for what its runs were configured by."""
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Who submits jobs -> that user's OpenSSH public key lines."""
    user: str = ROOT
    """As whom the login node is entered."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """The places of the stack where `places` are a user's; empty where they are the stack's."""
    attached_key: Path | None = None
    """Private key of the user of an attached cluster; None: the stack is built."""

    @property
    def own_path(self) -> str:
        """Where releases, plans and locks of the user lie, on every node."""
        if self.user == ROOT or self.attached_key is not None:
            return self.code_path
        return own_code(self.stack, self.user)

    def as_user(self, user: str) -> StackOutputs:
        """The same for who works as this user."""
        if user == ROOT:
            return self
        stack = self.shared or self.places
        own = {
            name: path if in_memory(path) else own_place(path, user) for name, path in stack.items()
        }
        return replace(self, user=user, places=own, shared=stack)

    def as_owner_of(self, identity: Path) -> StackOutputs:
        """The same for the user whose private key `identity` is; JobsError where no user has it.

        Of several with the same key it is the first declared; the deployer comes before them.
        """
        if not self.users:
            raise JobsError(
                f"{self.stack}: its outputs name no users, so jobs there still run as root; run "
                f"`pulumi up --stack {self.stack}` once: it makes the users and keeps all files"
            )
        wanted = public_line(identity).split()
        for user, keys in self.users.items():
            if wanted in [key.split()[:2] for key in keys]:
                return self.as_user(user)
        raise JobsError(
            f"{identity}: no user of {self.stack} has this key ({', '.join(self.users)}); "
            "give another with --identity, or declare its public half in login.ssh_public_keys or "
            f"soperator.users and run `pulumi up --stack {self.stack}`"
        )

    def check_job(self, job: str) -> None:
        """Refuses a job that the stack does not declare, with the nearest name."""
        if job not in self.jobs:
            near = get_close_matches(job, self.jobs, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            have = ", ".join(sorted(self.jobs))
            raise JobsError(f"{self.stack}: jobs: {job!r} is not declared{hint} (has: {have})")

    def endpoint(self, identity: Path) -> Endpoint:
        """The login node, opened with the private key `identity`."""
        return Endpoint(
            host=self.login_ip,
            port=self.ssh_port,
            host_key=self.login_host_key,
            identity=identity,
            user=self.user,
            is_built=self.attached_key is None,
        )

    def log_path(self, job_name: str, job_id: str) -> str:
        """Where the job writes standard output and error on the cluster."""
        return f"{self.places['logs']}/{job_name}_{job_id}.log"

    def results_path(self, job_id: str) -> str:
        """Where the job writes its results and run record on the cluster."""
        return f"{self.places['results']}/{job_id}"

    @property
    def before(self) -> StackOutputs:
        """The same with the stack's places, where jobs that ran as root left their files."""
        return replace(self, places=self.shared, shared={}) if self.shared else self


def read_outputs(stack: str, environ: Mapping[str, str]) -> StackOutputs:
    """Outputs of the deployed stack."""
    text = _stack("output", stack, "--json", environ=environ)
    return outputs_from(stack, json.loads(text))


def read_kubeconfig(stack: str, environ: Mapping[str, str]) -> str:
    """The secret output that leads to the stack's Kubernetes API."""
    words = ("kubeconfig", "--show-secrets")
    return _stack("output", stack, *words, environ=environ)


def read_run_config_store(
    outputs: StackOutputs, environ: Mapping[str, str]
) -> dict[str, str] | None:
    """The secret output that opens the bucket of run configs; None: the stack has none."""
    if not outputs.keeps_run_configs:
        return None
    words = ("run_config_store", "--json", "--show-secrets")
    return json.loads(_stack("output", outputs.stack, *words, environ=environ))


def read_first_up(stack: str, environ: Mapping[str, str]) -> datetime | None:
    """When the stack was first brought up, by the engine's history; None where it knows none."""
    try:
        # By default it prints the newest ten.
        every = ("--json", "--page-size", "1000000")
        text = _stack("history", stack, *every, environ=environ)
        ups = [each["startTime"] for each in json.loads(text) if each["kind"] == "update"]
        return min(map(datetime.fromisoformat, ups), default=None)
    except (JobsError, ValueError, KeyError, TypeError):
        return None


def _stack(verb: str, stack: str, *arguments: str, environ: Mapping[str, str]) -> str:
    """What `pulumi stack VERB` prints."""
    words = ["stack", verb, *arguments, "--stack", stack, "--non-interactive"]
    done = run(words, environ=environ)
    if done.returncode != 0:
        raise JobsError(_refusal(stack, done.stderr or done.stdout))
    return done.stdout


def run(
    words: Sequence[str],
    *,
    environ: Mapping[str, str],
    root: Path = CHECKOUT,
    quiet: bool = True,
    timeout_s: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs `pulumi WORDS` in `root`, which holds Pulumi.yaml, with `environ` alone.

    `quiet`: it may ask nothing, and the result has what it printed; else the terminal is its own.
    JobsError where pulumi is not on PATH; TimeoutExpired after `timeout_s`, of a quiet one alone.
    """
    command: list[str] = ["pulumi", *words]
    variables = {**environ, "PULUMI_SKIP_UPDATE_CHECK": "true"}
    try:
        if not quiet:
            with subprocess.Popen(command, cwd=root, env=variables) as engine:
                return subprocess.CompletedProcess(command, _end_of(engine))
        return subprocess.run(
            command,
            cwd=root,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise JobsError(
            'pulumi: not on PATH; run `make setup`, then `eval "$(soperator env)"`'
        ) from error


def _end_of(engine: subprocess.Popen[bytes]) -> int:
    """Exit status of an engine that changes something; Ctrl-C, which it hears too, waits for it.

    subprocess.run kills it after 0.25 s: its lock would stay, and what it makes be in no state.
    """
    try:
        return engine.wait()
    except KeyboardInterrupt:
        if engine.wait() == 0:
            return 0
        raise


def outputs_from(stack: str, values: Mapping[str, Any]) -> StackOutputs:
    """Outputs from the mapping that pulumi prints; every missing name is reported at once."""
    needed = ("login_ip", "ssh_port", "login_host_key", "code_path", "code_hash", "places", "jobs")
    missing = [name for name in needed if values.get(name) in (None, "")]
    if missing == ["code_hash"]:
        raise StackPausedError(
            f"{stack}: is paused: no login node runs, so nobody can enter; what was fetched before "
            f"is here (soperator runs list --stack {stack}, pull ID, logs ID likewise), all else "
            "stays on its filesystems. "
            f"To have it: soperator cluster resume --stack {stack}, pulumi up --stack {stack}, "
            "then this again"
        )
    if missing:
        raise JobsError(
            f"{stack}: outputs {', '.join(missing)} are missing: the stack is paused or not "
            f"fully up; run `pulumi up --stack {stack}`, after `soperator cluster resume --stack "
            f"{stack}` where it is paused"
        )
    return StackOutputs(
        stack=stack,
        login_ip=str(values["login_ip"]),
        ssh_port=int(values["ssh_port"]),
        login_host_key=str(values["login_host_key"]),
        code_path=str(values["code_path"]),
        code_hash=str(values["code_hash"]),
        places=dict(values["places"]),
        jobs=dict(values["jobs"]),
        mounts=dict(values.get("mounts") or {}),
        keeps_run_configs="run_config_store" in values,
        users=dict(values.get("users") or {}),
    )


def attached_outputs(spec: StackSpec) -> StackOutputs:
    """What `pulumi up` would say of a cluster that others run, for the one user who attached it."""
    attached = spec.attached
    assert attached is not None
    names = [each.name for each in (*spec.jobs, *spec.searches)]
    return StackOutputs(
        stack=spec.name,
        login_ip=attached.host,
        ssh_port=attached.port,
        login_host_key=attached.host_key,
        code_path=spec.code_path,
        code_hash="",
        places=dict(spec.storage.places),
        jobs={name: f"soperator submit {name} --stack {spec.name}" for name in names},
        mounts={attached.folder: "the folder of this stack"},
        attached_key=Path(attached.identity).expanduser(),
    ).as_user(attached.user)


def _refusal(stack: str, text: str) -> str:
    """One line for what the pulumi CLI printed."""
    if "incorrect passphrase" in text:
        return (
            f"{stack}: the passphrase does not open this stack's state; give the one it was made "
            "with in PULUMI_CONFIG_PASSPHRASE_FILE or PULUMI_CONFIG_PASSPHRASE"
        )
    if "passphrase must be set" in text:
        return f'{stack}: the state needs its passphrase; run `eval "$(soperator env)"`'
    absent = ("no stack named", "not found", "unable to open bucket")
    if any(words in text for words in absent):
        return f"{stack}: not deployed in this backend; run `pulumi up --stack {stack}`"
    if "does not have output property" in text:
        return f"{stack}: not up, or not to its end; run `pulumi up --stack {stack}`"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    reason = next((line for line in lines if line.startswith("error:")), lines[0] if lines else "?")
    return f"{stack}: pulumi stack output: {reason.removeprefix('error: ')}"
