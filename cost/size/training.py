"""What is trained and how: method, type of the weights, lengths, adapters.

Owns the values that decide memory and their allowed ranges. The defaults are those of the trainer
(workloads/train/config.py); a test compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cost.size.errors import SizeError
from cost.size.shape import LINEAR_MODULES


class Method(StrEnum):
    """What a fine-tuning changes."""

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
TRAINED_METHODS: Final = (Method.LORA, Method.FULL, Method.QLORA)
"""Methods that workloads/train can run."""
TRAINED_DTYPES: Final = (Dtype.BF16, Dtype.FP32, Dtype.FP16)
"""Types that workloads/train can run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One fine-tuning, per GPU where a number can differ between GPUs."""

    method: Method = Method.LORA
    dtype: Dtype = Dtype.BF16
    rank: int = 16
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped; above 0 it keeps a mask for each."""
    targets: tuple[str, ...] = LINEAR_MODULES
    sequence_length: int = 4096
    """Tokens of one packed row."""
    micro_batch_size: int = 1
    """Rows per GPU and forward pass."""
    gradient_accumulation: int = 1
    gradient_checkpointing: bool = False
    """Whether a layer keeps only its input and computes the rest again in the backward pass."""
    logits_chunk_tokens: int | None = None
    """Tokens whose logits exist at once; None: all of a micro batch, as the trainer does."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}: got {getattr(self, name)}, expected 1 or more"
            for name in ("rank", "sequence_length", "micro_batch_size", "gradient_accumulation")
            if getattr(self, name) < 1
        ]
        if self.logits_chunk_tokens is not None and self.logits_chunk_tokens < 1:
            problems.append(
                f"logits_chunk_tokens: got {self.logits_chunk_tokens}, expected 1 or more"
            )
        if not 0 <= self.dropout < 1:
            problems.append(f"dropout: got {self.dropout}, expected 0 to below 1")
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

    @property
    def tokens(self) -> int:
        """Tokens of one micro batch."""
        return self.sequence_length * self.micro_batch_size

    @property
    def has_adapters(self) -> bool:
        """True where the base is frozen and adapters are trained."""
        return self.method is not Method.FULL

    @property
    def value_bytes(self) -> int:
        """Bytes of one value in the forward pass."""
        return BITS[self.dtype] // 8
