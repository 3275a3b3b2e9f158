"""What is trained and how: method, type of the weights, lengths, adapters, spread over GPUs.

The defaults are those of the trainer (workloads/recipes/train.py); a test compares the two, and
`TRAINED` with the strategies that the trainer can run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, Literal

from cost.size.shape import LINEAR_MODULES, SizeError, below_one


class Method(StrEnum):
    """What a fine-tuning changes; workloads/train runs each."""

    FULL = "full"
    LORA = "lora"
    QLORA = "qlora"


class Dtype(StrEnum):
    """Type of the weights in a forward pass."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"


BITS: Final = {Dtype.FP32: 32, Dtype.BF16: 16, Dtype.FP16: 16, Dtype.INT8: 8, Dtype.INT4: 4}
TRAINED_DTYPES: Final = (Dtype.BF16, Dtype.FP32, Dtype.FP16)
"""Types that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One fine-tuning, per GPU where a number can differ between GPUs."""

    method: Method = Method.LORA
    dtype: Dtype = Dtype.BF16
    fp32_embeddings: bool = False
    """qlora: embeddings, head, norms and what passes between layers in fp32."""
    rank: int = 16
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped; above 0 it keeps a mask for each."""
    targets: tuple[str, ...] = LINEAR_MODULES
    sequence_length: int = 4096
    """Tokens of one packed row."""
    micro_batch_size: int = 1
    """Rows per GPU and forward pass."""
    gradient_accumulation: int = 1
    gradient_checkpointing: bool | int = False
    """Layers, the first ones, that keep only their input and compute the rest again in the backward
    pass; True: all."""
    logits_chunk_tokens: int | None = 2048
    """Tokens whose logits exist at once; None: all of a micro batch."""
    attention: Literal["auto", "varlen", "sdpa"] = "auto"
    """sdpa, and auto in fp32: with a dense mask of each row."""

    def __post_init__(self) -> None:
        counts = ("rank", "sequence_length", "micro_batch_size", "gradient_accumulation")
        names = (*counts, "logits_chunk_tokens")
        problems = below_one({name: getattr(self, name) for name in names})
        if self.gradient_checkpointing < 0:
            problems.append(
                f"gradient_checkpointing: got {self.gradient_checkpointing}, expected >= 0"
            )
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout: got {self.dropout}, expected 0 to below 1")
        if self.fp32_embeddings and self.method is not Method.QLORA:
            problems.append(f"fp32_embeddings: got True with method {self.method}; use qlora")
        if BITS[self.dtype] < 16:
            instead = (
                "full training needs gradients of every weight, which 4 or 8 bits cannot hold; "
                "use --method qlora, which keeps the base in 4 bits and trains adapters"
                if self.method is Method.FULL
                else "the base of qlora is in 4 bits by itself; leave --dtype at bf16"
            )
            problems.append(f"dtype: {self.dtype} with method {self.method}: {instead}")
        unknown = [name for name in self.targets if name not in LINEAR_MODULES]
        if unknown or not self.targets:
            problems.append(
                f"targets: {', '.join(unknown) or 'none'}; expected some of "
                f"{', '.join(LINEAR_MODULES)}"
            )
        if problems:
            raise SizeError("\n".join(problems))

    def recomputed_layers(self, layers: int) -> int:
        """How many of a model's `layers`, the first ones, compute their activations again."""
        every = self.gradient_checkpointing is True
        return layers if every else min(layers, int(self.gradient_checkpointing))

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch."""
        return self.sequence_length * self.micro_batch_size

    @property
    def has_adapters(self) -> bool:
        """True where the base is frozen and adapters are trained."""
        return self.method is not Method.FULL

    @property
    def has_dense_mask(self) -> bool:
        """True where attention has a value for each pair of a row's tokens."""
        return self.attention == "sdpa" or self.dtype is Dtype.FP32

    @property
    def value_bytes(self) -> int:
        """Bytes of one value in the forward pass."""
        return BITS[self.dtype] // 8

    @property
    def passed_bytes(self) -> int:
        """Bytes of one value between layers, and of a frozen weight that is in no linear layer."""
        return 4 if self.fp32_embeddings else self.value_bytes


