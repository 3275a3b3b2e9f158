"""`soperator doctor --sources`: three verdicts, three exit codes, each with its reason."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from infra.cli import context
from infra.cli.machine import doctor
from infra.cli.machine.doctor import NOT_RUN, verdict
from infra.cli.main import app
from infra.clients.kube import Access
from infra.local import process
from infra.local.kube import api_server
from infra.operate.conformance.cluster import ApiServer
from infra.operate.conformance.come_up import STEPS, ComeUp, Obstacle, Step
from infra.operate.conformance.sources import Sources
from infra.state import Ports
from stacks.errors import UserError
from stacks.load import load_stack

YES = "dev would come up, as far as its charts, operator and pods decide"
GOOD = Step(name="rendered", counted="13 releases")
BAD = Step(
    name="keys present",
    counted="84 keys",
    obstacles=(Obstacle(subject="pods of StatefulSet soperator/login", cause="no key 'a'"),),
)
MISSING = Step(name="reconciled", counted="", not_run=("no program bin/soperator-operator",))
PARTLY = Step(name="rendered", counted="12 releases", not_run=("no checkout k8up",))
GIVEN = Step(name="accepted", counted="9 objects", assumed=("Secret a/b with key c",))
OUTSIDE = Step(name="rendered", counted="12 releases", outside=("chart of metrics", "4 Issuer"))


@pytest.mark.parametrize(
    ("steps", "line", "code"),
    [
        ([GOOD], YES, 0),
        (
            [GOOD, MISSING, BAD],
            "dev would not come up: pods of StatefulSet soperator/login: no key 'a'",
            1,
        ),
        (
            [GOOD, MISSING],
            "dev: not known whether it would come up: 1 missing, in reconciled",
            NOT_RUN,
        ),
        (
            [PARTLY, OUTSIDE],
            "dev: not known whether it would come up: 1 missing, in rendered",
            NOT_RUN,
        ),
        (
            [OUTSIDE, GOOD],
            f"{YES}; 2 not looked at, which no folder can give",
            0,
        ),
        ([GOOD, GIVEN], f"{YES}; 1 assumed, which you make", 0),
    ],
)
def test_the_verdict_names_what_stops_it(steps, line, code):
    assert verdict("dev", steps) == (line, code)


def test_the_verb_prints_a_line_a_step_and_ends_with_the_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr(
        doctor, "steps", lambda stack, sources: iter([OUTSIDE, GIVEN, MISSING, MISSING])
    )
    done = CliRunner().invoke(app, ["doctor", "--stack", "dev", "--sources", str(tmp_path)])
    assert done.exit_code == NOT_RUN
    assert done.output.splitlines() == [
        "PASS     rendered       12 releases",
        "         not looked at: chart of metrics",
        "         not looked at: 4 Issuer",
        "PASS     accepted       9 objects",
        "         assumed: Secret a/b with key c, which you make",
        "NOT RUN  reconciled",
        "         not run: no program bin/soperator-operator",
        "NOT RUN  reconciled",
        "         not run: for a reason given above",
        "dev: not known whether it would come up: 1 missing, in reconciled, reconciled",
    ]


def test_of_a_folder_that_is_not_there_nothing_is_known(tmp_path: Path):
    """1 is the code of a stack that would not come up."""
    folder = tmp_path / "none"
    done = CliRunner().invoke(app, ["doctor", "--stack", "dev", "--sources", str(folder)])
    assert done.exit_code == NOT_RUN
    lines = done.output.splitlines()
    assert lines[0] == "NOT RUN  rendered"
    assert lines[1] == (
        f"         not run: no folder '{folder}': give the folder: "
        "soperator doctor -s dev --sources FOLDER (docs/conformance.md)"
    )
    assert [line.split()[2] for line in lines if line.startswith("NOT RUN")] == [
        step.split()[0] for step in STEPS
    ]
    assert lines[-1].startswith("dev: not known whether it would come up: 1 missing, in rendered, ")


def test_an_api_server_that_cannot_start_answers_nothing(
    monkeypatch, tmp_path: Path, public_key_file
) -> None:
    """It says nothing of the stack, so the answer is `not known`, never `would not come up`."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        made = Ports.from_environ()
        made.come_up = port
        monkeypatch.setattr(Ports, "from_environ", lambda: made)
        monkeypatch.setattr(process, "_PORT_TIMEOUT_S", 0.1)
        monkeypatch.setattr(api_server, "find_api_server", lambda: "/bin/false")
        monkeypatch.setattr(api_server, "_find_etcd", lambda: "/bin/false")
        found = list(doctor.steps("h100-prod", tmp_path))
    assert [each.name for each in found] == list(STEPS)
    assert doctor.verdict("h100-prod", found)[1] == NOT_RUN
    assert str(port) in found[0].not_run[0]


def test_a_stack_with_errors_is_refused_by_its_own_rules(
    monkeypatch, tmp_path: Path, public_key_file
):
    """Before anything is started: one that cannot be deployed has no answer of its parts."""
    spec = load_stack("h100-prod")
    cluster = replace(spec.cluster, soperator_version="5.0.0")
    monkeypatch.setattr(context, "spec", lambda stack: replace(spec, cluster=cluster))
    with pytest.raises(UserError, match=r"soperator_version: '5\.0\.0' cannot be deployed: "):
        next(doctor.steps("h100-prod", tmp_path))


def test_no_step_is_made_with_another_version_than_the_stack_has(tmp_path: Path, public_key_file):
    """The checkout of 4.1.7 once answered for every version."""
    (tmp_path / "soperator").mkdir()
    (tmp_path / "soperator" / "VERSION").write_text("4.1.7\n")
    spec = load_stack("h100-prod")
    cluster = replace(spec.cluster, soperator_version="4.0.0")
    server = ApiServer(access=Access(server=""), certificate=tmp_path, key=tmp_path)
    way = ComeUp(Sources(tmp_path)).steps(replace(spec, cluster=cluster), server, tmp_path)
    found = list(way)
    assert [each.name for each in found] == list(STEPS)
    assert {each.outcome for each in found} == {"NOT RUN"}
    (why,) = {text for each in found for text in each.not_run}
    assert why.startswith(f"no checkout {tmp_path}/soperator-4.0.0: git clone ")
