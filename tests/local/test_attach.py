"""Door two on real daemons: an ordinary user attaches to a Slurm that this project did not set up.

Three disguises of the local cluster: no root and no sudo; no accounting; accounts, QOS and paths of
a site's own, enforced. Every journey goes through the command, as a user types it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import stacks.load
from infra.cli import context
from infra.cli.jobs.shell import client_words
from infra.cli.main import app
from infra.clients.ssh_key import fingerprint
from infra.jobs.ledger import open_ledger
from infra.operate.sessions import ask
from infra.render.login import teams_script
from infra.reports.acceptance.run import STAGES
from infra.state import CHECKOUT
from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec.slurm import AccountSpec, QosSpec
from tests.local.jobs_cluster import JobsCluster, running_cluster
from tests.local.slurm_stand import CLUSTER, running_stand
from tests.local.test_load_job import _LOAD_SETS as LOAD_SETS
from tests.local.test_serve_job import _SETS as SERVE_SETS
from tests.local.test_serve_job import _make_model as make_model
from tests.workloads.conftest import EXCERPT

pytestmark = pytest.mark.local

ANN, UID = "ann", 20011
Type = Callable[..., Result]
SMALL = {
    "prepare-data": ("model=tiny", "data.max_tokens=2048"),
    "finetune": (
        "model=tiny",
        "train.max_steps=2",
        "train.dtype=fp32",
        "train.eval=null",
        "train.sequence_length=2048",
    ),
    "evaluate": (
        "model=tiny",
        "evaluate.num_rows=2",
        "evaluate.num_perplexity_rows=2",
        "evaluate.max_new_tokens=4",
        "evaluate.dtype=fp32",
        "evaluate.cpu_threads=1",
    ),
}
"""Settings of the jobs that attach declares, for a model of two layers."""
SPEND = ("cost", "spend", "-s", "lab", "--format", "json")


@dataclass(frozen=True)
class Site:
    """A cluster of others: its door, its administrator's way in, and a user of it."""

    as_root: Callable[[str], str]
    port: int
    host_key: str
    key: Path
    home: str

    def files(self) -> set[str]:
        """Everything of the user's in the places that users can write to."""
        places = "/home /mnt /tmp /var/tmp /opt /dev/shm"
        return set(self.as_root(f"find {places} -user {ANN} 2>/dev/null || true").splitlines())


def add_user(as_root: Callable[[str], str], key: Path, home: str) -> None:
    """A user as an administrator adds one: a key, a home, no group that may do more.

    The account files of a pod are mounted over the machine's, so no program may exchange them.
    """
    public = Path(f"{key}.pub").read_text().strip()
    as_root(
        f"set -e; echo {ANN}:x:{UID}:{UID}::{home}:/bin/bash >> /etc/passwd; "
        f"echo {ANN}:x:{UID}: >> /etc/group; echo '{ANN}:*:19000:0:99999:7:::' >> /etc/shadow; "
        f"mkdir -p {home}/.ssh; cp /etc/skel/.bashrc {home}/; "
        f"printf '%s\\n' {shlex.quote(public)} > {home}/.ssh/authorized_keys; "
        f"chown -R {ANN}: {home}; chmod -R go= {home}"
    )


def edit(site: Site, file: str, expression: str) -> None:
    """sed in place, for files that cannot be exchanged."""
    site.as_root(f"sed {shlex.quote(expression)} {file} > /root/edited; cat /root/edited > {file}")


def new_key(folder: Path, name: str) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    return folder / name


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobsCluster]:
    identity = new_key(tmp_path_factory.mktemp("attach"), "id")
    public = Path(f"{identity}.pub").read_text().strip()
    with running_cluster(identity.parent, public, identity) as made:
        yield made


