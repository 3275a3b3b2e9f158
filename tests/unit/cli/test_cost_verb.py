"""`soperator cost` as people type it: what it prints, what it writes, and how it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from cost.diff.table import MARK
from cost.prices.book import Price, Unit
from cost.runs.ledger import FILE_NAME, Ledger
from infra.cli.main import app
from infra.operate.prices import save
from stacks.load import STACKS_DIR
from tests.unit.cost.conftest import RECORD, record_text
from tests.unit.cost.run_stacks import actual_entry, at

RUNNER = CliRunner()
CHECKOUT = STACKS_DIR.parent


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, public_key_file: Path) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("SOPERATOR_STATE", str(folder))
    return folder


@pytest.fixture
def checkout(tmp_path: Path, state: Path) -> Path:
    """A copy of what this checkout declares and prices, free to change."""
    folder = tmp_path / "base"
    shutil.copytree(STACKS_DIR, folder / "stacks", ignore=shutil.ignore_patterns("*.py"))
    shutil.copytree(CHECKOUT / "cost" / "prices", folder / "cost" / "prices")
    return folder


def cost(*arguments: str) -> Result:
    return RUNNER.invoke(app, ["cost", *arguments])


def refused(result: Result, *said: str) -> str:
    """The one line of a refusal, which printed nothing else."""
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    for text in said:
        assert text in line
    return line


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def stack_with(folder: Path, monkeypatch: pytest.MonkeyPatch, **keys: Any) -> None:
    """Makes `mine` the l40s-dev stack with these keys, and the folder the one of stacks."""
    document = yaml.safe_load((STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8"))
    config = document["config"]
    for key, value in keys.items():
        config[f"soperator-stack:{key}"] = value
    folder.mkdir(exist_ok=True)
    (folder / "Pulumi.mine.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    monkeypatch.setattr("stacks.load.load_stack.__defaults__", (folder,))


def test_a_bill_has_the_preemption_rate_that_the_stack_s_jobs_met(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """As its preview has: `soperator cost` printed what is declared, whatever the ledger knew."""
    document = yaml.safe_load((STACKS_DIR / "Pulumi.l40s-dev.yaml").read_text(encoding="utf-8"))
    nodes = document["config"]["soperator-stack:nodes"]
    nodes["workers"] = [{**each, "billing": "preemptible"} for each in nodes["workers"]]
    rate = {"preemptions_per_node_day": 1, "checkpoint_stall_s": 30, "restart_s": 300}
    preemption = {**rate, "source": "a guess"}
    stack_with(tmp_path / "stacks", monkeypatch, nodes=nodes, preemption=preemption)
    ended = actual_entry("7", None, at(0), at(23))
    Ledger(state / "runs" / "mine" / FILE_NAME).append(ended)
    for arguments in (("--stack", "mine"), ("explain", "preemption[finetune]", "--stack", "mine")):
        result = cost(*arguments)
        assert "the rate is learned: 0 preemptions in 3.83 node-days" in " ".join(
            result.output.split()
        )


def test_a_ledger_that_cannot_be_read_costs_the_bill_that_rate_alone(state: Path):
    """It refused every bill of the stack, whose lines it has nothing to do with."""
    whole = cost("--stack", "l40s-dev", "--format", "json")
    (state / "runs" / "l40s-dev" / FILE_NAME).mkdir(parents=True)
    result = cost("--stack", "l40s-dev", "--format", "json")
    assert (result.exit_code, result.stdout) == (0, whole.stdout)
    assert "cannot be read" in result.stderr
    assert "the preemption rate that its jobs met is left out" in result.stderr


def test_two_stacks_stand_side_by_side_with_the_difference(state: Path):
    result = cost("--stack", "h100-prod", "--compare", "l40s-dev", "--format", "json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["stacks"] == ["h100-prod", "l40s-dev"]
    rows = {row["name"]: row for row in document["rows"]}
    assert rows["GPUs"]["text"] == ["16 h100-sxm", "10 l40s-d"]
    assert rows["Total $/month"]["low_usd"][1] == "18116.0796"
    table = cost("--stack", "h100-prod", "--compare", "l40s-dev").stdout
    assert "Difference" in table


def test_three_stacks_have_a_column_each_and_no_difference(state: Path):
    result = cost("--stack", "l40s-dev", "--compare", "h100-prod", "--compare", "local")
    assert result.exit_code == 0, result.output
    header = result.stdout.splitlines()[2].split()
    assert header == ["Figure", "l40s-dev", "h100-prod", "local"]


def test_a_stack_is_not_compared_with_itself(state: Path):
    refused(cost("--stack", "local", "--compare", "local"), "--compare local", "named twice")


def test_a_stack_of_another_time_shows_the_change_with_its_cause(checkout: Path):
    edit(checkout / "stacks" / "Pulumi.l40s-dev.yaml", "nodes: 4", "nodes: 5")
    result = cost("--compare", str(checkout), "--stack", "l40s-dev")
    assert result.exit_code == 0, result.output
    assert "nodes.workers[worker].nodes: 5 -> 4" in result.stdout
    # One node less: 4.5688 x 730 and its disk of 558 GiB at 0.053.
    assert "-$3,364.80" in result.stdout


def test_another_checkout_becomes_one_comment_for_all_its_stacks(checkout: Path):
    edit(checkout / "stacks" / "Pulumi.l40s-dev.yaml", "nodes: 4", "nodes: 5")
    (checkout / "stacks" / "Pulumi.h200-elastic.yaml").unlink()
    result = cost("--compare", str(checkout), "--format", "markdown")
    assert result.exit_code == 0, result.output
    text = result.stdout
    assert text.startswith(MARK)
    assert "nodes.workers[worker].nodes: 5 -> 4" in text
    assert "| `h200-elastic` | first deployment |" in text
    # A stack file of the reader's own may lie beside the shipped ones.
    assert re.search(r"No change in cost: h100-prod, local\b", text)
    assert text.count("<details>") == text.count("</details>") == 2


def test_a_price_that_changed_shows_without_any_change_of_a_stack(checkout: Path):
    book = checkout / "cost" / "prices" / "nebius-2026-09.yaml"
    edit(book, "usd: 1.35", "usd: 1.40")
    result = cost("--compare", str(checkout), "--stack", "l40s-dev")
    assert result.exit_code == 0, result.output
    assert "gpu-l40s-d/gpu" in result.stdout
    # Ten GPUs at five cents less over 730 hours.
    assert "-$365.00" in result.stdout


def test_a_checkout_that_cannot_be_read_is_said_in_the_comment(checkout: Path):
    edit(checkout / "stacks" / "Pulumi.local.yaml", "soperator-stack:code_path", "bad:key:x")
    edit(
        checkout / "stacks" / "Pulumi.local.yaml", "soperator-stack:prices", "soperator-stack:pries"
    )
    result = cost("--compare", str(checkout), "--format", "markdown")
    assert result.exit_code == 0, result.output
    assert "cannot be read" in result.stdout
    assert "did you mean 'prices'?" in result.stdout


def test_a_stack_of_a_checkout_is_not_called_deployed(checkout: Path):
    edit(checkout / "stacks" / "Pulumi.l40s-dev.yaml", "nodes: 4", "nodes: 5")
    result = cost("--compare", str(checkout))
    assert "Change of l40s-dev, declared there to declared here" in result.stdout


def test_an_unknown_price_book_is_refused_by_its_key(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stack_with(tmp_path / "stacks", monkeypatch, prices="nebus")
    refused(cost("--stack", "mine"), "mine.prices: nebus: no such price book")


def test_a_folder_that_is_no_checkout_is_refused(state: Path, tmp_path: Path):
    refused(cost("--compare", str(tmp_path)), f"--compare {tmp_path}", "no folder stacks")
    refused(cost("--compare", str(tmp_path / "base")), "give a checkout")


@pytest.mark.parametrize("name", ["stacks/Pulumi.local.yaml", "Pulumi.local.yaml", "base/x.yml"])
def test_a_stack_file_is_refused_with_what_to_give_instead(state: Path, name: str) -> None:
    refused(cost("--compare", name), f"--compare {name}: give its checkout, and the stack by")


def test_a_stack_that_neither_checkout_has_is_refused(checkout: Path) -> None:
    compared = cost("--stack", "l40s-dv", "--compare", str(checkout))
    assert refused(compared, "l40s-dv") == refused(cost("--stack", "l40s-dv"), "l40s-dev")
    (checkout / "stacks" / "Pulumi.l40s-dev.yaml").rename(checkout / "stacks" / "Pulumi.gone.yaml")
    result = cost("--stack", "gone", "--compare", str(checkout))
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("gone: The stack is removed: ")


def test_a_checkout_without_price_books_is_told_to_be_priced_by_those_of_today(
    checkout: Path,
) -> None:
    with_books = cost("--compare", str(checkout), "--stack", "l40s-dev")
    assert with_books.stderr == ""
    shutil.rmtree(checkout / "cost")
    without = cost("--compare", str(checkout), "--stack", "l40s-dev")
    assert (without.exit_code, without.stdout) == (0, with_books.stdout)
    assert without.stderr == (
        f"--compare {checkout}: no folder cost/prices in it; priced by the price books of today\n"
    )


def test_kept_estimates_price_a_stack_on_both_sides(
    checkout: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The side of the other checkout had none: an unchanged stack was $4,745.00 a month dearer."""
    folder = checkout / "stacks"
    stack_with(folder, monkeypatch, live_prices=True)
    monkeypatch.setattr("stacks.load.stack_names.__defaults__", (folder,))
    unit, day = Unit.GPU_HOUR, date(2026, 11, 20)
    told = Price(sku="gpu-l40s-d/gpu", unit=unit, usd=Decimal(2), source="calculator", date=day)
    save(state, "eu-north1", [told])
    assert "22,861.08" in cost("--stack", "mine").stdout
    result = cost("--compare", str(checkout), "--stack", "mine")
    assert (result.exit_code, result.stdout) == (0, "No change in cost.\n"), result.output


