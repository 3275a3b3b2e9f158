"""The bill in a preview of the real engine: what changed since the deployment, and by which key.

A deployment is a state whose root resource has the outputs that the program exports: the earlier
bill is read from there and from nowhere else.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cost.bill.bill import bill
from cost.diff.diff import cost_outputs
from cost.prices.book import layered
from stacks.load import STACKS_DIR, load_stack
from tests.engine.nebius_project import pulumi_binary
from tests.engine.program_env import Answer, Program, running_program
from tests.nightly import at_night
from tests.unit.attach.test_attached_stack import attached
from tests.unit.cost.loads import load_json, write_load

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(pulumi_binary() is None, reason="no pulumi: run `make setup`"),
    pytest.mark.usefixtures("forks"),
]
STACK = "l40s-dev"
ROOT = "pulumi:pulumi:Stack"
WORKER = "        preset: 2gpu-64vcpu-384gb\n        nodes: 4\n"
DATA = "{name: data, mount_path: /mnt/data, size_gib: 1024}"


def exported(program: Program) -> dict[str, Any]:
    """The output `cost` of the stack as it is shipped; the test of plain outputs sees it whole."""
    spec = load_stack(STACK, environ=program.environ)
    return cost_outputs(bill(spec, layered(spec)))


def deploy(program: Program, outputs: dict[str, Any]) -> None:
    """Leaves a state whose root resource has these outputs."""
    exported = json.loads(program("stack", "export", "--stack", STACK).stdout)
    exported["deployment"]["resources"] = [
        {
            "urn": f"urn:pulumi:{STACK}::soperator-stack::{ROOT}::soperator-stack-{STACK}",
            "custom": False,
            "type": ROOT,
            "outputs": outputs,
        }
    ]
    path = program.root / "state.json"
    path.write_text(json.dumps(exported))
    done = program("stack", "import", "--stack", STACK, "--file", str(path))
    assert done.returncode == 0, done.stderr


def text_of(answer: Answer) -> str:
    """The program's lines in one, without the table's padding."""
    assert answer.status == 0, answer.text
    return "\n".join(" ".join(line.split()) for line in answer.messages("info"))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    with running_program(tmp_path_factory.mktemp("state")) as running:
        yield running


@pytest.fixture(scope="module")
def first(program: Program) -> Answer:
    """The preview of a stack that was never deployed."""
    return program.preview(STACK)


@pytest.fixture(scope="module")
def deployed(program: Program, first: Answer) -> Program:
    """The program with l40s-dev deployed as it is shipped; after the first preview."""
    assert first.status == 0
    deploy(program, {"cost": exported(program)})
    return program


@pytest.fixture
def edited(deployed: Program, tmp_path: Path) -> Callable[[str, str], Answer]:
    """The preview after one text of the stack file became another."""

    def preview(old: str, new: str) -> Answer:
        text = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text()
        assert text.count(old) == 1, f"{old!r} is not once in the stack file"
        path = tmp_path / f"Pulumi.{STACK}.yaml"
        path.write_text(text.replace(old, new))
        return deployed.preview(STACK, f"--config-file={path}")

    return preview


def test_a_first_preview_has_a_bill_and_nothing_to_compare_with(first: Answer) -> None:
    text = text_of(first)
    assert "Subtotal 24.817..26.082 18,116.08..19,039.60" in text
    assert "First deployment: no earlier bill to compare with." in text


def test_the_cost_is_a_plain_output_that_a_preview_knows(program: Program) -> None:
    done = program("preview", "--stack", STACK, "--diff", "--suppress-progress")
    for name, value in (
        ("subtotal_low_usd", "18116.08"),
        ("per_1m_tokens_usd", "1814.075102"),
        ("nodes.workers[worker].nodes", "4"),
    ):
        assert re.search(rf'^[ +]*{re.escape(name)} *: "{value}"$', done.stdout, re.MULTILINE), name


def test_a_preview_without_a_change_says_that_nothing_costs_more(deployed: Program) -> None:
    assert "No change in cost." in text_of(deployed.preview(STACK))


EDITS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "a number of nodes": (
        WORKER,
        WORKER.replace("nodes: 4", "nodes: 5"),
        (
            "Compute: worker (gpu-l40s-d) $13,340.90 $16,676.12 +$3,335.22 +$3,335.22",
            "nodes.workers[worker].nodes: 4 -> 5",
            "$/h at min_nodes $24.82 $29.43 +$4.61",
            "$/chat $3.63 $4.30 +$0.674",
        ),
    ),
    "a preset": (
        WORKER,
        WORKER.replace("2gpu-64vcpu-384gb", "2gpu-96vcpu-576gb"),
        (
            "Compute: worker (gpu-l40s-d) $13,340.90 $16,069.34 +$2,728.45 +$2,728.45",
            "nodes.workers[worker].preset: 2gpu-64vcpu-384gb -> 2gpu-96vcpu-576gb",
        ),
    ),
    "a size": (
        DATA,
        DATA.replace("1024", "2048"),
        (
            "Shared filesystems: data (submount) $81.92 $163.84 +$81.92 +$81.92",
            "storage.submounts[data].size_gib: 1024 -> 2048",
            "Total $18,116.08 $18,198.00 +$81.92 +$81.92",
        ),
    ),
    "a price book": (
        "soperator-stack:prices: nebius-2026-09",
        "soperator-stack:prices: nebius",
        (
            "prices: nebius-2026-09 -> nebius",
            "price cpu-d3/vcpu: 0.012 (nebius-2026-09, undated, read on 2026-11-21) -> 0.015 (",
        ),
    ),
    "a chat": (
        "output_tokens: 2000",
        "output_tokens: 1000",
        ("$/chat $3.63 $1.81 -$1.81", "chat.output_tokens: 2000 -> 1000"),
    ),
}


@pytest.mark.parametrize(
    "edit", [at_night(each) if each in ("a preset", "a size") else each for each in EDITS]
)
def test_one_edited_key_is_named_under_what_it_changes(
    edited: Callable[[str, str], Answer], edit: str
) -> None:
    old, new, lines = EDITS[edit]
    answer = edited(old, new)
    text = text_of(answer)
    assert [line for line in lines if line not in text] == [], text
    assert not [line for line in answer.messages("warning") if "DATA LOSS" in line]


def test_a_pulled_load_test_prices_the_next_preview_and_is_named_as_the_cause(
    deployed: Program,
) -> None:
    """18,116.08 / 730 USD an hour, 2,000 tokens at 90 tokens/s: 0.1531 USD a chat."""
    sweep = ((1, 12.0, 0.4, True), (16, 90.0, 3.0, True), (32, 99.0, 9.0, False))
    metrics = {"batch_size": 16, "batch_output_tokens_per_s": 90.0}
    folder = deployed.root / "runs" / STACK / "14"
    values = {"stack": STACK, "model": "Qwen3-14B", "metrics": metrics}
    write_load(folder, load_json(sweep), **values)
    try:
        text = text_of(deployed.preview(STACK))
    finally:
        shutil.rmtree(folder)
    assert "$/chat $3.63 $0.153 -$3.47" in text
    assert (
        f"$/chat: now measured: Batch Size 16 Finetuned: job 14 of stack {STACK} on cpu; was "
        "assumed: Single Batch Finetuned: published run (sar/nebius), measured on 2x L40S"
    ) in " ".join(text.split())
    assert "Operating point of Batch Size 16 Finetuned: 16 streams, 90 tokens/s" in text


def test_another_type_of_a_kept_filesystem_is_told_to_be_refused(
    edited: Callable[[str, str], Answer],
) -> None:
    answer = edited(DATA, DATA.replace("1024}", "1024, type: network-hdd}"))
    change = (
        "storage.submounts[data].type: network-ssd -> network-hdd: the filesystem at /mnt/data "
        "(1024 GiB) cannot change its type, so `up` will refuse it; take the type back"
    )
    assert change in answer.messages("warning")
    assert f"!!! {change}" in text_of(answer)


def test_a_deployment_of_another_format_is_no_baseline_and_no_error(deployed: Program) -> None:
    program = deployed
    cost = exported(program)
    try:
        deploy(program, {"cost": {**cost, "snapshot": {**cost["snapshot"], "format": 0}}})
        text = text_of(program.preview(STACK))
    finally:
        deploy(program, {"cost": cost})
    assert "that of the deployment cannot be read: its format is 0" in text.replace(".0,", ",")


def test_a_stack_of_an_attached_cluster_has_nothing_to_build(
    program: Program, tmp_path: Path
) -> None:
    path, _ = attached(tmp_path)
    text = path.read_text(encoding="utf-8")
    salt = (STACKS_DIR / f"Pulumi.{STACK}.yaml").read_text(encoding="utf-8")
    salt = next(line for line in salt.splitlines() if line.startswith("encryptionsalt"))
    path.write_text(f"{text}{salt}\n", encoding="utf-8")
    answer = program.preview(STACK, f"--config-file={path}")
    assert answer.status != 0
    assert "is attached to a cluster that others run, so there is nothing to build" in answer.text
