"""Every method, strategy, precision and task runs through the one loop, on CPU."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.nightly import at_night
from tests.workloads.ranks import REPOSITORY, run_ranks
from tests.workloads.test_train import adapter, launch, losses
from workloads.common.exit_codes import ConfigError, ExitCode
from workloads.job import run_job
from workloads.recipes import load_recipe
from workloads.recipes.train import TrainConfig

SMALL = ("train.sequence_length=1600", "train.overlong=drop")


def record_of(places: Path, job_id: str) -> dict[str, Any]:
    """Returns the run record of a job."""
    return json.loads((places / "results" / job_id / "run_record.json").read_text())


def final_weights(places: Path, job_id: str) -> dict[str, torch.Tensor]:
    """Returns the weights of a fully trained model."""
    from safetensors.torch import load_file

    return load_file(places / "chkpt" / "finetune" / job_id / "final" / "model.safetensors")


@pytest.mark.feature(
    "S001-11", "S001-20", "S002-81", "S003-01", "S003-02", "S003-20", "S004-22", "S004-24"
)
@pytest.mark.parametrize("method", ["full", at_night("lora")])
def test_fsdp_divides_the_model_and_learns_what_ddp_learns(
    places: Path, run: Any, recipe_file: Path, method: str
) -> None:
    """A published trainer set FSDP after transformers had read it: it ran DDP and said FSDP."""
    run("prepare-data")
    options = (*SMALL, f"train.method={method}", "train.max_steps=3")
    assert run("train", *options, "train.gradient_accumulation=4")[0] == 0
    result = launch(
        places, recipe_file, "13", *options, "train.gradient_accumulation=2", "train.strategy=fsdp"
    )
    assert result.returncode == 0, result.stderr
    assert "fsdp: 2 x LlamaDecoderLayer and what is around them divided over 2 of 2 ranks" in (
        result.stderr
    )
    metrics = record_of(places, "13")["metrics"]
    assert metrics["num_weights_on_rank_0"] == pytest.approx(metrics["num_parameters"] / 2, rel=0.1)
    assert losses(places, "13") == pytest.approx(losses(places, "12"), rel=1e-4)
    read = final_weights if method == "full" else adapter
    one, two = read(places, "12"), read(places, "13")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-3, atol=1e-5)


@pytest.mark.feature("S003-02", "S003-09", "S003-23", "S003-40", "S004-17")
def test_fsdp_in_bf16_with_checkpointing_keeps_fp32_shards(
    places: Path, run: Any, recipe_file: Path
) -> None:
    from safetensors.torch import load_file

    run("prepare-data")
    result = launch(
        places, recipe_file, "13", *SMALL, "train.method=full", "train.dtype=bf16",
        "train.strategy=fsdp", "train.gradient_checkpointing=true", "train.max_steps=6",
        "train.loss_chunk_tokens=64", 'train.checkpoint={"elastic_every": 6}',
        "train.checkpoint_every=4",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "weights on rank 0, trained ones as torch.float32\n" in result.stderr
    curve = losses(places, "13")
    assert curve[-1] < curve[0]
    final = final_weights(places, "13")
    assert next(iter(final.values())).dtype == torch.bfloat16
    folder = places / "chkpt" / "finetune" / "13"
    assert {each.name for each in folder.glob("checkpoint-*")} == {"checkpoint-4"}
    whole = load_file(folder / "elastic-checkpoint-6" / "model.safetensors")
    assert whole.keys() == final.keys(), "of both ranks, not the shards of rank 0"
    assert all(torch.equal(whole[name].bfloat16(), final[name]) for name in final)


_TWO_MICRO_BATCHES = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from workloads.common.dist import world
from workloads.train.strategy import Strategy
with world() as here:
    module = torch.nn.Linear(64, 64, bias=False)
    fully_shard(module, mesh=init_device_mesh("cpu", (2,)))
    strategy = Strategy(kind="fsdp", module=module, model=module)
    for last in (False, True):
        with strategy.accumulate(last=last):
            module(torch.ones(2, 64)).sum().backward()
        (weight,) = strategy.trained
        kept = "nothing" if weight.grad is None else str(weight.grad.to_local().numel())
        print(f"rank {here.rank} keeps {kept}", flush=True)
"""


