"""Recipes: every shipped one loads; mistakes are told with their path."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stacks.load import load_stack
from workloads.common.exit_codes import ConfigError
from workloads.recipes import load_recipe, recipe_names


@pytest.mark.feature("S000-12")
@pytest.mark.parametrize("name", sorted({*recipe_names()} - {"look"}))
def test_every_shipped_recipe_loads_and_has_a_section(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    sections = (recipe.data, recipe.train, recipe.evaluate, recipe.serve, recipe.load)
    assert any((*sections, recipe.accept))


def test_the_recipes_that_stacks_name_are_shipped() -> None:
    assert {
        "bfcl_smollm2",
        "smollm2_135m_lora_2xcpu",
        "finance_qwen3_14b",
        "qwen3_14b_lora_8xl40s",
        "glaive_qwen2_7b",
        "qwen2_7b_lora_16xh100",
        "qwen2_7b_full_4xh200",
    } <= set(recipe_names())


@pytest.mark.feature(
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
@pytest.mark.usefixtures("public_key_file")
@pytest.mark.parametrize("name", ["qwen2_7b_lora_16xh100", "qwen2_7b_lora_zero3_16xh100"])
def test_the_h100_recipe_has_the_seeds_own_values(name: str) -> None:
    train = load_recipe(name).train
    assert train is not None
    assert (train.lora.rank, train.lora.alpha) == (64, 128)
    assert (train.dtype, train.micro_batch_size, train.gradient_accumulation) == ("bf16", 2, 4)
    (job,) = [each for each in load_stack("h100-prod").jobs if each.recipe == name]
    ranks = job.nodes * job.gpus_per_node
    assert train.micro_batch_size * train.gradient_accumulation * ranks == 128
    assert (train.learning_rate, train.schedule, train.sequence_length) == (2e-5, "cosine", 4096)
    assert train.gate is not None
    assert (train.gate.max_loss, train.gate.min_tokens_per_s_per_gpu) == (0.5, 2000)
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `qwen2_7b_lora_16xh100`.*$", page, re.MULTILINE)
    assert "| r 64, alpha 128, 161,480,704 trained weights, 2 rows x 4 x 16 = 128, 2e-5 " in row
    assert "cosine, 4,096; " in row
    assert "gate: loss below 0.5, above 2,000 tokens/s/GPU" in row


@pytest.mark.feature("S000-16")
def test_the_recipes_of_seed_000_answer_without_a_reasoning_phase() -> None:
    for name in ("qwen3_14b_serve_1xl40s", "qwen3_14b_serve_2xl40s"):
        serve = load_recipe(name).serve
        assert serve is not None
        assert not serve.thinking, name
    data = load_recipe("finance_qwen3_14b").data
    assert data is not None
    assert data.chat_template_kwargs == {"enable_thinking": False}


@pytest.mark.feature("S000-121")
def test_the_finance_recipe_looks_for_terms_of_its_domain() -> None:
    evaluate = load_recipe("finance_qwen3_14b").evaluate
    assert evaluate is not None
    assert evaluate.terms


@pytest.mark.feature("S000-56")
def test_a_server_over_both_gpus_of_its_node_is_vllms() -> None:
    """No other engine divides a model; 32 rows are 38.9 of each GPU's 40.8 GiB (cost size)."""
    serve = load_recipe("qwen3_14b_serve_2xl40s").serve
    assert serve is not None
    assert (serve.engine, serve.gpus, serve.limits.max_concurrency) == ("vllm", 2, 32)


@pytest.mark.parametrize(
    "name", ["qwen3_14b_serve_1xl40s", "qwen3_14b_serve_2xl40s", "smollm2_135m_serve_cpu"]
)
def test_a_shipped_server_has_base_and_tuned_and_no_later_try(name: str) -> None:
    """`serve --open` served the base alone; `latest` would be a four-step try of after it."""
    serve = load_recipe(name).serve
    assert serve is not None
    assert serve.adapter in ("auto", "{place:chkpt}/evaluated")