def test_a_figure_is_explained_from_either_side_of_the_verb(state: Path):
    one = cost("explain", "total", "--stack", "l40s-dev")
    other = cost("--stack", "l40s-dev", "explain", "total")
    assert one.exit_code == 0, one.output
    assert one.stdout == other.stdout
    assert "18116.0796 USD a month" in " ".join(one.stdout.split())


def test_an_unknown_item_is_refused_with_the_nearest_names(state: Path):
    refused(cost("explain", "totl", "--stack", "l40s-dev"), "totl", "did you mean 'total'")


def test_alternatives_say_what_to_change_and_what_it_saves(state: Path):
    result = cost("--stack", "h100-prod", "--alternatives", "--format", "json")
    assert result.exit_code == 0, result.output
    (first, *_) = json.loads(result.stdout)["alternatives"]
    assert float(first["difference_usd"]) < 0
    assert first["changes"][0]["key"].startswith("nodes.workers[worker].")


def test_without_some_hardware_the_alternatives_use_other(state: Path):
    result = cost("--stack", "h100-prod", "--without", "gpu-h100-sxm", "--format", "json")
    found = json.loads(result.stdout)["alternatives"]
    assert found
    for item in found:
        assert any(change["after"] != "gpu-h100-sxm" for change in item["changes"])
    refused(cost("--without", "gpu-h10-sxm"), "did you mean 'gpu-h100-sxm'?")


