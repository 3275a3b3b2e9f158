"""The planner against the trainer: exact bytes, saved tensors, peaks, and the plan it reads."""

from __future__ import annotations

import dataclasses
import json
import os
import typing
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cost.size import memory
from cost.size.memory import Dtype, Method, Sharding, Training, training_memory
from cost.size.shape import LINEAR_MODULES, ModelShape, load_shape, rows
from tests.gpu.work import KINDS, hf_config, kind_of
from tests.nightly import at_night
from tests.workloads import varlen_kernel
from workloads.common.exit_codes import ConfigError, ExitCode
from workloads.data.token_rows import Batch
from workloads.recipes import train as train_config
from workloads.recipes.train import LoraConfig, TrainConfig
from workloads.train.inputs import PLAN_VARIABLE, checked_plan, choose_strategy, read_plan
from workloads.train.model import AssistantLoss, build_model, low_activations, recomputed_layers
from workloads.train.strategy import autocast, build_optimizer

CPU = torch.device("cpu")
DTYPES = {Dtype.BF16: torch.bfloat16, Dtype.FP32: torch.float32}


def tiny(kind: str, *, vocab: int = 400, layers: int = 2) -> ModelShape:
    """Returns a small shape of a family, with heads that do not make up the hidden size."""
    return ModelShape(
        name="tiny",
        hidden=64,
        layers=layers,
        heads=4,
        kv_heads=2,
        head_dim=24,
        intermediate=176,
        vocab=vocab,
        qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3",
    )


def trainer_model(shape: ModelShape, plan: Training, tmp_path: Path) -> Any:
    """Returns the model as the trainer builds it, from a folder."""
    import transformers

    kind = kind_of(shape)
    folder = tmp_path / f"{kind}-{shape.layers}-{shape.vocab}"
    if not folder.exists():
        getattr(transformers, f"{KINDS[kind]}ForCausalLM")(hf_config(shape)).save_pretrained(folder)
    config = config_of(plan)
    return low_activations(build_model(folder, config, device=CPU), config)


def config_of(plan: Training) -> TrainConfig:
    """Returns the trainer's settings for a planned training."""
    return TrainConfig(
        dataset="x",
        method=typing.cast(Any, plan.method.value),
        dtype=typing.cast(Any, plan.dtype.value),
        fp32_embeddings=plan.fp32_embeddings,
        lora=LoraConfig(rank=plan.rank, alpha=8, dropout=plan.dropout),
        gradient_checkpointing=plan.gradient_checkpointing,
        loss_chunk_tokens=plan.logits_chunk_tokens or 0,
        attention=plan.attention,
        max_steps=1,
        learning_rate=0.001,
    )


@pytest.fixture(autouse=True)
def varlen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the kernel for packed rows run here, as it does on a GPU: not in fp32."""
    varlen_kernel.as_on_a_gpu(monkeypatch.setattr)


def loss_of(model: Any, plan: Training, batch: Batch) -> torch.Tensor:
    """Returns the loss of a forward pass as the trainer does it."""
    with autocast(config_of(plan), CPU):
        return AssistantLoss(model, chunk_tokens=plan.logits_chunk_tokens)(batch)


def batch_of(plan: Training, shape: ModelShape) -> Batch:
    """Returns one micro batch with a label at every position."""
    size = (plan.micro_batch_size, plan.sequence_length)
    ids = torch.randint(0, shape.vocab, size)
    return Batch(
        input_ids_BT=ids,
        labels_BT=ids.clone(),
        position_ids_BT=torch.arange(size[1]).expand(size).contiguous(),
        document_BT=torch.zeros(size, dtype=torch.long),
        num_tokens=ids.numel(),
        num_label_tokens=ids.numel(),
    )


def optimizer_of(model: Any) -> torch.optim.Optimizer:
    """Returns the trainer's optimizer."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return build_optimizer(trained, lr=0.001, weight_decay=0.0)


