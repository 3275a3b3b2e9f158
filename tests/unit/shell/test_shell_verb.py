"""`soperator shell` and `runs tensorboard` at the door: price first, and nothing left held."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner, Result

from infra.cli.jobs.shell import login_options
from infra.cli.main import app
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Endpoint
from infra.clients.ssh import Result as Ran
from infra.operate.sessions import ssh_config
from tests.unit.jobs.test_submit import OUTPUTS
from tests.unit.jobs.test_team import Clock
from tests.unit.shell.login import Login

RUNNER = CliRunner()
FREE = "srun: Job 12 to start at 2026-11-21T08:00:00 using 1 processors on nodes worker-0\n"
HELD = "12|12|root||main|PENDING|N/A|N/A|8|gpu:1||1|1:30:00|JobHeldUser|shell\n"
"""The session's job as squeue shows it."""
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJIySg local login"


@pytest.fixture
def login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> Iterator[Login]:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    made = Login(tmp_path)
    made.program("scancel", f'echo "$@" >> {tmp_path}/cancelled')
    made.answer("--format=%A", "12\n")
    made.answer("sacct", "--\n", "Slurm accounting storage is disabled\n", 0)
    made.answer("squeue", HELD)
    made.answers.insert(0, ("srun", _ran("2026-11-21T08:00:00\n0\n", FREE)))

    def read(stack: str, *_: object) -> StackOutputs:
        return replace(OUTPUTS, login_host_key=KEY)

    monkeypatch.setattr("infra.jobs.ledger.datetime", Clock)
    monkeypatch.setattr("infra.cli.context.caller", read)
    monkeypatch.setattr("infra.cli.context.connect", lambda *_: made)
    yield made
    made.close()


def _ran(stdout: str, stderr: str, code: int = 0) -> Ran:
    return Ran(command="", exit_code=code, stdout=stdout, stderr=stderr)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What the ssh client was told; it ends at once with status 3."""
    told: list[list[str]] = []

    class Client:
        def __init__(self, words: list[str]) -> None:
            told.append(words)

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None: ...

        def poll(self) -> None: ...

        def terminate(self) -> None: ...

        def wait(self) -> int:
            return 3

    monkeypatch.setattr("infra.cli.jobs.shell.subprocess", SimpleNamespace(Popen=Client))
    monkeypatch.setattr(
        "infra.cli.jobs.shell.sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True))
    )
    return told


def run(*words: str) -> Result:
    return RUNNER.invoke(app, list(words))


def test_a_terminal_says_its_price_runs_srun_with_a_pty_and_is_ended(
    login: Login, terminal: list[list[str]], tmp_path: Path
) -> None:
    done = run("shell", "--gpus", "1", "--hours", "1.5")
    assert done.exit_code == 3, done.output
    assert "for at most 1.5 h: $2.28 an hour, at most $3.43; 0 jobs wait" in done.stderr
    ((*client, remote),) = terminal
    assert "-t" in client
    assert client[-1] == "root@127.0.0.1"
    assert remote.startswith("srun --job-name=shell-")
    assert "--pty bash -c" in remote
    assert "SOPERATOR_PLACE_RESULTS=" in remote
    assert "SOPERATOR_PLACE_SCRATCH=/mnt/memory/job_$SLURM_JOB_ID" in remote
    name = remote.split()[1].removeprefix("--job-name=")
    assert (tmp_path / "cancelled").read_text() == f"--name={name}\n"
    assert f"{name} is told to end" in done.stderr


def test_a_session_is_let_go_once_it_fits_beside_all_before_it(
    login: Login, terminal: list[list[str]], tmp_path: Path
) -> None:
    done = run("shell", "--hours", "1.5")
    assert done.exit_code == 3, done.output
    assert " --hold " in terminal[0][-1]
    assert "scontrol release 12" in login.asked
    ledger = (tmp_path / "state/runs/local/ledger.jsonl").read_text()
    (line,) = [json.loads(each) for each in ledger.splitlines()]
    assert (line["kind"], line["job_id"], line["nodes_usd"]) == ("forecast", "12", "3.426600")


@pytest.mark.parametrize("how", [(), ("--vscode",)])
def test_a_session_that_came_after_one_that_takes_the_budget_is_taken_back(
    how: tuple[str, ...], login: Login, terminal: list[list[str]]
) -> None:
    """Between the look and the start another member's session took what was left."""
    login.program("srun", "sleep 60")
    other = HELD.replace("12", "11").replace("root", "bob").replace("1:30:00", "30-00:00:00")
    login.answers.insert(0, ("--all", _ran(other.replace("JobHeldUser", "Priority") + HELD, "")))
    login.answers.insert(0, ("sacct", _ran("--\n", "Slurm accounting storage is disabled\n")))
    done = run("shell", "--hours", "1.5", *how)
    assert done.exit_code == 1
    assert "reserved by bob" in done.stderr
    assert "job 12 was taken back before it could start" in done.stderr
    assert "scancel 12" in login.asked
    assert not [each for each in login.asked if "release" in each]