@pytest.fixture(scope="module")
def plain(cluster: JobsCluster) -> Iterator[Site]:
    """No accounting, and a user without root and sudo."""
    with cluster.root() as connection:

        def as_root(command: str) -> str:
            done = connection.run(command)
            assert done.ok, done.stderr
            return done.stdout

        site = Site(
            as_root=as_root,
            port=cluster.outputs.ssh_port,
            host_key=cluster.outputs.login_host_key,
            key=new_key(cluster.folder, ANN),
            home=f"/home/{ANN}",
        )
        add_user(as_root, site.key, site.home)
        yield site


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Accounts, QOS and partitions enforced, homes elsewhere, a default account that may not."""
    folder = tmp_path_factory.mktemp("keys")
    key = new_key(folder, ANN)
    local = load_stack("local", environ={KEY_FILE_VARIABLE: f"{key}.pub"})
    teams = replace(
        local.slurm,
        accounts=(
            AccountSpec(name="chem", users=(ANN,)),
            AccountSpec(name="phys", users=(ANN,), qos=("long",)),
        ),
        qos=(QosSpec(name="long", max_jobs_per_user=9),),
    )
    spec = replace(local, slurm=teams)
    with running_stand(tmp_path_factory.mktemp("strict")) as stand:
        values = stand.values(spec)
        stand.apply(values)
        stand.wait_idle("worker-[0-1]")

        def as_root(command: str) -> str:
            done = stand.ssh(command)
            assert done.returncode == 0, done.stderr
            return done.stdout

        host_key = stand.host_key.with_suffix(".pub").read_text()
        site = Site(as_root, stand.ssh_port, host_key, key, f"/mnt/data/homes/{ANN}")
        add_user(as_root, key, site.home)
        as_root(teams_script(spec))
        # Only now: slurmctld 25.11 ends at a QOS that is not there.
        main = values[CLUSTER]["partitionConfiguration"]["partitions"][0]
        main["config"] = "Default=YES MaxTime=02:00:00 State=UP AllowAccounts=phys AllowQos=long"
        stand.apply(values)
        stand.wait(
            lambda: "AllowQos=long" in stand.ssh("scontrol show partition main").stdout,
            main["config"],
        )
        stand.wait_idle("worker-[0-1]")
        yield site


@pytest.fixture
def type_(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Type:
    """Runs `soperator WORDS` with state and stack files of this test alone."""
    folder = tmp_path / "stacks"
    folder.mkdir()
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(stacks.load, "STACKS_DIR", folder)
    monkeypatch.setattr(context, "spec", lambda name: load_stack(name, folder))

    def run(*words: object, code: int = 0) -> Result:
        done = CliRunner().invoke(app, [str(word) for word in words])
        assert done.exit_code == code, f"{words}\n{done.output}\n{done.exception!r}"
        return done

    return run


def attach(site: Site, type_: Type, *words: object, code: int = 0) -> Result:
    """`soperator attach`, with the host key as the site publishes it."""
    key = () if "--key" in words else ("--key", site.key)
    where = ("attach", f"{ANN}@127.0.0.1:{site.port}", "--stack", "lab", *key)
    return type_(*where, "--host-key", fingerprint(site.host_key), *words, code=code)


def declare(tmp_path: Path, key: str, value: str) -> None:
    """Changes one key of the user's part of the stack file, as a person does."""
    path = tmp_path / "stacks" / "Pulumi.lab.yaml"
    own = rf"(?ms)^  soperator-stack:{key}:.*?(?=^  (?:#|soperator-stack:)|\Z)"
    text, num_changed = re.subn(own, f"  soperator-stack:{key}: {value}\n", path.read_text())
    path.write_text(text if num_changed else f"{text}  soperator-stack:{key}: {value}\n")


