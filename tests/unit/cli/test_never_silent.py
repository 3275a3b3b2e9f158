"""No long command is silent: the longest gap between its lines while one of its parts is slow."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from infra.cli import context, main, output
from infra.cli.cluster import accept
from infra.cli.cluster import cloud as in_cloud
from infra.cli.machine import local
from infra.local import cloud, offline
from infra.operate.support_bundle import Part
from infra.reports.acceptance import certificate
from infra.reports.acceptance.run import AcceptError
from infra.setup.demo import runner
from infra.setup.demo.runner import Progress
from infra.setup.tools import __main__ as setup
from infra.setup.tools.__main__ import Step
from infra.state import CHECKOUT
from stacks.errors import UserError
from tests.ticks import Ticks
from tests.unit.support.test_bundle import OUTPUTS, Kube, Shell

QUIET_S = 0.2
SLOW_S = 1.2


class Lines(io.StringIO):
    """Standard error that knows when each line came."""

    def __init__(self) -> None:
        super().__init__()
        self.times_s = [time.monotonic()]

    @property
    def buffer(self) -> Any:
        return SimpleNamespace(write=self.came, flush=lambda: None)

    def write(self, text: str, /) -> int:
        self.came(text)
        return super().write(text)

    def came(self, text: Any) -> None:
        if text.strip():
            self.times_s.append(time.monotonic())

    def longest_gap_s(self) -> float:
        times_s = [*self.times_s, time.monotonic()]
        return max(b - a for a, b in pairwise(times_s))


def slow(*_: object, **__: object) -> None:
    time.sleep(SLOW_S)


def said(work: Callable[[], object]) -> str:
    """What the work, which has a slow part, wrote; it was never silent."""
    lines = Lines()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "QUIET_S", QUIET_S)
        patch.setattr(output._now, "line_s", time.monotonic())
        patch.setattr(sys, "stderr", lines)
        began_s = time.monotonic()
        with Ticks(QUIET_S) as ticks:
            work()
            longest_s = lines.longest_gap_s()
    assert time.monotonic() - began_s > SLOW_S
    assert longest_s < ticks.allowed_s()
    return lines.getvalue()


def test_a_line_says_what_is_waited_for_and_for_how_long() -> None:
    def wait() -> None:
        with output.never_silent("asking"):
            output.note("job 5 is PENDING")
            slow()

    still = re.findall(r"^still: (.*), (\d+) s$", said(wait), re.MULTILINE)
    assert {text for text, _ in still} == {"job 5 is PENDING"}
    assert int(still[-1][1]) >= 1


def test_parts_of_less_than_the_quiet_time_are_not_silent_together() -> None:
    def parts() -> None:
        for number in range(16):
            with output.never_silent(f"part {number}"):
                time.sleep(QUIET_S / 2)

    assert re.search(r"still: part \d+, 0 s", said(parts))


def test_a_command_of_ours_that_starts_slowly_is_not_silent_in_the_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "python"
    program.write_text(f'#!/bin/sh\nsleep {SLOW_S}\necho "$*" >&2\nexit $CODE\n')
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(local, "_environ", lambda: {"PATH": "/usr/bin:/bin", "CODE": "0"})
    text = said(lambda: local._local("up"))
    assert re.search(r"still: local up, [1-9] s\n-m infra.cli.main local up\n\Z", text)
    monkeypatch.setattr(local, "_environ", lambda: {"PATH": "/usr/bin:/bin", "CODE": "3"})
    with pytest.raises(UserError, match="`soperator local down` ended with 3; see above"):
        local._local("down")


def test_what_a_job_writes_is_a_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "QUIET_S", 1.0)
    lines = Lines()
    monkeypatch.setattr(sys, "stderr", lines)
    with Ticks(0.2) as ticks, output.never_silent("job"), output.ClusterText(lines) as text:
        for _ in range(8):
            text.write(b"step\n")
            time.sleep(0.2)
    # Unless the machine kept this very loop waiting.
    assert "still" not in lines.getvalue() or ticks.longest_s > 0.5


def test_a_stage_of_the_demo_is_not_silent() -> None:
    def stage() -> None:
        with Progress().stage("plan and price"):
            slow()

    assert re.search(r"^\[ +\d+\.\d s\] still: plan and price, [1-9] s$", said(stage), re.MULTILINE)


def test_pulumi_in_the_demo_says_what_it_printed_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "pulumi"
    program.write_text(f"#!/bin/sh\necho ' + kube:Release slurm creating'; sleep {SLOW_S}\n")
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    monkeypatch.setenv("PATH", path)

    def up() -> None:
        progress = Progress()
        with progress.stage("pulumi up"):
            runner.run(
                ["up"],
                stack="local",
                environ={"PATH": path, "PULUMI_BACKEND_URL": f"file://{tmp_path}"},
                log=tmp_path / "up.log",
                say=progress.say,
            )

    assert re.search(r"still: pulumi up: \+ kube:Release slurm creating, [1-9] s", said(up))


@pytest.mark.parametrize("part", ["_prepare", "_run_jobs", "_report"])
def test_the_start_the_jobs_and_the_report_of_the_demo_are_not_silent(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_prepare", "_bring_up", "_run_jobs", "_engine", "_report"):
        monkeypatch.setattr(local, name, slow if name == part else lambda *_, **__: None)
    monkeypatch.setattr(context, "state_root", lambda: tmp_path)
    monkeypatch.setattr(local.os, "geteuid", lambda: 0)
    assert "still: " in said(lambda: local.demo(reduced=True, destroy=False))


def test_the_search_for_what_a_demo_left_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "run", lambda *_, **__: "")
    monkeypatch.setattr(local, "_local", lambda _verb: None)
    monkeypatch.setattr(runner, "find", lambda *_: slow() or [])
    text = said(lambda: local._take_down(tmp_path, Progress()))
    assert re.search(r"still: what the demo left on this machine, [1-9] s", text)


def test_an_acceptance_is_not_silent_before_its_first_stage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(_stack: str, *_: object) -> None:
        slow()
        raise AcceptError("enough")

    monkeypatch.setattr(context, "caller", read)
    monkeypatch.setattr(certificate, "refuse_unusable", lambda _key: None)
    monkeypatch.setattr(context, "private_key", lambda _key: Path())

    def command() -> None:
        with pytest.raises(AcceptError, match="enough"):
            accept.accept(stack="local")

    command()  # what it imports takes seconds on a busy machine, the first time
    text = said(command)
    assert text.startswith("acceptance of local: its outputs and its login node\nstill: ")


def test_a_command_is_not_silent_while_it_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a load of 20 the imports of `accept` were most of 13.4 s without a line."""
    monkeypatch.setattr(main, "_load", slow)
    root: Any = typer.main.get_command(main.app)
    assert re.search(
        r"still: loading status, [1-9] s", said(lambda: root.get_command(None, "status"))
    )