def state_tensors(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Returns every tensor of the optimizer's state, but for the numbers of steps."""
    states = optimizer.state.values()
    return [value for state in states for value in state.values() if value.ndim]


def num_bytes(tensors: typing.Iterable[torch.Tensor]) -> int:
    """Returns the bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Live(TorchDispatchMode):
    """Counts the bytes of storages that are alive: those given, and every result since."""

    def __init__(self, *given: torch.Tensor) -> None:
        super().__init__()
        self.alive: dict[int, int] = {}
        self.now = self.peak = 0
        for tensor in given:
            self._add(tensor)

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.alive:
            return
        self.alive[key] = storage.nbytes()
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._drop, key)

    def _drop(self, key: int) -> None:
        self.now -= self.alive.pop(key, 0)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf)
        return result


def on_meta(shape: ModelShape) -> Any:
    """Returns the model without memory for its weights."""
    import transformers

    kind = kind_of(shape)
    with torch.device("meta"):
        return getattr(transformers, f"{KINDS[kind]}ForCausalLM")(hf_config(shape))


@pytest.mark.parametrize("name", rows())
def test_a_shape_of_the_catalog_counts_as_transformers_builds_it(name: str) -> None:
    shape = load_shape(name)
    assert sum(weight.numel() for weight in on_meta(shape).parameters()) == shape.parameters


@pytest.mark.parametrize(("name", "rank"), [("Qwen2-7B", 64), ("Qwen3-8B", 16), ("Llama-2-7b", 8)])
def test_adapters_count_as_peft_attaches_them(name: str, rank: int) -> None:
    import peft

    shape = load_shape(name)
    lora = peft.LoraConfig(r=rank, target_modules="all-linear", task_type="CAUSAL_LM")
    with torch.device("meta"):
        adapted = peft.get_peft_model(on_meta(shape), lora)
    trained = [weight for weight in adapted.parameters() if weight.requires_grad]
    assert sum(weight.numel() for weight in trained) == shape.adapter_weights(rank=rank)


def test_the_installed_model_is_its_row_of_the_catalog() -> None:
    cache = os.environ.get("SOPERATOR_CACHE") or Path.home() / ".cache" / "soperator-stack"
    folder = Path(cache) / "models" / "SmolLM2-135M-Instruct"
    if not folder.is_dir():
        pytest.skip("SmolLM2-135M-Instruct is not set up; run: make setup")
    installed = load_shape(str(folder))
    assert dataclasses.replace(installed, name="SmolLM2-135M") == load_shape("SmolLM2-135M")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
def test_weights_gradients_and_optimizer_are_exact_to_the_byte(
    kind: str, method: Method, dtype: Dtype, tmp_path: Path
) -> None:
    plan = Training(method=method, dtype=dtype, rank=4, sequence_length=16)
    shape = tiny(kind)
    model = trainer_model(shape, plan, tmp_path)
    optimizer = optimizer_of(model)
    loss_of(model, plan, batch_of(plan, shape)).backward()
    gradients = num_bytes(w.grad for w in model.parameters() if w.grad is not None)
    optimizer.step()
    memory = training_memory(shape, plan, Sharding())
    assert memory.weights == num_bytes(model.parameters())
    assert memory.gradients == gradients
    assert memory.optimizer == num_bytes(state_tensors(optimizer))


@pytest.mark.feature("S003-38", "S003-39")
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_layer_keeps_is_what_autograd_saves(
    kind: str, method: Method, dtype: Dtype, checkpointing: bool, tmp_path: Path
) -> None:
    plan = Training(
        method=method,
        dtype=dtype,
        rank=8,
        sequence_length=128,
        gradient_checkpointing=checkpointing,
    )
    saved = [_saved_bytes(tiny(kind, layers=layers), plan, tmp_path) for layers in (2, 3)]
    two, three = (tiny(kind, layers=layers) for layers in (2, 3))
    copies = [training_memory(shape, plan, Sharding()).gathered for shape in (two, three)]
    kept = memory.layer_kept(two, plan, recomputed=checkpointing).on_each(1)
    assert kept + copies[1] - copies[0] == saved[1] - saved[0]


@pytest.mark.feature("S003-38", "S003-39")
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
def test_a_model_of_which_some_layers_are_computed_again_saves_what_is_planned(
    method: Method, dtype: Dtype, tmp_path: Path
) -> None:
    """One layer of two, and one more of either kind."""
    planned, saved = list[int](), list[int]()
    for layers, recomputed in ((2, 1), (3, 1), (3, 2), (4, 2)):
        shape = tiny("qwen3", layers=layers)
        plan = Training(
            method=method,
            dtype=dtype,
            rank=8,
            sequence_length=128,
            gradient_checkpointing=recomputed,
        )
        parts = training_memory(shape, plan, Sharding())
        planned.append(parts.activations + parts.gathered)
        saved.append(_saved_bytes(shape, plan, tmp_path))
    assert [each - planned[0] for each in planned] == [each - saved[0] for each in saved]


@pytest.mark.feature("S003-38")
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
def test_layers_computed_again_change_no_bit(method: Method, dtype: Dtype, tmp_path: Path) -> None:
    shape, found = tiny("qwen3", layers=3), list[list[torch.Tensor]]()
    for layers in (False, 1, 2, 3, True):
        plan = Training(
            method=method, dtype=dtype, rank=8, sequence_length=64, gradient_checkpointing=layers
        )
        model = trainer_model(shape, plan, tmp_path)
        assert recomputed_layers(model) == (3 if layers is True else layers, 3)
        torch.manual_seed(0)
        loss = loss_of(model, plan, batch_of(plan, shape))
        loss.backward()
        found.append([loss, *(w.grad for w in model.parameters() if w.grad is not None)])
    assert len(found[0]) > 1
    for others in found[1:]:
        assert all(map(torch.equal, found[0], others))


@pytest.mark.feature("S000-33")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("attention", ["auto", "sdpa"])
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("fp32_embeddings", [False, True])
def test_a_base_of_four_bits_holds_and_saves_what_is_planned(
    kind: str, attention: Any, checkpointing: bool, fp32_embeddings: bool, tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    plan = Training(
        method=Method.QLORA,
        dtype=Dtype.BF16,
        fp32_embeddings=fp32_embeddings,
        rank=8,
        sequence_length=128,
        gradient_checkpointing=checkpointing,
        attention=attention,
    )
    two, three = (tiny(kind, layers=layers) for layers in (2, 3))
    saved = [_saved_bytes(shape, plan, tmp_path) for shape in (two, three)]
    kept = memory.layer_kept(two, plan, recomputed=checkpointing).on_each(1)
    assert saved[1] - saved[0] == kept
    model = trainer_model(two, plan, tmp_path)
    # A 4-bit weight's constants are in no parameter; those of a layer are at most 4.6 bits.
    in_fp32 = two.outer_weights + two.layers * two.other_weights_per_layer
    in_16_bits = dataclasses.replace(plan, fp32_embeddings=False)
    more = memory.base_bytes(two, plan) - memory.base_bytes(two, in_16_bits)
    assert more == (2 * in_fp32 if fp32_embeddings else 0)
    of_base = [w for n, w in model.named_parameters() if w.is_floating_point() and "lora" not in n]
    assert num_bytes(of_base) == (4 if fp32_embeddings else 2) * in_fp32


def _saved_bytes(shape: ModelShape, plan: Training, tmp_path: Path) -> int:
    """Returns the bytes that autograd saves of one forward pass, weights aside."""
    model = trainer_model(shape, plan, tmp_path)
    # Held: a 4-bit layer exchanges its bias for one of the type that it is given, and what is saved
    # could get the address of the old one.
    storages = [w.untyped_storage() for w in (*model.parameters(), *model.buffers())]
    weights = {each._cdata for each in storages}
    kept: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = tensor
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = loss_of(model, plan, batch_of(plan, shape))
    total = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    del loss
    return total


class Products(TorchDispatchMode):
    """Counts the multiplications of matrix products, by the type that they are done in."""

    def __init__(self) -> None:
        super().__init__()
        self.by_type: dict[torch.dtype, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket._qualified_op_name in ("aten::mm", "aten::bmm", "aten::addmm"):
            inner = args[-1].shape[-2]
            if inner > 1:  # positions times frequencies of the rotation are no matrix product
                self.by_type.setdefault(result.dtype, 0)
                self.by_type[result.dtype] += result.numel() * inner
        return result


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dropout", [at_night(0.0), 0.1])
def test_a_step_in_bf16_multiplies_nothing_in_fp32(
    kind: str, method: Method, dropout: float, tmp_path: Path
) -> None:
    """A GPU does it 15 times slower: 67 against 989 TFLOPS (H100 SXM data sheet, NVIDIA, 2023)."""
    plan = Training(method=method, dropout=dropout, dtype=Dtype.BF16, rank=8, sequence_length=64)
    shape = tiny(kind)
    model = trainer_model(shape, plan, tmp_path)
    with Products() as products:
        loss_of(model, plan, batch_of(plan, shape)).backward()
    # Two products forward and back for each weight that moves no more than its input.
    num_tokens = plan.micro_batch_size * plan.sequence_length
    least = (
        2
        * num_tokens
        * shape.layers
        * sum(rows * columns for rows, columns in map(shape.linear, LINEAR_MODULES))
    )
    assert [*products.by_type] == [torch.bfloat16]
    assert products.by_type[torch.bfloat16] > least


@pytest.mark.feature("S000-19")
@pytest.mark.parametrize(
    ("chunk_tokens", "vocab"), [(128, 6000), (None, 400), at_night(128, 400), at_night(None, 6000)]
)
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize(
    ("dtype", "checkpointing"),
    [
        (Dtype.BF16, False),
        (Dtype.BF16, True),
        at_night(Dtype.FP32, True),
        (Dtype.BF16, 1),
        at_night(Dtype.FP32, 3),
    ],
)
def test_the_peak_of_a_train_step_is_within_a_twentieth_of_the_plan(
    vocab: int,
    method: Method,
    dtype: Dtype,
    checkpointing: bool | int,
    chunk_tokens: int | None,
    tmp_path: Path,
) -> None:
    """A few rows on CPU, where every allocation can be counted; two micro batches, two steps."""
    plan = Training(
        method=method,
        dtype=dtype,
        rank=8,
        sequence_length=256,
        micro_batch_size=2,
        gradient_accumulation=2,
        gradient_checkpointing=checkpointing,
        logits_chunk_tokens=chunk_tokens,
    )
    shape = tiny("qwen3", vocab=vocab, layers=4)
    planned = training_memory(shape, plan, Sharding()).total
    assert planned == pytest.approx(_peak_bytes(shape, plan, tmp_path), rel=0.05)


@pytest.mark.feature("S000-19")
@pytest.mark.parametrize("method", [Method.FULL, Method.LORA])
@pytest.mark.parametrize("dtype", [Dtype.BF16, Dtype.FP32])
def test_the_peak_of_layers_computed_again_has_nothing_of_a_small_head(
    method: Method, dtype: Dtype, tmp_path: Path
) -> None:
    """It is in the backward pass of a layer: what the last norm and the head kept is free then."""
    plan = Training(
        method=method,
        dtype=dtype,
        rank=8,
        sequence_length=512,
        micro_batch_size=2,
        gradient_accumulation=2,
        gradient_checkpointing=True,
        logits_chunk_tokens=128,
    )
    shape = tiny("qwen3", vocab=100)
    planned = training_memory(shape, plan, Sharding()).total
    assert planned == pytest.approx(_peak_bytes(shape, plan, tmp_path), rel=0.03)


def _peak_bytes(shape: ModelShape, plan: Training, tmp_path: Path) -> int:
    """Returns the bytes that live at once at most in a train step after the first."""
    model = trainer_model(shape, plan, tmp_path)
    optimizer, rows_ = optimizer_of(model), batch_of(plan, shape)
    loss_of(model, plan, rows_).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    live = Live(
        *model.parameters(),
        *state_tensors(optimizer),
        *(
            getattr(rows_, name)
            for name in ("input_ids_BT", "labels_BT", "position_ids_BT", "document_BT")
        ),
    )
    with live:
        for _ in range(plan.gradient_accumulation):
            loss_of(model, plan, rows_).backward()
        optimizer.step()
    return live.peak


def test_the_planner_knows_what_the_trainer_can_run() -> None:
    hints = typing.get_type_hints(TrainConfig)
    assert set(typing.get_args(hints["method"])) == {each.value for each in Method}
    assert set(typing.get_args(hints["dtype"])) == {each.value for each in memory.TRAINED_DTYPES}
    assert set(train_config.STRATEGIES) == {each.value for each in memory.TRAINED}
    assert typing.get_args(hints["strategy"]) == ("auto", *train_config.STRATEGIES)


def test_the_planner_has_the_defaults_of_the_trainer() -> None:
    ours = {field.name: field.default for field in dataclasses.fields(Training)}
    theirs = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    lora = {field.name: field.default for field in dataclasses.fields(LoraConfig)}
    # The plan of a recipe that leaves it out says it: without it, unless the job needs it.
    assert (ours.pop("gradient_checkpointing"), theirs["gradient_checkpointing"]) == (False, None)
    shared = ours.keys() & theirs.keys()
    assert {name: str(ours[name]) for name in shared} == {
        name: str(theirs[name]) for name in shared
    }
    assert (ours["rank"], ours["dropout"]) == (lora["rank"], lora["dropout"])
    assert lora["target_modules"] == ("all-linear",)
    assert ours["targets"] == LINEAR_MODULES


PLAN: dict[str, Any] = {
    "schema_version": 2,
    "recipe_model": "tiny",
    "parameters": 23_000,
    "world_size": 1,
    "strategy": "ddp",
    "reason": "needs 0.1 GiB of 41.1 GiB a GPU",
    "fits": True,
    "largest_micro_batch": 47,
    "memory_gib_per_rank": {"weights": 0.1, "total": 0.1},
    "method": "lora",
    "dtype": "fp32",
    "sequence_length": 2048,
    "micro_batch_size": 1,
    "gradient_checkpointing": 0,
    "layers": 2,
}
CONFIG = TrainConfig(
    dataset="x", dtype="fp32", sequence_length=2048, max_steps=4, learning_rate=0.01
)
Write = Callable[..., Path]


@pytest.fixture
def ship(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """`ship(fits=False)`: writes a changed plan and names it to the job; its path."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "shipped.json"
        path.write_text(json.dumps({**PLAN, **changes}), encoding="utf-8")
        monkeypatch.setenv(PLAN_VARIABLE, str(path))
        return path

    return write


def test_a_job_without_a_plan_runs_ddp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PLAN_VARIABLE, raising=False)
    assert read_plan() is None
    assert choose_strategy(None, CONFIG) == "ddp"


