"""Attention over packed rows: which kind runs where, and that both kinds see the same."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.workloads import varlen_kernel
from tests.workloads.conftest import Run
from tests.workloads.test_data import example_of, rows_of
from workloads.common.exit_codes import ConfigError, ExitCode
from workloads.data.token_rows import Batch, collate, pack
from workloads.recipes.train import LoraConfig, TrainConfig
from workloads.train import model as train_model
from workloads.train.model import (
    AssistantLoss,
    attention_inputs,
    choose_attention,
    prepare_model,
    varlen_attention,
)
from workloads.train.strategy import compile_layers

CONFIG = TrainConfig(dataset="x", max_steps=1, learning_rate=0.1)
CPU, GPU = torch.device("cpu"), torch.device("cuda")
SIZES: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}


@pytest.fixture
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the kernel for packed rows run on this machine's CPU."""
    varlen_kernel.register()
    transformers.AttentionInterface.register("varlen", varlen_attention)
    monkeypatch.setattr(train_model, "varlen_problem", lambda *_: None)


def packed_batch(*, multiple: int = 1) -> Batch:
    """Returns two rows of two documents each, of different lengths."""
    examples = [example_of(size, first=first) for first, size in enumerate((9, 5, 7, 4))]
    return collate(pack(rows_of(examples), sequence_length=14), pad_id=0, multiple=multiple)


def model_of(kind: str, attention: str, **more: Any) -> Any:
    """Returns a model with few random weights, the same for each attention."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**SIZES, **more)
    auto: Any = transformers.AutoModelForCausalLM
    return auto.from_config(config, attn_implementation=attention)


@pytest.mark.feature("S003-36", "S003-78")
@pytest.mark.parametrize(
    ("device", "dtype", "capability", "expected"),
    [
        (GPU, "bf16", (9, 0), "varlen"),
        (GPU, "fp16", (8, 9), "varlen"),
        (GPU, "fp32", (9, 0), "sdpa"),
        (GPU, "fp16", (7, 0), "sdpa"),
        (CPU, "bf16", (9, 0), "sdpa"),
    ],
)
def test_a_gpu_computes_each_document_alone_wherever_the_kernel_runs(
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    dtype: Any,
    capability: tuple[int, int],
    expected: str,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    config, shape = replace(CONFIG, dtype=dtype), transformers.Qwen2Config(**SIZES)
    assert choose_attention(config, device, shape) == expected
    assert choose_attention(replace(config, attention="sdpa"), device, shape) == "sdpa"
    if expected == "sdpa":
        with pytest.raises(ConfigError, match=r"train\.attention varlen: .*; use auto"):
            choose_attention(replace(config, attention="varlen"), device, shape)


@pytest.mark.parametrize(
    ("kind", "more", "expected"),
    [
        ("Qwen2", {}, None),
        ("Qwen3", {}, None),
        ("Llama", {}, None),
        ("Mistral", {"sliding_window": 6}, None),
        ("Llama", {"attention_dropout": 0.1}, "llama has attention_dropout"),
        ("Gemma2", {}, "gemma2 has attn_logit_softcapping"),
        ("Falcon", {}, "falcon has no exchangeable attention"),
    ],
)
@pytest.mark.usefixtures("varlen")
def test_a_model_whose_attention_has_more_keeps_the_mask(
    kind: str, more: dict[str, Any], expected: str | None
) -> None:
    sizes = {} if kind == "Falcon" else SIZES
    shape = getattr(transformers, f"{kind}Config")(**sizes, **more)
    assert choose_attention(CONFIG, GPU, shape) == ("varlen" if expected is None else "sdpa")
    if expected:
        with pytest.raises(ConfigError, match=expected):
            choose_attention(replace(CONFIG, attention="varlen"), GPU, shape)


@pytest.mark.parametrize("attention", ["softcap", "s_aux", "position_bias"])
def test_an_argument_that_the_kernel_does_not_know_is_no_silent_difference(attention: str) -> None:
    states = torch.zeros(1, 2, 3, 8)
    with pytest.raises(ConfigError, match=f"has a {attention}, which varlen lacks"):
        varlen_attention(
            torch.nn.Identity(),
            *(states, states, states, None),
            cu_seq_lens_q=torch.tensor([0, 3], dtype=torch.int32),
            max_length_q=4,
            **{attention: torch.ones(1)},
        )


WINDOW = {"sliding_window": 3}
FAMILIES = [
    ("Qwen2", {}),
    ("Qwen3", {}),
    ("Llama", {}),
    ("Mistral", WINDOW),
    ("Qwen2", WINDOW | {"use_sliding_window": True, "max_window_layers": 1}),
    ("Gemma3Text", WINDOW | {"layer_types": ["sliding_attention", "full_attention"]}),
]


@pytest.mark.feature("S003-36")
@pytest.mark.parametrize("attention", ["sdpa", "varlen"])
@pytest.mark.parametrize(("kind", "more"), FAMILIES)
@pytest.mark.usefixtures("varlen")
def test_a_document_in_a_row_sees_what_it_sees_alone(
    kind: str, more: dict[str, Any], attention: str
) -> None:
    """Alone it has the masks that the model makes itself, with the windows of its layers."""
    batch = packed_batch(multiple=16)
    model, alone = model_of(kind, attention, **more), model_of(kind, "sdpa", **more)
    logits = model(**attention_inputs(model.config, batch), use_cache=False).logits.flatten(0, 1)
    ends = batch.document_ends.tolist()
    for start, end in itertools.pairwise(ends):
        ids = batch.input_ids_BT.flatten()[start:end]
        if batch.document_BT.flatten()[start] >= 0:
            torch.testing.assert_close(logits[start:end], alone(ids[None]).logits[0])


@pytest.mark.feature("S003-36")
@pytest.mark.parametrize(("kind", "more"), FAMILIES)
@pytest.mark.usefixtures("varlen")
def test_both_kinds_have_one_loss_and_one_gradient(kind: str, more: dict[str, Any]) -> None:
    found: list[list[Any]] = []
    for attention in ("sdpa", "varlen"):
        model = model_of(kind, attention, **more)
        loss = AssistantLoss(model)(packed_batch())
        loss.backward()
        found.append([loss, *(weight.grad for weight in model.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class Masks(TorchDispatchMode):
    """Counts tensors that have a value for each query and key of a row."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length, self.count = length, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.count += sum(each.shape[-2:] == (self.length,) * 2 for each in tensors)
        return result