def test_two_questions_at_once_are_refused(state: Path):
    refused(cost("--alternatives", "--compare", "h100-prod"), "ask one at a time")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--stack", "l40s-dev"),
        ("--stack", "l40s-dev", "--compare", "local"),
        ("--stack", "h100-prod", "--alternatives"),
        ("explain", "total", "--stack", "l40s-dev"),
    ],
)
@pytest.mark.parametrize("format", ["table", "json", "markdown", "csv", "html"])
def test_every_answer_prints_in_every_format(state: Path, arguments: tuple[str, ...], format: str):
    result = cost(*arguments, "--format", format)
    assert result.exit_code == 0, result.output
    if format == "json":
        assert json.loads(result.stdout)
    if format == "csv":
        assert len(list(csv.reader(io.StringIO(result.stdout)))) > 1


@pytest.mark.feature("S000-112")
def test_both_tables_of_chats_count_the_same_chats_a_day(state: Path):
    """One of them cut 164.16 off to 164."""
    found = []
    for words in ([], ["chat"]):
        text = cost(*words, "--stack", "l40s-dev", "--format", "csv").stdout
        table = "scenario," + text.split("scenario,", 1)[1]
        rows = csv.DictReader(io.StringIO(table))
        found.append([row["chats_per_day"] for row, _ in zip(rows, range(3), strict=False)])
    assert found[0] == found[1]
    assert found[0][0] == "164.16"