def test_a_plan_that_is_gone_is_told_and_not_missed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "none.json"))
    assert read_plan() is None
    assert "the plan of this job is gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read as a plan"),
        ("[]", "schema_version: got None, expected 2"),
        ('{"schema_version": 2}', r"recipe_model: missing; .*fits: missing"),
    ],
)
def test_a_damaged_plan_is_refused(ship: Write, text: str, message: str) -> None:
    ship().write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        read_plan()


def test_a_plan_of_the_version_before_is_refused_with_the_way_out(ship: Write) -> None:
    """Its gradient_checkpointing said yes or no, and it had no layers."""
    before = {key: value for key, value in PLAN.items() if key != "layers"}
    before |= {"schema_version": 1, "gradient_checkpointing": False}
    ship().write_text(json.dumps(before), encoding="utf-8")
    way_out = "submit the job again with the checkout that the cluster has"
    with pytest.raises(ConfigError, match=rf"schema_version: got 1, expected 2; {way_out}$"):
        read_plan()


def test_a_wrong_type_in_a_plan_is_refused_with_its_key(ship: Write) -> None:
    ship(world_size=True, memory_gib_per_rank={"total": "much"})
    with pytest.raises(ConfigError, match=r"world_size: got true, expected a whole number"):
        read_plan()
    ship(memory_gib_per_rank={})
    with pytest.raises(ConfigError, match=r"memory_gib_per_rank\.total: got None"):
        read_plan()