def test_a_command_that_is_imported_at_once_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(main, "_load", lambda *_: time.sleep(0.3))
    monkeypatch.setattr(output._now, "line_s", time.monotonic() - 3600)
    root: Any = typer.main.get_command(main.app)
    root.get_command(None, "status")
    assert capsys.readouterr().err == ""


def test_a_certificate_is_not_made_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificate, "refuse_unusable", lambda _key: None)
    monkeypatch.setattr(context, "private_key", lambda _key: Path())
    found = SimpleNamespace(runs=[{"job_id": 5}], finished_at="2026-11-21", outcome="PASS")
    monkeypatch.setattr(accept, "_run", lambda *_, **__: found)
    monkeypatch.setattr(accept, "_content", lambda *_: {})
    monkeypatch.setattr(accept, "_print", lambda *_: None)
    monkeypatch.setattr(certificate, "proof_text", lambda _values: "")

    def write(*_: object) -> SimpleNamespace:
        slow()
        return SimpleNamespace(html=tmp_path / "certificate.html")

    monkeypatch.setattr(certificate, "write", write)

    def command() -> None:
        with pytest.raises(typer.Exit):
            accept.accept(stack="local")

    assert re.search(r"still: the certificate, [1-9] s", said(command))


def test_an_acceptance_of_hosts_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> None:
    def run(*_: object, **__: object) -> str:
        slow()
        raise AcceptError("enough")

    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.setattr(accept.run, "run", run)

    def command() -> None:
        with pytest.raises(AcceptError, match="enough"):
            accept.accept_hosts(hosts=["gpu-0"], stack="local")

    assert re.search(r"still: acceptance on gpu-0, [1-9] s", said(command))


