"""Models of known shapes with random weights, rows of random chats, and our Trainer over both."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn, cast

import torch
from torch import nn

from cost.size.memory import Dtype, Method, Training
from cost.size.shape import ModelShape, load_shape
from workloads.common.dist import World
from workloads.data.token_rows import TokenRows, pack
from workloads.recipes.train import LoraConfig, TrainConfig
from workloads.train.inputs import StopRequest
from workloads.train.loop import Progress, Trainer, TrainState, Watchdog
from workloads.train.measure import LossCurve, StepResult
from workloads.train.model import base_dtype, choose_attention, low_activations, prepare_model
from workloads.train.strategy import (
    autocast,
    build_optimizer,
    build_scaler,
    compile_layers,
    spread_ddp,
    use_liger,
)
from workloads.train.tasks import CausalLm

KINDS = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}


def kind_of(shape: ModelShape) -> str:
    """Return the transformers family of a shape."""
    return "qwen3" if shape.qk_norm else "qwen2" if shape.qkv_bias else "llama"


def hf_config(shape: ModelShape) -> Any:
    """Return the transformers config of a shape."""
    import transformers

    return getattr(transformers, f"{KINDS[kind_of(shape)]}Config")(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=8192,
    )


def tiny(shape: ModelShape) -> ModelShape:
    """Return the same family with two layers of a few weights."""
    few = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}
    return dataclasses.replace(shape, **few, intermediate=128, vocab=512)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One training to run: a model of the catalog and the settings of a recipe."""

    name: str
    model: str
    """Name in cost/size/models.yaml."""
    is_tiny: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    """Keys of `train`, beyond `defaults`."""
    defaults: dict[str, Any] = field(
        default_factory=lambda: {
            "dataset": "random",
            "max_steps": 10,
            "learning_rate": 1e-5,
            "checkpoint_every": 0,
            "lora": LoraConfig(rank=64, alpha=128),
        }
    )

    @property
    def shape(self) -> ModelShape:
        """The model's sizes."""
        shape = load_shape(self.model)
        return tiny(shape) if self.is_tiny else shape

    @property
    def config(self) -> TrainConfig:
        """The recipe's section `train`."""
        rows = {"sequence_length": 256} if self.is_tiny else {}
        return TrainConfig(**self.defaults | self.settings | rows)

    @property
    def plan(self) -> Training:
        """The same for the planner."""
        config = self.config
        return Training(
            method=Method(config.method),
            dtype=Dtype(config.dtype),
            rank=config.lora.rank,
            dropout=config.lora.dropout,
            sequence_length=config.sequence_length,
            micro_batch_size=config.micro_batch_size,
            gradient_accumulation=config.gradient_accumulation,
            gradient_checkpointing=config.gradient_checkpointing or 0,
            logits_chunk_tokens=config.loss_chunk_tokens or None,
            attention=config.attention,
        )


class RandomChats(CausalLm):
    """The task `causal_lm` over chats of random tokens and a model of random weights."""

    def __init__(self, case: Case) -> None:
        self._config, self._case = case.config, case
        self._pad_id, self._multiple = 0, 1
        limit, vocab = self._config.sequence_length, case.shape.vocab
        draw = torch.Generator().manual_seed(0)
        # Chats of function calling, most of them short: 400 tokens at the median of 4,096.
        sizes = torch.empty(8 * 40).log_normal_(-2.3, 0.7, generator=draw) * limit
        lengths = sizes.long().clamp(8, limit)
        ids = torch.randint(1, vocab, (int(lengths.sum()),), generator=draw)
        place = torch.cat([torch.arange(length) / length for length in lengths.tolist()])
        examples = TokenRows(
            input_ids=ids.to(torch.int32).numpy(),
            learned=(place >= 0.6).numpy(),
            offsets=torch.cat([torch.zeros(1, dtype=torch.long), lengths.cumsum(0)]).numpy(),
        )
        self.rows = pack(examples, sequence_length=limit)
        self.eval_rows, self.eval_digest = (), ""

    def build(self, device: torch.device, *, empty: bool = False) -> Any:
        """Return the model ready to train."""
        assert not empty, "no case divides its model"
        return prepare_model(random_model(self._case, device), self._config)