def test_a_session_of_which_nobody_can_decide_is_ended_and_not_waited_for(
    login: Login, terminal: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its held srun never ends by itself; the terminal hung with the connection lost."""
    sessions: list[subprocess.Popen[bytes]] = []

    def client(*_: object) -> subprocess.Popen[bytes]:
        sessions.append(subprocess.Popen(["sleep", "20"]))
        return sessions[-1]

    login.answers.insert(0, ("scontrol release", _ran("", "slurmctld is down", 1)))
    monkeypatch.setattr("infra.cli.jobs.shell.subprocess", SimpleNamespace(Popen=client))
    done = run("shell", "--hours", "1.5")
    assert done.exit_code == 1
    assert "slurmctld is down" in done.stderr
    assert [each.returncode for each in sessions] == [-signal.SIGTERM]
    assert (tmp_path / "cancelled").exists()


def test_a_full_partition_is_refused_before_anything_is_held(
    login: Login, terminal: list[list[str]]
) -> None:
    later = FREE.replace("08:00:00", "09:00:00")
    login.answers.insert(0, ("srun", _ran("2026-11-21T08:00:00\n2\n", later)))
    done = run("shell")
    assert done.exit_code == 1
    assert "no 1 GPUs are free in partition main: 2 jobs wait there" in done.stderr
    assert (terminal, login.channels) == ([], [])


def test_a_session_over_the_budget_is_refused(login: Login, terminal: list[list[str]]) -> None:
    done = run("shell", "--hours", "1000")
    assert done.exit_code == 1
    assert "a shell of 1000 hours" in done.stderr
    assert (terminal, login.channels) == ([], [])


def test_without_a_terminal_it_is_refused(login: Login) -> None:
    done = run("shell")
    assert done.exit_code == 1
    assert "standard input is no terminal" in done.stderr


def test_jupyter_that_is_not_installed_is_refused_with_the_command(login: Login) -> None:
    login.answers.insert(0, ("jupyterlab", _ran("", "", 1)))
    done = run("shell", "--jupyter")
    assert done.exit_code == 1
    assert (
        "jupyterlab is not in /opt/soperator/venv-tools of the cluster: soperator ssh --root "
        "-s local 'bash /home/shared/code/current/workloads/monitoring/install_tools.sh "
    ) in done.stderr
    assert login.channels == []


def test_jupyter_is_reached_through_a_tunnel_with_a_token_and_ended(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login.program(
        "srun",
        f'printf "%s\\n" "$*" >{tmp_path}/srun; echo soperator-endpoint worker-0 8888; '
        "echo Jupyter is running at; sleep 1",
    )
    opened: list[object] = []

    class Tunnel:
        port = 40000

        def __init__(self, login: Endpoint, host: str, port: int, *, log: object) -> None:
            opened.append((login.node, host, port))

        def wait_until_open(self) -> None:
            opened.append("open")

        def close(self) -> None:
            opened.append("closed")

    monkeypatch.setattr("infra.clients.ssh.Tunnel", Tunnel)
    done = run("shell", "--jupyter")
    assert done.exit_code == 1
    assert done.stdout.startswith("http://127.0.0.1:40000/lab?token=")
    assert opened == [("worker-0", "127.0.0.1", 8888), "open", "closed"]
    started = (tmp_path / "srun").read_text()
    assert " --ip=127.0.0.1 " in started, "no other machine of the cluster reaches it"
    assert "the session ended" in done.stderr
    assert (tmp_path / "cancelled").read_text().startswith("--name=shell-")


def test_vs_code_gets_a_config_that_ssh_reads(login: Login, tmp_path: Path) -> None:
    login.program("srun", "echo soperator-endpoint worker-1 22")
    done = run("shell", "--vscode")
    assert "Host soperator-local-shell\n  HostName worker-1" in done.stdout
    path = tmp_path / "state" / "ssh" / "config_local"
    assert f"Include {path}" in done.stderr
    assert (tmp_path / "cancelled").exists()
    client = shutil.which("ssh")
    if client is None:
        pytest.skip("no ssh client, which the project does not ship")
    found = subprocess.run(
        [client, "-G", "-F", path, "soperator-local-shell"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "hostname worker-1\n" in found
    assert "proxyjump soperator-local\n" in found
    assert "stricthostkeychecking true\n" in found
    assert "hostkeyalias 127.0.0.1\n" in found
    known = path.with_name("known_hosts_local")
    assert f"userknownhostsfile {known}\n" in found
    # The name under which the pinned key is looked up has it.
    keygen = subprocess.run(["ssh-keygen", "-F", "127.0.0.1", "-f", known], capture_output=True)
    assert keygen.returncode == 0


def test_a_command_that_reads_the_pinned_key_never_reads_half_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two commands of one stack write the file; the one that reads it meanwhile trusted nobody."""
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    path = Path(login_options(replace(OUTPUTS, login_host_key=KEY))["UserKnownHostsFile"])
    with path.open() as reader:
        login_options(replace(OUTPUTS, login_host_key="ssh-ed25519 AAAAnew login"))
        assert " ".join(KEY.split()[:2]) in reader.read()
    assert "ssh-ed25519 AAAAnew\n" in path.read_text()
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_path_with_a_space_is_one_word_of_the_config() -> None:
    outputs = replace(OUTPUTS, user="ann")
    known = {"UserKnownHostsFile": "/home/a b/known"}
    text = ssh_config(outputs, "worker-0", Path("/home/a b/key"), known)
    assert 'IdentityFile "/home/a b/key"' in text
    assert text.count('UserKnownHostsFile "/home/a b/known"') == 2
    assert text.count("  User ann\n") == 2


def test_tensorboard_shows_the_events_of_a_job_on_the_login_node(
    login: Login, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "infra.operate.sessions.tensorboard",
        lambda spec, folder, hours: (
            f"echo soperator-endpoint 127.0.0.1 6006; echo {folder}; echo '(Press CTRL+C to quit)'"
        ),
    )
    tunnel = SimpleNamespace(port=40001, close=lambda: None, wait_until_open=lambda: None)
    monkeypatch.setattr("infra.clients.ssh.Tunnel", lambda *_, **__: tunnel)
    done = run("runs", "tensorboard", "12")
    # Whoever else is on the login node has its loopback, and not this.
    assert re.fullmatch(r"http://127\.0\.0\.1:40001/[\w-]{32}/\n", done.stdout), done.output
    assert "/mnt/logs/tensorboard/12 on the login node" in done.stderr


def test_hours_without_end_are_refused(login: Login) -> None:
    for words in (("runs", "tensorboard"), ("shell", "--vscode")):
        done = run(*words, "--hours", "inf")
        assert done.exit_code == 1
        assert "--hours inf: not a time" in done.stderr


def test_a_job_without_events_is_refused(login: Login) -> None:
    login.answers.insert(0, ("test -d", _ran("", "", 1)))
    done = run("runs", "tensorboard", "12")
    assert done.exit_code == 1
    assert "/mnt/logs/tensorboard/12: job 12 has not written TensorBoard events" in done.stderr


@pytest.mark.feature("S000-58", "S002-29", "S003-70")
@pytest.mark.parametrize(("options", "user"), [([], "ann"), (["--root"], "root")])
def test_a_shell_on_the_login_node_is_the_users_and_roots_only_where_asked(
    login: Login, monkeypatch: pytest.MonkeyPatch, options: list[str], user: str
) -> None:
    ran: list[list[str]] = []
    outputs = replace(OUTPUTS, login_host_key=KEY)
    monkeypatch.setattr("infra.cli.context.read", lambda _stack: outputs)
    monkeypatch.setattr("infra.cli.context.caller", lambda *_: outputs.as_user("ann"))
    monkeypatch.setattr("infra.cli.context.private_key", lambda _given: Path("key"))
    monkeypatch.setattr("os.execv", lambda _program, words: ran.append(words))
    done = RUNNER.invoke(app, ["ssh", *options, "id"])
    assert done.exit_code == 0, done.output
    assert ran[0][-2:] == [f"{user}@{OUTPUTS.login_ip}", "id"]
    told = " ".join(ran[0])
    assert f" -i key -p {OUTPUTS.ssh_port} " in told
    assert " -o StrictHostKeyChecking=yes " in told
    known = re.search(r"-o UserKnownHostsFile=(\S+)", told)
    assert known is not None
    assert Path(known[1]).read_text().endswith(f" {' '.join(KEY.split()[:2])}\n")