def test_a_plan_of_another_model_is_refused(ship: Write) -> None:
    ship(recipe_model="Qwen/Qwen3-14B")
    with pytest.raises(
        ConfigError, match=r"made for model Qwen/Qwen3-14B, but the recipe trains tiny"
    ):
        checked_plan(read_plan(), model="tiny", config=CONFIG, world_size=1)


@pytest.mark.parametrize(
    ("changes", "world_size", "word"),
    [
        ({"world_size": 2}, 1, "world size 2 there, 1 here"),
        ({}, 3, "world size 1 there, 3 here"),
        ({"method": "full"}, 1, "method full there, lora here"),
        ({"sequence_length": 4096}, 1, "sequence_length 4096 there, 2048 here"),
        ({"gradient_checkpointing": 1}, 1, "gradient_checkpointing 1 of 2 there, False here"),
    ],
)
def test_a_plan_of_another_run_is_left_aside_with_a_warning(
    ship: Write,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, Any],
    world_size: int,
    word: str,
) -> None:
    ship(**changes)
    config = dataclasses.replace(CONFIG, gradient_checkpointing=False)
    assert checked_plan(read_plan(), model="tiny", config=config, world_size=world_size) is None
    assert word in capsys.readouterr().err


@pytest.mark.parametrize(("planned", "asked"), [(1, None), (1, 1), (2, 2), (2, True), (0, False)])
def test_a_plan_for_as_many_layers_as_the_recipe_names_is_kept(
    ship: Write, planned: int, asked: bool | int | None
) -> None:
    ship(gradient_checkpointing=planned)
    config = dataclasses.replace(CONFIG, gradient_checkpointing=asked)
    assert checked_plan(read_plan(), model="tiny", config=config, world_size=1) is not None


