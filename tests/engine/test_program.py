"""The program itself: what it would make of every stack, and what it refuses before anything."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from stacks.load import STACKS_DIR
from tests import SHIPPED
from tests.conftest import GOLDEN_DIR
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Answer, Program, running_program

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
]
Preview = Callable[[str], Answer]
ROOT = "pulumi:pulumi:Stack"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def preview(program: Program) -> Preview:
    """The preview of a shipped stack, once per stack."""

    @cache
    def shown(stack: str) -> Answer:
        answer = program.preview(stack)
        assert answer.status == 0, answer.text
        return answer

    return shown


@pytest.mark.feature("S000-01", "S000-66", "S001-12", "S003-14", "S004-32")
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_stack_previews_as_its_golden_graph(
    preview: Preview, golden: Callable[[str, str], None], stack: str
) -> None:
    lines = [json.dumps(each) for each in preview(stack).graph()]
    golden(f"graph/{stack}.json", "[\n  " + ",\n  ".join(lines) + "\n]\n")


@pytest.mark.parametrize("stack", SHIPPED)
def test_the_preview_shows_the_bill_line_by_line_to_its_total(preview: Preview, stack: str) -> None:
    """Money is seen before it is spent; what a chat costs depends on the runs of this machine."""
    text = (GOLDEN_DIR / "cost" / f"{stack}.txt").read_text()
    bill = text.partition("\n\nCost per chat")[0].strip("\n")
    assert re.search(r"^Total +.*[0-9,]+\.[0-9]{2}$", bill, re.MULTILINE)
    shown = "\n".join(preview(stack).messages("info"))
    assert bill in shown
    assert "\nIf you forget it: $" in shown


@pytest.mark.parametrize("stack", SHIPPED)
def test_a_preview_reports_no_error(preview: Preview, stack: str) -> None:
    assert preview(stack).messages("error") == []


def test_a_warning_has_its_path_and_its_price(preview: Preview) -> None:
    (controller,) = [
        line for line in preview("l40s-dev").messages("warning") if "nodes.controller" in line
    ]
    assert controller.startswith("l40s-dev.nodes.controller.max_nodes: 2 nodes, but ")
    assert controller.endswith("per month)")


def test_no_state_of_a_real_cluster_is_made_under_the_passphrase_that_everybody_knows(
    program: Program,
) -> None:
    """Nothing is asked of the cloud before: this one is not reached."""
    answer = program.preview("h100-prod", SOPERATOR_NEBIUS_ENDPOINT="")
    assert answer.status != 0
    (said, *_) = [line for line in answer.messages("error") if "encryptionsalt" in line]
    assert "change-secrets-provider passphrase --stack h100-prod" in said


def test_a_preview_writes_into_no_stack_file(program: Program, preview: Preview) -> None:
    """An engine that finds no salt in the file writes one: each user would have a change."""
    before = {path: path.read_bytes() for path in STACKS_DIR.glob("Pulumi.*.yaml")}
    assert preview("local").status == 0
    assert program("config", "--stack", "local").returncode == 0
    assert {path: path.read_bytes() for path in before} == before


WORKER_PRESET = "preset: 2gpu-64vcpu-384gb\n        nodes: 4"
"""Of the first of the two nodesets: both have the same hardware."""
REFUSED = {
    "an unknown key": (
        "soperator_version: 4.1.7",
        "soperator_versoin: 4.1.7",
        "cluster.soperator_versoin: unknown key; did you mean 'soperator_version'?",
    ),
    "a preset of another platform": (
        WORKER_PRESET,
        "preset: 8gpu-128vcpu-1600gb\n        nodes: 4",
        "nodes.workers[0].preset: '8gpu-128vcpu-1600gb' is not a preset of 'gpu-l40s-d' (has: ",
    ),
    "a fabric on L40S": (
        WORKER_PRESET,
        f"{WORKER_PRESET}\n        infiniband_fabric: fabric-6",
        "nodes.workers[0].infiniband_fabric: ",
    ),
    "a size of 0": (
        "jail: {size_gib: 256}",
        "jail: {size_gib: 0}",
        "storage.jail.size_gib: expected a whole number of 1 or more, got 0",
    ),
    "a broken policy": (
        "  soperator-stack:prices: nebius-2026-09\n",
        (
            "  soperator-stack:prices: nebius-2026-09\n"
            "  soperator-stack:policy: {max_usd_per_month: 19000}\n"
        ),
        (
            "policy.max_usd_per_month: $19,039.61, but allowed is $19,000.00 a month; the cheapest "
            "that keeps every limit: nodes.controller.nodes: 2 -> 1 ("
        ),
    ),
    "more than a quota": (
        "  soperator-stack:prices: nebius-2026-09\n",
        (
            "  soperator-stack:prices: nebius-2026-09\n"
            "  soperator-stack:quotas: [{name: compute.instance.gpu.l40s, limit: 8}]\n"
        ),
        "quotas[0].limit: the stack needs 10 of compute.instance.gpu.l40s, but the limit is 8",
    ),
    "a missing key": (
        "  soperator-stack:prices: nebius-2026-09\n",
        "",
        "prices: missing; give text",
    ),
}


@pytest.fixture
def changed(tmp_path: Path) -> Callable[[str, str], str]:
    """A copy of l40s-dev with one text replaced, as an option of pulumi."""

    def copy(old: str, new: str) -> str:
        text = (STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text()
        assert text.count(old) == 1, f"{old!r} is not once in the stack file"
        path = tmp_path / "Pulumi.l40s-dev.yaml"
        path.write_text(text.replace(old, new))
        return f"--config-file={path}"

    return copy


@pytest.mark.parametrize("mistake", REFUSED)
def test_a_mistake_is_refused_in_one_line_with_its_path(
    program: Program, changed: Callable[[str, str], str], mistake: str
) -> None:
    old, new, message = REFUSED[mistake]
    answer = program.preview("l40s-dev", changed(old, new))
    assert answer.status != 0
    (line,) = answer.messages("error")
    assert line.startswith(f"l40s-dev.{message}")
    assert [each["type"] for each in answer.graph()] == [ROOT]


def test_several_mistakes_are_reported_together(
    program: Program, changed: Callable[[str, str], str]
) -> None:
    ids = "tenant_id: tenant-e00replaceme, project_id: project-e00replaceme"
    answer = program.preview("l40s-dev", changed(ids, "tenant_id: e00, project_id: e00"))
    assert [line.split(": ")[0] for line in answer.messages("error")] == [
        "l40s-dev.nebius.tenant_id",
        "l40s-dev.nebius.project_id",
    ]


def test_a_missing_public_key_is_refused_with_how_to_make_one(program: Program) -> None:
    missing = str(program.root / "nowhere.pub")
    answer = program.preview("l40s-dev", SOPERATOR_SSH_PUBLIC_KEY_FILE=missing)
    assert answer.status != 0
    lines = answer.messages("error")
    # The door and both users of the stack have the one key.
    paths = ("login", "soperator.users[0]", "soperator.users[1]")
    assert [line.partition(": ")[0] for line in lines] == [
        f"l40s-dev.{path}.ssh_public_keys[0]" for path in paths
    ]
    for line in lines:
        assert f": cannot read the SSH public key {missing}" in line
        assert "ssh-keygen -t ed25519" in line


def test_a_first_up_of_the_root_alone_is_told_what_else_it_needs(tmp_path: Path) -> None:
    """What --target leaves out has no outputs yet: they were taken for None, a traceback."""
    root = f"urn:pulumi:local::soperator-stack::{ROOT}::soperator-stack-local"
    with running_program(tmp_path) as program:
        done = program("up", "--yes", "--skip-preview", "--stack=local", f"--target={root}")
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "specified in --target list" in said
    assert not re.search(r"Traceback|\w+Error\b", said), said


def test_an_up_of_a_refused_stack_makes_nothing(
    program: Program, changed: Callable[[str, str], str]
) -> None:
    old, new, message = REFUSED["a fabric on L40S"]
    done = program("up", "--yes", "--skip-preview", "--stack=l40s-dev", changed(old, new))
    assert done.returncode != 0
    assert f"error: l40s-dev.{message}" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    state = json.loads(program("stack", "export", "--stack=l40s-dev").stdout)
    assert [each["type"] for each in state["deployment"].get("resources", [])] == [ROOT]


def test_a_wrong_passphrase_is_refused_in_one_line_and_loses_nothing(program: Program) -> None:
    kept = [*STACKS_DIR.glob("Pulumi.*.yaml"), *(program.root / "offline").rglob("local.json")]
    assert [path.name for path in kept].count("local.json") == 1
    before = {path: path.read_bytes() for path in kept}
    for verb in ("preview", "up"):
        options = ["--yes", "--skip-preview"] if verb == "up" else []
        done = program(verb, "--stack=local", *options, PULUMI_CONFIG_PASSPHRASE="wrong")
        assert done.returncode != 0
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert "incorrect passphrase" in line
    assert {path: path.read_bytes() for path in kept} == before
