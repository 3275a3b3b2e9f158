"""Shapes: exact numbers of weights, and config.json files that are refused with their path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost.size.shape import LINEAR_MODULES, SizeError, load_shape, rows, shape_from_config

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 176,
    "vocab_size": 400,
}
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("Qwen2-7B", 7_615_616_512),
        ("Qwen/Qwen2-7B-Instruct", 7_615_616_512),
        ("SmolLM2-135M", 134_515_008),
        ("SmolLM2-135M-Instruct", 134_515_008),
        ("Llama-2-7b-chat-hf", 6_738_415_616),
        ("qwen3-14b", 14_768_307_200),
        ("qwen/qwen2-7b-instruct", 7_615_616_512),
        ("meta-llama/Llama-2-7b-Chat-HF", 6_738_415_616),
    ],
)
def test_a_model_has_its_published_number_of_weights(model: str, weights: int) -> None:
    assert load_shape(model).parameters == weights


@pytest.mark.parametrize("name", rows())
def test_every_row_of_the_catalog_counts_to_what_its_source_says(name: str) -> None:
    row = rows()[name]
    assert load_shape(name).parameters == row["parameters"]
    assert row["source"].startswith("https://")
    assert row["date"]


def test_adapters_of_rank_64_on_qwen2_7b_are_the_161_million_of_seed_001() -> None:
    shape = load_shape("Qwen2-7B")
    assert shape.adapter_weights(rank=64) == 161_480_704
    assert shape.adapter_weights(rank=64, targets=("q_proj", "v_proj")) == 28 * 64 * (
        (3584 + 3584) + (3584 + 512)
    )


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        SizeError, match=r"'Qwen3-14' is not in the catalog; did you mean Qwen3-14B"
    ):
        load_shape("Qwen3-14")


def test_a_config_file_gives_the_same_shape_as_the_catalog(tmp_path: Path) -> None:
    path = tmp_path / "Qwen3-8B" / "config.json"
    path.parent.mkdir()
    values = {
        "model_type": "qwen3",
        "hidden_size": 4096,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "intermediate_size": 12288,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    }
    path.write_text(json.dumps(values), encoding="utf-8")
    assert load_shape(str(path)) == load_shape("Qwen3-8B")
    assert load_shape(str(path.parent)) == load_shape("Qwen3-8B")


def test_heads_without_sizes_of_their_own_share_the_hidden_size() -> None:
    values = {key: value for key, value in CONFIG.items() if key != "num_key_value_heads"}
    shape = shape_from_config(values, name="x", at="config.json")
    assert (shape.kv_heads, shape.head_dim) == (4, 16)


def test_every_missing_key_of_a_config_is_told_at_once_with_its_path() -> None:
    with pytest.raises(SizeError) as refusal:
        shape_from_config({"model_type": "llama"}, name="x", at="m/config.json")
    lines = str(refusal.value).splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "m/config.json.hidden_size",
        "m/config.json.num_hidden_layers",
        "m/config.json.num_attention_heads",
        "m/config.json.intermediate_size",
        "m/config.json.vocab_size",
    ]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("model_type", "mixtral", r"model_type: 'mixtral' is not a decoder"),
        ("hidden_size", 0, r"hidden_size: expected a whole number of 1 or more, got 0"),
        (
            "hidden_size",
            1_000_003,
            r"hidden_size: 1000003 is not a multiple of num_attention_heads",
        ),
        ("num_hidden_layers", "2", r"num_hidden_layers: expected a whole number, got text '2'"),
        ("num_key_value_heads", 3, r"num_key_value_heads: 3 does not divide"),
        ("tie_word_embeddings", "yes", r"tie_word_embeddings: expected true or false, got text"),
    ],
)
def test_a_wrong_value_of_a_config_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(SizeError, match=message):
        shape_from_config({**CONFIG, key: value}, name="x", at="config.json")


@given(st.sampled_from([*CONFIG, "head_dim", "tie_word_embeddings"]), JUNK)
def test_junk_in_a_config_is_refused_under_its_path_or_is_a_shape(key: str, value: Any) -> None:
    problems = ""
    try:
        assert shape_from_config({**CONFIG, key: value}, name="x", at="c.json").parameters > 0
    except SizeError as error:
        problems = str(error)
    assert all(line.startswith("c.json.") for line in problems.splitlines())


@given(JUNK)
def test_junk_for_a_whole_config_is_refused(value: Any) -> None:
    with pytest.raises(SizeError, match=r"^c\.json"):
        shape_from_config(value, name="x", at="c.json")


@pytest.mark.parametrize(
    ("text", "message"), [("{", "not JSON"), (None, "cannot be read: No such file")]
)
def test_a_config_file_that_is_no_json_is_refused(
    tmp_path: Path, text: str | None, message: str
) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(SizeError, match=message):
        load_shape(str(path))


def test_the_weights_of_a_layer_are_those_of_its_linear_layers_norms_and_biases() -> None:
    shape = load_shape("Qwen2-7B")
    linear = sum(a * b for a, b in map(shape.linear, LINEAR_MODULES))
    assert shape.weights_per_layer == linear + 2 * 3584 + 3584 + 2 * 512


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("num_local_experts", 8, "mixture of experts"),
        ("num_experts", 128, "mixture of experts"),
        ("moe_num_experts", 8, "mixture of experts"),
        ("num_experts_per_tok", 2, "mixture of experts"),
        ("compression_config", {"quant_method": "compressed-tensors"}, "quantised already"),
        ("architectures", "LlamaForSequenceClassification", "no causal language model"),
        ("quantization_config", {"quant_method": "gptq", "bits": 4}, "quantised already"),
        ("architectures", ["LlamaForSequenceClassification"], "no causal language model"),
        ("is_encoder_decoder", True, "more than a decoder of text.*text_config"),
        ("add_cross_attention", True, "more than a decoder of text"),
        ("vision_config", {"hidden_size": 1280, "depth": 32}, "more than a decoder of text"),
        ("audio_config", {"d_model": 1280}, "more than a decoder of text"),
    ],
)
def test_a_known_decoder_in_an_unknown_form_is_refused(key: str, value: Any, said: str) -> None:
    """Each was counted as a plain bf16 Llama."""
    with pytest.raises(SizeError, match=rf"c\.json\.{key}: .*{said}"):
        shape_from_config({**CONFIG, key: value}, name="m", at="c.json")


def test_what_a_decoder_says_it_has_not_is_no_reason_to_refuse_it() -> None:
    nothing = {"is_encoder_decoder": False, "add_cross_attention": False, "vision_config": None}
    plain = shape_from_config(CONFIG, name="m", at="c.json")
    assert shape_from_config({**CONFIG, **nothing}, name="m", at="c.json") == plain


@pytest.mark.parametrize(
    ("more", "known"),
    [
        ({}, None),
        ({"max_position_embeddings": 8192}, 8192),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {
                "max_position_embeddings": 131072,
                "rope_scaling": {"factor": 8.0, "original_max_position_embeddings": 8192},
            },
            131072,
        ),
    ],
)
def test_the_longest_context_is_what_the_config_says(
    more: dict[str, Any], known: int | None
) -> None:
    config = {**CONFIG, "architectures": ["LlamaForCausalLM"], "num_experts": None, **more}
    shape = shape_from_config(config, name="m", at="c.json")
    assert shape.max_positions == known
    assert shape.context_problem(10**6) is None if known is None else shape.context_problem(10**6)
    assert shape.context_problem(known or 1) is None
