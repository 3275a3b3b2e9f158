"""Training configs: one schema, other people's keys mapped, impossible mixes refused, `--plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.render.sbatch import render_sbatch
from stacks.load import STACKS_DIR, load_stack
from workloads.common.exit_codes import ConfigError
from workloads.common.models import catalog, find
from workloads.recipes import load_recipe, recipe_names
from workloads.recipes.train import (
    RESUMABLE,
    EvalConfig,
    TrainConfig,
    create_training_arguments,
    map_deepspeed,
)
from workloads.train.__main__ import show_plan
from workloads.train.inputs import PLAN_VARIABLE

BASE: dict[str, Any] = {"dataset": "prepared", "max_steps": 3, "learning_rate": 2e-5}
ZERO3: dict[str, Any] = {
    "zero_optimization": {"stage": 3, "overlap_comm": True},
    "bf16": {"enabled": True},
    "gradient_clipping": 0.5,
    "train_micro_batch_size_per_gpu": "auto",
}


def write(folder: Path, values: Any, name: str = "config.json") -> Path:
    """Returns the path of a file with `values`."""
    path = folder / name
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


@pytest.mark.feature("S000-34", "S003-08")
def test_create_training_arguments_reads_a_bare_section_and_a_recipe(tmp_path: Path) -> None:
    bare = create_training_arguments(write(tmp_path, BASE))
    assert bare == TrainConfig(dataset="prepared", max_steps=3, learning_rate=2e-5)
    recipe = write(tmp_path, {"model": "m", "train": BASE}, "recipe.json")
    for file in (recipe, tmp_path / "config.json"):
        assert create_training_arguments(file, ["train.max_steps=7"]).max_steps == 7
    text = "dataset: prepared\nmax_steps: 3\nlearning_rate: 2.0e-5\n"
    (tmp_path / "config.yaml").write_text(text)
    assert create_training_arguments(tmp_path / "config.yaml") == bare


@pytest.mark.feature("S000-34")
def test_keys_of_transformers_are_read_as_ours(tmp_path: Path) -> None:
    config = create_training_arguments(
        write(
            tmp_path,
            {
                "dataset": "prepared",
                "learning_rate": 2e-5,
                "per_device_train_batch_size": 2,
                "gradient_accumulation_steps": 4,
                "num_train_epochs": 3.0,
                "lr_scheduler_type": "cosine",
                "fp16": True,
                "bf16": False,
                "save_steps": 300,
                "eval_steps": 100,
                "use_liger_kernel": False,
            },
        )
    )
    assert (config.micro_batch_size, config.gradient_accumulation, config.epochs) == (2, 4, 3)
    assert (config.dtype, config.checkpoint_every, config.liger) == ("fp16", 300, "off")
    assert config.eval == EvalConfig(every=100)


@pytest.mark.feature("S000-34")
@pytest.mark.parametrize("other", [{}, {"fp16": False}])
def test_no_type_of_16_bits_is_fp32_as_transformers_has_it(
    tmp_path: Path, other: dict[str, bool], capsys: pytest.CaptureFixture[str]
) -> None:
    values = {**BASE, "bf16": False, **other}
    assert create_training_arguments(write(tmp_path, values)).dtype == "fp32"
    assert "train.bf16=false -> train.dtype='fp32'" in capsys.readouterr().err
    assert create_training_arguments(write(tmp_path, {**values, "dtype": "fp16"})).dtype == "fp16"
    with pytest.raises(ConfigError, match=r"bf16: got false, but .*dtype is 'bf16'"):
        create_training_arguments(write(tmp_path, {**values, "dtype": "bf16"}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"checkpoint_every": 300, "checkpoint_every_epochs": 5},
            "train.checkpoint_every=300 has no effect: checkpoints are saved every 5 epochs",
        ),
        (
            {"warmup_steps": 1000, "max_steps": 5},
            "train.warmup_steps=1000 is more than train.max_steps=5: the learning rate ends at 0.0",
        ),
        ({"checkpoint_every_epochs": 5}, ""),
        ({"warmup_steps": 5, "max_steps": 5}, ""),
    ],
    ids=["both intervals", "all warm-up", "one interval", "warm-up to the end"],
)
def test_a_setting_that_another_one_takes_the_effect_of_is_told(
    changes: dict[str, int], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not refused: a few steps of a recipe with a long warm-up are how it is tried."""
    create_training_arguments(write(tmp_path, {**BASE, **changes}))
    err = capsys.readouterr().err
    assert told in err
    assert bool(err) == bool(told)


