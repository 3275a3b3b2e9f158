"""The model under test: where its weights are, how they load, and what a result was made from."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common.dist import World
from workloads.common.exit_codes import DataError
from workloads.common.models import load_model
from workloads.data.manifest import read_object, sha256
from workloads.job import Job
from workloads.recipes.evaluate import EvaluateConfig, Precision
from workloads.train.run_folder import resolve_adapter

if TYPE_CHECKING:
    import torch


FORMAT = 1
_FILES = ("*.safetensors", "config.json", "generation_config.json", "adapter_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Model, rows, prompts and settings behind one model's rows."""

    format: int
    model: str
    base_sha256: str
    """Of the recipe's model."""
    tuned_sha256: str | None
    """Of the adapter or the trained model; None: the recipe's model answered."""
    rows_sha256: str
    """Of the chats and of the tokenised rows."""
    prompts_sha256: str
    """Of the token ids that the model read: template and tokenizer are in it."""
    settings: Mapping[str, Any]
    code_sha256: str

    @property
    def key(self) -> str:
        """Return the name of the folder that holds the rows."""
        values = asdict(self)
        # What is counted in an answer does not change it: answers of other terms are used again.
        values["settings"].pop("terms", None)
        text = json.dumps(values, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_header(value: Any, *, at: Path) -> Header:
    """Return the header in a result file."""
    fields = set(Header.__dataclass_fields__)
    if not isinstance(value, dict) or set(value) != fields or value["format"] != FORMAT:
        raise DataError(
            f"{at}: has no header of format {FORMAT}; make it with an inference job of this version"
        )
    return Header(**value)


def differences(original: Header, trained: Header) -> list[str]:
    """Return why two results are not of the same rows and base model; empty when they are."""
    problems: list[str] = []
    for name, what in (
        ("rows_sha256", "other rows"),
        ("prompts_sha256", "other prompts"),
        ("base_sha256", "another base model"),
        ("settings", "other settings"),
        ("code_sha256", "another version of the code"),
    ):
        before, after = getattr(original, name), getattr(trained, name)
        if before != after:
            problems.append(f"{what} ({_short(before)} and {_short(after)})")
    if original.tuned_sha256 is not None:
        problems.append("the original results are of a trained model")
    if trained.tuned_sha256 is None:
        problems.append("the trained results are of the original model")
    return problems


def model_sha256(folder: Path) -> str:
    """Return the hash of a model's or adapter's weights and configuration."""
    digest = hashlib.sha256()
    paths = sorted(path for pattern in _FILES for path in folder.glob(pattern))
    if not any(path.suffix == ".safetensors" for path in paths):
        raise DataError(f"{folder}: has no .safetensors file; copy the whole model there")
    for path in paths:
        digest.update(f"{path.name}:{_file_sha256(path)}\n".encode())
    return digest.hexdigest()


def _file_sha256(path: Path) -> str:
    if path.name != "adapter_config.json":
        return sha256(path)
    # The folder that the base model lay in at training says nothing about the adapter.
    values = {**read_object(path), "base_model_name_or_path": None}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@cache
def code_sha256() -> str:
    """Return the hash of what turns prompts into answers and losses, and these into scores."""
    names = ("generate.py", "held_out.py", "scores.py", "subject.py")
    names += ("../common/tool_calls.py", "../data/chats.py")
    hashes = (f"{name}:{sha256(Path(__file__).parent / name)}\n" for name in names)
    return hashlib.sha256("".join(hashes).encode()).hexdigest()


def _short(value: Any) -> str:
    return value[:12] if isinstance(value, str) else json.dumps(value, sort_keys=True)


def load_tuned(base_dir: Path, tuned_dir: Path, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the tuned model with weights of `dtype`; an adapter is merged: it costs no speed."""
    config_file = tuned_dir / "adapter_config.json"
    if not config_file.is_file():
        if (tuned_dir / "config.json").is_file():
            return load_model(tuned_dir, dtype=dtype, device=device)
        raise DataError(
            f"{tuned_dir}: has neither adapter_config.json nor config.json; run the train job, or "
            "set evaluate.adapter to its final/ folder"
        )
    check_base(base_dir, tuned_dir)
    import peft

    base = load_model(base_dir, dtype=dtype, device=device)
    try:
        tuned: Any = peft.PeftModel.from_pretrained(base, tuned_dir, is_trainable=False)
        return tuned.merge_and_unload(safe_merge=True).eval()
    except (RuntimeError, OSError, ValueError) as error:
        raise DataError(f"{tuned_dir}: adapter cannot be loaded: {error}") from error


def check_base(base_dir: Path, adapter_dir: Path) -> None:
    """Refuse an adapter that was trained on another model than the one in `base_dir`."""
    path = adapter_dir / "adapter_config.json"
    declared = read_object(path).get("base_model_name_or_path")
    if not isinstance(declared, str):
        raise DataError(f"{path}: is damaged: names no base model; run the train job again")
    if Path(declared).name != base_dir.name:
        raise DataError(
            f"{adapter_dir}: adapter of '{Path(declared).name}', the recipe's model is "
            f"'{base_dir.name}'; use the recipe of that model"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The recipe's model, or what was trained from it."""

    name: str
    model_dir: Path
    tuned_dir: Path | None
    """Adapter or trained model; None: the recipe's model itself."""

    def load(self, dtype: torch.dtype, here: World) -> Any:
        """Return the model with weights of `dtype`, adapters merged."""
        if self.tuned_dir is None:
            return load_model(self.model_dir, dtype=dtype, device=here.device)
        return load_tuned(self.model_dir, self.tuned_dir, dtype=dtype, device=here.device)


def tuned_dir(job: Job, config: EvaluateConfig) -> Path:
    """Return the folder that evaluate.adapter names."""
    adapter = job.places.expand(config.adapter, at="evaluate.adapter")
    if not adapter.exists():
        raise DataError(f"evaluate.adapter {adapter}: missing; run the train job first")
    return resolve_adapter(adapter)


def load_precision(subject: Subject, precision: Precision, here: World, scratch: Path) -> Any:
    """Return the subject with weights of 16, 8 or 4 bits (nf4)."""
    import torch

    if precision == "bf16":
        return subject.load(torch.bfloat16, here)
    from transformers import BitsAndBytesConfig

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

    tuned = subject.tuned_dir
    if tuned is None:
        yield subject.model_dir
    elif not (tuned / "adapter_config.json").is_file():
        yield tuned
    else:
        with tempfile.TemporaryDirectory(prefix=".merged.", dir=scratch) as folder:
            subject.load(torch.bfloat16, here).save_pretrained(folder)
            yield Path(folder)