def test_a_part_of_the_support_bundle_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [Part(name="kube/pods.txt", says="pods", gather=lambda: str(slow()))]
    monkeypatch.setattr(in_cloud, "parts_here", lambda *_, **__: parts)
    for name in ("parts_of_cluster", "parts_of_kube"):
        monkeypatch.setattr(in_cloud, name, lambda *_: [])

    def command() -> None:
        with pytest.raises(typer.Exit):
            in_cloud.support_bundle(stack="local", file=tmp_path / "b.tar.gz")

    assert re.search(r"still: kube/pods.txt, [1-9] s", said(command))


class SlowOnce(Kube):
    """A Kubernetes API and a login node of which the first answer of each takes its time."""

    def __init__(self) -> None:
        super().__init__()
        self.shell = Shell()
        self.slow = {"kube": slow, "login": slow}

    def list(self, version: str, kind: str) -> list[dict[str, Any]]:
        self.slow.pop("kube", lambda: None)()
        return super().list(version, kind)

    def run(self, command: str, *, stdin: bytes = b"") -> Any:
        self.slow.pop("login", lambda: None)()
        return self.shell.run(command, stdin=stdin)


def test_a_support_bundle_is_not_silent_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path
) -> None:
    """Every part is real but for who answers: the engine, the login node and Kubernetes."""
    there = SlowOnce()
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(context, "environ", lambda: (slow(), {"PATH": "/nowhere"})[1])
    monkeypatch.setattr(context, "caller", lambda *_: OUTPUTS)
    monkeypatch.setattr(context, "connect", lambda *_: nullcontext(there))
    monkeypatch.setattr(context, "kube_client", lambda _stack: there)

    def command() -> None:
        with pytest.raises(typer.Exit):
            in_cloud.support_bundle(stack="local", file=tmp_path / "b.tar.gz", preview=True)

    text = said(command)
    for part in ("support bundle", "slurm/nodes.txt", "kube/events.txt"):
        assert re.search(rf"still: {part}, [1-9] s", text), part


@pytest.mark.parametrize(
    ("verb", "doing"),
    [(local.up, "local up"), (local.down, "local cloud: stopping kube-apiserver, etcd")],
)
def test_the_local_stack_is_not_silent(
    verb: Callable[[], None], doing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_STATE", str(tmp_path))
    monkeypatch.setattr(cloud, "up", slow)
    monkeypatch.setattr(cloud.api_server, "stop", slow)
    monkeypatch.setattr(offline, "stop", lambda _state: None)
    assert re.search(f"still: {doing}, [1-9] s", said(verb))


def test_a_step_of_the_set_up_is_not_silent() -> None:
    done: list[bool] = []

    def build() -> None:
        setup.output.at("go: compiling k8s.io/api")
        slow()
        done.append(True)

    step = Step(name="kube-apiserver", expect="7 min", done=lambda: bool(done), run=build)
    text = said(lambda: setup._run(step))
    assert re.search(r"still: go: compiling k8s.io/api, [1-9] s", text)


def test_the_packages_of_the_set_up_are_not_silent(tmp_path: Path) -> None:
    """The first minutes of `make demo` in a fresh checkout: 2 GB, without a line."""
    script = tmp_path / "infra" / "setup" / "tools" / "bootstrap.sh"
    script.parent.mkdir(parents=True)
    text = (CHECKOUT / "infra/setup/tools/bootstrap.sh").read_text(encoding="utf-8")
    quick = re.sub(r"^quiet_s=8$", f"quiet_s={QUIET_S}", text, flags=re.MULTILINE)
    assert quick != text, "on a busy machine 8 s are within 10"
    script.write_text(quick, encoding="utf-8")
    locks = ("requirements.lock", "requirements-workloads.lock", "requirements-gpu.lock")
    for name in (*locks, "pyproject.toml"):
        (tmp_path / name).touch()
    (script.parent / "bootstrap.lock").touch()
    program = tmp_path / "python"
    program.write_text(
        '#!/bin/sh\nif [ "$2" = venv ]; then mkdir -p .venv/bin && '
        f"cp $0 .venv/bin/python && printf '#!/bin/sh\\nsleep {SLOW_S}\\n' > .venv/bin/uv && "
        "chmod +x .venv/bin/uv; fi\n"
    )
    program.chmod(0o755)
    done = subprocess.run(
        ["sh", script],
        env={**os.environ, "PYTHON": str(program)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    packages = f"Python packages from {', '.join(locks)}"
    still = re.findall(rf"^setup: still: {packages} .*, (\d) s$", done.stderr, re.MULTILINE)
    assert "1" in still, done.stderr