def test_an_override_changes_one_value_and_keeps_its_type() -> None:
    recipe = load_recipe("smollm2_135m_lora_2xcpu", ["train.max_steps=8", "train.lora.rank=4"])
    assert recipe.train is not None
    assert (recipe.train.max_steps, recipe.train.lora.rank) == (8, 4)
    assert recipe.train.lora.alpha == 32


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.max_stepz=8", "train.max_stepz: unknown key; did you mean 'max_steps'"),
        ("train.max_steps=many", 'train.max_steps: got "many", expected a whole number'),
        ("train.max_steps=true", "train.max_steps: got true, expected a whole number"),
        ("train.method=dora", 'train.method: got "dora", expected one of lora, full, qlora'),
        ("train.micro_batch_size=0", "train.micro_batch_size: got 0, expected > 0"),
        ("train.epochs=1", "set exactly one of them"),
        ("train.lora.rank.x=1", "'train.lora.rank' is no section"),
        ("train.lora.rank=10000000000000", "rank: got 10000000000000, expected a number from"),
        ("train.learning_rate=1e308", "learning_rate: got 1e+308, expected a number from"),
        ("train.gate.max_loss=Infinity", "max_loss: got Infinity, expected a number from"),
        ("train.gate.max_loss=NaN", "max_loss: got NaN, expected a number from"),
        ("train.max_steps=" + "x" * 81, f'"{"x" * 79}... of 83 characters, expected a whole'),
        ("max_steps", "write it as section.key=value"),
    ],
)
def test_a_wrong_override_is_refused_with_its_path(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_recipe("smollm2_135m_lora_2xcpu", [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [("training.heads", "heads: got 0, expected > 0"), ("storage.block_kib", "block_kib: got 0")],
)
def test_a_zero_that_others_are_divided_by_is_refused(override: str, message: str) -> None:
    """It was a traceback: what was wrong had been found, and was not told."""
    with pytest.raises(ConfigError, match=message):
        load_recipe("accept_cpu", [f"accept.{override}=0"])


def test_all_problems_of_a_recipe_are_told_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"model": 3, "train": {"dataset": "x", "lr": 1}}))
    with pytest.raises(ConfigError) as caught:
        load_recipe(str(path))
    text = str(caught.value)
    assert "bad.model: got 3, expected a string" in text
    assert "bad.train.lr: unknown key" in text
    assert "bad.train.learning_rate: missing" in text


def test_all_wrong_values_of_a_section_are_told_at_once() -> None:
    wrong = ["train.learning_rate=-3", "train.warmup_steps=-5", "train.epochs=-1"]
    with pytest.raises(ConfigError) as caught:
        load_recipe("smollm2_135m_lora_2xcpu", wrong)
    text = str(caught.value)
    for told in ("learning_rate: got -3", "warmup_steps: got -5", "epochs: got -1", "max_steps"):
        assert f"smollm2_135m_lora_2xcpu.train.{told}" in text


def test_a_date_in_a_yaml_recipe_is_text(tmp_path: Path) -> None:
    """YAML reads it as a date, which JSON does not know."""
    path = tmp_path / "r.yaml"
    path.write_text("model: m\ndescription: 2026-11-28\n", encoding="utf-8")
    assert load_recipe(str(path)).description == "2026-11-28"


@pytest.mark.feature("S001-10", "S001-37")
@pytest.mark.parametrize("ending", ["yaml", "yml"])
def test_yaml_recipes_load_like_json(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"r.{ending}"
    path.write_text("model: m\ntrain: {dataset: d, max_steps: 2, learning_rate: 1.0e-3}\n")
    recipe = load_recipe(str(path))
    assert recipe.train is not None
    assert recipe.train.learning_rate == 1e-3


def test_an_unknown_recipe_names_the_shipped_ones() -> None:
    with pytest.raises(ConfigError, match="bfcl_smollm2, finance_qwen3_14b"):
        load_recipe("nope")


@pytest.mark.feature("S001-21")
def test_lora_r64_on_the_qwen2_7b_shape_trains_the_seeds_161_million_weights() -> None:
    """The counts that seed 001 prints: 7.6 billion of the base and these adapters; on the meta
    device, so nothing is allocated.
    """
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from workloads.train.model import attach_lora, num_parameters

    train = load_recipe("qwen2_7b_lora_16xh100").train
    assert train is not None
    shape = Qwen2Config(
        vocab_size=152064,
        hidden_size=3584,
        intermediate_size=18944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
    )
    with torch.device("meta"):
        model = attach_lora(AutoModelForCausalLM.from_config(shape), train)
    assert num_parameters(model) == (7_615_616_512 + 161_480_704, 161_480_704)