def test_an_explicit_strategy_wins_and_the_disagreement_is_told(
    ship: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ship(strategy="fsdp", reason="needs 12.0 GiB")
    plan = read_plan()
    explicit = dataclasses.replace(CONFIG, strategy="ddp")
    assert choose_strategy(plan, explicit) == "ddp"
    told = capsys.readouterr().err
    assert "warning: train.strategy ddp wins over the plan, which says fsdp: needs 12.0" in told


def test_a_strategy_that_the_trainer_does_not_run_is_told(
    ship: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ship(strategy="zero-1")
    assert choose_strategy(read_plan(), CONFIG) == "ddp"
    assert "the plan says zero-1, which this trainer does not run" in capsys.readouterr().err


def test_a_plan_that_divides_what_the_recipe_cannot_divide_is_told(
    ship: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    four_bit = dataclasses.replace(CONFIG, method="qlora", dtype="bf16")
    ship(strategy="fsdp", method="qlora", dtype="bf16")
    assert choose_strategy(read_plan(), four_bit) == "ddp"
    assert "4-bit weights are not divided between ranks" in capsys.readouterr().err
    ship(strategy="fsdp")
    assert choose_strategy(read_plan(), CONFIG) == "fsdp"


def test_a_plan_that_agrees_is_followed_without_a_warning(
    ship: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ship()
    assert choose_strategy(read_plan(), CONFIG) == "ddp"
    assert "warning" not in capsys.readouterr().err


def test_a_run_that_does_not_fit_by_the_plan_is_refused_unless_its_strategy_is_named(
    ship: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    ship(fits=False, reason="needs 99.0 GiB of 41.1 GiB a GPU")
    with pytest.raises(ConfigError, match=r"does not fit: needs 99\.0 GiB of 41\.1 GiB a GPU"):
        choose_strategy(read_plan(), CONFIG)
    for again in (0, 1, 2):
        ship(fits=False, reason="needs 99.0 GiB of 41.1 GiB a GPU", gradient_checkpointing=again)
        with pytest.raises(ConfigError) as refused:
            choose_strategy(read_plan(), CONFIG)
        assert ("set train.gradient_checkpointing=true" in str(refused.value)) is (again < 2)
    choose_strategy(read_plan(), dataclasses.replace(CONFIG, strategy="ddp"))
    ship(largest_micro_batch=1)
    choose_strategy(read_plan(), dataclasses.replace(CONFIG, micro_batch_size=2))
    told = capsys.readouterr().err
    assert "by the plan this run does not fit: needs 99.0 GiB" in told
    assert "train.micro_batch_size 2 is over the plan's largest, 1" in told


def test_the_trainer_reads_what_the_planner_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from cost.runs.forecast import recipe_of
    from cost.size.plan import make_plan
    from stacks.load import load_stack
    from workloads.recipes import load_recipe

    (tmp_path / "id.pub").write_text(f"ssh-ed25519 {'A' * 68} user@host\n", encoding="utf-8")
    monkeypatch.setenv("SOPERATOR_SSH_PUBLIC_KEY_FILE", str(tmp_path / "id.pub"))
    folder = Path(__file__).parents[2] / "workloads" / "recipes"
    files = {f"workloads/recipes/{path.name}": path.read_bytes() for path in folder.glob("*.json")}
    for stack in ("local", "l40s-dev", "h100-prod", "h200-elastic"):
        spec = load_stack(stack)
        job = next(each for each in spec.jobs if each.module == "workloads.train")
        written = make_plan(spec, job, recipe_of(job, files))
        path = tmp_path / f"{stack}.json"
        path.write_bytes(written.to_bytes())
        recipe = load_recipe(job.recipe)
        assert recipe.train is not None
        plan = checked_plan(
            read_plan({PLAN_VARIABLE: str(path)}),
            model=recipe.model,
            config=recipe.train,
            world_size=job.nodes * max(1, job.gpus_per_node),
        )
        assert plan is not None
        assert plan.parameters == written.shape.parameters


def test_a_run_keeps_its_plan_beside_its_record(places: Path, run: Any, ship: Write) -> None:
    shipped = ship(recipe_model="tiny")
    assert run("prepare-data")[0] == ExitCode.OK
    code, record = run("train", "train.max_steps=1")
    assert code == ExitCode.OK
    kept = places / "results" / "12" / "plan.json"
    assert record["artifacts"]["plan"] == str(kept)
    assert json.loads(kept.read_text()) == json.loads(shipped.read_text())
    ship(recipe_model="another")
    code, record = run("train", "train.max_steps=1")
    assert code == ExitCode.BAD_CONFIG
    assert "made for model another" in record["reason"]