def test_output_goes_to_a_file_whole_and_the_file_is_named(state: Path, tmp_path: Path):
    file = tmp_path / "bill.html"
    result = cost("--stack", "local", "--format", "html", "--output", str(file))
    assert result.exit_code == 0, result.output
    assert result.stdout.strip() == str(file)
    assert file.read_text(encoding="utf-8").endswith("</html>\n")
    assert [each.name for each in tmp_path.iterdir() if "bill" in each.name] == ["bill.html"]


def test_a_refusal_leaves_the_file_that_was_there_as_it_was(state: Path, tmp_path: Path):
    file = tmp_path / "bill.md"
    file.write_text("before", encoding="utf-8")
    assert cost("--stack", "nope", "--output", str(file)).exit_code == 1
    assert file.read_text(encoding="utf-8") == "before"


def test_a_folder_that_is_not_there_is_refused_before_anything_is_printed(
    state: Path, tmp_path: Path
):
    result = cost("--output", str(tmp_path / "none" / "bill.txt"))
    refused(result, "none/bill.txt", "nothing was written")


# What bad input gets: one line with the file and key, exit 1, nothing printed.


def broken_book(folder: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> Path:
    """A price book of one's own with one change, in the place of the shipped ones."""
    shutil.copytree(CHECKOUT / "cost" / "prices", folder / "prices")
    book = folder / "prices" / "nebius-2026-09.yaml"
    edit(book, old, new)
    monkeypatch.setattr("cost.prices.book.PriceBook.load.__defaults__", (folder / "prices",))
    return book


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            ', source: "README of github.com/sar/nebius: 1x NVIDIA L40S on EPYC Genoa"',
            "",
            ".source",
        ),
        ('Genoa", read: 2026-11-21', 'Genoa"', "gpu-l40s-d/gpu"),
        ("usd: 1.35", "usd: -1.35", "-1.35"),
        ("currency: USD", "currency: EUR", ".currency"),
    ],
)
def test_a_price_book_with_a_mistake_is_refused_with_file_and_key(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str, said: str
):
    book = broken_book(tmp_path, monkeypatch, old, new)
    refused(cost("--stack", "l40s-dev"), book.name, said)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        (
            "chat",
            {"model": "M", "context_tokens": 8000, "output_tokens": 0},
            "mine.chat.output_tokens",
        ),
        ("quotas", [{"name": "compute.disk.count", "limit": -1}], "mine.quotas[0].limit"),
        ("polcy", {}, "did you mean 'policy'?"),
        ("policy", {"max_usd_per_month": -5}, "mine.policy.max_usd_per_month"),
        (
            "contract_prices",
            [{"sku": "public-ip", "unit": "address-hour", "usd": 1, "source": "x"}],
            "mine.contract_prices[0].date",
        ),
        *(
            (
                "contract_prices",
                [
                    {
                        "sku": "public-ip",
                        "unit": "address-hour",
                        "usd": 1,
                        "source": "x",
                        "date": "2026-01-01",
                        key: wrong,
                    }
                ],
                f"mine.contract_prices[0].{key}: expected {said}",
            )
            for key, wrong, said in (
                ("usd", -1, "a number of 0 or more"),
                ("source", " ", "text that is not blank"),
                ("date", "soon", "a day"),
            )
        ),
    ],
)
def test_a_stack_with_a_mistake_is_refused_with_its_key(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str, value: Any, said: str
):
    stack_with(tmp_path / "stacks", monkeypatch, **{key: value})
    refused(cost("--stack", "mine"), said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (record_text()[:-40], "not valid JSON"),
        (record_text(schema_version=2), "schema_version: got 2, expected 1"),
        (json.dumps({key: RECORD[key] for key in RECORD if key != "metrics"}), "metrics"),
    ],
)
def test_a_damaged_run_record_is_refused_with_its_file(state: Path, text: str, said: str):
    folder = state / "runs" / "local" / "12"
    folder.mkdir(parents=True)
    (folder / "run_record.json").write_text(text, encoding="utf-8")
    refused(cost("--stack", "local"), "12/run_record.json", said)
    refused(cost("explain", "chat", "--stack", "local"), "12/run_record.json", said)


