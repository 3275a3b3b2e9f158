"""A bundle: private, redacted, whole or not there, with a list; what is out of reach is NOT RUN."""

from __future__ import annotations

import json
import stat
import subprocess
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from infra.cli import context
from infra.cli.main import app
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Result as Answer
from infra.operate.support_bundle import (
    INDEX,
    MARK,
    NotRunError,
    Part,
    Redactor,
    gather,
    once,
    output_of,
    parts_of_cluster,
    parts_of_kube,
    write_bundle,
)
from stacks.errors import UserError
from stacks.load import load_stack

NOW = datetime(2026, 11, 21, 18, tzinfo=UTC)
SECRET = "planted-secret-value"
OUTPUTS = StackOutputs(
    stack="local",
    login_ip="127.0.0.1",
    ssh_port=1,
    login_host_key="ssh-ed25519 AAAA",
    code_path="/home/code",
    code_hash="h",
    places={"logs": "/mnt/chkpt/logs", "results": "/mnt/chkpt/results"},
    jobs={},
)


class Shell:
    """Answers every command with the command, and a secret that a log might hold."""

    def run(self, command: str, *, stdin: bytes = b"") -> Answer:
        text = f"{command}\nexport MY_KEY={SECRET}\n"
        return Answer(command=command, exit_code=1, stdout=text, stderr="")


class Kube:
    """An API server with one event, one pod, and a Secret that nobody may ask for."""

    def __init__(self) -> None:
        self.asked: set[str] = set()

    def version(self) -> str:
        return "v1.33.0"

    def list(self, version: str, kind: str) -> list[dict[str, Any]]:
        self.asked.add(kind)
        place = {"name": "worker-0", "namespace": "soperator"}
        if kind == "Event":
            about = {"kind": "Pod", **place}
            event = {"metadata": place, "involvedObject": about, "reason": "BackOff"}
            other = {"metadata": {"name": "x", "namespace": "theirs"}, "message": "not ours"}
            return [event | {"message": "image\nis away", "type": "Warning"}, other]
        if kind == "Pod":
            waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
            container = {"name": "slurmd", "restartCount": 3, "state": waiting}
            spec = {"nodeName": "node-0", "env": SECRET}
            theirs = {"metadata": {"name": "x", "namespace": "theirs"}}
            pod = {"metadata": place, "spec": spec, "status": {"containerStatuses": [container]}}
            return [pod, theirs]
        data = {"spec": {"env": SECRET}, "status": {"phase": "Ready"}}
        return [{"metadata": {**place, "managedFields": [SECRET]}, **data}]


def part(name: str, text: str | Exception) -> Part:
    def answer() -> str:
        if isinstance(text, Exception):
            raise text
        return text

    return Part(name=name, says="a part", gather=answer)


def read(path: Path) -> dict[str, str]:
    """Name in the bundle's folder -> text."""
    with tarfile.open(path) as archive:
        return {
            each.name.partition("/")[2]: archive.extractfile(each).read().decode()  # type: ignore[union-attr]
            for each in archive.getmembers()
        }


def written(tmp_path: Path, *parts: Part, redactor: Redactor | None = None) -> Path:
    path = tmp_path / "support.tar.gz"
    write_bundle(
        parts,
        path,
        stack="local",
        redactor=redactor or Redactor([SECRET]),
        now=NOW,
        say=lambda name: None,
    )
    return path


def test_names_and_secrets_that_are_no_utf8_cost_no_part(tmp_path: Path) -> None:
    """So Python has them of a file's name, and of a variable such as HF_TOKEN."""
    secret = "caf\udce9-secret-value"
    odd = part("a.txt", f"caf\udce9.log says {secret}")
    found = read(written(tmp_path, odd, part("b.txt", "text"), redactor=Redactor([secret])))
    assert found["a.txt"] == f"caf?.log says {MARK}"
    assert found["b.txt"] == "text"


def test_only_its_owner_can_read_the_file_and_what_is_in_it(tmp_path: Path) -> None:
    path = written(tmp_path, part("a.txt", "text"))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with tarfile.open(path) as archive:
        assert {each.mode for each in archive.getmembers()} == {0o600}


def test_no_part_nor_the_list_holds_a_planted_secret(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        part("a.txt", f"before {SECRET} after"),
        part("b.txt", NotRunError(f"refused: token {SECRET}")),
    )
    texts = read(path)
    assert not [name for name, text in texts.items() if SECRET in text]
    assert texts["a.txt"] == f"before {MARK} after"
    assert "redacted: 2 places" in texts[INDEX]


