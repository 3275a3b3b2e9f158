"""The plan of a job: what it holds, from which recipe and settings, and how it gets there."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cost.runs.forecast import (
    Forecast,
    RecipeError,
    TrainSpeed,
    UnknownRun,
    recipe_of,
    with_settings,
)
from cost.size.memory import Dtype, Method, Training
from cost.size.plan import Plan, make_plan, recipe_run
from cost.size.shape import LINEAR_MODULES, SizeError
from infra.clients.errors import JobsError
from infra.clients.pulumi import StackOutputs
from infra.clients.ssh import Result
from infra.jobs.recipes import plan_lines
from stacks.load import load_stack
from stacks.spec import StackSpec
from stacks.spec.slurm import JobSpec
from tests.unit.jobs.login_node import LoginNode
from tests.unit.jobs.raw import submit, task

ROOT = Path(__file__).parents[3]
RECIPES = {
    f"workloads/recipes/{path.name}": path.read_bytes()
    for path in (ROOT / "workloads" / "recipes").glob("*.json")
}
STACKS = ("local", "l40s-dev", "h100-prod", "h200-elastic")


@pytest.fixture(autouse=True)
def _own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "id.pub"
    key.write_text(f"ssh-ed25519 {'A' * 68} user@host\n", encoding="utf-8")
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", str(key))


def plan_of(
    spec: StackSpec,
    job: JobSpec,
    files: Mapping[str, bytes],
    sets: Sequence[str] = (),
    forecast: Forecast | UnknownRun | None = None,
) -> Plan:
    """The plan as a submission makes it."""
    return make_plan(spec, job, recipe_of(job, files, sets), forecast=forecast)


def stack_and_job(stack: str, job: str = "finetune") -> tuple[StackSpec, JobSpec]:
    """Returns a shipped stack and one of its jobs."""
    spec = load_stack(stack)
    return spec, next(each for each in spec.jobs if each.name == job)


@pytest.mark.feature("S001-01")
@pytest.mark.parametrize("stack", STACKS)
def test_the_training_of_every_shipped_stack_fits_and_runs_here(stack: str) -> None:
    spec, job = stack_and_job(stack)
    plan = plan_of(spec, job, RECIPES)
    assert plan.chosen.usable_here, plan.chosen.reason
    assert plan.gpus.count == job.nodes * max(1, job.gpus_per_node)
    assert plan.training.micro_batch_size <= plan.chosen.largest_micro_batch


def test_a_plan_is_the_recipe_the_hardware_and_a_verdict() -> None:
    spec, job = stack_and_job("l40s-dev")
    plan = plan_of(spec, job, RECIPES)
    values = json.loads(plan.to_bytes())
    assert values["schema_version"] == 2
    assert (values["model"], values["recipe_model"]) == ("Qwen3-14B", "Qwen/Qwen3-14B")
    assert (values["strategy"], values["world_size"]) == ("ddp", 8)
    assert (values["fits"], values["runs_here"]) == (True, True)
    assert values["hardware"]["preset"] == "2gpu-64vcpu-384gb"
    parts = dict(values["memory_gib_per_rank"])
    assert parts.pop("total") == pytest.approx(sum(parts.values()), abs=0.005)
    assert values["steps"] is None
    assert values["forecast"] is None
    assert plan.to_bytes() == plan_of(spec, job, RECIPES).to_bytes()


def test_the_settings_of_a_submission_are_planned() -> None:
    spec, job = stack_and_job("l40s-dev")
    sets = ["train.method=full", "train.dtype=bf16", "train.strategy=auto"]
    sets += ["train.micro_batch_size=2"]
    plan = plan_of(spec, job, RECIPES, sets)
    assert plan.training.method is Method.FULL
    assert plan.training.micro_batch_size == 2
    assert plan.chosen.sharding.label == "fsdp x 8"
    assert plan.chosen.usable_here


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize(
    ("train", "recomputed", "label"),
    [
        ({}, 0, "fsdp x 4, gathered once"),
        ({"micro_batch_size": 4}, 2, "fsdp x 4"),
        ({"strategy": "ddp"}, 22, "ddp x 4"),
        ({"gradient_checkpointing": True}, 28, "ddp x 4"),
        ({"gradient_checkpointing": 23}, 23, "ddp x 4"),
        ({"micro_batch_size": 4, "gradient_checkpointing": False}, 0, "offload x 4"),
    ],
    ids=["fits", "does not fit", "named strategy", "all", "some", "none"],
)  # fmt: skip
def test_activations_are_computed_again_where_the_job_does_not_fit_without(
    train: dict[str, Any], recomputed: int, label: str
) -> None:
    """Offload fits in the last and is no reason to do without: it is slower than to compute."""
    spec, job = stack_and_job("h200-elastic")
    recipe = {"model": "Qwen/Qwen2-7B-Instruct", "train": {"method": "full", **train}}
    plan = make_plan(spec, job, recipe)
    written = json.loads(plan.to_bytes())
    assert (written["gradient_checkpointing"], written["layers"]) == (recomputed, 28)
    assert plan.chosen.sharding.label == label
    assert plan.chosen.usable_here
    assert f"activations of {recomputed} of 28 layers recomputed" in plan_lines(plan)[0]
    if recomputed and "gradient_checkpointing" not in train:
        fewer = train | {"gradient_checkpointing": recomputed - 1}
        found = make_plan(spec, job, recipe | {"train": recipe["train"] | fewer})
        assert label not in [v.sharding.label for v in found.all_verdicts if v.fits]


@pytest.mark.feature("S003-38")
def test_more_layers_than_the_model_has_are_not_submitted() -> None:
    spec, job = stack_and_job("l40s-dev")
    with pytest.raises(SizeError, match=r"qlora_8xl40s\.train\.gradient_checkpointing: got 41, but "
                       r"Qwen3-14B has 40 layers; give 0 to 40"):  # fmt: skip
        plan_of(spec, job, RECIPES, ["train.gradient_checkpointing=41"])


def test_what_no_strategy_holds_is_told_with_a_way_out() -> None:
    spec, job = stack_and_job("l40s-dev")
    plan = plan_of(spec, job, RECIPES, ["train.micro_batch_size=400"])
    assert not plan.chosen.fits
    assert "lower train.micro_batch_size" in plan_lines(plan)[-1]
    assert "soperator cost size Qwen3-14B --method qlora --seq 2048" in plan_lines(plan)[-1]


def test_settings_that_the_stack_gives_a_job_come_before_those_of_the_submission() -> None:
    spec, job = stack_and_job("local")
    job = replace(job, args=("--set", "train.micro_batch_size=3", "--resume", "auto"))
    assert plan_of(spec, job, RECIPES).training.micro_batch_size == 3
    plan = plan_of(spec, job, RECIPES, ["train.micro_batch_size=4"])
    assert plan.training.micro_batch_size == 4


def test_a_forecast_gives_steps_hours_and_dollars() -> None:
    spec, job = stack_and_job("l40s-dev")
    forecast = Forecast(
        job=job.name,
        num_nodes=4,
        worker=spec.nodes.workers[0],
        num_tokens=Decimal(13_107_201),
        speed=TrainSpeed(
            tokens_per_s=Decimal(3000), source="job 7", measured_on=date(2026, 11, 20)
        ),
        busy_hours=Decimal("1.2136"),
        disturbance=None,
        hours=Decimal("1.2136"),
        nodes_usd=Decimal("22.1786"),
        cluster_share_usd=None,
        notes=(),
    )
    plan = plan_of(spec, job, RECIPES, forecast=forecast)
    values = json.loads(plan.to_bytes())
    # 2048 tokens x 1 row x 8 micro batches x 8 ranks = 131,072 a step; a last partial step counts.
    assert values["steps"] == 101
    assert values["forecast"]["hours"] == 1.2136
    assert values["forecast"]["nodes_usd"] == "22.1786"


def test_an_unknown_forecast_says_why() -> None:
    spec, job = stack_and_job("l40s-dev")
    unknown = UnknownRun(
        job=job.name, num_nodes=4, reason="no speed", fix="run it", at_most_usd=None
    )
    values = json.loads(plan_of(spec, job, RECIPES, forecast=unknown).to_bytes())
    assert values["forecast"] == {"known": False, "reason": "NOT KNOWN: no speed; run it"}


def test_a_job_without_gpus_is_planned_on_the_memory_of_its_nodes() -> None:
    spec, job = stack_and_job("local")
    plan = plan_of(spec, replace(job, gpus_per_node=0), RECIPES)
    assert plan.gpus.usable > 300 * 2**30
    assert plan.gpus.count == 2


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({}, r"r\.model: missing; give text"),
        ({"model": "x"}, r"r\.train: missing; give a mapping of method"),
        (
            {"model": "x", "train": {"method": "dora"}},
            r"method: expected one of full.*did you mean 'lora'",
        ),
        (
            {"model": "x", "train": {"dtype": 7}},
            r"r\.train\.dtype: expected one of fp32.*got number 7",
        ),
        (
            {"model": "x", "train": {"lora": []}},
            r"r\.train\.lora: expected a mapping of rank.*got a list",
        ),
        (
            {"model": "x", "train": {"lora": {"rank": True}}},
            r"lora\.rank: expected a whole number, got true",
        ),
        (
            {"model": "x", "train": {"micro_batch_size": 0}},
            r"micro_batch_size: expected a whole number of 1 or more",
        ),
        (
            {"model": "x", "train": {"max_steps": "8"}},
            r"train\.max_steps: expected a whole number, got text",
        ),
        (
            {"model": "x", "train": {"lora": {"target_modules": "q_proj"}}},
            r"target_modules: expected a list, got text 'q_proj'",
        ),
    ],
)
def test_a_recipe_that_cannot_be_planned_is_refused_with_the_path(
    recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(SizeError, match=message):
        recipe_run(recipe, at="r")


def test_a_recipe_has_the_defaults_of_the_trainer() -> None:
    run = recipe_run({"model": "m", "train": {}}, at="r")
    assert run.training == Training(method=Method.LORA, dtype=Dtype.BF16, targets=LINEAR_MODULES)


def test_a_plan_needs_nodes_that_can_run_the_job() -> None:
    spec, job = stack_and_job("l40s-dev")
    with pytest.raises(SizeError, match=r"no nodeset of partition 'train' has 8 GPUs a node"):
        make_plan(spec, replace(job, gpus_per_node=8), {"model": "Qwen3-8B", "train": {}})


def test_a_recipe_that_is_not_shipped_or_not_readable_is_refused() -> None:
    spec, job = stack_and_job("l40s-dev")
    with pytest.raises(RecipeError, match=r"jobs\.finetune\.recipe: no file of 'other'"):
        plan_of(spec, replace(job, recipe="other"), RECIPES)
    with pytest.raises(RecipeError, match=r"cannot be read"):
        plan_of(spec, job, {f"workloads/recipes/{job.recipe}.yaml": b"a: [1"})


def test_settings_are_json_or_text_and_make_sections() -> None:
    recipe = with_settings({"train": {"epochs": 1}}, ["train.lora.rank=8", "model=Qwen3-8B"])
    assert recipe == {"train": {"epochs": 1, "lora": {"rank": 8}}, "model": "Qwen3-8B"}
    with pytest.raises(RecipeError, match="'model' is no section"):
        with_settings({"model": "x"}, ["model.name=1"])


@dataclass
class Cluster:
    """A login node that runs what it is told, with an sbatch that notes its words."""

    folder: Path

    def run(self, command: str, *, stdin: bytes = b"") -> Result:
        """Returns what bash made of the command."""
        (self.folder / "bin").mkdir(exist_ok=True)
        sbatch = self.folder / "bin" / "sbatch"
        sbatch.write_text(f'#!/bin/bash\necho "$@" > {self.folder}/asked\necho 12\n')
        sbatch.chmod(0o755)
        done = subprocess.run(
            ["bash", "-c", command],
            input=stdin,
            capture_output=True,
            check=False,
            env={"PATH": f"{self.folder / 'bin'}:/usr/bin:/bin"},
        )
        return Result(
            command=command,
            exit_code=done.returncode,
            stdout=done.stdout.decode(),
            stderr=done.stderr.decode(),
        )


@pytest.mark.parametrize("release", ["0123456789abcdef", "feedfeedfeedfeed"])
def test_a_submission_ships_its_plan_only_with_the_code_it_was_made_for(
    tmp_path: Path, release: str
) -> None:
    (tmp_path / "code" / "releases" / release).mkdir(parents=True)
    (tmp_path / "code" / "releases" / f"{release}.whole").touch()
    (tmp_path / "code" / "current").symlink_to(f"releases/{release}")
    outputs = StackOutputs(
        stack="local",
        login_ip="127.0.0.1",
        ssh_port=30022,
        login_host_key="ssh-ed25519 AAAA",
        code_path=str(tmp_path / "code"),
        code_hash="0123456789abcdef",
        places={"logs": "/mnt/logs", "results": "/mnt/results"},
        jobs={"finetune": ""},
    )
    cluster, tasks = Cluster(folder=tmp_path), {None: task(b"{}\n")}
    if release == "feedfeedfeedfeed":
        with pytest.raises(JobsError, match="the cluster has code feedfeedfeedfeed"):
            submit(cluster, outputs, "finetune", code_hash="0123456789abcdef", tasks=tasks)
        assert not (tmp_path / "code" / "plans").exists()
        return
    made = submit(cluster, outputs, "finetune", code_hash="0123456789abcdef", tasks=tasks)
    assert made.job_id == "12"
    (path,) = (tmp_path / "code" / "plans").iterdir()
    assert path.name == f"{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.json"
    assert path.read_bytes() == b"{}\n"
    assert f",SOPERATOR_PLAN={path}" in (tmp_path / "asked").read_text()


def test_a_plan_that_came_in_part_leaves_nothing_and_submits_nothing(tmp_path: Path) -> None:
    """A connection that is cut while it is sent, or a full filesystem."""
    node = LoginNode(tmp_path / "node")
    send = node.run
    node.run = lambda command, *, stdin=b"": send(command, stdin=stdin[:4])
    tasks = {None: task(b"0123456789")}
    outputs = node.outputs("0123456789abcdef")
    with pytest.raises(JobsError):
        submit(node, outputs, "finetune", code_hash="0123456789abcdef", tasks=tasks)
    assert list((node.folder / "code" / "plans").iterdir()) == []
    assert node.queue == []
