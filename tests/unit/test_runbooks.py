"""Each command of a runbook is one that exists: ours by its own parser, Slurm's by its own help.

What cannot run anywhere without a cloud or a GPU is a fixed list, with its source.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer import Context

from infra.cli.main import app
from infra.render.monitoring.alerts import alerts
from stacks.spec import StackSpec
from tests.unit.monitoring.conftest import BURN, watched
from workloads.train.config import TrainConfig

__all__ = ["watched"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
PAGES = sorted(page for page in FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
NCCL = re.compile(r"\bNCCL_[A-Z_]+\b")
FILL = {"ID": "12", "NODE": "worker-0", "S": "local"}
SLURM = ("sinfo", "squeue", "scontrol", "sacct", "srun", "sprio")
KUBECTL = {"get", "describe", "logs"}
PULUMI = {"up", "preview", "stack", "cancel"}
ON_NODES = {"df", "findmnt", "mountpoint", "ping", "hostname", "ibstat", "nvidia-smi"}
"""Programs of the jail's image: coreutils, util-linux, iputils, infiniband-diags, and the driver's
own (nebius/soperator, ansible/roles, read 2026-11-21)."""
CONFIG = "ClusterName=help\nSlurmctldHost=localhost\n"
"""Without one Slurm's programs do not even print their help."""
NCCL_NAMES = {
    "NCCL_DEBUG",
    "NCCL_DEBUG_SUBSYS",
    "NCCL_IB_DISABLE",
    "NCCL_IB_GID_INDEX",
    "NCCL_NET_GDR_LEVEL",
}
"""https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html, read 2026-11-21."""


def commands(text: str) -> list[list[str]]:
    """Words of each line of the blocks of commands, with the placeholders filled in."""
    lines = [line for block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]
    return [[_filled(word) for word in shlex.split(line)] for line in lines]


def _filled(word: str) -> str:
    option, equals, value = word.rpartition("=")
    return f"{option}{equals}{FILL.get(value, value)}"


def everywhere() -> list[tuple[str, list[str]]]:
    return [(page.name, words) for page in PAGES for words in commands(page.read_text())]


def of(*programs: str) -> list[tuple[str, list[str]]]:
    return [(page, words) for page, words in everywhere() if words[0] in programs]


def problem_of_ours(words: list[str]) -> str | None:
    """Why the command's own parser refuses these words; None where it takes them."""
    command: Any = typer.main.get_command(app)
    rest = words[1:]
    while hasattr(command, "get_command"):
        found = command.get_command(Context(command), rest[0])
        if found is None:
            return f"no command {rest[0]}"
        command, rest = found, rest[1:]
    try:
        command.make_context(words[1], list(rest))
    except Exception as error:  # what click raises for words that it does not take
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None


@cache
def help_of(program: str) -> str:
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed; `make setup` installs Slurm")
    if program == "sacct":
        # It asks the database before it prints its help: the options are in the program's text.
        texts = re.findall(rb"[ -~]+", Path(shutil.which(program) or "").read_bytes())
        return " ".join(f"--{text.decode()}" for text in texts)
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as config:
        config.write(CONFIG)
        config.flush()
        done = subprocess.run(
            [program, "--help"],
            env={**os.environ, "SLURM_CONF": config.name},
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout + done.stderr


def unknown_options(words: list[str]) -> list[str]:
    """Options of a Slurm command that its own help does not name."""
    text, unknown = help_of(words[0]), []
    for word in words[1:]:
        if not word.startswith("-"):
            # srun: what follows is the program's.
            if words[0] == "srun":
                break
            continue
        name = word.split("=")[0]
        if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text):
            unknown.append(name)
    return unknown


def test_there_is_a_page_for_every_symptom() -> None:
    symptoms = {"nccl-timeout", "out-of-memory", "node-failure", "storage-full", "quota"}
    symptoms |= {"pending-jobs", "login-unreachable", "destroy-stuck", "paid-and-idle"}
    assert symptoms <= {page.stem for page in PAGES}