@pytest.mark.feature("S003-33")
def test_the_ddp_backend_keeps_its_name_and_is_that_of_the_device_where_it_is_left_out(
    tmp_path: Path,
) -> None:
    values = {"dataset": "d", "max_steps": 1, "learning_rate": 1e-4}
    assert create_training_arguments(write(tmp_path, values)).ddp_backend is None
    for name in ("nccl", "gloo"):
        file = write(tmp_path, {**values, "ddp_backend": name})
        assert create_training_arguments(file).ddp_backend == name
    with pytest.raises(
        ConfigError, match=r'train\.ddp_backend: got "mpi", expected one of nccl, gloo'
    ):
        create_training_arguments(write(tmp_path, {**values, "ddp_backend": "mpi"}))


def test_two_names_of_one_key_that_disagree_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, {**BASE, "micro_batch_size": 1, "per_device_train_batch_size": 2})
    with pytest.raises(ConfigError, match=r"per_device_train_batch_size: got 2, but .* is 1"):
        create_training_arguments(path)


@pytest.mark.feature("S003-08")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"learning_ratio": 1}, "learning_ratio: unknown key; did you mean 'learning_rate'?"),
        ({"method": "qlora", "dtype": "fp32"}, "dtype: got fp32 with method qlora"),
        ({"method": "qlora", "strategy": "fsdp"}, "strategy: got fsdp with method qlora"),
        ({"dtype": "fp16", "strategy": "offload"}, "strategy: got offload with dtype fp16"),
        ({"method": "full", "lora": {"dora": True}}, "lora.dora: got true with method full"),
        ({"method": "full", "export_merged": True}, "export_merged: got true with method full"),
        (
            {"task": "text_to_text", "method": "qlora", "dtype": "bf16"},
            "method: got qlora with task text_to_text",
        ),
        ({"task": "text_to_text", "compile": True}, "compile: got true with task text_to_text"),
        ({"task": "object_detection"}, "method: got lora with task object_detection, which trains"),
        (
            {"task": "image_classification", "export_merged": True},
            "export_merged: got true with task image_classification",
        ),
        (
            {"task": "text_to_text", "method": "full", "loss_chunk_tokens": 8},
            "loss_chunk_tokens: has no meaning with task text_to_text",
        ),
        ({"gate": {"max_loss": 0}}, "gate.max_loss: got 0"),
        ({"eval": {"every": 2, "every_epochs": 1}}, "eval.every: got 2 with every_epochs 1; set"),
        ({"eval": {}}, "eval.every: got None with every_epochs None; set one of them"),
        ({"eval": {"every": 2, "patience": 0}}, "eval.patience: got 0, expected > 0"),
        ({"eval": {"evry": 2}}, "did you mean 'every'?"),
        ({"learning_rate": float("inf")}, "learning_rate: got Infinity, expected a number from"),
        ({"weight_decay": float("inf")}, "weight_decay: got Infinity, expected a number from"),
        ({"checkpoint": {"elastic_evry": 1}}, "did you mean 'elastic_every'?"),
        ({"gradient_checkpointing": -1}, "gradient_checkpointing: got -1, expected >= 0"),
        (
            {"gradient_checkpointing": "some"},
            'gradient_checkpointing: got "some", expected true or false or a whole number',
        ),
        ({"gradient_checkpointing": 1.5}, "got 1.5, expected true or false or a whole number"),
        ({"micro_batch_size": True}, "micro_batch_size: got true, expected a whole number"),
        ({"micro_batch_size": 1.5}, "micro_batch_size: got 1.5, expected a whole number"),
        ({"learning_rate": "1e-4"}, 'learning_rate: got "1e-4", expected a number'),
        ({"schedule": "cosin"}, 'schedule: got "cosin", expected one of cosine, '),
    ],
)
def test_unknown_keys_and_impossible_mixes_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        create_training_arguments(write(tmp_path, {**BASE, **changes}))
    assert message in str(caught.value)