def test_a_broken_policy_is_shown_with_the_bill_and_told_on_standard_error(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stack_with(tmp_path / "stacks", monkeypatch, policy={"max_usd_per_month": 19000})
    result = cost("--stack", "mine")
    assert result.exit_code == 1, result.output
    assert "BROKEN" in result.stdout
    assert "error: mine.policy.max_usd_per_month" in result.stderr
    assert "nodes.controller.nodes: 2 -> 1" in result.stderr


def test_a_stack_over_its_quota_still_gets_alternatives(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    quotas = [{"name": "compute.instance.gpu.l40s", "limit": 4}]
    stack_with(tmp_path / "stacks", monkeypatch, quotas=quotas)
    result = cost("--stack", "mine", "--alternatives", "--format", "json")
    assert result.exit_code == 0, result.output
    for item in json.loads(result.stdout)["alternatives"]:
        after = [change["after"] for change in item["changes"]]
        assert not any(value.startswith("gpu-l40s") for value in after)


def test_a_limit_that_is_declared_twice_is_refused_and_one_that_is_passed_is_shown(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quota = {"name": "compute.instance.gpu.l40s", "limit": 1}
    stack_with(tmp_path / "stacks", monkeypatch, quotas=[quota])
    found = cost("--stack", "mine")
    assert found.exit_code == 1, found.stderr
    assert "Total" in found.stdout
    stack_with(tmp_path / "stacks", monkeypatch, quotas=[quota, quota])
    refused(cost("--stack", "mine"), "'compute.instance.gpu.l40s' is used twice")


def test_a_share_of_more_than_everything_is_refused(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack_with(tmp_path / "stacks", monkeypatch, policy={"max_idle_share": 1.2})
    refused(cost("--stack", "mine"), "policy.max_idle_share: expected a share from 0 to 1")


def test_another_checkout_becomes_rows_and_a_page_too(checkout: Path) -> None:
    path = checkout / "stacks" / "Pulumi.l40s-dev.yaml"
    edit(path, "jail: {size_gib: 256}", "jail: {size_gib: 128}")
    rows = list(csv.reader(io.StringIO(cost("--compare", str(checkout), "--format", "csv").stdout)))
    assert rows[0][:3] == ["stack", "resource", "before_usd"]
    (jail,) = [row for row in rows if row[:2] == ["l40s-dev", "Shared filesystems: jail"]]
    assert jail[2:5] == ["10.24", "20.48", "10.24"]
    page = cost("--compare", str(checkout), "--format", "html").stdout
    assert page.startswith("<!doctype html>")
    assert "<h2>l40s-dev</h2>" in page
    assert "storage.jail.size_gib: 128 -&gt; 256" in page


@pytest.mark.parametrize("name", ["/dev/stdout", "/proc/self/fd/1"])
@pytest.mark.parametrize("to_file", [False, True])
def test_an_output_that_is_standard_output_gets_the_document_alone(
    state: Path, tmp_path: Path, public_key_file: Path, name: str, to_file: bool
) -> None:
    """A pipe, and a file that the shell opened to append to."""
    words = ["-m", "infra.cli.main", "cost", "--stack", "l40s-dev", "--format", "json", "-o", name]
    if to_file:
        path = tmp_path / "log"
        path.write_text("before\n")
        with path.open("a") as log:
            subprocess.run([sys.executable, *words], stdout=log, check=True, cwd=CHECKOUT)
        before, _, printed = path.read_text().partition("\n")
        assert before == "before"
    else:
        done = subprocess.run(
            [sys.executable, *words], capture_output=True, text=True, check=True, cwd=CHECKOUT
        )
        printed = done.stdout
    assert json.loads(printed)["stack"] == "l40s-dev"
