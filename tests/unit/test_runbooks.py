"""Each command of a runbook is one that exists: ours by its own parser, Slurm's by its own help.

What cannot run anywhere without a cloud or a GPU is a fixed list, with its source.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
import typer.main
import yaml
from typer import Context

from infra.cli.main import app
from infra.render.charts import platform_charts
from infra.render.monitoring.objects import dashboards, rule_groups
from infra.render.sbatch import render_sbatch
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.cluster import AlertsSpec
from stacks.spec.slurm import JobSpec
from tests.unit.monitoring.conftest import BURN, watched
from workloads.common.exit_codes import ADVICE, RESTARTABLE, ExitCode
from workloads.common.record import EVERY_S
from workloads.recipes import load_recipe, recipe_names
from workloads.recipes.train import CheckpointConfig, TrainConfig
from workloads.train.inputs import StopRequest
from workloads.train.measure import Ledger
from workloads.train.run_folder import CONFIG as CONFIG_JSON
from workloads.train.run_folder import ELASTIC_METADATA, FULL_WEIGHTS, KINDS, STATE

__all__ = ["watched"]

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "runbooks"
PAGES = sorted(page for page in FOLDER.glob("*.md"))
BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
NCCL = re.compile(r"\bNCCL_[A-Z_]+\b")
_TROUBLE = "troubleshooting.md"
FILL = {"ID": "12", "N": "2", "NODE": "worker-0", "S": "local"}
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


def alerts(watched: StackSpec) -> list[dict[str, Any]]:
    return rule_groups(watched, BURN)[1]["rules"]


@pytest.mark.feature("S001-82", "S003-88")
def test_the_index_names_every_alert_at_its_page(watched: StackSpec) -> None:
    rows = [line for line in (FOLDER / "README.md").read_text().splitlines() if "](" in line]
    for alert in alerts(watched):
        page = Path(alert["annotations"]["runbook"]).name
        (row,) = [line for line in rows if f"]({page})" in line]
        assert alert["alert"] in row


@pytest.mark.feature("S001-83")
@pytest.mark.parametrize(("page", "words"), of("soperator"), ids=lambda each: " ".join(each))
def test_our_commands_are_taken_by_their_own_parser(page: str, words: list[str]) -> None:
    assert problem_of_ours(words) is None, page


def test_words_that_a_command_does_not_take_are_found() -> None:
    assert problem_of_ours(["soperator", "status", "12", "--levitate"])
    assert problem_of_ours(["soperator", "cluster", "drain"])
    assert problem_of_ours(["soperator", "levitate"])
    assert problem_of_ours(["soperator", "local", "status"]) is None


@pytest.mark.feature("S001-96", "S003-70")
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


@pytest.mark.feature("S001-86", "S001-87")
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


@pytest.mark.feature("S001-86")
def test_a_step_inside_a_running_job_does_not_wait_for_its_end() -> None:
    """`srun --jobid=ID` of seed 001 waits until the job lets go of its GPUs."""
    inside = [words for _, words in of("srun") if "--jobid=12" in words]
    assert inside
    assert all("--overlap" in words for words in inside)


@pytest.mark.feature("S001-85", "S001-86", "S001-87")
def test_a_step_inside_a_job_starts_on_each_of_its_nodes() -> None:
    """`--ntasks-per-node=1` alone started it on the first (test_push has it on a real Slurm)."""
    for page, words in of("srun"):
        assert "--nodes=2" in words, page
        text = (FOLDER / page).read_text()
        assert "`NumNodes`" in text, "where N is read"


@pytest.mark.feature("S001-82", "S001-88", "S001-89")
def test_variables_of_nccl_exist() -> None:
    named = {name for page in PAGES for name in NCCL.findall(page.read_text())}
    assert named
    assert not named - NCCL_NAMES


@pytest.mark.feature("S001-83", "S001-91", "S001-92", "S001-93")
def test_settings_of_a_runbook_are_keys_of_a_recipe() -> None:
    """Smaller batch, gradient checkpointing and stronger sharding, as seed 001 advises."""
    page = (FOLDER / "out-of-memory.md").read_text()
    named = set(re.findall(r"`train\.([a-z_]+)[`=]", page)) | set(
        re.findall(r"--set train\.([a-z_]+)=", page)
    )
    keys = {field.name for field in fields(TrainConfig)}
    assert {"micro_batch_size", "gradient_checkpointing", "strategy"} <= named
    assert not named - keys


@pytest.mark.feature("S001-83", "S001-91")
def test_the_advice_of_a_smaller_batch_halves_it_and_keeps_the_step() -> None:
    """Of the recipe of seed 001, by the very command that the page has."""
    page = (FOLDER / "out-of-memory.md").read_text()
    (row,) = re.findall(r"^\| `train\.micro_batch_size` halved.*$", page, re.MULTILINE)
    (command,) = re.findall(r"`(soperator submit [^`]+)`", row)
    sets = re.findall(r"--set (\S+)", command)
    before, after = (load_recipe("qwen2_7b_lora_16xh100", each).train for each in ([], sets))
    assert before is not None
    assert after is not None
    assert after.micro_batch_size * 2 == before.micro_batch_size
    rows = {each.micro_batch_size * each.gradient_accumulation for each in (before, after)}
    assert len(rows) == 1, "more or fewer rows a step would train another model"


@pytest.mark.feature("S001-83", "S001-92", "S001-93")
def test_each_advice_on_gpu_memory_is_set_by_the_words_beside_it() -> None:
    page = (FOLDER / "out-of-memory.md").read_text()
    rows = re.findall(r"^\| `train\.(\w+=\w+)` \| (.+?) \| (.+?) \|$", page, re.MULTILINE)
    hows = {setting: how for setting, _, how in rows}
    effects = {setting: effect for setting, effect, _ in rows}
    for setting in ("gradient_checkpointing=true", "strategy=fsdp", "strategy=offload"):
        assert hows[setting] == f"`--set train.{setting}`"
    assert "workloads/recipes/" in hows["method=qlora"]
    recomputed = {
        method: Ledger().shares(recomputed=1, method=method)["recompute_flops_percent"]
        for method in ("full", "lora")
    }
    more = {method: share / (100 - share) for method, share in recomputed.items()}
    assert more == pytest.approx({"full": 1 / 3, "lora": 1 / 2})
    said = "a third more compute, half more where adapters alone are trained"
    assert effects["gradient_checkpointing=true"].endswith(said)


@pytest.mark.feature("S001-83")
def test_the_page_on_memory_names_its_status_and_says_that_nothing_tries_again() -> None:
    page = (FOLDER / "out-of-memory.md").read_text()
    assert f"and status {int(ExitCode.OUT_OF_MEMORY)};" in page
    assert ExitCode.OUT_OF_MEMORY not in RESTARTABLE
    assert "\nA job that ran out of memory is not started again by itself" in page


@pytest.mark.feature("S001-83")
def test_the_advice_on_host_memory_quotes_the_log_of_the_copy_that_needs_it() -> None:
    page = (FOLDER / "out-of-memory.md").read_text()
    (advice,) = re.findall(r"^\*\*Host memory\.\*\* (.*)$", page, re.MULTILINE)
    for change in ("More memory for the job", "fewer processes that read rows", "without the copy"):
        assert change in advice
    (quoted,) = re.findall(r"`([^`]+)`", advice)
    log = (FOLDER.parents[1] / "workloads" / "train" / "checkpoint.py").read_text()
    assert all(part in log for part in quoted.split(" ... "))


@pytest.mark.feature("S001-82", "S001-86", "S001-87", "S001-88", "S001-89", "S001-96")
def test_the_pages_have_what_seed_001_types() -> None:
    text = (FOLDER / "nccl-timeout.md").read_text()
    lines = [" ".join(words) for words in commands(text)]
    for asked in ("ibstat", "ping", "nvidia-smi topo -m", "sinfo -N -l", "scontrol show job"):
        assert any(re.search(rf"(^| ){asked}( |$)", line) for line in lines), asked
    assert set(NCCL.findall(text)) == NCCL_NAMES
    for setting, why in (
        ("NCCL_IB_DISABLE=0", "is the default"),
        ("NCCL_IB_GID_INDEX=3", "is of RoCE and this fabric is InfiniBand"),
        (
            "NCCL_NET_GDR_LEVEL=5",
            "is the old way to write `SYS` and takes NCCL's own choice away",
        ),
    ):
        assert f"`{setting}` {why}" in " ".join(text.split()), "of seed 001, which changes nothing"
    (job,) = yaml.safe_load(
        "".join(re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE))
    )["jobs"]
    assert job["environment"]["NCCL_DEBUG"] == "INFO"
    assert job["environment"].keys() == {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS"}
    assert ["sinfo", "-N", "-l"] in commands((FOLDER / "node-failure.md").read_text())
    causes = [line for line in text.splitlines() if line.startswith("| ")]
    for shown in ("`ibstat`", "`nvidia-smi topo -m`", "`ping`", "a traceback"):
        assert any(shown in line.split("|")[1] for line in causes), f"what {shown} means"
    hardware = text.partition("**Is it the hardware?**")[2]
    assert hardware.lstrip().startswith("`soperator cluster accept ")


@pytest.mark.feature("S001-85")
def test_storage_is_looked_for_on_every_node_of_the_job() -> None:
    """Seed 001: is the shared filesystem mounted on both nodes?"""
    text = (FOLDER / "storage-full.md").read_text()
    (words,) = (words for words in commands(text) if words[0] == "srun")
    assert words[-3:] == ["findmnt", "-T", "PATH"]
    assert {"--jobid=12", "--overlap", "--nodes=2", "--ntasks-per-node=1"} == set(words[1:-3])
    assert "Every node must print the same" in text
    assert any("not mounted on one node" in line for line in text.splitlines() if line[0:1] == "|")


@pytest.mark.feature("S001-93")
def test_stronger_sharding_is_advised_by_the_setting_that_does_it() -> None:
    """Seed 001 calls it a higher ZeRO stage; offload, which is slower, comes after it."""
    page = (FOLDER / "out-of-memory.md").read_text()
    rows = re.findall(r"^\| `(train\.strategy=\w+)` \| ([^|]+) \| ([^|]+) \|$", page, re.MULTILINE)
    assert [(name, how) for name, _, how in rows] == [
        (name, f"`--set {name}`") for name in ("train.strategy=fsdp", "train.strategy=offload")
    ]
    assert "ZeRO" in rows[0][1]


@pytest.mark.feature("S001-96")
def test_the_states_that_sinfo_shows_are_explained() -> None:
    text = (FOLDER / "node-failure.md").read_text()
    assert ["sinfo", "-R"] in commands(text)
    shown = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
    for state in ("`down*`", "`not responding`", "`sinfo -R`"):
        assert any(state in each for each in shown), state
    for state in ("`drain`", "`down`", "`NODE_FAIL`"):
        assert state in text.partition("**Look.**")[0], state


def page_of(name: str) -> str:
    return (FOLDER.parent / name).read_text()


def section_of(name: str, title: str) -> str:
    """Text of a page below the heading that starts so, up to the next of any level."""
    (text,) = re.findall(
        rf"^#+ {title}[^\n]*\n(.*?)(?=^#|\Z)", page_of(name), re.DOTALL | re.MULTILINE
    )
    return text


@pytest.mark.feature("S003-90")
def test_troubleshooting_has_each_status_with_its_name_its_restart_and_what_to_change() -> None:
    """Its pages are those that the contents of seed 003 name and its text does not have."""
    rows = re.findall(
        r"^\| (\d+) \| (\w+) \|([^|]+)\|([^|]*)\|(.*)", page_of(_TROUBLE), re.MULTILINE
    )
    assert {int(row[0]): row[1] for row in rows} == {code: code.name for code in ExitCode}
    for status, _, what, again, change in rows:
        code = ExitCode(int(status))
        is_tried = code in RESTARTABLE or code is ExitCode.PREEMPTED
        assert again.strip().startswith("yes") == is_tried, code
        keys = re.findall(r"\btrain(?:\.\w+)+", ADVICE.get(code, ""))
        assert not [key for key in keys if key not in what + change], code
    assert "runbooks/README.md" in page_of(_TROUBLE)


@pytest.mark.feature("S001-83", "S001-91")
def test_the_log_of_a_job_without_memory_says_in_which_direction() -> None:
    advice = ADVICE[ExitCode.OUT_OF_MEMORY]
    assert "lower train.micro_batch_size and raise train.gradient_accumulation as much" in advice
    assert "set train.gradient_checkpointing" in advice


@pytest.mark.feature("S003-90")
@pytest.mark.parametrize(
    ("said", "by"),
    [
        ("no committed checkpoint", "train/checkpoint.py"),
        ("not committed", "train/run_folder.py"),
        ("is damaged", "train/run_folder.py"),
        ("another world size, and train.checkpoint.same_world", "train/checkpoint.py"),
        ("nodes are there again", "common/supervise.py"),
        ("a copy of the state takes", "train/checkpoint.py"),
    ],
)
def test_troubleshooting_explains_what_a_run_logs_in_the_words_of_the_log(
    said: str, by: str
) -> None:
    """Who searches the page for a line of the log finds it."""
    assert said in (FOLDER.parents[1] / "workloads" / by).read_text()
    assert re.search(rf"`[^`]*{re.escape(said)}", section_of(_TROUBLE, "By symptom"))


@pytest.mark.feature("S003-89")
def test_the_training_guide_has_every_method_recipe_and_refused_mix() -> None:
    methods = section_of("training.md", "Choosing a method")
    assert set(re.findall(r"method: (\w+)", methods)) == set(
        get_args(get_type_hints(TrainConfig)["method"])
    )
    page = page_of("training.md")
    wanted = page.partition("\n## ")[0]
    # What a reader starts from: each as the program takes it.
    for typed in (
        "soperator submit finetune ",
        "python -m workloads.train --recipe NAME --plan",
        "torchrun --nnodes=2 --nproc_per_node=8 --node_rank=R --master_addr=A --master_port=29500",
        "--config FILE",
        "--resume auto",
    ):
        assert f"`{typed}" in wanted, typed
    recipes = [name for name in recipe_names() if load_recipe(name).train is not None]
    assert not [name for name in recipes if f"`{name}`" not in page]
    rows = section_of("training.md", "Keys").splitlines()
    mixed = TrainConfig(dataset="x", max_steps=1, learning_rate=0.1, strategy="fsdp")
    for message in mixed._mixes():
        told = re.match(r"(\S+): (?:got (\w+)|.*) with (?:method|dtype|task) (\w+)", message)
        assert told, message
        key, got, other = told.groups()
        word = key if got in (None, "true") else got
        assert any(
            {f"`{word}`", f"`{other}`"} <= set(re.findall("`[^`]+`", row)) for row in rows
        ), message


@pytest.mark.feature("S003-20")
def test_the_choice_of_fsdp_has_its_reasons_and_what_it_costs() -> None:
    """Pipeline parallelism and offload are the trade-offs that seed 003 names."""
    section = section_of("training.md", "Why FSDP2 and not DeepSpeed")
    (lost,) = [line for line in section.splitlines() if line.startswith("| what is lost |")]
    assert "pipeline parallelism" in lost
    assert "NVMe offload" in lost
    assert section.lstrip().startswith("| | FSDP2 | DeepSpeed ZeRO-3 |")
    for reason, ours in (
        ("comes with", "PyTorch: one version"),
        ("checkpoints", "torch DCP: every rank writes its slices, any world size"),
        ("mixed precision", "fp32 shards, bf16 in the forward pass, no loss scale"),
    ):
        assert f"\n| {reason} | {ours}" in section
    assert "(adr/0004-training-is-pytorchs-own.md)" in section
    decision = " ".join(page_of("adr/0004-training-is-pytorchs-own.md").split())
    assert "(../sizing.md)" in decision
    assert "An explicit value wins and is warned about when the plan disagrees." in decision
    chosen = (
        "DDP when base weights, adapter, optimizer and activations fit one GPU, FSDP2 otherwise"
    )
    assert chosen in decision


@pytest.mark.feature("S003-87")
def test_the_page_of_fault_tolerance_has_every_module_and_file_of_a_checkpoint() -> None:
    root = FOLDER.parents[1] / "workloads"
    modules = set(re.findall(r"`(\w+/\w+\.py)`", section_of("fault-tolerance.md", "Modules")))
    assert not [path for path in modules if not (root / path).is_file()]
    written = {f"train/{path.name}" for path in (root / "train").glob("checkpoint*.py")}
    assert not written - modules
    files = section_of("fault-tolerance.md", "Files")
    for name in (CONFIG_JSON, STATE, FULL_WEIGHTS, ELASTIC_METADATA, ".metadata"):
        assert name in files
    for kind in KINDS:
        assert f"/{kind.prefix}-" in files
        assert f"\n  {kind.marker} " in files


@pytest.mark.feature("S003-87")
def test_the_page_of_fault_tolerance_says_who_starts_again_what_and_after_which_signal() -> None:
    """The tables of events and of restarts, with the signals, programs, keys and times in force."""
    signals = {"SIGTERM", "SIGUSR1"}
    with StopRequest():
        taken = {each.name for each in signal.Signals if isinstance(_receiver(each), StopRequest)}
    assert taken == signals
    assert "\n| SIGTERM, SIGUSR1: " in section_of("fault-tolerance.md", "What is saved when")
    restarts = section_of("fault-tolerance.md", "Restarts")
    assert re.findall(r"^\| `([\w/]+\.py)`", restarts, re.MULTILINE) == [
        "common/launch.py",
        "common/supervise.py",
    ]
    assert f"`train.checkpoint.timeout_s` ({CheckpointConfig().timeout_s} s)" in restarts
    keys = set(re.findall(r"`jobs\[\]\.(\w+)`", restarts))
    assert keys == {"restarts", "least_nodes", "save_s", "nodes"}
    assert not keys - {field.name for field in fields(JobSpec)}


def _receiver(number: signal.Signals) -> object:
    return getattr(signal.getsignal(number), "__self__", None)


@pytest.mark.feature("S001-84")
def test_the_advice_on_a_failed_node_is_what_a_job_does(public_key_file: Path) -> None:
    """Slurm queues it again, and it resumes; both are of every job, whoever submits it."""
    page = (FOLDER / "node-failure.md").read_text()
    (advice,) = re.findall(r"^\*\*The job\*\* goes on by itself.*$", page, re.MULTILINE)
    assert "newest checkpoint" in advice
    assert "(../fault-tolerance.md)" in advice
    spec = load_stack("h200-elastic")
    for option in ("--requeue", "least_nodes"):
        assert f"{option}`" in advice
    (job,) = [each for each in spec.jobs if each.name == "finetune"]
    assert "\n#SBATCH --requeue\n" in render_sbatch(spec, job)
    assert job.least_nodes is not None


@pytest.mark.feature("S003-88")
def test_the_page_of_monitoring_has_every_dashboard_and_every_alert_with_its_limit(
    watched: StackSpec,
) -> None:
    page = page_of("monitoring.md")
    titles = [each["title"] for each in dashboards(BURN)]
    assert not [title for title in titles if f"\n| {title} |" not in page]
    found = section_of("monitoring.md", "Alerts")
    assert {each["alert"] for each in alerts(watched)} == set(
        re.findall(r"^\| (Soperator\w+) \|", found, re.MULTILINE)
    )
    for limit in fields(AlertsSpec):
        assert f"`soperator.alerts.{limit.name}` ({limit.default})" in found
    (unused,) = [each for each in alerts(watched) if each["alert"].endswith("GpuUtilization")]
    assert unused["for"] == "30m"
    assert f"| {unused['alert']} | GPUs that a job holds are used less, for half an hour |" in found
    (store,) = [
        each for each in platform_charts(watched) if each.chart == "victoria-metrics-k8s-stack"
    ]
    assert f"`ssh -L 3000:{store.release}-grafana.{store.namespace}.svc:80 root@" in page
    assert f"sent to the metrics store every {EVERY_S:.0f} s, and once at the end" in page
    assert "runbooks/README.md" in found
