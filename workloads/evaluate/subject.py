"""The model under test: where its weights are, and how they are loaded."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.job import Job
from workloads.evaluate.config import EvaluateConfig, Precision
from workloads.train.run_folder import resolve_adapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The recipe's model, or what was trained from it."""

    name: str
    model_dir: Path
    tuned_dir: Path | None
    """Adapter or trained model; None: the recipe's model itself."""

    def load(self, config: EvaluateConfig, here: World) -> Any:
        """Return the model with its weights as the recipe's dtype, adapters merged."""
        from workloads.common.models import load_model, torch_dtype
        from workloads.evaluate.adapter import load_tuned

        dtype = torch_dtype(config.dtype)
        if self.tuned_dir is None:
            return load_model(self.model_dir, dtype=dtype, device=here.device)
        return load_tuned(self.model_dir, self.tuned_dir, dtype=dtype, device=here.device)


def tuned_dir(job: Job, config: EvaluateConfig) -> Path:
    """Return the folder that evaluate.adapter names."""
    adapter = job.places.expand(config.adapter, at="evaluate.adapter")
    if not adapter.exists():
        raise DataError(f"evaluate.adapter {adapter}: missing; run the train job first")
    return resolve_adapter(adapter)


def load_precision(
    subject: Subject, precision: Precision, config: EvaluateConfig, here: World, scratch: Path
) -> Any:
    """Return the subject with weights of 16, 8 or 4 bits (nf4)."""
    import torch

    if precision == "bf16":
        bf16 = torch.bfloat16
        from workloads.common.models import load_model
        from workloads.evaluate.adapter import load_tuned

        if subject.tuned_dir is None:
            return load_model(subject.model_dir, dtype=bf16, device=here.device)
        return load_tuned(subject.model_dir, subject.tuned_dir, dtype=bf16, device=here.device)
    from transformers import BitsAndBytesConfig

    from workloads.common.models import load_model

    options: dict[str, Any] = (
        {"load_in_8bit": True}
        if precision == "8bit"
        else {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": torch.bfloat16,
        }
    )
    with _whole_model(subject, here, scratch) as folder:
        return load_model(
            folder,
            dtype=torch.bfloat16,
            device=here.device,
            quantization_config=BitsAndBytesConfig(**options),
        )


@contextmanager
def _whole_model(subject: Subject, here: World, scratch: Path) -> Iterator[Path]:
    """Yield a folder with all weights: bitsandbytes quantises only what it reads from files."""
    import torch

    from workloads.evaluate.adapter import load_tuned

    tuned = subject.tuned_dir
    if tuned is None:
        yield subject.model_dir
    elif not (tuned / "adapter_config.json").is_file():
        yield tuned
    else:
        folder = Path(tempfile.mkdtemp(prefix=".merged.", dir=scratch))
        try:
            merged = load_tuned(subject.model_dir, tuned, dtype=torch.bfloat16, device=here.device)
            merged.save_pretrained(folder)
            del merged
            yield folder
        finally:
            shutil.rmtree(folder)
