"""The real program asks before it declares anything: refusals, silence and what a preview shows."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from infra.local import offline
from infra.local.nebius_api.errors import Faults
from infra.local.nebius_api.states import Store
from infra.providers.nebius.schema import Schema
from infra.state import Cache, State
from stacks.load import STACKS_DIR
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Program, running_program

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
STACK = "h100-prod"
PROJECT = "project-e00replaceme"
SIZE = "compute.filesystem.size.network-ssd"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture
def small_quota(program: Program) -> Iterator[None]:
    """5 TiB of filesystems, as the seeds had, less than the stack declares."""
    before = set_limit(program, 1 << 40)
    yield
    set_limit(program, before)


def folder(program: Program) -> Path:
    return State(program.root).offline / "nebius"


def set_limit(program: Program, limit: int | None) -> int | None:
    """Changes a quota with the emulator stopped, as support would; the limit before."""
    offline.stop(State(program.root))
    store = Store(folder(program), Schema(Cache.from_environ().root))
    allowance = store.find("quotaallowance", parent_id=PROJECT, name=SIZE)
    assert allowance is not None
    before = allowance.spec.limit if allowance.spec.HasField("limit") else None
    allowance.spec.ClearField("limit")
    if limit is not None:
        allowance.spec.limit = limit
    store.put(allowance)
    store.commit()
    store.close()
    program.environ["SOPERATOR_NEBIUS_ENDPOINT"] = offline.start(State(program.root))
    return before


def test_a_preview_tells_what_was_asked(program: Program) -> None:
    answer = program.preview(STACK)
    assert answer.status == 0, answer.text
    lines = [line for line in answer.messages("info") if line.startswith("pre-flight: ")]
    (line,) = set(lines)
    assert line.endswith("passed; not checked: token expiry, quotas, capacity of worker, charts")


def test_a_preview_takes_any_project_region_and_size(program: Program, tmp_path: Path) -> None:
    """What an account has of quotas and regions, an emulator cannot know: it must not refuse."""
    path = tmp_path / "Pulumi.h200-elastic.yaml"
    text = (STACKS_DIR / path.name).read_text(encoding="utf-8")
    for old, new in (
        ("project-e00replaceme, region: eu-north1", "project-e01mine, region: eu-west1"),
        ("nodes: 4\n", "nodes: 1000\n"),
    ):
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    answer = program.preview("h200-elastic", f"--config-file={path}")
    assert answer.status == 0, answer.text
    told = "\n".join(answer.messages("info"))
    assert "Cost of h200-elastic (USD" in told
    groups = [each for each in answer.graph() if each["type"].endswith(":NodeGroup")]
    assert len(groups) > 10


@pytest.mark.feature("S002-74")
def test_an_up_over_a_quota_makes_nothing_and_shows_the_table(
    program: Program, small_quota: None
) -> None:
    done = program("up", "--yes", "--skip-preview", "--stack", STACK)
    assert done.returncode != 0
    text = done.stdout + done.stderr
    assert "quotas: too small for this stack" in text
    assert "Cost of h100-prod (USD" in text, "what it would cost is no less known"
    assert "QUOTA" in text
    assert f"{SIZE} " in text
    assert "1024 GiB" in text
    assert "Traceback" not in text
    path = folder(program) / "nebius.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT count(*) FROM operations").fetchone()
    assert rows == (0,)


def test_an_api_that_hangs_delays_a_preview_and_stops_nothing(program: Program) -> None:
    faults = Faults(folder(program))
    faults.plant([{"method": "QuotaAllowance", "code": "SLOW", "seconds": 60, "times": 99}])
    try:
        answer = program.preview(STACK)
    finally:
        faults.plant([])
    assert answer.status == 0, answer.text
    assert any(
        "not checked: quotas" in line or ", quotas" in line for line in answer.messages("info")
    )


def test_an_api_that_is_down_stops_no_preview(program: Program) -> None:
    offline.stop(State(program.root))
    try:
        answer = program.preview(STACK)
    finally:
        program.environ["SOPERATOR_NEBIUS_ENDPOINT"] = offline.start(State(program.root))
    assert answer.status == 0, answer.text
    (line,) = {line for line in answer.messages("info") if line.startswith("pre-flight: ")}
    assert line.startswith("pre-flight: 0 passed; not checked: credentials, ")


def test_doctor_prints_every_answer_with_its_fix(program: Program, small_quota: None) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "infra.cli.main", "doctor", "--stack", STACK, "--format", "json"],
        env=program.environ,
        capture_output=True,
        text=True,
        check=False,
    )
    found = {one["check"]: one for one in json.loads(done.stdout)}
    assert done.returncode == 1
    assert found["quotas"]["outcome"] == "FAIL"
    assert "console" in found["quotas"]["fix"]
    assert found["charts"]["outcome"] == "NOT CHECKED"
    assert found["platforms"]["outcome"] == "PASS"