def test_four_bits_as_transformers_names_them_are_qlora_and_never_full(tmp_path: Path) -> None:
    """Weights of 4 bits are not trained: adapters on them are."""
    values = {**BASE, "dtype": "bf16", "load_in_4bit": True}
    assert create_training_arguments(write(tmp_path, values)).method == "qlora"
    with pytest.raises(ConfigError, match="load_in_4bit: got true with method full"):
        create_training_arguments(write(tmp_path, {**values, "method": "full"}))


def test_every_resumable_key_is_a_key() -> None:
    assert set(RESUMABLE) <= set(TrainConfig.__dataclass_fields__)
    assert list(RESUMABLE) == sorted(RESUMABLE)


@pytest.mark.feature("S001-11", "S003-20", "S004-22")
def test_zero_3_is_full_sharding_and_the_mapping_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, {**BASE, "deepspeed": "ds_config_zero3.json"})
    write(tmp_path, ZERO3, "ds_config_zero3.json")
    config = create_training_arguments(path)
    assert (config.strategy, config.dtype, config.max_grad_norm) == ("fsdp", "bf16", 0.5)
    told = capsys.readouterr().err
    assert "deepspeed zero_optimization.stage=3 -> train.strategy='fsdp'" in told
    assert "zero_optimization.overlap_comm=True: FSDP2 does this by itself" in told
    assert "train_micro_batch_size_per_gpu='auto': the recipe's value stays" in told


@pytest.mark.feature("S000-34")
def test_a_value_of_the_recipe_wins_over_deepspeeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = create_training_arguments(
        write(tmp_path, {**BASE, "strategy": "ddp", "deepspeed": ZERO3})
    )
    assert config.strategy == "ddp"
    assert "train.strategy='ddp' wins over DeepSpeed's 'fsdp'" in capsys.readouterr().err


@pytest.mark.feature("S001-11", "S004-22")
def test_offload_types_and_optimizer_of_deepspeed_are_mapped() -> None:
    mapped = map_deepspeed(
        {
            "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}},
            "bf16": {"enabled": False},
            "fp16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 9}},
        },
        at="ds",
    ).values
    assert mapped == {
        "strategy": "offload",
        "dtype": "fp16",
        "learning_rate": 1e-4,
        "weight_decay": 0.1,
        "schedule": "linear",
        "warmup_steps": 9,
    }


def test_sections_of_deepspeed_without_values_are_none() -> None:
    nothing = {"optimizer": {"params": None}, "scheduler": {"type": "WarmupLR", "params": None}}
    zero = {"zero_optimization": {"stage": 3, "offload_param": None}}
    values = map_deepspeed({**nothing, **zero}, at="ds").values
    assert values == {"schedule": "constant", "strategy": "fsdp"}


def test_every_value_of_deepspeed_is_printed() -> None:
    config = {
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True}},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.8, 0.9], "eps": 1e-6}},
        "scheduler": {
            "type": "WarmupLR", "params": {"warmup_num_steps": "auto", "warmup_min_lr": 0},
        },
        "activation_checkpointing": {"partition_activations": True},
        "flops_profiler": {"enabled": True},
    }  # fmt: skip
    told = "\n".join(map_deepspeed(config, at="ds").lines)
    for words in (
        "zero_optimization.offload_param.pin_memory=True: no counterpart, left out",
        "fp16.enabled='auto': the recipe's dtype stays",
        "fp16.loss_scale=0: ",
        "optimizer.type='AdamW': AdamW trains",
        "optimizer.params.lr='auto': the recipe's value stays",
        "optimizer.params.betas=[0.8, 0.9]: AdamW runs with torch's own default, left out",
        "optimizer.params.eps=1e-06: ",
        "scheduler.params.warmup_num_steps='auto': the recipe's value stays",
        "scheduler.params.warmup_min_lr=0: ",
        "activation_checkpointing={'partition_activations': True}: no counterpart, left out",
        "flops_profiler={'enabled': True}: no counterpart, left out",
    ):
        assert words in told