def random_model(case: Case, device: torch.device) -> Any:
    """Return the model with weights from a seed, made on `device`."""
    from transformers import AutoModelForCausalLM

    config, shape = case.config, hf_config(case.shape)
    dtype = base_dtype(config)
    torch.manual_seed(0)
    with device:
        model = cast(Any, AutoModelForCausalLM).from_config(
            shape, dtype=dtype, attn_implementation=choose_attention(config, device, shape)
        )
    with torch.no_grad():  # drawn in fp32: what types are compared in must not change the weights
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, device=device).mul_(0.02))
    if config.method == "qlora":
        _quantise(model, dtype)
    return model.eval()


def _quantise(model: Any, dtype: torch.dtype) -> None:
    """Put the layers' linear weights into 4 bits, as loading does it with four_bit_options."""
    import bitsandbytes as bnb

    for layer in model.get_decoder().layers:
        for parent in [*layer.modules()]:
            for name, linear in parent.named_children():
                if type(linear) is not nn.Linear:
                    continue
                quantised = bnb.nn.Linear4bit(
                    *(linear.in_features, linear.out_features, linear.bias is not None),
                    compute_dtype=dtype,
                    quant_type="nf4",
                    device="meta",
                )
                device = linear.weight.device
                weight: Any = bnb.nn.Params4bit
                quantised.weight = weight(
                    linear.weight.data.cpu(), requires_grad=False, quant_type="nf4"
                ).to(device)
                quantised.bias = linear.bias
                setattr(parent, name, quantised)
    model.is_loaded_in_4bit = True


class Steps(LossCurve):
    """A loss curve in memory."""

    def __init__(self, told: Callable[[StepResult], None] = lambda _: None) -> None:
        self.results: list[StepResult] = []
        self._told = told

    def append(self, figures: Mapping[str, Any]) -> None:
        """Keep a step, and tell of it."""
        self.results.append(StepResult(**figures))
        self._told(self.results[-1])


class NoCheckpoints:
    """A run that is measured saves nothing."""

    resumed_loss: float | None = None
    longest_save_s = 0.0

    def is_late(self) -> bool:
        """No time asks for one."""
        return False

    def due(self, step: int) -> bool:
        """No step asks for one."""
        return False

    def load(self, state: Any) -> bool:
        """Nothing to resume from."""
        return False

    def save(self, state: Any, step: int, *, loss: float | None = None) -> None:
        """Save nothing."""

    def wait(self) -> None:
        """Wait for nothing."""

    def load_best(self, state: Any) -> bool:
        """Nothing is the best."""
        return False


def trainer_of(config: TrainConfig, task: CausalLm, device: torch.device, curve: Steps) -> Trainer:
    """Return our Trainer over `task` on this process's device, without checkpoints."""
    world = World(rank=0, local_rank=0, world_size=1, device=device)
    model = use_liger(low_activations(task.build(device), config), config, device)
    compile_layers(model, config, device)
    strategy = spread_ddp(task.loss(model, device), model, world)
    optimizer = build_optimizer(strategy.trained, lr=config.learning_rate, weight_decay=0.0)
    assert config.max_steps is not None
    return Trainer(
        config=config,
        task=task,
        strategy=strategy,
        forward=partial(autocast, config, device),
        state=TrainState(
            model=model,
            optimizer=optimizer,
            scaler=build_scaler(config, device),
            strategy="ddp",
            world=world,
            progress=Progress(
                step=0,
                position=0,
                rows_per_step=config.micro_batch_size * config.gradient_accumulation,
                world_size=1,
                fingerprint="",
            ),
        ),
        num_steps=config.max_steps,
        checkpoints=NoCheckpoints(),
        stop=StopRequest(),
        watchdog=Watchdog(3600, fail=_stop),
        curve=curve,
        events=None,
    )


def _stop(error: Exception) -> NoReturn:
    sys.exit(f"tests.gpu: {error}")