def test_the_list_names_every_part_with_its_size_or_why_it_is_missing(tmp_path: Path) -> None:
    texts = read(
        written(tmp_path, part("a.txt", "12345"), part("b.txt", JobsError("nobody answers\nmore")))
    )
    assert texts.keys() == {INDEX, "a.txt"}
    assert "5 bytes  a.txt: a part" in texts[INDEX]
    assert "NOT RUN  b.txt: a part: nobody answers\n" in texts[INDEX]


def test_a_part_that_is_too_long_keeps_its_end_from_a_whole_line(tmp_path: Path) -> None:
    """Else the value of a name that is cut off would stay."""
    text = f"password: {'x' * 20}\n" + "y" * 1_999_990 + "\nEND"
    text = read(written(tmp_path, part("a.txt", text)))["a.txt"]
    assert text.startswith("... 31 characters before this are left out\nyyy")
    assert text.endswith("\nEND")


def test_a_bundle_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "file"
    folder.touch()
    with pytest.raises(FileExistsError):
        written(folder, part("a.txt", "text"))
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_that_another_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "support.tar.gz"

    def make() -> str:
        path.write_text("theirs")
        return "text"

    with pytest.raises(FileExistsError):
        written(tmp_path, Part(name="a.txt", says="a part", gather=make))
    assert path.read_text() == "theirs"
    assert [each.name for each in tmp_path.iterdir()] == ["support.tar.gz"]


def test_a_defect_of_one_part_costs_that_part_alone() -> None:
    with pytest.raises(NotRunError, match=r"^a defect$"):
        gather(part("a.txt", ZeroDivisionError("a defect")))


def test_a_part_that_hangs_is_not_run_and_holds_nothing() -> None:
    """`df` of a mount whose server is away never comes back."""
    released = threading.Event()

    def hang() -> str:
        released.wait(60)
        return "late"

    with pytest.raises(NotRunError, match=r"^no end within 0\.05 s$"):
        gather(Part(name="a.txt", says="a part", gather=hang, limit_s=0.05))
    released.set()


def test_a_command_that_fails_is_news_and_one_that_is_absent_is_not_run() -> None:
    text = output_of(["sh", "-c", "echo no; exit 3"], environ={}, timeout_s=60)
    assert text == "no\n\nexit status 3\n"
    with pytest.raises(NotRunError, match="levitate: not on PATH"):
        output_of(["levitate"], environ={}, timeout_s=60)


def test_a_command_without_an_end_is_ended() -> None:
    with pytest.raises(NotRunError, match=r"no end within 0\.1 s"):
        output_of(["sleep", "60"], environ={}, timeout_s=0.1)


def test_every_part_of_a_cluster_runs_also_where_a_command_fails() -> None:
    parts = parts_of_cluster(once(lambda: (OUTPUTS, Shell())))
    found = {each.name: each.gather() for each in parts}
    assert "sinfo -N -l" in found["slurm/nodes.txt"]
    assert "--starttime=now-1days" in found["slurm/accounting.txt"]
    assert "find /mnt/chkpt/logs -maxdepth 1 -name '*.log'" in found["slurm/logs.txt"]
    assert found["slurm/queue.txt"].endswith("exit status 1\n")


def test_a_login_node_that_does_not_answer_is_asked_once() -> None:
    tries: list[int] = []

    def opens() -> tuple[StackOutputs, Shell]:
        tries.append(1)
        raise JobsError("login node: no answer")

    for each in parts_of_cluster(once(opens)):
        with pytest.raises(NotRunError, match=r"^login node: no answer$"):
            gather(each)
    assert len(tries) == 1


def test_a_slow_connection_is_made_once_for_parts_that_ask_together() -> None:
    tries: list[int] = []

    def opens() -> tuple[StackOutputs, Any]:
        tries.append(1)
        time.sleep(0.2)
        return OUTPUTS, Shell()

    opened = once(opens)
    with ThreadPoolExecutor(3) as pool:
        found = [each.result() for each in [pool.submit(opened) for _ in range(3)]]
    assert len(tries) == 1
    assert found == [found[0]] * 3


@pytest.mark.usefixtures("public_key_file")
def test_of_kubernetes_no_secret_and_no_spec_is_taken() -> None:
    kube = Kube()
    parts = parts_of_kube(lambda: load_stack("local"), lambda: kube)  # type: ignore[arg-type,return-value]
    found = {each.name: each.gather() for each in parts}
    assert not kube.asked & {"Secret", "ConfigMap"}
    assert not [name for name, text in found.items() if SECRET in text]
    assert (
        found["kube/events.txt"]
        .strip()
        .endswith("| Warning | Pod/soperator/worker-0 | BackOff | image is away")
    )
    assert "not ours" not in found["kube/events.txt"]
    (pod,) = map(json.loads, found["kube/pods.jsonl"].splitlines())
    assert pod["nodeName"] == "node-0"
    assert pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert '"phase": "Ready"' in found["kube/nodesets.jsonl"]