@pytest.mark.feature("S004-22")
@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"zero_optimization": {"stage": 2}}, "ds.zero_optimization.stage: got 2, expected 3"),
        ({"zero_optimisation": {}}, "unknown key; did you mean 'zero_optimization'?"),
        ({"foo.bar": 1}, "ds.foo.bar: unknown key; write a setting into its section"),
        (
            {"zero_optimization": {"stage": 3}, "zero_optimization.stage": 0},
            "ds.zero_optimization.stage: unknown key; write a setting into its section",
        ),
        ({"optimizer": {"params.lr": 1}}, "ds.optimizer.params.lr: unknown key"),
        ({"bf16": True}, "ds.bf16: got True, expected a mapping"),
        ({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "enable one of them"),
        ({"optimizer": {"type": "Lion"}}, "ds.optimizer.type: got 'Lion'"),
        ({"optimizer": {"params": [1]}}, "ds.optimizer.params: got [1], expected a mapping"),
        ({"scheduler": {"type": ["WarmupLR"]}}, "ds.scheduler.type: got ['WarmupLR']"),
        (
            {"zero_optimization": {"stage": 3, "offload_param": "cpu"}},
            "ds.zero_optimization.offload_param: got 'cpu', expected a mapping",
        ),
    ],
)
def test_what_deepspeed_cannot_say_here_is_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        map_deepspeed(config, at="ds")
    assert message in str(caught.value)


def train_of(name: str) -> TrainConfig:
    """Returns the training settings of a shipped recipe."""
    train = load_recipe(name).train
    assert train is not None
    return train


@pytest.mark.feature("S000-19")
def test_seed_000_trains_qwen3_14b_in_four_bits_and_fp16() -> None:
    recipe = load_recipe("qwen3_14b_qlora_8xl40s")
    train = train_of("qwen3_14b_qlora_8xl40s")
    assert recipe.model == "Qwen/Qwen3-14B"
    assert (train.method, train.dtype, train.strategy) == ("qlora", "fp16", "ddp")
    assert train.dataset == "prepared/finance_qwen3_14b"


@pytest.mark.feature(
    "S001-10",
    "S001-11",
    "S001-20",
    "S001-22",
    "S001-23",
    "S001-24",
    "S001-25",
    "S001-26",
    "S001-27",
    "S001-28",
    "S001-29",
    "S001-30",
    "S001-40",
    "S001-42",
)
def test_seed_001_is_read_with_its_zero_3_config_and_its_success_criteria() -> None:
    train = train_of("qwen2_7b_lora_zero3_16xh100")
    assert (train.lora.rank, train.lora.alpha, train.dtype) == (64, 128, "bf16")
    assert train.micro_batch_size * train.gradient_accumulation * 16 == 128
    assert (train.micro_batch_size, train.gradient_accumulation) == (2, 4)
    assert train.max_grad_norm == 1.0
    assert (train.learning_rate, train.schedule, train.sequence_length) == (2e-5, "cosine", 4096)
    assert train.strategy == "fsdp"
    assert train.gate is not None
    assert (train.gate.max_loss, train.gate.min_tokens_per_s_per_gpu) == (0.5, 2000)


@pytest.mark.feature("S002-32", "S002-38", "S002-40", "S002-42", "S002-75")
def test_seed_002_saves_the_original_and_a_checkpoint_every_5_epochs() -> None:
    train = train_of("qwen2_7b_lora_original_16xh100")
    assert (train.save_original, train.checkpoint_every_epochs, train.strategy) == (True, 5, "ddp")
    assert (train.export_merged, train.keep_in) == (True, "model")