@pytest.mark.feature("S001-83", "S001-92")
@pytest.mark.parametrize("method", ["lora", "full"])
def test_activations_are_computed_again_where_the_recipe_says_so(method: Any) -> None:
    """With adapters too, which are what seed 001 trains."""
    for wanted in (True, False):
        config = replace(CONFIG, method=method, gradient_checkpointing=wanted)
        model = prepare_model(model_of("Qwen3", "sdpa"), config)
        layers = [part for part in model.modules() if hasattr(part, "gradient_checkpointing")]
        assert layers
        assert any(part.gradient_checkpointing for part in layers) == wanted


@pytest.mark.parametrize(("attention", "has_masks"), [("sdpa", True), ("varlen", False)])
@pytest.mark.usefixtures("varlen")
def test_no_dense_mask_is_made_where_the_kernel_runs(attention: str, has_masks: bool) -> None:
    config = replace(CONFIG, gradient_checkpointing=True, dtype="fp32", lora=LoraConfig(rank=2))
    model = prepare_model(model_of("Qwen3", attention), config)
    batch = packed_batch(multiple=64)
    with Masks(64) as masks:
        AssistantLoss(model)(batch).backward()
    assert bool(masks.count) == has_masks


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++, which inductor needs on a CPU")
@pytest.mark.usefixtures("varlen")
def test_compiled_layers_are_one_graph_over_rows_of_any_length() -> None:
    """A second one where the first length is followed by another, and none after that."""
    from torch._dynamo.utils import counters

    config = replace(CONFIG, gradient_checkpointing=True, dtype="fp32", lora=LoraConfig(rank=2))
    model = prepare_model(model_of("Qwen3", "varlen"), config)
    expected = AssistantLoss(model)(packed_batch()).item()
    torch._dynamo.reset()
    counters.clear()
    compile_layers(model, replace(config, compile=True), CPU)
    graphs = []
    for sizes in ((9, 5, 7, 4), (90, 50, 7), (200, 3), (60,), (33, 100, 40, 2, 8)):
        rows = pack(rows_of([example_of(size) for size in sizes]), sequence_length=256)
        loss = AssistantLoss(model)(collate(rows, pad_id=0, multiple=128))
        loss.backward()
        graphs.append(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"]
    assert graphs[-1] <= 3, graphs
    assert AssistantLoss(model)(packed_batch(multiple=128)).item() == pytest.approx(expected)


SMALL = {
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8
}  # fmt: skip
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8
}  # fmt: skip


def test_layers_that_pass_on_what_they_read_take_no_packed_rows(
    places: Path, tokenizer: Any, run: Run
) -> None:
    """Packed rows of Qwen3.5 had a loss 3 % and a gradient 70 % off, without a word."""
    folder = places / "hybrid"
    shape = transformers.Qwen3_5TextConfig(
        vocab_size=len(tokenizer), max_position_embeddings=2048, **SMALL, **LINEAR
    )
    transformers.Qwen3_5ForCausalLM(shape).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lora = 'train.lora={"rank": 2, "target_modules": ["q_proj"]}'
    settings = (f"model={folder}", "train.max_steps=1", lora)
    assert run("prepare-data", *settings)[0] == 0
    code, record = run("train", *settings)
    assert code == ExitCode.BAD_CONFIG
    assert record["reason"] == (
        "train.packing: qwen3_5_text has layers that pass on what they read, from one conversation "
        "of a row to the next, which no mask of attention keeps apart; set train.packing=false"
    )
    code, record = run("train", *settings, "train.packing=false")
    assert code == 0, record["reason"]


@pytest.mark.parametrize(
    ("kind", "more", "is_refused"),
    [
        ("Lfm2", {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]}, True),
        ("MiniMax", {}, True),
        ("Mamba2", {}, True),
        ("InklingText", {}, True),
        ("Llama", {}, False),
        ("Mistral", {}, False),
        ("Gemma3Text", {}, False),
    ],
)
def test_what_attends_to_documents_alone_takes_packed_rows(
    tmp_path: Path, kind: str, more: dict[str, Any], is_refused: bool
) -> None:
    getattr(transformers, f"{kind}Config")(**more).save_pretrained(tmp_path)
    refused: Any = pytest.raises(ConfigError, match=r"set train\.packing=false")
    with refused if is_refused else contextlib.nullcontext():
        train_model.refuse_packing(tmp_path)