def test_the_index_lists_every_page() -> None:
    index = (FOLDER / "README.md").read_text()
    names = {page.name for page in PAGES} - {"README.md"}
    assert not [name for name in names if f"]({name})" not in index]


def test_the_index_names_every_alert_at_its_page(watched: StackSpec) -> None:
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if "](" in line]
    for alert in alerts(watched, BURN):
        page = Path(alert["annotations"]["runbook"]).name
        (row,) = [line for line in rows if f"]({page})" in line]
        assert alert["alert"] in row


@pytest.mark.parametrize(("page", "words"), of("soperator"), ids=lambda each: " ".join(each))
def test_our_commands_are_taken_by_their_own_parser(page: str, words: list[str]) -> None:
    assert problem_of_ours(words) is None, page


def test_words_that_a_command_does_not_take_are_found() -> None:
    assert problem_of_ours(["soperator", "status", "12", "--levitate"])
    assert problem_of_ours(["soperator", "drain"])
    assert problem_of_ours(["soperator", "levitate"])
    assert problem_of_ours(["soperator", "local", "status"]) is None


@pytest.mark.parametrize("program", SLURM)
def test_options_of_slurm_exist_in_its_programs(program: str) -> None:
    found = of(program)
    assert found
    assert not [(page, unknown) for page, words in found if (unknown := unknown_options(words))]


def test_an_option_that_slurm_lacks_is_found() -> None:
    assert unknown_options(["sinfo", "-N", "--levitate"]) == ["--levitate"]


def test_fields_of_sacct_exist() -> None:
    text = help_of("sacct")
    asked = [
        field
        for _, words in of("sacct")
        for word in words
        if word.startswith("--format=")
        for field in word.partition("=")[2].split(",")
    ]
    assert asked
    # The end of a longer text serves for a shorter one too: ExitCode is in DerivedExitCode.
    assert not [field for field in asked if field not in text]


def test_other_programs_are_those_that_are_there() -> None:
    for page, words in everywhere():
        program = words[0]
        if program == "kubectl":
            assert words[1] in KUBECTL, page
        elif program == "pulumi":
            assert words[1] in PULUMI, page
        elif program == "srun":
            inner = next(word for word in words[1:] if not word.startswith("-"))
            assert inner in ON_NODES, page
        else:
            assert program in {"soperator", *SLURM, *ON_NODES, "eval", "mount", "ls", "make"}, page


def test_a_step_inside_a_running_job_does_not_wait_for_its_end() -> None:
    """`srun --jobid=ID` of seed 001 waits until the job lets go of its GPUs."""
    inside = [words for _, words in of("srun") if "--jobid=12" in words]
    assert inside
    assert all("--overlap" in words for words in inside)


def test_variables_of_nccl_exist() -> None:
    named = {name for page in PAGES for name in NCCL.findall(page.read_text())}
    assert named
    assert not named - NCCL_NAMES


def test_settings_of_a_runbook_are_keys_of_a_recipe() -> None:
    """Smaller batch, gradient checkpointing and stronger sharding, as seed 001 advises."""
    page = (FOLDER / "out-of-memory.md").read_text()
    named = set(re.findall(r"`train\.([a-z_]+)[`=]", page)) | set(
        re.findall(r"--set train\.([a-z_]+)=", page)
    )
    keys = {field.name for field in fields(TrainConfig)}
    assert {"micro_batch_size", "gradient_checkpointing", "strategy"} <= named
    assert not named - keys


def test_the_pages_that_seed_003_promises_are_there() -> None:
    """Its table of contents names them and its text has none of them."""
    docs = FOLDER.parent
    pages = ("fault-tolerance.md", "monitoring.md", "training.md", "troubleshooting.md")
    texts = {name: (docs / name).read_text() for name in pages}
    assert all("\n## " in text for text in texts.values()), "a page has sections"
    assert "runbooks/README.md" in texts["troubleshooting.md"]
    assert "runbooks/README.md" in texts["monitoring.md"]