@pytest.mark.feature("S003-02")
def test_fsdp_keeps_a_ranks_part_of_the_gradient_between_micro_batches(tmp_path: Path) -> None:
    """The planner counts on it; the whole of a 14B model's is 55 GiB beside 35 planned."""
    script = tmp_path / "two_micro_batches.py"
    script.write_text(_TWO_MICRO_BATCHES)
    done = run_ranks(str(script), num_ranks=2)
    assert done.returncode == 0, done.stderr
    # Lines of two ranks may run into each other.
    assert [done.stdout.count(f"rank {rank} keeps 2048") for rank in (0, 1)] == [2, 2], done.stdout


def test_fsdp_needs_more_than_one_rank(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.strategy=fsdp")
    assert code == ExitCode.BAD_CONFIG
    assert "train.strategy fsdp: got 1 rank, expected 2 or more" in record["reason"]


@pytest.mark.feature("S003-24")
def test_a_sharded_checkpoint_is_written_in_parts_and_taken_by_as_many_ranks_only_where_asked(
    places: Path, run: Any, recipe_file: Path
) -> None:
    """Each rank writes its own half, at once: what makes it fast beside an elastic one."""
    run("prepare-data")
    two = (*SMALL, "train.method=full", "train.strategy=fsdp", "train.gradient_accumulation=2")
    done = launch(places, recipe_file, "13", *two, "train.max_steps=2", "train.checkpoint_every=2")
    assert done.returncode == 0, done.stderr
    folder = places / "chkpt" / "finetune" / "13" / "checkpoint-2"
    sizes = [(folder / f"__{rank}_0.distcp").stat().st_size for rank in range(2)]
    assert max(sizes) < 0.6 * sum(sizes)
    on = (f"train.resume={folder}", "train.max_steps=3")
    strict = 'train.checkpoint={"same_world_size_only": true}'
    again = launch(places, recipe_file, "14", *two, *on, strict)
    assert again.returncode == 0, again.stderr
    assert "goes on after step 2 of 3" in again.stderr
    one = (*SMALL, "train.method=full", "train.gradient_accumulation=4", *on)
    code, record = run("train", *one, strict)
    assert code == ExitCode.BAD_CONFIG
    assert "checkpoint-2 was saved at world size 2, this run has 1" in record["reason"]
    code, record = run("train", *one)
    assert code == 0, record
    assert record["metrics"]["num_train_steps"] == 3


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize(
    ("planned", "said", "recomputed"),
    [(2, (), 2), (1, (), 1), (0, (), 0), (None, (), 0),
     (None, ("train.gradient_checkpointing=true",), True),
     (None, ("train.gradient_checkpointing=1",), 1)],
    ids=["planned", "planned of one", "not planned", "no plan", "said", "said of one"],
)  # fmt: skip
def test_activations_are_computed_again_where_the_plan_asks_for_it_and_the_recipe_is_silent(
    places: Path,
    run: Any,
    monkeypatch: pytest.MonkeyPatch,
    planned: int | None,
    said: tuple[str, ...],
    recomputed: int,
) -> None:
    run("prepare-data")
    plan = {
        "schema_version": 2, "recipe_model": "tiny", "parameters": 23_000, "world_size": 1,
        "strategy": "ddp", "reason": "needs 0.1 GiB", "fits": True, "largest_micro_batch": 47,
        "memory_gib_per_rank": {"total": 0.1}, "method": "lora", "dtype": "fp32",
        "sequence_length": 2048, "micro_batch_size": 1, "gradient_checkpointing": planned,
        "layers": 2,
    }  # fmt: skip
    if planned is not None:
        (places / "shipped.json").write_text(json.dumps(plan))
        monkeypatch.setenv("SOPERATOR_PLAN", str(places / "shipped.json"))
    said_lines = list[str]()
    monkeypatch.setattr("workloads.train.strategy.log", said_lines.append)
    code, record = run("train", "train.max_steps=1", *said)
    assert code == 0, record
    kept = json.loads((places / "results" / "12" / "config.json").read_text())
    assert kept["train"]["gradient_checkpointing"] is recomputed
    layers, metrics = 2 if recomputed is True else recomputed, record["metrics"]
    assert (metrics["num_recomputed_layers"], metrics["num_layers"]) == (layers, 2)
    assert metrics["recompute_flops_percent"] == pytest.approx(100 * layers / (4 + layers))
    assert any(f"activations of {layers} of 2 layers recomputed" in line for line in said_lines)


@pytest.mark.feature("S003-38")
def test_a_run_goes_on_with_activations_of_other_layers_computed_again(
    places: Path, run: Any
) -> None:
    """To the loss of the run that was not stopped: what is computed again is the same."""
    run("prepare-data")
    constant = ("train.schedule=constant", "train.checkpoint_every=1")
    for steps, layers, resume in ((2, "false", "never"), (3, "1", "auto"), (4, "true", "auto")):
        again = f"train.gradient_checkpointing={layers}"
        named = (f"train.max_steps={steps}", f"train.resume={resume}")
        code, record = run("train", *constant, *named, again)
        assert code == 0, record
    assert record["metrics"]["num_recomputed_layers"] == 2
    whole = run("train", "train.max_steps=4", *constant, "train.resume=never")[1]["metrics"]
    assert (record["metrics"]["last_loss"], record["metrics"]["num_train_steps"]) == (
        whole["last_loss"], 4
    )  # fmt: skip


@pytest.mark.feature("S003-38")
def test_activations_of_more_layers_than_there_are_are_refused(places: Path, run: Any) -> None:
    run("prepare-data")
    code, record = run("train", "train.gradient_checkpointing=3")
    assert code == ExitCode.BAD_CONFIG
    assert "train.gradient_checkpointing: got 3, but the model has 2 layers" in record["reason"]


@pytest.mark.feature("S003-33")
def test_ranks_meet_over_the_backend_of_the_recipe(
    places: Path, run: Any, recipe_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.train import inputs

    run("prepare-data")
    result = launch(places, recipe_file, "13", *SMALL, "train.max_steps=2",
                    "train.ddp_backend=gloo")  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert record_of(places, "13")["world_size"] == 2
    asked: list[str] = []

    def world(*, backend: str, **_: object) -> Any:
        asked.append(backend)
        raise ConfigError("far enough")

    monkeypatch.setattr(inputs, "world", world)
    assert run("train", *SMALL, "train.ddp_backend=gloo")[0] == ExitCode.BAD_CONFIG
    assert asked == ["gloo"]


@pytest.mark.feature("S003-33")
def test_nccl_between_ranks_without_gpus_is_refused_before_they_meet(
    places: Path, run: Any, recipe_file: Path
) -> None:
    """One rank alone meets nobody: a file that names NCCL is tried on a laptop so."""
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, over which NCCL passes")
    run("prepare-data")
    nccl = (*SMALL, "train.max_steps=2", "train.ddp_backend=nccl")
    result = launch(places, recipe_file, "13", *nccl)
    assert result.returncode == ExitCode.BAD_CONFIG, result.stderr
    reason = record_of(places, "13")["reason"]
    assert "train.ddp_backend nccl: there is no GPU; use gloo, or leave it out" in reason
    assert run("train", *nccl)[0] == 0


@pytest.mark.feature("S004-20")
def test_offload_is_refused_where_there_is_no_gpu(places: Path, run: Any) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, which offload asks for")
    run("prepare-data")
    code, record = run("train", "train.strategy=offload")
    assert code == ExitCode.BAD_CONFIG
    assert "train.strategy offload: there is no GPU" in record["reason"]


@pytest.mark.feature("S000-04", "S000-32", "S003-07", "S003-38")
@pytest.mark.parametrize(
    "options",
    [
        ("train.lora.dora=true",),
        at_night(("train.dtype=fp16", "train.learning_rate=0.003", "train.max_steps=24")),
        at_night(("train.dtype=fp16", "train.method=full", "train.learning_rate=0.003")),
        ("train.method=full", "train.schedule=linear", "train.warmup_steps=1"),
        ("train.packing=false", "train.micro_batch_size=3"),
        ("train.gradient_checkpointing=true",),
    ],
    ids=["dora", "fp16-lora", "fp16-full", "linear", "unpacked", "activation-checkpointing"],
)
def test_a_run_learns(places: Path, run: Any, options: tuple[str, ...]) -> None:
    run("prepare-data")
    code, record = run("train", "train.max_steps=8", *options)
    assert code == 0, record
    metrics = record["metrics"]
    assert metrics["last_loss"] < metrics["first_loss"]
    assert metrics["num_trained_parameters"] <= metrics["num_parameters"]


@pytest.mark.feature("S000-04")
def test_a_step_has_the_gradient_of_its_own_rows_alone(places: Path, run: Any) -> None:
    """Steps of the same rows and, but for a trillionth, the same weights: one gradient."""
    run("prepare-data")
    still = ("train.method=full", "train.learning_rate=1e-12", "train.schedule=constant")
    rows = run("train", *still, "train.max_steps=1")[1]["metrics"]["num_rows"]
    whole = ("train.micro_batch_size=1", f"train.gradient_accumulation={rows}")
    assert run("train", *still, *whole, "train.max_steps=3", "train.resume=never")[0] == 0
    lines = (places / "results" / "12" / "loss_curve.jsonl").read_text().splitlines()
    first, *others = (json.loads(line)["grad_norm"] for line in lines)
    assert others == pytest.approx([first, first], rel=1e-3)


def test_dora_trains_a_magnitude_beside_each_adapter(places: Path, run: Any) -> None:
    run("prepare-data")
    assert run("train", "train.lora.dora=true")[0] == 0
    assert any("magnitude" in name for name in adapter(places))


@pytest.mark.feature("S000-31", "S000-33")
def test_qlora_trains_adapters_on_a_base_of_four_bits(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("bitsandbytes")
    from workloads.train import model as model_module

    built: list[Any] = []
    build = model_module.build_model

    def keep(*arguments: Any, **options: Any) -> Any:
        built.append(build(*arguments, **options))
        return built[0]

    monkeypatch.setattr(model_module, "build_model", keep)
    run("prepare-data")
    code, record = run("train", "train.method=qlora", "train.dtype=bf16", "train.max_steps=8",
                       "train.export_merged=true")  # fmt: skip
    assert code == 0, record
    kinds = {type(module).__name__ for module in built[0].modules()}
    assert "Linear4bit" in kinds
    assert record["metrics"]["last_loss"] < record["metrics"]["first_loss"]
    assert all(w.requires_grad == ("lora_" in name) for name, w in built[0].named_parameters())
    merged = places / "chkpt" / "finetune" / "12" / "merged"
    assert "quantization_config" not in json.loads((merged / "config.json").read_text())


@pytest.mark.feature("S000-33")
def test_a_run_prepares_its_base_of_four_bits_before_it_attaches_adapters(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And learns so; without 4 bits there is nothing to prepare for."""
    pytest.importorskip("bitsandbytes")
    import peft

    from workloads.train import model as model_module

    order, prepared = list[str](), list[Any]()
    for owner, name in ((model_module, "load_model"), (peft, "prepare_model_for_kbit_training"),
                        (model_module, "attach_lora")):  # fmt: skip
        step = getattr(owner, name)

        def noted(*given: Any, name: str = name, step: Any = step, **named: Any) -> Any:
            order.append(name)
            prepared.append(step(*given, **named))
            return prepared[-1]

        monkeypatch.setattr(owner, name, noted)
    run("prepare-data")
    options = ("train.dtype=bf16", "train.max_steps=8", "train.fp32_embeddings=true")
    code, record = run("train", *options, "train.method=qlora")
    assert code == 0, record
    assert order == ["load_model", "prepare_model_for_kbit_training", "attach_lora"]
    weights = [w for w in prepared[-1].parameters() if type(w).__name__ != "Params4bit"]
    assert {weight.dtype for weight in weights} == {torch.float32}
    assert record["metrics"]["last_loss"] < record["metrics"]["first_loss"]
    code, record = run("train", *options)
    assert code == ExitCode.BAD_CONFIG
    assert "train.fp32_embeddings: got true with method lora" in record["reason"]


@pytest.mark.feature("S000-33")
@pytest.mark.parametrize("recomputed", [False, True])
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_base_of_four_bits_is_prepared_to_the_bits_of_pefts_own_function(
    model_dir: Path, dtype: Any, recomputed: bool
) -> None:
    """Loss and gradients, against a model made without the trainer: load, prepare, LoRA."""
    pytest.importorskip("bitsandbytes")
    import peft
    import transformers

    from workloads.train.model import build_model, four_bit_options
    from workloads.train.strategy import autocast

    cpu, kind = torch.device("cpu"), {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    ids = torch.randint(0, 200, (1, 64), generator=torch.Generator().manual_seed(0))
    config = TrainConfig(
        dataset="x", method="qlora", dtype=dtype, max_steps=1, learning_rate=1e-3,
        fp32_embeddings=True, gradient_checkpointing=recomputed,
    )  # fmt: skip

    def by_peft() -> Any:
        base = transformers.AutoModelForCausalLM.from_pretrained(
            model_dir, dtype=kind, **four_bit_options(kind)
        )
        base = peft.prepare_model_for_kbit_training(
            base,
            use_gradient_checkpointing=recomputed,
            gradient_checkpointing_kwargs={"use_reentrant": False},
        )
        lora = peft.LoraConfig(
            r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        return peft.get_peft_model(base, lora).train()

    def gradients(model: Any) -> tuple[list[torch.Tensor], set[torch.dtype]]:
        random, between = torch.Generator().manual_seed(1), set[torch.dtype]()
        trained = [w for w in model.parameters() if w.requires_grad]
        for weight in trained:  # B of an adapter begins with zeros, behind which A has no gradient
            weight.data.normal_(std=0.1, generator=random)
        for layer in model.get_base_model().model.layers:
            layer.register_forward_hook(lambda _module, _given, found: between.add(found.dtype))
        with autocast(config, cpu):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return [loss, *(weight.grad for weight in trained)], between

    expected, between = gradients(by_peft())
    ours, between_ours = gradients(build_model(model_dir, config, device=cpu))
    assert between == between_ours == {torch.float32}
    assert len(ours) == len(expected) > 1
    assert all(each is not None and each.any() for each in expected)
    assert all(map(torch.equal, ours, expected))


@pytest.mark.feature("S000-33")
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_norms_of_a_base_of_four_bits_give_the_bits_of_fp32_ones(
    model_dir: Path, dtype: Any
) -> None:
    """So PEFT's preparation for 4 bits, which keeps them in fp32, has nothing to add to them.

    With activations computed again, from an input that needs no gradient.
    """
    pytest.importorskip("bitsandbytes")
    from workloads.train.model import build_model
    from workloads.train.strategy import autocast

    cpu = torch.device("cpu")
    ids = torch.randint(0, 200, (1, 64), generator=torch.Generator().manual_seed(0))

    def gradients(*, recomputed: bool, fp32_norms: bool) -> list[torch.Tensor]:
        config = TrainConfig(
            dataset="x", method="qlora", dtype=dtype, max_steps=1, learning_rate=1e-3,
            gradient_checkpointing=recomputed,
        )  # fmt: skip
        model = build_model(model_dir, config, device=cpu)
        assert model.get_base_model().is_activation_checkpointing == recomputed
        random = torch.Generator().manual_seed(1)
        trained = [w for w in model.parameters() if w.requires_grad]
        for weight in trained:  # B of an adapter begins with zeros, behind which A has no gradient
            weight.data.normal_(std=0.1, generator=random)
        norms = [each for each in model.modules() if type(each).__name__ == "LlamaRMSNorm"]
        assert len(norms) > 2
        for norm in norms:
            assert norm.weight.dtype.itemsize == 2
            norm.weight.data.uniform_(0.5, 1.5, generator=random)
            if fp32_norms:
                norm.weight.data = norm.weight.data.float()
                norm.register_forward_hook(lambda _, given, found: found.to(given[0].dtype))
        with autocast(config, cpu):
            loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return [loss, *(weight.grad for weight in trained)]

    expected = gradients(recomputed=False, fp32_norms=False)
    assert all(each is not None and each.any() for each in expected)
    for recomputed, fp32_norms in ((False, True), (True, False)):
        found = gradients(recomputed=recomputed, fp32_norms=fp32_norms)
        assert all(map(torch.equal, found, expected))


def test_qlora_without_its_library_is_refused_before_anything_is_loaded(
    places: Path, run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from workloads.train import inputs

    run("prepare-data")
    monkeypatch.setattr(inputs, "find_spec", lambda name: None)
    code, record = run("train", "train.method=qlora", "train.dtype=bf16")
    assert code == ExitCode.BAD_CONFIG
    assert "train.method qlora: the package bitsandbytes is not installed" in record["reason"]


@pytest.mark.feature("S003-78")
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.attention=varlen", "train.attention varlen: there is no GPU"),
        ("train.liger=on", "train.liger on: there is no GPU"),
    ],
)
def test_a_kernel_that_is_asked_for_and_missing_is_refused(
    places: Path, run: Any, override: str, message: str
) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU, which these kernels ask for")
    run("prepare-data")
    code, record = run("train", override)
    assert code == ExitCode.BAD_CONFIG
    assert message in record["reason"]


KINDS = ("bert", "t5", "vit", "segformer", "yolos")


@pytest.mark.feature("S002-77", "S002-78", "S003-07")
@pytest.mark.parametrize(
    "name", [*(f"{kind}_full_1xcpu" for kind in KINDS[:-1]), at_night(f"{KINDS[-1]}_full_1xcpu")]
)
def test_other_kinds_of_models_learn_through_the_same_loop(
    places: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    from workloads.train.inputs import train as main

    code = run_job("train", main, ["--recipe", name])
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, record
    config = load_recipe(name).train
    assert config is not None
    assert config.gate is not None
    assert config.gate.max_loss is not None
    metrics = record["metrics"]
    assert metrics["last_loss"] < config.gate.max_loss < 0.8 * metrics["first_loss"]
    assert (places / "chkpt" / "finetune" / "12" / "final" / "model.safetensors").is_file()


@pytest.mark.feature("S000-30", "S002-36", "S002-77")
@pytest.mark.parametrize("kind", ["bert", at_night("t5"), "vit"])
def test_adapters_learn_on_other_kinds_of_models_and_load_on_their_base(
    places: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """The base stays as it was; a classifier's new head is trained whole beside the adapters."""
    import peft
    import transformers

    from workloads.train.inputs import train as main
    from workloads.train.tasks import AUTO_CLASSES

    options = ("train.method=lora", "train.save_original=true", "train.gate=null")
    arguments = [f"--recipe={kind}_full_1xcpu", *(f"--set={option}" for option in options)]
    code = run_job("train", main, arguments)
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, record
    assert record["metrics"]["last_loss"] < 0.7 * record["metrics"]["first_loss"]
    folder = places / "chkpt" / "finetune" / "12"
    names = set(adapter(places))
    assert any("lora_A" in name for name in names)
    assert any("classifier" in name for name in names) is (kind != "t5")
    assert all("lora_" in name or "classifier" in name for name in names)
    config = load_recipe(f"{kind}_full_1xcpu").train
    assert config is not None
    base = getattr(transformers, AUTO_CLASSES[config.task]).from_pretrained(folder / "original")
    tuned = peft.PeftModel.from_pretrained(base, folder / "final")
    loaded = peft.get_peft_model_state_dict(tuned)
    assert loaded.keys() == names
    assert all(torch.equal(loaded[name], value) for name, value in adapter(places).items())


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_classifiers_head_learns_beside_adapters_in_16_bits(
    places: Path, capsys: pytest.CaptureFixture[str], dtype: str
) -> None:
    from workloads.train.inputs import train as main

    options = ("train.method=lora", f"train.dtype={dtype}", "train.gate=null", "train.max_steps=20")
    arguments = ["--recipe=bert_full_1xcpu", *(f"--set={option}" for option in options)]
    code = run_job("train", main, arguments)
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0, record
    assert record["metrics"]["last_loss"] < record["metrics"]["first_loss"]


@pytest.mark.nightly
@pytest.mark.feature("S004-24")
def test_a_classifier_is_divided_by_fsdp_too(places: Path, recipe_file: Path) -> None:
    result = launch(places, Path("bert_full_1xcpu"), "13", "train.strategy=fsdp")
    assert result.returncode == 0, result.stderr
    assert "fsdp: 2 x BertLayer" in result.stderr


def test_a_text_classifier_reads_rows_from_a_file(places: Path, run: Any, model_dir: Path) -> None:
    folder = places / "data" / "texts"
    folder.mkdir()
    rows = [{"text": word * 3, "label": kind} for kind, word in enumerate(["yes", "no"])] * 8
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "rows_train.jsonl").write_text(lines)
    options = ("train.task=text_classification", "train.method=full", "train.dataset=texts",
               "train.max_steps=10")  # fmt: skip
    code, record = run("train", *options)
    assert code == 0, record
    assert record["metrics"]["last_loss"] < record["metrics"]["first_loss"]
    (folder / "rows_train.jsonl").write_text(lines + '{"text": "x"}\n')
    code, record = run("train", *options)
    assert code == ExitCode.BAD_DATA
    assert "rows_train.jsonl:17" in record["reason"]


@pytest.mark.feature("S001-36", "S001-37", "S002-02")
def test_two_ranks_started_by_hand_meet_and_train(
    places: Path, run: Any, recipe_file: Path
) -> None:
    """The debug mode of seed 001: one torchrun a node, as the page of training has it to type."""
    run("prepare-data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "SLURM_JOB_ID": "13", "OMP_NUM_THREADS": "1"}
    page = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    (typed,) = re.findall(r"on each: `torchrun ([^`]+)`", page)
    assert {"--nnodes=2", "--nproc_per_node=8", "--master_port=29500"} <= set(typed.split())
    here = {"=8": "=1", "=A": "=127.0.0.1", "=29500": f"={port}", " FILE": f" {recipe_file}"}
    for word, value in here.items():
        typed = typed.replace(word, value)
    nodes = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run"),
                *typed.replace("=R ", f"={rank} ").split(),
                *("--set", "train.max_steps=2"),
            ],
            cwd=REPOSITORY,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    ends = [node.communicate(timeout=240) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], ends
    assert record_of(places, "13")["world_size"] == 2
    assert len(losses(places, "13")) == 2