@pytest.mark.feature("S002-33")
def test_seed_002_runs_as_training_with_original_on_main_for_six_hours(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "id.pub").write_text(f"ssh-ed25519 {'A' * 68} user@host\n", encoding="utf-8")
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", str(tmp_path / "id.pub"))
    spec = load_stack("h100-prod")
    (job,) = [each for each in spec.jobs if each.name == "training-with-original"]
    text = render_sbatch(spec, job)
    assert "RANKS_PER_NODE=8" in text
    for line in (
        "--job-name=training-with-original",
        "--partition=main",
        "--nodes=2",
        "--gpus-per-node=8",
        "--time=06:00:00",
    ):
        assert f"#SBATCH {line}" in text


@pytest.mark.feature("S003-01", "S003-05", "S003-20", "S003-23", "S003-27", "S003-38")
def test_seed_003_divides_the_model_and_saves_both_kinds() -> None:
    train = train_of("qwen2_7b_full_4xh200")
    assert (train.strategy, train.dtype, train.gradient_checkpointing) == ("fsdp", "bf16", True)
    assert (train.checkpoint_every, train.checkpoint.elastic_every) == (300, 1000)
    # Epochs would take the place of the steps, which say nothing then.
    assert train.checkpoint_every_epochs is None
    page = (STACKS_DIR.parent / "docs" / "training.md").read_text(encoding="utf-8")
    said = "FSDP2, checkpoints every 300 steps, elastic ones every 1,000"
    assert f"\n| `qwen2_7b_full_4xh200` | 003 | {said} |" in page


@pytest.mark.feature("S000-18", "S000-20")
def test_every_model_of_a_recipe_is_recorded_with_licence_safeguards_and_trainability() -> None:
    for name in recipe_names():
        model = load_recipe(name).model
        # A shape of the acceptance suite is no model that anybody publishes.
        if name != "look" and not model.startswith(("generated/", "decoder-")):
            entry = find(model)
            assert entry is not None, model
            assert entry["use"] == "commercial use allowed"
    for entry in catalog():
        assert all(entry.values())


def test_the_plan_is_printed_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import subprocess
    import sys

    plan = {
        "schema_version": 2,
        "recipe_model": "Qwen/Qwen2-7B-Instruct",
        "parameters": 7_615_616_512,
        "world_size": 16,
        "strategy": "ddp",
        "reason": "needs 40.0 GiB of 72.9 GiB a GPU",
        "fits": True,
        "largest_micro_batch": 4,
        "memory_gib_per_rank": {"weights": 14.8, "total": 40.0},
        "method": "lora",
        "dtype": "bf16",
        "sequence_length": 4096,
        "micro_batch_size": 2,
        "gradient_checkpointing": 28,
        "layers": 28,
        "steps": 321,
        "forecast": {
            "known": True, "hours": 1.25, "speed_source": "measured", "nodes_usd": "78.1250",
        },
    }  # fmt: skip
    monkeypatch.setenv(PLAN_VARIABLE, str(write(tmp_path, plan, "plan.json")))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    arguments = ["--config", "qwen2_7b_lora_16xh100", "--plan"]
    assert show_plan(arguments) == 0
    told = capsys.readouterr().out
    assert "2 rows x 4 micro batches x 16 ranks = 128 rows of 4096 tokens" in told
    assert "strategy    ddp: needs 40.0 GiB of 72.9 GiB a GPU" in told
    for words in ("40.000", "steps       321", "hours       1.25 (measured)", "$78.1250"):
        assert words in told
    assert "Apache-2.0, commercial use allowed" in told
    script = (
        "import sys; from workloads.train.__main__ import show_plan; "
        f"code = show_plan({arguments!r}); assert 'torch' not in sys.modules; sys.exit(code)"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert result.returncode == 0