@pytest.mark.parametrize("name", ["plain", "strict"])
def test_an_ordinary_user_attaches_and_follows_a_first_job_to_its_cost(
    name: str,
    request: pytest.FixtureRequest,
    type_: Type,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    site: Site = request.getfixturevalue(name)
    assert site.as_root(f"su {ANN} -c 'id -u'").strip() != "0"
    assert "no" in site.as_root(f"su {ANN} -c 'sudo -n true 2>/dev/null && echo yes || echo no'")
    before, began_s = site.files(), time.monotonic()
    attach(site, type_)
    price = 'usd_per_node_hour: 3600, source: contract, date: "2026-11-01"'
    declare(tmp_path, "node_prices", f"[{{nodeset: nvidia-l40s, {price}}}]")
    job = type_("submit", "look", "-s", "lab").stdout.strip()
    log = type_("logs", job, "-s", "lab").stdout
    with capsys.disabled():
        print(f"[{name}: attach to the end of a first job {time.monotonic() - began_s:.1f} s]")
    assert "no NVIDIA GPU is seen" in log
    (shown,) = json.loads(type_("status", job, "-s", "lab", "--format", "json").stdout)
    assert (shown["name"], shown["state"], shown["exit_code"]) == ("look", "COMPLETED", 0)
    checks = json.loads(type_("doctor", "-s", "lab", "--format", "json").stdout)
    outcomes = {each["check"]: each["outcome"] for each in checks}
    assert outcomes["Slurm"] == outcomes["SSH key"] == "PASS"
    assert not {"pulumi", "Nebius token"} & outcomes.keys(), "nothing of a cloud is asked"
    folder = Path(type_("pull", job, "-s", "lab").stdout.strip())
    assert json.loads((folder / "run_record.json").read_text())["outcome"] == "PASS"
    (run,) = json.loads(type_("runs", "list", "-s", "lab", "--format", "json").stdout)
    assert (run["job_id"], run["outcome"]) == (job, "PASS")
    deadline_s = time.monotonic() + 60
    while not (spent := json.loads(type_(*SPEND).stdout))["jobs"]:
        assert time.monotonic() < deadline_s, "accounting may be late by seconds, not more"
    (row,) = spent["jobs"]
    assert (row["job_id"], row["user"]) == (job, ANN)
    # At a dollar a second of a node; Slurm tells whole seconds, and the job may have taken none.
    assert float(row["nodes_usd"]) == pytest.approx(3600 * float(row["node_hours"]), abs=0.01)
    assert float(spent["bill_usd"]) == float(row["nodes_usd"])
    made = site.files() - before
    own = f"{site.home}/soperator"
    assert made
    assert [path for path in made if not f"{path}/".startswith(f"{own}/")] == []
    folders = site.as_root(f"find {own} -maxdepth 3 -type d -printf '%m\\n'").split()
    assert set(folders) == {"700"}


def test_the_account_and_the_qos_that_the_site_enforces_are_those_of_the_job(
    strict: Site, type_: Type
) -> None:
    """A job with Slurm's own defaults of this user waits there for ever."""
    sbatch = f"su {ANN} -c 'sbatch --parsable --output=/dev/null --wrap true'"
    waits = strict.as_root(f"cd /tmp; {sbatch}").strip()
    try:
        attach(strict, type_)
        job = type_("submit", "look", "-s", "lab", "--again").stdout.strip()
        type_("logs", job, "-s", "lab")
        shown = strict.as_root(f"scontrol show job {job}")
        assert re.search(r"Account=phys QOS=long", shown), shown
        shown = strict.as_root(f"scontrol show job {waits}")
        assert re.search(r"Account=chem .*JobState=PENDING", shown, re.DOTALL), shown
    finally:
        strict.as_root(f"scancel {waits}")


def test_pipelines_searches_data_and_the_rest_work_without_infrastructure(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    attach(plain, type_)
    look = "module: workloads.look, recipe: look, partition: main, time_limit: '00:05:00'"
    declare(tmp_path, "jobs", f"[{{name: look, {look}}}, {{name: again, {look}, after: look}}]")
    trial = "trials: [{settings: [description=a]}, {settings: [description=b]}]"
    search = f"{{name: trials, job: look, metric: num_cpus, goal: highest, {trial}, at_once: 2}}"
    declare(tmp_path, "searches", f"[{search}]")
    done = type_("submit", "again", "--pipeline", "-s", "lab", "--format", "json")
    first, second = (each["job_id"] for each in json.loads(done.stdout)["submissions"])
    type_("logs", second, "-s", "lab")
    (shown,) = json.loads(type_("status", first, "-s", "lab", "--format", "json").stdout)
    assert shown["state"] == "COMPLETED"
    array = type_("submit", "trials", "-s", "lab").stdout.split()[-1]
    type_("logs", array, "-s", "lab")
    board = type_("runs", "leaderboard", "trials", "-s", "lab").stdout
    assert "description=a" in board
    source = tmp_path / "rows.txt"
    source.write_text("one\n")
    target = type_("data", "push", source, "data", "-s", "lab").stdout.strip()
    assert target == f"{plain.home}/soperator/lab/data/users/{ANN}/rows.txt"
    assert plain.as_root(f"cat {target}") == "one\n"
    page = tmp_path / "report.html"
    type_("report", "-s", "lab", "-o", page)
    assert "login node 127.0.0.1" in page.read_text()
    filesystems = json.loads(
        type_("status", "--filesystems", "-s", "lab", "--format", "json").stdout
    )
    assert filesystems[0]["path"] == f"{plain.home}/soperator/lab"
    assert filesystems[0]["size_bytes"] > 0
    plain.as_root("scontrol update PartitionName=main State=DOWN")
    try:
        waits = type_("submit", "look", "-s", "lab", "--again").stdout.strip()
        type_("cancel", waits, "-s", "lab")
        (shown,) = json.loads(type_("status", waits, "-s", "lab", "--format", "json").stdout)
        assert shown["state"] == "CANCELLED"
    finally:
        plain.as_root("scontrol update PartitionName=main State=UP")


def test_a_job_that_slurm_has_forgotten_is_told_by_its_own_record(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    """Without accounting Slurm knows a job for minutes; its folder then has another id's record."""
    attach(plain, type_)
    job = type_("submit", "look", "-s", "lab", "--again").stdout.strip()
    type_("logs", job, "-s", "lab")
    own = f"{plain.home}/soperator/lab"
    results, logs = (f"{own}/{each}/users/{ANN}" for each in ("results", "logs"))
    gone = "900001"
    plain.as_root(
        f"cp -a {results}/{job} {results}/{gone}; cd {logs}; cp -a look_{job}.log look_{gone}.log"
    )
    said = type_("status", gone, "-s", "lab", "--format", "json")
    (shown,) = json.loads(said.stdout)
    assert (shown["name"], shown["state"], shown["exit_code"]) == ("look", "COMPLETED", 0)
    assert f"job {gone}: Slurm has forgotten it" in said.stderr
    assert "no NVIDIA GPU is seen" in type_("logs", gone, "-s", "lab").stdout
    pulled = type_("pull", gone, "-s", "lab")
    assert (Path(pulled.stdout.strip()) / "run_record.json").is_file()
    assert "has forgotten it: cost not known" in pulled.stderr
    plain.as_root(f"rm {results}/{gone}/run_record.json")
    history = tmp_path / "state" / "runs" / "lab"
    asked = json.loads((history / job / "submission.json").read_text())
    (history / gone).mkdir(exist_ok=True)
    (history / gone / "submission.json").write_text(json.dumps({**asked, "job_id": gone}))
    lost = type_("status", gone, "-s", "lab", code=1)
    assert f"how it ended is not known; its log is {logs}/look_{gone}.log" in lost.stderr
    assert "Slurm knows no such job" in type_("status", "900002", "-s", "lab", code=1).stderr


def test_a_model_is_served_and_loaded_and_a_session_runs_as_the_user(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    attach(plain, type_)
    where = "partition: main, gpus_per_node: 1, cpus_per_task: 1, time_limit: '00:20:00'"
    serve = f"name: serve, module: workloads.serve, recipe: smollm2_135m_serve_cpu, {where}"
    load = f"name: load, module: workloads.load, recipe: smollm2_135m_load_cpu, {where}"
    declare(tmp_path, "jobs", f"[{{{serve}}}, {{{load}}}]")
    declare(tmp_path, "python_env_path", "/opt/soperator/venv")
    make_model(tmp_path / "tiny")
    type_("data", "push", tmp_path / "tiny", "model/tiny", "-s", "lab")
    job = type_("submit", "serve", "-s", "lab", *as_options(SERVE_SETS)).stdout.strip()
    endpoint = f"{plain.home}/soperator/lab/results/users/{ANN}/{job}/endpoint.json"
    wait = f"for i in $(seq 240); do [ ! -s {endpoint} ] || break; sleep 1; done; cat {endpoint}"
    assert json.loads(plain.as_root(wait))["models"] == ["tiny"]
    sets = as_options((*LOAD_SETS, "load.sweep=[1]"))
    measured = type_("runs", "load", job, "-s", "lab", *sets).stdout.split()
    type_("logs", measured[-1], "-s", "lab")
    type_("cancel", job, "-s", "lab")
    outputs = context.caller("lab", None)
    books = open_ledger(context.spec("lab"), tmp_path / "state", lambda _: None)
    asked = ask(books.rates, gpus=1, cpus=1, partition=None, hours=0.1)
    words = client_words(outputs, context.key_of(outputs, None))
    command = asked.srun("bash", "-c", "id -un; echo $SLURM_JOB_PARTITION")
    done = subprocess.run([*words, command], capture_output=True, text=True, check=False)
    assert done.stdout.split() == [ANN, "main"], done.stderr


@pytest.mark.timeout(600)
def test_a_fine_tune_runs_from_its_data_to_a_server_of_what_it_tuned(
    plain: Site, type_: Type, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The jobs that attach writes, in their order, with a model that is small enough."""
    began_s = time.monotonic()
    attach(plain, type_)
    declare(tmp_path, "python_env_path", "/opt/soperator/venv")
    make_model(tmp_path / "tiny")
    type_("data", "push", tmp_path / "tiny", "model/tiny", "-s", "lab")
    type_("data", "push", EXCERPT, "data/bfcl", "-s", "lab")
    sets = [f"{job}:{each}" for job, own in SMALL.items() for each in own]
    words = ("submit", "evaluate", "--pipeline", "-s", "lab", "--format", "json")
    made = json.loads(type_(*words, *as_options(sets)).stdout)["submissions"]
    assert [each["job"] for each in made] == list(SMALL)
    folders = {}
    for each in made:
        type_("logs", each["job_id"], "-s", "lab")
        folders[each["job"]] = type_("pull", each["job_id"], "-s", "lab").stdout.strip()
    records = {
        job: json.loads(Path(folder, "run_record.json").read_text())
        for job, folder in folders.items()
    }
    assert {each["outcome"] for each in records.values()} == {"PASS"}
    assert records["finetune"]["world_size"] == 2
    job = type_("submit", "serve", "-s", "lab", *as_options(SERVE_SETS)).stdout.strip()
    endpoint = f"{plain.home}/soperator/lab/results/users/{ANN}/{job}/endpoint.json"
    wait = f"for i in $(seq 240); do [ ! -s {endpoint} ] || break; sleep 1; done; cat {endpoint}"
    assert json.loads(plain.as_root(wait))["models"] == ["tiny", "tiny-tuned"]
    type_("cancel", job, "-s", "lab")
    with capsys.disabled():
        print(f"[attach to a served fine-tune {time.monotonic() - began_s:.1f} s]")


def as_options(sets: Sequence[str]) -> list[str]:
    return [word for each in sets for word in ("--set", each)]


def test_an_acceptance_runs_with_the_python_environment_of_the_site(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    attach(plain, type_)
    accept = (
        "name: accept, module: workloads.accept, recipe: accept_cpu, partition: main, nodes: 2, "
        "gpus_per_node: 1, cpus_per_task: 1, time_limit: '00:20:00', restarts: 0"
    )
    declare(tmp_path, "jobs", f"[{{{accept}}}]")
    declare(tmp_path, "python_env_path", "/opt/soperator/venv")
    sets = ("accept.soak_s=0", "accept.training.steps=3", "accept.training.warmup=1")
    words = [word for each in sets for word in ("--set", each)]
    folder = tmp_path / "certificate"
    new_key(tmp_path, "signer")
    words += ["--identity", str(plain.key), "--format", "json", "-o", str(folder)]
    done = type_("cluster", "accept", "--profile", "quick", "-s", "lab", *words)
    found = json.loads(done.stdout)
    assert (found["outcome"], tuple(found["stages"])) == ("PASS", STAGES)


def test_a_second_attach_needs_no_host_key_and_keeps_what_was_declared(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    attach(plain, type_)
    declare(tmp_path, "budget", "{usd_per_month: 7}")
    path = tmp_path / "stacks" / "Pulumi.lab.yaml"
    before = path.read_text()
    again = type_("attach", f"{ANN}@127.0.0.1:{plain.port}", "--stack", "lab")
    assert "updated" in again.stdout
    free = re.compile(r"[\d,.]+ GiB free|\([0-9a-f]{16}\)")
    assert free.sub("", path.read_text()) == free.sub("", before)
    other = type_(
        *("attach", f"{ANN}@127.0.0.1:{plain.port}", "--stack", "lab", "--folder", "/home/ann/x"),
        code=1,
    )
    assert "runs of this stack lie in /home/ann/soperator/lab" in other.stderr


def test_the_commands_of_the_page_do_what_it_says(plain: Site, type_: Type, tmp_path: Path) -> None:
    """Each line of the first block in its order; ID is the job of the line before."""
    text = (CHECKOUT / "docs" / "attach.md").read_text(encoding="utf-8")
    lines = re.findall(r"(?m)^soperator (.*?)(?: +#.*)?$", text.split("```")[1])
    door = ["--key", str(plain.key), "--host-key", fingerprint(plain.host_key)]
    job = ""
    for line in lines:
        words = [job if word == "ID" else word for word in shlex.split(line)]
        if words[0] == "attach":
            words = [words[0], f"{ANN}@127.0.0.1:{plain.port}", *words[2:], *door]
        printed = type_(*words).stdout.split()
        job = printed[-1] if words[0] == "submit" else job
    assert [line.split()[0] for line in lines] == [
        "attach", "submit", "logs", "pull", "runs", "cost",
    ]  # fmt: skip


def refusal(site: Site, type_: Type, *words: object) -> str:
    """The one line of an attach that is refused; it writes no stack file."""
    done = attach(site, type_, *words, code=1)
    (line,) = done.stderr.splitlines()
    assert not list(stacks.load.STACKS_DIR.iterdir())
    return line


def test_another_host_key_is_never_taken_silently(plain: Site, type_: Type, tmp_path: Path) -> None:
    where = ("attach", f"{ANN}@127.0.0.1:{plain.port}", "--stack", "lab", "--key", plain.key)
    asked = type_(*where, code=1)
    assert f"--host-key {fingerprint(plain.host_key)}" in asked.stderr, "nobody can confirm it here"
    other = new_key(tmp_path, "other")
    public = Path(f"{other}.pub").read_text()
    for wrong in (fingerprint(public), public.strip()):
        done = type_(*where, "--host-key", wrong, code=1)
        assert "is not the one that --host-key gives, so nothing was sent" in done.stderr
    assert not list(stacks.load.STACKS_DIR.iterdir())
    attach(plain, type_)
    path = tmp_path / "stacks" / "Pulumi.lab.yaml"
    pinned = " ".join(plain.host_key.split()[:2])
    path.write_text(path.read_text().replace(pinned, " ".join(public.split()[:2])))
    done = type_("status", "-s", "lab", code=1)
    assert "the host key is not the one that the stack pins, so nothing was sent" in done.stderr
    assert "pulumi up" not in done.stderr


def test_a_forced_command_a_locked_account_and_a_refused_key_are_told_apart_from_the_rest(
    plain: Site, type_: Type, tmp_path: Path
) -> None:
    keys = f"{plain.home}/.ssh/authorized_keys"
    with ExitStack() as undo:
        plain.as_root(
            f"cp -p {keys} {keys}.kept; sed -i 's/^/command=\"echo only rsync\" /' {keys}"
        )
        undo.callback(plain.as_root, f"mv {keys}.kept {keys}")
        assert "only rsync" in (line := refusal(plain, type_))
        assert "ask the administrators for a login that runs commands" in line
    with ExitStack() as undo:
        edit(plain, "/etc/passwd", f"/^{ANN}:/s,/bin/bash,/usr/sbin/nologin,")
        undo.callback(edit, plain, "/etc/passwd", f"/^{ANN}:/s,/usr/sbin/nologin,/bin/bash,")
        assert "not available" in (line := refusal(plain, type_))
        assert "the account has no shell" in line
    tcsh = plain.as_root("command -v tcsh").strip()
    with ExitStack() as undo:
        edit(plain, "/etc/passwd", f"/^{ANN}:/s,/bin/bash,{tcsh},")
        undo.callback(edit, plain, "/etc/passwd", f"/^{ANN}:/s,{tcsh},/bin/bash,")
        line = refusal(plain, type_)
        assert f"the login shell of {ANN} is {tcsh}, and commands here are of sh" in line
    with ExitStack() as undo:
        edit(plain, "/etc/shadow", f"s/^{ANN}:[*]/{ANN}:!/")
        undo.callback(edit, plain, "/etc/shadow", f"s/^{ANN}:!/{ANN}:*/")
        assert "was refused" in (line := refusal(plain, type_))
        assert "whether the account is locked or has expired" in line
    with ExitStack() as undo:
        plain.as_root(f"mv {keys} {keys}.away")
        undo.callback(plain.as_root, f"mv {keys}.away {keys}")
        assert "was refused" in (line := refusal(plain, type_))
        assert "whether the account is locked or has expired" in line
    assert "no such private key" in refusal(plain, type_, "--key", tmp_path / "none")


def test_a_login_node_without_slurm_python_or_room_is_told_with_what_to_ask_for(
    plain: Site, type_: Type
) -> None:
    """The user's own PATH has all of the node's programs but those."""
    rc, programs = f"{plain.home}/.bashrc", f"{plain.home}/programs"
    with ExitStack() as undo:
        plain.as_root(
            f"cp -p {rc} {rc}.kept; mkdir {programs}; for folder in ${{PATH//:/ }}; do "
            f"ln -s $folder/* {programs}/ 2>/dev/null || true; done; "  # the first of a name stays
            f"echo export PATH={programs} > {rc}"
        )
        undo.callback(plain.as_root, f"mv {rc}.kept {rc}; rm -r {programs}")
        plain.as_root(f"rm {programs}/python3*")
        line = refusal(plain, type_)
        assert "no Python 3.10 or later on PATH (there is no python3)" in line
        slurm = "sinfo sbatch squeue scontrol scancel srun"
        plain.as_root(f"cd {programs}; rm {slurm}")
        assert "Slurm's programs are on PATH in login shells alone" in refusal(plain, type_)
        plain.as_root(f"echo export PATH={programs} > {plain.home}/.bash_profile")
        undo.callback(plain.as_root, f"rm {plain.home}/.bash_profile")
        line = refusal(plain, type_)
        assert "sinfo, sbatch, squeue, scontrol, scancel, srun are not on PATH" in line
    with ExitStack() as undo:
        kept = f"{plain.home}.kept"
        plain.as_root(
            f"set -e; cp -a {plain.home} {kept}; mount -t tmpfs -o size=256k,mode=700 none "
            f"{plain.home}; cp -a {kept}/.ssh {plain.home}/; chown {ANN} {plain.home}; "
            f"head -c 1M /dev/zero > {plain.home}/all 2>/dev/null || true"
        )
        undo.callback(plain.as_root, f"umount {plain.home}; rm -r {kept}")
        line = refusal(plain, type_)
        assert f"{plain.home}: " in line
        assert "No space left on device" in line
        assert "with a quota over 0" in line


@pytest.mark.skipif(
    "btrfs" not in Path("/proc/filesystems").read_text().split(),
    reason="this kernel has no btrfs, the one filesystem whose quotas need no option of it",
)
def test_a_home_whose_quota_is_used_up_is_told_with_its_name(plain: Site, type_: Type) -> None:
    kept, disk = f"{plain.home}.kept", f"{plain.home}.disk"
    with ExitStack() as undo:
        undo.callback(plain.as_root, f"umount {plain.home}; rm -r {kept} {disk}")
        plain.as_root(
            f"set -e; cp -a {plain.home} {kept}; truncate -s 128M {disk}; mkfs.btrfs -q -M {disk}; "
            f"mount -o loop {disk} {plain.home}; cd {plain.home}; btrfs quota enable .; "
            f"btrfs subvolume create own; cp -a {kept}/.ssh {kept}/.bashrc own/; chown {ANN} own; "
            f"sync; btrfs qgroup limit 32K own; cd /; umount {plain.home}; "
            f"mount -o loop,subvol=own {disk} {plain.home}; "
            f"head -c 1M /dev/zero > {plain.home}/all 2> /dev/null || true; sync"
        )
        line = refusal(plain, type_)
        assert f"{plain.home}: " in line
        assert "Disk quota exceeded" in line
        assert "with a quota over 0" in line