class Strategy(StrEnum):
    """What is divided between GPUs."""

    DDP = "ddp"
    ZERO1 = "zero-1"
    ZERO2 = "zero-2"
    FSDP = "fsdp"
    HSDP = "hsdp"
    OFFLOAD = "offload"
    TENSOR = "tensor"
    PIPELINE = "pipeline"
    THREE_D = "3d"


ABOUT: Final = {
    Strategy.DDP: "every GPU has all of it and other rows",
    Strategy.ZERO1: "optimizer state divided",
    Strategy.ZERO2: "optimizer state and gradients divided",
    Strategy.FSDP: "weights, gradients and optimizer state divided (ZeRO-3)",
    Strategy.HSDP: "divided as by fsdp inside each node, the same on every node",
    Strategy.OFFLOAD: "as fsdp, kept in the memory of the host",
    Strategy.TENSOR: "each layer divided inside a node",
    Strategy.PIPELINE: "layers divided into stages",
    Strategy.THREE_D: "tensor in a node, pipeline over nodes, rows over the rest",
}
TRAINED: Final = (Strategy.DDP, Strategy.FSDP, Strategy.HSDP, Strategy.OFFLOAD)
"""Strategies that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """A strategy with its degrees; their product is the number of GPUs."""

    strategy: Strategy = Strategy.DDP
    data: int = 1
    """GPUs that see other rows: the replicas, and what ZeRO divides by."""
    tensor: int = 1
    pipeline: int = 1
    replicas: int = 1
    """Of `data`: nodes that hold the same, and divide it among their own GPUs."""
    reshard_after_forward: bool = True
    """fsdp, hsdp: False keeps gathered layers for the backward pass, so that each moves once."""

    def __post_init__(self) -> None:
        ways = {name: getattr(self, name) for name in ("data", "tensor", "pipeline")}
        if problems := below_one(ways, " GPUs"):
            raise SizeError("\n".join(problems))

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.data * self.tensor * self.pipeline

    @property
    def parts(self) -> int:
        """GPUs that hold different parts of what is divided."""
        return self.data // self.replicas

    @property
    def label(self) -> str:
        """The strategy and its degrees, such as `3d (tensor 8 x pipeline 2 x data 1)`."""
        if self.strategy in (Strategy.TENSOR, Strategy.PIPELINE, Strategy.THREE_D):
            parts = [f"tensor {self.tensor}"] if self.tensor > 1 else []
            parts += [f"pipeline {self.pipeline}"] if self.pipeline > 1 else []
            parts += [f"data {self.data}"]
            return f"{self.strategy} ({' x '.join(parts)})"
        divided = f"{self.replicas} x {self.parts}" if self.replicas > 1 else f"x {self.data}"
        return f"{self.strategy} {divided}{'' if self.reshard_after_forward else ', gathered once'}"


GIB: Final = 2**30
BYTES_PER_GB: Final = 10**9
USABLE_PERCENT: Final = 92
"""The CUDA context, buffers of NCCL and fragmentation take the rest; measured by nobody here."""

# What CUDA shows of a data sheet's GB ("GPU 0 has a total capacity of ..."), the least reading.
# 48 (L40): github.com/QwenLM/Qwen3-VL/issues/2097, 2026-06-04; L40S shows 44.42 in
# github.com/stepfun-ai/Step-Video-T2V/issues/8, 2025-02-17. 80 (H100): nebius-h100-8gpu-benchmark.
# 141 (H200), 180 (B200): out-of-memory messages in public logs, read 2026-11-21.
_SHOWN_GIB: Final[Mapping[int, float]] = MappingProxyType(
    {48: 44.40, 80: 79.19, 141: 139.72, 180: 178.35}
)


def usable_bytes(gpu_memory_gb: int) -> int:
    """Bytes that tensors may take on a GPU of this many GB; decimal GB where none was read."""
    shown_gib = _SHOWN_GIB.get(gpu_memory_gb)
    shown = gpu_memory_gb * BYTES_PER_GB if shown_gib is None else round(shown_gib * GIB)
    return shown * USABLE_PERCENT // 100


def usable_host_bytes(memory_gib: int) -> int:
    """Bytes that a job may take of a node's own memory."""
    return memory_gib * GIB * USABLE_PERCENT // 100