@pytest.mark.usefixtures("public_key_file")
def test_of_many_pods_whole_lines_are_kept_and_what_is_not_ready(tmp_path: Path) -> None:
    pods: list[dict[str, Any]] = []
    for number in range(1000):
        place = {"name": f"pod-{number}", "namespace": "kube-system" if number < 9 else "soperator"}
        ready = {"type": "Ready", "status": "True", "message": "x" * 4000}
        pods.append({"metadata": place, "status": {"phase": "Running", "conditions": [ready]}})
    pods[3]["status"]["conditions"][0]["status"] = "False"
    # An image that cannot be pulled, before anything is said of Ready; a job that is done.
    pods[4]["status"] = {"phase": "Pending"}
    pods[5]["status"]["phase"] = "Succeeded"
    pods[5]["status"]["conditions"][0]["status"] = "False"
    kube = Kube()
    kube.list = lambda version, kind: pods  # type: ignore[method-assign]
    parts = parts_of_kube(lambda: load_stack("local"), lambda: kube)  # type: ignore[arg-type,return-value]
    wanted = [each for each in parts if each.name == "kube/pods.jsonl"]
    first, *lines = read(written(tmp_path, *wanted))["kube/pods.jsonl"].splitlines()
    assert "characters before this are left out" in first
    names = [json.loads(line)["metadata"]["name"] for line in lines]
    assert names[-3:] == ["pod-999", "pod-3", "pod-4"]
    assert len(names) > 400
    assert "pod-5" not in names


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    """A machine without a cluster, whose parts here are one file with a secret of the state."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "passphrase").write_text(f"{SECRET}\n")
    monkeypatch.setenv("SOPERATOR_STATE", str(state))
    monkeypatch.setattr(
        "infra.cli.cluster.cloud.parts_here",
        lambda *words, **options: [part("a.txt", f"see {SECRET}")],
    )

    def nobody(*words: object) -> None:
        raise JobsError("the stack is not up")

    monkeypatch.setattr(context, "caller", nobody)
    monkeypatch.setattr(context, "kube_client", nobody)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> Result:
    return CliRunner().invoke(app, ["cluster", "support-bundle", "--no-preview", *words])


def test_without_a_cluster_the_rest_is_written_and_the_exit_code_tells(alone: Path) -> None:
    done = run("-o", "mine.tar.gz")
    assert done.exit_code == 69, done.output
    texts = read(alone / "mine.tar.gz")
    assert texts["a.txt"] == f"see {MARK}"
    assert "NOT RUN  slurm/nodes.txt: nodes with their states: the stack is not up" in done.output
    assert "NOT RUN  kube/events.txt" in done.output
    assert SECRET not in done.output


def test_an_invalid_stack_file_costs_its_parts_alone(
    alone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who asks for help often has just that."""

    def refuse(stack: str) -> None:
        raise UserError("stacks/Pulumi.local.yaml: nodes: not a list")

    monkeypatch.setattr(context, "spec", refuse)
    done = run("-o", "mine.tar.gz")
    assert done.exit_code == 69, done.output
    assert (alone / "mine.tar.gz").is_file()
    assert "NOT RUN  kube/pods.jsonl: pods and why they wait: stacks/Pulumi.local" in done.output


def test_a_file_that_is_there_is_not_written_over(alone: Path) -> None:
    (alone / "mine.tar.gz").write_text("mine")
    done = run("-o", "mine.tar.gz")
    assert done.exit_code == 1
    assert "is there already" in done.output
    assert (alone / "mine.tar.gz").read_text() == "mine"


def test_a_folder_that_is_absent_is_refused_before_anything_is_gathered(alone: Path) -> None:
    done = run("-o", "absent/mine.tar.gz")
    assert done.exit_code == 1
    assert "no folder absent; make it; nothing was written" in done.output
    assert "a.txt" not in done.output


def test_a_link_that_leads_nowhere_is_refused_before_anything_is_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was found to be there after 20 s of gathering."""
    monkeypatch.setattr(context, "environ", lambda: pytest.fail("it gathers"))
    link = tmp_path / "bundle.tar.gz"
    link.symlink_to(tmp_path / "none")
    refused = CliRunner().invoke(app, ["cluster", "support-bundle", "-o", str(link)])
    assert refused.exit_code == 1
    assert f"--output {link}: is there already; name another file" in refused.stderr


def test_the_bundle_of_a_checkout_is_no_change_of_it() -> None:
    """It is written where the command runs, and holds what nobody wants in a commit."""
    name = "support-local-20261123T130746Z.tar.gz"
    subprocess.run(
        ["git", "check-ignore", "--quiet", name], cwd=Path(__file__).parents[3], check=True
    )
